//! Watches the two kinds by which Harvester reports an upgrade of the hosts. Both kinds are optional: one that does not
//! exist, or that may not be read, is logged once and tried again from time to time.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::time::Duration;

use harvester_api::upgrade::{UPGRADE_NAMESPACE, Upgrade, UpgradePlan};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use prometheus_client::metrics::gauge::Gauge;
use runtime::cache::Cache;
use runtime::error::{api_code, chain};
use runtime::reflect::{Reflector, returned};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::facts::PlanView;

/// A kind that does not exist, or may not be read, is tried again after this time: an administrator may have granted
/// the right, or upgraded Harvester.
const LOOK_AGAIN: Duration = Duration::from_mins(10);
/// The same for a host that does not answer.
const TRY_AGAIN: Duration = Duration::from_secs(30);
/// After a watch has failed for this long, a request finds out why.
const DOUBTED: Duration = Duration::from_mins(2);

/// Plans by name.
pub type PlanCache = Cache<String, PlanView>;

/// The caches of the two kinds.
#[derive(Debug, Clone)]
pub struct PlanCaches {
    /// Plans of the Upgrade Toolkit.
    pub plans: PlanCache,
    /// Upgrades of the older mechanism.
    pub upgrades: PlanCache,
}

impl PlanCaches {
    /// Empty caches.
    pub fn empty() -> Self {
        Self { plans: Cache::new(|old, new| old != new), upgrades: Cache::new(|old, new| old != new) }
    }
}

/// The watches of the two kinds.
pub struct Signals {
    client: Client,
    caches: PlanCaches,
    returns: Option<watch::Receiver<u64>>,
    readable: [Gauge; 2],
}

impl Debug for Signals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signals").finish_non_exhaustive()
    }
}

impl Signals {
    /// Creates the watches. The gauges `readable` are 1 while the kind is read.
    pub fn new(client: Client, caches: PlanCaches, readable: [Gauge; 2]) -> Self {
        Self { client, caches, returns: None, readable }
    }

    /// Makes the watches try again when this changes: Harvester is back, maybe with another version.
    pub fn returns(mut self, returns: watch::Receiver<u64>) -> Self {
        self.returns = Some(returns);
        self
    }

    /// Never ends.
    pub async fn run(self) -> Infallible {
        let Self { client, caches, returns, readable: [plan, upgrade] } = self;
        let plans = follow(
            Kind { name: "upgradeplans.management.harvesterhci.io", api: Api::<UpgradePlan>::all(client.clone()) },
            caches.plans,
            |plan| Some(PlanView::from(plan)),
            returns.clone(),
            plan,
        );
        let upgrades = follow(
            Kind { name: "upgrades.harvesterhci.io", api: Api::<Upgrade>::namespaced(client, UPGRADE_NAMESPACE) },
            caches.upgrades,
            PlanView::of_upgrade,
            returns,
            upgrade,
        );
        let (never, _) = futures::join!(plans, upgrades);
        never
    }
}

struct Kind<O> {
    name: &'static str,
    api: Api<O>,
}

fn name(metadata: &ObjectMeta) -> String {
    metadata.name.clone().unwrap_or_default()
}

async fn follow<O>(
    kind: Kind<O>,
    cache: PlanCache,
    view: fn(&O) -> Option<PlanView>,
    mut returns: Option<watch::Receiver<u64>>,
    readable: Gauge,
) -> Infallible
where
    O: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let mut told = false;
    loop {
        let pause = match kind.api.list(&ListParams::default().limit(1)).await {
            Ok(_) => {
                readable.set(1);
                let reflector = Reflector::new(kind.name, kind.api.clone(), cache.clone(), name, view);
                let doubted = doubted(reflector.status());
                let reflector = match &returns {
                    Some(returns) => reflector.returns(returns.clone()),
                    None => reflector,
                };
                tokio::select! {
                    never = reflector.run() => match never {},
                    () = doubted => {}
                }
                continue;
            }
            Err(error) => {
                let absent = matches!(api_code(&error), Some(403 | 404));
                if absent {
                    readable.set(0);
                    // Objects that may not be read any more are unknown, and must not count forever.
                    cache.replace(BTreeMap::new());
                }
                if absent && !std::mem::replace(&mut told, true) {
                    let error = chain(&error);
                    tracing::info!(
                        kind = kind.name,
                        error,
                        "the controller cannot read this kind on Harvester; it detects upgrades of hosts from the \
                        machines alone"
                    );
                }
                if absent { LOOK_AGAIN } else { TRY_AGAIN }
            }
        };
        let _ = tokio::time::timeout(pause, returned(&mut returns)).await;
    }
}

/// Completes when the watch has failed for [`DOUBTED`].
async fn doubted(mut status: watch::Receiver<runtime::reflect::Status>) {
    loop {
        let since = status.borrow_and_update().error.as_ref().map(|(since, _)| *since);
        let changed = status.changed();
        match since {
            None => {
                if changed.await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            Some(since) => match tokio::time::timeout_at(since + DOUBTED, changed).await {
                Err(_) => return,
                Ok(Err(_)) => std::future::pending::<()>().await,
                Ok(Ok(())) => {}
            },
        }
    }
}
