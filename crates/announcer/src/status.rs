//! `announcer status`: reads the objects from the API. [`announcer_core::status`] interprets them.

use announcer_core::config::Config;
use announcer_core::status::{Listed, Report, report};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use kube::api::ListParams;
use kube::{Api, Client};
use runtime::Product;
use runtime::client::{ClientError, Settings, connect};

use crate::run::{lease_namespace, source};

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// No client for the cluster can be made.
    #[error("failed to connect to the cluster")]
    Client(#[from] ClientError),
    /// The API server does not answer or refuses.
    #[error("failed to list {what}{}", runtime::error::nothing_there(.source))]
    List {
        /// The objects.
        what: String,
        /// The error.
        source: Box<kube::Error>,
    },
}

/// Reads Services and Leases, and makes the report.
pub async fn read(config: &Config, product: &Product) -> Result<Report, StatusError> {
    let api = source(&config.api).load(config.api.server.as_deref()).await?;
    let client = connect(api, &Settings::new("guest", product))?;
    listed(config, client, Timestamp::now()).await
}

async fn listed(config: &Config, client: Client, now: Timestamp) -> Result<Report, StatusError> {
    let services: Api<Service> = match &config.watch_namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let namespace = lease_namespace(config);
    let leases: Api<Lease> = Api::namespaced(client, &namespace);
    let failed = |what: &str| {
        let what = what.to_owned();
        move |source| StatusError::List { what, source: Box::new(source) }
    };
    let all = ListParams::default();
    let services = services.list(&all).await.map_err(failed("Services"))?.items;
    let leases = leases.list(&all).await.map_err(failed(&format!("Leases in namespace {namespace}")))?.items;
    Ok(report(config, Listed { services: &services, leases: &leases, namespace: &namespace }, now))
}

#[cfg(test)]
mod tests {
    use announcer_core::fixtures::config;
    use runtime::scenario::Scenario;
    use serde_json::json;

    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T12:00:00Z".parse().unwrap()
    }

    fn world() -> (Vec<Service>, Vec<Lease>) {
        let service = json!({
            "metadata": {"namespace": "default", "name": "web", "uid": "u",
                "annotations": {"kube-vip.io/loadbalancerIPs": "10.0.0.50"}},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
        });
        let lease = json!({
            "metadata": {"name": "harvester-announcer-node-1"},
            "spec": {"holderIdentity": "node-1", "leaseDurationSeconds": 15,
                "renewTime": "2026-01-01T11:59:57.000000Z"},
        });
        (vec![serde_json::from_value(service).unwrap()], vec![serde_json::from_value(lease).unwrap()])
    }

    /// An API server with these objects; others than `allowed` may not be read.
    fn cluster(allowed: &'static [&'static str]) -> Scenario {
        let (services, leases) = world();
        Scenario::answering(move |request| {
            assert_eq!(request.method, "GET", "it only reads");
            if !allowed.contains(&request.path.as_str()) {
                return (403, Scenario::status(403, "Forbidden", "you may not"));
            }
            let items = if request.path.ends_with("/leases") { json!(leases) } else { json!(services) };
            (200, json!({"metadata": {"resourceVersion": "1"}, "items": items}))
        })
    }

    const ALL: &[&str] = &["/api/v1/services", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"];

    #[tokio::test]
    async fn what_is_read_is_what_is_reported_in_two_requests() {
        let (services, leases) = world();
        let api = cluster(ALL);
        let read = listed(&config(&[]), api.client(), now()).await.unwrap();
        let listed_here = Listed { services: &services, leases: &leases, namespace: "kube-system" };
        assert_eq!(read, report(&config(&[]), listed_here, now()));
        assert_eq!((read.vips.len(), read.leases.len()), (1, 1));
        let asked: Vec<String> = api.requests().iter().map(|request| request.path.clone()).collect();
        assert_eq!(asked, ALL);
        let elsewhere = config(&[("svc_namespace", "tenant")]);
        let api = cluster(&[]);
        listed(&elsewhere, api.client(), now()).await.unwrap_err();
        assert_eq!(api.requests()[0].path, "/api/v1/namespaces/tenant/services", "only what the announcer watches");
    }

    #[tokio::test]
    async fn what_may_not_be_read_is_named() {
        for (allowed, expected) in
            [(&ALL[..0], "failed to list Services"), (&ALL[..1], "failed to list Leases in namespace kube-system")]
        {
            let error = listed(&config(&[]), cluster(allowed).client(), now()).await.unwrap_err();
            let text = runtime::error::chain(&error);
            assert!(text.starts_with(expected) && text.contains("you may not"), "{text}");
        }
    }
}
