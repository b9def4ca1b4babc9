//! Stands in for `forkd-vmm template` in this crate's tests: it speaks the real messages on real sockets and starts a
//! process for each child, which behaves as a VM does towards the host. It fails in the way that the name it was started
//! by says. No guest runs; who asks for files or processes gets those of a real agent on this machine.

#![expect(clippy::exit, clippy::print_stderr, reason = "it plays a program that dies, and its log is what is read")]

#[path = "scripted/agent.rs"]
mod agent;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio, exit};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use layer::Writer;
use proto::control::{
    ChildDescriptor, ChildSpec, ControlSocket, DiskBase, DiskLayers, Extent, ForkedChild, FromVmm, Lifetime, Mark,
    Outcome, RefusalCode, ToVmm, WriteSpec, begin_listening,
};
use rustix::process::Uid;

/// What tells the processes it starts how to behave.
const NAME: &str = "SCRIPTED_TEMPLATE";
/// What every child is handed first, in this order.
const HANDED: [ChildDescriptor; 6] = [
    ChildDescriptor::State,
    ChildDescriptor::Log,
    ChildDescriptor::Console,
    ChildDescriptor::Control,
    ChildDescriptor::Vsock,
    ChildDescriptor::Top,
];

type Anything = Box<dyn std::error::Error>;

fn main() -> Result<(), Anything> {
    let arguments: Vec<String> = std::env::args().collect();
    // Those it starts behave as it does.
    let own_name = || Path::new(&arguments[0]).file_name()?.to_str().map(str::to_owned);
    let name = std::env::var(NAME).ok().or_else(own_name).unwrap_or_default();
    let stdin = std::io::stdin().as_fd().try_clone_to_owned()?;
    match &arguments[1..] {
        [role] if role == "branch" && name == "dies-branched" => Err("the branch cannot be used".into()),
        [role] if role == "template" || role == "branch" => template(&name, &stdin),
        [role] if role == "writer" => Ok(std::io::stdin().read_to_end(&mut Vec::new()).map(|_| ())?),
        [role, socket] if role == "agent" => agent::keep(Path::new(socket)),
        [role, fate] if role == "child" => child(&ControlSocket::from(stdin), fate),
        other => Err(format!("what shall {other:?} mean?").into()),
    }
}

fn template(name: &str, listener: &OwnedFd) -> Result<(), Anything> {
    eprintln!("a template that {name}");
    rustix::io::ioctl_fionbio(listener, false)?;
    loop {
        let connection = ControlSocket::from(rustix::net::accept(listener)?);
        let name = name.to_owned();
        thread::spawn(move || {
            if let Err(error) = serve(&name, &connection) {
                eprintln!("a connection failed: {error}");
            }
        });
    }
}

fn serve(name: &str, connection: &ControlSocket) -> Result<(), Anything> {
    while let Some((message, fds)) = connection.recv()? {
        match message {
            ToVmm::Load(_) if name == "refuses" => {
                let message = "it was made on another CPU".into();
                connection.send(&FromVmm::Refused { code: RefusalCode::Snapshot, message }, &[])?;
                exit(0);
            }
            ToVmm::Load(_) if name == "dies-loading" => exit(3),
            ToVmm::Load(spec) => {
                let of_disk = |disk: &DiskLayers| usize::from(disk.layers) + usize::from(disk.base == DiskBase::Image);
                let expected = 1 + usize::from(spec.memory.get()) + spec.disks.iter().map(of_disk).sum::<usize>();
                let flat = if spec.memory.get() > 1 { 2 } else { 0 };
                assert_eq!(
                    fds.len(),
                    expected + flat,
                    "state, memory and the layers, and a file, twice, if these are many"
                );
                connection.send(&FromVmm::Loaded { setup_us: 1, tops: 1 }, &[])?;
            }
            ToVmm::Spawn { .. } if name == "dies-asked" => exit(5),
            ToVmm::Spawn { children, descriptors } => spawn(name, connection, children, &descriptors, fds)?,
            ToVmm::Write(spec) => write(name, connection, &spec, fds)?,
            ToVmm::Stop => exit(0),
            other => return Err(format!("{other:?} is not for a template").into()),
        }
    }
    Ok(())
}

/// Has a process that lives until the branch is written, or is killed before it has written anything.
fn write(name: &str, connection: &ControlSocket, spec: &WriteSpec, fds: Vec<OwnedFd>) -> Result<(), Anything> {
    static BEFORE: AtomicUsize = AtomicUsize::new(0);
    let mut writer = Command::new("/proc/self/exe").arg("writer").stdin(Stdio::piped()).spawn()?;
    let pid = i32::try_from(writer.id())?;
    connection.send(&FromVmm::Forked { children: vec![ForkedChild { id: spec.id.clone(), pid }] }, &[])?;
    let before = BEFORE.fetch_add(1, Ordering::Relaxed);
    if name == "loses-every-writer" || (name == "loses-the-first-writer" && before == 0) {
        writer.kill()?;
        writer.wait()?;
        return Ok(());
    }
    let mut files = fds.into_iter().map(File::from);
    let mut page_map = files.next().ok_or("no page map")?;
    page_map.read_exact(&mut [0; 8])?;
    let (state, memory, disk) = (files.next(), files.next(), files.next());
    state.ok_or("no state")?.write_all(b"branched")?;
    for file in [memory.ok_or("no memory")?, disk.ok_or("no disk")?] {
        let mut layer = Writer::create(&file, 4096)?;
        layer.put(0, &[7; 4096])?;
        layer.finish()?;
    }
    let parents = match spec.extent {
        Extent::Full => 0,
        Extent::Diff { memory_layers } => memory_layers.get().into(),
    };
    assert_eq!(files.count(), parents, "the layers below");
    connection.send(&FromVmm::Written { memory_bytes: 4096, disk_bytes: 4096 }, &[])?;
    drop(writer.stdin.take());
    writer.wait()?;
    Ok(())
}

fn spawn(
    name: &str,
    connection: &ControlSocket,
    children: Vec<ChildSpec>,
    kinds: &[ChildDescriptor],
    fds: Vec<OwnedFd>,
) -> Result<(), Anything> {
    assert!(children.len() <= 100, "{} children in one message", children.len());
    assert!(children.is_empty() || kinds.starts_with(&HANDED), "{kinds:?} came");
    assert_eq!(fds.len(), children.len() * kinds.len());
    let (mut forked, mut fds) = (Vec::new(), fds.into_iter());
    for (number, child) in children.into_iter().enumerate() {
        let given: Vec<OwnedFd> = fds.by_ref().take(kinds.len()).collect();
        let fate = match name {
            "forgets-the-second" if number == 1 => {
                let message = "the host refused a process".into();
                let event = FromVmm::NotStarted { id: child.id, code: RefusalCode::Host, message };
                connection.send(&event, &[])?;
                continue;
            }
            "loses-the-second" if number == 1 => "dies",
            "loses-the-second-later" if number == 1 => "dies-when-called",
            "cannot-renew-the-second" if number == 1 => "cannot-renew",
            "has-a-silent-second" if number == 1 => "is-silent",
            "resets-first-calls" => "resets-the-first-call",
            _ => "lives",
        };
        let mut command = Command::new("/proc/self/exe");
        let (ours, theirs) = ControlSocket::pair()?;
        command.arg("child").arg(fate).env(NAME, name).stdin(Stdio::from(OwnedFd::from(theirs)));
        let mut process = command.spawn()?;
        let all = std::iter::once(connection.as_fd()).chain(given.iter().map(AsFd::as_fd));
        ours.send(&child, &all.collect::<Vec<_>>())?;
        forked.push(ForkedChild { id: child.id, pid: i32::try_from(process.id())? });
        thread::spawn(move || process.wait());
    }
    if name == "dies-forking" {
        exit(4);
    }
    connection.send(&FromVmm::Forked { children: forked }, &[])?;
    Ok(())
}

/// Listens on its sockets, says that it runs, and lives until it is told to stop. It holds what it was handed.
fn child(parent: &ControlSocket, fate: &str) -> Result<(), Anything> {
    let (spec, fds): (ChildSpec, _) = parent.recv()?.ok_or("nobody said who it is")?;
    if let Some(uid) = spec.uid {
        // By name only: it still writes where a guest would.
        let (user, root) = (Uid::from_raw(uid.get()), Uid::ROOT);
        rustix::thread::set_thread_res_uid(user, root, root)?;
    }
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or("too little was handed to it");
    let (asker, state, mut log) = (ControlSocket::from(next()?), File::from(next()?), File::from(next()?));
    let (_console, listener, vsock, top) = (next()?, next()?, next()?, next()?);
    writeln!(log, "a child that {fate}")?;
    if fate == "dies" {
        exit(5);
    }
    for socket in [&listener, &vsock] {
        rustix::io::ioctl_fionbio(socket, false)?;
        begin_listening(socket)?;
    }
    if state.metadata()?.nlink() == 0 {
        return Ok(());
    }
    let vsock = UnixListener::from(vsock);
    let address = vsock.local_addr()?;
    let dir = address.as_pathname().and_then(Path::parent).ok_or("a socket without a path")?.to_owned();
    asker.send(&FromVmm::Started { id: spec.id.clone(), setup_us: 7 }, &[])?;
    if spec.lifetime == Lifetime::Connection {
        thread::spawn(move || {
            while matches!(asker.recv::<ToVmm>(), Ok(Some(_))) {}
            exit(0);
        });
    }
    let fate = fate.to_owned();
    thread::spawn(move || {
        for (call, stream) in vsock.incoming().enumerate() {
            let (dir, fate) = (dir.clone(), fate.clone());
            thread::spawn(move || {
                let served = stream.map_err(Into::into).and_then(|stream| agent::serve(stream, &fate, call, &dir));
                if let Err(error) = served {
                    eprintln!("a session failed: {error}");
                }
            });
        }
    });
    obey(&listener, &state, &top)
}

fn obey(listener: &OwnedFd, state: &File, top: &OwnedFd) -> Result<(), Anything> {
    loop {
        let connection = ControlSocket::from(rustix::net::accept(listener)?);
        let obeyed = match connection.recv() {
            Ok(Some((ToVmm::Stop, _))) => {
                return Ok(connection.send(&FromVmm::Ended { outcome: Outcome::Stopped }, &[])?);
            }
            Ok(Some((message, _))) => obey_one(&connection, &message, state, top),
            _ => Ok(()),
        };
        // Whoever gives an order may be killed before the answer; that is not the end of a VM.
        if let Err(error) = obeyed {
            eprintln!("an order failed: {error}");
        }
    }
}

fn obey_one(connection: &ControlSocket, message: &ToVmm, state: &File, top: &OwnedFd) -> Result<(), Anything> {
    match message {
        // Who asks for it goes on to branch.
        ToVmm::ShowTops => {
            connection.send(&FromVmm::Tops, &[top.as_fd()])?;
            match connection.recv()? {
                Some((ToVmm::Branch, fds)) => branch(connection, fds),
                _ => Ok(()),
            }
        }
        ToVmm::Pause => {
            Mark::Paused.set(state, true)?;
            Ok(connection.send(&FromVmm::Paused, &[])?)
        }
        ToVmm::Resume => {
            Mark::Paused.set(state, false)?;
            Ok(connection.send(&FromVmm::Resumed, &[])?)
        }
        _ => Ok(()),
    }
}

fn branch(connection: &ControlSocket, fds: Vec<OwnedFd>) -> Result<(), Anything> {
    let [listener, log, _top, _read, _sealed]: [OwnedFd; 5] =
        fds.try_into().map_err(|_| "a listener, a log, a top, twice, and the one before")?;
    let mut command = Command::new("/proc/self/exe");
    let mut template = command.arg("branch").stdin(listener).stderr(log).spawn()?;
    let pid = i32::try_from(template.id())?;
    // Only the template listens, and nobody reads its log.
    drop(command);
    thread::spawn(move || template.wait());
    Ok(connection.send(&FromVmm::Branched { pid, pause_us: 9 }, &[])?)
}
