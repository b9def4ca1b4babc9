//! The agent's part of a scripted child: what a test needs of it, and a real agent for files, processes and shells.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio, exit};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use proto::codec::{Channel, read_frame, read_message, write_frame, write_message};
use proto::guest::{
    AgentHello, ErrorCode, Evaluated, ExecRequest, ExitStatus, GENERATION, InterpreterState, MAX_CHUNK, Renewed, Reply,
    Request,
};

use crate::Anything;

/// The real agent, beside this program.
const REAL: &str = "agent-of-daemon";
/// How long the real agent may take to listen.
const PATIENCE: Duration = Duration::from_secs(30);

/// The agent's part of one connection.
pub(crate) fn serve(mut stream: UnixStream, fate: &str, call: usize, dir: &Path) -> Result<(), Anything> {
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
        let reply = match request.clone() {
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
            Request::Exec(exec) if exec.argv.first().is_some_and(|program| program == "sh") => {
                return delegate(stream, &request, dir);
            }
            Request::Exec(request) => match exec(&mut stream, &request)? {
                Some(reply) => reply,
                None => return Ok(()),
            },
            Request::Eval(request) if request.code == "hang" => return hang(&stream),
            Request::Eval(request) => Reply::Evaluated(Evaluated {
                value: Some(request.code),
                error: None,
                truncated: false,
                interpreter: InterpreterState::Alive,
            }),
            Request::File { .. } | Request::Process { .. } | Request::Dial { .. } => {
                return delegate(stream, &request, dir);
            }
            other => return Err(format!("{other:?} was not expected").into()),
        };
        write_message(&mut stream, &reply)?;
    }
    Ok(())
}

/// A few commands, of which no process comes to be: `echo`, `cat`, `sleep`, which only a signal ends, `yes`, which writes as
/// many bytes as it is told, `python3`, which knows the version of numpy, and `hang`, after which nothing is heard of the
/// guest.
fn exec(stream: &mut UnixStream, request: &ExecRequest) -> Result<Option<Reply>, Anything> {
    let ended = |status| Reply::Exited { status, timed_out: false };
    let Some((program, words)) = request.argv.split_first() else { return Err("a command".into()) };
    if !["echo", "cat", "hang", "python3", "sleep", "yes"].contains(&program.as_str()) {
        let message = format!("there is no program `{program}`");
        return Ok(Some(Reply::Error { code: ErrorCode::NotFound, message }));
    }
    write_message(stream, &Reply::Started { pid: 42 })?;
    if program == "echo" {
        write_frame(stream, Channel::Stdout, format!("{}\n", words.join(" ")).as_bytes())?;
        return Ok(Some(ended(ExitStatus::Code(0))));
    }
    if program == "python3" {
        write_frame(stream, Channel::Stdout, b"2.3.4\n")?;
        return Ok(Some(ended(ExitStatus::Code(0))));
    }
    if program == "yes" {
        let mut left: usize = words.first().ok_or("how many?")?.parse()?;
        while left > 0 {
            let count = left.min(MAX_CHUNK);
            write_frame(stream, Channel::Stdout, &vec![b'y'; count])?;
            left -= count;
        }
        return Ok(Some(ended(ExitStatus::Code(0))));
    }
    if program == "hang" {
        return hang(stream).map(|()| None);
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

/// Says nothing any more, until the other side hangs up.
fn hang(stream: &UnixStream) -> Result<(), Anything> {
    // What it reads it takes for nothing.
    Ok(std::io::copy(&mut &*stream, &mut std::io::sink()).map(|_| ())?)
}

/// Has the real agent go on with this connection, from this request on.
fn delegate(stream: UnixStream, request: &Request, dir: &Path) -> Result<(), Anything> {
    let mut real = UnixStream::connect(real_agent(dir)?)?;
    write_message(&mut real, &Request::Hello { generation: GENERATION, token: None })?;
    let Some(Reply::Hello(_)) = read_message(&mut real)? else { return Err("no hello".into()) };
    write_message(&mut real, request)?;
    let (mut from, mut to) = (stream.try_clone()?, real.try_clone()?);
    let inwards = thread::spawn(move || {
        // Whoever goes away is gone for both.
        drop(std::io::copy(&mut from, &mut to));
        to.shutdown(std::net::Shutdown::Both)
    });
    let mut stream = stream;
    drop(std::io::copy(&mut real, &mut stream));
    drop(stream.shutdown(std::net::Shutdown::Both));
    drop(inwards.join());
    Ok(())
}

/// Where the real agent of this child listens; it is started for the first who asks.
fn real_agent(dir: &Path) -> Result<PathBuf, Anything> {
    static KEEPER: OnceLock<Result<std::process::Child, String>> = OnceLock::new();
    let socket = dir.join("agent.sock");
    let start = || {
        let mut command = Command::new("/proc/self/exe");
        let keeper = command.arg("agent").arg(&socket).stdin(Stdio::piped()).spawn();
        keeper.map_err(|error| error.to_string())
    };
    KEEPER.get_or_init(start).as_ref().map_err(String::as_str)?;
    let until = Instant::now() + PATIENCE;
    while UnixStream::connect(&socket).is_err() {
        if Instant::now() > until {
            return Err("the real agent does not listen".into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(socket)
}

/// Keeps a real agent for as long as whoever started this lives, in whatever way that ends.
pub(crate) fn keep(socket: &Path) -> Result<(), Anything> {
    let program = std::env::current_exe()?.with_file_name(REAL);
    let mut agent = Command::new(program);
    agent.arg("--serve").arg(format!("unix:{}", socket.display()));
    let mut agent = agent.stdin(Stdio::null()).spawn()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    // In order, so that what it runs ends too. Its directory may be gone by now, and with it the way to say so.
    let told = UnixStream::connect(socket).map_err(Anything::from).and_then(|mut stream| {
        write_message(&mut stream, &Request::Hello { generation: GENERATION, token: None })?;
        let _hello: Option<Reply> = read_message(&mut stream)?;
        write_message(&mut stream, &Request::Poweroff)?;
        let _agreed: Option<Reply> = read_message(&mut stream)?;
        Ok(())
    });
    if told.is_err() {
        agent.kill()?;
    }
    agent.wait()?;
    Ok(())
}
