//! Services that share the address of another one: pure (ccm.md 3.2, 3.6).
//!
//! Who shares with whom is read from the annotation, as users write it, not from the label that follows it later (W-20, W-21).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use cloud_provider::view::{Protocol, ServiceKey, ServiceView};
use harvester_api::keys::{cloudprovider, kube_vip};
use harvester_api::names;

use super::quoted::Quoted;

/// Why a Service may not share an address. The texts are the Go provider's, with what to do about it where that helps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// The annotation's value is not `namespace/name` (W-23).
    #[error(
        "invalid service name {}: annotation {key} has the value {:?}, expected name or namespace/name of another Service; \
         remove the annotation for an address of its own",
        Quoted(value), Quoted(value), key = cloudprovider::PRIMARY_SERVICE
    )]
    InvalidName {
        /// As written.
        value: String,
    },
    /// There is no such Service.
    #[error("get service {} failed: services {:?} not found", Quoted(value), Quoted(name))]
    NoPrimary {
        /// As written.
        value: String,
        /// Its name part.
        name: String,
    },
    /// The Service shares another one's address itself, or names itself.
    #[error("service {} is not a primary service", Quoted(value))]
    NotPrimary {
        /// As written.
        value: String,
    },
    /// The same port of the same protocol is taken.
    #[error(transparent)]
    PortTaken(#[from] Box<PortClash>),
}

/// A port of a shared address that two Services want.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "check port overlap failed, primary service: {primary}, secondary service: {secondary}, error: port {port} has been used in \
     service {by}"
)]
pub struct PortClash {
    /// Owner of the address.
    pub primary: ServiceKey,
    /// Who shares it.
    pub secondary: ServiceKey,
    /// The port.
    pub port: u16,
    /// Who has it.
    pub by: ServiceKey,
}

/// The primary that a Service names: `None` for a Service with an address of its own.
pub fn named_primary(service: &ServiceView) -> Option<Result<ServiceKey, ShareError>> {
    let value = service.annotations.get(cloudprovider::PRIMARY_SERVICE)?;
    Some(match value.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok(ServiceKey { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        // A bare name means the same namespace; the Go provider refuses it.
        None if names::is_dns_1123_label(value) => {
            Ok(ServiceKey { namespace: service.key.namespace.clone(), name: value.clone() })
        }
        _ => Err(ShareError::InvalidName { value: value.clone() }),
    })
}

/// ccm.md 3.2.
pub fn primary_of(
    service: &ServiceView,
    find: impl Fn(&ServiceKey) -> Option<Arc<ServiceView>>,
) -> Result<Option<Arc<ServiceView>>, ShareError> {
    let Some(key) = named_primary(service).transpose()? else { return Ok(None) };
    let value = key.to_string();
    let Some(primary) = find(&key) else { return Err(ShareError::NoPrimary { value, name: key.name }) };
    let chained = primary.annotations.get(cloudprovider::PRIMARY_SERVICE).is_some_and(|named| !named.is_empty());
    if chained { Err(ShareError::NotPrimary { value }) } else { Ok(Some(primary)) }
}

/// Services that share with `primary`: they name it, want a load balancer from us and are not being deleted (W-21).
pub fn sharers(primary: &ServiceKey, services: impl IntoIterator<Item = Arc<ServiceView>>) -> Vec<Arc<ServiceView>> {
    let names_it = |service: &ServiceView| matches!(named_primary(service), Some(Ok(key)) if key == *primary);
    services
        .into_iter()
        .filter(|service| service.is_load_balancer && !service.has_class && !service.deleting)
        .filter(|service| service.key != *primary && names_it(service))
        .collect()
}

/// Value of the label on a secondary; `None` where it would be no valid label value (W-22): then there is no label.
pub fn label_value(primary: &ServiceKey) -> Option<String> {
    let value = format!("{}.{}", primary.namespace, primary.name);
    names::is_label_value(&value).then_some(value)
}

/// Whether a sharer has its place already: it wears the label, or shows the primary's address. Others have to look for free ports.
pub fn has_joined(sharer: &ServiceView, primary: &ServiceView) -> bool {
    if wears_label_of(sharer, &primary.key) {
        return true;
    }
    let shown = sharer.annotations.get(kube_vip::LOADBALANCER_IPS).and_then(|ips| ips.parse().ok());
    shown.is_some() && shown == primary.ingress.first().copied()
}

/// Whether a Service shows this address as its own. That of a DHCP load balancer is not known yet and nobody's.
pub fn shows(service: &ServiceView, address: &str) -> bool {
    let address = address.parse::<IpAddr>().ok().filter(|address| !address.is_unspecified());
    let shown = service.annotations.get(kube_vip::LOADBALANCER_IPS).and_then(|ips| ips.parse().ok());
    address.is_some() && address == shown
}

/// Whether an address that a Service shows or is served with belongs to another one by now. A former secondary may go on with its
/// primary's, as before.
pub fn is_taken(service: &ServiceView, services: &[Arc<ServiceView>]) -> bool {
    other_user(service, services).is_some()
}

/// Who else has an address that a Service shows or is served with.
pub fn other_user(service: &ServiceView, services: &[Arc<ServiceView>]) -> Option<ServiceKey> {
    let publishes = |other: &ServiceView, ip: &IpAddr| other.ingress.contains(ip) || shows(other, &ip.to_string());
    let shown = service.annotations.get(kube_vip::LOADBALANCER_IPS).and_then(|ips| ips.parse::<IpAddr>().ok());
    let ours: BTreeSet<IpAddr> =
        service.ingress.iter().copied().chain(shown).filter(|address| !address.is_unspecified()).collect();
    services
        .iter()
        .filter(|other| other.key != service.key && other.is_load_balancer && !other.deleting)
        .filter(|other| !matches!(named_primary(other), Some(Ok(primary)) if primary == service.key))
        .filter(|other| !wears_label_of(service, &other.key))
        .find(|other| ours.iter().any(|ip| publishes(other, ip)))
        .map(|other| other.key.clone())
}

fn wears_label_of(service: &ServiceView, primary: &ServiceKey) -> bool {
    let label = service.labels.get(cloudprovider::PRIMARY_SERVICE);
    label.is_some_and(|label| !label.is_empty()) && label == label_value(primary).as_ref()
}

/// One user of a shared address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupant {
    /// Who.
    pub key: ServiceKey,
    /// What it uses.
    pub ports: BTreeSet<(Protocol, u16)>,
}

impl From<&ServiceView> for Occupant {
    fn from(service: &ServiceView) -> Self {
        Self { key: service.key.clone(), ports: service.ports.clone() }
    }
}

/// The first port of `service` that another user of the address has. TCP and UDP do not clash (W-20).
pub fn first_clash(service: &ServiceView, occupants: &[Occupant]) -> Option<(u16, ServiceKey)> {
    let others = || occupants.iter().filter(|occupant| occupant.key != service.key);
    service
        .ports
        .iter()
        .find_map(|port| Some((port.1, others().find(|occupant| occupant.ports.contains(port))?.key.clone())))
}

#[cfg(test)]
mod tests {
    use super::super::build;
    use super::*;

    fn find(services: &[ServiceView]) -> impl Fn(&ServiceKey) -> Option<Arc<ServiceView>> {
        let services: Vec<Arc<ServiceView>> = services.iter().cloned().map(Arc::new).collect();
        move |key| services.iter().find(|service| service.key == *key).cloned()
    }

    fn primary_text(annotation: Option<&str>) -> Result<Option<String>, String> {
        let web = build::service("default/web").done();
        let chained = build::service("default/chained").short(&[("primary", "default/web")]).done();
        let empty = build::service("default/empty").short(&[("primary", "")]).done();
        let mut me = build::service("default/me");
        if let Some(value) = annotation {
            me = me.short(&[("primary", value)]);
        }
        let me = me.done();
        let found = primary_of(&me, find(&[web, chained, empty, me.clone()]));
        found.map(|primary| primary.map(|primary| primary.key.to_string())).map_err(|error| error.to_string())
    }

    /// ccm.md 3.2.
    #[test]
    fn a_primary_is_a_service_that_exists_and_shares_with_nobody() {
        assert_eq!(primary_text(None), Ok(None));
        assert_eq!(primary_text(Some("default/web")), Ok(Some("default/web".into())));
        assert_eq!(
            primary_text(Some("nowhere/none")),
            Err("get service nowhere/none failed: services \"none\" not found".into())
        );
        for not_primary in ["default/chained", "default/me"] {
            assert_eq!(primary_text(Some(not_primary)), Err(format!("service {not_primary} is not a primary service")));
        }
        assert_eq!(primary_text(Some("default/empty")), Ok(Some("default/empty".into())));
        assert_eq!(primary_text(Some("web")), Ok(Some("default/web".into())), "in its own namespace");
        for bad in ["", "No Name", "/web", "default/"] {
            let text = primary_text(Some(bad)).unwrap_err();
            assert!(text.starts_with(&format!("invalid service name {bad}: ")), "{text}");
            assert!(text.contains("expected name or namespace/name"), "{text}");
        }
        assert!(primary_text(Some("a/b/c")).unwrap_err().contains("not found"));
    }

    #[test]
    fn what_a_user_wrote_is_quoted_within_bounds() {
        for value in ["x".repeat(100_000), format!("a/{}", "\n".repeat(100_000)), "\u{1b}[2Jroot".to_owned()] {
            let text = primary_text(Some(&value)).unwrap_err();
            assert!(text.len() < 800 && !text.contains(char::is_control), "{text}");
        }
    }

    /// W-34: an address that stayed on a Service may be another one's by now.
    #[test]
    fn an_address_that_another_living_service_publishes_is_taken() {
        let me = || build::service("default/me").short(&[("ip", "10.0.0.1")]);
        let other = || build::service("default/other");
        let mut deleting = other().ingress("10.0.0.1").done();
        deleting.deleting = true;
        let mut cluster_ip = other().short(&[("ip", "10.0.0.1")]).done();
        cluster_ip.is_load_balancer = false;
        let served = build::service("default/me").ingress("10.0.0.1").done();
        let cases = [
            ("served", me().done(), other().ingress("10.0.0.1").done(), true),
            ("published", me().done(), other().short(&[("ip", "10.0.0.1")]).done(), true),
            ("by ingress alone", served, other().ingress("10.0.0.1").done(), true),
            ("another address", me().done(), other().ingress("10.0.0.2").done(), false),
            ("itself", me().done(), me().ingress("10.0.0.1").done(), false),
            ("being deleted", me().done(), deleting, false),
            ("no load balancer", me().done(), cluster_ip, false),
            ("shares it", me().done(), other().short(&[("primary", "default/me"), ("ip", "10.0.0.1")]).done(), false),
            ("former primary", me().label("default.other").done(), other().ingress("10.0.0.1").done(), false),
        ];
        for (what, me, other, expected) in cases {
            assert_eq!(is_taken(&me, &[Arc::new(other)]), expected, "{what}");
        }
        let dhcp = |name| build::service(name).short(&[("ip", "0.0.0.0")]).done();
        assert!(!is_taken(&dhcp("default/me"), &[Arc::new(dhcp("default/other"))]), "not known yet");
    }

    #[test]
    fn udp_and_tcp_53_may_share_an_address() {
        let dns = build::service("default/dns").ports(&["TCP/53"]).done();
        let occupants = [Occupant::from(&build::service("default/web").ports(&["UDP/53"]).done())];
        assert_eq!(first_clash(&dns, &occupants), None);
        let occupants = [Occupant::from(&build::service("default/web").ports(&["UDP/53", "TCP/53"]).done())];
        assert_eq!(first_clash(&dns, &occupants).unwrap().0, 53);
    }

    #[test]
    fn a_service_does_not_clash_with_itself() {
        let dns = build::service("default/dns").ports(&["TCP/53"]).done();
        assert_eq!(first_clash(&dns, &[Occupant::from(&dns)]), None);
    }

    /// W-21.
    #[test]
    fn only_living_load_balancers_that_name_the_primary_share_with_it() {
        let key = build::key("default/web");
        let secondary = || build::service("default/a").short(&[("primary", "default/web")]).label("default.web");
        let mut deleting = secondary().done();
        deleting.deleting = true;
        let mut cluster_ip = secondary().done();
        cluster_ip.is_load_balancer = false;
        let mut classy = secondary().done();
        classy.has_class = true;
        let label_only = build::service("default/b").label("default.web").done();
        let other = build::service("default/c").short(&[("primary", "default/web2")]).done();
        let itself = build::service("default/web").short(&[("primary", "default/web")]).done();
        for not in [deleting, cluster_ip, classy, label_only, other, itself] {
            assert!(sharers(&key, [Arc::new(not.clone())]).is_empty(), "{not:?}");
        }
        assert_eq!(sharers(&key, [Arc::new(secondary().done())]).len(), 1);
    }

    /// W-22.
    #[test]
    fn a_label_value_that_would_be_too_long_is_left_out() {
        assert_eq!(label_value(&build::key("default/web")), Some("default.web".into()));
        let long = "a".repeat(32);
        assert_eq!(label_value(&build::key(&format!("{long}/{long}"))), None);
    }

    #[test]
    fn a_sharer_has_joined_when_it_wears_the_label_or_shows_the_address() {
        let web = build::service("default/web").ingress("10.0.0.1").done();
        let new = || build::service("default/a").short(&[("primary", "default/web")]);
        assert!(!has_joined(&new().done(), &web));
        assert!(has_joined(&new().label("default.web").done(), &web));
        assert!(!has_joined(&new().label("default.other").done(), &web));
        assert!(has_joined(&new().short(&[("ip", "10.0.0.1")]).done(), &web));
        assert!(!has_joined(&new().short(&[("ip", "10.0.0.2")]).done(), &web), "from a life of its own");
        assert!(!has_joined(&new().done(), &build::service("default/web").done()), "nobody shows an address");
    }
}
