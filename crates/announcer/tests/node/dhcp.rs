use std::time::Duration;

use announcer_core::engine::Input;
use announcer_core::ownership::LeaseState;

use crate::bench::{Bench, macvlan, on_a_bench};
use crate::fresh_namespace::shell;

pub const RANGE: &str = "--dhcp-range=10.77.0.100,10.77.0.110,2m --dhcp-authoritative";
pub const DHCP: [(&str, &str); 1] = [("kube-vip.io/loadbalancerIPs", "0.0.0.0")];

pub fn leased(bench: &Bench, name: &str) -> Option<String> {
    let published = bench.api.published(name);
    let on_link = published.first().map(|ip| format!("{} {ip}/32", macvlan(name)));
    published.first().cloned().filter(|_| bench.vips().contains(&on_link.unwrap_or_default()))
}

pub async fn started(bench: &mut Bench, name: &str) -> String {
    bench.create(name, &DHCP);
    bench.start();
    bench.eventually("it has an address", |bench| leased(bench, name).is_some()).await;
    leased(bench, name).expect("it was just there")
}

#[test]
fn a_service_gets_a_lease_on_its_own_macvlan_with_two_writes() {
    on_a_bench(async |bench| {
        bench.serve(RANGE);
        let address = started(bench, "lan").await;
        let link = shell("ip", &format!("-d -o link show {}", macvlan("lan")));
        assert!(link.contains("macvlan mode bridge"), "{link}");
        let mac = bench.api.annotation("lan", "kube-vip.io/hwaddr");
        assert!(mac.starts_with("02:") && link.contains(&mac), "{link}");
        assert_eq!(bench.api.annotation("lan", "kube-vip.io/requestedIP"), address);
        assert!(bench.leases().contains(&mac) && bench.leases().contains(&address));
        assert_eq!(*bench.api.writes.lock(), ["lan", "lan/status"]);
        bench
            .eventually("only the macvlan answers, not the node's own interface", |bench| {
                bench.neighbour(&address).contains(&mac)
            })
            .await;
    });
}

#[test]
fn two_services_are_independent_of_each_other() {
    on_a_bench(async |bench| {
        bench.serve(RANGE);
        let first = started(bench, "a").await;
        bench.create("b", &DHCP);
        bench.eventually("the second has one", |bench| leased(bench, "b").is_some()).await;
        assert_ne!(Some(first), leased(bench, "b"));
        bench.delete("a");
        bench
            .eventually("only the first is gone", |bench| bench.vips().len() == 1 && leased(bench, "b").is_some())
            .await;
    });
}

#[test]
fn the_lease_is_renewed_in_time_by_unicast() {
    on_a_bench(async |bench| {
        bench.serve(&format!("{RANGE} --dhcp-option=59,4s"));
        let address = started(bench, "lan").await;
        let acks = |bench: &Bench| bench.log().matches("DHCPACK(").count();
        bench.eventually("it was renewed twice", |bench| acks(bench) >= 3).await;
        assert_eq!(leased(bench, "lan"), Some(address));
        assert_eq!(bench.log().matches("DHCPDISCOVER(").count(), 1, "by REQUEST alone");
        assert_eq!(bench.api.writes.lock().len(), 2, "no write per renewal");
    });
}

#[test]
fn an_address_that_the_server_takes_back_is_replaced_everywhere() {
    on_a_bench(async |bench| {
        bench.serve(&format!("{RANGE} --dhcp-option=59,4s"));
        let old = started(bench, "lan").await;
        bench.forget();
        bench.serve("--dhcp-range=10.77.0.200,10.77.0.210,2m --dhcp-authoritative");
        bench
            .eventually("it has another one", |bench| {
                leased(bench, "lan").is_some_and(|new| new.starts_with("10.77.0.2"))
            })
            .await;
        let new = leased(bench, "lan").unwrap();
        assert_ne!(new, old);
        assert_eq!(bench.vips(), [format!("{} {new}/32", macvlan("lan"))]);
        assert_eq!(bench.api.published("lan"), std::slice::from_ref(&new));
        assert_eq!(bench.api.annotation("lan", "kube-vip.io/requestedIP"), new);
        assert!(bench.log().contains("DHCPNAK"));
        assert!(bench.told("DHCPLeaseLost").is_some_and(|text| text.contains(&old)));
    });
}

#[test]
fn an_offered_address_that_somebody_uses_is_declined() {
    on_a_bench(async |bench| {
        // The cable's other end answers ARP for it, though dnsmasq does not know.
        bench.at_server("ip", "addr add 10.77.0.100/32 dev lo");
        bench.serve("--dhcp-range=10.77.0.100,10.77.0.101,2m --dhcp-authoritative --dhcp-sequential-ip");
        let address = started(bench, "lan").await;
        assert_eq!(address, "10.77.0.101");
        assert!(bench.log().contains("DHCPDECLINE"), "{}", bench.log());
        assert!(
            bench.told("AddressConflict").is_some_and(|text| text.contains("10.77.0.100")),
            "{:?}",
            bench.reasons()
        );
    });
}

#[test]
fn a_server_that_is_away_is_told_and_waited_for() {
    on_a_bench(async |bench| {
        bench.create("lan", &DHCP);
        bench.create("web", &[("kube-vip.io/loadbalancerIPs", "10.77.0.50")]);
        bench.start();
        bench
            .eventually("the other Service is not held up", |bench| bench.api.published("web") == ["10.77.0.50"])
            .await;
        bench.eventually("it is told", |bench| bench.told("DHCPNoAnswer").is_some()).await;
        let text = bench.told("DHCPNoAnswer").unwrap();
        assert!(text.contains("no DHCP server answered") && text.contains("eth0"), "{text}");
        bench.serve(RANGE);
        bench.eventually("it has an address", |bench| leased(bench, "lan").is_some()).await;
    });
}

#[test]
fn the_lease_is_given_back_when_the_service_goes() {
    on_a_bench(async |bench| {
        bench.serve(RANGE);
        let address = started(bench, "lan").await;
        bench.delete("lan");
        bench.eventually("the server has it back", |bench| !bench.leases().contains(&address)).await;
        bench
            .eventually("nothing is left", |bench| {
                !shell("ip", "-o link show").contains("vip-") && bench.vips().is_empty()
            })
            .await;
        assert!(bench.log().contains("DHCPRELEASE"));
    });
}

#[test]
fn the_lease_is_kept_for_the_successor_when_the_ownership_is_lost() {
    on_a_bench(async |bench| {
        bench.serve(RANGE);
        let address = started(bench, "lan").await;
        bench.feed(Input::Lease(LeaseState::Other("node-2".into())));
        bench.eventually("nothing is left here", |_| !shell("ip", "-o link show").contains("vip-")).await;
        assert!(bench.leases().contains(&address) && !bench.log().contains("DHCPRELEASE"));
        bench.feed(Input::Lease(LeaseState::Held { confirmed: true }));
        bench
            .eventually("the same address is back", |bench| leased(bench, "lan").as_deref() == Some(address.as_str()))
            .await;
        assert_eq!(bench.log().matches("DHCPDISCOVER(").count(), 1, "by INIT-REBOOT");
    });
}

#[test]
fn a_killed_process_is_followed_by_one_that_adopts() {
    on_a_bench(async |bench| {
        bench.serve(RANGE);
        let address = started(bench, "lan").await;
        let index = shell("ip", &format!("-o link show {}", macvlan("lan")));
        bench.kill().await;
        let writes = bench.api.writes.lock().len();
        bench.start();
        let same = |bench: &Bench| leased(bench, "lan").as_deref() == Some(address.as_str());
        bench.always("it stays on", Duration::from_secs(3), same).await;
        let after = shell("ip", &format!("-o link show {}", macvlan("lan")));
        assert_eq!(index.split(':').next(), after.split(':').next(), "the same macvlan");
        assert_eq!(bench.api.writes.lock().len(), writes);
    });
}

#[test]
fn a_missing_interface_is_named_and_used_when_it_appears() {
    on_a_bench(async |bench| {
        bench.serve(RANGE);
        bench.create("lan", &[DHCP[0], ("kube-vip.io/serviceInterface", "lan0")]);
        bench.start();
        bench.eventually("it is told", |bench| bench.told("CannotAnnounce").is_some()).await;
        let text = bench.told("CannotAnnounce").unwrap();
        assert!(
            text.contains("kube-vip.io/serviceInterface") && text.contains("lan0") && text.contains("eth0"),
            "{text}"
        );
        shell("ip", "link set eth0 down");
        shell("ip", "link set eth0 name lan0");
        shell("ip", "link set lan0 up");
        bench.eventually("it has an address", |bench| leased(bench, "lan").is_some()).await;
    });
}

#[test]
fn a_bridge_is_not_deleted_for_a_macvlans_name() {
    on_a_bench(async |bench| {
        shell("ip", "link add cni0 type bridge");
        let before = shell("ip", "-o link show cni0");
        bench.serve(RANGE);
        bench.create("lan", &[DHCP[0], ("kube-vip.io/macvlanName", "cni0")]);
        bench.start();
        bench.eventually("it is told", |bench| bench.told("CannotAnnounce").is_some()).await;
        let text = bench.told("CannotAnnounce").unwrap();
        assert!(text.contains("kube-vip.io/macvlanName is \"cni0\"") && text.contains("not ours"), "{text}");
        bench.delete("lan");
        bench
            .always("the bridge stays", Duration::from_secs(2), |_| {
                assert_eq!(shell("ip", "-o link show cni0"), before);
                true
            })
            .await;
    });
}

#[test]
fn a_mac_that_the_node_has_already_is_told_once_and_without_numbers() {
    on_a_bench(async |bench| {
        shell("ip", "link add link eth0 name taken address 02:00:00:00:00:77 type macvlan mode bridge");
        shell("ip", "link set taken up");
        bench.serve(RANGE);
        bench.create("lan", &[DHCP[0], ("kube-vip.io/hwaddr", "02:00:00:00:00:77")]);
        bench.start();
        bench.eventually("it is told", |bench| bench.told("CannotAnnounce").is_some()).await;
        let text = bench.told("CannotAnnounce").unwrap();
        assert!(text.contains("MAC 02:00:00:00:00:77 is already used"), "{text}");
        assert!(text.contains("kube-vip.io/hwaddr"), "{text}");
        bench
            .always("it is told once", Duration::from_secs(4), |bench| {
                bench.reasons().iter().filter(|reason| *reason == "CannotAnnounce").count() == 1
            })
            .await;
    });
}
