//! The streams of Services that have to be reconciled.

use std::sync::Arc;

use cloud_provider::service::{has_finalizer, wants_load_balancer};
use cloud_provider::view::{ServiceKey, ServiceView};
use futures::stream::{BoxStream, Stream, StreamExt, select, select_all};
use runtime::reflect::Status;
use tokio::sync::watch;

use super::super::wakes::{NodeWakes, ObjectWakes, ServiceWakes, with_network};
use super::{HarvesterLoadBalancers, unserved};
use crate::host_upgrade::suspensions::each;

impl HarvesterLoadBalancers {
    pub(super) fn streams(&self) -> BoxStream<'static, ServiceKey> {
        // This runs when the first list has arrived. Services in that list have waited already; Services that are
        // created later go first (decision 6).
        let waits = |service: &&Arc<ServiceView>| wants_load_balancer(service) && service.ingress.is_empty();
        self.memory().begin(self.services.all().iter().filter(waits).map(|service| service.key.clone()));

        let (services, lbs, given, identity) =
            (self.services.clone(), self.lbs.clone(), self.given.clone(), self.identity.clone());
        let mut objects = ObjectWakes::default();
        let pacer = Arc::clone(&self.pacer);
        let by_object = self.lbs.subscribe().filter_map(move |name| {
            let lb = lbs.get(&name);
            pacer.seen(&name, lb.as_deref());
            let config = identity.applied_to(&given, &services);
            let owner = objects.touched(&name, lb.as_deref(), &config, || services.all());
            std::future::ready(owner)
        });

        let (services, neighbours) = (self.services.clone(), Arc::clone(&self.neighbours));
        let mut dependents = ServiceWakes::default();
        let by_service = self.services.subscribe().flat_map(move |key| {
            let woken = dependents.touched(
                &key,
                services.get(&key).as_ref(),
                |primary| neighbours.naming(primary),
                |group| neighbours.grouped(group),
                |address| neighbours.at(address),
            );
            futures::stream::iter(woken)
        });

        let (nodes, neighbours) = (self.nodes.clone(), Arc::clone(&self.neighbours));
        let mut machines = NodeWakes::default();
        let by_node = self.nodes.subscribe().flat_map(move |name| {
            let node = nodes.get(&name);
            futures::stream::iter(machines.touched(&name, node.as_deref(), |address| neighbours.wanting(address)))
        });

        let services = self.services.clone();
        let by_mapping =
            self.mapping.subscribe().flat_map(move |_: String| futures::stream::iter(with_network(&services.all())));

        let unsettled = Arc::clone(&self.unsettled);
        let by_recovery = recoveries(self.watched.clone()).flat_map(move |()| {
            // Services that fail again come back by themselves; calls that are under way see the count.
            let mut unsettled = unsettled.lock();
            unsettled.recoveries += 1;
            futures::stream::iter(std::mem::take(&mut unsettled.services))
        });
        let by_turn = self.pacer.wakes();
        let held = select(changes(self.identity.holds()), changes(self.identity.first_judgement()));
        let held = select(held, changes(self.identity.confirmations()));
        let by_identity = select(changes(self.identity.subscribe()), held);
        let by_identity = self.all_when(by_identity, |service| wants_load_balancer(service) || has_finalizer(service));
        let by_resync = self.all_when(each(self.suspensions.resyncs()), wants_load_balancer);
        let by_announcers = self.all_when(changes(self.announced.clone()), |service| {
            wants_load_balancer(service) && !service.ingress.is_empty()
        });
        select_all([
            by_announcers,
            by_resync,
            by_identity,
            by_object.boxed(),
            by_service.boxed(),
            by_node.boxed(),
            by_mapping.boxed(),
            by_recovery.boxed(),
            by_turn.boxed(),
            unserved::wakes(self.services.clone()).boxed(),
        ])
        .boxed()
    }

    /// With each wake-up, all Services that `concerned` selects.
    fn all_when(
        &self,
        wakes: impl Stream<Item = ()> + Send + 'static,
        concerned: impl Fn(&ServiceView) -> bool + Send + 'static,
    ) -> BoxStream<'static, ServiceKey> {
        let services = self.services.clone();
        let keys = move |()| {
            let concerned = services.all().into_iter().filter(|service| concerned(service));
            futures::stream::iter(concerned.map(|service| service.key.clone()).collect::<Vec<_>>())
        };
        wakes.flat_map(keys).boxed()
    }
}

/// A wake-up whenever the value changes: the cluster's name becomes known or changes, or writes are forbidden or
/// allowed again.
fn changes<T: Send + Sync + 'static>(name: watch::Receiver<T>) -> impl Stream<Item = ()> {
    futures::stream::unfold(name, |mut name| async {
        name.changed().await.ok()?;
        Some(((), name))
    })
}

/// A wake-up when Harvester answers again, so that Services that failed meanwhile need not wait for their back-off. An
/// outage between two evaluations counts, too.
fn recoveries(watched: watch::Receiver<Status>) -> impl Stream<Item = ()> {
    futures::stream::unfold(watched, |mut watched| async {
        loop {
            watched.changed().await.ok()?;
            let well = {
                let status = watched.borrow_and_update();
                status.synced && status.error.is_none()
            };
            if well {
                return Some(((), watched));
            }
        }
    })
}
