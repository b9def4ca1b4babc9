//! Whether a sandbox's agent answers, and what it has warm.

use std::time::{Duration, Instant};

use api::Pong;
use axum::extract::State;
use session::{Connection, ExecRequest, ExitStatus, SessionError};

use super::Failures;
use super::exec::milliseconds;
use crate::body::{ApiJson, Name};
use crate::error::ApiError;
use crate::registry::Sandbox;
use crate::snapshots::warm_interpreter;
use crate::state::App;

/// The language of the interpreters there are.
const LANGUAGE: &str = "python";
/// What is told where there is no numpy.
const NO_NUMPY: &str = "not-installed";
/// What is told when the guest is too busy to say.
const BUSY: &str = "unknown";
/// How long a ping waits for that.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the guest may take to say it for those who ask later.
const LIMIT: Duration = Duration::from_secs(30);
/// How much longer than that it may take to be over.
const GRACE: Duration = Duration::from_secs(5);
/// Asked of a process of its own: a question to the warm interpreter would be interrupted when its time is up, and an
/// interpreter that does not heed that loses all it has.
const QUESTION: &str = "\
import importlib.metadata as found
try: print(found.version('numpy'))
except found.PackageNotFoundError: print('not-installed')";
/// The longest version.
const MAX_VERSION: usize = 64;
/// The most that is read of what it says.
const MAX_ANSWER: usize = 4096;

/// Asks the guest's agent whether it is there.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/ping", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 200, body = Pong), Failures))]
pub(super) async fn ping(State(app): State<App>, Name(id): Name) -> Result<ApiJson<Pong>, ApiError> {
    let (agent, kernel, took) = app.ask(&id, timed).await?;
    Ok(ApiJson(Pong {
        pong: true,
        numpy_version: numpy(&app, id).await?,
        agent_lang: LANGUAGE.into(),
        pid: 1,
        warmup_ready: true,
        agent,
        kernel,
        round_trip_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
    }))
}

fn timed(mut connection: Connection) -> Result<(String, String, Duration), SessionError> {
    let begun = Instant::now();
    connection.ping()?;
    let hello = connection.hello();
    Ok((hello.agent.clone(), hello.kernel.clone(), begun.elapsed()))
}

/// The version of numpy that a guest with a warm interpreter has; asked once for each sandbox. Who does not wait for the
/// answer leaves it to the next.
async fn numpy(app: &App, id: String) -> Result<String, ApiError> {
    let known = app.verb(move |app| Ok(app.registry.sandbox(&id)?.map(|known| (is_warm(app, &known), known)))).await?;
    let Some((true, known)) = known else { return Ok(NO_NUMPY.into()) };
    if let Some(version) = known.numpy {
        return Ok(version);
    }
    let asked = tokio::spawn(ask_numpy(app.clone(), known.id.clone()));
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(Ok(version))) => return Ok(version),
        Ok(Ok(Err(error))) => log::debug!("{} does not say which numpy it has: {}", known.id, error.message),
        Ok(Err(error)) => log::error!("{} could not be asked which numpy it has: {error}", known.id),
        Err(_) => {}
    }
    Ok(BUSY.into())
}

/// Asks, unless somebody does, and notes the answer.
async fn ask_numpy(app: App, id: String) -> Result<String, ApiError> {
    let _alone = app.undisturbed("the numpy of sandbox", &id)?;
    let argv = ["python3", "-c", QUESTION].map(String::from).to_vec();
    let request = ExecRequest { argv, timeout_ms: Some(milliseconds(LIMIT)), ..ExecRequest::default() };
    let asked = app.ask(&id, move |connection| connection.output(&request, &[], MAX_ANSWER));
    let late = |_| ApiError::internal("it said nothing");
    let said = tokio::time::timeout(LIMIT + GRACE, asked).await.map_err(late)??;
    let version = (said.status == ExitStatus::Code(0)).then(|| plain(&said.stdout)).flatten();
    let version = version.ok_or_else(|| ApiError::internal("it said something else"))?;
    app.verb(move |app| {
        app.registry.change(|change| change.set_numpy(&id, &version))?;
        Ok(version)
    })
    .await
}

/// Whether a warm interpreter was in its snapshot. Where nobody knows, none is started to find out.
fn is_warm(app: &App, known: &Sandbox) -> bool {
    known.warm.unwrap_or_else(|| warm_interpreter(app, &known.tag).unwrap_or(false))
}

/// One line that can be a version.
fn plain(said: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(said).ok()?.trim_end();
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".+-_!".contains(&byte));
    (is_plain && (1..=MAX_VERSION).contains(&text.len())).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_plain_text() {
        assert_eq!(plain(b"2.1.0rc1+x\n").as_deref(), Some("2.1.0rc1+x"));
        for strange in ["", "\n", "a b", "a\nb", "\u{e9}", &"x".repeat(MAX_VERSION + 1)] {
            assert_eq!(plain(strange.as_bytes()), None, "{strange}");
        }
        assert_eq!(plain(&[0xff]), None);
    }
}
