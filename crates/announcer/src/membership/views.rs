//! The facts of Leases and Nodes that count. They are extracted here; no other code reads the objects.

use std::time::Duration;

use announcer_core::ownership::node::{Card, ForeignLock, Member, NodeFacts};
use contract::keys::cloudprovider::{CARD, HAND_OVER, HOST, SAFE_MODE, SAFE_MODE_HOLDER};
use contract::keys::kubernetes::{EXCLUDED, SHUT_OUT};
use contract::leases::{CONTROLLER, MEMBER_PREFIX};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;

/// A holder whose last renewal is older than its duration by this much is a leftover. Clocks of nodes do not differ so
/// much; if they do, its next renewal shows that it is alive.
const LEFTOVER: Duration = Duration::from_mins(1);
/// How long a safe mode counts without a sign of its controller.
const SAFE_MODE_LASTS: Duration = Duration::from_hours(24);

/// A Lease that the announcer needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseView {
    /// The membership Lease of a node.
    Member(Member),
    /// kube-vip's Lease for all Services.
    Lock(ForeignLock),
    /// The cloud controller's Lease while that is in safe mode. It counts until then, unless the Lease is renewed.
    SafeMode(Timestamp),
    /// The cloud controller's Lease otherwise.
    Controller(ControllerLease),
}

/// The cloud controller's Lease while that says nothing of a safe mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerLease {
    /// `holderIdentity`.
    pub holder: String,
    /// `renewTime`. Only its change counts.
    pub renewal: String,
    /// How long the holder had held it when it renewed it last, by its own clock.
    pub held: Duration,
}

impl ControllerLease {
    fn of(lease: &Lease) -> Option<Self> {
        let spec = lease.spec.as_ref()?;
        let renewed = spec.renew_time.as_ref()?.0;
        let acquired = spec.acquire_time.as_ref().map_or(renewed, |time| time.0);
        Some(Self {
            holder: spec.holder_identity.clone()?,
            renewal: renewed.to_string(),
            held: Duration::try_from(renewed.duration_since(acquired)).unwrap_or_default(),
        })
    }
}

impl LeaseView {
    /// `lock`: name of kube-vip's Lease. The other Leases of the namespace are not kept.
    pub fn of(lease: &Lease, lock: &str, wall: Timestamp) -> Option<Self> {
        let name = lease.metadata.name.as_deref()?;
        let spec = lease.spec.as_ref();
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
        let duration = Duration::from_secs(seconds.unwrap_or(0));
        let renewed = spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
        // The renewal is not the resource version, because a changed label is no renewal.
        let renewal = renewed.map(|time| time.to_string()).unwrap_or_default();
        if name == lock {
            let holder = spec.and_then(|spec| spec.holder_identity.clone()).unwrap_or_default();
            let age = renewed.map(|time| wall.duration_since(time));
            let leftover = age.is_none_or(|age| Duration::try_from(age).is_ok_and(|age| age > duration + LEFTOVER));
            return Some(Self::Lock(ForeignLock { holder, renewal, duration, leftover }));
        }
        let annotation = |key: &str| lease.metadata.annotations.as_ref().and_then(|all| all.get(key));
        if !name.starts_with(MEMBER_PREFIX) {
            let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
            let by = annotation(SAFE_MODE_HOLDER).map(String::as_str);
            let safe_mode = annotation(SAFE_MODE).and_then(|_| counts(by, holder, renewed?, wall)).map(Self::SafeMode);
            let otherwise = || (name == CONTROLLER).then(|| ControllerLease::of(lease)).flatten();
            return safe_mode.or_else(|| otherwise().map(Self::Controller));
        }
        let card = annotation(CARD);
        Some(Self::Member(Member {
            renewal,
            duration,
            card: card.map_or_else(Card::default, |text| Card::parse(text)),
        }))
    }
}

/// Until when the cloud controller's safe mode counts; `by` is the holder that declared it. A later holder may be of a
/// version that does not know the annotation and leaves it, so its Lease does not confirm it. On a released Lease the
/// safe mode counts until another holder takes the Lease; without renewals it counts for a day.
fn counts(by: Option<&str>, holder: &str, renewed: Timestamp, wall: Timestamp) -> Option<Timestamp> {
    let stands = holder.is_empty() || by.is_none_or(|by| by == holder);
    // A wrong clock must not extend it beyond a day from now.
    let until = renewed.min(wall).checked_add(SAFE_MODE_LASTS).ok()?;
    (stands && wall < until).then_some(until)
}

/// The facts of a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// The facts for the engine.
    pub facts: NodeFacts,
}

impl NodeView {
    /// Extracts the facts (decisions.md 21).
    pub fn of(node: &Node) -> Self {
        let condition = node
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
            .find(|found| found.type_ == "Ready");
        let spec = node.spec.as_ref();
        let tainted = spec
            .and_then(|spec| spec.taints.as_ref())
            .is_some_and(|taints| taints.iter().any(|taint| SHUT_OUT.contains(&taint.key.as_str())));
        let excluded = node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(EXCLUDED));
        Self {
            facts: NodeFacts {
                uid: node.metadata.uid.clone().unwrap_or_default(),
                ready: condition.is_some_and(|found| found.status == "True"),
                shut_out: tainted || excluded || node.metadata.deletion_timestamp.is_some(),
                departs: node.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(HAND_OVER)),
                cordoned: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
                host: node.metadata.labels.as_ref().and_then(|labels| labels.get(HOST).cloned()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(spec: &serde_json::Value, labels: &serde_json::Value, ready: &str) -> NodeFacts {
        let node = json!({"metadata": {"name": "n", "labels": labels}, "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": ready,
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        NodeView::of(&serde_json::from_value(node).unwrap()).facts
    }

    #[test]
    fn a_node_departs_when_the_cloud_provider_says_so() {
        for (annotations, departs) in
            [(json!({HAND_OVER: "2026-01-01T00:00:00Z"}), true), (json!({"other": "x"}), false)]
        {
            let node = json!({"metadata": {"name": "n", "annotations": annotations}});
            assert_eq!(NodeView::of(&serde_json::from_value(node).unwrap()).facts.departs, departs);
        }
    }

    #[test]
    fn what_counts_of_a_node() {
        let fine = NodeFacts { ready: true, ..NodeFacts::default() };
        let taint = |key: &str| json!({"taints": [{"key": key, "effect": "NoExecute"}]});
        for (name, spec, labels, ready, expected) in [
            ("well", json!({}), json!({}), "True", fine.clone()),
            ("not ready", json!({}), json!({}), "Unknown", NodeFacts { ready: false, ..fine.clone() }),
            (
                "cordoned",
                json!({"unschedulable": true}),
                json!({}),
                "True",
                NodeFacts { cordoned: true, ..fine.clone() },
            ),
            ("out of service", taint(SHUT_OUT[0]), json!({}), "True", NodeFacts { shut_out: true, ..fine.clone() }),
            ("to be deleted", taint(SHUT_OUT[1]), json!({}), "True", NodeFacts { shut_out: true, ..fine.clone() }),
            ("another taint", taint("dedicated"), json!({}), "True", fine.clone()),
            (
                "on a hypervisor",
                json!({}),
                json!({HOST: "h1"}),
                "True",
                NodeFacts { host: Some("h1".into()), ..fine.clone() },
            ),
            ("excluded", json!({}), json!({EXCLUDED: ""}), "True", NodeFacts { shut_out: true, ..fine }),
        ] {
            assert_eq!(node(&spec, &labels, ready), expected, "{name}");
        }
    }

    #[test]
    fn a_safe_mode_counts_of_who_holds_the_lease_and_for_a_day_after_it_was_renewed() {
        let wall: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let (now, earlier, long_ago) = ("2026-01-01T23:59:59Z", "2026-01-01T00:00:01Z", "2025-12-31T23:59:59Z");
        for (says, by, holder, renewed, expected) in [
            (true, Some("a"), "a", Some(now), true),
            (false, None, "a", Some(now), false),
            (true, Some("a"), "b", Some(now), false),
            (true, Some("a"), "", Some(now), true),
            (true, None, "a", Some(now), true),
            (true, Some("a"), "a", Some(earlier), true),
            (true, Some("a"), "a", Some(long_ago), false),
            (true, Some("a"), "", Some(long_ago), false),
            (true, Some("a"), "a", Some("2026-01-02T00:10:00Z"), true),
            (true, Some("a"), "a", None, false),
        ] {
            let mut annotations = serde_json::Map::new();
            if says {
                annotations.insert(SAFE_MODE.to_owned(), json!("MachinesReplaced"));
            }
            if let Some(by) = by {
                annotations.insert(SAFE_MODE_HOLDER.to_owned(), json!(by));
            }
            let renewed = renewed.map(|at| at.replace('Z', ".000000Z"));
            let lease = json!({"metadata": {"name": "ccm", "annotations": annotations},
                "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}});
            let view = LeaseView::of(&serde_json::from_value(lease).unwrap(), "plndr-svcs-lock", wall);
            let until = view.map(|view| match view {
                LeaseView::SafeMode(until) => until,
                other => panic!("{other:?}"),
            });
            assert_eq!(until.is_some(), expected, "{says} {by:?} {holder:?} {renewed:?}");
            let day = wall.checked_add(SAFE_MODE_LASTS).unwrap();
            assert!(until.is_none_or(|until| wall < until && until <= day), "{renewed:?}: {until:?}");
        }
    }

    #[test]
    fn the_lease_of_the_controller_is_followed_by_its_name() {
        let view = |name: &str, spec: serde_json::Value| {
            let lease = json!({"metadata": {"name": name}, "spec": spec});
            LeaseView::of(&serde_json::from_value(lease).unwrap(), "plndr-svcs-lock", Timestamp::UNIX_EPOCH)
        };
        let (acquired, renewed) = ("2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:40.000000Z");
        let spec = json!({"holderIdentity": "a", "acquireTime": acquired, "renewTime": renewed});
        let held = |view: Option<LeaseView>| match view {
            Some(LeaseView::Controller(lease)) => Some(lease.held.as_secs()),
            _ => None,
        };
        assert_eq!(held(view(CONTROLLER, spec.clone())), Some(40));
        assert_eq!(held(view("kube-scheduler", spec)), None);
        assert_eq!(held(view(CONTROLLER, json!({"holderIdentity": "a", "renewTime": renewed}))), Some(0));
        assert_eq!(held(view(CONTROLLER, json!({"acquireTime": acquired}))), None, "nobody has renewed it");
    }

    fn lease(name: &str, renew: &str) -> Option<LeaseView> {
        let lease = json!({"metadata": {"name": name, "annotations": {CARD: "{\"serving\":true,\"term\":7}"}},
            "spec": {"holderIdentity": "node-1", "leaseDurationSeconds": 15, "renewTime": renew}});
        let wall = "2026-01-01T00:05:00Z".parse().unwrap();
        LeaseView::of(&serde_json::from_value(lease).unwrap(), "plndr-svcs-lock", wall)
    }

    #[test]
    fn leases_that_concern_us() {
        let Some(LeaseView::Member(member)) = lease("harvester-announcer-node-1", "2026-01-01T00:04:59.000000Z") else {
            panic!("a membership Lease");
        };
        assert!(member.card.serving && member.card.term.0 == 7 && member.duration == Duration::from_secs(15));
        assert_eq!(lease("kube-scheduler", "2026-01-01T00:04:59.000000Z"), None);
        for (renew, leftover) in [
            ("2026-01-01T00:04:59.000000Z", false),
            ("2026-01-01T00:04:01.000000Z", false),
            ("2026-01-01T00:03:00.000000Z", true),
        ] {
            let Some(LeaseView::Lock(lock)) = lease("plndr-svcs-lock", renew) else { panic!("kube-vip's") };
            assert_eq!((lock.leftover, lock.holder.as_str()), (leftover, "node-1"), "{renew}");
        }
    }
}
