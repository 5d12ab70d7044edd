//! The whole controller with paused time: when it comes back to a Service, and what wakes it.

use super::*;

/// Runs the whole controller with paused time until nothing is left to do for `time`.
async fn run_for(test: &mut Test, time: Duration) -> Token {
    let controller = std::mem::replace(&mut test.controller, Arc::clone(&Test::new([]).controller));
    let controller = Arc::into_inner(controller).expect("only the test holds it");
    let stop = Token::new();
    tokio::spawn(controller.run(stop.clone()));
    tokio::time::sleep(time).await;
    stop
}

#[tokio::test(start_paused = true)]
async fn failing_services_are_tried_after_5_10_20_and_40_seconds() {
    let mut test = Test::new([finalized(|_| {})]);
    test.will_ensure((0..20).map(|_| Err(ProviderError::new("away"))));
    run_for(&mut test, Duration::from_secs(76)).await.cancel();
    assert_eq!(test.calls().len(), 5, "at 0, 5, 15, 35 and 75 seconds");
}

#[tokio::test(start_paused = true)]
async fn a_wait_has_its_own_time_and_a_wake_up_ends_it_at_once() {
    let (wake, receiver) = mpsc::unbounded_channel();
    let cloud = Cloud { wakes: Mutex::new(Some(receiver)), ..Cloud::default() };
    let mut test = Test::with([finalized(|_| {})], cloud, patched);
    let patience = Some(Duration::from_secs(2));
    test.will_ensure((0..3).map(|_| Ok(Ensured::Waiting(waiting("allocating", patience)))));
    run_for(&mut test, Duration::from_secs(5)).await;
    assert_eq!(test.calls().len(), 3, "at 0, 2 and 4 seconds: the delay does not grow");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(test.calls().len(), 1);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(test.calls().len(), 0);
    wake.send(service("default/web").key).unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(test.calls().len(), 1);
}

/// W-35.
#[tokio::test(start_paused = true)]
async fn one_worker_serves_everybody_while_many_wait() {
    let many: Vec<ServiceView> = (0..200)
        .map(|number| {
            let mut view = service(&format!("default/web{number}"));
            view.finalizers = vec![FINALIZER.into()];
            view
        })
        .collect();
    let mut test = Test::new(many);
    test.will_ensure((0..200).map(|_| Ok(Ensured::Waiting(waiting("allocating", None)))));
    run_for(&mut test, Duration::from_millis(1)).await;
    assert_eq!(test.calls().len(), 200);
}

#[tokio::test(start_paused = true)]
async fn an_address_that_the_announcer_publishes_wakes_the_service_and_services_of_no_interest_do_not() {
    let mut test = Test::new([finalized(|_| {}), {
        let mut view = service("default/internal");
        view.is_load_balancer = false;
        view
    }]);
    run_for(&mut test, Duration::from_secs(1)).await;
    assert_eq!(test.calls(), ["ensure default/web v1 1"]);
    test.cache.apply(
        service("default/web").key,
        finalized(|view| {
            view.resource_version = "3".into();
            view.ingress = vec!["10.0.0.1".parse().unwrap()];
        }),
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(test.calls(), ["ensure default/web v3 1"]);
}

/// Its load balancer waits for another Service that shares the address. Nothing wakes a Service that is gone.
#[tokio::test(start_paused = true)]
async fn a_service_that_is_gone_is_looked_at_again_too() {
    let mut test = Test::new([finalized(|view| view.deleting = true)]);
    let shared = || Ok(Deleted::Waiting(waiting("others share its address", None)));
    test.will_delete([shared(), shared(), Ok(Deleted::Gone { existed: true })]);
    let stop = run_for(&mut test, Duration::from_secs(1)).await;
    test.cache.remove(&service("default/web").key);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(test.calls().len(), 2, "with the Service, and without it");
    tokio::time::sleep(RESYNC).await;
    assert_eq!(test.calls().len(), 1);
    tokio::time::sleep(RESYNC).await;
    assert_eq!(test.calls(), Vec::<String>::new(), "nothing is left");
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn stopping_ends_the_controller() {
    let mut test = Test::new([finalized(|_| {})]);
    let stop = run_for(&mut test, Duration::from_secs(1)).await;
    stop.cancel();
    tokio::time::sleep(Duration::from_secs(1)).await;
    test.calls();
    test.cache.apply(service("default/web").key, finalized(|view| view.labels.insert("a", "b")));
    tokio::time::sleep(Duration::from_secs(700)).await;
    assert_eq!(test.calls(), Vec::<String>::new());
}
