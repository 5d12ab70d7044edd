//! Leases over the life of a Service, on a real kernel.

use std::time::{Duration, Instant};

use announcer_core::ownership::LeaseState;

use crate::bench::{Bench, macvlan, on_a_bench};
use crate::dhcp::{DHCP, RANGE, leased, started};
use crate::fresh_namespace::shell;
use crate::short_leases::{ShortLeases, Times};

#[test]
fn a_short_lease_is_kept_for_many_lease_times_by_renewals_alone() {
    on_a_bench(async |bench| {
        let times = Times { t1: 2, t2: 10, lease: 14 };
        let server = ShortLeases::serve(bench, "10.77.0.100".parse().unwrap(), times);
        let begun = Instant::now();
        let address = started(bench, "lan").await;
        bench
            .always("it stays", Duration::from_secs(42), |bench| {
                bench.vips() == [format!("{} {address}/32", macvlan("lan"))]
            })
            .await;
        let (discovers, requests) = server.asked();
        let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap();
        assert_eq!(discovers, 1, "by renewals alone");
        // The first one grants it. Twenty renewals, fewer if the machine stood still, and each may be asked for twice.
        let renewals = requests - 1;
        assert!((seconds / 14..=seconds + 2).contains(&renewals), "at T1: {renewals} in {seconds} s");
        // Two at the start, one to spare, and then one in eight seconds or more, for a successor.
        let writes = bench.api.writes.lock();
        assert!(writes.len() <= 3 + seconds / 8, "no write per renewal: {writes:?} in {seconds} s");
    });
}

#[test]
fn an_ack_of_another_address_moves_everything_to_it() {
    on_a_bench(async |bench| {
        let times = Times { t1: 2, t2: 20, lease: 30 };
        let server = ShortLeases::serve(bench, "10.77.0.100".parse().unwrap(), times);
        assert_eq!(started(bench, "lan").await, "10.77.0.100");
        server.give("10.77.0.101".parse().unwrap());
        let alone = [format!("{} 10.77.0.101/32", macvlan("lan"))];
        bench
            .eventually("it has the other one, and no other", |bench| {
                leased(bench, "lan").as_deref() == Some("10.77.0.101") && bench.vips() == alone
            })
            .await;
        assert_eq!(bench.api.annotation("lan", "kube-vip.io/requestedIP"), "10.77.0.101");
        assert!(bench.api.annotation("lan", "cloudprovider.harvesterhci.io/dhcp-lease").contains("10.77.0.101"));
        let told = bench.told("DHCPAddressChanged").unwrap_or_default();
        assert!(told.contains("10.77.0.100") && told.contains("10.77.0.101"), "{told}");
    });
}

#[test]
fn an_outage_of_the_server_that_outlives_t2_but_not_the_lease_costs_nothing() {
    on_a_bench(async |bench| {
        // From T2 on it asks at half of what remains: after 8, 17 and 21 s, and so on.
        let times = Times { t1: 4, t2: 8, lease: 26 };
        let server = ShortLeases::serve(bench, "10.77.0.100".parse().unwrap(), times);
        let begun = Instant::now();
        let address = started(bench, "lan").await;
        server.be_silent(true);
        let same = |bench: &Bench| leased(bench, "lan").as_deref() == Some(address.as_str());
        bench.always("it stays without a server", Duration::from_secs(10).saturating_sub(begun.elapsed()), same).await;
        let told = bench.told("DHCPNoAnswer").unwrap_or_default();
        assert!(told.contains("is not renewed"), "{told}");
        server.be_silent(false);
        let beyond = Duration::from_secs(30).saturating_sub(begun.elapsed());
        bench.always("it stays beyond the end of the first lease", beyond, same).await;
        assert_eq!(server.asked().0, 1, "no new lease");
        assert!(bench.told("DHCPLeaseLost").is_none());
    });
}

#[test]
fn a_server_that_moves_to_another_subnet_takes_the_service_with_it() {
    on_a_bench(async |bench| {
        bench.serve(&format!("{RANGE} --dhcp-option=58,2s --dhcp-option=59,4s"));
        let old = started(bench, "lan").await;
        bench.forget();
        bench.at_server("ip", "addr del 10.77.0.1/24 dev s0");
        bench.at_server("ip", "addr add 10.78.0.1/24 dev s0");
        bench.serve("--dhcp-range=10.78.0.100,10.78.0.110,2m --dhcp-authoritative");
        bench
            .eventually("it has one of the new subnet", |bench| {
                leased(bench, "lan").is_some_and(|new| new.starts_with("10.78.0."))
            })
            .await;
        let new = leased(bench, "lan").unwrap();
        assert_eq!(bench.vips(), [format!("{} {new}/32", macvlan("lan"))]);
        assert!(bench.told("DHCPLeaseLost").is_some_and(|text| text.contains(&old)));
    });
}

#[test]
fn a_cable_that_is_pulled_and_plugged_in_again_confirms_the_lease_without_a_new_one() {
    on_a_bench(async |bench| {
        bench.serve(RANGE);
        let address = started(bench, "lan").await;
        let acks = bench.log().matches("DHCPACK(").count();
        bench.at_server("ip", "link set s0 down");
        let same = |bench: &Bench| leased(bench, "lan").as_deref() == Some(address.as_str());
        bench.always("it stays", Duration::from_secs(3), same).await;
        bench.at_server("ip", "link set s0 up");
        bench
            .eventually("it is confirmed, long before T1", |bench| bench.log().matches("DHCPACK(").count() > acks)
            .await;
        // Set down on our side: the kernel keeps the address of the macvlan, the socket reports it.
        let acks = bench.log().matches("DHCPACK(").count();
        shell("ip", &format!("link set {} down", macvlan("lan")));
        tokio::time::sleep(Duration::from_millis(500)).await;
        shell("ip", &format!("link set {} up", macvlan("lan")));
        bench
            .eventually("it is confirmed again", |bench| bench.log().matches("DHCPACK(").count() > acks && same(bench))
            .await;
        assert_eq!(bench.log().matches("DHCPDISCOVER(").count(), 1, "by INIT-REBOOT");
        assert!(bench.told("CannotAnnounce").is_none(), "{:?}", bench.told("CannotAnnounce"));
    });
}

#[test]
fn another_mac_gives_the_old_lease_back_and_gets_one_of_its_own() {
    on_a_bench(async |bench| {
        bench.serve(RANGE);
        started(bench, "lan").await;
        let old = bench.api.annotation("lan", "kube-vip.io/hwaddr");
        bench.annotate("lan", "kube-vip.io/hwaddr", "00:00:6c:00:00:77");
        bench
            .eventually("the new one has a lease and the old one none", |bench| {
                let leases = bench.leases();
                leased(bench, "lan").is_some() && leases.contains("00:00:6c:00:00:77") && !leases.contains(&old)
            })
            .await;
        assert!(bench.log().contains("DHCPRELEASE"));
        assert_eq!(bench.vips().len(), 1);
    });
}

#[test]
fn a_restart_without_the_api_keeps_a_leased_address_longer_than_the_kernels_deadline() {
    on_a_bench(async |bench| {
        bench.serve(RANGE);
        let address = started(bench, "lan").await;
        let alias = shell("ip", &format!("link show {}", macvlan("lan")));
        assert!(alias.contains(" until "), "{alias}");
        bench.kill().await;
        bench.start_without_api();
        let on_link = format!("{} {address}/32", macvlan("lan"));
        bench.always("it stays", Duration::from_secs(16), |bench| bench.vips().contains(&on_link)).await;
        // The API is back.
        bench.sync(LeaseState::Held { confirmed: true });
        bench.always("it is adopted", Duration::from_secs(3), |bench| bench.vips().contains(&on_link)).await;
    });
}

#[test]
fn two_hundred_services_get_two_hundred_leases() {
    on_a_bench(async |bench| {
        bench.serve("--dhcp-range=10.77.0.10,10.77.0.250,2m --dhcp-authoritative --dhcp-lease-max=1000");
        let names: Vec<String> = (0..200).map(|number| format!("{number:03}x")).collect();
        for name in &names {
            bench.create(name, &DHCP);
        }
        bench.start();
        // What is up stays up while the others are still being made: deadlines are put off first.
        for count in [50, 100, 150, 200] {
            bench.eventually("more have one of their own", |bench| bench.api.count_published() >= count).await;
            assert!(bench.vips().len() >= count, "{:?}", bench.vips());
        }
        let mut addresses: Vec<String> = names.iter().flat_map(|name| bench.api.published(name)).collect();
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), 200);
        bench.delete("007x");
        bench
            .eventually("one is given back and the others stay", |bench| {
                bench.vips().len() == 199 && bench.leases().lines().count() == 199
            })
            .await;
    });
}
