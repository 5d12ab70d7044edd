//! What every message contains, and which replies count.

use std::net::Ipv4Addr;

use dhcp_client::{Config, Input, State};
use dhcproto::{
    Encodable,
    v4::{DhcpOption, HType, MessageType, Opcode, OptionCode},
};

use crate::harness::*;

/// One message of every kind from one client.
fn every_message(config: Config) -> Vec<(&'static str, Sent)> {
    let mut bench = Bench::new(config.clone());
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    let request = bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
    bench.answer(ServerMessage::ack(&request));
    bench.input(Input::ProbeFree(ADDRESS));
    let renew = bench.sleep().only(MessageType::Request);
    let rebind = bench.sleep_until(State::Rebinding).only(MessageType::Request);
    let reboot = bench.input(Input::Restart).only(MessageType::Request);
    bench.answer(ServerMessage::ack(&reboot));
    let decline =
        bench.input(Input::ProbeConflict { address: ADDRESS, mac: neighbour_mac() }).only(MessageType::Decline);
    let mut bench = Bench::new(config);
    bench.acquire(|answer| answer);
    let release = bench.input(Input::Release).only(MessageType::Release);
    vec![
        ("discover", discover),
        ("request", request),
        ("renew", renew),
        ("rebind", rebind),
        ("reboot", reboot),
        ("decline", decline),
        ("release", release),
    ]
}

#[test]
fn the_client_id_is_the_same_in_every_message_or_absent_from_all() {
    let named = Config { hostname: Some("web".into()), ..Config::new(mac()) };
    let cases = [(Config::new(mac()), None), (named, Some(b"web".to_vec()))];
    for (config, expected) in cases {
        for (name, sent) in every_message(config) {
            assert_eq!(sent.client_id(), expected.as_deref(), "{name}");
        }
    }
}

#[test]
fn every_message_is_ours_from_our_mac_and_long_enough_for_bootp_relays() {
    for (name, sent) in every_message(Config::new(mac())) {
        assert_eq!(sent.source_mac, mac(), "{name}");
        assert_eq!(sent.message.chaddr(), mac().octets(), "{name}");
        assert_eq!((sent.message.opcode(), sent.message.htype()), (Opcode::BootRequest, HType::Eth), "{name}");
        assert!(sent.payload_bytes >= 300, "{name}");
    }
}

#[test]
fn messages_that_want_an_answer_say_what_they_want() {
    for (name, sent) in every_message(Config { hostname: Some("web".into()), ..Config::new(mac()) }) {
        let wants_answer = !matches!(sent.kind(), MessageType::Decline | MessageType::Release);
        assert_eq!(sent.has(OptionCode::ParameterRequestList), wants_answer, "{name}");
        assert_eq!(sent.has(OptionCode::Hostname), wants_answer, "{name}");
        let size = sent.message.opts().get(OptionCode::MaxMessageSize).cloned();
        assert_eq!(size, wants_answer.then_some(DhcpOption::MaxMessageSize(1500)), "{name}");
    }
}

#[test]
fn the_broadcast_flag_is_set_only_where_we_have_no_address() {
    for (name, sent) in every_message(Config { broadcast_flag: true, ..Config::new(mac()) }) {
        let expected = matches!(name, "discover" | "request" | "reboot");
        assert_eq!(sent.message.flags().broadcast(), expected, "{name}");
    }
    for (name, sent) in every_message(Config::new(mac())) {
        assert!(!sent.message.flags().broadcast(), "{name}");
    }
}

#[test]
fn the_longest_texts_fit() {
    let config = Config { hostname: Some("a".repeat(254)), ..Config::new(mac()) };
    for (name, sent) in every_message(config) {
        assert_eq!(sent.client_id().map(<[u8]>::len), Some(254), "{name}");
        assert!(sent.payload_bytes < 1200, "{name}: {}", sent.payload_bytes);
    }
}

#[test]
fn replies_that_are_not_for_us_are_ignored() {
    type Change = fn(ServerMessage) -> ServerMessage;
    let cases: [(&str, Change); 7] = [
        ("another transaction", |offer| {
            offer.with(|message| {
                message.set_xid(message.xid() ^ 1);
            })
        }),
        ("another MAC", |offer| {
            offer.with(|message| {
                message.set_chaddr(&[0, 0, 0x6c, 0xaa, 0xbb, 0xcd]);
            })
        }),
        ("a longer hardware address", |offer| {
            offer.with(|message| {
                message.set_chaddr(&[0, 0, 0x6c, 0xaa, 0xbb, 0xcc, 0]);
            })
        }),
        ("another hardware type", |offer| {
            offer.with(|message| {
                message.set_htype(HType::ExperimentalEth);
            })
        }),
        ("a request", |offer| {
            offer.with(|message| {
                message.set_opcode(Opcode::BootRequest);
            })
        }),
        ("no type", |offer| offer.without(OptionCode::MessageType)),
        ("an unauthenticated FORCERENEW", |offer| offer.option(DhcpOption::MessageType(MessageType::ForceRenew))),
    ];
    for (name, change) in cases {
        let mut bench = Bench::plain();
        let discover = bench.input(Input::Start).only(MessageType::Discover);
        let outs = bench.answer(change(ServerMessage::offer(&discover)));
        assert!(outs.0.is_empty(), "{name}: {outs:?}");
        bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
    }
}

#[test]
fn a_reply_without_the_magic_cookie_is_ignored() {
    let mut bench = Bench::plain();
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    let offer = ServerMessage::offer(&discover);
    let mut payload = offer.message.to_vec().unwrap();
    payload[236] ^= 1;
    bench.input(Input::Frame(&offer.frame_with_payload(&payload))).assert_nothing();
}

#[test]
fn options_continue_in_file_and_sname_when_overloaded() {
    let mut bench = Bench::plain();
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    let request = bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
    let ack = ServerMessage::ack(&request).without(OptionCode::AddressLeaseTime).without(OptionCode::ServerIdentifier);
    let ack = ack.option(DhcpOption::OptionOverload(3));
    let mut payload = ack.message.to_vec().unwrap();
    payload[108..115].copy_from_slice(&[51, 4, 0, 0, 0, 77, 255]);
    payload[44..51].copy_from_slice(&[54, 4, 10, 0, 0, 1, 255]);
    assert_eq!(bench.input(Input::Frame(&ack.frame_with_payload(&payload))).probe(), Some(ADDRESS));
    let outs = bench.input(Input::ProbeFree(ADDRESS));
    let lease = outs.bound().expect("bound");
    assert_eq!((lease.remaining(bench.now), lease.server_id), (Some(seconds(77.0)), SERVER));
}

#[test]
fn odd_options_of_a_server_do_not_hide_the_good_ones() {
    // A decoder that stops at the first odd option would miss the lease time behind them.
    let mut bench = Bench::plain();
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    let request = bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
    let ack = ServerMessage::ack(&request);
    let mut payload = ack.message.to_vec().unwrap();
    payload.truncate(240);
    let options: [&[u8]; 9] = [
        &[53, 1, 5],
        &[1, 3, 255, 255, 255],    // a netmask of three bytes
        &[15, 2, 0xff, 0xfe],      // a domain name that is not UTF-8
        &[3, 5, 10, 0, 0, 254, 9], // a router and a rest
        &[80, 1, 0],               // rapid commit with a value
        &[37, 1, 64],              // default TCP TTL
        &[54, 4, 10, 0, 0, 1],
        &[51, 4, 0, 0, 0, 77],
        &[0, 0, 255],
    ];
    payload.extend(options.concat());
    bench.input(Input::Frame(&ack.frame_with_payload(&payload)));
    let outs = bench.input(Input::ProbeFree(ADDRESS));
    let lease = outs.bound().expect("bound");
    assert_eq!((lease.remaining(bench.now), lease.network), (Some(seconds(77.0)), None));
    assert_eq!(lease.routers, [Ipv4Addr::new(10, 0, 0, 254)]);
}

#[test]
fn a_servers_words_are_made_safe_to_print() {
    let mut bench = Bench::plain();
    let discover = bench.input(Input::Start).only(MessageType::Discover);
    let request = bench.answer(ServerMessage::offer(&discover)).only(MessageType::Request);
    let text = format!("  no\n\u{1b}[31mway {}", "x".repeat(200));
    let outs = bench.answer(ServerMessage::nak(&request).option(DhcpOption::Message(text)));
    let said = outs.reports()[0].to_string();
    assert!(said.contains("no[31mway xxx") && said.len() < 300 && !said.contains('\n'), "{said}");
}
