//! The cluster is renamed while a Service moves to another pool: what the Service leaves is deleted all the same.

use super::super::super::booking::BOOKING;
use super::moving::{NEW, moved, next_lb, old_lb, ready_next};
use super::*;
use crate::identity::proof::{cluster_of, is_proven};

fn under(cluster: &str, mut lb: LbView) -> LbView {
    lb.labels.insert(cloudprovider::CLUSTER, cluster);
    lb.annotations.insert(loadbalancer::CLUSTER, cluster);
    lb
}

/// An object from before the cluster was called `demo`.
fn former(lb: LbView) -> LbView {
    under("former", lb)
}

fn apply(lb: &mut LbView, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Label(key, value) => lb.labels.insert(key, value),
            Change::Annotation(key, value) => lb.annotations.insert(key, value),
            Change::Address(address) => lb.address = Some(address.clone()),
            other => panic!("{other:?}"),
        }
    }
}

/// A Service, the object that serves it, and its other objects.
struct Moving {
    service: ServiceView,
    lb: LbView,
    others: Vec<LbView>,
}

impl Moving {
    fn plan(&self) -> Plan {
        let others: Vec<Arc<LbView>> = self.others.iter().cloned().map(Arc::new).collect();
        Situation { others: &others, ..Situation::default() }.plan(&self.service, &[], &[("default/web", &self.lb)])
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Create(object) => {
                let LbView { ready, has_host_finalizer, booked_pool, usable_address, .. } = ready_next();
                let view = LbView { uid: "uid-created".into(), ..LbView::from(object.as_ref()) };
                self.others.push(LbView { has_host_finalizer, booked_pool, usable_address, ready, ..view });
            }
            Action::Update { uid, changes } => {
                assert_eq!(self.lb.uid, uid);
                apply(&mut self.lb, &changes);
            }
            Action::Rename { name, uid, changes } => {
                let other = self.others.iter_mut().find(|other| other.name == name).expect("another object");
                assert_eq!(other.uid, uid);
                apply(other, &changes);
                assert!(is_proven(other, &self.service), "{name}");
            }
            Action::Delete { name, leaks, .. } => {
                assert!(!leaks && self.lb.name != name, "{name}");
                self.others.retain(|other| other.name != name);
            }
            Action::Patch(patch) => self.service = patch.apply(&self.service),
            Action::Readmit { uid } => panic!("{uid} is sent again"),
        }
    }

    /// One pass, after which an announcer serves the address that is shown, and its object is the one that serves.
    fn pass(&mut self) {
        for action in self.plan().actions {
            self.perform(action);
        }
        self.service.ingress = rules::shown_addresses(&self.service);
        let shows = |lb: &LbView| rules::shows_address_of(&self.service, lb);
        if let Some(at) = self.others.iter().position(shows) {
            std::mem::swap(&mut self.lb, &mut self.others[at]);
        }
    }
}

#[test]
fn a_rename_of_the_cluster_at_any_moment_of_a_move_leaves_one_object_and_that_is_the_new_one() {
    let shown = || service("default/web").short(&[("ip", NEW), ("ippool", "new")]);
    for (moment, service, lb, others) in [
        ("before the move", moved(), former(old_lb()), vec![]),
        ("before the new address is shown", moved(), former(old_lb()), vec![former(ready_next())]),
        ("before it is served", shown().ingress(IP).done(), former(ready_next()), vec![former(old_lb())]),
        ("before the old object is deleted", shown().ingress(NEW).done(), former(ready_next()), vec![former(old_lb())]),
        ("before the new object is made", moved(), former(old_lb()), vec![ready_next()]),
    ] {
        let mut world = Moving { service, lb, others };
        for _ in 0..5 {
            world.pass();
        }
        assert_eq!(world.others, [], "{moment}");
        assert_eq!(world.lb.usable_address.as_deref(), Some(NEW), "{moment}");
        assert_eq!(cluster_of(&world.lb), Some(config().cluster_name), "{moment}");
        assert_eq!(world.plan(), Plan { actions: vec![], verdict: PlanVerdict::Ready }, "{moment}: at rest");
    }
}

#[test]
fn an_object_that_another_service_still_uses_is_renamed_too_and_deleted_when_it_is_free() {
    let served = service("default/web").short(&[("ip", NEW), ("ippool", "new")]).ingress(NEW).done();
    let sharer = |ip| service("default/api").short(&[("primary", "default/web"), ("ip", ip)]).ports(&["TCP/81"]).done();
    let step = |lb: &LbView, other: &LbView, sharer: ServiceView| {
        let others = [Arc::new(other.clone())];
        Situation { others: &others, ..Situation::default() }.plan(&served, &[sharer], &[("default/web", lb)])
    };
    let (mut lb, mut other) = (former(ready_next()), former(old_lb()));
    let plan = step(&lb, &other, sharer(IP));
    let [Action::Rename { name, changes, .. }, Action::Update { changes: own, .. }] = plan.actions.as_slice() else {
        panic!("the serving one is the last: {plan:?}")
    };
    assert_eq!(*name, other.name);
    apply(&mut other, changes);
    apply(&mut lb, own);
    assert_eq!(step(&lb, &other, sharer(IP)).actions, []);
    let freed = step(&lb, &other, sharer(NEW));
    let [Action::Delete { name, .. }] = freed.actions.as_slice() else { panic!("{freed:?}") };
    assert_eq!(*name, other.name);
}

/// The object of the move, for which the host may be booking, has the former name.
#[test]
fn the_serving_object_keeps_the_former_name_while_the_host_is_busy_with_another_one() {
    let stays = service("default/web").short(&[("ip", IP)]).ingress(IP).done();
    let others = [Arc::new(former(next_lb()))];
    let plan = |service: &ServiceView, age| {
        let situation = Situation { others: &others, age, ..Situation::default() };
        situation.plan(service, &[], &[("default/web", &former(old_lb()))])
    };
    assert_eq!(plan(&stays, Duration::ZERO), Plan { actions: vec![], verdict: PlanVerdict::Ready });
    let given_up = plan(&stays, BOOKING).actions;
    assert!(matches!(given_up.as_slice(), [Action::Delete { .. }, Action::Update { .. }]), "{given_up:?}");

    let moves = plan(&moved(), Duration::ZERO);
    assert_eq!((moves.actions.len(), waiting(&moves).retry_after), (0, Some(BOOKING)));
    let moves = plan(&moved(), BOOKING).actions;
    assert!(matches!(moves.as_slice(), [Action::Rename { .. }, Action::Update { .. }]), "{moves:?}");
}

/// A copy of the cluster has the UIDs of its original, so each proves the load balancers of both.
#[test]
fn an_object_under_the_name_of_another_cluster_is_not_renamed() {
    let stays = service("default/web").short(&[("ip", IP)]).ingress(IP).done();
    let others = [Arc::new(under("copied", ready_next()))];
    for (serving, service) in [("former", &stays), ("former", &moved()), ("demo", &stays), ("demo", &moved())] {
        let situation = Situation { others: &others, ..Situation::default() };
        let plan = situation.plan(service, &[], &[("default/web", &under(serving, old_lb()))]);
        let touches =
            |action: &Action| matches!(action, Action::Rename { .. } | Action::Delete { .. } | Action::Create(_));
        assert!(!plan.actions.iter().any(touches), "{serving}: {plan:?}");
    }
}
