//! Which snapshot is made of which, and what runs of each.

use api::{TreeNode, TreeSandbox};
use axum::extract::State;
use engine::Lineage;

use super::Failures;
use crate::body::ApiJson;
use crate::error::ApiError;
use crate::state::App;

/// Which snapshot is made of which, in the order in which a tree is drawn, with what runs of each.
#[utoipa::path(get, path = "/v1/tree", tag = "snapshots", responses((status = 200, body = [TreeNode]), Failures))]
pub(super) async fn tree(State(app): State<App>) -> Result<ApiJson<Vec<TreeNode>>, ApiError> {
    let lineage = app.verb(|app| Ok(Lineage::now(&app.dirs)?)).await?;
    Ok(ApiJson(lineage.in_order().into_iter().map(|(node, depth)| told(node, depth)).collect()))
}

fn told(node: &engine::LineageNode, depth: usize) -> TreeNode {
    let sandbox = |it: &engine::LineageSandbox| TreeSandbox { id: it.id.clone(), created_at_unix: it.created_unix };
    TreeNode {
        tag: node.tag.clone(),
        status: node.status.into(),
        depth,
        parent_tag: node.parent.as_ref().map(|parent| parent.tag.to_string()),
        created_at_unix: node.created_unix,
        own_bytes: node.own_bytes,
        template_running: node.has_template,
        warning: node.warning.clone(),
        sandboxes: node.sandboxes.iter().map(sandbox).collect(),
    }
}
