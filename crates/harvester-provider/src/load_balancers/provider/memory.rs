//! What is remembered between calls: one entry per Service and one per object. Dropping the entry forgets everything
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

/// The time of one decision, read once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    /// For durations.
    pub(super) monotonic: Instant,
    /// Unix seconds, for what is written down.
    pub(super) unix: i64,
}

impl Now {
    pub(super) fn read() -> Self {
        Self { monotonic: Instant::now(), unix: Timestamp::now().as_second() }
    }
}

/// What is not worth losing while the process lives, and no harm if it is lost. Most of it comes in a burst and is gone
/// soon after: a tree gives the room back, a hash table never does.
#[derive(Debug, Default)]
pub(super) struct ProviderState {
    services: BTreeMap<ServiceKey, OfService>,
    objects: BTreeMap<String, OfObject>,
    /// What lasts as long as the requests of one pass.
    pub(super) passes: Passes,
}

/// Of one Service.
#[derive(Debug, Default, PartialEq)]
struct OfService {
    /// It was there before us and has no address yet.
    backlog: bool,
    /// Since when nothing but Harvester keeps it from being deleted.
    deleting: Option<Instant>,
    /// It shows an address that nobody serves.
    unserved: Option<Unserved>,
    /// That an object of its is to go, as it was first seen.
    doomed: FirstSeen,
    /// The object that was handed over to it, for as long as the watch does not show that.
    inherited: Option<String>,
    /// It is to get the address of this group, which has none, so that two members do not begin at once.
    founds: Option<Group>,
}

/// Of one LoadBalancer object, by its name.
#[derive(Debug, Default, PartialEq)]
struct OfObject {
    /// When we sent the POST, until its address is published; for the metrics.
    created: Option<Instant>,
    /// When it was last sent, or first seen waiting for an address.
    sent: Option<Instant>,
    /// A deletion has found it.
    deleted: bool,
}

/// What is held while the requests of a pass are under way.
#[derive(Debug, Default)]
pub(super) struct Passes {
    /// By primary: secondaries whose patch is on its way, so that two applicants cannot take one port (W-20).
    claims: BTreeMap<ServiceKey, Vec<Occupant>>,
    /// What passes are about to take.
    pub(super) under_way: UnderWay,
    /// To whom an object is being handed over at this moment.
    heirs: BTreeSet<ServiceKey>,
}

impl Passes {
    /// Who is about to share the address of this primary.
    pub(super) fn claims(&self, primary: &ServiceKey) -> Vec<Occupant> {
        self.claims.get(primary).cloned().unwrap_or_default()
    }

    /// Somebody is about to share the address of this Service.
    pub(super) fn is_claimed(&self, primary: &ServiceKey) -> bool {
        self.claims.contains_key(primary)
    }

    /// Another Service is handing its object over to this one.
    pub(super) fn is_heir(&self, service: &ServiceKey) -> bool {
        self.heirs.contains(service)
    }

    pub(super) fn begin_hand_over(&mut self, heir: &ServiceKey) {
        self.heirs.insert(heir.clone());
    }

    pub(super) fn end_hand_over(&mut self, heir: &ServiceKey) {
        self.heirs.remove(heir);
    }

    /// The requests of the Service's plan are answered: what it took can be seen now.
    pub(super) fn end(&mut self, service: &ServiceKey) {
        self.under_way.end(service);
        self.claims.retain(|_, claims| {
            claims.retain(|claim| claim.key != *service);
            !claims.is_empty()
        });
    }
}

/// It exists and waits for an address.
fn waits(lb: Option<&LbView>) -> bool {
    lb.is_some_and(|lb| lb.usable_address.is_none() && !lb.terminating)
}

impl ProviderState {
    /// Changes the entry of a Service; an entry that says nothing goes.
    fn service(&mut self, key: &ServiceKey, change: impl FnOnce(&mut OfService)) {
        let entry = self.services.entry(key.clone()).or_default();
        change(entry);
        if *entry == OfService::default() {
            self.services.remove(key);
        }
    }

    /// Changes the entry of an object; an entry that says nothing goes.
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

    /// The address that the Service shows and nobody serves, with the time since when.
    pub(super) fn unserved(&self, service: &ServiceView, now: Now) -> Option<Unserved> {
        let known = self.services.get(&service.key).and_then(|entry| entry.unserved.clone());
        is_unserved(service).then(|| Unserved::of(service, known, now.monotonic))
    }

    /// What was seen and decided. A secondary that is about to be patched holds its ports from here on.
    pub(super) fn decided(&mut self, service: &ServiceView, seen: Seen<'_>, plan: &Plan) {
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

    /// These Services were there before us and have no address yet.
    pub(super) fn begin(&mut self, waiting: impl IntoIterator<Item = ServiceKey>) {
        for key in waiting {
            self.service(&key, |entry| entry.backlog = true);
        }
    }

    pub(super) fn is_backlog(&self, service: &ServiceKey) -> bool {
        self.services.get(service).is_some_and(|entry| entry.backlog)
    }

    /// It has an address now.
    pub(super) fn served(&mut self, service: &ServiceKey) {
        self.service(service, |entry| entry.backlog = false);
    }

    /// Since when nothing but Harvester has kept the Service from being deleted.
    pub(super) fn kept_since(&mut self, service: &ServiceKey, now: Instant) -> Instant {
        let mut since = now;
        self.service(service, |entry| since = *entry.deleting.get_or_insert(now));
        since
    }

    /// Whether it may be acted upon that an object of the Service is to go.
    pub(super) fn doomed(&mut self, service: &ServiceKey, health: Health) -> Freshness {
        let mut judged = Freshness::Interrupted;
        self.service(service, |entry| judged = judge(&mut entry.doomed, health));
        judged
    }

    /// Nothing of the Service is to go.
    pub(super) fn spared(&mut self, service: &ServiceKey) {
        self.service(service, |entry| entry.doomed = None);
    }

    /// Nothing of Harvester's keeps the Service from being deleted.
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

    /// Of the members of a group without an address: who is to get one. The first one, from now on, if nobody was
    /// chosen before.
    pub(super) fn founder<'a, S: AsRef<ServiceView>>(&mut self, group: &Group, members: &'a [S]) -> Option<&'a S> {
        let chosen = |member: &&S| {
            self.services.get(&member.as_ref().key).is_some_and(|entry| entry.founds.as_ref() == Some(group))
        };
        let founder = members.iter().find(chosen).or(members.first())?;
        self.service(&founder.as_ref().key, |entry| entry.founds = Some(group.clone()));
        Some(founder)
    }

    /// We sent a POST for it.
    pub(super) fn created(&mut self, name: &str, now: Instant) {
        self.object(name, |object| (object.created, object.sent) = (Some(now), Some(now)));
    }

    /// We sent it again.
    pub(super) fn sent(&mut self, name: &str, now: Instant) {
        self.object(name, |object| object.sent = Some(now));
    }

    /// When we sent the POST; asked once, when the address is published.
    pub(super) fn take_created(&mut self, name: &str) -> Option<Instant> {
        self.object(name, |object| object.created.take())
    }

    /// Objects whose POST we sent and whose address is not published yet.
    pub(super) fn unpublished(&self) -> impl Iterator<Item = &String> {
        self.objects.iter().filter(|(_, object)| object.created.is_some()).map(|(name, _)| name)
    }

    /// A deletion has found the object.
    pub(super) fn found_for_deletion(&mut self, name: &str) {
        self.object(name, |object| object.deleted = true);
    }

    pub(super) fn was_found_for_deletion(&self, name: &str) -> bool {
        self.objects.get(name).is_some_and(|object| object.deleted)
    }

    /// Whether it gets an address is nobody's question any more.
    pub(super) fn forget_request(&mut self, name: &str) {
        self.object(name, |object| (object.created, object.sent) = (None, None));
    }

    pub(super) fn forget_object(&mut self, name: &str) {
        self.objects.remove(name);
    }

    /// Nothing of the Service is left.
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

/// What a decision was made on, as far as it is remembered.
pub(super) struct Seen<'a> {
    pub(super) name: &'a str,
    pub(super) lb: Option<&'a LbView>,
    pub(super) unserved: Option<Unserved>,
    /// The Service whose address this one wants to share.
    pub(super) primary: Option<&'a ServiceKey>,
    pub(super) now: Now,
}
