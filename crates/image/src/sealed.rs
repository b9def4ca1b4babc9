//! Images that were completed in a VM: found in the cache by what they were made of, or made there by whoever has VMs.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use types::progress::Progress;
use types::{Dirs, RecipeName};

use crate::build::cached;
use crate::cache::CacheError;
use crate::digest::Hasher;

/// Changes whenever the same steps would be run in another way.
const BUILDER: &str = "forkd steps 1";

/// The image that the steps leave of another one. `make` gets an empty file to write it to.
///
/// The other one is known by its path, length and time of last change: an image in the cache never changes, and its path
/// says what it was made of.
///
/// # Errors
/// When the other image cannot be looked at, the result not be kept, or `make` fails.
pub fn sealed_image<E: From<CacheError>>(
    name: &RecipeName,
    of: &Path,
    steps: &[String],
    egress: &str,
    dirs: &Dirs,
    progress: &dyn Progress,
    make: impl FnOnce(&File) -> Result<(), E>,
) -> Result<PathBuf, E> {
    let digest = digest(of, steps, egress).map_err(CacheError::new("look at", of))?;
    cached(name, &digest, dirs, progress, |staging| {
        let path = staging.path().join("image");
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        make(&file.map_err(CacheError::new("create", &path))?)?;
        Ok(path)
    })
}

fn digest(of: &Path, steps: &[String], egress: &str) -> io::Result<String> {
    let path = of.canonicalize()?;
    let meta = path.metadata()?;
    let changed = [meta.mtime(), meta.mtime_nsec()].map(i64::to_le_bytes).concat();
    let hash = Hasher::default().part(BUILDER.as_bytes()).part(path.as_os_str().as_encoded_bytes());
    let hash = hash.part(&meta.len().to_le_bytes()).part(&changed).part(egress.as_bytes());
    Ok(steps.iter().fold(hash, |hash, step| hash.part(step.as_bytes())).hex())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use types::progress::Silent;

    use super::*;

    #[test]
    fn the_same_steps_over_the_same_image_are_run_once() {
        let home = tempfile::tempdir().unwrap();
        let dirs = Dirs::under(home.path());
        let base = home.path().join("base.ext4");
        fs::write(&base, "base").unwrap();
        let name: RecipeName = "small".parse().unwrap();
        let mut made = 0;
        let mut seal = |steps: &[&str], egress: &str| {
            let steps: Vec<_> = steps.iter().map(ToString::to_string).collect();
            sealed_image(&name, &base, &steps, egress, &dirs, &Silent, |mut file| {
                made += 1;
                file.write_all(made.to_string().as_bytes()).map_err(CacheError::new("write", &base))
            })
            .unwrap()
        };
        let first = seal(&["a", "b"], "none");
        assert_eq!(seal(&["a", "b"], "none"), first);
        assert_eq!(fs::read_to_string(&first).unwrap(), "1");
        for (steps, egress) in [(&["a"][..], "none"), (&["ab"], "none"), (&["a", "b"], "all")] {
            assert_ne!(seal(steps, egress), first);
        }
        fs::write(&base, "other").unwrap();
        assert_ne!(seal(&["a", "b"], "none"), first);
    }

    #[test]
    fn what_fails_is_not_kept() {
        let home = tempfile::tempdir().unwrap();
        let dirs = Dirs::under(home.path());
        let base = home.path().join("base.ext4");
        fs::write(&base, "base").unwrap();
        let name: RecipeName = "small".parse().unwrap();
        let failing = |_: &File| Err(CacheError::new("boot", Path::new("vm"))(io::ErrorKind::Other.into()));
        sealed_image(&name, &base, &["a".into()], "none", &dirs, &Silent, failing).unwrap_err();
        let left = fs::read_dir(dirs.cache.join("images-v1")).unwrap();
        assert!(left.flatten().all(|entry| entry.path().extension() == Some("lock".as_ref())));
        let missing = home.path().join("missing");
        let made = sealed_image(&name, &missing, &[], "none", &dirs, &Silent, |_| Ok::<_, CacheError>(()));
        made.unwrap_err();
    }
}
