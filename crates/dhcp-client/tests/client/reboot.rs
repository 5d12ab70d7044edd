//! Coming back to a lease: another node's, one from before a restart, one from before the link went.

use std::net::Ipv4Addr;

use dhcp_client::{Config, Expiry, Input, LostReason, Report, State};
use dhcproto::v4::MessageType;

use crate::harness::*;

fn with_memory(change: impl FnOnce(&mut dhcp_client::RememberedLease)) -> Bench {
    let mut lease = remembered(None);
    change(&mut lease);
    Bench::new(Config { remembered: Some(lease), ..Config::new(mac()) })
}

#[test]
fn a_successor_uses_a_lease_that_still_runs_at_once_and_confirms_it_beside() {
    // decisions.md 22
    let mut bench = Bench::remembering(1000.0);
    bench.assert_state(State::InitReboot, None);
    let outs = bench.input(Input::Start);
    let lease = outs.bound().expect("bound").clone();
    assert_eq!((lease.address, lease.server_id), (ADDRESS, SERVER));
    assert_eq!(lease.remaining(bench.now), Some(seconds(1000.0)));
    let request = outs.only(MessageType::Request);
    request.assert_broadcast_from(Ipv4Addr::UNSPECIFIED);
    let expected = (Some(ADDRESS), None, Ipv4Addr::UNSPECIFIED);
    assert_eq!(
        (request.requested(), request.server_id(), request.message.ciaddr()),
        expected,
        "RFC 2131 4.3.2 INIT-REBOOT"
    );
    bench.assert_state(State::Rebooting, Some(ADDRESS));

    let outs = bench.answer(ServerMessage::ack(&request));
    assert_eq!(outs.renewed().expect("renewed").remaining(bench.now), Some(seconds(3600.0)));
    assert!(outs.probe().is_none(), "the address is in use: a probe would meet ourselves");
    bench.assert_state(State::Bound, Some(ADDRESS));
}

#[test]
fn a_lease_without_end_is_resumed_too() {
    let mut bench = with_memory(|lease| lease.expiry = Some(Expiry::Never));
    assert!(bench.input(Input::Start).bound().is_some());
    assert!(bench.client.deadline().is_some(), "it is being confirmed");
}

#[test]
fn a_lease_of_which_too_little_is_known_waits_for_the_server_and_the_probe() {
    let unknown_end = with_memory(|_| {});
    let unknown_server = with_memory(|lease| {
        lease.server_id = None;
        lease.expiry = Some(Expiry::Never);
    });
    for mut bench in [unknown_end, unknown_server] {
        let outs = bench.input(Input::Start);
        assert!(outs.bound().is_none());
        let request = outs.only(MessageType::Request);
        bench.assert_state(State::Rebooting, None);
        assert_eq!(bench.answer(ServerMessage::ack(&request)).probe(), Some(ADDRESS));
        assert!(bench.input(Input::ProbeFree(ADDRESS)).bound().is_some());
    }
}

#[test]
fn a_lease_that_is_over_is_only_a_wish() {
    let mut bench = Bench::remembering(1000.0);
    bench.now += seconds(1000.0);
    let outs = bench.input(Input::Start);
    assert!(outs.bound().is_none());
    assert_eq!(outs.only(MessageType::Discover).requested(), Some(ADDRESS));
}

#[test]
fn silence_leads_to_discover_with_the_remembered_address_after_three_seconds() {
    let mut bench = with_memory(|_| {});
    bench.input(Input::Start);
    bench.sleep().only(MessageType::Request);
    let discover = bench.sleep().only(MessageType::Discover);
    assert_eq!(discover.requested(), Some(ADDRESS));
    assert!((2.0..=4.0).contains(&bench.elapsed()), "{}", bench.elapsed());
}

/// Sleep until the client asks for the running lease's extension and for the address as if it were new.
fn both_questions(bench: &mut Bench) -> (Sent, Sent) {
    for _ in 0..10 {
        let mut sent = bench.sleep().sent();
        if let (Some(discover), Some(request), None) = (sent.pop(), sent.pop(), sent.pop()) {
            assert_eq!((request.kind(), discover.kind()), (MessageType::Request, MessageType::Discover));
            assert_eq!(discover.requested(), Some(ADDRESS));
            assert_ne!(
                request.message.xid(),
                discover.message.xid(),
                "or an ACK to the one could pass for one to the other"
            );
            return (request, discover);
        }
    }
    panic!("never asks both");
}

/// Two clients with a lease that still runs and a server that has been silent for some time.
fn unheard() -> [(Bench, State); 2] {
    let mut rebooting = Bench::remembering(1000.0);
    rebooting.input(Input::Start);
    let mut rebinding = Bench::bound(86_400);
    rebinding.sleep_until(State::Rebinding);
    [(rebooting, State::Rebooting), (rebinding, State::Rebinding)]
}

#[test]
fn silence_does_not_end_a_lease_that_still_runs() {
    let mut bench = Bench::remembering(1000.0);
    bench.input(Input::Start);
    let mut last_question = 0.0;
    while bench.client.lease().is_some() {
        bench.assert_state(State::Rebooting, Some(ADDRESS));
        let outs = bench.sleep();
        if outs.lost().is_some() {
            bench.assert_elapsed(1000.0);
        } else {
            assert_eq!(outs.sent()[0].requested(), Some(ADDRESS));
            last_question = bench.elapsed();
        }
    }
    assert!(last_question > 995.0, "the last minute is not slept through: {last_question}");
    bench.assert_state(State::Selecting, None);
}

#[test]
fn a_server_that_lost_its_book_is_asked_for_the_same_address_without_a_gap() {
    for (mut bench, state) in unheard() {
        let (_, discover) = both_questions(&mut bench);
        bench.assert_state(state, Some(ADDRESS));
        let request = bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
        assert_eq!((request.requested(), request.server_id()), (Some(ADDRESS), Some(SERVER)));
        bench.assert_state(State::Requesting, Some(ADDRESS));
        let outs = bench.answer(ServerMessage::ack(&request));
        assert!(outs.renewed().is_some() && outs.lost().is_none() && outs.probe().is_none(), "{outs:?}");
        bench.assert_state(State::Bound, Some(ADDRESS));
    }
}

#[test]
fn while_a_lease_runs_offers_of_other_addresses_are_not_taken() {
    for (mut bench, state) in unheard() {
        let (request, discover) = both_questions(&mut bench);
        let outs = bench.answer(ServerMessage::offer(&discover).address(OTHER_ADDRESS));
        let expected = Report::OfferIgnored { kept: ADDRESS, offered: OTHER_ADDRESS, server: SERVER };
        assert_eq!(outs.reports(), [&expected]);
        assert!(outs.sent().is_empty());
        bench.assert_state(state, Some(ADDRESS));
        assert!(bench.answer(ServerMessage::ack(&request)).renewed().is_some(), "the server came back");
    }
}

#[test]
fn a_nak_after_long_silence_still_ends_a_running_lease() {
    // The server came back with another subnet.
    for (mut bench, _) in unheard() {
        let (request, _) = both_questions(&mut bench);
        let outs = bench.answer(ServerMessage::nak(&request));
        assert!(matches!(outs.lost(), Some((_, LostReason::Nak { .. }))));
        bench.assert_state(State::Selecting, None);
    }
}

#[test]
fn an_answer_after_long_silence_counts_from_the_question_that_it_answers() {
    for (mut bench, _) in unheard() {
        let asked: Vec<_> = (0..4)
            .map(|_| {
                let (request, _) = both_questions(&mut bench);
                (request, bench.now)
            })
            .collect();
        // Late, but to one of the last three; a lease shorter than the silence before.
        let (request, sent_at) = &asked[1];
        let waited = bench.now - *sent_at;
        let seconds_given = u32::try_from(waited.as_secs()).unwrap() + 5;
        bench.answer(ServerMessage::ack(&asked[0].0)).assert_nothing();
        let outs = bench.answer(ServerMessage::ack(request).lease(seconds_given));
        assert_eq!(outs.renewed().expect("renewed").since, *sent_at);
    }
}

#[test]
fn an_ack_to_the_confirmation_is_not_taken_for_one_to_the_request_of_an_offer() {
    // Found by the simulation: counted from the later question, the lease would be used too long.
    for (mut bench, _) in unheard() {
        let (confirm, discover) = both_questions(&mut bench);
        bench.now += seconds(0.5);
        bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
        bench.answer(ServerMessage::ack(&confirm)).assert_nothing();
    }
}

#[test]
fn an_offer_of_the_running_address_that_is_never_granted_leads_back_to_asking() {
    for (mut bench, _) in unheard() {
        let (_, discover) = both_questions(&mut bench);
        bench.answer(ServerMessage::offer(&discover));
        bench.sleep_until(State::Rebooting);
        bench.assert_state(State::Rebooting, Some(ADDRESS));
    }
}

#[test]
fn without_a_running_lease_a_reboot_takes_no_offers() {
    let mut bench = with_memory(|_| {});
    let request = bench.input(Input::Start).only(MessageType::Request);
    bench.answer(ServerMessage::offer(&request)).assert_nothing();
}

#[test]
fn the_end_of_the_lease_opens_the_door_for_other_offers() {
    let mut bench = Bench::remembering(10.0);
    bench.input(Input::Start);
    let outs = bench.sleep_until(State::Selecting);
    bench.assert_elapsed(10.0);
    assert_eq!(outs.lost().expect("lost").1, &LostReason::Expired);
    let discover = outs.only(MessageType::Discover);
    let request = bench.answer(ServerMessage::offer(&discover).address(OTHER_ADDRESS)).only(MessageType::Request);
    assert_eq!(request.requested(), Some(OTHER_ADDRESS));
}

#[test]
fn a_nak_of_the_leases_server_ends_it_at_once() {
    let mut bench = Bench::remembering(1000.0);
    let request = bench.input(Input::Start).only(MessageType::Request);
    let outs = bench.answer(ServerMessage::nak(&request));
    assert!(matches!(outs.lost(), Some((_, LostReason::Nak { server: SERVER, .. }))));
    assert_eq!(outs.only(MessageType::Discover).requested(), Some(ADDRESS));
    bench.assert_state(State::Selecting, None);
}

/// A client that has just asked everybody to confirm or to prolong its lease.
fn asks_everybody() -> [(Bench, Sent); 2] {
    let mut rebooting = Bench::remembering(1000.0);
    let confirm = rebooting.input(Input::Start).only(MessageType::Request);
    let mut rebinding = Bench::bound(86_400);
    let extend = rebinding.sleep_until(State::Rebinding).only(MessageType::Request);
    [(rebooting, confirm), (rebinding, extend)]
}

#[test]
fn a_nak_of_another_server_counts_only_if_nobody_grants_the_lease() {
    for (mut bench, request) in asks_everybody() {
        bench.answer(ServerMessage::nak(&request).server(OTHER_SERVER)).assert_nothing();
        assert!(bench.answer(ServerMessage::ack(&request)).renewed().is_some(), "the lease's own server knows better");
    }
    for (mut bench, request) in asks_everybody() {
        let before = bench.elapsed();
        bench.answer(ServerMessage::nak(&request).server(OTHER_SERVER)).assert_nothing();
        let outs = bench.sleep();
        assert!(bench.elapsed() - before <= 2.0, "{}", bench.elapsed() - before);
        assert!(matches!(outs.lost(), Some((_, LostReason::Nak { server: OTHER_SERVER, .. }))));
        outs.only(MessageType::Discover);
        bench.assert_state(State::Selecting, None);
    }
}

#[test]
fn another_address_than_the_remembered_one_replaces_it() {
    let mut bench = Bench::remembering(1000.0);
    let request = bench.input(Input::Start).only(MessageType::Request);
    let outs = bench.answer(ServerMessage::ack(&request).address(OTHER_ADDRESS));
    let changed = LostReason::AddressChanged { server: SERVER, to: OTHER_ADDRESS };
    assert_eq!((outs.lost().expect("lost").1, outs.probe()), (&changed, Some(OTHER_ADDRESS)));
}

#[test]
fn a_lost_link_silences_the_client_but_not_the_end_of_its_lease() {
    let mut bench = Bench::bound(LEASE_SECONDS);
    bench.input(Input::LinkLost).assert_nothing();
    bench.assert_state(State::Stopped, Some(ADDRESS));
    bench.advance(3599.0).assert_nothing();
    let outs = bench.sleep();
    bench.assert_elapsed(3600.0);
    assert_eq!(outs.lost().expect("lost").1, &LostReason::Expired);
    assert!(outs.sent().is_empty());
    assert_eq!((bench.client.state(), bench.client.deadline()), (State::Stopped, None));
    assert_eq!(bench.input(Input::Start).only(MessageType::Discover).requested(), Some(ADDRESS));
}

#[test]
fn a_returned_link_confirms_the_lease_without_giving_up_the_address() {
    for input in [Input::Start, Input::Restart] {
        let mut bench = Bench::bound(LEASE_SECONDS);
        bench.input(Input::LinkLost);
        bench.now += seconds(60.0);
        let outs = bench.input(input);
        let request = outs.only(MessageType::Request);
        assert_eq!(request.requested(), Some(ADDRESS));
        assert!(outs.bound().is_none() && outs.lost().is_none());
        bench.assert_state(State::Rebooting, Some(ADDRESS));
        assert!(bench.answer(ServerMessage::ack(&request)).renewed().is_some());
    }
}

#[test]
fn a_link_lost_in_the_middle_of_something_goes_on_where_it_makes_sense() {
    // While looking: look again.
    let mut bench = Bench::plain();
    bench.input(Input::Start);
    bench.input(Input::LinkLost).assert_nothing();
    bench.advance(100.0).assert_nothing();
    bench.input(Input::Restart).only(MessageType::Discover);
    // While probing: the address is booked for us, so ask for that one, and probe it then.
    let mut bench = Bench::plain();
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    let request = bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
    bench.answer(ServerMessage::ack(&request));
    bench.input(Input::LinkLost).assert_nothing();
    bench.input(Input::ProbeFree(ADDRESS)).assert_nothing();
    let request = bench.input(Input::Start).only(MessageType::Request);
    assert_eq!((request.requested(), request.server_id()), (Some(ADDRESS), None));
    assert_eq!(bench.answer(ServerMessage::ack(&request)).probe(), Some(ADDRESS));
    // While a remembered lease is being confirmed: again.
    let mut bench = with_memory(|_| {});
    bench.input(Input::Start);
    bench.input(Input::LinkLost).assert_nothing();
    assert_eq!(bench.input(Input::Start).only(MessageType::Request).requested(), Some(ADDRESS));
}

#[test]
fn restart_asks_at_once_whatever_the_back_off_says() {
    let mut bench = Bench::plain();
    bench.input(Input::Start);
    for _ in 0..6 {
        bench.sleep();
    }
    bench.input(Input::Restart).only(MessageType::Discover);
    assert!(bench.client.deadline().unwrap() - bench.now < seconds(2.0), "and soon again");
}

#[test]
fn what_a_bound_client_remembers_is_enough_for_a_successor() {
    let bench = Bench::bound(LEASE_SECONDS);
    let memory = bench.client.lease().unwrap().remember();
    let mut successor = Bench::new(Config { remembered: Some(memory), ..Config::new(mac()) });
    let lease = successor.input(Input::Start).bound().cloned().expect("bound at once");
    assert_eq!(lease.expiry, bench.client.lease().unwrap().expiry);
    assert_eq!(lease.server_mac, Some(server_mac()));
}
