//! The line protocol of published clients ([`session::lines`]), spoken with a sandbox through the daemon.
//!
//! ```text
//! client ── upgraded connection ── a pair of sockets ── session::lines ── the agent's connection
//! ```
//!
//! `forkd fork` leads 10.42.0.2:8888 of its own network here, so the sandbox needs no network and its agent need not know
//! the protocol.

use std::os::unix::net::UnixStream;

use axum::extract::Request;
use axum::response::Response;
use hyper_util::rt::TokioIo;
use session::{SessionError, lines, numpy};
use tokio::runtime::Handle;

use crate::error::ApiError;
use crate::guests::{CallError, Say};
use crate::ports::{RAW, join, raw_upgrade, switching};
use crate::routes::numpy_of;
use crate::state::App;

impl App {
    /// The client's connection becomes one in which a line of JSON asks, and one answers.
    pub(crate) async fn connect_lines(&self, id: &str, mut request: Request) -> Result<Response, ApiError> {
        raw_upgrade(&request, || format!("ask for it with `Upgrade: {RAW}`"))?;
        let failed = |error: std::io::Error| ApiError::internal(error.to_string());
        let (near, far) = UnixStream::pair().map_err(failed)?;
        far.set_nonblocking(true).map_err(failed)?;
        let mut far = tokio::net::UnixStream::from_std(far).map_err(failed)?;
        let (app, sandbox, runtime) = (self.clone(), id.to_owned(), Handle::current());
        let mut talk = self.talk(id, move |connection, say: &Say<()>| {
            say.say(())?;
            let numpy = || runtime.block_on(numpy_of(&app, sandbox)).unwrap_or_else(|_| numpy::UNKNOWN.into());
            let served = lines::serve(&near.into(), connection, numpy);
            served.map_err(|source| CallError::Guest(SessionError::Lost { source }))
        })?;
        talk.next().await.unwrap_or(Err(CallError::Left))?;
        let client = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            match client.await {
                Ok(client) => join(&mut TokioIo::new(client), &mut far).await,
                Err(error) => log::debug!("a client did not take its connection: {error}"),
            }
            // Who has left has no use for the rest.
            drop(talk);
        });
        Ok(switching())
    }
}
