//! While nothing may be written: what is remembered of it afterwards, and what is told.

use runtime::log_lines::Lines;

use super::*;
use crate::provider::PAUSED;

fn held(reason: &'static str, passing: bool) -> Arc<Hold> {
    Arc::new(Hold { reason, message: "not now".into(), initialises_nodes: true, passing })
}

impl Test {
    fn hold(&self, reason: Option<&'static str>) {
        *self.cloud.held.lock() = reason.map(|reason| held(reason, false));
    }

    fn shows(&self, view: ServiceView) {
        self.cache.apply(view.key.clone(), view);
    }

    /// What the provider was asked to delete.
    fn deleted(&self) -> Vec<ServiceView> {
        std::mem::take(&mut self.cloud.deleted.lock())
    }
}

/// A new Service, one that is served, and one that is gone: nothing is written for them, the cloud is not called,
/// nobody is told.
#[tokio::test]
async fn while_nothing_may_be_written_nothing_is_and_it_goes_on_afterwards() {
    let mut test = Test::new([service("default/web")]);
    test.hold(Some(PAUSED));
    assert_eq!(test.pass().await, Next::OnChange);
    assert_eq!((test.calls(), test.scenario.writes().len(), test.told()), (vec![], 0, vec![]));
    test.hold(None);
    test.pass().await;
    assert_eq!(test.calls().len(), 1);
    let writes = test.scenario.writes().len();
    test.told();
    test.hold(Some(PAUSED));
    test.cache.remove(&service("default/web").key);
    assert!(matches!(test.pass().await, Next::After(_)), "nobody wakes a Service that is gone");
    assert_eq!((test.calls(), test.scenario.writes().len(), test.told()), (vec![], writes, vec![]));
    test.hold(None);
    test.pass().await;
    assert_eq!(test.calls(), ["delete default/web u1"]);
}

/// A user deletes the Service, waits in vain, and takes the finalizer off by hand. It was taken for a restore of etcd.
#[tokio::test]
async fn a_deletion_that_is_seen_while_nothing_may_be_written_is_known_afterwards() {
    for served_before in [true, false] {
        let test = Test::new([finalized(|_| {})]);
        if served_before {
            test.pass().await;
        }
        test.hold(Some("Test"));
        test.shows(finalized(|view| view.deleting = true));
        assert!(matches!(test.pass().await, Next::After(_)));
        test.cache.remove(&service("default/web").key);
        assert!(matches!(test.pass().await, Next::After(_)));
        assert_eq!(test.deleted(), []);
        test.hold(None);
        assert_eq!(test.pass().await, Next::OnChange);
        let deleted: Vec<bool> = test.deleted().iter().map(|view| view.deleting).collect();
        assert_eq!(deleted, [true], "served before: {served_before}");
    }
}

#[tokio::test]
async fn a_finalizer_that_is_taken_off_while_nothing_may_be_written_is_known_afterwards() {
    let test = Test::new([finalized(|_| {})]);
    test.pass().await;
    test.hold(Some("Test"));
    test.shows(service("default/web"));
    assert_eq!(test.pass().await, Next::OnChange);
    test.cache.remove(&service("default/web").key);
    test.pass().await;
    test.hold(None);
    test.pass().await;
    let deleted: Vec<bool> = test.deleted().iter().map(has_finalizer).collect();
    assert_eq!(deleted, [false]);
}

/// The snapshot has the Service from before it was a load balancer.
#[tokio::test]
async fn a_restore_while_nothing_may_be_written_is_still_told_from_an_edit_afterwards() {
    let served = finalized(|view| view.resource_version = "20".into());
    let test = Test::new([served.clone()]);
    test.pass().await;
    test.hold(Some("Test"));
    test.shows(changed(|view| (view.is_load_balancer, view.resource_version) = (false, "3".into())));
    for _ in 0..2 {
        assert!(matches!(test.pass().await, Next::After(_)));
    }
    test.hold(None);
    test.pass().await;
    assert_eq!(test.deleted(), [served]);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_a_pause_keeps_waiting_is_told_once_and_again_before_events_expire() {
    let mut test = Test::new([finalized(|view| view.deleting = true)]);
    test.hold(Some(PAUSED));
    let told = "SyncLoadBalancerFailed Error syncing load balancer: failed to delete load balancer: not now. Until \
                this ends, the load balancer, its address and the finalizer of the Service stay";
    for expected in [vec![told], vec![], vec![]] {
        assert!(matches!(test.pass().await, Next::After(_)));
        assert_eq!(test.told(), expected);
    }
    tokio::time::advance(Duration::from_mins(11)).await;
    test.pass().await;
    assert_eq!(test.told(), [told]);
    assert_eq!((test.calls(), test.bodies()), (vec![], vec![]));
    test.hold(None);
    test.will_delete([Ok(Deleted::Gone { existed: true })]);
    assert_eq!(test.pass().await, Next::OnChange);
    assert_eq!(
        test.told(),
        ["DeletingLoadBalancer Deleting load balancer", "DeletedLoadBalancer Deleted load balancer"]
    );
}

/// Safe mode has one Event, on the record, however many Services are deleted meanwhile. A Service with a class is
/// somebody else's.
#[tokio::test]
async fn no_other_hold_is_told_on_services_and_nothing_is_told_of_a_class() {
    for (reason, has_class) in [("WrongHarvester", false), (PAUSED, true)] {
        let mut test = Test::new([finalized(|view| (view.deleting, view.has_class) = (true, has_class))]);
        test.hold(Some(reason));
        assert!(matches!(test.pass().await, Next::After(_)));
        assert_eq!((test.told(), test.bodies()), (vec![], vec![]), "{reason}");
        test.hold(None);
        test.pass().await;
        let released = if has_class { vec![] } else { vec![json!({"metadata": released()})] };
        assert_eq!(test.bodies(), released, "{reason}, class: {has_class}");
    }
}

/// A process that has just started does not know for a moment whether anything is forbidden.
#[tokio::test]
async fn a_deletion_that_waits_for_a_moment_after_a_start_is_no_warning() {
    for (reason, passing, warned) in
        [("IdentityNotKnown", true, false), ("IdentityNotKnown", false, true), ("WrongHarvester", false, true)]
    {
        let lines = Lines::default();
        let _collecting = lines.collect();
        let mut test = Test::new([finalized(|view| view.deleting = true)]);
        *test.cloud.held.lock() = Some(held(reason, passing));
        for _ in 0..2 {
            assert!(matches!(test.pass().await, Next::After(_)));
        }
        let said = (lines.count("WARN"), lines.count("failed to delete load balancer: not now"));
        let times = usize::from(warned);
        assert_eq!((said, test.told()), ((times, times), vec![]), "{reason}, passing: {passing}");
        test.hold(None);
        assert_eq!(test.pass().await, Next::OnChange);
        assert_eq!(test.calls(), ["delete default/web u1"], "{reason}, passing: {passing}");
    }
}
