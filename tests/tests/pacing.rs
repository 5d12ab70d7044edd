//! A Harvester at its real pace: five requests per second, two workers that get into each other's way.
//! Host pace spec 1
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use e2e::bed::POOL;
use e2e::{Bed, Case, Exposed, VM_NAMESPACE, service};
use futures::StreamExt;
use harvester_api::keys::cloudprovider;
use harvester_api::load_balancer::LoadBalancer;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt};

const COUNT: usize = 12;

/// A turn is free again after five seconds, of which the API server counts whole ones: on a machine with other things
/// to do the host may need longer for one load balancer, and then the next one begins beside it.
const TURN_SECONDS: i64 = 4;

/// What Harvester has in hand, in the order in which it happens there, and what it says against it.
#[derive(Debug, Default)]
struct Heard {
    complaints: BTreeSet<String>,
    /// Since when, as the API server says.
    in_hand: BTreeMap<String, i64>,
    /// Who began while somebody else had a turn.
    beside: Vec<String>,
    /// Some turn was free again before the host was done.
    slow: bool,
    finished: usize,
}

impl Heard {
    fn hear(&mut self, lb: &LoadBalancer, gone: bool) {
        let name = lb.name_any();
        self.complaints.extend(lb.not_ready_message().map(str::to_owned));
        if gone || lb.usable_address().is_some() {
            self.finished += usize::from(self.in_hand.remove(&name).is_some());
            return;
        }
        let begun = lb.metadata.deletion_timestamp.as_ref().or(lb.metadata.creation_timestamp.as_ref()).unwrap();
        let begun = begun.0.as_second();
        if self.in_hand.contains_key(&name) {
            return;
        }
        for (other, since) in &self.in_hand {
            if begun - since < TURN_SECONDS {
                self.beside.push(format!("{name} began {} s after {other}", begun - since));
            } else {
                self.slow = true;
            }
        }
        self.in_hand.insert(name, begun);
    }

    /// One at a time; then nobody collides, unless the host was slower than a turn.
    fn check(&self) {
        assert!(self.finished >= COUNT && self.beside.is_empty(), "one at a time: {self:?}");
        assert!(self.slow || self.complaints.is_empty(), "nobody collides: {self:?}");
    }
}

/// Hears Harvester from now on.
async fn complaints(bed: &Bed) -> Arc<Mutex<Heard>> {
    let lbs: Api<LoadBalancer> = Api::namespaced(bed.harvester_client().await.unwrap(), VM_NAMESPACE);
    let heard: Arc<Mutex<Heard>> = Arc::default();
    let hearing = Arc::clone(&heard);
    tokio::spawn(async move {
        let mut events = std::pin::pin!(watcher(lbs, watcher::Config::default()).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(lb) | Event::InitApply(lb)) => hearing.lock().hear(&lb, false),
                Ok(Event::Delete(lb)) => hearing.lock().hear(&lb, true),
                Ok(Event::Init | Event::InitDone) | Err(_) => {}
            }
        }
    });
    heard
}

async fn make<'a>(case: &'a Case<'_>, prefix: &str, count: usize) -> Vec<Exposed<'a>> {
    let names: Vec<String> = (0..count).map(|n| format!("{prefix}-{n}")).collect();
    futures::future::try_join_all(names.iter().map(|name| case.create(service(name).ipam("pool").tcp(80))))
        .await
        .unwrap()
}

async fn objects(bed: &Bed) -> Vec<LoadBalancer> {
    let lbs: Api<LoadBalancer> = Api::namespaced(bed.harvester_client().await.unwrap(), VM_NAMESPACE);
    lbs.list(&kube::api::ListParams::default()).await.unwrap().items
}

#[tokio::test]
async fn services_take_turns_on_a_real_host_new_ones_first_and_nothing_is_leaked() {
    if e2e::skip() {
        return;
    }
    let bed = Bed::builder().nodes(1).without_announcers().harvester_flag("--profile=real");
    let bed = bed.start().await.unwrap();
    let case = bed.case("pace").await.unwrap();
    let complaints = complaints(&bed).await;

    let services = make(&case, "web", COUNT).await;
    for service in &services {
        service.published().await.unwrap();
    }
    complaints.lock().check();
    let objects_there = objects(&bed).await;
    let preset = objects_there.iter().filter(|lb| lb.annotation(cloudprovider::PRESET_FINALIZER).is_some()).count();
    assert!((COUNT - 2..COUNT).contains(&preset), "{preset} of {COUNT}: learnt from the first one");

    // Deletions wait for who comes later.
    let mut leaving = BTreeSet::new();
    for service in &services[..8] {
        leaving.insert(service.load_balancer().await.unwrap().unwrap().name_any());
    }
    let mark = bed.mark();
    for service in &services[..8] {
        service.delete().await.unwrap();
    }
    let new = make(&case, "new", 1).await;
    new[0].published().await.unwrap();

    // Deleted while the host is booking.
    let hasty = make(&case, "hasty", 3).await;
    for (service, pause) in hasty.iter().zip([0, 100, 300]) {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        service.delete().await.unwrap();
    }
    for service in services[..8].iter().chain(&hasty) {
        service.wait_until_gone().await.unwrap();
    }
    // What Harvester was asked, in its order: how long all of it took says nothing.
    let asked = bed.costs(mark).unwrap().ccm_harvester;
    let created = asked.iter().position(|request| request.verb == "create" && request.code < 400);
    let deleted = asked.iter().rposition(|request| {
        request.verb == "delete" && request.name.as_ref().is_some_and(|name| leaving.contains(name))
    });
    assert!(created.unwrap() < deleted.unwrap(), "the new Service came last: {asked:#?}");
    let there: BTreeSet<String> =
        objects(&bed).await.iter().map(|lb| format!("{VM_NAMESPACE}/{}", lb.name_any())).collect();
    assert_eq!(there.len(), COUNT - 8 + 1);
    let booked: BTreeSet<String> = bed.bookings(POOL).await.unwrap().into_iter().map(|(_, owner)| owner).collect();
    assert_eq!(booked, there, "every booking has its load balancer");
    complaints.lock().check();
}
