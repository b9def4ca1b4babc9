//! How the store fails.

use std::io;
use std::path::{Path, PathBuf};

use types::Tag;

/// Why a snapshot cannot be written, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No snapshot has the tag.
    #[error("there is no snapshot `{tag}`; `forkd images` lists those there are, `forkd snapshot` makes one")]
    Unknown {
        /// What was asked for.
        tag: Tag,
    },
    /// The tag is taken.
    #[error("a snapshot `{tag}` exists; remove it with `forkd rmi {tag}`, or replace it with --force")]
    Exists {
        /// The tag.
        tag: Tag,
    },
    /// Others are made of it.
    #[error("snapshot `{tag}` cannot go: {} made of it; remove them first", list(children))]
    HasChildren {
        /// The tag.
        tag: Tag,
        /// Who is made of it.
        children: Vec<Tag>,
    },
    /// A later forkd wrote it.
    #[error(
        "snapshot `{tag}` has format {found}; this forkd reads up to {newest}. Use a newer forkd, or make it again"
    )]
    Newer {
        /// The tag.
        tag: Tag,
        /// Its format.
        found: u32,
        /// The newest known here.
        newest: u32,
    },
    /// The manifest is no manifest.
    #[error(
        "the manifest of snapshot `{tag}` is damaged ({reason}); remove it with `forkd rmi {tag}` and make it again"
    )]
    Manifest {
        /// The tag.
        tag: Tag,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of the snapshot is missing or of another length.
    #[error("snapshot `{tag}` is damaged: {file} {problem}; remove it with `forkd rmi {tag}` and make it again")]
    Damaged {
        /// The tag.
        tag: Tag,
        /// Which file.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The disk image under the snapshot is gone or another one.
    #[error("snapshot `{tag}` needs the disk image {}, which {problem}; make the snapshot again", image.display())]
    Image {
        /// The tag.
        tag: Tag,
        /// The image.
        image: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The system says no.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl StoreError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path: path.clone(), source }
    }
}

fn list(tags: &[Tag]) -> String {
    let names: Vec<String> = tags.iter().map(|tag| format!("`{tag}`")).collect();
    format!("{} {}", names.join(", "), if names.len() == 1 { "is" } else { "are" })
}
