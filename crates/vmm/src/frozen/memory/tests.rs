use layer::{Base, Layer};
use types::GuestMemorySize;
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::memory;

const MIB: u64 = 1 << 20;

fn size() -> GuestMemorySize {
    "128M".parse().unwrap()
}

fn write(ram: &GuestRam, addresses: &[u64], byte: u8) {
    for address in addresses {
        ram.mem.write_obj(byte, GuestAddress(*address)).unwrap();
    }
}

fn file() -> File {
    tempfile::tempfile().unwrap()
}

fn open(file: &File) -> Layer {
    Layer::open(file.try_clone().unwrap(), Some(128 * MIB)).unwrap()
}

/// The numbers of a layer's blocks.
fn blocks(file: &File) -> Vec<u64> {
    open(file).blocks().flat_map(|(run, _)| run).collect()
}

fn stack(files: &[&File]) -> Stack {
    Stack::open(Base::Zero { length: 128 * MIB }, files.iter().map(|file| open(file)).collect()).unwrap()
}

/// A guest that wrote a few pages, one of them zero, and all its memory.
fn image() -> File {
    let ram = memory::map(size()).unwrap();
    write(&ram, &[0x1000, 0x2fff, 0x20_0000, 128 * MIB - 1], 7);
    write(&ram, &[0x50_0000], 0);
    let file = file();
    assert_eq!(write_all(&ram, &file).unwrap(), 4 * BLOCK_BYTES);
    file
}

#[test]
fn only_pages_that_are_not_zero_are_written() {
    assert_eq!(blocks(&image()), [1, 2, 0x200, 0x7fff]);
}

#[test]
fn a_mapped_image_is_the_memory_and_stays_as_it_was() {
    let image = image();
    let before = open(&image).digest();
    let ram = memory::map_image(size(), image.try_clone().unwrap()).unwrap();
    assert_eq!(ram.mem.read_obj::<u8>(GuestAddress(0x2fff)).unwrap(), 7);
    assert_eq!(ram.mem.read_obj::<u8>(GuestAddress(0x3000)).unwrap(), 0);
    write(&ram, &[0x1000, 0x9000], 9);
    open(&image).check(|_| ()).unwrap();
    assert_eq!(open(&image).digest(), before);
    let all = file();
    write_all(&ram, &all).unwrap();
    assert_eq!(blocks(&all), [1, 2, 9, 0x200, 0x7fff]);
}

#[test]
fn a_diff_is_what_differs_and_knows_what_became_zero() {
    let image = image();
    let ram = memory::map_image(size(), image.try_clone().unwrap()).unwrap();
    // Read, written as it was, became zero, new.
    assert_eq!(ram.mem.read_obj::<u8>(GuestAddress(128 * MIB - 1)).unwrap(), 7);
    write(&ram, &[0x2fff], 7);
    write(&ram, &[0x20_0000], 0);
    write(&ram, &[0x9000], 9);
    let diff = file();
    assert_eq!(write_diff(&ram, &stack(&[&image]), &diff).unwrap(), BLOCK_BYTES);
    assert_eq!(blocks(&diff), [9, 0x200]);
    let flat = file();
    layer::flatten(&stack(&[&image, &diff]), &flat).unwrap();
    let again = memory::map_image(size(), flat).unwrap();
    let read = |address| again.mem.read_obj::<u8>(GuestAddress(address)).unwrap();
    assert_eq!([0x1000, 0x2fff, 0x9000, 0x20_0000, 128 * MIB - 1].map(read), [7, 7, 9, 0, 7]);
    // A grandchild's diff from the child holds what the grandchild changed, and no more.
    write(&again, &[0x9000], 0);
    let next = file();
    write_diff(&again, &stack(&[&image, &diff]), &next).unwrap();
    assert_eq!(blocks(&next), [9]);
}

#[test]
fn runs_are_found_and_cut() {
    let found: Vec<_> = runs(600, |index| *index != 3 && *index < 590).collect();
    assert_eq!(found, [0..3, 4..260, 260..516, 516..590]);
    assert_eq!(runs(5, |_| false).count(), 0);
}
