//! From bound to renewed, rebound, refused or expired.

use std::net::Ipv4Addr;

use dhcp_client::{Expiry, Input, LostReason, Mac, Output, Report, State};
use dhcproto::v4::{DhcpOption, MessageType, OptionCode};

use crate::harness::*;

#[test]
fn t1_renews_by_unicast_from_the_leased_address_to_the_mac_that_acknowledged() {
    let mut bench = Bench::plain();
    // Behind a relay: the frames come from the relay's MAC and address, the server is another host.
    bench.acquire(|mut answer| {
        answer.source = RELAY;
        answer
    });
    let renew = bench.sleep().only(MessageType::Request);
    assert!(
        (1746.0..=1800.0).contains(&bench.elapsed()),
        "T1 is half of the lease, at most 3 % early: {}",
        bench.elapsed()
    );
    assert_eq!((renew.source, renew.destination, renew.destination_mac), (ADDRESS, SERVER, server_mac()));
    assert_eq!(
        (renew.message.ciaddr(), renew.requested(), renew.server_id()),
        (ADDRESS, None, None),
        "RFC 2131 table 5"
    );
    bench.assert_state(State::Renewing, Some(ADDRESS));

    let outs = bench.answer(ServerMessage::ack(&renew));
    let lease = outs.renewed().expect("renewed");
    assert_eq!(lease.remaining(bench.now), Some(seconds(3600.0)));
    assert!(outs.probe().is_none() && outs.bound().is_none(), "the address just stays");
    bench.assert_state(State::Bound, Some(ADDRESS));
}

#[test]
fn secs_counts_from_the_moment_of_asking() {
    let mut bench = Bench::bound(LEASE_SECONDS);
    let renew = bench.sleep().only(MessageType::Request);
    let began = bench.now;
    let again = bench.sleep().only(MessageType::Request);
    assert_eq!(renew.message.secs(), 0);
    assert_eq!(u64::from(again.message.secs()), (bench.now - began).as_secs());
    while bench.client.lease().is_some() {
        bench.sleep();
    }
    let next = bench.input(Input::Restart).only(MessageType::Discover);
    assert_eq!(next.message.secs(), 0, "a new search");
}

#[test]
fn every_exchange_has_its_own_transaction_id() {
    let mut bench = Bench::plain();
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    let request = bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
    bench.answer(ServerMessage::ack(&request));
    bench.input(Input::ProbeFree(ADDRESS));
    let renew = bench.sleep().only(MessageType::Request);
    let rebind = bench.sleep_until(State::Rebinding).sent().remove(0);
    bench.answer(ServerMessage::ack(&rebind));
    let next = bench.sleep().only(MessageType::Request);
    let mut xids: Vec<_> = [&discover, &renew, &rebind, &next].map(|sent| sent.message.xid()).into();
    xids.sort_unstable();
    xids.dedup();
    assert_eq!(xids.len(), 4);
    bench.answer(ServerMessage::ack(&renew)).assert_nothing(); // late answer to an old question
}

#[test]
fn ten_lease_times_pass_without_losing_the_address() {
    let mut bench = Bench::bound(60);
    while bench.elapsed() < 600.0 {
        let outs = bench.sleep();
        assert!(outs.lost().is_none());
        if let Some(request) = outs.sent().first() {
            assert!(bench.answer(ServerMessage::ack(request).lease(60)).renewed().is_some());
        }
    }
}

#[test]
fn renewals_repeat_after_half_of_what_remains_until_t2_and_alternate_with_ethernet_broadcast() {
    let mut bench = Bench::bound(LEASE_SECONDS);
    let mut macs = vec![bench.sleep().only(MessageType::Request).destination_mac];
    let mut times = vec![bench.elapsed()];
    while bench.client.state() == State::Renewing {
        let outs = bench.sleep();
        times.push(bench.elapsed());
        if bench.client.state() == State::Renewing {
            let sent = outs.only(MessageType::Request);
            assert_eq!((sent.source, sent.destination), (ADDRESS, SERVER), "IP stays unicast");
            macs.push(sent.destination_mac);
        }
    }
    bench.assert_elapsed(3150.0); // T2 is seven eighths of the lease
    let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps[0] > 600.0 && gaps[..gaps.len() - 1].iter().all(|gap| *gap >= 60.0), "{gaps:?}");
    assert_eq!(macs[..4], [server_mac(), Mac::BROADCAST, server_mac(), Mac::BROADCAST]);
}

/// H13.
#[test]
fn t2_rebinds_by_broadcast_with_the_leased_address_and_any_server_may_answer() {
    let mut bench = Bench::bound(LEASE_SECONDS);
    let outs = bench.sleep_until(State::Rebinding);
    assert!(outs.reports()[0].to_string().contains("renewing"), "{outs:?}");
    let rebind = outs.only(MessageType::Request);
    rebind.assert_broadcast_from(ADDRESS);
    assert_eq!((rebind.message.ciaddr(), rebind.requested(), rebind.server_id()), (ADDRESS, None, None));
    let outs = bench.answer(ServerMessage::ack(&rebind).server(OTHER_SERVER));
    assert_eq!(outs.renewed().expect("renewed").server_id, OTHER_SERVER);
    let renew = bench.sleep().only(MessageType::Request);
    assert_eq!(renew.destination, OTHER_SERVER, "from now on that one is asked");
}

#[test]
fn while_renewing_only_the_leases_own_server_is_heard() {
    let mut bench = Bench::bound(LEASE_SECONDS);
    let renew = bench.sleep().only(MessageType::Request);
    bench.answer(ServerMessage::nak(&renew).server(OTHER_SERVER)).assert_nothing();
    bench.answer(ServerMessage::ack(&renew).server(OTHER_SERVER)).assert_nothing();
    assert!(bench.answer(ServerMessage::ack(&renew)).renewed().is_some());
}

#[test]
fn options_58_and_59_set_t1_and_t2() {
    let mut bench = Bench::plain();
    bench.acquire(|answer| answer.option(DhcpOption::Renewal(100)).option(DhcpOption::Rebinding(300)));
    bench.sleep();
    assert!((97.0..=100.0).contains(&bench.elapsed()), "{}", bench.elapsed());
    bench.sleep_until(State::Rebinding);
    bench.assert_elapsed(300.0);
}

#[test]
fn timers_follow_each_ack_not_the_first() {
    // kube-vip spec 6.4: kube-vip re-arms with the first lease's times.
    let mut bench = Bench::bound(LEASE_SECONDS);
    let renew = bench.sleep().only(MessageType::Request);
    bench.answer(ServerMessage::ack(&renew).lease(60));
    let before = bench.elapsed();
    bench.sleep().only(MessageType::Request);
    assert!((29.0..=30.0).contains(&(bench.elapsed() - before)));
}

#[test]
fn an_infinite_lease_is_never_renewed_and_needs_no_deadline() {
    let mut bench = Bench::plain();
    let lease = bench.acquire(|answer| answer.lease(u32::MAX).option(DhcpOption::Renewal(10)));
    assert_eq!((lease.expiry, lease.remaining(bench.now)), (Expiry::Never, None));
    assert_eq!(bench.client.deadline(), None);
    bench.advance(1e9).assert_nothing();
}

#[test]
fn the_longest_finite_lease_is_accepted() {
    let mut bench = Bench::bound(u32::MAX - 1);
    assert!(bench.client.deadline().is_some());
    bench.sleep().only(MessageType::Request);
}

#[test]
fn a_missing_lease_time_counts_as_an_hour_and_is_reported() {
    let mut bench = Bench::plain();
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    let offer = ServerMessage::offer(&discover).without(OptionCode::AddressLeaseTime);
    let request = bench.answer(offer).only(MessageType::Request);
    let outs = bench.answer(ServerMessage::ack(&request).without(OptionCode::AddressLeaseTime));
    assert!(matches!(outs.reports()[..], [Report::NoLeaseTime { server: SERVER, .. }]));
    let outs = bench.input(Input::ProbeFree(ADDRESS));
    assert_eq!(outs.bound().expect("bound").remaining(bench.now), Some(seconds(3600.0)));
}

#[test]
fn an_ack_with_a_lease_time_of_zero_is_no_ack() {
    let mut bench = Bench::bound(100);
    let renew = bench.sleep().only(MessageType::Request);
    let outs = bench.answer(ServerMessage::ack(&renew).lease(0));
    assert!(matches!(outs.reports()[..], [Report::UnusableReply { .. }]));
    bench.assert_state(State::Renewing, Some(ADDRESS));
}

#[test]
fn a_lease_of_ten_seconds_survives_two_lost_packets_in_a_row_in_each_phase() {
    let mut bench = Bench::bound(10);
    let mut renewing = 0;
    let mut rebinding = 0;
    while bench.client.lease().is_some() {
        let sent = bench.sleep().sent();
        match bench.client.state() {
            State::Renewing => renewing += sent.len(),
            State::Rebinding => rebinding += sent.len(),
            _ => {}
        }
    }
    assert!(renewing >= 3 && rebinding >= 2 && renewing + rebinding < 20, "{renewing} and {rebinding}");
    bench.assert_elapsed(10.0);
}

#[test]
fn expiry_loses_the_address_to_the_moment_and_asks_for_it_again() {
    let mut bench = Bench::bound(LEASE_SECONDS);
    bench.sleep_until(State::Rebinding);
    let outs = bench.sleep_until(State::Selecting);
    bench.assert_elapsed(3600.0);
    assert!(matches!(&outs.0[0], Output::Lost { reason: LostReason::Expired, .. }), "{outs:?}");
    assert_eq!(outs.only(MessageType::Discover).requested(), Some(ADDRESS));
    bench.assert_state(State::Selecting, None);
}

#[test]
fn an_ack_that_comes_with_the_end_of_the_lease_comes_too_late() {
    let mut bench = Bench::bound(LEASE_SECONDS);
    let rebind = bench.sleep_until(State::Rebinding).sent().remove(0);
    bench.now = bench.began + seconds(3600.0);
    let outs = bench.answer(ServerMessage::ack(&rebind));
    assert!(outs.lost().is_some() && outs.renewed().is_none() && outs.bound().is_none(), "{outs:?}");
    bench.assert_state(State::Selecting, None);
}

#[test]
fn a_long_sleep_over_the_end_of_the_lease_is_noticed_by_whatever_wakes_us() {
    for input in [Input::Timer, Input::Frame(&[]), Input::Restart, Input::Start, Input::ProbeFree(ADDRESS)] {
        let mut bench = Bench::bound(LEASE_SECONDS);
        bench.now += seconds(1e6);
        let outs = bench.input(input);
        assert!(outs.lost().is_some(), "{input:?}: {outs:?}");
        assert!(bench.client.lease().is_none());
    }
}

#[test]
fn a_nak_loses_the_address_at_once_and_asks_for_it_again_at_once() {
    // kube-vip spec 6.4: kube-vip ignores the NAK of a renewal.
    let loses = |bench: &mut Bench, sent: &Sent| {
        let outs = bench.answer(ServerMessage::nak(sent));
        let reason = LostReason::Nak { server: SERVER, message: Some("lease not found".into()) };
        assert_eq!(outs.lost().expect("lost").1, &reason);
        assert_eq!(reason.to_string(), r#"DHCP server 10.0.0.1 refused the address (NAK): "lease not found""#);
        assert_eq!(outs.only(MessageType::Discover).requested(), Some(ADDRESS));
        bench.assert_state(State::Selecting, None);
    };
    let mut bench = Bench::bound(LEASE_SECONDS);
    let renew = bench.sleep().only(MessageType::Request);
    loses(&mut bench, &renew);

    let mut bench = Bench::bound(LEASE_SECONDS);
    let rebind = bench.sleep_until(State::Rebinding).sent().remove(0);
    loses(&mut bench, &rebind);
}

#[test]
fn naks_without_an_open_question_are_ignored() {
    let mut bench = Bench::plain();
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    bench.answer(ServerMessage::nak(&discover)).assert_nothing();
    let request = bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
    bench.answer(ServerMessage::ack(&request));
    bench.answer(ServerMessage::nak(&request)).assert_nothing();
    bench.input(Input::ProbeFree(ADDRESS));
    bench.answer(ServerMessage::nak(&request)).assert_nothing();
    bench.assert_state(State::Bound, Some(ADDRESS));
    bench.input(Input::Release);
    bench.answer(ServerMessage::nak(&request)).assert_nothing();
}

#[test]
fn a_renewal_that_changes_the_address_gives_up_the_old_one_and_probes_the_new() {
    // kube-vip spec 10.1 row 7: kube-vip publishes the new one and keeps announcing the old.
    let mut bench = Bench::bound(LEASE_SECONDS);
    let renew = bench.sleep().only(MessageType::Request);
    let outs = bench.answer(ServerMessage::ack(&renew).address(OTHER_ADDRESS));
    let (lease, reason) = outs.lost().expect("lost");
    assert_eq!((lease.address, reason), (ADDRESS, &LostReason::AddressChanged { server: SERVER, to: OTHER_ADDRESS }));
    assert_eq!(outs.probe(), Some(OTHER_ADDRESS));
    bench.assert_state(State::Probing, None);
    assert!(bench.input(Input::ProbeFree(OTHER_ADDRESS)).bound().is_some());
}

#[test]
fn options_missing_from_a_renewal_keep_their_values() {
    let mut bench = Bench::plain();
    let mask = DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0));
    bench.acquire(|answer| answer.option(mask.clone()));
    let renew = bench.sleep().only(MessageType::Request);
    let outs = bench.answer(ServerMessage::ack(&renew).without(OptionCode::ServerIdentifier));
    let lease = outs.renewed().expect("renewed");
    assert_eq!((lease.network, lease.server_id), (Some("10.0.0.100/24".parse().unwrap()), SERVER));
}

#[test]
fn a_renewal_that_is_due_when_the_probe_ends_is_sent_at_once() {
    let mut bench = Bench::plain();
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    let request = bench.answer(ServerMessage::offer(&discover).lease(2)).only(MessageType::Request);
    bench.answer(ServerMessage::ack(&request).lease(2));
    bench.now += seconds(1.5);
    let outs = bench.input(Input::ProbeFree(ADDRESS));
    assert!(outs.bound().is_some());
    outs.only(MessageType::Request);
    bench.assert_state(State::Renewing, Some(ADDRESS));
}
