//! Maps the network that a Service requests to the interface that its announcer uses (CCM spec 3.3, table 8.6). Pure.

use cloud_provider::view::ServiceView;
use harvester_api::keys::{cloudprovider, kube_vip};

use super::quoted::Quoted;
use crate::nad_mapping::{NAME, NAMESPACE, NadMapping};

/// Why a network has no interface. The texts are the Go provider's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// The ConfigMap does not have the expected format.
    #[error("invalid interface-nad-mapping in ConfigMap {NAMESPACE}/{NAME}: {0}")]
    Invalid(String),
    /// The nodes have no network in common.
    #[error(
        "the nodes have no network in common: ConfigMap {NAMESPACE}/{NAME} is empty. Attach the network to all \
         machines of this cluster and run qemu-guest-agent in them, or remove annotation {key}",
        key = cloudprovider::NETWORK
    )]
    NothingInCommon,
    /// This network is not one of those that the nodes have in common.
    #[error(
        "service {service} asks for network {} (annotation {key}), which not all nodes have; all nodes have {} \
         (ConfigMap {NAMESPACE}/{NAME}): name one of these, or attach the network to all machines",
        Quoted(network), listed(known), key = cloudprovider::NETWORK
    )]
    NotInMapping {
        /// As the Service names it.
        network: String,
        /// `namespace/name`.
        service: String,
        /// The networks in the mapping.
        known: Vec<String>,
    },
}

/// The largest number of names in an Event.
const LISTED: usize = 8;

fn listed(networks: &[String]) -> String {
    let names = networks.iter().take(LISTED).map(|name| Quoted(name).to_string()).collect::<Vec<_>>().join(", ");
    let rest = networks.len().saturating_sub(LISTED);
    if rest == 0 { names } else { format!("{names} and {rest} more") }
}

/// The annotation that names the network; empty where it is missing.
pub fn wanted_network(service: &ServiceView) -> &str {
    service.annotations.get(cloudprovider::NETWORK).unwrap_or_default()
}

/// The interface for the Service's network. `None`: the Service requests no network, or there is no mapping yet.
pub fn resolve_interface(service: &ServiceView, mapping: Option<&NadMapping>) -> Result<Option<String>, NetworkError> {
    let network = wanted_network(service);
    if network.is_empty() {
        return Ok(None);
    }
    match mapping {
        None | Some(NadMapping::Null) => Ok(None),
        Some(NadMapping::Empty) => Err(NetworkError::NothingInCommon),
        Some(NadMapping::Invalid(why)) => Err(NetworkError::Invalid(why.clone())),
        Some(NadMapping::Known(map)) => match map.get(network) {
            Some(interface) => Ok(Some(interface.clone())),
            None => Err(NetworkError::NotInMapping {
                network: network.to_owned(),
                service: service.key.to_string(),
                known: map.keys().cloned().collect(),
            }),
        },
    }
}

/// Like [`resolve_interface`], but a Service that already has an address keeps its interface when its network drops out
/// of the mapping. The mapping depends on what guest agents currently report (W-17).
pub fn interface_for(service: &ServiceView, mapping: Option<&NadMapping>) -> Result<Option<String>, NetworkError> {
    let served = service.annotations.get(kube_vip::LOADBALANCER_IPS).is_some_and(|ips| !ips.is_empty());
    match resolve_interface(service, mapping) {
        Err(error) if served => {
            tracing::debug!(
                service = %service.key,
                %error,
                "the network of the Service cannot be used now; the controller keeps the interface that the Service \
                already has"
            );
            Ok(service.annotations.get(kube_vip::SERVICE_INTERFACE).filter(|name| !name.is_empty()).map(str::to_owned))
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::super::build;
    use super::*;

    fn mapping() -> NadMapping {
        let pairs = [("default/net123", "enp2s0"), ("default/mgmt", "enp1s0")];
        NadMapping::Known(pairs.iter().map(|(nad, name)| ((*nad).into(), (*name).into())).collect())
    }

    /// Name, annotations, mapping, result.
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], Option<&'a NadMapping>, Result<Option<&'a str>, &'a str>);

    #[test]
    fn ccm_8_6_interface_resolution() {
        let m = mapping();
        let cases: [Case; 6] = [
            ("no relevant annotations", &[], None, Ok(None)),
            ("ConfigMap not found", &[("net", "default/mgmt"), ("ipam", "dhcp")], None, Ok(None)),
            ("DHCP present", &[("net", "default/net123"), ("ipam", "dhcp")], Some(&m), Ok(Some("enp2s0"))),
            (
                "DHCP not in mapping",
                &[("net", "default/unknown-net"), ("ipam", "dhcp")],
                Some(&m),
                Err("service default/web asks for network default/unknown-net (annotation "),
            ),
            ("Pool present", &[("net", "default/net123"), ("ipam", "pool")], Some(&m), Ok(Some("enp2s0"))),
            (
                "Pool not in mapping",
                &[("net", "default/unknown-net"), ("ipam", "pool")],
                Some(&m),
                Err("service default/web asks for network default/unknown-net (annotation "),
            ),
        ];
        for (name, annotations, mapping, expected) in cases {
            let service = build::service("default/web").short(annotations).done();
            let got = resolve_interface(&service, mapping).map_err(|error| error.to_string());
            match (&got, expected) {
                (Err(text), Err(start)) => assert!(text.starts_with(start), "{name}: {text}"),
                _ => assert_eq!(got, expected.map(|name| name.map(str::to_owned)).map_err(str::to_owned), "{name}"),
            }
        }
    }

    #[test]
    fn an_unknown_network_is_answered_with_those_that_there_are() {
        let service = build::service("default/web").short(&[("net", "a/gone")]).done();
        let text = resolve_interface(&service, Some(&mapping())).unwrap_err().to_string();
        for part in [
            "cloudprovider.harvesterhci.io/network",
            "all nodes have default/mgmt, default/net123 (ConfigMap kube-system/",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let many = NadMapping::Known((0..20).map(|n| (format!("a/{n:02}"), "eth0".to_owned())).collect());
        let text = resolve_interface(&service, Some(&many)).unwrap_err().to_string();
        assert!(text.contains("a/07 and 12 more"), "{text}");
    }

    #[test]
    fn an_unusable_mapping_is_explained_only_to_services_with_a_network() {
        let plain = build::service("default/web").done();
        let with = build::service("default/web").short(&[("net", "a/b")]).done();
        for (mapping, text) in [
            (
                NadMapping::Empty,
                "the nodes have no network in common: ConfigMap kube-system/harvester-nad-mapping is empty. Attach ",
            ),
            (
                NadMapping::Invalid("expected value".into()),
                "invalid interface-nad-mapping in ConfigMap kube-system/harvester-nad-mapping: expected value",
            ),
        ] {
            assert_eq!(resolve_interface(&plain, Some(&mapping)), Ok(None));
            let told = resolve_interface(&with, Some(&mapping)).unwrap_err().to_string();
            assert!(told.starts_with(text), "{told}");
        }
        assert_eq!(resolve_interface(&with, Some(&NadMapping::Null)), Ok(None));
    }

    /// W-17.
    #[test]
    fn a_served_service_keeps_its_interface_when_its_network_drops_out_of_the_mapping() {
        let served = [("net", "a/gone"), ("ip", "10.0.0.1"), ("if", "eth7")];
        let service = build::service("default/web").short(&served).done();
        assert_eq!(interface_for(&service, Some(&mapping())), Ok(Some("eth7".into())));
        let new = build::service("default/web").short(&served[..1]).done();
        assert!(interface_for(&new, Some(&mapping())).is_err());
    }
}
