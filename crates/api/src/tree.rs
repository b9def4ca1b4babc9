//! Which snapshot is made of which, and what runs of each.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A snapshot, or a tag that only sandboxes remember. They come in the order in which a tree is drawn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TreeNode {
    /// What it is called.
    pub tag: String,
    /// `ready`, `writing`, `failed`, or `gone` when only sandboxes remember it.
    pub status: String,
    /// How many it descends from.
    pub depth: usize,
    /// What it is made of.
    pub parent_tag: Option<String>,
    /// Since when, in seconds since 1970.
    pub created_at_unix: Option<u64>,
    /// What it added to what it is made of.
    pub own_bytes: Option<u64>,
    /// The next fork finds a template.
    pub template_running: bool,
    /// What is wrong with it.
    pub warning: Option<String>,
    /// What runs of it.
    pub sandboxes: Vec<TreeSandbox>,
}

/// A sandbox that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TreeSandbox {
    /// Its name.
    pub id: String,
    /// Since when, in seconds since 1970.
    pub created_at_unix: u64,
}
