//! Who may announce a Service. The plan asks [`Ownership`] and does not know which mode answers; the engine feeds the
//! one that was configured: kube-vip's Leases (`service`), or ours (`node`).

pub mod node;
pub mod service;

use std::time::Instant;

use service::LeaseKey;

use crate::config::{Config, ElectionMode};
use crate::view::ServiceView;

/// The answer for one Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This node announces it.
    Mine,
    /// Another node does, or may: nothing of it stays here.
    Theirs,
    /// Not known yet. What is here stays, nothing new is begun.
    Undecided,
}

/// Decides per Service. `global` gives all Services the same answer; `service` and `node` do not.
pub(crate) trait Ownership {
    /// Who owns `service`.
    fn of(&self, service: &ServiceView) -> Owner;

    /// Whether the record behind [`Owner::Mine`] is known to stand at this moment: only then a claim of somebody else
    /// on the wire is refuted. Otherwise whoever claims probably read a newer record (decisions.md 18).
    fn confirmed(&self, service: &ServiceView) -> bool;
}

/// What the election says, without its clock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LeaseState {
    /// The Lease was not read yet.
    #[default]
    Unknown,
    /// We hold it. `confirmed`: renewed recently enough for others to honour it.
    Held {
        /// See there.
        confirmed: bool,
    },
    /// Somebody else holds it; an empty name: nobody does.
    Other(String),
}

impl LeaseState {
    /// What it makes of `node`.
    pub(crate) fn owner(&self, node: &str) -> Owner {
        match self {
            Self::Held { .. } => Owner::Mine,
            // A Lease that nobody holds, or our own name before the election has taken it again: nobody else has begun
            // to announce.
            Self::Other(holder) if !holder.is_empty() && holder != node => Owner::Theirs,
            Self::Unknown | Self::Other(_) => Owner::Undecided,
        }
    }
}

/// The mode that was configured, with what it knows.
#[derive(Debug)]
pub(crate) enum Owners {
    /// `global` and `service`.
    Elected(Box<service::Leases>),
    /// `node`.
    Node(Box<node::Cluster>),
}

impl Owners {
    /// Knows nothing yet.
    pub fn new(config: &Config) -> Self {
        let node = config.node_name.clone();
        match config.election_mode {
            ElectionMode::Global => {
                Self::Elected(Box::new(service::Leases::one_for_all(node, LeaseKey::for_all(&config.lease))))
            }
            ElectionMode::Service => {
                Self::Elected(Box::new(service::Leases::one_for_each(node, config.lease_namespaces.clone())))
            }
            ElectionMode::Node => Self::Node(Box::new(node::Cluster::new(node, config.lease.duration))),
        }
    }

    /// What has to be read before owners can be told at all.
    pub fn unknown(&self) -> Option<&'static str> {
        match self {
            Self::Elected(leases) => leases.unknown(),
            Self::Node(cluster) => cluster.unknown(),
        }
    }

    /// Whether what was given up in doubt may be probed again.
    pub fn ends_yielding(&self, service: &ServiceView) -> bool {
        match self {
            Self::Elected(leases) => leases.holds(service),
            Self::Node(cluster) => cluster.confirmed(service),
        }
    }

    /// Whether a kube-vip that lives on this very node has everything.
    pub fn is_guest(&self, now: Instant) -> bool {
        match self {
            Self::Elected(_) => false,
            Self::Node(cluster) => cluster.is_guest(now),
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
