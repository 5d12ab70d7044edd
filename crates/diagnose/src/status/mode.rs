//! Column MODE: how the address that a Service has came about. Without one: what its annotations ask for.

use std::net::IpAddr;

use harvester_api::keys::cloudprovider;
use harvester_api::load_balancer::Ipam;
use k8s_openapi::api::core::v1::Service;

use crate::snapshot::Snapshot;
use crate::{facts, sharing};

/// What the mode follows from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct AddressFacts<'a> {
    /// The addresses that the cloud controller has published; `0.0.0.0` and `::` ask for a DHCP lease.
    published: Vec<&'a str>,
    /// The address is another Service's.
    joined: bool,
    /// IPAM of the load balancer on Harvester; `None` if none is seen.
    object: Option<Ipam>,
    /// Annotation `ipam`.
    ipam: &'a str,
    /// Annotation `ip`.
    asked: &'a str,
    /// An annotation asks for an address to share.
    shares: bool,
}

/// The mode; empty if it is not known.
fn mode_of(facts: &AddressFacts<'_>) -> &'static str {
    let leased = |address: &&str| address.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified());
    if facts.published.is_empty() {
        return match facts.ipam {
            _ if facts.shares => "shared",
            "" | "pool" => "pool",
            "dhcp" => "dhcp",
            "static" => "static",
            _ => "",
        };
    }
    if facts.joined {
        return "shared";
    }
    if facts.published.iter().any(leased) {
        return "dhcp";
    }
    match facts.object {
        // Harvester has two modes: of a static address it books nothing.
        Some(Ipam::Dhcp) => "static",
        None if facts.ipam == "static" && facts.published.contains(&facts.asked) => "static",
        Some(Ipam::Pool) | None => "pool",
    }
}

/// The IPAM of the load balancer that this Service has on Harvester.
fn object(snapshot: &Snapshot, service: &Service) -> Option<Ipam> {
    let uid = service.metadata.uid.as_deref();
    let cluster = snapshot.cluster_uid.as_deref();
    let ours = snapshot.load_balancers.iter().filter(|lb| {
        let of = |key| lb.annotation(key).filter(|value| !value.is_empty());
        let owner = (lb.label(cloudprovider::SERVICE_NAMESPACE), lb.label(cloudprovider::SERVICE_NAME));
        let named = owner == (service.metadata.namespace.as_deref(), service.metadata.name.as_deref());
        named
            && match of(cloudprovider::SERVICE_UID) {
                Some(theirs) => Some(theirs) == uid,
                None => of(cloudprovider::CLUSTER_UID) == cluster,
            }
    });
    let booked = |ip: &str| sharing::published(service).any(|address| address == ip);
    let lb = ours.max_by_key(|lb| lb.allocated_ip().is_some_and(booked))?;
    match lb.spec.ipam.as_deref() {
        Some("pool") => Some(Ipam::Pool),
        Some("dhcp") => Some(Ipam::Dhcp),
        _ => None,
    }
}

/// The mode of a Service; empty where another program serves it, or its annotation is not understood.
pub fn mode(snapshot: &Snapshot, service: &Service) -> &'static str {
    if !facts::class(service).is_empty() {
        return "";
    }
    mode_of(&AddressFacts {
        published: sharing::published(service).collect(),
        joined: sharing::is_joined(snapshot, service),
        object: object(snapshot, service),
        ipam: facts::annotation(&service.metadata, cloudprovider::IPAM),
        asked: facts::annotation(&service.metadata, cloudprovider::IP),
        shares: sharing::shares_by(service).is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_says_where_the_address_is_from_and_without_one_what_is_asked_for() {
        let none = AddressFacts::default();
        let given = AddressFacts { published: vec!["10.0.0.5"], ..none.clone() };
        let own = AddressFacts { object: Some(Ipam::Pool), ..given.clone() };
        let leased = AddressFacts { published: vec!["0.0.0.0"], object: Some(Ipam::Dhcp), ..none.clone() };
        for (what, facts, expected) in [
            ("nothing is asked for", none.clone(), "pool"),
            ("a lease is asked for", AddressFacts { ipam: "dhcp", ..none.clone() }, "dhcp"),
            ("an address is asked for", AddressFacts { ipam: "static", ..none.clone() }, "static"),
            ("another one's is asked for", AddressFacts { shares: true, ..none.clone() }, "shared"),
            ("a word that nobody knows", AddressFacts { ipam: "dchp", ..none.clone() }, ""),
            ("booked in a pool", own.clone(), "pool"),
            ("and asks to share since, in vain", AddressFacts { shares: true, ..own.clone() }, "pool"),
            ("and asks for a lease since, in vain", AddressFacts { ipam: "dhcp", ..own.clone() }, "pool"),
            ("and has a wrong word since", AddressFacts { ipam: "dchp", ..own.clone() }, "pool"),
            ("and asks for its address as its own", AddressFacts { ipam: "static", asked: "10.0.0.5", ..own }, "pool"),
            ("leased", leased.clone(), "dhcp"),
            ("leased, and asks for a pool since", AddressFacts { ipam: "pool", ..leased.clone() }, "dhcp"),
            ("leased in both families", AddressFacts { published: vec!["0.0.0.0", "::"], ..leased }, "dhcp"),
            ("another one's address", AddressFacts { joined: true, shares: true, ..given.clone() }, "shared"),
            (
                "static, as the object says",
                AddressFacts { object: Some(Ipam::Dhcp), ipam: "static", asked: "10.0.0.5", ..given.clone() },
                "static",
            ),
            (
                "static, with no object to be seen",
                AddressFacts { ipam: "static", asked: "10.0.0.5", ..given.clone() },
                "static",
            ),
            ("static is asked for since", AddressFacts { ipam: "static", asked: "10.0.0.6", ..given }, "pool"),
        ] {
            assert_eq!(mode_of(&facts), expected, "{what}");
        }
    }
}
