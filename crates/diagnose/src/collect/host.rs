//! Detects which features Harvester has, from its answers to a guest: the kinds that it serves, their schemas, and how
//! it handled requests. Its version is in a setting that most guests may not read.

use harvester_api::features::{LOAD_BALANCER_SCHEMA, has_ipv6_pool};
use harvester_api::keys::{cloudprovider, loadbalancer};
use harvester_api::load_balancer::{API_VERSION, LoadBalancer};
use kube::Client;
use kube::api::ListParams;
use kube::core::Request;
use runtime::error::api_code;
use serde_json::Value;

use crate::facts::annotation;
use crate::snapshot::{Host, feature};

/// Setting of Harvester with its version.
const VERSION: &str = "/apis/harvesterhci.io/v1beta1/settings/server-version";

pub async fn read(client: &Client, load_balancers: &[LoadBalancer]) -> Host {
    let mut host = Host::default();
    for (name, group, resource) in [
        (feature::LOAD_BALANCERS, API_VERSION, "loadbalancers"),
        (feature::MACHINES, "kubevirt.io/v1", "virtualmachineinstances"),
        (feature::UPGRADE_PLANS, "management.harvesterhci.io/v1beta1", "upgradeplans"),
    ] {
        host.features.extend(serves(client, group, resource).await.map(|serves| (name, serves)));
    }
    let schema = get(client, LOAD_BALANCER_SCHEMA).await.as_ref().and_then(has_ipv6_pool);
    host.features.extend(schema.map(|has| (feature::IPV6_POOL, has)));
    host.features.extend(keeps_network(load_balancers).map(|keeps| (feature::NETWORK_AWARE, keeps)));
    let setting = get(client, VERSION).await;
    host.version = setting.and_then(|setting| Some(setting["value"].as_str()?.to_owned())).unwrap_or_default();
    host
}

async fn serves(client: &Client, group: &str, resource: &str) -> Option<bool> {
    match client.list_api_group_resources(group).await {
        Ok(list) => Some(list.resources.iter().any(|one| one.name == resource)),
        Err(error) if api_code(&error) == Some(404) => Some(false),
        Err(_) => None,
    }
}

async fn get(client: &Client, path: &str) -> Option<Value> {
    client.request(Request::new(path).list(&ListParams::default()).ok()?).await.ok()
}

/// Whether the host kept the network of the youngest object that requested one.
fn keeps_network(load_balancers: &[LoadBalancer]) -> Option<bool> {
    let asked = |lb: &&LoadBalancer| !annotation(&lb.metadata, cloudprovider::LB_NETWORK).is_empty();
    let created = |lb: &&LoadBalancer| lb.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let youngest = load_balancers.iter().filter(asked).max_by_key(created)?;
    let kept = annotation(&youngest.metadata, loadbalancer::NETWORK);
    Some(kept == annotation(&youngest.metadata, cloudprovider::LB_NETWORK))
}

#[cfg(test)]
mod tests {
    use runtime::scenario::Scenario;
    use serde_json::json;

    use super::*;

    /// A guest is told nothing that it need not know; what it is not told is not concluded.
    #[tokio::test]
    async fn what_a_guest_may_not_read_stays_unknown_and_what_is_not_served_is_known() {
        let host = Scenario::answering(|seen| match seen.path.as_str() {
            "/apis/loadbalancer.harvesterhci.io/v1beta1" => {
                let kind = json!({"name": "loadbalancers", "singularName": "", "namespaced": true,
                    "kind": "LoadBalancer", "verbs": []});
                (200, json!({"kind": "APIResourceList", "groupVersion": API_VERSION, "resources": [kind]}))
            }
            "/apis/management.harvesterhci.io/v1beta1" => (404, Scenario::status(404, "NotFound", "no such group")),
            _ => (403, Scenario::status(403, "Forbidden", "no")),
        });
        let found = read(&host.client(), &[]).await;
        assert_eq!(found.features, [(feature::LOAD_BALANCERS, true), (feature::UPGRADE_PLANS, false)].into());
        assert_eq!(found.version, "");
    }
}
