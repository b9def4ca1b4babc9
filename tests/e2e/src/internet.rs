//! A host and an internet for guests, made of namespaces that nothing leads out of: whatever a policy lets through that it
//! should not ends here.
//!
//! ```text
//! guest ── forkd-child-K ── host 203.0.113.1 ── internet 203.0.113.2, and every other address
//! ```

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use engine::Pool;
use net::dns::message::{Kind, Outcome, Question};
use net::{Directory, Site, Upstream};

/// The host's address on the internet, and the internet's router and name server.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const ROUTER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
/// Two servers.
pub(crate) const ONE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
pub(crate) const OTHER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 8);
/// What clouds tell their machines.
pub(crate) const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
/// Longer than any test, so that nothing expires under it.
const TTL: Duration = Duration::from_secs(600);

/// What a server says to who asks for a path; `None` when there is nothing.
pub(crate) type Pages = Arc<dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync>;

/// It ends with this value.
pub(crate) struct Internet {
    /// Networks of guests.
    pub(crate) pool: Option<Arc<Pool>>,
    /// Where their namespaces have their names.
    pub(crate) names: Directory,
    /// The host's side of them.
    site: Option<Site>,
    host: String,
    world: String,
    _dir: tempfile::TempDir,
}

impl Internet {
    /// With so many networks ready, and a name server that knows these names.
    pub(crate) fn new(ready: usize, known: &'static [(&'static str, Ipv4Addr)]) -> Result<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = tempfile::tempdir()?;
        let names = Directory::at(dir.path());
        let (host, world) = (format!("e2e-host-{number}"), format!("e2e-world-{number}"));
        let mut internet = Self { pool: None, names: names.clone(), site: None, host, world, _dir: dir };
        internet.lay()?;
        let name_server = internet.on_world(|| UdpSocket::bind((ROUTER, 53)))?;
        thread::Builder::new().spawn(move || answer(&name_server, known))?;
        let upstream = Upstream::Servers(vec![(ROUTER, 53).into()]);
        let site = internet.on_host(|| Site::prepare(names).map_err(std::io::Error::other))?;
        let pool = internet.on_host(|| Pool::start(site.clone(), upstream, ready).map_err(std::io::Error::other))?;
        (internet.pool, internet.site) = (Some(Arc::new(pool)), Some(site));
        Ok(internet)
    }

    /// The namespaces and the cable between them.
    fn lay(&self) -> Result<()> {
        let (host, world) = (self.host.as_str(), self.world.as_str());
        for name in [host, world] {
            ip(&["netns", "add", name])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        ip(&["link", "add", "wan", "netns", host, "type", "veth", "peer", "name", "eth0", "netns", world])?;
        let own = [(host, "wan", format!("{HOST}/24")), (world, "eth0", format!("{ROUTER}/24"))];
        let more = [ONE, OTHER, METADATA].map(|address| (world, "eth0", format!("{address}/32")));
        for (place, link, address) in own.iter().chain(&more) {
            ip(&["-n", place, "addr", "add", address, "dev", link])?;
            ip(&["-n", place, "link", "set", link, "up"])?;
        }
        ip(&["-n", host, "route", "add", "default", "via", &ROUTER.to_string()])
    }

    pub(crate) fn pool(&self) -> Result<Arc<Pool>> {
        self.pool.clone().context("the networks are gone")
    }

    fn on_host<T: Send>(&self, work: impl FnOnce() -> std::io::Result<T> + Send) -> Result<T> {
        Directory::default().enter(&self.host, work).with_context(|| self.host.clone())
    }

    fn on_world<T: Send>(&self, work: impl FnOnce() -> std::io::Result<T> + Send) -> Result<T> {
        Directory::default().enter(&self.world, work).with_context(|| self.world.clone())
    }

    /// The name of the host's namespace.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Listens on the host.
    pub(crate) fn listen(&self, at: SocketAddr) -> std::io::Result<TcpListener> {
        Directory::default().enter(&self.host, || TcpListener::bind(at))
    }

    /// Connects from the host.
    pub(crate) fn connect(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        Directory::default().enter(&self.host, || TcpStream::connect(to))
    }

    /// How many addresses the host's own rules open to guests.
    pub(crate) fn opened(&self) -> Result<usize> {
        Ok(self.site.as_ref().context("the host is gone")?.opened()?)
    }

    /// What `ip` says that the host has of something.
    pub(crate) fn host_has(&self, what: &str) -> Result<String> {
        ip_says(&["-n", &self.host, what, "show"])
    }

    /// Greets whoever connects to a port there, and says what it is told, until the tests end.
    pub(crate) fn greet(&self, address: Ipv4Addr, port: u16) -> Result<()> {
        let listen = || TcpListener::bind((address, port));
        let is_hosts = address == HOST || net::plan::OUTSIDE.octets()[..2] == address.octets()[..2];
        let listener = if is_hosts { self.on_host(listen)? } else { self.on_world(listen)? };
        thread::Builder::new().spawn(move || {
            for mut stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut again = stream.try_clone()?;
                    stream.write_all(b"hello")?;
                    std::io::copy(&mut stream, &mut again)
                });
            }
        })?;
        Ok(())
    }

    /// Serves pages there by HTTP, until the tests end.
    pub(crate) fn serve(&self, address: Ipv4Addr, pages: Pages) -> Result<()> {
        serve_on(self.on_world(|| TcpListener::bind((address, 80)))?, pages)
    }
}

/// Serves pages by HTTP to whoever connects, until the tests end.
pub(crate) fn serve_on(listener: TcpListener, pages: Pages) -> Result<()> {
    thread::Builder::new().spawn(move || {
        for stream in listener.incoming().flatten() {
            let pages = Arc::clone(&pages);
            // A client that leaves has no use for the rest.
            thread::spawn(move || drop(respond(&stream, &pages)));
        }
    })?;
    Ok(())
}

impl Drop for Internet {
    #[expect(clippy::print_stderr, reason = "what is left behind must be said")]
    fn drop(&mut self) {
        // Networks first, which lead there.
        (self.pool, self.site) = (None, None);
        for name in [&self.host, &self.world] {
            if let Err(error) = ip(&["netns", "del", name]) {
                eprintln!("{error:#}");
            }
        }
    }
}

fn ip(words: &[&str]) -> Result<()> {
    ip_says(words).map(drop)
}

fn ip_says(words: &[&str]) -> Result<String> {
    let output = Command::new("ip").args(words).output().context("ip")?;
    ensure!(output.status.success(), "ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// A name server, until the tests end.
fn answer(socket: &UdpSocket, known: &[(&str, Ipv4Addr)]) {
    let mut bytes = [0; 1500];
    while let Ok((length, asker)) = socket.recv_from(&mut bytes) {
        let Some(question) = Question::parse(&bytes[..length]) else { continue };
        let found = question.name.as_ref().and_then(|name| known.iter().find(|(known, _)| *known == name.as_str()));
        let reply = match (found, question.kind) {
            (Some((_, address)), Kind::Ipv4) => question.answer(&[*address], TTL),
            (Some(_), _) => question.decline(Outcome::Nothing),
            (None, _) => question.decline(Outcome::NoSuchName),
        };
        // Who does not hear it asks again.
        drop(socket.send_to(&reply, asker));
    }
}

/// One request after the other, as long as the client wants.
fn respond(stream: &TcpStream, pages: &Pages) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut lines = BufReader::new(stream).lines();
    while let Some(line) = lines.next().transpose()? {
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        // What else it says of itself.
        lines.by_ref().map_while(Result::ok).take_while(|header| !header.is_empty()).for_each(drop);
        let (status, body) = pages(&path).map_or(("404 Not Found", Vec::new()), |body| ("200 OK", body));
        let kind = if body.starts_with(b"<") { "text/html" } else { "application/octet-stream" };
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", body.len());
        let mut stream = stream;
        stream.write_all(&[head.as_bytes(), &body].concat())?;
    }
    Ok(())
}
