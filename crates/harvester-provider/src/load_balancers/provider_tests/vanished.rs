//! Services that are gone without anybody having deleted them, as after a restore of etcd.

use super::leaving::with_record;
use super::*;

/// Etcd of the guest is restored while the controller goes on: what was made since the snapshot is gone, and nobody
/// deleted it.
#[tokio::test]
async fn what_a_restore_of_etcd_has_forgotten_stays_and_is_not_collected_for_a_day() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.served().await;
    let (guest, lab) = with_record(lab);
    let web = lab.service();
    lab.services.remove(&web.key);
    let Deleted::Left(left) = lab.provider.delete(&web).await.unwrap() else { panic!("nobody asked for its deletion") };
    assert_eq!((left.reason, left.warning), ("ServiceVanished", true));
    assert!(left.message.contains(&object_name(&config(), &web)), "{}", left.message);
    assert_eq!(methods(&lab.written()), Vec::<&str>::new());
    let (stamp, _) = lab.provider.identity.restore_suspected(tokio::time::Instant::now()).unwrap();
    let noted = guest.writes().last().unwrap().body["data"]["restore-suspected"].clone();
    assert_eq!(noted, stamp.to_string(), "a new leader knows of it");

    // Nobody but us takes the finalizer off: whoever did that by hand wants it gone.
    for change in [
        (|web: &mut ServiceView| web.finalizers.clear()) as fn(&mut ServiceView),
        |web| web.deleting = true,
        |web| web.is_load_balancer = false,
    ] {
        let lab = Lab::new(vec![service("default/web").done()]);
        lab.served().await;
        let (_guest, lab) = with_record(lab);
        let mut web = lab.service();
        change(&mut web);
        lab.services.remove(&web.key);
        lab.later();
        let answer = lab.provider.delete(&web).await.unwrap();
        assert!(matches!(answer, Deleted::Waiting(_)), "{answer:?}");
        assert_eq!(methods(&lab.written()), ["DELETE"]);
    }
}

/// Nothing shows the load balancer but the API server itself, as where the watch lags behind.
#[tokio::test]
async fn what_a_restore_of_etcd_has_forgotten_stays_although_no_cache_shows_it() {
    let former = Lab::new(vec![service("default/web").done()]);
    former.served().await;
    let (_guest, lab) = with_record(Lab::new(vec![]));
    lab.stored.lock().clone_from(&former.stored.lock());
    let answer = lab.provider.delete(&former.service()).await.unwrap();
    assert!(matches!(&answer, Deleted::Left(left) if left.reason == "ServiceVanished"), "{answer:?}");
    assert_eq!(methods(&lab.written()), Vec::<&str>::new());
    assert!(lab.provider.identity.restore_suspected(tokio::time::Instant::now()).is_some());
}

/// A user deletes a Service while the finalizer is added, and the API server lets it go. That is no restore, also if an
/// address was booked by then: nobody was told of it.
#[tokio::test]
async fn what_was_deleted_while_its_finalizer_was_added_leaves_nothing_behind() {
    for (published, deleted) in [(false, true), (true, false)] {
        let lab = Lab::new(vec![service("default/web").done()]);
        lab.ensure().await.unwrap();
        lab.host_books();
        lab.watch();
        if published {
            lab.ensure().await.unwrap();
        }
        let (_guest, lab) = with_record(lab);
        let web = lab.service();
        lab.services.remove(&web.key);
        lab.later();
        lab.sent();
        let answer = lab.provider.delete(&web).await.unwrap();
        assert_eq!(matches!(answer, Deleted::Waiting(_)), deleted, "{answer:?}");
        assert_eq!(matches!(answer, Deleted::Left(_)), !deleted, "{answer:?}");
        assert_eq!(methods(&lab.written()), if deleted { vec!["DELETE"] } else { vec![] });
        assert_eq!(lab.provider.identity.restore_suspected(tokio::time::Instant::now()).is_none(), deleted);
    }
}

/// The snapshot has the Service from before it was a load balancer. A cache that lags behind shows the same.
#[tokio::test]
async fn a_service_that_a_restore_makes_a_cluster_ip_again_keeps_its_load_balancer() {
    for (live, left) in [("ClusterIP", true), ("LoadBalancer", false)] {
        let mut lab = Lab::new(vec![service("default/web").done()]);
        lab.served().await;
        let web = lab.service();
        let guest = Scenario::answering(move |request| match request.method.as_str() {
            "GET" if request.path.ends_with("/services/web") => {
                let metadata = json!({"namespace": "default", "name": "web", "uid": "uid-of-default-web",
                    "resourceVersion": "3"});
                (200, json!({"metadata": metadata, "spec": {"type": live}}))
            }
            "GET" => (404, Scenario::status(404, "NotFound", "configmaps not found")),
            _ => (201, request.body.clone()),
        });
        lab.provider.requests = Requests::new(guest.client(), lab.server.client(), "guests");
        let mut older = ServiceView { is_load_balancer: false, resource_version: "3".into(), ..web.clone() };
        older.finalizers.clear();
        lab.services.apply(older.key.clone(), older);
        lab.later();
        match lab.provider.delete(&web).await.unwrap() {
            Deleted::Left(told) => assert!(left && told.message.contains("is older than it was"), "{}", told.message),
            Deleted::Waiting(waiting) => assert!(!left && waiting.message.contains("wants its load"), "{waiting:?}"),
            other @ Deleted::Gone { .. } => panic!("{other:?}"),
        }
        assert_eq!(lab.written(), []);
        assert_eq!(lab.provider.identity.restore_suspected(tokio::time::Instant::now()).is_some(), left, "{live}");
    }
}

/// The Service is forgotten when a new leader would know of it, and not before; who may not write says so.
#[tokio::test]
async fn that_a_service_vanished_is_written_down_before_it_is_forgotten() {
    for (code, left) in [(500, false), (403, true)] {
        let mut lab = Lab::new(vec![service("default/web").done()]);
        lab.served().await;
        let guest = Scenario::answering(move |request| {
            if request.path.contains("/configmaps") {
                return (code, Scenario::status(code, "x", "no"));
            }
            (404, Scenario::status(404, "NotFound", "services not found"))
        });
        lab.provider.requests = Requests::new(guest.client(), lab.server.client(), "guests");
        let web = lab.service();
        lab.services.remove(&web.key);
        match lab.provider.delete(&web).await {
            Ok(Deleted::Left(told)) => {
                assert!(left && told.message.contains("Only this process knows of it"), "{}", told.message);
            }
            Err(error) => assert!(!left && !error.permanent, "{error}"),
            other => panic!("{other:?}"),
        }
        assert!(lab.provider.identity.restore_suspected(tokio::time::Instant::now()).is_some(), "{code}");
    }
}
