//! The metrics `workqueue_*`, with client-go's names, so that existing dashboards work.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::metrics::Register;

type Labels = [(&'static str, &'static str); 1];

/// The metrics of all queues of the process.
#[derive(Debug, Clone)]
pub struct WorkQueueMetrics {
    depth: Family<Labels, Gauge>,
    adds: Family<Labels, Counter>,
    retries: Family<Labels, Counter>,
    queue_duration: Family<Labels, Histogram, fn() -> Histogram>,
    work_duration: Family<Labels, Histogram, fn() -> Histogram>,
    running: RunningQueues,
}

/// client-go's buckets: 10 ns to 10 s by powers of ten.
fn buckets() -> Histogram {
    Histogram::new([1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0])
}

impl WorkQueueMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            depth: registry.make("workqueue_depth", "Current depth of workqueue"),
            adds: registry.make("workqueue_adds", "Total number of adds handled by workqueue"),
            retries: registry.make("workqueue_retries", "Total number of retries handled by workqueue"),
            queue_duration: registry.keep(
                "workqueue_queue_duration_seconds",
                "How long in seconds an item stays in workqueue before being requested",
                Family::new_with_constructor(buckets as fn() -> Histogram),
            ),
            work_duration: registry.keep(
                "workqueue_work_duration_seconds",
                "How long in seconds processing an item from workqueue takes",
                Family::new_with_constructor(buckets as fn() -> Histogram),
            ),
            running: RunningQueues::default(),
        };
        registry.register_collector(Box::new(metrics.running.clone()));
        metrics
    }

    /// The metrics of the queue `name`.
    pub fn queue(&self, name: &'static str) -> QueueMetrics {
        let labels = [("name", name)];
        let work = Arc::new(Running::default());
        self.running.queues.lock().insert(name, Arc::clone(&work));
        QueueMetrics {
            depth: self.depth.get_or_create_owned(&labels),
            adds: self.adds.get_or_create_owned(&labels),
            retries: self.retries.get_or_create_owned(&labels),
            queue_duration: self.queue_duration.get_or_create_owned(&labels),
            work_duration: self.work_duration.get_or_create_owned(&labels),
            running: work,
        }
    }
}

/// The metrics of one queue.
#[derive(Debug, Clone)]
pub struct QueueMetrics {
    depth: Gauge,
    adds: Counter,
    retries: Counter,
    queue_duration: Histogram,
    work_duration: Histogram,
    running: Arc<Running>,
}

impl Default for QueueMetrics {
    fn default() -> Self {
        Self {
            depth: Gauge::default(),
            adds: Counter::default(),
            retries: Counter::default(),
            queue_duration: buckets(),
            work_duration: buckets(),
            running: Arc::default(),
        }
    }
}

impl QueueMetrics {
    pub(super) fn added(&self, count: u64) {
        self.adds.inc_by(count);
    }

    pub(super) fn retried(&self) {
        self.retries.inc();
    }

    pub(super) fn depth(&self, waiting: usize) {
        self.depth.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// Returns a number for the job, for [`QueueMetrics::finished`].
    pub(super) fn started(&self, waiting: usize, queued: Duration) -> u64 {
        self.depth(waiting);
        self.queue_duration.observe(queued.as_secs_f64());
        self.running.start()
    }

    pub(super) fn finished(&self, waiting: usize, job: u64, worked: Duration) {
        self.depth(waiting);
        self.work_duration.observe(worked.as_secs_f64());
        self.running.finish(job);
    }
}

/// Start times of the running jobs of one queue.
#[derive(Debug, Default)]
struct Running {
    started: Mutex<BTreeMap<u64, Instant>>,
    next: AtomicU64,
}

impl Running {
    fn start(&self) -> u64 {
        let job = self.next.fetch_add(1, Ordering::Relaxed);
        self.started.lock().insert(job, Instant::now());
        job
    }

    fn finish(&self, job: u64) {
        self.started.lock().remove(&job);
    }

    fn ages(&self) -> Vec<f64> {
        let started = self.started.lock();
        started.values().map(|start| start.elapsed().as_secs_f64()).collect()
    }
}

/// Ages of the running jobs, computed at each scrape.
#[derive(Debug, Clone, Default)]
struct RunningQueues {
    queues: Arc<Mutex<BTreeMap<&'static str, Arc<Running>>>>,
}

/// Computes one value from the ages of the running jobs.
type Fold = fn(&[f64]) -> f64;

impl Collector for RunningQueues {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let queues = self.queues.lock();
        let metrics: [(&str, &str, Fold); 2] = [
            (
                "workqueue_unfinished_work_seconds",
                "Seconds of work in progress that is not yet counted in work_duration",
                |ages| ages.iter().sum(),
            ),
            (
                "workqueue_longest_running_processor_seconds",
                "Seconds the longest running processor has been running",
                |ages| ages.iter().copied().fold(0.0, f64::max),
            ),
        ];
        for (name, help, fold) in metrics {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (queue, running) in queues.iter() {
                let value = ConstGauge::new(fold(&running.ages()));
                value.encode(metric.encode_family(&[("name", *queue)])?)?;
            }
        }
        Ok(())
    }
}
