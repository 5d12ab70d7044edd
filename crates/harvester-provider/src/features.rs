//! Detects which features this Harvester has. The evidence is what the host answers, never its version
//! (Harvester spec 8.5). The result is shown in the metric `harvester_host_feature` and in the log.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use harvester_api::features::{LOAD_BALANCER_SCHEMA as SCHEMA, has_ipv6_pool};
use kube::Client;
use kube::api::ListParams;
use kube::core::Request;
use runtime::reflect::{Status, returned};
use serde_json::Value;
use tokio::sync::watch;

use crate::load_balancers::own_writes::LbCache;
use crate::metrics::Metrics;

/// How often the schema is read again: a host may have been upgraded without an outage that this process noticed.
const ASK_AGAIN: Duration = Duration::from_hours(1);

/// The detected features. `None`: nothing was seen yet that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// A load balancer keeps the network that it was created for; older hosts replace it with another one.
    pub network_aware: Option<bool>,
    /// LoadBalancers have `spec.ipv6Pool`.
    pub ipv6_pool: Option<bool>,
    /// LoadBalancers can be watched; otherwise the list is polled.
    pub watch: Option<bool>,
}

impl Features {
    /// The features with their names in the metric, in fixed order.
    pub fn named(self) -> [(&'static str, Option<bool>); 3] {
        [("network-aware", self.network_aware), ("ipv6-pool", self.ipv6_pool), ("watch", self.watch)]
    }
}

/// Detects the features and keeps them up to date.
pub struct Detector {
    pub(crate) client: Client,
    pub(crate) lbs: LbCache,
    pub(crate) watched: watch::Receiver<Status>,
    pub(crate) returns: Option<watch::Receiver<u64>>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Detector {
    /// Creates the detector for the cache of load balancers. Sends no request before [`Self::run`].
    pub(crate) fn new(
        harvester: &Client,
        lbs: &LbCache,
        watched: watch::Receiver<Status>,
        metrics: &Arc<Metrics>,
    ) -> Self {
        Self { client: harvester.clone(), lbs: lbs.clone(), watched, returns: None, metrics: Arc::clone(metrics) }
    }

    /// Inspects every load balancer once, and the schema after each outage, because hosts are upgraded during outages.
    pub async fn run(mut self) -> Infallible {
        self.lbs.wait_synced().await;
        let mut touched = self.lbs.subscribe();
        let mut features = Features { ipv6_pool: self.ask().await, ..Features::default() };
        // The youngest object tells most about the present version of the host.
        let mut youngest = i64::MIN;
        let mut told = Features::default();
        let mut hours = tokio::time::interval_at(tokio::time::Instant::now() + ASK_AGAIN, ASK_AGAIN);
        loop {
            features.watch = Some(!self.watched.borrow_and_update().polling);
            if features != told {
                tell(told, features, &self.metrics);
                told = features;
            }
            tokio::select! {
                Some(name) = touched.next() => {
                    let Some(lb) = self.lbs.get(&name) else { continue };
                    if let Some(keeps) = lb.keeps_network().filter(|_| lb.created.unwrap_or_default() >= youngest) {
                        youngest = lb.created.unwrap_or_default();
                        features.network_aware = Some(keeps);
                    }
                }
                Ok(()) = self.watched.changed() => {}
                () = returned(&mut self.returns) => features.ipv6_pool = self.ask().await.or(features.ipv6_pool),
                _ = hours.tick() => features.ipv6_pool = self.ask().await.or(features.ipv6_pool),
            }
        }
    }

    async fn ask(&self) -> Option<bool> {
        let request = Request::new(SCHEMA).list(&ListParams::default()).ok()?;
        match self.client.request::<Value>(request).await {
            Ok(document) => has_ipv6_pool(&document),
            Err(error) => {
                tracing::debug!(
                    error = runtime::error::chain(&error),
                    "the controller cannot read the schema of LoadBalancers on Harvester"
                );
                None
            }
        }
    }
}

fn tell(before: Features, now: Features, metrics: &Metrics) {
    for ((name, before), (_, now)) in before.named().into_iter().zip(now.named()) {
        let Some(now) = now.filter(|now| before != Some(*now)) else { continue };
        metrics.host_feature(name, now);
        tracing::info!(feature = name, offered = now, "the controller found out whether Harvester offers this feature");
    }
}

#[cfg(test)]
mod tests {
    use harvester_api::keys::{cloudprovider, loadbalancer};
    use runtime::scenario::Scenario;
    use serde_json::json;

    use super::*;
    use crate::load_balancers::build::lb;
    use crate::load_balancers::view::LbView;

    fn document(spec: &Value) -> Value {
        json!({"components": {"schemas": {
            "io.harvesterhci.loadbalancer.v1beta1.LoadBalancer": {"properties": {"spec": {"properties": spec}}},
            "io.harvesterhci.loadbalancer.v1beta1.LoadBalancerList": {"properties": {"items": {}}},
        }}})
    }

    #[test]
    fn the_schema_tells_whether_there_is_a_second_pool() {
        let old = json!({"workloadType": {"type": "string"}, "ipPool": {"type": "string"}});
        let mut new = old.clone();
        new["ipv6Pool"] = json!({"type": "string"});
        assert_eq!(has_ipv6_pool(&document(&old)), Some(false));
        assert_eq!(has_ipv6_pool(&document(&new)), Some(true));
        for other in [json!({}), json!({"components": {"schemas": {}}}), json!("404 page not found")] {
            assert_eq!(has_ipv6_pool(&other), None, "{other}");
        }
    }

    fn with_networks(wanted: &str, kept: &str) -> LbView {
        let mut view = lb("demo-default-web-12345678").done();
        view.annotations.insert(cloudprovider::LB_NETWORK, wanted);
        view.annotations.insert(loadbalancer::NETWORK, kept);
        view
    }

    /// Harvester spec 8.5: up to 1.8 the host's webhook overwrites the annotation.
    #[test]
    fn a_host_that_keeps_the_network_of_an_object_is_network_aware() {
        assert_eq!(with_networks("guests/data", "guests/data").keeps_network(), Some(true));
        assert_eq!(with_networks("guests/data", "guests/mgmt").keeps_network(), Some(false));
        assert_eq!(with_networks("guests/data", "").keeps_network(), Some(false));
        assert_eq!(with_networks("", "guests/mgmt").keeps_network(), None, "nothing was asked for");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_seen_shows_in_the_metrics_and_follows_the_youngest_object() {
        let server = Scenario::answering(|seen| {
            assert_eq!((seen.method.as_str(), seen.path.as_str()), ("GET", SCHEMA));
            (200, document(&json!({"workloadType": {"type": "string"}})))
        });
        let lbs = crate::load_balancers::own_writes::lb_cache();
        let at = |created, kept| LbView { created: Some(created), ..with_networks("guests/data", kept) };
        lbs.replace([("old".to_owned(), at(1, "guests/mgmt")), ("new".to_owned(), at(2, "guests/data"))].into());
        let mut registry = prometheus_client::registry::Registry::default();
        let metrics = Arc::new(Metrics::register(&mut registry));
        let status = watch::Sender::new(Status { polling: true, ..Status::default() });
        let detector = Detector {
            client: server.client(),
            lbs: lbs.clone(),
            watched: status.subscribe(),
            returns: None,
            metrics: Arc::clone(&metrics),
        };
        let task = tokio::spawn(detector.run());
        // Time that is paused moves on when the task has done all it can.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            r#"harvester_host_feature{feature="network-aware"} 1"#,
            r#"harvester_host_feature{feature="ipv6-pool"} 0"#,
            r#"harvester_host_feature{feature="watch"} 0"#,
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert_eq!(server.requests().len(), 1);

        // However busy the watch is, the schema is read again after an hour: the host may have been upgraded without an
        // outage.
        for minute in 3..=70 {
            tokio::time::sleep(Duration::from_mins(1)).await;
            lbs.apply("new".to_owned(), at(minute, "guests/data"));
        }
        assert_eq!(server.requests().len(), 2);
        task.abort();
    }
}
