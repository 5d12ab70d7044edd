//! `node` mode's part of the API: keeps this node's membership Lease, and tells the engine what the other nodes' Leases,
//! the Nodes and kube-vip's Lease say. `membership/kube_proxy.rs`: whether kube-proxy is well here.
//!
//! Decides nothing. The engine says when to write and what; each write is a renewal.

mod kube_proxy;
mod views;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject, ListParams, PostParams};
use kube::{Api, Client};
pub use kube_proxy::watch as watch_kube_proxy;
use runtime::cache::{Cache, Told};
use runtime::error::{api_code, chain};
use runtime::reflect::Reflector;
use serde_json::json;
use tokio::sync::mpsc;
use views::LeaseView;
pub use views::NodeView;

use crate::engine::Input;
use crate::ownership::node::{CARD, Card, LEASE_PREFIX};

/// For one request. The Lease lasts longer than some of them together.
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
    /// As the API returned it last.
    latest: Option<DynamicObject>,
    /// The Lease goes with its Node: nobody has the right to delete Leases (decisions.md 3).
    owner_uid: Option<String>,
    failing: bool,
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
            latest: None,
            owner_uid: None,
            failing: false,
        }
    }

    fn name(&self) -> String {
        format!("{LEASE_PREFIX}{}", self.node)
    }

    /// Whether the rights are there that `node` mode needs: list Leases and write ours. `false` only if the API says no;
    /// an API that does not answer says nothing.
    pub async fn is_allowed(&mut self) -> bool {
        let list = tokio::time::timeout(LIMIT, self.leases.list_metadata(&ListParams::default().limit(1))).await;
        if matches!(&list, Ok(Err(error)) if api_code(error) == Some(403)) {
            return false;
        }
        let written = self.write(&Card::default()).await;
        !matches!(&written, Err(error) if api_code(error) == Some(403))
    }

    /// Writes each card that comes; of several that wait, the last.
    pub async fn run(mut self, mut cards: mpsc::UnboundedReceiver<Card>) {
        while let Some(mut card) = cards.recv().await {
            while let Ok(newer) = cards.try_recv() {
                card = newer;
            }
            let written = tokio::time::timeout(LIMIT, self.write(&card)).await;
            match written {
                Ok(Ok(())) => self.failing = false,
                Ok(Err(error)) => self.failed(&chain(&error)),
                Err(_) => self.failed(&format!("no answer within {LIMIT:?}")),
            }
        }
    }

    /// Once per outage: the engine keeps what it has, and asks again soon.
    fn failed(&mut self, error: &str) {
        // What took effect is not known: read it before the next write.
        self.latest = None;
        if !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(lease = self.name(), error, "cannot renew the membership Lease, trying again");
        }
    }

    async fn write(&mut self, card: &Card) -> Result<(), kube::Error> {
        let name = self.name();
        for _ in 0..3 {
            let found = match self.latest.take() {
                Some(latest) => Some(latest),
                None => self.leases.get_opt(&name).await?,
            };
            let fresh = found.is_none();
            let mut object = found.unwrap_or_else(|| {
                DynamicObject::new(&name, &ApiResource::erase::<Lease>(&())).within(&self.namespace)
            });
            self.fill(&mut object, card).await;
            let params = PostParams::default();
            let written = if fresh {
                self.leases.create(&params, &object).await
            } else {
                self.leases.replace(&name, &params, &object).await
            };
            match written {
                Ok(mut object) => {
                    object.metadata.managed_fields = None;
                    self.latest = Some(object);
                    return Ok(());
                }
                // Changed by hand, deleted with its Node, or made by a former life a moment ago.
                Err(error) if matches!(api_code(&error), Some(409 | 404)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
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
pub async fn watch_leases(client: Client, namespace: String, lock: String, inputs: mpsc::UnboundedSender<Input>) {
    let cache: Cache<String, LeaseView> = Cache::new(|old, new| old != new);
    let wanted = lock.clone();
    let reflector =
        Reflector::new("leases", Api::namespaced(client, &namespace), cache.clone(), name, move |lease: &Lease| {
            LeaseView::of(lease, &wanted, Timestamp::now())
        })
        .longest_pause(WATCH_PAUSE);
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
        Told::Object(name, view) => tell(name, view),
        Told::Listed => {
            let _ = inputs.send(Input::MembersSynced);
        }
    });
    tokio::select! {
        never = reflector.run() => match never {},
        () = feed => {}
    }
}

/// Tells the engine what counts of the Nodes. Where they may not be read it says so, and goes by Leases alone.
pub async fn watch_nodes(client: Client, nodes: Cache<String, NodeView>, inputs: mpsc::UnboundedSender<Input>) {
    let api: Api<Node> = Api::all(client);
    loop {
        match api.list_metadata(&ListParams::default().limit(1)).await {
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
    let feed = nodes.follow(|told| {
        let _ = inputs.send(match told {
            Told::Object(name, view) => Input::Node(name.clone(), view.map(|view| view.facts)),
            Told::Listed => Input::NodesSynced { readable: true },
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
