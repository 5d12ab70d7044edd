//! Checks the Events of a Service: what announcers report in no condition.

use std::net::IpAddr;

use announcer_core::status::table::age;
use harvester_api::keys::{cloudprovider, kube_vip};
use k8s_openapi::api::core::v1::{Event, Service};
use kube::ResourceExt;

use super::advice;
use super::announcers::{LOAD_MACVLAN, NO_SUCH_MODULE};
use super::checks::Check;
use super::finding::Finding;
use crate::facts;
use crate::snapshot::Snapshot;

/// Seconds after which an Event is too old to describe the present.
const RECENT: i64 = 15 * 60;

/// The Events that say why nobody serves a Service.
const EXPLAINING: [&str; 3] = ["CannotAnnounce", "AddressConflict", "NoLocalEndpoint"];

const SERVER_RANGES: &str = "correct the reservations and ranges of the DHCP server";

/// The Service, as findings name it.
pub fn object(service: &Service) -> String {
    format!("Service {}", facts::key(&service.metadata))
}

fn seconds_ago(snapshot: &Snapshot, event: &Event) -> i64 {
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    let begun = event.event_time.as_ref().map(|time| time.0);
    last.into_iter().chain(series).chain(begun).max().map_or(i64::MAX, |time| facts::since(snapshot, time))
}

/// The recent Events of the Service, and their age; the newest first. What is older than its last announcement is over.
fn recent<'a>(snapshot: &'a Snapshot, service: &Service) -> Vec<(&'a Event, i64)> {
    let uid = service.uid();
    let mut ours: Vec<(&Event, i64)> = snapshot
        .events
        .iter()
        .filter(|event| event.involved_object.kind.as_deref() == Some("Service") && event.involved_object.uid == uid)
        .map(|event| (event, seconds_ago(snapshot, event)))
        .filter(|(_, ago)| *ago < RECENT)
        .collect();
    ours.sort_by_key(|(_, ago)| *ago);
    let announced_ago =
        ours.iter().find(|(event, _)| event.reason.as_deref() == Some("AddressAnnounced")).map(|(_, ago)| *ago);
    ours.retain(|(_, ago)| announced_ago.is_none_or(|announced| announced >= *ago));
    ours
}

/// Problems that announcers report only by Events.
pub fn finding(snapshot: &Snapshot, service: &Service) -> Option<Finding> {
    recent(snapshot, service).into_iter().find_map(|(event, _)| {
        of_event(service, event.reason.as_deref()?, event.message.as_deref().unwrap_or_default())
    })
}

/// The finding about a Service that nobody serves, with what the announcers say of it, and what mends that.
pub fn explain(snapshot: &Snapshot, service: &Service, finding: Finding) -> Finding {
    let explains = |event: &Event| event.reason.as_deref().is_some_and(|reason| EXPLAINING.contains(&reason));
    let newest = recent(snapshot, service).into_iter().find(|(event, _)| explains(event)).and_then(|(event, ago)| {
        let message = event.message.as_deref().unwrap_or_default();
        Some((of_event(service, event.reason.as_deref()?, message)?, ago))
    });
    let Some((cause, ago)) = newest else { return finding };
    let what = format!("{}; an Event of {} ago says {}", finding.what, age(ago), cause.what);
    finding.what(what).remedy(cause.remedy)
}

/// The DHCP server and the family of which the Service asks for an address and has none.
fn lacking(service: &Service) -> Option<(&'static str, &'static str)> {
    let told = facts::told(service);
    let serves = |v6: bool| told.iter().any(|ip| ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6() == v6));
    let asked = facts::annotation(&service.metadata, kube_vip::LOADBALANCER_IPS);
    let families = service.spec.as_ref().and_then(|spec| spec.ip_families.as_deref()).unwrap_or_default();
    let lacks = |v6: bool, family: &str| {
        let asks = asked.split(',').any(|ip| ip.trim().parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6() == v6));
        !serves(v6) && (asks || families.iter().any(|one| one == family))
    };
    if lacks(true, "IPv6") {
        Some(("DHCPv6", "IPv6"))
    } else if lacks(false, "IPv4") {
        Some(("DHCPv4", "IPv4"))
    } else {
        None
    }
}

/// A DHCP server is silent while the Service has an address: of the other family, or by a lease that is not renewed.
fn half_silent(service: &Service, message: &str) -> Finding {
    let families = service.spec.as_ref().and_then(|spec| spec.ip_families.as_deref()).unwrap_or_default();
    let served = facts::told(service).join(", ");
    let finding = Finding::warning(Check::DhcpSilent, object(service));
    match lacking(service) {
        Some((server, family)) => finding
            .what(format!("no {server} server answered; {served} is served. DHCPNoAnswer: {message}"))
            .why(format!("it has no {family} address"))
            .remedy(if families.first().is_some_and(|first| first == family) {
                format!("start a {server} server or relay in that network")
            } else {
                format!(
                    "start a {server} server or relay in that network; or, if {family} is not wanted: kubectl -n {} \
                     patch service {} -p '{{\"spec\":{{\"ipFamilyPolicy\":\"SingleStack\"}}}}'",
                    service.namespace().unwrap_or_default(),
                    service.name_any()
                )
            }),
        None => finding
            .what(format!("DHCPNoAnswer: {message}"))
            .why(format!("{served} is served until its lease ends"))
            .remedy(
                "start the DHCP server or relay of that network again: journalctl -u dnsmasq, or the log of the router",
            ),
    }
}

/// A DHCP server refused an address, or a lease ended, and the Service has an address now: that came later. `None`: the
/// Event says nothing of the present.
fn half_refused(service: &Service, reason: &str, message: &str) -> Option<Finding> {
    let served = facts::told(service).join(", ");
    let why = match lacking(service) {
        Some((_, family)) => format!("{served} is served, and it has no {family} address"),
        // Replies that cannot be used come for as long as the server sends them.
        None if reason == "DHCPTrouble" => format!("{served} is served until its lease ends"),
        None => return None,
    };
    let finding = Finding::warning(Check::DhcpRefused, object(service));
    Some(finding.what(format!("{reason}: {message}")).why(why).remedy(SERVER_RANGES))
}

/// The command that gives a Service with a static address another one; `None` for other Services.
fn another_static(service: &Service) -> Option<String> {
    (facts::annotation(&service.metadata, cloudprovider::IPAM) == "static").then(|| {
        format!(
            "kubectl -n {} annotate --overwrite service {} {}=<a free address of the network of the nodes>",
            service.namespace().unwrap_or_default(),
            service.name_any(),
            cloudprovider::IP
        )
    })
}

fn of_event(service: &Service, reason: &str, message: &str) -> Option<Finding> {
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    let describe =
        || format!("kubectl -n {namespace} describe service {name}     # the text says what is missing on which node");
    let (check, why, remedy) = match reason {
        // The address itself is the cause, also where an interface has it.
        "CannotAnnounce" if message.starts_with("address ") => {
            (Check::CannotAnnounce, "nobody answers for its address", another_static(service).unwrap_or_else(describe))
        }
        "CannotAnnounce" if message.contains("macvlan") => (
            Check::MacvlanMissing,
            "an address by DHCP needs an interface with a MAC of its own",
            format!("on each node that may announce: {LOAD_MACVLAN}     {NO_SUCH_MODULE}"),
        ),
        "CannotAnnounce" if message.contains("interface") => (
            Check::InterfaceMissing,
            "no node can announce the address on the interface that is named",
            format!("kubectl -n {namespace} annotate service {name} {}-", kube_vip::SERVICE_INTERFACE),
        ),
        "CannotAnnounce" => (Check::CannotAnnounce, "nobody answers for its address", describe()),
        "DHCPNoAnswer" if !facts::told(service).is_empty() => {
            return Some(half_silent(service, message));
        }
        "DHCPNoAnswer" => (
            Check::DhcpSilent,
            "it gets no address",
            format!(
                "start a DHCP server or relay in that network; or: kubectl -n {namespace} annotate --overwrite \
                 service {name} {}=pool",
                cloudprovider::IPAM
            ),
        ),
        "DHCPRefused" | "DHCPLeaseLost" | "DHCPTrouble" if !facts::told(service).is_empty() => {
            return half_refused(service, reason, message);
        }
        "DHCPRefused" | "DHCPLeaseLost" | "DHCPTrouble" => {
            (Check::DhcpRefused, "it has no address", SERVER_RANGES.to_owned())
        }
        "AddressConflict" => (
            Check::AddressConflict,
            "another host uses the address: clients reach the one or the other",
            match another_static(service) {
                Some(command) => {
                    advice::noted(command, &["or find the MAC of the text on the switch and free the address there"])
                }
                None => {
                    "find the MAC of the text on the switch and free the address there; or exclude it from the pool"
                        .to_owned()
                }
            },
        ),
        "NoLocalEndpoint" => (
            Check::NoLocalEndpoint,
            "externalTrafficPolicy is Local and the node that announces has no ready pod: traffic is dropped",
            format!(
                "kubectl -n {namespace} patch service {name} -p \
                 '{{\"spec\":{{\"externalTrafficPolicy\":\"Cluster\"}}}}'     # or bring a pod up"
            ),
        ),
        _ => return None,
    };
    Some(Finding::error(check, object(service)).what(format!("{reason}: {message}")).why(why).remedy(remedy))
}
