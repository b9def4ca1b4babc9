//! A forest as lines.

use std::collections::HashSet;

use engine::{Lineage, LineageNode as Node, LineageSandbox as Sandbox};

use crate::table::{Column, age, bytes, table};

/// What a line is about.
#[derive(Clone, Copy, Debug)]
enum Item<'n> {
    Snapshot(&'n Node),
    Sandbox(&'n Sandbox),
}

/// A line: what it is about, and what is drawn before it.
#[derive(Debug)]
struct Place<'n> {
    item: Item<'n>,
    branch: String,
    /// What the lines below it begin with.
    below: String,
}

impl<'n> Place<'n> {
    fn root(node: &'n Node) -> Self {
        Self { item: Item::Snapshot(node), branch: String::new(), below: String::new() }
    }

    fn under(&self, item: Item<'n>, is_last: bool) -> Self {
        let (branch, below) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let [branch, below] = [branch, below].map(|it| format!("{}{it}", self.below));
        Self { item, branch, below }
    }
}

/// Every node once, each below what it is made of if that is there.
fn walk(lineage: &Lineage) -> Vec<Place<'_>> {
    let mut waiting: Vec<Place<'_>> = lineage.beginnings().into_iter().rev().map(Place::root).collect();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut places: Vec<Place<'_>> = Vec::new();
    while let Some(place) = waiting.pop() {
        if let Item::Snapshot(node) = place.item {
            if !seen.insert(&node.tag) {
                continue;
            }
            let children = lineage.children_of(node);
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

pub(super) fn as_table(lineage: &Lineage, now: u64) -> String {
    let columns = [
        Column::Left("NAME"),
        Column::Left("STATUS"),
        Column::Right("OWN SIZE"),
        Column::Right("AGE"),
        Column::Left("NOTE"),
    ];
    let rows: Vec<_> = walk(lineage).iter().map(|place| cells(place, lineage, now)).collect();
    table(columns, &rows)
}

fn cells(place: &Place<'_>, lineage: &Lineage, now: u64) -> [String; 5] {
    let dash = || "-".to_owned();
    let since = |created: u64| age(now.saturating_sub(created));
    match place.item {
        Item::Snapshot(node) => [
            format!("{}{}", place.branch, node.tag),
            node.status.to_owned(),
            node.own_bytes.map_or_else(dash, bytes),
            node.created_unix.map_or_else(dash, since),
            note(node, lineage),
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

fn note(node: &Node, lineage: &Lineage) -> String {
    let template = node.has_template.then(|| "template runs".to_owned());
    let orphan = node.parent.as_ref().filter(|_| lineage.parent_of(node).is_none());
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
        let mut nodes = vec![
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
        let lineage = Lineage { nodes };
        let drawn = as_table(&lineage, 100);
        let squeezed = |text: &str| {
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(squeezed(&drawn), squeezed(expected));
        let json = as_json(&lineage);
        assert_eq!((&json[2]["tag"], &json[2]["depth"]), (&"two".into(), &2.into()));
        assert_eq!(json[1]["sandboxes"][0]["id"], "sb-1");
    }

    #[test]
    fn a_circle_from_somebodys_editor_is_survived() {
        let nodes = vec![node("a", Some(("b", "id-b"))), node("b", Some(("a", "id-a")))];
        let drawn = as_table(&Lineage { nodes }, 0);
        assert_eq!(drawn.lines().count(), 3, "{drawn}");
    }
}
