//! Chooses the nodes that this node watches for their own sake, not as owners. Each node is watched by the two members
//! that follow it in the order of names, with a wrap at the end. So every node watches two, however many there are. And
//! which nodes count as silent. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use contract::Silence;

use super::member::own_addresses;
use super::{Cluster, Target, Targets, Term, Watched};
use crate::network::Network;

/// Number of nodes that watch one node.
const WATCHERS: usize = 2;

impl Cluster {
    /// The nodes to watch on the interfaces `links`, with the UIDs of their Nodes. A member whose Lease has expired is
    /// watched, but does not count as a watcher.
    pub fn nodes_to_watch(
        &self,
        now: Instant,
        network: &Network,
        links: &BTreeSet<u32>,
    ) -> (Targets, BTreeMap<String, (String, IpAddr)>) {
        let mut names: Vec<&str> = self.members().map(|(node, _)| node).chain([self.me.as_str()]).collect();
        names.sort_unstable();
        names.dedup();
        let live: Vec<&str> =
            names.iter().filter(|node| **node == self.me || !self.facts.is_expired(now, node)).copied().collect();
        let (mut targets, mut uids) = (Targets::new(), BTreeMap::new());
        for node in names.into_iter().filter(|node| *node != self.me && watches(&live, &self.me, node)) {
            let there = links.iter().find_map(|link| {
                let theirs = self.facts.towards(node, network, *link)?;
                let ours = own_addresses(network, *link);
                let near = theirs.addresses.iter().find(|net| ours.iter().any(|own| own.trunc() == net.trunc()))?;
                Some((*link, Watched { address: near.addr(), mac: theirs.mac, term: Term::default() }))
            });
            let (Some(uid), Some((link, address))) = (self.facts.uid(node), there) else { continue };
            uids.insert(node.to_owned(), (uid.to_owned(), address.address));
            let apart = self.facts.lost_with(node);
            let cards = self.facts.cards_towards(node, network, link);
            targets.push(Target {
                owner: node.to_owned(),
                link,
                rank: 0,
                ahead: None,
                apart,
                cards,
                vips: vec![address],
            });
        }
        (targets, uids)
    }

    /// Nodes that most probably answer nobody at this moment. This node has found it out itself, at an address of the
    /// node or at all those that the node owns; or the two members that watch the node say so on their cards.
    pub(super) fn silent_nodes(&self, now: Instant) -> BTreeSet<String> {
        let mut said: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, card) in self.members().filter(|(node, _)| !self.facts.is_expired(now, node)) {
            // A later Node of the same name is not meant.
            let meant = |(node, silence): &(&String, &Silence)| self.facts.uid(node) == Some(silence.uid.as_str());
            for (node, _) in card.silent.iter().filter(meant) {
                *said.entry(node.as_str()).or_default() += 1;
            }
        }
        let by_others = said.into_iter().filter(|(_, times)| *times >= WATCHERS).map(|(node, _)| node);
        let here = self.card.silent.keys().map(String::as_str).chain(self.silences.lost());
        here.chain(by_others).map(str::to_owned).collect()
    }
}

/// Whether `me` is one of the two of `live`, in the order of names, that follow `node`.
fn watches(live: &[&str], me: &str, node: &str) -> bool {
    let after = live.iter().filter(|name| **name > node).chain(live.iter().filter(|name| **name < node));
    after.take(WATCHERS).any(|name| *name == me)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_watched_by_two_and_watches_two_however_many_there_are() {
        for count in [3, 4, 50] {
            let names: Vec<String> = (0..count).map(|number| format!("node-{number:02}")).collect();
            let live: Vec<&str> = names.iter().map(String::as_str).collect();
            for node in &live {
                let by = live.iter().filter(|me| *me != node && watches(&live, me, node)).count();
                let whom = live.iter().filter(|other| *other != node && watches(&live, node, other)).count();
                assert_eq!((by, whom), (2, 2), "{node} of {count}");
            }
        }
        assert!(watches(&["a", "b"], "a", "b") && watches(&["a", "b"], "b", "a"));
        assert!(watches(&["a", "c", "d"], "c", "b"), "one whose Lease has run out is still watched");
        assert!(!watches(&["a"], "a", "a"));
    }
}
