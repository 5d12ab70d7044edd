//! Addresses from a DHCP server that is away, slow, changes its mind or gives what is taken: a real dnsmasq, and an
//! announcer asked by kube-vip's annotations alone.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use e2e::case::seen;
use e2e::{Bed, Beds, Case, Exposed, PATIENCE, service, wait_for, watch};
use harvester_api::keys::kube_vip;
use kube::ResourceExt;
use testbed::{DhcpLease, DhcpOptions, Traffic};
use tokio::sync::MutexGuard;

/// Each with a DHCP server of its own.
static BEDS: Beds = Beds::new();

/// Renewal after three seconds of a lease of two minutes.
fn options() -> DhcpOptions {
    DhcpOptions { t1: Some(Duration::from_secs(3)), t2: Some(Duration::from_secs(90)), ..DhcpOptions::default() }
}

/// The bed, with a DHCP server that runs and knows of no lease.
async fn alone() -> (MutexGuard<'static, ()>, Arc<Bed>) {
    let builder = Bed::builder().without_ccm().without_pool().dhcp(options());
    let (guard, bed) = BEDS.alone(|| builder.start()).await.unwrap();
    bed.lan.dhcp().forget_leases().unwrap();
    bed.lan.dhcp().restart(options()).unwrap();
    (guard, bed)
}

async fn leased<'a>(case: &'a Case<'_>) -> Exposed<'a> {
    case.expose(service("web").at("0.0.0.0").tcp(80)).await.unwrap()
}

/// Everything that a user sees agrees on this address: status, annotations, wire, macvlan, server.
async fn agreed(bed: &Bed, web: &Exposed<'_>) -> (IpAddr, String) {
    let address = web.address().await.unwrap();
    web.reply(address, 80).await.unwrap();
    let object = web.get().await.unwrap();
    assert_eq!(object.annotations()[kube_vip::REQUESTED_IP], address.to_string());
    let mac = object.annotations()[kube_vip::HWADDR].clone();
    bed.wait_for_mac(address, &mac).await.unwrap();
    let owner = bed.wait_for_owner(address).await.unwrap();
    let link = format!("vip-{}", &object.uid().unwrap()[..8]);
    let addresses = bed.lan.host(owner).addresses().unwrap();
    let carried: Vec<IpAddr> =
        addresses.iter().filter(|(name, ip, _)| *name == link && ip.is_ipv4()).map(|(_, ip, _)| *ip).collect();
    assert_eq!(carried, [address], "the macvlan has this address and no other");
    assert_eq!(IpAddr::from(lease_of(bed, &mac).await.address), address);
    (address, mac)
}

/// What the server knows of a client. It writes its file anew with each change, so for a moment there is nothing to
/// read.
async fn lease_of(bed: &Bed, mac: &str) -> DhcpLease {
    wait_for(&format!("the server's lease of {mac}"), PATIENCE, || async {
        let leases = bed.lan.dhcp().leases().map_err(|error| format!("{error:#}"))?;
        leases.iter().find(|lease| lease.mac == mac).cloned().ok_or_else(|| format!("{leases:?}"))
    })
    .await
    .unwrap()
}

/// Deletes it and waits until nothing of it is left, on no node and at the server.
async fn released(bed: &Bed, web: &Exposed<'_>, address: IpAddr) {
    web.delete_with(address).await.unwrap();
    wait_for("macvlan and lease to be gone", PATIENCE, || async {
        let links = [bed.macvlans(1).unwrap(), bed.macvlans(2).unwrap()].concat();
        let leases = bed.lan.dhcp().leases().unwrap();
        if links.is_empty() && leases.is_empty() { Ok(()) } else { Err(format!("{links:?}, {leases:?}")) }
    })
    .await
    .unwrap();
}

/// D-3.
#[tokio::test]
async fn a_lease_is_renewed_while_traffic_flows_and_released_with_its_service() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("renew").await.unwrap();
    let web = leased(&case).await;
    let (address, mac) = agreed(&bed, &web).await;
    let probe = watch::ask(&bed, Traffic::http((address, 80).into())).unwrap();
    let server = bed.lan.dhcp();
    let (before, acks) = (lease_of(&bed, &mac).await.expires, server.count("DHCPACK"));
    wait_for("three renewals", PATIENCE, || async {
        let renewed = server.count("DHCPACK") - acks;
        if renewed >= 3 { Ok(()) } else { Err(format!("{renewed}")) }
    })
    .await
    .unwrap();
    assert!(lease_of(&bed, &mac).await.expires > before, "the server has put off the end of the lease");
    watch::nothing_was_lost("renewals", [probe]).unwrap();
    assert_eq!(agreed(&bed, &web).await, (address, mac.clone()));

    let releases = server.count("DHCPRELEASE");
    released(&bed, &web, address).await;
    assert_eq!(server.count("DHCPRELEASE"), releases + 1);
    assert!(server.log().lines().any(|line| line.contains("DHCPRELEASE(") && line.contains(&mac)));
}

#[tokio::test]
async fn a_server_that_is_away_is_told_and_used_when_it_is_back() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    bed.lan.dhcp().kill();
    let case = bed.case("absent").await.unwrap();
    let web = leased(&case).await;
    let told = web.wait_for_event("DHCPNoAnswer", "no DHCP server answered").await.unwrap();
    assert_eq!(told.kind, "Warning");
    assert!(told.message.contains("eth0"), "it says on which network: {}", told.message);
    assert!(e2e::case::ingress(&web.get().await.unwrap()).is_empty());
    bed.lan.dhcp().restart(options()).unwrap();
    let (address, _) = agreed(&bed, &web).await;
    released(&bed, &web, address).await;
}

#[tokio::test]
async fn a_slow_server_gives_one_address() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("slow").await.unwrap();
    bed.lan.dhcp().pause().unwrap();
    let web = leased(&case).await;
    // Long enough for several requests to wait in its socket; it answers all of them, late.
    tokio::time::sleep(Duration::from_secs(5)).await;
    bed.lan.dhcp().resume().unwrap();
    let (address, _) = agreed(&bed, &web).await;
    assert_eq!(bed.lan.dhcp().leases().unwrap().len(), 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(agreed(&bed, &web).await.0, address, "late answers change nothing");
    released(&bed, &web, address).await;
}

#[tokio::test]
async fn a_server_that_changed_its_range_refuses_the_renewal_and_the_new_address_is_used() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("nak").await.unwrap();
    let web = leased(&case).await;
    let (old, mac) = agreed(&bed, &web).await;
    bed.lan.dhcp().restart(DhcpOptions { range: (160, 170), ..options() }).unwrap();
    web.wait_for("another address", |object| {
        let ip = e2e::case::ingress(object).first().and_then(|ingress| ingress.ip.clone());
        if ip.is_some_and(|ip| ip != old.to_string()) { Ok(()) } else { Err(seen(object)) }
    })
    .await
    .unwrap();
    assert!(bed.lan.dhcp().count("DHCPNAK") > 0);
    let (new, same_mac) = agreed(&bed, &web).await;
    let IpAddr::V4(v4) = new else { panic!("{new} is no IPv4 address") };
    assert!((160..=170).contains(&v4.octets()[3]), "{new} is of the new range");
    assert_eq!(same_mac, mac, "the MAC is the Service's");
    web.wait_until_withdrawn(old).await.unwrap();
    let told = web.wait_for_event("DHCPLeaseLost", &old.to_string()).await.unwrap();
    assert!(told.message.contains("refused") && told.message.contains("192.168.100.1"), "{}", told.message);
    released(&bed, &web, new).await;
}

#[tokio::test]
async fn an_address_in_use_is_declined_and_another_one_is_taken() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("decline").await.unwrap();
    let squatter = bed.lan.add_host("squatter", 222).unwrap();
    let taken = IpAddr::from(squatter.ipv4());
    // The server offers the address that is asked for if it thinks it free.
    let spec = service("web").at("0.0.0.0").annotation(kube_vip::REQUESTED_IP, &taken.to_string());
    let web = case.expose(spec.tcp(80)).await.unwrap();
    let told = web.wait_for_event("AddressConflict", &taken.to_string()).await.unwrap();
    assert_eq!(told.kind, "Warning");
    for part in [squatter.mac().as_str(), "declined", "192.168.100.1", "eth0"] {
        assert!(told.message.contains(part), "{part:?} is missing in: {}", told.message);
    }
    let (address, mac) = agreed(&bed, &web).await;
    assert_ne!(address, taken);
    bed.wait_for_mac(taken, &squatter.mac()).await.unwrap();
    let declines: Vec<String> =
        bed.lan.dhcp().log().lines().filter(|line| line.contains("DHCPDECLINE(")).map(str::to_owned).collect();
    assert!(declines.iter().any(|line| line.contains(&taken.to_string()) && line.contains(&mac)), "{declines:?}");
    released(&bed, &web, address).await;
}
