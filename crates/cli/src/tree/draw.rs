//! A forest as lines.

use std::collections::HashSet;

use super::{Node, Sandbox};
use crate::table::{Column, age, bytes, table};

/// What a line is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item<'n> {
    Snapshot(&'n Node),
    Sandbox(&'n Sandbox),
}

/// A line: what it is about, how deep it is, and what is drawn before it.
#[derive(Debug)]
pub(super) struct Place<'n> {
    pub(super) item: Item<'n>,
    pub(super) depth: usize,
    branch: String,
    /// What the lines below it begin with.
    below: String,
}

impl<'n> Place<'n> {
    fn root(node: &'n Node) -> Self {
        Self { item: Item::Snapshot(node), depth: 0, branch: String::new(), below: String::new() }
    }

    fn under(&self, item: Item<'n>, is_last: bool) -> Self {
        let (branch, below) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let [branch, below] = [branch, below].map(|it| format!("{}{it}", self.below));
        Self { item, depth: self.depth + 1, branch, below }
    }
}

/// Every node once, each below what it is made of if that is there.
pub(super) fn walk(nodes: &[Node]) -> Vec<Place<'_>> {
    let (roots, others): (Vec<_>, Vec<_>) = nodes.iter().partition(|node| parent_of(nodes, node).is_none());
    // The others are found from the roots, unless they are made of each other.
    let mut waiting: Vec<Place<'_>> = roots.into_iter().chain(others).rev().map(Place::root).collect();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut places: Vec<Place<'_>> = Vec::new();
    while let Some(place) = waiting.pop() {
        if let Item::Snapshot(node) = place.item {
            if !seen.insert(&node.tag) {
                continue;
            }
            let children =
                nodes.iter().filter(|child| parent_of(nodes, child).is_some_and(|it| std::ptr::eq(it, node)));
            let sandboxes = node.sandboxes.iter().map(Item::Sandbox);
            let items: Vec<_> = children.map(Item::Snapshot).chain(sandboxes).collect();
            let last = items.len().saturating_sub(1);
            let below = items.iter().enumerate().map(|(index, item)| place.under(*item, index == last));
            waiting.extend(below.collect::<Vec<_>>().into_iter().rev());
        }
        places.push(place);
    }
    places
}

/// The node that another is made of: of that name, and not only called so.
fn parent_of<'n>(nodes: &'n [Node], child: &Node) -> Option<&'n Node> {
    let parent = child.parent.as_ref()?;
    nodes.iter().find(|node| node.tag == parent.tag.as_str() && node.id == parent.id)
}

pub(super) fn as_table(nodes: &[Node], now: u64) -> String {
    let columns = [
        Column::Left("NAME"),
        Column::Left("STATUS"),
        Column::Right("OWN SIZE"),
        Column::Right("AGE"),
        Column::Left("NOTE"),
    ];
    let rows: Vec<_> = walk(nodes).iter().map(|place| cells(place, nodes, now)).collect();
    table(columns, &rows)
}

fn cells(place: &Place<'_>, nodes: &[Node], now: u64) -> [String; 5] {
    let dash = || "-".to_owned();
    let since = |created: u64| age(now.saturating_sub(created));
    match place.item {
        Item::Snapshot(node) => [
            format!("{}{}", place.branch, node.tag),
            node.status.to_owned(),
            node.own_bytes.map_or_else(dash, bytes),
            node.created_unix.map_or_else(dash, since),
            note(node, nodes),
        ],
        Item::Sandbox(sandbox) => [
            format!("{}{}", place.branch, sandbox.id),
            "running".to_owned(),
            dash(),
            since(sandbox.created_unix),
            "sandbox".to_owned(),
        ],
    }
}

fn note(node: &Node, nodes: &[Node]) -> String {
    let template = node.has_template.then(|| "template runs".to_owned());
    let orphan = node.parent.as_ref().filter(|_| parent_of(nodes, node).is_none());
    let orphan = orphan.map(|parent| format!("made of {}, which is gone", parent.tag));
    let notes: Vec<_> = [template, orphan, node.warning.clone()].into_iter().flatten().collect();
    notes.join("; ")
}

#[cfg(test)]
mod tests {
    use engine::Parent;

    use super::*;
    use crate::tree::as_json;

    fn node(tag: &str, parent: Option<(&str, &str)>) -> Node {
        let parent = parent.map(|(tag, id)| Parent { tag: tag.parse().unwrap(), id: id.into() });
        let (id, own_bytes) = (format!("id-{tag}"), Some(1 << 20));
        Node { tag: tag.into(), id, status: "ready", parent, created_unix: Some(40), own_bytes, ..Node::default() }
    }

    #[test]
    fn each_is_below_what_it_is_made_of() {
        let mut nodes = [
            node("base", None),
            node("flat", None),
            node("one", Some(("base", "id-base"))),
            node("other", Some(("base", "id-base"))),
            node("two", Some(("one", "id-one"))),
            node("zed", Some(("flat", "an earlier one"))),
        ];
        nodes[0].has_template = true;
        nodes[2].sandboxes = vec![Sandbox { id: "sb-1".into(), created_unix: 90 }];
        nodes[3].status = "writing";
        let expected = "\
NAME           STATUS   OWN SIZE   AGE  NOTE
base           ready    1024 KiB  60 s  template runs
├─ one         ready    1024 KiB  60 s
│  ├─ two      ready    1024 KiB  60 s
│  └─ sb-1     running         -  10 s  sandbox
└─ other       writing  1024 KiB  60 s
flat           ready    1024 KiB  60 s
zed            ready    1024 KiB  60 s  made of flat, which is gone";
        let drawn = as_table(&nodes, 100);
        let squeezed = |text: &str| {
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(squeezed(&drawn), squeezed(expected));
        let json = as_json(&nodes);
        assert_eq!((&json[2]["tag"], &json[2]["depth"]), (&"two".into(), &2.into()));
        assert_eq!(json[1]["sandboxes"][0]["id"], "sb-1");
    }

    #[test]
    fn a_circle_from_somebodys_editor_is_survived() {
        let nodes = [node("a", Some(("b", "id-b"))), node("b", Some(("a", "id-a")))];
        let drawn = as_table(&nodes, 0);
        assert_eq!(drawn.lines().count(), 3, "{drawn}");
    }
}
