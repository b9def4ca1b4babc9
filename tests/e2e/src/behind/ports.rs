//! A server on a guest's loopback, reached through the daemon.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};

use super::{PORT, World, path};
use crate::serving::{ADDRESS, PATIENCE, TOKEN};

/// `forkd port`; ends with this.
struct Forwarder(Child);

impl Drop for Forwarder {
    fn drop(&mut self) {
        // One that has ended by itself cannot be.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

pub(super) fn a_server_is_reached_by_who_may(world: &World, id: &str) -> Result<()> {
    let base = format!("{}/ports/{PORT}", path(id));
    let ask = |path: &str, more: &str, then: &str| {
        let stream = world.internet.connect(ADDRESS)?;
        say(stream, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{more}\r\n{then}"))
    };
    let (plain, upgrade) = ("connection: close\r\n", "connection: upgrade\r\nupgrade: tcp\r\n");
    let token = format!("authorization: Bearer {TOKEN}\r\n");
    let inside = format!("{base}/a/b?c=d");
    for (path, head) in [(&inside, plain), (&base, "connection: close\r\nupgrade: tcp\r\n")] {
        let refused = ask(path, head, "")?;
        ensure!(refused.starts_with("HTTP/1.1 401 ") && !refused.contains("200 OK"), "{refused}");
    }
    let answered = ask(&inside, &format!("{plain}{token}"), "")?;
    ensure!(answered.starts_with("HTTP/1.1 200 ") && answered.contains("GET /a/b?c=d HTTP/1.1\r\n"), "{answered}");
    ensure!(!answered.contains(TOKEN), "the guest got the token: {answered}");
    let bytes = ask(&base, &format!("{upgrade}{token}"), "GET /plain HTTP/1.0\r\n\r\n")?;
    ensure!(bytes.starts_with("HTTP/1.1 101 ") && bytes.ends_with("GET /plain HTTP/1.0\r\n\r\n"), "{bytes}");
    let nobody = world.daemon.expect(502, "GET", &format!("{}/ports/9/", path(id)), None)?;
    ensure!(nobody["code"] == "nobody_listens", "{nobody}");
    is_on_an_address_of_ours(world, id)
}

/// Also for the user's program, which has only the daemon's socket.
fn is_on_an_address_of_ours(world: &World, id: &str) -> Result<()> {
    let mut command = world.host.forkd();
    command.env("FORKD_URL", world.daemon.url()).stdout(Stdio::piped());
    command.args(["port", id, &PORT.to_string(), "--listen", "127.0.0.1:0"]);
    let mut forwarder = Forwarder(command.spawn()?);
    let mut said = String::new();
    BufReader::new(forwarder.0.stdout.take().context("its output")?).read_line(&mut said)?;
    let address = said.strip_prefix("http://").and_then(|rest| rest.split(' ').next());
    let address: SocketAddr = address.with_context(|| format!("it says `{said}`"))?.parse()?;
    for path in ["/one", "/two"] {
        let answered = say(TcpStream::connect(address)?, &format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"))?;
        ensure!(answered.contains(&format!("\r\n\r\nGET {path} HTTP/1.1\r\n")), "{answered}");
    }
    Ok(())
}

/// All that is answered to this.
fn say(mut stream: TcpStream, text: &str) -> Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(text.as_bytes())?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}
