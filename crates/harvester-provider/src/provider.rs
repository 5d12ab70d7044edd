//! The provider as the command starts it: caches, watches, and the two traits that are implemented on them.

mod outlook;
mod upgrades;
mod watches;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use cloud_provider::cache::{NodeCache, ServiceCache};
use cloud_provider::provider::{AnnouncerPresence, Instances, LoadBalancers};
use harvester_api::keys;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use prometheus_client::registry::Registry;
use runtime::events::Recorder;
use runtime::health::Check;
use runtime::leader::Annotation;
use runtime::reflect::returned;
use runtime::tasks::Tasks;
use tokio::sync::watch;

pub use outlook::{Foresight, Unreadable};
use upgrades::Upgrades;
use watches::Watches;

use crate::announcers::Announcers;
use crate::config::ProviderConfig;
use crate::connection::Machines;
use crate::features::Detector;
use crate::garbage::collector::Collector;
use crate::host_upgrade::Suspensions;
use crate::identity::keeper::{Keeper, Place, Sources, record_cache};
use crate::identity::record::Records;
use crate::identity::{Identity, IdentityDoubt};
use crate::instances;
use crate::instances::provider::{AgentRequests, HarvesterInstances};
use crate::instances::view::machine_caches;
use crate::load_balancers;
use crate::load_balancers::own_writes::lb_cache;
use crate::load_balancers::provider::HarvesterLoadBalancers;
use crate::metrics::Metrics;
use crate::nad_mapping::MappingSource;
use crate::nad_mapping::writer::Writer;

/// Source component of Events about the cluster itself.
const COMPONENT: &str = "harvester-cloud-provider";

/// The provider for Harvester. It is created at the start, but watches and writes only after
/// [`HarvesterProvider::start`], which the leader calls.
pub struct HarvesterProvider {
    identity: Identity,
    load_balancers: Arc<HarvesterLoadBalancers>,
    instances: Arc<HarvesterInstances>,
    asked: AgentRequests,
    watches: Watches,
    writer: Option<Writer>,
    keeper: Keeper,
    collector: Collector,
    detector: Detector,
    announcers: Announcers,
    // Boxed to keep futures small that contain a provider.
    upgrades: Box<Upgrades>,
}

fn place(config: &ProviderConfig) -> Place {
    Place {
        namespace: config.namespace.clone(),
        server: config.server.clone(),
        authority: config.authority.clone(),
        own_node: config.own_node.clone(),
        paused: config.paused,
    }
}

impl HarvesterProvider {
    /// Creates the provider. `guest` and `harvester` are clients of the two clusters. `services` and `nodes` are the
    /// caches that the controllers share, which the caller fills. Sends nothing.
    pub fn new(
        config: &ProviderConfig,
        guest: &Client,
        harvester: &Client,
        (services, nodes): (&ServiceCache, &NodeCache),
        registry: &mut Registry,
    ) -> Self {
        let metrics = Arc::new(Metrics::register(registry));
        let lbs = lb_cache();
        let (vms, vmis) = machine_caches();
        let mapping = MappingSource::cache();
        let record = record_cache();
        let identity = Identity::unknown(config.cluster_name.clone());
        let namespace = config.namespace.as_str();
        let watches = Watches::new(guest, harvester, namespace, (&lbs, &vms, &vmis), &mapping, &record);
        let mapping = MappingSource::new(mapping, watches.mapping.status());

        let suspensions = Suspensions::default();
        let announced = watch::Sender::new(AnnouncerPresence::NotKnownYet);
        let load_balancers = HarvesterLoadBalancers::new(
            (config.load_balancers(), identity.clone()),
            (services.clone(), nodes.clone()),
            (lbs.clone(), watches.lbs.status()),
            mapping.clone(),
            load_balancers::apply::Requests::new(guest.clone(), harvester.clone(), namespace),
            Arc::clone(&metrics),
        )
        .suspended_by(suspensions.clone())
        .watching(watches.record.status())
        .announced_by(announced.subscribe());
        let (instances, asked) = HarvesterInstances::new(
            (config, identity.clone()),
            (services.clone(), nodes.clone()),
            (vms.clone(), vmis.clone()),
            [watches.vms.status(), watches.vmis.status()],
            instances::requests::Requests::new(harvester.clone(), namespace),
            Arc::clone(&metrics),
        );
        let writer = (!config.disable_vmi_controller)
            .then(|| Writer::new(guest.clone(), identity.clone(), vmis.clone(), mapping, Arc::clone(&metrics)));
        let sources = Sources {
            services: services.clone(),
            nodes: nodes.clone(),
            lbs: lbs.clone(),
            vms: vms.clone(),
            vmis: vmis.clone(),
            machines: [watches.vms.status(), watches.vmis.status()],
            record,
        };
        let collector = Collector::new(
            config.garbage,
            (config.load_balancers(), identity.clone()),
            sources.clone(),
            // One watch of each API is enough: all watches of an API fail together.
            [watches.lbs.status(), watches.record.status()],
            load_balancers::apply::Requests::new(guest.clone(), harvester.clone(), namespace),
            load_balancers.pacer(),
            Arc::clone(&metrics),
        )
        .suspended_by(suspensions.clone());
        let detector = Detector::new(harvester, &lbs, watches.lbs.status(), &metrics);
        let upgrades = Box::new(Upgrades::new(guest, harvester, &sources, suspensions.clone(), &identity, &metrics));
        let announcers =
            Announcers::new(guest, services.clone(), sources.record.clone(), Arc::clone(&metrics), announced);
        let keeper = Keeper::new(identity.clone(), place(config), sources, Records::new(guest.clone()), metrics);
        Self {
            identity,
            load_balancers: Arc::new(load_balancers),
            instances: Arc::new(instances.suspended_by(suspensions.clone())),
            asked,
            watches,
            writer,
            keeper,
            collector,
            detector,
            announcers,
            upgrades,
        }
    }

    /// Lists everything again when this changes: Harvester is back after an outage, or its credentials were replaced.
    pub fn resync_on(mut self, returns: &watch::Receiver<u64>) -> Self {
        let anew = &self.upgrades.anew;
        self.watches.lbs = self.watches.lbs.returns(anew.subscribe());
        self.watches.vms = self.watches.vms.returns(anew.subscribe());
        self.watches.vmis = self.watches.vmis.returns(anew.subscribe());
        self.upgrades.signals = self.upgrades.signals.returns(returns.clone());
        self.upgrades.returns = Some(returns.clone());
        self.detector.returns = Some(returns.clone());
        self
    }

    /// Why this cluster may not be the one that its record describes, as an annotation of the Lease, by which
    /// announcers learn of it. While nothing was judged, the annotation stays: a former leader may have known more.
    pub fn doubts(&self) -> impl Fn() -> Annotation + Send + Sync + 'static {
        let identity = self.identity.clone();
        move || match identity.doubt() {
            IdentityDoubt::NotJudged => Annotation::Keep,
            IdentityDoubt::No => Annotation::Remove,
            IdentityDoubt::Of(hold) => Annotation::Set(hold.reason.to_owned()),
        }
    }

    /// UIDs of the machines that this cluster's Nodes run on, from provider IDs and from an operator's confirmation.
    pub fn machines(&self, nodes: &NodeCache) -> Machines {
        let (nodes, identity) = (nodes.clone(), self.identity.clone());
        Arc::new(move || {
            let nodes = nodes.all();
            let members = nodes.iter().filter_map(|node| keys::vm_uid(node.provider_id.as_deref()?));
            let confirmed = identity.card();
            members.map(str::to_owned).chain(confirmed.iter().flat_map(|card| card.machines.iter().cloned())).collect()
        })
    }

    /// Sets whether Nodes whose host is being upgraded get a taint, so that new pods are preferably scheduled
    /// elsewhere.
    pub fn taint_nodes_in_maintenance(mut self, yes: bool) -> Self {
        self.upgrades.controller.taint(yes);
        self
    }

    /// Sets whether Nodes are drained before their machines are shut down for an upgrade of their host, and how long a
    /// drain may take.
    pub fn cooperate_with_upgrades(mut self, limit: Option<Duration>) -> Self {
        self.upgrades.cooperation.wanted(limit);
        self
    }

    /// The load balancers, for the service controller.
    pub fn load_balancers(&self) -> Arc<dyn LoadBalancers> {
        Arc::clone(&self.load_balancers) as Arc<dyn LoadBalancers>
    }

    /// The instances, for the node controllers.
    pub fn instances(&self) -> Arc<dyn Instances> {
        Arc::clone(&self.instances) as Arc<dyn Instances>
    }

    /// Health checks of the watches, by name (W-41). The NAD mapping has none: without the right to read it, everything
    /// else works.
    pub fn checks(&self) -> Vec<(&'static str, Check)> {
        vec![
            ("harvester-loadbalancers", self.watches.lbs.check()),
            ("harvester-virtualmachines", self.watches.vms.check()),
            ("harvester-virtualmachineinstances", self.watches.vmis.check()),
        ]
    }

    /// Checks whether the caches are up to date, by name. A failure is reported, but does not make the process unready.
    pub fn freshness(&self) -> Vec<(&'static str, Check)> {
        vec![
            ("harvester-loadbalancers-fresh", self.watches.lbs.freshness()),
            ("harvester-virtualmachines-fresh", self.watches.vms.freshness()),
            ("harvester-virtualmachineinstances-fresh", self.watches.vmis.freshness()),
        ]
    }

    /// Starts the watches and the background work. For the leader only: a standby must neither load the host nor write.
    pub fn start(self, tasks: &mut Tasks, events: &Recorder) {
        // Before the controllers of Services begin, which the caller starts next.
        self.identity.await_judgement(true);
        tasks.spawn_endless("watch of loadbalancers", self.watches.lbs.run());
        tasks.spawn_endless("watch of virtualmachines", self.watches.vms.run());
        tasks.spawn_endless("watch of virtualmachineinstances", self.watches.vmis.run());
        tasks.spawn_endless("watch of the NAD mapping", self.watches.mapping.run());
        tasks.spawn_endless("watch of the record", self.watches.record.run());
        tasks.spawn_endless("cluster identity", self.keeper.run(events.for_component(COMPONENT)));
        tasks.spawn_endless("garbage", self.collector.run(events.for_component(COMPONENT)));
        tasks.spawn_endless("guest agents", self.instances.run(self.asked));
        tasks.spawn_endless("host features", self.detector.run());
        tasks.spawn_endless("announcers", self.announcers.run(events.for_component(COMPONENT)));
        let Upgrades { controller, cooperation, signals, suspensions, returns, anew } = *self.upgrades;
        tasks.spawn_endless("host upgrades", controller.run(events.for_component(COMPONENT)));
        tasks.spawn_endless("cooperation with host upgrades", cooperation.run(events.for_component(COMPONENT)));
        tasks.spawn_endless("signals of host upgrades", signals.run());
        tasks.spawn_endless("reading anew", read_anew(returns, suspensions.resyncs(), anew));
        if let Some(writer) = self.writer {
            tasks.spawn_endless("NAD mapping", writer.run(events.for_component(COMPONENT)));
        }
    }
}

/// Lists everything again when Harvester is back, and when an upgrade of its hosts is over.
async fn read_anew(
    mut returns: Option<watch::Receiver<u64>>,
    resyncs: watch::Receiver<u64>,
    anew: watch::Sender<u64>,
) -> Infallible {
    let mut resyncs = Some(resyncs);
    loop {
        tokio::select! {
            () = returned(&mut returns) => {}
            () = returned(&mut resyncs) => {}
        }
        anew.send_modify(|count| *count += 1);
    }
}

fn name(metadata: &ObjectMeta) -> String {
    metadata.name.clone().unwrap_or_default()
}
