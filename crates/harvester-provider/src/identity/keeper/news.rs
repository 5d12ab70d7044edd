//! Reports changes in the facts that the keeper compares.

use std::time::Duration;

use cloud_provider::cache::ServiceCache;
use futures::FutureExt;
use runtime::cache::{Cache, Key, Touched};
use runtime::reflect::Status;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Sources;
use crate::instances::view::{VmCache, VmiCache};
use crate::load_balancers::own_writes::LbCache;

/// Changes within this time are evaluated together.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// What has changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Changed {
    Record,
    Facts,
}

/// Subscriptions to everything that the keeper compares.
#[derive(Debug)]
pub(super) struct News {
    record: Touched<String>,
    nodes: Touched<String>,
    vms: (VmCache, Touched<String>),
    vmis: (VmiCache, Touched<String>),
    /// What a name and a first card need; whether the first list had arrived.
    services: (ServiceCache, bool),
    lbs: (LbCache, bool),
    machines: [watch::Receiver<Status>; 2],
}

impl News {
    pub(super) fn new(sources: &Sources) -> Self {
        Self {
            record: sources.record.subscribe(),
            nodes: sources.nodes.subscribe(),
            vms: (sources.vms.clone(), sources.vms.subscribe()),
            vmis: (sources.vmis.clone(), sources.vmis.subscribe()),
            services: (sources.services.clone(), sources.services.is_synced()),
            lbs: (sources.lbs.clone(), sources.lbs.is_synced()),
            machines: sources.machines.clone(),
        }
    }

    pub(super) async fn next(&mut self) -> Changed {
        let [vms, vmis] = &mut self.machines;
        tokio::select! {
            Some(_) = self.record.next() => return Changed::Record,
            () = first_list(&mut self.services) => return Changed::Facts,
            () = first_list(&mut self.lbs) => return Changed::Facts,
            Some(_) = self.nodes.next() => {}
            Some(_) = self.vms.1.next() => {}
            Some(_) = self.vmis.1.next() => {}
            () = becomes_synced(&self.vms.0) => {}
            () = becomes_synced(&self.vmis.0) => {}
            Ok(()) = vms.changed() => {}
            Ok(()) = vmis.changed() => {}
        }
        tokio::time::sleep(DEBOUNCE).await;
        while let Some(Some(_)) = self.nodes.next().now_or_never() {}
        while let Some(Some(_)) = self.vms.1.next().now_or_never() {}
        while let Some(Some(_)) = self.vmis.1.next().now_or_never() {}
        Changed::Facts
    }
}

/// Completes once, when the first list has arrived, also if that was between two calls.
async fn first_list<K: Key, V: Send + Sync + 'static>((cache, had_arrived): &mut (Cache<K, V>, bool)) {
    if *had_arrived {
        return std::future::pending().await;
    }
    cache.wait_synced().await;
    *had_arrived = true;
}

/// Completes when the first list arrives. If it has already arrived, it never completes.
pub(super) async fn becomes_synced<K: Key, V: Send + Sync + 'static>(cache: &Cache<K, V>) {
    if cache.is_synced() {
        return std::future::pending().await;
    }
    cache.wait_synced().await;
}

/// Waits until this time; forever without one.
pub(crate) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
