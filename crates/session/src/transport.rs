//! The streams a session can run over, and how to get one into a VM.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::SessionError;

/// How long the VMM may take to answer `CONNECT`: the guest's kernel answers by itself once its driver is up.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// `OK ` and a port number; more than this is not that line.
const MAX_OK_LINE: usize = 32;

/// A connected stream.
#[derive(Debug)]
pub enum Transport {
    /// A VM's vsock device, or an agent on this machine.
    Unix(UnixStream),
    /// A forwarded port of an emulated host.
    Tcp(TcpStream),
}

impl From<UnixStream> for Transport {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

impl From<TcpStream> for Transport {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl Transport {
    /// Frames are small and answered one by one; waiting to fill a segment only costs time.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        match self {
            Self::Unix(_) => Ok(()),
            Self::Tcp(stream) => stream.set_nodelay(true),
        }
    }

    /// Beyond this a read is an error; none is for ever.
    ///
    /// # Errors
    /// When the system does not want to.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(timeout),
            Self::Tcp(stream) => stream.set_read_timeout(timeout),
        }
    }

    fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_write_timeout(timeout),
            Self::Tcp(stream) => stream.set_write_timeout(timeout),
        }
    }

    /// Says that nothing more is sent.
    pub(crate) fn end(&self) -> io::Result<()> {
        self.shut(Shutdown::Write)
    }

    /// Nothing more is read: whoever waits for something gets its end.
    pub(crate) fn end_reading(&self) -> io::Result<()> {
        self.shut(Shutdown::Read)
    }

    /// Ends the connection for every handle that shares it.
    pub(crate) fn hang_up(&self) -> io::Result<()> {
        self.shut(Shutdown::Both)
    }

    fn shut(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.shutdown(how),
            Self::Tcp(stream) => stream.shutdown(how),
        }
    }
}

impl Read for &Transport {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Unix(stream) => (&mut &*stream).read(buf),
            Transport::Tcp(stream) => (&mut &*stream).read(buf),
        }
    }
}

impl Write for &Transport {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Unix(stream) => (&mut &*stream).write(buf),
            Transport::Tcp(stream) => (&mut &*stream).write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads and writes until an instant, however slowly the bytes trickle.
pub(crate) struct Until<'a> {
    transport: &'a Transport,
    until: Instant,
}

impl<'a> Until<'a> {
    pub(crate) fn new(transport: &'a Transport, patience: Duration) -> Self {
        // A patience beyond what the clock can count is none at all; a day is as good.
        let now = Instant::now();
        let until = now.checked_add(patience).unwrap_or_else(|| now + Duration::from_secs(86_400));
        Self { transport, until }
    }
}

impl Until<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// Lets others of the transport's users wait for ever again.
    pub(crate) fn lift(self) -> io::Result<()> {
        self.transport.set_read_timeout(None)?;
        self.transport.set_write_timeout(None)
    }
}

impl Read for Until<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.transport.set_read_timeout(Some(self.left()?))?;
        let mut transport = self.transport;
        transport.read(buf)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.transport.set_write_timeout(Some(self.left()?))?;
        let mut transport = self.transport;
        transport.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Connects to a vsock port of a VM through the VMM's unix socket: says `CONNECT port\n` and reads the answer
/// `OK n\n`, not a byte further, because what follows belongs to the guest.
///
/// # Errors
/// [`SessionError::Unreachable`] when there is no VMM, [`SessionError::NotListening`] when it closes instead of
/// answering, [`SessionError::Timeout`] when it says nothing for ten seconds.
pub fn connect_vsock(socket: &Path, port: u32) -> Result<UnixStream, SessionError> {
    let unreachable = |source| SessionError::Unreachable { socket: socket.into(), source };
    let mut stream = UnixStream::connect(socket).map_err(unreachable)?;
    stream.set_write_timeout(Some(CONNECT_PATIENCE)).map_err(unreachable)?;
    stream.write_all(format!("CONNECT {port}\n").as_bytes()).map_err(unreachable)?;
    stream.set_write_timeout(None).map_err(unreachable)?;
    stream.set_read_timeout(Some(CONNECT_PATIENCE)).map_err(unreachable)?;
    let line = read_line(&stream).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => SessionError::Timeout { waited: CONNECT_PATIENCE },
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => SessionError::NotListening { port },
        _ => unreachable(error),
    })?;
    let number = line.strip_prefix(b"OK ").and_then(|rest| std::str::from_utf8(rest).ok());
    if number.and_then(|text| text.parse::<u32>().ok()).is_none() {
        return Err(SessionError::unexpected(&String::from_utf8_lossy(&line)));
    }
    stream.set_read_timeout(None).map_err(unreachable)?;
    Ok(stream)
}

/// One line without its end, byte by byte so that nothing behind it is taken.
fn read_line(mut stream: impl Read) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < MAX_OK_LINE {
        stream.read_exact(&mut byte)?;
        if byte == *b"\n" {
            break;
        }
        line.extend_from_slice(&byte);
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// Plays the VMM's part for one connection: reads the request, answers, and hands the request back.
    fn ask(answer: &'static [u8]) -> (Result<UnixStream, SessionError>, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vsock");
        let listener = UnixListener::bind(&path).unwrap();
        let vmm = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let request = read_line(&mut stream).unwrap();
            stream.write_all(answer).unwrap();
            String::from_utf8(request).unwrap()
        });
        let result = connect_vsock(&path, 1717);
        (result, vmm.join().unwrap())
    }

    #[test]
    fn the_answer_is_read_to_its_last_byte_and_no_further() {
        let (stream, request) = ask(b"OK 1073741824\nguest bytes");
        assert_eq!(request, "CONNECT 1717");
        let mut rest = String::new();
        stream.unwrap().read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "guest bytes");
    }

    #[test]
    fn a_closed_port_a_strange_answer_and_a_missing_vm_are_told_apart() {
        assert!(matches!(ask(b"").0, Err(SessionError::NotListening { port: 1717 })));
        for strange in [&b"NO\n"[..], b"OK \n", b"OK -1\n", b"OK 11111111111111111111111111111111111111111111"] {
            assert!(matches!(ask(strange).0, Err(SessionError::Protocol { .. })), "{strange:?}");
        }
        let missing = connect_vsock(Path::new("/nonexistent/vsock"), 1);
        assert!(matches!(missing, Err(SessionError::Unreachable { .. })));
    }
}
