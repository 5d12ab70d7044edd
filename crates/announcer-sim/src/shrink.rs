//! From a run that breaks a promise to the shortest one that breaks the same.

use std::time::Duration;

use crate::sabotage::Sabotage;
use crate::scenario::{Address, Kind, Scenario, Wish};
use crate::world::run;

/// Fewer faults, calmer weather, fewer nodes and Services, shorter faults, as long as the same promise is broken.
pub fn shrink(scenario: &Scenario, sabotage: Option<Sabotage>) -> Scenario {
    let promise = |candidate: &Scenario| run(candidate, sabotage, false).violation.map(|violation| violation.promise);
    let Some(broken) = promise(scenario) else { return scenario.clone() };
    let mut best = scenario.clone();
    while let Some(smaller) = smaller(&best).into_iter().find(|candidate| promise(candidate) == Some(broken)) {
        best = smaller;
    }
    best
}

fn smaller(scenario: &Scenario) -> Vec<Scenario> {
    let mut candidates = Vec::new();
    let mut push = |change: &dyn Fn(&mut Scenario)| {
        let mut candidate = scenario.clone();
        change(&mut candidate);
        candidates.push(candidate);
    };
    for index in 0..scenario.faults.len() {
        push(&|candidate| {
            candidate.faults.remove(index);
        });
    }
    if scenario.loss > 0.0 {
        push(&|candidate| candidate.loss = 0.0);
    }
    if scenario.refusals > 0.0 {
        push(&|candidate| candidate.refusals = 0.0);
    }
    if scenario.busy_us > 300 {
        push(&|candidate| candidate.busy_us = 300);
    }
    let second = |service: &Wish| service.address == Address::Second;
    let of_one = |kind: &Kind| matches!(kind, Kind::Nic(..) | Kind::SplitLan(..));
    if scenario.nics > 1
        && !scenario.services.iter().any(second)
        && !scenario.faults.iter().any(|fault| of_one(&fault.kind))
    {
        push(&|candidate| candidate.nics = 1);
    }
    if scenario.fail_back {
        push(&|candidate| candidate.fail_back = false);
    }
    let named = scenario.faults.iter().filter_map(|fault| fault.kind.last_node());
    let placed = scenario.services.iter().filter_map(|service| service.local.as_ref()?.last().copied());
    if named.chain(placed).all(|n| n + 1 < scenario.nodes) && scenario.nodes > 1 {
        push(&|candidate| candidate.nodes -= 1);
    }
    let last = scenario.services.len() - 1;
    let needed = scenario.faults.iter().any(|fault| fault.kind.service() == Some(last));
    if last > 0 && !needed {
        push(&|candidate| {
            candidate.services.pop();
        });
    }
    for (index, service) in scenario.services.iter().enumerate() {
        if service.address != Address::V4 {
            push(&|candidate| candidate.services[index].address = Address::V4);
        }
        if service.local.is_some() {
            push(&|candidate| candidate.services[index].local = None);
        }
    }
    for (index, fault) in scenario.faults.iter().enumerate() {
        if fault.lasts > Duration::from_millis(100) {
            push(&|candidate| candidate.faults[index].lasts = fault.lasts / 2);
        }
    }
    candidates
}
