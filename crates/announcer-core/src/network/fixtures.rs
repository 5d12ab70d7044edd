//! A node with two interfaces, for tests.

use std::collections::BTreeMap;
use std::time::Duration;

use l2_types::{Address, AddressLifetime, Link, LinkKind, Mac, MacvlanMode, OUR_ADDRESS_PROTOCOL, OperState};

use super::Network;
use crate::config::Config;

/// An interface that is up.
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

/// A macvlan on `parent`.
pub fn macvlan(index: u32, name: &str, parent: u32, alias: Option<&str>) -> Link {
    Link {
        kind: LinkKind::Macvlan { parent, mode: MacvlanMode::Bridge },
        alias: alias.map(str::to_owned),
        ..link(index, name)
    }
}

/// An address that somebody else has set, for ever.
pub fn address(interface: u32, net: &str) -> Address {
    Address {
        interface,
        net: net.parse().expect("an address with its prefix length"),
        valid: AddressLifetime::Forever,
        preferred: AddressLifetime::Forever,
        protocol: None,
        tentative: false,
        duplicate: false,
        nodad: false,
        metric: None,
    }
}

/// One of ours, with 10 s to live.
pub fn own_address(interface: u32, net: &str) -> Address {
    Address {
        valid: AddressLifetime::For(Duration::from_secs(10)),
        preferred: AddressLifetime::For(Duration::ZERO),
        protocol: Some(OUR_ADDRESS_PROTOCOL),
        ..address(interface, net)
    }
}

/// `eth0` with the default route, and `eth1`, each with an address of the node. The kernel keeps marks, and has marked
/// that of `lo`.
pub fn network() -> Network {
    Network {
        links: vec![link(1, "lo"), link(2, "eth0"), link(3, "eth1")],
        addresses: vec![
            Address { protocol: Some(1), ..address(1, "127.0.0.1/8") },
            address(2, "10.0.0.1/24"),
            address(3, "10.1.0.1/16"),
            address(3, "fd00::1/64"),
        ],
        default_route: Some(2),
        gateway: Some("10.0.0.254".parse().expect("an address")),
        lease_ends: BTreeMap::new(),
        address_ends: BTreeMap::new(),
    }
}

/// The same on a kernel before 5.18.
pub fn without_marks(mut network: Network) -> Network {
    network.addresses.iter_mut().for_each(|address| address.protocol = None);
    network
}

/// kube-vip's `global` mode, the simplest, unless another one is asked for.
pub fn config(env: &[(&str, &str)]) -> Config {
    let env =
        [("election_mode", "global")].iter().chain(env).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::from_env_and_args(env, [], "node-1").expect("a valid configuration")
}
