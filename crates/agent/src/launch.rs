//! From a request to a running process.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use proto::guest::{ErrorCode, ExecRequest, Stdio};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::Rlimit;

use crate::children::{Child, Children};
use crate::image::ImageRun;
use crate::stdio::{self, Ours};
use crate::sys::{self, CStrings, Failure, Plan, Stage};
use crate::users::{User, UserError, Users};

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// More directories of a `PATH` are not searched; a hostile one could otherwise make us allocate without end.
const MAX_PATH_ENTRIES: usize = 128;
/// What the kernel takes as a path.
const MAX_PATH_LEN: usize = 4096;

/// Why a process was not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    #[error("nothing to run: there is no command, and the image of this guest names none")]
    NoProgram,
    #[error("{what} contains a NUL byte")]
    Nul { what: &'static str },
    #[error("`{name}` cannot be the name of an environment variable")]
    Variable { name: String },
    #[error(transparent)]
    User(#[from] UserError),
    #[error("cannot start in `{directory}`: {source}")]
    Directory { directory: String, source: Errno },
    #[error("there is no program `{program}`")]
    NotFound { program: String },
    #[error("`{program}` cannot be executed: {source}")]
    NotExecutable { program: String, source: Errno },
    #[error("`{program}` cannot be executed: its interpreter is missing")]
    NoInterpreter { program: String },
    #[error("the arguments and environment are too long")]
    TooLong,
    #[error("cannot become the user: {source}")]
    Identity { source: Errno },
    #[error("cannot start a process: {source}")]
    System {
        #[from]
        source: io::Error,
    },
}

impl LaunchError {
    pub(crate) const fn code(&self) -> ErrorCode {
        match self {
            Self::NoProgram | Self::Nul { .. } | Self::Variable { .. } | Self::TooLong => ErrorCode::BadArgument,
            Self::User(_) => ErrorCode::NoSuchUser,
            Self::Directory { .. } => ErrorCode::BadCwd,
            Self::NotFound { .. } => ErrorCode::NotFound,
            Self::NotExecutable { .. } | Self::NoInterpreter { .. } => ErrorCode::NotExecutable,
            Self::Identity { .. } | Self::System { .. } => ErrorCode::Failed,
        }
    }
}

/// Starts processes.
pub(crate) struct Launcher {
    pub(crate) children: Arc<Children>,
    /// How many files a started process may open.
    open_files: Rlimit,
    /// What a renewal added to everybody's environment.
    renewed: Mutex<BTreeMap<String, String>>,
}

impl Launcher {
    pub(crate) fn new(children: Arc<Children>, open_files: Rlimit) -> Self {
        Self { children, open_files, renewed: Mutex::default() }
    }

    /// From here on this, and nothing an earlier call named, is added to the environment of whatever is started.
    pub(crate) fn set_renewed(&self, variables: BTreeMap<String, String>) {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = variables;
    }

    /// What a renewal added.
    pub(crate) fn renewed(&self) -> BTreeMap<String, String> {
        self.renewed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts what the request says, and what the guest's image says where the request says nothing; returns when it
    /// has been executed. It inherits `keep` under the same numbers.
    pub(crate) fn launch(&self, request: &ExecRequest, keep: &[BorrowedFd<'_>]) -> Result<(Child, Ours), LaunchError> {
        let image = ImageRun::read();
        let mut variables = image.env();
        variables.extend(self.renewed());
        let fallback = request.cwd.is_none().then_some(c"/");
        self.start(&image.complete(request), variables, fallback, keep)
    }

    /// Starts what the agent needs itself, as the agent is.
    pub(crate) fn launch_own(&self, request: &ExecRequest) -> Result<(Child, Ours), LaunchError> {
        self.start(request, self.renewed(), request.cwd.is_none().then_some(c"/"), &[])
    }

    /// `variables` lie under those of the request; in the directory `fallback` it starts when its own is missing.
    fn start(
        &self,
        request: &ExecRequest,
        variables: BTreeMap<String, String>,
        fallback: Option<&CStr>,
        keep: &[BorrowedFd<'_>],
    ) -> Result<(Child, Ours), LaunchError> {
        let prepared = Prepared::new(request, variables, &Users::read()?)?;
        let identity = request.user.as_ref().map(|_| &prepared.user.identity);
        let streams = stdio::open(request.stdio, identity)?;
        let (reports, report) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from)?;
        let plan = Plan {
            programs: &prepared.programs,
            argv: &prepared.argv,
            environment: &prepared.environment,
            directory: &prepared.directory,
            fallback,
            identity,
            stdio: streams.theirs.fds(),
            terminal: matches!(request.stdio, Stdio::Tty(_)),
            keep,
            open_files: self.open_files,
            report: report.as_fd(),
        };
        let child = self.children.spawn(|| sys::fork_exec(&plan))?;
        drop((streams.theirs, report));
        match read_report(File::from(reports))? {
            Some(failure) => Err(explain(failure, request, &prepared.user)),
            None => Ok((child, streams.ours)),
        }
    }
}

/// What the child could not do; nothing when the pipe closed, which execve does.
fn read_report(mut reports: File) -> io::Result<Option<Failure>> {
    let mut wire = [0; Failure::WIRE_LEN];
    match reports.read_exact(&mut wire) {
        Ok(()) => Ok(Some(Failure::from_wire(wire))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn explain(failure: Failure, request: &ExecRequest, user: &User) -> LaunchError {
    let source = failure.errno;
    let program = request.argv.first().cloned().unwrap_or_default();
    match failure.stage {
        Stage::Setup => LaunchError::System { source: source.into() },
        Stage::Identity => LaunchError::Identity { source },
        Stage::Directory => {
            let directory = request.cwd.clone().unwrap_or_else(|| user.home.clone());
            LaunchError::Directory { directory, source }
        }
        Stage::Interpreter => LaunchError::NoInterpreter { program },
        Stage::Exec => match source {
            Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => LaunchError::NotFound { program },
            Errno::TOOBIG => LaunchError::TooLong,
            Errno::NOMEM | Errno::AGAIN | Errno::MFILE | Errno::NFILE => LaunchError::System { source: source.into() },
            _ => LaunchError::NotExecutable { program, source },
        },
    }
}

/// The request in the shape a forked child can use.
struct Prepared {
    user: User,
    programs: Vec<CString>,
    argv: CStrings,
    environment: CStrings,
    directory: CString,
}

impl Prepared {
    fn new(request: &ExecRequest, renewed: BTreeMap<String, String>, users: &Users) -> Result<Self, LaunchError> {
        let program = request.argv.first().filter(|program| !program.is_empty()).ok_or(LaunchError::NoProgram)?;
        let user = match &request.user {
            Some(spec) => users.find(spec)?,
            None => users.by_uid(rustix::process::geteuid()),
        };
        let environment = environment(request, renewed, &user)?;
        let path = environment.get("PATH").map_or("", String::as_str);
        let directory = request.cwd.as_ref().unwrap_or(&user.home);
        let argv = request.argv.iter().map(|argument| c_string(argument.as_str(), "an argument"));
        let variables = environment.iter().map(|(name, value)| c_string(format!("{name}={value}"), "the environment"));
        Ok(Self {
            programs: programs(program, path)?,
            argv: CStrings::new(argv.collect::<Result<_, _>>()?),
            environment: CStrings::new(variables.collect::<Result<_, _>>()?),
            directory: c_string(directory.as_str(), "the working directory")?,
            user,
        })
    }
}

fn c_string(text: impl Into<Vec<u8>>, what: &'static str) -> Result<CString, LaunchError> {
    CString::new(text).map_err(|_| LaunchError::Nul { what })
}

/// The default environment, over it what the image and a renewal brought, and over all what the request adds.
fn environment(
    request: &ExecRequest,
    renewed: BTreeMap<String, String>,
    user: &User,
) -> Result<BTreeMap<String, String>, LaunchError> {
    let term = if matches!(request.stdio, Stdio::Tty(_)) { "xterm-256color" } else { "dumb" };
    let defaults = [
        ("PATH", DEFAULT_PATH),
        ("HOME", &user.home),
        ("USER", &user.name),
        ("LOGNAME", &user.name),
        ("TERM", term),
        ("LANG", "C.UTF-8"),
    ];
    let mut environment: BTreeMap<_, _> = defaults.map(|(name, value)| (name.into(), value.into())).into();
    environment.extend(renewed);
    for (name, value) in &request.env {
        if name.is_empty() || name.contains('=') {
            return Err(LaunchError::Variable { name: name.clone() });
        }
        environment.insert(name.clone(), value.clone());
    }
    Ok(environment)
}

/// Where the program may be: itself when it names a path, else one file per directory of `PATH`.
fn programs(program: &str, path: &str) -> Result<Vec<CString>, LaunchError> {
    if program.contains('/') {
        return Ok(vec![c_string(program, "the program")?]);
    }
    let candidates = path.split(':').take(MAX_PATH_ENTRIES).map(|directory| match directory {
        "" => format!("./{program}"),
        directory => format!("{directory}/{program}"),
    });
    let short = candidates.filter(|candidate| candidate.len() < MAX_PATH_LEN);
    short.map(|candidate| c_string(candidate, "the program or PATH")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(argv: &[&str], env: &[(&str, &str)]) -> ExecRequest {
        ExecRequest {
            argv: argv.iter().map(|text| (*text).into()).collect(),
            env: env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            ..ExecRequest::default()
        }
    }

    fn refused(request: &ExecRequest) -> LaunchError {
        Prepared::new(request, BTreeMap::new(), &Users::default()).err().expect("the request was accepted")
    }

    #[test]
    fn arguments_no_process_can_have_are_refused() {
        for bad in [
            request(&[], &[]),
            request(&[""], &[]),
            request(&["a\0b"], &[]),
            request(&["a", "b\0"], &[]),
            request(&["a"], &[("", "x")]),
            request(&["a"], &[("A=B", "x")]),
            request(&["a"], &[("A", "x\0")]),
            ExecRequest { cwd: Some("/\0".into()), ..request(&["a"], &[]) },
        ] {
            assert_eq!(refused(&bad).code(), ErrorCode::BadArgument, "{bad:?}");
        }
    }

    #[test]
    fn an_explicit_variable_wins_over_a_renewed_one_and_that_over_a_default() {
        let renewed = BTreeMap::from([("A", "renewed"), ("B", "renewed"), ("LANG", "renewed")]);
        let renewed = renewed.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        let user = Users::default().by_uid(rustix::process::geteuid());
        let found = environment(&request(&["x"], &[("B", "explicit")]), renewed, &user).unwrap();
        let found = ["A", "B", "LANG", "TERM"].map(|name| found[name].as_str());
        assert_eq!(found, ["renewed", "explicit", "renewed", "dumb"]);
    }

    #[test]
    fn a_program_is_searched_in_the_path_it_will_have() {
        let found = |path| programs("prog", path).unwrap();
        assert_eq!(found("/a:/b"), [c"/a/prog".into(), CString::from(c"/b/prog")]);
        assert_eq!(found(":rel"), [c"./prog".into(), CString::from(c"rel/prog")]);
        assert_eq!(programs("./prog", "/a").unwrap(), [CString::from(c"./prog")]);
    }

    #[test]
    fn a_hostile_path_costs_little() {
        let many = ":".repeat(200_000);
        assert_eq!(programs(&"p".repeat(3000), &many).unwrap().len(), MAX_PATH_ENTRIES);
        assert_eq!(programs(&"p".repeat(200_000), "/a:/b").unwrap(), Vec::<CString>::new());
    }
}
