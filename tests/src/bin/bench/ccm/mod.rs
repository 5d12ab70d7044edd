//! `bench --ccm`: the cloud controller alone, against its bounds. Real API servers and etcd, the stand-in for
//! Harvester's controllers at three paces, no announcer and no kube-proxy: what is measured is the time until the
//! address is *published*, that is written to `kube-vip.io/loadbalancerIPs`.

mod creation;
mod host;
mod life;
mod nodes;
mod safe_mode;
mod setup;

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::figures::tenths;
use crate::progress::show;

/// One figure beside its bound.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// What was measured.
    pub what: String,
    /// What came out.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// It should stay below; none: only reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<f64>,
    /// Whether it did.
    pub holds: bool,
    /// The values in seconds of which this is the median or the largest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values_s: Vec<f64>,
    /// The Go provider 0.2.7 on the same kind of machine.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub go_provider: &'static str,
}

impl Figure {
    fn new(what: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            what: what.into(),
            value: (value * 1000.0).round() / 1000.0,
            unit,
            bound: None,
            holds: true,
            values_s: Vec::new(),
            go_provider: "",
        }
    }

    fn seconds(what: impl Into<String>, time: Duration) -> Self {
        Self::new(what, time.as_secs_f64(), "s")
    }

    fn count(what: impl Into<String>, count: usize) -> Self {
        Self::new(what, f64::from(u32::try_from(count).unwrap_or(u32::MAX)), "")
    }

    /// Chosen from these.
    fn of(mut self, values: &[Duration]) -> Self {
        self.values_s = values.iter().map(|value| (value.as_secs_f64() * 1000.0).round() / 1000.0).collect();
        self
    }

    /// Less than this.
    fn below(mut self, bound: f64) -> Self {
        (self.bound, self.holds) = (Some(bound), self.value < bound);
        self
    }

    /// Not more than this.
    fn at_most(mut self, bound: f64) -> Self {
        (self.bound, self.holds) = (Some(bound), self.value <= bound);
        self
    }

    fn go(mut self, text: &'static str) -> Self {
        self.go_provider = text;
        self
    }

    /// Value and bound as a person reads them.
    fn texts(&self) -> (String, String) {
        let value =
            if self.unit.is_empty() { tenths(self.value).to_string() } else { format!("{} {}", self.value, self.unit) };
        let bound = self.bound.map_or_else(|| "-".to_owned(), |bound| format!("{bound} {}", self.unit));
        (value, bound.trim_end().to_owned())
    }

    fn line(&self) -> String {
        let (value, bound) = self.texts();
        let verdict = if self.holds { "" } else { "  MISSED" };
        format!("    {:<74} {value:>12}   bound {bound:>9}   Go {}{verdict}", self.what, self.go_provider)
    }

    /// A row of [`table`].
    fn row(&self, load: f64) -> String {
        let (value, bound) = self.texts();
        let verdict = if self.holds { "" } else { " **missed**" };
        format!("| {} | {bound} | {value}{verdict} | {} | {load:.1} |", self.what, self.go_provider)
    }
}

/// Figures of several parts, each with the load of the machine when it began, as a table in Markdown.
pub fn table<'a>(parts: impl IntoIterator<Item = (f64, &'a [Figure])>) -> String {
    let head = ["| case | bound | measured | Go | load |", "| --- | --- | --- | --- | --- |"].map(str::to_owned);
    let rows = parts.into_iter().flat_map(|(load, figures)| figures.iter().map(move |figure| figure.row(load)));
    head.into_iter().chain(rows).map(|row| row + "\n").collect()
}

/// A group of figures that share a bed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// One Service at a time, what it costs, deletion right after creation.
    One,
    /// So many at once on a fast host, in a cluster with so many further Nodes, and their deletion.
    Fast(usize, usize),
    /// The same on a slow one.
    Slow(usize),
    /// A real host's pace.
    Real,
    /// A new Service while five hundred wait, at a real host's pace.
    Backlog,
    /// So many healthy Services: rest, nodes, restart, hand-over.
    Healthy(usize),
    /// Harvester's API away for a minute.
    Outage,
    /// Pools that are missing, used up, made and enlarged.
    Pools,
    /// So many Nodes, and a VM that changes its address.
    Nodes(usize),
    /// Safe mode for so long while everything changes.
    SafeMode(Duration),
}

/// Measures one case; what it found so far is in `figures` also if it fails.
pub async fn measure(case: Case, ccm_args: &[String], figures: &mut Vec<Figure>) -> Result<()> {
    let mut told = Results { figures };
    match case {
        Case::One => creation::one(ccm_args, &mut told).await,
        Case::Fast(count, nodes) => creation::fast(count, nodes, ccm_args, &mut told).await,
        Case::Slow(count) => creation::slow(count, ccm_args, &mut told).await,
        Case::Real => creation::real(ccm_args, &mut told).await,
        Case::Backlog => creation::backlog(ccm_args, &mut told).await,
        Case::Healthy(count) => life::healthy(count, ccm_args, &mut told).await,
        Case::Outage => host::outage(ccm_args, &mut told).await,
        Case::Pools => host::pools(ccm_args, &mut told).await,
        Case::Nodes(count) => nodes::join(count, ccm_args, &mut told).await,
        Case::SafeMode(time) => safe_mode::endure(time, ccm_args, &mut told).await,
    }
}

/// Figures, shown as they come.
struct Results<'a> {
    figures: &'a mut Vec<Figure>,
}

impl Results<'_> {
    fn tell(&mut self, figure: Figure) {
        show(figure.line());
        self.figures.push(figure);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_missed_or_not() {
        assert!(Figure::new("x", 1.9, "s").below(2.0).holds);
        assert!(!Figure::new("x", 2.0, "s").below(2.0).holds);
        assert!(Figure::new("x", 2.0, "").at_most(2.0).holds);
        assert!(Figure::new("x", 2.0, "s").below(1.0).line().ends_with("MISSED"));
    }

    #[test]
    fn the_table_says_what_was_missed_and_how_busy_the_machine_was() {
        let (met, missed) =
            ([Figure::count("writes", 2).at_most(2.0).go("7-11")], [Figure::new("time", 2.5, "s").below(2.0)]);
        let table = table([(0.2, &met[..]), (1.25, &missed[..])]);
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(rows, ["| writes | 2 | 2 | 7-11 | 0.2 |", "| time | 2 s | 2.5 s **missed** |  | 1.2 |"]);
    }
}
