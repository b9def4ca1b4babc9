//! The networks of sandboxes: kept ready once one was needed, looked at, and changed.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

use api::{Attempt, Code, EgressPolicy, Names, NetworkInfo, NetworkLimits, SetEgress, Traffic};
use axum::http::StatusCode;
use engine::{
    Child, Egress, EgressError, Network, NetworkError, NetworkLimits as Limits, Pool, Traffic as Counted, networks,
    plan,
};

use crate::denials::Denials;
use crate::error::{ApiError, chain};
use crate::state::Inner;

const KIB: u32 = 1 << 10;
/// Where agents are spoken to by clients that enter a sandbox's namespace.
const AGENT_PORT: u16 = 8888;

/// The networks, from the first time that one is needed: a daemon without them needs no right to make any.
#[derive(Debug)]
pub(crate) struct LazyPool {
    pool: Mutex<Option<Arc<Pool>>>,
    /// How many are kept ready.
    ready: usize,
    denials: Arc<Denials>,
}

impl LazyPool {
    pub(crate) fn new(ready: usize, denials: Arc<Denials>) -> Self {
        Self { pool: Mutex::default(), ready, denials }
    }

    /// The networks, which are begun to be kept ready if they are not yet.
    pub(crate) fn get(&self) -> Result<Arc<Pool>, NetworkError> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = &*pool {
            return Ok(Arc::clone(pool));
        }
        let begun = Arc::new(networks(self.ready)?);
        let denials = Arc::clone(&self.denials);
        begun.on_end(move |network| denials.last_look(network));
        *pool = Some(Arc::clone(&begun));
        Ok(begun)
    }

    /// How many are kept ready, and how many sandboxes have.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.as_ref().map(|pool| pool.counts()).unwrap_or_default()
    }

    /// The networks that sandboxes have.
    pub(crate) fn in_use(&self) -> Vec<Arc<Network>> {
        let pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.as_ref().map(|pool| pool.in_use()).unwrap_or_default()
    }
}

/// What was said about the networks of sandboxes that are to be made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) egress: Option<Egress>,
    pub(crate) limits: Option<Limits>,
}

impl Wishes {
    /// What was asked for, checked.
    pub(crate) fn new(asked: Option<&EgressPolicy>, limited: &NetworkLimits) -> Result<Self, ApiError> {
        let limits = (!limited.is_empty()).then(|| limits(limited)).transpose()?;
        Ok(Self { egress: asked.map(egress).transpose()?, limits })
    }
}

/// Limits, as they were asked for.
fn limits(asked: &NetworkLimits) -> Result<Limits, ApiError> {
    let number = |name: &str, asked: Option<u32>, unit: u32| {
        let bad = || ApiError::invalid(format!("network limits: {name} can be 1 to {}", u32::MAX / unit));
        asked.map(|asked| asked.checked_mul(unit).and_then(NonZeroU32::new).ok_or_else(bad)).transpose()
    };
    Ok(Limits {
        out_bytes_per_second: number("send_kib_per_sec", asked.send_kib_per_sec, KIB)?,
        in_bytes_per_second: number("receive_kib_per_sec", asked.receive_kib_per_sec, KIB)?,
        packets_per_second: number("packets_per_sec", asked.packets_per_sec, 1)?,
        connections: number("connections", asked.connections, 1)?.unwrap_or(Limits::CONNECTIONS),
    })
}

/// Limits, as they are told.
fn told(limits: &Limits) -> NetworkLimits {
    let kib = |bytes: Option<NonZeroU32>| bytes.map(|bytes| bytes.get() / KIB);
    NetworkLimits {
        send_kib_per_sec: kib(limits.out_bytes_per_second),
        receive_kib_per_sec: kib(limits.in_bytes_per_second),
        packets_per_sec: limits.packets_per_second.map(NonZeroU32::get),
        connections: Some(limits.connections.get()),
    }
}

/// A policy, as it was asked for.
pub(crate) fn egress(asked: &EgressPolicy) -> Result<Egress, ApiError> {
    let parsed = match asked {
        EgressPolicy::Text(text) => text.parse(),
        EgressPolicy::List(list) => Egress::from_parts(list.iter().map(String::as_str)),
    };
    parsed.map_err(|error| ApiError::invalid(format!("egress: {error}")))
}

/// The name of a child's namespace, if it has one.
pub(crate) fn namespace_of(child: &Child) -> Option<String> {
    let network = child.network().unwrap_or_else(|error| {
        log::warn!("the network of {}: {error}", child.id());
        None
    });
    network.map(|network| network.number.namespace())
}

impl Inner {
    /// Looks after the networks of sandboxes that an earlier daemon gave them.
    pub(crate) fn adopt_networks(&self, children: &[Child]) {
        for child in children.iter().filter(|child| namespace_of(child).is_some()) {
            let adopted = self.networks.get().map_err(EgressError::from);
            match adopted.and_then(|pool| child.managed_network(&pool)) {
                Ok(network) => self.denials.watch(network.turn(), child.id()),
                Err(error) => log::error!("nobody looks after the network of {}: {}", child.id(), chain(&error)),
            }
        }
    }

    /// What this child is refused will be written down.
    pub(crate) fn watch_denials(&self, child: &Child) {
        match child.network() {
            Ok(Some(network)) => self.denials.watch(network.turn, child.id()),
            Ok(None) => {}
            Err(error) => log::warn!("the network of {}: {error}", child.id()),
        }
    }

    /// A sandbox's network as it is.
    pub(crate) fn network(&self, id: &str) -> Result<NetworkInfo, ApiError> {
        let (_, child) = self.living(id)?;
        none_without(&child)?;
        info(&*child.managed_network(&*self.networks.get()?)?)
    }

    /// Where a sandbox may connect to from now on, and how much of it.
    pub(crate) fn set_egress(&self, id: &str, asked: &SetEgress) -> Result<NetworkInfo, ApiError> {
        let egress = asked.egress.as_ref().map(egress).transpose()?;
        let limits = asked.limits.as_ref().map(limits).transpose()?;
        if egress.is_none() && limits.is_none() {
            return Err(ApiError::invalid("say `egress`, `limits` or both"));
        }
        let (_, child) = self.living(id)?;
        none_without(&child)?;
        info(&*child.set_network(&*self.networks.get()?, egress.as_ref(), limits)?)
    }
}

/// Before networks are begun to be made for somebody who has none.
fn none_without(child: &Child) -> Result<(), ApiError> {
    match namespace_of(child) {
        Some(_) => Ok(()),
        None => Err(EgressError::NoNetwork { id: child.id().into() }.into()),
    }
}

fn info(network: &Network) -> Result<NetworkInfo, ApiError> {
    let (report, names) = (network.report()?, network.names_report());
    let traffic = |one: Counted| Traffic { packets: one.packets, bytes: one.bytes };
    let attempts = report.attempts.iter().map(|one| Attempt {
        address: one.address.to_string(),
        protocol: one.protocol,
        port: one.port,
        packets: one.packets,
        ago_ms: one.ago_ms,
    });
    Ok(NetworkInfo {
        netns: network.number().namespace(),
        guest_addr: format!("{}:{AGENT_PORT}", plan::GUEST),
        host_side_addr: network.number().outside().to_string(),
        egress: network.egress().to_string(),
        limits: told(&network.limits()),
        sent: traffic(report.sent),
        received: traffic(report.received),
        denied: traffic(report.denied),
        spoofed: traffic(report.spoofed),
        ipv6: traffic(report.ipv6),
        limited: traffic(report.limited),
        attempts: attempts.collect(),
        names: Names {
            asked: names.asked,
            refused: names.refused,
            malformed: names.malformed,
            last_refused: names.last_refused.into(),
        },
    })
}

impl From<NetworkError> for ApiError {
    fn from(error: NetworkError) -> Self {
        if matches!(error, NetworkError::Over) {
            return Self::new(StatusCode::NOT_FOUND, Code::SandboxGone, chain(&error));
        }
        Self::internal(chain(&error)).with_code(Code::NetworkUnavailable)
    }
}

impl From<EgressError> for ApiError {
    fn from(error: EgressError) -> Self {
        match error {
            EgressError::NoNetwork { .. } => Self::new(StatusCode::CONFLICT, Code::NoNetwork, chain(&error)),
            EgressError::Network(error) => error.into(),
            error @ EgressError::Io { .. } => Self::internal(chain(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_a_text_or_a_list() {
        let of = |json: &str| egress(&serde_json::from_str(json).unwrap());
        assert_eq!(of(r#""a.org:443,10.0.0.0/8""#).unwrap(), of(r#"["a.org:443","10.0.0.0/8"]"#).unwrap());
        assert_eq!(of(r#""none""#).unwrap(), Egress::None);
        let refused = of(r#"["all","a.org"]"#).unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.code), (400, Code::InvalidRequest));
        assert!(refused.message.contains("`all`"), "{}", refused.message);
    }

    #[test]
    fn limits_are_told_as_they_were_asked_for() {
        let text = r#"{"send_kib_per_sec":64,"receive_kib_per_sec":4194303,"packets_per_sec":9,"connections":7}"#;
        let asked: NetworkLimits = serde_json::from_str(text).unwrap();
        assert_eq!(told(&limits(&asked).unwrap()), asked);
        for bad in [r#"{"connections":0}"#, r#"{"send_kib_per_sec":4194304}"#, r#"{"packets_per_sec":0}"#] {
            let asked = serde_json::from_str(bad).unwrap();
            assert_eq!(limits(&asked).unwrap_err().status.as_u16(), 400, "{bad}");
        }
        assert!(Wishes::new(None, &NetworkLimits::default()).unwrap().limits.is_none());
    }
}
