//! kube-vip's metrics of each Service, updated by what the watch shows and what is reported.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use announcer_core::ownership::service::LeaseKey;
use announcer_core::view::{ServiceKey, ServiceView};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use runtime::metrics::Register;

use super::Present;

type OfService = [(&'static str, String); 2];
type Failure = [(&'static str, String); 3];
type OfNamespace = [(&'static str, String); 1];

/// kube-vip's reason for an address that cannot be set up.
const NEW_INSTANCE: &str = "new_instance";
/// Our own reason: kube-vip does not count failed writes.
const UPDATE_SERVICE: &str = "update_service";

/// The metrics.
#[derive(Debug)]
pub struct Services {
    node: String,
    errors: Family<Failure, Counter>,
    duration: Family<OfNamespace, Histogram, fn() -> Histogram>,
    loops: Present<OfService, Gauge>,
    attempts: Family<OfService, Counter>,
    campaigning: Mutex<BTreeSet<LeaseKey>>,
    /// When each Service was first seen without a published address.
    begun: Mutex<BTreeMap<ServiceKey, Instant>>,
}

/// From an immediate take-over to a DHCP server that answers in its second minute.
fn buckets() -> Histogram {
    Histogram::new([0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0])
}

fn failure(key: &ServiceKey, reason: &str) -> Failure {
    [("namespace", key.namespace.clone()), ("name", key.name.clone()), ("reason", reason.to_owned())]
}

fn of_service(lease: &LeaseKey) -> OfService {
    let name = LeaseKey::service_of(&lease.name).unwrap_or(&lease.name);
    [("namespace", lease.namespace.clone()), ("name", name.to_owned())]
}

impl Services {
    pub(super) fn register(registry: &mut Registry, node: &str) -> Self {
        Self {
            node: node.to_owned(),
            errors: registry.make(
                "kube_vip_service_reconcile_errors",
                "Times that a Service could not be announced or not be written, by reason",
            ),
            duration: registry.keep(
                "kube_vip_service_reconcile_duration_seconds",
                "From a Service without an address until clients were told of one on this node",
                Family::new_with_constructor(buckets as fn() -> Histogram),
            ),
            loops: Present::of(registry.make(
                "kube_vip_service_election_loops",
                "Elections for the Lease of a Service that this node takes part in",
            )),
            attempts: registry.make(
                "kube_vip_service_election_attempts",
                "Elections for the Lease of a Service that this node has begun",
            ),
            campaigning: Mutex::default(),
            begun: Mutex::default(),
        }
    }

    /// Counts that a Service cannot be announced; its author was told why.
    pub fn refused(&self, key: &ServiceKey) {
        self.errors.get_or_create(&failure(key, NEW_INSTANCE)).inc();
    }

    /// Counts that a record could not be written.
    pub fn unwritten(&self, key: &ServiceKey) {
        self.errors.get_or_create(&failure(key, UPDATE_SERVICE)).inc();
    }

    /// Takes in the Service as the watch shows it; `None`: it was deleted.
    pub fn seen(&self, key: &ServiceKey, view: Option<&ServiceView>, now: Instant) {
        let mut begun = self.begun.lock();
        let Some(view) = view else {
            begun.remove(key);
            for reason in [NEW_INSTANCE, UPDATE_SERVICE] {
                self.errors.remove(&failure(key, reason));
            }
            self.attempts.remove(&[("namespace", key.namespace.clone()), ("name", key.name.clone())]);
            return;
        };
        if view.published.ingress.is_empty() {
            begun.entry(key.clone()).or_insert(now);
        } else if let Some(since) = begun.remove(key)
            && view.published.vip_host.as_deref() == Some(&self.node)
        {
            let took = now.saturating_duration_since(since);
            self.duration.get_or_create(&[("namespace", key.namespace.clone())]).observe(took.as_secs_f64());
        }
    }

    /// Sets the elections in which this node takes part.
    pub fn campaigns(&self, wanted: &BTreeSet<LeaseKey>) {
        let mut campaigning = self.campaigning.lock();
        for lease in wanted.difference(&campaigning) {
            self.attempts.get_or_create(&of_service(lease)).inc();
        }
        campaigning.clone_from(wanted);
        self.loops.show(wanted.iter().map(|lease| (of_service(lease), 1)).collect(), |gauge, one| {
            gauge.set(one);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use announcer_core::view::Ingress;
    use prometheus_client::encoding::text::encode;

    use super::*;
    use announcer_core::fixtures::view;

    struct Bench(Registry, Services);

    impl Bench {
        fn new() -> Self {
            let mut registry = Registry::default();
            let services = Services::register(&mut registry, "node-1");
            Self(registry, services)
        }

        fn shows(&self, line: &str) -> bool {
            let mut text = String::new();
            encode(&mut text, &self.0).unwrap();
            text.lines().any(|found| found == line)
        }
    }

    fn told(by: &str) -> ServiceView {
        let mut view = view("web", &["10.0.0.5"]);
        view.published.vip_host = Some(by.to_owned());
        view.published.ingress = vec![Ingress { ip: None, ports: Vec::new() }];
        view
    }

    #[test]
    fn the_time_to_an_address_is_that_of_the_node_that_gave_it() {
        let (bench, now, new) = (Bench::new(), Instant::now(), view("web", &["10.0.0.5"]));
        let count = |n: u32| format!(r#"kube_vip_service_reconcile_duration_seconds_count{{namespace="default"}} {n}"#);
        bench.1.seen(&new.key, Some(&told("node-1")), now);
        assert!(!bench.shows(&count(1)), "it had its address before we came");
        bench.1.seen(&new.key, None, now);
        bench.1.seen(&new.key, Some(&new), now);
        bench.1.seen(&new.key, Some(&new), now + Duration::from_secs(1));
        bench.1.seen(&new.key, Some(&told("node-2")), now + Duration::from_secs(2));
        bench.1.seen(&new.key, Some(&told("node-1")), now + Duration::from_secs(3));
        assert!(!bench.shows(&count(1)), "another node gave it; we took over");
        bench.1.seen(&new.key, Some(&new), now + Duration::from_secs(4));
        bench.1.seen(&new.key, Some(&told("node-1")), now + Duration::from_secs(6));
        assert!(bench.shows(&count(1)));
        assert!(bench.shows(r#"kube_vip_service_reconcile_duration_seconds_sum{namespace="default"} 2.0"#));
    }

    #[test]
    fn failures_are_counted_until_their_service_goes() {
        let (bench, web) = (Bench::new(), view("web", &["10.0.0.5"]));
        let line = |reason: &str, n: u32| {
            format!(
                r#"kube_vip_service_reconcile_errors_total{{namespace="default",name="web",reason="{reason}"}} {n}"#
            )
        };
        bench.1.refused(&web.key);
        bench.1.refused(&web.key);
        bench.1.unwritten(&web.key);
        assert!(bench.shows(&line("new_instance", 2)) && bench.shows(&line("update_service", 1)));
        bench.1.seen(&web.key, None, Instant::now());
        assert!(!bench.shows(&line("new_instance", 2)) && !bench.shows(&line("update_service", 1)));
    }

    #[test]
    fn an_election_counts_once_however_often_it_is_asked_for_and_again_when_it_is_begun_again() {
        let bench = Bench::new();
        let lease = |name: &str| LeaseKey { namespace: "default".into(), name: name.to_owned() };
        let line =
            |what: &str, n: u32| format!(r#"kube_vip_service_election_{what}{{namespace="default",name="web"}} {n}"#);
        let wanted = BTreeSet::from([lease("kubevip-web"), lease("other")]);
        bench.1.campaigns(&wanted);
        bench.1.campaigns(&wanted);
        assert!(bench.shows(&line("loops", 1)) && bench.shows(&line("attempts_total", 1)));
        bench.1.campaigns(&BTreeSet::from([lease("other")]));
        assert!(!bench.shows(&line("loops", 1)));
        bench.1.campaigns(&wanted);
        assert!(bench.shows(&line("loops", 1)) && bench.shows(&line("attempts_total", 2)));
    }
}
