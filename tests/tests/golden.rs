//! The end states that the Go provider v0.2.7 left on a real Harvester, written down in `golden/*.yaml` as the facts
//! that matter: whoever replaces it finds the same keys, values, finalizers, labels, empty-string annotations and Event
//! texts.
//!
//! Differences that are meant: a DHCP lease is remembered on its Service, an object of a deleted DHCP Service does not
//! stay behind, a Service that never had an object is deleted without Events about one, an unknown IPAM value is
//! refused before Harvester is asked, and the Go provider's text of a refusal is followed by what to do about it.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::collections::BTreeMap;
use std::sync::Arc;

use e2e::facts::{self, Names, assert_same};
use e2e::watch::let_it_happen;
use e2e::{Bed, Case, Exposed, PATIENCE, Shared, VM_NAMESPACE, service, wait_for};
use harvester_api::keys::{cloudprovider, kube_vip};
use harvester_api::virtual_machine::VirtualMachine;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

static BED: Shared<Bed> = Shared::new();

async fn bed() -> Arc<Bed> {
    BED.get(|| {
        Bed::builder().announcer_env("election_mode", "global").nodes(1).network("guests/data", "enp2s0").start()
    })
    .await
    .unwrap()
}

/// What a flow left, step by step.
struct Flow {
    expected: BTreeMap<String, Value>,
    names: Names,
}

impl Flow {
    fn new(file: &str) -> Self {
        let expected: BTreeMap<String, Value> = serde_saphyr::from_str(file).expect("the file is part of the test");
        let mut names = Names::default();
        names.call("node1", "node").call("192.168.100.11", "node address");
        Self { expected, names }
    }

    fn step(&mut self, name: &str, found: Value) {
        let expected = self.expected.remove(name).unwrap_or_else(|| panic!("the file has no step {name:?}"));
        assert_same(name, &self.names.apply(found), &expected);
    }

    /// A new Service is as it should be; its address is called `<address of NAME>` from now on.
    async fn created(&mut self, step: &str, exposed: &Exposed<'_>) {
        let address = exposed.settled().await.unwrap();
        let secondary = exposed.get().await.unwrap().annotations().contains_key(cloudprovider::PRIMARY_SERVICE);
        if !secondary {
            self.names.call(address, &format!("address of {}", exposed.name()));
        }
        let object = exposed.get().await.unwrap();
        for (key, name) in [(kube_vip::HWADDR, "mac"), ("cloudprovider.harvesterhci.io/dhcp-lease", "lease")] {
            if let Some(value) = object.annotations().get(key) {
                self.names.call(value, name);
            }
        }
        self.step(step, everything(exposed).await);
    }

    /// A refused one: waits for its warning.
    async fn refused(&mut self, step: &str, exposed: &Exposed<'_>) {
        exposed.wait_for_event("SyncLoadBalancerFailed", "").await.unwrap();
        self.step(step, everything(exposed).await);
    }

    async fn deleted(&mut self, step: &str, exposed: &Exposed<'_>) {
        exposed.delete().await.unwrap();
        exposed.wait_until_gone().await.unwrap();
        // Events are written in the background, and further ones would be wrong as well.
        let listed = |facts: &Value| facts.as_array().map_or(0, Vec::len);
        let wanted = listed(&self.expected[step]["events"]);
        wait_for(&format!("{wanted} Events of {exposed}"), PATIENCE, || async {
            let found = events(exposed).await;
            if listed(&found) >= wanted { Ok(()) } else { Err(found.to_string()) }
        })
        .await
        .unwrap();
        let_it_happen(1).await;
        let lb = exposed.load_balancer().await.unwrap();
        let events = events(exposed).await;
        self.step(step, json!({"loadBalancer": lb.as_ref().map(facts::load_balancer), "events": events}));
    }

    fn done(self) {
        assert!(self.expected.is_empty(), "steps that no test did: {:?}", self.expected.keys());
    }
}

async fn everything(exposed: &Exposed<'_>) -> Value {
    let lb = exposed.load_balancer().await.unwrap();
    json!({
        "service": facts::service(&exposed.get().await.unwrap()),
        "loadBalancer": lb.as_ref().map(facts::load_balancer),
        "events": events(exposed).await,
    })
}

/// The recordings have the cloud controller manager's Events; kube-vip had none, our announcer has its own.
async fn events(exposed: &Exposed<'_>) -> Value {
    let mut events = exposed.events().await.unwrap();
    events.retain(|event| event.component == "service-controller");
    facts::events(&events)
}

async fn case<'a>(bed: &'a Bed, flow: &mut Flow) -> Case<'a> {
    let case = bed.case("flow").await.unwrap();
    flow.names.call(case.namespace(), "namespace");
    case
}

#[tokio::test]
async fn flow_00_nodes_are_initialised() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let mut flow = Flow::new(include_str!("golden/nodes.yaml"));
    let vms: Api<VirtualMachine> = Api::namespaced(bed.harvester_client().await.unwrap(), VM_NAMESPACE);
    let vm = vms.get("node1").await.unwrap();
    flow.names.call(vm.uid().unwrap(), "uid of vm");
    bed.wait_for_event("default", "Node", "node1", "Synced", "").await.unwrap();
    let node = bed.node("node1").await.unwrap().unwrap();
    let mapping = "harvester-nad-mapping";
    let maps: Api<ConfigMap> = Api::namespaced(bed.client().await.unwrap(), "kube-system");
    let map = wait_for("the NAD mapping", PATIENCE, || async {
        maps.get_opt(mapping).await.map_err(|error| error.to_string())?.ok_or_else(|| "it does not exist".to_owned())
    })
    .await
    .unwrap();
    let events = bed.events("default", "Node", "node1").await.unwrap();
    let ours: Vec<_> = events.into_iter().filter(|event| event.component.starts_with("cloud-node")).collect();
    let found = json!({
        "node": facts::node(&node),
        "configMap": {"labels": map.labels(), "annotations": map.annotations(), "data": map.data},
        "events": facts::events(&ours),
    });
    flow.step("the controller starts", found);
    flow.done();
}

#[tokio::test]
async fn flow_01_pool() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let mut flow = Flow::new(include_str!("golden/pool.yaml"));
    let case = case(&bed, &mut flow).await;
    let web = case.expose(service("web").tcp(80)).await.unwrap();
    flow.created("web is created", &web).await;
    web.patch(json!({"metadata": {"annotations": {"example/x": "1"}}})).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    flow.step("web gets an unrelated annotation", everything(&web).await);
    let solo = case.expose(service("solo").tcp(99)).await.unwrap();
    flow.created("solo is created", &solo).await;
    flow.deleted("solo is deleted", &solo).await;
    flow.done();
}

#[tokio::test]
async fn flow_02_dhcp() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let mut flow = Flow::new(include_str!("golden/dhcp.yaml"));
    let case = case(&bed, &mut flow).await;
    let lease = case.expose(service("lease").ipam("dhcp").tcp(80)).await.unwrap();
    flow.created("lease is created", &lease).await;
    flow.deleted("lease is deleted", &lease).await;
    flow.done();
}

#[tokio::test]
async fn flow_05_share() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let mut flow = Flow::new(include_str!("golden/share.yaml"));
    let case = case(&bed, &mut flow).await;
    let web = case.expose(service("web").tcp(80)).await.unwrap();
    let address = web.settled().await.unwrap();
    flow.names.call(address, "address of web");
    let web2 = case.expose(service("web2").sharing_with(&web).tcp(443)).await.unwrap();
    flow.created("web2 shares", &web2).await;
    flow.step("web is as before", everything(&web).await);
    let clash = case.expose(service("clash").sharing_with(&web).tcp(80)).await.unwrap();
    flow.refused("clash wants the same port", &clash).await;
    flow.deleted("clash is deleted", &clash).await;
    let badref = service("badref").annotation(cloudprovider::PRIMARY_SERVICE, "nowhere/none").tcp(81);
    let badref = case.expose(badref).await.unwrap();
    flow.refused("badref names nobody", &badref).await;
    flow.deleted("badref is deleted", &badref).await;
    flow.done();
}

#[tokio::test]
async fn flow_10_names() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let mut flow = Flow::new(include_str!("golden/names.yaml"));
    // The length of the namespace decides where the object's name is cut: the very one of the recording.
    let case = bed.case_in("default").await.unwrap();
    let long = case.expose(service(&"a".repeat(60)).tcp(80)).await.unwrap();
    flow.created("a name of 60 characters", &long).await;
    flow.deleted("it is deleted", &long).await;
    let scoped =
        service("scoped").annotation(cloudprovider::PROJECT, "local/p-x").annotation(cloudprovider::NAMESPACE, "other");
    let scoped = case.expose(scoped.tcp(80)).await.unwrap();
    flow.created("scoped to project and namespace", &scoped).await;
    let badipam = case.expose(service("badipam").ipam("lottery").tcp(80)).await.unwrap();
    flow.refused("badipam asks for what nobody has", &badipam).await;
    flow.deleted("badipam is deleted", &badipam).await;
    let classy = case.expose(service("classy").set("loadBalancerClass", "example.com/x").tcp(80)).await.unwrap();
    // Seen and left alone: a later one of ours is served.
    let later = case.expose(service("later").tcp(80)).await.unwrap();
    later.settled().await.unwrap();
    flow.step("classy has another class", everything(&classy).await);
    flow.done();
}
