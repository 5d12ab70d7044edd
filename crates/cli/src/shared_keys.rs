//! The keys through which cloud provider and announcer speak with one another on a Service. Neither knows the other, so each has a list of
//! its own (docs/architecture.md); only here both are known.

use announcer::annotations;
use harvester_api::keys::{cloudprovider, kube_vip};

const SHARED: [(&str, &str); 7] = [
    (kube_vip::LOADBALANCER_IPS, annotations::LOADBALANCER_IPS),
    (kube_vip::SERVICE_INTERFACE, annotations::SERVICE_INTERFACE),
    (kube_vip::HWADDR, annotations::HWADDR),
    (kube_vip::REQUESTED_IP, annotations::REQUESTED_IP),
    (kube_vip::VIP_HOST, annotations::VIP_HOST),
    (kube_vip::IGNORE, annotations::IGNORE),
    (cloudprovider::PRIMARY_SERVICE, annotations::PRIMARY_SERVICE),
];

#[test]
fn cloud_provider_and_announcer_mean_the_same_keys() {
    for (written, read) in SHARED {
        assert_eq!(written, read);
    }
}

/// The cloud provider knows by them whether anybody announces.
#[test]
fn both_mean_the_same_leases() {
    assert_eq!(harvester_provider::MEMBER_PREFIX, announcer::ownership::node::LEASE_PREFIX);
    assert_eq!(harvester_provider::LOCK, announcer::config::GLOBAL_LEASE);
}

#[test]
fn no_key_of_ours_is_told_to_be_misspelt() {
    let texts = [include_str!("../../harvester-api/src/keys.rs"), include_str!("../../announcer/src/annotations.rs")];
    let keys = texts.iter().flat_map(|text| text.split('"'));
    let ours =
        |key: &&str| ["cloudprovider.harvesterhci.io/", "kube-vip.io/"].iter().any(|prefix| key.starts_with(prefix));
    let ours: Vec<&str> = keys.filter(ours).filter(|key| !key.contains(char::is_whitespace)).collect();
    assert!(ours.len() > 30, "{ours:?}");
    for key in ours {
        assert!(harvester_provider::is_known_annotation(key), "{key}");
    }
}

#[test]
fn no_key_that_both_use_is_left_out() {
    let keys = include_str!("../../harvester-api/src/keys.rs").split('"').filter(|text| text.contains(".io/"));
    let read: Vec<&str> = include_str!("../../announcer/src/annotations.rs").split('"').collect();
    let both: Vec<&str> = keys.filter(|key| key.starts_with("kube-vip.io/") || read.contains(key)).collect();
    assert!(both.len() >= SHARED.len(), "{both:?}");
    for key in both {
        assert!(SHARED.iter().any(|(shared, _)| *shared == key), "{key}");
    }
}
