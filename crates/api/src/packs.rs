//! Snapshots on their way from host to host, and what is kept of them here.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A snapshot that a pack brought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Unpacked {
    /// What it is called here.
    pub tag: String,
    /// It was not here before.
    pub is_new: bool,
}

/// A pack that the daemon gets from a server. Where it lies is seen from the daemon's host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PullPack {
    /// An address, or `OWNER/NAME` or `OWNER/NAME@VERSION` of a package that the hub lists.
    pub source: String,
    /// The address of the hub's `registry.json`, or of the directory that has it if it ends with a slash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<String>,
    /// What the snapshot shall be called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// It takes the place of other snapshots that have the name of one in the pack.
    #[serde(default)]
    pub force: bool,
}

/// A server that the daemon hands a pack to, in one PUT request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushPack {
    /// The address; those that were signed beforehand are meant.
    pub url: String,
    /// A word on it, for who unpacks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What it was built from, for who unpacks it; its recipe when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_image: Option<String>,
}

/// A pack that was handed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pushed {
    /// Of which snapshot.
    pub tag: String,
    /// How long it is.
    pub bytes: u64,
}
