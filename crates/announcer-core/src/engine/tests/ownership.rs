use super::*;

const STRANGER: [u8; 6] = [2, 9, 9, 9, 9, 9];

fn serving() -> Node {
    let mut node = Node::leading(&[view("web", &["10.0.0.5"])]);
    node.pass_ms(2000);
    node.take_log();
    node.told.clear();
    node
}

/// It has given its address up to a machine that had stood still without seeing it, and that defends by a Lease which
/// is long over. Its own Lease is confirmed since.
fn given_up() -> Node {
    let mut node = serving();
    node.feed(Input::Lease(DOUBTFUL));
    node.heard(2, "10.0.0.5", STRANGER, Heard::Claim);
    node.feed(Input::Lease(MINE));
    node
}

#[test]
fn reading_another_holder_withdraws_at_once() {
    let mut node = serving();
    node.feed(Input::Lease(theirs()));
    assert_eq!(node.kernel.own(), Vec::<String>::new());
    node.pass(Duration::from_mins(1));
    assert_eq!(node.take_log(), ["remove eth0 10.0.0.5/32", "restore eth0"]);
}

#[test]
fn an_api_that_cannot_be_reached_changes_nothing() {
    let mut node = serving();
    node.api = false;
    node.feed(Input::Lease(DOUBTFUL));
    node.pass(Duration::from_hours(1));
    assert!(node.kernel.has("eth0", "10.0.0.5/32"));
    assert_eq!(node.take_log(), Vec::<String>::new());
}

#[test]
fn a_claim_heard_while_the_record_is_in_doubt_withdraws_at_once() {
    let mut node = serving();
    node.feed(Input::Lease(DOUBTFUL));
    node.heard(2, "10.0.0.5", STRANGER, Heard::Claim);
    assert_eq!(node.kernel.own(), Vec::<String>::new());
    node.take_log();
    node.pass(Duration::from_mins(1));
    assert_eq!(node.take_log(), Vec::<String>::new(), "time alone gives it back to nobody");
    // The API is back and the Lease is still ours: so is the address, if the other is silent by now.
    node.feed(Input::Lease(MINE));
    assert_eq!(node.take_log(), ["prepare eth0", "probe eth0 10.0.0.5"]);
    node.pass_ms(100);
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
}

/// Another node has held the Lease meanwhile. It gave it back, and serves until it hears this one.
#[test]
fn what_was_claimed_is_announced_again_when_the_lease_is_confirmed_again() {
    for (claimed, announced) in [(true, 5), (false, 0)] {
        let mut node = serving();
        if claimed {
            node.heard(2, "10.0.0.5", STRANGER, Heard::Claim);
        }
        node.pass(Duration::from_secs(1));
        node.feed(Input::Lease(DOUBTFUL));
        node.pass_ms(500);
        node.take_log();
        node.feed(Input::Lease(MINE));
        node.pass(Duration::from_secs(5));
        assert_eq!(node.take_log(), vec!["announce eth0 10.0.0.5"; announced]);
        node.feed(Input::Lease(MINE));
        node.pass(Duration::from_secs(5));
        assert_eq!(node.take_log(), Vec::<String>::new(), "a renewal is none");
    }
}

/// The clock stood still, so this node believes in its Lease for longer than the others. It defends the address against
/// its new owner, which says nothing more afterwards.
#[test]
fn a_claim_that_was_refused_shortly_before_the_lease_is_in_doubt_is_looked_into() {
    let there = vec!["eth0 10.0.0.5/32".to_owned()];
    for (confirmed, answers, own) in [(false, true, Vec::new()), (false, false, there.clone()), (true, true, there)] {
        let mut node = serving();
        node.pass(Duration::from_secs(12));
        node.heard(2, "10.0.0.5", STRANGER, Heard::Claim);
        assert!(node.kernel.has("eth0", "10.0.0.5/32"), "the Lease is ours");
        node.pass_ms(600);
        node.take_log();
        node.feed(Input::Lease(DOUBTFUL));
        node.pass_ms(900);
        assert_eq!(node.take_log(), Vec::<String>::new(), "the next renewal may confirm it");
        if confirmed {
            node.feed(Input::Lease(MINE));
        }
        node.pass_ms(110);
        if answers {
            node.heard(2, "10.0.0.5", STRANGER, Heard::Answer);
        }
        node.pass(Duration::from_secs(5));
        assert_eq!(node.kernel.own(), own);
    }
}

/// The watch is back before the Lease: the address may be another holder's.
#[test]
fn in_doubt_nothing_is_set_up_that_another_node_is_recorded_for() {
    for (host, own) in [("node-1", vec!["eth0 10.0.0.6/32".to_owned()]), ("node-2", Vec::new())] {
        let mut node = Node::leading(&[]);
        node.feed(Input::Lease(DOUBTFUL));
        node.upsert(published("web", "10.0.0.6", host));
        node.pass_ms(2000);
        assert_eq!(node.kernel.own(), own);
        node.feed(Input::Lease(MINE));
        node.pass_ms(2000);
        assert_eq!(node.kernel.own(), ["eth0 10.0.0.6/32"]);
    }
}

/// A client that asked before may be answered late.
#[test]
fn in_doubt_no_lease_is_set_up_that_clients_do_not_know_from_this_node() {
    let lease = |node: &Node| Leased { facts: facts("10.0.0.50"), expires: Some(node.now + Duration::from_mins(10)) };
    // The Lease falls into doubt before the server answers.
    let mut node = Node::leading(&[view("web", &["dhcp"])]);
    node.pass_ms(100);
    node.feed(Input::Lease(DOUBTFUL));
    let granted = lease(&node);
    node.dhcp("web", DhcpEvent::Bound(granted));
    node.pass(Duration::from_secs(10));
    assert_eq!(node.kernel.own(), Vec::<String>::new());
    node.feed(Input::Lease(MINE));
    node.pass_ms(100);
    assert_eq!(node.kernel.own(), ["vip-web00000 10.0.0.50/32"]);
    // Or before the Service is seen.
    for (host, begun) in [("node-1", true), ("node-2", false)] {
        let mut service = view("web", &["dhcp"]);
        service.published = published("web", "10.0.0.50", host).published;
        service.dhcp.lease = Some(facts("10.0.0.50"));
        service.published.lease = service.dhcp.lease.clone();
        let mut node = Node::leading(&[]);
        node.feed(Input::Lease(DOUBTFUL));
        node.upsert(service);
        node.pass_ms(100);
        assert_eq!(node.kernel.network.link_by_name("vip-web00000").is_some(), begun, "{host}");
        node.feed(Input::Lease(MINE));
        node.pass_ms(100);
        assert!(node.kernel.network.link_by_name("vip-web00000").is_some(), "{host}");
    }
}

/// This node took the Lease a moment ago, and the record names the former holder yet.
#[test]
fn in_doubt_no_macvlan_is_made_again_and_no_client_begins_again_unless_clients_know_the_address_from_this_node() {
    for (host, made) in [("node-1", true), ("node-2", false)] {
        let mut service = view("web", &["dhcp"]);
        service.published = published("web", "10.0.0.50", host).published;
        service.dhcp.lease = Some(facts("10.0.0.50"));
        service.published.lease = service.dhcp.lease.clone();
        let mut node = Node::leading(&[]);
        (node.api, node.kernel.refuse) = (false, true);
        node.upsert(service);
        node.pass_ms(100);
        node.feed(Input::Lease(DOUBTFUL));
        node.kernel.refuse = false;
        node.pass(Duration::from_secs(10));
        assert_eq!(node.kernel.network.link_by_name("vip-web00000").is_some(), made, "{host}");
        node.feed(Input::Lease(MINE));
        node.pass_ms(100);
        assert!(node.kernel.network.link_by_name("vip-web00000").is_some(), "{host}");
    }
    let started = |node: &mut Node| node.take_log().iter().filter(|line| line.starts_with("start dhcp")).count();
    for granted in [true, false] {
        let mut node = Node::leading(&[view("web", &["dhcp"])]);
        node.pass_ms(100);
        if granted {
            let leased = Leased { facts: facts("10.0.0.50"), expires: Some(node.now + Duration::from_mins(10)) };
            node.dhcp("web", DhcpEvent::Bound(leased));
            node.pass_ms(2000);
        }
        node.take_log();
        node.feed(Input::Lease(DOUBTFUL));
        node.dhcp("web", DhcpEvent::Failed("no socket".into()));
        node.pass(Duration::from_secs(10));
        assert_eq!(started(&mut node), usize::from(granted), "{granted}: what this node serves goes on");
        node.feed(Input::Lease(MINE));
        node.pass_ms(100);
        assert_eq!(started(&mut node), usize::from(!granted));
    }
}

/// The next owner takes what is recorded for known to clients, and announces it beside a stranger.
#[test]
fn in_doubt_a_service_that_names_nobody_or_another_node_is_not_recorded() {
    for (host, recorded_in_doubt) in [(None, 0), (Some("node-2"), 0), (Some("node-1"), 1)] {
        let mut node = serving();
        node.feed(Input::Lease(DOUBTFUL));
        // It is made anew with another port while this node serves its address.
        let mut anew = view("web", &["10.0.0.5"]);
        anew.published.vip_host = host.map(str::to_owned);
        node.upsert(anew);
        node.pass_ms(500);
        let recorded = |node: &mut Node| node.take_log().iter().filter(|line| line.starts_with("record")).count();
        assert_eq!(recorded(&mut node), recorded_in_doubt, "{host:?}");
        node.feed(Input::Lease(MINE));
        node.pass(Duration::from_secs(11));
        assert_eq!(recorded(&mut node), 1 - recorded_in_doubt, "{host:?}");
    }
}

/// First the host that answers may be a former holder that is about to withdraw. One that still answers when the Lease
/// has been confirmed for as long as any other could believe in it is a stranger.
#[test]
fn an_address_that_was_given_up_is_taken_back_from_a_host_that_answers_only_while_the_lease_stays_confirmed() {
    for (lease, own) in [(MINE, vec!["eth0 10.0.0.5/32".to_owned()]), (DOUBTFUL, Vec::new())] {
        let mut node = given_up();
        for _ in 0..3 {
            node.heard(2, "10.0.0.5", STRANGER, Heard::Answer);
            node.pass_ms(4420);
            assert_eq!(node.kernel.own(), Vec::<String>::new());
        }
        node.feed(Input::Lease(lease.clone()));
        node.heard(2, "10.0.0.5", STRANGER, Heard::Answer);
        node.pass_ms(100);
        assert_eq!(node.kernel.own(), own, "{lease:?}");
        assert_eq!(node.reasons(), ["AddressConflict"], "{lease:?}");
        node.heard(2, "10.0.0.5", STRANGER, Heard::Claim);
        node.pass_ms(100);
        assert_eq!(node.kernel.own(), own, "{lease:?}: it is defended as ever");
    }
}

/// The host that answers may hold the Lease meanwhile.
#[test]
fn answers_during_a_doubt_do_not_count_for_an_address_that_was_given_up() {
    let mut node = given_up();
    node.feed(Input::Lease(DOUBTFUL));
    for lease in [DOUBTFUL, MINE] {
        node.feed(Input::Lease(lease.clone()));
        for _ in 0..3 {
            node.heard(2, "10.0.0.5", STRANGER, Heard::Answer);
            node.pass_ms(4420);
            assert_eq!(node.kernel.own(), Vec::<String>::new(), "{lease:?}");
        }
    }
    node.heard(2, "10.0.0.5", STRANGER, Heard::Answer);
    node.pass_ms(100);
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
}

/// A router with proxy ARP answers for whatever is asked for, also after a pause that the Lease has outlasted.
#[test]
fn a_stranger_that_always_answers_keeps_an_address_from_the_holder_of_the_lease_for_a_while_only() {
    let mut node = serving();
    node.now += Duration::from_secs(4);
    node.tick();
    let mut without = Duration::ZERO;
    for _ in 0..6000 {
        node.heard(2, "10.0.0.5", STRANGER, Heard::Answer);
        node.pass_ms(10);
        without += if node.kernel.own().is_empty() { Duration::from_millis(10) } else { Duration::ZERO };
    }
    assert!((Duration::from_secs(15)..Duration::from_secs(30)).contains(&without), "{without:?}");
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
}

#[test]
fn what_was_given_up_to_a_node_that_reads_the_lease_too_late_is_back_as_soon_as_that_one_has_read_it() {
    let mut node = given_up();
    node.heard(2, "10.0.0.5", STRANGER, Heard::Answer);
    node.pass_ms(4300);
    assert_eq!((node.kernel.own(), node.reasons()), (Vec::new(), Vec::new()), "it reads each retry period");
    node.pass_ms(200);
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
}

#[test]
fn h11_an_address_given_up_after_a_pause_of_its_node_is_probed_and_announced_again() {
    let mut node = serving();
    node.now += Duration::from_secs(10);
    node.tick();
    node.heard(2, "10.0.0.5", STRANGER, Heard::Answer);
    node.take_log();
    node.pass(Duration::from_secs(16));
    let log = node.take_log();
    assert_eq!(log.iter().filter(|line| line.starts_with("probe")).count(), 3, "{log:?}");
    let probed = log.iter().rposition(|line| line.starts_with("probe")).unwrap();
    assert!(log[probed..].iter().any(|line| line == "announce eth0 10.0.0.5"), "{log:?}");
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
}

/// Its answers may have been lost.
#[test]
fn what_another_host_claimed_during_a_pause_is_kept_only_where_the_lease_confirms_this_node() {
    for (lease, kept) in [(MINE, true), (DOUBTFUL, false)] {
        let mut node = serving();
        node.now += Duration::from_secs(10);
        node.heard(2, "10.0.0.5", STRANGER, Heard::Claim);
        node.feed(Input::Lease(lease.clone()));
        node.pass_ms(100);
        assert_eq!(!node.kernel.own().is_empty(), kept, "{lease:?}");
        let probes = node.take_log().iter().filter(|line| line.starts_with("probe")).count();
        assert_eq!(probes, 3, "{lease:?}: it has asked");
        node.feed(Input::Lease(MINE));
        node.pass_ms(100);
        assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"], "{lease:?}: as soon as the Lease says so");
    }
}

#[test]
fn an_address_given_up_before_another_node_took_the_lease_is_taken_over_as_any_other() {
    let mut node = serving();
    node.feed(Input::Lease(DOUBTFUL));
    node.heard(2, "10.0.0.5", STRANGER, Heard::Claim);
    node.feed(Input::Lease(theirs()));
    node.feed(Input::Lease(MINE));
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"], "the former owner may still answer");
}

#[test]
fn nothing_new_is_started_while_the_lease_is_in_doubt() {
    let mut node = serving();
    node.feed(Input::Lease(DOUBTFUL));
    node.upsert(view("new", &["10.0.0.6"]));
    node.pass(Duration::from_secs(10));
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"], "the new holder would find it in use");
    node.feed(Input::Lease(MINE));
    node.pass_ms(100);
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32", "eth0 10.0.0.6/32"]);
}

#[test]
fn an_answer_is_no_claim() {
    let mut node = serving();
    node.feed(Input::Lease(DOUBTFUL));
    node.heard(2, "10.0.0.5", STRANGER, Heard::Answer);
    node.heard(2, "10.0.0.5", STRANGER, Heard::Probe);
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
}

#[test]
fn an_owner_whose_record_stands_defends_the_address_and_says_so() {
    let mut node = serving();
    for _ in 0..50 {
        node.heard(2, "10.0.0.5", STRANGER, Heard::Claim);
        node.pass_ms(100);
    }
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
    assert_eq!(node.reasons(), ["AddressConflict"]);
    let announced = node.take_log().iter().filter(|line| line.starts_with("announce")).count();
    assert_eq!(announced, 1, "not more than once in ten seconds (RFC 5227 2.4)");
}

#[test]
fn a_take_over_announces_without_probing_because_the_loser_may_still_answer() {
    let mut node = Node::started(&[published("web", "10.0.0.5", "node-2")], theirs(), network());
    node.pass_ms(1000);
    node.take_log();
    node.feed(Input::Lease(MINE));
    let log = node.take_log();
    assert_eq!(log[..3], ["prepare eth0", "add eth0 10.0.0.5/32", "announce eth0 10.0.0.5"]);
    assert_eq!(log[3..], ["tell web AddressAnnounced", "record web 10.0.0.5"], "one write: the status is as it was");
    assert!(node.told[0].1.text.contains("before by node node-2"), "{:?}", node.told);
    let view = &node.engine.services[&ServiceKey::new("default", "web")];
    assert_eq!(view.published.vip_host.as_deref(), Some("node-1"));
}

#[test]
fn a_process_that_stood_still_asks_on_the_wire_before_it_goes_on() {
    let mut node = serving();
    // Ten seconds without a step, and no address has expired yet.
    node.now += Duration::from_secs(10);
    node.tick();
    assert_eq!(node.take_log(), ["probe eth0 10.0.0.5"]);
    node.pass_ms(100);
    assert!(node.kernel.valid("10.0.0.5/32", node.now).unwrap() > Duration::from_secs(11));
}

#[test]
fn a_process_that_stood_still_withdraws_if_somebody_else_answers_meanwhile() {
    let mut node = serving();
    node.now += Duration::from_secs(10);
    node.tick();
    node.heard(2, "10.0.0.5", STRANGER, Heard::Answer);
    assert_eq!(node.kernel.own(), Vec::<String>::new());
}

#[test]
fn a_process_that_stood_still_defends_no_address_against_what_it_received_meanwhile() {
    let mut node = serving();
    node.now += Duration::from_secs(8);
    node.heard(2, "10.0.0.5", STRANGER, Heard::Claim);
    assert_eq!((node.take_log(), node.reasons()), (vec!["probe eth0 10.0.0.5".to_owned()], vec![]));
    node.heard(2, "10.0.0.5", STRANGER, Heard::Answer);
    assert_eq!(node.kernel.own(), Vec::<String>::new());
}

#[test]
fn the_kernel_removes_the_address_of_a_process_that_hangs() {
    let mut node = serving();
    node.now += Duration::from_secs(13);
    assert!(node.kernel.expire(node.now));
    assert_eq!(node.kernel.own(), Vec::<String>::new());
}

#[test]
fn a_lease_that_nobody_holds_moves_nothing() {
    let mut node = serving();
    node.feed(Input::Lease(LeaseState::Other(String::new())));
    node.pass(Duration::from_secs(5));
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
}

#[test]
fn a_service_that_is_gone_is_neither_announced_nor_asked_for_again_and_again() {
    let mut node = Node::new(&[], network());
    node.api = false;
    node.start_with(&[view("web", &["10.0.0.5"])], MINE);
    node.pass_ms(40);
    node.take_log();
    // The watch lags behind by half a second.
    for _ in 0..50 {
        node.feed(Input::Recorded(ServiceKey::new("default", "web"), Recorded::Gone));
        node.pass_ms(10);
    }
    assert_eq!(node.take_log(), Vec::<String>::new());
    node.gone("web");
    assert_eq!(node.take_log(), ["remove eth0 10.0.0.5/32", "restore eth0"]);
}

#[test]
fn a_service_said_to_be_gone_that_stays_is_asked_about_once_a_second() {
    let mut node = Node::new(&[], network());
    node.api = false;
    node.start_with(&[view("web", &["10.0.0.5"])], MINE);
    node.pass_ms(40);
    let before = node.records;
    for _ in 0..5 {
        node.feed(Input::Recorded(ServiceKey::new("default", "web"), Recorded::Gone));
        node.pass_ms(1000);
    }
    assert_eq!(node.records, before + 5);
}

#[test]
fn a_record_that_is_to_be_looked_at_again_is_forgotten_when_the_address_falls_meanwhile() {
    let mut node = Node::new(&[], network());
    node.api = false;
    node.start_with(&[view("web", &["10.0.0.5"])], MINE);
    node.pass_ms(100);
    node.feed(Input::Recorded(ServiceKey::new("default", "web"), Recorded::Done));
    node.feed(Input::Lease(DOUBTFUL));
    node.heard(2, "10.0.0.5", STRANGER, Heard::Claim);
    let before = node.records;
    // After each step `feed` checks that nothing stays due.
    node.pass_ms(3000);
    assert_eq!(node.records, before);
}

#[test]
fn a_kernel_that_is_slow_to_show_its_network_is_waited_for() {
    let start = Instant::now();
    let mut engine = Engine::new(start, config(&[]));
    assert!(engine.poll(start, false).contains(&Action::Kernel(KernelOp::Observe)));
    for seconds in [1, 60, 61, 62, 120] {
        let now = start + Duration::from_secs(seconds);
        assert!(!engine.poll(now, false).contains(&Action::Kernel(KernelOp::Observe)));
        assert!(engine.deadline() > now);
    }
    let now = start + Duration::from_secs(121);
    let actions = engine.step(now, Input::Kernel(KernelDone::Observed(Ok(network()))));
    assert!(actions.contains(&Action::Kernel(KernelOp::Observe)), "the one that was due meanwhile");
}

#[test]
fn announcements_missed_while_the_process_stood_still_are_not_made_up_for() {
    let mut node = Node::leading(&[view("web", &["10.0.0.5"])]);
    node.pass_ms(30);
    node.take_log();
    node.now += Duration::from_millis(170);
    node.tick();
    assert_eq!(node.take_log(), ["announce eth0 10.0.0.5"]);
    node.pass_ms(1000);
    assert_eq!(node.take_log(), ["announce eth0 10.0.0.5"]);
}

#[test]
fn what_is_said_about_an_address_is_heard_where_it_is_and_nowhere_else() {
    let mut node = Node::leading(&[view("web", &["10.0.0.5"])]);
    assert_eq!(node.listening, BTreeSet::from([(2, Family::V4)]));
    node.upsert(view("six", &["fd00::6"]));
    assert_eq!(node.listening, BTreeSet::from([(2, Family::V4), (2, Family::V6)]));
    node.gone("web");
    assert_eq!(node.listening, BTreeSet::from([(2, Family::V6)]));
}

#[test]
fn a_record_that_somebody_replaces_is_written_again() {
    let mut node = serving();
    let mut view = node.engine.services[&ServiceKey::new("default", "web")].clone();
    view.published = Published::default();
    node.upsert(view);
    node.pass_ms(1500);
    let view = &node.engine.services[&ServiceKey::new("default", "web")];
    assert_eq!(view.published.vip_host.as_deref(), Some("node-1"));
}

/// Another node writes its name over ours, again and again.
fn contested(node: &mut Node, host: &str, times: u32) {
    for _ in 0..times {
        let mut view = node.engine.services[&ServiceKey::new("default", "web")].clone();
        view.published.vip_host = Some(host.into());
        node.upsert(view);
        node.pass_ms(20);
    }
}

#[test]
fn two_nodes_that_both_believe_to_hold_the_lease_do_not_overwrite_each_other() {
    let mut node = serving();
    let before = node.records;
    contested(&mut node, "node-2", 100);
    assert_eq!(node.records, before, "the Lease decides, and is read each retry period");
    node.pass(Duration::from_secs(7));
    assert_eq!(node.records, before);
    node.pass(Duration::from_secs(2));
    assert_eq!(node.records, before + 1, "it is still ours after all this time: so is the record");
    contested(&mut node, "node-2", 100);
    assert_eq!(node.records, before + 1, "once in ten seconds");
}

#[test]
fn the_record_of_another_node_stays_while_the_lease_is_in_doubt_and_when_it_is_lost() {
    let mut node = serving();
    let before = node.records;
    node.feed(Input::Lease(DOUBTFUL));
    contested(&mut node, "node-2", 5);
    node.pass(Duration::from_mins(1));
    assert_eq!(node.records, before);
    node.feed(Input::Lease(theirs()));
    node.pass(Duration::from_mins(1));
    assert_eq!((node.records, node.kernel.own()), (before, Vec::new()));
    // A take-over does not wait.
    node.feed(Input::Lease(MINE));
    assert_eq!(node.records, before + 1);
}

#[test]
fn what_is_not_known_yet_has_a_name_in_each_mode() {
    for (mode, steps) in [
        ("global", vec![("the Services", Input::Synced), ("the holder of the Lease", Input::Lease(theirs()))]),
        ("service", vec![("the Services", Input::Synced)]),
        (
            "node",
            vec![
                ("the Services", Input::Synced),
                ("the membership Leases of the announcers", Input::MembersSynced),
                ("the Nodes", Input::NodesSynced { readable: true }),
                ("whether kube-proxy is healthy", Input::KubeProxy(true)),
            ],
        ),
    ] {
        let mut node = Node::new(&[("election_mode", mode)], network());
        for (unknown, input) in steps {
            assert_eq!(node.engine.unknown(), Some(unknown), "{mode}");
            node.feed(input);
        }
        assert_eq!(node.engine.unknown(), None, "{mode}");
    }
}
