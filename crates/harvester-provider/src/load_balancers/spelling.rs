//! Annotations that nobody reads because their keys are misspelt: the Service is served, and not as its author wanted. Pure.

use cloud_provider::provider::Remark;
use cloud_provider::view::Tags;

use super::quoted::Quoted;

/// Ours alone: whatever else begins like this is a mistake.
const OURS: &str = "cloudprovider.harvesterhci.io/";
/// kube-vip has more keys than we read: only what is nearly one of these is a mistake.
const KUBE_VIPS: &str = "kube-vip.io/";
const NEARLY: usize = 2;

/// What the author of a Service with these annotations should know. It ends up in the condition of the Service, so that no later
/// process says it again.
pub fn misspelt(annotations: &Tags) -> Option<Remark> {
    let found = annotations.iter().filter_map(|(key, _)| Some((key, meant(key)?)));
    let found = found.map(|(key, meant)| format!("{} (the nearest known one is {meant})", Quoted(key)));
    let found: Vec<String> = found.collect();
    let message = format!("nobody reads annotation {}: correct it or remove it", found.join(", nor annotation "));
    (!found.is_empty()).then_some(Remark { reason: "UnknownAnnotation", message, warning: true })
}

/// The known key nearest to one that is a mistake.
fn meant(key: &str) -> Option<&'static str> {
    let prefix = [OURS, KUBE_VIPS].into_iter().find(|prefix| key.starts_with(prefix))?;
    let (name, known) = (&key[prefix.len()..], contract::keys::all().filter(|known| known.starts_with(prefix)));
    if contract::keys::is_known(key) {
        return None;
    }
    let (distance, nearest) = known.map(|known| (distance(name, &known[prefix.len()..]), known)).min()?;
    (prefix == OURS || distance <= NEARLY).then_some(nearest)
}

/// How many letters are to be changed, added or left out, whatever their case. Keys have 63 letters at most.
fn distance(one: &str, other: &str) -> usize {
    let letters: Vec<char> = other.chars().map(|letter| letter.to_ascii_lowercase()).collect();
    let mut row: Vec<usize> = (0..=letters.len()).collect();
    for (at, letter) in one.chars().map(|letter| letter.to_ascii_lowercase()).enumerate() {
        let mut before = std::mem::replace(&mut row[0], at + 1);
        for (column, other) in letters.iter().enumerate() {
            let changed = before + usize::from(letter != *other);
            before = row[column + 1];
            row[column + 1] = changed.min(before + 1).min(row[column] + 1);
        }
    }
    row[letters.len()]
}

#[cfg(test)]
mod tests {
    use harvester_api::keys::{cloudprovider, kube_vip};

    use super::*;

    #[test]
    fn a_key_that_nobody_reads_is_named_with_the_one_that_was_meant() {
        for (key, expected) in [
            ("cloudprovider.harvesterhci.io/ippol", Some(cloudprovider::IP_POOL)),
            ("cloudprovider.harvesterhci.io/ipPool", Some(cloudprovider::IP_POOL)),
            ("cloudprovider.harvesterhci.io/primary-servcie", Some(cloudprovider::PRIMARY_SERVICE)),
            ("cloudprovider.harvesterhci.io/IPAM", Some(cloudprovider::IPAM)),
            ("kube-vip.io/loadbalancerIP", Some(kube_vip::LOADBALANCER_IPS)),
            ("kube-vip.io/hwAddr", Some(kube_vip::HWADDR)),
            // kube-vip's own, or somebody else's.
            ("kube-vip.io/egress-allowed-networks", None),
            ("metallb.io/ippol", None),
            ("cloudprovider.harvesterhci.io", None),
        ] {
            assert_eq!(meant(key), expected, "{key}");
            let remark = misspelt(&Tags::from([(key, "x")]));
            assert_eq!(remark.is_some(), expected.is_some(), "{key}");
            if let (Some(remark), Some(expected)) = (remark, expected) {
                assert!(remark.warning && remark.message.contains(key) && remark.message.contains(expected));
            }
        }
        for key in contract::keys::all() {
            assert_eq!(meant(key), None, "{key}");
        }
    }

    #[test]
    fn letters_are_counted() {
        for (one, other, expected) in
            [("", "", 0), ("ip", "IP", 0), ("", "ip", 2), ("ippol", "ippool", 1), ("ab", "ba", 2)]
        {
            assert_eq!(distance(one, other), expected, "{one} {other}");
            assert_eq!(distance(other, one), expected, "{other} {one}");
        }
    }
}
