//! A look at what is in an image, without writing it anywhere.

use std::io::{self, Read as _};

use ext4::{Kind, NodeId};

use crate::flatten::{FlattenError, Flattener, Limits};
use crate::image::Image;
use crate::stream::Budget;
use crate::write::WriteError;

/// The files of an image.
#[derive(Debug)]
pub struct Contents<'a> {
    image: &'a Image,
    limits: Limits,
    flattener: Flattener,
}

impl Image {
    /// Its files. All of its layers are read for that.
    ///
    /// # Errors
    /// When the image is not what it says, or is more than the limits allow.
    pub fn contents(&self, limits: Limits) -> Result<Contents<'_>, WriteError> {
        let flattener = self.flatten(limits, &|_| ())?;
        Ok(Contents { image: self, limits, flattener })
    }
}

impl Contents<'_> {
    /// The names in a directory; none when it is not there.
    ///
    /// # Errors
    /// When the path cannot be that of a directory.
    pub fn names(&mut self, dir: &str) -> Result<Vec<String>, FlattenError> {
        let Some(node) = self.flattener.find_directory(dir)? else { return Ok(Vec::new()) };
        let entries = self.flattener.tree().entries(node).into_iter().flatten();
        Ok(entries.map(|(name, _)| String::from_utf8_lossy(name.as_bytes()).into_owned()).collect())
    }

    /// What is in a file; nothing when it is not there, is no plain file, or longer than `max`. Directories on the way may
    /// be links, the file itself may not.
    ///
    /// # Errors
    /// When the path cannot be one, or a layer cannot be read.
    pub fn read(&mut self, path: &str, max: u64) -> Result<Option<Vec<u8>>, WriteError> {
        let found = self.flattener.find(path).map_err(|source| WriteError::Look { source })?;
        let Some(node) = found else { return Ok(None) };
        match &self.flattener.tree().node(node).kind {
            Kind::File(content) if content.len <= max => {
                let mut bytes = vec![0; usize::try_from(content.len).unwrap_or_default()];
                self.fill(node, &mut bytes)?;
                Ok(Some(bytes))
            }
            _ => Ok(None),
        }
    }

    fn fill(&self, node: NodeId, bytes: &mut [u8]) -> Result<(), WriteError> {
        let tree = self.flattener.tree();
        let mut put = |at: u64, piece: &[u8]| {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            let room = at.checked_add(piece.len()).and_then(|end| bytes.get_mut(at..end));
            room.map(|room| room.copy_from_slice(piece)).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
        };
        let mut of_directory = self.image.files.iter().flat_map(|files| &files.contents);
        if let Some(content) = of_directory.find(|content| content.node == node) {
            return Ok(content.each_piece(tree, put)?);
        }
        let Some(stored) = self.flattener.stored(node) else { return Ok(()) };
        let Kind::File(content) = &tree.node(node).kind else { return Ok(()) };
        let number = stored.layer as usize;
        let read = |source| WriteError::Read { number: number + 1, source };
        let budget = Budget::new(self.limits.unpacked_bytes);
        let mut source = self.image.layers[number].open(&budget).map_err(read)?;
        io::copy(&mut (&mut source).take(stored.at), &mut io::sink()).map_err(read)?;
        for piece in &content.pieces {
            let mut part = vec![0; usize::try_from(piece.len).unwrap_or_default()];
            source.read_exact(&mut part).and_then(|()| put(piece.at, &part)).map_err(read)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testing::{Tar, gzip};
    use crate::{Platform, Source};

    fn open(source: &str) -> Image {
        Image::open(&source.parse::<Source>().unwrap(), &Platform::default()).unwrap()
    }

    #[test]
    fn what_lies_on_top_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let below = Tar::default().dir("usr/lib").file("usr/lib/a", b"below").file("usr/lib/b", b"stays");
        fs::write(path("below.tar"), below.symlink("lib", "usr/lib").end()).unwrap();
        fs::write(path("above.tar.gz"), gzip(&Tar::default().file("x", b"1").file("lib/a", b"above").end())).unwrap();
        let image = open(&format!("tar:{}", path("below.tar").display()));
        let one = image.id().clone();
        let image = image.with_layer(&path("above.tar.gz")).unwrap();
        assert_ne!(*image.id(), one);
        let mut contents = image.contents(Limits::default()).unwrap();
        let mut read = |path: &str| contents.read(path, 5).unwrap().map(|text| String::from_utf8(text).unwrap());
        assert_eq!(read("/lib/a").as_deref(), Some("above"));
        assert_eq!(read("usr/lib/b").as_deref(), Some("stays"));
        assert_eq!((read("lib"), read("usr"), read("nowhere/at/all")), (None, None, None));
        assert_eq!(contents.read("lib/a", 4).unwrap(), None, "it is longer than that");
        assert_eq!(contents.names("lib").unwrap(), ["a", "b"]);
        assert_eq!(contents.names("nowhere").unwrap(), [""; 0]);
        contents.names("../x").unwrap_err();
    }

    #[test]
    fn layers_lie_over_a_directory_too() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::write(root.join("etc/a"), "below").unwrap();
        fs::write(root.join("etc/b"), "stays").unwrap();
        symlink("b", root.join("etc/link")).unwrap();
        let over = dir.path().join("over.tar");
        fs::write(&over, Tar::default().file("etc/a", b"above").end()).unwrap();
        let image = open(&format!("dir:{}", root.display())).with_layer(&over).unwrap();
        let mut contents = image.contents(Limits::default()).unwrap();
        assert_eq!(contents.read("etc/a", 100).unwrap().unwrap(), b"above");
        assert_eq!(contents.read("etc/b", 100).unwrap().unwrap(), b"stays");
        assert_eq!(contents.read("etc/link", 100).unwrap(), None, "links are not followed");
    }
}
