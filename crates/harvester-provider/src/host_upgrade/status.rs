//! The content of ConfigMap `kube-system/harvester-host-upgrade`: one line for users, and the whole state as JSON,
//! which the next process restores. Content that cannot be parsed counts as absent. Pure.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::decide::{HostUpgrade, NodeHistory, UpgradeWindow};
use super::facts::Progress;
use super::node_history::is_long;
use super::shown::{Expect, NodeStatus, Reason};

pub use contract::config_maps::host_upgrade::{STATUS, SUMMARY};
pub use contract::config_maps::{HOST_UPGRADE as NAME, NAMESPACE};

/// The new data of the ConfigMap, given that it contains `written`; `None` if nothing has to be written. If there is
/// nothing to report, the only write is the one that ends what `written` still shows: an open window, or a machine that
/// does not run.
pub fn news(upgrade: &HostUpgrade, written: Option<&BTreeMap<String, String>>) -> Option<BTreeMap<String, String>> {
    let down = upgrade.histories.values().any(|history| history.down_for_long);
    let told = upgrade.window.is_some() || down || !upgrade.nodes.is_empty() || !upgrade.report.is_empty();
    let stands = || {
        let former = written.map(|data| restore(data, 0)).unwrap_or_default();
        former.window.is_some() || !former.histories.is_empty()
    };
    if !told && !stands() {
        return None;
    }
    Some(data(upgrade)).filter(|data| written != Some(data))
}

/// The state of this size is indented, for people. A ConfigMap holds 1 MiB, and of thousands of Nodes the indentation
/// alone would take half of that.
const INDENTED: usize = 256 * 1024;

/// The data of the ConfigMap.
pub(super) fn data(upgrade: &HostUpgrade) -> BTreeMap<String, String> {
    let state = json(upgrade);
    let indented = serde_json::to_string_pretty(&state).expect("plain values are always valid JSON");
    let text = if indented.len() <= INDENTED { indented } else { state.to_string() };
    BTreeMap::from([(SUMMARY.to_owned(), summary(upgrade)), (STATUS.to_owned(), text)])
}

fn summary(upgrade: &HostUpgrade) -> String {
    let plan = upgrade.plan.as_ref().map(|(title, phase, _)| format!("{title}: {phase}")).unwrap_or_default();
    match upgrade.window.as_ref() {
        Some(window) if !window.upgrade => format!("{}{}", window.cause, spent(window)),
        Some(window) => {
            let active: Vec<String> = upgrade
                .nodes
                .iter()
                .filter(|(_, node)| node.reason.is_active())
                .map(|(name, node)| format!("{name} {}", node.reason.word()))
                .collect();
            let nodes = if active.is_empty() { "no node is touched now".to_owned() } else { active.join(", ") };
            let plan = if plan.is_empty() { &window.cause } else { &plan };
            format!("{plan}; {nodes}{}", spent(window))
        }
        None if upgrade.report.is_empty() => "no upgrade of Harvester's hosts is under way".to_owned(),
        None => format!("no upgrade of Harvester's hosts is under way; the last one: {}", upgrade.report),
    }
}

fn spent(window: &UpgradeWindow) -> &'static str {
    if window.spent { "; it has lasted for too long, nothing is suspended" } else { "" }
}

fn time(seconds: i64) -> String {
    Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

fn json(upgrade: &HostUpgrade) -> Value {
    let mut all = Map::new();
    if let Some(window) = &upgrade.window {
        let UpgradeWindow { opened, cause, changed, spent, upgrade: known, plan, .. } = window;
        let window = json!({"opened": time(*opened), "changed": time(*changed), "cause": cause, "suspended": !spent,
            "upgrade": known, "plan": plan});
        all.insert("window".to_owned(), window);
    }
    // A new process would take machines that have been off for days for ones that an upgrade has just put off.
    let kept = upgrade.histories.iter().filter(|(_, history)| upgrade.window.is_some() || history.down_for_long);
    let courses: Map<_, _> = kept.map(|(name, history)| (name.clone(), history_json(history))).collect();
    if upgrade.window.is_some() || !courses.is_empty() {
        all.insert("courses".to_owned(), courses.into());
    }
    if let Some((title, phase, progress)) = &upgrade.plan {
        let word = match progress {
            Progress::Idle => "idle",
            Progress::Succeeded => "succeeded",
            Progress::Failed => "failed",
            Progress::Running => "running",
        };
        all.insert("plan".to_owned(), json!({"name": title, "phase": phase, "progress": word}));
    }
    let nodes = upgrade.nodes.iter().map(|(name, node)| {
        let NodeStatus { uid, vm, host, state, reason, since, expect } = node;
        let value = json!({"uid": uid, "vm": vm, "host": host, "state": state, "reason": reason.word(),
            "since": time(*since),
            "expect": expect.word()});
        (name.clone(), value)
    });
    all.insert("nodes".to_owned(), nodes.collect::<Map<_, _>>().into());
    if !upgrade.report.is_empty() {
        all.insert("lastReport".to_owned(), json!(upgrade.report));
    }
    all.into()
}

fn history_json(history: &NodeHistory) -> Value {
    let told: Vec<&str> = history.told.iter().map(|reason| reason.word()).collect();
    json!({"told": told, "offSince": history.off.map(time), "downSince": history.down.map(time),
        "wasOffSeconds": history.was_off, "moves": history.moves, "firstHost": history.first_host,
        "firstAddresses": history.first_addresses})
}

/// Restores the state that a former process wrote. Times in the future are reduced to `now`.
pub fn restore(data: &BTreeMap<String, String>, now: i64) -> HostUpgrade {
    let parsed: Option<Value> = data.get(STATUS).and_then(|text| serde_json::from_str(text).ok());
    let Some(all) = parsed else { return HostUpgrade::default() };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let seconds = |value: &Value| Some(value.as_str()?.parse::<Timestamp>().ok()?.as_second().min(now));
    let entries = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let window = all.get("window").and_then(|window| {
        Some(UpgradeWindow {
            opened: seconds(&window["opened"])?,
            cause: text(&window["cause"]),
            changed: seconds(&window["changed"])?,
            called: now,
            upgrade: window["upgrade"] != false,
            spent: window["suspended"] == false,
            plan: window["plan"].as_str().map(str::to_owned),
            signals: None,
        })
    });
    let node = |value: &Value| {
        Some(NodeStatus {
            uid: text(&value["uid"]),
            vm: text(&value["vm"]),
            host: text(&value["host"]),
            state: text(&value["state"]),
            reason: Reason::parse(value["reason"].as_str()?)?,
            since: seconds(&value["since"])?,
            expect: Expect::parse(value["expect"].as_str()?)?,
        })
    };
    let history = |value: &Value| {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let off = seconds(&value["offSince"]);
        let down = seconds(&value["downSince"]).or(off);
        NodeHistory {
            told: list(&value["told"]).iter().filter_map(|word| Reason::parse(word.as_str()?)).collect(),
            off,
            down,
            down_for_long: is_long(down, now),
            was_off: value["wasOffSeconds"].as_i64().unwrap_or_default(),
            moves: value["moves"].as_u64().and_then(|moves| u32::try_from(moves).ok()).unwrap_or_default(),
            first_host: text(&value["firstHost"]),
            first_addresses: list(&value["firstAddresses"]).iter().map(text).collect(),
        }
    };
    HostUpgrade {
        window,
        nodes: entries(&all["nodes"]).iter().filter_map(|(name, value)| Some((name.clone(), node(value)?))).collect(),
        histories: entries(&all["courses"]).iter().map(|(name, value)| (name.clone(), history(value))).collect(),
        plan: None,
        report: text(&all["lastReport"]),
    }
}
