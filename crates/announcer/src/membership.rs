//! `node` mode at the API: keeps this node's membership Lease, and tells the engine about the other nodes' Leases, the
//! Nodes and kube-vip's Lease. `membership/kube_proxy.rs` checks kube-proxy on this node.
//!
//! It makes no decisions: the engine says when to write and what, and [`announcer_core::membership`] which request
//! comes next.

mod kube_proxy;
mod safe_mode;
#[cfg(test)]
mod tests;
mod views;

use std::time::Duration;

use announcer_core::engine::Input;
use announcer_core::membership::{self, MembershipAct, MembershipAnswer};
use announcer_core::ownership::node::Card;
use contract::keys::cloudprovider::{CARD, NO_MACVLANS, SILENCE};
use contract::leases::MEMBER_PREFIX;
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
use runtime::health::{Health, OnFailure};
use runtime::reflect::Reflector;
use runtime::refusal;
use safe_mode::ControllerNews;
use serde_json::json;
use tokio::sync::mpsc;
use views::LeaseView;
pub use views::NodeView;

use crate::clock::{runtime_now as now, runtime_sleep_until as sleep_until};

/// Limit for the check of permissions.
const LIMIT: Duration = Duration::from_secs(3);

/// Longest pause of a watch after an outage of the API: the nodes must see each other again before anything can be
/// decided.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// This node's membership Lease.
#[derive(Debug, Clone)]
pub struct Membership {
    leases: Api<DynamicObject>,
    nodes: Api<Node>,
    node: String,
    namespace: String,
    duration: Duration,
    /// UID of the Node that owns the Lease, so that the Lease is deleted with its Node; no announcer has the right to
    /// delete Leases (decisions.md 3). It is read again for each new Lease: with the UID of a deleted and re-registered
    /// Node, the garbage collector would delete each new Lease.
    owner_uid: Option<String>,
    /// Why this node cannot have macvlans.
    no_macvlans: Option<String>,
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
            no_macvlans: None,
        }
    }

    /// Sets the result of the test macvlan; `None`: this node can have macvlans.
    pub fn without_macvlans(mut self, why: Option<String>) -> Self {
        self.no_macvlans = why;
        self
    }

    fn name(&self) -> String {
        format!("{MEMBER_PREFIX}{}", self.node)
    }

    /// Whether `node` mode has the permissions to list Leases and write ours. `false` only if the API server denies
    /// them; an API that does not answer proves nothing.
    pub async fn is_allowed(&self) -> bool {
        let in_time = || async move {
            match tokio::time::timeout(LIMIT, self.rehearse()).await {
                Ok(Err(error)) => Err(error),
                Ok(Ok(())) | Err(_) => Ok(()),
            }
        };
        !matches!(refusal::settled(in_time).await, Err(error) if api_code(&error) == Some(403))
    }

    /// Sends the requests of [`Self::request`] as a dry run: the card of the previous process stays until there is a
    /// new one.
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

    /// Writes each card, with retries; of several waiting cards only the last.
    pub async fn run(mut self, mut cards: mpsc::UnboundedReceiver<Card>) {
        let mut lease = membership::Membership::new(self.duration);
        // The request under way. What it learns about our Node counts once it is answered.
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
                tracing::warn!(
                    lease = self.name(),
                    error,
                    "the announcer cannot renew the membership Lease of this node; it tries again"
                );
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

    async fn request(&mut self, act: MembershipAct<DynamicObject>) -> (u64, MembershipAnswer<DynamicObject>) {
        match act {
            MembershipAct::Read(id) => match self.leases.get_opt(&self.name()).await {
                Ok(found) => (id, MembershipAnswer::Found(found)),
                Err(error) => (id, MembershipAnswer::Failed(chain(&error))),
            },
            MembershipAct::Write(id, found, card) => {
                let fresh = found.is_none();
                if fresh {
                    self.owner_uid = None;
                }
                let mut object = found.unwrap_or_else(|| self.blank());
                self.fill(&mut object, &card).await;
                let answer = match self.send(fresh, &object, false).await {
                    Ok(mut object) => {
                        object.metadata.managed_fields = None;
                        MembershipAnswer::Written(object)
                    }
                    Err(error) if matches!(api_code(&error), Some(409 | 404)) => {
                        MembershipAnswer::Conflict(chain(&error))
                    }
                    Err(error) => MembershipAnswer::Failed(chain(&error)),
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
        let annotations = object.metadata.annotations.get_or_insert_default();
        annotations.insert(CARD.to_owned(), card.to_annotation());
        match &self.no_macvlans {
            Some(why) => annotations.insert(NO_MACVLANS.to_owned(), why.clone()),
            None => annotations.remove(NO_MACVLANS),
        };
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

/// Tells the engine about the Leases of the namespace: membership Leases, and kube-vip's Lease `lock`.
pub async fn watch_leases(
    client: Client,
    namespace: String,
    lock: String,
    inputs: mpsc::UnboundedSender<Input>,
    health: Health,
) {
    let cache: Cache<String, LeaseView> = Cache::new(safe_mode::differs);
    let wanted = lock.clone();
    let reflector =
        Reflector::new("leases", Api::namespaced(client, &namespace), cache.clone(), name, move |lease: &Lease| {
            LeaseView::of(lease, &wanted, Timestamp::now())
        })
        .longest_pause(WATCH_PAUSE);
    health.register("leases-fresh", OnFailure::NotReady, reflector.freshness());
    let mut controllers = ControllerNews::default();
    let mut tell = |name: &str, view: Option<&LeaseView>| {
        let input = match (name.strip_prefix(MEMBER_PREFIX), view) {
            (Some(node), Some(LeaseView::Member(member))) => Input::Member(node.to_owned(), Some(member.clone())),
            (Some(node), _) => Input::Member(node.to_owned(), None),
            (None, Some(LeaseView::Lock(lock))) => Input::Foreign(Some(lock.clone())),
            (None, _) if name == lock => Input::Foreign(None),
            (None, view) => {
                let Some(safe_mode) = controllers.note(name, view) else { return };
                tracing::info!(lease = name, safe_mode, "{}", about_safe_mode(safe_mode));
                Input::SafeMode(safe_mode)
            }
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
        never = safe_mode::forget_when_over(&cache, Timestamp::now) => match never {},
        () = feed => {}
    }
}

fn about_safe_mode(yes: bool) -> &'static str {
    if yes {
        "the cloud controller is in safe mode; the announcer announces no new address, and takes over an address of \
        another node only if no host answers for it"
    } else {
        "the cloud controller is not in safe mode; the announcer works as usual"
    }
}

/// Tells the engine about the Nodes. If they cannot be read, it says so, and the engine relies on Leases alone.
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
                    "the announcer has no right to read Nodes; the membership Leases alone decide which node may \
                    announce"
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
    health.register("nodes-fresh", OnFailure::NotReady, reflector.freshness());
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
