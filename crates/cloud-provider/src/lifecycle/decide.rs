//! What becomes of a Node, from its Ready condition and what the cloud says (framework spec 3).

use std::time::Duration;

use tokio::time::Instant;

use crate::provider::{Existence, Power};
use crate::view::{NodeView, Ready, Taint, Uid};

/// Taint of a Node whose machine is switched off.
pub const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

const EFFECT: &str = "NoSchedule";

/// Taint of a Node whose pods shall be moved although its kubelet cannot confirm that they are gone.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Value that tells our out-of-service taint from one that an administrator set, which is not ours to remove.
const OURS: &str = "machine-off";

/// Passes in a row in which the machine has to be proven absent. The Go framework deletes after one.
pub(super) const PROOFS: u32 = 2;

/// What the cloud has to be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    Existence,
    Power,
}

/// What the cloud has said so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) existence: Option<Existence>,
    pub(super) power: Option<Power>,
}

/// What is kept about a Node between passes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodeState {
    absent: u32,
    /// When the first of these proofs was seen.
    gone: Option<Instant>,
    uid: Option<Uid>,
    /// Since when the machine has been off, in every pass.
    off: Option<Instant>,
    /// That the deletion of the Node was refused. Of this Node: a webhook may refuse one and allow others.
    refused: Option<Refused>,
}

/// A deletion that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refused {
    at: Instant,
    times: u32,
}

/// A deletion that was refused, for lack of rights or by a webhook, is tried again, and told again, after this time,
/// and after twice as long each time that follows,
pub(super) const AFTER_REFUSAL: Duration = Duration::from_mins(10);
/// up to this.
const AFTER_REFUSALS: Duration = Duration::from_hours(1);

impl NodeState {
    /// The deletion of the Node was refused: from now on nobody asks for its machine for a while, and then two looks
    /// decide again.
    pub(super) fn refuse(&mut self, now: Instant) {
        let times = self.refused.as_ref().map_or(0, |refused| refused.times);
        self.refused = Some(Refused { at: now, times: times.saturating_add(1) });
        (self.absent, self.gone) = (0, None);
    }

    /// Whether nothing could be done about the machine of `node` now, whatever became of it.
    pub(super) fn rests(&self, node: &NodeView, now: Instant) -> bool {
        let Some(refused) = self.refused.as_ref().filter(|_| self.uid.as_ref() == Some(&node.uid)) else {
            return false;
        };
        let pause = AFTER_REFUSAL.saturating_mul(1 << (refused.times.clamp(1, 8) - 1)).min(AFTER_REFUSALS);
        node.ready != Some(Ready::True) && now.duration_since(refused.at) < pause
    }

    /// The machine was not off, whatever the caches say.
    pub(super) fn runs(&mut self) {
        self.off = None;
    }
}

/// What a decision depends on beside Node, cloud and memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Circumstances {
    /// `--node-out-of-service-after`.
    pub(super) out_of_service_after: Option<Duration>,
    /// See [`Instances::steady_since`](crate::provider::Instances::steady_since).
    pub(super) steady_since: Option<Instant>,
    pub(super) now: Instant,
}

impl NodeState {
    /// In so many passes in a row the machine was proven absent.
    pub(super) fn proofs(&self) -> u32 {
        self.absent
    }
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// The machine seems to be gone: one more look decides.
    Watch(String),
    SetTaints(Vec<Taint>),
    /// The same, if the cloud itself says now that this is the power state of the machine: pods are given up on it, or
    /// taken back.
    Confirm(Power, Vec<Taint>),
    /// The machine is gone, by this evidence.
    Delete(String),
}

/// A Ready Node is never asked for, nor is one that is being deleted; power only of a machine that exists.
pub(super) fn next_question(node: &NodeView, answer: &Answer) -> Option<Question> {
    if node.ready == Some(Ready::True) || node.deleting {
        return None;
    }
    match (&answer.existence, &answer.power) {
        (None, _) => Some(Question::Existence),
        (Some(Existence::Exists), None) => Some(Question::Power),
        _ => None,
    }
}

/// Whether the Node carries the shutdown taint.
fn is_shut_down(node: &NodeView) -> bool {
    node.taints.iter().any(is_shutdown_taint)
}

fn is_shutdown_taint(taint: &Taint) -> bool {
    taint.key == SHUTDOWN && taint.effect == EFFECT
}

fn is_our_out_of_service_taint(taint: &Taint) -> bool {
    taint.key == OUT_OF_SERVICE && taint.value.as_deref() == Some(OURS)
}

pub(super) fn decide(node: &NodeView, answer: Answer, memory: &mut NodeState, circumstances: Circumstances) -> Action {
    let Circumstances { out_of_service_after, steady_since, now } = circumstances;
    let uid = Some(node.uid.clone());
    if memory.uid != uid {
        *memory = NodeState { uid, ..NodeState::default() };
    }
    let before = std::mem::take(&mut memory.absent);
    let gone_before = memory.gone.take();
    let off_before = memory.off.take();
    if node.deleting {
        return Action::Nothing;
    }
    if node.ready == Some(Ready::True) {
        // A cloud that claims otherwise is wrong: the kubelet runs.
        let ours = |taint: &Taint| is_shutdown_taint(taint) || is_our_out_of_service_taint(taint);
        if node.taints.iter().any(ours) {
            return Action::SetTaints(node.taints.iter().filter(|taint| !ours(taint)).cloned().collect());
        }
        return Action::Nothing;
    }
    match (answer.existence, answer.power) {
        (Some(Existence::Gone(evidence)), _) => {
            // A machine that seemed to be gone before the watches last failed is looked for anew.
            let Some(steady) = steady_since else { return Action::Nothing };
            let since = gone_before.filter(|since| *since >= steady);
            memory.absent = if since.is_some() { before + 1 } else { 1 };
            memory.gone = Some(since.unwrap_or(now));
            match memory.absent {
                1 => Action::Watch(evidence),
                // A Node whose machine was never found under any name may have another name; a kubelet whose Node we
                // deleted does not register again before its restart.
                _ if node.provider_id.is_none() => Action::Nothing,
                count if count >= PROOFS => Action::Delete(evidence),
                _ => Action::Nothing,
            }
        }
        // What a cache said before it was up to date again does not count: the machine may have been started meanwhile.
        (Some(Existence::Exists), Some(Power::Off)) if steady_since.is_some() => {
            let since = *memory.off.insert(off_before.unwrap_or(now).max(steady_since.unwrap_or(now)));
            let mut taints = node.taints.clone();
            if !is_shut_down(node) {
                taints.push(Taint { key: SHUTDOWN.into(), value: None, effect: EFFECT.into(), time_added: None });
            }
            let due = out_of_service_after.is_some_and(|after| now.duration_since(since) >= after);
            if due && !node.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE) {
                let (value, effect) = (Some(OURS.into()), "NoExecute".into());
                taints.push(Taint { key: OUT_OF_SERVICE.into(), value, effect, time_added: None });
                return Action::Confirm(Power::Off, taints);
            }
            if taints == node.taints { Action::Nothing } else { Action::SetTaints(taints) }
        }
        // Its pods run, or are about to. (The other taint stays until the kubelet runs.)
        (Some(Existence::Exists), Some(Power::On | Power::Unknown(_)))
            if node.taints.iter().any(is_our_out_of_service_taint) =>
        {
            let others = node.taints.iter().filter(|taint| !is_our_out_of_service_taint(taint));
            Action::Confirm(Power::On, others.cloned().collect())
        }
        _ => Action::Nothing,
    }
}

#[cfg(test)]
mod tests;
