use std::io::Write;

use layer::{Bottom, LayerError, merge};
use proptest::prelude::*;

use super::super::blocks::BLOCK;
use super::*;
use crate::Buffers;
use crate::block::{Backend, CowDisk, Fresh};

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(image_len(file).unwrap()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at * 7 % 250 + 1).unwrap()).collect()
}

fn write(disk: &mut CowDisk, offset: usize, bytes: &[u8]) {
    disk.write_at(Buffers::from(bytes.to_vec().as_mut_slice()), offset.try_into().unwrap()).unwrap();
}

fn read(disk: &mut CowDisk, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    disk.read_at(Buffers::from(bytes.as_mut_slice()), offset.try_into().unwrap()).unwrap();
    bytes
}

fn over(layers: Layers) -> CowDisk {
    CowDisk::over(layers, tempfile::tempfile().unwrap()).unwrap()
}

fn seal(disk: &CowDisk) {
    let top = tempfile::tempfile().unwrap();
    let fresh = Fresh { read: top.try_clone().unwrap(), written: top };
    disk.prepare(fresh, disk.top().unwrap()).unwrap().seal();
}

/// The files of a disk, as a store would keep them.
struct Chain {
    image: File,
    layers: Vec<File>,
}

impl Chain {
    fn new(image: &[u8]) -> Self {
        Self { image: file(image), layers: Vec::new() }
    }

    fn layers(&self) -> Vec<Layer> {
        self.layers.iter().map(|layer| Layer::open(layer.try_clone().unwrap(), None).unwrap()).collect()
    }

    fn open(&self) -> Result<Layers, StackError> {
        Layers::open(self.image.try_clone().unwrap(), self.layers())
    }

    fn disk(&self) -> CowDisk {
        over(self.open().unwrap())
    }

    /// Writes and stores.
    fn store(&mut self, writes: &[(usize, Vec<u8>)]) {
        let mut disk = self.disk();
        writes.iter().for_each(|(offset, bytes)| write(&mut disk, *offset, bytes));
        self.layers.push(file(&[]));
        disk.write_layer(self.layers.last().unwrap()).unwrap();
    }

    /// Makes one layer of the last ones.
    fn merge(&mut self, count: usize) {
        let kept = self.layers.len().saturating_sub(count);
        let merged = file(&[]);
        if kept < self.layers.len() {
            merge(&self.layers()[kept..], Bottom::Inherit, &merged).unwrap();
            self.layers.truncate(kept);
            self.layers.push(merged);
        }
    }
}

#[test]
fn a_block_that_became_zero_hides_what_is_below_it() {
    let mut chain = Chain::new(&pattern(4 * BLOCK));
    chain.store(&[(BLOCK, vec![0; BLOCK])]);
    assert_eq!(chain.layers()[0].stats().zero_blocks, 1);
    let mut expected = pattern(3 * BLOCK);
    expected[BLOCK..2 * BLOCK].fill(0);
    assert_eq!(read(&mut chain.disk(), 0, 3 * BLOCK), expected);
}

#[test]
fn every_layer_is_read_however_many_there_are() {
    let mut chain = Chain::new(&pattern(301 * BLOCK));
    for number in 1..=300 {
        chain.store(&[(number * BLOCK + 1, vec![u8::try_from(number % 251).unwrap(); 10])]);
    }
    let mut disk = chain.disk();
    for number in 1..=300 {
        assert_eq!(read(&mut disk, number * BLOCK + 1, 10), [u8::try_from(number % 251).unwrap(); 10]);
    }
    let layers = chain.open().unwrap();
    assert_eq!((layers.files(), layers.floor(), layers.len_bytes()), (301, 301, 301 * BLOCK_BYTES));
}

#[test]
fn a_branch_of_a_branch_stores_what_is_new() {
    let mut chain = Chain::new(&pattern(8 * BLOCK));
    chain.store(&[(0, vec![1; 10])]);
    let mut disk = chain.disk();
    write(&mut disk, BLOCK, &[2; 10]);
    seal(&disk);
    write(&mut disk, 2 * BLOCK, &[3; 10]);
    let branch = disk.take_sealed().unwrap();
    assert_eq!((branch.files(), branch.floor()), (4, 2));
    let blocks = |layers: &Layers, since| {
        let to = file(&[]);
        layers.write_layer(since, &to).unwrap();
        Layer::open(to, None).unwrap().blocks().flat_map(|(run, _)| run).collect::<Vec<_>>()
    };
    assert_eq!(blocks(&branch, branch.floor()), [1, 2]);
    assert_eq!((blocks(&branch, 3), blocks(&branch, 1), blocks(&branch, 4)), (vec![2], vec![0, 1, 2], vec![]));
    let mut child = over(branch);
    write(&mut child, 2 * BLOCK, &[4; 10]);
    let grandchild = child.take_sealed().unwrap();
    assert_eq!(blocks(&grandchild, grandchild.floor()), [2]);
}

#[test]
fn too_many_files_are_refused() {
    room_above(MAX_LAYERS).unwrap();
    let refused = room_above(MAX_LAYERS + 1).unwrap_err().to_string();
    assert_eq!(refused, "at most 60000 layers can lie above each other, and there are 60001; merge some of them");
    assert!(u16::try_from(MAX_LAYERS + 1).is_ok(), "each file has a number");
}

#[test]
fn a_refusal_says_which_layer_it_was() {
    let mut chain = Chain::new(&pattern(2 * BLOCK));
    chain.store(&[(0, vec![1])]);
    let mut other = Chain::new(&pattern(3 * BLOCK));
    other.store(&[(0, vec![1])]);
    other.layers.push(chain.layers.swap_remove(0));
    let error = other.open().unwrap_err();
    assert!(matches!(error, StackError::Layer { index: 2, source: LayerError::Whole { .. } }), "{error}");
    other.image.set_len(layer::MAX_LENGTH + 1).unwrap();
    assert!(matches!(other.open(), Err(StackError::TooLarge { .. })));
}

#[test]
fn a_layer_that_shrinks_later_is_an_error_and_no_zeroes() {
    let mut chain = Chain::new(&pattern(2 * BLOCK));
    chain.store(&[(BLOCK, vec![1; BLOCK])]);
    let mut disk = chain.disk();
    chain.layers[0].set_len(BLOCK_BYTES).unwrap();
    let error = disk.read_at(Buffers::from(&mut [0; 8][..]), BLOCK_BYTES).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        offset: usize,
        len: usize,
        byte: u8,
    },
    Read {
        offset: usize,
        len: usize,
    },
    /// The disk goes on in another top.
    Seal,
    /// The disk is what a fork of its process makes of it.
    Fork,
    /// It is stored and opened again.
    Store,
    /// So many stored layers become one, and it is opened again.
    Merge {
        count: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let place = (any::<u16>(), 0_usize..3 * BLOCK);
    prop_oneof![
        4 => (place.clone(), 0_u8..3)
            .prop_map(|((offset, len), byte)| Step::Write { offset: offset.into(), len, byte }),
        2 => place.prop_map(|(offset, len)| Step::Read { offset: offset.into(), len }),
        1 => Just(Step::Seal),
        1 => Just(Step::Fork),
        1 => Just(Step::Store),
        1 => (1_usize..4).prop_map(|count| Step::Merge { count }),
    ]
}

/// Stores what is new of a disk and opens the whole chain again.
fn store(chain: &mut Chain, disk: &CowDisk) -> CowDisk {
    chain.layers.push(file(&[]));
    disk.write_layer(chain.layers.last().unwrap()).unwrap();
    chain.disk()
}

proptest! {
    #[test]
    fn whatever_is_done_it_behaves_like_memory(
        len in 1_usize..10 * BLOCK,
        steps in prop::collection::vec(step(), 0..40),
    ) {
        let mut model = pattern(len);
        let mut chain = Chain::new(&model);
        let mut disk = chain.disk();
        let part = |offset: usize, count: usize| offset % len..(offset % len + count).min(len);
        for step in steps {
            match step {
                Step::Write { offset, len, byte } => {
                    let part = part(offset, len);
                    write(&mut disk, part.start, &vec![byte; part.len()]);
                    model[part].fill(byte);
                }
                Step::Read { offset, len } => {
                    let part = part(offset, len);
                    prop_assert_eq!(&read(&mut disk, part.start, part.len()), &model[part]);
                }
                Step::Seal => seal(&disk),
                Step::Fork => {
                    let layers = disk.take_sealed().unwrap();
                    // What is below it must be stored for what is above to be a layer.
                    chain.layers.push(file(&[]));
                    layers.write_layer(layers.floor(), chain.layers.last().unwrap()).unwrap();
                    disk = over(layers);
                }
                Step::Store => disk = store(&mut chain, &disk),
                Step::Merge { count } => {
                    store(&mut chain, &disk);
                    chain.merge(count);
                    disk = chain.disk();
                }
            }
            prop_assert!(read(&mut disk, 0, len) == model);
        }
        store(&mut chain, &disk);
        for layer in chain.layers() {
            layer.check(|_| {}).unwrap();
        }
        prop_assert!(read(&mut chain.disk(), 0, len) == model);
        prop_assert_eq!(contents(&chain.image), pattern(len), "the image is never written");
    }
}

#[test]
fn a_disk_without_an_image_is_its_lowest_layer() {
    let image = file(&pattern(3 * BLOCK + 100));
    let mut disk = over(Layers::open(image, Vec::new()).unwrap());
    write(&mut disk, BLOCK, &[9; BLOCK]);
    let lowest = tempfile::tempfile().unwrap();
    disk.write_layer(&lowest).unwrap();
    let open = || Layer::open(lowest.try_clone().unwrap(), None).unwrap();
    let mut again = over(Layers::over_zeroes(vec![open()]).unwrap());
    let expected = [vec![0; BLOCK], vec![9; BLOCK], vec![0; BLOCK + 100]].concat();
    assert_eq!(read(&mut again, 0, expected.len()), expected);
    write(&mut again, 0, &[1; BLOCK]);
    let next = tempfile::tempfile().unwrap();
    assert_eq!(again.write_layer(&next).unwrap().stats.blocks, 1, "what is below is not written again");
    assert!(matches!(Layers::over_zeroes(Vec::new()), Err(StackError::Count { .. })));
}
