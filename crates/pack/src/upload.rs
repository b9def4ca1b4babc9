//! Handing a pack over to a server: one PUT, as presigned addresses want it.

use std::fs::File;
use std::io;

use types::progress::Progress;

use crate::http::{Client, HttpError, public};
use crate::pace::{Pace, Summed};

/// Why a pack was not handed over.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The server does not take it.
    #[error("the pack was not taken")]
    Http(#[from] HttpError),
    /// The pack cannot be read.
    #[error("the pack cannot be read")]
    Read {
        /// What the system says.
        source: io::Error,
    },
}

/// Hands a file over from its beginning.
///
/// # Errors
/// When the server cannot be reached or does not take it.
pub fn upload(
    client: &Client,
    url: &str,
    mut file: &File,
    progress: &dyn Progress,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), UploadError> {
    let failed = |source| UploadError::Read { source };
    let bytes = file.metadata().map_err(failed)?.len();
    io::Seek::rewind(&mut file).map_err(failed)?;
    let pace = Pace::new(progress.stage(&format!("Uploading to {}", public(url)), Some(bytes)), cancelled);
    Ok(client.put(url, &mut Summed::new(file, &pace), bytes)?)
}
