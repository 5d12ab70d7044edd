//! `node` mode: one engine, with the other nodes, the API and the wire played by the tests.

mod cards;
mod claims;
mod copies;
mod default_route;
mod ending;
mod evidence;
mod fail_back;
mod foreign;
mod gaps;
mod gateways;
mod handed_over;
mod healed;
mod ipv6;
mod kube_vip;
mod leases;
mod lent;
mod newcomers;
mod peers;
mod probed;
mod refused;
mod rest;
mod rotation;
mod silent_nodes;
mod storm;
mod strangers;
mod swaps;
mod vacant;

use std::net::IpAddr;

use l2_types::{Address, AddressLifetime};

use super::*;
use crate::claim::{ClaimSecret, Key, tag};
use crate::ownership::node::{CardLink, ForeignLock, Member, NodeFacts, OwnerRecord, Swapped, Term};

const FACTS: NodeFacts =
    NodeFacts { uid: String::new(), ready: true, shut_out: false, cordoned: false, departs: false, host: None };
const LEASE: Duration = Duration::from_secs(15);

fn mac(node: &str) -> [u8; 6] {
    [2, 0, 0, 0, 1, node.bytes().last().unwrap() - b'0']
}

fn card(node: &str) -> Card {
    let last = node.bytes().last().unwrap() - b'0';
    let address = format!("10.0.0.{last}/24").parse().unwrap();
    let link = CardLink { name: "eth0".into(), mac: mac(node).into(), addresses: vec![address], no_ipv6: false };
    Card { links: vec![link], serving: true, ..Card::default() }
}

/// node-1 among others, with the API in hand.
struct Cluster {
    node: Node,
    renewals: u32,
}

impl Cluster {
    /// Everybody is there and nothing is announced yet.
    fn new(nodes: &[&str], views: &[ServiceView]) -> Self {
        Self::with(&[], nodes, views)
    }

    fn with(env: &[(&str, &str)], nodes: &[&str], views: &[ServiceView]) -> Self {
        let env: Vec<(&str, &str)> = [("election_mode", "node")].iter().chain(env).copied().collect();
        Self::start(Node::new(&env, network()), nodes, views, Some(true))
    }

    /// The process learns everything. `proxy`: what it hears of kube-proxy.
    fn start(node: Node, nodes: &[&str], views: &[ServiceView], proxy: Option<bool>) -> Self {
        let mut cluster = Self::start_unheard(node, nodes, views, proxy);
        cluster.node.feed(Input::SafeMode(false));
        cluster
    }

    /// The same, and hears nothing of the cloud controller.
    fn start_unheard(node: Node, nodes: &[&str], views: &[ServiceView], proxy: Option<bool>) -> Self {
        let mut cluster = Self { node, renewals: 0 };
        cluster.node.tick();
        if let Some(healthy) = proxy {
            cluster.node.feed(Input::KubeProxy(healthy));
        }
        for node in nodes {
            cluster.node.feed(Input::Node((*node).to_owned(), Some(FACTS)));
        }
        cluster.node.feed(Input::NodesSynced { readable: true });
        for view in views {
            cluster.node.upsert(view.clone());
        }
        cluster.node.feed(Input::Synced);
        cluster.renew(nodes);
        cluster.node.feed(Input::MembersSynced);
        cluster
    }

    fn renew(&mut self, nodes: &[&str]) {
        for node in nodes {
            self.member(node, card(node));
        }
    }

    fn member(&mut self, node: &str, card: Card) {
        self.renewals += 1;
        let member = Member { renewal: self.renewals.to_string(), duration: LEASE, card };
        self.node.feed(Input::Member(node.to_owned(), Some(member)));
    }

    /// The process ends because its node is being emptied.
    fn leaves(&mut self) {
        self.node.feed(Input::Node("node-1".into(), Some(NodeFacts { cordoned: true, ..FACTS })));
        self.node.feed(Input::Stop);
    }

    /// The API answers the swap that was asked for last, and the watch shows it.
    fn won(&mut self) {
        let (key, swap) = self.node.swaps.pop().expect("a swap was asked for");
        self.answered((key.clone(), swap.clone()), Swapped::Won);
        self.shows(&key.name, &swap.owner_record.host, swap.owner_record.term.0);
    }

    /// The API has answered a swap.
    fn answered(&mut self, (key, swap): (ServiceKey, Swap), swapped: Swapped) {
        self.node.feed(Input::Swapped(key, swap, swapped));
    }

    /// The watch shows this record.
    fn shows(&mut self, name: &str, host: &str, term: u64) {
        let mut view = self.node.engine.services[&ServiceKey::new("default", name)].clone();
        view.published.vip_host = Some(host.into());
        view.published.term = Some(Term(term));
        self.node.upsert(view);
    }

    /// `node` answers our questions for this long, and everybody renews.
    fn quiet(&mut self, milliseconds: u64, answering: &[(&str, &str)], renewing: &[&str]) {
        for step in 0..milliseconds / 25 {
            for (node, address) in answering {
                self.answers(node, address);
            }
            if step % 200 == 0 {
                self.renew(renewing);
            }
            self.node.pass_ms(25);
        }
    }

    fn answers(&mut self, node: &str, address: &str) {
        let frame = Frame {
            link: 2,
            address: address.parse().unwrap(),
            mac: mac(node).into(),
            what: Heard::Answer,
            to_us: true,
            payload: None,
        };
        self.node.feed(Input::Heard(frame));
    }

    fn claims(&mut self, node: &str, address: &str, of: &str, term: u64) {
        let address: IpAddr = address.parse().unwrap();
        let payload = tag::seal(&Key::from(&uid(of)), address, mac(node).into(), Term(term));
        let (mac, payload) = (mac(node).into(), Some(payload));
        self.node.feed(Input::Heard(Frame { link: 2, address, mac, what: Heard::Claim, to_us: true, payload }));
    }

    fn has(&self) -> bool {
        self.node.kernel.has("eth0", "10.0.0.5/32")
    }
}

/// A Service that clients know, with this record.
fn seated(name: &str, address: &str, host: &str, term: u64) -> ServiceView {
    let mut view = published(name, address, host);
    view.published.term = Some(Term(term));
    view
}

const ALL: [&str; 3] = ["node-1", "node-2", "node-3"];

#[test]
fn a_node_that_may_not_read_services_rests_whatever_membership_leases_do() {
    let mut node = Node::new(&[("election_mode", "node")], network());
    node.tick();
    node.feed(Input::Node("node-1".into(), Some(FACTS)));
    node.feed(Input::NodesSynced { readable: true });
    node.feed(Input::MembersSynced);
    let mut cluster = Cluster { node, renewals: 0 };
    cluster.renew(&["node-1", "node-2"]);
    // node-2 is never heard of again; our own Lease is renewed. No timer stays due: the loop would spin.
    cluster.quiet(60_000, &[], &["node-1"]);
}

#[test]
fn one_node_alone_takes_what_is_new_and_writes_who_it_is() {
    let mut cluster = Cluster::new(&["node-1"], &[view("web", &["10.0.0.5"])]);
    assert!(!cluster.has(), "the record comes first");
    assert_eq!(cluster.node.swaps.len(), 1);
    cluster.won();
    cluster.node.pass_ms(50);
    assert!(cluster.has());
    let view = &cluster.node.engine.services[&ServiceKey::new("default", "web")];
    assert_eq!((view.published.vip_host.as_deref(), view.published.term), (Some("node-1"), Some(Term(1))));
    assert_eq!(cluster.node.records, 1, "only the status is left to write");
}

#[test]
fn a_new_service_is_taken_by_exactly_one_node() {
    let place = crate::ownership::node::preferred("10.0.0.5", ALL);
    let takers = ALL.iter().filter(|me| place == Some(**me));
    assert_eq!(takers.count(), 1);
    let mine = crate::ownership::node::preferred("10.0.0.5", ALL) == Some("node-1");
    let cluster = Cluster::new(&ALL, &[view("web", &["10.0.0.5"])]);
    assert_eq!(cluster.node.swaps.len(), usize::from(mine));
}

#[test]
fn an_owner_that_answers_is_left_alone_whatever_its_lease_says() {
    let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", "node-3", 4)]);
    cluster.node.take_log();
    // The first in line after node-3 is node-1. Its Lease expires, its kernel answers (R8).
    cluster.quiet(60_000, &[("node-3", "10.0.0.5")], &["node-1", "node-2"]);
    assert_eq!(cluster.node.swaps, []);
    assert!(!cluster.has());
}

#[test]
fn a_silent_owner_is_succeeded_within_a_quarter_of_a_second_and_claimed_at() {
    let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", "node-3", 4)]);
    cluster.quiet(2000, &[("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")], &ALL);
    let died = cluster.node.now;
    while cluster.node.swaps.is_empty() {
        cluster.node.pass_ms(5);
        // Somebody else answers us: it is not we who are cut off.
        cluster.answers("node-2", "10.0.0.2");
        assert!(cluster.node.now < died + Duration::from_millis(300), "{:?}", cluster.node.log);
    }
    assert_eq!(cluster.node.swaps[0].1.owner_record, OwnerRecord { host: "node-1".into(), term: Term(5) });
    assert!(!cluster.has(), "the record decides");
    cluster.node.take_log();
    cluster.won();
    assert!(cluster.has(), "no probe: the burst that confirmed the silence was one");
    let log = cluster.node.take_log();
    assert!(log.contains(&"announce eth0 10.0.0.5".to_owned()), "{log:?}");
    let told = &cluster.node.told.last().unwrap().1;
    let gap: u64 = told.text.split("about ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap();
    assert!(told.text.contains("before by node node-3: its node does not answer any more"), "{}", told.text);
    assert!((150..300).contains(&gap), "{}", told.text);
    cluster.node.pass_ms(10);
    let log = cluster.node.take_log();
    assert!(
        log.iter().any(|line| line.starts_with("claim eth0 10.0.0.5")),
        "the former owner may only have been paused: {log:?}"
    );
}

#[test]
fn who_is_cut_off_itself_takes_nothing_before_the_lease_has_expired() {
    let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", "node-3", 4)]);
    cluster.quiet(2000, &[("node-3", "10.0.0.5")], &ALL);
    // Nobody answers us any more; the API still works, and node-3 renews (decisions.md 24).
    cluster.quiet(30_000, &[], &ALL);
    assert_eq!(cluster.node.swaps, []);
    cluster.quiet(20_000, &[], &["node-1", "node-2"]);
    assert_eq!(cluster.node.swaps[0].1.owner_record.host, "node-1");
}

/// What a node writes that has lost its cable.
fn unplugged(node: &str) -> Card {
    Card { links: Vec::new(), ..card(node) }
}

#[test]
fn an_owner_that_loses_its_cable_and_then_its_power_is_still_succeeded_and_claimed_at() {
    let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", "node-3", 4)]);
    cluster.quiet(2000, &[("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")], &ALL);
    let died = cluster.node.now;
    cluster.member("node-3", unplugged("node-3"));
    while cluster.node.swaps.is_empty() {
        cluster.node.pass_ms(5);
        cluster.answers("node-2", "10.0.0.2");
        assert!(cluster.node.now < died + Duration::from_millis(300), "{:?}", cluster.node.log);
    }
    assert_eq!(cluster.node.swaps[0].1.owner_record, OwnerRecord { host: "node-1".into(), term: Term(5) });
    cluster.won();
    assert!(cluster.has());
    cluster.node.take_log();
    cluster.node.pass_ms(10);
    let log = cluster.node.take_log();
    assert!(log.iter().any(|line| line.starts_with("claim eth0 10.0.0.5")), "the cable may come back: {log:?}");
}

#[test]
fn an_owner_that_was_never_seen_on_this_lan_is_asked_for_once_its_lease_has_expired() {
    for answered in [false, true] {
        let answering: &[(&str, &str)] = if answered { &[("node-3", "10.0.0.5")] } else { &[] };
        let mut cluster = Cluster::new(&[], &[seated("web", "10.0.0.5", "node-3", 4)]);
        // This process began when the cable was out already.
        cluster.member("node-3", unplugged("node-3"));
        cluster.renew(&["node-1", "node-2"]);
        for node in ALL {
            cluster.node.feed(Input::Node(node.to_owned(), Some(FACTS)));
        }
        cluster.quiet(14_000, answering, &["node-1", "node-2"]);
        assert_eq!(cluster.node.swaps, [], "it still renews, as far as is known");
        // A renewal of our own has to come back first.
        cluster.quiet(6000, answering, &["node-1", "node-2"]);
        let takes: Vec<&str> = cluster.node.swaps.iter().map(|(_, swap)| swap.owner_record.host.as_str()).collect();
        assert_eq!(takes, if answered { vec![] } else { vec!["node-1"] }, "R8: the wire wins");
    }
}

#[test]
fn the_slower_successor_gives_way() {
    let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", "node-3", 4)]);
    cluster.quiet(2000, &[("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")], &ALL);
    while cluster.node.swaps.is_empty() {
        cluster.node.pass_ms(5);
        cluster.answers("node-2", "10.0.0.2");
    }
    let asked = cluster.node.swaps.pop().unwrap();
    let other = OwnerRecord { host: "node-2".into(), term: Term(5) };
    cluster.answered(asked, Swapped::Other(other));
    cluster.quiet(5000, &[("node-2", "10.0.0.5")], &ALL);
    assert!(cluster.node.swaps.is_empty() && !cluster.has());
}

/// node-1 owns 10.0.0.5 and serves it.
fn owner(nodes: &[&str]) -> Cluster {
    let mut cluster = Cluster::new(nodes, &[seated("web", "10.0.0.5", "node-1", 4)]);
    cluster.quiet(3000, &[], nodes);
    assert!(cluster.has());
    cluster.node.take_log();
    cluster
}

#[test]
fn an_owner_without_the_api_serves_for_hours_and_yields_to_a_proven_claim_alone() {
    let mut cluster = owner(&ALL);
    cluster.node.pass(Duration::from_hours(3));
    assert!(cluster.has());
    for who in [mac("node-2"), [2, 9, 9, 9, 9, 9]] {
        cluster.node.heard(2, "10.0.0.5", who, Heard::Claim);
        cluster.node.pass_ms(1500);
        assert!(cluster.has(), "{who:?} proves nothing");
    }
    cluster.claims("node-2", "10.0.0.5", "web", 5);
    assert!(!cluster.has());
    cluster.node.pass(LEASE * 2);
    assert!(!cluster.has(), "time alone gives nothing back");
}

/// While the controller is away a Service that is being deleted stays for long, and its owner is silent on purpose.
#[test]
fn an_owner_is_not_missed_for_a_lease_whose_service_is_on_its_way_out() {
    let mut service = seated("lan", "10.0.0.5", "node-3", 4);
    (service.wanted, service.retired) = (Vec::new(), true);
    service.dhcp.lease = Some(facts("10.0.0.5"));
    assert_eq!(service.told_leased(), "10.0.0.5".parse().ok());
    let mut cluster = Cluster::new(&ALL, &[service]);
    cluster.quiet(10_000, &[("node-2", "10.0.0.2")], &ALL);
    assert_eq!(cluster.node.swaps, []);
    let log = cluster.node.take_log();
    assert!(!log.iter().any(|line| line.starts_with("ask eth0 10.0.0.5")), "{log:?}");
}

#[test]
fn a_node_that_may_not_serve_any_more_hands_over_and_a_cordoned_one_keeps() {
    for (facts, gives) in [
        (NodeFacts { cordoned: true, ..FACTS }, false),
        (NodeFacts { departs: true, cordoned: true, ..FACTS }, true),
        (NodeFacts { shut_out: true, ..FACTS }, true),
        (NodeFacts { ready: false, ..FACTS }, true),
    ] {
        let mut cluster = owner(&ALL);
        let ready = facts.ready;
        cluster.node.feed(Input::Node("node-1".into(), Some(facts.clone())));
        if !ready {
            assert_eq!(cluster.node.swaps, [], "it serves all the same");
            cluster.quiet(10_500, &[], &ALL);
        }
        assert_eq!(cluster.node.swaps.len(), usize::from(gives), "{facts:?}");
        assert!(cluster.has());
    }
}

#[test]
fn in_safe_mode_what_clients_know_is_probed_before_it_is_set() {
    for safe_mode in [false, true] {
        let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", "node-1", 4)]);
        cluster.node.feed(Input::SafeMode(safe_mode));
        cluster.shows("web", "node-2", 5);
        cluster.node.pass_ms(1000);
        cluster.node.take_log();
        cluster.shows("web", "node-1", 6);
        let log = cluster.node.take_log();
        assert_eq!(log.iter().any(|line| line.starts_with("probe")), safe_mode, "{log:?}");
        cluster.node.pass_ms(1000);
        assert!(cluster.has(), "nobody answers");
    }
}

#[test]
fn who_wrote_his_name_without_a_term_is_the_owner_for_everybody() {
    // kube-vip, or an announcer in another mode, keeps the annotations that it does not know.
    let mut cluster = owner(&ALL);
    cluster.shows("web", "node-2", 4);
    assert!(!cluster.has(), "a process of node-2 that starts now reads nothing else");
    cluster.shows("web", "node-1", 4);
    assert!(cluster.has());
}

#[test]
fn a_restarted_process_adopts_what_is_still_its_own_and_sweeps_what_is_not() {
    let marked = |net| crate::network::fixtures::own_address(2, net);
    for (host, kept) in [("node-1", true), ("node-2", false)] {
        let mut network = network();
        network.addresses.push(marked("10.0.0.5/32"));
        let mut node = Node::new(&[("election_mode", "node")], network);
        node.start_with(&[seated("web", "10.0.0.5", host, 4)], LeaseState::Unknown);
        node.pass_ms(1000);
        assert!(node.kernel.has("eth0", "10.0.0.5/32"), "nothing is known yet");
        let mut cluster = Cluster { node, renewals: 0 };
        cluster.node.feed(Input::KubeProxy(true));
        cluster.node.feed(Input::NodesSynced { readable: false });
        cluster.renew(&ALL);
        cluster.node.feed(Input::MembersSynced);
        cluster.node.pass_ms(100);
        assert_eq!(cluster.has(), kept, "{host}");
        assert!(!cluster.node.log.iter().any(|line| line.contains("probe")), "adopted without a question");
    }
}

#[test]
fn the_lease_is_renewed_three_times_in_its_duration_and_no_more() {
    let mut cluster = owner(&ALL);
    let before = cluster.node.cards.len();
    cluster.quiet(60_000, &[], &ALL);
    assert_eq!(cluster.node.cards.len() - before, 12);
}

#[test]
fn a_process_that_stood_still_for_a_moment_asks_on_the_wire_first() {
    let mut cluster = owner(&ALL);
    cluster.node.now += Duration::from_millis(1600);
    cluster.node.tick();
    let log = cluster.node.take_log();
    assert!(log.contains(&"probe eth0 10.0.0.5".to_owned()), "R6: {log:?}");
}
