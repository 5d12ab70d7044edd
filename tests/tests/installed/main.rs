//! The chart as users install it: from real repositories, by the Helm that Rancher runs, on a real node (kubelet,
//! containerd). One bed for all of it, and two clients that ask for an address each the whole time.

mod monitoring;

use std::time::{Duration, Instant};

use e2e::installation::Installation;
use e2e::journal::watched;
use e2e::prometheus::Prometheus;
use e2e::repositories::{OciRegistry, WebServer};
use e2e::watch::Excuse;
use testbed::helm::{RELEASE, VERSIONS, package};
use testbed::{AuditMark, Helm};

/// What Rancher gives a cluster that it provisioned, and the image that is here.
const RANCHER_VALUES: &str = concat!(
    "\
global: {cattle: {clusterName: prod, systemDefaultRegistry: '', rkeIngressNginx: {}}, systemDefaultRegistry: ''}
cloudConfigPath: /var/lib/rancher/rke2/etc/config-files/cloud-provider-config
image: {repository: localhost/harvester-cloud-provider, tag: ",
    env!("CARGO_PKG_VERSION"),
    "}
"
);

/// Chart spec 11.5 R-3: the command of Rancher's helm-operation pod, word for word. In file names `+` is replaced by
/// `-`. A new version has a new image; here an annotation makes both workloads roll.
fn upgrade_as_rancher_does(helm: &Helm, version: &str) -> anyhow::Result<String> {
    let downloads = helm.dir().display().to_string();
    helm.run(&["pull", "local/harvester-cloud-provider", "--version", version, "--destination", &downloads])?;
    let file = |version: &str| format!("{downloads}/{RELEASE}-{version}.tgz");
    let archive = file(&version.replace('+', "-"));
    std::fs::rename(file(version), &archive)?;
    let roll = format!("podAnnotations: {{image: {version}}}\n");
    let values = format!("{RANCHER_VALUES}{roll}kube-vip: {{{}}}\n", roll.trim_end());
    let values = helm.write(&format!("values-{RELEASE}-{}.yaml", version.replace('+', "-")), values)?;
    helm.run(&[
        "upgrade",
        "--history-max=5",
        "--install=true",
        "--labels=catalog.cattle.io/cluster-repo-name=local",
        "--namespace=kube-system",
        "--timeout=10m0s",
        &format!("--values={values}"),
        &format!("--version={version}"),
        "--wait=true",
        RELEASE,
        &archive,
    ])
}

/// Versions that a search shows, newest first.
fn versions_on_offer(helm: &Helm) -> anyhow::Result<Vec<String>> {
    helm.run(&["repo", "update"])?;
    let found = helm.run(&["search", "repo", "local/harvester-cloud-provider", "--versions"])?;
    Ok(found.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1).map(str::to_owned)).collect())
}

#[tokio::test]
async fn the_chart_is_installed_upgraded_observed_and_removed_and_no_client_notices() {
    if e2e::skip() {
        return;
    }
    let _excuse = Excuse::begin();
    let start = Instant::now();
    let tell = |what: &str| eprintln!("{:>6.1} s {what}", start.elapsed().as_secs_f64());
    let up = env!("CARGO_PKG_VERSION");
    let (first, second) = (format!("109.1.0+up{up}"), format!("109.1.1+up{up}"));

    let cluster = Installation::start(1).await.unwrap();
    let cloud_config = cluster.provision().unwrap();
    cluster.taint("node1");
    tell("cluster with one tainted node");
    let helm = Helm::of(VERSIONS[0], &cluster.control_plane).unwrap();

    // A repository over plain HTTP.
    let charts = helm.dir().join("charts");
    package(&charts, "109.1.0").unwrap();
    let web = WebServer::start(&charts.join("rancher")).unwrap();
    helm.run(&["repo", "add", "local", &web.url()]).unwrap();
    assert_eq!(versions_on_offer(&helm).unwrap(), [first.as_str()]);
    let installed =
        upgrade_as_rancher_does(&helm, &first).unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.state()));
    tell("installed");
    assert!(installed.contains("STATUS: deployed") && installed.contains("REVISION: 1"), "{installed}");
    cluster.assert_ready("deployment/harvester-cloud-provider");
    cluster.assert_ready("daemonset/kube-vip");
    cluster.nodes_are_initialised().await.unwrap();

    let pool = cluster.expose("web", "pool").await.unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.state()));
    let dhcp =
        cluster.expose("web-dhcp", "dhcp").await.unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.state()));
    tell("two Services answer");
    let clients = [cluster.client_of(pool).unwrap(), cluster.client_of(dhcp).unwrap()];
    let tell = |what: &str| {
        let lost = clients.iter().map(|client| client.report().lost).sum::<u64>();
        tell(&format!("{what}; {lost} replies lost"));
    };

    // With a file of the host the provider is root without a single capability; the announcer has its two.
    let provider = cluster.process("harvester-cloud-provider").await.unwrap();
    assert_eq!((provider.user.as_str(), provider.capabilities), ("0", 0));
    let announcer = cluster.process("kube-vip").await.unwrap();
    assert_eq!((announcer.user.as_str(), announcer.capabilities), ("0", 0x3000));
    for process in [&provider, &announcer] {
        assert!(process.confined, "no seccomp profile, or new privileges are possible");
    }

    // A second version appears, and Rancher upgrades to it.
    package(&charts, "109.1.1").unwrap();
    assert_eq!(versions_on_offer(&helm).unwrap(), [second.as_str(), first.as_str()]);
    let upgraded =
        upgrade_as_rancher_does(&helm, &second).unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.state()));
    tell("upgraded");
    for line in ["NAMESPACE: kube-system", "STATUS: deployed", "REVISION: 2"] {
        assert!(upgraded.contains(line), "{line} is missing in {upgraded}");
    }
    let label = cluster.kubectl(&[
        "get",
        "-n=kube-system",
        "deployment/harvester-cloud-provider",
        "-o=jsonpath={.metadata.labels.helm\\.sh/chart}",
    ]);
    assert_eq!(label, format!("{RELEASE}-{}", second.replace('+', "_")));
    assert_eq!([cluster.address_of("web").unwrap(), cluster.address_of("web-dhcp").unwrap()], [pool, dhcp]);
    assert_eq!(cluster.owners(pool).unwrap(), 1);

    // `helm test`, and what Prometheus makes of metrics, alerts and the dashboard.
    helm.run(&["test", RELEASE, "-n", "kube-system", "--timeout=60s"]).unwrap_or_else(|error| {
        let said = cluster.control_plane.kubectl(&["logs", "-n=kube-system", "harvester-cloud-provider-test"]);
        panic!("{error:#}\n{said:?}\n{}", cluster.state())
    });
    tell("helm test");
    let node = [cluster.node()];
    let prometheus = Prometheus::start(&cluster.lan, &cluster.control_plane, &node, &node, "10s").unwrap();
    monitoring::check(&prometheus).await.unwrap();
    tell("metrics, alerts, dashboard");

    // From an OCI registry, with a Secret, by the newest Helm.
    let newest = Helm::of(VERSIONS[1], &cluster.control_plane).unwrap();
    let registry = OciRegistry::start().unwrap();
    cluster.kubectl(&[
        "create",
        "secret",
        "generic",
        "harvester",
        "-n=kube-system",
        &format!("--from-file=cloud-config={}", cloud_config.display()),
    ]);
    let archive = charts.join(format!("rancher/{RELEASE}-{second}.tgz")).display().to_string();
    newest.run(&["push", &archive, &registry.url(), "--plain-http"]).unwrap();
    let values =
        newest.write("values.yaml", format!("{RANCHER_VALUES}cloudConfig: {{secretName: harvester}}\n")).unwrap();
    newest
        .run(&[
            "upgrade",
            RELEASE,
            &format!("{}/{RELEASE}", registry.url()),
            "--version",
            &second,
            "--plain-http",
            "-n=kube-system",
            "--wait",
            "--timeout=2m",
            "-f",
            &values,
        ])
        .unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.state()));
    tell("upgraded from the OCI registry, with a Secret");
    let provider = cluster.process("harvester-cloud-provider").await.unwrap();
    assert_eq!((provider.user.as_str(), provider.capabilities), ("65532", 0));

    // An upgrade that cannot work is reported, says why, disturbs no address, and is taken back. Helm 3 is content when
    // no more than maxUnavailable pods are missing, that is with none of one; for it there is `helm test`.
    let broken = RANCHER_VALUES
        .replace("/var/lib/rancher/rke2/etc/config-files/cloud-provider-config", "/etc/kubernetes/cloud-config");
    let broken = newest.write("broken.yaml", broken).unwrap();
    let upgrade = ["upgrade", RELEASE, &archive, "-n=kube-system", "--wait", "--timeout=8s", "-f", &broken];
    let refused = newest.run(&upgrade);
    assert!(refused.is_err(), "--wait was satisfied by a provider without credentials: {refused:?}");
    // The pod says why at its first question, and begins anew as often as it fails: only Helm's time-out ends this.
    let tested = helm.run(&["test", RELEASE, "-n=kube-system", "--timeout=20s"]);
    let said = format!("{:#}", tested.expect_err("the test was satisfied by a provider without credentials"));
    assert!(said.contains("service/harvester-cloud-provider-test does not answer 200: "), "no reason in {said}");
    let log = cluster.log_of_provider();
    assert!(
        log.contains("/etc/kubernetes/cloud-config/cloud-config: No such file"),
        "the log does not say which file is missing: {log}"
    );
    helm.run(&["rollback", RELEASE, "3", "-n=kube-system", "--wait", "--timeout=1m"])
        .unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.state()));
    tell("a broken upgrade, rolled back");
    let another = helm.run(&["install", "another", &archive, "-n=kube-system", "-f", &values]).unwrap_err().to_string();
    assert!(another.contains("harvester-cloud-provider"), "{another}");

    // Why the Deployment keeps maxUnavailable 1, although Helm 3 counts a pod less for it: with 0 a single node's
    // upgrade stands still.
    let strategy = |unavailable: u8| {
        let patch = format!(
            "{{\"spec\":{{\"strategy\":{{\"rollingUpdate\":{{\"maxUnavailable\":{unavailable},\"maxSurge\":1}}}},\
             \"template\":{{\"metadata\":{{\"annotations\":{{\"strategy\":\"{unavailable}\"}}}}}}}}}}"
        );
        cluster.kubectl(&["patch", "-n=kube-system", "deployment/harvester-cloud-provider", "-p", &patch]);
    };
    strategy(0);
    testbed::wait_until("the second pod to want the first one's port", e2e::PATIENCE, || {
        let events = cluster.kubectl(&["get", "events", "-n=kube-system", "--field-selector=reason=FailedScheduling"]);
        if events.contains("free ports") { Ok(()) } else { Err(events) }
    })
    .unwrap();
    strategy(1);
    cluster.assert_ready("deployment/harvester-cloud-provider");
    tell("maxUnavailable 0 stands still on one node, 1 does not");

    // Its rights were enough for everything above.
    let denied: Vec<_> = cluster
        .control_plane
        .audit()
        .since(AuditMark::default())
        .unwrap()
        .into_iter()
        .filter(|request| request.code == 403 && request.user.starts_with("system:serviceaccount:kube-system:"))
        .filter(|request| {
            ["harvester-cloud-provider", "kube-vip"].iter().any(|account| request.user.ends_with(account))
        })
        .collect();
    assert!(denied.is_empty(), "{denied:?}");

    // Uninstalling removes the chart's objects and nothing of the user's.
    helm.run(&["uninstall", RELEASE, "-n=kube-system", "--wait", "--timeout=1m"]).unwrap();
    tell("uninstalled");
    // The collector of garbage takes the pods, so they outlive Helm's wait.
    let objects = "deployment,daemonset,pod,role,rolebinding,clusterrole,clusterrolebinding,serviceaccount";
    let ours = "-l=app.kubernetes.io/instance=harvester-cloud-provider";
    testbed::wait_until("the chart's objects to be gone", e2e::PATIENCE, || {
        let left = cluster.kubectl(&["get", "-n=kube-system", objects, ours, "-o=name"]);
        if left.trim().is_empty() { Ok(()) } else { Err(left) }
    })
    .unwrap();
    // The addresses go on working: the last announcer leaves them for 300 s, so that a reinstallation is no outage.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!([cluster.address_of("web").unwrap(), cluster.address_of("web-dhcp").unwrap()], [pool, dhcp]);
    assert!(
        cluster
            .kubectl(&["get", "service/web", "-o=jsonpath={.metadata.finalizers}"])
            .contains("service.kubernetes.io/load-balancer-cleanup")
    );
    for (client, name) in clients.iter().zip(["pool", "dhcp"]) {
        client.wait_for_answers(e2e::ENOUGH, e2e::PATIENCE).unwrap();
        let report = client.settled_report();
        let what = format!("the chart's life, address by {name}");
        watched(&what, &report, Some(Duration::ZERO));
        assert!(report.sent > 1000, "{what}: {report}");
        assert_eq!(report.lost, 0, "{what}: {report}");
        tell(&format!("{what}: {report}"));
    }
}
