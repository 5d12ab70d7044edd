//! Makes the rows of the report from the snapshot.

use std::collections::BTreeSet;

use contract::config_maps::host_upgrade;
use contract::leases;
use harvester_api::ip_pool::IpPool;
use harvester_api::keys::{cloudprovider, kube_vip};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::ResourceExt;
use serde::Serialize;
use serde_json::Value;

use super::mode::mode;
use crate::doctor::nodes::{is_shut_out, machines_elsewhere};
use crate::facts::{self, ControllerDoubt};
use crate::sharing;
use crate::silence::{self, Silent};
use crate::snapshot::{Snapshot, Unread, list};

/// Exit status: the guest cluster or its Services cannot be read.
const UNREADABLE: u8 = 1;
/// Exit status: a Service is not announced, or that cannot be told.
const NOT_WELL: u8 = 3;

/// The Services to show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Their namespace; `None` for all namespaces.
    pub namespace: Option<String>,
    /// Their names; empty for all.
    pub names: BTreeSet<String>,
}

impl Scope {
    fn has(&self, service: &Service) -> bool {
        let named = self.names.is_empty() || self.names.contains(&service.name_any());
        named && self.namespace.as_deref().is_none_or(|wanted| service.namespace().as_deref() == Some(wanted))
    }
}

/// One Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRow {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// `spec.loadBalancerClass`, if another controller serves the Service.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub class: String,
    /// The addresses in the status, else those that are allocated.
    pub addresses: Vec<String>,
    /// How its address came about, without one what it asks for: `pool`, `dhcp`, `static` or `shared`; empty: not
    /// known.
    pub mode: String,
    /// Node that announces it.
    pub owner: Option<String>,
    /// The state: as the announcer reports it, or the component that has to act next.
    pub state: String,
    /// The reason of the state; empty if there is no problem.
    pub reason: String,
    /// Message for users.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// DHCP leases: server and remaining time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dhcp: Vec<String>,
    /// Seconds since the last known change.
    pub age_seconds: i64,
}

/// One pool of Harvester.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolRow {
    /// Name.
    pub name: String,
    /// Network that it serves; empty: any.
    pub network: String,
    /// Number of free addresses.
    pub free: i64,
    /// Number of all addresses.
    pub total: i64,
}

/// One Node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    /// Name.
    pub name: String,
    /// `Ready`, `NotReady`, and further conditions.
    pub state: String,
    /// Its machine; empty if unknown.
    pub vm: String,
    /// The host of the machine.
    pub host: String,
    /// The addresses in its status.
    pub addresses: Vec<String>,
    /// Its announcer: `announcing`, `excluded`, `kube-proxy not ready`, `leaving`, `expired`; `silent`, with the nodes
    /// that get no answer from it; `not known`: the Leases could not be read; empty: none.
    pub announcer: String,
    /// Reason of its condition `HarvesterHostMaintenance` during an upgrade of its host.
    pub maintenance: String,
}

/// An upgrade of the hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeRow {
    /// One line.
    pub summary: String,
    /// Deletions and similar actions are suspended.
    pub suspended: bool,
    /// It is no upgrade: Harvester's API merely gives no usable answer.
    pub outage: bool,
}

/// The whole report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Whether the guest cluster was read; otherwise nothing is known of Services and Nodes.
    #[serde(skip)]
    pub guest_read: bool,
    /// Whether its Services were read, too; otherwise nothing is known of Services.
    #[serde(skip)]
    pub services_read: bool,
    /// Whether the user named Services: that these do not exist is said in `trouble`.
    #[serde(skip)]
    pub named: bool,
    /// Problems that affect everything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trouble: Vec<String>,
    /// Ordered by namespace and name.
    pub services: Vec<ServiceRow>,
    /// Ordered by name.
    pub pools: Vec<PoolRow>,
    /// Ordered by name.
    pub nodes: Vec<NodeRow>,
    /// `None` if none was ever seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_upgrade: Option<UpgradeRow>,
    /// What is missing in the tables, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Objects that could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

/// The report on this snapshot.
pub fn report(snapshot: &Snapshot, scope: &Scope) -> Report {
    let wanted = |service: &&Service| facts::is_load_balancer(service) && scope.has(service);
    let mut services: Vec<ServiceRow> =
        snapshot.services.iter().filter(wanted).map(|service| service_row(snapshot, service)).collect();
    services.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    let mut pools: Vec<PoolRow> = snapshot.pools.iter().map(pool_row).collect();
    pools.sort_by(|a, b| a.name.cmp(&b.name));
    let silent = silence::silent(snapshot);
    let mut nodes: Vec<NodeRow> =
        snapshot.nodes.iter().map(|node| node_row(snapshot, node, silent.get(&node.name_any()))).collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    let mut trouble = Vec::new();
    for (what, side) in [("guest", &snapshot.guest), ("Harvester", &snapshot.harvester)] {
        let api = format!("{what} API {}", side.server);
        trouble.extend(side.trouble.as_ref().map(|trouble| format!("{}: {}", api.trim_end(), trouble.text)));
    }
    trouble.extend(unread_lists(snapshot));
    // Of Leases that were not read it would say that none is fresh.
    let announcer = snapshot.announcer.as_ref().filter(|_| snapshot.has_read(list::LEASES));
    trouble.extend(announcer.and_then(|report| report.trouble.clone()));
    let guest_read = snapshot.guest.trouble.is_none();
    let services_read = guest_read && snapshot.has_read(list::SERVICES);
    if services_read {
        let missing = scope.names.iter().filter(|name| services.iter().all(|row| row.name != **name));
        let place = scope.namespace.as_ref().map(|name| format!(" in namespace {name}")).unwrap_or_default();
        trouble.extend(missing.map(|name| format!("there is no Service {name} of type LoadBalancer{place}")));
    }
    let (named, host_upgrade, unread) = (!scope.names.is_empty(), upgrade_row(snapshot), snapshot.unread.clone());
    let notes = notes(snapshot);
    Report { guest_read, services_read, named, trouble, services, pools, nodes, host_upgrade, notes, unread }
}

/// Lists without which it cannot be told whether Services are announced, with the reason why they are missing.
fn unread_lists(snapshot: &Snapshot) -> impl Iterator<Item = String> {
    let said = [(list::SERVICES, ""), (list::LEASES, ". Whether announcers run is not known")];
    said.into_iter().filter_map(|(what, so)| {
        let why = &snapshot.why_unread(what)?.why;
        Some(format!("{what} could not be read: {why}{so}"))
    })
}

fn service_row(snapshot: &Snapshot, service: &Service) -> ServiceRow {
    let key = facts::key(&service.metadata);
    let class = facts::class(service).to_owned();
    let vip = snapshot.announcer.as_ref().and_then(|report| report.vips.iter().find(|vip| vip.service == key));
    let told = facts::told(service);
    let booked = facts::annotation(&service.metadata, kube_vip::LOADBALANCER_IPS);
    let condition = facts::trouble(service).filter(|_| class.is_empty());
    let ignored = facts::annotation(&service.metadata, kube_vip::IGNORE) == "true";
    let deleted = facts::deleted_ago(snapshot, service);
    let (state, reason, message) = match (vip, condition) {
        _ if deleted.is_some() => {
            let keepers = sharing::keepers(snapshot, service);
            let late = deleted.is_some_and(|ago| ago > facts::DELETION_TAKES);
            let (reason, message) = match (keepers.is_empty(), late) {
                (false, _) => ("AddressShared", sharing::why_kept(&keepers)),
                (true, true) => ("Terminating", String::new()),
                (true, false) => ("", String::new()),
            };
            ("being deleted".to_owned(), reason.to_owned(), message)
        }
        _ if !class.is_empty() => ("another's".to_owned(), format!("Class {class}"), String::new()),
        (_, Some(condition)) => {
            let state = vip.map_or("pending", |vip| vip.state.text());
            (state.to_owned(), condition.reason.clone(), condition.message.clone())
        }
        _ if ignored => {
            ("not announced".to_owned(), "Ignored".to_owned(), format!("annotation {} is true", kube_vip::IGNORE))
        }
        (Some(vip), None) => {
            let well = vip.state == announcer_core::status::State::Announced;
            (vip.state.text().to_owned(), if well { String::new() } else { format!("{:?}", vip.state) }, String::new())
        }
        (None, None) if booked.is_empty() => {
            let (reason, message) = not_booked(snapshot, service);
            ("pending".to_owned(), reason.to_owned(), message)
        }
        (None, None) => ("booked".to_owned(), "NotAnnounced".to_owned(), String::new()),
    };
    let addresses =
        if told.is_empty() { booked.split(',').filter(|ip| !ip.is_empty()).map(str::to_owned).collect() } else { told };
    let leases = vip.into_iter().flat_map(|vip| &vip.dhcp);
    let dhcp = leases.map(|row| format!("{} {}", row.address, row.text())).collect();
    let changed = facts::ready_condition(service).map(|condition| condition.last_transition_time.0);
    let created = service.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let last = changed.into_iter().chain(created).max().unwrap_or(snapshot.now);
    ServiceRow {
        namespace: service.namespace().unwrap_or_default(),
        name: service.name_any(),
        class,
        addresses,
        mode: mode(snapshot, service).to_owned(),
        owner: vip.and_then(|vip| vip.owner.clone()),
        state,
        reason,
        message,
        dhcp,
        age_seconds: facts::since(snapshot, last),
    }
}

/// Why there is no address for this Service yet: a reason, and a message for users.
fn not_booked(snapshot: &Snapshot, service: &Service) -> (&'static str, String) {
    if facts::is_paused(service) {
        return ("Paused", format!("annotation {} is true", cloudprovider::PAUSED));
    }
    if facts::controller_is_paused(snapshot) {
        return ("Paused", format!("key {} of {} is true", facts::PAUSED, facts::record()));
    }
    match facts::doubt(snapshot) {
        Some(ControllerDoubt::SafeMode(text)) => ("SafeMode", format!("the cloud controller is in safe mode: {text}")),
        Some(ControllerDoubt::NotKnown) => (
            leases::IDENTITY_NOT_KNOWN,
            "the cloud controller does not know yet which cluster this is; doctor says what it waits for".to_owned(),
        ),
        None => ("NotBooked", String::new()),
    }
}

fn pool_row(pool: &IpPool) -> PoolRow {
    let status = pool.status.as_ref();
    PoolRow {
        name: pool.name_any(),
        network: pool.spec.selector.network.clone(),
        free: status.map_or(0, |status| status.available),
        total: status.map_or(0, |status| status.total),
    }
}

/// Why columns are empty although both clusters were read.
fn notes(snapshot: &Snapshot) -> Vec<String> {
    let note = |(what, _)| format!("columns VM and HOST lack the machines: {what}; doctor has the command");
    machines_elsewhere(snapshot).map(note).into_iter().collect()
}

fn node_row(snapshot: &Snapshot, node: &Node, silent: Option<&Silent>) -> NodeRow {
    let name = node.name_any();
    let uid = facts::vm_uid(node);
    let vm = facts::vm_name(node, snapshot).unwrap_or_default();
    let instance = snapshot.instances.iter().find(|vmi| !vm.is_empty() && vmi.name_any() == vm);
    let host = instance.and_then(|vmi| vmi.status.node_name.clone());
    let host = host.unwrap_or_else(|| facts::label(&node.metadata, cloudprovider::HOST).to_owned());
    let mut state = vec![if facts::is_ready(node) { "Ready" } else { "NotReady" }];
    let spec = node.spec.as_ref();
    state.extend(spec.and_then(|spec| spec.unschedulable).filter(|yes| *yes).map(|_| "cordoned"));
    state.extend((uid.is_none()).then_some("not initialised"));
    let lease = snapshot.announcer.as_ref().and_then(|report| {
        report.leases.iter().find(|lease| lease.lease.strip_prefix(facts::MEMBER_PREFIX) == Some(&name))
    });
    let announcer = match lease {
        None if !snapshot.has_read(list::LEASES) => "not known",
        None => "",
        Some(lease) if lease.expired => "expired",
        Some(_) if is_shut_out(node) => "excluded",
        Some(lease) if lease.leaving == Some(true) => "leaving",
        Some(lease) if lease.serving == Some(false) => "kube-proxy not ready",
        Some(_) => "announcing",
    };
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref()).into_iter().flatten();
    let maintenance = facts::node_condition(node, facts::NODE_CONDITION).filter(|(status, ..)| *status == "True");
    NodeRow {
        state: state.join(", "),
        vm,
        host,
        addresses: addresses.filter(|a| a.type_ != "Hostname").map(|a| a.address.clone()).collect(),
        // A Lease looks well for 15 s more.
        announcer: match silent {
            Some(silent) => format!("silent, by {}", silent.watchers.join(", ")),
            None => announcer.to_owned(),
        },
        maintenance: maintenance.map(|(_, reason, _)| reason.to_owned()).unwrap_or_default(),
        name,
    }
}

fn upgrade_row(snapshot: &Snapshot) -> Option<UpgradeRow> {
    let summary = snapshot.config(facts::HOST_UPGRADE, host_upgrade::SUMMARY)?.to_owned();
    let status: Value = serde_json::from_str(snapshot.config(facts::HOST_UPGRADE, host_upgrade::STATUS)?).ok()?;
    let window = &status["window"];
    Some(UpgradeRow { summary, suspended: window["suspended"] == true, outage: window["upgrade"] == false })
}

impl Report {
    /// Whether each Service of this controller is announced, and both APIs answer.
    pub fn is_well(&self) -> bool {
        self.trouble.is_empty() && self.services.iter().all(|row| !row.class.is_empty() || row.reason.is_empty())
    }

    /// The exit status: 0 all is well, 1 the guest cluster or its Services cannot be read, 3 otherwise.
    pub fn exit_status(&self) -> u8 {
        if !self.services_read {
            UNREADABLE
        } else if !self.is_well() {
            NOT_WELL
        } else {
            0
        }
    }
}
