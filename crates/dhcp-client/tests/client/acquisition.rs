//! From nothing to a bound address.

use std::net::Ipv4Addr;

use dhcp_client::{Config, Input, LostReason, Output, Report, State};
use dhcproto::v4::{DhcpOption, MessageType, OptionCode};

use crate::harness::*;

#[test]
fn discover_leaves_at_once_and_four_messages_and_a_probe_bind_the_address() {
    let mut bench = Bench::plain();
    assert_eq!(
        (bench.client.state(), bench.client.deadline()),
        (State::Init, None),
        "nothing happens before the start"
    );

    let discover = bench.input(Input::Start).only(MessageType::Discover);
    discover.assert_broadcast_from(Ipv4Addr::UNSPECIFIED);
    assert_eq!((discover.requested(), discover.server_id()), (None, None));
    bench.assert_state(State::Selecting, None);

    let request = bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
    request.assert_broadcast_from(Ipv4Addr::UNSPECIFIED);
    assert_eq!((request.requested(), request.server_id()), (Some(ADDRESS), Some(SERVER)));
    assert_eq!(request.message.ciaddr(), Ipv4Addr::UNSPECIFIED);
    assert_eq!(request.message.xid(), discover.message.xid(), "RFC 2131 4.4.1: the offer's transaction");
    bench.assert_state(State::Requesting, None);

    let outs = bench.answer(ServerMessage::ack(&request));
    assert_eq!(outs.probe(), Some(ADDRESS));
    assert!(outs.bound().is_none(), "not before the probe");
    bench.assert_state(State::Probing, None);

    let outs = bench.input(Input::ProbeFree(ADDRESS));
    let lease = outs.bound().expect("bound").clone();
    assert_eq!((lease.address, lease.server_id, lease.server_mac), (ADDRESS, SERVER, Some(server_mac())));
    assert_eq!(lease.remaining(bench.now), Some(seconds(3600.0)));
    bench.assert_state(State::Bound, Some(ADDRESS));
}

#[test]
fn starting_twice_is_starting_once() {
    let mut bench = Bench::plain();
    bench.input(Input::Start);
    bench.input(Input::Start).assert_nothing();
}

#[test]
fn the_request_names_the_offered_address_not_the_wish() {
    // kube-vip spec 10.1 row 9: kube-vip insists on the wish and is refused for ever.
    let mut bench = Bench::new(Config { requested_ip: Some(OTHER_ADDRESS), ..Config::new(mac()) });
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    assert_eq!(discover.requested(), Some(OTHER_ADDRESS));
    let outs = bench.answer(ServerMessage::offer(&discover).address(ADDRESS));
    assert_eq!(outs.only(MessageType::Request).requested(), Some(ADDRESS));
    assert_eq!(outs.reports(), [&Report::OtherAddress { wanted: OTHER_ADDRESS, given: ADDRESS, server: SERVER }]);
}

#[test]
fn an_ack_for_another_address_than_offered_is_probed_and_used_and_reported() {
    let mut bench = Bench::plain();
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    let request = bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
    let outs = bench.answer(ServerMessage::ack(&request).address(OTHER_ADDRESS));
    assert_eq!(outs.probe(), Some(OTHER_ADDRESS));
    assert_eq!(outs.reports(), [&Report::OtherAddress { wanted: ADDRESS, given: OTHER_ADDRESS, server: SERVER }]);
    bench.input(Input::ProbeFree(ADDRESS)).assert_nothing();
    assert!(bench.input(Input::ProbeFree(OTHER_ADDRESS)).bound().is_some());
}

#[test]
fn the_first_acceptable_of_several_offers_wins_and_only_its_server_is_heard() {
    let mut bench = Bench::plain();
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    let useless = ServerMessage::offer(&discover).server(OTHER_SERVER).address(Ipv4Addr::UNSPECIFIED);
    assert!(matches!(bench.answer(useless).reports()[..], [Report::UnusableReply { server: OTHER_SERVER, .. }]));

    let request = bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
    bench.answer(ServerMessage::offer(&discover).server(OTHER_SERVER)).assert_nothing();
    bench.answer(ServerMessage::ack(&request).server(OTHER_SERVER).address(OTHER_ADDRESS)).assert_nothing();
    bench.answer(ServerMessage::nak(&request).server(OTHER_SERVER)).assert_nothing();
    assert_eq!(bench.answer(ServerMessage::ack(&request)).probe(), Some(ADDRESS));
}

#[test]
fn offers_that_cannot_be_used_are_ignored_with_a_reason() {
    type Change = fn(ServerMessage) -> ServerMessage;
    let cases: [(&str, Change); 7] = [
        ("server (option 54)", |offer| offer.without(OptionCode::ServerIdentifier)),
        ("lease time of zero", |offer| offer.lease(0)),
        ("cannot be a host's", |offer| offer.address(Ipv4Addr::BROADCAST)),
        ("cannot be a host's", |offer| offer.address(Ipv4Addr::new(224, 0, 0, 5))),
        ("cannot be a host's", |offer| offer.address(Ipv4Addr::LOCALHOST)),
        ("its own address", |offer| offer.address(SERVER)),
        ("broadcast address", |offer| {
            offer.address(Ipv4Addr::new(10, 0, 0, 255)).option(DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)))
        }),
    ];
    for (reason, change) in cases {
        let mut bench = Bench::plain();
        let discover = bench.input(Input::Start).only(MessageType::Discover);
        let outs = bench.answer(change(ServerMessage::offer(&discover)));
        assert!(outs.sent().is_empty() && outs.reports()[0].to_string().contains(reason), "{reason}: {outs:?}");
        bench.assert_state(State::Selecting, None);
    }
}

#[test]
fn silence_is_answered_by_discovers_after_1_3_7_15_31_s_and_then_every_64_s_for_ever() {
    let mut bench = Bench::plain();
    let first = bench.input(Input::Start).only(MessageType::Discover);
    let mut last = 0.0;
    for (attempt, gap) in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0, 64.0].into_iter().enumerate() {
        let again = bench.sleep().only(MessageType::Discover);
        let waited = bench.elapsed() - last;
        assert!(
            (waited - gap).abs() <= 1.0 && waited > 0.5,
            "attempt {attempt}: waited {waited} s, expected about {gap}"
        );
        last = bench.elapsed();
        assert_eq!(again.message.xid(), first.message.xid(), "a late offer to an earlier one still counts");
        assert_eq!(u64::from(again.message.secs()), (bench.now - bench.began).as_secs(), "secs");
    }
    for _ in 0..1000 {
        bench.sleep().only(MessageType::Discover);
    }
}

#[test]
fn silence_is_reported_but_not_the_first_lost_packets() {
    let mut bench = Bench::plain();
    assert!(bench.input(Input::Start).reports().is_empty());
    assert!(bench.sleep().reports().is_empty());
    let outs = bench.sleep();
    let [report @ Report::NoAnswer { state: State::Selecting, transmissions: 2, .. }] = outs.reports()[..] else {
        panic!("{outs:?}");
    };
    assert!(report.to_string().starts_with("no DHCP server answered for "), "{report}");
}

#[test]
fn a_request_without_answer_is_repeated_and_then_another_offer_is_looked_for() {
    let mut bench = Bench::plain();
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    bench.now += seconds(5.4); // secs of the request is that of the discover, not of the moment
    let request = bench.answer(ServerMessage::offer(&discover)).sent().remove(0);
    assert_eq!(request.message.secs(), discover.message.secs());
    for _ in 0..3 {
        let again = bench.sleep().only(MessageType::Request);
        assert_eq!((again.message.xid(), again.message.secs()), (request.message.xid(), request.message.secs()));
    }
    let next = bench.sleep().only(MessageType::Discover);
    assert_ne!(next.message.xid(), discover.message.xid(), "a new exchange has a new transaction id");
    assert!((20.0..=24.0).contains(&bench.elapsed()), "{}", bench.elapsed());
}

#[test]
fn a_lease_counts_from_the_request_not_from_the_ack() {
    let mut bench = Bench::plain();
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    let request = bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
    bench.now += seconds(0.5);
    bench.answer(ServerMessage::ack(&request).lease(100));
    bench.now += seconds(0.25);
    let outs = bench.input(Input::ProbeFree(ADDRESS));
    assert_eq!(outs.bound().expect("bound").remaining(bench.now), Some(seconds(99.25)));
}

#[test]
fn a_nak_to_a_request_starts_over_without_the_wish_and_repeated_naks_slow_down() {
    let mut bench = Bench::new(Config { requested_ip: Some(ADDRESS), ..Config::new(mac()) });
    let mut discover = bench.input(Input::Start).only(MessageType::Discover);
    let mut pauses = Vec::new();
    for round in 0..8 {
        let request = bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
        let outs = bench.answer(ServerMessage::nak(&request));
        assert!(matches!(
            outs.reports()[..],
            [Report::Nak { server: SERVER, address: ADDRESS, message: Some(text), .. }] if text == "lease not found"
        ));
        let text = outs.reports()[0].to_string();
        assert_eq!(text.ends_with("; starting over"), round == 0, "a pause that is none has no length: {text}");
        let before = bench.elapsed();
        discover = if round == 0 { outs } else { bench.sleep() }.only(MessageType::Discover);
        assert_eq!(discover.requested(), None, "what was refused is not asked for again");
        pauses.push(bench.elapsed() - before);
    }
    assert!(pauses[0] < f64::EPSILON, "the first refusal costs nothing");
    assert!(pauses.windows(2).all(|pair| pair[0] < pair[1]) && pauses[7] >= 60.0, "{pauses:?}");
}

#[test]
fn a_conflict_is_declined_and_another_address_asked_for_after_ten_seconds() {
    let mut bench = Bench::plain();
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    let request = bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
    bench.answer(ServerMessage::ack(&request));
    let outs = bench.input(Input::ProbeConflict { address: ADDRESS, mac: neighbour_mac() });
    let decline = outs.only(MessageType::Decline);
    decline.assert_broadcast_from(Ipv4Addr::UNSPECIFIED);
    assert_eq!((decline.requested(), decline.server_id()), (Some(ADDRESS), Some(SERVER)));
    assert_eq!(decline.message.ciaddr(), Ipv4Addr::UNSPECIFIED);
    assert!(outs.lost().is_none(), "it was never in use");
    assert_eq!(
        outs.reports()[0].to_string(),
        "DHCP server 10.0.0.1 gave 10.0.0.100, but 02:00:00:00:00:09 already uses it: declined, trying again in 10 s"
    );
    bench.assert_state(State::Declined, None);

    bench.input(Input::Restart).assert_nothing();
    bench.advance(9.9).assert_nothing();
    let discover = bench.advance(0.1).only(MessageType::Discover);
    assert_eq!(discover.requested(), None, "not the address that the neighbour has");
}

#[test]
fn a_conflict_with_our_own_mac_is_none() {
    // The node that had the VIP before us still answers for it, with the same MAC.
    let mut bench = Bench::plain();
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    let request = bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
    bench.answer(ServerMessage::ack(&request));
    assert!(bench.input(Input::ProbeConflict { address: ADDRESS, mac: mac() }).bound().is_some());
}

#[test]
fn a_conflict_while_bound_loses_the_address_at_once() {
    let mut bench = Bench::bound(LEASE_SECONDS);
    bench.input(Input::ProbeConflict { address: OTHER_ADDRESS, mac: neighbour_mac() }).assert_nothing();
    let outs = bench.input(Input::ProbeConflict { address: ADDRESS, mac: neighbour_mac() });
    assert!(matches!(outs.0[0], Output::Lost { .. }), "first of all: {outs:?}");
    assert_eq!(outs.lost().expect("lost").1, &LostReason::Conflict { mac: neighbour_mac() });
    outs.only(MessageType::Decline);
    bench.assert_state(State::Declined, None);
    let discover = bench.sleep().only(MessageType::Discover);
    assert_eq!(discover.requested(), None, "not the address that the neighbour has");
}

#[test]
fn a_probe_without_result_is_asked_for_again_until_the_lease_ends() {
    let mut bench = Bench::plain();
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    let request = bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
    bench.answer(ServerMessage::ack(&request).lease(5));
    for _ in 0..2 {
        let outs = bench.sleep();
        assert_eq!(outs.probe(), Some(ADDRESS));
        assert!(matches!(outs.reports()[..], [Report::ProbeUnanswered { address: ADDRESS, .. }]));
    }
    assert_eq!(bench.sleep().only(MessageType::Discover).requested(), Some(ADDRESS));
    bench.input(Input::ProbeFree(ADDRESS)).assert_nothing();
    bench.assert_state(State::Selecting, None);
}
