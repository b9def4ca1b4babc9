//! Sandboxes: made, listed, looked at, renewed, ended.

use api::{
    Code, CreateSandboxes, IDEMPOTENCY_KEY, NEXT_CURSOR, PatchSandbox, RenewSandbox, SandboxInfo, SandboxStatus,
};
use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest as _, Sha256};

use super::Failures;
use crate::adopt::{end, is_over, note_end};
use crate::auth::Identity;
use crate::body::{ApiJson, ApiQuery, Name, WithBytes};
use crate::error::ApiError;
use crate::forking::memory_of;
use crate::registry::{Before, Filter, Sandbox};
use crate::spawn::{Made, Spawn, check_labels, expiry};
use crate::state::{App, is_gone};
use crate::subject::Subject;

/// The longest key that is taken.
const MAX_KEY: usize = 256;
/// The most sandboxes of one page.
const MAX_PAGE: usize = 10_000;

/// Sandboxes, in the order in which they were made; the living, unless `status` says otherwise.
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes",
    params(
        ("id" = Option<String>, Query, description = "Whose id begins so, or goes on so after `sb-`"),
        ("snapshot_tag" = Option<String>, Query, description = "Forked from this snapshot"),
        ("label" = Option<Vec<String>>, Query, description = "Having this label, as `key=value`; repeatable"),
        ("status" = Option<SandboxStatus>, Query, description = "Of this status"),
        ("memory" = Option<bool>, Query, description = "With what the memory of each costs"),
        ("limit" = Option<u64>, Query, description = "At most so many"),
        ("cursor" = Option<String>, Query, description = "What `x-next-cursor` said"),
    ),
    responses((status = 200, body = [SandboxInfo], headers(("x-next-cursor" = String))), Failures))]
pub(super) async fn list(
    State(app): State<App>,
    ApiQuery(query): ApiQuery<Vec<(String, String)>>,
) -> Result<Response, ApiError> {
    let (filter, memory) = filter(query)?;
    let (infos, next) = app
        .verb(move |app| {
            let page = app.registry.sandboxes(&filter)?;
            let infos = if memory { with_memory(app, page.sandboxes) } else { infos(&page.sandboxes) };
            Ok((infos, page.next))
        })
        .await?;
    let mut answer = ApiJson(infos).into_response();
    if let Some(next) = next {
        answer.headers_mut().insert(NEXT_CURSOR, next.into());
    }
    Ok(answer)
}

/// Those that still live when they are looked at, and what the memory of each costs.
fn with_memory(app: &App, found: Vec<Sandbox>) -> Vec<SandboxInfo> {
    let looked = found.into_iter().map(|known| match engine::open(&known.id, &app.dirs) {
        Ok(child) => {
            let known = app.as_it_is(known.clone(), &child).unwrap_or(known);
            Some(SandboxInfo { memory: memory_of(&child), ..known.into() })
        }
        Err(error) if known.status != SandboxStatus::Gone && is_over(&error) => {
            note_end(app, &known);
            None
        }
        Err(_) => Some(known.into()),
    });
    looked.flatten().collect()
}

/// The filter, and whether the memory is wanted, too.
fn filter(query: Vec<(String, String)>) -> Result<(Filter, bool), ApiError> {
    let (mut filter, mut memory) = (Filter::default(), false);
    for (key, value) in query {
        let bad = |wanted: &str| ApiError::invalid(format!("{key} is `{value}`; it should be {wanted}"));
        match key.as_str() {
            "id" => filter.begins = Some(value).filter(|begin| !begin.is_empty()),
            "memory" => memory = value.parse().map_err(|_| bad("true or false"))?,
            "snapshot_tag" => filter.tag = Some(value),
            "label" => {
                let (key, label) = value.split_once('=').ok_or_else(|| bad("key=value"))?;
                filter.labels.push((key.to_owned(), label.to_owned()));
            }
            "status" => {
                let status = serde_json::from_value::<SandboxStatus>(value.as_str().into());
                filter.status = Some(status.map_err(|_| bad("running, paused or gone"))?);
            }
            "limit" => {
                let limit: usize = value.parse().map_err(|_| bad("a number"))?;
                filter.limit = Some(limit.clamp(1, MAX_PAGE));
            }
            "cursor" => filter.after = value.parse().map_err(|_| bad("what x-next-cursor said"))?,
            _ => {}
        }
    }
    if filter.labels.len() > 16 {
        return Err(ApiError::invalid("at most 16 labels can be asked for at once"));
    }
    Ok((filter, memory))
}

/// Forks a snapshot: all of the sandboxes, or none. They are ready when this is answered.
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes", request_body = CreateSandboxes,
    params(("idempotency-key" = Option<String>, Header,
        description = "The same key with the same body within a day gets the same answer; 256 MiB of them are kept")),
    responses((status = 201, body = [SandboxInfo]), Failures))]
pub(super) async fn create(
    State(app): State<App>,
    identity: Option<Extension<Identity>>,
    subject: Subject,
    headers: HeaderMap,
    WithBytes(asked, bytes): WithBytes<CreateSandboxes>,
) -> Result<Response, ApiError> {
    subject.tag(&asked.snapshot_tag);
    let spawn = Spawn::try_from(asked)?;
    let actor = identity.map_or_else(String::new, |identity| identity.name.to_string());
    let key = headers.get(IDEMPOTENCY_KEY).map(|key| key.to_str().unwrap_or_default().to_owned());
    let (status, body) = app
        .verb(move |app| {
            let made = match key {
                None => app.spawn(spawn, |_, _| Ok(()))?,
                Some(key) => match once(app, &actor, &key, &Sha256::digest(&bytes), spawn)? {
                    Once::Made(made) => made,
                    Once::Before(status, body) => return Ok((status, body)),
                },
            };
            subject.sandboxes(made.sandboxes.iter().map(|one| one.id.as_str()));
            Ok((StatusCode::CREATED, write(&made.sandboxes)?))
        })
        .await?;
    Ok((status, [(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// A key that is taken; given back if nothing comes of it.
struct Key<'a> {
    app: &'a App,
    actor: &'a str,
    key: &'a str,
    answered: bool,
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        if !self.answered
            && let Err(error) = self.app.registry.release_key(self.actor, self.key)
        {
            log::error!("an idempotency key stays taken: {error}");
        }
    }
}

/// What a key makes happen.
enum Once {
    /// It came for the first time.
    Made(Made),
    /// It had been answered so.
    Before(StatusCode, String),
}

/// Forks once, however often this key comes.
fn once(app: &App, actor: &str, key: &str, digest: &[u8], spawn: Spawn) -> Result<Once, ApiError> {
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(ApiError::invalid(format!("an idempotency key is 1 to {MAX_KEY} visible characters")));
    }
    match app.registry.take_key(actor, key, digest)? {
        Before::Nothing => {}
        Before::Answered { status, body } => {
            return Ok(Once::Before(StatusCode::from_u16(status).unwrap_or(StatusCode::CREATED), body));
        }
        Before::Another => {
            let message = "this idempotency key came before with another body; use a new one";
            return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, Code::IdempotencyMismatch, message));
        }
        Before::UnderWay => {
            let message = "the request with this idempotency key is still under way";
            return Err(ApiError::conflict(Code::IdempotencyInProgress, message));
        }
    }
    let mut taken = Key { app, actor, key, answered: false };
    let made = app.spawn(spawn, |change, made| {
        let body = serde_json::to_string(&infos(made)).expect("an answer can be written as JSON");
        change.answer_key(actor, key, StatusCode::CREATED.as_u16(), &body)
    })?;
    taken.answered = true;
    Ok(Once::Made(made))
}

fn infos(made: &[Sandbox]) -> Vec<SandboxInfo> {
    made.iter().cloned().map(Into::into).collect()
}

fn write(made: &[Sandbox]) -> Result<String, ApiError> {
    serde_json::to_string(&infos(made)).map_err(|error| ApiError::internal(error.to_string()))
}

/// One sandbox; one that ended by itself or whose time was up is remembered for a day.
#[utoipa::path(get, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 200, body = SandboxInfo), Failures))]
pub(super) async fn get(State(app): State<App>, Name(id): Name) -> Result<ApiJson<SandboxInfo>, ApiError> {
    let found = app.verb(move |app| look_at(app, &id)).await?;
    Ok(ApiJson(found.into()))
}

/// It as it is now, dead or alive.
fn look_at(app: &App, id: &str) -> Result<Sandbox, ApiError> {
    match app.living(id) {
        Ok((found, _)) => Ok(found),
        Err(error) if error.code == Code::SandboxGone => app.registry.sandbox(id)?.ok_or(error),
        Err(error) => Err(error),
    }
}

/// Ends a sandbox, or forgets one that is gone.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 204), Failures))]
pub(super) async fn remove(State(app): State<App>, Name(id): Name) -> Result<StatusCode, ApiError> {
    app.verb(move |app| {
        let found = app.living(&id);
        let _ending = app.ends.begin(&id);
        match found {
            Ok((_, child)) => engine::kill(&child)?,
            Err(error) if error.code == Code::SandboxGone => end(app, &id)?,
            Err(error) => return Err(error),
        }
        app.registry.change(|change| change.remove_sandbox(&id))?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Changes a sandbox's time to live or its labels.
#[utoipa::path(patch, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path)),
    request_body = PatchSandbox, responses((status = 200, body = SandboxInfo), Failures))]
pub(super) async fn patch(
    State(app): State<App>,
    Name(id): Name,
    ApiJson(patch): ApiJson<PatchSandbox>,
) -> Result<ApiJson<SandboxInfo>, ApiError> {
    let renewed = app.verb(move |app| change(app, &id, &patch)).await?;
    Ok(ApiJson(renewed.into()))
}

/// Lets a sandbox live so much longer, from now on.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/renew", tag = "sandboxes", params(("id" = String, Path)),
    request_body = RenewSandbox, responses((status = 200, body = SandboxInfo), Failures))]
pub(super) async fn renew(
    State(app): State<App>,
    Name(id): Name,
    ApiJson(asked): ApiJson<RenewSandbox>,
) -> Result<ApiJson<SandboxInfo>, ApiError> {
    let patch = PatchSandbox { ttl_secs: Some(asked.ttl_secs), labels: None };
    let renewed = app.verb(move |app| change(app, &id, &patch)).await?;
    Ok(ApiJson(renewed.into()))
}

fn change(app: &App, id: &str, patch: &PatchSandbox) -> Result<Sandbox, ApiError> {
    let expires = patch.ttl_secs.map(|ttl| ttl.map(expiry).transpose()).transpose()?;
    patch.labels.as_ref().map(check_labels).transpose()?;
    app.living(id)?;
    // One that is being ended is not let live longer, and nobody can begin to end it while this is asked.
    let renewed = app
        .registry
        .change(|change| Ok(!app.ends.has(id) && change.renew_sandbox(id, expires, patch.labels.as_ref())?))?;
    if renewed {
        return look_at(app, id);
    }
    Err(app.living(id).err().unwrap_or_else(|| is_gone(id, "somebody ended it")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(pairs: &[(&str, &str)]) -> Result<(Filter, bool), ApiError> {
        filter(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn a_query_is_checked_and_what_is_unknown_is_ignored() {
        let (found, memory) = asked(&[
            ("memory", "true"),
            ("id", ""),
            ("label", "a=1"),
            ("label", "b=x=y"),
            ("limit", "0"),
            ("dance", "now"),
        ])
        .unwrap();
        assert_eq!(found.labels, [("a".into(), "1".into()), ("b".into(), "x=y".into())]);
        assert_eq!((found.limit, found.begins, memory), (Some(1), None, true));
        for bad in [("memory", "much"), ("label", "a"), ("status", "dead"), ("limit", "-1"), ("cursor", "x")] {
            assert_eq!(asked(&[bad]).unwrap_err().status.as_u16(), 400, "{bad:?}");
        }
    }
}
