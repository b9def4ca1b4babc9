//! An HTTP client that does what it is told, also what no good client does.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A connection.
pub(crate) trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The answer, which must have this status.
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    /// The code of an error, which must have this status.
    pub(crate) fn code(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.text());
        let body = self.json();
        assert!(body["error"].as_str().is_some_and(|text| !text.is_empty()), "{body}");
        body["code"].as_str().unwrap_or_else(|| panic!("no code in {body}")).to_owned()
    }
}

pub(crate) fn unix(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub(crate) fn tcp(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A request as text.
pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if let Some(body) = body {
        text += &format!("content-length: {}\r\n", body.len());
    }
    text + "\r\n" + body.unwrap_or_default()
}

/// A text as a part of a query.
pub(crate) fn quote(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// Sends bytes and reads the answer to its end.
pub(crate) fn exchange(mut stream: impl Stream, bytes: &[u8]) -> io::Result<Answer> {
    // A server may refuse before all has come.
    drop(stream.write_all(bytes));
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Err(error) if all.is_empty() => return Err(error),
        _ => {}
    }
    parse(&all)
}

fn parse(all: &[u8]) -> io::Result<Answer> {
    let broken = || io::Error::new(io::ErrorKind::InvalidData, String::from_utf8_lossy(all).into_owned());
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(broken)?;
    let head = String::from_utf8_lossy(&all[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).ok_or_else(broken)?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())))
        .collect();
    let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = &all[end + 4..];
    let body = if chunked { unchunk(body) } else { body.to_vec() };
    Ok(Answer { status, headers, body })
}

fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap().trim(), 16).unwrap();
        let begin = end + 2;
        if length == 0 || begin + length > rest.len() {
            break;
        }
        body.extend_from_slice(&rest[begin..begin + length]);
        rest = &rest[(begin + length + 2).min(rest.len())..];
    }
    body
}
