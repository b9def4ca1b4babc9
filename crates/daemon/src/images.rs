//! Images that are completed in a VM: the steps of a recipe are run over its root file system once, and the disk that they
//! leave is kept in the cache.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use api::{BuildImage, BuiltImage, CreateSnapshot};
use engine::{BootSpec, BuildError, BuildSpec, Egress, build};
use image::{CacheError, sealed_image};

use crate::booting::{boot_limit, build_outside, tap};
use crate::error::ApiError;
use crate::parts::{Parts, Wanted};
use crate::state::App;
use crate::work::Job;

/// What an image is called that comes from nowhere.
const NAMELESS: &str = "image";

/// Builds an image, or finds it.
pub(crate) fn create(app: &App, asked: BuildImage, job: &Job) -> Result<BuiltImage, ApiError> {
    let limit = boot_limit(asked.boot_timeout_secs)?;
    let BuildImage { recipe, kernel, initramfs, rootfs, build, built_from, vcpus, memory_mib, .. } = asked;
    let tag = String::from(NAMELESS);
    let asked = CreateSnapshot {
        tag,
        recipe,
        kernel,
        initramfs,
        rootfs,
        build,
        built_from,
        vcpus,
        memory_mib,
        ..CreateSnapshot::default()
    };
    let asked = build_outside(app, asked, job)?;
    let parts = Wanted::try_from(&asked)?.find(&app.dirs, job.progress())?;
    let path = complete(app, &parts, limit, job)?;
    let meta = fs::metadata(&path).map_err(|error| ApiError::internal(format!("{}: {error}", path.display())))?;
    Ok(BuiltImage {
        path: path.to_str().ok_or_else(|| ApiError::internal("the image's path is no text"))?.to_owned(),
        bytes: meta.len(),
        occupied_bytes: meta.blocks() * 512,
    })
}

/// The image with its steps run; as it is when there are none.
pub(crate) fn complete(app: &App, parts: &Parts, boot: Duration, job: &Job) -> Result<PathBuf, ApiError> {
    let steps = &parts.steps;
    if steps.run.is_empty() {
        return Ok(parts.image.clone());
    }
    let name = parts.recipe.clone().unwrap_or_else(|| NAMELESS.parse().expect("it is a name"));
    let egress = steps.egress.clone().unwrap_or_default();
    let made = sealed_image(&name, &parts.image, &steps.run, &egress.to_string(), &app.dirs, job.progress(), |out| {
        // One that may go nowhere needs no network, and nobody has to be root for it.
        let tap = if egress == Egress::None { None } else { Some(tap(app, &egress)?) };
        let boot = BootSpec {
            vcpus: parts.vcpus,
            memory: parts.memory,
            kernel: parts.kernel.clone(),
            initramfs: parts.initramfs.clone(),
            image: parts.image.clone(),
            append: None,
            tap,
            limit: boot,
            cancel: Some(job.cancel()),
        };
        let spec = BuildSpec { boot, steps: steps.run.clone(), limit: steps.limit };
        Ok(build(spec, out, &app.dirs, job.progress())?)
    });
    made.map_err(|error: Failed| match error {
        Failed::Cache(error) => ApiError::internal(crate::error::chain(&error)),
        Failed::Build(error) => error.into(),
        Failed::Api(error) => error,
    })
}

/// Why there is none.
#[derive(Debug)]
enum Failed {
    Cache(CacheError),
    Build(BuildError),
    Api(ApiError),
}

impl From<CacheError> for Failed {
    fn from(error: CacheError) -> Self {
        Self::Cache(error)
    }
}

impl From<BuildError> for Failed {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}

impl From<ApiError> for Failed {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}
