//! Keeps the topology labels and all addresses of a Node while the hosts are being upgraded. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cloud_provider::view::{NodeAddress, NodeAddressKind, NodeView};

/// The value of the label: the one that the Node has, or the new one if it has none.
pub fn frozen_label(node: &NodeView, key: &str, new: String) -> String {
    match node.labels.get(key) {
        Some(known) if !known.is_empty() => known.to_owned(),
        _ => new,
    }
}

/// The machine's addresses, followed by the other addresses that the Node already has. If the machine has no new
/// address, the Node's addresses stay as they are. An address that meanwhile belongs to a Service is left out.
pub fn frozen_addresses(node: &NodeView, new: Vec<NodeAddress>, vips: &BTreeSet<IpAddr>) -> Vec<NodeAddress> {
    let has = |address: &NodeAddress| node.addresses.contains(address);
    if new.is_empty() || new.iter().all(has) {
        return if new.is_empty() { new } else { kept(node, Vec::new(), vips) };
    }
    // Clients use a Node's first address of a type, so it has to be one that the machine has now.
    kept(node, new, vips)
}

fn kept(node: &NodeView, mut addresses: Vec<NodeAddress>, vips: &BTreeSet<IpAddr>) -> Vec<NodeAddress> {
    for address in &node.addresses {
        let is_vip = address.address.parse::<IpAddr>().is_ok_and(|address| vips.contains(&address));
        let second_name = address.kind == NodeAddressKind::Hostname
            && addresses.iter().any(|known| known.kind == NodeAddressKind::Hostname);
        if !is_vip && !second_name && !addresses.contains(address) {
            addresses.push(address.clone());
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn internal(address: &str) -> NodeAddress {
        NodeAddress { kind: NodeAddressKind::InternalIp, address: address.into() }
    }

    fn name() -> NodeAddress {
        NodeAddress { kind: NodeAddressKind::Hostname, address: "n".into() }
    }

    #[test]
    fn addresses_come_and_do_not_go_and_what_answers_is_first() {
        let mut node = crate::load_balancers::build::node("n", &[]);
        node.addresses = vec![internal("10.0.0.1"), internal("10.0.0.2"), name()];
        let vips = BTreeSet::from(["10.0.0.2".parse().unwrap()]);
        for (new, expected) in [
            (vec![], vec![]),
            (vec![internal("10.0.0.1"), name()], vec![internal("10.0.0.1"), internal("10.0.0.2"), name()]),
            (
                vec![internal("10.0.0.9"), name()],
                vec![internal("10.0.0.9"), name(), internal("10.0.0.1"), internal("10.0.0.2")],
            ),
        ] {
            assert_eq!(frozen_addresses(&node, new, &BTreeSet::new()), expected);
        }
        let moved = frozen_addresses(&node, vec![internal("10.0.0.9"), name()], &vips);
        assert!(!moved.contains(&internal("10.0.0.2")), "it is a Service's now");
    }

    #[test]
    fn a_label_stays_and_one_that_is_missing_is_set() {
        let mut node = crate::load_balancers::build::node("n", &[]);
        assert_eq!(frozen_label(&node, "zone", "b".into()), "b");
        node.labels.insert("zone", "a");
        assert_eq!(frozen_label(&node, "zone", "b".into()), "a");
    }
}
