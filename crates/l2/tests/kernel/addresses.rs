//! Addresses with a deadline, and the reports about them.

use std::time::{Duration, Instant};

use futures::{FutureExt, StreamExt};
use ipnet::IpNet;
use l2::netlink::{Address, AddressLifetime, Change, Changes, NewAddress};

use crate::lan::{Lan, PATIENCE, SILENCE, Side, eventually, on_a_lan, reported};

fn net(text: &str) -> IpNet {
    text.parse().expect("a network")
}

async fn find(side: &Side, net: IpNet) -> Option<Address> {
    let addresses = side.netlink.addresses(Some(side.index)).await.expect("addresses");
    addresses.into_iter().find(|address| address.net == net)
}

/// Removes one address. Returns true if it existed.
async fn remove(side: &Side, interface: u32, net: IpNet) -> bool {
    let mut results = side.netlink.remove_addresses(&[(interface, net)]).await;
    results.pop().expect("one result").expect("remove")
}

#[test]
fn the_kernel_removes_an_address_at_its_deadline_and_says_so() {
    on_a_lan(async |Lan { near, .. }| {
        for vip in [net("192.0.2.10/32"), net("2001:db8::a/128")] {
            let mut changes = Changes::subscribe().expect("changes");
            let set = Instant::now();
            let lifetime = AddressLifetime::For(Duration::from_secs(1));
            near.netlink.set_address(near.index, vip, lifetime).await.expect("set");
            let address = find(&near, vip).await.expect("it is there");
            assert!(address.is_ours());
            assert!(
                matches!(address.valid, AddressLifetime::For(left) if left <= Duration::from_secs(1)),
                "{address:?}"
            );
            reported(&mut changes, "address gone", async || find(&near, vip).await.is_none()).await;
            assert!(set.elapsed() >= Duration::from_millis(950), "{:?} is too early", set.elapsed());
        }
    });
}

#[test]
fn addresses_of_ours_wake_nobody_while_they_are_there_and_those_of_others_do() {
    on_a_lan(async |Lan { near, .. }| {
        let (ours, plain) = ([net("192.0.2.10/32"), net("2001:db8::a/128")], ["192.0.2.11/32", "2001:db8::b/128"]);
        // Routes come with an address, but not with its extension.
        for vip in ours {
            near.netlink.set_address(near.index, vip, AddressLifetime::For(Duration::from_mins(1))).await.expect("set");
        }
        let mut changes = Changes::subscribe().expect("changes");
        for vip in ours {
            for _ in 0..100 {
                let lifetime = AddressLifetime::For(Duration::from_mins(1));
                near.netlink.set_address(near.index, vip, lifetime).await.expect("extend");
            }
        }
        // A link that settles may be reported meanwhile.
        let mut reports = 0;
        while tokio::time::timeout(SILENCE, changes.next()).await.is_ok() {
            reports += 1;
        }
        assert!(reports < 20, "{reports} reports of 200 extensions");
        for other in plain {
            near.plain_address(other).await;
            let next = tokio::time::timeout(PATIENCE, changes.next()).await;
            assert_eq!(next.expect(other), Some(Change::Reported));
            while changes.next().now_or_never().is_some() {}
        }
        for vip in ours {
            assert!(remove(&near, near.index, vip).await);
            let next = tokio::time::timeout(PATIENCE, changes.next()).await;
            assert_eq!(next.expect("one that is gone is reported"), Some(Change::Reported));
            while changes.next().now_or_never().is_some() {}
        }
    });
}

#[test]
fn setting_an_address_again_extends_its_life() {
    on_a_lan(async |Lan { near, .. }| {
        let mut changes = Changes::subscribe().expect("changes");
        let (kept, dropped) = ([net("192.0.2.10/32"), net("2001:db8::a/128")], net("192.0.2.11/32"));
        for vip in [kept[0], kept[1], dropped] {
            let lifetime = AddressLifetime::For(Duration::from_secs(1));
            near.netlink.set_address(near.index, vip, lifetime).await.expect("set");
        }
        for vip in kept {
            let lifetime = AddressLifetime::For(Duration::from_mins(1));
            near.netlink.set_address(near.index, vip, lifetime).await.expect("extend");
        }
        // The one that is not extended tells when the others would be gone.
        reported(&mut changes, "address gone", async || find(&near, dropped).await.is_none()).await;
        for vip in kept {
            let address = find(&near, vip).await.expect("still there");
            assert!(address.is_ours(), "the mark is kept: {address:?}");
            assert!(
                matches!(address.valid, AddressLifetime::For(left) if left > Duration::from_secs(30)),
                "{address:?}"
            );
        }
    });
}

#[test]
fn three_hundred_addresses_are_set_in_one_request_and_one_that_is_refused_keeps_none_of_the_others_back() {
    on_a_lan(async |Lan { near, .. }| {
        let long = AddressLifetime::For(Duration::from_mins(1));
        let vip = |n: u32| IpNet::new(std::net::Ipv4Addr::from(0xac1f_0000 + n).into(), 32).expect("a host");
        let of = |interface, net| NewAddress { interface, net, valid: long, metric: None };
        let mut wanted: Vec<_> = (1..=300).map(|n| of(near.index, vip(n))).collect();
        wanted.insert(150, of(u32::MAX >> 1, net("192.0.2.99/32")));
        wanted.push(of(near.index, net("2001:db8::a/128")));
        // Setting is extending: the second time everything is there.
        for _ in 0..2 {
            let results = near.netlink.set_addresses(&wanted).await;
            assert_eq!(results.len(), 302);
            let refused: Vec<usize> =
                results.iter().enumerate().filter(|(_, result)| result.is_err()).map(|(at, _)| at).collect();
            assert_eq!(refused, [150]);
            let error = results.into_iter().nth(150).expect("counted").expect_err("no such interface");
            assert_eq!(error.to_string(), "failed to set address 192.0.2.99/32 on interface 2147483647");
            assert_eq!(error.raw_os_error(), Some(19), "ENODEV");
            let here = near.netlink.addresses(Some(near.index)).await.expect("addresses");
            assert_eq!(here.iter().filter(|address| address.is_ours()).count(), 301);
        }
        assert!(near.netlink.set_addresses(&[]).await.is_empty());
        let all_refused: Vec<_> = (1..=300).map(|n| of(u32::MAX >> 1, vip(n))).collect();
        let results = near.netlink.set_addresses(&all_refused).await;
        assert!(results.iter().all(|result| result.as_ref().is_err_and(|error| error.raw_os_error() == Some(19))));
    });
}

#[test]
fn an_address_of_ours_is_never_a_source_address_and_ready_at_once() {
    on_a_lan(async |Lan { near, .. }| {
        for vip in [net("192.0.2.10/32"), net("2001:db8::a/128"), net("192.0.2.20/24")] {
            near.netlink.set_address(near.index, vip, AddressLifetime::Forever).await.expect("set");
            let address = find(&near, vip).await.expect("it is there");
            assert_eq!(address.valid, AddressLifetime::Forever, "{vip}");
            assert_eq!(address.preferred, AddressLifetime::For(Duration::ZERO), "{vip}");
            assert_eq!((address.duplicate, address.nodad), (false, vip.addr().is_ipv6()), "{vip}");
            // Usable at once, but for the kernel's worker that an IPv6 address is handed to.
            eventually("it is usable", async || find(&near, vip).await.is_some_and(|address| !address.tentative)).await;
        }
    });
}

#[test]
fn foreign_addresses_do_not_carry_our_mark() {
    on_a_lan(async |Lan { near, .. }| {
        near.plain_address("192.0.2.1/24").await;
        let address = find(&near, net("192.0.2.1/24")).await.expect("it is there");
        assert!(!address.is_ours());
        assert_eq!(address.valid, AddressLifetime::Forever);
        let all = near.netlink.addresses(None).await.expect("addresses");
        assert!(all.iter().all(|address| !address.is_ours()), "{all:?}");
    });
}

#[test]
fn removing_what_is_not_there_is_success() {
    on_a_lan(async |Lan { near, .. }| {
        for vip in [net("192.0.2.10/32"), net("2001:db8::a/128")] {
            near.netlink.set_address(near.index, vip, AddressLifetime::Forever).await.expect("set");
            assert!(remove(&near, near.index, vip).await);
            assert_eq!(find(&near, vip).await, None);
            assert!(!remove(&near, near.index, vip).await);
            assert!(!remove(&near, 9999, vip).await);
        }
    });
}

#[test]
fn many_are_removed_together_and_one_that_is_missing_keeps_none_of_the_others() {
    on_a_lan(async |Lan { near, .. }| {
        let vips: Vec<IpNet> = (1..=200).map(|last| net(&format!("192.0.2.{last}/32"))).collect();
        for vip in vips.iter().filter(|vip| **vip != net("192.0.2.7/32")) {
            near.netlink.set_address(near.index, *vip, AddressLifetime::Forever).await.expect("set");
        }
        let unwanted: Vec<(u32, IpNet)> = vips.iter().map(|vip| (near.index, *vip)).collect();
        let existed: Vec<bool> =
            near.netlink.remove_addresses(&unwanted).await.into_iter().map(|result| result.expect("remove")).collect();
        assert_eq!(existed.iter().filter(|existed| !**existed).count(), 1);
        assert!(!existed[6], "the missing one");
        let left = near.netlink.addresses(Some(near.index)).await.expect("addresses");
        assert!(left.iter().all(|address| !vips.contains(&address.net)), "{left:?}");
    });
}

#[test]
fn another_prefix_length_is_another_address() {
    on_a_lan(async |Lan { near, .. }| {
        let (host, subnet) = (net("192.0.2.10/32"), net("192.0.2.10/24"));
        near.netlink.set_address(near.index, host, AddressLifetime::Forever).await.expect("set");
        assert!(!remove(&near, near.index, subnet).await);
        assert!(find(&near, host).await.is_some());
    });
}

#[test]
fn an_error_says_what_was_tried_and_why_not() {
    on_a_lan(async |Lan { near, .. }| {
        let vip = net("192.0.2.10/32");
        let error = near.netlink.set_address(9999, vip, AddressLifetime::Forever).await.expect_err("no such interface");
        assert_eq!(error.to_string(), "failed to set address 192.0.2.10/32 on interface 9999");
        let source = std::error::Error::source(&error).expect("a cause").to_string();
        assert!(source.contains("No such device"), "{source}");
        assert_eq!(error.raw_os_error(), Some(19));
    });
}

#[test]
fn who_reads_changes_too_slowly_is_told_to_read_everything_again() {
    on_a_lan(async |Lan { near, .. }| {
        let mut changes = Changes::subscribe().expect("changes");
        // Nobody polls the stream meanwhile.
        for _ in 0..2500 {
            near.plain_address("192.0.2.10/32").await;
            assert!(remove(&near, near.index, net("192.0.2.10/32")).await);
        }
        let missed = async { while changes.next().await.expect("the stream goes on") != Change::Missed {} };
        tokio::time::timeout(PATIENCE, missed).await.expect("it is told");
        while changes.next().now_or_never().is_some() {}
        near.plain_address("192.0.2.11/32").await;
        let next = tokio::time::timeout(PATIENCE, changes.next()).await;
        assert_eq!(next.expect("reports go on"), Some(Change::Reported));
    });
}
