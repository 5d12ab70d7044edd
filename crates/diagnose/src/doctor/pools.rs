//! Checks the pools of Harvester, if they may be read, and the addresses beside them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use harvester_api::ip_pool::{IpPool, IpRange};
use harvester_api::keys::cloudprovider;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde_json::Value;

use super::advice;
use super::checks::Check;
use super::events::object;
use super::finding::Finding;
use crate::facts;
use crate::snapshot::Snapshot;

/// Reasons of a condition that refuse the address itself.
const REFUSED: [&str; 2] = ["WrongAnnotation", "AddressTaken"];

const EDIT: &str = "kubectl --kubeconfig harvester.yaml edit ippools.loadbalancer.harvesterhci.io";

pub fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let full = snapshot.pools.iter().filter(|pool| is_full(pool)).map(|pool| {
        let name = pool.name_any();
        Finding::warning(Check::PoolFull, format!("IPPool {name}"))
            .what("it has no free address")
            .why("the next Service that is given this pool waits")
            .remedy(format!("{EDIT} {name}     # widen a range"))
    });
    let statics = snapshot.services.iter().filter_map(|service| Some((service, given(service)?)));
    let statics = statics.filter_map(|(service, address)| {
        let taken = inside(snapshot, service, address);
        if taken.is_some() { taken } else { elsewhere(snapshot, service, address) }
    });
    full.chain(statics).collect()
}

/// The address of a Service with `ipam: static`.
fn given(service: &Service) -> Option<IpAddr> {
    let annotation = |key| facts::annotation(&service.metadata, key);
    let ours = facts::is_load_balancer(service)
        && facts::class(service).is_empty()
        && service.metadata.deletion_timestamp.is_none()
        && annotation(cloudprovider::PRIMARY_SERVICE).is_empty()
        && annotation(cloudprovider::IPAM) == "static"
        // An address that was refused is one finding: what else is said of it would be advice for none.
        && !facts::trouble(service).is_some_and(|condition| REFUSED.contains(&condition.reason.as_str()));
    ours.then(|| annotation(cloudprovider::IP).trim().parse().ok())?.filter(is_of_a_network)
}

/// Whether a network of clients can have the address at all. A condition says so of one that none can.
fn is_of_a_network(address: &IpAddr) -> bool {
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

/// Whether the pool may book the address for another one.
fn books(pool: &IpPool, address: IpAddr) -> bool {
    pool.spec.ranges.iter().any(|range| {
        let bound = |text: &Option<String>| text.as_deref().and_then(|text| text.parse::<IpAddr>().ok());
        range.subnet.parse::<IpNet>().is_ok_and(|subnet| subnet.contains(&address))
            && bound(&range.range_start).is_none_or(|start| start <= address)
            && bound(&range.range_end).is_none_or(|end| address <= end)
            && bound(&range.gateway) != Some(address)
    })
}

/// Reports a static address that lies inside a pool. The cloud controller may not read pools, so it does not notice.
fn inside(snapshot: &Snapshot, service: &Service, address: IpAddr) -> Option<Finding> {
    let pool = snapshot.pools.iter().find(|pool| books(pool, address))?;
    let name = pool.name_any();
    let owner = pool.status.as_ref().and_then(|status| status.allocated.get(&address.to_string()));
    let owner = owner.map(|owner| format!(", which has booked it for {owner}")).unwrap_or_default();
    Some(
        Finding::warning(Check::StaticInPool, object(service))
            .what(format!("its static address {address} lies inside IPPool {name}{owner}"))
            .why("Harvester gives the address to another load balancer or machine as well")
            .remedy(format!(
                "{EDIT} {name}     # leave {address} out of its ranges; or choose an address outside of them"
            )),
    )
}

/// The networks of the nodes' interfaces, as their announcers write them down.
fn networks(snapshot: &Snapshot, v6: bool) -> BTreeSet<IpNet> {
    let leases = snapshot.leases.iter().filter(|lease| facts::member(lease).is_some());
    let cards = leases.filter_map(|lease| {
        serde_json::from_str::<Value>(facts::annotation(&lease.metadata, cloudprovider::CARD)).ok()
    });
    let links = cards.flat_map(|card| card["links"].as_array().cloned().unwrap_or_default());
    let addresses = links.flat_map(|link| link["addresses"].as_array().cloned().unwrap_or_default());
    let networks = addresses.filter_map(|address| address.as_str()?.parse::<IpNet>().ok());
    let lan = |net: &IpNet| match net {
        IpNet::V4(net) => !v6 && !net.addr().is_link_local(),
        IpNet::V6(net) => v6 && !net.addr().is_unicast_link_local(),
    };
    networks.filter(lan).map(|net| net.trunc()).collect()
}

/// Reports a static address in whose network no node has an interface.
fn elsewhere(snapshot: &Snapshot, service: &Service, address: IpAddr) -> Option<Finding> {
    let networks = networks(snapshot, address.is_ipv6());
    if networks.is_empty() || networks.iter().any(|network| network.contains(&address)) {
        return None;
    }
    let known = networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    Some(
        Finding::warning(Check::StaticElsewhere, object(service))
            .what(format!("its static address {address} lies in no network of the nodes, which are {known}"))
            .why("only clients that have a route for it to the nodes' network reach it")
            .remedy(format!(
                "kubectl -n {} annotate --overwrite service {} {}=<a free address of {known}>     # outside all pools; \
                 or a route for {address} on the router of its clients",
                service.namespace().unwrap_or_default(),
                service.name_any(),
                cloudprovider::IP,
            )),
    )
}

fn is_full(pool: &IpPool) -> bool {
    pool.status.as_ref().is_some_and(|status| status.total > 0 && status.available == 0)
}

/// The remedy for a pool that has no address left. Its name is in Harvester's words, or in the annotation.
pub fn widen(snapshot: &Snapshot, service: &Service, message: &str) -> String {
    let said = message.split_once("from pool ").and_then(|(_, rest)| rest.split([',', ' ']).next());
    let asked = facts::annotation(&service.metadata, cloudprovider::IP_POOL);
    let named = said.into_iter().chain([asked]).find(|pool| !pool.is_empty());
    let (pool, note) = named.map_or_else(|| advice::pool(snapshot, is_full), |pool| (pool.to_owned(), String::new()));
    advice::noted(format!("{EDIT} {pool}"), &["widen a range, or delete Services", &note])
}

/// The remedy where no pool serves a Service.
pub fn select(snapshot: &Snapshot) -> String {
    let (pool, note) = advice::pool(snapshot, |_| true);
    let selector = match snapshot.namespace.as_str() {
        "" => "its selector: network and scope as in the text".to_owned(),
        namespace => format!("its selector: the network in the text, scope namespace {namespace}"),
    };
    advice::noted(format!("{EDIT} {pool}"), &[&selector, &note])
}

/// A pool with addresses of the first family that the Service asks for, and a note on where its name is read.
pub fn of_family(snapshot: &Snapshot, service: &Service) -> (String, String) {
    let families = service.spec.as_ref().and_then(|spec| spec.ip_families.as_deref()).unwrap_or_default();
    let v6 = families.first().is_some_and(|family| family == "IPv6");
    let has = |range: &IpRange| range.subnet.parse::<IpNet>().is_ok_and(|net| net.addr().is_ipv6() == v6);
    advice::pool(snapshot, |pool| pool.spec.ranges.iter().any(has))
}
