//! Which parts of a file with holes are worth reading.

use std::fs::File;
use std::io;
use std::ops::Range;

use crate::digest::next_data;

/// A hole shorter than this costs less to read than another copy costs to begin.
const WORTH_SKIPPING: u64 = 8 << 20;
/// The most parts a file is taken in.
const MOST: usize = 32;

/// The parts of a file of this size that are not holes, each from one multiple of `align` to another. Holes that are
/// short, or too many, belong to what is around them.
pub(crate) fn extents(file: &File, size: u64, align: u64) -> io::Result<Vec<Range<u64>>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut offset = 0;
    while let Some((begin, end)) = next_data(file, offset)?.filter(|(begin, _)| *begin < size) {
        let part = begin / align * align..end.min(size).next_multiple_of(align);
        match found.last_mut().filter(|last| part.start < last.end.saturating_add(WORTH_SKIPPING)) {
            Some(last) => last.end = part.end,
            None => found.push(part),
        }
        offset = end;
    }
    fewer(&mut found, MOST);
    Ok(found)
}

/// Fills the shortest holes until there are only so many parts.
fn fewer(parts: &mut Vec<Range<u64>>, most: usize) {
    let mut holes: Vec<u64> = parts.windows(2).map(|pair| pair[1].start - pair[0].end).collect();
    holes.sort_unstable();
    let Some(filled) = parts.len().checked_sub(most + 1).and_then(|last| holes.get(last).copied()) else { return };
    parts.dedup_by(|next, last| {
        let merge = next.start - last.end <= filled;
        if merge {
            last.end = next.end;
        }
        merge
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const MIB: u64 = 1 << 20;
    const ALIGN: u64 = 256 << 10;

    fn file(size: u64, written: &[u64]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        written.iter().for_each(|offset| file.write_all_at(b"x", *offset).unwrap());
        file
    }

    #[test]
    fn holes_that_are_long_are_left_out() {
        let sparse = file(1024 * MIB + 5, &[3, 2 * MIB, 300 * MIB + 7, 1024 * MIB + 4]);
        let parts = extents(&sparse, 1024 * MIB + 5, ALIGN).unwrap();
        assert_eq!(
            parts,
            [0..2 * MIB + ALIGN, 300 * MIB..300 * MIB + ALIGN, 1024 * MIB..1024 * MIB + ALIGN],
            "short holes are read, and every part has whole blocks"
        );
        assert_eq!(extents(&file(5 * MIB, &[]), 5 * MIB, ALIGN).unwrap(), []);
        assert_eq!(extents(&file(0, &[]), 0, ALIGN).unwrap(), []);
    }

    #[test]
    fn a_file_full_of_holes_is_taken_in_few_parts() {
        let written: Vec<_> = (0..100).map(|number| number * 20 * MIB + number * MIB / 4).collect();
        let sparse = file(4096 * MIB, &written);
        let parts = extents(&sparse, 4096 * MIB, ALIGN).unwrap();
        assert!(parts.len() <= MOST && !parts.is_empty(), "{}", parts.len());
        for offset in written {
            assert!(parts.iter().any(|part| part.contains(&offset)), "{offset} is lost");
        }
    }
}
