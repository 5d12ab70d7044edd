use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use super::*;
use crate::log_lines::Lines;
use crate::scenario::Scenario;

fn reflector(scenario: &Scenario) -> (Reflector<ConfigMap, String, String>, Cache<String, String>) {
    reflector_of(scenario.client())
}

fn reflector_of(client: kube::Client) -> (Reflector<ConfigMap, String, String>, Cache<String, String>) {
    let cache = Cache::new(|old, new| old != new);
    let reflector = Reflector::new(
        "configmaps",
        Api::namespaced(client, "kube-system"),
        cache.clone(),
        |meta| meta.name.clone().unwrap_or_default(),
        |map: &ConfigMap| map.data.as_ref()?.get("value").cloned(),
    );
    (reflector, cache)
}

fn list(items: &[(&str, &str)]) -> Value {
    let items: Vec<Value> = items
        .iter()
        .map(|(name, value)| json!({"metadata": {"name": name, "namespace": "kube-system"}, "data": {"value": value}}))
        .collect();
    json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": items})
}

fn is_watch(query: &str) -> bool {
    query.contains("watch=true")
}

/// Longer than any pause of a reflector that is not refused. Where time is paused it passes only while all are waiting.
const PATIENCE: Duration = Duration::from_mins(10);

/// Waits until the status is as it is to be.
async fn becomes(what: &str, status: &mut watch::Receiver<Status>, is: impl FnMut(&Status) -> bool) {
    let reached = tokio::time::timeout(PATIENCE, status.wait_for(is)).await;
    reached.unwrap_or_else(|_| panic!("not so within {PATIENCE:?}: {what}")).expect("the reflector lives");
}

#[tokio::test(start_paused = true)]
async fn where_the_watch_is_forbidden_the_list_is_polled() {
    let content = Arc::new(Mutex::new(list(&[("a", "1")])));
    let shown = Arc::clone(&content);
    let scenario = Scenario::answering(move |request| {
        if is_watch(&request.query) {
            return (403, Scenario::status(403, "Forbidden", "cannot watch"));
        }
        (200, shown.lock().clone())
    });
    let (reflector, cache) = reflector(&scenario);
    let mut status = reflector.status();
    let check = reflector.check();
    assert!(check().unwrap_err().contains("not listed yet"));
    let task = tokio::spawn(reflector.run());
    cache.wait_synced().await;
    becomes("the list is polled", &mut status, |status| status.polling && status.synced).await;
    assert_eq!(*cache.get(&"a".to_owned()).unwrap(), "1");

    let mut touched = cache.subscribe();
    assert_eq!(touched.next().await.unwrap(), "a");
    *content.lock() = list(&[("a", "2")]);
    let polled = tokio::time::timeout(PATIENCE, touched.next()).await;
    assert_eq!(polled.expect("the list is read again").unwrap(), "a");
    assert_eq!(*cache.get(&"a".to_owned()).unwrap(), "2");
    assert_eq!(check(), Ok(()));
    task.abort();
}

/// As API servers do for a second after their start, while they have not read their rules yet.
#[tokio::test(start_paused = true)]
async fn a_watch_that_was_refused_for_a_moment_is_back_soon() {
    let begin = Instant::now();
    let scenario = Scenario::answering(move |request| {
        if !is_watch(&request.query) {
            return (200, list(&[("a", "1")]));
        }
        if begin.elapsed() < Duration::from_secs(2) {
            return (403, Scenario::status(403, "Forbidden", "cannot watch"));
        }
        (0, Value::Null)
    });
    let log = Lines::default();
    let _collecting = log.collect();
    let (reflector, _) = reflector(&scenario);
    let status = reflector.status();
    let task = tokio::spawn(reflector.run());
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(status.borrow().polling, "a list does not show yet that the watch is granted");
    let watches = |of: &[crate::scenario::ReceivedRequest]| of.iter().filter(|seen| is_watch(&seen.query)).count();
    let seen = scenario.requests();
    assert_eq!(watches(&seen), 3, "refused at once and after 1 s, granted after 3 s: {seen:?}");
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(scenario.requests().len(), seen.len(), "no list is read beside a watch that works");
    assert!(!status.borrow().polling, "nothing has happened, and yet it watches");
    assert_eq!(log.count("refuses the watch"), 0, "it did not last");
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_right_that_is_missing_for_good_is_asked_for_less_and_less_often() {
    let scenario = Scenario::answering(|request| {
        if is_watch(&request.query) {
            (403, Scenario::status(403, "Forbidden", "cannot watch"))
        } else {
            (200, list(&[]))
        }
    });
    let (reflector, _) = reflector(&scenario);
    let task = tokio::spawn(reflector.run());
    let watches = || scenario.requests().iter().filter(|seen| is_watch(&seen.query)).count();
    tokio::time::sleep(Duration::from_hours(1)).await;
    let first_hour = watches();
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert!((10..=16).contains(&first_hour), "1, 2, 4 s and so on, then each ten minutes: {first_hour}");
    assert!((5..=6).contains(&(watches() - first_hour)), "{}", watches() - first_hour);
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_forbidden_for_good_is_asked_for_less_and_less_often_and_at_once_by_who_is_back() {
    let scenario = Scenario::answering(|_| (403, Scenario::status(403, "Forbidden", "cannot list")));
    let (reflector, _) = reflector(&scenario);
    let returns = watch::Sender::new(0);
    let task = tokio::spawn(reflector.returns(returns.subscribe()).run());
    let asked = || scenario.requests().len();
    tokio::time::sleep(REFUSED_FOR_GOOD).await;
    let soon = asked();
    assert!(soon >= 4, "it may be starting: {soon}");
    tokio::time::sleep(Duration::from_hours(2)).await;
    let later = asked() - soon;
    assert!((70..=250).contains(&later), "about once a minute: {later}");
    returns.send_modify(|returns| *returns += 1);
    tokio::time::sleep(REFUSED_FOR_GOOD).await;
    assert!(asked() - soon - later >= 4, "{}", asked() - soon - later);
    task.abort();
}

/// An answer is in memory as a whole, and what it takes is never given back.
#[tokio::test(start_paused = true)]
async fn a_list_is_read_page_by_page() {
    let scenario = Scenario::answering(|request| {
        if is_watch(&request.query) {
            return (0, Value::Null);
        }
        let last = request.query.contains("continue=more");
        let mut page = list(if last { &[("b", "2")] } else { &[("a", "1")] });
        if !last {
            page["metadata"]["continue"] = json!("more");
        }
        (200, page)
    });
    let (reflector, cache) = reflector(&scenario);
    let task = tokio::spawn(reflector.run());
    cache.wait_synced().await;
    assert_eq!(cache.keys(), ["a", "b"]);
    let lists = scenario.requests().into_iter().filter(|seen| !is_watch(&seen.query));
    let lists: Vec<String> = lists.map(|seen| seen.query).collect();
    assert_eq!(lists.len(), 2);
    assert!(lists.iter().all(|query| query.contains(&format!("limit={PAGE}"))), "{lists:?}");
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_once_and_again_only_after_the_watch_has_worked() {
    let log = Lines::default();
    let _collecting = log.collect();
    let granted = Arc::new(AtomicBool::new(false));
    let allowed = Arc::clone(&granted);
    let scenario = Scenario::answering(move |request| {
        if !is_watch(&request.query) {
            return (200, list(&[("a", "1")]));
        }
        if allowed.swap(false, Ordering::Relaxed) {
            let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"value": "2"},
                "metadata": {"name": "a", "namespace": "kube-system", "resourceVersion": "6"}});
            return (200, json!({"type": "MODIFIED", "object": object}));
        }
        (403, Scenario::status(403, "Forbidden", "cannot watch"))
    });
    let (reflector, _) = reflector(&scenario);
    let mut status = reflector.status();
    let task = tokio::spawn(reflector.run());
    becomes("the list is polled", &mut status, |status| status.polling).await;
    let watches = || scenario.requests().iter().filter(|seen| is_watch(&seen.query)).count();
    tokio::time::sleep(TRY_WATCH_AGAIN * 3).await;
    assert!(watches() >= 3, "it was tried again: {}", watches());
    assert_eq!(log.count("refuses the watch"), 1);
    granted.store(true, Ordering::Relaxed);
    tokio::time::sleep(TRY_WATCH_AGAIN * 3).await;
    assert_eq!(log.count("refuses the watch"), 2, "granted and withdrawn");
    task.abort();
}

/// W-41.
#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_takes_nothing_from_the_cache() {
    let away = Arc::new(AtomicBool::new(false));
    let gone = Arc::clone(&away);
    let scenario = Scenario::answering(move |request| {
        if gone.load(Ordering::Relaxed) {
            return (500, Scenario::status(500, "InternalError", "etcd is away"));
        }
        if is_watch(&request.query) {
            (403, Scenario::status(403, "Forbidden", "no"))
        } else {
            (200, list(&[("a", "1")]))
        }
    });
    let (reflector, cache) = reflector(&scenario);
    let mut status = reflector.status();
    let (check, freshness) = (reflector.check(), reflector.freshness());
    let task = tokio::spawn(reflector.run());
    cache.wait_synced().await;
    away.store(true, Ordering::Relaxed);
    becomes("a failure is noticed", &mut status, |status| status.error.is_some()).await;
    assert_eq!(freshness(), Ok(()), "a short failure is not told");
    tokio::time::sleep(TOLERATED + Duration::from_secs(10)).await;
    assert!(freshness().unwrap_err().contains("etcd is away"));
    assert_eq!((check(), cache.len()), (Ok(()), 1), "what is known is still known");
    away.store(false, Ordering::Relaxed);
    becomes("its end is noticed", &mut status, |status| status.error.is_none()).await;
    assert_eq!(freshness(), Ok(()));
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_back_is_listed_at_once() {
    let away = Arc::new(AtomicBool::new(true));
    let gone = Arc::clone(&away);
    let scenario = Scenario::answering(move |_| {
        if gone.load(Ordering::Relaxed) {
            return (500, Scenario::status(500, "InternalError", "etcd is away"));
        }
        (200, list(&[("a", "1")]))
    });
    let (reflector, cache) = reflector(&scenario);
    let returns = watch::Sender::new(0);
    let task = tokio::spawn(reflector.returns(returns.subscribe()).run());
    tokio::time::sleep(Duration::from_mins(5)).await;
    away.store(false, Ordering::Relaxed);
    let start = Instant::now();
    returns.send_modify(|returns| *returns += 1);
    cache.wait_synced().await;
    assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
    task.abort();
}

/// A cable that is cut: the watch neither fails nor ends, and yet Services wait for the end of the outage.
#[tokio::test(start_paused = true)]
async fn an_outage_that_the_watch_did_not_notice_is_told_by_the_list_after_it() {
    let scenario =
        Scenario::answering(
            |request| {
                if is_watch(&request.query) { (0, Value::Null) } else { (200, list(&[("a", "1")])) }
            },
        );
    let (reflector, cache) = reflector(&scenario);
    let mut status = reflector.status();
    let returns = watch::Sender::new(0);
    let task = tokio::spawn(reflector.returns(returns.subscribe()).run());
    cache.wait_synced().await;
    becomes("it is listed", &mut status, |status| status.synced).await;
    assert!(!status.has_changed().unwrap());
    returns.send_modify(|returns| *returns += 1);
    tokio::time::timeout(Duration::from_secs(1), status.changed()).await.expect("it is told").unwrap();
    becomes("the list is read again", &mut status, |status| status.error.is_none()).await;
    assert_eq!(scenario.requests().iter().filter(|seen| !is_watch(&seen.query)).count(), 2);
    task.abort();
}

/// A watch that goes on where it was says nothing while nothing changes.
#[tokio::test(start_paused = true)]
async fn what_rests_after_a_failed_watch_is_listed_once_and_is_not_taken_for_outdated() {
    let watches = Arc::new(Mutex::new(0));
    let scenario = Scenario::answering(move |request| {
        if !is_watch(&request.query) {
            return (200, list(&[("a", "1")]));
        }
        let mut watches = watches.lock();
        *watches += 1;
        if *watches == 1 { (500, Scenario::status(500, "InternalError", "once")) } else { (0, Value::Null) }
    });
    let (reflector, cache) = reflector(&scenario);
    let (fresh, mut status) = (reflector.freshness(), reflector.status());
    let task = tokio::spawn(reflector.run());
    cache.wait_synced().await;
    becomes("the failed watch is noticed", &mut status, |status| status.error.is_some()).await;
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(fresh(), Ok(()));
    }
    assert_eq!(scenario.requests().iter().filter(|seen| !is_watch(&seen.query)).count(), 2);
    task.abort();
}

/// A balancer that resets every connection on which nothing is said.
#[tokio::test(start_paused = true)]
async fn watches_that_are_reset_again_and_again_are_confirmed_by_a_list() {
    let scenario = Scenario::answering(move |request| {
        if !is_watch(&request.query) {
            return (200, list(&[("a", "1")]));
        }
        (500, Scenario::status(500, "InternalError", "reset"))
    });
    let (reflector, cache) = reflector(&scenario);
    let task = tokio::spawn(reflector.run());
    cache.wait_synced().await;
    tokio::time::sleep(CONFIRM * 10).await;
    let lists = scenario.requests().iter().filter(|seen| !is_watch(&seen.query)).count();
    assert!((5..=11).contains(&lists), "one about each {CONFIRM:?}: {lists}");
    task.abort();
}

/// The requests that a server has seen: whether each was a watch, and when.
type Seen = Arc<Mutex<Vec<(bool, Instant)>>>;

/// A server whose watches, counted from 0, last as long as `lasts` says, and then end with 410. Before that, one for
/// which `tells` holds delivers an event.
fn expiring(
    lasts: impl Fn(usize) -> Duration + Send + Sync + 'static,
    tells: impl Fn(usize) -> bool + Send + Sync + 'static,
) -> (kube::Client, Seen) {
    let seen = Seen::default();
    let (all, rules) = (Arc::clone(&seen), Arc::new((lasts, tells)));
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (all, rules) = (Arc::clone(&all), Arc::clone(&rules));
        async move {
            let watches = is_watch(request.uri().query().unwrap_or_default());
            let number = all.lock().iter().filter(|(watch, _)| *watch).count();
            all.lock().push((watches, Instant::now()));
            let mut body = list(&[("a", "1")]).to_string();
            if watches {
                tokio::time::sleep(rules.0(number)).await;
                let metadata = json!({"name": "a", "namespace": "kube-system", "resourceVersion": "6"});
                let event = json!({"type": "MODIFIED",
                    "object": {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata}});
                let gone = json!({"type": "ERROR", "object": Scenario::status(410, "Expired", "too old")});
                body = if rules.1(number) { format!("{event}\n{gone}\n") } else { format!("{gone}\n") };
            }
            let body = kube::client::Body::from(body.into_bytes());
            Ok::<_, Infallible>(http::Response::new(body))
        }
    });
    (kube::Client::new(service, "default"), seen)
}

/// How long after each list the next one was asked for.
fn between_lists(seen: &[(bool, Instant)]) -> Vec<Duration> {
    let lists: Vec<Instant> = seen.iter().filter(|(watch, _)| !watch).map(|(_, at)| *at).collect();
    lists.windows(2).map(|two| two[1] - two[0]).collect()
}

/// An API server that compacts too often, or a proxy that answers from an old state: each list was followed by the next
/// one after 200 ms, and nothing told of it.
#[tokio::test(start_paused = true)]
async fn watches_that_end_with_410_at_once_cost_fewer_and_fewer_lists_and_are_told_once() {
    let log = Lines::default();
    let _collecting = log.collect();
    let (client, seen) = expiring(|_| Duration::ZERO, |number| number == 100);
    let (reflector, _) = reflector_of(client);
    let fresh = reflector.freshness();
    let task = tokio::spawn(reflector.run());
    tokio::time::sleep(Duration::from_mins(1)).await;
    let lists = between_lists(&seen.lock()).len() + 1;
    assert!((15..=40).contains(&lists), "in the end one about each {LONGEST_PAUSE:?}: {lists}");
    assert_eq!(log.count("ends each watch with 410"), 1);
    assert_eq!(fresh(), Ok(()), "each list is complete");
    tokio::time::sleep(Duration::from_mins(8)).await;
    let pauses = between_lists(&seen.lock());
    assert!(pauses[99] > LONGEST_PAUSE / 4, "{:?}", pauses[99]);
    assert!(pauses[100] < FIRST_PAUSE * 2, "this watch has delivered an event: {:?}", pauses[100]);
    assert_eq!(log.count("ends each watch with 410"), 2, "it was over for a moment");
    task.abort();
}

/// A version that is compacted while a watch rests is everyday life.
#[tokio::test(start_paused = true)]
async fn a_watch_that_has_lasted_and_ends_with_410_is_listed_at_once_and_is_not_told() {
    let log = Lines::default();
    let _collecting = log.collect();
    let lasts = LASTED * 2;
    let (client, seen) = expiring(move |_| lasts, |_| false);
    let (reflector, _) = reflector_of(client);
    let task = tokio::spawn(reflector.run());
    tokio::time::sleep(Duration::from_mins(10)).await;
    let pauses = between_lists(&seen.lock());
    assert!(pauses.len() > 25 && pauses.iter().all(|pause| *pause < lasts + FIRST_PAUSE * 2), "{pauses:?}");
    assert_eq!(log.text(), "");
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn who_must_know_soon_asks_often_while_the_api_server_is_away() {
    let attempts = |longest: Option<Duration>| async move {
        let scenario = Scenario::answering(|_| (500, Scenario::status(500, "InternalError", "etcd is away")));
        let (reflector, _) = reflector(&scenario);
        let reflector = match longest {
            Some(longest) => reflector.longest_pause(longest),
            None => reflector,
        };
        let task = tokio::spawn(reflector.run());
        tokio::time::sleep(Duration::from_mins(2)).await;
        task.abort();
        scenario.requests().len()
    };
    let (usual, often) = (attempts(None).await, attempts(Some(Duration::from_secs(1))).await);
    assert!(usual < 80 && often > usual * 2, "{usual} and {often}");
}

#[tokio::test(start_paused = true)]
async fn an_object_without_a_view_is_not_kept() {
    let scenario = Scenario::answering(|request| {
        if is_watch(&request.query) {
            return (403, Scenario::status(403, "Forbidden", "no"));
        }
        let mut list = list(&[("a", "1"), ("b", "2")]);
        list["items"][1]["data"] = json!({});
        (200, list)
    });
    let (reflector, cache) = reflector(&scenario);
    let task = tokio::spawn(reflector.run());
    cache.wait_synced().await;
    assert_eq!(cache.keys(), ["a"]);
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_told_from_other_errors_until_there_is_a_list() {
    let code = Arc::new(Mutex::new(500));
    let answered = Arc::clone(&code);
    let scenario = Scenario::answering(move |request| match *answered.lock() {
        200 if is_watch(&request.query) => (0, Value::Null),
        200 => (200, list(&[("a", "1")])),
        code => (code, Scenario::status(code, "Refused", "no")),
    });
    let (reflector, _cache) = reflector(&scenario);
    let mut status = reflector.status();
    let task = tokio::spawn(reflector.run());
    let mut after = async |answer: u16| {
        *code.lock() = answer;
        tokio::time::sleep(TRY_WATCH_AGAIN * 2).await;
        let status = status.borrow_and_update();
        (status.forbidden, status.error.is_some())
    };
    assert_eq!(after(500).await, (false, true));
    assert_eq!(after(403).await, (true, true));
    assert_eq!(after(500).await, (true, true), "nobody has granted it");
    assert_eq!(after(200).await, (false, false));
    task.abort();
}
