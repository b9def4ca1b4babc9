//! Stands in for `forkd-vmm` in this crate's tests of boots that fail: it fails as a VMM can, on the real control
//! socket, in the way that the name it was started by says. No guest runs.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use proto::control::{ControlSocket, FromVmm, Outcome, RefusalCode, ToVmm, VmSpec};

type Anything = Box<dyn std::error::Error>;

fn main() -> Result<(), Anything> {
    let control = ControlSocket::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let Some((ToVmm::Boot(spec), _)) = control.recv()? else { return Err("no request to boot came".into()) };
    let name = std::env::args().next().unwrap_or_default();
    match Path::new(&name).file_name().and_then(|name| name.to_str()) {
        Some("refuses") => say(&control, &FromVmm::Refused { code: RefusalCode::Kernel, message: "no kernel".into() }),
        Some("panics") => panics(&control, &spec),
        Some("dies") => dies(&control),
        Some("boots-without-agent") => boots_without_agent(&control, &spec, Door::Closed),
        Some("hangs") => boots_without_agent(&control, &spec, Door::Unanswered),
        Some("is-stuck") => is_stuck(&control, &spec),
        _ => Err(format!("{name} says nothing about how to fail").into()),
    }
}

fn say(control: &ControlSocket, event: &FromVmm) -> Result<(), Anything> {
    Ok(control.send(event, &[])?)
}

fn panics(control: &ControlSocket, spec: &VmSpec) -> Result<(), Anything> {
    std::fs::write(&spec.console, "one\ntwo: no init\n")?;
    say(control, &FromVmm::Booted { setup_us: 1 })?;
    let outcome = Outcome::Panic { reason: Some("No working init found".into()) };
    say(control, &FromVmm::Ended { outcome })
}

fn dies(control: &ControlSocket) -> Result<(), Anything> {
    say(control, &FromVmm::Booted { setup_us: 1 })?;
    std::io::stderr().write_all(b"out of luck\n")?;
    Err("dead".into())
}

/// What happens to connections.
enum Door {
    /// They are turned away, as a guest's kernel does when nobody listens.
    Closed,
    /// They are neither taken nor refused, as by a guest that is stuck.
    Unanswered,
}

/// Runs until its engine goes away or says stop.
fn boots_without_agent(control: &ControlSocket, spec: &VmSpec, door: Door) -> Result<(), Anything> {
    std::fs::write(&spec.console, "still waiting\n")?;
    let listener = UnixListener::bind(&spec.vsock.socket)?;
    say(control, &FromVmm::Booted { setup_us: 1 })?;
    std::thread::spawn(move || match door {
        Door::Closed => listener.incoming().for_each(drop),
        Door::Unanswered => drop(listener.incoming().collect::<Vec<_>>()),
    });
    match control.recv::<ToVmm>()? {
        None => Ok(()),
        Some(_) => say(control, &FromVmm::Ended { outcome: Outcome::Stopped }),
    }
}

/// Neither reads its control socket nor serves connections, as a VMM whose loop waits for a dead disk.
fn is_stuck(control: &ControlSocket, spec: &VmSpec) -> Result<(), Anything> {
    std::fs::write(&spec.console, "still waiting\n")?;
    let _listener = UnixListener::bind(&spec.vsock.socket)?;
    say(control, &FromVmm::Booted { setup_us: 1 })?;
    // Longer than any test waits, and not for ever should nobody end it.
    std::thread::sleep(std::time::Duration::from_secs(120));
    Ok(())
}
