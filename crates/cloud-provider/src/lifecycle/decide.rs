//! Decides what happens to a Node, from its Ready condition and the answers of the cloud (framework spec 3).

use std::time::Duration;

use contract::keys::kubernetes::OUT_OF_SERVICE;
use tokio::time::Instant;

use crate::provider::{Existence, Power};
use crate::view::{NodeView, Ready, Taint, Uid};

/// Taint of a Node whose machine is switched off.
pub const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

const EFFECT: &str = "NoSchedule";

/// Value of the controller's own out-of-service taint. A taint that an administrator has set has another value and is
/// not removed.
const OURS: &str = "machine-off";

/// Number of consecutive passes in which the machine has to be proven absent. The Go framework deletes after one.
pub(super) const PROOFS: u32 = 2;

/// A question for the cloud.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    Existence,
    Power,
}

/// The answers of the cloud so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CloudAnswers {
    pub(super) existence: Option<Existence>,
    pub(super) power: Option<Power>,
}

/// What is remembered of a Node's machine from one pass to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct MachineHistory {
    /// Number of consecutive passes in which the machine was proven absent.
    absent: u32,
    /// Time of the first of these proofs.
    gone: Option<Instant>,
    uid: Option<Uid>,
    /// Why the Node was kept in the last pass.
    kept: Option<Kept>,
    /// Since when the machine has been off, in every pass.
    off: Option<Instant>,
    /// The refused deletion of this Node. It is stored per Node, because a webhook may refuse one deletion and allow
    /// others.
    refused: Option<Refused>,
}

/// Why a Node whose machine was not found is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kept {
    /// The cloud cannot tell. Its text may differ from pass to pass.
    NotKnown,
    /// Another machine is probably the Node's, as the text says.
    Elsewhere(String),
}

/// A deletion that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refused {
    at: Instant,
    times: u32,
}

/// First pause after a refused deletion, whether by missing rights or by a webhook, which may wait for volumes to be
/// detached. The deletion is tried and reported again after it. The pause doubles with each further refusal.
pub(super) const AFTER_REFUSAL: Duration = Duration::from_secs(30);
/// The longest pause after refused deletions.
const AFTER_REFUSALS: Duration = Duration::from_hours(1);

impl MachineHistory {
    /// Records that the deletion of the Node was refused. Its machine is not asked about for a while, and then two
    /// checks are needed again.
    pub(super) fn refuse(&mut self, now: Instant) {
        let times = self.refused.as_ref().map_or(0, |refused| refused.times);
        self.refused = Some(Refused { at: now, times: times.saturating_add(1) });
        (self.absent, self.gone) = (0, None);
    }

    /// Whether `node` is in the pause after a refused deletion, so that a check of its machine would have no effect.
    pub(super) fn rests(&self, node: &NodeView, now: Instant) -> bool {
        let Some(refused) = self.refused.as_ref().filter(|_| self.uid.as_ref() == Some(&node.uid)) else {
            return false;
        };
        let pause = AFTER_REFUSAL.saturating_mul(1 << (refused.times.clamp(1, 8) - 1)).min(AFTER_REFUSALS);
        node.ready != Some(Ready::True) && now.duration_since(refused.at) < pause
    }

    /// Records that the machine was not off, whatever the caches say.
    pub(super) fn runs(&mut self) {
        self.off = None;
    }

    /// Number of consecutive passes in which the machine was proven absent.
    pub(super) fn proofs(&self) -> u32 {
        self.absent
    }
}

/// The inputs of a decision besides the Node, the answers of the cloud and the stored state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Circumstances {
    /// `--node-out-of-service-after`.
    pub(super) out_of_service_after: Option<Duration>,
    /// See [`Instances::steady_since`](crate::provider::Instances::steady_since).
    pub(super) steady_since: Option<Instant>,
    pub(super) now: Instant,
}

/// The action that follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// The machine seems to be gone: the next check decides.
    Watch(String),
    /// It is not known whether the machine exists, for this reason, so the Node is kept. It was known before.
    Keep(String),
    /// The Node is kept because another machine is probably its machine, which was not told yet.
    KeepElsewhere(String),
    SetTaints(Vec<Taint>),
    /// As `SetTaints`, if the cloud, asked directly, confirms this power state: pods on the machine are given up, or
    /// taken back.
    Confirm(Power, Vec<Taint>),
    /// The machine is gone, by this evidence.
    Delete(String),
}

/// The decision about one Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LifecycleDecision {
    /// What is to be done.
    pub(super) action: Action,
    /// What is to be remembered for the next pass.
    pub(super) history: MachineHistory,
}

/// The next question for the cloud. None about a Ready Node, or one that is being deleted; the power state only of a
/// machine that exists.
pub(super) fn next_question(node: &NodeView, answers: &CloudAnswers) -> Option<Question> {
    if node.ready == Some(Ready::True) || node.deleting {
        return None;
    }
    match (&answers.existence, &answers.power) {
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

/// Decides from the answers of the cloud and from what was remembered `before`. A pass that proves nothing ends what
/// had been proven until then.
pub(super) fn decide(
    node: &NodeView,
    answers: CloudAnswers,
    before: &MachineHistory,
    circumstances: Circumstances,
) -> LifecycleDecision {
    let Circumstances { out_of_service_after, steady_since, now } = circumstances;
    let anew = MachineHistory { uid: Some(node.uid.clone()), ..MachineHistory::default() };
    let before = if before.uid == anew.uid { before } else { &anew };
    let unproven = MachineHistory { refused: before.refused.clone(), ..anew.clone() };
    if node.deleting {
        return LifecycleDecision { action: Action::Nothing, history: unproven };
    }
    if node.ready == Some(Ready::True) {
        return LifecycleDecision { action: lift_taints(node), history: unproven };
    }
    match (answers.existence, answers.power, steady_since) {
        (Some(Existence::Unknown(why)), ..) => {
            // Without a provider ID the controller of new Nodes tells what is missing.
            let is_news = node.provider_id.is_some() && before.kept != Some(Kept::NotKnown);
            let action = if is_news { Action::Keep(why) } else { Action::Nothing };
            LifecycleDecision { action, history: MachineHistory { kept: Some(Kept::NotKnown), ..unproven } }
        }
        (Some(Existence::Elsewhere(why)), ..) => {
            let kept = Some(Kept::Elsewhere(why.clone()));
            let action = if before.kept == kept { Action::Nothing } else { Action::KeepElsewhere(why) };
            LifecycleDecision { action, history: MachineHistory { kept, ..unproven } }
        }
        // A proof from before the last failure of the watches does not count.
        (Some(Existence::Gone(evidence)), _, Some(steady)) => {
            let since = before.gone.filter(|since| *since >= steady);
            let absent = if since.is_some() { before.absent + 1 } else { 1 };
            let action = match absent {
                1 => Action::Watch(evidence),
                // If the machine was never found, the Node may have a different name than its machine. A wrongly
                // deleted Node would not come back: the kubelet registers only when it starts.
                _ if node.provider_id.is_none() => Action::Nothing,
                count if count >= PROOFS => Action::Delete(evidence),
                _ => Action::Nothing,
            };
            let history = MachineHistory { absent, gone: Some(since.unwrap_or(now)), ..unproven };
            LifecycleDecision { action, history }
        }
        // Answers from a cache before it was up to date again do not count: the machine may have been started
        // meanwhile.
        (Some(Existence::Exists), Some(Power::Off), Some(steady)) => {
            let since = before.off.unwrap_or(now).max(steady);
            let due = out_of_service_after.is_some_and(|after| now.duration_since(since) >= after);
            let history = MachineHistory { off: Some(since), ..unproven };
            LifecycleDecision { action: mark_off(node, due), history }
        }
        // The pods run, or are about to run. (The shutdown taint stays until the kubelet runs.)
        (Some(Existence::Exists), Some(Power::On | Power::Unknown(_)), _)
            if node.taints.iter().any(is_our_out_of_service_taint) =>
        {
            let others = node.taints.iter().filter(|taint| !is_our_out_of_service_taint(taint));
            LifecycleDecision { action: Action::Confirm(Power::On, others.cloned().collect()), history: unproven }
        }
        _ => LifecycleDecision { action: Action::Nothing, history: unproven },
    }
}

/// The Node is Ready. The kubelet runs, so an answer that its machine is off would be wrong.
fn lift_taints(node: &NodeView) -> Action {
    let ours = |taint: &Taint| is_shutdown_taint(taint) || is_our_out_of_service_taint(taint);
    if node.taints.iter().any(ours) {
        return Action::SetTaints(node.taints.iter().filter(|taint| !ours(taint)).cloned().collect());
    }
    Action::Nothing
}

/// The machine is off, and if `due` for so long that its pods are given up.
fn mark_off(node: &NodeView, due: bool) -> Action {
    let mut taints = node.taints.clone();
    if !is_shut_down(node) {
        taints.push(Taint { key: SHUTDOWN.into(), value: None, effect: EFFECT.into(), time_added: None });
    }
    if due && !node.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE) {
        let (value, effect) = (Some(OURS.into()), "NoExecute".into());
        taints.push(Taint { key: OUT_OF_SERVICE.into(), value, effect, time_added: None });
        return Action::Confirm(Power::Off, taints);
    }
    if taints == node.taints { Action::Nothing } else { Action::SetTaints(taints) }
}

#[cfg(test)]
mod tests;
