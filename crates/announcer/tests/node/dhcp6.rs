//! Services that ask for `::`, with a real dnsmasq.

use std::time::Duration;

use crate::bench::{Bench, on_a_bench};

const DHCP6: [(&str, &str); 1] = [("kube-vip.io/loadbalancerIPs", "::")];

fn leased(bench: &Bench, name: &str) -> Option<String> {
    let published = bench.api.published(name);
    published.first().cloned().filter(|ip| bench.vips().contains(&format!("eth0 {ip}/128")))
}

async fn started(bench: &mut Bench, options: &str) -> String {
    bench.at_server("ip", "addr add fd00:77::1/64 dev s0 nodad");
    bench.serve(&format!("--dhcp-range=fd00:77::100,fd00:77::1ff,64,2m --dhcp-authoritative {options}"));
    bench.create("lan6", &DHCP6);
    bench.start();
    bench.eventually("it has an address", |bench| leased(bench, "lan6").is_some()).await;
    leased(bench, "lan6").expect("it was just there")
}

#[test]
fn a_service_gets_an_ipv6_lease_that_is_renewed_adopted_and_given_back() {
    on_a_bench(async |bench| {
        let address = started(bench, "--dhcp-option=option6:58,2s").await;
        assert!(address.starts_with("fd00:77::1"), "{address}");
        assert_eq!(bench.api.annotation("lan6", "kube-vip.io/requestedIP"), address);
        assert!(bench.leases().contains(&address), "{}", bench.leases());
        bench.neighbour(&address);
        // A process that is killed is followed by one that goes on with the lease, without a new one.
        bench.kill().await;
        let solicits = bench.log().matches("DHCPSOLICIT(").count();
        bench.start();
        let same = |bench: &Bench| leased(bench, "lan6").as_deref() == Some(address.as_str());
        bench.always("it stays", Duration::from_secs(3), same).await;
        bench.eventually("it is asked for", |bench| bench.log().contains("DHCPREBIND(")).await;
        assert_eq!(bench.log().matches("DHCPSOLICIT(").count(), solicits);
        bench.delete("lan6");
        bench
            .eventually("the server has it back and nothing is left", |bench| {
                !bench.leases().contains(&address) && bench.vips().is_empty()
            })
            .await;
        assert!(bench.log().contains("DHCPRELEASE("));
    });
}

#[test]
fn the_end_of_an_ipv6_lease_is_noted_on_the_address() {
    on_a_bench(async |bench| {
        let address = started(bench, "").await;
        let shown = std::process::Command::new("ip").args(["-6", "address", "show", "to", &address]).output();
        let shown = String::from_utf8(shown.expect("ip runs").stdout).expect("it is text");
        let end = shown.split("metric ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        let uptime = std::fs::read_to_string("/proc/uptime").expect("the kernel tells");
        let since_boot: u64 = uptime.split('.').next().and_then(|seconds| seconds.parse().ok()).expect("a number");
        let left = end.and_then(|end| end.checked_sub(since_boot));
        assert!(left.is_some_and(|left| (60..=120).contains(&left)), "a lease of two minutes: {shown}");
    });
}

#[test]
fn an_ipv6_address_that_somebody_uses_is_declined() {
    on_a_bench(async |bench| {
        // The other end has both addresses that its server gives: which one it gives first depends on a hash of who
        // asks. With `--dhcp-sequential-ip` it never gives the first one of a range.
        let both = ["fd00:77::100", "fd00:77::101"];
        for address in both {
            bench.at_server("ip", &format!("addr add {address}/128 dev s0 nodad"));
        }
        bench.at_server("ip", "addr add fd00:77::1/64 dev s0 nodad");
        bench.serve("--dhcp-range=fd00:77::100,fd00:77::101,64,2m --dhcp-authoritative");
        bench.create("lan6", &DHCP6);
        bench.start();
        bench.eventually("the conflict is told", |bench| bench.told("AddressConflict").is_some()).await;
        let text = bench.told("AddressConflict").expect("it was just there");
        let (used, other): (Vec<&str>, Vec<&str>) = both.into_iter().partition(|address| text.contains(address));
        assert_eq!((used.len(), other.len()), (1, 1), "it names the address that is in use: {text}");
        assert!(bench.vips().is_empty() && bench.api.published("lan6").is_empty(), "{:?}", bench.vips());
        bench.at_server("ip", &format!("addr del {}/128 dev s0", other[0]));
        bench.eventually("it has the other one", |bench| leased(bench, "lan6").as_deref() == Some(other[0])).await;
        assert!(bench.log().contains("DHCPDECLINE("), "{}", bench.log());
    });
}
