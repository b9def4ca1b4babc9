//! A connection to the daemon that becomes one to somebody behind it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;

use ureq::http::Uri;

use crate::endpoint::Endpoint;
use crate::error::{ClientError, Told};
use crate::requests::Client;

/// The longest head of an answer, and the longest refusal.
const MAX_HEAD: usize = 16 << 10;
const MAX_REFUSAL: u64 = 64 << 10;

const NOT_OVER_TLS: &str =
    "connections to ports are made over http:// and unix: only; over https:// ask for a path of the port instead";

/// What is read and written is of whoever was asked for; each side may end its half by itself.
#[derive(Debug)]
pub enum Dialled {
    /// By way of a unix socket.
    Unix(UnixStream),
    /// By way of an address.
    Tcp(TcpStream),
}

impl Dialled {
    /// Says that nothing more is written.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn end(&self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl Read for &Dialled {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Dialled::Unix(stream) => (&mut &*stream).read(into),
            Dialled::Tcp(stream) => (&mut &*stream).read(into),
        }
    }
}

impl Write for &Dialled {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Dialled::Unix(stream) => (&mut &*stream).write(bytes),
            Dialled::Tcp(stream) => (&mut &*stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Client {
    /// Connects to a port of a sandbox, by the path that has it.
    ///
    /// # Errors
    /// When the daemon cannot be reached or says no; and over TLS, where it is not offered.
    pub fn dial(&self, path: &str) -> Result<Dialled, ClientError> {
        let unreachable = |error: io::Error| ClientError::Unreachable {
            endpoint: self.endpoint().clone(),
            source: Box::new(error.into()),
        };
        let (stream, host, base) = match self.endpoint() {
            Endpoint::Unix(path) => {
                (Dialled::Unix(UnixStream::connect(path).map_err(unreachable)?), "localhost".to_owned(), "")
            }
            Endpoint::Url(url) => {
                let plain = url.strip_prefix("http://").ok_or_else(|| unreachable(io::Error::other(NOT_OVER_TLS)))?;
                let (authority, _) = plain.split_once('/').unwrap_or((plain, ""));
                let base = &plain[authority.len()..];
                let uri: Uri = url.parse().map_err(|error| unreachable(io::Error::other(error)))?;
                let to = (uri.host().unwrap_or_default().trim_matches(['[', ']']), uri.port_u16().unwrap_or(80));
                (Dialled::Tcp(TcpStream::connect(to).map_err(unreachable)?), authority.to_owned(), base)
            }
        };
        let token = self.token().map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let head =
            format!("GET {base}{path} HTTP/1.1\r\nhost: {host}\r\nconnection: upgrade\r\nupgrade: tcp\r\n{token}\r\n");
        (&stream).write_all(head.as_bytes())?;
        switched(&stream)?;
        Ok(stream)
    }
}

/// Reads the head of the answer and not a byte more: what follows is somebody else's.
fn switched(mut stream: &Dialled) -> Result<(), ClientError> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if head.len() == MAX_HEAD {
            return Err(io::Error::from(io::ErrorKind::InvalidData).into());
        }
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let text = String::from_utf8_lossy(&head);
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    if status == 101 {
        return Ok(());
    }
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok()).flatten()
    });
    let mut said = Vec::new();
    stream.take(length.unwrap_or(0).min(MAX_REFUSAL)).read_to_end(&mut said)?;
    Err(serde_json::from_slice::<Told>(&said).unwrap_or_default().refusal(Some(status)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Whoever connects is answered like that, and then with what it says.
    fn daemon(answer: &'static str) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}/below", listener.local_addr().unwrap()).parse().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let head = String::from_utf8(head).unwrap();
            assert!(head.starts_with("GET /below/v1/x HTTP/1.1\r\n") && head.contains("Bearer secret"), "{head}");
            stream.write_all(answer.as_bytes()).unwrap();
            let mut said = Vec::new();
            stream.read_to_end(&mut said).unwrap();
            stream.write_all(&said).unwrap();
        });
        Client::new(endpoint, Some("secret".into()))
    }

    #[test]
    fn a_connection_is_somebody_elses_from_the_first_byte_on() {
        let dialled = daemon("HTTP/1.1 101 Switching Protocols\r\nupgrade: tcp\r\n\r\nfirst").dial("/v1/x").unwrap();
        (&dialled).write_all(b" and last").unwrap();
        dialled.end().unwrap();
        let mut said = String::new();
        (&dialled).read_to_string(&mut said).unwrap();
        assert_eq!(said, "first and last");
    }

    #[test]
    fn a_refusal_is_the_daemons() {
        let answer =
            "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 42\r\n\r\n{\"error\":\"nobody\",\"code\":\"nobody_listens\"}";
        let refused = daemon(answer).dial("/v1/x").unwrap_err();
        assert_eq!((refused.status(), refused.code()), (Some(502), Some("nobody_listens")));
        let tls = Client::new("https://127.0.0.1:1".parse().unwrap(), None).dial("/v1/x").unwrap_err();
        assert!(std::error::Error::source(&tls).is_some_and(|why| why.to_string().contains("https")), "{tls}");
    }
}
