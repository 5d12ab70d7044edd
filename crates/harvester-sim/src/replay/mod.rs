//! An upgrade of the hosts, written down: the plan's phases, the hosts' states and what becomes of the machines, minute
//! by minute. An operator can write such a file; tests of the provider read it, and [`play`] performs it on an API
//! server. Pure but for `play`.

pub mod play;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::guest::machine::{Machine, Migration};

/// A file with all steps of an upgrade.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replay {
    /// What it shows, in one line.
    pub name: String,
    /// The account may read the two kinds of the host. Without: only the machines tell.
    #[serde(default = "yes")]
    pub rights: bool,
    /// By name, which is the Node's as well.
    pub machines: BTreeMap<String, Start>,
    /// In order of time.
    pub steps: Vec<Step>,
}

fn yes() -> bool {
    true
}

/// A machine at the beginning.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// Its host.
    pub host: String,
    /// Zone of the host.
    pub zone: String,
    /// Address of its first NIC.
    pub address: String,
    /// It can move while it runs.
    #[serde(default = "yes")]
    pub movable: bool,
}

/// What changes at one time.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Minutes since the beginning.
    pub at: f64,
    /// For people.
    #[serde(default)]
    pub note: String,
    /// `UpgradePlan` of the Upgrade Toolkit.
    #[serde(default)]
    pub plan: Option<PlanChange>,
    /// `Upgrade` of the way before it.
    #[serde(default)]
    pub upgrade: Option<PlanChange>,
    /// The host's API stops answering (`false`) or answers again. Not played on a real API server: cut the wire there.
    #[serde(default)]
    pub api: Option<bool>,
    /// By name.
    #[serde(default)]
    pub machines: BTreeMap<String, MachineChange>,
    /// What the provider is to show then; read by tests only.
    #[serde(default)]
    pub expect: Option<Expectation>,
}

/// What changes in the plan. Hosts that are not named stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanChange {
    /// Phase of the plan, of an `Upgrade` its label `upgradeState`; `Succeeded` and `Failed` end it.
    #[serde(default)]
    pub phase: Option<String>,
    /// State by host.
    #[serde(default)]
    pub hosts: BTreeMap<String, String>,
    /// There is one host only.
    #[serde(default)]
    pub single_host: bool,
}

/// What becomes of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineChange {
    /// `off` (by the host), `starting` or `on`.
    #[serde(default)]
    pub power: Option<Power>,
    /// Its host is being emptied.
    #[serde(default)]
    pub evacuating: Option<bool>,
    /// A live migration to this host begins.
    #[serde(default)]
    pub moves_to: Option<String>,
    /// It is over: the machine is there.
    #[serde(default)]
    pub arrived: bool,
    /// Zone of the host where it is from now on.
    #[serde(default)]
    pub zone: Option<String>,
    /// Host where it is from now on, without a live migration.
    #[serde(default)]
    pub host: Option<String>,
    /// Address that it has from now on.
    #[serde(default)]
    pub address: Option<String>,
}

/// See [`MachineChange::power`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Power {
    /// Switched off by the host.
    Off,
    /// Booting.
    Starting,
    /// Running.
    On,
}

/// What the provider shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// Deletions, zones and garbage are suspended.
    #[serde(default)]
    pub suspended: Option<bool>,
    /// Reason of the condition by Node; `none`: it has no condition.
    #[serde(default)]
    pub nodes: BTreeMap<String, String>,
}

/// Why a text is no replay.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Not YAML, or not of this form.
    #[error("not a replay")]
    Yaml(#[source] Box<serde_saphyr::Error>),
    /// It names a machine that is not there at the beginning.
    #[error("step at minute {at} names machine {machine:?}; the replay has: {known}")]
    NoSuchMachine {
        /// Minute of the step.
        at: f64,
        /// As written.
        machine: String,
        /// What there is.
        known: String,
    },
}

/// Where the player creates machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Their namespace.
    pub namespace: String,
    /// The guest cluster that they are labelled with.
    pub cluster: String,
    /// The network of their NIC.
    pub network: String,
}

/// Everything as it is after a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// Minutes since the beginning.
    pub minute: f64,
    /// For people.
    pub note: String,
    /// All machines.
    pub machines: Vec<Machine>,
    /// Those that this step has changed.
    pub changed: Vec<String>,
    /// `UpgradePlan` as JSON.
    pub plan: Option<Value>,
    /// `Upgrade` as JSON.
    pub upgrade: Option<Value>,
    /// The two may be read.
    pub rights: bool,
    /// The host's API answers.
    pub api: bool,
    /// What the provider is to show.
    pub expect: Option<Expectation>,
}

impl Replay {
    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<Self, ReplayError> {
        serde_saphyr::from_str(text).map_err(|error| ReplayError::Yaml(Box::new(error)))
    }

    /// The states after each step, in order.
    pub fn snapshots(&self, placement: &Placement) -> Result<Vec<Snapshot>, ReplayError> {
        let mut machines: BTreeMap<&str, Machine> =
            self.machines.iter().map(|(name, start)| (name.as_str(), begin(name, start, placement))).collect();
        let (mut plan, mut upgrade) = (None::<PlanState>, None::<PlanState>);
        let mut api = true;
        let mut snapshots = Vec::new();
        for (index, step) in self.steps.iter().enumerate() {
            for (name, change) in &step.machines {
                let known = || self.machines.keys().cloned().collect::<Vec<_>>().join(", ");
                let machine = machines.get_mut(name.as_str()).ok_or_else(|| ReplayError::NoSuchMachine {
                    at: step.at,
                    machine: name.clone(),
                    known: known(),
                })?;
                apply(machine, change, step.at);
            }
            api = step.api.unwrap_or(api);
            if let Some(change) = &step.plan {
                plan.get_or_insert_default().apply(change, step.at);
            }
            if let Some(change) = &step.upgrade {
                upgrade.get_or_insert_default().apply(change, step.at);
            }
            let changed: Vec<String> = if index == 0 {
                self.machines.keys().cloned().collect()
            } else {
                step.machines.keys().cloned().collect()
            };
            snapshots.push(Snapshot {
                minute: step.at,
                note: step.note.clone(),
                machines: machines.values().cloned().collect(),
                changed,
                plan: plan.as_ref().map(PlanState::toolkit),
                upgrade: upgrade.as_ref().map(PlanState::before),
                rights: self.rights,
                api,
                expect: step.expect.clone(),
            });
        }
        Ok(snapshots)
    }
}

fn begin(name: &str, start: &Start, placement: &Placement) -> Machine {
    let mut machine =
        Machine::node(&placement.namespace, name, &placement.cluster, &placement.network, &[&start.address])
            .located("lab", &start.zone);
    machine.host.clone_from(&start.host);
    machine.upgrade.unmovable = !start.movable;
    machine
}

/// The clock of replays begins here.
pub fn clock(minute: f64) -> String {
    let start: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().expect("a valid time");
    #[allow(clippy::cast_possible_truncation)] // minutes of a replay
    let seconds = (minute * 60.0) as i64;
    jiff::Timestamp::from_second(start.as_second() + seconds).expect("a time within range").to_string()
}

fn apply(machine: &mut Machine, change: &MachineChange, minute: f64) {
    if let Some(power) = change.power {
        machine.powered = power != Power::Off;
        machine.upgrade.shut_down = power == Power::Off;
        machine.upgrade.starting = power == Power::Starting;
        machine.agent = power == Power::On;
        machine.upgrade.evacuating = false;
    }
    if let Some(evacuating) = change.evacuating {
        machine.upgrade.evacuating = evacuating;
    }
    if let Some(target) = &change.moves_to {
        machine.migration = Some(Migration {
            source: machine.host.clone(),
            target: target.clone(),
            started: clock(minute),
            ended: None,
            failed: false,
        });
    }
    if change.arrived {
        machine.upgrade.evacuating = false;
        if let Some(migration) = &mut machine.migration {
            migration.ended = Some(clock(minute));
            machine.host.clone_from(&migration.target);
        }
    }
    if let Some(host) = &change.host {
        machine.host.clone_from(host);
    }
    if let Some(zone) = &change.zone {
        machine.zone = Some(zone.clone());
    }
    if let (Some(address), Some(nic)) = (&change.address, machine.nics.first_mut()) {
        nic.addresses = vec![address.clone()];
    }
}

/// What both kinds tell.
#[derive(Debug, Clone, Default)]
struct PlanState {
    phase: String,
    phases: Vec<(String, String)>,
    hosts: BTreeMap<String, String>,
    single_host: bool,
}

impl PlanState {
    fn apply(&mut self, change: &PlanChange, minute: f64) {
        if let Some(phase) = &change.phase {
            self.phase.clone_from(phase);
            self.phases.push((phase.clone(), clock(minute)));
        }
        self.hosts.extend(change.hosts.clone());
        self.single_host |= change.single_host;
    }

    fn states(&self) -> Value {
        self.hosts
            .iter()
            .map(|(host, state)| (host.clone(), json!({"state": state})))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }

    fn toolkit(&self) -> Value {
        let over = ["Succeeded", "Failed"].contains(&self.phase.as_str());
        let degraded = self.phase == "Failed";
        let text = |yes: bool| if yes { "True" } else { "False" };
        let phases: Vec<_> =
            self.phases.iter().map(|(phase, at)| json!({"phase": phase, "phaseTransitionTimestamp": at})).collect();
        json!({
            "apiVersion": "management.harvesterhci.io/v1beta1", "kind": "UpgradePlan",
            "metadata": {"name": "upgrade-v1.9.0"},
            "spec": {"version": "v1.9.0"},
            "status": {
                "currentPhase": self.phase, "phaseTransitionTimestamps": phases, "nodeUpgradeStatuses": self.states(),
                "singleNode": self.single_host,
                "conditions": [
                    {"type": "Available", "status": text(self.phase == "Succeeded")},
                    {"type": "Progressing", "status": text(!over)},
                    {"type": "Degraded", "status": text(degraded)},
                ],
            },
        })
    }

    fn before(&self) -> Value {
        let completed = match self.phase.as_str() {
            "Succeeded" => "True",
            "Failed" => "False",
            _ => "Unknown",
        };
        json!({
            "apiVersion": "harvesterhci.io/v1beta1", "kind": "Upgrade",
            "metadata": {"name": "hvst-upgrade-x7k2p", "namespace": "harvester-system",
                "labels": {"harvesterhci.io/latestUpgrade": "true", "harvesterhci.io/upgradeState": self.phase}},
            "spec": {"version": "v1.6.1"},
            "status": {
                "singleNode": if self.single_host { "host-1" } else { "" }, "nodeStatuses": self.states(),
                "conditions": [{"type": "Completed", "status": completed}],
            },
        })
    }
}

#[cfg(test)]
mod tests;
