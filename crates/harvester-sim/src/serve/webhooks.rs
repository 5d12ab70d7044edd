//! The host's admission webhooks over HTTPS: gathers what a rule needs, lets the rule decide, answers. harvester-side.md 5

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::post;
use harvester_api::ip_pool::IpPool;
use harvester_api::keys::harvester::GUEST_CLUSTER_NAME;
use harvester_api::keys::{cloudprovider, loadbalancer};
use harvester_api::load_balancer::LoadBalancer;
use harvester_api::virtual_machine::VirtualMachine;
use harvester_api::virtual_machine_instance::VirtualMachineInstance;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::admission::ip_pool::{self, NetworkFacts, Verb};
use crate::admission::load_balancer::{self, Candidate, MachineFacts};
use crate::admission::network::{self, InstanceFacts};
use crate::admission::review::{self, Request, Review};
use crate::faults::{ALL_NAMESPACES, FaultSwitch};
use crate::version::HostVersion;

/// Path of the validating webhook.
pub const VALIDATION_PATH: &str = "/v1/webhook/validation";
/// Path of the mutating webhook.
pub const MUTATION_PATH: &str = "/v1/webhook/mutation";

/// What the handlers need.
#[derive(Clone)]
pub struct Webhooks {
    /// To look things up.
    pub client: Client,
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
    if webhooks.faults.get(namespace(&request)).webhook_outage {
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
    if webhooks.faults.get(namespace(&request)).webhook_outage {
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
    async fn validate(&self, request: &Request) -> Result<(), String> {
        match (request.resource.resource.as_str(), request.operation.as_str()) {
            ("loadbalancers", "CREATE") => {
                if let Some(text) = self.faults.get(namespace(request)).refuse_creates {
                    return Err(text);
                }
                let lb = Candidate::decode(&request.object)?;
                let machines = self.machines_of(&lb).await?;
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
        // Each booking is an update, too.
        let what = if verb == Verb::Update { as_cached() } else { ListParams::default() };
        let all = Api::<IpPool>::all(self.client.clone()).list(&what).await;
        let mut others = all.map_err(|error| format!("list ippools: {error}"))?.items;
        others.retain(|other| other.metadata.name != pool.metadata.name);
        ip_pool::validate(self.version, &pool, &others, verb)
    }

    async fn mutate(&self, request: &Request) -> Result<Vec<Value>, String> {
        match request.resource.resource.as_str() {
            "loadbalancers" => {
                let lb = Candidate::decode(&request.object)?;
                if request.operation == "UPDATE" && !request.dry_run && request.user_info.username != self.own_user {
                    self.disturb(&lb).await;
                }
                let project = self.project(&lb.metadata.namespace).await?;
                let instances = self.instances_for(&lb).await?;
                Ok(load_balancer::mutate(self.version, &lb, &project, &instances))
            }
            "ippools" => {
                let pool = decode_pool(&request.object)?;
                let facts = match ip_pool::network_to_look_up(&pool)? {
                    Some((namespace, name)) => Some(self.network(&namespace, &name).await?),
                    None => None,
                };
                ip_pool::mutate(&pool, facts.as_ref())
            }
            _ => Ok(Vec::new()),
        }
    }

    /// The fault that makes an update conflict: writes the object while its update is under way.
    async fn disturb(&self, lb: &Candidate) {
        if !self.faults.take_conflict(&lb.metadata.namespace) {
            return;
        }
        let api: Api<LoadBalancer> = Api::namespaced(self.client.clone(), &lb.metadata.namespace);
        let Ok(Some(mut current)) = api.get_opt(&lb.metadata.name).await else { return };
        current.annotations_mut().insert("harvester-sim/disturbed".to_owned(), jiff::Timestamp::now().to_string());
        if let Err(error) = api.replace(&lb.metadata.name, &PostParams::default(), &current).await {
            tracing::warn!(%error, "an injected conflict did not come about");
        }
    }

    async fn project(&self, namespace: &str) -> Result<String, String> {
        let found = Api::<Namespace>::all(self.client.clone()).get(namespace).await;
        let found = found.map_err(|error| format!("get namespace {namespace} failed: {error}"))?;
        Ok(load_balancer::project_of(found.annotations()))
    }

    async fn machines_of(&self, lb: &Candidate) -> Result<Vec<MachineFacts>, String> {
        let Some(cluster) = lb.metadata.labels.get(cloudprovider::CLUSTER).filter(|cluster| !cluster.is_empty()) else {
            return Ok(Vec::new());
        };
        let api: Api<VirtualMachine> = Api::namespaced(self.client.clone(), &lb.metadata.namespace);
        let of_cluster = as_cached().labels(&format!("{GUEST_CLUSTER_NAME}={cluster}"));
        let machines = api.list(&of_cluster).await.map_err(|error| format!("list vms failed: {error}"))?;
        Ok(machines
            .into_iter()
            .map(|vm| MachineFacts { labels: vm.labels().clone(), annotations: vm.annotations().clone() })
            .collect())
    }

    async fn instances_for(&self, lb: &Candidate) -> Result<Vec<InstanceFacts>, String> {
        let cluster_way = lb.spec.workload_type == "cluster" || lb.spec.workload_type.is_empty();
        if !cluster_way || !network::needs_instances(self.version, &lb.metadata.annotations) {
            return Ok(Vec::new());
        }
        let api: Api<VirtualMachineInstance> = Api::namespaced(self.client.clone(), &lb.metadata.namespace);
        let cluster = lb.metadata.annotations.get(loadbalancer::CLUSTER);
        let found = api.list(&as_cached()).await;
        let found = found.map_err(|error| format!("list vmis of cluster {cluster:?} failed: {error}"))?;
        Ok(found
            .into_iter()
            .map(|vmi| InstanceFacts {
                namespace: vmi.namespace().unwrap_or_default(),
                name: vmi.name_any(),
                labels: vmi.labels().clone(),
                multus_networks: vmi
                    .spec
                    .networks
                    .into_iter()
                    .filter_map(|network| network.multus.map(|multus| multus.network_name))
                    .collect(),
            })
            .collect())
    }

    async fn network(&self, namespace: &str, name: &str) -> Result<NetworkFacts, String> {
        let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
        let resource = ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions");
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let nad = api.get(name).await.map_err(|error| format!("get network {namespace}/{name}: {error}"))?;
        Ok(NetworkFacts {
            labels: nad.labels().clone(),
            config: nad.data["spec"]["config"].as_str().unwrap_or_default().to_owned(),
        })
    }
}

/// What the API server has in its cache, as the host's webhooks read their own. The newest state of a list costs up to a tenth of a
/// second wherever something else is written at the same time: the API server waits until its cache has caught up.
fn as_cached() -> ListParams {
    ListParams::default().match_any()
}

fn decode_pool(object: &Value) -> Result<IpPool, String> {
    serde_json::from_value(object.clone()).map_err(|error| format!("decode ippool: {error}"))
}
