//! TLS: the address speaks it with the certificate that was read last, and speaks nothing else.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::http::{Answer, exchange, request, tcp};
use crate::support::{TOKEN, World, wait_until};

/// Writes a new certificate and its key where the daemon reads them.
fn write_certificate(home: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    fs::write(home.join("cert.pem"), made.cert.pem()).unwrap();
    fs::write(home.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    made.cert.der().clone()
}

fn words(home: &Path) -> Vec<String> {
    let at = |name: &str| home.join(name).to_str().unwrap().to_owned();
    ["--tls-cert".into(), at("cert.pem"), "--tls-key".into(), at("key.pem")].into()
}

/// A request of somebody who trusts this certificate and no other.
fn ask(world: &World, trusted: &CertificateDer<'static>) -> io::Result<Answer> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(builder.with_root_certificates(roots).with_no_client_auth());
    let connection = ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
    let authorization = format!("Bearer {TOKEN}");
    let text = request("GET", "/v1/sandboxes", &[("authorization", &authorization)], None);
    exchange(StreamOwned::new(connection, tcp(world.port())), text.as_bytes())
}

#[test]
fn it_is_spoken_with_the_certificate_that_was_read_last() {
    let mut first = None;
    let mut world = World::closed_with(|home| {
        first = Some(write_certificate(home));
        words(home)
    });
    let first = first.unwrap();
    assert_eq!(ask(&world, &first).unwrap().expect(200).text(), "[]");
    let plain = request("GET", "/healthz", &[], None);
    exchange(tcp(world.port()), plain.as_bytes()).expect_err("who speaks no TLS is not answered");
    assert_eq!(world.get("/v1/sandboxes").as_array().unwrap().len(), 0, "the unix socket needs none");

    let second = write_certificate(world.home.path());
    ask(&world, &second).expect_err("it is not read yet");
    world.signal(Signal::HUP);
    wait_until("the new certificate", || ask(&world, &second).is_ok_and(|answer| answer.status == 200));
    ask(&world, &first).expect_err("the old one is not used any more");

    fs::write(world.home.path().join("cert.pem"), "nonsense").unwrap();
    world.signal(Signal::HUP);
    wait_until("a complaint", || world.log().contains("the certificate stays as it was"));
    ask(&world, &second).unwrap().expect(200);

    assert_eq!(world.stop_daemon(), Some(0));
    let refused = world.command(&["--bind", "127.0.0.1:0"]).output().unwrap();
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("Tls(") && why.contains("cert.pem"), "{why}");
}
