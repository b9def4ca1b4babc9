//! A fork that a test owns: gone when dropped, whatever became of the test.

#![expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]

use std::ops::Deref;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use engine::{Child, ChildOptions, ForkSpec, Forked, Lifetime, Limits, Networks, Results, fork_on, kill_many};
use proto::guest::ExecRequest;
use session::Output;
use types::{Dirs, Tag};

use super::Parent;
use crate::host::{Host, OUTPUT_LIMIT, Sh, argv};

/// From the request until all are ready; an emulated host takes its time.
const FORK_LIMIT: Duration = Duration::from_secs(120);
/// How long a piece of code may take.
const CODE_LIMIT: Duration = Duration::from_secs(60);

/// Children; what ends them is the end of this.
#[derive(Debug)]
pub(crate) struct Children {
    children: Vec<Child>,
    forked: Forked,
    asked: Instant,
}

impl Children {
    /// So many children of a parent.
    pub(crate) fn fork(host: &Host, parent: Parent, count: usize) -> Result<Self> {
        Self::fork_in(&host.dirs, &host.parent(parent)?, count, Lifetime::Connection)
    }

    /// So many children of a snapshot, in a place of the test's own.
    pub(crate) fn fork_in(dirs: &Dirs, tag: &Tag, count: usize, lifetime: Lifetime) -> Result<Self> {
        Self::fork_limited(dirs, tag, count, lifetime, Limits::default())
    }

    /// The same, each held to these limits.
    pub(crate) fn fork_limited(
        dirs: &Dirs,
        tag: &Tag,
        count: usize,
        lifetime: Lifetime,
        limits: Limits,
    ) -> Result<Self> {
        Self::fork_with(dirs, tag, count, lifetime, limits, None)
    }

    /// The same, each on a network of its own.
    pub(crate) fn fork_on(dirs: &Dirs, tag: &Tag, count: usize, networks: &Networks<'_>) -> Result<Self> {
        Self::fork_with(dirs, tag, count, Lifetime::Detached, Limits::default(), Some(networks))
    }

    /// The same, with all of that.
    pub(crate) fn fork_with(
        dirs: &Dirs,
        tag: &Tag,
        count: usize,
        lifetime: Lifetime,
        limits: Limits,
        networks: Option<&Networks<'_>>,
    ) -> Result<Self> {
        let spec = ForkSpec {
            tag: tag.clone(),
            children: vec![ChildOptions { limits, ..ChildOptions::default() }; count],
            lifetime,
            results: Results::AllOrNothing,
            limit: FORK_LIMIT,
            cancel: None,
        };
        let asked = Instant::now();
        let forked = fork_on(&spec, networks, dirs)?;
        let children = forked.children.iter().filter_map(|child| Some(child.as_ref().ok()?.child.clone())).collect();
        Ok(Self { children, forked, asked })
    }

    /// Since they were asked for: none of them can have run for longer.
    pub(crate) fn age(&self) -> Duration {
        self.asked.elapsed()
    }

    /// Their processes, in the same order.
    pub(crate) fn pids(&self) -> Vec<i32> {
        self.forked.children.iter().filter_map(|child| Some(child.as_ref().ok()?.pid)).collect()
    }
}

impl Deref for Children {
    type Target = [Child];

    fn deref(&self) -> &[Child] {
        &self.children
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for error in kill_many(&self.children).into_iter().filter_map(Result::err) {
            eprintln!("a child may be left: {error}");
        }
    }
}

impl Sh for Child {
    fn output(&self, request: &ExecRequest, stdin: &[u8]) -> Result<Output> {
        Ok(self.connect()?.output(request, stdin, OUTPUT_LIMIT)?)
    }
}

/// Running the programs of a child with the native guest, as tests like to.
pub(crate) trait Run {
    /// Runs one that must succeed and returns what it said, trimmed.
    fn run(&self, words: &[&str]) -> Result<String>;

    /// A word that its memory keeps; `parent` at first.
    fn word(&self) -> Result<String> {
        self.run(&["recall", "0"])
    }

    /// Gives it another.
    fn remember(&self, word: &str) -> Result<()> {
        self.run(&["remember", "0", word]).map(drop)
    }
}

impl Run for Child {
    fn run(&self, words: &[&str]) -> Result<String> {
        let output = self.output(&argv(words), &[])?;
        ensure!(output.status.shell_code() == 0, "{words:?} ended with {:?}", output.status);
        Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
    }
}

/// Running code in a child's warm interpreter, as tests like to.
pub(crate) trait Py {
    /// Runs code that must succeed; what it printed and, after that, the value of its last expression.
    fn py(&self, code: &str) -> Result<String>;
}

impl Py for Child {
    fn py(&self, code: &str) -> Result<String> {
        let done = self.eval(code, CODE_LIMIT).with_context(|| format!("{}: {code}", self.id()))?;
        if let Some(error) = done.error {
            bail!("{}: {code}: {error:?}", self.id());
        }
        Ok(String::from_utf8(done.stdout)? + &done.value.unwrap_or_default())
    }
}
