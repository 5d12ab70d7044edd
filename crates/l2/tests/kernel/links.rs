//! Interfaces, macvlans, their settings, the default route.

use std::net::{Ipv4Addr, Ipv6Addr};

use futures::{FutureExt, StreamExt};
use l2::netlink::{
    Change, Changes, InetConf, InetConfChange, LinkKind, Macvlan, MacvlanMode, Mismatch, Netlink, OperState,
    inet_conf_of_all,
};
use rtnetlink::{
    LinkMacVlan, LinkUnspec, MulticastGroup, RouteMessageBuilder,
    packet_core::NetlinkPayload,
    packet_route::{
        RouteNetlinkMessage,
        link::{LinkAttribute, LinkFlags, MacVlanMode},
        route::RouteNextHop,
    },
};

use crate::lan::{self, Lan, NEAR, PATIENCE, Side, VIP_MAC, eventually, on_a_lan};

fn macvlan(parent: &Side) -> Macvlan {
    Macvlan {
        inet_conf: InetConfChange { arp_ignore: Some(1), arp_announce: Some(2), rp_filter: Some(2) },
        ..lan::macvlan(parent)
    }
}

#[test]
fn an_interface_is_found_by_name_and_by_index() {
    on_a_lan(async |Lan { near, .. }| {
        let link = near.netlink.link_by_name("near").await.expect("look up").expect("it is there");
        assert_eq!((link.index, link.mac, link.mtu), (near.index, Some(NEAR), 1500));
        assert_eq!((link.up, link.carrier, link.state), (true, true, OperState::Up));
        assert_eq!(link.kind, LinkKind::Virtual("veth".to_owned()));
        assert_eq!(near.netlink.link(near.index).await.expect("look up"), Some(link.clone()));
        assert!(near.netlink.links().await.expect("list").contains(&link));
        for name in ["nobody", "a-name-that-is-too-long", ""] {
            assert_eq!(near.netlink.link_by_name(name).await.expect("look up"), None, "{name}");
        }
        assert_eq!(near.netlink.link(9999).await.expect("look up"), None);
        near.netlink.set_alias(near.index, "uplink").await.expect("alias");
        let link = near.netlink.link(near.index).await.expect("look up").expect("it is there");
        assert_eq!(link.alias.as_deref(), Some("uplink"));
    });
}

#[test]
fn a_macvlan_comes_up_as_asked_and_can_be_adopted() {
    on_a_lan(async |Lan { near, .. }| {
        let wanted = macvlan(&near);
        let index = near.netlink.add_macvlan(&wanted).await.expect("create");
        let link = near.netlink.link(index).await.expect("look up").expect("it is there");
        assert_eq!(link.kind, LinkKind::Macvlan { parent: near.index, mode: MacvlanMode::Bridge });
        assert_eq!((link.name.as_str(), link.mac, link.up), ("vip-0a1b2c3d", Some(VIP_MAC), true));
        assert_eq!(wanted.mismatch(&link), None);
        assert_eq!(
            near.netlink.inet_conf(index).await.expect("settings"),
            InetConf { arp_ignore: 1, arp_announce: 2, rp_filter: 2 }
        );

        let near_link = near.netlink.link(near.index).await.expect("look up").expect("it is there");
        assert_eq!(wanted.mismatch(&near_link), Some(Mismatch::Kind("near".to_owned())));
        let other = Macvlan { parent: 77, ..wanted.clone() };
        assert_eq!(other.mismatch(&link), Some(Mismatch::Parent { found: near.index, wanted: 77 }));
        let other = Macvlan { mac: NEAR, ..wanted.clone() };
        assert_eq!(other.mismatch(&link), Some(Mismatch::Mac { found: Some(VIP_MAC), wanted: NEAR }));
        let other = Macvlan { alias: String::new(), ..wanted.clone() };
        assert_eq!(other.mismatch(&link), Some(Mismatch::Alias(Some(wanted.alias.clone()))));
    });
}

#[test]
fn a_macvlan_has_no_address_of_its_own_making() {
    on_a_lan(async |Lan { near, .. }| {
        // The parent makes its link-local address as soon as it is up; so would the macvlan.
        let link_local = async |index| {
            let addresses = near.netlink.addresses(Some(index)).await.expect("addresses");
            addresses.iter().any(|address| address.net.addr().is_ipv6())
        };
        eventually("the parent has a link-local address", async || link_local(near.index).await).await;
        let index = near.netlink.add_macvlan(&macvlan(&near)).await.expect("create");
        eventually("the macvlan is up", async || {
            near.netlink.link(index).await.expect("look up").is_some_and(|link| link.is_usable())
        })
        .await;
        assert!(!link_local(index).await);
    });
}

#[test]
fn a_macvlan_of_kube_vip_is_told_apart_by_its_mode() {
    on_a_lan(async |Lan { near, .. }| {
        let wanted = macvlan(&near);
        let vepa =
            LinkMacVlan::new(&wanted.name, near.index, MacVlanMode::Vepa).address(VIP_MAC.octets().to_vec()).build();
        near.handle().link().add(vepa).execute().await.expect("create");
        let link = near.netlink.link_by_name(&wanted.name).await.expect("look up").expect("it is there");
        assert_eq!(wanted.mismatch(&link), Some(Mismatch::Mode(MacvlanMode::Vepa)));
    });
}

#[test]
fn deleting_what_is_not_there_is_success() {
    on_a_lan(async |Lan { near, .. }| {
        let index = near.netlink.add_macvlan(&macvlan(&near)).await.expect("create");
        assert!(near.netlink.delete_link(index).await.expect("delete"));
        assert!(!near.netlink.delete_link(index).await.expect("delete again"));
        assert_eq!(near.netlink.link(index).await.expect("look up"), None);
    });
}

#[test]
fn a_macvlan_that_cannot_come_up_leaves_nothing_behind() {
    on_a_lan(async |Lan { near, .. }| {
        let first = macvlan(&near);
        near.netlink.add_macvlan(&first).await.expect("create");
        let error = near.netlink.add_macvlan(&first).await.expect_err("the name is taken");
        assert_eq!(error.raw_os_error(), Some(17), "{error}");
        assert!(!error.is_mac_in_use(), "its name is");
        assert!(near.netlink.link_by_name(&first.name).await.expect("look up").is_some(), "the first one stays");

        let second = Macvlan { name: "vip-second".to_owned(), ..first };
        let error = near.netlink.add_macvlan(&second).await.expect_err("the MAC is taken");
        assert!(error.is_mac_in_use(), "{error:?}");
        assert_eq!(near.netlink.link_by_name("vip-second").await.expect("look up"), None);
    });
}

/// While it is up the kernel answers ARP on it, for every address of the node and with a MAC that is soon gone.
#[test]
fn a_macvlan_that_is_only_tried_is_never_up() {
    on_a_lan(async |Lan { near, .. }| {
        let (connection, _, mut reports) =
            rtnetlink::new_multicast_connection(&[MulticastGroup::Link]).expect("subscribe");
        tokio::spawn(connection);
        near.netlink.try_macvlan("tried", near.index, VIP_MAC).await.expect("try");
        assert_eq!(near.netlink.link_by_name("tried").await.expect("look up"), None);
        let (mut seen, mut gone) = (0, false);
        while !gone {
            let (report, _) = tokio::time::timeout(PATIENCE, reports.next()).await.expect("a report").expect("reports");
            let (link, deleted) = match report.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => (link, false),
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link)) => (link, true),
                _ => continue,
            };
            if link.attributes.contains(&LinkAttribute::IfName("tried".to_owned())) {
                assert!(!link.header.flags.contains(LinkFlags::Up), "report {seen}: {link:?}");
                (seen, gone) = (seen + 1, deleted);
            }
        }
        assert!(seen >= 2, "the kernel reports that it comes and goes: {seen}");
    });
}

#[test]
fn settings_are_changed_one_by_one_and_put_back_to_zero() {
    on_a_lan(async |Lan { near, .. }| {
        let before = near.netlink.inet_conf(near.index).await.expect("settings");
        let change = InetConfChange { arp_ignore: Some(1), arp_announce: Some(2), rp_filter: None };
        near.netlink.set_inet_conf(near.index, change).await.expect("set");
        let after = near.netlink.inet_conf(near.index).await.expect("settings");
        assert_eq!(after, InetConf { arp_ignore: 1, arp_announce: 2, rp_filter: before.rp_filter });

        let back = InetConfChange { arp_ignore: Some(0), arp_announce: Some(0), rp_filter: Some(0) };
        near.netlink.set_inet_conf(near.index, back).await.expect("put back");
        assert_eq!(near.netlink.inet_conf(near.index).await.expect("settings"), InetConf::default());
        near.netlink.set_inet_conf(near.index, InetConfChange::default()).await.expect("nothing to do");
        assert!(near.netlink.inet_conf(9999).await.is_err());
        inet_conf_of_all().expect("the values of all");
    });
}

#[test]
fn changes_of_interfaces_addresses_and_routes_are_reported() {
    on_a_lan(async |Lan { near, .. }| {
        let links = near.handle().link();
        let mut changes = Changes::subscribe().expect("changes");
        let mut woken = async |what: &str| {
            let next = tokio::time::timeout(PATIENCE, changes.next()).await;
            assert_eq!(next.unwrap_or_else(|_| panic!("not reported: {what}")), Some(Change::Reported), "{what}");
            while changes.next().now_or_never().is_some() {}
        };
        let index = near.netlink.add_macvlan(&macvlan(&near)).await.expect("create");
        woken("a macvlan").await;
        near.plain_address("192.0.2.1/24").await;
        woken("an address").await;
        let route = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(Ipv4Addr::new(198, 51, 100, 0), 24)
            .output_interface(near.index)
            .build();
        near.handle().route().add(route).execute().await.expect("a route");
        woken("a route").await;
        links.change(LinkUnspec::new_with_index(near.index).down().build()).execute().await.expect("down");
        woken("an interface down").await;
        near.netlink.delete_link(index).await.expect("delete");
        woken("a macvlan gone").await;
    });
}

#[test]
fn the_default_route_leads_to_the_interface() {
    on_a_lan(async |Lan { near, .. }| {
        let netlink = &near.netlink;
        let routes = near.handle().route();
        let wire = |side: &Netlink| {
            let side = side.clone();
            async move { side.default_route().await.expect("routes").map(|route| route.interface) }
        };
        assert_eq!(wire(netlink).await, None);

        let other = netlink.add_macvlan(&macvlan(&near)).await.expect("a second interface");
        near.plain_address("2001:db8::1/64").await;
        let v6 = RouteMessageBuilder::<Ipv6Addr>::new().gateway("2001:db8::2".parse().expect("an address")).build();
        routes.add(v6).execute().await.expect("v6 default");
        assert_eq!(wire(netlink).await, Some(near.index), "IPv6 where there is no IPv4");

        let v4 = |interface, metric| {
            RouteMessageBuilder::<Ipv4Addr>::new().output_interface(interface).priority(metric).build()
        };
        routes.add(v4(other, 200)).execute().await.expect("v4 default");
        assert_eq!(wire(netlink).await, Some(other), "IPv4 goes first");
        routes.add(v4(near.index, 100)).execute().await.expect("v4 default");
        assert_eq!(wire(netlink).await, Some(near.index), "the lowest metric wins");

        let mut multipath = RouteMessageBuilder::<Ipv4Addr>::new().priority(50);
        multipath = multipath.multipath(
            [other, near.index]
                .into_iter()
                .map(|interface| {
                    let mut hop = RouteNextHop::default();
                    hop.interface_index = interface;
                    hop
                })
                .collect(),
        );
        routes.add(multipath.build()).execute().await.expect("multipath default");
        assert_eq!(wire(netlink).await, Some(other), "the first hop of a multipath route");

        let other_table = RouteMessageBuilder::<Ipv4Addr>::new().output_interface(near.index).table_id(100).build();
        routes.add(other_table).execute().await.expect("policy route");
        assert_eq!(wire(netlink).await, Some(other), "other tables do not count");
    });
}
