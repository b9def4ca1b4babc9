use std::os::unix::fs::FileExt;

use kvm_bindings::{CpuId, kvm_cpuid_entry2};

use virtio::{DeviceState, TransportStateV1};

use super::*;
use crate::ports::SerialStateV1;
use crate::x86::vcpu_state::VcpuStateV1;
use crate::x86::vm_state::VmStateV1;

fn frozen() -> Frozen {
    let leaf = kvm_cpuid_entry2 { function: 1, ecx: 1, ..Default::default() };
    Frozen {
        shape: ShapeV1 {
            vcpus: "1".parse().unwrap(),
            memory: "128M".parse().unwrap(),
            disks: Vec::new(),
            net: None,
            cid: 3,
        },
        vm: VmStateV1::default(),
        vcpus: vec![VcpuStateV1 { cpuid: vec![leaf], ..Default::default() }],
        devices: Vec::new(),
        serial: SerialStateV1::default(),
    }
}

fn file_of(bytes: &[u8]) -> File {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file
}

fn written() -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    write(&frozen(), file.as_file()).unwrap();
    std::fs::read(file.path()).unwrap()
}

#[test]
fn what_is_written_is_read() {
    let bytes = written();
    let back = read(&file_of(&bytes)).unwrap();
    assert_eq!(back.shape, frozen().shape);
    let header = bytes.split(|byte| *byte == b'\n').nth(1).unwrap();
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    assert_eq!(header["shape"]["memory"], 128 << 20);
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = written();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(read(&file_of(&damaged)).is_err(), "byte {at} of {}", bytes.len());
    }
}

#[test]
fn every_missing_end_and_every_addition_is_noticed() {
    let bytes = written();
    for len in 0..bytes.len() {
        assert!(read(&file_of(&bytes[..len])).is_err(), "{len} bytes of {}", bytes.len());
    }
    assert!(matches!(read(&file_of(&[&bytes[..], b"x"].concat())), Err(StateFileError::Length { .. })));
}

#[test]
fn a_damaged_section_is_named_and_a_newer_format_is_not_guessed_at() {
    let mut bytes = written();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let error = read(&file_of(&bytes)).unwrap_err().to_string();
    assert!(error.contains("section `serial`"), "{error}");
    let of_format = |format: &[u8]| read(&file_of(&[b"forkd-state ", format, &written()[13..]].concat()));
    assert!(matches!(of_format(b"3"), Err(StateFileError::Newer { found: 3 })));
    assert!(matches!(of_format(b"0"), Err(StateFileError::Foreign { .. })));
    assert_eq!(of_format(b"1").unwrap().shape, frozen().shape, "what an earlier forkd wrote");
}

#[test]
fn a_vm_that_contradicts_itself_or_the_host_is_unfit() {
    let here = CpuId::from_entries(&frozen().vcpus[0].cpuid).unwrap();
    let mut vm = frozen();
    assert!(vm.check(&here).unwrap_err().contains("devices"), "a VM has at least a vsock and an rng");
    let [vsock, rng, balloon] = [r#"{"vsock":{"next_port":1}}"#, r#"{"rng":{}}"#, r#"{"balloon":{}}"#]
        .map(|state| serde_json::from_str(state).unwrap());
    let with = |states: &[&DeviceState]| states.iter().map(|state| device((*state).clone())).collect();
    for (fits, devices) in [
        (true, with(&[&vsock, &rng])),
        (true, with(&[&vsock, &rng, &balloon])),
        (false, with(&[&vsock, &balloon])),
        (false, with(&[&vsock, &balloon, &rng])),
        (false, with(&[&vsock, &rng, &balloon, &balloon])),
    ] {
        vm.devices = devices;
        assert_eq!(vm.check(&here).is_ok(), fits, "{:?}", vm.devices);
    }
    vm.vcpus.clear();
    assert!(vm.check(&here).unwrap_err().contains("vCPUs"));
}

/// A device that no driver has touched.
fn device(device: DeviceState) -> TransportStateV1 {
    TransportStateV1 {
        status: 0,
        device_features_sel: 0,
        driver_features_sel: 0,
        driver_features: 0,
        queue_sel: 0,
        interrupt_status: 0,
        config_generation: 0,
        queues: Vec::new(),
        device,
    }
}
