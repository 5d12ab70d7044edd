//! The pages, typed word for word on a cluster of three real nodes: README, `docs/install-rke2.md`,
//! `docs/install-k3s.md`, parts of `docs/operations.md`, `docs/credentials.md`. RKE2 and K3s are not here; what they
//! would do with their manifests is done by Helm, as their controller calls it.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

mod desk;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::Result;
use e2e::documents::page;
use e2e::installation::{Installation, RKE2_FILE};
use e2e::journal::watched;
use e2e::watch::Excuse;
use e2e::{ENOUGH, PATIENCE, wait_for};
use serde_json::Value;
use testbed::Probe;

use crate::desk::{Desk, filled};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/chart-golden/reference");

/// The manifest of a page.
fn manifest(page_name: &str, kind: &str) -> Value {
    let blocks = page(page_name).blocks().into_iter().filter(|block| block.language == "yaml");
    let mut parsed = blocks.map(|block| serde_saphyr::from_str::<Value>(&filled(&block.text)).unwrap());
    parsed.find(|manifest| manifest["kind"] == kind).unwrap_or_else(|| panic!("{page_name} has no {kind}"))
}

fn values_of(manifest: &Value) -> &str {
    manifest["spec"]["valuesContent"].as_str().unwrap()
}

/// The clients, which send a datagram every 10 ms, had every answer until now: of the address of a pool and of the
/// leased one.
fn every_datagram_answered(what: &str, clients: &[(&str, Probe)], state: impl Fn() -> String) {
    for (name, probe) in clients {
        probe.wait_for_answers(ENOUGH, PATIENCE).unwrap_or_else(|error| panic!("{error:#}\n{}", state()));
        let report = probe.settled_report();
        eprintln!("{what}: {name}: {report}");
        assert_eq!(report.lost, 0, "{what}: {name}: {report}\n{}", state());
    }
}

/// Replaces the credentials line by line as `docs/credentials.md` says, waiting where it says so: the pod reads the new
/// ones, and the old ones are worth nothing afterwards.
async fn rotate(desk: &Desk) -> Result<()> {
    const SAVE: &str =
        "kubectl -n kube-system get secret harvester-cloud-config -o jsonpath='{.data.cloud-config}' | base64 -d >";
    const USE: &str = "get loadbalancers.loadbalancer.harvesterhci.io";
    const NEW: &str = "kubectl create service loadbalancer asks --tcp=80";
    const GONE: &str = "kubectl delete service asks";
    desk.runs(&format!("{SAVE} before.yaml; kubectl --kubeconfig before.yaml {USE}"))?;
    let (mut waited, mut revoked) = (false, false);
    for line in page("docs/credentials.md").section("Credentials", "sh")[0].text.lines() {
        if line.contains("reason=CloudConfigReloaded") {
            // A kubelet of the bed looks at Secrets every ten seconds or so.
            wait_for("the new credentials to be read", Duration::from_mins(2), || async {
                let said = desk.runs(line).map_err(|error| format!("{error:#}"))?;
                if said.contains("CloudConfigReloaded") { Ok(()) } else { Err(said) }
            })
            .await?;
            waited = true;
        } else if line.contains("--revoke-old") {
            // As long as the life of a watch is waited for a request with either token. Here a new Service makes one,
            // when the API server, which remembers a token for ten seconds, looks at it again.
            let command = line.split('#').next().unwrap_or_default();
            desk.runs(&format!("(sleep 13; {NEW}) >&2 & {command} --watch-tokens-for 25s; wait; {GONE}"))?;
            revoked = true;
        } else {
            desk.runs(line)?;
        }
    }
    assert!(waited && revoked, "the page has other words than this test knows");
    desk.runs(&format!("{SAVE} after.yaml; kubectl --kubeconfig after.yaml {USE}"))?;
    // The API server believes in a token for some seconds more.
    wait_for("the former token to be refused", PATIENCE, || async {
        match desk.runs(&format!("kubectl --kubeconfig before.yaml {USE}")) {
            Ok(said) => Err(said),
            Err(error) if format!("{error:#}").contains("provide credentials") => Ok(()),
            Err(error) => Err(format!("{error:#}")),
        }
    })
    .await
}

/// D-13.
#[tokio::test]
async fn who_types_what_the_pages_say_gets_an_address_that_works_and_keeps_it_through_upgrades() {
    if e2e::skip() {
        return;
    }
    let _excuse = Excuse::begin();
    let start = Instant::now();
    let tell = |what: &str| eprintln!("{:>6.1} s {what}", start.elapsed().as_secs_f64());
    let cluster = Installation::start(3).await.unwrap();
    let desk = Desk::of(&cluster).unwrap();
    let type_all = |name: &str, heading: &str| {
        let mut said = String::new();
        for block in page(name).section(heading, "sh") {
            said = desk.types(&block).unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.state()));
        }
        said
    };
    tell("three tainted nodes");

    // docs/install-rke2.md, a cluster set up by hand, from the credentials to the answer of its own address.
    let configured: Value = {
        let blocks = page("docs/install-rke2.md").section("A cluster set up by hand", "yaml");
        serde_saphyr::from_str(&blocks[0].text).unwrap()
    };
    assert_eq!(configured["cloud-provider-name"], "external", "so the kubelets here were started, too");
    assert_eq!(configured["disable-cloud-controller"], true, "there is none here");
    let answer = type_all("docs/install-rke2.md", "A cluster set up by hand");
    assert!(answer.lines().last().unwrap_or_default().starts_with("pod=web-"), "{answer}");
    tell("the page's address answers");
    cluster.nodes_are_initialised().await.unwrap();
    let web: Ipv4Addr = cluster.address_of("web").unwrap();
    let expose = async |name: &str, ipam: &str| {
        cluster.expose(name, ipam).await.unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.state()))
    };
    let (pool, dhcp) = (expose("pooled", "pool").await, expose("leased", "dhcp").await);

    // README's shorter way to the same, and twice is once.
    type_all("README.md", "Install");
    tell("README");

    // Both workloads roll over three nodes, there and back.
    let clients = [("pool", cluster.datagrams_to(pool).unwrap()), ("dhcp", cluster.datagrams_to(dhcp).unwrap())];
    let state = || cluster.state();
    let release = "harvester-cloud-provider";
    let roll = format!(
        "helm upgrade {release} target/charts/plain/{release}-*.tgz -n kube-system --reuse-values --wait --timeout 3m \
         --set-string podAnnotations.roll=1,kube-vip.podAnnotations.roll=1"
    );
    let pods = || cluster.kubectl(&["get", "pods", "-n=kube-system", "-o=jsonpath={.items[*].metadata.uid}"]);
    for (what, command) in [
        ("upgraded on three nodes", roll),
        ("rolled back on three nodes", format!("helm rollback {release} -n kube-system --wait --timeout 3m")),
    ] {
        let before = pods();
        desk.runs(&command).unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.state()));
        cluster.assert_ready("deployment/harvester-cloud-provider");
        cluster.assert_ready("daemonset/kube-vip");
        let after = pods();
        assert!(before.split(' ').all(|uid| !after.contains(uid)), "{what}: a pod was not replaced");
        tell(what);
        every_datagram_answered(what, &clients, state);
    }

    // docs/operations.md: who announces what, and other credentials while clients ask.
    let said = type_all("docs/operations.md", "Which node announces what");
    let report: Value = serde_json::from_str(&said[said.find("\n{").unwrap()..]).unwrap();
    let announced = report["vips"].as_array().unwrap().iter().filter(|vip| vip["state"] == "announced").count();
    assert_eq!(announced, 3, "{said}");
    rotate(&desk).await.unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.state()));
    let after = expose("rotated", "pool").await;
    assert!(![web, pool].contains(&after), "{after} is in use");
    tell("other credentials");
    every_datagram_answered("other credentials", &clients, state);

    // docs/install-k3s.md: the file by cloud-init, and the manifest as K3s's Helm controller runs it.
    let addon = "harvester-cloud-provider generate-addon prod guests --kubeconfig harvester.yaml -o cloud-init \
        --distribution k3s";
    let cloud_init: Value = serde_saphyr::from_str(&desk.runs(addon).unwrap()).unwrap();
    let files = cloud_init["write_files"].as_array().unwrap();
    for file in files {
        assert_eq!((&file["encoding"], &file["permissions"]), (&"b64".into(), &"0600".into()));
        let content = desk.runs(&format!("base64 -d <<< '{}'", file["content"].as_str().unwrap())).unwrap();
        cluster.place(&content, file["path"].as_str().unwrap()).unwrap();
    }
    let chart = manifest("docs/install-k3s.md", "HelmChart");
    assert_eq!((&chart["spec"]["bootstrap"], &chart["spec"]["targetNamespace"]), (&true.into(), &"kube-system".into()));
    let path = chart["spec"]["valuesContent"]
        .as_str()
        .unwrap()
        .lines()
        .find_map(|line| line.strip_prefix("cloudConfigPath: "));
    assert!(files.iter().any(|file| file["path"].as_str() == path), "cloud-init does not write {path:?}");
    desk.write("k3s.yaml", values_of(&chart)).unwrap();
    let as_k3s_does = format!(
        "helm upgrade --install {} target/charts/plain/{}-{}.tgz -n {} --reset-values --wait --timeout 3m -f k3s.yaml",
        chart["metadata"]["name"].as_str().unwrap(),
        chart["spec"]["chart"].as_str().unwrap(),
        chart["spec"]["version"].as_str().unwrap(),
        chart["spec"]["targetNamespace"].as_str().unwrap(),
    );
    desk.runs(&as_k3s_does).unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.state()));
    desk.runs(&format!("helm test {release} -n kube-system")).unwrap();
    tell("as K3s does");
    every_datagram_answered("as K3s does", &clients, state);

    // docs/install-rke2.md, only the programs: the bundled chart with the page's HelmChartConfig over it.
    cluster.provision().unwrap();
    let here = cluster.control_plane.dir().path().join("cloud-config").display().to_string();
    for mut block in
        page("docs/install-rke2.md").section("A cluster made by Rancher with cloud provider \"Harvester\"", "sh")
    {
        block.text = block.text.replace(RKE2_FILE, &here);
        desk.runs("kubectl delete secret harvester-cloud-config -n kube-system --ignore-not-found").unwrap();
        desk.types(&block).unwrap();
    }
    desk.write("helmchartconfig.yaml", values_of(&manifest("docs/install-rke2.md", "HelmChartConfig"))).unwrap();
    let as_rke2_does = format!(
        "helm upgrade --install {release} {REFERENCE} -n kube-system --reset-values --wait --timeout 3m -f \
        helmchartconfig.yaml"
    );
    desk.runs(&as_rke2_does).unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.state()));
    cluster.assert_ready("deployment/harvester-cloud-provider");
    cluster.assert_ready("daemonset/kube-vip");
    let another = expose("under-rke2", "pool").await;
    assert!(![web, pool].contains(&another), "{another} is in use");
    tell("only the programs, in the bundled chart");
    every_datagram_answered("only the programs, in the bundled chart", &clients, state);
    // Each client has asked all the time, so the journal has it once.
    for (name, probe) in &clients {
        watched(&format!("what the pages say, address by {name}"), &probe.settled_report(), Some(Duration::ZERO));
    }
    let addresses = ["web", "pooled", "leased"].map(|name| cluster.address_of(name).unwrap());
    assert_eq!(addresses, [web, pool, dhcp]);
}
