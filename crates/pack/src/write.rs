//! Writing a pack: everything is read twice, because the list of sums comes first.

use std::io::{self, Write};

use layer::Layer;
use layer::dense::{self, DenseError};
use tar::{EntryType, Header};
use zstd::stream::write::Encoder;

use crate::manifest::{Manifest, Member, Path};
use crate::pace::{Pace, Summed};

/// A good deal smaller than the next lower one, and still faster than most networks and disks.
const LEVEL: i32 = 3;
const TAR_BLOCK: u64 = 512;
pub(crate) const MANIFEST: &str = "manifest.toml";

/// Something to be packed.
#[derive(Debug)]
pub(crate) enum Body {
    Bytes(Vec<u8>),
    Layer(Box<Layer>),
}

impl Body {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Layer(layer) => dense::dense_len(layer),
        }
    }

    fn write(&self, to: &mut impl Write) -> Result<(), DenseError> {
        match self {
            Self::Bytes(bytes) => to.write_all(bytes).map_err(|source| DenseError::Write { source }),
            Self::Layer(layer) => dense::export(layer, to),
        }
    }
}

/// What goes into a pack, in order.
pub(crate) type Bodies = Vec<(Path, Body)>;

/// Lists bodies with their sums.
pub(crate) fn sum_up(bodies: &Bodies, pace: &Pace<'_>) -> Result<Vec<Member>, DenseError> {
    let mut members = Vec::with_capacity(bodies.len());
    for (path, body) in bodies {
        let mut to = Summed::new(io::sink(), pace);
        body.write(&mut to)?;
        let (size, sha256) = to.finish();
        members.push(Member { path: *path, size, sha256 });
    }
    Ok(members)
}

/// Writes the pack whose manifest lists exactly these bodies.
pub(crate) fn write(
    manifest: &Manifest,
    bodies: &Bodies,
    to: &mut impl Write,
    pace: &Pace<'_>,
) -> Result<(), DenseError> {
    let failed = |source| DenseError::Write { source };
    let mut to = Encoder::new(to, LEVEL).map_err(failed)?;
    to.include_checksum(true).map_err(failed)?;
    let text = manifest.to_text().into_bytes();
    member(MANIFEST, &Body::Bytes(text), &mut to, pace)?;
    for (path, body) in bodies {
        member(&path.to_string(), body, &mut to, pace)?;
    }
    to.write_all(&[0; 1024]).map_err(failed)?;
    to.finish().and_then(Write::flush).map_err(failed)
}

fn member(path: &str, body: &Body, to: &mut impl Write, pace: &Pace<'_>) -> Result<(), DenseError> {
    let failed = |source| DenseError::Write { source };
    to.write_all(header(path, body.len()).map_err(failed)?.as_bytes()).map_err(failed)?;
    body.write(&mut Summed::new(&mut *to, pace))?;
    let padding = body.len().next_multiple_of(TAR_BLOCK) - body.len();
    io::copy(&mut io::Read::take(io::repeat(0), padding), to).map_err(failed)?;
    Ok(())
}

/// Nothing in it depends on who packs where or when.
fn header(path: &str, size: u64) -> io::Result<Header> {
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::Regular);
    header.set_path(path)?;
    header.set_size(size);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_cksum();
    Ok(header)
}
