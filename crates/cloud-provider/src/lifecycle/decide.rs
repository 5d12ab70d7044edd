//! What becomes of a Node, from its Ready condition and what the cloud says (framework spec 3).

use crate::provider::{Existence, Power};
use crate::view::{NodeView, Ready, Taint, Uid};

/// Taint of a Node whose machine is switched off.
pub const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

const EFFECT: &str = "NoSchedule";

/// Passes in a row in which the machine has to be proven absent. The Go framework deletes after one.
const PROOFS: u32 = 2;

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
pub(super) struct Memory {
    absent: u32,
    uid: Option<Uid>,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// The machine seems to be gone: one more look decides.
    Watch(String),
    SetTaints(Vec<Taint>),
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
pub(super) fn is_shut_down(node: &NodeView) -> bool {
    node.taints.iter().any(is_shutdown_taint)
}

fn is_shutdown_taint(taint: &Taint) -> bool {
    taint.key == SHUTDOWN && taint.effect == EFFECT
}

pub(super) fn decide(node: &NodeView, answer: Answer, memory: &mut Memory) -> Action {
    let uid = Some(node.uid.clone());
    if memory.uid != uid {
        *memory = Memory { absent: 0, uid };
    }
    let before = std::mem::take(&mut memory.absent);
    if node.deleting {
        return Action::Nothing;
    }
    if node.ready == Some(Ready::True) {
        // A cloud that claims otherwise is wrong: the kubelet runs.
        if is_shut_down(node) {
            return Action::SetTaints(node.taints.iter().filter(|taint| !is_shutdown_taint(taint)).cloned().collect());
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
        (Some(Existence::Exists), Some(Power::Off)) if !is_shut_down(node) => {
            let shutdown = Taint { key: SHUTDOWN.into(), value: None, effect: EFFECT.into(), time_added: None };
            Action::SetTaints(node.taints.iter().cloned().chain([shutdown]).collect())
        }
        // The taint of a machine that runs again stays until its kubelet does.
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
        let mut memory = Memory::default();
        answers.into_iter().map(|answer| decide(node, answer, &mut memory)).last().unwrap()
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
        let mut memory = Memory::default();
        decide(&with(Some(Ready::False)), gone(), &mut memory);
        let anew = NodeView { uid: Uid("another".into()), ..with(Some(Ready::False)) };
        assert!(matches!(decide(&anew, gone(), &mut memory), Action::Watch(_)));
    }

    #[test]
    fn becoming_ready_takes_the_suspicion_back() {
        let mut memory = Memory::default();
        decide(&with(Some(Ready::False)), gone(), &mut memory);
        decide(&with(Some(Ready::True)), Answer::default(), &mut memory);
        assert!(matches!(decide(&with(Some(Ready::False)), gone(), &mut memory), Action::Watch(_)));
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
