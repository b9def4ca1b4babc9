//! From a path to a directory of the tree, through its symbolic links and never out of it.

use ext4::{Kind, Name, NodeId};

use super::{FlattenError, Flattener, implied, shown};

/// As many as the kernel follows.
const MAX_LINKS: usize = 40;
/// Names that links may put into one path; bounds the work for a single member.
const MAX_NAMES: usize = 1 << 14;
/// Names that may be walked per entry, on the average.
const MEAN_NAMES: u64 = 64;

/// Whether a name that is missing is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Make,
    Leave,
}

impl Flattener {
    /// The directory that the names lead to, made where it is missing.
    pub(super) fn directory(&mut self, path: &[u8], names: &[&[u8]]) -> Result<NodeId, FlattenError> {
        let found = self.walk(path, names, Missing::Make)?;
        Ok(found.expect("what is missing is made"))
    }

    /// The directory that the names lead to, if there is one.
    pub(super) fn existing(&mut self, path: &[u8], names: &[&[u8]]) -> Result<Option<NodeId>, FlattenError> {
        self.walk(path, names, Missing::Leave)
    }

    /// Counts work that nothing else bounds; false when it has become too much for so many entries.
    pub(super) fn may_step(&mut self, steps: u64) -> bool {
        self.steps = self.steps.saturating_add(steps);
        self.steps <= self.limits.entries.saturating_mul(MEAN_NAMES)
    }

    fn walk(&mut self, path: &[u8], names: &[&[u8]], missing: Missing) -> Result<Option<NodeId>, FlattenError> {
        // What is still to be walked, the next one last; and the directories that were passed, to find back up.
        let mut ahead: Vec<Box<[u8]>> = names.iter().rev().map(|name| (*name).into()).collect();
        let mut passed = vec![NodeId::ROOT];
        let (mut links, mut steps) = (0, 0);
        while let Some(name) = ahead.pop() {
            steps += 1;
            if steps > MAX_NAMES || !self.may_step(1) {
                return Err(FlattenError::Loop { path: shown(path) });
            }
            if *name == *b".." {
                if passed.len() > 1 {
                    passed.pop();
                }
                continue;
            }
            let dir = *passed.last().expect("the root is never left");
            let name = super::name(&name, path)?;
            match self.step(dir, &name, path, missing)? {
                Step::Into(node) => passed.push(node),
                Step::Nowhere => return Ok(None),
                Step::Along(target) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(FlattenError::Loop { path: shown(path) });
                    }
                    if target.starts_with(b"/") {
                        passed.truncate(1);
                    }
                    let parts = target.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
                    ahead.extend(parts.rev().map(Into::into));
                }
            }
        }
        Ok(passed.last().copied())
    }

    fn step(&mut self, dir: NodeId, name: &Name, path: &[u8], missing: Missing) -> Result<Step, FlattenError> {
        let Some(entry) = self.tree.get(dir, name) else {
            if missing == Missing::Leave {
                return Ok(Step::Nowhere);
            }
            self.count(1)?;
            let made = self.tree.insert(dir, name.clone(), implied(), self.layer);
            return made.map(Step::Into).map_err(|source| FlattenError::Node { path: shown(path), source });
        };
        match &self.tree.node(entry.node).kind {
            Kind::Directory(_) => {
                // Who puts something into it has touched it: it stays when what others put there is taken away.
                if missing == Missing::Make {
                    self.tree.mark(dir, name, self.layer);
                }
                Ok(Step::Into(entry.node))
            }
            Kind::Symlink(target) => Ok(Step::Along(target.clone())),
            _ => Err(FlattenError::NotADirectory { path: shown(path) }),
        }
    }
}

enum Step {
    Into(NodeId),
    Along(Box<[u8]>),
    Nowhere,
}
