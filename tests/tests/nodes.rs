//! Nodes: what the cloud provider makes of them, and what it never does to them. Without announcers, most of it without
//! hosts.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::machines::{SHUTDOWN, addresses, is_initialized};
use e2e::{Bed, NodeSketch, Shared, VM_NAMESPACE};
use harvester_api::keys::harvester::CLOUD_PROVIDER_ROLE;
use harvester_api::virtual_machine::VirtualMachine;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::PostParams;
use kube::{Api, ResourceExt};

static BED: Shared<Bed> = Shared::new();

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

async fn bed() -> Arc<Bed> {
    let builder = Bed::builder().without_announcers().without_pool().ccm_arg("--node-monitor-period=1s");
    let builder = builder.ccm_arg("--node-out-of-service-after=2s");
    BED.get(|| builder.start()).await.unwrap()
}

async fn vm_uid(bed: &Bed, name: &str) -> String {
    let vms: Api<VirtualMachine> = Api::namespaced(bed.harvester_client().await.unwrap(), VM_NAMESPACE);
    vms.get(name).await.unwrap().uid().unwrap().to_owned()
}

fn provider_id(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.provider_id.as_deref()
}

fn has_taint(node: &Node, key: &str) -> bool {
    node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).any(|taint| taint.key == key)
}

#[tokio::test]
async fn a_new_node_gets_provider_id_addresses_zone_and_region_and_loses_its_taint() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    for host in bed.lan.hosts() {
        let node = bed.node(host.name()).await.unwrap().unwrap();
        assert!(is_initialized(&node));
        assert_eq!(provider_id(&node), Some(format!("harvester://{}", vm_uid(&bed, host.name()).await).as_str()));
        assert_eq!(addresses(&node), [format!("InternalIP={}", host.ipv4()), format!("Hostname={}", host.name())]);
        for (label, value) in [
            ("topology.kubernetes.io/zone", e2e::bed::ZONE),
            ("topology.kubernetes.io/region", e2e::bed::REGION),
            ("failure-domain.beta.kubernetes.io/zone", e2e::bed::ZONE),
            ("failure-domain.beta.kubernetes.io/region", e2e::bed::REGION),
        ] {
            assert_eq!(node.labels().get(label).map(String::as_str), Some(value), "{label}");
        }
        let event =
            bed.wait_for_event("default", "Node", host.name(), "Synced", "Node synced successfully").await.unwrap();
        assert_eq!((event.kind.as_str(), event.component.as_str()), ("Normal", "cloud-node-controller"));
    }
}

/// D-8.
#[tokio::test]
async fn scenario_20_a_node_whose_machine_was_deleted_goes_and_others_stay() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    bed.machine_and_node("gone", "gone", "192.168.100.61").await.unwrap();
    bed.machine_and_node("sick", "sick", "192.168.100.62").await.unwrap();
    bed.machine_and_node("fine", "fine", "192.168.100.63").await.unwrap();
    bed.set_ready("sick", false).await.unwrap();
    bed.set_ready("gone", false).await.unwrap();
    bed.machines().await.unwrap().delete(VM_NAMESPACE, "gone", false).await.unwrap();
    bed.wait_until_node_is_gone("gone").await.unwrap();
    let message = "Deleting node gone because it does not exist in the cloud provider";
    let event = bed.wait_for_event("default", "Node", "gone", "DeletingNode", message).await.unwrap();
    assert_eq!(event.component, "cloud-node-lifecycle-controller");
    // Several periods later the others are still there.
    tokio::time::sleep(Duration::from_secs(4)).await;
    for name in ["sick", "fine", "node1", "node2"] {
        assert!(bed.node(name).await.unwrap().is_some(), "{name}");
    }
}

#[tokio::test]
async fn a_machine_that_is_switched_off_marks_its_node_until_it_is_back() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    bed.machine_and_node("sleeper", "sleeper", "192.168.100.64").await.unwrap();
    let machines = bed.machines().await.unwrap();
    machines.power(VM_NAMESPACE, "sleeper", false).await.unwrap();
    bed.set_ready("sleeper", false).await.unwrap();
    let marked = |node: &Node| if has_taint(node, SHUTDOWN) { Ok(()) } else { Err("not marked".to_owned()) };
    bed.wait_for_node("sleeper", "the shutdown taint", marked).await.unwrap();
    let free =
        |node: &Node| if has_taint(node, OUT_OF_SERVICE) { Ok(()) } else { Err("not out of service".to_owned()) };
    bed.wait_for_node("sleeper", "the out-of-service taint", free).await.unwrap();
    machines.power(VM_NAMESPACE, "sleeper", true).await.unwrap();
    bed.set_ready("sleeper", true).await.unwrap();
    let unmarked = |node: &Node| {
        let marked = has_taint(node, SHUTDOWN) || has_taint(node, OUT_OF_SERVICE);
        if marked { Err("marked".to_owned()) } else { Ok(()) }
    };
    bed.wait_for_node("sleeper", "no taint of a machine that is off", unmarked).await.unwrap();
}

/// W-28.
#[tokio::test]
async fn a_node_whose_machine_cannot_be_found_says_so_and_is_initialised_when_it_appears() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    bed.register_node(&NodeSketch::new("early")).await.unwrap();
    let event = bed.wait_for_event("default", "Node", "early", "NodeInitializationFailed", "early").await.unwrap();
    assert_eq!(event.kind, "Warning");
    assert!(event.message.contains(VM_NAMESPACE), "the Event names where the machine is looked for: {}", event.message);
    assert!(!is_initialized(&bed.node("early").await.unwrap().unwrap()));
    bed.machines().await.unwrap().save(&bed.machine("early", &["192.168.100.65"])).await.unwrap();
    bed.wait_until_node_is_initialized("early").await.unwrap();
}

#[tokio::test]
async fn a_node_whose_machine_has_no_address_yet_says_so_and_gets_it_when_it_is_known() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let machines = bed.machines().await.unwrap();
    machines.save(&bed.machine("silent", &[])).await.unwrap();
    // As with kubelet's --node-ip: the Node may not be used before its machine confirms the address.
    let sketch = NodeSketch { provided_ip: Some("192.168.100.66".into()), ..NodeSketch::new("silent") };
    bed.register_node(&sketch).await.unwrap();
    let event = bed.wait_for_event("default", "Node", "silent", "NodeInitializationFailed", "silent").await.unwrap();
    assert_eq!(event.kind, "Warning");
    assert!(!is_initialized(&bed.node("silent").await.unwrap().unwrap()));
    machines.addresses(VM_NAMESPACE, "silent", "nic-0", &["192.168.100.66".to_owned()]).await.unwrap();
    bed.wait_until_node_is_initialized("silent").await.unwrap();
    let node = bed.node("silent").await.unwrap().unwrap();
    assert_eq!(addresses(&node), ["InternalIP=192.168.100.66", "Hostname=silent"]);
}

#[tokio::test]
async fn a_node_with_another_host_name_than_its_machine_is_found_through_the_guest_agent() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let machines = bed.machines().await.unwrap();
    let machine = bed.machine("vm-17", &["192.168.100.67"]).called("worker-a");
    machines.save(&machine).await.unwrap();
    machines.agent(VM_NAMESPACE, "vm-17", false).await.unwrap();
    bed.register_node(&NodeSketch::new("worker-a")).await.unwrap();
    let event =
        bed.wait_for_event("default", "Node", "worker-a", "NodeInitializationFailed", "worker-a").await.unwrap();
    assert!(event.message.contains("worker-a"), "{}", event.message);
    machines.agent(VM_NAMESPACE, "vm-17", true).await.unwrap();
    bed.wait_until_node_is_initialized("worker-a").await.unwrap();
    let node = bed.node("worker-a").await.unwrap().unwrap();
    assert_eq!(provider_id(&node), Some(format!("harvester://{}", vm_uid(&bed, "vm-17").await).as_str()));
    assert_eq!(addresses(&node), ["InternalIP=192.168.100.67", "Hostname=worker-a"]);
}

#[tokio::test]
async fn a_changed_address_shows_on_the_node_at_once() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    bed.machine_and_node("mover", "mover", "192.168.100.68").await.unwrap();
    let machines = bed.machines().await.unwrap();
    machines.addresses(VM_NAMESPACE, "mover", "nic-0", &["192.168.100.69".to_owned()]).await.unwrap();
    // The Go provider looks every five minutes; nobody waits that long here.
    bed.wait_for_node("mover", "the new address", |node| {
        let found = addresses(node);
        if found.contains(&"InternalIP=192.168.100.69".to_owned()) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await
    .unwrap();
}

/// Decision 4: only a proven missing machine deletes a Node.
#[tokio::test]
async fn a_node_stays_while_harvester_forbids_to_ask_or_cannot_be_reached() {
    if e2e::skip() {
        return;
    }
    let builder = Bed::builder().nodes(1).without_announcers().without_pool().ccm_arg("--node-monitor-period=1s");
    let bed = builder.start().await.unwrap();
    bed.machine_and_node("lost", "lost", "192.168.100.70").await.unwrap();
    let roles: Api<ClusterRole> = Api::all(bed.harvester_client().await.unwrap());
    let mut role = roles.get(CLOUD_PROVIDER_ROLE).await.unwrap();
    let rules = role.rules.clone();
    role.rules.as_mut().unwrap().retain(|rule| rule.api_groups != Some(vec!["kubevirt.io".to_owned()]));
    let mut role = roles.replace(CLOUD_PROVIDER_ROLE, &PostParams::default(), &role).await.unwrap();
    bed.set_ready("lost", false).await.unwrap();
    bed.machines().await.unwrap().delete(VM_NAMESPACE, "lost", false).await.unwrap();

    let stays = async |why: &str| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(8) {
            assert!(bed.node("lost").await.unwrap().is_some(), "Node deleted although {why}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    stays("Harvester forbids to ask for machines").await;
    // Packets vanish: the worst way not to be reached. Harvester itself is fine.
    let ours = bed.ccm().host().nic("mgmt0");
    let fault = bed.control_plane.management().block(&ours, bed.harvester.nic()).unwrap();
    role.rules = rules;
    roles.replace(CLOUD_PROVIDER_ROLE, &PostParams::default(), &role).await.unwrap();
    stays("Harvester cannot be reached").await;
    drop(fault);
    bed.wait_until_node_is_gone("lost").await.unwrap();
    let node = bed.node("node1").await.unwrap().unwrap();
    assert!(is_initialized(&node));
    // It goes on with its work.
    bed.machine_and_node("late", "late", "192.168.100.71").await.unwrap();
}
