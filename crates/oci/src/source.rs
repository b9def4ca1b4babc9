//! Where an image is, as a person says it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::reference::{Reference, ReferenceError};

/// Where an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `oci:DIR[:NAME]`: a directory in the OCI layout.
    Layout(Place),
    /// `oci-archive:FILE[:NAME]`: such a directory as a tar archive.
    Archive(Place),
    /// `docker-archive:FILE[:NAME]`: what `docker save` writes.
    Docker(Place),
    /// `dir:PATH`: the files themselves.
    Directory(PathBuf),
    /// `tar:FILE`: the files as an archive.
    Tar(PathBuf),
    /// Anything else: in a registry.
    Registry(Reference),
}

/// A path, and which of the images there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file or directory.
    pub path: PathBuf,
    /// What it is called there; needless when it is the only one.
    pub name: Option<String>,
}

impl Place {
    /// The shortest part before a colon that is the name of a file in `dir`; what follows is the image's.
    fn parse(dir: &Path, text: &str) -> Self {
        let colons = text.match_indices(':').map(|(at, _)| (&text[..at], &text[at + 1..]));
        let split = colons.into_iter().find(|(path, _)| !path.is_empty() && dir.join(path).exists());
        match split {
            Some((path, name)) if !dir.join(text).exists() => Self { path: dir.join(path), name: Some(name.into()) },
            _ => Self { path: dir.join(text), name: None },
        }
    }
}

impl FromStr for Source {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        Self::parse_in(Path::new(""), text)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, path, name) = match self {
            Self::Layout(place) => ("oci", &place.path, &place.name),
            Self::Archive(place) => ("oci-archive", &place.path, &place.name),
            Self::Docker(place) => ("docker-archive", &place.path, &place.name),
            Self::Directory(path) => ("dir", path, &None),
            Self::Tar(path) => ("tar", path, &None),
            Self::Registry(reference) => return reference.fmt(f),
        };
        write!(f, "{kind}:{}", path.display())?;
        name.iter().try_for_each(|name| write!(f, ":{name}"))
    }
}

impl Source {
    /// The same of a text in which paths are meant as seen from `dir`.
    ///
    /// # Errors
    /// When it is not a path, and no registry could have it.
    pub fn parse_in(dir: &Path, text: &str) -> Result<Self, ReferenceError> {
        Ok(match text.split_once(':') {
            Some(("oci", rest)) => Self::Layout(Place::parse(dir, rest)),
            Some(("oci-archive", rest)) => Self::Archive(Place::parse(dir, rest)),
            Some(("docker-archive", rest)) => Self::Docker(Place::parse(dir, rest)),
            Some(("dir", rest)) => Self::Directory(dir.join(rest)),
            Some(("tar", rest)) => Self::Tar(dir.join(rest)),
            Some(("docker", rest)) => Self::Registry(rest.trim_start_matches('/').parse()?),
            _ => Self::Registry(text.parse()?),
        })
    }

    /// A short word for it: the last part of its name, in what a file's name can have.
    #[must_use]
    pub fn slug(&self) -> String {
        let word = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let word = match self {
            Self::Layout(place) | Self::Archive(place) | Self::Docker(place) => {
                place.name.clone().or_else(|| word(&place.path))
            }
            Self::Directory(path) | Self::Tar(path) => word(path),
            Self::Registry(reference) => Some(reference.short()),
        };
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let slug: String = word.unwrap_or_default().chars().map(plain).take(40).collect();
        let slug = slug.trim_matches('-');
        if slug.is_empty() { "image".into() } else { slug.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_told_apart_and_written_back() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let named = format!("docker-archive:{}:me/x:1", file.path().display());
        for (text, slug) in [
            ("oci:/x/layout", "layout"),
            ("oci-archive:image.tar", "image-tar"),
            (&named, "me-x-1"),
            ("dir:/some/where", "where"),
            ("tar:root.tar.gz", "root-tar-gz"),
            ("tar:/", "image"),
            ("localhost:5000/x/y:1", "y-1"),
            ("docker.io/library/python:3.12-slim", "python-3-12-slim"),
        ] {
            let source: Source = text.parse().unwrap();
            assert_eq!((source.to_string().as_str(), source.slug().as_str()), (text, slug));
        }
        let Source::Docker(place) = named.parse().unwrap() else { panic!("no archive") };
        assert_eq!((place.path.as_path(), place.name.as_deref()), (file.path(), Some("me/x:1")));
        assert_eq!(Source::parse_in(Path::new("/r"), "dir:x").unwrap().to_string(), "dir:/r/x");
        assert_eq!(Source::parse_in(Path::new("/r"), "oci:/abs").unwrap().to_string(), "oci:/abs");
        assert_eq!("docker://python".parse::<Source>().unwrap(), "python".parse().unwrap());
        "".parse::<Source>().unwrap_err();
    }
}
