//! What a kernel file says about itself: that it is one, that it is whole, and its release.
//!
//! ```text
//! bzImage   0x1f1 setup_sects   0x1fe 55 aa   0x202 "HdrS"   0x20e where the version text is   0x1f4 syssize
//! vmlinux   ELF for x86-64, with "Linux version <release> ..." somewhere in it
//! ```
//! (Documentation/arch/x86/boot.rst.) The file may hold anything: nothing here trusts an offset or a length.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use goblin::elf::Elf;
use goblin::elf::header::{EM_X86_64, ET_DYN, ET_EXEC};

/// The boot sector, the setup header and the version text lie within this.
const HEAD: usize = 64 << 10;
/// Larger than a vmlinux with all its debugging information.
const MAX_VMLINUX: u64 = 4 << 30;
const BANNER: &[u8] = b"Linux version ";
/// `uname -r` cannot be longer (`__NEW_UTS_LEN`).
const MAX_RELEASE: usize = 64;
const CHUNK: usize = 1 << 20;

/// Why a file is not a kernel that can be booted.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// It could not be read.
    #[error("it cannot be read")]
    Read(#[source] io::Error),
    /// Neither of the two formats.
    #[error("it is neither a bzImage nor an x86-64 vmlinux")]
    NotAKernel,
    /// A bzImage or vmlinux with its end missing.
    #[error("it is cut short: its header speaks of {expected} bytes, the file has {found}")]
    Truncated {
        /// As the header says.
        expected: u64,
        /// As it is.
        found: u64,
    },
    /// The release is not there, or not one.
    #[error("it does not say which Linux release it is")]
    NoRelease,
}

/// The release (`uname -r`) of the kernel in this file. It is safe to use as one component of a path.
pub(crate) fn release_of(path: &Path) -> Result<String, HeaderError> {
    let mut file = File::open(path).map_err(HeaderError::Read)?;
    let meta = file.metadata().map_err(HeaderError::Read)?;
    if !meta.is_file() {
        return Err(HeaderError::NotAKernel);
    }
    let mut head = Vec::with_capacity(HEAD);
    file.by_ref().take(HEAD as u64).read_to_end(&mut head).map_err(HeaderError::Read)?;
    if head.starts_with(b"\x7fELF") {
        check_elf(&head, meta.len())?;
        return find_banner(io::Read::chain(&head[..], file.take(MAX_VMLINUX)));
    }
    bzimage_release(&head, meta.len())
}

fn bzimage_release(head: &[u8], file_len: u64) -> Result<String, HeaderError> {
    if bytes_at::<2>(head, 0x1fe) != Some([0x55, 0xaa]) || bytes_at::<4>(head, 0x202) != Some(*b"HdrS") {
        return Err(HeaderError::NotAKernel);
    }
    let setup_sectors = match bytes_at::<1>(head, 0x1f1).ok_or(HeaderError::NotAKernel)? {
        [0] => 4,
        [count] => count,
    };
    let paragraphs = u32::from_le_bytes(bytes_at(head, 0x1f4).ok_or(HeaderError::NotAKernel)?);
    let expected = (u64::from(setup_sectors) + 1) * 512 + u64::from(paragraphs) * 16;
    if file_len < expected {
        return Err(HeaderError::Truncated { expected, found: file_len });
    }
    let offset = u16::from_le_bytes(bytes_at(head, 0x20e).ok_or(HeaderError::NotAKernel)?);
    if offset == 0 {
        return Err(HeaderError::NoRelease);
    }
    parse_release(head.get(usize::from(offset) + 0x200..).unwrap_or_default()).ok_or(HeaderError::NoRelease)
}

fn check_elf(head: &[u8], file_len: u64) -> Result<(), HeaderError> {
    let header = Elf::parse_header(head).map_err(|_| HeaderError::NotAKernel)?;
    if header.e_machine != EM_X86_64 || !matches!(header.e_type, ET_EXEC | ET_DYN) {
        return Err(HeaderError::NotAKernel);
    }
    // The section headers are what a linker writes last.
    let expected = header.e_shoff.saturating_add(u64::from(header.e_shnum) * u64::from(header.e_shentsize));
    if file_len < expected {
        return Err(HeaderError::Truncated { expected, found: file_len });
    }
    Ok(())
}

/// Looks for the banner chunk by chunk, so that a vmlinux with debugging information is not held in memory.
fn find_banner(mut reader: impl Read) -> Result<String, HeaderError> {
    let mut window = Vec::with_capacity(CHUNK + BANNER.len() + MAX_RELEASE + 1);
    loop {
        let read = reader.by_ref().take(CHUNK as u64).read_to_end(&mut window).map_err(HeaderError::Read)?;
        let starts = window.windows(BANNER.len()).enumerate().filter(|(_, bytes)| *bytes == BANNER);
        let found = starts.filter_map(|(at, _)| parse_release(&window[at + BANNER.len()..])).next();
        if let Some(release) = found {
            return Ok(release);
        }
        if read == 0 {
            return Err(HeaderError::NoRelease);
        }
        // A banner that begins here may end in the next chunk.
        window.drain(..window.len().saturating_sub(BANNER.len() + MAX_RELEASE + 1));
    }
}

/// The first word, if it ends and is a release: `6.1.0-54-cloud-amd64`.
fn parse_release(text: &[u8]) -> Option<String> {
    let end = text.iter().take(MAX_RELEASE + 1).position(|b| matches!(b, b' ' | 0))?;
    let word = std::str::from_utf8(&text[..end]).ok()?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._+~-".contains(&b);
    (word.bytes().next()?.is_ascii_digit() && word.bytes().all(plain)).then(|| word.into())
}

fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset + N)?.try_into().ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The least that is a bzImage.
    pub(crate) fn bzimage(release: &str) -> Vec<u8> {
        let mut image = vec![0; 0x600];
        image[0x1f1] = 1;
        image[0x1f4..0x1f8].copy_from_slice(&0x20_u32.to_le_bytes());
        image[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        let text = format!("{release} (builder@host) #1 SMP");
        image[0x300..0x300 + text.len()].copy_from_slice(text.as_bytes());
        image
    }

    fn release(bytes: &[u8]) -> Result<String, HeaderError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kernel");
        std::fs::write(&path, bytes).unwrap();
        release_of(&path)
    }

    fn vmlinux(text: &str, padding: usize) -> Vec<u8> {
        let mut image = vec![0; 64];
        image[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        image[16..18].copy_from_slice(&ET_EXEC.to_le_bytes());
        image[18..20].copy_from_slice(&EM_X86_64.to_le_bytes());
        image.resize(64 + padding, 0);
        image.extend_from_slice(text.as_bytes());
        image
    }

    #[test]
    fn both_formats_say_their_release() {
        assert_eq!(release(&bzimage("6.1.0-54-cloud-amd64")).unwrap(), "6.1.0-54-cloud-amd64");
        assert_eq!(release(&vmlinux("Linux version 6.12.3+ (me@here)", 100)).unwrap(), "6.12.3+");
    }

    #[test]
    fn the_banner_is_found_across_chunks() {
        for padding in CHUNK - 150..CHUNK {
            let image = vmlinux("Linux version %s Linux version 6.12.3-test (me@here)", padding);
            assert_eq!(find_banner(&image[..]).unwrap(), "6.12.3-test", "padding {padding}");
        }
    }

    #[test]
    fn a_cut_kernel_says_so() {
        let image = bzimage("6.1.0");
        let error = release(&image[..0x500]).unwrap_err();
        assert!(matches!(error, HeaderError::Truncated { expected: 0x600, found: 0x500 }), "{error}");
        let mut image = vmlinux("Linux version 6.12.3 ", 0);
        image[40..48].copy_from_slice(&4096_u64.to_le_bytes());
        assert!(matches!(release(&image), Err(HeaderError::Truncated { expected: 4096, .. })));
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        let mut other_arch = vmlinux("Linux version 6.12.3 ", 0);
        other_arch[18] = 0xb7;
        for bytes in [&b""[..], b"MZ", b"\x7fELF", &[0; 4096], &other_arch] {
            assert!(matches!(release(bytes), Err(HeaderError::NotAKernel)), "{bytes:?}");
        }
        assert!(matches!(release_of(Path::new("/")), Err(HeaderError::NotAKernel)));
        assert!(matches!(release_of(Path::new("/nowhere")), Err(HeaderError::Read(_))));
    }

    #[test]
    fn a_release_cannot_leave_its_directory() {
        for bad in ["../../etc", "/etc", "x", ".6", "6/1", "6.1\u{e9}", &"6".repeat(65)] {
            assert!(matches!(release(&bzimage(bad)), Err(HeaderError::NoRelease)), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn hostile_headers_never_panic(
            offset in any::<u16>(), sectors in any::<u8>(), paragraphs in any::<u32>(),
            tail in prop::collection::vec(any::<u8>(), 0..2000),
        ) {
            let mut image = bzimage("6.1.0");
            image[0x1f1] = sectors;
            image[0x1f4..0x1f8].copy_from_slice(&paragraphs.to_le_bytes());
            image[0x20e..0x210].copy_from_slice(&offset.to_le_bytes());
            image.extend(tail);
            if let Ok(release) = bzimage_release(&image, u64::MAX) {
                prop_assert!(!release.contains('/') && !release.starts_with('.') && release.len() <= MAX_RELEASE);
            }
        }

        #[test]
        fn hostile_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..1500), elf in any::<bool>()) {
            if elf && bytes.len() > 7 {
                bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
            }
            drop(bzimage_release(&bytes, bytes.len() as u64));
            drop(check_elf(&bytes, bytes.len() as u64));
            drop(find_banner(&bytes[..]));
        }
    }
}
