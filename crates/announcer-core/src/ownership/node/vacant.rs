//! Groups that no node takes: which node reports this to their authors, and what keeps that node from taking them
//! itself. Without an owner no other node would report it. Pure.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use l2_types::Link;

use super::member::Fitness;
use super::round::{Round, Standing};
use super::timing::{INTERFACE_GRACE, START_GRACE};
use super::{Cluster, place};
use crate::endpoints::ready_on;
use crate::network::InterfaceError;
use crate::reason::Reason;

/// A reason why this node cannot take a group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// The node is excluded.
    #[error("{0}")]
    Excluded(&'static str),
    /// The policy is Local and the kernel would drop clients' packets here; holds the nodes with endpoints.
    #[error("externalTrafficPolicy is Local and the node has no ready endpoint of the Service; {}", elsewhere(.0))]
    NoEndpoint(BTreeSet<String>),
    /// There is no suitable interface.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The interface exists but has no carrier.
    #[error("interface {0:?} has no carrier; it is used as soon as it has one")]
    NoCarrier(String),
}

fn elsewhere(nodes: &BTreeSet<String>) -> String {
    if nodes.is_empty() {
        return "no other node has one either: the address is announced as soon as one is ready".to_owned();
    }
    ready_on(nodes)
}

impl Obstacle {
    /// The first obstacle, if any. `only`: the nodes with ready endpoints, if the policy is Local.
    pub fn of(
        me: &str,
        fitness: Fitness,
        only: Option<&BTreeSet<String>>,
        link: Result<&Link, InterfaceError>,
    ) -> Option<Self> {
        match (fitness, only, link) {
            (Fitness::Excluded(why), ..) => Some(Self::Excluded(why)),
            (_, Some(nodes), _) if !nodes.contains(me) => Some(Self::NoEndpoint(nodes.clone())),
            (.., Err(error)) => Some(error.into()),
            (.., Ok(link)) => (!link.is_usable()).then(|| Self::NoCarrier(link.name.clone())),
        }
    }

    /// Reason of the Event.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NoEndpoint(_) => Reason::NoLocalEndpoint,
            Self::Excluded(_) | Self::Interface(_) | Self::NoCarrier(_) => Reason::CannotAnnounce,
        }
    }

    /// How long a group has to be without an owner before its authors are told.
    pub fn grace(&self) -> Duration {
        match self {
            Self::Interface(_) => INTERFACE_GRACE,
            Self::Excluded(_) | Self::NoEndpoint(_) | Self::NoCarrier(_) => START_GRACE,
        }
    }
}

impl Cluster {
    /// What this node reports about a group without an owner, if it is the reporter.
    pub(super) fn obstacle(&self, round: &Round<'_>, standing: &Standing<'_>) -> Option<Obstacle> {
        if !self.is_teller(round, standing) {
            return None;
        }
        let fitness = round.fitness[&self.me];
        Obstacle::of(&self.me, fitness, standing.only.as_ref(), standing.chosen(round.context))
    }

    /// Whether this node is the reporter of a group without an owner.
    pub(super) fn is_teller(&self, round: &Round<'_>, standing: &Standing<'_>) -> bool {
        let Round { now, context, fitness, .. } = *round;
        if context.stopping {
            return false;
        }
        let speaks = |node: &str| {
            let leaving = self.facts.card(node).is_some_and(|card| card.leaving);
            node == self.me || !(leaving || self.facts.is_expired(now, node))
        };
        let speakers = fitness.iter().map(|(node, fitness)| (node.as_str(), *fitness)).filter(|(node, _)| speaks(node));
        reporter(&standing.key, speakers, standing.only.as_ref()) == Some(self.me.as_str())
    }
}

/// The node that reports, chosen from the nodes whose announcer runs. It is one with the fewest obstacles, because
/// these have to be fixed first. Every node computes the same.
pub fn reporter<'a>(
    group: &str,
    speakers: impl Iterator<Item = (&'a str, Fitness)>,
    only: Option<&BTreeSet<String>>,
) -> Option<&'a str> {
    let merits = |node: &str, fitness| {
        let defects = match fitness {
            Fitness::Fit(defects) => Some(Reverse(defects)),
            Fitness::Excluded(_) => None,
        };
        (only.is_none_or(|nodes| nodes.contains(node)), defects)
    };
    let speakers: Vec<(&str, _)> = speakers.map(|(node, fitness)| (node, merits(node, fitness))).collect();
    let best = speakers.iter().map(|(_, merits)| *merits).max()?;
    place::preferred(group, speakers.into_iter().filter(|(_, merits)| *merits == best).map(|(node, _)| node))
}

#[cfg(test)]
mod tests {
    use super::super::member::Defects;
    use super::*;
    use crate::network::fixtures::{link, network};
    use crate::network::{Network, fixtures::config};
    use crate::view::InterfaceWish;

    const FIT: Fitness = Fitness::Fit(Defects {
        yields: false,
        gone: false,
        kube_proxy: false,
        departs: false,
        not_ready: false,
        cordoned: false,
    });

    fn nodes(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn each_obstacle_is_told_in_words_that_say_what_to_mend() {
        let down = Link { up: false, ..link(4, "uplink8") };
        let unplugged = Link { carrier: false, ..link(5, "uplink9") };
        let network = Network { links: vec![link(1, "lo"), link(2, "eth0"), down, unplugged], ..network() };
        let config = config(&[]);
        let choose = |name: &str| network.choose(&InterfaceWish::Named(name.into()), &config, None);
        let six = nodes(&["node-2", "node-3", "node-4", "node-5", "node-6", "node-7"]);
        let excluded = Fitness::Excluded("its announcer is ending");
        for (fitness, only, interface, reason, parts) in [
            (excluded, None, "eth0", Reason::CannotAnnounce, &["ending"][..]),
            (FIT, Some(nodes(&[])), "eth0", Reason::NoLocalEndpoint, &["Local", "no other node"]),
            (FIT, Some(six), "eth0", Reason::NoLocalEndpoint, &["on node-2, node-3", "node-6 and others"]),
            (
                FIT,
                None,
                "uplink7",
                Reason::CannotAnnounce,
                &["kube-vip.io/serviceInterface", "\"uplink7\"", "does not exist", "eth0, uplink8"],
            ),
            (FIT, None, "uplink8", Reason::CannotAnnounce, &["\"uplink8\"", "down"]),
            (FIT, None, "uplink9", Reason::CannotAnnounce, &["\"uplink9\"", "carrier"]),
            (FIT, None, "lo", Reason::CannotAnnounce, &["\"lo\"", "reach"]),
        ] {
            let obstacle = Obstacle::of("node-1", fitness, only.as_ref(), choose(interface)).unwrap();
            assert_eq!(obstacle.reason(), reason, "{obstacle}");
            for part in parts {
                assert!(obstacle.to_string().contains(part), "{part:?} is missing in: {obstacle}");
            }
        }
        let here = nodes(&["node-1", "node-2"]);
        assert_eq!(Obstacle::of("node-1", FIT, Some(&here), choose("eth0")), None);
        assert_eq!(Obstacle::of("node-1", FIT, None, choose("eth0")), None);
    }

    #[test]
    fn what_usually_passes_by_itself_is_told_later_than_a_wrong_name() {
        let missing = InterfaceError::NoDefaultRoute { existing: "none".into() };
        assert!(Obstacle::Interface(missing).grace() < Obstacle::NoEndpoint(nodes(&[])).grace());
    }

    #[test]
    fn the_node_that_lacks_least_tells() {
        let unready = Fitness::Fit(Defects { not_ready: true, ..Defects::default() });
        let excluded = Fitness::Excluded("its announcer is ending");
        let speakers = |one, two, three| [("node-1", one), ("node-2", two), ("node-3", three)].into_iter();
        for (expected, fitness, only) in [
            ("node-2", (excluded, FIT, unready), None),
            ("node-3", (FIT, FIT, excluded), Some(nodes(&["node-3"]))),
            ("node-1", (FIT, unready, excluded), Some(nodes(&[]))),
        ] {
            let (one, two, three) = fitness;
            assert_eq!(reporter("10.0.0.5", speakers(one, two, three), only.as_ref()), Some(expected));
        }
        assert!(
            reporter("10.0.0.5", speakers(excluded, excluded, excluded), None).is_some(),
            "somebody does in any case"
        );
        assert_eq!(reporter("10.0.0.5", [].into_iter(), None), None);
    }
}
