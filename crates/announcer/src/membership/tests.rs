use parking_lot::Mutex;
use std::sync::Arc;

use runtime::scenario::{ReceivedRequest, Scenario};
use serde_json::Value;

use super::*;

fn membership(api: &Scenario) -> Membership {
    Membership::new(&api.client(), "kube-system", "node-1", Duration::from_secs(15))
}

/// Writes this card as `run` does, until it stands; else why the attempt has failed.
async fn write(
    membership: &mut Membership,
    lease: &mut membership::Membership<DynamicObject>,
    card: Card,
) -> Result<(), String> {
    let mut next = lease.renew(now(), card);
    while let Some(act) = next {
        let (id, answer) = membership.request(act).await;
        next = lease.answered(now(), id, answer);
    }
    lease.trouble().map_or(Ok(()), Err)
}

fn lease() -> membership::Membership<DynamicObject> {
    membership::Membership::new(Duration::from_secs(15))
}

fn refused(code: u16) -> (u16, Value) {
    let reason = if code == 404 { "NotFound" } else { "Refused" };
    (code, Scenario::status(code, reason, "no"))
}

/// An API server with one Node, whose UID this is, and one Lease, if there is one. Anybody may be refused something.
#[derive(Clone, Default)]
struct Cluster {
    node_uid: Arc<Mutex<&'static str>>,
    lease: Arc<Mutex<Option<Value>>>,
}

impl Cluster {
    fn api(&self, refuse: impl Fn(&ReceivedRequest) -> Option<u16> + Send + Sync + 'static) -> Scenario {
        let cluster = self.clone();
        Scenario::answering(move |seen| refuse(seen).map_or_else(|| cluster.answer(seen), refused))
    }

    fn answer(&self, seen: &ReceivedRequest) -> (u16, Value) {
        if seen.path.contains("/nodes/") {
            let meta = json!({"name": "node-1", "uid": *self.node_uid.lock()});
            return (200, json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta}));
        }
        let mut lease = self.lease.lock();
        match (seen.method.as_str(), lease.clone()) {
            ("GET", _) if seen.path.ends_with("/leases") => (200, json!({"metadata": {}, "items": []})),
            ("GET", Some(lease)) => (200, lease),
            ("GET" | "PUT", None) => refused(404),
            ("POST", Some(_)) => refused(409),
            _ => {
                if !seen.query.contains("dryRun") {
                    *lease = Some(seen.body.clone());
                }
                (200, seen.body.clone())
            }
        }
    }

    fn owner(&self) -> Option<String> {
        let lease = self.lease.lock();
        Some(lease.as_ref()?["metadata"]["ownerReferences"][0]["uid"].as_str()?.to_owned())
    }
}

/// `doctor` reads it there, before a Service asks for an address by DHCP.
#[tokio::test]
async fn a_node_that_cannot_have_macvlans_says_so_on_its_lease_until_it_can() {
    let cluster = Cluster::default();
    let api = cluster.api(|_| None);
    let why = "failed to create macvlan hcp-probe: Operation not supported (os error 95)";
    for (found, expected) in [(Some(why.to_owned()), json!(why)), (None, Value::Null)] {
        let mut membership = membership(&api).without_macvlans(found);
        write(&mut membership, &mut lease(), Card::default()).await.unwrap();
        let lease = cluster.lease.lock().clone().unwrap();
        assert_eq!(lease["metadata"]["annotations"][NO_MACVLANS], expected);
    }
}

#[tokio::test]
async fn a_lease_that_was_not_written_is_no_success() {
    for code in [404, 409] {
        // 404 on POST: there is no such namespace.
        let api = Cluster::default().api(move |seen| (seen.method == "POST").then_some(code));
        let written = write(&mut membership(&api), &mut lease(), Card::default()).await;
        assert_eq!((written, api.writes().len()), (Err("no".to_owned()), 3));
    }
}

#[tokio::test]
async fn a_lease_that_changed_meanwhile_is_read_and_written_again() {
    let cluster = Cluster::default();
    let conflicts = Mutex::new(2);
    let api = cluster.api(move |seen| {
        let mut left = conflicts.lock();
        let refuse = seen.method == "PUT" && *left > 0;
        *left -= i32::from(refuse);
        refuse.then_some(409)
    });
    let (mut membership, mut lease) = (membership(&api), lease());
    write(&mut membership, &mut lease, Card::default()).await.unwrap();
    write(&mut membership, &mut lease, Card { serving: true, ..Card::default() }).await.unwrap();
    let lease = cluster.lease.lock().clone().unwrap();
    assert!(Card::parse(lease["metadata"]["annotations"][CARD].as_str().unwrap()).serving);
}

#[tokio::test(start_paused = true)]
async fn a_card_that_the_api_did_not_take_is_written_again_before_the_next_renewal() {
    let cluster = Cluster::default();
    let failures = Mutex::new(2);
    let api = cluster.api(move |seen| {
        let mut left = failures.lock();
        let refuse = seen.method == "POST" && *left > 0;
        *left -= i32::from(refuse);
        refuse.then_some(500)
    });
    let (cards, asked) = mpsc::unbounded_channel();
    let writer = tokio::spawn(membership(&api).run(asked));
    // kube-proxy has just become well; whoever owns an address here has nobody else to whom it could go.
    cards.send(Card { serving: true, ..Card::default() }).unwrap();
    let stands = async {
        while cluster.lease.lock().is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(4), stands).await.expect("it stands");
    drop(cards);
    tokio::time::timeout(LIMIT, writer).await.expect("nothing is left to be written").unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_card_that_the_api_refuses_for_good_is_tried_ever_less_often_until_there_is_another_one() {
    let api = Cluster::default().api(|seen| (seen.method == "POST").then_some(403));
    let (cards, asked) = mpsc::unbounded_channel();
    let writer = tokio::spawn(membership(&api).run(asked));
    let card = Card { serving: true, ..Card::default() };
    for _ in 0..12 {
        // The renewals.
        cards.send(card.clone()).unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let minute = api.writes().len();
    assert!((10..=16).contains(&minute), "{minute}: after 1 s, 2 s, 4 s, and then with each renewal");
    cards.send(Card { leaving: true, ..card }).unwrap();
    tokio::time::sleep(Duration::from_millis(3500)).await;
    assert_eq!(api.writes().len() - minute, 3, "it starts over");
    writer.abort();
}

#[tokio::test]
async fn after_the_node_was_registered_again_the_lease_belongs_to_the_new_node() {
    let cluster = Cluster::default();
    *cluster.node_uid.lock() = "first";
    let api = cluster.api(|_| None);
    let (mut membership, mut lease) = (membership(&api), lease());
    write(&mut membership, &mut lease, Card::default()).await.unwrap();
    write(&mut membership, &mut lease, Card::default()).await.unwrap();
    assert_eq!(cluster.owner().as_deref(), Some("first"));
    let asked = api.requests().iter().filter(|seen| seen.path.contains("/nodes/")).count();
    assert_eq!(asked, 1, "a renewal is one request");

    *cluster.node_uid.lock() = "second";
    // The garbage collector.
    *cluster.lease.lock() = None;
    write(&mut membership, &mut lease, Card::default()).await.unwrap();
    assert_eq!(cluster.owner().as_deref(), Some("second"));
}

#[tokio::test]
async fn asking_for_the_rights_leaves_the_card_of_the_former_life() {
    let cluster = Cluster::default();
    let api = cluster.api(|_| None);
    let former = Card { serving: true, term: announcer_core::ownership::node::Term(7), ..Card::default() };
    write(&mut membership(&api), &mut lease(), former).await.unwrap();
    let before = cluster.lease.lock().clone();
    assert!(membership(&api).is_allowed().await);
    assert_eq!(*cluster.lease.lock(), before);
    assert!(api.writes().last().unwrap().query.contains("dryRun=All"));
    let fresh = Cluster::default();
    assert!(membership(&fresh.api(|_| None)).is_allowed().await);
    assert_eq!(*fresh.lease.lock(), None);
}

#[tokio::test]
async fn what_is_rehearsed_is_what_is_written_owner_and_card_included() {
    let api = Cluster::default().api(|_| None);
    let mut membership = membership(&api);
    assert!(membership.is_allowed().await);
    write(&mut membership, &mut lease(), Card::default()).await.unwrap();
    let [rehearsed, written] = &api.writes()[..] else { panic!("two writes") };
    assert_eq!(rehearsed.body["metadata"], written.body["metadata"]);
    assert!(written.body["metadata"]["annotations"][CARD].is_string());
    let members = |seen: &ReceivedRequest| seen.body["spec"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(members(rehearsed), members(written));
}

#[tokio::test(start_paused = true)]
async fn each_right_that_is_missing_is_noticed_and_an_api_that_is_away_says_nothing() {
    let with_lease =
        Cluster { lease: Arc::new(Mutex::new(Some(json!({"metadata": {"name": "l"}})))), ..Cluster::default() };
    for (name, cluster, method, list) in [
        ("list", Cluster::default(), "GET", true),
        ("get", Cluster::default(), "GET", false),
        ("create", Cluster::default(), "POST", false),
        ("update", with_lease, "PUT", false),
    ] {
        for (code, allowed) in [(403, false), (500, true), (409, true)] {
            let api = cluster.api(move |seen| {
                (seen.method == method && seen.path.ends_with("/leases") == (list || method == "POST")).then_some(code)
            });
            assert_eq!(membership(&api).is_allowed().await, allowed, "{name} {code}");
        }
    }
}
