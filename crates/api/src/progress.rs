//! Long work that somebody watches.
//!
//! A request that takes long and comes with `Accept: text/event-stream` is answered with a stream of events:
//!
//! ```text
//! event: progress   how far a stage is; as often as it is worth it                  Progress
//! event: result     once, at the end: what the plain request would have answered
//! event: error      once, at the end, instead: what it would have failed with       WorkError
//! ```
//!
//! What fails before it has begun is answered as if nobody watched: with its status, and an [`ErrorBody`](crate::ErrorBody).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Code;

/// What asks for it, and what is answered then.
pub const EVENT_STREAM: &str = "text/event-stream";

/// How far a stage of long work is. Several may be under way at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// Which one, among those of this request.
    pub id: u64,
    /// What is done, for a person.
    pub stage: String,
    /// How much of it.
    pub done: u64,
    /// Of how much, in the same unit; absent when nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// A word on what is happening inside the stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// It is over, and nothing more is heard of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over: bool,
}

/// The first event of a stream that tells how far another request is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Watch {
    /// What that request shall say in its query.
    pub watch: String,
}

/// Why work that was watched failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkError {
    /// For a person: what went wrong and what to do.
    pub error: String,
    /// For a program: which case it is.
    pub code: Code,
    /// The status that the plain request would have been answered with.
    pub status: u16,
}
