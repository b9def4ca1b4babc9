//! Requests, and what comes back.

use std::io::{self, Read};
use std::time::Duration;

use api::{EVENT_STREAM, PREFER, Progress, REPRESENTATION};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::{Request, Response};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, AsSendBody, Body, BodyReader, SendBody};

use crate::endpoint::Endpoint;
use crate::error::{ClientError, Told};
use crate::events::Events;
use crate::hear::Hear;
use crate::unix::{NoResolver, UnixConnector};

/// More than any answer of an honest daemon has that is not read as it comes.
const MAX_ANSWER: u64 = 256 << 20;

const JSON: (&str, &str) = ("content-type", "application/json");
const BYTES: (&str, &str) = ("content-type", "application/octet-stream");
const PACK: (&str, &str) = ("content-type", "application/zstd");

/// A daemon that can be asked.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: Endpoint,
    token: Option<String>,
    agent: Agent,
}

/// An answer's bytes, as they come.
pub struct Reader(BodyReader<'static>);

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reader")
    }
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Client {
    /// One that asks there, with a token if there is one. Nothing is connected yet.
    #[must_use]
    pub fn new(endpoint: Endpoint, token: Option<String>) -> Self {
        Self::built(endpoint, token, None)
    }

    /// The same, for answers that come within so long or not at all.
    #[must_use]
    pub fn within(limit: Duration, endpoint: Endpoint, token: Option<String>) -> Self {
        Self::built(endpoint, token, Some(limit))
    }

    fn built(endpoint: Endpoint, token: Option<String>, limit: Option<Duration>) -> Self {
        let config = Agent::config_builder().http_status_as_error(false).max_redirects(0).timeout_global(limit).build();
        let agent = match &endpoint {
            Endpoint::Url(_) => Agent::with_parts(config, Hear(DefaultConnector::new()), DefaultResolver::default()),
            Endpoint::Unix(path) => Agent::with_parts(config, Hear(UnixConnector(path.clone())), NoResolver),
        };
        Self { endpoint, token, agent }
    }

    /// Where it asks.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// What is there.
    ///
    /// # Errors
    /// When the daemon cannot be reached, says no, or answers something else.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.answer(self.ask("GET", path, &[], SendBody::none())?)
    }

    /// Has something made or done.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        self.answer(self.post_for("POST", path, body)?)
    }

    /// Has something be as it is said.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        self.answer(self.post_for("PUT", path, body)?)
    }

    /// Has something done that is answered by nothing.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub fn tell(&self, path: &str, body: &impl Serialize) -> Result<(), ClientError> {
        self.post_for("POST", path, body).map(drop)
    }

    /// Has something removed.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.ask("DELETE", path, &[], SendBody::none()).map(drop)
    }

    /// Has something removed, and hears what was.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub fn remove<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.answer(self.ask("DELETE", path, &[(PREFER, REPRESENTATION)], SendBody::none())?)
    }

    /// Bytes, as they come.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub fn read(&self, path: &str) -> Result<Reader, ClientError> {
        Ok(Reader(self.ask("GET", path, &[], SendBody::none())?.into_body().into_reader()))
    }

    /// Gives bytes, as they come.
    ///
    /// # Errors
    /// As for [`Client::get`], and when they cannot be read.
    pub fn send<T: DeserializeOwned>(&self, path: &str, mut bytes: impl Read) -> Result<T, ClientError> {
        self.answer(self.ask("PUT", path, &[BYTES], SendBody::from_reader(&mut bytes))?)
    }

    /// Gives a pack, as it comes.
    ///
    /// # Errors
    /// As for [`Client::send`].
    pub fn send_pack<T: DeserializeOwned>(&self, path: &str, mut bytes: impl Read) -> Result<T, ClientError> {
        self.answer(self.ask("POST", path, &[PACK], SendBody::from_reader(&mut bytes))?)
    }

    /// Gives bytes, as they come, to what answers with nothing.
    ///
    /// # Errors
    /// As for [`Client::send`].
    pub fn pour(&self, path: &str, mut bytes: impl Read) -> Result<(), ClientError> {
        self.ask("POST", path, &[BYTES], SendBody::from_reader(&mut bytes)).map(drop)
    }

    /// What happens from now on, after this was asked for.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub fn events(&self, path: &str, body: Option<&impl Serialize>) -> Result<Events, ClientError> {
        let answer = match body {
            Some(body) => self.post_for("POST", path, body)?,
            None => self.ask("GET", path, &[], SendBody::none())?,
        };
        Ok(Events::new(Reader(answer.into_body().into_reader())))
    }

    /// Has something done that takes long, and hears how far it is. Whoever drops out of it calls it off.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub fn work<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        mut watch: impl FnMut(Progress),
    ) -> Result<T, ClientError> {
        let text = serde_json::to_string(body).map_err(|source| self.strange(source))?;
        let headers = [JSON, ("accept", EVENT_STREAM)];
        let answer = self.ask("POST", path, &headers, text.as_str().as_body())?;
        let kind = answer.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.starts_with(EVENT_STREAM) {
            return self.answer(answer);
        }
        for event in Events::new(Reader(answer.into_body().into_reader())) {
            let event = event?;
            match event.name.as_str() {
                "progress" => watch(self.parsed(&event.data)?),
                "result" => return self.parsed(&event.data),
                "error" => return Err(self.parsed::<Told>(&event.data)?.refusal(None)),
                _ => {}
            }
        }
        Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
    }

    fn post_for(&self, method: &str, path: &str, body: &impl Serialize) -> Result<Response<Body>, ClientError> {
        let text = serde_json::to_string(body).map_err(|source| self.strange(source))?;
        self.ask(method, path, &[JSON], text.as_str().as_body())
    }

    fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: SendBody<'_>,
    ) -> Result<Response<Body>, ClientError> {
        let base = if let Endpoint::Url(url) = &self.endpoint { url } else { "http://localhost" };
        let mut request = Request::builder().method(method).uri(format!("{base}{path}"));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let unreachable =
            |source| ClientError::Unreachable { endpoint: self.endpoint.clone(), source: Box::new(source) };
        let request = request.body(body).map_err(|error| unreachable(error.into()))?;
        let mut answer = self.agent.run(request).map_err(unreachable)?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let text = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_vec().unwrap_or_default();
        Err(serde_json::from_slice::<Told>(&text).unwrap_or_default().refusal(Some(answer.status().as_u16())))
    }

    fn answer<T: DeserializeOwned>(&self, mut answer: Response<Body>) -> Result<T, ClientError> {
        let text = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_vec().map_err(io::Error::other)?;
        serde_json::from_slice(&text).map_err(|source| self.strange(source))
    }

    fn parsed<T: DeserializeOwned>(&self, text: &str) -> Result<T, ClientError> {
        serde_json::from_str(text).map_err(|source| self.strange(source))
    }

    fn strange(&self, source: serde_json::Error) -> ClientError {
        ClientError::Strange { endpoint: self.endpoint.clone(), source }
    }
}
