use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use virtio_bindings::virtio_mmio::{VIRTIO_MMIO_CONFIG, VIRTIO_MMIO_STATUS};

use super::*;
use crate::fuzzing;
use crate::test_utils::{Buffer, FREE, MEMORY, Rig};

const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPP: u8 = 2;

fn image(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at / 512 % 200 + at % 50).unwrap()).collect()
}

fn writable_disk(bytes: &[u8]) -> (Rig, File) {
    let file = image(bytes);
    let disk = CowDisk::create(file.try_clone().unwrap(), &std::env::temp_dir()).unwrap();
    (Rig::running(Box::new(Block::new(Box::new(disk), "serial"))), file)
}

fn header(kind: u32, sector: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat()
}

/// Makes a request of these parts and returns its status and used length.
fn request(rig: &mut Rig, chain: &[Buffer]) -> (u8, u32) {
    let head = rig.queues[0].add(chain);
    rig.notify(0);
    let (used, len) = rig.queues[0].take_used().unwrap();
    assert_eq!(used, head);
    (*rig.bytes(chain.last().unwrap()).last().unwrap(), len)
}

fn read(rig: &mut Rig, sector: u64, len: usize) -> (u8, Vec<u8>) {
    let chain = [rig.readable(&header(VIRTIO_BLK_T_IN, sector)), rig.writable(len), rig.writable(1)];
    let (status, used) = request(rig, &chain);
    assert_eq!(used, if status == OK { u32::try_from(len).unwrap() + 1 } else { 0 });
    (status, rig.bytes(&chain[1]))
}

fn write(rig: &mut Rig, sector: u64, bytes: &[u8]) -> u8 {
    let chain = [rig.readable(&header(VIRTIO_BLK_T_OUT, sector)), rig.readable(bytes), rig.writable(1)];
    let (status, used) = request(rig, &chain);
    assert_eq!(used, 1);
    status
}

#[test]
fn a_driver_sees_the_disk() {
    let (rig, _) = writable_disk(&pattern(10 * 512 + 100));
    let mut config = [0; 17];
    rig.transport.read(VIRTIO_MMIO_CONFIG.into(), &mut config);
    assert_eq!(config[..8], 10_u64.to_le_bytes(), "the odd bytes at the end are not a sector");
    assert_eq!(config[12..], [254, 0, 0, 0, 0]);
}

#[test]
fn what_is_written_is_read_and_the_image_stays() {
    let mut model = pattern(64 << 10);
    let (mut rig, file) = writable_disk(&model);
    for (sector, count) in [(0, 1), (7, 3), (8, 8), (100, 28), (127, 1)] {
        let bytes = vec![u8::try_from(sector).unwrap() + 1; count * 512];
        assert_eq!(write(&mut rig, sector, &bytes), OK);
        let start = usize::try_from(sector).unwrap() * 512;
        model[start..start + bytes.len()].copy_from_slice(&bytes);
    }
    assert_eq!(read(&mut rig, 0, 64 << 10), (OK, model));
    let mut original = vec![0; 64 << 10];
    file.read_exact_at(&mut original, 0).unwrap();
    assert_eq!(original, pattern(64 << 10));
}

#[test]
fn a_disk_in_use_is_sealed_from_outside_and_goes_on_above() {
    let file = image(&pattern(16 << 10));
    let dir = std::env::temp_dir();
    let disk = CowDisk::create(file.try_clone().unwrap(), &dir).unwrap();
    let outside = disk.clone();
    let mut rig = Rig::running(Box::new(Block::new(Box::new(disk), "")));
    assert_eq!(write(&mut rig, 9, &[0; 512]), OK);
    let (before, after) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    let written = outside.write_layer(&before).unwrap();
    assert_eq!((written.stats.blocks, written.stats.data_bytes), (1, 4096));
    let top = tempfile::tempfile_in(&dir).unwrap();
    let fresh = Fresh { read: top.try_clone().unwrap(), written: top };
    outside.prepare(fresh, outside.top().unwrap()).unwrap().seal().unwrap();
    // Not part of that layer any more.
    assert_eq!(write(&mut rig, 0, &[1; 512]), OK);
    let mut model = pattern(16 << 10);
    model[9 * 512..10 * 512].fill(0);
    model[..512].fill(1);
    assert_eq!(read(&mut rig, 0, 16 << 10), (OK, model.clone()));
    assert_eq!(outside.write_layer(&after).unwrap().stats.blocks, 2);

    for (layer, first) in [(before, pattern(512)), (after, vec![1; 512])] {
        let layer = layer::Layer::open(layer, Some(16 << 10)).unwrap();
        let layers = Layers::open(file.try_clone().unwrap(), vec![layer]).unwrap();
        let disk = CowDisk::over(layers, tempfile::tempfile_in(&dir).unwrap()).unwrap();
        let mut rig = Rig::running(Box::new(Block::new(Box::new(disk), "")));
        model[..512].copy_from_slice(&first);
        assert_eq!(read(&mut rig, 0, 16 << 10), (OK, model.clone()));
        assert_eq!(write(&mut rig, 9, &[3; 512]), OK);
        assert_eq!(read(&mut rig, 9, 512), (OK, vec![3; 512]));
    }
    let sealed = outside.take_sealed().unwrap();
    assert_eq!(read(&mut rig, 0, 512).0, IOERR, "a disk that was taken away is an error for the guest");
    assert_eq!(write(&mut rig, 0, &[0; 512]), IOERR);
    assert_eq!((sealed.files(), sealed.floor()), (3, 1));
}

#[test]
fn a_request_may_be_cut_anywhere() {
    let (mut rig, _) = writable_disk(&pattern(8192));
    // The header in three parts, the data in odd ones (one across two memory regions), the status behind data.
    let bytes = header(VIRTIO_BLK_T_IN, 1);
    let across = Buffer { address: MEMORY / 2 - 300, len: 700, writable: true };
    let chain = [
        rig.readable(&bytes[..3]),
        rig.readable(&bytes[3..4]),
        rig.readable(&bytes[4..]),
        rig.writable(1),
        across,
        rig.writable(324),
    ];
    assert_eq!(request(&mut rig, &chain), (OK, 1025));
    let data: Vec<u8> = chain[3..].iter().flat_map(|buffer| rig.bytes(buffer)).collect();
    assert_eq!(data[..1024], pattern(8192)[512..1536]);

    let data = [rig.readable(&[header(VIRTIO_BLK_T_OUT, 2), vec![9; 12]].concat()), rig.readable(&[9; 500])];
    let status = rig.writable(1);
    assert_eq!(request(&mut rig, &[data[0], data[1], status]), (OK, 1));
    assert_eq!(read(&mut rig, 2, 512), (OK, vec![9; 512]));
}

#[test]
fn an_indirect_chain_is_a_chain() {
    let (mut rig, _) = writable_disk(&pattern(4096));
    let chain = [rig.readable(&header(VIRTIO_BLK_T_IN, 3)), rig.writable(512), rig.writable(1)];
    let table = rig.alloc(64);
    rig.queues[0].add_indirect(table, &chain);
    rig.notify(0);
    assert_eq!(rig.queues[0].take_used(), Some((0, 513)));
    assert_eq!(rig.bytes(&chain[1]), pattern(4096)[1536..2048]);
}

#[test]
fn serial_flush_and_the_unknown() {
    let (mut rig, _) = writable_disk(&pattern(4096));
    let chain = [rig.readable(&header(VIRTIO_BLK_T_GET_ID, 0)), rig.writable(20), rig.writable(1)];
    assert_eq!(request(&mut rig, &chain), (OK, 21));
    assert_eq!(&rig.bytes(&chain[1])[..7], b"serial\0");
    let chain = [rig.readable(&header(VIRTIO_BLK_T_GET_ID, 0)), rig.writable(19), rig.writable(1)];
    assert_eq!(request(&mut rig, &chain), (IOERR, 0));
    let chain = [rig.readable(&header(VIRTIO_BLK_T_FLUSH, 0)), rig.writable(1)];
    assert_eq!(request(&mut rig, &chain), (OK, 1));
    let chain = [rig.readable(&header(77, 0)), rig.writable(1)];
    assert_eq!(request(&mut rig, &chain), (UNSUPP, 1));
}

#[test]
fn what_lies_beyond_the_disk_is_refused() {
    let (mut rig, _) = writable_disk(&pattern(4096));
    assert_eq!(read(&mut rig, 8, 512).0, IOERR);
    assert_eq!(read(&mut rig, 7, 1024).0, IOERR);
    assert_eq!(read(&mut rig, u64::MAX, 512).0, IOERR);
    assert_eq!(read(&mut rig, u64::MAX / 512 + 1, 512).0, IOERR);
    assert_eq!(read(&mut rig, 0, 100).0, IOERR, "part of a sector");
    assert_eq!(write(&mut rig, 8, &[1; 512]), IOERR);
    assert_eq!(read(&mut rig, 0, 4096), (OK, pattern(4096)));
}

#[test]
fn a_read_only_disk_is_not_written() {
    let disk = RawDisk::new(image(&pattern(4096))).unwrap();
    let block = Block::new(Box::new(disk), "a serial number that is too long");
    assert_ne!(block.features() & 1 << VIRTIO_BLK_F_RO, 0);
    let mut rig = Rig::running(Box::new(block));
    assert_eq!(write(&mut rig, 0, &[1; 512]), IOERR);
    assert_eq!(read(&mut rig, 0, 4096), (OK, pattern(4096)));
}

#[test]
fn an_image_that_shrinks_is_an_error_for_the_guest() {
    let file = image(&pattern(4096));
    let disk = RawDisk::new(file.try_clone().unwrap()).unwrap();
    let mut rig = Rig::running(Box::new(Block::new(Box::new(disk), "")));
    file.set_len(1000).unwrap();
    assert_eq!(read(&mut rig, 0, 512).0, OK);
    assert_eq!(read(&mut rig, 1, 512).0, IOERR);
}

/// A disk on a host without space.
#[derive(Debug)]
struct FullDisk;

impl Backend for FullDisk {
    fn len_bytes(&self) -> u64 {
        1 << 40
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read_at(&mut self, mut to: Buffers<'_>, _offset: u64) -> io::Result<()> {
        let len = to.len();
        to.copy_from(&vec![0; len]);
        Ok(())
    }
    fn write_at(&mut self, _from: Buffers<'_>, _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }
}

#[test]
fn a_full_host_is_an_error_for_the_guest() {
    let mut rig = Rig::running(Box::new(Block::new(Box::new(FullDisk), "")));
    assert_eq!(write(&mut rig, 0, &[1; 512]), IOERR);
    let chain = [rig.readable(&header(VIRTIO_BLK_T_FLUSH, 0)), rig.writable(1)];
    assert_eq!(request(&mut rig, &chain).0, IOERR);
    // The same memory many times over is still too much.
    let big = Buffer { address: FREE, len: 6 << 20, writable: true };
    let chain = [rig.readable(&header(VIRTIO_BLK_T_IN, 0)), big, big, big, rig.writable(1)];
    assert_eq!(request(&mut rig, &chain), (IOERR, 0));
    assert_eq!(rig.get(VIRTIO_MMIO_STATUS), 15);
}

#[test]
fn malformed_chains_come_back_unused() {
    let (mut rig, _) = writable_disk(&pattern(4096));
    let start = rig.readable(&header(VIRTIO_BLK_T_IN, 0)).address;
    let chains: [&[(u64, u32, u16, u16)]; 7] = [
        &[(start, 16, 0, 0)],                                             // no status
        &[(start, 16, 1, 1), (MEMORY, 512, 3, 2), (FREE, 1, 2, 0)],       // outside of memory
        &[(start, 16, 1, 1), (u64::MAX - 5, 512, 3, 2), (FREE, 1, 2, 0)], // beyond all addresses
        &[(start, 16, 1, 0)],                                             // a loop
        &[(start, 16, 1, 300)],                                           // to a descriptor that does not exist
        &[(FREE, 512, 3, 1), (start, 16, 1, 2), (FREE, 1, 2, 0)],         // writable before readable
        &[(start, 17, 4, 0)],                                             // an indirect table of odd length
    ];
    for chain in chains {
        for (index, (address, len, flags, next)) in (0..).zip(chain) {
            rig.queues[0].set_descriptor(index, *address, *len, *flags, *next);
        }
        rig.queues[0].offer(0);
        rig.notify(0);
        assert_eq!(rig.queues[0].take_used(), Some((0, 0)), "{chain:?}");
    }
    assert_eq!(read(&mut rig, 0, 512).0, OK, "the device works on");
    rig.queues[0].offer(256);
    rig.notify(0);
    assert_eq!(rig.get(VIRTIO_MMIO_STATUS), 15 | 64, "a head that does not exist cannot be given back");
}

#[test]
fn a_full_queue_is_worked_off_in_batches_through_the_loop() {
    let (mut rig, _) = writable_disk(&pattern(4096));
    let status: Vec<_> = (0..85).map(|_| rig.writable(1)).collect();
    for buffer in &status {
        let chain = [rig.readable(&header(VIRTIO_BLK_T_IN, 0)), rig.writable(512), *buffer];
        rig.queues[0].add(&chain);
    }
    rig.notify(0);
    assert_eq!((0..85).filter_map(|_| rig.queues[0].take_used()).count(), BATCH);
    rig.settle();
    assert_eq!((0..85).filter_map(|_| rig.queues[0].take_used()).count(), 85 - BATCH);
}

#[test]
fn large_requests_leave_the_loop_time_for_others() {
    let mut rig = Rig::running(Box::new(Block::new(Box::new(FullDisk), "")));
    let data = Buffer { address: FREE + (1 << 20), len: 400 << 10, writable: true };
    for _ in 0..8 {
        let chain = [rig.readable(&header(VIRTIO_BLK_T_IN, 0)), data, rig.writable(1)];
        rig.queues[0].add(&chain);
    }
    rig.notify(0);
    assert_eq!((0..8).filter_map(|_| rig.queues[0].take_used()).count(), 3, "the third passes the mebibyte");
    rig.settle();
    assert_eq!((0..8).filter_map(|_| rig.queues[0].take_used()).count(), 5);
}

#[test]
fn restore_wants_a_disk_of_the_same_size() {
    let mut block = Block::new(Box::new(FullDisk), "");
    block.restore(&block.state()).unwrap();
    let other = DeviceState::Block(BlockStateV1 { sectors: 8 });
    assert!(matches!(block.restore(&other), Err(RestoreError::Host { saved: 8, .. })));
}

#[test]
fn any_driver_is_survived() {
    fuzzing::try_for_a_while(fuzzing::block);
}
