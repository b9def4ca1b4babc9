//! The link between guest and host, over virtio-net and over vsock.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::Test;
use crate::host::{Host, Sh, argv};

pub(crate) const TESTS: &[Test] = &[
    ("network::the_guest_reaches_a_server_on_the_host", the_guest_reaches_a_server_on_the_host),
    ("network::the_host_reaches_a_server_in_the_guest", the_host_reaches_a_server_in_the_guest),
    ("network::the_guest_reaches_no_unix_socket_through_vsock", the_guest_reaches_no_unix_socket_through_vsock),
    ("network::a_guest_without_a_tap_has_only_loopback", a_guest_without_a_tap_has_only_loopback),
];

const PATIENCE: Duration = Duration::from_secs(60);
const PAYLOAD: usize = 4 << 20;

fn payload() -> Vec<u8> {
    (0..=250).cycle().take(PAYLOAD).collect()
}

fn the_guest_reaches_a_server_on_the_host(host: &Host) -> Result<()> {
    let vm = host.vm()?;
    let gateway = vm.sh("ip route show default | cut -d' ' -f3")?;
    let listener = TcpListener::bind((gateway.as_str(), 0))?;
    let port = listener.local_addr()?.port();
    let server = std::thread::spawn(move || -> Result<Vec<u8>> {
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&payload())?;
        let mut echoed = Vec::new();
        stream.read_to_end(&mut echoed)?;
        Ok(echoed)
    });
    let script = format!(
        "import socket\ns=socket.create_connection(('{gateway}',{port}))\nb=b''\n\
         while len(b)<{PAYLOAD}: b+=s.recv(65536)\ns.sendall(b)\ns.close()"
    );
    let output = vm.output(&argv(&["python3", "-c", &script]), &[])?;
    ensure!(output.status.shell_code() == 0, "{}", String::from_utf8_lossy(&output.stderr));
    ensure!(server.join().ok().context("the server died")?? == payload(), "other bytes came back");
    Ok(())
}

fn the_host_reaches_a_server_in_the_guest(host: &Host) -> Result<()> {
    let vm = host.vm()?;
    let script = "import socket,sys\ns=socket.create_server(('',7777))\nprint('ready',flush=True)\nc,_=s.accept()\n\
                  b=b''\nwhile True:\n d=c.recv(65536)\n if not d: break\n b+=d\nc.sendall(str(len(b)).encode())\nc.close()";
    let mut exec = vm.exec(&argv(&["python3", "-c", script]))?;
    match exec.next_event()? {
        session::Event::Stdout(line) if line == b"ready\n" => {}
        other => anyhow::bail!("no server: {other:?}"),
    }
    let address = vm.guest_ip().context("the shared VM has a network")?;
    let mut stream = TcpStream::connect_timeout(&(address, 7777).into(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&payload())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer == PAYLOAD.to_string());
    Ok(())
}

/// The VMM connects to nothing for its guest, not even to a socket that lies beside its own.
fn the_guest_reaches_no_unix_socket_through_vsock(host: &Host) -> Result<()> {
    let vm = host.vm()?;
    let mut path = vm.vsock().into_os_string();
    path.push("_5000");
    let listener = UnixListener::bind(&path)?;
    let script = "import socket\ns=socket.socket(socket.AF_VSOCK,socket.SOCK_STREAM)\ns.connect((2,5000))";
    let output = vm.output(&argv(&["python3", "-c", script]), &[])?;
    ensure!(String::from_utf8_lossy(&output.stderr).contains("reset"), "{output:?}");
    listener.set_nonblocking(true)?;
    ensure!(listener.accept().is_err(), "somebody called");
    std::fs::remove_file(&path)?;
    Ok(())
}

fn a_guest_without_a_tap_has_only_loopback(host: &Host) -> Result<()> {
    let vm = host.boot(host.spec())?;
    ensure!(vm.sh("ls /sys/class/net")? == "lo");
    Ok(())
}
