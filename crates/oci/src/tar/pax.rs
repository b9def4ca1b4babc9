//! PAX records: `length key=value\n`, the length counting the whole record.

use ext4::Time;

use super::sparse::PaxSparse;

const XATTR: &[u8] = b"SCHILY.xattr.";
const SPARSE: &[u8] = b"GNU.sparse.";

/// What the records say of one member.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pax {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) mtime: Option<Time>,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) sparse: Option<PaxSparse>,
}

impl Pax {
    /// Nothing when a record is malformed or a number none. Records of others are passed over.
    pub(super) fn parse(mut text: &[u8]) -> Option<Self> {
        let mut pax = Self::default();
        while !text.is_empty() {
            let (key, value, rest) = record(text)?;
            pax.add(key, value)?;
            text = rest;
        }
        if let Some(name) = pax.sparse.as_mut().and_then(|sparse| sparse.name.take()) {
            pax.path = Some(name);
        }
        Some(pax)
    }

    fn add(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            b"path" => self.path = Some(value.into()),
            b"linkpath" => self.link = Some(value.into()),
            b"size" => self.size = Some(unsigned(value)?),
            b"uid" => self.uid = Some(u32::try_from(unsigned(value)?).ok()?),
            b"gid" => self.gid = Some(u32::try_from(unsigned(value)?).ok()?),
            b"mtime" => self.mtime = Some(time(value)?),
            _ => {
                if let Some(name) = key.strip_prefix(XATTR) {
                    self.xattrs.push((name.into(), value.into()));
                } else if let Some(name) = key.strip_prefix(SPARSE) {
                    self.sparse.get_or_insert_default().add(name, value)?;
                }
            }
        }
        Some(())
    }
}

/// Key, value, and what follows.
fn record(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = text.iter().take(20).position(|byte| *byte == b' ')?;
    let len = usize::try_from(unsigned(&text[..space])?).ok()?;
    let body = text.get(space + 1..len)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|byte| *byte == b'=')?;
    Some((&body[..equals], &body[equals + 1..], &text[len..]))
}

pub(super) fn unsigned(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Seconds, possibly negative, possibly with a fraction.
fn time(text: &[u8]) -> Option<Time> {
    let (is_negative, text) = text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest));
    let point = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let secs = i64::try_from(unsigned(&text[..point])?).ok()?;
    let digits = text.get(point + 1..).unwrap_or_default();
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let padded = digits.iter().chain(std::iter::repeat(&b'0')).take(9);
    let nanos = padded.fold(0u32, |nanos, digit| nanos * 10 + u32::from(digit - b'0'));
    Some(match (is_negative, nanos) {
        (false, _) => Time { secs, nanos },
        (true, 0) => Time { secs: -secs, nanos },
        (true, _) => Time { secs: -secs - 1, nanos: 1_000_000_000 - nanos },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_whatever_their_values_contain() {
        let text = b"12 path=a\nb\n27 SCHILY.xattr.user.x=\0=\n\n10 uid=99\n11 mtime=1\n14 comment=hi\n";
        let pax = Pax::parse(text).unwrap();
        assert_eq!(pax.path.unwrap(), b"a\nb");
        assert_eq!(pax.xattrs, [(b"user.x".to_vec(), b"\0=\n".to_vec())]);
        assert_eq!((pax.uid, pax.mtime), (Some(99), Some(Time { secs: 1, nanos: 0 })));
        for bad in ["5 a=b", "7 a=b\n", "x a=b\n", "4 ab\n", "99 a=b\n", "9 uid=-1\n", "0 \n", "1\n", "10 size=x\n"] {
            assert_eq!(Pax::parse(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn times_have_fractions_and_signs() {
        assert_eq!(time(b"12.5"), Some(Time { secs: 12, nanos: 500_000_000 }));
        assert_eq!(time(b"12.1234567899"), Some(Time { secs: 12, nanos: 123_456_789 }));
        assert_eq!(time(b"-1.25"), Some(Time { secs: -2, nanos: 750_000_000 }));
        assert_eq!(time(b"-7"), Some(Time { secs: -7, nanos: 0 }));
        assert_eq!((time(b""), time(b"."), time(b"1.x"), time(b"99999999999999999999")), (None, None, None, None));
    }
}
