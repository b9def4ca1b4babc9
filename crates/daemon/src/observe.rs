//! Around every request: a name for it, who it is, the audit line, what is counted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{Code, REQUEST_ID, Scope};
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::audit::{Line, timestamp};
use crate::auth::{Door, Identity, needed};
use crate::error::{ApiError, Said};
use crate::state::App;
use crate::subject::Subject;

/// The longest text of a client's that is written down.
const MAX_TEXT: usize = 256;
/// What is written down for a client that left before the answer.
const LEFT: u16 = 499;
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
    /// By which way it came.
    pub(crate) const fn door(self) -> Door {
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
    subject: Subject,
}

/// A request that is being answered. One whose client leaves before that is written down, too.
struct Observed {
    app: App,
    asked: Asked,
    identity: Option<Identity>,
    begun: Instant,
    concluded: bool,
}

/// Lets in who may, and writes down what came of it.
pub(crate) async fn observe(
    State(app): State<App>,
    named: Result<RawPathParams, axum::extract::rejection::RawPathParamsRejection>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(peer) = request.extensions().get::<Peer>().copied() else {
        return ApiError::internal("nobody knows where this request came from").into_response();
    };
    let named = named.ok();
    let asked = asked(&request, peer, named.as_ref().and_then(|it| Some(it.iter().next()?.1)));
    request.extensions_mut().insert(asked.subject.clone());
    let needed = needed(request.method(), &asked.route);
    let mut observed = Observed { app: app.clone(), asked, identity: None, begun: Instant::now(), concluded: false };
    let mut response = match admit(&app, needed, request.headers().clone(), peer.door()).await {
        Err(refused) => refused,
        Ok(identity) => {
            if let Some(identity) = &identity {
                request.extensions_mut().insert(identity.clone());
            }
            observed.identity = identity;
            next.run(request).await
        }
    };
    if let Ok(id) = HeaderValue::from_str(&observed.asked.id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    let said = response.extensions().get::<Said>().map(|said| Arc::clone(&said.0));
    observed.conclude(response.status().as_u16(), said).await;
    response
}

async fn admit(app: &App, needed: Option<Scope>, headers: HeaderMap, door: Door) -> Result<Option<Identity>, Response> {
    let Some(needed) = needed else { return Ok(None) };
    // Whether there are tokens is asked of the registry, also when none is brought, and that blocks.
    let admitted = app.verb(move |app| app.auth.admit(&headers, door, needed, &app.registry)).await;
    admitted.map(Some).map_err(IntoResponse::into_response)
}

fn asked(request: &Request, peer: Peer, named: Option<&str>) -> Asked {
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
        subject: Subject::of_path(route, named),
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

impl Observed {
    /// Writes down how it was answered.
    async fn conclude(mut self, status: u16, said: Option<Arc<api::ErrorBody>>) {
        let complaint = (status >= 500).then(|| {
            let why = said.as_ref().map_or("no reason", |body| body.error.as_str());
            format!("request {}: {} {}: {status}: {why}", self.asked.id, self.asked.method, self.asked.path)
        });
        let app = self.app.clone();
        // Whoever leaves while this waits has left, and is written down so.
        let Some(room) = app.audit.room().await else { return };
        self.concluded = true;
        let took = self.begun.elapsed();
        self.count(status, took);
        let written = room.write(&self.line(status, took, said.map(|body| body.code)), complaint);
        written.await;
    }

    fn count(&self, status: u16, took: Duration) {
        let route = if self.asked.route.is_empty() { "unknown" } else { &self.asked.route };
        // Whoever asks chooses the method's name, and each name that is counted stays.
        let method = KNOWN_METHODS.iter().find(|known| **known == self.asked.method && !self.asked.route.is_empty());
        self.app.metrics.request(method.copied().unwrap_or("unknown"), route, status, took);
    }

    fn line(&self, status: u16, took: Duration, code: Option<Code>) -> Line<'_> {
        let asked = &self.asked;
        Line {
            ts: timestamp(),
            method: &asked.method,
            path: &asked.path,
            status,
            latency_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            ua: asked.ua.as_deref(),
            actor: self.identity.as_ref().map(|identity| &*identity.name),
            remote: &asked.remote,
            request_id: &asked.id,
            names: asked.subject.names().into(),
            code,
        }
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        if !self.concluded {
            let took = self.begun.elapsed();
            self.count(LEFT, took);
            self.app.audit.write_later(&self.line(LEFT, took, None));
        }
    }
}
