//! Detects misspelt annotation keys. No program reads such an annotation, so the Service is not served as its author
//! intended. Pure.

use cloud_provider::provider::Remark;
use cloud_provider::view::Tags;
use contract::spelling;

use super::quoted::Quoted;

/// Prefix of this project alone: any unknown key with it is a mistake.
const OURS: &str = "cloudprovider.harvesterhci.io/";
/// kube-vip has more keys than the controller reads, so only a key that is close to a known one is a mistake.
const KUBE_VIPS: &str = "kube-vip.io/";
const NEARLY: usize = 2;

/// The remark about misspelt annotations. It is written to the condition of the Service, so that no later process
/// reports it again.
pub fn misspelt(annotations: &Tags) -> Option<Remark> {
    let found = annotations.iter().filter_map(|(key, _)| Some((key, meant(key)?)));
    let found = found.map(|(key, meant)| format!("{} (the nearest known one is {meant})", Quoted(key)));
    let found: Vec<String> = found.collect();
    let message = format!("nobody reads annotation {}: correct it or remove it", found.join(", nor annotation "));
    (!found.is_empty()).then_some(Remark { reason: "UnknownAnnotation", message, warning: true })
}

/// The known key that is closest to a misspelt one, in its name or in its domain; `None` if the key is no mistake.
fn meant(key: &str) -> Option<&'static str> {
    if contract::keys::is_known(key) {
        return None;
    }
    let (domain, name) = key.split_once('/')?;
    let prefix = [OURS, KUBE_VIPS].into_iter().find(|prefix| key.starts_with(prefix));
    let like = |prefix: &&&str| spelling::nearest(domain, [prefix.trim_end_matches('/')]).is_some();
    let elsewhere = prefix.is_none();
    let prefix = prefix.or_else(|| [OURS, KUBE_VIPS].iter().find(like).copied())?;
    let known = contract::keys::all().filter(|known| known.starts_with(prefix));
    let (distance, nearest) = known.map(|known| (spelling::distance(name, &known[prefix.len()..]), known)).min()?;
    // A key of another domain is a mistake only if its name is close to a known one.
    let enough = if elsewhere || prefix == KUBE_VIPS { NEARLY } else { usize::MAX };
    (distance <= enough).then_some(nearest)
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
            ("cloudprovider.harvester.io/ipam", Some(cloudprovider::IPAM)),
            ("cloudprovider.harvesterchi.io/ippool", Some(cloudprovider::IP_POOL)),
            ("kubevip.io/hwaddr", Some(kube_vip::HWADDR)),
            // kube-vip's own, or somebody else's.
            ("cloudprovider.harvester.io/zone-of-the-author", None),
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
}
