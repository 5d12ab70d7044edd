//! What the provider makes of a host's state, on real API servers: garbage, and what the host can do. Parts of the
//! product run in the test's own process where its pace (ten minutes between two looks for garbage) is not a test's.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::sync::Arc;
use std::time::Duration;

use cloud_provider::observe;
use e2e::{Bed, PATIENCE, Shared, VM_NAMESPACE, service, wait_for};
use harvester_api::keys::cloudprovider;
use harvester_api::load_balancer::LoadBalancer;
use harvester_api::names::ClusterName;
use harvester_provider::{GarbageConfig, GarbageMode, GarbagePace, HarvesterProvider, ProviderConfig};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt};
use prometheus_client::registry::Registry;
use runtime::events::Recorder;
use runtime::reflect::Reflector;
use runtime::shutdown::Token;
use runtime::tasks::Tasks;
use serde_json::json;
use tokio::sync::watch;

static BED: Shared<Bed> = Shared::new();

/// Without a cloud controller manager, so that what lies there stays as it is.
async fn bed() -> Arc<Bed> {
    BED.get(|| Bed::builder().nodes(1).without_ccm().without_announcers().start()).await.unwrap()
}

/// A provider in this process, with clients of its own.
struct Provider {
    tasks: Tasks,
    registry: Registry,
    returns: watch::Sender<u64>,
}

impl Provider {
    async fn start(bed: &Bed, harvester: Client, garbage: GarbageConfig) -> Self {
        let config = ProviderConfig {
            cluster_name: ClusterName::from_record(e2e::CLUSTER),
            management_network: None,
            node_ip_cidr: Vec::new(),
            node_exclude_ip_ranges: Vec::new(),
            ignore_node_annotations: false,
            disable_vmi_controller: true,
            disable_hostname_lookup: false,
            garbage,
            max_load_balancers: None,
            share_across_namespaces: false,
            namespace: VM_NAMESPACE.to_owned(),
            server: bed.harvester.url_inside(),
            authority: None,
            own_node: None,
            paused: false,
        };
        let guest = bed.client().await.unwrap();
        let services = cloud_provider::cache::services();
        let watch_services = Reflector::new(
            "services",
            Api::<Service>::all(guest.clone()),
            services.clone(),
            observe::service_key,
            |service| Some(observe::service(service)),
        );
        let nodes = cloud_provider::cache::nodes();
        nodes.replace(std::collections::BTreeMap::new());
        let mut registry = Registry::default();
        let returns = watch::Sender::new(0);
        let provider = HarvesterProvider::new(&config, &guest, &harvester, (&services, &nodes), &mut registry)
            .resync_on(&returns.subscribe());
        let (checks, known) = (provider.checks(), services.clone());
        let mut tasks = Tasks::new(Token::new());
        tasks.spawn_endless("watch of services", watch_services.run());
        let (recorder, writer) = Recorder::new(guest, "test");
        let stop = tasks.stop();
        tasks.spawn("events", async move {
            tokio::select! {
                () = writer => {}
                () = stop.cancelled() => {}
            }
            Ok::<_, std::io::Error>(())
        });
        provider.start(&mut tasks, &recorder);
        wait_for("the first lists", PATIENCE, || async {
            checks.iter().try_for_each(|(name, check)| check().map_err(|error| format!("{name}: {error}")))?;
            if known.is_synced() { Ok(()) } else { Err("no Services".to_owned()) }
        })
        .await
        .unwrap();
        Self { tasks, registry, returns }
    }

    /// The value of `harvester_host_feature{feature}`.
    fn feature(&self, name: &str) -> Option<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let start = format!("harvester_host_feature{{feature=\"{name}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
    }

    async fn wait_for_feature(&self, name: &str, expected: &str) {
        wait_for(&format!("feature {name} to be {expected}"), PATIENCE, || async {
            match self.feature(name) {
                Some(found) if found == expected => Ok(()),
                found => Err(format!("{found:?}")),
            }
        })
        .await
        .unwrap();
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.tasks.stop().cancel();
    }
}

/// A LoadBalancer of `service`, made by the cluster with this name and UID for a Service with this UID.
async fn leave(bed: &Bed, name: &str, cluster: (&str, &str), service: (&str, &str), service_uid: &str) {
    let lbs: Api<LoadBalancer> = Api::namespaced(bed.harvester_client().await.unwrap(), VM_NAMESPACE);
    let object = json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": name, "namespace": VM_NAMESPACE,
            "labels": {cloudprovider::CLUSTER: cluster.0, cloudprovider::SERVICE_NAMESPACE: service.0,
                cloudprovider::SERVICE_NAME: service.1},
            "annotations": {cloudprovider::CLUSTER_UID: cluster.1, cloudprovider::SERVICE_UID: service_uid}},
        "spec": {"workloadType": "cluster", "ipam": "dhcp"},
    });
    lbs.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

async fn left(bed: &Bed) -> Vec<String> {
    let lbs: Api<LoadBalancer> = Api::namespaced(bed.harvester_client().await.unwrap(), VM_NAMESPACE);
    let mut names: Vec<String> =
        lbs.list(&ListParams::default()).await.unwrap().items.iter().map(ResourceExt::name_any).collect();
    names.sort();
    names
}

/// Makes everybody look for garbage at once.
async fn ask(bed: &Bed, when: &str) {
    let maps: Api<ConfigMap> = Api::namespaced(bed.client().await.unwrap(), "kube-system");
    let asked = json!({"metadata": {"annotations": {"cloudprovider.harvesterhci.io/list-garbage": when}}});
    wait_for("the record to be there", PATIENCE, || async {
        let patch = Patch::Merge(asked.clone());
        let patched = maps.patch("harvester-cloud-provider", &PatchParams::default(), &patch).await;
        patched.map(drop).map_err(|error| error.to_string())
    })
    .await
    .unwrap();
}

const ABOUT: (&str, &str, &str) = ("kube-system", "ConfigMap", "harvester-cloud-provider");

/// The story of one cluster's leftovers: listed on demand, deleted only where that was asked for, after the grace
/// period, with this cluster's UID on them, and never in trouble.
#[tokio::test]
async fn garbage_is_listed_on_demand_and_deleted_only_when_asked_for_and_only_our_own() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("garbage").await.unwrap();
    let services: Api<Service> = Api::namespaced(bed.client().await.unwrap(), "default");
    let uid = services.get("kubernetes").await.unwrap().uid().unwrap();
    let ours = (e2e::CLUSTER, uid.as_str());
    // Nobody's; one whose Service was made again under its name; one that its Service has; another cluster's; and one
    // of a version that wrote no UID.
    let web = case.create(service("web").tcp(80)).await.unwrap();
    let web_uid = web.get().await.unwrap().uid().unwrap();
    let named = (case.namespace().to_owned(), "web".to_owned());
    let of_web = (named.0.as_str(), named.1.as_str());
    leave(&bed, "nobodys", ours, ("default", "gone"), "1").await;
    leave(&bed, "predecessors", ours, of_web, "another-uid").await;
    leave(&bed, "needed", ours, of_web, &web_uid).await;
    leave(&bed, "anothers", ("other", "another-cluster"), ("default", "gone"), "1").await;
    leave(&bed, "suspected", (e2e::CLUSTER, ""), ("default", "gone"), "1").await;
    let all = ["anothers", "needed", "nobodys", "predecessors", "suspected"];

    let quick = GarbagePace { every: Duration::from_secs(1), settled: Duration::from_secs(2) };
    let slow = GarbagePace { every: Duration::from_hours(1), settled: Duration::ZERO };
    let listing = GarbageConfig { mode: GarbageMode::List, grace: Duration::ZERO, pace: slow };
    let provider = Provider::start(&bed, bed.harvester_client().await.unwrap(), listing).await;
    ask(&bed, "now").await;
    let told = bed.wait_for_event(ABOUT.0, ABOUT.1, ABOUT.2, "GarbageLoadBalancers", "3 load balancers").await.unwrap();
    for part in [
        "nobodys of default/gone (ours)",
        "predecessors",
        "suspected of default/gone (suspected)",
        "Nothing is deleted",
    ] {
        assert!(told.message.contains(part), "{part}: {}", told.message);
    }
    assert!(!told.message.contains("needed") && !told.message.contains("anothers"), "{}", told.message);
    drop(provider);
    assert_eq!(left(&bed).await, all, "a dry run deletes nothing");

    // A grace period that does not end: nothing goes, however often it is looked.
    let patient = GarbageConfig { mode: GarbageMode::Delete, grace: Duration::from_hours(1), pace: quick };
    let provider = Provider::start(&bed, bed.harvester_client().await.unwrap(), patient).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    drop(provider);
    assert_eq!(left(&bed).await, all, "the grace period is waited for");

    let deleting = GarbageConfig { mode: GarbageMode::Delete, grace: Duration::from_secs(1), pace: quick };
    let provider = Provider::start(&bed, bed.harvester_client().await.unwrap(), deleting).await;
    wait_for("what is ours to go", PATIENCE, || async {
        let now = left(&bed).await;
        if now == ["anothers", "needed", "suspected"] { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await
    .unwrap();
    for name in ["nobodys", "predecessors"] {
        bed.wait_for_event(ABOUT.0, ABOUT.1, ABOUT.2, "GarbageDeleted", name).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(left(&bed).await, ["anothers", "needed", "suspected"]);
    drop(provider);

    // Trouble with the API: the grace period begins anew each time, and nothing goes although it is over.
    leave(&bed, "late", ours, ("default", "gone"), "1").await;
    let settling = GarbagePace { every: Duration::from_secs(1), settled: Duration::from_secs(15) };
    let deleting = GarbageConfig { mode: GarbageMode::Delete, grace: Duration::from_secs(1), pace: settling };
    let provider = Provider::start(&bed, bed.harvester_client().await.unwrap(), deleting).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    // The watches begin anew, as after an outage.
    let mark = bed.mark();
    let trouble = Timestamp::now();
    provider.returns.send_modify(|count| *count += 1);
    wait_for("what is ours to go", PATIENCE, || async {
        let now = left(&bed).await;
        if now == ["anothers", "needed", "suspected"] { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await
    .unwrap();
    let asked = bed.harvester.audit().since(mark.harvester).unwrap();
    let of_late = |request: &&testbed::Request| request.verb == "delete" && request.name.as_deref() == Some("late");
    let deleted = asked.iter().find(of_late).expect("deleted after the trouble, not before").at.unwrap();
    // Counted from the start of the provider it would be 5 s sooner. One second for clocks that are set.
    let settled = deleted.duration_since(trouble).unsigned_abs() + Duration::from_secs(1);
    assert!(settled >= settling.settled, "deleted {settled:?} after the trouble");
    drop(provider);
    let lbs: Api<LoadBalancer> = Api::namespaced(bed.harvester_client().await.unwrap(), VM_NAMESPACE);
    for name in ["anothers", "needed", "suspected"] {
        lbs.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

/// A client of somebody with these rights on load balancers, and none to change anything.
async fn limited_to(bed: &Bed, user: &str, verbs: &[&str]) -> Client {
    let admin = bed.harvester_client().await.unwrap();
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| {
        json!({"apiGroups": [group],
            "resources": resources, "verbs": verbs})
    };
    let role = json!({"metadata": {"name": user}, "rules": [
        rule("loadbalancer.harvesterhci.io", &["loadbalancers"], verbs),
        rule("kubevirt.io", &["virtualmachines", "virtualmachineinstances"], &["get", "list", "watch"]),
    ]});
    let binding = json!({"metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
        "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]});
    let roles: Api<Role> = Api::namespaced(admin.clone(), VM_NAMESPACE);
    roles.create(&PostParams::default(), &serde_json::from_value(role).unwrap()).await.unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(admin, VM_NAMESPACE);
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    let mut file = Kubeconfig::read_from(bed.harvester.admin().unwrap().outside).unwrap();
    for named in &mut file.auth_infos {
        named.auth_info.get_or_insert_default().impersonate = Some(user.to_owned());
    }
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

#[tokio::test]
async fn a_role_without_watch_is_done_without_and_shows_in_the_metrics() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let off = GarbageConfig::new(GarbageMode::Off, Duration::ZERO);
    let may_watch = limited_to(&bed, "watches", &["get", "list", "watch"]).await;
    Provider::start(&bed, may_watch, off).await.wait_for_feature("watch", "1").await;
    let may_list = limited_to(&bed, "lists", &["get", "list"]).await;
    let provider = Provider::start(&bed, may_list, off).await;
    provider.wait_for_feature("watch", "0").await;
    // Whatever another test has taught the host by now: the schema is read without further rights.
    wait_for("the schema to be read", PATIENCE, || async { provider.feature("ipv6-pool").ok_or_else(String::new) })
        .await
        .unwrap();
}

/// Detected, never assumed: not from a version, and not once and for all.
#[tokio::test]
async fn a_host_that_learns_something_new_is_noticed_without_a_restart() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let off = GarbageConfig::new(GarbageMode::Off, Duration::ZERO);
    let harvester = bed.harvester_client().await.unwrap();
    let provider = Provider::start(&bed, harvester.clone(), off).await;
    provider.wait_for_feature("ipv6-pool", "0").await;
    provider.wait_for_feature("watch", "1").await;

    // The upgrade brings another definition, and ends with servers that come back.
    let kinds: Api<CustomResourceDefinition> = Api::all(harvester);
    let name = "loadbalancers.loadbalancer.harvesterhci.io";
    let install = async |offered: bool| {
        let mut kind = serde_json::to_value(kinds.get(name).await.unwrap()).unwrap();
        let spec = &mut kind["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        if offered {
            spec["ipv6Pool"] = json!({"type": "string"});
        } else {
            spec.as_object_mut().unwrap().remove("ipv6Pool");
        }
        kinds.replace(name, &PostParams::default(), &serde_json::from_value(kind).unwrap()).await.unwrap();
    };
    install(true).await;
    let served = async |offered: &str| {
        // The API server publishes the new schema a moment later.
        wait_for("the new schema to be noticed", PATIENCE, || async {
            provider.returns.send_modify(|count| *count += 1);
            tokio::time::sleep(Duration::from_millis(500)).await;
            match provider.feature("ipv6-pool") {
                Some(found) if found == offered => Ok(()),
                found => Err(format!("{found:?}")),
            }
        })
        .await
        .unwrap();
    };
    served("1").await;
    install(false).await;
    served("0").await;
}
