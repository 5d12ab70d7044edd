//! Which capabilities suffice (decisions.md 2).

use std::time::Duration;

use l2::{
    Mac, Netlink, Nftables, PacketSocket, Traffic,
    capabilities::{Capability, missing},
    netlink::{AddressLifetime, Changes, InetConfChange, Macvlan},
    nftables::{Part, Set, Table, Value},
};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use crate::lan::{Lan, on_a_lan};

/// The rest of this thread's life, and of nobody else's.
fn keep_only(set: CapabilitySet) {
    let sets = CapabilitySets { effective: set, permitted: set, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).expect("giving up capabilities");
}

#[test]
fn net_admin_and_net_raw_suffice_for_everything() {
    on_a_lan(async |Lan { near, .. }| {
        keep_only(CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW);
        let (netlink, connection) = Netlink::open().expect("netlink");
        tokio::spawn(connection);
        Changes::subscribe().expect("changes");
        let (dhcp, asking) = ([Traffic::DhcpClient, Traffic::Dhcp6Client], [Traffic::Handshake, Traffic::Handshake6]);
        for traffic in [Traffic::Arp, Traffic::NeighborDiscovery].into_iter().chain(dhcp).chain(asking) {
            PacketSocket::open(near.index, traffic).expect("socket");
        }
        let change = InetConfChange { arp_ignore: Some(1), arp_announce: Some(2), rp_filter: Some(2) };
        netlink.set_inet_conf(near.index, change).await.expect("settings of the parent");
        let wanted = Macvlan {
            name: "vip-0a1b2c3d".to_owned(),
            parent: near.index,
            mac: Mac::of_vip([1, 2, 3, 4, 5]),
            alias: "test".to_owned(),
            inet_conf: change,
            address: None,
        };
        let index = netlink.add_macvlan(&wanted).await.expect("macvlan");
        for vip in ["192.0.2.10/32", "2001:db8::a/128"] {
            let lifetime = AddressLifetime::For(Duration::from_secs(5));
            netlink.set_address(index, vip.parse().expect("a network"), lifetime).await.expect("address");
        }
        netlink.delete_link(index).await.expect("delete");
        let mut names = Set::new("names", &[Part::InterfaceName]);
        names.insert(&[Value::InterfaceName("vip-0a1b2c3d")]);
        let table = Table { sets: vec![names], chains: Vec::new() };
        Nftables::open("l2-test").expect("nftables").keep(Some(table)).await.expect("a table");
    });
}

#[test]
fn what_is_missing_is_named_even_for_root() {
    on_a_lan(async |Lan { near, .. }| {
        let wanted = [Capability::NetAdmin, Capability::NetRaw];
        assert_eq!(missing(&wanted).expect("capabilities"), []);
        keep_only(CapabilitySet::NET_RAW);
        assert_eq!(missing(&wanted).expect("capabilities"), [Capability::NetAdmin]);
        keep_only(CapabilitySet::empty());
        assert_eq!(missing(&wanted).expect("capabilities"), wanted);
        let names: Vec<String> = wanted.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["NET_ADMIN", "NET_RAW"]);
        let error = PacketSocket::open(near.index, Traffic::Arp).expect_err("not allowed");
        assert!(error.to_string().contains("socket"), "{error}");
    });
}
