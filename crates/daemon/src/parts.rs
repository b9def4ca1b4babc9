//! What a VM boots from: named by whoever asks, built here, or built by whoever started this daemon where nothing can be
//! built (`outside`).

use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::{BuildSteps, Code, CreateSnapshot};
use engine::{Egress, Program, ReadyCheck, WarmUp};
use image::{Initramfs, Purpose, Ready, Recipe, ShellLine, Start, Warm, build_image, guest_kernel};
use serde_json::json;
use types::progress::Progress;
use types::{Dirs, GuestMemorySize, RecipeName, VcpuCount};

use crate::error::{ApiError, chain};
use crate::networks::egress;

/// How long a step may take when nobody says.
const STEP_LIMIT: Duration = Duration::from_secs(600);
/// The longest that can be said: a day.
const MAX_SECS: u32 = 86_400;

/// The three files, and what is known of the VM besides.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
    pub(crate) image: PathBuf,
    pub(crate) vcpus: VcpuCount,
    pub(crate) memory: GuestMemorySize,
    /// What completes the image.
    pub(crate) steps: Steps,
    pub(crate) warm_up: WarmUp,
    /// How long that may take, if the recipe says so.
    pub(crate) warm_limit: Option<Duration>,
    /// What the image was built from.
    pub(crate) recipe: Option<RecipeName>,
    /// Where sandboxes may connect to, if the recipe says so.
    pub(crate) egress: Option<Egress>,
    /// Where something listens.
    pub(crate) ports: Vec<NonZeroU16>,
}

/// What is run in a VM to complete an image.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps {
    pub(crate) run: Vec<String>,
    pub(crate) egress: Option<Egress>,
    pub(crate) limit: Duration,
}

impl Steps {
    fn of_recipe(recipe: &Recipe) -> Self {
        let limit = recipe.build.timeout.map_or(STEP_LIMIT, image::Seconds::duration);
        Self { run: recipe.steps(), egress: recipe.build.egress.clone(), limit }
    }
}

impl TryFrom<&BuildSteps> for Steps {
    type Error = ApiError;

    fn try_from(asked: &BuildSteps) -> Result<Self, ApiError> {
        let line = |line: &String| line.parse::<ShellLine>().map(|line| line.to_string());
        let run = asked.run.iter().map(line).collect::<Result<_, _>>();
        let limit = match asked.timeout_secs {
            None => STEP_LIMIT,
            Some(secs) if (1..=MAX_SECS).contains(&secs) => Duration::from_secs(secs.into()),
            Some(secs) => {
                return Err(ApiError::invalid(format!("build.timeout_secs is {secs}; it can be 1 to {MAX_SECS}")));
            }
        };
        Ok(Self {
            run: run.map_err(|error| ApiError::invalid(format!("build.run: {error}")))?,
            egress: asked.egress.as_ref().map(egress).transpose()?,
            limit,
        })
    }
}

/// What was asked for about them, found to make sense.
#[derive(Debug)]
pub(crate) struct Wanted {
    source: Source,
    kernel: Option<PathBuf>,
    initramfs: Option<PathBuf>,
    vcpus: Option<VcpuCount>,
    memory: Option<GuestMemorySize>,
    steps: Option<Steps>,
    warm: Option<Warm>,
    built_from: Option<RecipeName>,
    ports: Vec<NonZeroU16>,
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
        let ports: Option<Vec<_>> = asked.ports.iter().copied().map(NonZeroU16::new).collect();
        Ok(Self {
            source,
            kernel: asked.kernel.as_deref().map(file).transpose()?,
            initramfs: asked.initramfs.as_deref().map(file).transpose()?,
            vcpus: vcpus.map_err(|error| ApiError::invalid(error.to_string()))?,
            memory: memory.map_err(|error| ApiError::invalid(error.to_string()))?,
            steps: asked.build.as_ref().map(Steps::try_from).transpose()?,
            warm: asked.warm.as_ref().map(warm).transpose()?,
            ports: ports.ok_or_else(|| ApiError::invalid("ports: there is no port 0"))?,
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
        let size = recipe.as_ref().map(|recipe| recipe.size.clone()).unwrap_or_default();
        let warm = self.warm.or_else(|| recipe.as_ref().map(|recipe| recipe.warm.clone())).unwrap_or_default();
        let steps = self.steps.or_else(|| recipe.as_ref().map(Steps::of_recipe)).unwrap_or_default();
        let network = recipe.as_ref().map(|recipe| recipe.network.clone()).unwrap_or_default();
        Ok(Parts {
            kernel,
            initramfs,
            image,
            vcpus: self.vcpus.or(size.vcpus).unwrap_or(VcpuCount::DEFAULT),
            memory: self.memory.or(size.memory).unwrap_or(GuestMemorySize::DEFAULT),
            steps,
            warm_limit: warm.timeout.map(image::Seconds::duration),
            warm_up: warm_up(&warm),
            recipe: recipe.map(|recipe| recipe.name).or(self.built_from),
            egress: network.egress,
            ports: if self.ports.is_empty() { network.ports.into_iter().collect() } else { self.ports },
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
    let line = |line: &Option<ShellLine>| line.as_ref().map(ToString::to_string);
    let interpreter = warm.interpreter.as_ref();
    WarmUp {
        interpreter: interpreter.map(|warm| warm.program),
        modules: interpreter.map(|warm| warm.modules.clone()).unwrap_or_default(),
        command: line(&warm.command),
        start: warm.start.as_ref().map(Start::argv),
        ready: warm.ready.as_ref().map(ready),
    }
}

fn ready(said: &Ready) -> ReadyCheck {
    match said {
        Ready::Command(line) => ReadyCheck::Command(line.to_string()),
        Ready::Tcp(port) => ReadyCheck::Tcp(port.get()),
        Ready::Http(port, path) => ReadyCheck::Http { port: port.get(), path: path.to_string() },
        Ready::Line(text) => ReadyCheck::Line(text.to_string()),
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
            r#"{"tag":"t","recipe":"debian","warm":{"ready":{"line":"x"}}}"#,
            r#"{"tag":"t","recipe":"debian","warm":{"ready":{"tcp":1,"http":2}}}"#,
            r#"{"tag":"t","recipe":"debian","build":{"run":["a\nb"]}}"#,
            r#"{"tag":"t","recipe":"debian","build":{"run":[],"timeout_secs":0}}"#,
            r#"{"tag":"t","recipe":"debian","build":{"run":[],"egress":"::1"}}"#,
            r#"{"tag":"t","recipe":"debian","ports":[0]}"#,
        ] {
            assert_eq!(wanted(bad).unwrap_err().status.as_u16(), 400, "{bad}");
        }
    }

    #[test]
    fn what_is_all_there_is_used_as_it_is() {
        let text = r#"{"tag":"t","kernel":"/etc/passwd","initramfs":"/etc/group","rootfs":"/etc/hostname",
                       "built_from":"python-numpy","vcpus":2,
                       "warm":{"interpreter":"python3","modules":["numpy"],"ready":"true","timeout_secs":7},
                       "build":{"run":["x"],"egress":"none"},"ports":[80]}"#;
        let dirs = Dirs::under(Path::new("/nowhere"));
        let parts = wanted(text).unwrap().find(&dirs, &types::progress::Silent).unwrap();
        assert_eq!((parts.kernel, parts.image), ("/etc/passwd".into(), "/etc/hostname".into()));
        assert_eq!((parts.vcpus.get(), parts.memory), (2, GuestMemorySize::DEFAULT));
        assert_eq!(parts.recipe.unwrap().as_str(), "python-numpy");
        assert_eq!(parts.warm_up.ready, Some(ReadyCheck::Command("true".into())));
        assert_eq!((parts.warm_limit, parts.ports.len()), (Some(Duration::from_secs(7)), 1));
        assert_eq!((parts.steps.run, parts.steps.egress), (vec!["x".into()], Some(Egress::None)));
        assert_eq!(parts.warm_up.interpreter, Some(types::Interpreter::Python3));
    }
}
