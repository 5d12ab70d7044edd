//! Harvester is away, or was: what is told, what is not decided, and what is tried again.

use harvester_api::names::ClusterName;

use super::*;

/// W-18.
#[tokio::test]
async fn nothing_is_decided_on_caches_without_content() {
    let lab = Lab::new(vec![service("default/web").done()]);
    let provider = HarvesterLoadBalancers { lbs: lb_cache(), ..lab.provider };
    let web = lab.services.get(&key("default/web")).unwrap();
    assert!(matches!(provider.ensure(&web).await.unwrap(), Ensured::Waiting(_)));
    assert!(matches!(provider.delete(&web).await.unwrap(), Deleted::Waiting(_)));
    assert_eq!(lab.server.requests(), []);
}

#[tokio::test]
async fn a_harvester_that_cannot_be_read_is_told_to_the_user() {
    let lab = Lab::new(vec![service("default/web").done()]);
    let error = Some((tokio::time::Instant::now(), "connection refused".to_owned()));
    let watched = watch::Sender::new(Status { error, ..Status::default() }).subscribe();
    let provider = HarvesterLoadBalancers { lbs: lb_cache(), watched, ..lab.provider };
    let web = lab.services.get(&key("default/web")).unwrap();
    let Ensured::Waiting(waiting) = provider.ensure(&web).await.unwrap() else { panic!() };
    assert!(waiting.needs_user && waiting.failure);
    let told = "cannot list LoadBalancers in namespace guests of Harvester at https://h:6443: connection refused; \
        check server";
    assert!(waiting.message.starts_with(told), "{}", waiting.message);
    assert_eq!(provider.at_first_sight(&web), Err(waiting), "the same before it has the finalizer");
    let served = service("default/web").ingress(IP).done();
    assert!(provider.at_first_sight(&served).is_err_and(|waiting| !waiting.needs_user), "something else serves it");
}

/// As where virtual machines may not be listed, and load balancers may.
#[tokio::test]
async fn a_name_that_stays_unknown_is_told_to_the_user_and_that_of_a_start_is_not() {
    let lab = Lab::new(vec![service("default/web").done()]);
    let identity = Identity::unknown(ClusterName::from_record("demo"));
    let provider = HarvesterLoadBalancers { identity: identity.clone(), ..lab.provider };
    let web = lab.services.get(&key("default/web")).unwrap();
    for starts in [true, false] {
        identity.await_judgement(starts);
        let Ensured::Waiting(waiting) = provider.ensure(&web).await.unwrap() else { panic!("a guess") };
        assert_eq!(waiting.needs_user, !starts, "{}", waiting.message);
        assert_eq!(provider.at_first_sight(&web), Err(waiting), "the same before it has the finalizer");
    }
    let served = service("default/web").short(&[("ip", IP)]).ingress(IP).done();
    let Ensured::Waiting(waiting) = provider.ensure(&served).await.unwrap() else { panic!("a guess") };
    assert!(!waiting.needs_user, "it does not wait for anything");
}

/// Services that failed in an outage need not wait for their back-off.
#[tokio::test]
async fn a_recovery_of_harvester_wakes_who_is_not_settled() {
    let lab = Lab::new(vec![service("default/web").done(), service("default/other").done()]);
    let status = watch::Sender::new(Status { synced: true, ..Status::default() });
    let provider = HarvesterLoadBalancers { watched: status.subscribe(), ..lab.provider };
    let mut wakes = provider.wakes();
    let mut drain = async || {
        let mut woken = Vec::new();
        while let Ok(Some(key)) = tokio::time::timeout(Duration::from_millis(20), wakes.next()).await {
            woken.push(key.to_string());
        }
        woken
    };
    drain().await;
    provider.ensure(&lab.services.get(&key("default/web")).unwrap()).await.unwrap();
    assert_eq!(drain().await, Vec::<String>::new());
    let error = Some((tokio::time::Instant::now(), "connection refused".to_owned()));
    status.send_modify(|status| status.error = error);
    assert_eq!(drain().await, Vec::<String>::new(), "still away");
    status.send_modify(|status| status.error = None);
    assert_eq!(drain().await, ["default/web"]);
    assert_eq!(provider.unsettled().recoveries, 1);
    status.send_modify(|status| status.polling = true);
    assert_eq!(drain().await, Vec::<String>::new(), "woken once");
}

/// The request was under way when the outage ended, and failed after everybody else had been woken.
#[tokio::test]
async fn what_fails_in_an_outage_that_is_over_is_tried_again_at_once() {
    let lab = Lab::new(vec![service("default/web").done()]);
    let unsettled = Arc::clone(&lab.provider.unsettled);
    let over = Arc::new(Mutex::new(true));
    let ends = Arc::clone(&over);
    let server = Scenario::answering(move |_| {
        // The first of two.
        if std::mem::take(&mut *ends.lock()) {
            unsettled.lock().recoveries += 1;
        }
        (500, Scenario::status(500, "InternalError", "etcd is away"))
    });
    let requests = Requests::new(server.client(), server.client(), "guests");
    let provider = HarvesterLoadBalancers { requests, ..lab.provider };
    let web = lab.services.get(&key("default/web")).unwrap();
    assert!(provider.ensure(&web).await.is_err());
    assert_eq!(server.requests().len(), 2, "once more, since nobody wakes it");
    assert!(provider.ensure(&web).await.is_err());
    assert_eq!(server.requests().len(), 3, "what fails without an outage waits for its back-off");
}

/// An API server that comes back shows for a moment what it had before; two of them need not show the same.
#[tokio::test]
async fn nothing_is_deleted_or_released_on_what_was_seen_before_the_watches_last_failed() {
    for of_harvester in [true, false] {
        let lab = Lab::new(vec![service("default/web").done()]);
        lab.served().await;
        lab.guest(|service| service.deleting = true);
        let status = watch::Sender::new(Status { synced: true, ..Status::default() });
        let provider = if of_harvester {
            HarvesterLoadBalancers { watched: status.subscribe(), ..lab.provider }
        } else {
            lab.provider.watching(status.subscribe())
        };
        let web = lab.services.get(&key("default/web")).unwrap();
        let deletions = async || {
            let answer = provider.delete(&web).await.unwrap();
            let requests = lab.server.requests();
            lab.server.clear();
            assert!(matches!(answer, Deleted::Waiting(_)), "{answer:?}");
            requests.iter().filter(|seen| seen.method == "DELETE").count()
        };
        let error = || Some((tokio::time::Instant::now(), "connection refused".to_owned()));
        status.send_modify(|status| (status.error, status.troubles) = (error(), 1));
        assert_eq!(deletions().await, 0, "a watch fails");
        provider.memory().doomed(&web.key, runtime::freshness::Health { well: true, troubles: 1 });
        status.send_modify(|status| (status.error, status.troubles) = (None, 3));
        assert_eq!(deletions().await, 0, "it has failed since the deletion was first seen");
        assert_eq!(deletions().await, 1, "looked at once more");
    }
}
