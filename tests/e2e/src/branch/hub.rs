//! A server on loopback that takes a pack, lists it, and hands it out again.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use serde_json::json;
use sha2::{Digest, Sha256};

/// The package it lists.
pub(crate) const PACKAGE: &str = "me/packed";
/// More than any test asks for.
const MAX_REQUESTS: usize = 1024;
const VERSION: &str = "\"one\"";

/// The server. It serves until the tests are over.
pub(crate) struct Hub {
    address: SocketAddr,
    shelf: Arc<Mutex<Shelf>>,
}

/// What it holds, and what it knows.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    pub(crate) pack: Vec<u8>,
    /// The sum that it lists, if that is another than the right one.
    pub(crate) wrong_sum: Option<String>,
    /// It hangs up in the middle of the next download.
    pub(crate) hangs_up: bool,
    /// Where each download began.
    pub(crate) begun_at: Vec<usize>,
}

impl Hub {
    pub(crate) fn open() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let hub = Self { address: listener.local_addr()?, shelf: Arc::default() };
        let (address, shelf) = (hub.address, Arc::clone(&hub.shelf));
        thread::Builder::new().spawn(move || {
            for stream in listener.incoming().take(MAX_REQUESTS) {
                if let Err(error) = stream.map_err(Into::into).and_then(|stream| serve(stream, address, &shelf)) {
                    super::log(&format!("the hub: {error:#}"));
                }
            }
        })?;
        Ok(hub)
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    pub(crate) fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn serve(mut stream: TcpStream, address: SocketAddr, shelf: &Mutex<Shelf>) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let lines = (&mut reader).lines().map(|line| Ok(line?.to_lowercase()));
    let request = lines.take_while(|line| !matches!(line, Ok(line) if line.is_empty())).collect::<Result<Vec<_>>>()?;
    let header = |name: &str| request.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let mut shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
    let what = request.first().context("an empty request")?;
    if what.starts_with("put /pack ") {
        if header("expect").is_some() {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        shelf.pack = vec![0; header("content-length").context("no length")?.parse()?];
        reader.read_exact(&mut shelf.pack)?;
        return answer(&mut stream, "201 Created", 0, &[]);
    }
    if what.starts_with("get /registry.json ") {
        let list = list(&shelf, address).to_string();
        return answer(&mut stream, "200 OK", list.len(), list.as_bytes());
    }
    let from = header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    download(&mut stream, &mut shelf, from)
}

fn list(shelf: &Shelf, address: SocketAddr) -> serde_json::Value {
    let right = || Sha256::digest(&shelf.pack).iter().map(|byte| format!("{byte:02x}")).collect();
    let sum: String = shelf.wrong_sum.clone().unwrap_or_else(right);
    let version = json!({"url": format!("http://{address}/pack"), "size_bytes": shelf.pack.len(), "sha256": sum});
    json!({"schema_version": 1, "packages": {PACKAGE: {"versions": {"latest": version}}}})
}

fn download(stream: &mut TcpStream, shelf: &mut Shelf, from: Option<usize>) -> Result<()> {
    let (total, begin) = (shelf.pack.len(), from.unwrap_or(0));
    shelf.begun_at.push(begin);
    if begin >= total {
        return answer(stream, &format!("416 Range Not Satisfiable\r\ncontent-range: bytes */{total}"), 0, &[]);
    }
    let end = if std::mem::take(&mut shelf.hangs_up) { begin + (total - begin) / 2 } else { total };
    let head = match from {
        None => format!("200 OK\r\netag: {VERSION}"),
        Some(_) => {
            format!("206 Partial Content\r\netag: {VERSION}\r\ncontent-range: bytes {begin}-{}/{total}", total - 1)
        }
    };
    answer(stream, &head, total - begin, &shelf.pack[begin..end])
}

fn answer(stream: &mut TcpStream, head: &str, length: usize, body: &[u8]) -> Result<()> {
    write!(stream, "HTTP/1.1 {head}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n")?;
    Ok(stream.write_all(body)?)
}
