//! The parts that follow upgrades of the hosts, as the command starts them.

use std::sync::Arc;

use kube::Client;
use tokio::sync::watch;

use crate::host_upgrade::{self, Controller, Cooperation, CooperationSources, PlanCaches, Signals, Suspensions};
use crate::identity::Identity;
use crate::identity::keeper::Sources;
use crate::metrics::Metrics;

/// The parts that follow upgrades of the hosts.
pub(super) struct Upgrades {
    pub controller: Controller,
    pub cooperation: Cooperation,
    pub signals: Signals,
    pub suspensions: Suspensions,
    /// Changes when Harvester is back.
    pub returns: Option<watch::Receiver<u64>>,
    /// Makes all watches list everything again.
    pub anew: watch::Sender<u64>,
}

impl Upgrades {
    /// Creates the parts on these caches. Sends nothing.
    pub fn new(
        guest: &Client,
        harvester: &Client,
        sources: &Sources,
        suspensions: Suspensions,
        identity: &Identity,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let plans = PlanCaches::empty();
        let (nodes, services) = (sources.nodes.clone(), sources.services.clone());
        let [watched, _] = sources.machines.clone();
        let seen = host_upgrade::Sources {
            nodes: nodes.clone(),
            services: services.clone(),
            vms: sources.vms.clone(),
            vmis: sources.vmis.clone(),
            plans: plans.clone(),
            watched,
        };
        let readable = ["upgradeplan", "upgrade"].map(|kind| metrics.host_upgrade_signal(kind));
        let controller =
            Controller::new(guest, seen, suspensions.clone(), Arc::clone(metrics)).held_by(identity.clone());
        let told = CooperationSources { nodes, services, seen: controller.seen() };
        Self {
            controller,
            cooperation: Cooperation::new(guest, told, identity.clone()),
            signals: Signals::new(harvester.clone(), plans, readable),
            suspensions,
            returns: None,
            anew: watch::Sender::new(0),
        }
    }
}
