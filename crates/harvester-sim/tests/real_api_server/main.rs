//! The stand-in on a real API server: what a guest cluster's provider meets there.

mod api;
mod guests;
mod host;
mod load_balancers;

use std::time::{Duration, Instant};

use harvester_api::ip_pool::{IpPool, IpPoolSpec, IpRange, PoolSelector, ScopeTuple};
use harvester_api::keys::{cloudprovider, harvester, loadbalancer};
use harvester_api::load_balancer::{Ipam, LoadBalancer};
use harvester_api::virtual_machine::VirtualMachine;
use harvester_api::virtual_machine_instance::{GuestOsInfo, VirtualMachineInstance};
use harvester_sim::credentials::{CredentialsRequest, TokenSource, credentials};
use harvester_sim::guest::machine::Machine;
use harvester_sim::guest::machines::{Machines, MigrationOutcome};
use harvester_sim::host::machines::FINALIZER;
use host::{Host, available, host, real_host};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Waits for a condition on an object (`None`: it is gone), or says what it last saw.
async fn until<K>(api: &Api<K>, name: &str, what: &str, holds: impl Fn(Option<&K>) -> bool) -> Option<K>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let object = api.get_opt(name).await.expect("the API answers");
        if holds(object.as_ref()) {
            return object;
        }
        assert!(Instant::now() < deadline, "{name}: not {what} after 20 s, last seen: {object:#?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn cluster_lb(namespace: &str, name: &str, ipam: Ipam) -> LoadBalancer {
    let mut lb = LoadBalancer::for_cluster(namespace, name, ipam);
    lb.labels_mut().insert(cloudprovider::CLUSTER.to_owned(), "demo".to_owned());
    lb.annotations_mut().insert(loadbalancer::CLUSTER.to_owned(), "demo".to_owned());
    lb.annotations_mut().insert(loadbalancer::NETWORK.to_owned(), String::new());
    lb
}

/// Ten addresses (.10 to .19) of a /24 for one namespace.
async fn create_pool(client: &Client, namespace: &str, third_octet: u8, last: u8) {
    let range = IpRange {
        subnet: format!("10.77.{third_octet}.0/24"),
        range_start: Some(format!("10.77.{third_octet}.10")),
        range_end: Some(format!("10.77.{third_octet}.{last}")),
        gateway: None,
    };
    let scope =
        vec![ScopeTuple { project: "*".to_owned(), namespace: namespace.to_owned(), guest_cluster: "*".to_owned() }];
    let selector = PoolSelector { priority: 0, network: format!("{namespace}/mgmt"), scope };
    let pool = IpPool::new(namespace, IpPoolSpec { ranges: vec![range], selector, ..IpPoolSpec::default() });
    let pools: Api<IpPool> = Api::all(client.clone());
    pools.create(&PostParams::default(), &pool).await.expect("a good pool");
    until(&pools, namespace, "ready", |pool| pool.is_some_and(|pool| pool.status.is_some())).await;
}

async fn create_machine(client: &Client, namespace: &str, name: &str) -> Machine {
    let machine =
        Machine::node(namespace, name, "demo", &format!("{namespace}/mgmt"), &["10.20.0.11"]).located("lab", "rack-1");
    Machines::new(client.clone()).save(&machine).await.expect("a machine");
    machine
}

fn refusal<T: std::fmt::Debug>(outcome: kube::Result<T>) -> (u16, String) {
    match outcome {
        Err(kube::Error::Api(status)) => (status.code, status.message),
        other => panic!("not refused: {other:?}"),
    }
}

async fn control(host: &Host, method: &str, path: &str, body: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(&host.control).await.expect("the control endpoint listens");
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: sim\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

async fn set_faults(host: &Host, namespace: &str, faults: Value) {
    let answer = control(host, "PUT", &format!("/faults/{namespace}"), &faults.to_string()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

async fn guest_client(host: &Host, client: &Client, namespace: &str) -> Client {
    let request = CredentialsRequest {
        namespace: namespace.to_owned(),
        name: "demo".to_owned(),
        server: host.server.clone(),
        ca_pem: host.ca_pem.clone(),
        token: TokenSource::Request,
    };
    let cloud_config = credentials(client, &request).await.expect("credentials");
    Host::client_of(&cloud_config).await
}
