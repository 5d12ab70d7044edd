//! Rows of `docs/compatibility.md` that only a running product can show: what it watches, says once, ignores and
//! serves.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Arc;

use e2e::product::{CCM_ACCOUNT, binary};
use e2e::watch::let_it_happen;
use e2e::{Bed, CLUSTER, EventFact, PATIENCE, Shared, VM_NAMESPACE, service, wait_for};
use harvester_api::keys::cloudprovider;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde_json::Value;
use testbed::{AuditMark, Request, service_account_user};

static BED: Shared<Bed> = Shared::new();
static UNNAMED: Shared<Bed> = Shared::new();

async fn bed() -> Arc<Bed> {
    BED.get(|| Bed::builder().nodes(1).start()).await.unwrap()
}

/// A cluster whose administrator has given it no name.
async fn unnamed() -> Arc<Bed> {
    let start = || async {
        let bed = Bed::builder().nodes(1).ccm_arg("--cluster-name=kubernetes").not_started().start().await?;
        // Nor does its machine tell one.
        let mut machine = bed.machine("node1", &[&bed.lan.host(1).ipv4().to_string()]);
        machine.cluster = None;
        bed.machines().await?.save(&machine).await?;
        bed.ccm().start()?;
        bed.announcer(1).start()?;
        bed.wait_until_initialized().await?;
        Ok(bed)
    };
    UNNAMED.get(start).await.unwrap()
}

/// Requests of the cloud controller manager to both API servers since the bed was made.
fn requests(bed: &Bed) -> [Vec<Request>; 2] {
    let begin = AuditMark::default();
    let of = |requests: Vec<Request>, user: &str| {
        requests.into_iter().filter(|request| request.user == user).collect::<Vec<_>>()
    };
    let here = bed.control_plane.audit().since(begin).unwrap();
    let there = bed.harvester.audit().since(begin).unwrap();
    [
        of(here, &service_account_user("kube-system", CCM_ACCOUNT)),
        of(there, &service_account_user(VM_NAMESPACE, CLUSTER)),
    ]
}

/// The value of a parameter of a request.
fn parameter<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    let (_, query) = request.uri.split_once('?')?;
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// W-36.
#[tokio::test]
async fn the_flag_counts_before_the_environment_and_one_client_asks_for_everything() {
    if e2e::skip() {
        return;
    }
    // A bed of its own: it is started anew with other arguments.
    let bed = Bed::builder().nodes(1).without_announcers().start().await.unwrap();
    let file =
        bed.control_plane.service_account("kube-system", CCM_ACCOUNT).await.unwrap().inside.display().to_string();
    bed.ccm().set_arg(&format!("--kubeconfig={file}"));
    for variable in ["/does/not/exist", file.as_str()] {
        bed.ccm().set_env("KUBECONFIG", variable);
        bed.ccm().restart().unwrap();
        bed.wait_until_ccm_is_ready().await.unwrap();
        bed.ccm().unset_arg("--kubeconfig");
    }
    let case = bed.case("clients").await.unwrap();
    case.create(service("web").tcp(80)).await.unwrap().published().await.unwrap();
    let [here, there] = requests(&bed);
    let kinds: BTreeSet<&str> = here.iter().map(|request| request.resource.as_str()).collect();
    for kind in ["services", "nodes", "leases", "events"] {
        assert!(kinds.contains(kind), "nobody asked for {kind}: {kinds:?}");
    }
    for requests in [here, there] {
        let agents: BTreeSet<String> = requests.into_iter().map(|request| request.user_agent).collect();
        assert_eq!(agents.len(), 1, "each client has its own name: {agents:?}");
    }
    // Neither of them, and no pod around it: it says where it looked.
    bed.ccm().set_env("KUBECONFIG", "");
    bed.ccm().stop().unwrap();
    let _ = bed.ccm().start();
    let status = bed.ccm().wait(PATIENCE).unwrap().expect("without an API server it ends");
    assert_ne!(status.code(), Some(0));
    let log = bed.ccm().log_tail(20);
    assert!(log.contains("no kubeconfig was given (--kubeconfig, or KUBECONFIG"), "{log}");
}

/// W-38.
#[tokio::test]
async fn each_kind_is_watched_once_and_config_maps_by_their_names() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("watches").await.unwrap();
    let web = case.expose(service("web").tcp(80)).await.unwrap();
    let address = web.settled().await.unwrap();
    for requests in requests(&bed) {
        let mut open: BTreeMap<(String, String), usize> = BTreeMap::new();
        for request in requests.iter().filter(|request| request.verb == "watch" && request.code == 200) {
            let only = parameter(request, "fieldSelector").unwrap_or_default().to_owned();
            if request.resource == "configmaps" || request.resource == "secrets" {
                assert!(only.starts_with("metadata.name"), "all of them are watched: {}", request.uri);
            }
            *open.entry((request.resource.clone(), only)).or_default() += 1;
        }
        assert!(open.len() > 1, "{open:?}");
        assert!(open.values().all(|count| *count == 1), "watched twice within a minute: {open:#?}");
        // What a watch tells is not asked for again and again.
        let listed = |resource: &str| {
            requests.iter().filter(|request| request.verb == "list" && request.resource == resource).count()
        };
        for resource in ["services", "nodes", "virtualmachineinstances", "loadbalancers"] {
            assert!(listed(resource) <= 2, "{resource} were listed {} times", listed(resource));
        }
    }
    web.delete_with(address).await.unwrap();
}

/// W-44.
#[tokio::test]
async fn a_cluster_without_a_name_is_told_so_once() {
    if e2e::skip() {
        return;
    }
    let bed = unnamed().await;
    let case = bed.case("unnamed").await.unwrap();
    let mut services = Vec::new();
    for n in 0..3 {
        // No pool is found for machines that nobody knows.
        let web = case.expose(service(&format!("web{n}")).ipam("dhcp").tcp(80)).await.unwrap();
        services.push((web.settled().await.unwrap(), web));
    }
    for (_, web) in &services {
        web.annotate("touched", Some("1")).await.unwrap();
    }
    let_it_happen(3).await;
    let log = bed.ccm().log_tail(10_000);
    let warned: Vec<&str> =
        log.lines().filter(|line| line.contains("--cluster-name") && line.contains("unique")).collect();
    // Once at the start, and once for each object that is made under such a name: CCM spec 8.2.
    let (made, start): (Vec<&str>, Vec<&str>) =
        warned.iter().partition(|line| line.contains("creating a load balancer"));
    assert_eq!((start.len(), made.len()), (1, services.len()), "{warned:#?}");
    // W-11: without a name the machines cannot be told from others', which is said once, too.
    let untold = log.lines().filter(|line| line.contains("no NAD mapping without a name")).count();
    assert_eq!(untold, 1, "{log}");
    let maps: Api<ConfigMap> = Api::namespaced(bed.client().await.unwrap(), "kube-system");
    assert_eq!(maps.get_opt("harvester-nad-mapping").await.unwrap().and_then(|map| map.data), None);
    for (address, web) in services {
        web.delete_with(address).await.unwrap();
    }
}

/// W-11: the name is what the mapping hangs on.
#[tokio::test]
async fn a_cluster_with_a_name_has_a_mapping() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let maps: Api<ConfigMap> = Api::namespaced(bed.client().await.unwrap(), "kube-system");
    wait_for("the mapping", PATIENCE, || async {
        let map = maps.get_opt("harvester-nad-mapping").await.map_err(|error| error.to_string())?;
        map.map(drop).ok_or_else(|| "it is not there".to_owned())
    })
    .await
    .unwrap();
}

/// W-53.
#[tokio::test]
async fn what_becomes_of_services_and_of_the_mapping_is_counted() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("metrics").await.unwrap();
    let web = case.expose(service("web").tcp(80)).await.unwrap();
    let address = web.settled().await.unwrap();
    let stuck = case.expose(service("stuck").annotation(cloudprovider::IP_POOL, "missing").tcp(80)).await.unwrap();
    // Its machine is found by the host name that its agent tells.
    bed.machine_and_node("counted-vm", "counted-node", "192.168.100.71").await.unwrap();
    let kubectl = |words: &[&str]| bed.control_plane.kubectl(words).unwrap();
    kubectl(&["create", "serviceaccount", "reader", "-n", case.namespace()]);
    kubectl(&["create", "clusterrole", "reader-of-metrics", "--verb=get", "--non-resource-url=/metrics"]);
    let account = format!("--serviceaccount={}:reader", case.namespace());
    kubectl(&["create", "clusterrolebinding", "reader-of-metrics", "--clusterrole=reader-of-metrics", &account]);
    let token = kubectl(&["create", "token", "reader", "-n", case.namespace()]);
    let header = format!("Authorization: Bearer {}", token.trim());
    wait_for("every figure", PATIENCE, || async {
        let words = ["curl", "-sk", "-m", "10", "-H", &header, "https://127.0.0.1:10258/metrics"];
        let text = bed.ccm().host().exec(words).map_err(|error| format!("{error:#}"))?;
        let value = |series: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
            line.and_then(|value| value.trim().parse::<f64>().ok())
        };
        let all = |prefix: &str| -> f64 {
            let lines = text.lines().filter(|line| line.starts_with(prefix));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
        };
        let found = [
            ("allocated", value("harvester_loadbalancer_allocation_seconds_count").is_some_and(|count| count >= 1.0)),
            ("waiting", all("harvester_loadbalancer_waiting{") >= 1.0),
            ("leaks", value("harvester_loadbalancer_possible_leaks_total") == Some(0.0)),
            ("networks", value("harvester_nad_mapping_networks").is_some_and(|count| count >= 1.0)),
            ("names", value("harvester_known_hostnames").is_some_and(|count| count >= 1.0)),
            ("name", value("harvester_cluster_name_mismatch") == Some(0.0)),
        ];
        let missing: Vec<_> = found.iter().filter(|(_, there)| !there).map(|(name, _)| *name).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} in\n{text}")) }
    })
    .await
    .unwrap();
    bed.delete_node("counted-node").await.unwrap();
    stuck.delete().await.unwrap();
    stuck.wait_until_gone().await.unwrap();
    web.delete_with(address).await.unwrap();
}

/// W-47.
#[tokio::test]
async fn the_version_is_in_the_program_and_in_each_of_its_requests() {
    if e2e::skip() {
        return;
    }
    let output = Command::new(binary().unwrap()).arg("--version").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let version = said.split_whitespace().next_back().unwrap();
    assert!(version.starts_with(env!("CARGO_PKG_VERSION")), "{said}");
    let bed = bed().await;
    for requests in requests(&bed) {
        assert!(!requests.is_empty());
        for request in requests {
            assert!(request.user_agent.contains(version), "{:?} without {version}", request.user_agent);
        }
    }
}

/// W-51.
#[tokio::test]
async fn health_check_annotations_change_nothing_and_are_kept() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("health-checks").await.unwrap();
    let key = |name: &str| format!("cloudprovider.harvesterhci.io/healthcheck-{name}");
    let checked = service("checked").annotation(&key("port"), "80").annotation(&key("failure-threshold"), "nonsense");
    let mut specs = Vec::new();
    for spec in [service("plain"), checked] {
        let web = case.expose(spec.tcp(80)).await.unwrap();
        let address = web.settled().await.unwrap();
        web.reply(address, 80).await.unwrap();
        // Who sets one is told that nobody reads it, and of nothing else.
        let warnings: Vec<_> =
            web.events().await.unwrap().into_iter().filter(|event| event.kind == "Warning").collect();
        let told =
            |event: &EventFact| event.reason == "UnknownAnnotation" && event.message.contains("healthcheck-port");
        assert!(warnings.iter().all(told), "{warnings:?}");
        assert!(web.name() == "checked" || warnings.is_empty(), "{warnings:?}");
        specs.push(serde_json::to_value(web.load_balancer().await.unwrap().unwrap().spec).unwrap());
        if web.name() == "checked" {
            assert_eq!(web.annotation(&key("port")).await.unwrap(), "80");
        }
        web.delete_with(address).await.unwrap();
    }
    for spec in &mut specs {
        // Where it comes from.
        spec.as_object_mut().unwrap().retain(|field, _| field != "description");
    }
    assert_eq!(specs[0], specs[1]);
    assert_eq!(specs[1].get("healthCheck").cloned().unwrap_or_default(), Value::Null);
}

/// W-45.
#[tokio::test]
async fn probes_are_for_everybody_metrics_for_those_who_may_and_profiling_for_nobody() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let code = |path: &str, token: Option<&str>| {
        let url = format!("https://127.0.0.1:10258{path}");
        let header = token.map(|token| format!("Authorization: Bearer {token}"));
        let mut words = vec!["curl", "-ks", "-m", "10", "-o", "/dev/null", "-w", "%{http_code}", &url];
        words.extend(header.iter().flat_map(|header| ["-H", header.as_str()]));
        bed.ccm().host().exec(words).unwrap()
    };
    for (path, wanted) in [("/livez", "200"), ("/readyz", "200"), ("/healthz", "200")] {
        assert_eq!(code(path, None), wanted, "{path}");
    }
    // Whether it is refused or not known makes no difference to who asks.
    for path in ["/debug/pprof/", "/configz"] {
        assert!(["401", "403", "404"].contains(&code(path, None).as_str()), "{path}");
    }
    assert!(["401", "403"].contains(&code("/metrics", None).as_str()), "metrics without a token");
    assert!(
        ["401", "403"].contains(&code("/metrics", Some("nonsense")).as_str()),
        "metrics with a token that nobody gave"
    );
}
