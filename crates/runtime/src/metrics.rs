//! The metrics registry of the process, with the usual process metrics (read from `/proc`).

use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Metric, Registry};

use crate::Product;

/// Content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The registry of the process. Cheap to clone; all clones are the same registry.
#[derive(Clone, Default)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// A registry with `process_*` and the product's `build_info`.
    pub fn new(product: &Product) -> Self {
        let metrics = Self::default();
        let start = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        metrics.register(|registry| {
            registry.register_collector(Box::new(Process { start }));
            let build: Family<[(&'static str, String); 1], Gauge> =
                registry.make(product.metric("build_info"), &format!("Version of {}", product.name));
            build.get_or_create(&[("version", product.version.to_owned())]).set(1);
        });
        metrics
    }

    /// Registers more metrics.
    pub fn register<R>(&self, register: impl FnOnce(&mut Registry) -> R) -> R {
        register(&mut self.registry.lock())
    }

    /// The OpenMetrics text.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        let registry = self.registry.lock();
        // A write to a string cannot fail. If a collector fails, the text before it stays.
        let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
        text
    }
}

/// Names and types in an OpenMetrics text, with the suffix of counters.
#[cfg(any(test, feature = "scenario"))]
pub fn shown_types(text: &str) -> std::collections::BTreeMap<String, String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    lines
        .map(|(name, kind)| {
            let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
            (name, kind.to_owned())
        })
        .collect()
}

/// Registers metrics where they are made: name, help and handle stand together.
pub trait Register {
    /// Registers a metric, and returns the handle that counts for it.
    fn keep<M: Metric + Clone>(&mut self, name: impl Into<String>, help: &str, metric: M) -> M;

    /// The same for a metric that starts empty.
    fn make<M: Metric + Clone + Default>(&mut self, name: impl Into<String>, help: &str) -> M {
        self.keep(name, help, M::default())
    }
}

impl Register for Registry {
    fn keep<M: Metric + Clone>(&mut self, name: impl Into<String>, help: &str, metric: M) -> M {
        self.register(name, help, metric.clone());
        metric
    }
}

#[derive(Debug)]
struct Process {
    start: f64,
}

/// The values of `/proc/self`. A value that cannot be read is left out.
#[derive(Debug, Default, PartialEq)]
struct Sample {
    resident_bytes: Option<f64>,
    virtual_bytes: Option<f64>,
    threads: Option<f64>,
    cpu_seconds: Option<f64>,
    open_descriptors: Option<f64>,
}

/// Clock ticks per second in `/proc/*/stat`: fixed by the kernel's user interface.
const TICKS: f64 = 100.0;

impl Sample {
    fn read() -> Self {
        let text = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let mut sample = Self::parse(&text("status"), &text("stat"));
        #[allow(clippy::cast_precision_loss)]
        let descriptors = std::fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as f64);
        sample.open_descriptors = descriptors;
        sample
    }

    fn parse(status: &str, stat: &str) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse::<f64>().ok()
        };
        // The command in parentheses may contain any character; user and system time are the 12th and 13th field after
        // it.
        let cpu = stat.rsplit_once(')').and_then(|(_, rest)| {
            let mut ticks = rest.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<f64>().ok());
            Some((ticks.next()?? + ticks.next()??) / TICKS)
        });
        Self {
            resident_bytes: field("VmRSS").map(|kib| kib * 1024.0),
            virtual_bytes: field("VmSize").map(|kib| kib * 1024.0),
            threads: field("Threads"),
            cpu_seconds: cpu,
            open_descriptors: None,
        }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let sample = Sample::read();
        if let Some(seconds) = sample.cpu_seconds {
            let help = "Total user and system CPU time spent in seconds";
            let metric = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
            ConstCounter::new(seconds).encode(metric)?;
        }
        for (name, help, value) in [
            ("process_resident_memory_bytes", "Resident memory size in bytes", sample.resident_bytes),
            ("process_virtual_memory_bytes", "Virtual memory size in bytes", sample.virtual_bytes),
            ("process_threads", "Number of threads", sample.threads),
            ("process_open_fds", "Number of open file descriptors", sample.open_descriptors),
            (
                "process_start_time_seconds",
                "Start time of the process since the Unix epoch in seconds",
                Some(self.start),
            ),
        ] {
            if let Some(value) = value {
                let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(metric)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W-47.
    #[test]
    fn a_process_tells_its_memory_cpu_descriptors_and_version() {
        let text = Metrics::new(&Product::TEST).encode();
        for line in [
            "tested_build_info{version=\"1.2.3\"} 1",
            "# TYPE process_cpu_seconds counter",
            "process_cpu_seconds_total ",
            "process_resident_memory_bytes ",
            "process_open_fds ",
            "process_start_time_seconds ",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn a_command_with_parentheses_and_blanks_does_not_shift_the_fields() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 99 1 2";
        let sample = Sample::parse("Name:\ta\nVmSize:\t  2048 kB\nVmRSS:\t  1024 kB\nThreads:\t3\n", stat);
        assert_eq!(sample.cpu_seconds, Some(2.0));
        assert_eq!((sample.resident_bytes, sample.virtual_bytes), (Some(1_048_576.0), Some(2_097_152.0)));
        assert_eq!(Sample::parse("", ""), Sample::default());
    }
}
