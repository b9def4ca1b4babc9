//! A snapshot by booting a VM.

use std::path::{Path, PathBuf};
use std::time::Duration;

use api::{Code, CreateSnapshot, EventKind, SnapshotInfo};
use axum::http::StatusCode;
use engine::{BootSpec, Existing, Program, SnapshotSpec, WarmUp, snapshot};
use image::{Initramfs, Purpose, Recipe, build_image, guest_kernel};
use types::progress::Progress;
use types::{GuestMemorySize, Tag, VcpuCount};

use crate::error::{ApiError, chain};
use crate::registry::{About, Facts};
use crate::snapshots;
use crate::spawn::{check_labels, parse_tag};
use crate::state::App;
use crate::work::Job;

/// How long a guest's agent may take to answer.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// The longest warm-up, and what it is when nobody says.
const MAX_WARM_SECS: u64 = 60;

/// What a VM is made of.
struct Parts {
    kernel: PathBuf,
    initramfs: PathBuf,
    image: PathBuf,
    recipe: Option<Recipe>,
}

/// Boots, warms up, keeps.
pub(crate) fn create(app: &App, asked: CreateSnapshot, job: &Job) -> Result<SnapshotInfo, ApiError> {
    let tag = parse_tag(&asked.tag)?;
    check_labels(&asked.labels)?;
    let spec = spec(app, &asked, &tag, job)?;
    // Where a branch's tag that is taken is a conflict, the published interface calls this a bad request.
    let taken =
        snapshot(spec, &app.dirs, job.progress()).map_err(ApiError::from).map_err(|error| match error.code {
            Code::SnapshotExists => error.with_status(StatusCode::BAD_REQUEST),
            _ => error,
        })?;
    let facts = Facts { snapshot_id: taken.snapshot.manifest().id.clone(), labels: asked.labels, ..Facts::default() };
    app.registry.change(|change| {
        change.set_facts(tag.as_str(), &facts)?;
        change.forget_branch(tag.as_str())?;
        change.tell(EventKind::SnapshotReady, About::tag(tag.as_str()))
    })?;
    snapshots::info(app, &tag)
}

fn spec(app: &App, asked: &CreateSnapshot, tag: &Tag, job: &Job) -> Result<SnapshotSpec, ApiError> {
    if asked.tap.is_some() {
        let message = "tap is not offered: sandboxes could not share a network device; leave it out";
        return Err(ApiError::invalid(message).with_code(Code::NotOffered));
    }
    let wait = asked.boot_wait_secs.unwrap_or(MAX_WARM_SECS);
    if wait > MAX_WARM_SECS {
        return Err(ApiError::invalid(format!("boot_wait_secs is {wait}; it can be up to {MAX_WARM_SECS}")));
    }
    let vcpus =
        asked.vcpus.map(VcpuCount::try_from).transpose().map_err(|error| ApiError::invalid(error.to_string()))?;
    let memory = asked.memory_mib.map(|mib| GuestMemorySize::try_from(mib.saturating_mul(1 << 20))).transpose();
    let memory = memory.map_err(|error| ApiError::invalid(error.to_string()))?;
    let parts = parts(app, asked, job.progress())?;
    let size = parts.recipe.as_ref().map(|recipe| recipe.size.clone()).unwrap_or_default();
    let boot = BootSpec {
        vcpus: vcpus.or(size.vcpus).unwrap_or(VcpuCount::DEFAULT),
        memory: memory.or(size.memory).unwrap_or(GuestMemorySize::DEFAULT),
        kernel: parts.kernel,
        initramfs: parts.initramfs,
        image: parts.image,
        append: None,
        tap: None,
        limit: BOOT_LIMIT,
        cancel: Some(job.cancel()),
    };
    let warm_up = parts.recipe.as_ref().map(warm_up).unwrap_or_default();
    let (recipe, limit) = (parts.recipe.map(|recipe| recipe.name), Duration::from_secs(wait.max(1)));
    Ok(SnapshotSpec { tag: tag.clone(), existing: Existing::Keep, boot, recipe, warm_up, limit })
}

fn parts(app: &App, asked: &CreateSnapshot, progress: &dyn Progress) -> Result<Parts, ApiError> {
    let failed = |error: &dyn std::error::Error| ApiError::internal(chain(error)).with_code(Code::VmFailed);
    let (recipe, kernel, image) = match (&asked.recipe, &asked.kernel, &asked.rootfs) {
        (Some(name), None, None) => {
            // A name and not a path: whoever may name files of the host says so with kernel and rootfs.
            name.parse::<types::RecipeName>().map_err(|error| ApiError::invalid(error.to_string()))?;
            (Some(Recipe::find(name).map_err(|error| ApiError::invalid(chain(&error)))?), None, None)
        }
        (None, Some(kernel), Some(rootfs)) => (None, Some(file(kernel)?), Some(file(rootfs)?)),
        _ => return Err(ApiError::invalid("give either a recipe, or a kernel and a rootfs")),
    };
    let kernel = guest_kernel(kernel.as_deref(), &app.dirs, progress).map_err(|error| failed(&error))?;
    let agent = Program::Agent.find().map_err(|error| failed(&error))?;
    let initramfs = Initramfs { agent: &agent, kernel: &kernel, purpose: Purpose::Guest };
    let initramfs = initramfs.cached(&app.dirs, progress).map_err(|error| failed(&error))?;
    let image = match (image, &recipe) {
        (None, Some(recipe)) => build_image(recipe, &app.dirs, progress).map_err(|error| failed(&error))?.path,
        (image, _) => image.unwrap_or_default(),
    };
    Ok(Parts { kernel: kernel.image, initramfs, image, recipe })
}

/// A file on the host that is there.
fn file(path: &str) -> Result<PathBuf, ApiError> {
    let path = Path::new(path);
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_file() && path.is_absolute() => Ok(path.into()),
        Ok(_) => Err(ApiError::invalid(format!("{} is not the absolute path of a file", path.display()))),
        Err(error) => Err(ApiError::invalid(format!("{} cannot be used: {error}", path.display()))),
    }
}

fn warm_up(recipe: &Recipe) -> WarmUp {
    let warm = &recipe.warm;
    let line = |line: &Option<image::ShellLine>| line.as_ref().map(|line| line.as_str().to_owned());
    let interpreter = warm.interpreter.as_ref();
    WarmUp {
        interpreter: interpreter.map(|warm| warm.program),
        modules: interpreter.map(|warm| warm.modules.clone()).unwrap_or_default(),
        command: line(&warm.command),
        ready: line(&warm.ready),
    }
}
