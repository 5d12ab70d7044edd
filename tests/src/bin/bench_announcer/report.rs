//! The table that a person reads, and the JSON file.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::at_rest::{self, AtRest};
use crate::case_result::CaseResult;
use crate::cases::Run;
use crate::false_verdicts::FalseVerdicts;
use crate::lan;
use crate::lost_node::{self, Row};
use crate::many::Many;
use crate::renew::Renew;
use crate::soak::Soak;

/// Everything that was found.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// The program.
    pub binary: String,
    /// Load of the machine at the beginning, averaged over a minute: figures are only good on an idle one.
    pub load: f64,
    /// Of the machine.
    pub cores: usize,
    /// Cases.
    pub cases: Vec<CaseResult<Run>>,
    /// A LAN that lies.
    #[serde(default)]
    pub lan: Vec<CaseResult<lan::Run>>,
    /// 200 addresses.
    pub many: Option<Many>,
    /// DHCP leases over their life.
    pub renew: Option<Renew>,
    /// A node is lost.
    #[serde(default)]
    pub lost_node: Vec<Row>,
    /// Nothing happens.
    #[serde(default)]
    pub at_rest: Vec<AtRest>,
    /// No node is lost, though they seem to be.
    #[serde(default)]
    pub false_verdicts: Option<FalseVerdicts>,
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
        Self {
            binary,
            load,
            cores,
            cases: Vec::new(),
            lan: Vec::new(),
            many: None,
            renew: None,
            lost_node: Vec::new(),
            at_rest: Vec::new(),
            false_verdicts: None,
            soak: None,
            failures: Vec::new(),
        }
    }

    /// One that was written before, to go on with it.
    pub fn read(path: &Path) -> Result<Self> {
        let failed = || format!("failed to read {}", path.display());
        serde_json::from_slice(&std::fs::read(path).with_context(failed)?).with_context(failed)
    }

    /// More runs of a case.
    pub fn add(&mut self, found: CaseResult<Run>) {
        match self.cases.iter_mut().find(|case| case.case == found.case) {
            Some(case) => {
                case.runs.extend(found.runs);
                case.failures.extend(found.failures);
            }
            None => self.cases.push(found),
        }
    }

    /// What a fault has shown so far.
    pub fn played(&mut self, found: &CaseResult<lan::Run>) {
        self.lan.retain(|one| one.case != found.case);
        self.lan.push(found.clone());
    }

    /// What could not be measured.
    fn failures(&self) -> impl Iterator<Item = &String> {
        let cases = self.cases.iter().flat_map(|case| &case.failures);
        let lan = self.lan.iter().flat_map(|played| &played.failures);
        self.failures.iter().chain(self.lost_node.iter().flat_map(|row| &row.failures)).chain(cases).chain(lan)
    }

    /// How many measurements failed.
    pub fn failed(&self) -> usize {
        self.failures().count()
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
            many.print();
        }
        if let Some(renew) = &self.renew {
            println!("\n{renew:?}");
        }
        if !self.lost_node.is_empty() {
            lost_node::print(&self.lost_node);
        }
        if !self.at_rest.is_empty() {
            at_rest::print(&self.at_rest);
        }
        if !self.lan.is_empty() {
            lan::print(&self.lan);
        }
        for failure in self.failures() {
            println!("failed: {failure}");
        }
    }
}
