//! HTTP as far as packs need it: nothing waits for ever, follows redirects for ever, or leaves HTTPS once it is on it.

use std::io::{self, Read};
use std::time::Duration;

use ureq::config::Config;
use ureq::http::{Response, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::manifest::shown;

const MAX_REDIRECTS: u32 = 5;
const CONNECT: Duration = Duration::from_secs(30);
/// How long nothing may come or go.
const IDLE: Duration = Duration::from_secs(60);
/// How much of an error's page is read to tell its first line.
const MAX_WORDS: u64 = 4096;

/// Why a server did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Not an address of ours.
    #[error("`{url}` is not an address; it begins with http:// or https://")]
    Url {
        /// What it is.
        url: String,
    },
    /// No answer, or half of one.
    #[error("cannot reach {url}")]
    Transport {
        /// Whom, without what may be secret.
        url: String,
        /// Why not.
        source: Box<ureq::Error>,
    },
    /// Another answer than wished for.
    #[error("{url} says {status}{}", after(words))]
    Status {
        /// Who, without what may be secret.
        url: String,
        /// The status.
        status: u16,
        /// The first line of what came with it.
        words: String,
    },
}

impl HttpError {
    /// Whether asking again may help.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Url { .. } => false,
            Self::Transport { source, .. } => matches!(
                **source,
                ureq::Error::Io(_) | ureq::Error::Timeout(_) | ureq::Error::ConnectionFailed | ureq::Error::Protocol(_)
            ),
            Self::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
        }
    }
}

fn after(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(": {words}") }
}

/// Talks to servers.
#[derive(Clone, Debug)]
pub struct Client {
    agent: Agent,
    /// Before asking a second time; it doubles.
    pub(crate) pause: Duration,
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

impl Client {
    /// Trusts whom the system trusts, and goes through the proxy that the environment names.
    #[must_use]
    pub fn new() -> Self {
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let config = Config::builder()
            .tls_config(tls)
            .user_agent(concat!("forkd/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .max_redirects(MAX_REDIRECTS)
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_per_read(Some(IDLE))
            .timeout_per_write(Some(IDLE));
        Self { agent: config.build().new_agent(), pause: Duration::from_millis(500) }
    }

    /// For servers of this host: no proxy, and little patience.
    #[cfg(test)]
    pub(crate) fn direct(idle: Duration) -> Self {
        let config = Config::builder().proxy(None).http_status_as_error(false).max_redirects(MAX_REDIRECTS);
        let config = config.timeout_per_read(Some(idle)).timeout_per_write(Some(idle));
        Self { agent: config.build().new_agent(), pause: Duration::from_millis(1) }
    }

    /// Asks for something; whatever the answer is.
    pub(crate) fn get(&self, url: &str, headers: &[(&str, &str)]) -> Result<Response<Body>, HttpError> {
        let secure = is_secure(url)?;
        let request = headers.iter().fold(self.agent.get(url), |request, (name, value)| request.header(*name, *value));
        request.config().https_only(secure).build().call().map_err(|source| transport(url, source))
    }

    /// Asks for something small and reads it.
    pub(crate) fn get_small(&self, url: &str, most: u64) -> Result<Vec<u8>, HttpError> {
        let answer = expect_success(url, self.get(url, &[])?)?;
        let mut body = answer.into_body();
        body.with_config().limit(most).read_to_vec().map_err(|source| transport(url, source))
    }

    /// Hands something over that is so long.
    pub(crate) fn put(&self, url: &str, body: &mut dyn Read, bytes: u64) -> Result<(), HttpError> {
        let secure = is_secure(url)?;
        // A server that does not want it says so before it is sent, instead of hanging up in the midst of it.
        let request = self.agent.put(url).header("content-length", bytes.to_string()).header("expect", "100-continue");
        let request = request.content_type("application/zstd").config().https_only(secure).build();
        let answer = request.send(ureq::SendBody::from_reader(body)).map_err(|source| transport(url, source))?;
        expect_success(url, answer).map(drop)
    }
}

/// Whether an address is one of HTTPS; others than that and HTTP are none.
fn is_secure(url: &str) -> Result<bool, HttpError> {
    let parsed: Option<Uri> = url.parse().ok();
    match parsed.as_ref().filter(|uri| uri.host().is_some()).and_then(Uri::scheme_str) {
        Some("https") => Ok(true),
        Some("http") => Ok(false),
        _ => Err(HttpError::Url { url: shown(url) }),
    }
}

pub(crate) fn transport(url: &str, source: ureq::Error) -> HttpError {
    HttpError::Transport { url: public(url), source: Box::new(source) }
}

/// An error while an answer's body is read.
pub(crate) fn broken(url: &str, source: io::Error) -> HttpError {
    transport(url, ureq::Error::Io(source))
}

pub(crate) fn expect_success(url: &str, answer: Response<Body>) -> Result<Response<Body>, HttpError> {
    if answer.status().is_success() { Ok(answer) } else { Err(refusal(url, answer)) }
}

/// What a server says when it does not do what it was asked for.
pub(crate) fn refusal(url: &str, answer: Response<Body>) -> HttpError {
    let status = answer.status().as_u16();
    let mut page = Vec::new();
    // The status says it, too, should the page not come.
    if let Err(error) = answer.into_body().into_reader().take(MAX_WORDS).read_to_end(&mut page) {
        log::debug!("the page that came with status {status} ended early: {error}");
    }
    let words = String::from_utf8_lossy(&page);
    let words = shown(words.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default());
    HttpError::Status { url: public(url), status, words }
}

/// An address without what signs it or who uses it.
pub(crate) fn public(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
            let host = host.rsplit('@').next().unwrap_or_default();
            shown(&path.map_or_else(|| format!("{scheme}://{host}"), |path| format!("{scheme}://{host}/{path}")))
        }
        None => shown(url),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_http_are_ones() {
        assert!(is_secure("https://example.org/x").unwrap());
        assert!(!is_secure("HTTP://[::1]:80/x").unwrap());
        for bad in ["", "file:///etc/passwd", "ftp://example.org", "example.org/x", "/x", "https://", "https:x"] {
            assert!(is_secure(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn what_signs_an_address_is_not_told() {
        assert_eq!(public("https://me:pw@example.org/a?sig=1#2"), "https://example.org/a");
        assert_eq!(public("http://example.org"), "http://example.org");
        assert_eq!(public("x\u{1b}[2J"), "x\\u{1b}[2J");
    }
}
