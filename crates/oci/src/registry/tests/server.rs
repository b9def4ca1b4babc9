//! A registry that serves one image on loopback, and misbehaves on demand.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::digest::Digest;
use crate::testing::Layout;

/// How it wants to be told who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Login {
    Basic,
    Bearer,
}

/// What it does wrong, and whom it lets in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Conduct {
    /// Lets only those in who are known.
    pub(super) login: Option<Login>,
    /// Hangs up after so many bytes of a blob.
    pub(super) cut_after: Option<usize>,
    /// Falls silent after so many bytes of a blob, when it is asked from the beginning.
    pub(super) stall_after: Option<usize>,
    /// Begins at the beginning, whatever is asked for.
    pub(super) no_ranges: bool,
    /// Sends another part than was asked for, and says so.
    pub(super) shifted: bool,
    /// Says this to everything.
    pub(super) status: Option<u16>,
    /// Says that blobs are had from another port.
    pub(super) blobs_at: Option<u16>,
    /// A token is good for so many answers.
    pub(super) token_uses: Option<u32>,
}

#[derive(Default)]
struct State {
    blobs: BTreeMap<String, Vec<u8>>,
    tags: BTreeMap<String, Vec<u8>>,
    requests: Vec<String>,
    /// Of the last token.
    token_used: u32,
}

pub(super) struct Server {
    pub(super) port: u16,
    state: Arc<Mutex<State>>,
}

type Secure = Arc<rustls::ServerConfig>;

impl Server {
    pub(super) fn start(layout: &Layout, conduct: Conduct) -> Self {
        Self::with(layout, conduct, None)
    }

    /// Over TLS, and the certificate it is trusted by.
    pub(super) fn start_tls(layout: &Layout, conduct: Conduct) -> (Self, String) {
        let signed = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(signed.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth().with_single_cert(vec![signed.cert.der().clone()], key).unwrap();
        (Self::with(layout, conduct, Some(Arc::new(config))), signed.cert.pem())
    }

    fn with(layout: &Layout, conduct: Conduct, secure: Option<Secure>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Self { port, state: Arc::default() };
        server.publish(layout);
        let state = Arc::clone(&server.state);
        let scheme = if secure.is_some() { "https" } else { "http" };
        let base = format!("{scheme}://localhost:{port}");
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (state, secure, base) = (Arc::clone(&state), secure.clone(), base.clone());
                thread::spawn(move || {
                    // A client that hangs up is the client's business.
                    drop(match secure {
                        Some(config) => rustls::ServerConnection::new(config)
                            .map_err(io::Error::other)
                            .and_then(|tls| answer(rustls::StreamOwned::new(tls, stream), &state, conduct, &base)),
                        None => answer(stream, &state, conduct, &base),
                    });
                });
            }
        });
        server
    }

    pub(super) fn publish(&self, layout: &Layout) {
        let mut state = self.state.lock().unwrap();
        state.blobs.extend(layout.blobs.iter().map(|(digest, bytes)| (digest.to_string(), bytes.clone())));
        let manifest = layout.blobs[&layout.manifest].clone();
        state.tags.insert("latest".into(), manifest);
    }

    pub(super) fn tag(&self, name: &str, manifest: &[u8]) {
        self.state.lock().unwrap().tags.insert(name.into(), manifest.into());
    }

    pub(super) fn change(&self, digest: &Digest, change: &dyn Fn(&mut Vec<u8>)) {
        let mut state = self.state.lock().unwrap();
        let blob = state.blobs.get_mut(&digest.to_string()).unwrap();
        let before = blob.clone();
        change(blob);
        let after = blob.clone();
        state.tags.values_mut().filter(|text| **text == before).for_each(|text| text.clone_from(&after));
    }

    pub(super) fn remove(&self, digest: &Digest) {
        self.state.lock().unwrap().blobs.remove(&digest.to_string());
    }

    /// How many requests had this in their path, in what they asked a part of, or in who they said they were.
    pub(super) fn served(&self, part: &str) -> usize {
        self.state.lock().unwrap().requests.iter().filter(|request| request.contains(part)).count()
    }
}

/// One request, then the end: every request is a connection.
fn answer(stream: impl Read + Write, state: &Mutex<State>, conduct: Conduct, base: &str) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    // Somebody who tries TLS with one who does not speak it is not kept waiting.
    if stream.fill_buf()?.first() == Some(&0x16) {
        return Ok(());
    }
    let (mut path, mut range, mut authorization, mut body_len) = (String::new(), None, String::new(), 0);
    loop {
        let mut line = String::new();
        if (&mut stream).take(8192).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let line = line.trim_end();
        if path.is_empty() {
            path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        } else if let Some((name, value)) = line.split_once(':') {
            match name.to_ascii_lowercase().as_str() {
                "range" => range = Some(value.trim().to_owned()),
                "authorization" => authorization = value.trim().to_owned(),
                "content-length" => body_len = value.trim().parse().unwrap_or(0),
                _ => {}
            }
        } else if line.is_empty() {
            break;
        }
    }
    let mut body = String::new();
    (&mut stream).take(body_len).read_to_string(&mut body)?;
    let request = format!("{path} {} {authorization}", range.as_deref().unwrap_or_default());
    state.lock().unwrap().requests.push(request);
    let stream = stream.get_mut();
    if let Some(status) = conduct.status {
        return write!(stream, "HTTP/1.1 {status} x\r\ncontent-length: 3\r\nconnection: close\r\n\r\nno\n");
    }
    if path.starts_with("/token") {
        let is_known = authorization == "Basic bWU6cHc=" || body.contains("refresh_token=who%2Bi%2Fam");
        let body = r#"{"token": "let-me-in"}"#;
        state.lock().unwrap().token_used = 0;
        let status = if is_known { "200 ok" } else { "401 no" };
        let len = body.len();
        return write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {len}\r\nconnection: close\r\n\r\n{body}");
    }
    let wanted = match conduct.login {
        Some(Login::Bearer) => Some(("Bearer let-me-in", format!("Bearer realm=\"{base}/token\",service=\"test\""))),
        Some(Login::Basic) => Some(("Basic bWU6cHc=", "Basic".into())),
        None => None,
    };
    let is_over = conduct.token_uses.is_some_and(|uses| {
        let mut state = state.lock().unwrap();
        state.token_used += 1;
        state.token_used > uses
    });
    if let Some((_, how)) = wanted.filter(|(wanted, _)| is_over || authorization != *wanted) {
        return write!(
            stream,
            "HTTP/1.1 401 who\r\nwww-authenticate: {how}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
    }
    if let Some(port) = conduct.blobs_at.filter(|_| path.contains("/blobs/")) {
        let to = format!("http://localhost:{port}{path}");
        return write!(
            stream,
            "HTTP/1.1 307 there\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
    }
    let (place, name) = path.rsplit_once('/').unwrap_or_default();
    let found = {
        let state = state.lock().unwrap();
        let tagged = place.ends_with("manifests").then(|| state.tags.get(name)).flatten();
        tagged.or_else(|| state.blobs.get(name)).cloned()
    };
    match found {
        Some(bytes) => serve(stream, &bytes, range.as_deref(), conduct, place.ends_with("blobs")),
        None => write!(stream, "HTTP/1.1 404 no\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"),
    }
}

fn serve(out: &mut impl Write, bytes: &[u8], range: Option<&str>, conduct: Conduct, is_blob: bool) -> io::Result<()> {
    let from = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let from = from.filter(|_| !conduct.no_ranges).unwrap_or(0);
    if from > 0 && from >= bytes.len() {
        return write!(out, "HTTP/1.1 416 no\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    }
    let from = from.saturating_sub(usize::from(conduct.shifted));
    let (status, rest) = if from == 0 { ("200 ok", bytes) } else { ("206 part", &bytes[from..]) };
    if from > 0 && conduct.shifted {
        let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
        write!(out, "HTTP/1.1 {status}\r\ncontent-range: {range}\r\n")?;
    } else {
        write!(out, "HTTP/1.1 {status}\r\n")?;
    }
    write!(out, "content-length: {}\r\nconnection: close\r\n\r\n", rest.len())?;
    let stalls = conduct.stall_after.filter(|_| from == 0);
    let limit = conduct.cut_after.or(stalls).filter(|_| is_blob).unwrap_or(rest.len()).min(rest.len());
    out.write_all(&rest[..limit])?;
    out.flush()?;
    if stalls.is_some() && limit < rest.len() {
        // Longer than the client waits.
        thread::sleep(Duration::from_secs(3));
    }
    Ok(())
}

impl Drop for Server {
    fn drop(&mut self) {
        // Wakes the listener of a test that is over; it ends with the process.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}
