//! What is there on a Harvester host before any guest cluster: kinds, roles, namespaces, networks; and, once the
//! servers listen, the webhook configurations and the aggregated API.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use harvester_api::keys::harvester;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::apply::{ApplyError, apply_all};
use crate::serve::webhooks::{MUTATION_PATH, VALIDATION_PATH};

/// Name of both webhook configurations.
pub const WEBHOOK_CONFIGURATION: &str = "harvester-load-balancer-webhook";

/// What to install besides kinds and roles.
#[derive(Debug, Clone, Default)]
pub struct Install {
    /// Namespaces for virtual machines of guest clusters.
    pub namespaces: Vec<String>,
    /// Rancher project of these namespaces, `<cluster id>:<project id>`.
    pub project: Option<String>,
    /// Networks to define.
    pub networks: Vec<Network>,
}

/// A NetworkAttachmentDefinition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// VLAN id.
    pub vlan: u16,
}

/// Why an installation failed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A document was refused.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// A kind did not come up.
    #[error("kind {0} was not established within {1:?}")]
    NotEstablished(String, Duration),
    /// A kind could not be watched.
    #[error("failed to wait for kind {0}")]
    Wait(String, #[source] Box<kube::runtime::wait::Error>),
    /// The API did not answer.
    #[error("failed to {what}")]
    Api {
        /// What was tried.
        what: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
}

/// Installs; a second time changes nothing.
pub async fn install(client: &Client, wanted: &Install) -> Result<(), InstallError> {
    let kinds = crds();
    apply_all(client, &kinds).await?;
    for kind in &kinds {
        established(client, kind["metadata"]["name"].as_str().unwrap_or_default()).await?;
    }
    apply_all(client, &documents(wanted)).await?;
    Ok(())
}

/// The CustomResourceDefinitions.
pub fn crds() -> Vec<Value> {
    serde_saphyr::from_multiple(include_str!("crds.yaml"))
        .expect("the file is part of the program and covered by a test")
}

async fn established(client: &Client, name: &str) -> Result<(), InstallError> {
    const LIMIT: Duration = Duration::from_secs(20);
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let wait = await_condition(api, name, conditions::is_crd_established());
    match tokio::time::timeout(LIMIT, wait).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(source)) => Err(InstallError::Wait(name.to_owned(), Box::new(source))),
        Err(_) => Err(InstallError::NotEstablished(name.to_owned(), LIMIT)),
    }
}

/// Namespaces, role, networks.
fn documents(wanted: &Install) -> Vec<Value> {
    let mut documents = vec![namespace("harvester-system", None), namespace("kubevirt", None), cloud_provider_role()];
    let project = wanted.project.as_deref();
    documents.extend(wanted.namespaces.iter().map(|name| namespace(name, project)));
    for network in &wanted.networks {
        if !wanted.namespaces.contains(&network.namespace) && network.namespace != "default" {
            documents.push(namespace(&network.namespace, None));
        }
        let config = json!({"cniVersion": "0.3.1", "name": network.name, "type": "bridge", "bridge": "mgmt-br",
            "promiscMode": true, "vlan": network.vlan, "ipam": {}});
        documents.push(json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"namespace": network.namespace, "name": network.name,
                "labels": {harvester::VLAN_ID: network.vlan.to_string(),
                    "network.harvesterhci.io/type": "L2VlanNetwork"}},
            "spec": {"config": config.to_string()},
        }));
    }
    documents
}

fn namespace(name: &str, project: Option<&str>) -> Value {
    let mut namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    if let Some(project) = project {
        namespace["metadata"]["annotations"] = json!({harvester::PROJECT_ID: project});
    }
    namespace
}

/// Harvester spec 10.1: no patch, no pools, no namespaces, no events.
fn cloud_provider_role() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": harvester::CLOUD_PROVIDER_ROLE},
        "rules": [
            {"apiGroups": ["loadbalancer.harvesterhci.io"], "resources": ["loadbalancers"],
             "verbs": ["get", "list", "watch", "update", "create", "delete"]},
            {"apiGroups": ["subresources.kubevirt.io"],
             "resources": ["virtualmachines/addvolume", "virtualmachines/removevolume",
                 "virtualmachineinstances/addvolume",
                           "virtualmachineinstances/removevolume", "virtualmachineinstances/guestosinfo"],
             "verbs": ["get", "update"]},
            {"apiGroups": ["kubevirt.io"], "resources": ["virtualmachines", "virtualmachineinstances"],
                "verbs": ["get", "list", "watch"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [""], "resources": ["persistentvolumeclaims", "persistentvolumeclaims/status"],
                "verbs": ["*"]},
        ],
    })
}

/// Registers the webhooks at `https://<host>:<port>`. Names, rules and policies are the host's. Harvester spec 5.1
pub async fn register_webhooks(client: &Client, host: &str, port: u16, ca_pem: &str) -> Result<(), InstallError> {
    let authority =
        if host.parse::<std::net::Ipv6Addr>().is_ok() { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let documents = webhook_configurations(&format!("https://{authority}"), ca_pem);
    Ok(apply_all(client, &documents).await?)
}

fn webhook_configurations(url: &str, ca_pem: &str) -> Vec<Value> {
    let rule = |resource: &str, operations: &[&str], scope: &str| {
        json!({"apiGroups": ["loadbalancer.harvesterhci.io"], "apiVersions": ["v1beta1"], "resources": [resource],
               "operations": operations, "scope": scope})
    };
    let webhook = |name: &str, path: &str, policy: &str, rules: Vec<Value>| {
        json!({
            "name": name, "clientConfig": {"url": format!("{url}{path}"), "caBundle": STANDARD.encode(ca_pem)},
            "rules": rules, "failurePolicy": policy, "matchPolicy": "Equivalent", "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        })
    };
    let configuration = |kind: &str, webhook: Value| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": WEBHOOK_CONFIGURATION},
               "webhooks": [webhook]})
    };
    let changes = ["CREATE", "UPDATE"];
    let validator = webhook(
        "validator.harvester-system.harvester-load-balancer-webhook",
        VALIDATION_PATH,
        "Fail",
        vec![
            rule("loadbalancers", &changes, "Namespaced"),
            rule("ippools", &["CREATE", "UPDATE", "DELETE"], "Cluster"),
        ],
    );
    let mutator = webhook(
        "mutator.harvester-system.harvester-load-balancer-webhook",
        MUTATION_PATH,
        "Ignore",
        vec![rule("loadbalancers", &changes, "Namespaced"), rule("ippools", &changes, "Cluster")],
    );
    vec![
        configuration("ValidatingWebhookConfiguration", validator),
        configuration("MutatingWebhookConfiguration", mutator),
    ]
}

/// DNS name that the aggregator expects in the certificate of the aggregated API.
pub const SUBRESOURCES_DNS_NAME: &str = "virt-api.kubevirt.svc";

/// Registers the aggregated API at this address. A Service without selector and an EndpointSlice, as for anything
/// outside; a loopback address may not be in an EndpointSlice, so there the Service is an ExternalName.
pub async fn register_subresources(client: &Client, at: SocketAddr, ca_pem: &str) -> Result<(), InstallError> {
    Ok(apply_all(client, &subresource_documents(at, ca_pem)).await?)
}

fn subresource_documents(at: SocketAddr, ca_pem: &str) -> Vec<Value> {
    let metadata = json!({"name": "virt-api", "namespace": "kubevirt"});
    let mut documents = Vec::new();
    let port = if at.ip().is_loopback() {
        documents.push(json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"type": "ExternalName", "externalName": at.ip().to_string(),
                "ports": [{"name": "https", "port": at.port()}]}}));
        at.port()
    } else {
        documents.push(json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": at.port(), "protocol": "TCP"}]}}));
        documents.push(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "virt-api-1", "namespace": "kubevirt",
                "labels": {"kubernetes.io/service-name": "virt-api"}},
            "addressType": if matches!(at.ip(), IpAddr::V4(_)) { "IPv4" } else { "IPv6" },
            "ports": [{"name": "https", "port": at.port(), "protocol": "TCP"}],
            "endpoints": [{"addresses": [at.ip().to_string()], "conditions": {"ready": true}}],
        }));
        443
    };
    documents.push(json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1.subresources.kubevirt.io"},
        "spec": {"group": "subresources.kubevirt.io", "version": "v1",
                 "groupPriorityMinimum": 1000, "versionPriority": 15, "caBundle": STANDARD.encode(ca_pem),
                 "service": {"namespace": "kubevirt", "name": "virt-api", "port": port}},
    }));
    documents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kinds_are_the_hosts_and_only_the_vm_has_a_status_subresource() {
        let crds = crds();
        let subresources: Vec<_> = crds
            .iter()
            .map(|crd| {
                serde_json::from_value::<CustomResourceDefinition>(crd.clone()).expect("a valid definition");
                let version = &crd["spec"]["versions"][0];
                let status = version["subresources"].get("status").is_some();
                (
                    crd["spec"]["names"]["plural"].as_str().unwrap().to_owned(),
                    version["name"].as_str().unwrap().to_owned(),
                    status,
                )
            })
            .collect();
        let expected = [
            ("loadbalancers", "v1beta1", false),
            ("ippools", "v1beta1", false),
            ("virtualmachines", "v1", true),
            ("virtualmachineinstances", "v1", false),
            ("network-attachment-definitions", "v1", false),
        ];
        assert_eq!(
            subresources,
            expected.map(|(plural, version, status)| (plural.to_owned(), version.to_owned(), status))
        );
    }

    #[test]
    fn nobody_may_patch_with_the_cloud_provider_role() {
        let role = cloud_provider_role().to_string();
        assert!(!role.contains("patch") && !role.contains("ippools") && !role.contains("secrets"));
    }

    #[test]
    fn a_loopback_address_is_reached_without_an_endpoint_slice() {
        let kinds = |at: &str| {
            let documents = subresource_documents(at.parse().unwrap(), "ca");
            documents.iter().map(|document| document["kind"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(kinds("127.0.0.1:9443"), ["Service", "APIService"]);
        assert_eq!(kinds("10.99.0.3:9443"), ["Service", "EndpointSlice", "APIService"]);
    }
}
