//! The cluster may be a copy of another one, which serves the same addresses: what a process asks before it sets one.

use super::leases::leasing;
use super::*;
use crate::engine::tests::dhcp::leased;
use crate::network::fixtures::own_address;
use crate::view::DhcpWishes;

const STRANGER: [u8; 6] = [2, 9, 9, 9, 9, 9];

/// The controller has said nothing yet.
fn unheard(service: ServiceView) -> Cluster {
    let node = Node::new(&[("election_mode", "node")], network());
    let mut cluster = Cluster::start_unheard(node, &ALL, &[service], Some(true));
    cluster.node.pass_ms(1);
    cluster
}

/// What starts with this cluster: the record names this node, and the address is not on it.
fn booted() -> Cluster {
    unheard(seated("web", "10.0.0.5", "node-1", 4))
}

/// This host answers whatever is asked about the address for so long; everybody renews.
fn answered(cluster: &mut Cluster, address: &str, mac: [u8; 6], milliseconds: u64) {
    for step in 0..milliseconds / 10 {
        if step % 500 == 0 {
            cluster.renew(&ALL);
        }
        cluster.node.heard(2, address, mac, Heard::Answer);
        cluster.node.pass_ms(10);
    }
}

fn asked(cluster: &mut Cluster) -> bool {
    cluster.node.take_log().iter().any(|line| line.starts_with("probe"))
}

#[test]
fn what_a_booted_node_has_on_record_is_asked_about_until_the_controller_has_spoken() {
    let mut cluster = booted();
    assert!(!cluster.has() && asked(&mut cluster));
    cluster.node.pass_ms(30);
    assert!(cluster.has(), "nobody answers");
}

#[test]
fn an_address_that_the_original_serves_stays_down_until_the_controller_speaks() {
    for safe_mode in [false, true] {
        let mut cluster = booted();
        answered(&mut cluster, "10.0.0.5", STRANGER, 5000);
        assert!(!cluster.has());
        assert_eq!(cluster.node.reasons(), ["AddressConflict"]);
        cluster.node.feed(Input::SafeMode(safe_mode));
        answered(&mut cluster, "10.0.0.5", STRANGER, 10);
        assert_eq!(cluster.has(), !safe_mode, "a stranger keeps no address from its clients for ever");
        answered(&mut cluster, "10.0.0.5", STRANGER, 90_000);
        assert_eq!(cluster.has(), !safe_mode);
    }
}

#[test]
fn a_cluster_without_a_controller_waits_for_a_minute_and_no_longer() {
    let mut cluster = booted();
    answered(&mut cluster, "10.0.0.5", STRANGER, 59_000);
    assert!(!cluster.has());
    answered(&mut cluster, "10.0.0.5", STRANGER, 14_000);
    assert!(cluster.has());
}

#[test]
fn a_member_that_answers_is_no_stranger() {
    let mut cluster = booted();
    cluster.answers("node-2", "10.0.0.5");
    cluster.node.pass_ms(30);
    assert!(cluster.has());
}

/// The process stands still for a moment while it waits.
#[test]
fn what_waits_is_set_at_the_word_of_the_controller_also_after_a_pause() {
    let mut cluster = booted();
    answered(&mut cluster, "10.0.0.5", STRANGER, 5000);
    cluster.node.now += Duration::from_millis(1600);
    cluster.node.tick();
    cluster.node.feed(Input::SafeMode(false));
    answered(&mut cluster, "10.0.0.5", STRANGER, 10);
    assert!(cluster.has());
}

#[test]
fn a_silent_owner_is_followed_without_another_question() {
    let mut cluster = unheard(seated("web", "10.0.0.5", "node-3", 4));
    cluster.quiet(1000, &[("node-3", "10.0.0.5")], &ALL);
    while cluster.node.swaps.is_empty() {
        cluster.answers("node-2", "10.0.0.2");
        cluster.node.pass_ms(5);
    }
    cluster.node.take_log();
    cluster.won();
    assert!(cluster.has() && !asked(&mut cluster));
}

fn made(cluster: &Cluster) -> bool {
    cluster.node.kernel.network.link_by_name("vip-web00000").is_some()
}

#[test]
fn a_lease_that_clients_know_is_asked_about_before_its_macvlan_is_made() {
    let own = crate::network::mac_of(&uid("web")).octets();
    let mut cluster = unheard(leasing("node-1", 4));
    assert!(!made(&cluster) && asked(&mut cluster));
    cluster.node.pass_ms(30);
    assert!(made(&cluster), "nobody answers");
    // The lease has one MAC everywhere.
    for mac in [STRANGER, own] {
        let mut cluster = unheard(leasing("node-1", 4));
        answered(&mut cluster, "10.0.0.50", mac, 16_000);
        assert!(!made(&cluster));
        assert_eq!(cluster.node.reasons(), ["AddressConflict"]);
        cluster.node.feed(Input::SafeMode(false));
        answered(&mut cluster, "10.0.0.50", mac, 10);
        assert!(made(&cluster), "the controller says that this is no copy");
    }
}

#[test]
fn a_lease_that_stands_on_this_node_is_adopted_without_a_question() {
    let mut network = network();
    network.links.push(crate::network::fixtures::macvlan(50, "vip-web00000", 2, Some("web00000-uid")));
    network.links.iter_mut().filter(|link| link.index == 50).for_each(|link| {
        link.mac = Some(crate::network::mac_of(&uid("web")));
    });
    network.addresses.push(own_address(50, "10.0.0.50/32"));
    let node = Node::new(&[("election_mode", "node")], network);
    let mut cluster = Cluster::start_unheard(node, &ALL, &[leasing("node-1", 4)], Some(true));
    cluster.node.pass_ms(100);
    assert!(!asked(&mut cluster) && cluster.node.kernel.has("vip-web00000", "10.0.0.50/32"));
}

#[test]
fn an_address_on_the_interface_of_ipvs_does_not_stand_on_this_node() {
    let mut network = network();
    network.links.push(crate::network::fixtures::link(50, "kube-ipvs0"));
    network.addresses.push(crate::network::fixtures::address(50, "10.0.0.50/32"));
    let node = Node::new(&[("election_mode", "node")], network);
    let mut cluster = Cluster::start_unheard(node, &ALL, &[leasing("node-1", 4)], Some(true));
    cluster.node.pass_ms(1);
    assert!(asked(&mut cluster) && !made(&cluster));
}

/// In IPVS mode without strict ARP, or with proxy ARP, a member answers with its own MAC for what it does not have.
#[test]
fn a_member_that_answers_for_a_lease_with_its_own_mac_is_no_stranger() {
    let mut cluster = unheard(leasing("node-1", 4));
    cluster.answers("node-2", "10.0.0.50");
    cluster.node.pass_ms(30);
    assert!(made(&cluster));
}

/// Its client has its lease, and then the Service is deleted.
fn served_and_gone(service: ServiceView, said: Option<bool>) -> Cluster {
    let mut cluster = unheard(service);
    if let Some(safe_mode) = said {
        cluster.node.feed(Input::SafeMode(safe_mode));
    }
    cluster.node.pass_ms(100);
    let lease = leased(&cluster.node, "10.0.0.50", 600);
    cluster.node.dhcp("web", DhcpEvent::Bound(lease));
    cluster.node.pass_ms(100);
    assert!(cluster.node.kernel.has("vip-web00000", "10.0.0.50/32"));
    cluster.node.take_log();
    cluster.node.gone("web");
    cluster
}

#[test]
fn a_cluster_that_may_be_a_copy_gives_no_lease_back_that_the_original_may_have() {
    let new =
        ServiceView { published: Published { lease: None, ..leasing("node-1", 4).published }, ..leasing("node-1", 4) };
    let new = ServiceView { dhcp: DhcpWishes::default(), ..new };
    for (service, said, released) in
        [(leasing("node-1", 4), Some(true), false), (leasing("node-1", 4), Some(false), true), (new, None, true)]
    {
        let mut cluster = served_and_gone(service, said);
        let log = cluster.node.take_log();
        assert!(log.contains(&format!("stop dhcp web00000-uid release {released}")), "{said:?}: {log:?}");
        cluster.node.pass_ms(1100);
        assert!(cluster.node.kernel.network.link_by_name("vip-web00000").is_none(), "{said:?}");
    }
}

/// A node has just started when a user deletes the Service: the controller has not spoken to it yet.
#[test]
fn a_lease_of_a_deleted_service_waits_for_the_word_of_the_controller_and_is_given_back_on_it() {
    for (said, released) in [(Some(false), true), (Some(true), false), (None, false)] {
        let mut cluster = served_and_gone(leasing("node-1", 4), None);
        let log = cluster.node.take_log();
        assert!(!log.iter().any(|line| line.starts_with("stop dhcp")), "{log:?}");
        assert!(!cluster.node.kernel.has("vip-web00000", "10.0.0.50/32"), "nobody answers for it meanwhile");
        cluster.node.pass_ms(5000);
        assert!(made(&cluster), "the client gives the lease back from its macvlan");
        match said {
            Some(safe_mode) => cluster.node.feed(Input::SafeMode(safe_mode)),
            None => cluster.node.pass_ms(60_000),
        }
        let log = cluster.node.take_log();
        assert!(log.contains(&format!("stop dhcp web00000-uid release {released}")), "{said:?}: {log:?}");
        cluster.node.pass_ms(1100);
        assert!(!made(&cluster), "{said:?}");
        assert!(!cluster.node.take_log().iter().any(|line| line.starts_with("stop dhcp")), "once");
    }
}

#[test]
fn a_process_that_ends_waits_for_no_word_about_a_lease() {
    let mut cluster = served_and_gone(leasing("node-1", 4), None);
    cluster.node.take_log();
    cluster.node.feed(Input::Stop);
    let log = cluster.node.take_log();
    assert!(log.contains(&"stop dhcp web00000-uid release false".to_owned()), "{log:?}");
    assert!(!made(&cluster));
}
