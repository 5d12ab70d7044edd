//! Beginning and end of an announcer in `global` mode: what a former life or kube-vip left on the node and in the
//! cluster, and what it leaves itself.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use e2e::case::ingress;
use e2e::wire::{GLOBAL_LEASE, Renewal};
use e2e::{Bed, Beds, PATIENCE, service, wait_for, watch};
use harvester_api::keys::kube_vip;
use kube::ResourceExt;
use serde_json::json;
use testbed::Traffic;
use tokio::sync::MutexGuard;

static BEDS: Beds = Beds::new();

/// Two nodes whose announcers do not run, and a Lease that nobody holds.
async fn alone() -> (MutexGuard<'static, ()>, Arc<Bed>) {
    let builder = Bed::builder()
        .without_ccm()
        .without_pool()
        .not_started()
        .announcer_env("vip_leaseduration", "5")
        .announcer_env("election_mode", "global");
    let builder = builder.announcer_env("vip_renewdeadline", "3").announcer_env("vip_retryperiod", "1");
    let (guard, bed) = BEDS.alone(|| builder.start()).await.unwrap();
    for n in 1..=2 {
        bed.announcer(n).kill();
        for setting in ["arp_ignore", "arp_announce"] {
            bed.lan.host(n).namespace().sysctl(&format!("net/ipv4/conf/eth0/{setting}"), "0").unwrap();
        }
    }
    bed.hold_announcer_lease("", Duration::from_secs(1)).await.unwrap();
    (guard, bed)
}

async fn start(bed: &Bed, n: usize) {
    bed.announcer(n).start().unwrap();
    bed.wait_until_announcing(n).await.unwrap();
}

async fn wait_for_holder(bed: &Bed, node: &str) {
    wait_for(&format!("Lease {GLOBAL_LEASE} to be held by {node}"), PATIENCE, || async {
        let holder = bed.announcer_lease_holder().await.map_err(|error| format!("{error:#}"))?;
        if holder == node { Ok(()) } else { Err(holder) }
    })
    .await
    .unwrap();
}

/// As kube-vip adds an address: for ever, never chosen as source, without a mark of who did it.
fn leave_address(bed: &Bed, n: usize, interface: &str, address: IpAddr) {
    bed.lan.host(n).ip([format!("addr add {address}/32 dev {interface} preferred_lft 0")]).unwrap();
}

#[tokio::test]
async fn what_kube_vip_left_is_adopted_where_it_is_ours_and_removed_where_it_is_not() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("leftovers").await.unwrap();
    let node1 = bed.lan.host(1);

    // kube-vip was here: a Service with a given address and one with a lease, both published and announced by node1.
    let address = IpAddr::from(bed.lan.ipv4(150));
    let web = case
        .expose(service("web").at(&address.to_string()).annotation(kube_vip::VIP_HOST, "node1").tcp(80))
        .await
        .unwrap();
    let mac = "00:00:6c:11:22:33";
    let leased = IpAddr::from(bed.lan.ipv4(233));
    let spec = service("lease").at("0.0.0.0").annotation(kube_vip::VIP_HOST, "node1");
    let spec = spec.annotation(kube_vip::HWADDR, mac).annotation(kube_vip::REQUESTED_IP, &leased.to_string());
    let lease = case.expose(spec.tcp(80)).await.unwrap();
    for (service, address) in [(&web, address), (&lease, leased)] {
        let published = json!({"status": {"loadBalancer": {"ingress": [{"ip": address.to_string()}]}}});
        service.patch_status(published).await.unwrap();
    }
    let link = format!("vip-{}", &lease.get().await.unwrap().uid().unwrap()[..8]);
    node1
        .ip([
            format!("link add {link} link eth0 address {mac} type macvlan mode bridge"),
            format!("link set {link} up"),
            // Of a Service that was deleted while nobody looked.
            "link add vip-deadbeef link eth0 type macvlan mode bridge".into(),
            "link set vip-deadbeef up".into(),
            "addr add 192.168.100.180/32 dev vip-deadbeef preferred_lft 0".into(),
            // Of others: none of our business.
            "link add macvlan0 link eth0 type macvlan mode bridge".into(),
            "addr add 172.20.0.9/32 dev eth0 preferred_lft 0".into(),
            "addr add 172.20.0.10/32 dev lo".into(),
        ])
        .unwrap();
    leave_address(&bed, 1, "eth0", address);
    leave_address(&bed, 1, &link, leased);
    // node2 has announced them before and crashed.
    bed.lan.host(2).ip([format!("link add {link} link eth0 address {mac} type macvlan mode bridge")]).unwrap();
    leave_address(&bed, 2, "eth0", address);
    let index = || node1.namespace().ip_json(&format!("link show {link}")).unwrap()[0]["ifindex"].as_u64();
    let before = index();
    web.reply(address, 80).await.unwrap();

    start(&bed, 1).await;
    start(&bed, 2).await;
    for service in [&web, &lease] {
        service.wait_for_vip_host("node1").await.unwrap();
    }
    wait_for("node2 to be clean", PATIENCE, || async {
        let left = (bed.lan.host(2).has_address(address).unwrap(), bed.macvlans(2).unwrap());
        if left == (false, Vec::new()) { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await
    .unwrap();
    let probe = watch::ask(&bed, Traffic::http((address, 80).into())).unwrap();
    lease.wait_for_addresses(&[leased]).await.unwrap();
    lease.reply(leased, 80).await.unwrap();
    bed.wait_for_mac(address, &node1.mac()).await.unwrap();
    bed.wait_for_mac(leased, mac).await.unwrap();
    wait_for("node1's leftovers to be gone", PATIENCE, || async {
        let links = bed.macvlans(1).unwrap();
        if links == [link.clone()] { Ok(()) } else { Err(format!("{links:?}")) }
    })
    .await
    .unwrap();
    assert_eq!(index(), before, "the macvlan was kept");
    for address in [address, leased] {
        bed.wait_for_a_deadline(1, address).await.unwrap();
    }
    assert!(node1.has_address(node1.ipv4()).unwrap());
    for foreign in ["172.20.0.9", "172.20.0.10"] {
        assert!(node1.has_address(foreign.parse::<IpAddr>().unwrap()).unwrap(), "{foreign} is none of our business");
    }
    assert!(node1.interfaces().unwrap().contains(&"macvlan0".to_owned()));
    watch::nothing_was_lost("adoption", [probe]).unwrap();
    node1.ip(["link del macvlan0", "addr del 172.20.0.9/32 dev eth0"]).unwrap();
    web.delete_with(address).await.unwrap();
    lease.delete_with(leased).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_holder_of_the_lease_is_respected_until_it_gives_it_up_and_when_it_takes_it() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let (holder, duration) = ("kube-vip-node", Duration::from_secs(5));
    let foreign = Renewal::of(&bed, GLOBAL_LEASE, holder, duration).await.unwrap();
    start(&bed, 1).await;
    let case = bed.case("foreign").await.unwrap();
    let address = IpAddr::from(bed.lan.ipv4(151));
    let web = case.expose(service("web").at(&address.to_string()).tcp(80)).await.unwrap();
    // It renews for longer than its duration.
    for _ in 0..7 {
        watch::let_it_happen(1).await;
        assert_eq!(bed.owner_of(address).unwrap(), None);
    }
    assert_eq!(bed.announcer_lease_holder().await.unwrap(), holder);
    assert!(ingress(&web.get().await.unwrap()).is_empty());

    // It dies: taken after expiry, by the node's name, and renewed in time for others to respect it.
    foreign.end().await.unwrap();
    wait_for_holder(&bed, "node1").await;
    web.reply(address, 80).await.unwrap();
    web.wait_for_vip_host("node1").await.unwrap();
    let spec = bed.announcer_lease().await.unwrap().spec.unwrap();
    assert_eq!(spec.lease_duration_seconds, Some(5));
    assert!(spec.lease_transitions.unwrap() >= 1);
    let renewed = spec.renew_time.unwrap();
    wait_for("a renewal", PATIENCE, || async {
        let later = bed.announcer_lease().await.unwrap().spec.unwrap().renew_time.unwrap();
        if later.0 > renewed.0 { Ok(()) } else { Err(format!("{later:?}")) }
    })
    .await
    .unwrap();

    // An administrator goes back to kube-vip, which takes the Lease by its own means.
    bed.hold_announcer_lease(holder, Duration::from_mins(1)).await.unwrap();
    web.wait_until_withdrawn(address).await.unwrap();
    assert_eq!(bed.announcer_lease_holder().await.unwrap(), holder);
    // And gives it back.
    bed.hold_announcer_lease("", Duration::from_secs(1)).await.unwrap();
    wait_for_holder(&bed, "node1").await;
    web.reply(address, 80).await.unwrap();
    web.delete_with(address).await.unwrap();
}

#[tokio::test]
async fn a_stop_without_successor_leaves_the_addresses_for_five_minutes_to_be_adopted() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    start(&bed, 1).await;
    let case = bed.case("stop").await.unwrap();
    let address = IpAddr::from(bed.lan.ipv4(152));
    let web = case.expose(service("web").at(&address.to_string()).tcp(80)).await.unwrap();
    let lease = case.expose(service("lease").at("0.0.0.0").tcp(80)).await.unwrap();
    web.reply(address, 80).await.unwrap();
    let leased = lease.address().await.unwrap();
    lease.reply(leased, 80).await.unwrap();
    let links = bed.macvlans(1).unwrap();
    let mac = lease.annotation(kube_vip::HWADDR).await.unwrap();
    let probes = [address, leased].map(|ip| watch::ask(&bed, Traffic::http((ip, 80).into())).unwrap());
    assert_eq!(bed.announcer(1).stop().unwrap().code(), Some(0));

    assert_eq!(bed.announcer_lease_holder().await.unwrap(), "", "the Lease is free for whoever comes");
    let lifetime = bed.lifetime(1, address).unwrap().expect("the address stays");
    assert!((240..=300).contains(&lifetime), "{lifetime} s");
    let lifetime = bed.lifetime(1, leased).unwrap().expect("the leased address stays");
    assert!((30..=120).contains(&lifetime), "not longer than its lease of two minutes: {lifetime} s");
    assert_eq!(bed.macvlans(1).unwrap(), links);
    assert_eq!(bed.inet_conf(1, "eth0", "arp_ignore").unwrap(), 1, "an address that stays needs its settings");
    assert_eq!(web.annotation(kube_vip::VIP_HOST).await.unwrap(), "node1");

    start(&bed, 1).await;
    bed.wait_for_a_deadline(1, address).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    watch::nothing_was_lost("stop and start", probes).unwrap();
    bed.wait_for_mac(leased, &mac).await.unwrap();
    web.delete_with(address).await.unwrap();
    lease.delete_with(leased).await.unwrap();
}

#[tokio::test]
async fn addresses_left_behind_are_removed_by_the_next_life_if_somebody_else_owns_them_by_then() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    start(&bed, 1).await;
    let case = bed.case("overtaken").await.unwrap();
    let address = IpAddr::from(bed.lan.ipv4(153));
    let web = case.expose(service("web").at(&address.to_string()).tcp(80)).await.unwrap();
    let lease = case.expose(service("lease").at("0.0.0.0").tcp(80)).await.unwrap();
    web.reply(address, 80).await.unwrap();
    let leased = lease.address().await.unwrap();
    let mac = lease.annotation(kube_vip::HWADDR).await.unwrap();
    bed.announcer(1).stop().unwrap();
    assert_eq!(bed.owner_of(address).unwrap(), Some(1));
    // The whole DaemonSet was replaced, and the other node is first.
    start(&bed, 2).await;
    web.wait_for_vip_host("node2").await.unwrap();
    start(&bed, 1).await;
    bed.wait_for_mac(address, &bed.lan.host(2).mac()).await.unwrap();
    lease.wait_for_vip_host("node2").await.unwrap();
    wait_for("node1 to be clean", PATIENCE, || async {
        let left = [address, leased].map(|address| bed.lan.host(1).has_address(address).unwrap());
        let links = bed.macvlans(1).unwrap();
        if left == [false, false] && links.is_empty() { Ok(()) } else { Err(format!("{left:?} {links:?}")) }
    })
    .await
    .unwrap();
    bed.wait_for_mac(leased, &mac).await.unwrap();
    web.reply(address, 80).await.unwrap();
    lease.reply(leased, 80).await.unwrap();
    web.delete_with(address).await.unwrap();
    lease.delete_with(leased).await.unwrap();
}

#[tokio::test]
async fn settings_of_the_interface_are_changed_while_addresses_are_there_and_put_back_with_the_last() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let settings = || ["arp_ignore", "arp_announce"].map(|name| bed.inet_conf(1, "eth0", name).unwrap());
    // Not the kernel's default, so that putting back is told from resetting.
    bed.lan.host(1).namespace().sysctl("net/ipv4/conf/eth0/arp_announce", "1").unwrap();
    assert_eq!(settings(), [0, 1]);
    start(&bed, 1).await;
    assert_eq!(settings(), [0, 1], "without an address nothing is changed");
    let case = bed.case("settings").await.unwrap();
    let address = IpAddr::from(bed.lan.ipv4(154));
    let web = case.expose(service("web").at(&address.to_string()).tcp(80)).await.unwrap();
    web.reply(address, 80).await.unwrap();
    assert_eq!(settings(), [1, 2]);
    let lease = case.expose(service("lease").at("0.0.0.0").tcp(80)).await.unwrap();
    let leased = lease.address().await.unwrap();
    lease.reply(leased, 80).await.unwrap();
    let link = format!("vip-{}", &lease.get().await.unwrap().uid().unwrap()[..8]);
    let macvlan = ["arp_ignore", "arp_announce", "rp_filter"].map(|name| bed.inet_conf(1, &link, name).unwrap());
    assert_eq!(macvlan, [1, 2, 2]);
    web.delete_with(address).await.unwrap();
    assert_eq!(settings(), [1, 2], "the macvlan needs them as well");
    lease.delete_with(leased).await.unwrap();
    wait_for("the former settings", PATIENCE, || async {
        let found = settings();
        if found == [0, 1] { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await
    .unwrap();
}
