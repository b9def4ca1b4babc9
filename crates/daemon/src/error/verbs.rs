//! What the failures of verbs are in HTTP.

use api::Code;
use axum::http::StatusCode;
use engine::{
    AdmissionError, BootError, BranchError, BuildError, FindError, ForkError, KillError, LineageError, PauseError,
    SnapshotError, StoreError, TemplateError,
};

use super::{ApiError, chain};

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Unknown { .. } => Self::of(StatusCode::NOT_FOUND, Code::SnapshotNotFound, &error),
            StoreError::Writing { .. } => Self::refused(Code::SnapshotNotReady, &error),
            StoreError::Exists { .. } => Self::refused(Code::SnapshotExists, &error),
            StoreError::HasChildren { .. } => Self::refused(Code::SnapshotHasChildren, &error),
            StoreError::Failed { .. }
            | StoreError::TooDeep { .. }
            | StoreError::Older { .. }
            | StoreError::Newer { .. }
            | StoreError::Manifest { .. }
            | StoreError::Damaged { .. }
            | StoreError::Image { .. } => Self::refused(Code::SnapshotUnusable, &error),
            _ => Self::failed(Code::Internal, &error),
        }
    }
}

impl From<TemplateError> for ApiError {
    fn from(error: TemplateError) -> Self {
        match error {
            TemplateError::Store(error) => error.into(),
            TemplateError::Refused { .. } => Self::refused(Code::SnapshotUnusable, &error),
            TemplateError::Died { .. } | TemplateError::Slow { .. } => Self::failed(Code::VmFailed, &error),
            error => Self::failed(Code::Internal, &error),
        }
    }
}

impl From<ForkError> for ApiError {
    fn from(error: ForkError) -> Self {
        match error {
            ForkError::Store(error) => error.into(),
            ForkError::Template(error) => error.into(),
            ForkError::Count { .. } => Self::invalid(chain(&error)),
            ForkError::Network { .. } | ForkError::Egress { .. } => Self::refused(Code::SnapshotUnusable, &error),
            ForkError::NoNetwork { .. } => Self::refused(Code::NoNetwork, &error),
            ForkError::Host(error) => error.into(),
            ForkError::Admission(AdmissionError::NoRoom(_)) => Self::host_full(&error),
            ForkError::Cgroup(_) => Self::failed(Code::LimitUnavailable, &error),
            ForkError::Child { .. } => Self::failed(Code::VmFailed, &error),
            error => Self::failed(Code::Internal, &error),
        }
    }
}

impl From<FindError> for ApiError {
    fn from(error: FindError) -> Self {
        match &error {
            FindError::Unknown { .. } | FindError::Ambiguous { .. } => {
                Self::of(StatusCode::NOT_FOUND, Code::SandboxNotFound, &error)
            }
            FindError::Died(_) => Self::of(StatusCode::NOT_FOUND, Code::SandboxGone, &error),
            FindError::Io { .. } => Self::failed(Code::Internal, &error),
        }
    }
}

impl From<LineageError> for ApiError {
    fn from(error: LineageError) -> Self {
        match error {
            LineageError::Store(error) => error.into(),
            LineageError::Find(error) => error.into(),
        }
    }
}

impl From<BranchError> for ApiError {
    fn from(error: BranchError) -> Self {
        match error {
            BranchError::Store(error) => error.into(),
            BranchError::Gone { .. } | BranchError::Died(_) => {
                Self::of(StatusCode::NOT_FOUND, Code::SandboxGone, &error)
            }
            BranchError::Orphan { .. } | BranchError::Parent { .. } => Self::refused(Code::BranchRefused, &error),
            BranchError::Failed { .. }
            | BranchError::Slow { .. }
            | BranchError::Write { .. }
            | BranchError::WriterDied { .. } => Self::failed(Code::VmFailed, &error),
            error => Self::failed(Code::Internal, &error),
        }
    }
}

impl From<SnapshotError> for ApiError {
    fn from(error: SnapshotError) -> Self {
        match error {
            SnapshotError::Store(error) => error.into(),
            SnapshotError::Boot(BootError::Admission { source: AdmissionError::NoRoom(_) }) => Self::host_full(&error),
            error => Self::failed(Code::VmFailed, &error),
        }
    }
}

impl From<BuildError> for ApiError {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Boot(BootError::Admission { source: AdmissionError::NoRoom(_) }) => Self::host_full(&error),
            error => Self::failed(Code::VmFailed, &error),
        }
    }
}

impl ApiError {
    /// There is no room for more.
    fn host_full(error: &dyn std::error::Error) -> Self {
        Self::of(StatusCode::INSUFFICIENT_STORAGE, Code::HostFull, error)
    }
}

impl From<PauseError> for ApiError {
    fn from(error: PauseError) -> Self {
        match error {
            PauseError::Gone { .. } | PauseError::Died(_) => Self::of(StatusCode::NOT_FOUND, Code::SandboxGone, &error),
            error => Self::failed(Code::VmFailed, &error),
        }
    }
}

impl From<KillError> for ApiError {
    fn from(error: KillError) -> Self {
        Self::failed(Code::VmFailed, &error)
    }
}

#[cfg(test)]
mod tests {
    use engine::NoRoom;

    use super::*;

    #[test]
    fn each_case_has_its_status_and_its_code() {
        let tag: types::Tag = "t".parse().unwrap();
        let unknown = ApiError::from(ForkError::from(StoreError::Unknown { tag: tag.clone() }));
        assert_eq!((unknown.status.as_u16(), unknown.code), (404, Code::SnapshotNotFound));
        let writing = ApiError::from(TemplateError::from(StoreError::Writing { tag }));
        assert_eq!((writing.status.as_u16(), writing.code), (409, Code::SnapshotNotReady));
        let figures = NoRoom { available_mib: 4096, promised_mib: 3584, certain_mib: 2, reserve_mib: 512 };
        let no_room = || AdmissionError::from(figures);
        let boot = || BootError::from(no_room());
        for full in [
            ApiError::from(ForkError::from(no_room())),
            ApiError::from(SnapshotError::from(boot())),
            ApiError::from(BuildError::from(boot())),
        ] {
            assert_eq!((full.status.as_u16(), full.code), (507, Code::HostFull));
            assert!(full.message.contains("4096 MiB") && full.message.contains("3584 MiB"), "{}", full.message);
        }
        let tag = ApiError::from("../x".parse::<types::Tag>().unwrap_err());
        assert_eq!((tag.status.as_u16(), tag.code), (400, Code::InvalidTag));
    }
}
