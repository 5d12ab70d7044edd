//! Checks the Services: their conditions and annotations, and the pools behind them.

use std::collections::BTreeMap;

use announcer_core::status::table::age;
use contract::spelling::nearest;
use harvester_api::keys::{cloudprovider, kube_vip};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::checks::Check;
use super::events::{self, object};
use super::finding::Finding;
use super::{announcers, controllers, endpoints, remedies};
use crate::facts::{self, ControllerDoubt};
use crate::sharing;
use crate::snapshot::Snapshot;

/// The announcer's default of `lb_class_name`.
const KUBE_VIP_CLASS: &str = "kube-vip.io/kube-vip-class";

pub fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let mut all = Vec::new();
    for service in snapshot.services.iter().filter(|service| facts::is_load_balancer(service)) {
        let mut found = of(snapshot, service);
        // The condition also explains the Events.
        if found.is_empty() {
            found.extend(events::finding(snapshot, service));
        }
        if found.is_empty() {
            found.extend(endpoints::finding(snapshot, service));
        }
        all.extend(found);
    }
    of_one_cause(all)
}

/// One finding for all Services that wait for the same pool.
fn of_one_cause(findings: Vec<Finding>) -> Vec<Finding> {
    let (exhausted, mut all): (Vec<_>, Vec<_>) =
        findings.into_iter().partition(|finding| finding.check == Check::PoolExhausted);
    let mut causes: BTreeMap<String, Vec<Finding>> = BTreeMap::new();
    for finding in exhausted {
        causes.entry(finding.remedy.clone()).or_default().push(finding);
    }
    for same in causes.into_values() {
        let names: Vec<&str> =
            same.iter().map(|one| one.object.strip_prefix("Service ").unwrap_or(&one.object)).collect();
        let object = format!("Services {}", names.join(", "));
        let several = names.len() > 1;
        all.extend(same.into_iter().next().map(|first| if several { Finding { object, ..first } } else { first }));
    }
    all
}

fn of(snapshot: &Snapshot, service: &Service) -> Vec<Finding> {
    let mut all = Vec::new();
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    if service.metadata.deletion_timestamp.is_some() {
        return not_deleted(snapshot, service).into_iter().collect();
    }
    let class = facts::class(service);
    if !class.is_empty() {
        if facts::told(service).is_empty() {
            all.push(
                Finding::warning(Check::ServiceClass, object(service))
                    .what(format!("it has loadBalancerClass {class} and no address"))
                    .why(match nearest(class, [KUBE_VIP_CLASS]) {
                        Some(meant) => format!(
                            "no program serves that class; the nearest one that the announcer \
                            serves is {meant}"
                        ),
                        None => "a Service of another class is left to the program that serves that class; none \
                            has"
                        .to_owned(),
                    })
                    .remedy(format!(
                        "kubectl -n {namespace} get service {name} -o yaml > service.yaml     # delete it, remove \
                         loadBalancerClass and status from the file, apply it; or install what serves {class}"
                    )),
            );
        }
        return all;
    }
    if facts::is_paused(service) {
        all.push(
            Finding::warning(Check::ServicePaused, object(service))
                .what(format!("annotation {} is true", cloudprovider::PAUSED))
                .why("the cloud controller changes nothing of it, and deletes nothing; what is served goes on")
                .remedy(resume(service)),
        );
    }
    if facts::annotation(&service.metadata, kube_vip::IGNORE) == "true" {
        all.push(
            Finding::warning(Check::ServiceIgnored, object(service))
                .what(format!("annotation {} is true", kube_vip::IGNORE))
                .why("no announcer announces its address")
                .remedy(format!("kubectl -n {namespace} annotate service {name} {}-", kube_vip::IGNORE)),
        );
        return all;
    }
    if let Some(condition) = facts::trouble(service) {
        let served = condition.status == "True";
        let finding = if served {
            Finding::warning(Check::ServiceNotAsAsked, object(service))
                .why("it is served, and not as its annotations ask")
        } else {
            Finding::error(check_of(&condition.reason), object(service)).why("it gets no address, or nobody serves it")
        };
        let finding = finding.what(format!("{}: {}", condition.reason, condition.message)).remedy(remedies::of(
            snapshot,
            service,
            &condition.reason,
            &condition.message,
        ));
        let unexplained = ["NotServed", "Pending"].contains(&condition.reason.as_str());
        all.push(if unexplained { events::explain(snapshot, service, finding) } else { finding });
        return all;
    }
    all.extend(unannounced(snapshot, service));
    all
}

/// What its annotations ask for does not matter any more. That others share its address is said at once: nothing but
/// them ends that.
fn not_deleted(snapshot: &Snapshot, service: &Service) -> Option<Finding> {
    let keepers = sharing::keepers(snapshot, service);
    let patience = if keepers.is_empty() { facts::DELETION_TAKES } else { -1 };
    let ago = facts::deleted_ago(snapshot, service).filter(|ago| *ago > patience)?;
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    let shared = || (!keepers.is_empty()).then(|| (sharing::why_kept(&keepers), remedies::release(&keepers)));
    let (why, remedy) = held(snapshot, service).or_else(shared).unwrap_or_else(|| {
        let remedy =
            format!("kubectl -n {namespace} describe service {name}     # its last Warning says what is in the way");
        ("its load balancer and address on Harvester are not given back yet".to_owned(), remedy)
    });
    Some(
        Finding::warning(Check::ServiceNotDeleted, object(service))
            .what(format!("it was deleted {} ago and keeps {}", age(ago), service.finalizers().join(", ")))
            .why(why)
            .remedy(remedy),
    )
}

/// What keeps the cloud controller from every deletion, and what ends that. The flag `--paused` is not seen from
/// outside.
fn held(snapshot: &Snapshot, service: &Service) -> Option<(String, String)> {
    let (why, remedy) = if facts::controller_is_paused(snapshot) {
        ("the cloud controller is paused: nothing is deleted before that ends", controllers::RESUME.to_owned())
    } else if let Some(doubt) = facts::doubt(snapshot) {
        let why = match doubt {
            ControllerDoubt::SafeMode(_) => "the cloud controller is in safe mode: nothing is deleted before that ends",
            ControllerDoubt::NotKnown => {
                "the cloud controller does not know yet which cluster this is: nothing is deleted before that"
            }
        };
        (why, controllers::settle(doubt).to_owned())
    } else if facts::is_paused(service) {
        ("its annotation pauses it: nothing of it is deleted before that ends", resume(service))
    } else {
        return None;
    };
    Some((why.to_owned(), remedy))
}

/// Ends the pause of this Service.
fn resume(service: &Service) -> String {
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    format!("kubectl -n {namespace} annotate service {name} {}-", cloudprovider::PAUSED)
}

/// The check for a reason. Frequent reasons have their own; the others share one.
fn check_of(reason: &str) -> Check {
    match reason {
        "PoolExhausted" => Check::PoolExhausted,
        "NoMatchingPool" | "NoSuchPool" => Check::PoolMissing,
        "RefusedByHarvester" => Check::HarvesterWebhookRefuses,
        "HarvesterSilent" => Check::HarvesterControllerSilent,
        "HarvesterForbidden" => Check::HarvesterForbids,
        "AddressTaken" => Check::AddressTaken,
        "NotServed" => Check::ServiceNotServed,
        "NoSuchNetwork" => Check::NetworkMissing,
        "NameTaken" => Check::LoadBalancerNameTaken,
        "QuotaReached" => Check::QuotaReached,
        "PortTaken" | "NoSuchPrimary" | "PrimaryWithoutAddress" => Check::ShareImpossible,
        _ => Check::ServiceNotReady,
    }
}

fn unannounced(snapshot: &Snapshot, service: &Service) -> Option<Finding> {
    use announcer_core::status::State;
    let key = facts::key(&service.metadata);
    let vip = snapshot.announcer.as_ref()?.vips.iter().find(|vip| vip.service == key)?;
    let owner = vip.owner.clone().unwrap_or_default();
    match vip.state {
        State::LeaseExpired => Some(
            Finding::error(Check::DhcpLeaseExpired, object(service))
                .what("its DHCP lease has run out")
                .why("the server may give its address to somebody else")
                .remedy("check the DHCP server of its network: journalctl -u dnsmasq, or the log of the router"),
        ),
        State::OwnerSilent => Some(
            Finding::warning(Check::OwnerSilent, object(service))
                .what(format!("the announcer of node {owner}, which has its address, has not renewed its Lease"))
                .why("if that node still answers nothing is lost; if not, others take over by what they hear")
                .remedy(announcers::restart_on(snapshot, &owner)),
        ),
        State::Unowned => Some(events::explain(
            snapshot,
            service,
            Finding::error(Check::AddressUnowned, object(service))
                .what("no node announces its address")
                .why("nobody answers for it")
                .remedy(format!(
                    "kubectl -n {} describe service {}     # after 20 s an Event says what keeps the nodes from it",
                    service.namespace().unwrap_or_default(),
                    service.name_any()
                )),
        )),
        State::Announced | State::Pending => None,
    }
}
