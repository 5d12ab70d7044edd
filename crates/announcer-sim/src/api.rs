//! The API server: Services and Leases with resource versions, and the compare-and-swap that all ownership rests on.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use announcer_core::annotations::{DHCP_LEASE, LeaseFacts};
use announcer_core::class::ClassRules;
use announcer_core::engine::Record;
use announcer_core::ownership::node::{Card, ForeignLock, Member, NodeFacts, OwnerRecord, Swap, Term};
use announcer_core::record::{annotate, publish, sit};
use announcer_core::view::{ServiceKey, ServiceView, Uid};
use dhcp_sim::ClientId;
use jiff::Timestamp;
use kube::api::DynamicObject;
use l2_types::Mac;
use runtime::leader;
use runtime::leader::elector::Observation;

/// What a node may ask for.
#[derive(Debug, Clone)]
pub enum Request {
    /// GET of a Lease.
    ReadLease(String),
    /// POST of a Lease.
    CreateLease(String, leader::Record),
    /// PUT of a Lease.
    UpdateLease(String, leader::Record, String),
    /// GET of a Service.
    ReadService(ServiceKey),
    /// PUT of a Service's annotations.
    Annotate(ServiceKey, u64, Record),
    /// PUT of its status.
    Publish(ServiceKey, u64, Record),
    /// PUT of its owner.
    Sit(ServiceKey, u64, Swap),
    /// GET of the membership Lease of a node.
    ReadMember(String),
    /// POST of it, or PUT with a version.
    WriteMember(String, Option<u64>, Member),
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadLease(name) => write!(f, "reads Lease {name}"),
            Self::CreateLease(name, record) => write!(f, "creates Lease {name} for {:?}", record.holder),
            Self::UpdateLease(name, record, version) => {
                write!(f, "gives Lease {name} to {:?}, if it has version {version}", record.holder)
            }
            Self::ReadService(key) => write!(f, "reads Service {key}"),
            Self::Annotate(key, version, record) => {
                let host = record.vip_host.as_deref().unwrap_or("untouched");
                write!(f, "writes vipHost {host} on Service {key}, if it has version {version}")
            }
            Self::Sit(key, version, swap) => {
                let OwnerRecord { host, term } = &swap.owner_record;
                write!(f, "gives Service {key} to {host}, term {term}, if it has version {version}")
            }
            Self::ReadMember(node) => write!(f, "reads the membership Lease of {node}"),
            Self::WriteMember(node, ..) => write!(f, "writes the membership Lease of {node}"),
            Self::Publish(key, version, _) => {
                write!(f, "writes the status of Service {key}, if it has version {version}")
            }
        }
    }
}

impl Request {
    /// Whether performing it changes something.
    pub fn writes(&self) -> bool {
        !matches!(self, Self::ReadLease(_) | Self::ReadService(_) | Self::ReadMember(_))
    }
}

/// What comes back.
#[derive(Debug, Clone)]
pub enum ApiAnswer {
    /// A Lease as it stands.
    Lease(Option<Observation>),
    /// The Lease that was written.
    LeaseWritten(Observation),
    /// A Service as it stands, or stands after the write.
    Service(Option<(u64, Box<DynamicObject>)>),
    /// The version of a membership Lease, if there is one.
    MemberFound(Option<u64>),
    /// Its version after the write.
    MemberWritten(u64),
    /// The version has changed.
    Conflict,
    /// 5xx, a connection refused, or no answer in time.
    Failed,
}

/// Something changed, for watchers.
#[derive(Debug, Clone)]
pub enum Change {
    /// This Service, or it is gone.
    Service(ServiceKey, Option<Box<ServiceView>>),
    /// This Lease.
    Lease(String, Observation),
    /// The membership Lease of this node.
    Member(String, Member),
    /// kube-vip's Lease for all Services, as `node` mode looks at it.
    Lock(ForeignLock),
    /// The nodes with an endpoint of this Service with policy Local.
    Endpoints(ServiceKey, BTreeSet<String>),
    /// This Node.
    Node(String, NodeFacts),
}

/// Renewals of a membership Lease that came before it had run out.
#[derive(Debug, Clone, Copy)]
struct Renewals {
    /// When the first of them was written.
    since: Duration,
    /// When the Lease runs out unless it is renewed again.
    until: Duration,
}

/// All objects.
#[derive(Debug, Default)]
pub struct Api {
    version: u64,
    services: BTreeMap<ServiceKey, (u64, DynamicObject)>,
    leases: BTreeMap<String, Observation>,
    members: BTreeMap<String, (u64, Member)>,
    lock: Option<ForeignLock>,
    endpoints: BTreeMap<ServiceKey, BTreeSet<String>>,
    nodes: BTreeMap<String, NodeFacts>,
    /// Who had each term of each Service, by its UID.
    terms: BTreeMap<(String, Term), String>,
    /// When each Lease was written last.
    renewed: BTreeMap<String, Duration>,
    /// A Lease that was taken from a holder who had renewed it in time, or a term that two nodes were given.
    pub stolen: Option<String>,
    /// How each membership Lease was renewed.
    members_renewed: BTreeMap<String, Renewals>,
    ignores_versions: bool,
    /// Writes on Services by nodes.
    pub service_writes: u64,
}

impl Api {
    /// What this node says of itself.
    pub fn card(&self, node: &str) -> Option<&Card> {
        self.members.get(node).map(|(_, member)| &member.card)
    }

    /// Since when the membership Lease of this node is valid without a gap. `None`: it is not valid now.
    pub fn valid_since(&self, node: &str, now: Duration) -> Option<Duration> {
        let renewals = self.members_renewed.get(node)?;
        (now < renewals.until).then_some(renewals.since)
    }

    /// An empty one. `ignores_versions` breaks it: a write goes through whatever was written meanwhile.
    pub fn new(ignores_versions: bool) -> Self {
        Self { ignores_versions, ..Self::default() }
    }

    /// A user makes or changes a Service.
    pub fn put(&mut self, key: ServiceKey, object: DynamicObject) -> Change {
        self.version += 1;
        let change = Change::Service(key.clone(), view(&object));
        self.services.insert(key, (self.version, object));
        change
    }

    /// A user deletes a Service.
    pub fn delete(&mut self, key: &ServiceKey) -> Option<Change> {
        self.version += 1;
        self.services.remove(key).map(|_| Change::Service(key.clone(), None))
    }

    /// Who owns the address of a Service, by its record.
    pub fn owner(&self, key: &ServiceKey) -> Option<OwnerRecord> {
        let (_, object) = self.services.get(key)?;
        OwnerRecord::read(object.metadata.annotations.as_ref()?)
    }

    /// The lease that a successor finds on a Service, if its clients have been told of the address.
    pub fn noted_lease(&self, key: &ServiceKey) -> Option<LeaseFacts> {
        let (_, object) = self.services.get(key)?;
        let facts = LeaseFacts::parse(object.metadata.annotations.as_ref()?.get(DHCP_LEASE)?)?;
        let ingress = object.data["status"]["loadBalancer"]["ingress"].as_array()?;
        let address = facts.address.to_string();
        ingress.iter().any(|entry| entry["ip"] == address.as_str()).then_some(facts)
    }

    /// Somebody who is none of ours, scheduler, kubelet or kube-vip, has written this.
    pub fn note(&mut self, change: Change) -> Change {
        match change.clone() {
            Change::Lock(lock) => self.lock = Some(lock),
            Change::Endpoints(key, nodes) => {
                self.endpoints.insert(key, nodes);
            }
            Change::Node(name, facts) => {
                self.nodes.insert(name, facts);
            }
            Change::Service(..) | Change::Lease(..) | Change::Member(..) => {}
        }
        change
    }

    /// Everything, for a watch that begins anew.
    pub fn list(&self) -> Vec<Change> {
        let services = self.services.iter().map(|(key, (_, object))| Change::Service(key.clone(), view(object)));
        let leases = self.leases.iter().map(|(name, seen)| Change::Lease(name.clone(), seen.clone()));
        let members = self.members.iter().map(|(node, (_, member))| Change::Member(node.clone(), member.clone()));
        let lock = self.lock.iter().map(|lock| Change::Lock(lock.clone()));
        let endpoints = self.endpoints.iter().map(|(key, nodes)| Change::Endpoints(key.clone(), nodes.clone()));
        let nodes = self.nodes.iter().map(|(name, facts)| Change::Node(name.clone(), facts.clone()));
        services.chain(leases).chain(members).chain(lock).chain(endpoints).chain(nodes).collect()
    }

    /// Whether it only renews a Lease.
    pub fn renews(&self, request: &Request) -> bool {
        match request {
            Request::UpdateLease(name, record, _) => {
                self.leases.get(name).is_some_and(|found| found.record.holder == record.holder)
            }
            Request::WriteMember(..) => true,
            _ => false,
        }
    }

    /// Performs a request at `now`.
    pub fn perform(&mut self, now: Duration, request: &Request) -> (ApiAnswer, Option<Change>) {
        match request {
            Request::ReadLease(name) => (ApiAnswer::Lease(self.leases.get(name).cloned()), None),
            Request::CreateLease(name, _) if self.leases.contains_key(name) => (ApiAnswer::Conflict, None),
            Request::CreateLease(name, record) => self.write_lease(now, name, record),
            Request::UpdateLease(name, record, version) => match self.leases.get(name) {
                Some(found) if found.version == *version || self.ignores_versions => {
                    self.write_lease(now, name, record)
                }
                _ => (ApiAnswer::Conflict, None),
            },
            Request::ReadService(key) => {
                let found = self.services.get(key).map(|(version, object)| (*version, Box::new(object.clone())));
                (ApiAnswer::Service(found), None)
            }
            Request::Annotate(key, version, record) => {
                self.change(key, *version, &record.uid, |object| annotate(&mut object.metadata, record))
            }
            Request::Sit(key, version, swap) => {
                let (answer, change) = self.change(key, *version, &swap.uid, |object| {
                    sit(&mut object.metadata, &swap.owner_record);
                    true
                });
                if change.is_some() {
                    let OwnerRecord { host, term } = swap.owner_record.clone();
                    let before = self.terms.insert((swap.uid.0.clone(), term), host.clone());
                    if let Some(before) = before.filter(|before| *before != host) {
                        self.stolen = Some(format!("term {term} of Service {key} was {before}'s and is {host}'s"));
                    }
                }
                (answer, change)
            }
            Request::ReadMember(node) => {
                (ApiAnswer::MemberFound(self.members.get(node).map(|(version, _)| *version)), None)
            }
            Request::WriteMember(node, version, member) => {
                if self.members.get(node).map(|(version, _)| *version) != *version {
                    return (ApiAnswer::Conflict, None);
                }
                self.version += 1;
                self.members.insert(node.clone(), (self.version, member.clone()));
                let since = self.valid_since(node, now).unwrap_or(now);
                self.members_renewed.insert(node.clone(), Renewals { since, until: now + member.duration });
                (ApiAnswer::MemberWritten(self.version), Some(Change::Member(node.clone(), member.clone())))
            }
            Request::Publish(key, version, record) => self
                .change(key, *version, &record.uid, |object| publish(&mut object.data, record, Timestamp::UNIX_EPOCH)),
        }
    }

    fn write_lease(&mut self, now: Duration, name: &str, record: &leader::Record) -> (ApiAnswer, Option<Change>) {
        self.version += 1;
        if let (Some(old), Some(renewed)) = (self.leases.get(name).map(|old| &old.record), self.renewed.get(name))
            && !old.holder.is_empty()
            && old.holder != record.holder
            && !record.holder.is_empty()
            && now < *renewed + old.lease_duration
        {
            let age = now.saturating_sub(*renewed).as_secs_f64();
            self.stolen =
                Some(format!("{} takes {name} from {}, who renewed it {age:.3} s ago", record.holder, old.holder));
        }
        self.renewed.insert(name.to_owned(), now);
        let seen = Observation { record: record.clone(), version: self.version.to_string() };
        self.leases.insert(name.to_owned(), seen.clone());
        (ApiAnswer::LeaseWritten(seen.clone()), Some(Change::Lease(name.to_owned(), seen)))
    }

    fn change(
        &mut self,
        key: &ServiceKey,
        version: u64,
        uid: &Uid,
        change: impl FnOnce(&mut DynamicObject) -> bool,
    ) -> (ApiAnswer, Option<Change>) {
        let ignores = self.ignores_versions;
        let Some((found, object)) =
            self.services.get_mut(key).filter(|(_, object)| object.metadata.uid.as_deref() == Some(&uid.0))
        else {
            return (ApiAnswer::Service(None), None);
        };
        if *found != version && !ignores {
            return (ApiAnswer::Conflict, None);
        }
        if !change(object) {
            return (ApiAnswer::Service(Some((*found, Box::new(object.clone())))), None);
        }
        self.version += 1;
        self.service_writes += 1;
        *found = self.version;
        let answer = ApiAnswer::Service(Some((self.version, Box::new(object.clone()))));
        (answer, Some(Change::Service(key.clone(), view(object))))
    }
}

fn view(object: &DynamicObject) -> Option<Box<ServiceView>> {
    let value = serde_json::to_value(object).expect("it came from JSON");
    let service = serde_json::from_value(value).expect("it is a Service");
    ServiceView::of(&service, &ClassRules::default()).map(Box::new)
}

/// Key of Service `n`.
pub fn key(n: usize) -> ServiceKey {
    ServiceKey::new("default", format!("web{n}"))
}

/// UID of Service `n` when it is made for the `generation`th time.
pub fn uid(n: usize, generation: u32) -> String {
    format!("{n:04x}{generation:04x}-0000-0000-0000-000000000000")
}

/// Its host name, if it has one: by that the DHCP server knows every second Service, the others by their MAC.
fn host_name(n: usize, generation: u32) -> Option<String> {
    n.is_multiple_of(2).then(|| format!("web{n}-{generation}"))
}

/// The MAC of its macvlan. One made up by the announcer would be another in each run.
fn mac(n: usize, generation: u32) -> Mac {
    let [high, low] = u16::try_from(generation).expect("few are made anew").to_be_bytes();
    Mac::new([0, 0, 0x6c, u8::try_from(n).expect("few Services"), high, low])
}

/// By what the DHCP server knows it.
pub fn client_id(n: usize, generation: u32) -> ClientId {
    host_name(n, generation).map_or_else(|| mac(n, generation).octets().to_vec(), String::into_bytes)
}

/// Service `n` with this address as a user makes it for the `generation`th time.
pub fn service(n: usize, generation: u32, address: IpAddr, local: bool) -> DynamicObject {
    let key = key(n);
    let mut annotations = serde_json::json!({"kube-vip.io/loadbalancerIPs": address.to_string()});
    if address.is_unspecified() {
        annotations["kube-vip.io/hwaddr"] = mac(n, generation).to_string().into();
        if let Some(name) = host_name(n, generation) {
            annotations["kube-vip.io/loadbalancerHostname"] = name.into();
        }
    }
    serde_json::from_value(serde_json::json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "namespace": key.namespace,
            "name": key.name,
            "uid": uid(n, generation),
            "annotations": annotations,
        },
        "spec": {
            "type": "LoadBalancer",
            // One of its own: Services may share an address.
            "ports": [{"port": 80 + n, "protocol": "TCP"}],
            "externalTrafficPolicy": if local { "Local" } else { "Cluster" },
        },
        "status": {},
    }))
    .expect("it is an object")
}
