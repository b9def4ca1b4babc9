//! Where forkd keeps things. The only place that reads these environment variables.
//!
//! ```text
//! cache    $FORKD_HOME/cache, else $XDG_CACHE_HOME/forkd, else ~/.cache/forkd        can be rebuilt: images, kernels
//! data     $FORKD_HOME/data, else $XDG_DATA_HOME/forkd, else ~/.local/share/forkd    cannot: the machine's data disk
//! run      $FORKD_HOME/run, else $XDG_RUNTIME_DIR/forkd, else /run/forkd or <cache>/run    sockets of what runs now
//! ```

use std::path::{Path, PathBuf};

/// Neither `FORKD_HOME` nor `HOME` says where to keep things.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("neither FORKD_HOME nor HOME is set to an absolute path; set FORKD_HOME to where forkd may keep its files")]
pub struct DirsError;

/// The three roots; nothing is created here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirs {
    /// What can be rebuilt.
    pub cache: PathBuf,
    /// What cannot.
    pub data: PathBuf,
    /// What belongs to what runs now.
    pub run: PathBuf,
}

impl Dirs {
    /// Everything below one directory.
    #[must_use]
    pub fn under(home: &Path) -> Self {
        Self { cache: home.join("cache"), data: home.join("data"), run: home.join("run") }
    }

    /// As the environment says.
    ///
    /// # Errors
    /// When it does not say.
    pub fn from_env() -> Result<Self, DirsError> {
        Self::from_lookup(|name| std::env::var_os(name).map(PathBuf::from), Path::new("/run"))
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<PathBuf>, system_run: &Path) -> Result<Self, DirsError> {
        let absolute = |name| lookup(name).filter(|path: &PathBuf| path.is_absolute());
        if let Some(home) = absolute("FORKD_HOME") {
            return Ok(Self::under(&home));
        }
        let home = absolute("HOME");
        let xdg = |name, below: &str| {
            absolute(name).or_else(|| Some(home.as_ref()?.join(below))).map(|base| base.join("forkd")).ok_or(DirsError)
        };
        let cache = xdg("XDG_CACHE_HOME", ".cache")?;
        let data = xdg("XDG_DATA_HOME", ".local/share")?;
        let may_write = |path: &Path| path.metadata().is_ok_and(|meta| !meta.permissions().readonly());
        let root = home.as_deref() == Some(Path::new("/root"));
        let run = match absolute("XDG_RUNTIME_DIR") {
            Some(dir) => dir.join("forkd"),
            None if root && may_write(system_run) => system_run.join("forkd"),
            None => cache.join("run"),
        };
        Ok(Self { cache, data, run })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirs(vars: &[(&str, &str)]) -> Result<Dirs, DirsError> {
        let find = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value));
        Dirs::from_lookup(find, Path::new("/nowhere"))
    }

    #[test]
    fn forkd_home_holds_everything() {
        let found = dirs(&[("FORKD_HOME", "/srv/f"), ("HOME", "/h")]).unwrap();
        assert_eq!(found, Dirs::under(Path::new("/srv/f")));
    }

    #[test]
    fn home_is_the_fallback_and_relative_paths_do_not_count() {
        let found = dirs(&[("FORKD_HOME", "relative"), ("HOME", "/h"), ("XDG_DATA_HOME", "/d")]).unwrap();
        assert_eq!(found.cache, Path::new("/h/.cache/forkd"));
        assert_eq!(found.data, Path::new("/d/forkd"));
        assert_eq!(found.run, Path::new("/h/.cache/forkd/run"));
        assert_eq!(dirs(&[("HOME", "h")]), Err(DirsError));
    }
}
