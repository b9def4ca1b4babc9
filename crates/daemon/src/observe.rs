//! Around every request: a name for it, who it is, the audit line, what is counted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use api::{REQUEST_ID, Scope};
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::audit::{Line, timestamp};
use crate::auth::{Door, Identity, needed};
use crate::error::Said;
use crate::state::App;

/// The longest text of a client's that is written down.
const MAX_TEXT: usize = 256;
/// The methods our routes know.
const KNOWN_METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Peer {
    /// Somebody on this host, by the unix socket.
    Local,
    /// Somebody at this address.
    Address(SocketAddr),
}

impl Peer {
    const fn door(self) -> Door {
        match self {
            Self::Local => Door::Local,
            Self::Address(_) => Door::Network,
        }
    }
}

/// What of a request is written down.
#[derive(Debug)]
struct Asked {
    id: String,
    method: String,
    path: String,
    route: String,
    remote: String,
    ua: Option<String>,
    /// What the path names.
    subject: Option<(String, String)>,
}

/// Lets in who may, and writes down what came of it.
pub(crate) async fn observe(
    State(app): State<App>,
    subject: Result<RawPathParams, axum::extract::rejection::RawPathParamsRejection>,
    mut request: Request,
    next: Next,
) -> Response {
    let begun = Instant::now();
    let peer = request.extensions().get::<Peer>().copied().unwrap_or(Peer::Local);
    let subject = subject.ok().and_then(|it| it.iter().next().map(|(key, value)| (key.to_owned(), value.to_owned())));
    let asked = asked(&request, peer, subject);
    let needed = needed(request.method(), &asked.route);
    let admitted = admit(&app, needed, request.headers().clone(), peer.door()).await;
    let (identity, mut response) = match admitted {
        Err(refused) => (None, refused),
        Ok(identity) => {
            if let Some(identity) = &identity {
                request.extensions_mut().insert(identity.clone());
            }
            (identity, next.run(request).await)
        }
    };
    if let Ok(id) = HeaderValue::from_str(&asked.id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    conclude(&app, &asked, identity.as_ref(), &response, begun);
    response
}

async fn admit(app: &App, needed: Option<Scope>, headers: HeaderMap, door: Door) -> Result<Option<Identity>, Response> {
    let Some(needed) = needed else { return Ok(None) };
    // A token is looked up in the registry, which blocks.
    let admitted = if headers.contains_key(header::AUTHORIZATION) {
        app.verb(move |app| app.auth.admit(&headers, door, needed, &app.registry)).await
    } else {
        app.auth.admit(&headers, door, needed, &app.registry)
    };
    admitted.map(Some).map_err(IntoResponse::into_response)
}

fn asked(request: &Request, peer: Peer, subject: Option<(String, String)>) -> Asked {
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let ua = request.headers().get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    let cut = |text: &str| text.chars().take(MAX_TEXT).collect::<String>();
    Asked {
        id: request_id(),
        method: cut(request.method().as_str()),
        path: cut(request.uri().path()),
        route: route.to_owned(),
        remote: match peer {
            Peer::Local => "unix".into(),
            Peer::Address(address) => address.to_string(),
        },
        ua: ua.map(cut),
        subject: subject.map(|(key, value)| (key, cut(&value))),
    }
}

/// Random enough to tell requests apart.
fn request_id() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("{:016x}", KEY.hash_one(COUNT.fetch_add(1, Ordering::Relaxed)))
}

fn conclude(app: &App, asked: &Asked, identity: Option<&Identity>, response: &Response, begun: Instant) {
    let took = begun.elapsed();
    let status = response.status().as_u16();
    let said: Option<&Arc<api::ErrorBody>> = response.extensions().get::<Said>().map(|said| &said.0);
    if status >= 500 {
        let why = said.map_or("no reason", |body| body.error.as_str());
        log::error!("request {}: {} {}: {status}: {why}", asked.id, asked.method, asked.path);
    }
    let route = if asked.route.is_empty() { "unknown" } else { &asked.route };
    // Whoever asks chooses the method's name, and each name that is counted stays.
    let method = KNOWN_METHODS.iter().find(|known| **known == asked.method && !asked.route.is_empty());
    let method = method.copied().unwrap_or("unknown");
    app.metrics.request(method, route, status, took);
    let subject = |kind: &str| {
        let is_meant = asked.route.starts_with(&format!("/v1/{kind}/"));
        asked.subject.as_ref().filter(|_| is_meant).map(|(_, value)| value.as_str())
    };
    app.audit.write(&Line {
        ts: timestamp(),
        method: &asked.method,
        path: &asked.path,
        status,
        latency_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        ua: asked.ua.as_deref(),
        actor: identity.map(|identity| &*identity.name),
        remote: &asked.remote,
        request_id: &asked.id,
        sandbox: subject("sandboxes"),
        tag: subject("snapshots"),
        workspace: subject("workspaces"),
        code: said.map(|body| body.code),
    });
}
