//! Named tokens.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// To look at everything.
    Read,
    /// To run things in sandboxes.
    Exec,
    /// To make, branch and end sandboxes and what belongs to them.
    Spawn,
    /// Everything.
    Admin,
}

/// A token to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateToken {
    /// What it is called, in the audit log too.
    pub name: String,
    /// What it allows.
    #[schema(min_items = 1)]
    pub scopes: Vec<Scope>,
    /// It is refused after so many seconds; null lets it be used until it is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_secs: Option<u64>,
}

/// A token, without what it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenInfo {
    /// What it is called.
    pub name: String,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// Since when, in seconds since 1970.
    pub created_at_unix: u64,
    /// Until when.
    pub expires_at_unix: Option<u64>,
}

/// A token that was just made: the only time that it is shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewToken {
    /// About it.
    #[serde(flatten)]
    pub info: TokenInfo,
    /// What to send as `Authorization: Bearer …`.
    pub token: String,
}

/// A secret is not for logs.
impl std::fmt::Debug for NewToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewToken").field("info", &self.info).finish_non_exhaustive()
    }
}
