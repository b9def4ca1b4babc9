//! Stands in for `forkd-vmm template` in this crate's tests: it speaks the real messages on real sockets and starts a
//! process for each child, which behaves as a VM does towards the host. It fails in the way that the name it was started
//! by says. No guest runs.

#![expect(clippy::exit, clippy::print_stderr, reason = "it plays a program that dies, and its log is what is read")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio, exit};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use layer::Writer;
use proto::codec::{Channel, read_frame, read_message, write_frame, write_message};
use proto::control::{
    ChildSpec, ControlSocket, DiskBase, DiskLayers, Extent, ForkedChild, FromVmm, Lifetime, Outcome, PAUSED,
    RefusalCode, ToVmm, WriteSpec,
};
use proto::guest::{
    AgentHello, ErrorCode, Evaluated, ExecRequest, ExitStatus, GENERATION, InterpreterState, Renewed, Reply, Request,
};
use rustix::fs::FlockOperation;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// What tells the processes it starts how to behave.
const NAME: &str = "SCRIPTED_TEMPLATE";

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
        [role, spec, fate] if role == "child" => child(&serde_json::from_str(spec)?, fate, ControlSocket::from(stdin)),
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
                assert_eq!(fds.len(), expected, "state, memory and the layers");
                connection.send(&FromVmm::Loaded { setup_us: 1 }, &[])?;
            }
            ToVmm::Spawn { .. } if name == "dies-asked" => exit(5),
            ToVmm::Spawn { children, .. } => spawn(name, connection, children)?,
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

fn spawn(name: &str, connection: &ControlSocket, children: Vec<ChildSpec>) -> Result<(), Anything> {
    assert!(children.len() <= 100, "{} children in one message", children.len());
    let mut forked = Vec::new();
    for (number, child) in children.into_iter().enumerate() {
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
        command.arg("child").arg(serde_json::to_string(&child)?).arg(fate).env(NAME, name);
        command.stdin(Stdio::from(connection.as_fd().try_clone_to_owned()?));
        let mut process = command.spawn()?;
        forked.push(ForkedChild { id: child.id, pid: i32::try_from(process.id())? });
        thread::spawn(move || process.wait());
    }
    if name == "dies-forking" {
        exit(4);
    }
    connection.send(&FromVmm::Forked { children: forked }, &[])?;
    Ok(())
}

/// Holds its directory, listens on its sockets, says that it runs, and lives until it is told to stop.
fn child(spec: &ChildSpec, fate: &str, asker: ControlSocket) -> Result<(), Anything> {
    let home = File::open(&spec.dir)?;
    rustix::fs::flock(&home, FlockOperation::NonBlockingLockShared)?;
    std::fs::write(spec.dir.join("vmm.log"), format!("a child that {fate}\n"))?;
    if fate == "dies" {
        exit(5);
    }
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(spec.dir.join("control.sock"))?)?;
    rustix::net::listen(&listener, 64)?;
    let vsock = UnixListener::bind(spec.dir.join("vsock.sock"))?;
    asker.send(&FromVmm::Started { id: spec.id.clone(), setup_us: 7 }, &[])?;
    if spec.lifetime == Lifetime::Connection {
        thread::spawn(move || {
            while matches!(asker.recv::<ToVmm>(), Ok(Some(_))) {}
            exit(0);
        });
    }
    let (dir, fate) = (spec.dir.clone(), fate.to_owned());
    thread::spawn(move || {
        for (call, stream) in vsock.incoming().enumerate() {
            let (dir, fate) = (dir.clone(), fate.clone());
            thread::spawn(move || {
                let served = stream.map_err(Into::into).and_then(|stream| agent(stream, &fate, call, &dir));
                if let Err(error) = served {
                    eprintln!("a session failed: {error}");
                }
            });
        }
    });
    obey(&listener, &spec.dir.join(PAUSED))
}

fn obey(listener: &OwnedFd, mark: &Path) -> Result<(), Anything> {
    loop {
        let connection = ControlSocket::from(rustix::net::accept(listener)?);
        match connection.recv() {
            Ok(Some((ToVmm::Stop, _))) => {
                return Ok(connection.send(&FromVmm::Ended { outcome: Outcome::Stopped }, &[])?);
            }
            Ok(Some((ToVmm::Branch, fds))) => branch(&connection, fds)?,
            Ok(Some((ToVmm::Pause, _))) => {
                std::fs::write(mark, "")?;
                connection.send(&FromVmm::Paused, &[])?;
            }
            Ok(Some((ToVmm::Resume, _))) => {
                std::fs::remove_file(mark)?;
                connection.send(&FromVmm::Resumed, &[])?;
            }
            _ => {}
        }
    }
}

fn branch(connection: &ControlSocket, fds: Vec<OwnedFd>) -> Result<(), Anything> {
    let [listener, log]: [OwnedFd; 2] = fds.try_into().map_err(|_| "a listener and a log")?;
    let mut command = Command::new("/proc/self/exe");
    let mut template = command.arg("branch").stdin(listener).stderr(log).spawn()?;
    let pid = i32::try_from(template.id())?;
    // Only the template listens, and nobody reads its log.
    drop(command);
    thread::spawn(move || template.wait());
    Ok(connection.send(&FromVmm::Branched { pid, pause_us: 9 }, &[])?)
}

/// The agent's part of one connection.
fn agent(mut stream: UnixStream, fate: &str, call: usize, dir: &Path) -> Result<(), Anything> {
    assert_eq!(read_line(&mut stream)?, b"CONNECT 1717\n");
    match fate {
        "dies-when-called" => exit(6),
        "resets-the-first-call" if call == 0 => return Ok(()),
        "is-silent" => {
            thread::park();
        }
        _ => {}
    }
    stream.write_all(b"OK 1073741824\n")?;
    while let Some(request) = read_message::<Request>(&mut stream)? {
        let reply = match request {
            Request::Hello { .. } => {
                let (agent, kernel) = ("scripted".into(), "none".into());
                Reply::Hello(AgentHello { generation: GENERATION, agent, kernel, boot_ms: 1 })
            }
            Request::Renew(_) if fate == "cannot-renew" => {
                Reply::Error { code: ErrorCode::Failed, message: "hook 10-net failed".into() }
            }
            Request::Renew(request) => {
                std::fs::write(dir.join("renewed.json"), serde_json::to_vec(&request)?)?;
                Reply::Renewed(Renewed { took_us: 11, monotonic_ns: 1 })
            }
            Request::Ping | Request::SetClock { .. } => Reply::Done,
            Request::Exec(request) => match exec(&mut stream, &request)? {
                Some(reply) => reply,
                None => return Ok(()),
            },
            Request::Eval(request) => Reply::Evaluated(Evaluated {
                value: Some(request.code),
                error: None,
                truncated: false,
                interpreter: InterpreterState::Alive,
            }),
            other => return Err(format!("{other:?} was not expected").into()),
        };
        write_message(&mut stream, &reply)?;
    }
    Ok(())
}

/// A few commands, of which no process comes to be: `echo`, `cat`, and `sleep`, which only a signal ends.
fn exec(stream: &mut UnixStream, request: &ExecRequest) -> Result<Option<Reply>, Anything> {
    let ended = |status| Reply::Exited { status, timed_out: false };
    let Some((program, words)) = request.argv.split_first() else { return Err("a command".into()) };
    if !["echo", "cat", "sleep"].contains(&program.as_str()) {
        let message = format!("there is no program `{program}`");
        return Ok(Some(Reply::Error { code: ErrorCode::NotFound, message }));
    }
    write_message(stream, &Reply::Started { pid: 42 })?;
    if program == "echo" {
        write_frame(stream, Channel::Stdout, format!("{}\n", words.join(" ")).as_bytes())?;
        return Ok(Some(ended(ExitStatus::Code(0))));
    }
    while let Some(frame) = read_frame(stream)? {
        match frame.channel {
            Channel::Stdin if frame.payload.is_empty() => return Ok(Some(ended(ExitStatus::Code(0)))),
            Channel::Stdin => {
                write_message(stream, &Reply::StdinCredit { bytes: frame.payload.len() as u64 })?;
                write_frame(stream, Channel::Stdout, &frame.payload)?;
            }
            _ => {
                let Request::Signal { signal } = frame.message()? else { return Err("a signal".into()) };
                return Ok(Some(ended(ExitStatus::Signal(signal))));
            }
        }
    }
    Ok(None)
}

/// One line, and not a byte behind it.
fn read_line(stream: &mut UnixStream) -> std::io::Result<Vec<u8>> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while byte != *b"\n" {
        stream.read_exact(&mut byte)?;
        line.extend(byte);
    }
    Ok(line)
}
