//! DHCP leases over the life of their Services: changes, restarts, lost links, many of them.

use std::fmt::Write as _;

use l2_types::LinkKind;

use super::dhcp::{bound, leased, named};
use super::*;
use crate::annotations as keys;
use crate::annotations::{AddressRequest, RpFilter};
use crate::claim::{Key, tag::seal};
use crate::fixtures::told;
use crate::frames::Frame;
use crate::network::fixtures::{macvlan, own_address};
use crate::network::mac_of;
use crate::network::{LeaseEnd, alias};
use crate::ownership::node::Term;
use crate::view::InterfaceWish;

fn service(node: &Node, name: &str) -> ServiceView {
    node.engine.services[&ServiceKey::new("default", name)].clone()
}

/// To the server a client with another MAC or name is another client: the old one's lease has to go back, or it is lost
/// until it expires.
#[test]
fn another_mac_or_host_name_gives_the_old_lease_back_before_it_asks() {
    let mac = Mac::new([0, 0, 0x6c, 1, 2, 3]);
    let changes: [fn(&mut ServiceView, Mac); 2] =
        [|view, mac| view.dhcp.mac = Some(mac), |view, _| view.dhcp.hostname = Some("other".into())];
    for change in changes {
        let mut node = bound("web", "10.0.0.50");
        node.take_log();
        let mut changed = service(&node, "web");
        change(&mut changed, mac);
        node.upsert(changed);
        assert_eq!(node.take_log()[0], "stop dhcp web00000-uid release true");
        assert!(node.kernel.has("vip-web00000", "10.0.0.50/32"), "the RELEASE leaves from it");
        node.dhcp("web", DhcpEvent::Stopped);
        let log: Vec<String> = node.take_log().into_iter().filter(|line| !line.contains("eth0 ")).collect();
        // Otherwise the next owner would go on with a lease of a client that it is not.
        node.pass_ms(100);
        assert_eq!(service(&node, "web").published.lease, None);
        assert!(
            log.ends_with(&[
                "delete vip-web00000".into(),
                "prepare eth0".into(),
                "macvlan vip-web00000 on eth0".into(),
                "start dhcp web00000-uid lease None".into()
            ]),
            "{log:?}"
        );
        // A restart later trusts what is recorded then.
        let leased = leased(&node, "10.0.0.60", 600);
        node.dhcp("web", DhcpEvent::Bound(leased));
        node.pass_ms(1000);
        assert!(service(&node, "web").published.has("10.0.0.60".parse().unwrap()));
        assert_eq!(node.kernel.own(), ["vip-web00000 10.0.0.60/32"]);
    }
}

/// An older Service wants to be the client that a younger one is: by its author's will, or a copied manifest.
#[test]
fn a_served_service_keeps_its_lease_where_it_may_not_become_the_client_that_it_asks_for() {
    let changes: [fn(&mut ServiceView); 2] = [
        |view| {
            view.dhcp.mac = Some(mac_of(&Uid("younger0-uid".into())));
            view.published.hwaddr = view.dhcp.mac.map(|mac| mac.to_string());
        },
        |view| view.dhcp.hostname = Some("younger".into()),
    ];
    for change in changes {
        let mut node = bound("web", "10.0.0.50");
        let mut younger = published("younger", "10.0.0.60", "node-2");
        (younger.created, younger.wanted) = (9, vec![AddressRequest::Dhcp4]);
        younger.uid = Uid("younger0-uid".into());
        (younger.dhcp.hostname, younger.dhcp.lease) = (Some("younger".into()), Some(facts("10.0.0.60")));
        node.upsert(younger);
        node.pass_ms(100);
        node.take_log();
        let served = service(&node, "web");
        let mut changed = served.clone();
        change(&mut changed);
        // What else it wants is done, once.
        changed.dhcp.rp_filter = RpFilter::Off;
        node.upsert(changed);
        node.pass_ms(2000);
        let log = node.take_log();
        assert!(!log.iter().any(|line| line.starts_with("stop dhcp")), "{log:?}");
        let set = log.iter().filter(|line| line.contains("vip-web00000") && !line.contains("10.0.0.50")).count();
        assert_eq!(set, 1, "{log:?}");
        assert!(node.kernel.has("vip-web00000", "10.0.0.50/32"));
        let refused: Vec<&str> = node
            .told
            .iter()
            .filter(|(_, told)| told.reason == Reason::CannotAnnounce)
            .map(|(_, told)| told.text.as_str())
            .collect();
        assert!(
            refused.iter().any(|text| text.contains("younger") && text.contains("keeps its lease")),
            "{:?}",
            node.told
        );
        let shown = service(&node, "web").published.hwaddr;
        assert_eq!(shown, served.published.hwaddr, "the annotation says what is in use");
    }
}

/// The author changes the host name while the first lease is still being sought.
#[test]
fn a_service_without_a_lease_does_not_ask_under_the_host_name_of_another_one() {
    let mut other = published("other", "10.0.0.60", "node-1");
    other.wanted = vec![AddressRequest::Dhcp4];
    (other.dhcp.hostname, other.dhcp.lease) = (Some("taken".into()), Some(facts("10.0.0.60")));
    let mut node = Node::leading(&[other]);
    let mut web = view("web", &["dhcp"]);
    web.created = 9;
    node.upsert(web.clone());
    node.pass_ms(1000);
    assert!(node.take_log().iter().any(|line| line.starts_with("start dhcp web00000-uid")));
    web.dhcp.hostname = Some("taken".into());
    node.upsert(web.clone());
    node.dhcp("web", DhcpEvent::Stopped);
    node.pass_ms(2000);
    let log = node.take_log();
    assert!(!log.iter().any(|line| line.starts_with("start dhcp web00000-uid")), "{log:?}");
    let told: Vec<&str> =
        node.told.iter().filter(|(name, _)| name == "web").map(|(_, tell)| tell.text.as_str()).collect();
    assert!(
        told.iter().any(|text| text.contains("host name taken is already used by Service default/other")),
        "{told:?}"
    );
    web.dhcp.hostname = Some("free".into());
    node.upsert(web);
    node.pass_ms(1000);
    assert!(node.take_log().iter().any(|line| line.starts_with("start dhcp web00000-uid")));
}

/// A typing error, or a manifest that was put in place of the Service: the lease, whose address clients use, is not
/// given back for that.
#[test]
fn what_cannot_be_read_gives_no_lease_back() {
    let annotated = |annotations: serde_json::Value| {
        let object = serde_json::json!({
            "metadata": {"namespace": "default", "name": "web", "uid": "web00000-uid", "annotations": annotations},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "protocol": "TCP"}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.50"}]}},
        });
        ServiceView::of(&serde_json::from_value(object).unwrap(), &crate::class::ClassRules::default()).unwrap()
    };
    for (annotations, warns) in [
        (serde_json::json!({keys::LOADBALANCER_IPS: "0.0.0.0", keys::HWADDR: "nonsense"}), true),
        (serde_json::json!({keys::LOADBALANCER_IPS: "0.0.0.o"}), true),
        (serde_json::json!({}), false),
    ] {
        let mut node = bound("web", "10.0.0.50");
        node.take_log();
        node.upsert(annotated(annotations.clone()));
        node.pass(Duration::from_secs(10));
        let log = node.take_log();
        let ended = |line: &String| line.starts_with("stop dhcp") || line.starts_with("remove");
        assert!(!log.iter().any(ended), "{annotations}: {log:?}");
        assert!(node.kernel.has("vip-web00000", "10.0.0.50/32"), "{annotations}");
        assert_eq!(node.reasons().contains(&"CannotAnnounce"), warns, "{annotations}");
        assert!(service(&node, "web").published.hwaddr.is_some(), "{annotations}: it is written again");
        node.upsert(annotated(serde_json::json!({keys::LOADBALANCER_IPS: "10.0.0.7"})));
        assert!(node.take_log().contains(&"stop dhcp web00000-uid release true".to_owned()), "{annotations}");
    }
}

#[test]
fn a_changed_address_is_told_with_both() {
    let mut node = bound("web", "10.0.0.50");
    assert!(!node.reasons().contains(&"DHCPAddressChanged"));
    node.dhcp("web", DhcpEvent::Lost { address: "10.0.0.50".parse().unwrap(), why: "NAK".into() });
    let leased = leased(&node, "10.1.0.60", 600);
    node.dhcp("web", DhcpEvent::Bound(leased.clone()));
    node.dhcp("web", DhcpEvent::Renewed(leased));
    let told: Vec<&ServiceEvent> =
        node.told.iter().map(|(_, tell)| tell).filter(|tell| tell.reason == Reason::DhcpAddressChanged).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    for part in ["10.0.0.50", "10.1.0.60", "10.0.0.254"] {
        assert!(told[0].text.contains(part), "{}", told[0].text);
    }
    let announced = node.told.iter().map(|(_, tell)| tell).filter(|tell| tell.reason == Reason::AddressAnnounced);
    let announced: Vec<&str> = announced.map(|tell| tell.text.as_str()).collect();
    assert_eq!(announced.len(), 2, "{announced:?}");
    assert!(
        announced[1].starts_with("address 10.1.0.60 is announced") && announced[1].contains("not 10.0.0.50 any more"),
        "{announced:?}"
    );
}

/// What was told last of which address is announced.
fn last_said(node: &Node) -> &str {
    let about = |tell: &&ServiceEvent| matches!(tell.reason, Reason::AddressAnnounced | Reason::DhcpLeaseLost);
    &node.told.iter().map(|(_, tell)| tell).rfind(about).unwrap().text
}

#[test]
fn each_change_of_the_address_is_told_also_back_to_a_former_one_within_minutes() {
    let mut node = bound("web", "10.0.0.50");
    let mut before = "10.0.0.50";
    for address in ["10.0.0.60", "10.0.0.50", "10.0.0.60", "10.0.0.50", "10.0.0.50"] {
        node.dhcp("web", DhcpEvent::Lost { address: before.parse().unwrap(), why: "NAK".into() });
        assert_eq!(last_said(&node), format!("address {before} is not announced any more: NAK"));
        before = address;
        let leased = leased(&node, address, 600);
        node.dhcp("web", DhcpEvent::Bound(leased));
        node.pass_ms(1000);
        assert!(last_said(&node).starts_with(&format!("address {address} is announced by")), "{}", last_said(&node));
    }
}

#[test]
fn an_address_that_changed_while_nobody_ran_is_told_with_what_it_is_not_any_more() {
    let mut service = told(view("web", &["10.0.0.6"]), "10.0.0.5");
    service.published.vip_host = Some("node-1".into());
    let mut node = Node::leading(&[service]);
    node.pass_ms(1000);
    assert!(last_said(&node).contains("10.0.0.6 is announced by node node-1, and not 10.0.0.5 any more"));
}

#[test]
fn a_server_that_does_not_answer_is_told_once_with_what_to_do() {
    let mut node = bound("web", "10.0.0.50");
    let silent = |node: &mut Node, text: &str| {
        node.dhcp("web", DhcpEvent::Report { reason: Reason::DhcpNoAnswer, text: text.into() });
        node.pass_ms(61_000);
    };
    let told = |node: &Node| {
        let told = node.told.iter().map(|(_, tell)| tell).filter(|tell| tell.reason == Reason::DhcpNoAnswer);
        told.map(|tell| tell.text.clone()).collect::<Vec<_>>()
    };
    for attempt in 1..9 {
        silent(&mut node, &format!("{attempt} requests sent"));
    }
    let [text] = &told(&node)[..] else { panic!("{:?}", told(&node)) };
    for part in ["eth0", "10.0.0.50 is not renewed", "2026-01-01 00:10:00 UTC", "kube-vip.io/serviceInterface", "67"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    node.dhcp("web", DhcpEvent::Lost { address: "10.0.0.50".parse().unwrap(), why: "expired".into() });
    silent(&mut node, "9 requests sent");
    assert!(told(&node)[1].contains("the Service gets no address until one does"), "{:?}", told(&node));
}

#[test]
fn annotations_of_kube_vip_without_effect_are_told_once_in_one_event() {
    let mut service = view("web", &["10.0.0.5"]);
    let annotations = [(keys::EGRESS, "true"), (keys::FORWARD_UPNP, "true"), (keys::DDNS, "false")];
    let annotation = |key: &str| annotations.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    service.without_effect = keys::without_effect(&annotation);
    let mut node = Node::leading(&[service]);
    node.pass(Duration::from_hours(1));
    let told: Vec<&ServiceEvent> =
        node.told.iter().map(|(_, tell)| tell).filter(|tell| tell.reason == Reason::AnnotationIgnored).collect();
    assert_eq!(told.len(), 1);
    assert!(told[0].text.contains(keys::EGRESS) && told[0].text.contains(keys::FORWARD_UPNP));
    assert!(!told[0].text.contains(keys::DDNS));
}

#[test]
fn another_host_with_the_mac_of_a_lease_is_told_and_an_echo_or_a_member_is_not() {
    let announced = |what: &str| {
        let mut node = bound("web", "10.0.0.50");
        let mac = node.kernel.network.link_by_name("vip-web00000").unwrap().mac.unwrap();
        node.pass_ms(5000);
        for _ in 0..2 {
            let (address, payload) = ("10.0.0.50".parse().unwrap(), None);
            let mut frame = Frame { link: 2, address, mac, what: Heard::Claim, to_us: false, payload };
            match what {
                "elsewhere" => frame.address = "10.0.0.77".parse().unwrap(),
                "another MAC" => frame.mac = Mac::new([2, 0, 0, 0, 0, 9]),
                "a member" => frame.payload = Some(seal(&Key::from(&uid("web")), frame.address, mac, Term(1))),
                _ => {}
            }
            node.feed(Input::Heard(frame));
            if what != "at once" {
                node.pass_ms(500);
            }
        }
        let conflict = node.told.iter().find(|(_, tell)| tell.reason == Reason::AddressConflict);
        conflict.is_some_and(|(_, tell)| tell.text.contains(&mac.to_string()) && tell.text.contains(keys::HWADDR))
    };
    assert!(announced("the same") && announced("elsewhere"));
    assert!(!announced("at once") && !announced("another MAC") && !announced("a member"));
}

#[test]
fn a_client_hears_once_that_its_link_is_lost_and_once_that_it_is_back() {
    let mut node = bound("web", "10.0.0.50");
    node.take_log();
    let link = node.kernel.network.link_by_name("vip-web00000").unwrap().index;
    let carrier = |node: &mut Node, carrier: bool| {
        node.kernel.network.links.iter_mut().find(|found| found.index == link).unwrap().carrier = carrier;
        node.feed(Input::NetworkChanged);
        node.pass_ms(100);
        node.feed(Input::NetworkChanged);
        node.pass_ms(100);
        node.take_log().into_iter().filter(|line| line.starts_with("link of")).collect::<Vec<_>>()
    };
    assert_eq!(carrier(&mut node, false), ["link of dhcp web00000-uid down"]);
    assert!(node.kernel.has("vip-web00000", "10.0.0.50/32"), "the lease is still ours");
    assert_eq!(carrier(&mut node, true), ["link of dhcp web00000-uid up"]);
}

#[test]
fn what_is_known_of_a_lost_lease_goes_with_its_service_also_when_another_takes_its_name() {
    let anew = ServiceView { uid: Uid("another-uid".into()), ..view("web", &["dhcp"]) };
    for next in [None, Some(Box::new(anew))] {
        let mut node = bound("web", "10.0.0.50");
        node.api = false;
        node.dhcp("web", DhcpEvent::Lost { address: "10.0.0.50".parse().unwrap(), why: "NAK".into() });
        assert!(node.engine.dhcp.lost(&uid("web")).is_some());
        node.feed(Input::Service(ServiceKey::new("default", "web"), next));
        assert_eq!(node.engine.dhcp.lost(&uid("web")), None);
    }
}

/// What a former life left, as seen by a process that cannot reach the API.
fn orphaned(end: impl FnOnce(Instant) -> Option<LeaseEnd>) -> Node {
    let mut network = network();
    network.links.push(macvlan(50, "vip-web00000", 2, Some("web00000-uid until 1")));
    network.addresses.push(own_address(50, "10.0.0.50/32"));
    let mut node = Node::new(&[], network);
    node.kernel.deadlines.push((50, "10.0.0.50/32".parse().unwrap(), node.now + Duration::from_secs(10)));
    node.kernel.network.lease_ends.extend(end(node.now).map(|end| (50, end)));
    node.tick();
    node
}

#[test]
fn a_restart_in_an_api_outage_keeps_a_leased_address_to_the_end_of_its_lease() {
    let mut node = orphaned(|now| Some(LeaseEnd::At(now + Duration::from_mins(2))));
    node.pass(Duration::from_secs(117));
    assert!(node.kernel.has("vip-web00000", "10.0.0.50/32"));
    node.pass(Duration::from_secs(3));
    assert!(!node.kernel.has("vip-web00000", "10.0.0.50/32"), "not a moment longer");

    let mut node = orphaned(|_| Some(LeaseEnd::Never));
    node.pass(Duration::from_mins(4));
    assert!(node.kernel.has("vip-web00000", "10.0.0.50/32"));

    let mut node = orphaned(|_| None);
    node.pass(Duration::from_secs(11));
    assert!(!node.kernel.has("vip-web00000", "10.0.0.50/32"), "nothing is known of its lease");
}

/// The Service of [`orphaned`], as it comes back with the API.
fn its_service() -> ServiceView {
    let mut service = published("web", "10.0.0.50", "node-1");
    service.wanted = view("web", &["dhcp"]).wanted;
    let mac = macvlan(50, "vip-web00000", 2, None).mac.unwrap();
    service.published.hwaddr = Some(mac.to_string());
    service.dhcp.mac = Some(mac);
    service.dhcp.lease = Some(facts("10.0.0.50"));
    service
}

#[test]
fn a_leased_address_stays_however_long_the_api_was_away_when_the_process_started() {
    for away_seconds in [0, 120, 280] {
        let mut node = orphaned(|_| Some(LeaseEnd::Never));
        node.pass(Duration::from_secs(away_seconds));
        node.start_with(&[its_service()], MINE);
        node.pass_ms(2000);
        let lease = leased(&node, "10.0.0.50", 600);
        node.dhcp("web", DhcpEvent::Bound(lease));
        node.pass(Duration::from_secs(30));
        assert_eq!(node.kernel.own(), ["vip-web00000 10.0.0.50/32"], "API away for {away_seconds} s");
        let log = node.take_log();
        let gone = |line: &String| line.starts_with("remove") || line.starts_with("expired");
        assert!(!log.iter().any(gone), "API away for {away_seconds} s: {log:?}");
    }
}

#[test]
fn what_a_client_does_not_go_on_with_leaves_the_macvlan() {
    let mut node = orphaned(|_| Some(LeaseEnd::Never));
    node.start_with(&[its_service()], MINE);
    let lease = leased(&node, "10.0.0.60", 600);
    node.dhcp("web", DhcpEvent::Bound(lease));
    assert_eq!(node.kernel.own(), ["vip-web00000 10.0.0.60/32"]);

    let mut node = orphaned(|_| Some(LeaseEnd::Never));
    node.start_with(&[its_service()], MINE);
    node.pass(Duration::from_secs(13));
    assert!(node.kernel.own().is_empty(), "a client that says nothing does not have the deadline put off");
}

/// It has no mark and no deadline: only time tells that its client will not go on with it.
#[test]
fn what_kube_vip_left_waits_for_its_client_for_a_minute_from_its_adoption_on() {
    for away_seconds in [0, 120] {
        let mut network = network();
        network.links.push(macvlan(50, "vip-web00000", 2, None));
        network.addresses.push(l2_types::Address { protocol: None, ..own_address(50, "10.0.0.50/32") });
        let mut node = Node::new(&[], network);
        node.tick();
        node.pass(Duration::from_secs(away_seconds));
        node.start_with(&[its_service()], MINE);
        node.pass(Duration::from_secs(50));
        assert!(node.kernel.has("vip-web00000", "10.0.0.50/32"), "API away for {away_seconds} s");
        node.feed(Input::NetworkChanged);
        node.pass(Duration::from_secs(70));
        assert!(!node.kernel.has("vip-web00000", "10.0.0.50/32"), "API away for {away_seconds} s");
    }
}

/// The record says that its lease is over: nobody could write the last renewals. So the client asks anew.
#[test]
fn what_an_earlier_process_left_goes_when_the_server_refuses_it() {
    let mut node = orphaned(|now| Some(LeaseEnd::At(now + Duration::from_mins(10))));
    node.start_with(&[its_service()], MINE);
    assert!(node.kernel.has("vip-web00000", "10.0.0.50/32"), "its client has not answered yet");
    let silence = DhcpEvent::Report { reason: Reason::DhcpNoAnswer, text: "no answer".into() };
    node.dhcp("web", silence);
    assert!(node.kernel.has("vip-web00000", "10.0.0.50/32"), "nobody has refused it");
    node.dhcp("web", DhcpEvent::Report { reason: Reason::DhcpRefused, text: "NAK".into() });
    assert!(node.kernel.own().is_empty(), "{:?}", node.take_log());
    let leased = leased(&node, "10.0.0.50", 600);
    node.dhcp("web", DhcpEvent::Bound(leased));
    assert!(node.kernel.has("vip-web00000", "10.0.0.50/32"), "a server has given it again");
}

/// The new owner's macvlan has the same MAC, and we have announced nothing ourselves.
#[test]
fn an_address_that_is_only_kept_goes_when_another_node_announces_it_with_the_same_mac() {
    let mut node = orphaned(|_| Some(LeaseEnd::Never));
    node.pass(Duration::from_secs(5));
    assert!(node.listening.contains(&(50, Family::V4)));
    let mac = node.kernel.network.link(50).unwrap().mac.unwrap();
    node.heard(50, "10.0.0.50", mac.octets(), Heard::Claim);
    assert!(node.kernel.own().is_empty());
}

#[test]
fn a_leased_address_that_is_being_taken_up_stays_while_its_former_owner_repeats_himself() {
    for (lease, stays) in [(MINE, true), (DOUBTFUL, false)] {
        let mut node = orphaned(|_| Some(LeaseEnd::Never));
        node.start_with(&[its_service()], lease.clone());
        let mac = node.kernel.network.link(50).unwrap().mac.unwrap();
        // The client has not said yet that it goes on with it.
        for link in [2, 50] {
            node.heard(link, "10.0.0.50", mac.octets(), Heard::Claim);
        }
        assert_eq!(!node.kernel.own().is_empty(), stays, "{lease:?}");
    }
}

#[test]
fn the_end_of_the_lease_is_noted_on_the_macvlan_and_only_when_it_changes() {
    let mut node = bound("web", "10.0.0.50");
    let noted = |node: &Node| node.kernel.network.link_by_name("vip-web00000").unwrap().alias.clone().unwrap();
    let until = |node: &Node, end: Option<Instant>| alias(&uid("web"), LeaseEnd::At(end.unwrap()), node.kernel.boot);
    assert_eq!(noted(&node), until(&node, Some(node.now + Duration::from_secs(599))));
    let renewed = leased(&node, "10.0.0.50", 610);
    let end = renewed.expires;
    node.dhcp("web", DhcpEvent::Renewed(renewed));
    assert_eq!(noted(&node), until(&node, end), "exactly, unlike on the Service");
    node.gone("web");
    node.dhcp("web", DhcpEvent::Stopped);
    assert!(node.kernel.network.link_by_name("vip-web00000").is_none(), "it is still known as ours");
}

#[test]
fn a_macvlan_that_kube_vip_made_under_a_chosen_name_is_adopted() {
    let mut network = network();
    network.links.push(macvlan(50, "lan", 2, None));
    let mut service = named("web", "lan");
    service.dhcp.mac = network.link(50).unwrap().mac;
    let node = &mut Node::started(std::slice::from_ref(&service), MINE, network.clone());
    assert!(node.take_log().contains(&"adopt lan".to_owned()));
    assert_eq!(node.kernel.network.link(50).unwrap().alias.as_deref(), Some("web00000-uid"));
    // Without a word about its MAC it could be anybody's.
    service.dhcp.mac = None;
    let node = &mut Node::started(&[service], MINE, network);
    assert!(node.take_log().contains(&"refuse lan".to_owned()));
}

#[test]
fn many_leases_are_independent_of_one_another() {
    let names: Vec<String> = (0..60).map(|number| format!("s{number:03}")).collect();
    let mut node = Node::leading(&names.iter().map(|name| view(name, &["dhcp"])).collect::<Vec<_>>());
    for (number, name) in names.iter().enumerate() {
        let leased = leased(&node, &format!("10.2.0.{}", number + 1), 600);
        node.dhcp(name, DhcpEvent::Bound(leased));
    }
    node.pass_ms(2000);
    assert_eq!(node.kernel.own().len(), 60);
    // One is refused, one goes, one has no answer: the others do not notice.
    node.take_log();
    node.dhcp("s000", DhcpEvent::Lost { address: "10.2.0.1".parse().unwrap(), why: "NAK".into() });
    node.dhcp("s001", DhcpEvent::Report { reason: Reason::DhcpNoAnswer, text: "silence".into() });
    node.gone("s002");
    node.dhcp("s002", DhcpEvent::Stopped);
    node.pass_ms(2000);
    let mut expected = String::new();
    for number in 1..60 {
        if number != 2 {
            writeln!(expected, "vip-s{number:03}0000 10.2.0.{}/32", number + 1).unwrap();
        }
    }
    assert_eq!(node.kernel.own().join("\n"), expected.trim_end());
    let touched: Vec<String> = node
        .take_log()
        .into_iter()
        .filter(|line| !line.contains("s000") && !line.contains("s001") && !line.contains("s002"))
        .collect();
    assert_eq!(touched, ["remove vip-s0000000 10.2.0.1/32"; 0]);
}

#[test]
fn a_macvlan_follows_its_service_also_by_way_of_an_interface_that_does_not_exist() {
    let mut node = bound("web", "10.0.0.50");
    node.take_log();
    for (name, parent) in [("eth9", 2), ("eth0", 2), ("eth9", 2), ("eth1", 3)] {
        let interface = InterfaceWish::Named(name.into());
        let changed = ServiceView { interface, ..service(&node, "web") };
        node.upsert(changed);
        node.pass_ms(200);
        let kind = &node.kernel.network.link_by_name("vip-web00000").unwrap().kind;
        assert!(matches!(kind, LinkKind::Macvlan { parent: found, .. } if *found == parent), "{name}: {kind:?}");
    }
    let log = node.take_log();
    let starts = log.iter().filter(|line| line.starts_with("start dhcp")).collect::<Vec<_>>();
    assert_eq!(starts, ["start dhcp web00000-uid lease Some(\"10.0.0.50\")"], "once, and with its lease");
    assert!(log.contains(&"stop dhcp web00000-uid release false".to_owned()), "{log:?}");
}

#[test]
fn what_changes_while_the_macvlan_is_being_made_counts() {
    type Edit = fn(&mut ServiceView);
    let with = |change: Edit| {
        let mut service = view("web", &["dhcp"]);
        service.dhcp.mac = Some(Mac::new([2, 0, 0, 0, 0, 50]));
        change(&mut service);
        Input::Service(service.key.clone(), Some(Box::new(service)))
    };
    let changes: [(Edit, &str, u32); 3] = [
        (|service| service.interface = InterfaceWish::Named("eth1".into()), "vip-web00000", 3),
        (|service| service.dhcp.link_name = Some("vip-other".into()), "vip-other", 2),
        (|service| service.dhcp.broadcast = true, "vip-web00000", 2),
    ];
    for (change, name, parent) in changes {
        let mut node = Node::leading(&[]);
        let (mut inputs, mut making) = (VecDeque::from([with(|_| {})]), None);
        while let Some(input) = inputs.pop_front() {
            for action in node.engine.step(node.now, input) {
                match action {
                    Action::Kernel(op @ KernelOp::Macvlan(..)) => making = Some(op),
                    Action::Kernel(op) => inputs.extend(node.kernel.perform(node.now, op).map(Input::Kernel)),
                    _ => {}
                }
            }
        }
        // It changes before the kernel has answered.
        node.feed(with(change));
        let done = node.kernel.perform(node.now, making.expect("it is made")).unwrap();
        node.feed(Input::Kernel(done));
        node.pass_ms(100);
        let links = node.kernel.network.links.iter().filter_map(|link| match link.kind {
            LinkKind::Macvlan { parent, .. } => Some((link.name.as_str(), parent)),
            _ => None,
        });
        assert_eq!(links.collect::<Vec<_>>(), [(name, parent)]);
        assert!(node.clients.contains_key(&uid("web")));
    }
}
