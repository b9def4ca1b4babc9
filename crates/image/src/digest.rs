//! SHA-256 as hex, over parts that cannot run into each other.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Collects parts; each is preceded by its length, so `["ab", "c"]` and `["a", "bc"]` differ.
#[derive(Default)]
pub(crate) struct Hasher(Sha256);

impl Hasher {
    pub(crate) fn part(mut self, bytes: &[u8]) -> Self {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    /// More of one part that is all there is.
    pub(crate) fn more(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// 64 lower-case hex digits.
    pub(crate) fn hex(self) -> String {
        self.0.finalize().iter().fold(String::with_capacity(64), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("writing to a String does not fail");
            hex
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_into_each_other() {
        let one = Hasher::default().part(b"ab").part(b"c").hex();
        let other = Hasher::default().part(b"a").part(b"bc").hex();
        assert_ne!(one, other);
        assert!(one.len() == 64 && one.bytes().all(|b| b.is_ascii_hexdigit()));
    }
}
