//! What a VM boots from: named by whoever asks, built here, or built by whoever started this daemon where nothing can be
//! built (`outside`).

use std::path::{Path, PathBuf};

use api::{Code, CreateSnapshot};
use engine::{Program, WarmUp};
use image::{Initramfs, Purpose, Recipe, Warm, build_image, guest_kernel};
use serde_json::json;
use types::progress::Progress;
use types::{Dirs, GuestMemorySize, RecipeName, VcpuCount};

use crate::error::{ApiError, chain};

/// The three files, and what is known of the VM besides.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
    pub(crate) image: PathBuf,
    pub(crate) vcpus: VcpuCount,
    pub(crate) memory: GuestMemorySize,
    pub(crate) warm_up: WarmUp,
    /// What the image was built from.
    pub(crate) recipe: Option<RecipeName>,
}

/// What was asked for about them, found to make sense.
#[derive(Debug)]
pub(crate) struct Wanted {
    source: Source,
    kernel: Option<PathBuf>,
    initramfs: Option<PathBuf>,
    vcpus: Option<VcpuCount>,
    memory: Option<GuestMemorySize>,
    warm: Option<Warm>,
    built_from: Option<RecipeName>,
}

/// What the file system is.
#[derive(Debug)]
enum Source {
    Recipe(Box<Recipe>),
    Image(PathBuf),
}

impl TryFrom<&CreateSnapshot> for Wanted {
    type Error = ApiError;

    fn try_from(asked: &CreateSnapshot) -> Result<Self, ApiError> {
        let source = match (&asked.recipe, &asked.rootfs) {
            (Some(name), None) => Source::Recipe(Box::new(recipe(name)?)),
            (None, Some(rootfs)) => Source::Image(file(rootfs)?),
            _ => return Err(ApiError::invalid("give either a recipe, or a kernel and a rootfs")),
        };
        if asked.initramfs.is_some() && asked.kernel.is_none() {
            return Err(ApiError::invalid("an initramfs fits one kernel; give that, too"));
        }
        let vcpus = asked.vcpus.map(VcpuCount::try_from).transpose();
        let memory = asked.memory_mib.map(|mib| GuestMemorySize::try_from(mib.saturating_mul(1 << 20))).transpose();
        let built_from = asked.built_from.as_deref().map(str::parse).transpose();
        Ok(Self {
            source,
            kernel: asked.kernel.as_deref().map(file).transpose()?,
            initramfs: asked.initramfs.as_deref().map(file).transpose()?,
            vcpus: vcpus.map_err(|error| ApiError::invalid(error.to_string()))?,
            memory: memory.map_err(|error| ApiError::invalid(error.to_string()))?,
            warm: asked.warm.as_ref().map(warm).transpose()?,
            built_from: built_from.map_err(|error: types::NameError| ApiError::invalid(error.to_string()))?,
        })
    }
}

impl Wanted {
    /// Builds and fetches what is missing.
    pub(crate) fn find(self, dirs: &Dirs, progress: &dyn Progress) -> Result<Parts, ApiError> {
        let failed = |error: &dyn std::error::Error| ApiError::internal(chain(error)).with_code(Code::VmFailed);
        let (kernel, initramfs) = match (self.kernel, self.initramfs) {
            (Some(kernel), Some(initramfs)) => (kernel, initramfs),
            (kernel, _) => {
                let kernel = guest_kernel(kernel.as_deref(), dirs, progress).map_err(|error| failed(&error))?;
                let agent = Program::Agent.find().map_err(|error| failed(&error))?;
                let initramfs = Initramfs { agent: &agent, kernel: &kernel, purpose: Purpose::Guest };
                let initramfs = initramfs.cached(dirs, progress).map_err(|error| failed(&error))?;
                (kernel.image, initramfs)
            }
        };
        let (image, recipe) = match self.source {
            Source::Recipe(recipe) => {
                let built = build_image(&recipe, dirs, progress).map_err(|error| failed(&error))?;
                (built.path, Some(*recipe))
            }
            Source::Image(image) => (image, None),
        };
        let (size, says) = recipe.as_ref().map(|recipe| (recipe.size.clone(), recipe.warm.clone())).unwrap_or_default();
        Ok(Parts {
            kernel,
            initramfs,
            image,
            vcpus: self.vcpus.or(size.vcpus).unwrap_or(VcpuCount::DEFAULT),
            memory: self.memory.or(size.memory).unwrap_or(GuestMemorySize::DEFAULT),
            warm_up: warm_up(&self.warm.unwrap_or(says)),
            recipe: recipe.map(|recipe| recipe.name).or(self.built_from),
        })
    }
}

/// By its name and not by a path: whoever may name files of the host says so with kernel and rootfs.
fn recipe(name: &str) -> Result<Recipe, ApiError> {
    name.parse::<RecipeName>().map_err(|error| ApiError::invalid(error.to_string()))?;
    Recipe::find(name).map_err(|error| ApiError::invalid(chain(&error)))
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

/// What a request says, checked as if a recipe said it.
fn warm(said: &api::WarmUp) -> Result<Warm, ApiError> {
    serde_json::from_value(json!(said)).map_err(|error| ApiError::invalid(format!("warm: {error}")))
}

fn warm_up(warm: &Warm) -> WarmUp {
    let line = |line: &Option<image::ShellLine>| line.as_ref().map(|line| line.as_str().to_owned());
    let interpreter = warm.interpreter.as_ref();
    WarmUp {
        interpreter: interpreter.map(|warm| warm.program),
        modules: interpreter.map(|warm| warm.modules.clone()).unwrap_or_default(),
        command: line(&warm.command),
        ready: line(&warm.ready),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(text: &str) -> Result<Wanted, ApiError> {
        Wanted::try_from(&serde_json::from_str::<CreateSnapshot>(text).unwrap())
    }

    #[test]
    fn what_makes_no_sense_is_refused_before_anything_is_built() {
        for bad in [
            r#"{"tag":"t"}"#,
            r#"{"tag":"t","recipe":"debian","rootfs":"/etc/passwd"}"#,
            r#"{"tag":"t","recipe":"./debian/recipe.toml"}"#,
            r#"{"tag":"t","recipe":"nobody-has-it"}"#,
            r#"{"tag":"t","rootfs":"etc/passwd"}"#,
            r#"{"tag":"t","rootfs":"/etc"}"#,
            r#"{"tag":"t","recipe":"debian","initramfs":"/etc/passwd"}"#,
            r#"{"tag":"t","recipe":"debian","vcpus":0}"#,
            r#"{"tag":"t","recipe":"debian","memory_mib":1}"#,
            r#"{"tag":"t","recipe":"debian","built_from":"../x"}"#,
            r#"{"tag":"t","recipe":"debian","warm":{"interpreter":"perl"}}"#,
            r#"{"tag":"t","recipe":"debian","warm":{"modules":["numpy"]}}"#,
            r#"{"tag":"t","recipe":"debian","warm":{"command":"a\nb"}}"#,
        ] {
            assert_eq!(wanted(bad).unwrap_err().status.as_u16(), 400, "{bad}");
        }
    }

    #[test]
    fn what_is_all_there_is_used_as_it_is() {
        let text = r#"{"tag":"t","kernel":"/etc/passwd","initramfs":"/etc/group","rootfs":"/etc/hostname",
                       "built_from":"python-numpy","vcpus":2,
                       "warm":{"interpreter":"python3","modules":["numpy"],"ready":"true"}}"#;
        let dirs = Dirs::under(Path::new("/nowhere"));
        let parts = wanted(text).unwrap().find(&dirs, &types::progress::Silent).unwrap();
        assert_eq!((parts.kernel, parts.image), ("/etc/passwd".into(), "/etc/hostname".into()));
        assert_eq!((parts.vcpus.get(), parts.memory), (2, GuestMemorySize::DEFAULT));
        assert_eq!(parts.recipe.unwrap().as_str(), "python-numpy");
        assert_eq!(parts.warm_up.ready.as_deref(), Some("true"));
        assert_eq!(parts.warm_up.interpreter, Some(types::Interpreter::Python3));
    }
}
