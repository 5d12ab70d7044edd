//! State that is kept between calls: one entry per Service and one per object. Removing the entry removes everything
//! about it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use cloud_provider::view::{ServiceKey, ServiceView};
use k8s_openapi::jiff::Timestamp;
use runtime::freshness::{FirstSeen, Freshness, Health, judge};

use super::super::plan::{Action, Plan};
use super::super::sharing::{Group, Occupant};
use super::super::under_way::UnderWay;
use super::super::view::LbView;
use super::unserved::{Unserved, is_unserved};

/// The time of one decision.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    /// For durations.
    pub(super) monotonic: Instant,
    /// Unix seconds, for values that are written to objects.
    pub(super) unix: i64,
}

impl Now {
    pub(super) fn read() -> Self {
        Self { monotonic: Instant::now(), unix: Timestamp::now().as_second() }
    }
}

/// State that is worth keeping while the process lives, but may be lost with it. Entries come in bursts and are removed
/// soon after; a tree gives their memory back, unlike a hash table.
#[derive(Debug, Default)]
pub(super) struct ProviderState {
    services: BTreeMap<ServiceKey, OfService>,
    objects: BTreeMap<String, OfObject>,
    /// State that lasts as long as the requests of one pass.
    pub(super) passes: Passes,
}

/// State of one Service.
#[derive(Debug, Default, PartialEq)]
struct OfService {
    /// The Service existed when this process started, and has no address yet.
    backlog: bool,
    /// Since when only Harvester prevents its deletion.
    deleting: Option<Instant>,
    /// It shows an address that no announcer serves.
    unserved: Option<Unserved>,
    /// The state of the watches when it was first seen that an object of the Service has to be deleted.
    doomed: FirstSeen,
    /// The object that was handed over to it, until the watch shows that.
    inherited: Option<String>,
    /// The group without an address for which it creates the object, so that no second member does.
    founds: Option<Group>,
}

/// State of one LoadBalancer object, by its name.
#[derive(Debug, Default, PartialEq)]
struct OfObject {
    /// When the POST was sent, until the address is published; for the metrics.
    created: Option<Instant>,
    /// When it was last sent, or first seen waiting for an address.
    sent: Option<Instant>,
    /// A deletion has found the object.
    deleted: bool,
}

/// State that is held while the requests of a pass are under way.
#[derive(Debug, Default)]
pub(super) struct Passes {
    /// By primary: secondaries whose patch is being sent, so that two applicants cannot take one port (W-20).
    claims: BTreeMap<ServiceKey, Vec<Occupant>>,
    /// Addresses and objects that passes are about to take.
    pub(super) under_way: UnderWay,
    /// Services that an object is being handed over to.
    heirs: BTreeSet<ServiceKey>,
}

impl Passes {
    /// The Services that are about to share the address of this primary.
    pub(super) fn claims(&self, primary: &ServiceKey) -> Vec<Occupant> {
        self.claims.get(primary).cloned().unwrap_or_default()
    }

    /// Whether any Service is about to share the address of this one.
    pub(super) fn is_claimed(&self, primary: &ServiceKey) -> bool {
        self.claims.contains_key(primary)
    }

    /// Whether another Service is handing its object over to this one.
    pub(super) fn is_heir(&self, service: &ServiceKey) -> bool {
        self.heirs.contains(service)
    }

    pub(super) fn begin_hand_over(&mut self, heir: &ServiceKey) {
        self.heirs.insert(heir.clone());
    }

    pub(super) fn end_hand_over(&mut self, heir: &ServiceKey) {
        self.heirs.remove(heir);
    }

    /// Ends the pass of the Service: the requests of its plan are answered, so their effects are visible elsewhere.
    pub(super) fn end(&mut self, service: &ServiceKey) {
        self.under_way.end(service);
        self.claims.retain(|_, claims| {
            claims.retain(|claim| claim.key != *service);
            !claims.is_empty()
        });
    }
}

/// Whether the object exists and waits for an address.
fn waits(lb: Option<&LbView>) -> bool {
    lb.is_some_and(|lb| lb.usable_address.is_none() && !lb.terminating)
}

impl ProviderState {
    /// Changes the entry of a Service; an empty entry is removed.
    fn service(&mut self, key: &ServiceKey, change: impl FnOnce(&mut OfService)) {
        let entry = self.services.entry(key.clone()).or_default();
        change(entry);
        if *entry == OfService::default() {
            self.services.remove(key);
        }
    }

    /// Changes the entry of an object; an empty entry is removed.
    fn object<R>(&mut self, name: &str, change: impl FnOnce(&mut OfObject) -> R) -> R {
        let entry = self.objects.entry(name.to_owned()).or_default();
        let result = change(entry);
        if *entry == OfObject::default() {
            self.objects.remove(name);
        }
        result
    }

    /// Time since the object was last sent, if it waits for an address.
    pub(super) fn idle(&self, name: &str, lb: Option<&LbView>, now: Now) -> Option<Duration> {
        let sent = self.objects.get(name).and_then(|object| object.sent).unwrap_or(now.monotonic);
        waits(lb).then(|| now.monotonic.saturating_duration_since(sent))
    }

    /// The address that the Service shows but no announcer serves, with the time since when.
    pub(super) fn unserved(&self, service: &ServiceView, now: Now) -> Option<Unserved> {
        let known = self.services.get(&service.key).and_then(|entry| entry.unserved.clone());
        is_unserved(service).then(|| Unserved::of(service, known, now.monotonic))
    }

    /// Stores what was seen and decided. From here on, a secondary that is about to be patched occupies its ports.
    pub(super) fn decided(&mut self, service: &ServiceView, seen: DecisionInputs<'_>, plan: &Plan) {
        let now = seen.now.monotonic;
        let waits = waits(seen.lb);
        self.object(seen.name, |object| object.sent = waits.then(|| object.sent.unwrap_or(now)));
        self.service(&service.key, |entry| entry.unserved = seen.unserved);
        if let Some(primary) = seen.primary
            && plan.actions.iter().any(|action| matches!(action, Action::Patch(_)))
        {
            self.passes.claims.entry(primary.clone()).or_default().push(Occupant::from(service));
        }
        self.passes.under_way.begin(service, plan);
    }

    /// Marks these Services as older than this process and without an address.
    pub(super) fn begin(&mut self, waiting: impl IntoIterator<Item = ServiceKey>) {
        for key in waiting {
            self.service(&key, |entry| entry.backlog = true);
        }
    }

    pub(super) fn is_backlog(&self, service: &ServiceKey) -> bool {
        self.services.get(service).is_some_and(|entry| entry.backlog)
    }

    /// Records that the Service has an address now.
    pub(super) fn served(&mut self, service: &ServiceKey) {
        self.service(service, |entry| entry.backlog = false);
    }

    /// Since when only Harvester has prevented the deletion of the Service.
    pub(super) fn kept_since(&mut self, service: &ServiceKey, now: Instant) -> Instant {
        let mut since = now;
        self.service(service, |entry| since = *entry.deleting.get_or_insert(now));
        since
    }

    /// Whether an object of the Service may be deleted on the facts at hand.
    pub(super) fn doomed(&mut self, service: &ServiceKey, health: Health) -> Freshness {
        let mut judged = Freshness::Interrupted;
        self.service(service, |entry| judged = judge(&mut entry.doomed, health));
        judged
    }

    /// Records that no object of the Service has to be deleted.
    pub(super) fn spared(&mut self, service: &ServiceKey) {
        self.service(service, |entry| entry.doomed = None);
    }

    /// Records that Harvester does not prevent the deletion of the Service.
    pub(super) fn not_kept(&mut self, service: &ServiceKey) {
        self.service(service, |entry| entry.deleting = None);
    }

    /// The object that was handed over to the Service.
    pub(super) fn inherited(&self, service: &ServiceKey) -> Option<String> {
        self.services.get(service)?.inherited.clone()
    }

    pub(super) fn handed_over(&mut self, heir: &ServiceKey, name: &str) {
        self.service(heir, |entry| entry.inherited = Some(name.to_owned()));
    }

    /// The member that creates the object for a group without an address. If none was chosen before, the first one is
    /// chosen now.
    pub(super) fn founder<'a, S: AsRef<ServiceView>>(&mut self, group: &Group, members: &'a [S]) -> Option<&'a S> {
        let chosen = |member: &&S| {
            self.services.get(&member.as_ref().key).is_some_and(|entry| entry.founds.as_ref() == Some(group))
        };
        let founder = members.iter().find(chosen).or(members.first())?;
        self.service(&founder.as_ref().key, |entry| entry.founds = Some(group.clone()));
        Some(founder)
    }

    /// Records that a POST was sent for the object.
    pub(super) fn created(&mut self, name: &str, now: Instant) {
        self.object(name, |object| (object.created, object.sent) = (Some(now), Some(now)));
    }

    /// Records that the object was sent again.
    pub(super) fn sent(&mut self, name: &str, now: Instant) {
        self.object(name, |object| object.sent = Some(now));
    }

    /// When the POST was sent. Taken once, when the address is published.
    pub(super) fn take_created(&mut self, name: &str) -> Option<Instant> {
        self.object(name, |object| object.created.take())
    }

    /// Whether this process sent the POST for the object, and has published no address of it yet.
    pub(super) fn is_unpublished(&self, name: &str) -> bool {
        self.objects.get(name).is_some_and(|object| object.created.is_some())
    }

    /// Objects whose POST was sent and whose address is not published yet.
    pub(super) fn unpublished(&self) -> impl Iterator<Item = &String> {
        self.objects.iter().filter(|(_, object)| object.created.is_some()).map(|(name, _)| name)
    }

    /// Records that a deletion has found the object.
    pub(super) fn found_for_deletion(&mut self, name: &str) {
        self.object(name, |object| object.deleted = true);
    }

    pub(super) fn was_found_for_deletion(&self, name: &str) -> bool {
        self.objects.get(name).is_some_and(|object| object.deleted)
    }

    /// Removes the times of the requests: it no longer matters whether the object gets an address.
    pub(super) fn forget_request(&mut self, name: &str) {
        self.object(name, |object| (object.created, object.sent) = (None, None));
    }

    pub(super) fn forget_object(&mut self, name: &str) {
        self.objects.remove(name);
    }

    /// Removes the entry of a Service of which nothing is left.
    pub(super) fn forget_service(&mut self, service: &ServiceKey) {
        self.services.remove(service);
    }

    #[cfg(test)]
    pub(super) fn is_kept(&self, service: &ServiceKey) -> bool {
        self.services.get(service).is_some_and(|entry| entry.deleting.is_some())
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let Passes { claims, under_way, heirs } = &self.passes;
        let passes = claims.is_empty() && under_way.is_empty() && heirs.is_empty();
        self.services.is_empty() && self.objects.is_empty() && passes
    }
}

/// The inputs of a decision, as far as they are stored.
pub(super) struct DecisionInputs<'a> {
    pub(super) name: &'a str,
    pub(super) lb: Option<&'a LbView>,
    pub(super) unserved: Option<Unserved>,
    /// The Service whose address this one wants to share.
    pub(super) primary: Option<&'a ServiceKey>,
    pub(super) now: Now,
}
