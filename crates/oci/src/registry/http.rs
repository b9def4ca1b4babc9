//! One repository of one registry, spoken with over HTTP: nothing waits or redirects for ever, or is read without end.

use std::cell::RefCell;
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ureq::config::Config;
use ureq::http::Response;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::auth::{self, Challenge};
use super::credentials::{self, Credentials};
use super::endpoints::Endpoint;
use super::{Settings, credentials::CredentialsError};
use crate::digest::Digest;

const MAX_REDIRECTS: u32 = 5;
const CONNECT: Duration = Duration::from_secs(30);
/// How much of an error's page is read to tell its first line.
const MAX_WORDS: u64 = 4096;
const MAX_CERTIFICATES: u64 = 1 << 20;

/// Why a registry did not give us what we asked for.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// No answer, or half of one.
    #[error("cannot reach the registry {host}")]
    Transport {
        /// Whom.
        host: String,
        /// Why not.
        source: Box<ureq::Error>,
    },
    /// It wants to know who asks, or does not like who does.
    #[error(
        "{host} does not let us have {what}; `docker login {host}` or `podman login {host}` first, or check the name"
    )]
    Denied {
        /// Who.
        host: String,
        /// What was asked for.
        what: String,
    },
    /// There is no such image.
    #[error("{host} has no {what}")]
    NotFound {
        /// Who.
        host: String,
        /// What was asked for.
        what: String,
    },
    /// Another answer than wished for.
    #[error("{host} says {status} to {what}: {words}")]
    Status {
        /// Who.
        host: String,
        /// What was asked for.
        what: String,
        /// The status.
        status: u16,
        /// The first line of what came with it.
        words: String,
    },
    /// More than it may be.
    #[error("{host} sends more than {limit} bytes of {what}")]
    TooLong {
        /// Who.
        host: String,
        /// What was asked for.
        what: String,
        /// How much it may be.
        limit: u64,
    },
    /// What came ended again and again before its end.
    #[error(
        "{host} sent {found} of the {expected} bytes of {digest}, also when asked for the rest; trying again goes on there"
    )]
    Broken {
        /// Who.
        host: String,
        /// What was asked for.
        digest: Digest,
        /// How much it should be.
        expected: u64,
        /// How much came.
        found: u64,
    },
    /// Other contents than were asked for.
    #[error("{host} sent something else for {expected}: {found}")]
    Digest {
        /// Who.
        host: String,
        /// What was asked for.
        expected: Digest,
        /// What came.
        found: Digest,
    },
    /// A way to find out who asks that we do not know, or must not use.
    #[error("{host} wants to know who asks in a way we do not use: {reason}")]
    Challenge {
        /// Who.
        host: String,
        /// Which.
        reason: String,
    },
    /// This computer's settings do not want it.
    #[error("the registries of this computer's settings do not give {name} away")]
    Blocked {
        /// The image.
        name: String,
    },
    /// Credentials could not be read.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// A file of the settings or the cache could not be used.
    #[error("cannot use {path}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
}

impl RegistryError {
    pub(super) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.display().to_string();
        move |source| Self::File { path, source }
    }
}

/// Speaks with one repository.
pub(super) struct Session<'a> {
    pub(super) endpoint: &'a Endpoint,
    pub(super) settings: &'a Settings,
    agent: Agent,
    base: String,
    credentials: Option<Credentials>,
    /// What is said to be let in; a token may have to be had anew.
    authorization: RefCell<Option<String>>,
}

impl<'a> Session<'a> {
    /// Finds out how the registry is spoken with.
    pub(super) fn open(endpoint: &'a Endpoint, settings: &'a Settings) -> Result<Self, RegistryError> {
        let agent = agent(endpoint, settings)?;
        let credentials = credentials::find(settings, &endpoint.host, &endpoint.repository)?;
        let secure = format!("https://{}", endpoint.host);
        let base = match agent.get(format!("{secure}/v2/")).call() {
            Ok(_) => secure,
            Err(error) if !endpoint.may_be_plain => return Err(transport(endpoint, error)),
            Err(error) => {
                log::debug!("{} does not speak HTTPS: {error}", endpoint.host);
                format!("http://{}", endpoint.host)
            }
        };
        Ok(Self { endpoint, settings, agent, base, credentials, authorization: RefCell::default() })
    }

    /// Asks for something small and reads it.
    pub(super) fn small(&self, what: &str, accept: &str, limit: u64) -> Result<Vec<u8>, RegistryError> {
        let answer = self.get(what, &[("accept", accept)])?;
        let mut text = Vec::new();
        let read = answer.into_body().into_reader().take(limit + 1).read_to_end(&mut text);
        read.map_err(|error| transport(self.endpoint, ureq::Error::Io(error)))?;
        if text.len() as u64 > limit {
            return Err(RegistryError::TooLong { host: self.endpoint.host.clone(), what: what.into(), limit });
        }
        Ok(text)
    }

    /// Asks for something of the repository, as whoever we have to be. An answer is a success.
    pub(super) fn get(&self, what: &str, headers: &[(&str, &str)]) -> Result<Response<Body>, RegistryError> {
        let answer = self.ask(what, headers)?;
        if answer.status() != 401 {
            return self.success(what, answer);
        }
        let said = answer.headers().get_all("www-authenticate").iter().filter_map(|value| value.to_str().ok());
        let challenge = Challenge::choose(said).ok_or_else(|| self.challenge("none we know"))?;
        let authorization = match (challenge, &self.credentials) {
            (Challenge::Basic, Some(Credentials::Password { user, password })) => Some(auth::basic(user, password)),
            (Challenge::Basic, _) => None,
            (Challenge::Bearer(bearer), credentials) => {
                if !bearer.realm.starts_with("https://") && self.base.starts_with("https://") {
                    return Err(self.challenge("tokens over plain HTTP"));
                }
                Some(self.token(&bearer, credentials.as_ref())?)
            }
        };
        let Some(authorization) = authorization else { return self.success(what, answer) };
        *self.authorization.borrow_mut() = Some(authorization);
        let answer = self.ask(what, headers)?;
        self.success(what, answer)
    }

    fn ask(&self, what: &str, headers: &[(&str, &str)]) -> Result<Response<Body>, RegistryError> {
        let url = format!("{}/v2/{}/{what}", self.base, self.endpoint.repository);
        let mut request = self.agent.get(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(value) = self.authorization.borrow().as_ref() {
            request = request.header("authorization", value);
        }
        let request = request.config().https_only(self.base.starts_with("https://")).build();
        request.call().map_err(|error| transport(self.endpoint, error))
    }

    fn token(&self, bearer: &auth::Bearer, credentials: Option<&Credentials>) -> Result<String, RegistryError> {
        let scope = format!("repository:{}:pull", self.endpoint.repository);
        let answer = match credentials {
            Some(Credentials::IdentityToken(token)) => {
                let form = [
                    ("grant_type", "refresh_token"),
                    ("client_id", "forkd"),
                    ("service", bearer.service.as_str()),
                    ("scope", &scope),
                    ("refresh_token", token),
                ];
                self.agent.post(&bearer.realm).send_form(form)
            }
            credentials => {
                let request = self.agent.get(&bearer.realm).query("scope", &scope);
                let request =
                    if bearer.service.is_empty() { request } else { request.query("service", &bearer.service) };
                match credentials {
                    Some(Credentials::Password { user, password }) => {
                        request.header("authorization", auth::basic(user, password)).call()
                    }
                    _ => request.call(),
                }
            }
        };
        let answer = self.success("a token", answer.map_err(|error| transport(self.endpoint, error))?)?;
        let mut text = Vec::new();
        let read = answer.into_body().into_reader().take(auth::MAX_TOKEN).read_to_end(&mut text);
        read.map_err(|error| transport(self.endpoint, ureq::Error::Io(error)))?;
        auth::token(&text).ok_or_else(|| self.challenge("its token is none"))
    }

    fn success(&self, what: &str, answer: Response<Body>) -> Result<Response<Body>, RegistryError> {
        let (host, what) = (self.endpoint.host.clone(), format!("{} {what}", self.endpoint.repository));
        match answer.status().as_u16() {
            200..=299 => Ok(answer),
            401 | 403 => Err(RegistryError::Denied { host, what }),
            404 => Err(RegistryError::NotFound { host, what }),
            status => Err(RegistryError::Status { host, what, status, words: words(answer) }),
        }
    }

    fn challenge(&self, reason: &str) -> RegistryError {
        RegistryError::Challenge { host: self.endpoint.host.clone(), reason: reason.into() }
    }
}

fn agent(endpoint: &Endpoint, settings: &Settings) -> Result<Agent, RegistryError> {
    let roots = match certificates(&endpoint.host, settings)? {
        own if own.is_empty() => RootCerts::PlatformVerifier,
        own => RootCerts::Specific(Arc::new(own)),
    };
    let config = Config::builder()
        .tls_config(TlsConfig::builder().root_certs(roots).build())
        .user_agent(concat!("forkd/", env!("CARGO_PKG_VERSION")))
        .http_status_as_error(false)
        .max_redirects(MAX_REDIRECTS)
        .timeout_resolve(Some(CONNECT))
        .timeout_connect(Some(CONNECT.min(settings.idle)))
        .timeout_per_read(Some(settings.idle))
        .timeout_per_write(Some(settings.idle));
    // A proxy is for what is elsewhere.
    let config = if endpoint.is_local() { config.proxy(None) } else { config };
    Ok(config.build().new_agent())
}

/// Those that this computer's settings name for the registry, instead of those that the system trusts.
fn certificates(host: &str, settings: &Settings) -> Result<Vec<Certificate<'static>>, RegistryError> {
    let mut found = Vec::new();
    for dir in settings.certificate_dirs.iter().map(|dir| dir.join(host)) {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths.into_iter().filter(|path| path.extension().is_some_and(|end| end == "crt")) {
            let mut pem = Vec::new();
            let file = fs::File::open(&path).map_err(RegistryError::file(&path))?;
            file.take(MAX_CERTIFICATES).read_to_end(&mut pem).map_err(RegistryError::file(&path))?;
            let certificates = parse_pem(&pem).filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            });
            found.extend(certificates);
        }
    }
    Ok(found)
}

pub(super) fn transport(endpoint: &Endpoint, source: ureq::Error) -> RegistryError {
    RegistryError::Transport { host: endpoint.host.clone(), source: Box::new(source) }
}

/// The first line of an error's page, fit for a terminal.
fn words(answer: Response<Body>) -> String {
    let mut page = Vec::new();
    // The status says it, too, should the page not come.
    if let Err(error) = answer.into_body().into_reader().take(MAX_WORDS).read_to_end(&mut page) {
        log::debug!("an error's page ended early: {error}");
    }
    let text = String::from_utf8_lossy(&page);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(300).collect()
}
