use super::*;

fn serving() -> Node {
    let mut node = Node::leading(&[view("web", &["10.0.0.5"]), view("lan", &["dhcp"])]);
    let leased = Leased { facts: facts("10.0.0.50"), expires: Some(node.now + Duration::from_mins(10)) };
    node.dhcp("lan", DhcpEvent::Bound(leased));
    node.pass_ms(2000);
    node.take_log();
    node
}

#[test]
fn the_lease_is_released_first_and_each_address_goes_when_the_successor_claims_it() {
    let mut node = serving();
    node.feed(Input::Stop);
    assert_eq!(node.take_log(), ["release lease"]);
    node.feed(Input::Released(true));
    node.feed(Input::Lease(LeaseState::Other(String::new())));
    node.pass_ms(1500);
    assert_eq!(node.kernel.own().len(), 2, "served until somebody else does");
    node.heard(2, "10.0.0.5", [2, 9, 9, 9, 9, 9], Heard::Claim);
    assert_eq!(node.kernel.own(), ["vip-lan00000 10.0.0.50/32"]);
    // The successor's macvlan has the same MAC; it is heard on the parent.
    let mac = node.engine.vips[&VipId::Dhcp(uid("lan"))].carrier.unwrap().mac;
    node.heard(2, "10.0.0.50", mac.octets(), Heard::Claim);
    assert_eq!(node.kernel.own(), Vec::<String>::new());
    assert!(node.exited);
    let log = node.take_log();
    assert!(log.contains(&"stop dhcp lan00000-uid release false".to_owned()));
    assert_eq!(log[log.len() - 2..], ["restore eth0", "exit"]);
}

#[test]
fn what_is_not_used_yet_is_not_set_up_any_more() {
    for blocked in [false, true] {
        let mut node = serving();
        node.upsert(view("new", &["10.0.0.6"]));
        if blocked {
            node.heard(2, "10.0.0.6", [2, 9, 9, 9, 9, 9], Heard::Answer);
            // It would be asked about again in a moment.
            node.pass_ms(9000);
        }
        node.feed(Input::Stop);
        node.feed(Input::Released(true));
        node.pass_ms(5000);
        assert_eq!(node.kernel.own().len(), 2, "{:?}", node.kernel.own());
    }
}

#[test]
fn an_address_that_the_kernel_does_not_extend_is_not_taken_from_clients_when_the_node_ends() {
    let mut node = serving();
    node.kernel.failing_extensions = 3;
    node.pass_ms(3000);
    assert!(node.reasons().contains(&"CannotAnnounce"), "{:?}", node.told);
    node.feed(Input::Stop);
    node.feed(Input::Released(true));
    assert!(node.kernel.has("eth0", "10.0.0.5/32"), "{:?}", node.kernel.own());
}

/// The kernel keeps it until its deadline.
#[test]
fn an_address_that_the_kernel_does_not_extend_goes_when_the_successor_claims_it() {
    let mut node = serving();
    node.kernel.failing_extensions = 3;
    node.pass_ms(3000);
    node.feed(Input::Stop);
    node.feed(Input::Released(true));
    assert!(node.kernel.has("eth0", "10.0.0.5/32"));
    node.heard(2, "10.0.0.5", [2, 9, 9, 9, 9, 9], Heard::Claim);
    assert!(!node.kernel.has("eth0", "10.0.0.5/32"), "{:?}", node.kernel.own());
}

#[test]
fn a_client_that_has_no_lease_yet_ends_with_its_node() {
    let mut node = Node::leading(&[view("web", &["dhcp"])]);
    node.pass_ms(1000);
    node.take_log();
    node.feed(Input::Stop);
    assert!(node.take_log().contains(&"stop dhcp web00000-uid release false".to_owned()));
    let leased = Leased { facts: facts("10.0.0.50"), expires: Some(node.now + Duration::from_mins(10)) };
    node.dhcp("web", DhcpEvent::Bound(leased));
    node.pass_ms(1000);
    assert_eq!(node.kernel.own(), Vec::<String>::new());
}

#[test]
fn a_successor_that_announces_late_is_waited_for_only_shortly() {
    let mut node = serving();
    node.feed(Input::Stop);
    node.feed(Input::Released(true));
    node.feed(Input::Successor("node-2".into()));
    node.pass_ms(499);
    assert_eq!(node.kernel.own().len(), 2);
    node.pass_ms(10);
    assert_eq!(node.kernel.own(), Vec::<String>::new());
    assert!(node.exited);
    assert_eq!(node.take_log().iter().filter(|line| *line == "restore eth0").count(), 1);
}

#[test]
fn a_successor_that_has_many_addresses_to_take_is_waited_for_until_it_has_them() {
    let mut node = serving();
    node.feed(Input::Stop);
    node.feed(Input::Released(true));
    node.feed(Input::Successor("node-2".into()));
    node.pass_ms(400);
    node.heard(2, "10.0.0.5", [2, 9, 9, 9, 9, 9], Heard::Claim);
    node.pass_ms(490);
    assert_eq!(node.kernel.own(), ["vip-lan00000 10.0.0.50/32"], "it has been at work a moment ago");
    node.pass_ms(20);
    assert!(node.exited && node.kernel.own().is_empty());
}

#[test]
fn without_a_successor_the_addresses_stay_for_the_next_process() {
    let mut node = serving();
    node.feed(Input::Stop);
    node.feed(Input::Released(true));
    node.pass_ms(5300);
    assert!(!node.exited);
    node.pass_ms(200);
    assert!(node.exited);
    let left = node.kernel.valid("10.0.0.5/32", node.now).unwrap();
    assert!(left > Duration::from_secs(298) && left <= Duration::from_mins(5), "{left:?}");
    assert!(node.kernel.network.link_by_name("vip-lan00000").is_some());
    assert!(
        !node
            .take_log()
            .iter()
            .any(|line| line.contains("release true") || line.starts_with("remove") || line.starts_with("restore"))
    );
}

#[test]
fn a_lease_that_cannot_be_released_leaves_no_address_behind_for_long() {
    let mut node = serving();
    node.feed(Input::Stop);
    node.feed(Input::Released(false));
    assert!(node.exited);
    assert!(node.kernel.valid("10.0.0.5/32", node.now).unwrap() <= Duration::from_secs(12));
}

#[test]
fn a_follower_ends_at_once() {
    let mut node = Node::started(&[view("web", &["10.0.0.5"])], theirs(), network());
    node.feed(Input::Stop);
    assert!(node.exited);
}

#[test]
fn nothing_new_is_begun_while_stopping() {
    let mut node = serving();
    node.feed(Input::Stop);
    node.upsert(view("late", &["10.0.0.9"]));
    node.pass_ms(1000);
    assert!(!node.kernel.has("eth0", "10.0.0.9/32"));
}
