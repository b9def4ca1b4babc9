//! Bytes that nobody can guess.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// So many random bytes.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::io::retry_on_intr(|| getrandom(&mut bytes[filled..], GetRandomFlags::empty()))?;
    }
    Ok(bytes)
}

/// As text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_are_never_the_same() {
        assert_ne!(random::<32>().unwrap(), random::<32>().unwrap());
        assert_eq!(hex(&[0, 0xab]), "00ab");
    }
}
