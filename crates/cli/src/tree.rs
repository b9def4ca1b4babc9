//! `forkd tree`: which snapshot is made of which, and what runs of each.

mod draw;

use std::process::ExitCode;

use clap::Args;
use engine::{Child, Listed, Parent, Status, Store, list, template_runs};
use serde_json::{Value, json};
use types::{Dirs, Tag};

use crate::errors::chain;
use crate::forward::{Forward, Need};
use crate::output;
use crate::table::now;
use draw::{Item, walk};

/// Draws which snapshot is made of which, with the sandboxes that run below the one they were forked from
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n  forkd tree\n  forkd tree --json | jq -r '.[] | select(.template_running).tag'"
)]
pub(crate) struct TreeArgs {
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// A snapshot, or a tag that only sandboxes remember.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    tag: String,
    id: String,
    status: &'static str,
    parent: Option<Parent>,
    created_unix: Option<u64>,
    /// What it added to what it is made of.
    own_bytes: Option<u64>,
    has_template: bool,
    warning: Option<String>,
    sandboxes: Vec<Sandbox>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Sandbox {
    id: String,
    created_unix: u64,
}

pub(crate) fn tree(args: &TreeArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    if let Some(code) = Forward::printing(Need::Kept).away(&dirs)? {
        return Ok(code);
    }
    let mut nodes: Vec<Node> = Store::new(&dirs).list()?.into_iter().map(|listed| node(listed, &dirs)).collect();
    list(&dirs)?.iter().for_each(|child| attach(&mut nodes, child.tag(), child));
    if args.json {
        output::line(&as_json(&nodes).to_string())?;
    } else {
        output::line(&draw::as_table(&nodes, now()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn node((tag, found): Listed, dirs: &Dirs) -> Node {
    let status = match found {
        Ok(status) => status,
        Err(error) => {
            let warning = Some(chain(&error.into()));
            return Node { tag: tag.to_string(), status: "failed", warning, ..Node::default() };
        }
    };
    let own = status.ready().map(|snapshot| {
        let manifest = snapshot.manifest();
        manifest.memory_stored().plus(manifest.disk_stored()).own
    });
    // One that cannot be asked is none that could be forked from.
    let has_template = template_runs(&tag, status.id(), dirs).unwrap_or_else(|error| {
        log::debug!("the template of {tag}: {error}");
        false
    });
    Node {
        tag: tag.to_string(),
        id: status.id().to_owned(),
        status: status.word(),
        parent: status.parent().cloned(),
        created_unix: Some(status.created_unix()),
        own_bytes: own,
        has_template,
        warning: if let Status::Failed(failure) = status { Some(failure.reason) } else { None },
        sandboxes: Vec::new(),
    }
}

/// Puts a sandbox below the tag that it was forked from, which may be gone.
fn attach(nodes: &mut Vec<Node>, tag: &Tag, child: &Child) {
    let sandbox = Sandbox { id: child.id().to_owned(), created_unix: child.created_unix_ms() / 1000 };
    match nodes.iter_mut().find(|node| node.tag == tag.as_str()) {
        Some(node) => node.sandboxes.push(sandbox),
        None => nodes.push(Node { tag: tag.to_string(), status: "gone", sandboxes: vec![sandbox], ..Node::default() }),
    }
}

/// The snapshots in the order in which they are drawn, each with how deep it is.
fn as_json(nodes: &[Node]) -> Value {
    let snapshots = walk(nodes).into_iter().filter_map(|place| match place.item {
        Item::Snapshot(node) => Some((node, place.depth)),
        Item::Sandbox(_) => None,
    });
    let snapshots = snapshots.map(|(node, depth)| {
        let sandboxes = node.sandboxes.iter().map(|it| json!({ "id": it.id, "created_at_unix": it.created_unix }));
        json!({
            "tag": node.tag,
            "status": node.status,
            "depth": depth,
            "parent_tag": node.parent.as_ref().map(|parent| &parent.tag),
            "created_at_unix": node.created_unix,
            "own_bytes": node.own_bytes,
            "template_running": node.has_template,
            "warning": node.warning,
            "sandboxes": sandboxes.collect::<Vec<_>>(),
        })
    });
    Value::Array(snapshots.collect())
}
