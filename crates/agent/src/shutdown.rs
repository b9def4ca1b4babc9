//! The end of a machine: everybody is asked to leave, then made to, and the disks are left clean.

use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::system::RebootCommand;

use crate::children::Children;
use crate::console::say;
use crate::serve::Stop;
use crate::sys;

/// How long processes may take to leave by themselves.
const GRACE: Duration = Duration::from_secs(2);
/// How long the kernel may take to remove killed ones.
const REMOVAL: Duration = Duration::from_secs(2);

/// Ends the machine. Returns only if the kernel refuses.
pub(crate) fn run(children: &Children, data: Option<&Path>, stop: Stop) -> Result<(), Errno> {
    children.close();
    for (signal, patience) in [(libc::SIGTERM, GRACE), (libc::SIGKILL, REMOVAL)] {
        // A stopped process hears a signal only once it goes on. Both fail when nobody is there to hear them.
        drop((sys::kill_everybody(signal), sys::kill_everybody(libc::SIGCONT)));
        if children.wait_for_none(patience) {
            break;
        }
    }
    rustix::fs::sync();
    if let Some(data) = data
        && let Err(errno) = rustix::mount::unmount(data, UnmountFlags::empty())
    {
        say(format_args!("{} stays mounted: {errno}", data.display()));
    }
    if let Err(errno) = rustix::mount::mount_remount("/", MountFlags::RDONLY, "") {
        say(format_args!("the root stays writable: {errno}"));
    }
    rustix::system::reboot(match stop {
        Stop::Poweroff => RebootCommand::PowerOff,
        Stop::Reboot => RebootCommand::Restart,
    })
}
