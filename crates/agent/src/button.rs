//! The power button: whoever presses it wants the machine shut down.
//!
//! ```text
//! struct input_event   0..16 time   16..18 type   18..20 code   20..24 value
//! ```

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::mpsc::Sender;
use std::thread;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::console::say;
use crate::serve::Stop;

const EVENT_LEN: usize = 24;
const EV_KEY: u16 = 1;
const KEY_POWER: u16 = 116;

/// Watches the input devices there are. A machine without any has no button, and nothing to watch.
pub(crate) fn watch(stop: Sender<Stop>) -> io::Result<()> {
    let devices = devices();
    if devices.is_empty() {
        return Ok(());
    }
    thread::Builder::new().name("button".into()).spawn(move || {
        if wait_for_press(devices) && stop.send(Stop::Poweroff).is_err() {
            say("the power button was pressed, and nobody waits for it any more");
        }
    })?;
    Ok(())
}

fn devices() -> Vec<File> {
    let Ok(entries) = fs::read_dir("/dev/input") else { return Vec::new() };
    let events = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("event"));
    events.filter_map(|entry| File::open(entry.path()).ok()).collect()
}

/// False when there is nothing left to watch.
fn wait_for_press(mut devices: Vec<File>) -> bool {
    while !devices.is_empty() {
        let mut fds: Vec<_> =
            devices.iter().map(|device| PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)).collect();
        match rustix::event::poll(&mut fds, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return false,
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut pressed = false;
        let mut ready = ready.into_iter();
        // A device that can no longer be read is gone.
        devices.retain_mut(|device| match ready.next() {
            Some(true) => read_press(device).is_ok_and(|found| {
                pressed |= found;
                true
            }),
            _ => true,
        });
        if pressed {
            return true;
        }
    }
    false
}

fn read_press(device: &mut File) -> io::Result<bool> {
    let mut events = [0; 16 * EVENT_LEN];
    match device.read(&mut events)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => Ok(events[..count].chunks_exact(EVENT_LEN).any(is_press)),
    }
}

fn is_press(event: &[u8]) -> bool {
    let field = |at| u16::from_ne_bytes([event[at], event[at + 1]]);
    field(16) == EV_KEY && field(18) == KEY_POWER && event[20..EVENT_LEN] == 1_i32.to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: u16, code: u16, value: i32) -> Vec<u8> {
        let mut bytes = vec![7; 16];
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&code.to_ne_bytes());
        bytes.extend_from_slice(&value.to_ne_bytes());
        bytes
    }

    #[test]
    fn only_the_power_key_going_down_is_a_press() {
        assert!(is_press(&event(EV_KEY, KEY_POWER, 1)));
        assert!(!is_press(&event(EV_KEY, KEY_POWER, 0)), "going up");
        assert!(!is_press(&event(EV_KEY, 30, 1)), "another key");
        assert!(!is_press(&event(0, KEY_POWER, 1)), "no key at all");
    }
}
