//! The table that a person reads, and the JSON file.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::cases::{Found, Run};
use crate::many::Many;
use crate::soak::Soak;

/// Everything that was found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The program.
    pub binary: String,
    /// Load of the machine at the beginning, averaged over a minute: figures are only good on an idle one.
    pub load: f64,
    /// Of the machine.
    pub cores: usize,
    /// Cases.
    pub cases: Vec<Found>,
    /// 200 addresses.
    pub many: Option<Many>,
    /// A soak.
    pub soak: Option<Soak>,
    /// What could not be measured beside the cases.
    pub failures: Vec<String>,
}

impl Report {
    /// Empty.
    pub fn begin(binary: &Path) -> Self {
        let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        eprintln!("measuring {}, load {load}", binary.display());
        let binary = binary.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { binary, load, cores, cases: Vec::new(), many: None, soak: None, failures: Vec::new() }
    }

    /// How many measurements failed.
    pub fn failed(&self) -> usize {
        self.failures.len() + self.cases.iter().map(|case| case.failures.len()).sum::<usize>()
    }

    /// As JSON.
    pub fn write(&self, path: &Path) -> Result<()> {
        let failed = || format!("failed to write {}", path.display());
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).with_context(failed)?;
        }
        std::fs::write(path, serde_json::to_vec_pretty(self).with_context(failed)?).with_context(failed)
    }

    /// As a table in Markdown.
    pub fn print(&self) {
        println!("load at the beginning {}, {} cores", self.load, self.cores);
        println!("| case | n | gap ms, median (max) | lost, median (max) | two answer, ms, median (max) |");
        println!("| --- | --- | --- | --- | --- |");
        for found in &self.cases {
            let column = |value: fn(&Run) -> f64| {
                let mut values: Vec<f64> = found.runs.iter().map(value).collect();
                values.sort_by(f64::total_cmp);
                match (values.get(values.len().saturating_sub(1) / 2), values.last()) {
                    (Some(median), Some(max)) => format!("{median:.0} ({max:.0})"),
                    _ => "-".to_owned(),
                }
            };
            let lost = |run: &Run| f64::from(u32::try_from(run.lost).unwrap_or(u32::MAX));
            let (gap, lost, double) = (column(|run| run.gap_ms), column(lost), column(|run| run.double_ms));
            println!("| {} | {} | {gap} | {lost} | {double} |", found.title, found.runs.len());
            if found.runs.iter().any(|run| run.http_ms.is_some()) {
                let http = column(|run| run.http_ms.unwrap_or_default());
                println!("| … to the first HTTP reply through kube-proxy | {} | {http} | | |", found.runs.len());
            }
        }
        if let Some(many) = &self.many {
            println!("\n200 addresses, spread {:?}:", many.spread);
            println!(
                "  all set after {:.1} s; all moved {:.1} s after a power loss",
                many.all_set_ms / 1000.0,
                many.all_moved_ms / 1000.0
            );
            println!(
                "  at rest: {} broadcasts per minute, {} unicast ARP frames per second at one node, {} API requests per second",
                many.broadcasts_per_minute, many.unicasts_per_second, many.requests_per_second
            );
            println!("  largest announcer {} MB, busiest {} % of one core", many.rss_mb, many.cpu_percent);
        }
        for failure in self.failures.iter().chain(self.cases.iter().flat_map(|case| &case.failures)) {
            println!("failed: {failure}");
        }
    }
}
