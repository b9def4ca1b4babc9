//! A forest as lines.

use api::{TreeNode, TreeSandbox};

use crate::table::{Column, age, bytes, table};

/// What a line is about.
#[derive(Clone, Copy, Debug)]
enum Item<'n> {
    /// The number of a snapshot.
    Snapshot(usize),
    Sandbox(&'n TreeSandbox),
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
    const fn root(number: usize) -> Self {
        Self { item: Item::Snapshot(number), branch: String::new(), below: String::new() }
    }

    fn under(&self, item: Item<'n>, is_last: bool) -> Self {
        let (branch, below) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let [branch, below] = [branch, below].map(|it| format!("{}{it}", self.below));
        Self { item, branch, below }
    }
}

/// Those directly below a node: one deeper, until one comes that is not below it.
fn children(nodes: &[TreeNode], parent: usize) -> impl Iterator<Item = usize> {
    let depth = nodes[parent].depth;
    let below = (parent + 1..nodes.len()).take_while(move |number| nodes[*number].depth > depth);
    below.filter(move |number| nodes[*number].depth == depth + 1)
}

/// Every node once, in the order in which they come, each with its sandboxes below what is made of it.
fn walk(nodes: &[TreeNode]) -> Vec<Place<'_>> {
    let roots = (0..nodes.len()).filter(|number| nodes[*number].depth == 0);
    let mut waiting: Vec<Place<'_>> = roots.rev().map(Place::root).collect();
    let mut places = Vec::new();
    while let Some(place) = waiting.pop() {
        if let Item::Snapshot(number) = place.item {
            let sandboxes = nodes[number].sandboxes.iter().map(Item::Sandbox);
            let items: Vec<_> = children(nodes, number).map(Item::Snapshot).chain(sandboxes).collect();
            let last = items.len().saturating_sub(1);
            let below = items.iter().enumerate().map(|(index, item)| place.under(*item, index == last));
            waiting.extend(below.collect::<Vec<_>>().into_iter().rev());
        }
        places.push(place);
    }
    places
}

pub(super) fn as_table(nodes: &[TreeNode], now: u64) -> String {
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

fn cells(place: &Place<'_>, nodes: &[TreeNode], now: u64) -> [String; 5] {
    let dash = || "-".to_owned();
    let since = |created: u64| age(now.saturating_sub(created));
    match place.item {
        Item::Snapshot(number) => {
            let node = &nodes[number];
            [
                format!("{}{}", place.branch, node.tag),
                node.status.clone(),
                node.own_bytes.map_or_else(dash, bytes),
                node.created_at_unix.map_or_else(dash, since),
                note(node),
            ]
        }
        Item::Sandbox(sandbox) => [
            format!("{}{}", place.branch, sandbox.id),
            "running".to_owned(),
            dash(),
            since(sandbox.created_at_unix),
            "sandbox".to_owned(),
        ],
    }
}

fn note(node: &TreeNode) -> String {
    let template = node.template_running.then(|| "template runs".to_owned());
    // One that is made of another and below none has lost it.
    let orphan = node.parent_tag.as_ref().filter(|_| node.depth == 0);
    let orphan = orphan.map(|parent| format!("made of {parent}, which is gone"));
    let notes: Vec<_> = [template, orphan, node.warning.clone()].into_iter().flatten().collect();
    notes.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(tag: &str, depth: usize, parent: Option<&str>) -> TreeNode {
        TreeNode {
            tag: tag.into(),
            status: "ready".into(),
            depth,
            parent_tag: parent.map(Into::into),
            created_at_unix: Some(40),
            own_bytes: Some(1 << 20),
            template_running: false,
            warning: None,
            sandboxes: Vec::new(),
        }
    }

    #[test]
    fn each_is_below_what_it_is_made_of() {
        let mut nodes = vec![
            node("base", 0, None),
            node("one", 1, Some("base")),
            node("two", 2, Some("one")),
            node("other", 1, Some("base")),
            node("flat", 0, None),
            node("zed", 0, Some("flat")),
        ];
        nodes[0].template_running = true;
        nodes[1].sandboxes = vec![TreeSandbox { id: "sb-1".into(), created_at_unix: 90 }];
        nodes[3].status = "writing".into();
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
    }

    #[test]
    fn a_depth_that_leaps_hides_nothing_else() {
        let nodes = [node("a", 0, None), node("b", 2, None), node("c", 1, None)];
        let drawn = as_table(&nodes, 0);
        assert_eq!(drawn.lines().count(), 3, "{drawn}");
    }
}
