//! What goes wrong with packs, in HTTP.

use api::Code;
use axum::http::StatusCode;
use pack::{DownloadError, HttpError, PackError, ReadError, RegistryError, UnpackError, UploadError};

use crate::error::{ApiError, chain};

impl From<PackError> for ApiError {
    fn from(error: PackError) -> Self {
        match error {
            PackError::Store(error) => error.into(),
            PackError::Layer { .. } | PackError::State { .. } => Self::conflict(Code::SnapshotUnusable, chain(&error)),
            PackError::Manifest(_) => Self::invalid(chain(&error)),
            error => Self::internal(chain(&error)),
        }
    }
}

impl From<UnpackError> for ApiError {
    fn from(error: UnpackError) -> Self {
        match error {
            UnpackError::Store(error) => error.into(),
            UnpackError::Read(ReadError::Write { .. })
            | UnpackError::Cpu { .. }
            | UnpackError::Room { .. }
            | UnpackError::Random { .. } => Self::internal(chain(&error)),
            UnpackError::Read(_) | UnpackError::Snapshot { .. } => {
                Self::invalid(chain(&error)).with_code(Code::BadPack)
            }
            UnpackError::Unmet(_) => Self::conflict(Code::SnapshotUnusable, chain(&error)),
            UnpackError::Taken { .. } => Self::conflict(Code::SnapshotExists, chain(&error)),
            UnpackError::Name { .. } => Self::invalid(chain(&error)).with_code(Code::InvalidTag),
            UnpackError::Space { .. } => Self::new(StatusCode::INSUFFICIENT_STORAGE, Code::NoSpace, chain(&error)),
        }
    }
}

impl From<RegistryError> for ApiError {
    fn from(error: RegistryError) -> Self {
        match &error {
            RegistryError::Name { .. } => Self::invalid(chain(&error)),
            RegistryError::Unknown { .. } | RegistryError::Version { .. } => {
                Self::missing(Code::PackNotFound, chain(&error))
            }
            RegistryError::Http(HttpError::Url { .. }) => Self::invalid(chain(&error)),
            RegistryError::Http(_) | RegistryError::Damaged { .. } | RegistryError::Newer { .. } => {
                Self::conflict(Code::ServerFailed, chain(&error))
            }
        }
    }
}

impl From<DownloadError> for ApiError {
    fn from(error: DownloadError) -> Self {
        match &error {
            DownloadError::Http(HttpError::Url { .. }) => Self::invalid(chain(&error)),
            DownloadError::Http(HttpError::Status { status: 404, .. }) => {
                Self::missing(Code::PackNotFound, chain(&error))
            }
            DownloadError::Http(_) | DownloadError::Other { .. } => Self::conflict(Code::ServerFailed, chain(&error)),
            DownloadError::Busy { .. } | DownloadError::Cancelled => Self::conflict(Code::Busy, chain(&error)),
            DownloadError::Space { .. } => Self::new(StatusCode::INSUFFICIENT_STORAGE, Code::NoSpace, chain(&error)),
            DownloadError::Keep { .. } => Self::internal(chain(&error)),
        }
    }
}

impl From<UploadError> for ApiError {
    fn from(error: UploadError) -> Self {
        match &error {
            UploadError::Http(HttpError::Url { .. }) => Self::invalid(chain(&error)),
            UploadError::Http(_) => Self::conflict(Code::ServerFailed, chain(&error)),
            UploadError::Read { .. } => Self::internal(chain(&error)),
        }
    }
}
