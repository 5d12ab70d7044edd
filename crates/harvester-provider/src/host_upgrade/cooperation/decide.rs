//! Decides what is done for a Node whose machine is about to move or to be shut down. The addresses of the Node are
//! handed over, and it is cordoned and drained if the machine goes off. All of this is undone when the machine is back.
//! Pure: takes facts of the Node, returns what to write and whether to evict.

use cloud_provider::view::{NodeView, Ready};
use harvester_api::keys::cloudprovider;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::super::facts::Power;
use super::super::shown::{Expect, NodeStatus, Reason};

/// Seconds that evictions wait for announcers to hand over addresses. An announcer that does not answer must not
/// prevent the drain.
pub const HANDS_OVER: i64 = 10;

/// The facts of one Node that the decision depends on.
#[derive(Debug, Clone, Copy)]
#[allow(clippy::struct_excessive_bools)] // independent facts, not the states of one machine
pub struct CooperationCase<'a> {
    /// Unix seconds.
    pub now: i64,
    /// Longest duration of a drain, in seconds.
    pub limit: i64,
    /// Cooperation is switched on, and an upgrade is in progress that has not lasted too long.
    pub wanted: bool,
    /// The Node.
    pub node: &'a NodeView,
    /// The published status of the Node.
    pub status: Option<&'a NodeStatus>,
    /// Whether its machine runs.
    pub power: Power,
    /// Another Node can take its pods.
    pub refuge: bool,
    /// Another Node can take its addresses.
    pub heir: bool,
    /// An announcer on the Node still announces an address.
    pub announces: bool,
}

/// What the upgrade does with the machine of the Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MachineMove {
    /// The machine stays where it is.
    Stays,
    /// The machine moves to another host.
    Moves,
    /// The machine is about to be shut down.
    GoesOff,
    /// The machine is off, or starts again: what was done for the Node stays in place.
    Away,
}

/// The decision for one Node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CooperationDecision {
    /// The merge patch of the Node, and the change that its Event reports.
    pub patch: Option<(Value, Change)>,
    /// Whether pods are evicted now.
    pub evict: bool,
}

/// What a patch changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Announcers hand over the addresses of the Node.
    HandsOver,
    /// As `HandsOver`, and the Node is cordoned for a drain.
    Drains,
    /// The time of the mark lay in the future and is now.
    MarksAnew,
    /// Everything is undone.
    TakenBack {
        /// The patch also uncordons the Node.
        uncordoned: bool,
    },
}

impl CooperationCase<'_> {
    fn machine_move(&self) -> MachineMove {
        let Some(status) = self.status.filter(|_| self.wanted) else { return MachineMove::Stays };
        match (status.reason, status.expect) {
            // A machine that is already off has nothing to hand over.
            (Reason::PreDraining | Reason::LiveMigrating, _) if self.power == Power::Off => MachineMove::Away,
            (Reason::PreDraining, Expect::Shutdown) => MachineMove::GoesOff,
            (Reason::PreDraining | Reason::LiveMigrating, _) => MachineMove::Moves,
            (Reason::ShutDown | Reason::Rebooting | Reason::Restoring, _) => MachineMove::Away,
            (Reason::Pending | Reason::Paused | Reason::Failed | Reason::UpToDate, _) => MachineMove::Stays,
        }
    }

    /// Time of the mark on the Node, in Unix seconds. A mark that cannot be parsed counts as very old, so that it keeps
    /// no drain going.
    fn marked(&self) -> Option<i64> {
        let text = self.node.annotations.get(cloudprovider::HAND_OVER)?;
        Some(text.parse::<Timestamp>().map_or(0, Timestamp::as_second))
    }

    /// Whether this controller has cordoned the Node.
    fn ours(&self) -> bool {
        self.node.annotations.contains_key(cloudprovider::CORDONED)
    }

    /// Whether the machine runs and serves again. During an upgrade the kubelet has to report ready, too. After the
    /// upgrade a Node that is not ready for another reason is uncordoned nevertheless. A machine whose state is unknown
    /// does not count as back: it may be off.
    fn is_back(&self) -> bool {
        let ready = matches!(self.node.ready, Some(Ready::True) | None);
        self.power == Power::On && (ready || !self.wanted)
    }

    /// Decides what is done for the Node.
    pub fn decide(&self) -> CooperationDecision {
        match self.machine_move() {
            MachineMove::Stays => self.take_back(),
            MachineMove::Away => CooperationDecision::default(),
            // What is cordoned for a drain is one that has begun.
            MachineMove::GoesOff if self.refuge || self.ours() => self.drain(),
            // Pods that have no other place stay, and the addresses go.
            MachineMove::GoesOff | MachineMove::Moves => self.hand_over(),
        }
    }

    fn hand_over(&self) -> CooperationDecision {
        if self.heir && self.marked().is_none() { self.begin(false) } else { CooperationDecision::default() }
    }

    fn take_back(&self) -> CooperationDecision {
        if (self.marked().is_none() && !self.ours()) || !self.is_back() {
            return CooperationDecision::default();
        }
        // If an operator has uncordoned the Node in the meantime, that decision stands.
        let uncordoned = self.ours() && self.node.unschedulable;
        let mut patch = self.patch(&Value::Null, &Value::Null);
        if uncordoned {
            patch["spec"] = json!({"unschedulable": null});
        }
        CooperationDecision { patch: Some((patch, Change::TakenBack { uncordoned })), evict: false }
    }

    fn drain(&self) -> CooperationDecision {
        let Some(since) = self.marked().filter(|_| self.ours() || self.node.unschedulable) else {
            // A Node that an operator has uncordoned during the drain is left alone.
            return if self.ours() { CooperationDecision::default() } else { self.begin(true) };
        };
        // The clock was set back since. Nothing would be over before it shows that time again.
        if since > self.now {
            return self.mark_anew();
        }
        let lasts = self.now - since;
        let handed_over = !self.announces || lasts >= HANDS_OVER;
        CooperationDecision { patch: None, evict: self.node.unschedulable && handed_over && lasts < self.limit }
    }

    fn mark_anew(&self) -> CooperationDecision {
        let cordoned = if self.ours() { json!("true") } else { Value::Null };
        CooperationDecision { patch: Some((self.patch(&self.mark(), &cordoned), Change::MarksAnew)), evict: false }
    }

    /// The mark of this moment.
    fn mark(&self) -> Value {
        json!(Timestamp::from_second(self.now).unwrap_or_default().to_string())
    }

    fn begin(&self, drain: bool) -> CooperationDecision {
        let cordon = drain && !self.node.unschedulable;
        let mut patch = self.patch(&self.mark(), &if cordon { json!("true") } else { Value::Null });
        if cordon {
            patch["spec"] = json!({"unschedulable": true});
            // The patch carries the resourceVersion as precondition: that the Node is not cordoned is only known for
            // the version that was read.
            patch["metadata"]["resourceVersion"] = json!(self.node.resource_version);
        }
        CooperationDecision {
            patch: Some((patch, if drain { Change::Drains } else { Change::HandsOver })),
            evict: false,
        }
    }

    fn patch(&self, hand_over: &Value, cordoned: &Value) -> Value {
        let mut annotations = json!({cloudprovider::HAND_OVER: hand_over});
        if self.ours() || !cordoned.is_null() {
            annotations[cloudprovider::CORDONED] = cordoned.clone();
        }
        json!({"metadata": {"uid": self.node.uid.0, "annotations": annotations}})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_767_225_600;
    const SINCE: &str = "2026-01-01T00:00:00Z";

    fn status(reason: Reason, expect: Expect) -> NodeStatus {
        NodeStatus {
            uid: "uid-of-n".into(),
            vm: "n".into(),
            host: "host-1".into(),
            state: String::new(),
            reason,
            since: 0,
            expect,
        }
    }

    fn node(annotations: &[&str], unschedulable: bool) -> NodeView {
        let mut node = crate::load_balancers::build::node("n", &[]);
        for key in annotations {
            node.annotations.insert(key, if *key == cloudprovider::HAND_OVER { SINCE } else { "true" });
        }
        NodeView { unschedulable, ready: Some(Ready::True), ..node }
    }

    fn case<'a>(node: &'a NodeView, status: &'a NodeStatus) -> CooperationCase<'a> {
        let (status, power) = (Some(status), Power::On);
        let (refuge, heir) = (true, true);
        CooperationCase { now: NOW, limit: 300, wanted: true, node, status, power, refuge, heir, announces: false }
    }

    #[test]
    fn a_machine_that_moves_hands_over_and_one_that_goes_off_is_cordoned_as_well() {
        let fresh = node(&[], false);
        for (reason, expect, change) in [
            (Reason::PreDraining, Expect::Shutdown, Some(Change::Drains)),
            (Reason::PreDraining, Expect::Migrate, Some(Change::HandsOver)),
            (Reason::PreDraining, Expect::Nothing, Some(Change::HandsOver)),
            (Reason::LiveMigrating, Expect::Migrate, Some(Change::HandsOver)),
            (Reason::Pending, Expect::Shutdown, None),
            (Reason::Paused, Expect::Shutdown, None),
            (Reason::Rebooting, Expect::Shutdown, None),
            (Reason::ShutDown, Expect::Shutdown, None),
            (Reason::UpToDate, Expect::Nothing, None),
        ] {
            let status = status(reason, expect);
            let usual = case(&fresh, &status);
            let found = |case: CooperationCase<'_>| case.decide().patch.map(|(_, change)| change);
            assert_eq!(found(usual), change, "{reason:?} {expect:?}");
            let addresses_only = change.map(|_| Change::HandsOver);
            let with_pods = change.filter(|change| *change == Change::Drains);
            for (name, case, change) in [
                ("not wanted", CooperationCase { wanted: false, ..usual }, None),
                ("off already", CooperationCase { power: Power::Off, ..usual }, None),
                ("no other place", CooperationCase { refuge: false, heir: false, ..usual }, None),
                ("none for its pods", CooperationCase { refuge: false, ..usual }, addresses_only),
                ("none for its addresses", CooperationCase { heir: false, ..usual }, with_pods),
            ] {
                assert_eq!(found(case), change, "{name}: {reason:?} {expect:?}");
            }
        }
    }

    #[test]
    fn the_patch_names_the_node_that_was_seen_and_a_cordon_only_what_was_read() {
        let (fresh, off) = (node(&[], false), status(Reason::PreDraining, Expect::Shutdown));
        let (patch, _) = case(&fresh, &off).decide().patch.unwrap();
        let expected = json!({"metadata": {"uid": "uid-of-n", "resourceVersion": "100",
            "annotations": {cloudprovider::HAND_OVER: SINCE, cloudprovider::CORDONED: "true"}},
            "spec": {"unschedulable": true}});
        assert_eq!(patch, expected);
        // Another's cordon stays another's.
        let cordoned = node(&[], true);
        let (patch, _) = case(&cordoned, &off).decide().patch.unwrap();
        assert_eq!(patch, json!({"metadata": {"uid": "uid-of-n", "annotations": {cloudprovider::HAND_OVER: SINCE}}}));
    }

    #[test]
    fn pods_are_evicted_after_the_addresses_have_gone_and_only_for_so_long() {
        let off = status(Reason::PreDraining, Expect::Shutdown);
        let both = [cloudprovider::HAND_OVER, cloudprovider::CORDONED];
        for (name, annotations, unschedulable, seconds, announces, evicts) in [
            ("handed over", &both[..], true, 0, false, true),
            ("still announces", &both, true, 9, true, false),
            ("an announcer that does not hand over", &both, true, 10, true, true),
            ("almost over", &both, true, 299, false, true),
            ("over", &both, true, 300, false, false),
            ("cordoned by another", &both[..1], true, 0, false, true),
            ("uncordoned by hand", &both, false, 0, false, false),
        ] {
            let node = node(annotations, unschedulable);
            let case = CooperationCase { now: NOW + seconds, announces, ..case(&node, &off) };
            assert_eq!(case.decide(), CooperationDecision { patch: None, evict: evicts }, "{name}");
            assert!(!CooperationCase { wanted: false, ..case }.decide().evict, "{name}");
        }
    }

    /// All nodes that stay are tainted: announcers run there, and the pods of this node do not.
    #[test]
    fn where_pods_have_no_other_place_the_addresses_go_and_no_pod_is_evicted() {
        let off = status(Reason::PreDraining, Expect::Shutdown);
        let both = [cloudprovider::HAND_OVER, cloudprovider::CORDONED];
        for (name, annotations, unschedulable, refuge, change, evicts) in [
            ("nothing is done yet", &both[..0], false, false, Some(Change::HandsOver), false),
            ("another's cordon", &both[..0], true, false, Some(Change::HandsOver), false),
            ("handed over", &both[..1], false, false, None, false),
            ("handed over, and another's cordon", &both[..1], true, false, None, false),
            ("a node that takes pods is there now", &both[..1], false, true, Some(Change::Drains), false),
            ("the same, and another's cordon", &both[..1], true, true, None, true),
            ("a drain that has begun", &both[..], true, false, None, true),
        ] {
            let node = node(annotations, unschedulable);
            let decision = CooperationCase { refuge, ..case(&node, &off) }.decide();
            let found = (decision.patch.as_ref().map(|(_, change)| *change), decision.evict);
            assert_eq!(found, (change, evicts), "{name}");
        }
    }

    /// The leader's clock was six hours ahead, and NTP corrects it.
    #[test]
    fn a_mark_that_lies_in_the_future_is_written_anew_and_counts_from_then() {
        const CORRECTED: i64 = NOW - 6 * 3600;
        let off = status(Reason::PreDraining, Expect::Shutdown);
        let both = [cloudprovider::HAND_OVER, cloudprovider::CORDONED];
        let expected = json!({cloudprovider::HAND_OVER: "2025-12-31T18:00:00Z", cloudprovider::CORDONED: "true"});
        let anothers = json!({cloudprovider::HAND_OVER: "2025-12-31T18:00:00Z"});
        for (annotations, expected) in [(&both[..], expected), (&both[..1], anothers)] {
            let mut node = node(annotations, true);
            let decision = CooperationCase { now: CORRECTED, announces: true, ..case(&node, &off) }.decide();
            let patch = json!({"metadata": {"uid": "uid-of-n", "annotations": expected}});
            assert_eq!(decision, CooperationDecision { patch: Some((patch, Change::MarksAnew)), evict: false });
            node.annotations.insert(cloudprovider::HAND_OVER, "2025-12-31T18:00:00Z");
            for (seconds, evicts) in [(0, false), (9, false), (10, true), (299, true), (300, false)] {
                let case = CooperationCase { now: CORRECTED + seconds, announces: true, ..case(&node, &off) };
                assert_eq!(case.decide(), CooperationDecision { patch: None, evict: evicts }, "{seconds}");
            }
        }
    }

    #[test]
    fn what_was_done_is_taken_back_when_the_machine_is_back_and_another_s_cordon_is_not() {
        let both = [cloudprovider::HAND_OVER, cloudprovider::CORDONED];
        let done = |uncordoned| Some(Change::TakenBack { uncordoned });
        let unready = |ready| NodeView { ready, ..node(&both, true) };
        for (name, node, wanted, power, reason, expected) in [
            ("back", node(&both, true), true, Power::On, Reason::UpToDate, done(true)),
            ("moved", node(&both[..1], false), true, Power::On, Reason::Pending, done(false)),
            ("another's cordon", node(&both[..1], true), true, Power::On, Reason::UpToDate, done(false)),
            ("uncordoned by hand", node(&both, false), true, Power::On, Reason::UpToDate, done(false)),
            ("still on its way up", node(&both, true), true, Power::On, Reason::Restoring, None),
            ("off", node(&both, true), true, Power::Off, Reason::ShutDown, None),
            ("kubelet not yet", unready(Some(Ready::Unknown)), true, Power::On, Reason::UpToDate, None),
            (
                "kubelet not, and it is over",
                unready(Some(Ready::False)),
                false,
                Power::On,
                Reason::UpToDate,
                done(true),
            ),
            ("switched off by the flag", node(&both, true), false, Power::On, Reason::PreDraining, done(true)),
            ("over, and it is off", node(&both, true), false, Power::Off, Reason::ShutDown, None),
            ("over, and nothing is known of it", node(&both, true), false, Power::Unknown, Reason::UpToDate, None),
            ("paused before it was shut down", node(&both, true), true, Power::On, Reason::Paused, done(true)),
            ("nothing was done", node(&[], true), false, Power::On, Reason::UpToDate, None),
        ] {
            let status = status(reason, Expect::Shutdown);
            let decision = CooperationCase { wanted, power, ..case(&node, &status) }.decide();
            assert_eq!(decision.patch.as_ref().map(|(_, change)| *change), expected, "{name}");
            let Some((patch, Change::TakenBack { uncordoned })) = decision.patch else { continue };
            assert_eq!(patch["metadata"]["annotations"][cloudprovider::HAND_OVER], Value::Null, "{name}");
            assert_eq!(patch.get("spec").is_some(), uncordoned, "{name}: {patch}");
        }
    }
}
