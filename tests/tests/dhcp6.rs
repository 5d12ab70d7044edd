//! IPv6 addresses from a DHCP server: a real dnsmasq, the cloud controller, and announcers in `node` mode.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::net::IpAddr;
use std::time::Duration;

use e2e::{Bed, Exposed, PATIENCE, service, wait_for, watch};
use harvester_api::keys::kube_vip;
use serde_json::json;
use testbed::{DhcpOptions, Traffic};

async fn gone(bed: &Bed, web: &Exposed<'_>, addresses: &[IpAddr]) {
    web.delete().await.unwrap();
    wait_for("the addresses to be gone", PATIENCE, || async {
        let left: Vec<_> = addresses.iter().filter(|address| bed.owner_of(**address).unwrap().is_some()).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_service_with_ipam_dhcp_is_leased_an_address_of_its_family_that_outlives_its_node() {
    if e2e::skip() {
        return;
    }
    let six = vec!["dhcp-range=fd00:100::200,fd00:100::250,64,2m".to_owned()];
    let dhcp = DhcpOptions { extra: six, ..DhcpOptions::default() };
    let builder = Bed::builder().nodes(3).dhcp(dhcp).announcer_env("election_mode", "node");
    let bed = builder.start().await.unwrap();
    let case = bed.case("dhcp6").await.unwrap();
    let spec = service("six").ipam("dhcp").set("ipFamilies", json!(["IPv6"])).set("ipFamilyPolicy", "SingleStack");
    let web = case.expose(spec.tcp(80)).await.unwrap();
    let address = web.address().await.unwrap();
    assert!(address.is_ipv6(), "{address}: clients reach nothing behind an IPv4 address of an IPv6 Service");
    assert_eq!(web.annotation(kube_vip::LOADBALANCER_IPS).await.unwrap(), "::");
    assert_eq!(web.annotation(kube_vip::REQUESTED_IP).await.unwrap(), address.to_string());
    web.reply(address, 80).await.unwrap();
    let leases = || bed.lan.dhcp().log().matches("DHCPREPLY").count();
    assert!(leases() > 0, "the server knows of it");

    // Its node dies: the successor has seen it on the wire, and goes on with the lease.
    let owner = bed.wait_for_owner(address).await.unwrap();
    let others: Vec<_> = bed.pods().into_iter().filter(|pod| pod.node != bed.lan.host(owner).name()).collect();
    web.publish(&others).await.unwrap();
    web.wait_until_every_node_serves(80).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let probe = watch::ask(&bed, Traffic::http((address, 80).into())).unwrap();
    bed.power_off(owner).unwrap();
    let successor = web.wait_for_other_vip_host(owner).await.unwrap();
    web.wait_for_addresses(&[address]).await.unwrap();
    wait_for("the client to be answered by the successor", PATIENCE, || async {
        bed.lan.client().forget_neighbour(address).map_err(|error| format!("{error:#}"))?;
        web.ask(address, 80).map_err(|error| format!("{error:#}"))?;
        let mac = bed.lan.client().neighbour(address).map_err(|error| format!("{error:#}"))?;
        if mac == Some(bed.lan.host(successor).mac()) { Ok(()) } else { Err(format!("{mac:?}")) }
    })
    .await
    .unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    watch::at_most(watch::FAILOVER, "power loss, sooner than its Lease expires", [probe]).unwrap();
    bed.power_on(owner).unwrap();
    bed.wait_until_announcing(owner).await.unwrap();

    // Both families, each from its own server.
    let spec = service("both").ipam("dhcp").set("ipFamilies", json!(["IPv4", "IPv6"]));
    let both = case.expose(spec.set("ipFamilyPolicy", "RequireDualStack").tcp(80)).await.unwrap();
    let addresses = both
        .wait_for("an address of each family", |service| {
            let ips: Vec<IpAddr> =
                e2e::case::ingress(service).iter().filter_map(|entry| entry.ip.as_ref()?.parse().ok()).collect();
            let families: Vec<bool> = ips.iter().map(IpAddr::is_ipv4).collect();
            if families == [true, false] { Ok(ips) } else { Err(format!("{ips:?}")) }
        })
        .await
        .unwrap();
    assert_eq!(both.annotation(kube_vip::LOADBALANCER_IPS).await.unwrap(), "0.0.0.0,::");
    for address in &addresses {
        both.reply(*address, 80).await.unwrap();
    }
    let nodes = [bed.wait_for_owner(addresses[0]).await.unwrap(), bed.wait_for_owner(addresses[1]).await.unwrap()];
    assert_eq!(nodes[0], nodes[1], "both on one node");
    gone(&bed, &both, &addresses).await;
    gone(&bed, &web, &[address]).await;
}
