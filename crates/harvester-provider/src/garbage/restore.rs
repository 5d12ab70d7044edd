//! Whether garbage tells of a restore of the guest cluster's etcd that this process has not seen: an object was made at
//! a later revision than the present one. Its Service was lost by the restore, and nobody deleted it.

use harvester_api::keys::cloudprovider::GUEST_REVISION;
use k8s_openapi::jiff::Timestamp;
use runtime::error::chain;
use tokio::time::Instant;

use super::list::{Garbage, Kind};
use crate::identity::Identity;
use crate::load_balancers::apply::Requests;

/// The revision at which the object was made.
fn made_at(garbage: &Garbage) -> Option<u64> {
    garbage.lb.annotation(GUEST_REVISION).parse().ok().filter(|_| garbage.kind == Kind::Ours)
}

/// An object that is newer than the present revision.
fn from_the_future(garbage: &[Garbage], revision: u64) -> Option<&Garbage> {
    garbage.iter().find(|garbage| made_at(garbage).is_some_and(|made| made > revision))
}

/// Suspects a restore if the garbage tells of one. Returns false if that is not known yet.
pub async fn look_back(garbage: &[Garbage], identity: &Identity, requests: &Requests) -> bool {
    let suspected = identity.restore_suspected(Instant::now()).is_some();
    if suspected || garbage.iter().all(|garbage| made_at(garbage).is_none()) {
        return true;
    }
    let revision = match requests.guest_revision().await {
        Ok(revision) => revision,
        Err(error) => {
            tracing::debug!(error = chain(&error), "the revision of the guest cluster cannot be read yet");
            return false;
        }
    };
    let Some(lost) = revision.and_then(|revision| from_the_future(garbage, revision)) else { return true };
    tracing::warn!(
        lb = lost.lb.name,
        "this load balancer is newer than the guest cluster, so etcd was restored from an older snapshot: the load \
         balancers of lost Services stay on Harvester for now"
    );
    let wall = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
    let stamp = identity.service_vanished(wall, Instant::now());
    // Where the record may not be written, only this process knows of it.
    requests.note_restore(stamp).await.map_or_else(|error| error.is_final(), |()| true)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use runtime::scenario::Scenario;
    use serde_json::json;

    use super::super::super::load_balancers::build::lb;
    use super::*;

    fn made(name: &str, revision: &str, kind: Kind) -> Garbage {
        let mut lb = lb(name).done();
        lb.annotations.insert(GUEST_REVISION, revision);
        Garbage { lb: Arc::new(lb), kind, service: None }
    }

    #[test]
    fn an_object_that_is_newer_than_the_cluster_tells_of_a_restore() {
        let ours = |revision| made("a", revision, Kind::Ours);
        for (sentence, garbage, expected) in [
            ("no garbage", vec![], false),
            ("made before", vec![ours("99")], false),
            ("made by the last write", vec![ours("100")], false),
            ("made later", vec![ours("99"), ours("101")], true),
            ("made by a version that did not say when", vec![ours("")], false),
            ("perhaps another cluster's", vec![made("a", "101", Kind::Suspected)], false),
        ] {
            assert_eq!(from_the_future(&garbage, 100).is_some(), expected, "{sentence}");
        }
    }

    #[tokio::test]
    async fn a_new_leader_suspects_the_restore_and_writes_it_down_for_the_next_one() {
        for (revision, suspected, writes) in [("100", true, 1), ("101", false, 0)] {
            let guest = Scenario::answering(move |request| match request.path.rsplit('/').next().unwrap() {
                "services" => (200, json!({"metadata": {"resourceVersion": revision}, "items": []})),
                _ if request.method == "GET" => (404, Scenario::status(404, "NotFound", "no record")),
                _ => (201, request.body.clone()),
            });
            let (identity, requests) = (Identity::known("demo"), Requests::new(guest.client(), guest.client(), "x"));
            assert!(look_back(&[made("a", "101", Kind::Ours)], &identity, &requests).await);
            assert_eq!(identity.restore_suspected(Instant::now()).is_some(), suspected);
            assert_eq!(guest.writes().len(), writes);
        }
        let away = Scenario::answering(|_| (500, Scenario::status(500, "InternalError", "etcd")));
        let requests = Requests::new(away.client(), away.client(), "x");
        assert!(!look_back(&[made("a", "101", Kind::Ours)], &Identity::known("demo"), &requests).await);
        assert!(look_back(&[], &Identity::known("demo"), &requests).await, "nothing is asked without garbage");
    }
}
