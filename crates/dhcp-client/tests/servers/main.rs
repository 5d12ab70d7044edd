//! The client against the DHCP servers of the field, dnsmasq, Kea, ISC and udhcpd, over a cable between two fresh
//! network namespaces and through a real packet socket. Needs root and the servers; without them it says so and passes,
//! unless `HCP_REQUIRE_ROOT=1` demands that it runs.
//!
//! The client's clock is moved by hand, so a lease of two minutes takes no time.

#[path = "../../../l2/tests/kernel/fresh_namespace.rs"]
mod fresh_namespace;
mod lan;
mod server;

use std::net::Ipv4Addr;

use dhcp_client::{Client, Config, Input, LostReason, Mac, Output, State};

use crate::lan::{HERE, Lan, SERVER, config, on_a_lan};
use crate::server::{Kind, SETUP, Setup};

/// Every test, with every server.
macro_rules! with_each_server {
    ($($(#[$doc:meta])* $test:ident)*) => {
        with_each_server! { [dnsmasq Dnsmasq, kea Kea, isc Isc, udhcpd Udhcpd] { $($test)* } }
    };
    ([$($module:ident $kind:ident),*] $tests:tt) => { $(mod $module { with_each_server! { @ $kind $tests } })* };
    (@ $kind:ident { $($test:ident)* }) => {
        $(#[test] fn $test() { super::on_a_lan(super::Kind::$kind, super::$test); })*
    };
}

with_each_server! {
    a_lease_is_got_renewed_rebound_and_released
    a_successor_comes_back_by_init_reboot
    a_renewal_outside_the_range_leads_to_what_the_server_has_now
    a_server_that_moved_to_another_subnet_takes_the_client_with_it_by_a_reboot
    a_server_that_moved_to_another_subnet_takes_the_client_with_it_by_a_rebind
    a_server_that_lost_its_book_gives_the_same_address_again
    a_declined_address_is_not_given_again
    a_name_of_one_letter_gets_a_lease
}

const OTHER_RANGE: Setup = Setup { range: (200, 210), authoritative: true, ..SETUP };

async fn a_lease_is_got_renewed_rebound_and_released(lan: &mut Lan) {
    lan.serve(Setup { range: (100, 100), ..SETUP });
    let address = lan.bind().await;
    assert_eq!(address.octets(), [10, 77, HERE, 100]);
    let lease = lan.client.lease().expect("a lease").clone();
    assert_eq!((lease.server_id, lease.network), (SERVER, Some(format!("{address}/24").parse().expect("a network"))));
    if let Some(client_id) = lan.kind.client_id() {
        lan.eventually("kube-vip's client id is in the book", |lan| lan.book().contains(client_id));
    }

    lan.sleep().await;
    assert_eq!(lan.client.state(), State::Renewing);
    lan.hear_until(State::Bound).await;
    assert!(lan.client.lease().expect("a lease").since > lease.since);

    while lan.client.state() != State::Rebinding {
        lan.sleep().await; // deaf to the answers
    }
    lan.hear_until(State::Bound).await;
    assert_eq!((lan.address(), lan.lost()), (address, vec![]));

    // The only address that there is.
    lan.feed(Input::Release).await;
    lan.client_is(Config { hostname: Some("other".into()), ..Config::new(Mac::from([0, 0, 0x6c, 9, 9, 9])) });
    assert_eq!(lan.bind().await, address, "it was given back");
}

async fn a_successor_comes_back_by_init_reboot(lan: &mut Lan) {
    lan.serve(SETUP);
    let address = lan.bind().await;
    let memory = lan.client.lease().expect("a lease").remember();
    lan.client_is(Config { remembered: Some(memory), ..config() });
    lan.feed(Input::Start).await;
    assert_eq!((lan.address(), lan.client.state()), (address, State::Rebooting), "in use at once");
    lan.hear_until(State::Bound).await;
    assert!(matches!(lan.said.last(), Some(Output::Renewed(lease)) if lease.address == address));
}

/// Until it has another address than `old`.
async fn moved(lan: &mut Lan, old: Ipv4Addr) {
    let another = |client: &Client| client.lease().is_some_and(|lease| lease.address != old);
    lan.go_on_until("another address", |client| client.state() == State::Bound && another(client)).await;
}

async fn a_renewal_outside_the_range_leads_to_what_the_server_has_now(lan: &mut Lan) {
    lan.serve(SETUP);
    let old = lan.bind().await;
    lan.forget();
    lan.serve(OTHER_RANGE);
    lan.sleep().await;
    assert_eq!(lan.client.state(), State::Renewing);
    moved(lan, old).await;
    assert!(lan.address().octets()[3] >= 200, "{}", lan.address());
    refused_or_silent(lan);
}

/// What the servers do about somebody who uses an address that is not theirs to give: dnsmasq refuses; the others say
/// nothing, although they were told that they are authoritative, so the lease ends at its time.
fn refused_or_silent(lan: &Lan) {
    let lost = lan.lost();
    match lan.kind {
        Kind::Dnsmasq => assert!(matches!(lost[..], [LostReason::Nak { .. }]), "{lost:?}"),
        Kind::Kea | Kind::Isc | Kind::Udhcpd => assert!(matches!(lost[..], [LostReason::Expired]), "{lost:?}"),
    }
}

async fn a_server_that_moved_to_another_subnet_takes_the_client_with_it_by_a_reboot(lan: &mut Lan) {
    to_another_subnet(lan, State::Rebooting).await;
}

async fn a_server_that_moved_to_another_subnet_takes_the_client_with_it_by_a_rebind(lan: &mut Lan) {
    to_another_subnet(lan, State::Rebinding).await;
}

/// The server has another address too, so it is not the one that granted the lease.
async fn to_another_subnet(lan: &mut Lan, by: State) {
    lan.serve(SETUP);
    let old = lan.bind().await;
    lan.forget();
    lan.move_server(HERE + 1);
    lan.serve(Setup { subnet: HERE + 1, authoritative: true, ..SETUP });
    // The cable was pulled and plugged in again: INIT-REBOOT. Or nobody has told, and the old address of the server is
    // silent: REBIND.
    if by == State::Rebooting {
        lan.feed(Input::LinkLost).await;
        lan.feed(Input::Restart).await;
    }
    lan.go_on_until("the question", |client| client.state() == by).await;
    moved(lan, old).await;
    if by == State::Rebooting {
        assert!(matches!(lan.lost()[..], [LostReason::Nak { .. }]), "{:?}", lan.lost());
    } else {
        refused_or_silent(lan);
    }
    assert_eq!(lan.address().octets()[2], HERE + 1, "{}", lan.address());
}

async fn a_server_that_lost_its_book_gives_the_same_address_again(lan: &mut Lan) {
    lan.serve(SETUP);
    let address = lan.bind().await;
    lan.forget();
    lan.serve(SETUP);
    lan.feed(Input::Restart).await;
    lan.go_on_until("it is confirmed", |client| client.state() == State::Bound).await;
    assert_eq!(lan.address(), address);
    match (lan.kind, &lan.lost()[..]) {
        (Kind::Udhcpd, [LostReason::Nak { .. }]) => {} // it refuses what it does not know, and then gives it
        (_, lost) => assert!(lost.is_empty(), "{lost:?}"),
    }
}

async fn a_declined_address_is_not_given_again(lan: &mut Lan) {
    lan.serve(SETUP);
    let neighbour = Mac::from([2, 0, 0, 0, 0, 9]);
    lan.neighbour = Some(neighbour);
    lan.feed(Input::Start).await;
    lan.hear_until(State::Declined).await;
    let declined = lan.said.iter().find_map(|output| match output {
        Output::Probe(address) => Some(*address),
        _ => None,
    });
    lan.neighbour = None;
    lan.sleep().await;
    lan.hear_until(State::Bound).await;
    assert_ne!(Some(lan.address()), declined);
}

/// RFC 2132 9.14: option 61 has two bytes at least.
async fn a_name_of_one_letter_gets_a_lease(lan: &mut Lan) {
    lan.serve(SETUP);
    lan.client_is(Config { hostname: Some("w".into()), ..config() });
    lan.bind().await;
}
