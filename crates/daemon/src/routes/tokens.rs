//! Named tokens.

use api::{Code, CreateToken, NewToken, TokenInfo};
use axum::extract::State;
use axum::http::StatusCode;

use super::Failures;
use crate::auth::{RESERVED, digest};
use crate::body::{ApiJson, Name};
use crate::error::ApiError;
use crate::registry::{Token, now_unix};
use crate::spawn::{check_name, expiry};
use crate::state::App;

/// How many random bytes a token is made of.
const SECRET_BYTES: usize = 32;
/// What tells a token of ours from other secrets, to people and to scanners.
const PREFIX: &str = "forkd_";

/// All named tokens, without what they are.
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens", responses((status = 200, body = [TokenInfo]), Failures))]
pub(super) async fn list(State(app): State<App>) -> Result<ApiJson<Vec<TokenInfo>>, ApiError> {
    let tokens = app.verb(|app| Ok(app.registry.tokens()?)).await?;
    Ok(ApiJson(tokens.into_iter().map(|token| token.info).collect()))
}

/// Makes a token; this is the only time that it is shown.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", request_body = CreateToken,
    responses((status = 201, body = NewToken), Failures))]
pub(super) async fn create(
    State(app): State<App>,
    ApiJson(asked): ApiJson<CreateToken>,
) -> Result<(StatusCode, ApiJson<NewToken>), ApiError> {
    let made = app.verb(move |app| make(app, asked)).await?;
    Ok((StatusCode::CREATED, ApiJson(made)))
}

fn make(app: &App, asked: CreateToken) -> Result<NewToken, ApiError> {
    let CreateToken { name, mut scopes, ttl_secs } = asked;
    check_name(&name)?;
    if RESERVED.contains(&name.as_str()) {
        let message = format!("`{name}` is what the audit log calls somebody else; use another name");
        return Err(ApiError::invalid(message).with_code(Code::InvalidName));
    }
    scopes.sort_unstable();
    scopes.dedup();
    if scopes.is_empty() {
        return Err(ApiError::invalid("scopes is empty; such a token would be good for nothing"));
    }
    let mut secret = [0; SECRET_BYTES];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| ApiError::internal(format!("the host has no random numbers: {error}")))?;
    let token = secret.iter().fold(PREFIX.to_owned(), |text, byte| format!("{text}{byte:02x}"));
    let expires_at_unix = ttl_secs.map(expiry).transpose()?;
    let info = TokenInfo { name, scopes, created_at_unix: now_unix(), expires_at_unix };
    let row = Token { info: info.clone(), digest: digest(&token) };
    if app.registry.change_durably(|change| change.add_token(&row))? {
        return Ok(NewToken { info, token });
    }
    Err(ApiError::conflict(Code::TokenExists, format!("there is a token `{}` already", info.name)))
}

/// Removes a token: it is refused from now on.
#[utoipa::path(delete, path = "/v1/tokens/{name}", tag = "tokens", params(("name" = String, Path)),
    responses((status = 204), Failures))]
pub(super) async fn remove(State(app): State<App>, Name(name): Name) -> Result<StatusCode, ApiError> {
    app.verb(move |app| {
        if app.registry.change_durably(|change| change.remove_token(&name))? {
            return Ok(StatusCode::NO_CONTENT);
        }
        let shown: String = name.chars().take(64).collect();
        Err(ApiError::missing(Code::TokenNotFound, format!("there is no token `{shown}`")))
    })
    .await
}
