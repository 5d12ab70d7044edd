//! Whether garbage tells of a restore of the guest cluster's etcd that this process has not seen: an object was made at
//! a later revision than the present one. Its Service was lost by the restore, and nobody deleted it.

use std::collections::BTreeSet;

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

/// The objects that are newer than the present revision.
fn from_the_future(garbage: &[Garbage], revision: u64) -> impl Iterator<Item = &Garbage> {
    garbage.iter().filter(move |garbage| made_at(garbage).is_some_and(|made| made > revision))
}

/// An object that is newer than the present revision, and that no operator has confirmed to be lost.
fn evidence<'a>(garbage: &'a [Garbage], revision: u64, confirmed: &BTreeSet<String>) -> Option<&'a Garbage> {
    from_the_future(garbage, revision).find(|garbage| !confirmed.contains(&garbage.lb.uid))
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
    let Some(revision) = revision else { return true };
    if from_the_future(garbage, revision).next().is_none() {
        return true;
    }
    let confirmed = match requests.confirmed_lost().await {
        Ok(confirmed) => confirmed,
        // Nobody can have confirmed anything there.
        Err(error) if error.is_forbidden() => BTreeSet::new(),
        Err(error) => {
            tracing::debug!(error = chain(&error), "it cannot be read yet which load balancers are confirmed as lost");
            return false;
        }
    };
    let Some(lost) = evidence(garbage, revision, &confirmed) else { return true };
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

/// What is known of the view in which garbage was found.
#[derive(Debug, Clone, Copy)]
pub struct GarbageView {
    /// An operator has just confirmed what is seen now.
    pub just_confirmed: bool,
    /// The view has settled: what it does not show is not there.
    pub settled: bool,
}

/// Keeps in the record which load balancers an operator has confirmed to be lost by a restore, so that the next leader
/// does not suspect the same restore again. `known`: what the record says. What is no garbage any more leaves the
/// record, but not because of a view that may be incomplete. Returns false if it has to be tried again.
pub async fn keep_confirmed(
    garbage: &[Garbage],
    seen: GarbageView,
    known: &BTreeSet<String>,
    requests: &Requests,
) -> bool {
    let uids = |garbage: &Garbage| garbage.lb.uid.clone();
    let mut lost = BTreeSet::new();
    if seen.just_confirmed && garbage.iter().any(|garbage| made_at(garbage).is_some()) {
        match requests.guest_revision().await {
            Ok(Some(revision)) => lost.extend(from_the_future(garbage, revision).map(uids)),
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(error = chain(&error), "the revision of the guest cluster cannot be read yet");
                return false;
            }
        }
    }
    let there: BTreeSet<String> = garbage.iter().map(uids).collect();
    let stays = |uid: &String| !seen.settled || there.contains(uid);
    if lost.is_subset(known) && known.iter().all(stays) {
        return true;
    }
    let kept = |known: BTreeSet<String>| known.into_iter().filter(stays).chain(lost.iter().cloned()).collect();
    let changed = requests.change_lost(kept).await;
    changed.map_or_else(|error| error.is_final(), |()| true)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use runtime::scenario::Scenario;
    use serde_json::json;

    use super::super::super::load_balancers::build::lb;
    use super::*;
    use crate::identity::record::CONFIRMED_LOST;

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
            assert_eq!(evidence(&garbage, 100, &BTreeSet::new()).is_some(), expected, "{sentence}");
        }
    }

    #[test]
    fn what_an_operator_has_confirmed_is_not_suspected_twice_and_anything_else_is() {
        let ours = |name, revision| made(name, revision, Kind::Ours);
        for (sentence, garbage, confirmed, expected) in [
            ("the same evidence", vec![ours("a", "110")], &["uid-a"][..], false),
            ("all of it", vec![ours("a", "110"), ours("b", "120")], &["uid-a", "uid-b"], false),
            ("what is left of it", vec![ours("b", "120")], &["uid-a", "uid-b"], false),
            ("a newer one beside it", vec![ours("a", "110"), ours("b", "120")], &["uid-a"], true),
            // It was made after the first restore, when etcd counted through these revisions again.
            ("an older one beside it, of a second restore", vec![ours("b", "105"), ours("a", "110")], &["uid-a"], true),
            ("the confirmed one is collected", vec![ours("b", "105")], &["uid-a"], true),
            ("made before", vec![ours("b", "100")], &["uid-a"], false),
        ] {
            let confirmed = confirmed.iter().map(|uid| (*uid).to_owned()).collect();
            assert_eq!(evidence(&garbage, 100, &confirmed).is_some(), expected, "{sentence}");
        }
    }

    /// A guest cluster at this revision with this record, which can be written.
    fn guest(revision: &'static str, confirmed: Option<&str>) -> Scenario {
        let record = Mutex::new(json!({"metadata": {"name": "harvester-cloud-provider", "resourceVersion": "1"},
            "data": confirmed.map(|lines| json!({CONFIRMED_LOST: lines})).unwrap_or_default()}));
        Scenario::answering(move |request| match request.path.rsplit('/').next().unwrap() {
            "services" => (200, json!({"metadata": {"resourceVersion": revision}, "items": []})),
            _ if request.method == "GET" => (200, record.lock().clone()),
            _ => {
                *record.lock() = request.body.clone();
                (200, request.body.clone())
            }
        })
    }

    /// What each write has left under `confirmed-lost`.
    fn written(guest: &Scenario) -> Vec<String> {
        let text = |data: &serde_json::Value| data[CONFIRMED_LOST].as_str().unwrap_or_default().to_owned();
        guest.writes().iter().map(|write| text(&write.body["data"])).collect()
    }

    fn requests(guest: &Scenario) -> Requests {
        Requests::new(guest.client(), guest.client(), "x")
    }

    #[tokio::test]
    async fn the_next_leader_knows_what_was_confirmed_and_suspects_only_what_was_not() {
        let first = [made("a", "101", Kind::Ours), made("b", "99", Kind::Ours)];
        let guest = guest("100", None);
        let requests = requests(&guest);
        let seen = GarbageView { just_confirmed: true, settled: true };
        assert!(keep_confirmed(&first, seen, &BTreeSet::new(), &requests).await);
        assert_eq!(guest.writes().last().unwrap().body["data"], json!({CONFIRMED_LOST: "uid-a\n"}));
        for (sentence, garbage, expected) in [
            ("the same", &first[..], false),
            ("a later one", &[made("a", "101", Kind::Ours), made("c", "102", Kind::Ours)], true),
        ] {
            let leader = Identity::known("demo");
            assert!(look_back(garbage, &leader, &requests).await);
            assert_eq!(leader.restore_suspected(Instant::now()).is_some(), expected, "{sentence}");
        }
    }

    #[tokio::test]
    async fn the_record_of_it_is_written_once_and_shrinks_with_the_garbage() {
        let known = |uids: &[&str]| uids.iter().map(|uid| (*uid).to_owned()).collect::<BTreeSet<String>>();
        let [a, b] = ["a", "b"].map(|name| made(name, "101", Kind::Ours));
        for (sentence, garbage, just_confirmed, confirmed, expected) in [
            ("no word", vec![a.clone()], false, &[][..], None),
            ("nothing is garbage", vec![], true, &[], None),
            ("nothing is newer than etcd", vec![made("c", "100", Kind::Ours)], true, &[], None),
            ("a word", vec![a.clone(), b.clone()], true, &[], Some("uid-a\nuid-b\n")),
            ("the same word", vec![a.clone(), b.clone()], true, &["uid-a", "uid-b"], None),
            ("another word", vec![a.clone(), b.clone()], true, &["uid-a"], Some("uid-a\nuid-b\n")),
            ("all are still garbage", vec![a.clone(), b.clone()], false, &["uid-a", "uid-b"], None),
            ("one is collected", vec![b.clone()], false, &["uid-a", "uid-b"], Some("uid-b\n")),
            ("all are collected", vec![], false, &["uid-a"], Some("")),
        ] {
            let lines = confirmed.iter().fold(String::new(), |lines, uid| lines + uid + "\n");
            let guest = guest("100", Some(lines.as_str()).filter(|lines| !lines.is_empty()));
            let seen = GarbageView { just_confirmed, settled: true };
            assert!(keep_confirmed(&garbage, seen, &known(confirmed), &requests(&guest)).await);
            assert_eq!(written(&guest), expected.map(str::to_owned).into_iter().collect::<Vec<_>>(), "{sentence}");
        }
        let away = Scenario::answering(|_| (500, Scenario::status(500, "InternalError", "etcd")));
        let seen = GarbageView { just_confirmed: true, settled: true };
        assert!(!keep_confirmed(&[a], seen, &known(&[]), &requests(&away)).await, "it is tried again");
    }

    /// The first list may be that of an API server that is behind.
    #[tokio::test]
    async fn what_a_view_that_has_not_settled_lacks_stays_in_the_record() {
        let [a, b] = ["a", "b"].map(|name| made(name, "101", Kind::Ours));
        for (sentence, garbage, just_confirmed, confirmed, expected) in [
            ("nothing is seen yet", vec![], false, "uid-a\n", None),
            ("one of two", vec![b.clone()], false, "uid-a\nuid-b\n", None),
            ("a word adds what is seen", vec![b.clone()], true, "uid-a\n", Some("uid-a\nuid-b\n")),
            ("a word about what is known", vec![a.clone()], true, "uid-a\nuid-b\n", None),
        ] {
            let guest = guest("100", Some(confirmed));
            let seen = GarbageView { just_confirmed, settled: false };
            let known = confirmed.lines().map(str::to_owned).collect();
            assert!(keep_confirmed(&garbage, seen, &known, &requests(&guest)).await);
            assert_eq!(written(&guest), expected.map(str::to_owned).into_iter().collect::<Vec<_>>(), "{sentence}");
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
