//! Who may do what.
//!
//! ```text
//! token file      every request brings that token, and may do everything          name: token-file
//! named token     scopes; kept as a digest                                        name: its own
//! unix socket     who may open it is the daemon's user: everything                name: local
//! neither         no token at all, and a loopback address: everything             name: anonymous
//! ```
//!
//! Nobody is who comes from a browser that was led to a loopback address under another name ([`crate::hosts`]).
//! A token that is brought is checked, also where none is needed; unless there is none that it could be, neither in a file
//! nor by name: then clients that always bring one are let in as if they had not. Secrets are compared as digests, in
//! constant time.

use std::path::Path;
use std::sync::{Arc, RwLock};

use api::{Code, Scope};
use axum::http::{HeaderMap, Method, StatusCode, header};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::config::{ConfigError, FileToken};
use crate::error::ApiError;
use crate::hosts;
use crate::registry::{Registry, now_unix};

/// The names of those who bring no named token.
const TOKEN_FILE: &str = "token-file";
const LOCAL: &str = "local";
const ANONYMOUS: &str = "anonymous";
/// What no named token may be called: the audit log would tell lies.
pub(crate) const RESERVED: [&str; 3] = [TOKEN_FILE, LOCAL, ANONYMOUS];

/// Whoever makes a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) name: Arc<str>,
    scopes: Arc<[Scope]>,
}

impl Identity {
    fn all(name: &str) -> Self {
        Self { name: name.into(), scopes: [Scope::Admin].into() }
    }

    fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope) || self.scopes.contains(&Scope::Admin)
    }
}

/// By which way somebody comes to a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The unix socket: who may open it may do everything.
    Local,
    /// The address.
    Network,
}

/// The token of the file, as a digest.
#[derive(Debug, Default)]
pub(crate) struct Auth {
    file_token: RwLock<Option<[u8; 32]>>,
}

impl Auth {
    /// Takes the token from the file, now and whenever it is said to be another.
    pub(crate) fn load(&self, path: &Path) -> Result<(), ConfigError> {
        let digest = digest(FileToken::read(path)?.as_str());
        *self.file_token.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(digest);
        Ok(())
    }

    /// Who it is, and whether he may.
    pub(crate) fn admit(
        &self,
        headers: &HeaderMap,
        door: Door,
        needed: Scope,
        registry: &Registry,
    ) -> Result<Identity, ApiError> {
        let identity = self.identify(headers, door, registry)?;
        if identity.may(needed) {
            return Ok(identity);
        }
        let scope = serde_json::to_string(&needed).unwrap_or_default();
        let message = format!("the token `{}` has no scope {scope}, which this needs", identity.name);
        Err(ApiError::new(StatusCode::FORBIDDEN, Code::Forbidden, message))
    }

    fn identify(&self, headers: &HeaderMap, door: Door, registry: &Registry) -> Result<Identity, ApiError> {
        let expected = *self.file_token.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let refused = |code, message: &str| Err(ApiError::new(StatusCode::UNAUTHORIZED, code, message));
        let wants_one = expected.is_some() || registry.has_tokens()?;
        let Some(header) = headers.get(header::AUTHORIZATION).filter(|_| wants_one) else {
            return match door {
                Door::Local => Ok(Identity::all(LOCAL)),
                Door::Network if wants_one => refused(Code::MissingToken, "missing bearer token"),
                Door::Network => hosts::check(headers).map(|()| Identity::all(ANONYMOUS)),
            };
        };
        let Some(token) = header.to_str().ok().and_then(bearer) else {
            return refused(Code::MissingToken, "missing bearer token");
        };
        let given = digest(token);
        if expected.is_some_and(|expected| given.ct_eq(&expected).into()) {
            return Ok(Identity::all(TOKEN_FILE));
        }
        // Found by its digest, which tells nothing about the token, and compared once more.
        match registry.token(&given)? {
            Some(token) if token.digest.ct_eq(&given).into() && !is_over(token.info.expires_at_unix) => {
                Ok(Identity { name: token.info.name.into(), scopes: token.info.scopes.into() })
            }
            _ => refused(Code::InvalidToken, "invalid bearer token"),
        }
    }
}

fn is_over(expires_unix: Option<u64>) -> bool {
    expires_unix.is_some_and(|end| end <= now_unix())
}

fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// What is kept of a secret. Tokens are random and long, so there is nothing to guess from it.
pub(crate) fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// What is inside a sandbox.
const INSIDE: [&str; 6] = [
    "/v1/sandboxes/{id}/console",
    "/v1/sandboxes/{id}/exec",
    "/v1/sandboxes/{id}/files",
    "/v1/sandboxes/{id}/lines",
    "/v1/sandboxes/{id}/ports",
    "/v1/sandboxes/{id}/processes",
];

/// What a request needs; `None` needs nothing. What is not known here needs everything.
pub(crate) fn needed(method: &Method, route: &str) -> Option<Scope> {
    let ends = |word: &str| route.ends_with(word);
    match route {
        "/healthz" | "/healthz/" => None,
        "/v1/tokens" | "/v1/tokens/{name}" => Some(Scope::Admin),
        // All of a snapshot leaves the host, with what is in its memory.
        "/v1/snapshots/{tag}/pack" | "/v1/snapshots/{tag}/push" | "/v1/packs/progress" => Some(Scope::Admin),
        // Also to look: they show what is inside a sandbox, as running something there would.
        _ if INSIDE.iter().any(|it| route.starts_with(it)) => Some(Scope::Exec),
        _ if method == Method::GET || method == Method::HEAD => Some(Scope::Read),
        _ if ends("/eval") || ends("/ping") => Some(Scope::Exec),
        // Names files of the host's, which are then readable in a guest.
        "/v1/snapshots" => Some(Scope::Admin),
        _ if ["/v1/sandboxes", "/v1/workspaces", "/v1/snapshots/"].iter().any(|it| route.starts_with(it)) => {
            Some(Scope::Spawn)
        }
        _ => Some(Scope::Admin),
    }
}

#[cfg(test)]
mod tests {
    use api::TokenInfo;

    use super::*;
    use crate::registry::Token;
    use crate::registry::testing::registry;

    fn with_bearer(token: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
        headers
    }

    #[test]
    fn the_file_token_opens_and_another_does_not() {
        let (_dir, registry) = registry();
        let auth = Auth::default();
        let mut none = HeaderMap::new();
        none.insert(header::HOST, "localhost:8889".parse().unwrap());
        let admit = |headers: &HeaderMap, door| auth.admit(headers, door, Scope::Admin, &registry);
        assert_eq!(&*admit(&none, Door::Network).unwrap().name, "anonymous");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef").unwrap();
        auth.load(file.path()).unwrap();
        assert_eq!(admit(&none, Door::Network).unwrap_err().message, "missing bearer token");
        assert_eq!(&*admit(&none, Door::Local).unwrap().name, "local");
        assert_eq!(&*admit(&with_bearer("0123456789abcdef"), Door::Network).unwrap().name, "token-file");
        for door in [Door::Network, Door::Local] {
            let refused = admit(&with_bearer("0123456789abcdeX"), door).unwrap_err();
            assert_eq!((refused.status.as_u16(), refused.message.as_str()), (401, "invalid bearer token"));
        }
    }

    #[test]
    fn who_wants_no_token_minds_none_until_there_is_one() {
        let (_dir, registry) = registry();
        let auth = Auth::default();
        let mut any = with_bearer("of another daemon");
        any.insert(header::HOST, "localhost:8889".parse().unwrap());
        let admit = |headers: &HeaderMap, door| auth.admit(headers, door, Scope::Admin, &registry);
        assert_eq!(&*admit(&any, Door::Network).unwrap().name, "anonymous");
        assert_eq!(&*admit(&any, Door::Local).unwrap().name, "local");
        any.insert(header::HOST, "evil.example".parse().unwrap());
        assert_eq!(admit(&any, Door::Network).unwrap_err().code, Code::HostNotAllowed);
        let info =
            TokenInfo { name: "ci".into(), scopes: vec![Scope::Read], created_at_unix: 1, expires_at_unix: None };
        let token = Token { info, digest: digest("one") };
        assert!(registry.change(|change| change.add_token(&token)).unwrap());
        for door in [Door::Network, Door::Local] {
            assert_eq!(admit(&any, door).unwrap_err().code, Code::InvalidToken, "it may have been one of them");
        }
        any.remove(header::AUTHORIZATION);
        any.insert(header::HOST, "localhost:8889".parse().unwrap());
        assert_eq!(admit(&any, Door::Network).unwrap_err().code, Code::MissingToken, "or `ci` may do less than nobody");
        assert_eq!(&*admit(&any, Door::Local).unwrap().name, "local");
    }

    #[test]
    fn a_named_token_may_what_its_scopes_say_until_it_is_over() {
        let (_dir, registry) = registry();
        let add = |name: &str, secret: &str, expires| {
            let scopes = vec![Scope::Read];
            let info = TokenInfo { name: name.into(), scopes, created_at_unix: 1, expires_at_unix: expires };
            let token = Token { info, digest: digest(secret) };
            assert!(registry.change(|change| change.add_token(&token)).unwrap());
        };
        add("ci", "one", None);
        add("old", "two", Some(1));
        let auth = Auth::default();
        let admit = |secret, scope| auth.admit(&with_bearer(secret), Door::Network, scope, &registry);
        assert_eq!(&*admit("one", Scope::Read).unwrap().name, "ci");
        assert_eq!(admit("one", Scope::Exec).unwrap_err().code, Code::Forbidden);
        assert_eq!(admit("two", Scope::Read).unwrap_err().code, Code::InvalidToken);
    }

    #[test]
    fn what_is_not_a_bearer_token_is_none() {
        for bad in ["", "Bearer", "Bearer ", "Basic abc", "abc"] {
            assert_eq!(bearer(bad), None, "{bad:?}");
        }
        assert_eq!(bearer("bearer  x "), Some("x"));
    }

    #[test]
    fn what_changes_things_needs_more_than_reading() {
        assert_eq!(needed(&Method::GET, "/v1/sandboxes/{id}"), Some(Scope::Read));
        assert_eq!(needed(&Method::POST, "/v1/sandboxes/{id}/exec"), Some(Scope::Exec));
        assert_eq!(needed(&Method::POST, "/v1/sandboxes/{id}/exec/{session}/stdin"), Some(Scope::Exec));
        assert_eq!(needed(&Method::POST, "/v1/snapshots/{tag}/fork"), Some(Scope::Spawn));
        assert_eq!(needed(&Method::GET, "/v1/daemon"), Some(Scope::Read));
        assert_eq!(needed(&Method::DELETE, "/v1/sandboxes/{id}"), Some(Scope::Spawn));
        assert_eq!(needed(&Method::POST, "/v1/sandboxes/{id}/pause"), Some(Scope::Spawn));
        assert_eq!(needed(&Method::GET, "/v1/sandboxes/{id}/files/stat"), Some(Scope::Exec));
        assert_eq!(needed(&Method::GET, "/v1/sandboxes/{id}/processes"), Some(Scope::Exec));
        assert_eq!(needed(&Method::GET, "/v1/sandboxes/{id}/console"), Some(Scope::Exec));
        assert_eq!(needed(&Method::DELETE, "/v1/sandboxes/{id}/processes/{pid}"), Some(Scope::Exec));
        assert_eq!(needed(&Method::POST, "/v1/snapshots"), Some(Scope::Admin));
        assert_eq!(needed(&Method::GET, "/v1/tokens"), Some(Scope::Admin));
        assert_eq!(needed(&Method::GET, "/v1/snapshots/{tag}/pack"), Some(Scope::Admin));
        assert_eq!(needed(&Method::POST, "/v1/packs"), Some(Scope::Admin));
        assert_eq!(needed(&Method::DELETE, "/v1/store/garbage"), Some(Scope::Admin));
        assert_eq!(needed(&Method::POST, "/v1/something/new"), Some(Scope::Admin));
    }
}
