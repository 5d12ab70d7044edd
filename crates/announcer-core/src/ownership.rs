//! Determines which node may announce a Service. The plan asks [`Ownership`] and does not know which mode answers. The
//! engine feeds the configured mode: kube-vip's Leases (`global` and `service`) or our records (`node`).

pub mod node;
pub mod service;

use std::time::Instant;

use service::LeaseKey;

use crate::config::{Config, ElectionMode};
use crate::view::ServiceView;

/// The owner of one Service, as this node sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This node announces it.
    Mine,
    /// Another node announces it or may announce it; nothing of it stays here.
    Theirs,
    /// The owner is not known yet. What is here stays, and nothing new is started.
    Undecided,
}

/// Determines the owner of each Service. `global` gives all Services the same answer; `service` and `node` do not.
pub(crate) trait Ownership {
    fn of(&self, service: &ServiceView) -> Owner;

    /// Whether the record behind [`Owner::Mine`] certainly stands at this moment. Only then this node refutes another
    /// host's claim on the wire. Otherwise the claimant has probably read a newer record (decisions.md 18).
    fn confirmed(&self, service: &ServiceView) -> bool;
}

/// State of an election, without its clock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LeaseState {
    /// The Lease was not read yet.
    #[default]
    Unknown,
    /// This node holds it.
    Held {
        /// It was renewed recently enough for other candidates to honour it.
        confirmed: bool,
    },
    /// Another candidate holds it; an empty name means that it has no holder.
    Other(String),
}

impl LeaseState {
    /// The owner that follows from this state for `node`.
    pub(crate) fn owner(&self, node: &str) -> Owner {
        match self {
            Self::Held { .. } => Owner::Mine,
            // The Lease has no holder, or names this node before the election has acquired it again. So no other node
            // has begun to announce.
            Self::Other(holder) if !holder.is_empty() && holder != node => Owner::Theirs,
            Self::Unknown | Self::Other(_) => Owner::Undecided,
        }
    }
}

/// The configured mode with its state.
#[derive(Debug)]
pub(crate) enum Owners {
    /// `global` and `service`.
    Elected(Box<service::Leases>),
    /// `node`.
    Node(Box<node::Cluster>),
}

impl Owners {
    /// Whether this node announces the Service, if that is known.
    pub fn announces(&self, service: Option<&ServiceView>) -> bool {
        service.is_some_and(|view| self.of(view) == Owner::Mine)
    }

    /// Starts without any knowledge.
    pub fn new(config: &Config) -> Self {
        let (node, duration) = (config.node_name.clone(), config.lease.duration);
        match config.election_mode {
            ElectionMode::Global => {
                Self::Elected(Box::new(service::Leases::one_for_all(node, LeaseKey::for_all(&config.lease), duration)))
            }
            ElectionMode::Service => {
                Self::Elected(Box::new(service::Leases::one_for_each(node, config.lease_namespaces.clone(), duration)))
            }
            ElectionMode::Node => Self::Node(Box::new(node::Cluster::new(node, duration))),
        }
    }

    /// What has to be read before any owner can be determined; `None` if nothing is missing.
    pub fn unknown(&self) -> Option<&'static str> {
        match self {
            Self::Elected(leases) => leases.unknown(),
            Self::Node(cluster) => cluster.facts.unknown(),
        }
    }

    /// Whether an address that was given up in doubt may be probed again.
    pub fn ends_conceding(&self, service: &ServiceView) -> bool {
        match self {
            Self::Elected(leases) => leases.holds(service),
            Self::Node(cluster) => cluster.confirmed(service),
        }
    }

    /// Whether a kube-vip on this node holds the Lease for all Services.
    pub fn is_beside_kube_vip(&self, now: Instant) -> bool {
        match self {
            Self::Elected(_) => false,
            Self::Node(cluster) => cluster.is_beside_kube_vip(now),
        }
    }
}

impl Ownership for Owners {
    fn of(&self, service: &ServiceView) -> Owner {
        match self {
            Self::Elected(leases) => leases.of(service),
            Self::Node(cluster) => cluster.of(service),
        }
    }

    fn confirmed(&self, service: &ServiceView) -> bool {
        match self {
            Self::Elected(leases) => leases.confirmed(service),
            Self::Node(cluster) => cluster.confirmed(service),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_named_other_holder_makes_it_theirs() {
        let owner = |state: LeaseState| state.owner("node-1");
        assert_eq!(owner(LeaseState::Unknown), Owner::Undecided);
        assert_eq!(owner(LeaseState::Other(String::new())), Owner::Undecided);
        assert_eq!(owner(LeaseState::Other("node-1".into())), Owner::Undecided);
        assert_eq!(owner(LeaseState::Other("node-2".into())), Owner::Theirs);
        assert_eq!(owner(LeaseState::Held { confirmed: true }), Owner::Mine);
        // decisions.md 18: an API that cannot be reached moves nothing.
        assert_eq!(owner(LeaseState::Held { confirmed: false }), Owner::Mine);
    }
}
