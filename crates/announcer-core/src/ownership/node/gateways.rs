//! Which nodes hear the default gateway, and so are most probably on the clients' side of a LAN that has fallen apart
//! (decisions.md 24). Pure.
//!
//! An owner is watched by two nodes. Where both are on its side, and the gateway is on the other one, no node that
//! clients reach knows that the owner is lost to them. The owner does: other members say on their cards that they hear
//! the gateway.
//!
//! A gateway that is back after it was away from all nodes is not heard by all of them at the same moment. So the owner
//! compares only after it has asked anew, and for as long after the other node began to hear the gateway as after it
//! lost the gateway itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::Cluster;
use super::round::{ReviewContext, Round, Standing};
use super::timing::GATEWAY_LOST;
use crate::network::Network;

/// What the card of a node says of the LAN.
#[derive(Debug, Clone, Copy)]
struct Hearing {
    gateway: bool,
    hosts: u8,
}

impl Hearing {
    /// Whether a node is on the clients' side and another one is not. The gateway is one of the hosts of the node that
    /// hears it, so that node hears at least as many others. A stranger that answers in the name of the gateway, where
    /// nobody else is, does not get what belongs to an owner that hears a host.
    fn is_better_than(self, other: Self) -> bool {
        self.gateway && !other.gateway && self.hosts > other.hosts
    }
}

impl Cluster {
    /// What this node hears on the interface `link`. `None`: it has no gateway there, or does not know yet.
    fn heard_here(&self, network: &Network, link: u32) -> Option<Hearing> {
        let name = &network.link(link)?.name;
        Some(Hearing { gateway: *self.card.gateways.get(name)?, hosts: *self.card.hears.get(name)? })
    }

    /// What `node` says that it hears in the LAN of our interface `link`.
    fn heard_by(&self, network: &Network, link: u32, node: &str) -> Option<Hearing> {
        let (name, card) = (&self.facts.towards(node, network, link)?.name, self.facts.card(node)?);
        Some(Hearing { gateway: *card.gateways.get(name)?, hosts: *card.hears.get(name)? })
    }

    /// Of each interface on which this node hears its gateway, the members in that LAN that have lost theirs.
    pub(super) fn without_gateway(&self, network: &Network) -> BTreeMap<u32, BTreeSet<String>> {
        let links = self.card.gateways.keys().filter_map(|name| Some(network.link_by_name(name)?.index));
        let here = links.filter_map(|link| Some((link, self.heard_here(network, link)?)));
        let lost = |link: u32, here: Hearing| {
            let is_lost =
                |node: &&str| self.heard_by(network, link, node).is_some_and(|there| here.is_better_than(there));
            self.members().map(|(node, _)| node).filter(is_lost).map(str::to_owned).collect()
        };
        here.filter(|(_, here)| here.gateway).map(|(link, here)| (link, lost(link, here))).collect()
    }

    /// Whether this node hears the gateway in the LAN of the group, and `node` says that it does not. Then a move that
    /// may wait waits, however many hosts the two hear: those numbers change, and the group would go to and fro.
    pub(super) fn lacks_gateway(&self, round: &Round<'_>, standing: &Standing<'_>, node: &str) -> bool {
        let (Some(link), network) = (standing.link, round.context.network) else { return false };
        self.heard_here(network, link).is_some_and(|here| here.gateway)
            && self.heard_by(network, link, node).is_some_and(|there| !there.gateway)
    }

    /// Of each interface on which this node has lost the gateway, the members that say that they hear it, and from when
    /// on a card of each tells so.
    pub(super) fn awaited(&self, context: &ReviewContext<'_>) -> BTreeMap<u32, BTreeMap<String, Instant>> {
        let from = |link: u32, lost: Instant, node: &str| {
            let hears = self.facts.hears_gateway_since(node, context.network, link)?;
            Some((node.to_owned(), hears.max(lost) + GATEWAY_LOST))
        };
        let lost = context.gateways.iter().filter(|(_, state)| state.answers == Some(false));
        let there = |link: u32, lost: Instant| self.members().filter_map(|(node, _)| from(link, lost, node)).collect();
        lost.map(|(link, state)| (*link, there(*link, state.since))).collect()
    }

    /// The interface of the group and the members whose cards its owner, this node, waits for. `None`: the gateway
    /// there is not lost, or the group is not ours.
    pub(super) fn awaits<'r>(
        &self,
        round: &Round<'r>,
        standing: &Standing<'_>,
    ) -> Option<(u32, &'r BTreeMap<String, Instant>)> {
        let link = standing.link.filter(|_| standing.is_of(&self.me))?;
        Some((link, round.awaited.get(&link)?))
    }

    /// The node to which this owner hands the group over, because it hears the gateway, and this owner does not. The
    /// two have to agree for long enough, and that node has to hear more hosts.
    pub(super) fn with_gateway<'a>(&self, round: &Round<'_>, standing: &Standing<'a>) -> Option<&'a str> {
        let ((link, awaited), network) = (self.awaits(round, standing)?, round.context.network);
        let here = self.heard_here(network, link)?;
        let hears = |node: &str, from: Instant| {
            !self.facts.is_expired(round.now, node)
                && self.facts.renewed_at(node).is_some_and(|renewed| renewed >= from)
                && self.heard_by(network, link, node).is_some_and(|there| there.is_better_than(here))
        };
        let suits = |node: &str| awaited.get(node).is_some_and(|from| hears(node, *from));
        standing.candidates.home_among(standing.home_key(), &self.me, suits)
    }
}
