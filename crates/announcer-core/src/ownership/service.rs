//! kube-vip's modes: the holder of a Lease is the owner. There is one Lease for all Services (`global`) or one per
//! Service (`service`). Names and identity are kube-vip's (kube-vip spec 4), so that a kube-vip on another node and
//! this announcer exclude each other.
//!
//! In `service` mode, Services that share an address follow the Lease of the most senior one that is not retired.
//! kube-vip's Leases are independent of each other, so the address could be on two nodes (kube-vip spec 3.9). The
//! holder of that Lease takes the Leases of the other Services too, so that no kube-vip announces the address for them.
//! When a Service goes from such an address, the holder keeps its Lease for the duration of a Lease. If the Lease were
//! given back at once, a node that has not heard of the change yet would take it, and the address with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use contract::leases::SERVICE_PREFIX;
use contract::names::is_object_name;

use super::{LeaseState, Owner, Ownership};
use crate::annotations::{LEASE_NAME, Problem};
use crate::config::LeaseConfig;
use crate::endpoints::{Endpoints, eligible_nodes};
use crate::group::groups;
use crate::view::{ServiceKey, ServiceView};

/// Namespace and name of a Lease.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl fmt::Display for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl LeaseKey {
    /// The Lease of a Service (kube-vip spec 4): `kubevip-<service>` in the Service's namespace, unless an annotation
    /// names another one as `name` or `namespace/name`. A user who may write Services in one namespace must not make
    /// this node compete for other Leases, such as those for leader election of the control plane. So only the
    /// Service's own namespace and `namespaces` are accepted.
    pub fn of(view: &ServiceView, namespaces: &BTreeSet<String>) -> Result<Self, Problem> {
        let Some(text) = view.lease_name.as_deref() else { return Ok(Self::usual(view)) };
        let (namespace, name) = text.split_once('/').unwrap_or((&view.key.namespace, text));
        if !is_object_name(name) || (namespace != view.key.namespace && !namespaces.contains(namespace)) {
            return Err(Problem::new(
                LEASE_NAME,
                text,
                "accepted is the name of a Lease beside the Service, or namespace/name in a namespace that \
                 svc_lease_namespaces of the announcer names; the usual Lease is used",
            ));
        }
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// `global` mode: the Lease for all Services. If it is in the pod's own namespace, the namespace is empty here;
    /// nothing depends on it.
    pub fn for_all(config: &LeaseConfig) -> Self {
        Self { namespace: config.namespace.clone().unwrap_or_default(), name: config.name.clone() }
    }

    fn usual(view: &ServiceView) -> Self {
        Self { namespace: view.key.namespace.clone(), name: format!("{SERVICE_PREFIX}{}", view.key.name) }
    }

    /// The Service whose own Lease has this name; `None` for other Leases.
    pub fn service_of(name: &str) -> Option<&str> {
        name.strip_prefix(SERVICE_PREFIX)
    }
}

/// Which Leases decide about which Services.
#[derive(Debug)]
enum LeaseScope {
    /// `global`: this Lease decides about all Services.
    All(LeaseKey),
    /// `service`: each Service has its own Lease.
    Each {
        /// Namespaces where Services of other namespaces may have their Leases.
        namespaces: BTreeSet<String>,
    },
}

/// kube-vip's Leases with the state of their elections.
#[derive(Debug)]
pub(crate) struct Leases {
    node: String,
    scope: LeaseScope,
    states: BTreeMap<LeaseKey, LeaseState>,
    /// `service` mode: the Lease that decides about each Service; absent: this node takes no part in that election.
    decides: BTreeMap<ServiceKey, LeaseKey>,
    /// For each Service, the Leases of the Services that share its address, if their names sort before the deciding
    /// Lease and they decide about no other address.
    rivals: BTreeMap<ServiceKey, BTreeSet<LeaseKey>>,
    wanted: BTreeSet<LeaseKey>,
    /// The Leases of each address that several Services share and this node holds.
    together: Vec<BTreeSet<LeaseKey>>,
    /// Leases that decide about nothing any more, while the address goes on, and until when they are kept.
    kept: BTreeMap<LeaseKey, Instant>,
    /// How long a Lease lasts without a renewal.
    duration: Duration,
    /// The elections that this node joined last.
    joined: BTreeSet<LeaseKey>,
    /// This node takes part in no election any more, and the last Leases are still being released.
    handing_back: bool,
    /// The deciding Leases whose elections do not tell an owner, and since when.
    silent: BTreeMap<LeaseKey, Instant>,
}

impl Leases {
    /// `global` mode: `key` decides about all Services. Its election is joined from the start.
    pub fn one_for_all(node: String, key: LeaseKey, duration: Duration) -> Self {
        Self { joined: BTreeSet::from([key.clone()]), ..Self::new(node, LeaseScope::All(key), duration) }
    }

    /// `service` mode. `namespaces`: where Services of other namespaces may have their Leases.
    pub fn one_for_each(node: String, namespaces: BTreeSet<String>, duration: Duration) -> Self {
        Self::new(node, LeaseScope::Each { namespaces }, duration)
    }

    fn new(node: String, scope: LeaseScope, duration: Duration) -> Self {
        Self {
            node,
            scope,
            states: BTreeMap::new(),
            decides: BTreeMap::new(),
            rivals: BTreeMap::new(),
            wanted: BTreeSet::new(),
            together: Vec::new(),
            kept: BTreeMap::new(),
            duration,
            joined: BTreeSet::new(),
            handing_back: false,
            silent: BTreeMap::new(),
        }
    }

    fn lease_of(&self, view: &ServiceView) -> LeaseKey {
        match &self.scope {
            LeaseScope::All(key) => key.clone(),
            LeaseScope::Each { namespaces } => LeaseKey::of(view, namespaces).unwrap_or_else(|_| LeaseKey::usual(view)),
        }
    }

    /// What is wrong with the Lease that this Service asks for.
    pub fn problem(&self, view: &ServiceView) -> Option<Problem> {
        match &self.scope {
            LeaseScope::All(_) => None,
            LeaseScope::Each { namespaces } => LeaseKey::of(view, namespaces).err(),
        }
    }

    /// The Lease that decides about all Services.
    pub fn for_all(&self) -> Option<&LeaseKey> {
        match &self.scope {
            LeaseScope::All(key) => Some(key),
            LeaseScope::Each { .. } => None,
        }
    }

    /// The Lease that decides about a Service; `None`: this node takes no part in its election.
    pub fn deciding(&self, service: &ServiceKey) -> Option<&LeaseKey> {
        self.for_all().or_else(|| self.decides.get(service))
    }

    /// The state of an election.
    pub fn state(&self, key: &LeaseKey) -> &LeaseState {
        self.states.get(key).unwrap_or(&LeaseState::Unknown)
    }

    /// What has to be read before any owner can be determined. With one Lease per Service this is nothing, because each
    /// Service has its own answer.
    pub fn unknown(&self) -> Option<&'static str> {
        let key = self.for_all()?;
        (*self.state(key) == LeaseState::Unknown).then_some("the holder of the Lease")
    }

    /// Takes in the state of an election. Returns true if it is news.
    pub fn lease(&mut self, key: &LeaseKey, state: LeaseState) -> bool {
        // At the end of the process no Lease is wanted. One that could not be given back, because another node holds
        // it, still decides.
        let decides = self.for_all() == Some(key) || self.decides.values().any(|decides| decides == key);
        if !decides && !self.wanted.contains(key) {
            return false;
        }
        if state.owner(&self.node) != Owner::Undecided {
            self.silent.remove(key);
        }
        let news = *self.state(key) != state;
        self.states.insert(key.clone(), state);
        news
    }

    /// Whether a Lease has to be released before this process may end.
    pub fn has_any(&self) -> bool {
        match &self.scope {
            // Otherwise this node serves nothing, or the holder is unknown and a deadline for that is running.
            LeaseScope::All(key) => matches!(self.state(key), LeaseState::Held { .. }),
            LeaseScope::Each { .. } => !self.joined.is_empty() || self.handing_back,
        }
    }

    /// All Leases are released.
    pub fn handed_back(&mut self) {
        self.handing_back = false;
    }

    /// The elections to take part in; `None` if they are the ones that were joined last.
    pub fn join(
        &mut self,
        now: Instant,
        services: &BTreeMap<ServiceKey, ServiceView>,
        endpoints: &Endpoints,
        stopping: bool,
    ) -> Option<&BTreeSet<LeaseKey>> {
        self.campaign(now, services, endpoints, stopping);
        if self.wanted == self.joined {
            return None;
        }
        self.joined.clone_from(&self.wanted);
        self.handing_back = self.joined.is_empty();
        Some(&self.joined)
    }

    /// kube-vip competes for a Service with policy Local only where it has endpoints.
    fn campaign(
        &mut self,
        now: Instant,
        services: &BTreeMap<ServiceKey, ServiceView>,
        endpoints: &Endpoints,
        stopping: bool,
    ) {
        self.wanted.clear();
        if stopping {
            return;
        }
        if let LeaseScope::All(key) = &self.scope {
            self.wanted.insert(key.clone());
            return;
        }
        self.decides.clear();
        self.rivals.clear();
        let before = std::mem::take(&mut self.together);
        let mut deciding = BTreeSet::new();
        for members in groups(services).members.values() {
            let views: Vec<&ServiceView> = members.iter().filter_map(|key| services.get(key)).collect();
            let Some(first) = views.iter().find(|view| !view.retired).or(views.first()) else { continue };
            let decides = self.lease_of(first);
            deciding.insert(decides.clone());
            let eligible = eligible_nodes(views.iter().copied(), endpoints);
            if !eligible.includes(&self.node) {
                continue;
            }
            self.decides.extend(members.iter().map(|key| (key.clone(), decides.clone())));
            if matches!(self.states.get(&decides), Some(LeaseState::Held { .. })) {
                let all: BTreeSet<LeaseKey> = views.iter().map(|view| self.lease_of(view)).collect();
                let rivals: BTreeSet<LeaseKey> = all.iter().filter(|key| **key < decides).cloned().collect();
                self.rivals.extend(members.iter().map(|key| (key.clone(), rivals.clone())));
                self.wanted.extend(all.iter().cloned());
                self.together.push(all);
            }
            self.wanted.insert(decides);
        }
        // The holder of a Lease that decides about another address holds it for that address.
        for rivals in self.rivals.values_mut() {
            rivals.retain(|key| !deciding.contains(key));
        }
        self.keep(now, &before);
        self.states.retain(|key, _| self.wanted.contains(key));
    }

    /// Keeps the Leases of Services that have gone from an address that goes on here. `before`: the Leases of each
    /// shared address so far.
    fn keep(&mut self, now: Instant, before: &[BTreeSet<LeaseKey>]) {
        for leases in before {
            let goes_on = self.together.iter().any(|still| !still.is_disjoint(leases));
            for key in leases.iter().filter(|key| goes_on && !self.wanted.contains(key)) {
                self.kept.entry(key.clone()).or_insert(now + self.duration);
            }
        }
        let (states, wanted) = (&self.states, &mut self.wanted);
        self.kept.retain(|key, until| {
            let held = matches!(states.get(key), Some(LeaseState::Held { .. }));
            held && now < *until && !wanted.contains(key)
        });
        wanted.extend(self.kept.keys().cloned());
    }

    /// Whether a Lease was kept for long enough.
    pub fn has_kept_enough(&self, now: Instant) -> bool {
        self.kept.values().any(|until| *until <= now)
    }

    /// Whether the Lease that decides about this Service is its own.
    pub fn decides_itself(&self, service: &ServiceView) -> bool {
        self.deciding(&service.key).is_some_and(|key| *key == self.lease_of(service))
    }

    /// Whether this node certainly holds the Lease that decides, whatever the rivals' state. Then an address that was
    /// given up in doubt is probed again: a rival that announces it answers, and a rival that does not must not keep it
    /// down.
    pub fn holds(&self, service: &ServiceView) -> bool {
        self.deciding(&service.key).is_some_and(|key| *self.state(key) == LeaseState::Held { confirmed: true })
    }

    /// Services whose owner could not be determined for as long as a Lease lasts, each with the Lease that should tell
    /// it.
    pub fn stuck(&mut self, now: Instant) -> Vec<(ServiceKey, LeaseKey)> {
        let open =
            |key: &LeaseKey| self.states.get(key).is_none_or(|state| state.owner(&self.node) == Owner::Undecided);
        let silent: BTreeSet<&LeaseKey> = self.decides.values().filter(|key| open(key)).collect();
        self.silent =
            silent.into_iter().map(|key| (key.clone(), self.silent.get(key).copied().unwrap_or(now))).collect();
        let duration = self.duration;
        let long = |key: &LeaseKey| self.silent.get(key).is_some_and(|since| now >= *since + duration);
        self.decides
            .iter()
            .filter(|(_, lease)| long(lease))
            .map(|(service, lease)| (service.clone(), lease.clone()))
            .collect()
    }
}

impl Ownership for Leases {
    fn of(&self, service: &ServiceView) -> Owner {
        // This node takes no part in the election, so another node announces the Service.
        self.deciding(&service.key).map_or(Owner::Theirs, |key| self.state(key).owner(&self.node))
    }

    /// False while another node holds or may hold a rival Lease. That node may see a different set of Services, for
    /// example one that was deleted and created anew. Then each of the two nodes would defend the address.
    fn confirmed(&self, service: &ServiceView) -> bool {
        let may_be_held = |key: &LeaseKey| match self.state(key) {
            LeaseState::Held { .. } => false,
            LeaseState::Other(holder) => !holder.is_empty(),
            LeaseState::Unknown => true,
        };
        self.holds(service) && !self.rivals.get(&service.key).into_iter().flatten().any(may_be_held)
    }
}

#[cfg(test)]
mod tests;
