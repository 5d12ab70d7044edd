//! Members: what a node says about itself in its membership Lease, what its Node object says, and the fitness that
//! follows from both. Data and pure rules.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use l2_types::{AddressLifetime, Mac};

use crate::network::{Network, is_own_macvlan};

/// One interface of a member on which VIPs can be.
pub type CardLink = contract::CardLink<Mac>;

/// What a node says about itself. It is written into its membership Lease with each renewal.
pub type Card = contract::Card<Mac>;

/// The interfaces of a member that are in the LAN of our interface `ours`: those with a common subnet, otherwise the
/// one of the same name. The interface of the same name comes first, because it most probably carries the VIP that ours
/// would.
pub fn links_towards<'a>(links: &'a [CardLink], network: &Network, ours: u32) -> Vec<&'a CardLink> {
    let ours_there = own_addresses(network, ours);
    let shared = |link: &&CardLink| {
        link.addresses.iter().any(|theirs| ours_there.iter().any(|own| own.trunc() == theirs.trunc()))
    };
    let name = network.link(ours).map(|link| link.name.as_str());
    let is_named = |link: &CardLink| Some(link.name.as_str()) == name;
    let mut there: Vec<&CardLink> = links.iter().filter(shared).collect();
    there.sort_by_key(|link| !is_named(link));
    if there.is_empty() {
        there.extend(links.iter().find(|link| is_named(link)));
    }
    there
}

/// The first of [`links_towards`].
pub fn link_towards<'a>(links: &'a [CardLink], network: &Network, ours: u32) -> Option<&'a CardLink> {
    links_towards(links, network, ours).into_iter().next()
}

/// The own addresses of an interface. Host prefixes are left out: they are VIPs, or do not help to tell LANs apart.
/// Addresses that are never chosen as source are left out, too: kernels before 5.18 show no mark on a VIP, and
/// `vip_subnet` may give it the prefix of the LAN. They count as `Network::occupied`, if they are none of ours.
pub(super) fn own_addresses(network: &Network, index: u32) -> Vec<IpNet> {
    let mut addresses: Vec<IpNet> = network
        .addresses
        .iter()
        .filter(|own| own.interface == index && !own.is_ours() && own.net.prefix_len() < own.net.max_prefix_len())
        .filter(|own| own.preferred != AddressLifetime::For(Duration::ZERO))
        .filter(|own| !matches!(own.net.addr(), IpAddr::V6(v6) if v6.is_unicast_link_local()))
        .map(|own| own.net)
        .collect();
    addresses.sort();
    addresses
}

/// This node's interfaces as they stand on its card: those for which `used` holds, and that of the default route. Pods'
/// interfaces and our own macvlans are left out, because they carry no VIPs.
pub fn card_links(network: &Network, used: impl Fn(u32) -> bool) -> Vec<CardLink> {
    network
        .links
        .iter()
        .filter(|link| link.is_usable() && link.name != "lo" && !is_own_macvlan(link))
        .filter_map(|link| {
            let addresses = own_addresses(network, link.index);
            let mac = link.mac?;
            (used(link.index) || network.default_route == Some(link.index)).then(|| CardLink {
                name: link.name.clone(),
                mac,
                addresses,
                no_ipv6: network.ipv6_source(link.index).is_none(),
            })
        })
        .collect()
}

/// A membership Lease as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// A value that changes with each renewal. Only the change counts, because clocks differ.
    pub renewal: String,
    /// `leaseDurationSeconds`.
    pub duration: Duration,
    /// What the node says about itself.
    pub card: Card,
}

/// The facts of a Node object that count (decisions.md 21).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(clippy::struct_excessive_bools)] // independent facts, not the states of one machine
pub struct NodeFacts {
    /// `metadata.uid`: tells Nodes of the same name apart.
    pub uid: String,
    /// Status of the condition Ready.
    pub ready: bool,
    /// Taint `node.kubernetes.io/out-of-service` or `ToBeDeletedByClusterAutoscaler`, or label
    /// `node.kubernetes.io/exclude-from-external-load-balancers`.
    pub shut_out: bool,
    /// `spec.unschedulable`.
    pub cordoned: bool,
    /// Annotation `hand-over`: the cloud provider says that the machine is about to move or to be shut down.
    pub departs: bool,
    /// The hypervisor that runs the node.
    pub host: Option<String>,
}

/// The Lease for all Services of another program: kube-vip, or an announcer in another mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignLock {
    /// `holderIdentity`; empty: there is no holder.
    pub holder: String,
    /// A value that changes with each renewal.
    pub renewal: String,
    /// `leaseDurationSeconds`.
    pub duration: Duration,
    /// By the wall clock the last renewal is minutes old, so the Lease is a leftover if it does not change. Counts only
    /// where the Lease is seen for the first time.
    pub leftover: bool,
}

/// What a node may own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fitness {
    /// It may own any group; nodes with lighter defects come first.
    Fit(Defects),
    /// It may own nothing, for this reason: a user has excluded it, or no announcer runs that could take a group.
    Excluded(&'static str),
}

/// The defects of a member. They order the nodes and forbid nothing: a health check may be wrong, and an address that
/// no node serves helps no client. Less is better; an earlier field outweighs all later ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[allow(clippy::struct_excessive_bools)] // independent facts, not the states of one machine
pub struct Defects {
    /// It leaves all Services to another holder of the Lease for all Services.
    pub yields: bool,
    /// It has no Node object.
    pub gone: bool,
    /// Its kube-proxy is not healthy.
    pub kube_proxy: bool,
    /// Its machine is about to move or to be shut down. Its groups go to another node before, if one can serve them.
    pub departs: bool,
    /// Its Node is not ready. The addresses still work on a node without a kubelet.
    pub not_ready: bool,
    /// It is cordoned. It keeps the groups that it owns.
    pub cordoned: bool,
}

impl Defects {
    /// The defects that count for groups which the node already owns.
    pub fn to_keep(self) -> Self {
        Self { yields: false, cordoned: false, ..self }
    }

    /// Whether there is no defect.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

impl fmt::Display for Defects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (self.yields, "it leaves everything to another holder of the Lease for all Services"),
            (self.gone, "it has no Node object"),
            (self.kube_proxy, "kube-proxy is not healthy there"),
            (self.departs, "its machine is about to move or to be shut down"),
            (self.not_ready, "the Node is not ready"),
            (self.cordoned, "the Node is cordoned"),
        ];
        let found: Vec<&str> = all.into_iter().filter(|(is, _)| *is).map(|(_, text)| text).collect();
        f.write_str(&found.join(", "))
    }
}

/// What is known of a Node object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known<'a> {
    /// This node has no right to read Nodes.
    Nothing,
    /// The Node does not exist.
    Gone,
    /// The facts of the Node.
    Facts(&'a NodeFacts),
}

/// The fitness of a node (decisions.md 21). `fresh`: its membership Lease is valid. `ready`: false only where not being
/// ready counts.
pub fn fitness(card: &Card, fresh: bool, node: Known<'_>, ready: bool) -> Fitness {
    if !fresh {
        return Fitness::Excluded("its membership Lease has expired");
    }
    if card.leaving {
        return Fitness::Excluded("its announcer is ending");
    }
    let mut defects = Defects { yields: card.yields, kube_proxy: !card.serving, ..Defects::default() };
    match node {
        Known::Nothing => {}
        Known::Gone => defects.gone = true,
        Known::Facts(facts) if facts.shut_out => {
            return Fitness::Excluded("the node is taken out of service or excluded");
        }
        Known::Facts(facts) => {
            (defects.not_ready, defects.cordoned, defects.departs) = (!ready, facts.cordoned, facts.departs);
        }
    }
    Fitness::Fit(defects)
}

#[cfg(test)]
mod tests {
    use l2_types::Address;

    use super::*;
    use crate::network::fixtures::{network, own_address};

    fn card() -> Card {
        let mac = Mac::new([2, 0, 0, 0, 0, 9]);
        let link = |name: &str, net: &str| CardLink {
            name: name.into(),
            mac,
            addresses: vec![net.parse().unwrap()],
            no_ipv6: false,
        };
        Card { links: vec![link("ens3", "10.0.0.9/24"), link("eth1", "10.9.0.9/16")], serving: true, ..Card::default() }
    }

    const FACTS: NodeFacts =
        NodeFacts { uid: String::new(), ready: true, shut_out: false, cordoned: false, departs: false, host: None };

    #[test]
    fn a_card_survives_the_annotation_and_a_spoilt_one_is_that_of_a_node_without_interfaces() {
        assert_eq!(Card::parse(&card().to_annotation()), card());
        for text in ["", "nonsense", "{\"links\":[{\"mac\":\"x\"}]}"] {
            let found = fitness(&Card::parse(text), true, Known::Nothing, true);
            assert_eq!(found, Fitness::Fit(Defects { kube_proxy: true, ..Defects::default() }), "{text}");
        }
    }

    #[test]
    fn the_interface_to_the_same_lan_is_found_by_subnet_whatever_its_name_and_else_by_name() {
        assert_eq!(link_towards(&card().links, &network(), 2).unwrap().name, "ens3");
        assert_eq!(link_towards(&card().links, &network(), 3).unwrap().name, "eth1", "no common subnet");
        assert_eq!(link_towards(&card().links, &network(), 1), None);
    }

    /// A kernel before 5.18 shows no marks, and with `vip_subnet` a VIP has the prefix of the LAN.
    #[test]
    fn a_vip_without_a_mark_is_no_address_of_the_node() {
        let mut network = network();
        network.addresses.push(Address { protocol: None, ..own_address(2, "10.0.0.5/24") });
        network.addresses.push(Address { protocol: None, ..own_address(3, "fd00::5/64") });
        let addresses: Vec<Vec<String>> = card_links(&network, |_| true)
            .iter()
            .map(|link| link.addresses.iter().map(ToString::to_string).collect())
            .collect();
        assert_eq!(addresses, [vec!["10.0.0.1/24"], vec!["10.1.0.1/16", "fd00::1/64"]]);
    }

    #[test]
    fn of_two_interfaces_in_the_same_lan_the_one_of_the_same_name_comes_first() {
        let mut links = card().links;
        links.push(CardLink { name: "eth0".into(), mac: Mac::new([2, 0, 0, 0, 0, 8]), ..links[0].clone() });
        let names: Vec<&str> =
            links_towards(&links, &network(), 2).into_iter().map(|link| link.name.as_str()).collect();
        assert_eq!(names, ["eth0", "ens3"]);
    }

    #[test]
    fn what_was_measured_orders_and_what_a_user_said_excludes() {
        let good = card();
        for (name, card, fresh, facts, expected) in [
            ("all well", good.clone(), true, Known::Facts(&FACTS), ""),
            ("Nodes may not be read", good.clone(), true, Known::Nothing, ""),
            ("Lease expired", good.clone(), false, Known::Facts(&FACTS), "excluded"),
            ("ending", Card { leaving: true, ..good.clone() }, true, Known::Facts(&FACTS), "excluded"),
            (
                "kube-proxy",
                Card { serving: false, ..good.clone() },
                true,
                Known::Facts(&FACTS),
                "kube-proxy is not healthy",
            ),
            ("Node gone", good.clone(), true, Known::Gone, "no Node object"),
            ("not ready", good.clone(), true, Known::Facts(&NodeFacts { ready: false, ..FACTS }), "not ready"),
            (
                "tainted or excluded",
                good.clone(),
                true,
                Known::Facts(&NodeFacts { shut_out: true, ..FACTS }),
                "excluded",
            ),
            ("beside kube-vip", Card { yields: true, ..good.clone() }, true, Known::Nothing, "another holder"),
            ("departs", good.clone(), true, Known::Facts(&NodeFacts { departs: true, ..FACTS }), "about to move"),
            ("cordoned", good.clone(), true, Known::Facts(&NodeFacts { cordoned: true, ..FACTS }), "cordoned"),
        ] {
            let ready = !matches!(facts, Known::Facts(facts) if !facts.ready);
            match fitness(&card, fresh, facts, ready) {
                Fitness::Fit(defects) => {
                    let text = defects.to_string();
                    assert!(text.contains(expected) && text.is_empty() == expected.is_empty(), "{name}: {text:?}");
                }
                Fitness::Excluded(_) => assert_eq!(expected, "excluded", "{name}"),
            }
        }
    }
}
