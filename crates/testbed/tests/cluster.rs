//! The control plane and the simulated nodes. Needs root and the programs of `dev/tools.sh`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Service};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use testbed::{
    ControlPlane, HarvesterSide, Lan, NodeSpec, Shared, Traffic, VmSpec, echo, programs, service_account_user,
};

static CLUSTER: Shared<ControlPlane> = Shared::new();

async fn cluster() -> std::sync::Arc<ControlPlane> {
    CLUSTER.get(|| ControlPlane::builder().start()).await.expect("a control plane can be started")
}

#[tokio::test]
async fn tests_share_a_control_plane_and_the_relay_leads_to_it() {
    let start = Instant::now();
    let cluster = cluster().await;
    eprintln!("control plane after {:?}", start.elapsed());
    let namespace = cluster.test_namespace("shared").await.unwrap();
    let out = cluster.kubectl(&["get", "namespace", &namespace, "-o", "name"]).unwrap();
    assert_eq!(out.trim(), format!("namespace/{namespace}"));
}

#[tokio::test]
async fn a_token_has_only_the_rights_that_were_bound_and_the_audit_log_tells_who_asked() {
    let cluster = cluster().await;
    let namespace = cluster.test_namespace("rights").await.unwrap();
    let account = cluster.service_account(&namespace, "nobody").await.unwrap();
    let client = account.client().await.unwrap();
    let mark = cluster.audit().mark();
    let error = Api::<Node>::all(client).list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error}");
    let user = service_account_user(&namespace, "nobody");
    let asked = testbed::wait_for("the audit log", Duration::from_secs(10), || async {
        let requests = cluster.audit().since(mark).map_err(|error| error.to_string())?;
        requests.into_iter().find(|request| request.user == user).ok_or_else(|| "nothing of this user".to_owned())
    })
    .await
    .unwrap();
    assert_eq!((asked.verb.as_str(), asked.resource.as_str(), asked.code), ("list", "nodes", 403));
}

#[tokio::test]
async fn a_load_balancer_address_on_a_simulated_node_answers_from_pods_on_both_nodes() {
    let cluster = cluster().await;
    let lan = Lan::builder().hosts(2).host_prefix("sim").build().unwrap();
    let one = cluster.add_node(lan.host(1), 1, NodeSpec::default()).await.unwrap();
    let two = cluster.add_node(lan.host(2), 2, NodeSpec::default()).await.unwrap();
    cluster.route_pods(&[(lan.host(1), &one), (lan.host(2), &two)]).unwrap();
    let pods = [one.pod(lan.host(1), "web-1", &[8080]).unwrap(), two.pod(lan.host(2), "web-2", &[8080]).unwrap()];

    let namespace = cluster.test_namespace("traffic").await.unwrap();
    let services: Api<Service> = Api::namespaced(cluster.client().await.unwrap(), &namespace);
    let service = serde_json::from_value(json!({
        "metadata": { "name": "web" },
        "spec": { "type": "LoadBalancer", "ipFamilyPolicy": "RequireDualStack", "ports": [
            { "name": "http", "port": 80, "targetPort": 8080 },
            { "name": "udp", "port": 80, "targetPort": 8080, "protocol": "UDP" },
        ] },
    }))
    .unwrap();
    services.create(&PostParams::default(), &service).await.unwrap();
    cluster.publish_endpoints(&namespace, "web", &[&pods[0], &pods[1]]).await.unwrap();
    let (vip4, vip6) = (lan.ipv4(150), lan.ipv6(150));
    let status = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": vip4.to_string(), "ipMode": "VIP" },
        { "ip": vip6.to_string(), "ipMode": "VIP" }] } } });
    services.patch_status("web", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    lan.host(1)
        .ip([format!("addr add {vip4}/32 dev eth0"), format!("addr add {vip6}/128 dev eth0 nodad preferred_lft 0")])
        .unwrap();

    for traffic in [
        Traffic::Http(SocketAddr::from((vip4, 80))),
        Traffic::Udp(SocketAddr::from((vip4, 80))),
        Traffic::Http(SocketAddr::from((vip6, 80))),
    ] {
        let probe = lan.client().probe(traffic).unwrap();
        probe.wait_for_answer_by("sim1", Duration::from_secs(30)).unwrap();
        probe.wait_for_answer_by("sim2", Duration::from_secs(30)).unwrap();
    }
    let client = cluster.client().await.unwrap();
    one.remove(client.clone()).await.unwrap();
    two.remove(client).await.unwrap();
}

#[tokio::test]
async fn an_api_server_comes_back_after_its_death_with_everything_it_knew() {
    let cluster = ControlPlane::builder().controllers("*").start().await.unwrap();
    cluster.kubectl(&["create", "configmap", "remember"]).unwrap();
    cluster.api_server().kill();
    // Not with kubectl: it tries again for most of a minute.
    assert!(cluster.client().await.unwrap().apiserver_version().await.is_err());
    cluster.api_server().start().await.unwrap();
    cluster.kubectl(&["get", "configmap", "remember"]).unwrap();
}

#[tokio::test]
async fn a_guest_reaches_harvester_with_its_cloud_config_and_has_only_its_rights() {
    let harvester = HarvesterSide::builder().namespace("guests").network("guests/lan:100");
    let (control_plane, harvester) = ControlPlane::builder().start_with(harvester).await.unwrap();
    let lan = Lan::builder().build().unwrap();
    control_plane.join(lan.host(1)).unwrap();
    let vm = VmSpec {
        namespace: "guests".into(),
        name: "node1".into(),
        cluster: "kubernetes".into(),
        network: "guests/lan".into(),
        addresses: vec![lan.host(1).ipv4().to_string()],
        zone: Some("zone-1".into()),
        region: Some("region-1".into()),
        flags: Vec::new(),
    };
    harvester.create_vm(&vm).unwrap();
    harvester.create_pool("edge", "guests/lan", "192.168.100.0/24,start=192.168.100.100,end=192.168.100.149").unwrap();
    let cloud_config = harvester.cloud_config("guests", "kubernetes").unwrap();
    let file = control_plane.dir().write("cloud-config", cloud_config).unwrap();

    let kubectl = |words: &str| {
        let mut all = vec![
            programs::tool("kubectl").unwrap().display().to_string(),
            "--kubeconfig".into(),
            file.display().to_string(),
        ];
        all.extend(words.split(' ').map(str::to_owned));
        lan.host(1).exec(all)
    };
    let guests = kubectl(
        "get --raw /apis/subresources.kubevirt.io/v1/namespaces/guests/virtualmachineinstances/node1/guestosinfo",
    )
    .unwrap();
    assert!(guests.contains("\"hostname\":\"node1\""), "{guests}");
    kubectl("get virtualmachineinstances.kubevirt.io node1").unwrap();
    let refused = kubectl("get ippools.loadbalancer.harvesterhci.io").unwrap_err();
    assert!(format!("{refused:#}").contains("forbidden"), "{refused:#}");

    harvester.kill_sim();
    harvester.start_sim().await.unwrap();
    assert_eq!(echo::get_path(harvester.control_address(), "/healthz", Duration::from_secs(5)).await.unwrap(), "ok");
}
