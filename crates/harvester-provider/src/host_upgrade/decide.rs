//! The state machine of host upgrades: decides from the facts what is shown, reported and suspended. It has no I/O and
//! no clock. Times are Unix seconds, so that the state can be saved and continued by the next process.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use super::facts::{MachineFacts, PlanView, Power, Progress, UpgradeFacts};
use super::machine_context::MachineContext;
pub use super::node_history::NodeHistory;
use super::node_history::is_long;
use super::shown::{NodeStatus, Reason, message, span};
use super::window::LONGEST;
pub use super::window::UpgradeWindow;

/// The API of the host has to be silent for this long before the silence opens a window.
const SILENT: i64 = 30;
/// The signals have to be absent, and the machines running, for this long before a window closes.
const SETTLES: i64 = 30;

/// The object that an Event is written on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum About {
    /// The Node of this name.
    Node(String),
    /// Each Service that has a load balancer of this cluster.
    Services,
    /// The ConfigMap with the state of the upgrade.
    Upgrade,
}

/// An Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradeEvent {
    /// The object of the Event.
    pub about: About,
    /// Type `Warning`: an operator may have to act.
    pub warning: bool,
    /// Reason of the Event.
    pub reason: &'static str,
    /// The message of the Event.
    pub message: String,
}

/// The result of one evaluation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// Events to emit.
    pub told: Vec<UpgradeEvent>,
    /// A window has closed: all objects have to be reconciled once more.
    pub resync: bool,
}

/// The state of the upgrade over time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostUpgrade {
    /// The open window.
    pub window: Option<UpgradeWindow>,
    /// Status by name of the Node: all Nodes that ever had something to show.
    pub nodes: BTreeMap<String, NodeStatus>,
    /// By name of the Node, while a window is open.
    pub histories: BTreeMap<String, NodeHistory>,
    /// Title, phase and progress of the decisive plan.
    pub plan: Option<(String, String, Progress)>,
    /// Summary of the last upgrade.
    pub report: String,
}

impl HostUpgrade {
    /// What is suspended, and why; `None` while nothing is.
    pub fn suspended(&self) -> Option<super::suspensions::SuspensionWindow> {
        let window = self.window.as_ref().filter(|window| !window.spent)?;
        Some(super::suspensions::SuspensionWindow { why: window.cause.as_str().into(), upgrade: window.upgrade })
    }

    /// Evaluates the facts at the time `now`.
    pub fn step(&mut self, now: i64, facts: &UpgradeFacts) -> Step {
        let mut step = Step::default();
        self.reduce_to(now);
        let plan = facts.plan.as_deref();
        let inferred = self.inferred(now, facts);
        self.plan = plan.map(|plan| (plan.title(), plan.phase.clone(), plan.progress));
        let call = call(facts, inferred.as_deref());
        self.window(now, facts, call, &mut step);
        let live = facts.silent_seconds.is_none_or(|silent| silent < SILENT);
        // A host that does not answer tells nothing new, so the shown status stays.
        if live {
            for machine in &facts.machines {
                self.look_at(now, machine, plan, inferred.as_deref(), &mut step);
            }
        }
        if !facts.machines.is_empty() {
            let there = |name: &String| facts.machines.iter().any(|machine| machine.node == *name);
            self.nodes.retain(|name, _| there(name));
            self.histories.retain(|name, _| there(name));
        }
        step
    }

    /// Reduces times in the future to `now`: the clock was set back since.
    fn reduce_to(&mut self, now: i64) {
        if let Some(window) = &mut self.window {
            window.reduce_to(now);
        }
        for history in self.histories.values_mut() {
            history.off = history.off.map(|since| since.min(now));
            history.down = history.down.map(|since| since.min(now));
        }
    }

    /// The host that is being emptied, concluded from its machines. One machine that is being evacuated is enough. So
    /// are two machines that leave, or are off although they should run; while the host's webhooks fail, one of these
    /// suffices.
    fn inferred(&self, now: i64, facts: &UpgradeFacts) -> Option<String> {
        if let Some(machine) = facts.machines.iter().find(|machine| machine.evacuating && !machine.host.is_empty()) {
            return Some(machine.host.clone());
        }
        let mut leaving: BTreeMap<&str, usize> = BTreeMap::new();
        for machine in &facts.machines {
            let host = self.host_of(machine);
            if (machine.migrating || self.was_put_off(now, machine)) && !host.is_empty() {
                *leaving.entry(host).or_default() += 1;
            }
        }
        let enough = if facts.webhooks_fail { 1 } else { 2 };
        let (host, _) = leaving.into_iter().filter(|(_, count)| *count >= enough).max_by_key(|(_, count)| *count)?;
        Some(host.to_owned())
    }

    /// Whether the machine is off or starting although it should run, and was not yet for long when the window opened.
    fn was_put_off(&self, now: i64, machine: &MachineFacts) -> bool {
        // What is still off when a window has lasted too long has other reasons. It would keep the window open for
        // ever, and the next upgrade would open none.
        let window = self.window.as_ref().filter(|window| !window.spent);
        let opened = window.map_or(now, |window| window.opened);
        let down = self.histories.get(&machine.node).and_then(|history| history.down);
        let off = matches!(machine.power, Power::Off | Power::Starting);
        off && machine.should_run && !is_long(down, opened)
    }

    fn host_of<'a>(&'a self, machine: &'a MachineFacts) -> &'a str {
        if !machine.host.is_empty() {
            return &machine.host;
        }
        self.nodes.get(&machine.node).map_or(machine.labelled_host.as_str(), |known| known.host.as_str())
    }

    fn window(&mut self, now: i64, facts: &UpgradeFacts, call: Option<(String, bool)>, step: &mut Step) {
        let signals = signals(facts);
        let Some(window) = &mut self.window else {
            let Some((cause, upgrade)) = call else { return };
            self.open(now, facts, cause, upgrade, signals, step);
            return;
        };
        // Before the first lists have arrived nothing can have changed. A restart must not make a stale plan look
        // fresh.
        let known = !facts.machines.is_empty();
        let spent = window.spent;
        let running = running(facts).filter(|_| known);
        let another = running.is_some_and(|plan| window.plan.as_ref().is_some_and(|last| *last != plan.uid));
        if let Some(plan) = running {
            window.plan = Some(plan.uid.clone());
        }
        if known && window.signals.replace(signals).is_some_and(|before| before != signals) {
            window.changed = now;
            // The change is progress, such as a plan that continues after a pause of a day, so the window suspends
            // again.
            window.spent &= now - window.opened >= LONGEST;
        }
        if let Some((cause, upgrade)) = call {
            window.called = now;
            // What has lasted too long is over when another upgrade begins.
            if upgrade && (!window.upgrade || spent && another) {
                let opened = if spent { now } else { window.opened };
                self.open(opened, facts, cause, upgrade, signals, step);
                return;
            }
        } else if !window.upgrade && facts.silent_seconds.is_some() {
            // A new process counts from its own first failure: the silence that the former process saw may not be over.
            window.called = now;
        } else {
            let (called, upgrade) = (window.called, window.upgrade);
            let at_rest =
                |machine: &MachineFacts| !machine.should_run || !machine.migrating && !self.was_put_off(now, machine);
            // A window that only silence opened does not depend on the machines.
            let settled = !upgrade || facts.machines.iter().all(at_rest);
            if settled && now - called >= SETTLES {
                self.close(now, facts, step);
                return;
            }
        }
        let Some(window) = &mut self.window else { return };
        if window.gets_spent(now, facts.running) {
            window.spent = true;
            // The suspended actions are due now.
            step.resync = true;
            let remedy = if window.upgrade {
                "Check the upgrade on Harvester; if it is over, its object there still shows it as running"
            } else {
                "Find out why Harvester does not answer"
            };
            let message = format!(
                "{}: nothing has changed for {} or it has lasted for {}. Nodes, zones and load balancers are treated \
                 as usual again. {remedy}",
                window.cause,
                span(now - window.changed),
                span(now - window.opened)
            );
            step.told.push(UpgradeEvent { about: About::Upgrade, warning: true, reason: "HostUpgradeStale", message });
        }
    }

    fn open(&mut self, now: i64, facts: &UpgradeFacts, cause: String, upgrade: bool, signals: u64, step: &mut Step) {
        if upgrade {
            let message = format!(
                "{cause}. The address of this Service stays; connections may end when a node moves or is shut down, \
                 and changes of load balancers wait until the upgrade is over"
            );
            step.told.push(UpgradeEvent {
                about: About::Services,
                warning: false,
                reason: "HostUpgradeStarted",
                message,
            });
        }
        self.forget_histories();
        for machine in &facts.machines {
            let before = self.histories.get(&machine.node).cloned().unwrap_or_default();
            let (first_host, first_addresses) = (self.host_of(machine).to_owned(), machine.addresses.clone());
            self.histories.insert(machine.node.clone(), NodeHistory { first_host, first_addresses, ..before });
        }
        self.window = Some(UpgradeWindow {
            opened: now,
            cause,
            changed: now,
            called: now,
            upgrade,
            spent: false,
            plan: Some(running(facts).map(|plan| plan.uid.clone()).unwrap_or_default()),
            signals: Some(signals),
        });
    }

    fn close(&mut self, now: i64, facts: &UpgradeFacts, step: &mut Step) {
        let Some(window) = self.window.take() else { return };
        step.resync = true;
        if window.upgrade {
            self.report = self.report_of(now, &window, facts);
            let failed = self.plan.as_ref().is_some_and(|(.., progress)| *progress == Progress::Failed);
            let message = self.report.clone();
            step.told.push(UpgradeEvent {
                about: About::Upgrade,
                warning: failed,
                reason: "HostUpgradeReport",
                message,
            });
        }
        self.forget_histories();
    }

    /// Forgets what the histories collected in this window.
    fn forget_histories(&mut self) {
        for history in self.histories.values_mut() {
            *history = history.beyond_window();
        }
    }

    fn report_of(&self, now: i64, window: &UpgradeWindow, facts: &UpgradeFacts) -> String {
        let mut parts = Vec::new();
        for machine in &facts.machines {
            let Some(history) = self.histories.get(&machine.node) else { continue };
            let mut words = Vec::new();
            if history.moves > 0 {
                let times = if history.moves == 1 { "once".to_owned() } else { format!("{} times", history.moves) };
                words.push(format!("moved {times}"));
            }
            if history.was_off > 0 {
                words.push(format!("was off for {}", span(history.was_off)));
            }
            let lost: Vec<&str> = history
                .first_addresses
                .iter()
                .filter(|address| !machine.addresses.contains(address))
                .map(String::as_str)
                .collect();
            if machine.addresses != history.first_addresses && !history.first_addresses.is_empty() {
                let now = machine.addresses.join(", ");
                words.push(format!("shows {now}, before {}", history.first_addresses.join(", ")));
            } else if !lost.is_empty() {
                words.push(format!("lost {}", lost.join(", ")));
            }
            if !words.is_empty() {
                parts.push(format!("node {} {}", machine.node, words.join(", ")));
            }
        }
        let nodes = if parts.is_empty() { "no node was moved or shut down".to_owned() } else { parts.join("; ") };
        let took = span(now - window.opened);
        match &self.plan {
            Some((title, phase, _)) => format!("{title} ({phase}), {took}: {nodes}"),
            None => format!("{}; it took {took}: {nodes}", ended(&window.cause)),
        }
    }

    fn look_at(
        &mut self,
        now: i64,
        machine: &MachineFacts,
        plan: Option<&PlanView>,
        inferred: Option<&str>,
        step: &mut Step,
    ) {
        let before = self.nodes.get(&machine.node).filter(|known| known.uid == machine.node_uid).cloned();
        let host = self.host_of(machine).to_owned();
        let history = self.histories.entry(machine.node.clone()).or_default();
        let opened = self.window.as_ref().map_or(now, |window| window.opened);
        history.follow(now, opened, machine, before.as_ref());
        let state = plan.and_then(|plan| plan.hosts.get(&host)).cloned().unwrap_or_default();
        let upgrade = self.window.as_ref().is_some_and(|window| window.upgrade);
        let view = MachineContext { machine, host: &host, state: &state, plan, inferred, upgrade, opened };
        let Some(reason) = view.reason(history, before.as_ref().map(|before| before.reason)) else { return };
        let since = before.as_ref().filter(|before| before.reason == reason).map_or(now, |before| before.since);
        let expect = view.expect(before.as_ref().map(|before| before.expect));
        let (uid, vm) = (machine.node_uid.clone(), machine.vm.clone());
        let status = NodeStatus { uid, vm, host, state, reason, since, expect };
        let news = before.is_none_or(|before| before.reason != reason);
        if upgrade && news && reason != Reason::Pending && history.told.insert(reason) {
            let warning = matches!(reason, Reason::ShutDown | Reason::Failed);
            let message = message(&status, plan);
            let about = About::Node(machine.node.clone());
            step.told.push(UpgradeEvent { about, warning, reason: reason.word(), message });
        }
        self.nodes.insert(machine.node.clone(), status);
    }
}

/// The decisive plan, if it is in progress.
fn running(facts: &UpgradeFacts) -> Option<&PlanView> {
    facts.plan.as_deref().filter(|plan| plan.progress == Progress::Running)
}

/// What opens a window, in words, and whether it is an upgrade.
fn call(facts: &UpgradeFacts, inferred: Option<&str>) -> Option<(String, bool)> {
    if let Some(plan) = running(facts) {
        return Some((format!("Harvester's hosts are being upgraded ({})", plan.title()), true));
    }
    if let Some(host) = inferred {
        return Some((
            format!("Machines of this cluster leave Harvester host {host}, as in an upgrade of hosts"),
            true,
        ));
    }
    facts.silent_seconds.filter(|silent| *silent >= SILENT)?;
    Some(("The Harvester API gives no usable answer".to_owned(), false))
}

/// The cause of a window as it reads when the window is over.
fn ended(cause: &str) -> String {
    cause.replacen(" leave ", " left ", 1).replacen(" are being upgraded", " were upgraded", 1)
}

/// Hash of the signals, which changes when one of them does.
fn signals(facts: &UpgradeFacts) -> u64 {
    let mut hasher = DefaultHasher::new();
    if let Some(plan) = &facts.plan {
        (&plan.uid, &plan.phase, plan.progress as u8, &plan.hosts).hash(&mut hasher);
    }
    for machine in &facts.machines {
        (&machine.node, &machine.host, machine.power, machine.migrating, machine.evacuating).hash(&mut hasher);
    }
    facts.silent_seconds.is_some_and(|silent| silent >= SILENT).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
