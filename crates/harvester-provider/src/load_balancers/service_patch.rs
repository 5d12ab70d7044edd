//! The labels and annotations that the controller writes to a Service (CCM spec 3.6 step 5, 3.7), as one merge patch.
//! Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use cloud_provider::view::ServiceView;
use harvester_api::keys::{cloudprovider, kube_vip};
use serde_json::{Value, json};

use super::network::wanted_network;
use super::sharing::label_value;
use super::view::LbView;

/// The owner of the address that a Service publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// The Service itself.
    #[default]
    Primary,
    /// Another Service.
    Secondary,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Primary => "primary",
            Self::Secondary => "secondary",
        })
    }
}

/// Changes of labels and annotations; `None` removes a key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServicePatch {
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, Option<String>>,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, Option<String>>,
    /// The owner of the address.
    pub role: Role,
    /// The address that is published, for messages.
    pub address: String,
}

/// The patch that publishes the address of a Service with an address of its own; empty if nothing has to change (table
/// 8.3).
pub fn publish(service: &ServiceView, address: &str, interface: Option<&str>) -> ServicePatch {
    let mut patch = ServicePatch { role: Role::Primary, address: address.to_owned(), ..ServicePatch::default() };
    patch.annotate(service, kube_vip::LOADBALANCER_IPS, address);
    // The interface is never removed. If no network is resolved, an existing value was set by a user, or while the
    // mapping was known.
    if let Some(interface) = interface {
        patch.annotate(service, kube_vip::SERVICE_INTERFACE, interface);
    }
    // On a former secondary the label stays, with an empty value, as the Go provider leaves it.
    if service.labels.get(cloudprovider::PRIMARY_SERVICE).is_some_and(|label| !label.is_empty()) {
        patch.labels.insert(cloudprovider::PRIMARY_SERVICE.to_owned(), Some(String::new()));
    }
    patch
}

/// The patch that makes a Service a secondary of `primary`; empty if it already is one (table 8.5). `lb`: the primary's
/// object, if it exists.
pub fn share(service: &ServiceView, primary: &ServiceView, lb: Option<&LbView>, address: IpAddr) -> ServicePatch {
    let address = address.to_string();
    let mut patch = ServicePatch { role: Role::Secondary, address: address.clone(), ..ServicePatch::default() };
    patch.annotate(service, kube_vip::LOADBALANCER_IPS, &address);
    // The network of an address is fixed at creation. A primary that requests another one by now is refused, and its
    // secondaries must not be refused with it.
    let fixed = lb.and_then(|lb| lb.annotations.get(cloudprovider::LB_NETWORK));
    let network = fixed.unwrap_or_else(|| wanted_network(primary));
    if !network.is_empty() {
        patch.annotate(service, cloudprovider::NETWORK, network);
    }
    for key in [kube_vip::SERVICE_INTERFACE, cloudprovider::IPAM] {
        if service.annotations.get(key).is_some_and(|value| !value.is_empty()) {
            patch.annotations.insert(key.to_owned(), None);
        }
    }
    let label = label_value(&primary.key);
    let current = service.labels.get(cloudprovider::PRIMARY_SERVICE);
    match label {
        Some(label) if current != Some(&label) => {
            patch.labels.insert(cloudprovider::PRIMARY_SERVICE.to_owned(), Some(label));
        }
        // The value would be rejected by the API server, so the Service gets no label, and in particular keeps none of
        // a former primary (W-22).
        None if current.is_some() => {
            patch.labels.insert(cloudprovider::PRIMARY_SERVICE.to_owned(), None);
        }
        _ => {}
    }
    patch
}

impl ServicePatch {
    /// Removes the old address and interface.
    pub fn forget_address(service: &ServiceView) -> Self {
        let keys = [kube_vip::LOADBALANCER_IPS, kube_vip::SERVICE_INTERFACE];
        // The interface alone reserves nothing, and may be the user's choice.
        let stale = service.annotations.get(kube_vip::LOADBALANCER_IPS).is_some_and(|ips| !ips.is_empty());
        let annotations = keys
            .into_iter()
            .filter(|key| stale && service.annotations.contains_key(key))
            .map(|key| (key.to_owned(), None))
            .collect();
        Self { annotations, role: Role::Primary, ..Self::default() }
    }

    /// Sets the address that the first DHCP request asks for; afterwards the announcer maintains the annotation.
    pub fn ask_dhcp_for(&mut self, service: &ServiceView, address: IpAddr) {
        if !service.annotations.contains_key(kube_vip::REQUESTED_IP) && service.ingress.is_empty() {
            self.annotations.insert(kube_vip::REQUESTED_IP.to_owned(), Some(address.to_string()));
        }
    }

    fn annotate(&mut self, service: &ServiceView, key: &str, value: &str) {
        if service.annotations.get(key) != Some(value) {
            self.annotations.insert(key.to_owned(), Some(value.to_owned()));
        }
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.annotations.is_empty() && self.labels.is_empty()
    }

    /// The merge patch. The UID in it is a precondition: a successor of the same name is not touched (CCM spec 3.8).
    pub fn body(&self, uid: &str) -> Value {
        let mut metadata = json!({ "uid": uid });
        for (name, changes) in [("annotations", &self.annotations), ("labels", &self.labels)] {
            if !changes.is_empty() {
                metadata[name] = json!(changes);
            }
        }
        json!({ "metadata": metadata })
    }

    /// The Service as it will be after the patch.
    pub fn apply(&self, service: &ServiceView) -> ServiceView {
        let mut service = service.clone();
        for (map, changes) in [(&mut service.annotations, &self.annotations), (&mut service.labels, &self.labels)] {
            for (key, value) in changes {
                match value {
                    Some(value) => map.insert(key, value),
                    None => map.remove(key),
                }
            }
        }
        service
    }
}

#[cfg(test)]
mod tests {
    use super::super::build;
    use super::*;

    const IP: &str = "192.168.101.57";

    /// Name, annotations, resolved interface, whether it is published.
    type Case<'a> = (&'a str, Vec<(&'a str, &'a str)>, Option<&'a str>, bool);

    #[test]
    fn ccm_8_3_primary_already_published() {
        let net = ("net", "default/mgmt-vlan1");
        let cases: [Case; 10] = [
            ("fully_updated_no_network", vec![("ip", IP)], None, true),
            ("no_network_existing_interface_preserved", vec![("ip", IP), ("if", "eth0")], None, true),
            ("ip_mismatch", vec![("ip", "192.168.101.1")], None, false),
            ("dhcp_network_present_not_yet_converted", vec![("ip", IP), ("ipam", "dhcp"), net], Some("enp1s0"), false),
            ("dhcp_mapping_unavailable_network_preserved", vec![("ip", IP), ("ipam", "dhcp"), net], None, true),
            (
                "dhcp_after_conversion_interface_preserved",
                vec![("ip", IP), ("if", "enp1s0"), ("ipam", "dhcp")],
                None,
                true,
            ),
            (
                "dhcp_interface_set_but_network_not_removed",
                vec![("ip", IP), ("if", "enp1s0"), ("ipam", "dhcp"), net],
                Some("enp1s0"),
                true,
            ),
            ("dhcp_fully_converted", vec![("ip", IP), ("if", "enp1s0"), ("ipam", "dhcp")], Some("enp1s0"), true),
            ("ippool_interface_not_yet_set", vec![("ip", IP), ("ipam", "pool"), net], Some("enp1s0"), false),
            ("ippool_fully_converted", vec![("ip", IP), ("if", "enp1s0"), ("ipam", "pool"), net], Some("enp1s0"), true),
        ];
        for (name, annotations, interface, expected) in cases {
            let service = build::service("default/web").short(&annotations).label("").done();
            let patch = publish(&service, IP, interface);
            assert_eq!(patch.is_empty(), expected, "{name}: {patch:?}");
            assert!(publish(&patch.apply(&service), IP, interface).is_empty(), "{name}: done after one patch");
        }
    }

    #[test]
    fn ccm_8_5_secondary_already_published() {
        let primary = build::service("default/primary-svc").ingress(IP).done();
        for (name, ip, expected) in [("fully_updated", IP, true), ("ip_mismatch", "192.168.101.1", false)] {
            let service =
                build::service("default/a").short(&[("ip", ip), ("ipam", "")]).label("default.primary-svc").done();
            assert_eq!(share(&service, &primary, None, IP.parse().unwrap()).is_empty(), expected, "{name}");
        }
    }

    #[test]
    fn a_new_secondary_gets_everything_in_one_patch() {
        let primary = build::service("default/web").short(&[("net", "a/b")]).ingress(IP).done();
        let service = build::service("default/web2")
            .short(&[("primary", "default/web"), ("ipam", "dhcp"), ("if", "eth0"), ("ip", "10.0.0.9")])
            .done();
        let patch = share(&service, &primary, None, IP.parse().unwrap());
        assert_eq!(
            patch.body("u-1"),
            json!({"metadata": {
                "uid": "u-1",
                "annotations": {
                    "kube-vip.io/loadbalancerIPs": IP, "cloudprovider.harvesterhci.io/network": "a/b",
                    "kube-vip.io/serviceInterface": null, "cloudprovider.harvesterhci.io/ipam": null
                },
                "labels": {"cloudprovider.harvesterhci.io/primary-service": "default.web"}
            }})
        );
        assert!(share(&patch.apply(&service), &primary, None, IP.parse().unwrap()).is_empty());
    }

    #[test]
    fn a_former_secondary_keeps_an_empty_label() {
        let service = build::service("default/web").short(&[("ip", IP)]).label("default.other").done();
        let body = publish(&service, IP, None).body("u");
        assert_eq!(
            body,
            json!({"metadata": {"uid": "u", "labels": {"cloudprovider.harvesterhci.io/primary-service": ""}}})
        );
    }

    /// W-22.
    #[test]
    fn a_secondary_of_a_primary_with_a_very_long_name_has_no_label_and_works() {
        let long = "a".repeat(32);
        let primary = build::service(&format!("{long}/{long}")).ingress(IP).done();
        let service = build::service("default/a").label("default.former").done();
        let patch = share(&service, &primary, None, IP.parse().unwrap());
        let after = patch.apply(&service);
        assert!(!after.labels.contains_key(cloudprovider::PRIMARY_SERVICE));
        assert!(share(&after, &primary, None, IP.parse().unwrap()).is_empty());
    }
}
