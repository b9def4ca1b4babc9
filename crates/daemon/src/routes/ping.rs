//! Whether a sandbox's agent answers, and what it has warm.

use std::time::{Duration, Instant};

use api::Pong;
use axum::extract::State;
use session::{Connection, EvalRequest, SessionError};

use super::Failures;
use crate::body::{ApiJson, Name};
use crate::error::ApiError;
use crate::registry::Sandbox;
use crate::snapshots::warm_interpreter;
use crate::state::App;

/// The language of the interpreters there are.
const LANGUAGE: &str = "python";
/// What is told where there is no numpy.
const NO_NUMPY: &str = "not-installed";
/// What is told when the interpreter is too busy to say.
const BUSY: &str = "unknown";
/// How long the interpreter may take to say.
const PATIENCE_MS: u64 = 1000;
/// Imports nothing: what is not there by now is not warm.
const QUESTION: &str =
    "getattr(__import__('sys').modules.get('numpy'), '__version__', 'not-installed')  # asked by ping";

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

/// The version of numpy that the warm interpreter has; asked once for each sandbox.
async fn numpy(app: &App, id: String) -> Result<String, ApiError> {
    let known = app.verb(move |app| Ok(app.registry.sandbox(&id)?.map(|known| (is_warm(app, &known), known)))).await?;
    let Some((true, known)) = known else { return Ok(NO_NUMPY.into()) };
    if let Some(version) = known.numpy {
        return Ok(version);
    }
    let request = EvalRequest { code: QUESTION.into(), timeout_ms: PATIENCE_MS };
    let Ok(told) = app.ask(&known.id, move |mut connection| connection.eval(&request)).await else {
        return Ok(BUSY.into());
    };
    let Some(version) = told.value.as_deref().and_then(quoted) else { return Ok(BUSY.into()) };
    app.verb(move |app| {
        app.registry.change(|change| change.set_numpy(&known.id, &version))?;
        Ok(version)
    })
    .await
}

/// Whether a warm interpreter was in its snapshot. Where nobody knows, none is started to find out.
fn is_warm(app: &App, known: &Sandbox) -> bool {
    known.warm.unwrap_or_else(|| warm_interpreter(app, &known.tag).unwrap_or(false))
}

/// Text as Python's `repr` has it, if it is plain.
fn quoted(repr: &str) -> Option<String> {
    let text = repr.strip_prefix('\'')?.strip_suffix('\'')?;
    (text.len() <= 64 && !text.contains(['\'', '\\'])).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_plain_text() {
        assert_eq!(quoted("'2.1.0'").as_deref(), Some("2.1.0"));
        for strange in ["2.1.0", "'a'b'", r"'\x00'", "'", &format!("'{}'", "x".repeat(65))] {
            assert_eq!(quoted(strange), None, "{strange}");
        }
    }
}
