//! Sandboxes from a snapshot, all or none, and known as soon as they are ready.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use api::{Code, CreateSandboxes, MAX_SANDBOXES, PerChild};
use axum::http::StatusCode;
use engine::{
    Cancel, Child, ChildError, ChildOptions, ForkSpec, Forked, ForkedChild, Lifetime, Limits, Networks, Results,
    fork_on, kill_many,
};
use session::{Metadata, Variables};
use types::Tag;

use crate::error::ApiError;
use crate::limits::checked;
use crate::networks::Wishes;
use crate::registry::{Change, RegistryError, Sandbox, now_unix};
use crate::snapshots::warm_language;
use crate::state::{App, row_of};

/// From the request until all are ready: a template may have to be loaded from a slow disk.
const LIMIT: Duration = Duration::from_secs(300);
/// The longest time to live: ten years.
const MAX_TTL_SECS: u64 = 10 * 366 * 24 * 60 * 60;
/// The most labels one sandbox has, and the longest of them.
const MAX_LABELS: usize = 64;
const MAX_LABEL: usize = 256;

/// What was asked for, and makes sense.
#[derive(Debug)]
pub(crate) struct Spawn {
    pub(crate) tag: Tag,
    pub(crate) children: Vec<New>,
    /// What is said about their networks.
    pub(crate) network: Wishes,
    pub(crate) expires_unix: Option<u64>,
    /// Whose they shall be.
    pub(crate) workspace: Option<String>,
    /// For whoever wants to read it in them.
    pub(crate) metadata: Metadata,
    pub(crate) terms: Terms,
}

/// How sandboxes are made.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) lifetime: Lifetime,
    pub(crate) results: Results,
    pub(crate) limit: Duration,
    pub(crate) cancel: Option<Cancel>,
}

impl Default for Terms {
    fn default() -> Self {
        Self { lifetime: Lifetime::Detached, results: Results::AllOrNothing, limit: LIMIT, cancel: None }
    }
}

/// Sandboxes that are ready and known.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) sandboxes: Vec<Sandbox>,
    /// The same, as the engine tells of them.
    pub(crate) ready: Vec<ForkedChild>,
    /// Why others are not.
    pub(crate) failures: Vec<ChildError>,
    /// Where the time went, and what those live by whose life hangs on a connection.
    pub(crate) forked: Forked,
}

/// One of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct New {
    pub(crate) env: Variables,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) limits: Limits,
}

impl TryFrom<CreateSandboxes> for Spawn {
    type Error = ApiError;

    fn try_from(asked: CreateSandboxes) -> Result<Self, ApiError> {
        if !(1..=MAX_SANDBOXES).contains(&asked.n) {
            let message = format!("n is {}; 1 to {MAX_SANDBOXES} sandboxes are made at once", asked.n);
            return Err(ApiError::invalid(message));
        }
        let count = usize::try_from(asked.n).unwrap_or(usize::MAX);
        if !asked.per_child.is_empty() && asked.per_child.len() != count {
            let message = format!("per_child has {} entries for {count} sandboxes", asked.per_child.len());
            return Err(ApiError::invalid(message));
        }
        let tag = parse_tag(&asked.snapshot_tag)?;
        let of_all = checked(&asked.limits, asked.memory_limit_mib)?;
        let mut each = asked.per_child;
        each.resize(count, PerChild::default());
        let children = each.into_iter().map(|own| {
            let labels = over(&asked.labels, own.labels);
            check_labels(&labels)?;
            let limits = checked(&own.limits, None)?.over(of_all);
            Ok(New { env: variables(over(&asked.env, own.env))?, labels, limits })
        });
        Ok(Self {
            tag,
            children: children.collect::<Result<_, ApiError>>()?,
            network: Wishes::new(asked.egress.as_ref(), &asked.network_limits)?,
            expires_unix: asked.ttl_secs.map(expiry).transpose()?,
            workspace: None,
            metadata: Metadata::default(),
            terms: Terms::default(),
        })
    }
}

/// What all get, and over it what one gets.
fn over(all: &BTreeMap<String, String>, own: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut both = all.clone();
    both.extend(own);
    both
}

/// An environment, checked.
pub(crate) fn variables(env: BTreeMap<String, String>) -> Result<Variables, ApiError> {
    Variables::try_from(env).map_err(|error| ApiError::invalid(format!("env: {error}")))
}

/// When a time to live that begins now is over.
pub(crate) fn expiry(ttl_secs: u64) -> Result<u64, ApiError> {
    if (1..=MAX_TTL_SECS).contains(&ttl_secs) {
        return Ok(now_unix() + ttl_secs);
    }
    Err(ApiError::invalid(format!("ttl_secs is {ttl_secs}; it can be 1 to {MAX_TTL_SECS}, or null for ever")))
}

/// Labels, checked.
pub(crate) fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), ApiError> {
    let fits = |(key, value): (&String, &String)| !key.is_empty() && key.len() <= MAX_LABEL && value.len() <= MAX_LABEL;
    if labels.len() <= MAX_LABELS && labels.iter().all(fits) {
        return Ok(());
    }
    let message = format!("there can be {MAX_LABELS} labels, with a key and up to {MAX_LABEL} bytes each");
    Err(ApiError::invalid(message))
}

impl App {
    /// Forks, and makes them known together with whatever else belongs to the same change. If they cannot be made known,
    /// nothing is left of them.
    pub(crate) fn spawn(
        &self,
        spawn: Spawn,
        besides: impl FnOnce(&mut Change<'_>, &[Sandbox]) -> Result<(), RegistryError>,
    ) -> Result<Made, ApiError> {
        let begun = Instant::now();
        let _spawning = self.spawns.begin();
        let owner = Some(self.registry.id().to_owned());
        let Spawn { tag, children, network, expires_unix, workspace, metadata, terms } = spawn;
        let options = |New { env, labels, limits }| {
            (ChildOptions { env, metadata: metadata.clone(), owner: owner.clone(), limits, cores: self.cores }, labels)
        };
        let (options, labels): (Vec<_>, Vec<_>) = children.into_iter().map(options).unzip();
        let Terms { lifetime, results, limit, cancel } = terms;
        let spec = ForkSpec { tag, children: options, lifetime, results, limit, cancel };
        let networks = Networks { pool: &|| self.networks.get(), egress: network.egress, limits: network.limits };
        let mut forked = fork_on(&spec, Some(&networks), &self.dirs)?;
        let language = warm_language(self, spec.tag.as_str());
        let (mut made, mut ready, mut failures) = (Vec::new(), Vec::new(), Vec::new());
        for (child, labels) in std::mem::take(&mut forked.children).into_iter().zip(labels) {
            match child {
                Ok(child) => {
                    let (pid, workspace) = (u32::try_from(child.pid).ok(), workspace.clone());
                    let language = language.map(Into::into);
                    self.watch_denials(&child.child);
                    made.push(Sandbox { pid, labels, expires_unix, workspace, language, ..row_of(&child.child) });
                    ready.push(child);
                }
                Err(error) => failures.push(error),
            }
        }
        let known = self.registry.change(|change| {
            made.iter().try_for_each(|new| change.add_sandbox(new).map(|_| ()))?;
            besides(change, &made)
        });
        if let Err(error) = known {
            let children: Vec<Child> = ready.into_iter().map(|ready| ready.child).collect();
            for failed in kill_many(&children).into_iter().filter_map(Result::err) {
                log::error!("{failed}, and it is not known to the registry");
            }
            return Err(error.into());
        }
        self.metrics.spawn.record(begun.elapsed().as_secs_f64());
        self.metrics.counter("forkd_sandboxes_created_total", &[]).increment(made.len() as u64);
        Ok(Made { sandboxes: made, ready, failures, forked })
    }
}

/// A tag in a path or a body.
pub(crate) fn parse_tag(text: &str) -> Result<Tag, ApiError> {
    Ok(text.parse()?)
}

/// A name in a path or a body: it is never a path itself.
pub(crate) fn check_name(name: &str) -> Result<(), ApiError> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if (1..=64).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with('.') {
        return Ok(());
    }
    let shown: String = name.chars().take(64).collect();
    let message = format!("`{shown}` is not a name; use 1 to 64 letters, digits, `.`, `_` or `-`, not a `.` first");
    Err(ApiError::new(StatusCode::BAD_REQUEST, Code::InvalidName, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Result<Spawn, ApiError> {
        serde_json::from_str::<CreateSandboxes>(text).unwrap().try_into()
    }

    #[test]
    fn what_makes_no_sense_is_refused_before_anything_starts() {
        for bad in [
            r#"{"snapshot_tag":"t","n":0}"#,
            r#"{"snapshot_tag":"t","n":1001}"#,
            r#"{"snapshot_tag":"../t"}"#,
            r#"{"snapshot_tag":"t","memory_limit_mib":1}"#,
            r#"{"snapshot_tag":"t","limits":{"cpu_millis":1}}"#,
            r#"{"snapshot_tag":"t","per_child":[{"limits":{"disk_mib":0}}]}"#,
            r#"{"snapshot_tag":"t","ttl_secs":0}"#,
            r#"{"snapshot_tag":"t","ttl_secs":18446744073709551615}"#,
            r#"{"snapshot_tag":"t","n":2,"per_child":[{}]}"#,
            r#"{"snapshot_tag":"t","env":{"A B":"c"}}"#,
            r#"{"snapshot_tag":"t","egress":"10.0.0.0/99"}"#,
            r#"{"snapshot_tag":"t","egress":[]}"#,
            r#"{"snapshot_tag":"t","network_limits":{"connections":0}}"#,
            r#"{"snapshot_tag":"t","labels":{"":"c"}}"#,
        ] {
            assert_eq!(asked(bad).unwrap_err().status.as_u16(), 400, "{bad}");
        }
    }

    #[test]
    fn each_child_has_its_own_over_what_all_have() {
        let text = r#"{"snapshot_tag":"t","n":2,"labels":{"a":"1","b":"1"},"env":{"X":"1"},
                       "memory_limit_mib":64,"limits":{"cpu_millis":500},
                       "per_child":[{"labels":{"b":"2"}},{"env":{"Y":"2"},"limits":{"memory_mib":128}}]}"#;
        let spawn = asked(text).unwrap();
        assert_eq!(spawn.children[0].labels["b"], "2");
        assert_eq!(spawn.children[1].labels["b"], "1");
        let limits = |index: usize| serde_json::to_string(&spawn.children[index].limits).unwrap();
        assert_eq!(limits(0), r#"{"memory_mib":64,"cpu_millis":500}"#);
        assert_eq!(limits(1), r#"{"memory_mib":128,"cpu_millis":500}"#);
        let both = [("X", "1"), ("Y", "2")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(spawn.children[1].env, Variables::try_from(BTreeMap::from(both)).unwrap());
    }

    #[test]
    fn names_are_never_paths() {
        for bad in ["", ".", "..", ".x", "a/b", "../a", "a\0", "a b", "ä", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        check_name("Agent_7.b-c").unwrap();
    }
}
