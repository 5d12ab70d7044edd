//! A leased address in `node` mode when its owner loses power: the lease belongs to the Service, so address and MAC
//! stay, and the successor tells the server nothing but that it goes on (INIT-REBOOT).
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use e2e::watch::{FAILOVER, let_it_happen};
use e2e::{Bed, PATIENCE, service, wait_for, watch};
use harvester_api::keys::{cloudprovider, kube_vip};
use testbed::{Frame, Traffic};

/// A DHCPREQUEST by broadcast with the client's own address empty: the address asked for, and the server that is named,
/// if one is.
fn broadcast_request(frame: &Frame, mac: &str) -> Option<(Ipv4Addr, Option<Ipv4Addr>)> {
    let address = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).ok().map(Ipv4Addr::from);
    let data = &frame.data;
    let ip = data.get(14..)?;
    let message = ip.get(usize::from(ip[0] & 0xf) * 4 + 8..)?;
    let client = message.get(28..34)?.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":");
    let broadcast = data.get(..6)? == [0xff; 6] && address(message.get(12..16)?)?.is_unspecified();
    if client != mac || !broadcast {
        return None;
    }
    let (mut kind, mut asked, mut server) = (None, None, None);
    let mut options = message.get(240..)?;
    while let [code, length, rest @ ..] = options {
        if *code == 255 {
            break;
        }
        if *code == 0 {
            options = &options[1..];
            continue;
        }
        let value = rest.get(..usize::from(*length))?;
        match code {
            50 => asked = address(value),
            53 => kind = value.first().copied(),
            54 => server = address(value),
            _ => {}
        }
        options = &rest[usize::from(*length)..];
    }
    (kind == Some(3)).then_some((asked?, server))
}

#[tokio::test]
async fn a_leased_address_whose_owner_loses_power_goes_on_elsewhere_with_its_mac_by_init_reboot() {
    if e2e::skip() {
        return;
    }
    let builder = Bed::builder().nodes(3).without_ccm().without_pool().announcer_env("election_mode", "node");
    let bed = builder.start().await.unwrap();
    let case = bed.case("power").await.unwrap();
    let web = case.expose(service("web").at("0.0.0.0").tcp(80)).await.unwrap();
    let address = web.address().await.unwrap();
    web.reply(address, 80).await.unwrap();
    let mac = web.annotation(kube_vip::HWADDR).await.unwrap();
    let owner = bed.wait_for_owner(address).await.unwrap();
    web.wait_for_vip_host(bed.lan.host(owner).name()).await.unwrap();
    bed.wait_for_mac(address, &mac).await.unwrap();
    // Its pods must not die with the owner.
    let others: Vec<_> = bed.pods().into_iter().filter(|pod| pod.node != bed.lan.host(owner).name()).collect();
    web.publish(&others).await.unwrap();
    web.wait_until_every_node_serves(80).await.unwrap();

    let server = bed.lan.dhcp();
    let counts = || ["DHCPDISCOVER", "DHCPNAK", "DHCPDECLINE", "DHCPRELEASE"].map(|message| server.count(message));
    let (before, acks) = (counts(), server.count("DHCPACK"));
    let capture = bed.lan.client().capture("eth0", "udp dst port 67").unwrap();
    let probe = watch::ask(&bed, Traffic::http((address, 80).into())).unwrap();
    bed.power_off(owner).unwrap();
    let second = web.wait_for_other_vip_host(owner).await.unwrap();
    let requested = |capture: &testbed::Capture| {
        let frames = capture.frames().unwrap();
        frames.iter().filter_map(|frame| broadcast_request(frame, &mac)).collect::<Vec<_>>()
    };
    wait_for("the successor to have gone on with the lease", PATIENCE, || async {
        let seen = (server.count("DHCPACK") > acks, requested(&capture));
        if seen.0 && !seen.1.is_empty() { Ok(()) } else { Err(format!("{seen:?}\n{}", server.log())) }
    })
    .await
    .unwrap();
    web.wait_for_addresses(&[address]).await.unwrap();
    bed.wait_for_mac(address, &mac).await.unwrap();
    let_it_happen(2).await;
    watch::at_most(FAILOVER, "power loss of the owner of a lease", [probe]).unwrap();
    let requests = requested(&capture);
    assert!(requests.iter().all(|(asked, server)| (IpAddr::from(*asked), *server) == (address, None)), "{requests:?}");
    assert_eq!(counts(), before, "no new lease, no refusal, no end of the old one: {}", server.log());
    assert_eq!(web.annotation(kube_vip::HWADDR).await.unwrap(), mac);
    assert_eq!(web.annotation(kube_vip::REQUESTED_IP).await.unwrap(), address.to_string());

    // The node that was lost has what its kernel had before, until its deadline, and gets nothing back.
    wait_for("the lost node to be without the address", PATIENCE, || async {
        if bed.lan.host(owner).has_address(address).unwrap() { Err("it has it".to_owned()) } else { Ok(()) }
    })
    .await
    .unwrap();
    let probe = watch::ask(&bed, Traffic::http((address, 80).into())).unwrap();
    bed.power_on(owner).unwrap();
    bed.wait_until_announcing(owner).await.unwrap();
    wait_for("the lost node to be without the macvlan", PATIENCE, || async {
        let links = bed.macvlans(owner).unwrap();
        if links.is_empty() { Ok(()) } else { Err(format!("{links:?}")) }
    })
    .await
    .unwrap();
    let_it_happen(3).await;
    assert_eq!(bed.owner_of(address).unwrap(), Some(second));
    // With its cable back, the macvlan that it still has speaks up (MLD), and the switch sends the MAC's traffic there
    // until the owner's next frame.
    watch::at_most(Duration::from_millis(500), "the lost node returns", [probe]).unwrap();
    assert_eq!(counts(), before, "{}", server.log());
}

/// Its new process has not heard the controller yet, without which it could be one of a copy of this cluster.
#[tokio::test]
async fn a_lease_is_given_back_although_the_announcer_has_just_started() {
    if e2e::skip() {
        return;
    }
    let bed = Bed::builder().nodes(1).start().await.unwrap();
    let case = bed.case("started").await.unwrap();
    let web = case.expose(service("web").annotation(cloudprovider::IPAM, "dhcp").tcp(80)).await.unwrap();
    let address = web.address().await.unwrap();
    web.reply(address, 80).await.unwrap();
    let server = bed.lan.dhcp();
    let releases = server.count("DHCPRELEASE");
    bed.announcer(1).restart().unwrap();
    bed.wait_until_announcing(1).await.unwrap();
    web.reply(address, 80).await.unwrap();
    web.delete_with(address).await.unwrap();
    wait_for("macvlan and lease to be gone", PATIENCE, || async {
        let (links, leases) = (bed.macvlans(1).unwrap(), server.leases().unwrap());
        if links.is_empty() && leases.is_empty() { Ok(()) } else { Err(format!("{links:?}, {leases:?}")) }
    })
    .await
    .unwrap();
    assert_eq!(server.count("DHCPRELEASE"), releases + 1, "{}", server.log());
}
