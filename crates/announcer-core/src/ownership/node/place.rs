//! Where a VIP belongs. Pure; every node computes the same.

/// FNV-1a with a final mix. The result is the same on every node, in every version and on every machine, which the
/// hashers of `std` do not promise.
pub(super) fn score(group: &str, node: &str) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in group.bytes().chain([0]).chain(node.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// Rendezvous hashing: the node of `eligible` where the group belongs. When another node joins or leaves, only the
/// groups that belong to that node move.
pub fn preferred<'a>(group: &str, eligible: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    eligible.into_iter().max_by_key(|node| (score(group, node), *node))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

    #[test]
    fn addresses_spread_over_the_nodes() {
        let mut count: BTreeMap<&str, usize> = BTreeMap::new();
        for host in 1..=200 {
            *count.entry(preferred(&format!("10.0.0.{host}"), NODES).unwrap()).or_default() += 1;
        }
        assert!(count.values().all(|count| (45..=90).contains(count)), "{count:?}");
    }

    #[test]
    fn a_node_that_goes_moves_only_what_was_its_own() {
        for host in 1..=200 {
            let group = format!("10.0.0.{host}");
            let before = preferred(&group, NODES).unwrap();
            let after = preferred(&group, ["node-1", "node-3"]).unwrap();
            assert!(before == "node-2" || before == after, "{group}");
        }
    }

    #[test]
    fn the_place_does_not_change_between_versions() {
        assert_eq!(score("10.0.0.5", "node-1"), 0xffe9_ffd5_99f5_bd24);
        assert_eq!(score("fd00::5", "node-2"), 0xe710_abea_7c25_03fc);
        for (group, node) in [("10.0.0.5", "node-1"), ("10.0.0.6", "node-2"), ("fd00::5", "node-2")] {
            assert_eq!(preferred(group, NODES), Some(node), "{group}");
        }
        assert_ne!(score("10.0.0.5", "node-1"), score("10.0.0.5n", "ode-1"), "the parts are told apart");
        assert_eq!(preferred("10.0.0.5", []), None);
    }
}
