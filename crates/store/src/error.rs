//! How the store fails.

use std::io;
use std::path::{Path, PathBuf};

use layer::MergeError;
use types::Tag;

use crate::manifest::{FORMAT, MAX_CHAIN};

/// Why a snapshot cannot be written, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No snapshot has the tag.
    #[error("there is no snapshot `{tag}`; `forkd images` lists those there are, `forkd snapshot` makes one")]
    Unknown {
        /// What was asked for.
        tag: Tag,
    },
    /// It is not there yet.
    #[error("snapshot `{tag}` is still being written; try again when `forkd images` shows it as ready")]
    Writing {
        /// The tag.
        tag: Tag,
    },
    /// It will never be there.
    #[error("snapshot `{tag}` could not be written: {reason}; take it again, or forget it with `forkd rmi {tag}`")]
    Failed {
        /// The tag.
        tag: Tag,
        /// Why not.
        reason: String,
    },
    /// The tag is taken.
    #[error("a snapshot `{tag}` exists; remove it with `forkd rmi {tag}`, or replace it with --force")]
    Exists {
        /// The tag.
        tag: Tag,
    },
    /// Others are made of it.
    #[error(
        "snapshot `{tag}` cannot go: {} made of it; --cascade removes them too, --force leaves them, whole as they are",
        list(children)
    )]
    HasChildren {
        /// The tag.
        tag: Tag,
        /// Who is made of it.
        children: Vec<Tag>,
    },
    /// Nothing more can lie over it.
    #[error(
        "snapshot `{tag}` has as many layers as there can be ({MAX_CHAIN}); make one of them with \
         `forkd snapshot-compact --from {tag} --to NEW` and go on from there"
    )]
    TooDeep {
        /// The tag.
        tag: Tag,
    },
    /// An earlier forkd wrote it.
    #[error(
        "snapshot `{tag}` has format {found}, which is older than this forkd understands (format {FORMAT}); remove it \
         with `forkd rmi {tag}` and make it again"
    )]
    Older {
        /// The tag.
        tag: Tag,
        /// Its format.
        found: u32,
    },
    /// A later forkd wrote it.
    #[error(
        "snapshot `{tag}` has format {found}; this forkd reads format {FORMAT}. Use a newer forkd, or make it again"
    )]
    Newer {
        /// The tag.
        tag: Tag,
        /// Its format.
        found: u32,
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
    /// A file of the snapshot is missing or another one.
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
    /// What was staged is no snapshot.
    #[error("snapshot `{tag}` was not written as it should be: {problem}")]
    Unfit {
        /// The tag.
        tag: Tag,
        /// What is wrong with it.
        problem: String,
    },
    /// Layers cannot be made one.
    #[error("the layers of snapshot `{tag}` cannot be made one: {what}")]
    Merge {
        /// The tag.
        tag: Tag,
        /// Of what.
        what: String,
        /// Why.
        source: MergeError,
    },
    /// What is needed cannot be told, so nothing is removed.
    #[error("nothing can be collected as long as it is not known what snapshot `{tag}` needs")]
    Unreachable {
        /// The tag.
        tag: Tag,
        /// What is wrong with it.
        source: Box<Self>,
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
    pub(crate) fn io(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { action, path: path.clone(), source }
    }
}

fn list(tags: &[Tag]) -> String {
    let names: Vec<String> = tags.iter().map(|tag| format!("`{tag}`")).collect();
    format!("{} {}", names.join(", "), if names.len() == 1 { "is" } else { "are" })
}
