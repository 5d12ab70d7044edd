//! The first pass over a Service: the finalizer, and what is written together with it.

use super::*;
use crate::provider::NOT_READ_YET;

impl Test {
    fn will_see(&self, answers: impl IntoIterator<Item = FirstSight>) {
        self.cloud.first_sight.lock().extend(answers);
    }
}

/// As at each start, before the cloud has answered.
#[tokio::test]
async fn the_finalizer_waits_until_it_is_known_what_has_to_be_preserved_with_it() {
    let mut test = Test::new([service("default/web")]);
    let second = Duration::from_secs(1);
    let asked = ("example.com/asked".to_owned(), Some("10.0.0.7".to_owned()));
    let request = BTreeMap::from([asked, ("example.com/shown".to_owned(), None)]);
    test.will_see([Err(waiting("not listed yet", Some(second))), Ok(request.clone())]);
    assert_eq!(test.pass().await, Next::After(second));
    assert_eq!((test.calls(), test.scenario.requests().len(), test.told()), (vec![], 0, vec![]));

    assert_eq!(test.pass().await, Next::OnChange);
    let metadata = test.bodies()[0]["metadata"].clone();
    assert_eq!((&metadata["finalizers"], &metadata["annotations"]), (&json!([FINALIZER]), &json!(request)));
    assert_eq!(test.calls(), ["ensure default/web v2 1"]);
}

#[tokio::test]
async fn what_a_new_service_waits_for_is_told_although_it_has_no_finalizer_yet() {
    let answer = |_: &ReceivedRequest| (200, json!({"metadata": {"name": "web"}}));
    let mut test = Test::with([service("default/web")], Cloud::default(), answer);
    let away = || Waiting { reason: NOT_READ_YET, needs_user: true, ..waiting("connection refused", None) };
    test.will_see([Err(away()), Err(away())]);
    assert_eq!((test.pass().await, test.pass().await), (Next::OnChange, Next::OnChange));
    assert_eq!(test.calls(), Vec::<String>::new());
    let bodies = test.bodies();
    assert_eq!((bodies.len(), &bodies[0]["metadata"]), (1, &json!({"uid": "u1"})), "the condition, once");
    let condition = &bodies[0]["status"]["conditions"][0];
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("Unknown"), &json!(NOT_READ_YET)));
    let told = "SyncLoadBalancerFailed Error syncing load balancer: failed to ensure load balancer: connection refused";
    assert_eq!(test.told(), [told]);
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_may_not_be_written_is_tried_less_and_less_often() {
    let mut test = Test::with([service("default/web")], Cloud::default(), |_| {
        (403, Scenario::status(403, "Forbidden", "services/status is forbidden"))
    });
    let second = Duration::from_secs(1);
    let away = || Waiting { reason: NOT_READ_YET, needs_user: true, ..waiting("connection refused", Some(second)) };
    let start = Instant::now();
    while start.elapsed() < Duration::from_mins(2) {
        test.will_see([Err(away())]);
        let Next::After(pause) = test.pass().await else { panic!("it waits") };
        assert!(pause <= second);
        tokio::time::sleep(pause).await;
    }
    assert_eq!(test.scenario.requests().len(), 7, "after 0, 1, 3, 7, 15, 31 and 63 s");
    assert_eq!(test.told().len(), 1);
}

/// The certificate of Harvester has expired, and each attempt says since how many seconds.
#[tokio::test(start_paused = true)]
async fn a_failure_in_other_words_at_each_attempt_is_written_now_and_then() {
    let answer = |_: &ReceivedRequest| (200, json!({"metadata": {"name": "web"}}));
    let mut test = Test::with([service("default/web")], Cloud::default(), answer);
    let (start, second) = (Instant::now(), Duration::from_secs(1));
    while start.elapsed() < Duration::from_mins(9) {
        let text = format!("the certificate expired {} seconds ago", start.elapsed().as_secs());
        let away = Waiting { reason: NOT_READ_YET, needs_user: true, failure: true, ..waiting(&text, Some(second)) };
        test.will_see([Err(away)]);
        assert_eq!(test.pass().await, Next::After(second));
        if let Some(body) = test.bodies().last() {
            let conditions =
                Conditions { ready: Some(written(&body["status"]["conditions"][0])), ..Conditions::default() };
            test.cache.apply(service("default/web").key, changed(|view| view.conditions = conditions.clone()));
        }
        tokio::time::sleep(second).await;
    }
    let texts: Vec<Value> =
        test.bodies().iter().map(|body| body["status"]["conditions"][0]["message"].clone()).collect();
    assert_eq!(texts, ["the certificate expired 0 seconds ago", "the certificate expired 300 seconds ago"]);
    assert_eq!(test.told().len(), 1);
}

#[tokio::test]
async fn of_a_service_that_goes_before_it_was_taken_over_nothing_is_written() {
    let test = Test::new([service("default/web")]);
    test.will_see([Err(waiting("not listed yet", None))]);
    assert_eq!(test.pass().await, Next::OnChange);
    test.cache.remove(&service("default/web").key);
    assert_eq!(test.pass().await, Next::OnChange);
    assert_eq!((test.calls(), test.scenario.requests().len()), (vec!["delete default/web u1".to_owned()], 0));
    assert!(!test.controller.remembers(&service("default/web").key));
}

/// It is created and deleted while Harvester is away.
#[tokio::test]
async fn a_deletion_of_a_service_that_was_never_taken_over_is_told_only_where_something_is_found() {
    let begins = "DeletingLoadBalancer Deleting load balancer";
    let unreachable = "DeleteLoadBalancerFailed Error deleting load balancer: connection refused";
    let away = "DeleteLoadBalancerFailed Error deleting load balancer: Harvester is away";
    let ends = "DeletedLoadBalancer Deleted load balancer";
    let served = changed(|view| view.ingress = vec!["10.0.0.1".parse().unwrap()]);
    for (what, seen, existed, expected) in [
        ("nothing was there", service("default/web"), false, &[][..]),
        ("something was there after all", service("default/web"), true, &[begins, ends]),
        ("it was served, and its finalizer taken off", served, false, &[begins, unreachable, away, ends]),
    ] {
        let mut test = Test::new([seen]);
        test.will_see([Err(waiting("not listed yet", None))]);
        assert_eq!(test.pass().await, Next::OnChange, "{what}");
        test.cache.remove(&service("default/web").key);
        let refused = Waiting { needs_user: true, ..waiting("connection refused", None) };
        let fails = Err(ProviderError::new("Harvester is away"));
        test.will_delete([Ok(Deleted::Waiting(refused)), fails, Ok(Deleted::Gone { existed })]);
        for next in [Next::OnChange, Next::BackOff, Next::OnChange] {
            assert_eq!(test.pass().await, next, "{what}");
        }
        assert_eq!(test.told(), expected, "{what}");
        assert!(!test.controller.remembers(&service("default/web").key), "{what}");
    }
}

/// Harvester is away since the start, so it is not known whether the former one has left something.
#[tokio::test]
async fn a_service_that_is_made_again_before_it_was_taken_over_is_told_what_it_waits_for() {
    let answer = |_: &ReceivedRequest| (200, json!({"metadata": {"name": "web"}}));
    let mut test = Test::with([service("default/web")], Cloud::default(), answer);
    let away = || Waiting { reason: NOT_READ_YET, needs_user: true, ..waiting("connection refused", None) };
    test.will_see([Err(away())]);
    assert_eq!(test.pass().await, Next::OnChange);
    assert_eq!((test.told().len(), test.bodies().len()), (1, 1));

    let next = changed(|view| view.uid = Uid("u2".into()));
    test.cache.apply(next.key.clone(), next);
    test.will_delete([Ok(Deleted::Waiting(away())), Ok(Deleted::Waiting(away()))]);
    assert_eq!((test.pass().await, test.pass().await), (Next::OnChange, Next::OnChange));
    let bodies = test.bodies();
    assert_eq!((bodies.len(), &bodies[1]["metadata"]), (2, &json!({"uid": "u2"})), "the condition, once");
    let condition = &bodies[1]["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["reason"]), (&json!(LOAD_BALANCER_READY), &json!(NOT_READ_YET)));
    let told = "SyncLoadBalancerFailed Error syncing load balancer: failed to ensure load balancer: connection refused";
    assert_eq!(test.told(), [told]);
}

/// Events about the deletion name the Service that is gone, and nobody who asks for the new one sees them.
#[tokio::test]
async fn a_service_that_is_made_again_is_told_what_the_deletion_of_the_former_one_waits_for() {
    let former = ServiceView { finalizers: vec![FINALIZER.into()], ..service("default/web") };
    let test = Test::with([former], Cloud::default(), |_| (200, json!({"metadata": {"name": "web"}})));
    assert_eq!(test.pass().await, Next::OnChange);
    let before = test.bodies().len();

    let next = changed(|view| view.uid = Uid("u2".into()));
    test.cache.apply(next.key.clone(), next);
    let away = || Waiting { reason: NOT_READ_YET, needs_user: true, ..waiting("connection refused", None) };
    test.will_delete([Ok(Deleted::Waiting(away())), Ok(Deleted::Waiting(away()))]);
    assert_eq!((test.pass().await, test.pass().await), (Next::OnChange, Next::OnChange));
    let bodies = test.bodies();
    assert_eq!((bodies.len(), &bodies[before]["metadata"]), (before + 1, &json!({"uid": "u2"})), "the condition, once");
    let condition = &bodies[before]["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["reason"]), (&json!(LOAD_BALANCER_READY), &json!(NOT_READ_YET)));
}

#[tokio::test]
async fn a_preview_shows_no_write_while_it_is_not_known_what_has_to_be_preserved() {
    let test = Test::new([]);
    test.will_see([Err(waiting("not listed yet", None))]);
    let outlook = preview(&*test.cloud, &service("default/web"));
    assert_eq!((outlook.writes.len(), outlook.notes.len()), (0, 1));
    assert_eq!(preview(&*test.cloud, &service("default/web")).writes.len(), 1);
}

#[tokio::test]
async fn without_the_finalizer_nothing_is_asked_of_the_cloud() {
    let mut test = Test::with([service("default/web")], Cloud::default(), |_| {
        (403, Scenario::status(403, "Forbidden", "services/status is forbidden"))
    });
    assert_eq!(test.pass().await, Next::BackOff);
    assert_eq!(test.calls(), Vec::<String>::new());
    assert_eq!(
        test.told(),
        ["SyncLoadBalancerFailed Error syncing load balancer: failed to add load balancer cleanup finalizer: \
          services/status is forbidden"]
    );
}

#[tokio::test]
async fn a_service_that_is_gone_before_its_finalizer_is_not_an_error() {
    let mut test = Test::with([service("default/web")], Cloud::default(), |_| {
        (404, Scenario::status(404, "NotFound", "services \"web\" not found"))
    });
    assert_eq!(test.pass().await, Next::After(AFTER_CONFLICT));
    test.cache.remove(&service("default/web").key);
    assert_eq!(test.pass().await, Next::OnChange);
    assert_eq!(test.calls(), ["delete default/web u1"]);
    assert_eq!(test.told(), Vec::<String>::new());
}
