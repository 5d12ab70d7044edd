//! `node` mode's part of the API: keeps this node's membership Lease, and tells the engine what the other nodes' Leases,
//! the Nodes and kube-vip's Lease say. `membership/kube_proxy.rs`: whether kube-proxy is well here.
//!
//! Decides nothing. The engine says when to write and what, [`announcer_core::membership`] which request comes next.

mod kube_proxy;
mod views;

use std::time::Duration;

use announcer_core::membership::{self, Act, Answer};
use futures::future::OptionFuture;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject, ListParams, PostParams};
use kube::{Api, Client};
pub use kube_proxy::watch as watch_kube_proxy;
use runtime::cache::{Cache, CacheEvent};
use runtime::error::{api_code, chain};
use runtime::health::{Health, Matters};
use runtime::reflect::Reflector;
use runtime::refusal;
use serde_json::json;
use tokio::sync::mpsc;
use views::LeaseView;
pub use views::NodeView;

use crate::clock::{runtime_now as now, runtime_sleep_until as sleep_until};
use crate::engine::Input;
use crate::ownership::node::{CARD, Card, LEASE_PREFIX, SILENCE};

/// For asking about rights.
const LIMIT: Duration = Duration::from_secs(3);

/// After an outage of the API everybody has to see each other again before anything can be decided.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// This node's membership Lease.
#[derive(Debug, Clone)]
pub struct Membership {
    leases: Api<DynamicObject>,
    nodes: Api<Node>,
    node: String,
    namespace: String,
    duration: Duration,
    /// The Lease goes with its Node: nobody has the right to delete Leases (decisions.md 3). Asked anew with each new Lease: under
    /// the UID of a Node that was deleted and registered again, the garbage collector would take it each time.
    owner_uid: Option<String>,
}

impl Membership {
    /// Writes nothing yet.
    pub fn new(client: &Client, namespace: &str, node: &str, duration: Duration) -> Self {
        let resource = ApiResource::erase::<Lease>(&());
        Self {
            leases: Api::namespaced_with(client.clone(), namespace, &resource),
            nodes: Api::all(client.clone()),
            node: node.to_owned(),
            namespace: namespace.to_owned(),
            duration,
            owner_uid: None,
        }
    }

    fn name(&self) -> String {
        format!("{LEASE_PREFIX}{}", self.node)
    }

    /// Whether the rights are there that `node` mode needs: list Leases and write ours. `false` only if the API says no;
    /// an API that does not answer says nothing.
    pub async fn is_allowed(&self) -> bool {
        let in_time = || async move {
            match tokio::time::timeout(LIMIT, self.rehearse()).await {
                Ok(Err(error)) => Err(error),
                Ok(Ok(())) | Err(_) => Ok(()),
            }
        };
        !matches!(refusal::settled(in_time).await, Err(error) if api_code(&error) == Some(403))
    }

    /// What [`Self::request`] sends, as a dry run: the card of our former life stands until there is a new one.
    async fn rehearse(&self) -> Result<(), kube::Error> {
        self.leases.list_metadata(&ListParams::default().limit(1)).await?;
        let found = self.leases.get_opt(&self.name()).await?;
        let fresh = found.is_none();
        let mut object = found.unwrap_or_else(|| self.blank());
        self.clone().fill(&mut object, &Card::default()).await;
        self.send(fresh, &object, true).await?;
        Ok(())
    }

    fn blank(&self) -> DynamicObject {
        DynamicObject::new(&self.name(), &ApiResource::erase::<Lease>(&())).within(&self.namespace)
    }

    async fn send(&self, fresh: bool, object: &DynamicObject, dry_run: bool) -> Result<DynamicObject, kube::Error> {
        let params = PostParams { dry_run, ..PostParams::default() };
        if fresh {
            self.leases.create(&params, object).await
        } else {
            self.leases.replace(&self.name(), &params, object).await
        }
    }

    /// Writes each card that comes, until it stands; of several that wait, the last.
    pub async fn run(mut self, mut cards: mpsc::UnboundedReceiver<Card>) {
        let mut lease = membership::Membership::new(self.duration);
        // The request under way. What it has found out of our Node counts when it is answered.
        let mut sent: OptionFuture<_> = None.into();
        loop {
            let act = tokio::select! {
                card = cards.recv() => match card {
                    Some(card) => lease.renew(now(), card),
                    None => break,
                },
                Some((owner_uid, id, answer)) = &mut sent => {
                    self.owner_uid = owner_uid;
                    sent = None.into();
                    lease.answered(now(), id, answer)
                }
                () = sleep_until(lease.deadline()) => lease.tick(now()),
            };
            if let Some(error) = lease.trouble() {
                tracing::warn!(lease = self.name(), error, "cannot renew the membership Lease, trying again");
            }
            if let Some(act) = act {
                let mut sender = self.clone();
                let request = async move {
                    let (id, answer) = sender.request(act).await;
                    (sender.owner_uid, id, answer)
                };
                sent = Some(Box::pin(request)).into();
            }
        }
        sent.await;
    }

    async fn request(&mut self, act: Act<DynamicObject>) -> (u64, Answer<DynamicObject>) {
        match act {
            Act::Read(id) => match self.leases.get_opt(&self.name()).await {
                Ok(found) => (id, Answer::Found(found)),
                Err(error) => (id, Answer::Failed(chain(&error))),
            },
            Act::Write(id, found, card) => {
                let fresh = found.is_none();
                if fresh {
                    self.owner_uid = None;
                }
                let mut object = found.unwrap_or_else(|| self.blank());
                self.fill(&mut object, &card).await;
                let answer = match self.send(fresh, &object, false).await {
                    Ok(mut object) => {
                        object.metadata.managed_fields = None;
                        Answer::Written(object)
                    }
                    Err(error) if matches!(api_code(&error), Some(409 | 404)) => Answer::Conflict(chain(&error)),
                    Err(error) => Answer::Failed(chain(&error)),
                };
                (id, answer)
            }
        }
    }

    async fn fill(&mut self, object: &mut DynamicObject, card: &Card) {
        if self.owner_uid.is_none() {
            self.owner_uid =
                self.nodes.get_metadata_opt(&self.node).await.ok().flatten().and_then(|node| node.metadata.uid);
        }
        if let Some(uid) = &self.owner_uid {
            let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": uid}]);
            object.metadata.owner_references = serde_json::from_value(owner).ok();
        }
        let labels = object.metadata.labels.get_or_insert_default();
        if card.silent.is_empty() {
            labels.remove(SILENCE);
        } else {
            labels.insert(SILENCE.to_owned(), "true".to_owned());
        }
        object.metadata.annotations.get_or_insert_default().insert(CARD.to_owned(), card.to_annotation());
        if !object.data["spec"].is_object() {
            object.data = json!({"spec": {}});
        }
        let spec = &mut object.data["spec"];
        let now = json!(format!("{:.6}", Timestamp::now()));
        if spec["acquireTime"].is_null() {
            spec["acquireTime"] = now.clone();
        }
        spec["holderIdentity"] = json!(self.node);
        spec["leaseDurationSeconds"] = json!(self.duration.as_secs());
        spec["renewTime"] = now;
    }
}

/// Tells the engine what the Leases of the namespace say: membership, and `lock`, kube-vip's.
pub async fn watch_leases(
    client: Client,
    namespace: String,
    lock: String,
    inputs: mpsc::UnboundedSender<Input>,
    health: Health,
) {
    let cache: Cache<String, LeaseView> = Cache::new(|old, new| old != new);
    let wanted = lock.clone();
    let reflector =
        Reflector::new("leases", Api::namespaced(client, &namespace), cache.clone(), name, move |lease: &Lease| {
            LeaseView::of(lease, &wanted, Timestamp::now())
        })
        .longest_pause(WATCH_PAUSE);
    health.register("leases-fresh", Matters::Ready, reflector.freshness());
    let tell = |name: &str, view: Option<&LeaseView>| {
        let input = match (name.strip_prefix(LEASE_PREFIX), view) {
            (Some(node), Some(LeaseView::Member(member))) => Input::Member(node.to_owned(), Some(member.clone())),
            (Some(node), _) => Input::Member(node.to_owned(), None),
            (None, Some(LeaseView::Lock(lock))) => Input::Foreign(Some(lock.clone())),
            (None, _) if name == lock => Input::Foreign(None),
            (None, _) => return,
        };
        let _ = inputs.send(input);
    };
    let feed = cache.follow(|told| match told {
        CacheEvent::Object(name, view) => tell(name, view),
        CacheEvent::Listed => {
            let _ = inputs.send(Input::MembersSynced);
        }
    });
    tokio::select! {
        never = reflector.run() => match never {},
        () = feed => {}
    }
}

/// Tells the engine what counts of the Nodes. Where they may not be read it says so, and goes by Leases alone.
pub async fn watch_nodes(
    client: Client,
    nodes: Cache<String, NodeView>,
    inputs: mpsc::UnboundedSender<Input>,
    health: Health,
) {
    let api: Api<Node> = Api::all(client);
    loop {
        let one = ListParams::default().limit(1);
        match refusal::settled(|| api.list_metadata(&one)).await {
            Err(error) if api_code(&error) == Some(403) => {
                tracing::warn!(
                    "no right to read Nodes: which node may announce is decided by the membership Leases alone"
                );
                let _ = inputs.send(Input::NodesSynced { readable: false });
                return std::future::pending().await;
            }
            Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            Ok(_) => break,
        }
    }
    let reflector = Reflector::new("nodes", api, nodes.clone(), name, |node: &Node| Some(NodeView::of(node)))
        .longest_pause(WATCH_PAUSE);
    health.register("nodes-fresh", Matters::Ready, reflector.freshness());
    let feed = nodes.follow(|told| {
        let _ = inputs.send(match told {
            CacheEvent::Object(name, view) => Input::Node(name.clone(), view.map(|view| view.facts.clone())),
            CacheEvent::Listed => Input::NodesSynced { readable: true },
        });
    });
    tokio::select! {
        never = reflector.run() => match never {},
        () = feed => {}
    }
}

fn name(meta: &ObjectMeta) -> String {
    meta.name.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use std::sync::Arc;

    use runtime::scenario::{Scenario, Seen};
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
        fn api(&self, refuse: impl Fn(&Seen) -> Option<u16> + Send + Sync + 'static) -> Scenario {
            let cluster = self.clone();
            Scenario::answering(move |seen| refuse(seen).map_or_else(|| cluster.answer(seen), refused))
        }

        fn answer(&self, seen: &Seen) -> (u16, Value) {
            if seen.path.contains("/nodes/") {
                let meta = json!({"name": "node-1", "uid": *self.node_uid.lock()});
                return (
                    200,
                    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta}),
                );
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
        let former = Card { serving: true, term: crate::ownership::node::Term(7), ..Card::default() };
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
        let members = |seen: &Seen| seen.body["spec"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
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
                    (seen.method == method && seen.path.ends_with("/leases") == (list || method == "POST"))
                        .then_some(code)
                });
                assert_eq!(membership(&api).is_allowed().await, allowed, "{name} {code}");
            }
        }
    }
}
