//! Giving the address back.

use std::net::Ipv4Addr;

use dhcp_client::{Config, Expiry, Input, Mac, State};
use dhcproto::v4::{MessageType, OptionCode};

use crate::harness::*;

#[track_caller]
fn assert_releases(sent: &Sent) {
    assert_eq!((sent.source, sent.destination), (ADDRESS, SERVER), "kube-vip spec 10.1 row 24b: never from 0.0.0.0");
    assert_eq!(
        (sent.message.ciaddr(), sent.server_id(), sent.requested()),
        (ADDRESS, Some(SERVER), None),
        "RFC 2131 table 5"
    );
    assert!(
        !sent.has(OptionCode::ParameterRequestList)
            && !sent.has(OptionCode::MaxMessageSize)
            && !sent.has(OptionCode::Hostname)
    );
}

#[test]
fn release_is_unicast_from_the_leased_address_and_names_server_and_client() {
    let mut bench = Bench::new(Config { hostname: Some("web".into()), ..Config::new(mac()) });
    bench.acquire(|answer| answer);
    let outs = bench.input(Input::Release);
    let release = outs.only(MessageType::Release);
    assert_releases(&release);
    assert_eq!(release.destination_mac, server_mac());
    assert_eq!(release.client_id(), Some(&b"web"[..]));
    assert!(outs.lost().is_none(), "the caller knows");
    assert_eq!((bench.client.state(), bench.client.deadline()), (State::Released, None));
    assert!(bench.client.lease().is_none());
    bench.input(Input::Release).assert_nothing();
    bench.input(Input::Timer).assert_nothing();
    bench.input(Input::Restart).assert_nothing();
}

#[test]
fn release_gives_back_whatever_a_server_holds_for_us() {
    type Prepare = fn(&mut Bench);
    let cases: [(&str, Prepare); 6] = [
        ("renewing", |bench| {
            bench.acquire(|answer| answer);
            bench.sleep_until(State::Renewing);
        }),
        ("rebinding", |bench| {
            bench.acquire(|answer| answer);
            bench.sleep_until(State::Rebinding);
        }),
        ("link lost", |bench| {
            bench.acquire(|answer| answer);
            bench.input(Input::LinkLost);
        }),
        ("restarted", |bench| {
            bench.acquire(|answer| answer);
            bench.input(Input::Restart);
        }),
        ("probing", |bench| {
            let discover = bench.input(Input::Start).only(MessageType::Discover);
            let request = bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
            bench.answer(ServerMessage::ack(&request));
        }),
        ("requesting: perhaps the ACK is under way", |bench| {
            let discover = bench.input(Input::Start).only(MessageType::Discover);
            bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
        }),
    ];
    for (name, prepare) in cases {
        let mut bench = Bench::plain();
        prepare(&mut bench);
        let outs = bench.input(Input::Release);
        assert_eq!(outs.sent().len(), 1, "{name}");
        assert_releases(&outs.only(MessageType::Release));
        assert_eq!(bench.client.state(), State::Released, "{name}");
    }
}

#[test]
fn a_remembered_lease_can_be_released_without_ever_starting() {
    // The Service was deleted while no announcer ran.
    for (expiry, released) in [(Some(Expiry::Never), 1), (None, 1), (Some(Expiry::At(std::time::Instant::now())), 0)] {
        let memory = dhcp_client::RememberedLease { server_mac: None, ..remembered(expiry) };
        let mut bench = Bench::new(Config { remembered: Some(memory), ..Config::new(mac()) });
        let sent = bench.input(Input::Release).sent();
        assert_eq!(sent.len(), released, "{expiry:?}");
        for release in sent {
            assert_releases(&release);
            assert_eq!(release.destination_mac, Mac::BROADCAST, "whose MAC is not known");
        }
    }
}

#[test]
fn nothing_is_released_when_nothing_is_held() {
    let mut bench = Bench::plain();
    bench.input(Input::Start);
    bench.input(Input::Release).assert_nothing();
    assert_eq!(bench.client.state(), State::Released);
}

#[test]
fn a_released_client_can_start_again() {
    let mut bench = Bench::bound(LEASE_SECONDS);
    bench.input(Input::Release);
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    discover.assert_broadcast_from(Ipv4Addr::UNSPECIFIED);
}
