//! The order of the nodes that may own a group. A user's setting excludes a node. A measured defect only moves a node
//! back in the order (decisions.md 21). Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::member::{Defects, Fitness};
use super::place;

/// What moves a node back in the order. An earlier field outweighs all later ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Penalties {
    /// Its kernel has refused the addresses.
    pub unable: bool,
    /// The group has an IPv6 address and the node has no IPv6 on the interface.
    pub no_ipv6: bool,
    /// What is wrong with the node.
    pub defects: Defects,
}

impl Penalties {
    /// The penalties of a node that already owns the group: a cordon only keeps new addresses away.
    fn to_keep(self) -> Self {
        Self { defects: self.defects.to_keep(), ..self }
    }
}

/// All nodes that may own a group, the best first.
#[derive(Debug, Clone, Default)]
pub struct Candidates<'a> {
    nodes: Vec<(Penalties, &'a str)>,
    /// Those that most probably answer nobody at this moment, or no client because they have lost the gateway. Each
    /// node finds that out for itself, so it changes nothing about the order, in which all nodes have to agree. It
    /// counts only where this node gives a group away.
    silent: BTreeSet<&'a str>,
}

impl<'a> Candidates<'a> {
    /// Takes the nodes in any order.
    pub fn new(nodes: impl IntoIterator<Item = (&'a str, Penalties)>) -> Self {
        let mut nodes: Vec<(Penalties, &str)> = nodes.into_iter().map(|(node, penalties)| (penalties, node)).collect();
        nodes.sort_unstable();
        Self { nodes, silent: BTreeSet::new() }
    }

    /// The same nodes, where those that are silent get nothing while another node can have it.
    pub fn with_silent(mut self, is_silent: impl Fn(&str) -> bool) -> Self {
        self.silent = self.nodes.iter().map(|(_, node)| *node).filter(|node| is_silent(node)).collect();
        self
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether `node` may own the group.
    pub fn has(&self, node: &str) -> bool {
        self.penalties(node).is_some()
    }

    fn penalties(&self, node: &str) -> Option<Penalties> {
        self.nodes.iter().find(|(_, other)| *other == node).map(|(penalties, _)| *penalties)
    }

    /// The home of `group`: the hash chooses among the nodes with the fewest penalties.
    pub fn home(&self, group: &str) -> Option<&'a str> {
        Self::first_class(group, None, self.nodes.iter().copied())
    }

    /// The node to which `me` may hand the group over. Nodes that leave everything to a kube-vip are left out, because
    /// they would not take it. A silent node gets it only if there is no other one, and only as a `last_resort`: it may
    /// be dead, and its Lease still valid, or cut off from the clients. Among those with the fewest penalties
    /// `preferred` comes first.
    pub fn home_elsewhere(&self, group: &str, me: &str, preferred: Option<&str>, last_resort: bool) -> Option<&'a str> {
        let others =
            || self.nodes.iter().copied().filter(move |(penalties, node)| *node != me && !penalties.defects.yields);
        Self::first_class(group, preferred, others().filter(|(_, node)| !self.silent.contains(node)))
            .or_else(|| Self::first_class(group, preferred, others()).filter(|_| last_resort))
    }

    /// The node among those that suit to which `me` may hand the group over although both are well. One that has more
    /// penalties does not get it: it serves clients worse, and would hand it on to the next node that is better off. A
    /// silent node gets it only if no other one suits: this node may have found it silent because the LAN lies between
    /// the two, and it would be found silent for as long as that.
    pub fn home_among(&self, group: &str, me: &str, suits: impl Fn(&str) -> bool) -> Option<&'a str> {
        let own = self.penalties(me);
        let as_well_off = |penalties: Penalties| own.is_none_or(|own| penalties <= own) && !penalties.defects.yields;
        let may = |node: &str| node != me && suits(node);
        let nodes = self.nodes.iter().copied().filter(|(penalties, node)| as_well_off(*penalties) && may(node));
        let heard = nodes.clone().filter(|(_, node)| !self.silent.contains(node));
        Self::first_class(group, None, heard).or_else(|| Self::first_class(group, None, nodes))
    }

    /// Whether most probably `node` answers nobody, or no client, at this moment.
    pub fn is_silent(&self, node: &str) -> bool {
        self.silent.contains(node)
    }

    fn first_class(
        group: &str,
        preferred: Option<&str>,
        nodes: impl Iterator<Item = (Penalties, &'a str)> + Clone,
    ) -> Option<&'a str> {
        let best = nodes.clone().map(|(penalties, _)| penalties).min()?;
        let class = nodes.filter(|(penalties, _)| *penalties == best).map(|(_, node)| node);
        class.clone().find(|node| Some(*node) == preferred).or_else(|| place::preferred(group, class))
    }

    /// Whether no node has fewer penalties than `node`.
    pub fn is_first_class(&self, node: &str) -> bool {
        self.penalties(node).is_some_and(|penalties| self.nodes.first().is_some_and(|(best, _)| *best == penalties))
    }

    /// Whether another node that is not silent has fewer penalties than the owner `me`.
    pub fn has_better_than(&self, me: &str) -> bool {
        let own = self.penalties(me).map(Penalties::to_keep);
        let others = self.nodes.iter().filter(|(_, node)| *node != me && !self.silent.contains(node));
        let others = others.map(|(penalties, _)| *penalties);
        own.zip(others.min()).is_some_and(|(own, best)| best < own)
    }

    /// How many nodes come before `me` for `group`; `None`: `me` may not own it.
    pub fn position(&self, group: &str, me: &str) -> Option<usize> {
        let key = |penalties: Penalties, node: &str| {
            (penalties, std::cmp::Reverse((place::score(group, node), node.to_owned())))
        };
        let own = key(self.penalties(me)?, me);
        Some(self.nodes.iter().filter(|(penalties, node)| key(*penalties, node) < own).count())
    }

    /// The place of `me` among the successors of `owner`. Successors are ordered by penalties. With the same penalties,
    /// they follow the owner in the order of names, and wrap around at the end. The first two run, if possible, on
    /// other hypervisors than the owner and than each other, because they watch the owner.
    ///
    /// The order is a ring and not the hash, so that each owner is watched by two nodes, however many nodes there are.
    pub fn rank<'h>(&self, owner: &str, me: &str, host: impl Fn(&str) -> Option<&'h str>) -> Option<usize> {
        self.line(owner, host).iter().position(|node| *node == me)
    }

    /// All successors of `owner`, in order.
    pub fn line<'h>(&self, owner: &str, host: impl Fn(&str) -> Option<&'h str>) -> Vec<&'a str> {
        let mut others: Vec<(Penalties, bool, &str)> = self
            .nodes
            .iter()
            .filter(|(_, node)| *node != owner)
            .map(|(penalties, node)| (*penalties, *node < owner, *node))
            .collect();
        others.sort_unstable();
        let mut hosts: BTreeSet<&str> = host(owner).into_iter().collect();
        for at in 0..others.len().min(2) {
            let owners: BTreeSet<&str> = host(owner).into_iter().collect();
            let penalties = others[at].0;
            let apart = |from: &BTreeSet<&str>| {
                let is_apart = |node: &str| host(node).is_none_or(|host| !from.contains(host));
                (at..others.len()).find(|n| others[*n].0 == penalties && is_apart(others[*n].2))
            };
            if let Some(apart) = apart(&hosts).or_else(|| apart(&owners)) {
                others[at..=apart].rotate_right(1);
            }
            hosts.extend(host(others[at].2));
        }
        others.into_iter().map(|(.., node)| node).collect()
    }
}

/// The candidates where neither interface nor endpoints matter: all fit members.
pub fn line_of(fitness: &BTreeMap<String, Fitness>) -> Candidates<'_> {
    Candidates::new(fitness.iter().filter_map(|(node, fitness)| match *fitness {
        Fitness::Fit(defects) => Some((node.as_str(), Penalties { defects, ..Penalties::default() })),
        Fitness::Excluded(_) => None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

    fn equal() -> Candidates<'static> {
        Candidates::new(NODES.map(|node| (node, Penalties::default())))
    }

    fn ill(not_ready: bool, kube_proxy: bool, cordoned: bool) -> Penalties {
        Penalties { defects: Defects { kube_proxy, not_ready, cordoned, ..Defects::default() }, ..Penalties::default() }
    }

    #[test]
    fn the_least_bad_serves_and_nobody_is_forbidden() {
        let well = Penalties::default();
        let (cordoned, unready, proxy) = (ill(false, false, true), ill(true, false, false), ill(false, true, false));
        let departs = Penalties { defects: Defects { departs: true, cordoned: true, ..Defects::default() }, ..well };
        let no_ipv6 = Penalties { no_ipv6: true, ..well };
        let unable = Penalties { unable: true, ..well };
        for (name, penalties, home, better_than_1) in [
            ("one is well", [unready, unready, well], "node-3", true),
            ("one is only cordoned", [proxy, unready, cordoned], "node-3", true),
            ("the owner is cordoned", [cordoned, cordoned, unready], "", false),
            ("the owner is cordoned and one is well", [cordoned, well, unready], "node-2", false),
            ("not ready is better than without kube-proxy", [proxy, unready, proxy], "node-2", true),
            ("the owner departs", [departs, unready, cordoned], "node-3", true),
            ("the owner departs, and nobody else could serve", [departs, proxy, proxy], "node-1", false),
            ("all depart", [departs, departs, departs], "", false),
            ("all are as bad", [proxy, proxy, proxy], "", false),
            ("without IPv6 half of it would be served", [no_ipv6, proxy, no_ipv6], "node-2", true),
            ("who cannot set it comes last", [unable, unable, ill(true, true, true)], "node-3", true),
        ] {
            let candidates = Candidates::new(NODES.into_iter().zip(penalties));
            let found = candidates.home("10.0.0.5").unwrap();
            assert!(home.is_empty() || found == home, "{name}: {found}");
            assert_eq!(candidates.has_better_than("node-1"), better_than_1, "{name}");
        }
        assert_eq!(Candidates::default().home("10.0.0.5"), None);
    }

    #[test]
    fn a_silent_node_is_better_than_nobody_and_gets_a_group_only_where_there_is_nobody_else() {
        let (well, proxy) = (Penalties::default(), ill(false, true, false));
        for (name, penalties, silent, to, better) in [
            ("one of two that are better off", [proxy, well, well], &["node-3"][..], "node-2", true),
            ("the only one that is better off", [proxy, well, proxy], &["node-2"], "node-3", false),
            ("both others", [proxy, well, well], &["node-2", "node-3"], "node-3", false),
            ("the owner, as others say", [proxy, well, proxy], &["node-1"], "node-2", true),
        ] {
            let heard = Candidates::new(NODES.into_iter().zip(penalties));
            let candidates = heard.clone().with_silent(|node| silent.contains(&node));
            assert_eq!(candidates.home_elsewhere("10.0.0.5", "node-1", None, true), Some(to), "{name}");
            let answers = Some(to).filter(|to| !silent.contains(to));
            assert_eq!(candidates.home_elsewhere("10.0.0.5", "node-1", None, false), answers, "{name}");
            assert_eq!(candidates.has_better_than("node-1"), better, "{name}");
            let line = |candidates: &Candidates<'static>| candidates.line("node-1", |_| None);
            assert_eq!(line(&candidates), line(&heard), "{name}: all nodes have to agree on the line");
        }
    }

    #[test]
    fn a_node_is_preferred_to_the_one_that_the_hash_chooses_only_among_those_that_are_best_off() {
        let (well, proxy) = (Penalties::default(), ill(false, true, false));
        for (name, penalties, preferred, to) in [
            ("both are well", [proxy, well, well], "node-2", "node-2"),
            ("it is ill", [well, proxy, well], "node-2", "node-3"),
            ("it may not have it", [well, well, well], "node-9", "node-3"),
            ("it is the giver", [well, well, well], "node-1", "node-3"),
        ] {
            let candidates = Candidates::new(NODES.into_iter().zip(penalties));
            assert_eq!(candidates.home_elsewhere("10.0.0.5", "node-1", Some(preferred), true), Some(to), "{name}");
        }
    }

    #[test]
    fn an_owner_without_the_gateway_gives_only_to_a_node_that_is_as_well_off_and_takes_it() {
        let (well, proxy) = (Penalties::default(), ill(false, true, false));
        let unable = Penalties { unable: true, ..well };
        let yields = Penalties { defects: Defects { yields: true, ..Defects::default() }, ..well };
        for (name, penalties, to) in [
            ("as well off", [well, well, proxy], Some("node-2")),
            ("worse off", [well, proxy, proxy], None),
            ("it leaves everything to a kube-vip", [unable, yields, unable], Some("node-3")),
        ] {
            let candidates = Candidates::new(NODES.into_iter().zip(penalties));
            assert_eq!(candidates.home_among("10.0.0.5", "node-1", |_| true), to, "{name}");
        }
    }

    #[test]
    fn an_owner_without_the_gateway_gives_to_a_silent_node_only_if_no_other_one_suits() {
        for (name, silent, suits, to) in [
            ("the only one that suits", "node-2", &["node-2"][..], "node-2"),
            ("one of two that suit", "node-2", &["node-2", "node-3"], "node-3"),
            ("the other one of these", "node-3", &["node-2", "node-3"], "node-2"),
        ] {
            let candidates = equal().with_silent(|node| node == silent);
            assert_eq!(candidates.home_among("10.0.0.5", "node-1", |node| suits.contains(&node)), Some(to), "{name}");
        }
    }

    #[test]
    fn the_successors_stand_in_a_ring_behind_those_that_are_better_off() {
        for (owner, me, rank) in [
            ("node-1", "node-2", Some(0)),
            ("node-1", "node-3", Some(1)),
            ("node-2", "node-3", Some(0)),
            ("node-2", "node-1", Some(1)),
            ("node-3", "node-1", Some(0)),
            ("node-3", "node-3", None),
            // An owner that may not have it any more, or is gone, is followed by the same nodes.
            ("node-15", "node-2", Some(0)),
            ("node-1", "node-9", None),
        ] {
            assert_eq!(equal().rank(owner, me, |_| None), rank, "{me} after {owner}");
        }
        let candidates = Candidates::new([
            ("node-1", Penalties::default()),
            ("node-2", ill(true, false, false)),
            ("node-3", Penalties::default()),
        ]);
        let rank = |me| candidates.rank("node-1", me, |_| None);
        assert_eq!((rank("node-3"), rank("node-2")), (Some(0), Some(1)));
    }

    #[test]
    fn the_successors_stand_on_other_hypervisors() {
        const SIX: [&str; 6] = ["a1", "a2", "b1", "b2", "c1", "c2"];
        let candidates = Candidates::new(SIX.map(|node| (node, Penalties::default())));
        for (hosts, order) in [
            (3, ["b1", "c1", "a2", "b2", "c2"]),
            // Only the owner's and one more: then the second shares with the first and not with the owner.
            (2, ["b1", "b2", "a2", "c1", "c2"]),
            (0, ["a2", "b1", "b2", "c1", "c2"]),
        ] {
            let host = |node: &str| match (node.as_bytes()[0], hosts) {
                (_, 0) => None,
                (b'a', _) => Some("a"),
                (b'c', 3) => Some("c"),
                _ => Some("b"),
            };
            let rank = |me: &&str| candidates.rank("a1", me, host).unwrap();
            let mut found = order;
            found.sort_by_key(rank);
            assert_eq!(found, order, "{hosts} hypervisors");
        }
    }

    #[test]
    fn every_owner_has_exactly_one_first_successor() {
        for owner in NODES {
            let first = NODES.iter().filter(|me| equal().rank(owner, me, |_| None) == Some(0)).count();
            assert_eq!(first, 1, "{owner}");
        }
    }

    #[test]
    fn what_nobody_owns_is_offered_to_all_the_better_ones_first() {
        let candidates = Candidates::new([
            ("node-1", ill(true, false, false)),
            ("node-2", Penalties::default()),
            ("node-3", ill(true, true, false)),
        ]);
        let positions = NODES.map(|node| candidates.position("10.0.0.5", node));
        assert_eq!(positions, [Some(1), Some(0), Some(2)]);
        let mut positions = NODES.map(|node| equal().position("10.0.0.5", node).unwrap());
        positions.sort_unstable();
        assert_eq!(positions, [0, 1, 2]);
        assert_eq!(candidates.position("10.0.0.5", "node-9"), None);
    }
}
