//! Services, for tests.

use std::collections::BTreeSet;

use crate::annotations::AddressRequest;
use crate::view::{DhcpWishes, Giver, Ingress, InterfaceWish, Port, Published, ServiceKey, ServiceView, Uid, Wish};

/// A Service of this name that wants these addresses; `dhcp` and `dhcp6` stand for leased ones.
pub fn view(name: &str, wanted: &[&str]) -> ServiceView {
    ServiceView {
        key: ServiceKey::new("default", name),
        uid: Uid(format!("{name:0<8}-uid")),
        created: 0,
        wanted: wanted
            .iter()
            .map(|text| match *text {
                "dhcp" => AddressRequest::Dhcp4,
                "dhcp6" => AddressRequest::Dhcp6,
                address => AddressRequest::Static(address.parse().expect("an address")),
            })
            .collect(),
        wish: Wish::Said,
        granted: None,
        giver: Giver::Unknown,
        interface: InterfaceWish::Default,
        dhcp: DhcpWishes::default(),
        ports: vec![Port { port: 80, protocol: "TCP".into() }],
        published: Published::default(),
        problems: BTreeSet::new(),
        without_effect: None,
        unguarded: false,
        retired: false,
        local_traffic: false,
        probe: None,
        primary: None,
        lease_name: None,
    }
}

/// The Service, with `address` in its status.
pub fn told(mut view: ServiceView, address: &str) -> ServiceView {
    view.published.ingress.push(Ingress { ip: Some(address.parse().expect("an address")), ports: view.ports.clone() });
    view
}
