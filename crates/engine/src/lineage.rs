//! Which snapshot is made of which, and what runs of each.

use std::collections::HashSet;

use store::{Listed, Parent, Status, Store, StoreError};
use types::{Dirs, Tag};

use crate::child::Child;
use crate::list::{FindError, list};
use crate::template::template_runs;

/// Why it cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum LineageError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The sandboxes cannot be listed.
    #[error(transparent)]
    Find(#[from] FindError),
}

/// All snapshots, and what runs of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    /// By tag; those that only sandboxes remember are last.
    pub nodes: Vec<LineageNode>,
}

/// A snapshot, or a tag that only sandboxes remember.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineageNode {
    /// What it is called.
    pub tag: String,
    /// Which one it is.
    pub id: String,
    /// One word for how far it is; `gone` when only sandboxes remember it.
    pub status: &'static str,
    /// What it is made of.
    pub parent: Option<Parent>,
    /// Since when, in seconds since 1970.
    pub created_unix: Option<u64>,
    /// What it added to what it is made of.
    pub own_bytes: Option<u64>,
    /// The next fork finds a template.
    pub has_template: bool,
    /// What is wrong with it.
    pub warning: Option<String>,
    /// What runs of it.
    pub sandboxes: Vec<LineageSandbox>,
}

/// A sandbox that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineageSandbox {
    /// Its name.
    pub id: String,
    /// Since when, in seconds since 1970.
    pub created_unix: u64,
}

impl Lineage {
    /// As it is now. Changes nothing.
    ///
    /// # Errors
    /// When the store or the directory of all sandboxes cannot be read.
    pub fn now(dirs: &Dirs) -> Result<Self, LineageError> {
        let nodes = Store::new(dirs).list()?.into_iter().map(|listed| node(listed, dirs)).collect();
        let mut lineage = Self { nodes };
        list(dirs)?.iter().for_each(|child| lineage.attach(child.tag(), child));
        Ok(lineage)
    }

    /// The node that another is made of: of that name, and not only called so.
    #[must_use]
    pub fn parent_of(&self, child: &LineageNode) -> Option<&LineageNode> {
        let parent = child.parent.as_ref()?;
        self.nodes.iter().find(|node| node.tag == parent.tag.as_str() && node.id == parent.id)
    }

    /// Those made of a node.
    pub fn children_of<'n>(&'n self, node: &'n LineageNode) -> impl Iterator<Item = &'n LineageNode> {
        self.nodes.iter().filter(move |child| self.parent_of(child).is_some_and(|parent| std::ptr::eq(parent, node)))
    }

    /// What a tree begins with: first the roots, then the others, which are found from there unless they are made of each
    /// other.
    #[must_use]
    pub fn beginnings(&self) -> Vec<&LineageNode> {
        let (roots, others): (Vec<_>, Vec<_>) = self.nodes.iter().partition(|node| self.parent_of(node).is_none());
        roots.into_iter().chain(others).collect()
    }

    /// Every node once, each below what it is made of if that is there, with how deep it is.
    #[must_use]
    pub fn in_order(&self) -> Vec<(&LineageNode, usize)> {
        let mut waiting: Vec<_> = self.beginnings().into_iter().rev().map(|node| (node, 0)).collect();
        let (mut seen, mut found) = (HashSet::new(), Vec::new());
        while let Some((node, depth)) = waiting.pop() {
            if seen.insert(&node.tag) {
                found.push((node, depth));
                let below: Vec<_> = self.children_of(node).map(|child| (child, depth + 1)).collect();
                waiting.extend(below.into_iter().rev());
            }
        }
        found
    }

    /// Puts a sandbox below the tag that it was forked from, which may be gone.
    fn attach(&mut self, tag: &Tag, child: &Child) {
        let sandbox = LineageSandbox { id: child.id().to_owned(), created_unix: child.created_unix_ms() / 1000 };
        match self.nodes.iter_mut().find(|node| node.tag == tag.as_str()) {
            Some(node) => node.sandboxes.push(sandbox),
            None => {
                let sandboxes = vec![sandbox];
                self.nodes.push(LineageNode { tag: tag.to_string(), status: "gone", sandboxes, ..Default::default() });
            }
        }
    }
}

fn node((tag, found): Listed, dirs: &Dirs) -> LineageNode {
    let status = match found {
        Ok(status) => status,
        Err(error) => {
            let source = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
            let warning = Some(format!("{error}{source}"));
            return LineageNode { tag: tag.to_string(), status: "failed", warning, ..LineageNode::default() };
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
    LineageNode {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn node(tag: &str, parent: Option<(&str, &str)>) -> LineageNode {
        let parent = parent.map(|(tag, id)| Parent { tag: tag.parse().unwrap(), id: id.into() });
        LineageNode { tag: tag.into(), id: format!("id-{tag}"), status: "ready", parent, ..LineageNode::default() }
    }

    #[test]
    fn each_is_below_what_it_is_made_of_and_a_circle_ends() {
        let nodes = vec![
            node("base", None),
            node("one", Some(("base", "id-base"))),
            node("ring", Some(("wheel", "id-wheel"))),
            node("two", Some(("one", "id-one"))),
            node("wheel", Some(("ring", "id-ring"))),
            node("zed", Some(("base", "an earlier one"))),
        ];
        let lineage = Lineage { nodes };
        let order: Vec<_> = lineage.in_order().into_iter().map(|(node, depth)| (node.tag.as_str(), depth)).collect();
        assert_eq!(order, [("base", 0), ("one", 1), ("two", 2), ("zed", 0), ("ring", 0), ("wheel", 1)]);
    }
}
