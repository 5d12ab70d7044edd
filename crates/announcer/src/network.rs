//! What the node's kernel shows us, and the choice of the interface for an address. Pure.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use l2::Mac;
use l2::netlink::{Address, AddressLifetime, Link, LinkKind};

use crate::annotations::{HWADDR, MACVLAN_NAME, SERVICE_INTERFACE, cut};
use crate::config::{Config, PrefixRule};
use crate::view::{InterfaceWish, Uid};

/// Interfaces, addresses and the default route at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Network {
    /// All interfaces.
    pub links: Vec<Link>,
    /// All addresses.
    pub addresses: Vec<Address>,
    /// Interface of the default route.
    pub default_route: Option<u32>,
}

/// What speaks about an address on the wire: ARP or neighbour discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// ARP.
    V4,
    /// Neighbour discovery.
    V6,
}

impl Family {
    /// That of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// Why there is no interface for an address. The text is what the user reads in the Event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum InterfaceError {
    /// No such interface.
    #[error(
        "{source_name} names interface {name:?}, which does not exist on this node; there are: {existing}. It is used as soon as it appears"
    )]
    Missing {
        /// Annotation or variable.
        source_name: &'static str,
        /// The name in it.
        name: String,
        /// What there is.
        existing: String,
    },
    /// It is set down.
    #[error("{source_name} names interface {name:?}, which is set down; it is used as soon as it is up")]
    Down {
        /// Annotation or variable.
        source_name: &'static str,
        /// The name in it.
        name: String,
    },
    /// Nothing was named and there is no default route.
    #[error(
        "no interface is named (annotation kube-vip.io/serviceInterface, vip_servicesinterface, vip_interface) and there is no default route; there are: {existing}"
    )]
    NoDefaultRoute {
        /// What there is.
        existing: String,
    },
}

impl Network {
    /// The interface with this index.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }

    /// The interface with this name.
    pub fn link_by_name(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// The interface whose own subnet contains `address`; a VIP's host prefix is no subnet.
    fn containing(&self, address: IpAddr) -> Option<(&Link, u8)> {
        self.addresses
            .iter()
            .filter(|own| {
                own.net.prefix_len() < own.net.max_prefix_len()
                    && own.net.prefix_len() > 0
                    && own.net.contains(&address)
            })
            .filter(|own| own.preferred != AddressLifetime::For(Duration::ZERO))
            .filter_map(|own| Some((self.link(own.interface)?, own.net.prefix_len())))
            .filter(|(link, _)| !is_own_macvlan(link))
            .min_by_key(|(link, prefix)| (link.index, u8::MAX - prefix))
    }

    /// announcer.md 5.7: annotation, then `vip_servicesinterface`, then `vip_interface`, then the default route. `auto`
    /// takes the interface whose subnet contains the address, else goes on with `vip_interface`. `address` is absent
    /// for DHCP, which `auto` therefore cannot match.
    pub fn choose(
        &self,
        wish: &InterfaceWish,
        config: &Config,
        address: Option<IpAddr>,
    ) -> Result<&Link, InterfaceError> {
        let (source_name, name) = match (wish, config.services_interface.as_deref()) {
            (InterfaceWish::Named(name), _) => (SERVICE_INTERFACE, Some(name.as_str())),
            (InterfaceWish::Auto, _) | (InterfaceWish::Default, Some("auto")) => {
                if let Some((link, _)) = address.and_then(|address| self.containing(address)) {
                    return Ok(link);
                }
                ("vip_interface", config.interface.as_deref())
            }
            (InterfaceWish::Default, Some(name)) => ("vip_servicesinterface", Some(name)),
            (InterfaceWish::Default, None) => ("vip_interface", config.interface.as_deref()),
        };
        let Some(name) = name else {
            return self
                .default_route
                .and_then(|index| self.link(index))
                .ok_or_else(|| InterfaceError::NoDefaultRoute { existing: self.existing() });
        };
        let link = self.link_by_name(name).ok_or_else(|| InterfaceError::Missing {
            source_name,
            name: cut(name),
            existing: self.existing(),
        })?;
        if link.up { Ok(link) } else { Err(InterfaceError::Down { source_name, name: cut(name) }) }
    }

    /// The prefix length for `address` on `link` (`vip_subnet`).
    pub fn prefix(&self, config: &Config, link: &Link, address: IpAddr) -> IpNet {
        let rule = if address.is_ipv4() { config.prefix4 } else { config.prefix6 };
        let host = if address.is_ipv4() { 32 } else { 128 };
        let length = match rule {
            PrefixRule::Length(length) => length,
            PrefixRule::Auto => self
                .addresses
                .iter()
                .filter(|own| own.interface == link.index && own.net.prefix_len() < host && own.net.contains(&address))
                .map(|own| own.net.prefix_len())
                .max()
                .unwrap_or(host),
        };
        IpNet::new(address, length.min(host)).expect("the length is at most that of the family")
    }

    /// The interface on which `address` stands although neither we nor kube-vip have set it: it is the node's own, and
    /// neither to be announced nor to be replaced.
    pub fn own_interface(&self, address: IpAddr, except: impl Fn(&Address) -> bool) -> Option<&Link> {
        self.addresses
            .iter()
            .filter(|own| own.net.addr() == address && !except(own))
            .filter_map(|own| Some((own, self.link(own.interface)?)))
            // The interface of kube-proxy's IPVS mode carries every address that is published.
            .filter(|(own, link)| !looks_like_a_vip(own, link) && link.name != "kube-ipvs0")
            .map(|(_, link)| link)
            .next()
    }

    /// Whether we have set `address` on a kernel that keeps no marks (before 5.18): with a prefix of a subnet nothing but
    /// its short deadline tells it from one of the node.
    pub fn is_ours_without_mark(&self, address: &Address, fence: Duration) -> bool {
        self.addresses.iter().all(|address| address.protocol.is_none())
            && address.preferred == AddressLifetime::For(Duration::ZERO)
            && matches!(address.valid, AddressLifetime::For(left) if left <= fence)
    }

    /// What a user may choose from.
    fn existing(&self) -> String {
        let names: Vec<&str> = self
            .links
            .iter()
            .filter(|link| !is_own_macvlan(link) && link.name != "lo")
            // A node has an interface per pod; nobody means those.
            .filter(|link| {
                !matches!(&link.kind, LinkKind::Virtual(kind) if kind == "veth")
                    || self
                        .addresses
                        .iter()
                        .any(|address| address.interface == link.index && address.net.addr().is_ipv4())
            })
            .map(|link| link.name.as_str())
            .take(20)
            .collect();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    }
}

/// A macvlan named like those of DHCP Services, ours or kube-vip's: `vip-` and 8 hexadecimal digits.
pub fn is_own_macvlan(link: &Link) -> bool {
    matches!(link.kind, LinkKind::Macvlan { .. })
        && link
            .name
            .strip_prefix("vip-")
            .is_some_and(|rest| rest.len() == 8 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Whether this is the macvlan of the Service with this UID, and of no other: by our alias, or by the name that kube-vip
/// gives it and the alias that kube-vip does not. Nothing else may be deleted for a Service's sake: the name of the
/// interface comes from an annotation, and could be that of a bridge.
pub fn is_macvlan_of(link: &Link, uid: &Uid) -> bool {
    matches!(link.kind, LinkKind::Macvlan { .. })
        && match &link.alias {
            Some(alias) => *alias == uid.0,
            None => link.name == uid.link_name(),
        }
}

/// What the author of the Service reads when its macvlan cannot have the name `name`.
pub fn name_is_taken(name: &str, uid: &Uid) -> String {
    if name == uid.link_name() {
        return format!(
            "interface {name} exists and is not ours: remove it, or name another one with annotation {MACVLAN_NAME}"
        );
    }
    format!(
        "annotation {MACVLAN_NAME} is {name:?}: interface {name:?} exists and is not ours; choose another {MACVLAN_NAME}"
    )
}

/// What the author of the Service reads when its macvlan cannot have this MAC. Without numbers of interfaces, which
/// change with each attempt.
pub fn mac_is_taken(mac: Mac) -> String {
    format!(
        "MAC {mac} is already used on this node: remove annotation {HWADDR}, or give this Service another one with it"
    )
}

/// Whether somebody's VIP looks like this: a host prefix that is never chosen as source address. The interface of
/// kube-proxy's IPVS mode carries every Service address and is none of our business.
pub fn looks_like_a_vip(address: &Address, link: &Link) -> bool {
    address.is_ours()
        || (address.net.prefix_len() == address.net.max_prefix_len()
            && address.preferred == AddressLifetime::For(Duration::ZERO)
            && link.name != "kube-ipvs0"
            && link.name != "lo")
}

#[cfg(test)]
pub(crate) mod fixtures {
    use l2::netlink::{MacvlanMode, OUR_ADDRESS_PROTOCOL, OperState};

    use super::*;

    pub fn link(index: u32, name: &str) -> Link {
        Link {
            index,
            name: name.into(),
            mac: Some(Mac::new([2, 0, 0, 0, 0, u8::try_from(index).unwrap_or(0xfe)])),
            up: true,
            carrier: true,
            state: OperState::Up,
            mtu: 1500,
            kind: LinkKind::Physical,
            alias: None,
        }
    }

    pub fn macvlan(index: u32, name: &str, parent: u32, alias: Option<&str>) -> Link {
        Link {
            kind: LinkKind::Macvlan { parent, mode: MacvlanMode::Bridge },
            alias: alias.map(str::to_owned),
            ..link(index, name)
        }
    }

    pub fn address(interface: u32, net: &str) -> Address {
        Address {
            interface,
            net: net.parse().unwrap(),
            valid: AddressLifetime::Forever,
            preferred: AddressLifetime::Forever,
            protocol: None,
            tentative: false,
            duplicate: false,
            nodad: false,
        }
    }

    pub fn own_address(interface: u32, net: &str) -> Address {
        Address {
            valid: AddressLifetime::For(Duration::from_secs(10)),
            preferred: AddressLifetime::For(Duration::ZERO),
            protocol: Some(OUR_ADDRESS_PROTOCOL),
            ..address(interface, net)
        }
    }

    pub fn network() -> Network {
        Network {
            links: vec![link(1, "lo"), link(2, "eth0"), link(3, "eth1")],
            addresses: vec![
                address(1, "127.0.0.1/8"),
                address(2, "10.0.0.1/24"),
                address(3, "10.1.0.1/16"),
                address(3, "fd00::1/64"),
            ],
            default_route: Some(2),
        }
    }

    pub fn config(env: &[(&str, &str)]) -> Config {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Config::from_env_and_args(env, [], "node-1").unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::*;
    use super::*;

    fn chosen(wish: &InterfaceWish, env: &[(&str, &str)], address: Option<&str>) -> Result<String, InterfaceError> {
        network().choose(wish, &config(env), address.map(|text| text.parse().unwrap())).map(|link| link.name.clone())
    }

    #[test]
    fn the_interface_is_looked_for_in_order() {
        let named = InterfaceWish::Named("eth1".into());
        let services = [("vip_servicesinterface", "eth1"), ("vip_interface", "eth0")];
        for (wish, env, address, expected) in [
            (&InterfaceWish::Default, &[][..], Some("10.0.0.5"), "eth0"),
            (&InterfaceWish::Default, &[("vip_interface", "eth1")], Some("10.0.0.5"), "eth1"),
            (&InterfaceWish::Default, &services, Some("10.0.0.5"), "eth1"),
            (&named, &[("vip_interface", "eth0")], None, "eth1"),
            (&InterfaceWish::Auto, &[], Some("10.1.2.3"), "eth1"),
            (&InterfaceWish::Auto, &[], Some("fd00::5"), "eth1"),
            (&InterfaceWish::Auto, &[], Some("192.0.2.1"), "eth0"),
            (&InterfaceWish::Auto, &[("vip_interface", "eth1")], None, "eth1"),
            (&InterfaceWish::Default, &[("vip_servicesinterface", "auto")], Some("10.1.2.3"), "eth1"),
        ] {
            assert_eq!(chosen(wish, env, address).as_deref(), Ok(expected), "{wish:?} {env:?} {address:?}");
        }
    }

    #[test]
    fn a_missing_interface_is_told_with_its_source_and_what_there_is() {
        let text = chosen(&InterfaceWish::Named("eth9".into()), &[], None).unwrap_err().to_string();
        assert!(
            text.contains("kube-vip.io/serviceInterface") && text.contains("\"eth9\"") && text.contains("eth0, eth1"),
            "{text}"
        );
        let text = chosen(&InterfaceWish::Default, &[("vip_interface", "bond0")], None).unwrap_err().to_string();
        assert!(text.contains("vip_interface") && text.contains("bond0"), "{text}");
        let network = Network { default_route: None, ..network() };
        assert!(matches!(
            network.choose(&InterfaceWish::Default, &config(&[]), None),
            Err(InterfaceError::NoDefaultRoute { .. })
        ));
    }

    #[test]
    fn a_vip_prefix_is_a_host_prefix_unless_told_otherwise() {
        let network = network();
        let eth0 = network.link_by_name("eth0").unwrap();
        let prefix = |env: &[(&str, &str)], address: &str| {
            network.prefix(&config(env), eth0, address.parse().unwrap()).to_string()
        };
        assert_eq!(prefix(&[], "10.0.0.5"), "10.0.0.5/32");
        assert_eq!(prefix(&[], "fd00::5"), "fd00::5/128");
        assert_eq!(prefix(&[("vip_subnet", "24")], "10.0.0.5"), "10.0.0.5/24");
        assert_eq!(prefix(&[("vip_subnet", "auto")], "10.0.0.5"), "10.0.0.5/24");
        assert_eq!(prefix(&[("vip_subnet", "auto")], "192.0.2.1"), "192.0.2.1/32");
    }

    #[test]
    fn own_macvlans_are_known_by_name_and_kind() {
        assert!(is_own_macvlan(&macvlan(9, "vip-1234abcd", 2, None)));
        assert!(!is_own_macvlan(&macvlan(9, "vip-1234abc", 2, None)));
        assert!(!is_own_macvlan(&macvlan(9, "vip-1234abcz", 2, None)));
        assert!(!is_own_macvlan(&link(9, "vip-1234abcd")));
    }

    #[test]
    fn a_macvlan_is_a_services_own_by_alias_or_by_kube_vips_name() {
        let uid = Uid("1234abcd-0000".into());
        for (link, own) in [
            (macvlan(9, "vip-1234abcd", 2, None), true),
            (macvlan(9, "lan", 2, Some("1234abcd-0000")), true),
            (macvlan(9, "lan", 2, None), false),
            (macvlan(9, "vip-1234abcd", 2, Some("1234abcd-1111")), false),
            (macvlan(9, "vip-00000000", 2, None), false),
            (Link { alias: Some("1234abcd-0000".into()), ..link(9, "vip-1234abcd") }, false),
        ] {
            assert_eq!(is_macvlan_of(&link, &uid), own, "{link:?}");
        }
    }

    #[test]
    fn the_nodes_own_addresses_are_known_wherever_they_stand() {
        let mut network = network();
        network.links.push(link(7, "kube-ipvs0"));
        network.addresses.push(address(1, "10.9.9.9/32"));
        network.addresses.push(address(7, "10.0.0.7/32"));
        network.addresses.push(own_address(2, "10.0.0.5/24"));
        network.addresses.push(Address { protocol: None, ..own_address(2, "10.0.0.6/32") });
        network.addresses.push(Address { protocol: None, ..own_address(2, "10.0.0.8/24") });
        for (text, on) in [
            ("10.0.0.1", Some("eth0")),
            ("10.1.0.1", Some("eth1")),
            ("fd00::1", Some("eth1")),
            ("10.9.9.9", Some("lo")),
            ("10.0.0.8", Some("eth0")),
            ("10.0.0.5", None),
            ("10.0.0.6", None),
            ("10.0.0.7", None),
            ("10.0.0.9", None),
        ] {
            let found = network.own_interface(text.parse().unwrap(), |_| false);
            assert_eq!(found.map(|link| link.name.as_str()), on, "{text}");
        }
    }

    #[test]
    fn without_marks_a_short_deadline_is_ours() {
        let fence = Duration::from_secs(12);
        let unmarked = |seconds| Address {
            protocol: None,
            valid: AddressLifetime::For(Duration::from_secs(seconds)),
            ..own_address(2, "10.0.0.5/24")
        };
        assert!(network().is_ours_without_mark(&unmarked(12), fence));
        assert!(!network().is_ours_without_mark(&unmarked(3600), fence));
        assert!(!network().is_ours_without_mark(&address(2, "10.0.0.5/24"), fence));
        let mut marked = network();
        marked.addresses[0].protocol = Some(1);
        assert!(!marked.is_ours_without_mark(&unmarked(12), fence));
    }

    #[test]
    fn addresses_of_the_node_do_not_look_like_a_vip() {
        let kube_vip = Address { protocol: None, valid: AddressLifetime::Forever, ..own_address(2, "10.0.0.5/32") };
        assert!(looks_like_a_vip(&kube_vip, &link(2, "eth0")));
        assert!(!looks_like_a_vip(&kube_vip, &link(7, "kube-ipvs0")));
        assert!(!looks_like_a_vip(&address(2, "10.0.0.5/32"), &link(2, "eth0")));
        assert!(!looks_like_a_vip(&address(2, "10.0.0.5/24"), &link(2, "eth0")));
        assert!(looks_like_a_vip(&own_address(2, "10.0.0.5/24"), &link(2, "eth0")));
    }
}
