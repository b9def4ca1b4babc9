//! Can this `/dev/kvm` run a stock kernel? Found out by running the instructions such a kernel needs.
//!
//! A device node proves nothing: paravirtual hosts offer a `/dev/kvm` on which `KVM_CREATE_VM` works and a stock kernel
//! then crawls through instruction emulation until it meets one that is not emulated.

use std::io;
use std::time::{Duration, Instant};

use kvm_bindings::kvm_regs;
use kvm_ioctls::{Kvm, VcpuExit};
use serde::Serialize;
use vm_memory::{Bytes, GuestAddress};

use crate::x86::{cpuid, registers};
use crate::{layout, memory, sys};

/// Where the probe's code lies.
const CODE: u64 = 0x10_0000;
/// Where the probe may write.
const SCRATCH: u64 = 0x11_0000;
/// Rounds of the loop: some milliseconds where instructions run, also under an emulated CPU.
const ROUNDS: u64 = 10_000;
/// Beyond this the instructions are emulated one by one: a kernel would take minutes to boot.
const PATIENCE: Duration = Duration::from_millis(1500);

/// The probe's answer.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    verdict: Verdict,
    detail: String,
    api_version: Option<i32>,
    vcpus_max: Option<usize>,
    run_us: Option<u128>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Usable,
    Missing,
    Denied,
    Unusable,
}

/// Runs the probe.
pub(crate) fn run() -> Report {
    let kvm = match Kvm::new() {
        Ok(kvm) => kvm,
        Err(error) => return unopened(error),
    };
    let report = |verdict, detail: String, run: Option<Duration>| Report {
        verdict,
        detail,
        api_version: Some(kvm.get_api_version()),
        vcpus_max: Some(kvm.get_max_vcpus()),
        run_us: run.map(|run| run.as_micros()),
    };
    match run_guest(&kvm) {
        Ok(run) if run > PATIENCE => report(
            Verdict::Unusable,
            "guest instructions are emulated one by one, a kernel would crawl".into(),
            Some(run),
        ),
        Ok(run) => report(Verdict::Usable, "guest code runs".into(), Some(run)),
        Err(why) => report(Verdict::Unusable, why, None),
    }
}

fn unopened(error: kvm_ioctls::Error) -> Report {
    let error = io::Error::from_raw_os_error(error.errno());
    let verdict = match error.kind() {
        io::ErrorKind::NotFound => Verdict::Missing,
        io::ErrorKind::PermissionDenied => Verdict::Denied,
        _ => Verdict::Unusable,
    };
    Report { verdict, detail: format!("/dev/kvm: {error}"), api_version: None, vcpus_max: None, run_us: None }
}

fn run_guest(kvm: &Kvm) -> Result<Duration, String> {
    let said = |what: &'static str| move |error: kvm_ioctls::Error| format!("{what}: {error}");
    let mem = memory::map(types::GuestMemorySize::MIN).map_err(|error| error.to_string())?.mem;
    let vm = kvm.create_vm().map_err(said("KVM_CREATE_VM"))?;
    vm.set_tss_address(layout::TSS).map_err(said("KVM_SET_TSS_ADDR"))?;
    vm.set_identity_map_address(layout::IDENTITY_MAP).map_err(said("KVM_SET_IDENTITY_MAP_ADDR"))?;
    sys::slot::set_all(&vm, &mem).map_err(said("KVM_SET_USER_MEMORY_REGION"))?;
    let mut vcpu = vm.create_vcpu(0).map_err(said("KVM_CREATE_VCPU"))?;
    let offered = cpuid::offered(kvm).map_err(said("KVM_GET_SUPPORTED_CPUID"))?;
    vcpu.set_cpuid2(&cpuid::for_vcpu(&offered, 0, 1)).map_err(said("KVM_SET_CPUID2"))?;
    registers::write_tables(&mem).map_err(|error| error.to_string())?;
    mem.write_slice(sys::probe_code::code(), GuestAddress(CODE)).map_err(|error| error.to_string())?;
    registers::set_long_mode(&vcpu).map_err(said("KVM_SET_SREGS"))?;
    let regs = kvm_regs { rip: CODE, rdi: ROUNDS, rsi: SCRATCH, rflags: 2, ..kvm_regs::default() };
    vcpu.set_regs(&regs).map_err(said("KVM_SET_REGS"))?;
    let start = Instant::now();
    // Somebody who stops and continues us, or looks at us with a debugger, interrupts the call.
    let exit = loop {
        match vcpu.run() {
            Err(error) if error.errno() == libc::EINTR => {}
            ended => break ended.map_err(said("KVM_RUN"))?,
        }
    };
    match exit {
        VcpuExit::IoOut(0x99, _) => Ok(start.elapsed()),
        VcpuExit::IoOut(0x9e, _) => Err("guest code lost its vector registers or computed a wrong result".into()),
        exit => Err(format!("guest code ended in {exit:?} where a CPU would have gone on")),
    }
}
