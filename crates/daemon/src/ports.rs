//! Servers inside of sandboxes, reached through the daemon.
//!
//! ```text
//! client ── HTTP, WebSocket or bytes ── daemon ── the agent's connection ── whoever listens on the guest's loopback
//! ```
//!
//! They are reached through the agent, so a sandbox needs no network and its policy says nothing about it; who may run
//! commands in a sandbox may reach its servers, and nobody else. What they say is whatever the guest likes: it never gets
//! the client's token, nor cookies of others ([`crate::cookies`]), and a browser is told to take its pages for a stranger's,
//! or they could ask this daemon in the name of whoever looks at them.

use std::sync::Arc;

use api::Code;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use hyper::client::conn::http1::handshake;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use session::{DialTarget, ErrorCode, SessionError, Transport};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpStream, UnixStream};

use crate::cookies::Jar;
use crate::error::ApiError;
use crate::guests::Place;
use crate::state::App;

/// What a connection becomes that carries bytes as they are.
pub(crate) const RAW: &str = "tcp";
/// Of one connection, and not of what is said on it; and the client's right to ask us.
const OURS: [HeaderName; 8] = [
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
/// What a browser would take for the word of the whole host.
const OF_THE_HOST: [HeaderName; 5] = [
    header::STRICT_TRANSPORT_SECURITY,
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("alt-svc"),
    HeaderName::from_static("nel"),
    HeaderName::from_static("report-to"),
];
/// Pages are nobody's: they have no origin, so they cannot read what this one says.
const A_STRANGERS: HeaderValue =
    HeaderValue::from_static("sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts");

/// Either way to a guest.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// A connection to a server in a guest, and the room that it takes.
struct Dialled {
    wire: Box<dyn Wire>,
    place: Place,
}

impl App {
    async fn dial(&self, id: &str, port: u16) -> Result<Dialled, ApiError> {
        let place = self.guests.enter(id)?;
        let (app, sandbox) = (self.clone(), id.to_owned());
        let dialling = tokio::task::spawn_blocking(move || {
            let (_, child) = app.living(&sandbox)?;
            child.dial(&DialTarget::Tcp { address: None, port }).map_err(|error| nobody(&sandbox, port, error))
        });
        let transport = dialling.await.map_err(|error| ApiError::internal(error.to_string()))??;
        let wire = wire(transport).map_err(|error| ApiError::internal(error.to_string()))?;
        Ok(Dialled { wire, place })
    }

    /// The client's connection becomes one to that port.
    pub(crate) async fn connect_port(&self, id: &str, port: u16, mut request: Request) -> Result<Response, ApiError> {
        raw_upgrade(&request, || {
            format!("ask with `Upgrade: {RAW}`, or for a path: HTTP goes to /v1/sandboxes/{id}/ports/{port}/")
        })?;
        let Dialled { mut wire, place } = self.dial(id, port).await?;
        let client = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let _place = place;
            match client.await {
                Ok(client) => join(&mut TokioIo::new(client), &mut wire).await,
                Err(error) => log::debug!("a client did not take its connection: {error}"),
            }
        });
        Ok(switching())
    }

    /// Asks the server on that port the same, and says what it says.
    pub(crate) async fn ask_port(&self, id: &str, port: u16, mut request: Request) -> Result<Response, ApiError> {
        let Dialled { wire, place } = self.dial(id, port).await?;
        let place = Arc::new(place);
        let broken = |error: hyper::Error| {
            let message = format!("what listens on port {port} of sandbox {id} speaks no HTTP: {error}");
            ApiError::new(StatusCode::BAD_GATEWAY, Code::AgentRefused, message)
        };
        let (mut server, connection) = handshake(TokioIo::new(wire)).await.map_err(broken)?;
        let held = Arc::clone(&place);
        tokio::spawn(async move {
            let _held = held;
            if let Err(error) = connection.with_upgrades().await {
                log::debug!("a server in a sandbox: {error}");
            }
        });
        let client = upgrade(request.headers()).is_some().then(|| hyper::upgrade::on(&mut request));
        let jar = Jar::new(id, port);
        let asked = retold(request, id, port, &jar)?;
        let mut answer = server.send_request(asked).await.map_err(broken)?;
        let other = hyper::upgrade::on(&mut answer);
        let mut answer = answer.map(Body::new);
        jar.outward(answer.headers_mut());
        OF_THE_HOST.iter().for_each(|name| drop(answer.headers_mut().remove(name)));
        match client {
            Some(client) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
                tokio::spawn(switch(client, other, place));
            }
            _ => {
                let headers = answer.headers_mut();
                OURS[2..].iter().for_each(|ours| drop(headers.remove(ours)));
                headers.append(header::CONTENT_SECURITY_POLICY, A_STRANGERS);
            }
        }
        Ok(answer)
    }
}

/// Refuses a client that does not want its connection to carry bytes as they are.
pub(crate) fn raw_upgrade(request: &Request, message: impl FnOnce() -> String) -> Result<(), ApiError> {
    match upgrade(request.headers()) {
        Some(to) if to.as_bytes().eq_ignore_ascii_case(RAW.as_bytes()) => Ok(()),
        _ => Err(ApiError::new(StatusCode::UPGRADE_REQUIRED, Code::InvalidRequest, message())),
    }
}

/// From here on the connection carries bytes as they are.
pub(crate) fn switching() -> Response {
    let switch = [(header::CONNECTION, "upgrade"), (header::UPGRADE, RAW)];
    (StatusCode::SWITCHING_PROTOCOLS, switch).into_response()
}

fn nobody(id: &str, port: u16, error: SessionError) -> ApiError {
    match error {
        SessionError::Refused { code: ErrorCode::ConnectionRefused, .. } => {
            let message = format!("nobody listens on port {port} of sandbox {id}");
            ApiError::new(StatusCode::BAD_GATEWAY, Code::NobodyListens, message)
        }
        error => error.into(),
    }
}

fn wire(transport: Transport) -> std::io::Result<Box<dyn Wire>> {
    Ok(match transport {
        Transport::Unix(stream) => {
            stream.set_nonblocking(true)?;
            Box::new(UnixStream::from_std(stream)?)
        }
        Transport::Tcp(stream) => {
            stream.set_nonblocking(true)?;
            Box::new(TcpStream::from_std(stream)?)
        }
    })
}

/// What the client wants its connection to become.
fn upgrade(headers: &HeaderMap) -> Option<&HeaderValue> {
    let words = headers.get(header::CONNECTION)?.to_str().ok()?;
    let wanted = words.split(',').any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    headers.get(header::UPGRADE).filter(|_| wanted)
}

/// The request as the server in the guest gets it.
fn retold(mut request: Request, id: &str, port: u16, jar: &Jar) -> Result<Request, ApiError> {
    // `/v1/sandboxes/ID/ports/PORT/` and then the server's own path.
    let path = request.uri().path().splitn(7, '/').nth(6).unwrap_or_default();
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let uri: Uri = format!("/{path}{query}").parse().map_err(|_| ApiError::invalid("that is no path"))?;
    *request.uri_mut() = uri;
    let to = upgrade(request.headers()).cloned();
    let headers = request.headers_mut();
    OURS.iter().for_each(|ours| drop(headers.remove(ours)));
    jar.inward(headers);
    if let Some(to) = to {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, to);
    }
    let value = |text: String| HeaderValue::from_str(&text).map_err(|_| ApiError::invalid("that is no name"));
    if let Some(host) = headers.insert(header::HOST, value(format!("localhost:{port}"))?) {
        headers.insert("x-forwarded-host", host);
    }
    headers.insert("x-forwarded-prefix", value(format!("/v1/sandboxes/{id}/ports/{port}"))?);
    Ok(request)
}

/// Both have switched to what neither of us understands.
async fn switch(client: OnUpgrade, server: OnUpgrade, _place: Arc<Place>) {
    match tokio::try_join!(client, server) {
        Ok((client, server)) => join(&mut TokioIo::new(client), &mut TokioIo::new(server)).await,
        Err(error) => log::debug!("a connection was not switched: {error}"),
    }
}

/// Carries what both say until both have ended.
pub(crate) async fn join(one: &mut (impl Wire + ?Sized), other: &mut (impl Wire + ?Sized)) {
    if let Err(error) = copy_bidirectional(one, other).await {
        log::debug!("a connection to a sandbox ended: {error}");
    }
}
