//! Assembles the framework: the shared caches, which every replica keeps warm, and the controllers, which the leader
//! runs.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Service};
use kube::{Api, Client};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use runtime::events::Recorder;
use runtime::health::{Health, OnFailure};
use runtime::metrics::{Metrics, Register};
use runtime::reflect::Reflector;
use runtime::shutdown::Token;
use runtime::tasks::Tasks;
use runtime::work_queue::WorkQueueMetrics;

use crate::cache::{self, NodeCache, ServiceCache};
use crate::controllers::{Controller, Controllers};
use crate::lifecycle::{LifecycleController, LifecycleSettings};
use crate::node::{NodeController, NodeMetrics, NodeSettings};
use crate::node_loss::NodeLossMetrics;
use crate::observe;
use crate::provider::{Instances, LoadBalancers};
use crate::service::{ServiceController, ServiceMetrics, ServiceSettings};

/// The caches of the guest cluster that all controllers and the provider share.
#[derive(Debug, Clone)]
pub struct Caches {
    /// All Services.
    pub services: ServiceCache,
    /// All Nodes.
    pub nodes: NodeCache,
}

impl Caches {
    /// Starts the watches. Call it before leadership is won: a standby with warm caches takes over at once. Registers
    /// the readiness checks `services` and `nodes`.
    pub fn watch(client: &Client, health: &Health, tasks: &mut Tasks) -> Self {
        let caches = Self { services: cache::services(), nodes: cache::nodes() };
        let services = Reflector::new(
            "services",
            Api::<Service>::all(client.clone()),
            caches.services.clone(),
            observe::service_key,
            |service| Some(observe::service(service)),
        );
        let nodes = Reflector::new(
            "nodes",
            Api::<Node>::all(client.clone()),
            caches.nodes.clone(),
            observe::node_key,
            |node| Some(observe::node(node)),
        );
        health.register("services", OnFailure::NotReady, services.check());
        health.register("nodes", OnFailure::NotReady, nodes.check());
        tasks.spawn_endless("watch of Services", services.run());
        tasks.spawn_endless("watch of Nodes", nodes.run());
        caches
    }

    /// Waits until both caches have their first lists.
    pub async fn wait_synced(&self) {
        self.services.wait_synced().await;
        self.nodes.wait_synced().await;
    }
}

/// Metrics of all controllers. Standby replicas register them at the start, too.
#[derive(Debug, Clone)]
pub struct ControllerMetrics {
    queues: WorkQueueMetrics,
    service: ServiceMetrics,
    node: NodeMetrics,
    node_loss: NodeLossMetrics,
    running: Family<[(&'static str, &'static str); 2], Gauge>,
}

impl ControllerMetrics {
    /// Registers all metrics. Once per process: the metric families of the queues are shared through
    /// [`ControllerMetrics::queues`].
    pub fn register(metrics: &Metrics) -> Self {
        metrics.register(|registry| Self {
            queues: WorkQueueMetrics::register(registry),
            service: ServiceMetrics::register(registry),
            node: NodeMetrics::register(registry),
            node_loss: NodeLossMetrics::register(registry),
            running: registry
                .make("running_managed_controllers", "Indicates where instances of a controller are currently running"),
        })
    }

    /// Metrics of the node-loss controller. Also reports it as running, because it runs in every replica.
    pub fn node_loss(&self) -> NodeLossMetrics {
        let running = [("name", Controller::NodeLoss.metric_name()), ("manager", MANAGER)];
        self.running.get_or_create(&running).set(1);
        self.node_loss.clone()
    }
}

/// The name of this program in metrics.
const MANAGER: &str = "cloud-controller-manager";

/// The user's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Which controllers run.
    pub controllers: Controllers,
    /// `--concurrent-service-syncs`.
    pub service_workers: usize,
    /// `--concurrent-node-syncs`.
    pub node_workers: usize,
    /// `--node-status-update-frequency`.
    pub node_refresh_every: Duration,
    /// `--node-monitor-period`.
    pub node_monitor_period: Duration,
    /// Zone and region labels follow the machine. Off with `--disable-vmi-controller`.
    pub follow_topology: bool,
    /// The kubelet's `--node-ip` selects the addresses. Off with `--disable-annotation-alpha-provided-ip-addr`.
    pub obey_node_ip: bool,
    /// After a machine was off for this long, a taint releases its pods and volumes; `None`: never.
    pub out_of_service_after: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            controllers: Controllers::default(),
            service_workers: 1,
            node_workers: 1,
            node_refresh_every: Duration::from_mins(5),
            node_monitor_period: Duration::from_secs(5),
            follow_topology: true,
            obey_node_ip: true,
            out_of_service_after: None,
        }
    }
}

/// Everything that the controllers need to run.
pub struct CloudProvider {
    /// Guest cluster.
    pub client: Client,
    /// Reports Events; each controller has its own source component.
    pub recorder: Recorder,
    /// The shared caches.
    pub caches: Caches,
    /// Load balancers of the cloud.
    pub load_balancers: Arc<dyn LoadBalancers>,
    /// Machines of the cloud.
    pub instances: Arc<dyn Instances>,
    /// The user's settings.
    pub settings: Settings,
    /// Metrics.
    pub metrics: ControllerMetrics,
}

impl CloudProvider {
    /// Runs the selected controllers until `stop`; passes that are under way are finished. Call it when leadership is
    /// won. Adds one health check per controller, with the controller's name (framework spec 4.3).
    pub async fn run(self, health: &Health, stop: Token) {
        let Self { client, recorder, caches, load_balancers, instances, settings, metrics } = self;
        for controller in Controller::ALL.into_iter().filter(|controller| settings.controllers.has(*controller)) {
            if controller == Controller::NodeLoss {
                continue; // in every replica, see `node_loss`
            }
            if controller == Controller::Route {
                tracing::debug!(
                    "{controller} was requested, but this cloud has no routes; the controller does nothing"
                );
                continue;
            }
            tracing::info!("starting {controller}");
            metrics.running.get_or_create(&[("name", controller.metric_name()), ("manager", MANAGER)]).set(1);
            health.register(controller.name(), OnFailure::Restart, Arc::new(|| Ok(())));
        }
        let chosen = |controller| settings.controllers.has(controller);
        let service = chosen(Controller::Service).then(|| {
            let settings = ServiceSettings {
                workers: settings.service_workers,
                queue_metrics: metrics.queues.queue("service"),
                metrics: metrics.service.clone(),
            };
            ServiceController::new(client.clone(), load_balancers, caches.services.clone(), &recorder, settings)
        });
        let node = chosen(Controller::Node).then(|| {
            let settings = NodeSettings {
                workers: settings.node_workers,
                refresh_every: settings.node_refresh_every,
                follow_topology: settings.follow_topology,
                obey_node_ip: settings.obey_node_ip,
                queue_metrics: metrics.queues.queue("Nodes"),
                metrics: metrics.node.clone(),
            };
            NodeController::new(client.clone(), Arc::clone(&instances), caches.nodes.clone(), &recorder, settings)
        });
        let lifecycle = chosen(Controller::NodeLifecycle).then(|| {
            let settings = LifecycleSettings {
                period: settings.node_monitor_period,
                out_of_service_after: settings.out_of_service_after,
            };
            LifecycleController::new(client.clone(), instances, caches.nodes.clone(), &recorder, settings)
        });
        // A controller that was not selected idles, so that all end with `stop`. Boxed, because the futures are large.
        futures::join!(
            run_or_idle(service.map(|service| Box::pin(service.run(stop.clone()))), &stop),
            run_or_idle(node.map(|node| Box::pin(node.run(stop.clone()))), &stop),
            run_or_idle(lifecycle.map(|lifecycle| Box::pin(lifecycle.run(stop.clone()))), &stop),
        );
    }
}

async fn run_or_idle(controller: Option<impl Future<Output = ()>>, stop: &Token) {
    match controller {
        Some(controller) => controller.await,
        None => stop.cancelled().await,
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use futures::StreamExt;
    use futures::stream::BoxStream;
    use runtime::scenario::Scenario;
    use serde_json::json;

    use super::*;
    use crate::provider::{Deleted, Ensured, Existence, InstanceMetadata, NodeWake, Power, ProviderError, Waiting};
    use crate::view::{NodeView, ServiceKey, ServiceView};

    /// A cloud in which everything is as it should be.
    struct Calm;

    #[async_trait]
    impl LoadBalancers for Calm {
        async fn ensure(&self, _: &ServiceView) -> Result<Ensured, ProviderError> {
            Ok(Ensured::Waiting(Waiting {
                reason: "Test",
                message: "x".into(),
                needs_user: false,
                failure: false,
                retry_after: None,
            }))
        }
        async fn delete(&self, _: &ServiceView) -> Result<Deleted, ProviderError> {
            Ok(Deleted::Gone { existed: false })
        }
        fn wakes(&self) -> BoxStream<'static, ServiceKey> {
            futures::stream::pending().boxed()
        }
    }

    #[async_trait]
    impl Instances for Calm {
        async fn metadata(&self, _: &NodeView) -> Result<InstanceMetadata, ProviderError> {
            Ok(InstanceMetadata { provider_id: "calm://n".into(), ..InstanceMetadata::default() })
        }
        async fn existence(&self, _: &NodeView) -> Existence {
            Existence::Exists
        }
        async fn power(&self, _: &NodeView) -> Power {
            Power::On
        }
        async fn power_now(&self, _: &NodeView) -> Power {
            Power::On
        }
        fn steady_since(&self) -> Option<tokio::time::Instant> {
            Some(tokio::time::Instant::now())
        }
        fn wakes(&self) -> BoxStream<'static, NodeWake> {
            futures::stream::pending().boxed()
        }
    }

    /// A guest cluster with one new Service and one new Node; watches are refused, so that the test ends.
    fn guest() -> Scenario {
        Scenario::answering(|seen| {
            let service = json!({"metadata": {"namespace": "default", "name": "web", "uid": "u",
                "resourceVersion": "1"},
                "spec": {"type": "LoadBalancer"}});
            let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}, "spec": {"taints": [
                {"key": contract::keys::kubernetes::UNINITIALIZED, "value": "true", "effect": "NoSchedule"}]}});
            match (seen.method.as_str(), seen.path.as_str()) {
                ("GET", _) if seen.query.contains("watch=true") => {
                    (403, Scenario::status(403, "Forbidden", "no watch"))
                }
                ("GET", "/api/v1/services") => (
                    200,
                    json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "5"},
                        "items": [service]}),
                ),
                ("GET", "/api/v1/nodes") => (
                    200,
                    json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "5"},
                        "items": [node]}),
                ),
                ("PATCH", path) if path.contains("/services/") => {
                    let mut service = service;
                    service["status"] = seen.body["status"].clone();
                    (200, service)
                }
                ("PATCH", _) => (200, node),
                _ => (404, Scenario::status(404, "NotFound", "not found")),
            }
        })
    }

    #[tokio::test(start_paused = true)]
    async fn from_empty_caches_to_a_finalizer_and_an_initialised_node_and_to_the_end() {
        let scenario = guest();
        let client = scenario.client();
        let stop = Token::new();
        let health = Health::new();
        let metrics = Metrics::new(&runtime::Product { name: "test", metrics_prefix: "test", version: "1" });
        let mut tasks = Tasks::new(stop.clone());
        let caches = Caches::watch(&client, &health, &mut tasks);
        assert!(health.ask_one("services").unwrap().is_err());
        let (recorder, mut events) = Recorder::to_channel("test");
        let settings = Settings {
            controllers: Controllers::parse(["*", "-cloud-node-lifecycle-controller"]).unwrap(),
            ..Settings::default()
        };
        let provider = CloudProvider {
            client,
            recorder,
            caches: caches.clone(),
            load_balancers: Arc::new(Calm),
            instances: Arc::new(Calm),
            settings,
            metrics: ControllerMetrics::register(&metrics),
        };
        let running = tokio::spawn({
            let (health, stop) = (health.clone(), stop.clone());
            async move { provider.run(&health, stop).await }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;

        let mut writes: Vec<String> =
            scenario.writes().iter().map(|seen| format!("{} {}", seen.method, seen.path)).collect();
        writes.sort();
        assert_eq!(writes, ["PATCH /api/v1/namespaces/default/services/web/status", "PATCH /api/v1/nodes/n"]);
        let mut told: Vec<String> = std::iter::from_fn(|| events.try_recv().ok()).map(|event| event.reason).collect();
        told.sort();
        assert_eq!(told, ["EnsuringLoadBalancer", "Synced"]);
        assert_eq!(health.ask_one("services"), Some(Ok(())));
        assert_eq!(health.ask_one("service-lb-controller"), Some(Ok(())));
        assert_eq!(health.ask_one("cloud-node-lifecycle-controller"), None, "not chosen");
        let text = metrics.encode();
        assert!(
            text.contains("running_managed_controllers{name=\"cloud-node\",manager=\"cloud-controller-manager\"} 1"),
            "{text}"
        );
        assert!(text.contains("workqueue_adds_total{name=\"service\"} 1"), "{text}");
        assert!(text.contains("workqueue_longest_running_processor_seconds{name=\"Nodes\"} 0"), "{text}");
        // framework spec 7.8: dashboards are made with these.
        let queues = ["depth", "adds_total", "queue_duration_seconds_sum", "work_duration_seconds_sum"];
        let queues = queues.map(|name| format!("workqueue_{name}{{name=\"service\""));
        let others = [
            "service_controller_loadbalancer_sync_total",
            "service_controller_nodesync_error_total",
            "service_controller_nodesync_latency_seconds_bucket",
            "service_controller_update_loadbalancer_host_latency_seconds_bucket",
            "node_controller_cloud_provider_taint_removal_delay_seconds_bucket",
            "node_controller_initial_node_sync_delay_seconds_bucket",
            "workqueue_unfinished_work_seconds",
            "# TYPE workqueue_retries counter",
        ];
        for name in queues.iter().map(String::as_str).chain(others) {
            assert!(text.lines().any(|line| line.starts_with(name)), "{name}: {text}");
        }
        stop.cancel();
        running.await.unwrap();
        tasks.run(Duration::from_secs(1)).await.unwrap();
    }
}
