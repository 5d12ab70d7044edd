//! Chooses the nodes that this node watches for their own sake, not as owners. Each node is watched by the two members
//! that follow it in the order of names, with a wrap at the end. Those on its hypervisor come last, because they are
//! lost with it. So every node watches about two, however many there are. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

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
        for node in names.into_iter().filter(|node| *node != self.me) {
            let apart = self.facts.lost_with(node);
            if !watches(&live, &self.me, node, &apart) {
                continue;
            }
            let there = links.iter().find_map(|link| {
                let theirs = self.facts.towards(node, network, *link)?;
                let ours = own_addresses(network, *link);
                let near = theirs.addresses.iter().find(|net| ours.iter().any(|own| own.trunc() == net.trunc()))?;
                Some((*link, Watched { address: near.addr(), mac: theirs.mac, term: Term::default() }))
            });
            let (Some(uid), Some((link, address))) = (self.facts.uid(node), there) else { continue };
            uids.insert(node.to_owned(), (uid.to_owned(), address.address));
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
}

/// Whether `me` is one of the two of `live`, in the order of names, that follow `node`. Those that fail together with
/// `node` come last.
fn watches(live: &[&str], me: &str, node: &str, apart: &BTreeSet<String>) -> bool {
    let after = || live.iter().filter(|name| **name > node).chain(live.iter().filter(|name| **name < node));
    let others = after().filter(|name| !apart.contains(**name));
    others.chain(after().filter(|name| apart.contains(**name))).take(WATCHERS).any(|name| *name == me)
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
                let alone = BTreeSet::new();
                let by = live.iter().filter(|me| *me != node && watches(&live, me, node, &alone)).count();
                let whom = live.iter().filter(|other| *other != node && watches(&live, node, other, &alone)).count();
                assert_eq!((by, whom), (2, 2), "{node} of {count}");
            }
        }
        let watches = |live: &[&str], me, node| watches(live, me, node, &BTreeSet::new());
        assert!(watches(&["a", "b"], "a", "b") && watches(&["a", "b"], "b", "a"));
        assert!(watches(&["a", "c", "d"], "c", "b"), "one whose Lease has run out is still watched");
        assert!(!watches(&["a"], "a", "a"));
    }

    #[test]
    fn who_is_lost_together_with_a_node_watches_it_only_if_there_are_no_others() {
        let live = ["a", "b", "c", "d", "e"];
        let by = |live: &[&'static str], node: &str, apart: &[&str]| -> Vec<&'static str> {
            let apart = apart.iter().map(|name| (*name).to_owned()).collect();
            live.iter().copied().filter(|me| *me != node && watches(live, me, node, &apart)).collect()
        };
        assert_eq!(by(&live, "a", &["a", "b"]), ["c", "d"]);
        assert_eq!(by(&live, "e", &["d", "e"]), ["a", "b"]);
        assert_eq!(by(&live[..3], "a", &["a", "b"]), ["b", "c"]);
    }
}
