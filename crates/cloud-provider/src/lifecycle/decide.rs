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

/// A deletion that was refused, for lack of rights or by a webhook, is tried again, and told again, after this time, and after twice as
/// long each time that follows,
pub(super) const AFTER_REFUSAL: Duration = Duration::from_mins(10);
/// up to this.
const AFTER_REFUSALS: Duration = Duration::from_hours(1);

impl NodeState {
    /// The deletion of the Node was refused: from now on nobody asks for its machine for a while, and then two looks decide again.
    pub(super) fn refuse(&mut self, now: Instant) {
        let times = self.refused.as_ref().map_or(0, |refused| refused.times);
        self.refused = Some(Refused { at: now, times: times.saturating_add(1) });
        self.absent = 0;
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
    /// The same, if the cloud itself says now that this is the power state of the machine: pods are given up on it, or taken back.
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
            memory.absent = before + 1;
            match memory.absent {
                1 => Action::Watch(evidence),
                // A Node whose machine was never found under any name may have another name; a kubelet whose Node we deleted does
                // not register again before its restart.
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
mod tests {
    use super::*;
    use crate::test_support::node;

    fn with(ready: Option<Ready>) -> NodeView {
        NodeView { ready, provider_id: Some("harvester://vm".into()), ..node("n") }
    }

    fn gone() -> Answer {
        Answer { existence: Some(Existence::Gone("404 for guests/n".into())), power: None }
    }

    fn exists(power: Power) -> Answer {
        Answer { existence: Some(Existence::Exists), power: Some(power) }
    }

    fn unknown() -> Answer {
        Answer { existence: Some(Existence::Unknown("no answer".into())), power: None }
    }

    fn run(node: &NodeView, answers: impl IntoIterator<Item = Answer>) -> Action {
        let mut memory = NodeState::default();
        let decide = |answer| decide(node, answer, &mut memory, at(Instant::now(), None));
        answers.into_iter().map(decide).last().unwrap()
    }

    fn at(now: Instant, out_of_service_after: Option<Duration>) -> Circumstances {
        Circumstances { out_of_service_after, steady_since: now.checked_sub(Duration::from_hours(1)), now }
    }

    fn shutdown() -> Taint {
        Taint { key: SHUTDOWN.into(), value: None, effect: "NoSchedule".into(), time_added: None }
    }

    /// Framework spec 5.3, Test_NodesDeleted; but twice instead of once.
    #[test]
    fn a_node_is_deleted_only_if_not_ready_and_its_machine_is_proven_absent_twice_in_a_row() {
        let evidence = || "404 for guests/n".to_owned();
        for ready in [Some(Ready::False), Some(Ready::Unknown), None] {
            assert_eq!(run(&with(ready), [gone()]), Action::Watch(evidence()));
            assert_eq!(run(&with(ready), [gone(), gone()]), Action::Delete(evidence()));
            assert_eq!(
                run(&with(ready), [gone(), gone(), gone()]),
                Action::Delete(evidence()),
                "a failed deletion is repeated"
            );
            assert_eq!(run(&with(ready), [gone(), unknown(), gone()]), Action::Watch(evidence()));
            assert_eq!(run(&with(ready), [gone(), exists(Power::On), gone()]), Action::Watch(evidence()));
            assert_eq!(run(&with(ready), [unknown(), unknown()]), Action::Nothing);
            assert_eq!(run(&with(ready), [exists(Power::On), exists(Power::On)]), Action::Nothing);
        }
        assert_eq!(run(&with(Some(Ready::True)), [gone(), gone(), gone()]), Action::Nothing);
    }

    #[test]
    fn a_node_that_was_never_initialised_is_never_deleted() {
        // The Go framework does: a VM whose host name differs from its own loses its Node within seconds.
        let unknown = NodeView { provider_id: None, ..with(Some(Ready::False)) };
        assert_eq!(run(&unknown, [gone(), gone(), gone()]), Action::Nothing);
    }

    #[test]
    fn a_node_that_was_registered_anew_starts_from_nothing() {
        let mut memory = NodeState::default();
        decide(&with(Some(Ready::False)), gone(), &mut memory, at(Instant::now(), None));
        let anew = NodeView { uid: Uid("another".into()), ..with(Some(Ready::False)) };
        assert!(matches!(decide(&anew, gone(), &mut memory, at(Instant::now(), None)), Action::Watch(_)));
    }

    #[test]
    fn becoming_ready_takes_the_suspicion_back() {
        let mut memory = NodeState::default();
        decide(&with(Some(Ready::False)), gone(), &mut memory, at(Instant::now(), None));
        decide(&with(Some(Ready::True)), Answer::default(), &mut memory, at(Instant::now(), None));
        assert!(matches!(
            decide(&with(Some(Ready::False)), gone(), &mut memory, at(Instant::now(), None)),
            Action::Watch(_)
        ));
    }

    /// Framework spec 5.3, Test_NodesShutdown.
    #[test]
    fn a_machine_that_is_off_marks_its_node_until_the_node_is_ready() {
        let mut off = with(Some(Ready::Unknown));
        off.taints = vec![Taint { key: "other".into(), ..shutdown() }];
        let Action::SetTaints(taints) = run(&off, [exists(Power::Off)]) else { panic!("marked") };
        assert_eq!(taints, [off.taints[0].clone(), shutdown()]);
        off.taints = taints;
        assert_eq!(run(&off, [exists(Power::Off)]), Action::Nothing, "once");
        assert_eq!(run(&off, [exists(Power::On)]), Action::Nothing, "the taint stays until the kubelet answers");
        assert_eq!(run(&off, [exists(Power::Unknown("?".into()))]), Action::Nothing);
        off.ready = Some(Ready::True);
        assert_eq!(run(&off, [exists(Power::Off)]), Action::SetTaints(vec![off.taints[0].clone()]));
    }

    #[test]
    fn h9_a_replica_that_knows_nothing_lifts_the_shutdown_taint_of_a_node_that_is_ready() {
        let back = NodeView { taints: vec![shutdown()], ..with(Some(Ready::True)) };
        assert_eq!(run(&back, [Answer::default()]), Action::SetTaints(Vec::new()));
    }

    #[test]
    fn a_machine_that_was_off_for_long_is_out_of_service_if_that_is_wanted_and_until_its_node_is_ready() {
        let after = Duration::from_mins(5);
        let start = Instant::now();
        let mut off = NodeView { taints: vec![shutdown()], ..with(Some(Ready::Unknown)) };
        let mut memory = NodeState::default();
        let mut look = |node: &NodeView, power, wanted, seconds| {
            decide(node, exists(power), &mut memory, at(start + Duration::from_secs(seconds), wanted))
        };
        assert_eq!(look(&off, Power::Off, Some(after), 0), Action::Nothing);
        assert_eq!(look(&off, Power::Off, Some(after), 299), Action::Nothing);
        assert_eq!(look(&off, Power::Unknown("?".into()), Some(after), 300), Action::Nothing);
        assert_eq!(look(&off, Power::Off, Some(after), 301), Action::Nothing, "it may have run in between");
        let Action::Confirm(Power::Off, taints) = look(&off, Power::Off, Some(after), 601) else { panic!("due") };
        assert_eq!((taints[1].key.as_str(), taints[1].effect.as_str()), (OUT_OF_SERVICE, "NoExecute"));
        off.taints = taints;
        assert_eq!(look(&off, Power::Off, Some(after), 700), Action::Nothing, "once");
        off.ready = Some(Ready::True);
        assert_eq!(look(&off, Power::On, Some(after), 701), Action::SetTaints(Vec::new()));
        // An administrator's stays.
        off.taints = vec![Taint { value: Some("nodeshutdown".into()), key: OUT_OF_SERVICE.into(), ..shutdown() }];
        assert_eq!(look(&off, Power::On, Some(after), 702), Action::Nothing);
        let by_hand = NodeView { ready: Some(Ready::Unknown), taints: vec![shutdown()], ..off };
        for seconds in [800, 8000] {
            assert_eq!(look(&by_hand, Power::Off, None, seconds), Action::Nothing, "opt-in");
        }
    }

    /// Seen: a machine that was started while the API was away, tainted although it ran.
    #[test]
    fn what_a_cache_says_while_it_is_out_of_date_counts_for_nothing() {
        let after = Duration::from_secs(15);
        let start = Instant::now();
        let off = NodeView { taints: vec![shutdown()], ..with(Some(Ready::Unknown)) };
        let mut memory = NodeState::default();
        let mut look = |seconds, steady: Option<u64>| {
            let instant = |seconds| start + Duration::from_secs(seconds);
            let circumstances = Circumstances {
                out_of_service_after: Some(after),
                steady_since: steady.map(instant),
                now: instant(seconds),
            };
            decide(&off, exists(Power::Off), &mut memory, circumstances)
        };
        assert_eq!(look(0, Some(0)), Action::Nothing);
        assert_eq!(look(10, None), Action::Nothing, "the API is away");
        assert_eq!(look(60, None), Action::Nothing);
        assert_eq!(look(61, Some(61)), Action::Nothing, "back, and it has to be off for the whole time from now");
        assert_eq!(look(75, Some(61)), Action::Nothing);
        assert!(matches!(look(76, Some(61)), Action::Confirm(Power::Off, _)));
        // An outage between two looks, which nobody has seen, counts too.
        assert_eq!(look(80, Some(78)), Action::Nothing);
    }

    #[test]
    fn a_machine_that_runs_again_is_taken_back_when_the_cloud_says_so_itself() {
        let ours = Taint {
            key: OUT_OF_SERVICE.into(),
            value: Some(OURS.into()),
            effect: "NoExecute".into(),
            time_added: None,
        };
        let node = NodeView { taints: vec![shutdown(), ours], ..with(Some(Ready::Unknown)) };
        for power in [Power::On, Power::Unknown("the watch is away".into())] {
            assert_eq!(run(&node, [exists(power)]), Action::Confirm(Power::On, vec![shutdown()]));
        }
        assert_eq!(run(&node, [exists(Power::Off)]), Action::Nothing);
        assert_eq!(run(&node, [unknown()]), Action::Nothing);
    }

    #[test]
    fn after_a_refusal_a_node_rests_for_longer_each_time_until_it_is_ready_or_another_one() {
        let start = Instant::now();
        let lost = with(Some(Ready::Unknown));
        let mut memory = NodeState::default();
        for (times, minutes) in [(1, 10), (2, 20), (3, 40), (4, 60), (5, 60), (20, 60)] {
            while memory.refused.as_ref().map_or(0, |refused| refused.times) < times {
                decide(&lost, gone(), &mut memory, at(start, None));
                memory.refuse(start);
            }
            let pause = Duration::from_mins(minutes);
            assert!(memory.rests(&lost, start + pause - Duration::from_secs(1)), "{times}");
            assert!(!memory.rests(&lost, start + pause), "{times}");
        }
        assert!(!memory.rests(&with(Some(Ready::True)), start), "its taints are lifted at once");
        assert!(!memory.rests(&NodeView { uid: Uid("other".into()), ..lost.clone() }, start));
        assert_eq!(decide(&lost, gone(), &mut memory, at(start, None)), Action::Watch("404 for guests/n".into()));
    }

    #[test]
    fn a_taint_of_the_same_key_and_another_effect_is_another_taint() {
        let mut view = with(Some(Ready::True));
        view.taints = vec![Taint { effect: "NoExecute".into(), ..shutdown() }];
        assert_eq!(run(&view, [Answer::default()]), Action::Nothing);
    }

    #[test]
    fn the_cloud_is_asked_no_more_than_needed() {
        let empty = Answer::default();
        assert_eq!(next_question(&with(Some(Ready::True)), &empty), None);
        assert_eq!(next_question(&NodeView { deleting: true, ..with(None) }, &empty), None);
        assert_eq!(next_question(&with(None), &empty), Some(Question::Existence));
        assert_eq!(next_question(&with(None), &gone()), None);
        assert_eq!(next_question(&with(None), &unknown()), None);
        let there = Answer { existence: Some(Existence::Exists), power: None };
        assert_eq!(next_question(&with(None), &there), Some(Question::Power));
        assert_eq!(next_question(&with(None), &exists(Power::On)), None);
    }
}
