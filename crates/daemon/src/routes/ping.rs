//! Whether a sandbox's agent answers, and what it has warm.

use std::time::{Duration, Instant};

use api::Pong;
use axum::extract::State;
use session::{Connection, SessionError, numpy};

use super::Failures;
use crate::body::{ApiJson, Name};
use crate::error::ApiError;
use crate::registry::{NO_LANGUAGE, Sandbox};
use crate::snapshots::warm_language;
use crate::state::App;

/// The language that is told where no interpreter is warm: the one that would be started.
const LANGUAGE: &str = "python";
/// How long a ping waits for that.
const PATIENCE: Duration = Duration::from_secs(1);
/// How much longer than that it may take to be over.
const GRACE: Duration = Duration::from_secs(5);
/// Asks the guest's agent whether it is there.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/ping", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 200, body = Pong), Failures))]
pub(super) async fn ping(State(app): State<App>, Name(id): Name) -> Result<ApiJson<Pong>, ApiError> {
    let (agent, kernel, took) = app.ask(&id, timed).await?;
    let (language, numpy_version) = interpreter_of(&app, id).await?;
    Ok(ApiJson(Pong {
        pong: true,
        numpy_version,
        agent_lang: language.filter(|language| language != NO_LANGUAGE).unwrap_or_else(|| LANGUAGE.into()),
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

/// What the warm interpreter of a sandbox speaks, and which numpy it has.
async fn interpreter_of(app: &App, id: String) -> Result<(Option<String>, String), ApiError> {
    let known = app.verb(move |app| Ok(app.registry.sandbox(&id)?.map(|known| (language(app, &known), known)))).await?;
    let (language, known) = known.map_or((None, None), |(language, known)| (language, Some(known)));
    let numpy_version = match known.filter(|_| language.as_deref() == Some(LANGUAGE)) {
        Some(known) => known_numpy(app, known).await,
        None => numpy::NONE.into(),
    };
    Ok((language, numpy_version))
}

/// Which numpy a sandbox has.
pub(crate) async fn numpy_of(app: &App, id: String) -> Result<String, ApiError> {
    Ok(interpreter_of(app, id).await?.1)
}

/// The version of numpy that a guest with a warm Python has; asked once for each sandbox. Who does not wait for the
/// answer leaves it to the next.
async fn known_numpy(app: &App, known: Sandbox) -> String {
    if let Some(version) = known.numpy {
        return version;
    }
    let asked = tokio::spawn(ask_numpy(app.clone(), known.id.clone()));
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(Ok(version))) => return version,
        Ok(Ok(Err(error))) => log::debug!("{} does not say which numpy it has: {}", known.id, error.message),
        Ok(Err(error)) => log::error!("{} could not be asked which numpy it has: {error}", known.id),
        Err(_) => {}
    }
    numpy::UNKNOWN.into()
}

/// Asks, unless somebody does, and notes the answer.
async fn ask_numpy(app: App, id: String) -> Result<String, ApiError> {
    let _alone = app.busy.alone("the numpy of sandbox", &id)?;
    let late = |_| ApiError::internal("it said nothing");
    let said = tokio::time::timeout(numpy::LIMIT + GRACE, app.ask(&id, numpy::ask)).await.map_err(late)??;
    let version = said.ok_or_else(|| ApiError::internal("it said something else"))?;
    app.verb(move |app| {
        app.registry.change(|change| change.set_numpy(&id, &version))?;
        Ok(version)
    })
    .await
}

/// What the warm interpreter in its snapshot speaks. Where nobody knows, none is started to find out.
fn language(app: &App, known: &Sandbox) -> Option<String> {
    known.language.clone().or_else(|| warm_language(app, &known.tag).map(Into::into))
}
