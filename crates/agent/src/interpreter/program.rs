//! What each interpreter is started with: a script that serves the agent, and what that script needs.
//!
//! ```text
//! python3 -c BOOTSTRAP script work control names
//! node    -e BOOTSTRAP script work control reseed names
//! ```
//!
//! All but the last are numbers of descriptors. The script comes by one of them, so that `ps` shows one short line.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::MemfdFlags;
use types::Interpreter;

const PYTHON: [&str; 3] =
    [include_str!("python/wire.py"), include_str!("python/renew.py"), include_str!("python/main.py")];
const JUPYTER: [&str; 3] = [PYTHON[0], PYTHON[1], include_str!("python/jupyter.py")];
const PYTHON_BOOTSTRAP: &str = "import sys; exec(compile(open(int(sys.argv.pop(1))).read(), '<forkd>', 'exec'), {})";
const NODE: [&str; 3] = [include_str!("node/wire.js"), include_str!("node/renew.js"), include_str!("node/main.js")];
const NODE_BOOTSTRAP: &str = "const text = require('fs').readFileSync(+process.argv[1], 'utf8'); \
    require('vm').compileFunction(text, ['require', 'load', 'text', 'given'], { filename: '<forkd>' })\
    (require, (name) => import(name), text, process.argv.slice(1))";

/// What an interpreter is started with, besides the sockets to it.
pub(super) struct Script {
    interpreter: Interpreter,
    text: File,
    reseed: Option<File>,
}

impl Script {
    pub(super) fn of(interpreter: Interpreter) -> io::Result<Self> {
        let (parts, reseed) = match interpreter {
            Interpreter::Python3 => (PYTHON, None),
            Interpreter::Jupyter => (JUPYTER, None),
            Interpreter::Node => (NODE, Some(reseed::MODULE)),
        };
        let text = memory(parts.concat().as_bytes())?;
        Ok(Self { interpreter, text, reseed: reseed.map(memory).transpose()? })
    }

    /// The descriptors it is to inherit, in the order of its arguments.
    pub(super) fn descriptors<'a>(&'a self, sockets: [BorrowedFd<'a>; 2]) -> Vec<BorrowedFd<'a>> {
        let [work, control] = sockets;
        [self.text.as_fd(), work, control].into_iter().chain(self.reseed.as_ref().map(AsFd::as_fd)).collect()
    }

    /// Its command line.
    pub(super) fn argv(&self, descriptors: &[BorrowedFd<'_>], renewed: &[&str]) -> Vec<String> {
        let [flag, bootstrap] = match self.interpreter {
            Interpreter::Python3 | Interpreter::Jupyter => ["-c", PYTHON_BOOTSTRAP],
            Interpreter::Node => ["-e", NODE_BOOTSTRAP],
        };
        let fixed = [self.interpreter.program(), flag, bootstrap].map(String::from);
        let numbers = descriptors.iter().map(|fd| fd.as_raw_fd().to_string());
        fixed.into_iter().chain(numbers).chain([renewed.join(",")]).collect()
    }
}

/// A file without a name.
fn memory(content: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("forkd-warm", MemfdFlags::CLOEXEC)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file)
}
