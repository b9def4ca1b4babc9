//! A line to a registry that is slow, breaks, or falls silent.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// What happens to what the registry sends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// It comes in small pieces, with a pause after each.
    Drips { bytes: usize, pause: Duration },
    /// A connection ends after so many bytes.
    Cuts { after: usize },
    /// So many connections fall silent after so many bytes; they do not end.
    Stalls { after: usize, connections: usize },
}

pub(crate) struct Proxy {
    pub(crate) port: u16,
    /// Of those on which something went wrong.
    faults: Arc<AtomicUsize>,
}

impl Proxy {
    pub(crate) fn start(to: u16, fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, faults) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let proxy = Self { port, faults: Arc::clone(&faults) };
        // Ends with the process: connections that fell silent are to stay so.
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let faults = Arc::clone(&faults);
                // Somebody who hangs up is no failure of the line.
                thread::spawn(move || drop(join(&client, to, fault, &faults)));
            }
        });
        proxy
    }

    pub(crate) fn faults(&self) -> usize {
        self.faults.load(Ordering::Relaxed)
    }
}

fn join(client: &TcpStream, to: u16, fault: Fault, faults: &AtomicUsize) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", to))?;
    let (mut asking, mut asked) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || drop(io::copy(&mut asking, &mut asked)));
    let passed = pass(&server, client, fault, faults);
    // Either end learns of it at once.
    drop((server.shutdown(Shutdown::Both), client.shutdown(Shutdown::Both)));
    passed
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, fault: Fault, faults: &AtomicUsize) -> io::Result<()> {
    let mut left = match fault {
        Fault::Drips { .. } => usize::MAX,
        Fault::Cuts { after } | Fault::Stalls { after, .. } => after,
    };
    let mut buffer = vec![0; 1 << 16];
    loop {
        let most = if let Fault::Drips { bytes, .. } = fault { bytes } else { buffer.len() };
        let len = from.read(&mut buffer[..most])?;
        let sent = len.min(left);
        to.write_all(&buffer[..sent])?;
        left -= sent;
        match fault {
            _ if len == 0 => return Ok(()),
            Fault::Drips { pause, .. } => thread::sleep(pause),
            Fault::Cuts { .. } if sent < len => {
                faults.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            Fault::Stalls { connections, .. } if sent < len => {
                if faults.fetch_add(1, Ordering::Relaxed) < connections {
                    // Until the client gives up.
                    let mut nothing = [0; 1];
                    while to.peek(&mut nothing).is_ok_and(|len| len > 0) {
                        thread::sleep(Duration::from_millis(10));
                    }
                    return Ok(());
                }
                to.write_all(&buffer[sent..len])?;
                left = usize::MAX;
            }
            Fault::Cuts { .. } | Fault::Stalls { .. } => {}
        }
    }
}
