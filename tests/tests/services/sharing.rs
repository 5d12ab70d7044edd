//! Several Services, one address.

use e2e::{Exposed, service, wait_for};
use harvester_api::keys::{cloudprovider, kube_vip};
use kube::ResourceExt;

use super::bed;

#[tokio::test]
async fn a_second_service_shares_the_first_ones_address() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("share").await.unwrap();
    let web = case.expose(service("web").tcp(80)).await.unwrap();
    let address = web.address().await.unwrap();
    let secure = case.expose(service("secure").sharing_with(&web).tcp(443)).await.unwrap();
    let names = case.expose(service("names").sharing_with(&web).udp(80)).await.unwrap();
    for sharer in [&secure, &names] {
        assert_eq!(sharer.address().await.unwrap(), address);
        assert!(sharer.load_balancer().await.unwrap().is_none(), "a sharer has no LoadBalancer of its own");
        let primary = format!("{}.web", case.namespace());
        assert_eq!(sharer.get().await.unwrap().labels()[cloudprovider::PRIMARY_SERVICE], primary);
    }
    web.reply(address, 80).await.unwrap();
    secure.reply(address, 443).await.unwrap();
    names.udp_reply(address, 80).await.unwrap();
    bed.wait_for_one_mac(address).await.unwrap();

    // The address stays as long as somebody uses it, and goes with the last.
    secure.delete().await.unwrap();
    secure.wait_until_gone().await.unwrap();
    web.reply(address, 80).await.unwrap();
    web.delete().await.unwrap();
    web.wait_for_event("SyncLoadBalancerFailed", "shares its address").await.unwrap();
    assert!(web.load_balancer().await.unwrap().is_some(), "the LoadBalancer of a shared address stays");
    names.udp_reply(address, 80).await.unwrap();
    names.delete().await.unwrap();
    names.wait_until_gone().await.unwrap();
    web.wait_until_gone().await.unwrap();
    web.wait_until_withdrawn(address).await.unwrap();
    assert!(web.load_balancer().await.unwrap().is_none());
}

/// The members name the group and not each other: whoever of them goes, the address stays, and the client notices
/// nothing.
#[tokio::test]
async fn members_of_a_group_share_an_address_that_outlives_the_one_who_asked_for_it() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("group").await.unwrap();
    let member = |name: &str| service(name).annotation(cloudprovider::SHARE_GROUP, "edge");
    let first = case.expose(member("first").tcp(80)).await.unwrap();
    let address = first.settled().await.unwrap();
    let (second, third) =
        (case.expose(member("second").tcp(443)).await.unwrap(), case.expose(member("third").udp(80)).await.unwrap());
    assert_eq!((second.address().await.unwrap(), third.address().await.unwrap()), (address, address));
    assert!(second.load_balancer().await.unwrap().is_none(), "one object for all");
    let clash = case.expose(member("clash").tcp(443)).await.unwrap();
    let taker = format!("port 443 has been used in service {second}");
    clash.wait_for_event("SyncLoadBalancerFailed", &taker).await.unwrap();
    second.reply(address, 443).await.unwrap();

    let lb = first.load_balancer().await.unwrap().unwrap().name_any();
    first.delete().await.unwrap();
    first.wait_until_gone().await.unwrap();
    first.wait_for_event("HandedOverLoadBalancer", &second.to_string()).await.unwrap();
    assert_eq!(second.load_balancer().await.unwrap().unwrap().name_any(), lb);
    for _ in 0..10 {
        second.ask(address, 443).unwrap();
    }
    assert_eq!((second.address().await.unwrap(), third.address().await.unwrap()), (address, address));
    bed.wait_for_one_mac(address).await.unwrap();

    // The last ones take it along.
    clash.delete().await.unwrap();
    for last in [&second, &third] {
        last.delete().await.unwrap();
        last.wait_until_gone().await.unwrap();
    }
    second.wait_until_withdrawn(address).await.unwrap();
    let bookings = bed.bookings(e2e::bed::POOL).await.unwrap();
    assert!(bookings.iter().all(|(_, owner)| !owner.ends_with(&lb)), "{bookings:?}");
}

/// As the deletion of a namespace does: nobody of the group is left to inherit, and nothing may be left on Harvester.
#[tokio::test]
async fn a_group_whose_members_go_all_at_once_leaves_nothing() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    for round in 0..4 {
        let case = bed.case(&format!("flock-{round}")).await.unwrap();
        let mut members = Vec::new();
        for number in 1..=5 {
            let spec =
                service(&format!("m{number}")).annotation(cloudprovider::SHARE_GROUP, "flock").tcp(1000 + number);
            members.push(case.expose(spec).await.unwrap());
        }
        let address = members[0].settled().await.unwrap();
        let lb = members[0].load_balancer().await.unwrap().unwrap().name_any();
        futures::future::try_join_all(members.iter().map(Exposed::delete)).await.unwrap();
        for member in &members {
            member.wait_until_gone().await.unwrap();
        }
        wait_for("the address to be free", e2e::PATIENCE, || async {
            let bookings = bed.bookings(e2e::bed::POOL).await.map_err(|error| format!("{error:#}"))?;
            let left = bookings.iter().any(|(booked, owner)| owner.ends_with(&lb) || *booked == address.to_string());
            if left { Err(format!("{bookings:?}")) } else { Ok(()) }
        })
        .await
        .unwrap();
    }
}

/// kube-vip spec 3.9: kube-vip puts such an address on the macvlan and on the node's own NIC.
#[tokio::test]
async fn a_leased_address_can_be_shared_too_and_has_one_mac() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("share-dhcp").await.unwrap();
    let web = case.expose(service("web").ipam("dhcp").tcp(80)).await.unwrap();
    let address = web.address().await.unwrap();
    let secure = case.expose(service("secure").sharing_with(&web).tcp(443)).await.unwrap();
    assert_eq!(secure.address().await.unwrap(), address);
    secure.reply(address, 443).await.unwrap();
    web.reply(address, 80).await.unwrap();
    let mac = web.get().await.unwrap().annotations()[kube_vip::HWADDR].clone();
    bed.wait_for_mac(address, &mac).await.unwrap();

    // The sharer goes: the lease stays.
    secure.delete().await.unwrap();
    secure.wait_until_gone().await.unwrap();
    web.reply(address, 80).await.unwrap();
    bed.wait_for_mac(address, &mac).await.unwrap();
    let leases = bed.lan.dhcp().leases().unwrap();
    assert!(leases.iter().any(|lease| lease.mac == mac), "{leases:?}");
}
