//! The host's admission webhooks over HTTPS: gathers what a rule needs, lets the rule decide, answers.
//! Harvester spec 5

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::post;
use harvester_api::ip_pool::IpPool;
use harvester_api::keys::{cloudprovider, loadbalancer};
use harvester_api::load_balancer::LoadBalancer;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::admission::ip_pool::{self, Verb};
use crate::admission::load_balancer::{self, Candidate};
use crate::admission::network;
use crate::admission::review::{self, Request, Review};
use crate::faults::{ALL_NAMESPACES, FaultSwitch};
use crate::host::lookups::Lookups;
use crate::version::HostVersion;

/// Path of the validating webhook.
pub const VALIDATION_PATH: &str = "/v1/webhook/validation";
/// Path of the mutating webhook.
pub const MUTATION_PATH: &str = "/v1/webhook/mutation";

/// What the handlers need.
#[derive(Clone)]
pub struct Webhooks {
    /// For injected conflicts.
    pub client: Client,
    /// What the rules need to know.
    pub lookups: Lookups,
    /// Which host.
    pub version: HostVersion,
    /// What is to go wrong.
    pub faults: Arc<FaultSwitch>,
    /// User name of the stand-in itself, whose writes never meet an injected conflict.
    pub own_user: String,
}

/// Both webhooks.
pub fn router(state: Webhooks) -> Router {
    Router::new().route(VALIDATION_PATH, post(validation)).route(MUTATION_PATH, post(mutation)).with_state(state)
}

async fn validation(State(webhooks): State<Webhooks>, Json(review): Json<Review>) -> Response {
    let request = review.request;
    if !webhooks.work(namespace(&request)).await {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let answer = match webhooks.validate(&request).await {
        Ok(()) => review::allowed(&request.uid, &[]),
        Err(text) => review::refused(&request.uid, &text),
    };
    Json(answer).into_response()
}

async fn mutation(State(webhooks): State<Webhooks>, Json(review): Json<Review>) -> Response {
    let request = review.request;
    if !webhooks.work(namespace(&request)).await {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let answer = match webhooks.mutate(&request).await {
        Ok(patch) => review::allowed(&request.uid, &patch),
        Err(text) => review::refused(&request.uid, &text),
    };
    Json(answer).into_response()
}

/// Namespace of the object in question; `*` for pools.
fn namespace(request: &Request) -> &str {
    request.object["metadata"]["namespace"]
        .as_str()
        .or_else(|| request.old_object["metadata"]["namespace"].as_str())
        .unwrap_or(ALL_NAMESPACES)
}

impl Webhooks {
    /// Whether they answer at all; while they hang, this does not end.
    async fn work(&self, namespace: &str) -> bool {
        let mut changed = self.faults.subscribe();
        while self.faults.get(namespace).webhooks_hang {
            if changed.changed().await.is_err() {
                return false;
            }
        }
        !self.faults.get(namespace).webhook_outage
    }

    async fn validate(&self, request: &Request) -> Result<(), String> {
        match (request.resource.resource.as_str(), request.operation.as_str()) {
            ("loadbalancers", "CREATE") => {
                if let Some(text) = self.faults.get(namespace(request)).refuse_creates {
                    return Err(text);
                }
                let lb = Candidate::decode(&request.object)?;
                let cluster = lb.metadata.labels.get(cloudprovider::CLUSTER).filter(|cluster| !cluster.is_empty());
                let machines = match cluster {
                    Some(cluster) => self.lookups.leaving_machines(&lb.metadata.namespace, cluster).await?,
                    None => Vec::new(),
                };
                load_balancer::validate_create(&lb, &machines)
            }
            ("loadbalancers", "UPDATE") => load_balancer::validate_update(
                &Candidate::decode(&request.old_object)?,
                &Candidate::decode(&request.object)?,
            ),
            ("ippools", "CREATE") => self.validate_pool(request, Verb::Create).await,
            ("ippools", "UPDATE") => self.validate_pool(request, Verb::Update).await,
            ("ippools", "DELETE") => ip_pool::validate_delete(&decode_pool(&request.old_object)?),
            _ => Ok(()),
        }
    }

    async fn validate_pool(&self, request: &Request, verb: Verb) -> Result<(), String> {
        let pool = decode_pool(&request.object)?;
        // Each booking is an update, too; a new pool must not miss one that was made just now.
        let others = self.lookups.other_pools(&pool, verb == Verb::Create).await?;
        ip_pool::validate(self.version, &pool, &others, verb)
    }

    async fn mutate(&self, request: &Request) -> Result<Vec<Value>, String> {
        match request.resource.resource.as_str() {
            "loadbalancers" => {
                let lb = Candidate::decode(&request.object)?;
                if request.operation == "UPDATE" && !request.dry_run && request.user_info.username != self.own_user {
                    self.disturb(&lb).await;
                }
                let project = self.lookups.project(&lb.metadata.namespace).await?;
                let cluster_way = lb.spec.workload_type == "cluster" || lb.spec.workload_type.is_empty();
                let instances = if cluster_way && network::needs_instances(self.version, &lb.metadata.annotations) {
                    let cluster = lb.metadata.annotations.get(loadbalancer::CLUSTER);
                    self.lookups.instances(&lb.metadata.namespace, cluster).await?
                } else {
                    Vec::new()
                };
                Ok(load_balancer::mutate(self.version, &lb, &project, &instances))
            }
            "ippools" => {
                let pool = decode_pool(&request.object)?;
                let facts = match ip_pool::network_to_look_up(&pool)? {
                    Some((namespace, name)) => Some(self.lookups.network(&namespace, &name).await?),
                    None => None,
                };
                ip_pool::mutate(&pool, facts.as_ref())
            }
            _ => Ok(Vec::new()),
        }
    }

    /// The fault that makes an update conflict: writes the object while its update is under way.
    async fn disturb(&self, lb: &Candidate) {
        if !self.faults.take(&lb.metadata.namespace, |faults| &mut faults.conflicts) {
            return;
        }
        let api: Api<LoadBalancer> = Api::namespaced(self.client.clone(), &lb.metadata.namespace);
        let Ok(Some(mut current)) = api.get_opt(&lb.metadata.name).await else { return };
        current.annotations_mut().insert("harvester-sim/disturbed".to_owned(), jiff::Timestamp::now().to_string());
        if let Err(error) = api.replace(&lb.metadata.name, &PostParams::default(), &current).await {
            tracing::warn!(%error, "an injected conflict did not come about");
        }
    }
}

fn decode_pool(object: &Value) -> Result<IpPool, String> {
    serde_json::from_value(object.clone()).map_err(|error| format!("decode ippool: {error}"))
}
