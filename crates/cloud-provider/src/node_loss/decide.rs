//! Decides whether a node is lost, from the reports of watchers and other facts. Pure.
//!
//! A verdict may be wrong, and the harm is small: a kubelet that is alive is detected within a second. But a network
//! fault must not empty half a cluster. Therefore nothing is done for many nodes at once, on a single report, or on
//! reports that contradict each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use contract::Silence;
use tokio::time::Instant;

use super::report::Report;
use crate::provider::MachineState;
use crate::view::NodeView;

/// How long a machine may stand still because it is paused or migrated: a migration over a slow network stops it for
/// some seconds.
pub const STILL: Duration = Duration::from_secs(10);

/// A report and when this process saw it renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenReport {
    /// The report.
    pub report: Report,
    /// When the report appeared or its renewal time was seen to change. `None`: it existed when this process started,
    /// and no renewal was seen since. Its announcer may be gone.
    pub renewed: Option<Instant>,
}

impl SeenReport {
    /// When the report expires.
    pub fn expiry(&self) -> Option<Instant> {
        self.renewed.map(|renewed| renewed + self.report.duration)
    }

    fn is_fresh(&self, now: Instant) -> bool {
        self.expiry().is_some_and(|expiry| now < expiry)
    }
}

/// A node that enough watchers report as silent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreed {
    /// UID of its Node.
    pub uid: String,
    /// The watchers and their evidence, as text.
    pub evidence: String,
    /// Two or more watchers report it. In a cluster of two nodes, one watcher is enough if the gateway answered it.
    pub enough: bool,
}

/// The verdict about a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LossVerdict {
    /// The node is lost.
    Lost,
    /// The decision waits until this time.
    Wait(Instant, LossDoubt),
    /// Nothing is done, for this reason.
    Refused(LossDoubt),
}

/// Why nothing is done about a silent node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LossDoubt {
    /// Only one watcher reports it.
    OneWatcher,
    /// Too many nodes are silent at the same time.
    TooMany {
        /// Number of silent nodes.
        silent: usize,
        /// Number of all nodes.
        nodes: usize,
    },
    /// Hosts are being upgraded, and the machine is not known to be off.
    HostUpgrade,
    /// The machine is paused or being migrated.
    Still(&'static str),
}

impl LossDoubt {
    /// The value in metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Self::OneWatcher => "one_watcher",
            Self::TooMany { .. } => "too_many",
            Self::HostUpgrade => "host_upgrade",
            Self::Still(_) => "machine_stands_still",
        }
    }
}

impl fmt::Display for LossDoubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneWatcher => f.write_str("only one node reports it"),
            Self::TooMany { silent, nodes } => {
                write!(f, "{silent} of {nodes} nodes are silent, which is more likely a fault of the network")
            }
            Self::HostUpgrade => {
                f.write_str("hosts of Harvester are being upgraded, and its machine is not known to be switched off")
            }
            Self::Still(how) => write!(f, "its machine is {how} on Harvester, and may be back in a moment"),
        }
    }
}

/// The UID of the Node, and each watcher with its report.
type SilenceReports<'a> = (String, Vec<(&'a str, &'a Silence)>);

/// The nodes that credible watchers report as silent, by name. A watcher whose own node is reported as silent is not
/// credible: if two nodes accuse each other, neither report counts.
pub fn agreed(
    now: Instant,
    nodes: &[impl AsRef<NodeView>],
    reports: &BTreeMap<String, SeenReport>,
) -> BTreeMap<String, Agreed> {
    let fresh: Vec<&Report> = reports.values().filter(|seen| seen.is_fresh(now)).map(|seen| &seen.report).collect();
    let uid =
        |name: &str| nodes.iter().map(AsRef::as_ref).find(|node| node.name == name).map(|node| node.uid.0.as_str());
    let meant = |name: &str, silence: &Silence| uid(name) == Some(silence.uid.as_str());
    let accused: BTreeSet<&str> = fresh
        .iter()
        .flat_map(|report| report.silent.iter().filter(|(name, silence)| meant(name, silence)))
        .map(|(name, _)| name.as_str())
        .collect();
    let mut found: BTreeMap<String, SilenceReports<'_>> = BTreeMap::new();
    for report in fresh.iter().filter(|report| uid(&report.watcher).is_some()) {
        if accused.contains(report.watcher.as_str()) {
            continue;
        }
        for (name, silence) in report.silent.iter().filter(|(name, silence)| meant(name, silence)) {
            let (_, words) = found.entry(name.clone()).or_insert_with(|| (silence.uid.clone(), Vec::new()));
            words.push((&report.watcher, silence));
        }
    }
    let of_two = nodes.len() == 2;
    let judge = |(uid, words): SilenceReports<'_>| {
        let enough = words.len() > 1 || of_two && words.iter().any(|(_, silence)| silence.gateway);
        let told = words.iter().map(|(watcher, silence)| {
            let witnesses =
                if silence.gateway { "the gateway answered meanwhile" } else { "others answered meanwhile" };
            format!("{watcher} asked by {}, {witnesses}", silence.unanswered.join(" and "))
        });
        Agreed { uid, evidence: told.collect::<Vec<_>>().join("; "), enough }
    };
    found.into_iter().map(|(name, words)| (name, judge(words))).collect()
}

/// The largest number of nodes that may be considered lost at the same time.
pub fn limit(nodes: usize) -> usize {
    if nodes <= 3 { usize::from(nodes > 1) } else { nodes / 3 }
}

/// The facts about a node that is judged.
#[derive(Debug, Clone, Copy)]
pub struct LossFacts<'a> {
    /// Now.
    pub now: Instant,
    /// When the node was first reported as silent.
    pub since: Instant,
    /// Names of all nodes that watchers agree on, or that are considered lost.
    pub silent: &'a BTreeSet<String>,
    /// Number of all nodes.
    pub nodes: usize,
    /// Hosts are being upgraded.
    pub host_upgrade: bool,
    /// The state of the machine as Harvester reports it now; `Unknown` if Harvester was not asked, or did not answer.
    pub machine: MachineState,
}

/// What counts of the machine. An answer that did not come replaces neither what the caches show nor the former answer,
/// where these ask for patience. That patience has an end ([`STILL`]).
pub fn settle(answer: MachineState, cached: MachineState, former: Option<MachineState>) -> MachineState {
    let is_still = |state: &MachineState| matches!(state, MachineState::Still(_));
    match answer {
        MachineState::Unknown => [cached].into_iter().chain(former).find(is_still).unwrap_or(MachineState::Unknown),
        answer => answer,
    }
}

/// Whether one node is lost.
pub fn decide(word: &Agreed, known: LossFacts<'_>) -> LossVerdict {
    let LossFacts { now, since, silent, nodes, host_upgrade, machine } = known;
    // This rule overrides all others: many silent nodes at once are not the loss of a node.
    if silent.len() > limit(nodes) {
        return LossVerdict::Refused(LossDoubt::TooMany { silent: silent.len(), nodes });
    }
    match machine {
        MachineState::Off => return LossVerdict::Lost,
        MachineState::Still(how) if now < since + STILL => {
            return LossVerdict::Wait(since + STILL, LossDoubt::Still(how));
        }
        MachineState::Still(_) | MachineState::Running | MachineState::Unknown => {}
    }
    if !word.enough {
        return LossVerdict::Refused(LossDoubt::OneWatcher);
    }
    if host_upgrade {
        return LossVerdict::Refused(LossDoubt::HostUpgrade);
    }
    LossVerdict::Lost
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
