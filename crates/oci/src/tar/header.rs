//! The 512 bytes before each member, and the numbers in them.

use ext4::Time;

pub(super) const BLOCK: usize = 512;
const CHECKSUM: std::ops::Range<usize> = 148..156;
const POSIX: &[u8] = b"ustar\0";

/// A pair of numbers: where a piece lies in the file, and how long it is.
pub(super) type Pair = (u64, u64);

/// A header whose checksum is right.
pub(super) struct Header([u8; BLOCK]);

impl Header {
    pub(super) fn new(block: [u8; BLOCK]) -> Option<Self> {
        let stated = octal(&block[CHECKSUM])?;
        let add = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        // The sum itself counts as spaces.
        let sum = add(&block) - add(&block[CHECKSUM]) + 8 * u64::from(b' ');
        (stated == sum).then_some(Self(block))
    }

    pub(super) const fn kind(&self) -> u8 {
        self.0[156]
    }

    pub(super) fn path(&self) -> Vec<u8> {
        let name = text(&self.0[..100]);
        let prefix = if self.0[257..].starts_with(POSIX) { text(&self.0[345..500]) } else { &[] };
        if prefix.is_empty() { name.into() } else { [prefix, b"/", name].concat() }
    }

    pub(super) fn link(&self) -> Vec<u8> {
        text(&self.0[157..257]).into()
    }

    pub(super) fn mode(&self) -> Option<u16> {
        u16::try_from(number(&self.0[100..108])? & 0o7777).ok()
    }

    pub(super) fn uid(&self) -> Option<u32> {
        u32::try_from(number(&self.0[108..116])?).ok()
    }

    pub(super) fn gid(&self) -> Option<u32> {
        u32::try_from(number(&self.0[116..124])?).ok()
    }

    pub(super) fn size(&self) -> Option<u64> {
        u64::try_from(number(&self.0[124..136])?).ok()
    }

    pub(super) fn mtime(&self) -> Option<Time> {
        Some(Time { secs: number(&self.0[136..148])?, nanos: 0 })
    }

    pub(super) fn major(&self) -> Option<u32> {
        u32::try_from(number(&self.0[329..337])?).ok()
    }

    pub(super) fn minor(&self) -> Option<u32> {
        u32::try_from(number(&self.0[337..345])?).ok()
    }

    /// Of a sparse file of GNU tar: its first pieces, and whether there are more.
    pub(super) fn sparse_map(&self) -> Option<(Vec<Pair>, bool)> {
        Some((pairs(&self.0[386..482])?, self.0[482] == 1))
    }

    /// Of a sparse file of GNU tar: its length with all holes.
    pub(super) fn real_size(&self) -> Option<u64> {
        u64::try_from(number(&self.0[483..495])?).ok()
    }
}

/// More pieces of a sparse file, and whether there are still more.
pub(super) fn sparse_block(block: &[u8; BLOCK]) -> Option<(Vec<Pair>, bool)> {
    Some((pairs(&block[..504])?, block[504] == 1))
}

/// Up to the first place that is not used.
fn pairs(bytes: &[u8]) -> Option<Vec<Pair>> {
    let used = bytes.chunks_exact(24).take_while(|pair| pair[0] != 0);
    let unsigned = |bytes: &[u8]| u64::try_from(number(bytes)?).ok();
    used.map(|pair| Some((unsigned(&pair[..12])?, unsigned(&pair[12..])?))).collect()
}

/// Octal digits, or with the highest bit set the number itself, which may be negative.
fn number(field: &[u8]) -> Option<i64> {
    if field[0] & 0x80 == 0 {
        return octal(field).and_then(|value| i64::try_from(value).ok());
    }
    let first = if field[0] & 0x40 == 0 { i64::from(field[0] & 0x3f) } else { i64::from(field[0]) - 256 };
    field[1..].iter().try_fold(first, |value, byte| value.checked_mul(256)?.checked_add(i64::from(*byte)))
}

/// An empty field is zero, as old archives have it.
fn octal(field: &[u8]) -> Option<u64> {
    let digits = text(field).trim_ascii();
    digits.iter().try_fold(0u64, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
        value.checked_mul(8)?.checked_add(u64::from(digit))
    })
}

fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    &field[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(number(b"0000755\0"), Some(0o755));
        assert_eq!(number(b"   755 \0"), Some(0o755));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"77777777777\0"), Some(0o77_777_777_777));
        assert_eq!(number(b"\x80\0\0\0\0\0\x01\x00"), Some(256));
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff"), Some(-1));
        assert_eq!(number(b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff"), Some(i64::MAX));
        for bad in [&b"12x\0"[..], b"8\0", b"-1\0", b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff"] {
            assert_eq!(number(bad), None, "{bad:?}");
        }
    }
}
