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
    assert_eq!(write_all(&ram, &page_map(), &file).unwrap(), 4 * BLOCK_BYTES);
    file
}

fn page_map() -> File {
    File::open("/proc/self/pagemap").unwrap()
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
    write_all(&ram, &page_map(), &all).unwrap();
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
    assert_eq!(write_diff(&ram, &page_map(), &stack(&[&image]), &diff).unwrap(), BLOCK_BYTES);
    assert_eq!(blocks(&diff), [9, 0x200]);
    let flat = file();
    layer::flatten(&stack(&[&image, &diff]), &flat).unwrap();
    let again = memory::map_image(size(), flat).unwrap();
    let read = |address| again.mem.read_obj::<u8>(GuestAddress(address)).unwrap();
    assert_eq!([0x1000, 0x2fff, 0x9000, 0x20_0000, 128 * MIB - 1].map(read), [7, 7, 9, 0, 7]);
    // A grandchild's diff from the child holds what the grandchild changed, and no more.
    write(&again, &[0x9000], 0);
    let next = file();
    write_diff(&again, &page_map(), &stack(&[&image, &diff]), &next).unwrap();
    assert_eq!(blocks(&next), [9]);
}

/// As a balloon does with what the guest reports.
fn give_back(ram: &GuestRam, address: u64) {
    let page = GuestMemoryBackend::get_slice(&ram.mem, GuestAddress(address), PAGE).unwrap();
    virtio::balloon::give_back(page.into());
}

#[test]
fn what_is_given_back_is_the_images_again_here_and_in_a_branch() {
    let image = image();
    let ram = memory::map_image(size(), image.try_clone().unwrap()).unwrap();
    let read = |ram: &GuestRam, address| ram.mem.read_obj::<u8>(GuestAddress(address)).unwrap();
    // Of the image, beyond it, and one that stays.
    write(&ram, &[0x1000, 0x9000, 0x20_0000], 9);
    give_back(&ram, 0x1000);
    give_back(&ram, 0x9000);
    let diff = file();
    write_diff(&ram, &page_map(), &stack(&[&image]), &diff).unwrap();
    assert_eq!(blocks(&diff), [0x200], "the page table says that they are nobody's own");
    let all = file();
    write_all(&ram, &page_map(), &all).unwrap();
    let flat = file();
    layer::flatten(&stack(&[&image, &diff]), &flat).unwrap();
    let branch = memory::map_image(size(), flat).unwrap();
    let whole = memory::map_image(size(), all).unwrap();
    for address in [0x1000, 0x9000, 0x20_0000] {
        assert_eq!(read(&branch, address), read(&ram, address), "{address:#x} of a branch");
        assert_eq!(read(&whole, address), read(&ram, address), "{address:#x} of all that is written down");
    }
    assert_eq!([0x1000, 0x9000, 0x20_0000].map(|address| read(&ram, address)), [7, 0, 9]);
    write(&ram, &[0x1000], 8);
    let again = file();
    write_diff(&ram, &page_map(), &stack(&[&image]), &again).unwrap();
    assert_eq!(blocks(&again), [1, 0x200], "written again, it is its own again");
    // Of a guest that has no image it is zero, in both.
    let booted = memory::map(size()).unwrap();
    write(&booted, &[0x1000, 0x2000], 9);
    give_back(&booted, 0x1000);
    let taken = file();
    write_all(&booted, &page_map(), &taken).unwrap();
    assert_eq!((blocks(&taken), read(&booted, 0x1000)), (vec![2], 0));
}

#[test]
fn runs_are_found_and_cut() {
    let found: Vec<_> = runs(600, |index| *index != 3 && *index < 590).collect();
    assert_eq!(found, [0..3, 4..260, 260..516, 516..590]);
    assert_eq!(runs(5, |_| false).count(), 0);
}
