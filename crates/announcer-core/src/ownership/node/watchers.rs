//! Chooses the nodes that this node watches for their own sake, not as owners. Each node is watched by the two members
//! that follow it in the order of names, with a wrap at the end. So every node watches two, however many there are. And
//! which nodes count as silent. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use contract::Silence;

use super::member::own_addresses;
use super::silence::LostOwner;
use super::timing::TOLD_AFTER;
use super::{Card, Cluster, Target, Targets, Term, Watched};
use crate::network::Network;

/// Number of nodes that watch one node.
const NODE_WATCHERS: usize = 2;

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
            let nic_macs = self.facts.nic_macs_towards(node, network, link);
            targets.push(Target {
                owner: node.to_owned(),
                link,
                rank: 0,
                ahead: None,
                apart,
                nic_macs,
                vips: vec![address],
            });
        }
        (targets, uids)
    }

    /// Nodes that most probably answer nobody at this moment. This node has found it out itself, at an address of the
    /// node or at all those that the node owns; or the two members that watch the node say so on their cards.
    ///
    /// An owner of which this node watches few addresses may have lost just these, so it is no silent node if it is
    /// seen to live ([`Self::lives`]). `at_own`: whether owners answer at addresses of their own, where that is known.
    pub(super) fn silent_nodes(&self, now: Instant, at_own: &BTreeMap<String, bool>) -> BTreeSet<String> {
        let mut said: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, card) in self.members().filter(|(node, _)| !self.facts.is_expired(now, node)) {
            // A later Node of the same name is not meant.
            let meant = |(node, silence): &(&String, &Silence)| self.facts.uid(node) == Some(silence.uid.as_str());
            for (node, _) in card.silent.iter().filter(meant) {
                *said.entry(node.as_str()).or_default() += 1;
            }
        }
        let by_others = said.into_iter().filter(|(_, times)| *times >= NODE_WATCHERS).map(|(node, _)| node);
        let lives = |lost: &LostOwner<'_>| self.lives(lost, at_own.get(lost.owner).copied());
        let lost = self.silences.lost().filter(|lost| !lives(lost)).map(|lost| lost.owner);
        let here = self.card.silent.keys().map(String::as_str).chain(lost);
        here.chain(by_others).map(str::to_owned).collect()
    }

    /// Owners that are silent nodes unless they are seen to live.
    pub fn lost_owners(&self) -> impl Iterator<Item = &str> {
        self.silences.lost().map(|lost| lost.owner)
    }

    /// Whether an owner that answers for nothing lives all the same. It has written its card since it fell silent, and
    /// answers at an address of its own; a kernel answers there for a dead process, too. Where it is not known whether
    /// it answers there, its card has to be one that shows which hosts it has lost, and to say that it hears as many as
    /// this node does.
    fn lives(&self, lost: &LostOwner<'_>, at_own: Option<bool>) -> bool {
        let wrote = |at: Instant| self.facts.renewed_at(lost.owner).is_some_and(|renewed| renewed >= at);
        let hears =
            |card: &Card| !card.hears.is_empty() && card.hears.values().all(|hosts| *hosts >= lost.outside.max(1));
        match at_own {
            Some(answers) => answers && wrote(lost.since),
            None => wrote(lost.since + TOLD_AFTER) && self.facts.card(lost.owner).is_some_and(hears),
        }
    }
}

/// Whether `me` is one of the two of `live`, in the order of names, that follow `node`.
fn watches(live: &[&str], me: &str, node: &str) -> bool {
    let after = live.iter().filter(|name| **name > node).chain(live.iter().filter(|name| **name < node));
    after.take(NODE_WATCHERS).any(|name| *name == me)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Member, OwnerVerdict};
    use super::*;
    use crate::detect::landmarks::Side;

    /// node-2 has it.
    fn vip(term: u64) -> Watched {
        Watched { address: [10, 0, 0, 5].into(), mac: [2, 0, 0, 0, 1, 2].into(), term: Term(term) }
    }

    /// Of what node-2 owns this is all that is watched.
    fn watches_one(cluster: &mut Cluster, vip: Watched) {
        cluster.silences.retain(&[(("node-2".to_owned(), vip.address), vip.term)].into());
    }

    /// node-2 has answered for it and does not any more.
    fn falls_silent(vip: Watched) -> OwnerVerdict {
        OwnerVerdict::Silent {
            owner: "node-2".into(),
            vips: vec![vip],
            taken: Vec::new(),
            side: Side::Greater,
            certain: true,
            heard: vec![vip],
            last: None,
            outside: 2,
            longer: Duration::ZERO,
        }
    }

    #[test]
    fn an_owner_that_is_silent_for_all_that_is_watched_is_a_silent_node_unless_it_is_seen_to_live() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let vip = vip(4);
        for (name, own, hears, written, silent) in [
            ("nothing else is known", None, Some(0), 0, true),
            ("it answers at an address of its own, and its process may be dead", Some(true), Some(8), 0, true),
            ("it answers there and has written its card", Some(true), Some(0), 1, false),
            ("it does not answer there", Some(false), Some(8), 14, true),
            ("its card says later that it hears as many hosts", None, Some(2), 14, false),
            ("its card says later that it hears fewer", None, Some(1), 14, true),
            ("its card may be from before it knew", None, Some(2), 12, true),
            ("it is of an older version", None, None, 14, true),
        ] {
            let mut cluster = Cluster::new("node-1".into(), Duration::from_secs(15));
            let hears: BTreeMap<String, u8> = hears.map(|hosts| ("eth0".to_owned(), hosts)).into_iter().collect();
            let member = |renewal: &str| Member {
                renewal: renewal.into(),
                duration: Duration::from_secs(15),
                card: Card { hears: hears.clone(), ..Card::default() },
            };
            cluster.member(at(0), "node-2".into(), Some(member("first")));
            watches_one(&mut cluster, vip);
            cluster.verdict(at(0) + Duration::from_millis(500), falls_silent(vip));
            cluster.member(at(written), "node-2".into(), Some(member("second")));
            let own = own.map(|answers| ("node-2".to_owned(), answers)).into_iter().collect();
            let found = cluster.silent_nodes(at(15), &own);
            let expected: BTreeSet<String> = silent.then(|| "node-2".to_owned()).into_iter().collect();
            assert_eq!(found, expected, "{name}");
        }
    }

    /// The detector reports no first answer under a new record, so nothing would take back what was found before.
    #[test]
    fn an_owner_that_was_silent_under_its_last_record_is_no_silent_node_under_the_next_one() {
        let now = Instant::now();
        for (term, is_silent) in [(4, true), (5, false)] {
            let mut cluster = Cluster::new("node-1".into(), Duration::from_secs(15));
            watches_one(&mut cluster, vip(4));
            cluster.verdict(now, falls_silent(vip(4)));
            watches_one(&mut cluster, vip(term));
            let found = cluster.silent_nodes(now, &BTreeMap::new());
            assert_eq!(found.contains("node-2"), is_silent, "{term}");
        }
    }

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
