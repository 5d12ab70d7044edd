//! Decides what has to be done for a Service, from its view and the stored view of an earlier pass alone.

use std::collections::BTreeMap;

use contract::keys::kubernetes::FINALIZER;
use serde_json::{Value, json};

use super::condition;
use crate::view::{Condition, LOAD_BALANCER_READY, ServiceView};

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// Nothing: the Service is none of this controller's, or everything is done.
    Nothing,
    /// Bring the load balancer closer to what the Service requests.
    Ensure {
        /// The finalizer has to be added before the first call to the cloud.
        add_finalizer: bool,
    },
    /// The Service no longer wants a load balancer: delete it, then release the Service.
    Cleanup(Release),
    /// The Service with this view vanished, or became an older one, without waiting for the cleanup: delete its load
    /// balancer.
    DeleteRemembered(&'a ServiceView),
}

/// How to release a Service after its load balancer is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Release {
    /// The finalizer belongs to this controller, or there is none.
    Ours,
    /// Another controller serves the Service now and may use the same finalizer. It is removed only if there was a load
    /// balancer to delete.
    IfExisted,
}

/// Whether the Service wants a load balancer: type LoadBalancer and no class (framework spec 1.2). Unlike there, a
/// Service that is being deleted wants none (1.14).
pub fn wants_load_balancer(service: &ServiceView) -> bool {
    service.is_load_balancer && !service.has_class && !service.deleting
}

/// Whether `service` has the finalizer.
pub fn has_finalizer(service: &ServiceView) -> bool {
    service.finalizers.iter().any(|finalizer| finalizer == FINALIZER)
}

/// Whether a Service that was last seen like this may have a load balancer. The finalizer is added before the first
/// request to the cloud, and an address shows that something has served the Service.
pub(super) fn may_have_load_balancer(service: &ServiceView) -> bool {
    has_finalizer(service) || !service.ingress.is_empty()
}

/// Whether a load balancer has to be cleaned up: the finalizer promises it, and the Service no longer wants one
/// (framework spec 1.5 and 1.14).
fn needs_cleanup(service: &ServiceView) -> bool {
    has_finalizer(service) && (service.deleting || !service.is_load_balancer)
}

/// Whether a Service is older now than it was: etcd was restored from a snapshot in which it was no load balancer yet.
/// This is no edit of a user: until the load balancer is gone, only this controller removes the finalizer.
pub fn is_set_back(old: &ServiceView, now: &ServiceView) -> bool {
    let version = |service: &ServiceView| service.resource_version.parse::<u64>().ok();
    let newer = version(old).zip(version(now)).is_some_and(|(old, now)| now > old);
    let left = has_finalizer(old) && !has_finalizer(now) && !now.is_load_balancer && !now.deleting;
    old.uid == now.uid && left && !newer
}

/// Decides the next step (framework spec 1.6 to 1.8). `remembered` is the view of the last pass that had or wanted a
/// load balancer.
pub(super) fn decide<'a>(current: Option<&ServiceView>, remembered: Option<&'a ServiceView>) -> Step<'a> {
    let Some(current) = current else {
        return remembered.map_or(Step::Nothing, Step::DeleteRemembered);
    };
    if let Some(old) = remembered.filter(|old| old.uid != current.uid || is_set_back(old, current)) {
        return Step::DeleteRemembered(old);
    }
    if wants_load_balancer(current) {
        return Step::Ensure { add_finalizer: !has_finalizer(current) };
    }
    match (remembered.is_some(), needs_cleanup(current)) {
        (false, true) if current.has_class => Step::Cleanup(Release::IfExisted),
        (true, _) | (false, true) => Step::Cleanup(Release::Ours),
        (false, false) => Step::Nothing,
    }
}

/// Adds the finalizer and the first condition, in one request. A strategic merge patch keeps the finalizers and
/// conditions of other controllers.
pub(super) fn add_finalizer_patch(
    service: &ServiceView,
    annotations: &BTreeMap<String, Option<String>>,
    ready: Option<&Condition>,
) -> Value {
    let mut patch = json!({"metadata": precondition(service)});
    patch["metadata"]["finalizers"] = json!([FINALIZER]);
    if !annotations.is_empty() {
        patch["metadata"]["annotations"] = json!(annotations);
    }
    if let Some(ready) = ready {
        patch["status"] = json!({"conditions": [condition::entry(LOAD_BALANCER_READY, ready)]});
    }
    patch
}

/// Removes the finalizer, the status and the controller's conditions, in one request: a second request would conflict
/// with the version that the first one made. `None` if there is nothing to remove. The status is not cleared if the
/// object is about to disappear, or if it belongs to another controller. A strategic merge patch keeps the finalizers
/// and conditions of other controllers.
pub(super) fn release_patch(service: &ServiceView, remove_finalizer: bool) -> Option<Value> {
    let remove = remove_finalizer && has_finalizer(service);
    let disappears = service.deleting && service.finalizers.iter().all(|finalizer| finalizer == FINALIZER);
    let clear = !service.ingress.is_empty() && !service.has_class && !disappears;
    let said = service.conditions.by_type().into_iter().filter(|(_, said)| said.is_some() && !service.deleting);
    let forget: Vec<Value> = said.map(|(kind, _)| condition::forgotten(kind)).collect();
    if !(remove || clear || !forget.is_empty()) {
        return None;
    }
    let mut patch = json!({"metadata": precondition(service)});
    if remove {
        patch["metadata"]["$deleteFromPrimitiveList/finalizers"] = json!([FINALIZER]);
    }
    if clear {
        patch["status"]["loadBalancer"] = json!({"ingress": null});
    }
    if !forget.is_empty() {
        patch["status"]["conditions"] = json!(forget);
    }
    Some(patch)
}

/// The precondition: the resourceVersion that was read.
fn precondition(service: &ServiceView) -> Value {
    match service.resource_version.as_str() {
        "" => json!({}),
        version => json!({"resourceVersion": version}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::service;
    use crate::view::{ConditionStatus, Uid};

    fn with(change: impl FnOnce(&mut ServiceView)) -> ServiceView {
        let mut view = service("default/web");
        change(&mut view);
        view
    }

    fn finalized(change: impl FnOnce(&mut ServiceView)) -> ServiceView {
        with(|view| {
            view.finalizers = vec![FINALIZER.into()];
            change(view);
        })
    }

    /// Framework spec 5.1, TestSyncLoadBalancerIfNeeded and TestNeedsCleanup, and the corners of 1.14.
    #[test]
    fn what_a_service_needs_follows_from_type_class_deletion_finalizer_and_memory() {
        let cluster_ip = |view: &mut ServiceView| view.is_load_balancer = false;
        let class = |view: &mut ServiceView| view.has_class = true;
        let deleting = |view: &mut ServiceView| view.deleting = true;
        let known = with(|_| {});
        let add = Step::Ensure { add_finalizer: true };
        let keep = Step::Ensure { add_finalizer: false };
        let ours = Step::Cleanup(Release::Ours);
        for (sentence, current, remembered, expected) in [
            ("a ClusterIP service is none of our business", with(cluster_ip), None, Step::Nothing),
            ("a new load balancer gets the finalizer first", with(|_| {}), None, add),
            ("with the finalizer it is ensured right away", finalized(|_| {}), None, keep),
            ("a service with a class is somebody else's", with(class), None, Step::Nothing),
            ("with a class and a finalizer too, while it lives", finalized(class), None, Step::Nothing),
            ("a class that appears on a service of ours: delete ours", finalized(class), Some(&known), ours.clone()),
            ("our finalizer on a ClusterIP service, after a restart", finalized(cluster_ip), None, ours.clone()),
            ("from LoadBalancer to ClusterIP", finalized(cluster_ip), Some(&known), ours.clone()),
            ("the same before the finalizer was written", with(cluster_ip), Some(&known), ours.clone()),
            ("deletion with our finalizer", finalized(deleting), None, ours.clone()),
            ("deletion held by a foreign finalizer, never ours", with(deleting), None, Step::Nothing),
            ("deletion of what we served without finalizer", with(deleting), Some(&known), ours.clone()),
            (
                "LoadBalancer to ClusterIP and back within one pass",
                finalized(|_| {}),
                Some(&known),
                Step::Ensure { add_finalizer: false },
            ),
            (
                "deletion of a service with a class: the finalizer may be another's",
                finalized(|view| (view.has_class, view.deleting) = (true, true)),
                None,
                Step::Cleanup(Release::IfExisted),
            ),
        ] {
            assert_eq!(decide(Some(&current), remembered), expected, "{sentence}");
        }
    }

    #[test]
    fn a_service_that_vanished_is_cleaned_up_by_what_we_remember() {
        let known = with(|_| {});
        assert_eq!(decide(None, Some(&known)), Step::DeleteRemembered(&known));
        assert_eq!(decide(None, None), Step::Nothing);
    }

    #[test]
    fn a_service_of_the_same_name_waits_until_the_old_ones_load_balancer_is_deleted() {
        let old = with(|view| view.uid = Uid("old".into()));
        assert_eq!(decide(Some(&with(|_| {})), Some(&old)), Step::DeleteRemembered(&old));
    }

    #[test]
    fn a_service_that_a_restore_makes_a_cluster_ip_again_is_told_from_one_that_its_user_changed() {
        let at = |version: &str, change: fn(&mut ServiceView)| {
            with(|view| {
                (view.is_load_balancer, view.resource_version) = (false, version.into());
                change(view);
            })
        };
        let finalizer = |view: &mut ServiceView| view.finalizers = vec![FINALIZER.into()];
        let served = finalized(|view| view.resource_version = "20".into());
        let unserved = with(|view| view.resource_version = "20".into());
        for (sentence, old, now, expected) in [
            ("an older object", &served, at("3", |_| {}), true),
            ("as text, 100 is less than 20", &served, at("100", |_| {}), false),
            ("a user replaces the whole object", &served, at("21", |_| {}), false),
            ("a user changes the type", &served, at("21", finalizer), false),
            ("an older object with the finalizer promises its deletion", &served, at("3", finalizer), false),
            ("an older object that is a load balancer", &served, at("3", |view| view.is_load_balancer = true), false),
            ("an older object that is being deleted", &served, at("3", |view| view.deleting = true), false),
            ("another object of the name", &served, at("3", |view| view.uid = Uid("other".into())), false),
            ("before the finalizer was written", &unserved, at("3", |_| {}), false),
            ("versions that cannot be compared", &served, at("x", |_| {}), true),
        ] {
            assert_eq!(is_set_back(old, &now), expected, "{sentence}");
            let vanished = decide(Some(&now), Some(old)) == Step::DeleteRemembered(old);
            assert_eq!(vanished, expected || now.uid != old.uid, "{sentence}");
        }
    }

    #[test]
    fn a_finalizer_is_added_to_the_others_under_the_version_that_was_read() {
        let foo = with(|view| view.finalizers = vec!["foo".into()]);
        let patch = add_finalizer_patch(&foo, &BTreeMap::new(), None);
        assert_eq!(patch, json!({"metadata": {"finalizers": [FINALIZER], "resourceVersion": "1"}}));
        let patch = add_finalizer_patch(&foo, &BTreeMap::from([("a".to_owned(), Some("1".to_owned()))]), None);
        assert_eq!(patch["metadata"]["annotations"], json!({"a": "1"}), "in the same request");
    }

    #[test]
    fn releasing_a_service_is_one_request_and_none_where_nothing_is_left() {
        let ip = |view: &mut ServiceView| view.ingress = vec!["10.0.0.1".parse().unwrap()];
        let told = |view: &mut ServiceView| {
            let (reason, message, since) = ("PortTaken".into(), String::new(), String::new());
            view.conditions.ready = Some(Condition { status: ConditionStatus::False, reason, message, since });
        };
        let kept = json!({"resourceVersion": "1"});
        let gone = json!({"$deleteFromPrimitiveList/finalizers": [FINALIZER], "resourceVersion": "1"});
        let cleared = json!({"loadBalancer": {"ingress": null}});
        let untold = json!([{"type": LOAD_BALANCER_READY, "$patch": "delete"}]);
        for (sentence, view, expected) in [
            ("nothing there", with(|_| {}), None),
            ("the finalizer", finalized(|_| {}), Some(json!({"metadata": gone}))),
            ("finalizer and status", finalized(ip), Some(json!({"metadata": gone, "status": cleared}))),
            ("the status alone", with(ip), Some(json!({"metadata": kept, "status": cleared}))),
            ("the condition alone", with(told), Some(json!({"metadata": kept, "status": {"conditions": untold}}))),
            (
                "all of it",
                finalized(|view| {
                    ip(view);
                    told(view);
                }),
                Some(json!({"metadata": gone, "status": {"loadBalancer": {"ingress": null}, "conditions": untold}})),
            ),
            (
                "a condition goes with its object",
                finalized(|view| {
                    told(view);
                    view.deleting = true;
                }),
                Some(json!({"metadata": gone})),
            ),
            (
                "an object that disappears keeps its status",
                finalized(|view| {
                    ip(view);
                    view.deleting = true;
                }),
                Some(json!({"metadata": gone})),
            ),
            (
                "one that another finalizer holds does not disappear",
                finalized(|view| {
                    ip(view);
                    view.deleting = true;
                    view.finalizers.insert(0, "foo".into());
                }),
                Some(json!({"metadata": gone, "status": cleared})),
            ),
            (
                "the status under a class is somebody else's",
                finalized(|view| {
                    ip(view);
                    view.has_class = true;
                }),
                Some(json!({"metadata": gone})),
            ),
        ] {
            assert_eq!(release_patch(&view, true), expected, "{sentence}");
        }
        assert_eq!(release_patch(&finalized(|_| {}), false), None, "a finalizer that is not ours stays");
    }
}
