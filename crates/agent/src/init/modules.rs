//! Kernel modules, in the order the initramfs lists them.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::io::Errno;

use crate::console::say;

const LIST: &str = "/modules.list";
const DIRECTORY: &str = "/modules";

/// Loads every module of the list. One that fails is said and passed over: whether it mattered shows when its device
/// is needed. A kernel with everything built in has no list.
pub(crate) fn load_all() {
    let list = match fs::read_to_string(LIST) {
        Ok(list) => list,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => return say(format_args!("cannot read {LIST}: {error}")),
    };
    for name in list.lines().map(str::trim).filter(|name| !name.is_empty()) {
        if let Err(error) = load(&Path::new(DIRECTORY).join(name)) {
            say(format_args!("cannot load the kernel module {name}: {error}"));
        }
    }
}

fn load(path: &Path) -> io::Result<()> {
    match rustix::system::finit_module(File::open(path)?, c"", 0) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
