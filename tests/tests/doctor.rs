//! `doctor` on a bed in which faults are really planted: each is named, what it says to type is typed, and then it is
//! gone. What is planted and typed goes through a shell with `kubectl`, as an operator has it; `harvester.yaml` is an
//! administrator's of the host.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::collections::BTreeSet;

use diagnose::doctor::Check;
use e2e::{Bed, CLUSTER, PATIENCE, VM_NAMESPACE, product, service, wait_for};
use serde_json::Value;
use testbed::programs;

/// Workloads as the chart makes them; nobody runs them here, the bed does.
const WORKLOADS: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: harvester-cloud-provider, namespace: kube-system}
spec:
  selector: {matchLabels: {app: c}}
  template:
    metadata: {labels: {app: c}}
    spec:
      serviceAccountName: harvester-cloud-provider
      containers:
      - {name: c, image: "rancher/harvester-cloud-provider:v1", args: ["--cloud-config=/x", "--cluster-name=demo"]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-vip, namespace: kube-system}
spec:
  selector: {matchLabels: {app: a}}
  template:
    metadata: {labels: {app: a}}
    spec:
      serviceAccountName: kube-vip
      containers: [{name: a, image: "rancher/harvester-cloud-provider:v1", args: [manager]}]
"#;

/// A shell on a node, with `kubectl`, our program and both clusters.
struct Desk<'a> {
    bed: &'a Bed,
    prelude: String,
}

/// What `doctor` said.
#[derive(Debug)]
struct Said {
    findings: Vec<Value>,
    status: String,
}

impl Said {
    fn checks(&self) -> BTreeSet<&str> {
        self.findings.iter().map(|finding| finding["check"].as_str().unwrap()).collect()
    }
}

impl<'a> Desk<'a> {
    fn new(bed: &'a Bed, namespace: &str) -> Self {
        let directory = bed.dir().write("desk/workloads.yaml", WORKLOADS).unwrap();
        let directory = directory.parent().unwrap().display().to_string();
        bed.dir().write("desk/cloud-config", bed.fresh_cloud_config().unwrap()).unwrap();
        let tools = programs::tool("kubectl").unwrap().parent().unwrap().display().to_string();
        let ours = product::binary().unwrap().parent().unwrap().display().to_string();
        let guest = bed.control_plane.admin().unwrap().inside;
        let host = bed.harvester.admin().unwrap().inside;
        std::fs::copy(host, format!("{directory}/harvester.yaml")).unwrap();
        std::fs::copy(guest, format!("{directory}/guest.yaml")).unwrap();
        let prelude = format!(
            "cd {directory}; export PATH={tools}:{ours}:$PATH KUBECONFIG={directory}/guest.yaml; \
             H='kubectl --kubeconfig harvester.yaml -n {VM_NAMESPACE}'; K=kubectl; NS={namespace}; "
        );
        Self { bed, prelude }
    }

    /// Types this; what it printed, and its exit status in the last line.
    fn types(&self, text: &str) -> String {
        // Not every remedy is a line for a shell: what is none must not end the shell that says so.
        let script =
            format!("{}\n( eval \"$(cat <<'TYPED'\n{text}\nTYPED\n)\" ) 2>&1\necho \"status $?\"", self.prelude);
        self.bed.lan.host(1).exec(["sh", "-c", &script]).unwrap()
    }

    fn does(&self, text: &str) {
        let said = self.types(text);
        assert!(text.is_empty() || said.trim_end().ends_with("status 0"), "{text}\n{said}");
    }

    fn doctor(&self, words: &str) -> Said {
        let said = self.types(&format!("harvester-cloud-provider doctor -o json {words} 2>/dev/null"));
        let (json, status) = said.trim_end().rsplit_once('\n').unwrap();
        let report: Value = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {said}"));
        let findings = report["findings"].as_array().unwrap().clone();
        // The form is what scripts rely on.
        for finding in &findings {
            let keys: Vec<&str> = finding.as_object().unwrap().keys().map(String::as_str).collect();
            let sorted = BTreeSet::from_iter(keys);
            assert_eq!(sorted, ["check", "object", "remedy", "severity", "what", "why"].into());
        }
        let errors = findings.iter().any(|finding| finding["severity"] == "error");
        let expected = if findings.is_empty() { 0 } else { 3 + u8::from(errors) };
        assert_eq!(status, format!("status {expected}"), "{report}");
        Said { findings, status: status.to_owned() }
    }

    /// Waits until `doctor` names this, and all it names.
    async fn finds(&self, check: &str, words: &str) -> Said {
        wait_for(&format!("doctor to find {check}"), PATIENCE, || async {
            let said = self.doctor(words);
            if said.checks().contains(check) { Ok(said) } else { Err(format!("{:?}", said.findings)) }
        })
        .await
        .unwrap()
    }

    async fn is_content(&self, after: &str) {
        wait_for(&format!("doctor to be content after {after}"), PATIENCE, || async {
            let said = self.doctor(GOOD);
            if said.findings.is_empty() { Ok(()) } else { Err(format!("{:?}", said.findings)) }
        })
        .await
        .unwrap();
    }
}

const GOOD: &str = "--cloud-config cloud-config";

/// A fault: the check that names it; what plants it; placeholders of the remedy and what stands for them here; what has
/// to be done after the remedy, which only a person can decide or nobody runs on this bed.
struct Fault {
    check: &'static str,
    plant: &'static str,
    fill: &'static [(&'static str, &'static str)],
    after: &'static str,
}

const fn fault(check: &'static str, plant: &'static str) -> Fault {
    Fault { check, plant, fill: &[], after: "" }
}

const FAULTS: [Fault; 24] = [
    fault("machine-label-missing", "$H label vmi/node1 vm/node1 guestcluster.harvesterhci.io/name-"),
    fault("cluster-name-mismatch", "$H label --overwrite vmi/node1 vm/node1 guestcluster.harvesterhci.io/name=other"),
    fault("node-excluded", "$K label node node1 node.kubernetes.io/exclude-from-external-load-balancers=true"),
    fault("no-eligible-node", "$K label node node1 node2 node.kubernetes.io/exclude-from-external-load-balancers=true"),
    Fault {
        // Nobody can set a clock from here.
        after: "$K -n kube-node-lease delete lease node9; $K delete node node9",
        ..fault(
            "clock-skew",
            "echo '{apiVersion: v1, kind: Node, metadata: {name: node9}}' | $K apply -f -; echo \"{apiVersion: \
             coordination.k8s.io/v1, kind: Lease, metadata: {name: node9, namespace: kube-node-lease}, spec: \
             {holderIdentity: node9, leaseDurationSeconds: 40, renewTime: \\\"$(date -u -d '1 hour' \
             +%Y-%m-%dT%H:%M:%S.000000Z)\\\"}}\" | $K apply -f -",
        )
    },
    Fault {
        // A machine is moved by hand, in Harvester's user interface.
        after: "$K delete node node9 node10 node11",
        ..fault(
            "quorum-at-risk",
            "for n in 9 10 11; do echo \"{apiVersion: v1, kind: Node, metadata: {name: node$n, labels: \
             {node-role.kubernetes.io/etcd: 'true', cloudprovider.harvesterhci.io/host: host-$((n / 11))}}}\" | \
             $K apply -f -; done",
        )
    },
    fault("service-ignored", "$K -n $NS annotate service web kube-vip.io/ignore=true"),
    Fault {
        after: "$K delete -f service.yaml; sed -i '/loadBalancerClass/d;/^status:/,$d' service.yaml; $K apply -f \
            service.yaml",
        ..fault(
            "service-class",
            "echo '{apiVersion: v1, kind: Service, metadata: {name: foreign, namespace: default}, spec: {type: \
             LoadBalancer, loadBalancerClass: example.org/other, ports: [{port: 80}]}}' | $K apply -f -; echo \
             '{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: foreign, namespace: default, \
             labels: {kubernetes.io/service-name: foreign}}, addressType: IPv4, endpoints: [{addresses: \
             [10.244.9.9]}], ports: [{port: 80}]}' | $K apply -f -",
        )
    },
    fault(
        "two-controllers",
        "sed '/^---/,$d;s/name: harvester-cloud-provider, namespace/name: old-provider, namespace/' workloads.yaml | \
        $K apply -f -",
    ),
    Fault {
        after: "$K -n kube-system delete daemonset calico-node",
        ..fault(
            "cni-autodetection",
            "sed '1,/^---/d;s/name: kube-vip, namespace/name: calico-node, namespace/;s/{name: a, image.*/{name: \
             calico-node, image: calico, env: [{name: IP, value: autodetect}]}]/' workloads.yaml | $K apply -f -",
        )
    },
    Fault {
        fill: &[("<NIC of the nodes>", "eth0")],
        after: "$K -n kube-system delete daemonset/cilium configmap/cilium-config",
        ..fault(
            "cni-autodetection",
            "sed '1,/^---/d;s/name: kube-vip, namespace/name: cilium, namespace/;s/{name: a, image.*/{name: cilium, \
             image: cilium}]/' workloads.yaml | $K apply -f - && $K -n kube-system create configmap cilium-config \
             --from-literal=devices='eth0 vip+'",
        )
    },
    fault(
        "load-balancer-orphaned",
        "$H get loadbalancers.loadbalancer.harvesterhci.io -o json | jq '.items[0] | del(.status, .metadata.uid, \
         .metadata.finalizers, .metadata.resourceVersion) | .metadata.name = \"demo-default-gone-1\" | .spec.ipam = \
         \"dhcp\" | .metadata.labels[\"cloudprovider.harvesterhci.io/serviceName\"] = \"gone\"' | $H create -f -",
    ),
    Fault {
        // The copy is gone for good.
        fill: &[("kubectl -n kube-system exec ", "true kubectl -n kube-system exec "), ("<name>", "other")],
        after: "$H delete loadbalancers.loadbalancer.harvesterhci.io demo-default-copy-1",
        ..fault(
            "cluster-copy",
            "$H get loadbalancers.loadbalancer.harvesterhci.io -o json | jq '.items[0] | del(.status, .metadata.uid, \
             .metadata.finalizers, .metadata.resourceVersion) | .metadata.name = \"demo-default-copy-1\" | .spec.ipam \
             = \"dhcp\" | .metadata.annotations[\"cloudprovider.harvesterhci.io/clusterUID\"] = \"another\" | \
             .metadata.annotations[\"cloudprovider.harvesterhci.io/serviceUID\"] = \"copied\" | \
             .metadata.labels[\"cloudprovider.harvesterhci.io/serviceName\"] = \"copied\"' | $H create -f -",
        )
    },
    fault(
        "node-without-machine",
        "echo '{apiVersion: v1, kind: Node, metadata: {name: node9}, spec: {providerID: \"harvester://another\"}}' | \
        $K apply -f -",
    ),
    Fault {
        after: "$K delete node node8",
        ..fault(
            "node-not-initialised",
            "echo '{apiVersion: v1, kind: Node, metadata: {name: node8}, spec: {taints: [{key: \
             node.cloudprovider.kubernetes.io/uninitialized, value: \"true\", effect: NoSchedule}]}}' | $K apply -f -",
        )
    },
    Fault {
        // The pods come back.
        after: "$K apply -f slices.json",
        ..fault(
            "no-ready-endpoint",
            "L='-l kubernetes.io/service-name=web'; $K -n $NS get endpointslices $L -o json | jq \
             'del(.items[].metadata.resourceVersion)' > slices.json && $K -n $NS delete endpointslices $L",
        )
    },
    fault("service-not-as-asked", "$K -n $NS annotate service second cloudprovider.harvesterhci.io/ippool=nosuch"),
    Fault {
        // What the author meant only the author knows.
        after: "$K -n $NS annotate service second cloudprovider.harvesterhci.io/network-",
        ..fault(
            "service-not-as-asked",
            "$K -n $NS annotate service second cloudprovider.harvesterhci.io/network=guests/nosuch",
        )
    },
    Fault {
        // What the author meant only the author knows.
        after: "$K -n $NS annotate service second cloudprovider.harvesterhci.io/primary-service-",
        ..fault(
            "service-not-as-asked",
            "$K -n $NS annotate service second cloudprovider.harvesterhci.io/primary-service=nosuch",
        )
    },
    Fault {
        fill: &[("<account>", CLUSTER)],
        ..fault(
            "harvester-right-missing",
            "for b in $($H get rolebindings -o name); do $H get $b -o yaml > saved.yaml; $H delete $b; done",
        )
    },
    Fault {
        after: "$K replace -f role.yaml",
        fill: &[("helm ", "true helm "), ("<chart>", "chart")],
        ..fault(
            "guest-right-missing",
            "$K get clusterrole harvester-cloud-provider -o json | jq 'del(.metadata.resourceVersion)' > role.yaml; \
             jq '.rules |= map(select(.resources != [\"events\"]))' role.yaml | $K replace -f -",
        )
    },
    Fault {
        after: "$K -n kube-system delete lease plndr-svcs-lock",
        ..fault(
            "two-announcers",
            "echo \"{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: plndr-svcs-lock, namespace: \
             kube-system}, spec: {holderIdentity: old, leaseDurationSeconds: 60, renewTime: \\\"$(date -u \
             +%Y-%m-%dT%H:%M:%S.000000Z)\\\"}}\" | $K apply -f -",
        )
    },
    Fault {
        after: "$K -n kube-system delete configmap harvester-host-upgrade",
        fill: &[("<", "'<"), (">", ">'")],
        ..fault(
            "host-upgrade-failed",
            "$K -n kube-system create configmap harvester-host-upgrade --from-literal=summary=s \
             --from-literal=status.json='{\"window\": {\"suspended\": false}, \"plan\": {\"name\": \"UpgradePlan p\"}, \
             \"nodes\": {\"node1\": {\"reason\": \"HostUpgradeFailed\", \"host\": \"h\"}}}'",
        )
    },
    Fault {
        after: "$K -n kube-system delete configmap harvester-host-upgrade",
        fill: &[("<", "'<"), (">", ">'")],
        ..fault(
            "host-upgrade-paused",
            "$K -n kube-system create configmap harvester-host-upgrade --from-literal=summary=s \
             --from-literal=status.json='{\"window\": {\"suspended\": false}, \"plan\": {\"name\": \"UpgradePlan p\"}, \
             \"nodes\": {\"node1\": {\"reason\": \"HostUpgradePaused\", \"host\": \"h\"}}}'",
        )
    },
];

/// Files by which an API cannot be read: the check, how the file comes to be, and how `doctor` is called with it. To
/// mend it is to use the good one, which the next line does.
const FILES: [(&str, &str, &str); 10] = [
    ("guest-credentials-missing", "", "--kubeconfig nowhere"),
    ("guest-api-unreachable", "sed 's/:6443/:6999/' guest.yaml > bad", "--kubeconfig bad"),
    ("guest-certificate-refused", "cp guest.yaml bad; $CA", "--kubeconfig bad"),
    ("guest-token-refused", "cp guest.yaml bad; $TOKEN", "--kubeconfig bad"),
    ("cloud-config-missing", "", "--cloud-config nowhere"),
    ("harvester-api-unreachable", "sed 's/:6443/:6999/' cloud-config > bad", "--cloud-config bad"),
    ("harvester-certificate-refused", "cp cloud-config bad; $CA", "--cloud-config bad"),
    ("harvester-token-refused", "cp cloud-config bad; $TOKEN", "--cloud-config bad"),
    ("certificate-expired", "cp guest.yaml bad; pair=past; $PAIR", "--kubeconfig bad"),
    ("certificate-expires", "cp cloud-config bad; pair=soon; $PAIR", "--cloud-config bad"),
];

/// What is found of a controller, an announcer and a kernel's module that the bed stops, or says to be missing.
const PROGRAMS: [&str; 3] = ["controller-missing", "announcer-silent", "macvlan-missing"];

/// Checks that are tried on snapshots only, in `crates/diagnose`, and what a bed would have to have for them.
const NOT_PLANTED: [(&str, &[&str]); 8] = [
    (
        "a stranger on the LAN, a node that lacks something, or a DHCP server that is away or refuses",
        &[
            "address-conflict",
            "cannot-announce",
            "dhcp-lease-expired",
            "dhcp-refused",
            "dhcp-silent",
            "interface-missing",
            "no-local-endpoint",
        ],
    ),
    (
        "another version, or an API server that is no Harvester",
        &["guest-too-old", "harvester-kind-missing", "harvester-too-old"],
    ),
    ("pods that a kubelet runs, and starts anew", &["announcer-missing", "kube-proxy-not-ready", "pod-waiting"]),
    (
        "another cloud-config, name or identity of the cluster, which changes what the other checks find",
        &[
            "cloud-config-key-missing",
            "cluster-name-changed",
            "cluster-name-default",
            "identity-not-known",
            "machines-elsewhere",
            "safe-mode",
        ],
    ),
    ("a node that loses its power, which takes its kubelet and its machine along", &["node-silent"]),
    (
        "a Service that nobody serves, or that does not go, for a while",
        &["address-unowned", "owner-silent", "service-not-deleted", "service-not-served"],
    ),
    (
        "a Service without an address, whose condition is read as that of `service-not-as-asked`, which is planted",
        &[
            "address-taken",
            "harvester-controller-silent",
            "harvester-forbids",
            "harvester-webhook-refuses",
            "load-balancer-name-taken",
            "network-missing",
            "pool-exhausted",
            "pool-missing",
            "quota-reached",
            "service-not-ready",
            "share-impossible",
        ],
    ),
    (
        "nothing more: they are left out for the time that each takes",
        &["load-balancer-abandoned", "paused", "pool-full", "service-paused", "static-elsewhere", "static-in-pool"],
    ),
];

/// A new check wants a decision.
#[test]
fn each_check_is_planted_here_or_has_a_reason_why_it_is_not() {
    let planted: BTreeSet<&str> = FAULTS.iter().map(|fault| fault.check).collect();
    let planted = planted.into_iter().chain(PROGRAMS).chain(FILES.iter().map(|(check, ..)| *check));
    let others = NOT_PLANTED.iter().flat_map(|(_, checks)| checks.iter().copied());
    let mut decided: Vec<&str> = planted.chain(others).collect();
    decided.sort_unstable();
    assert_eq!(decided, Check::ALL.iter().map(|check| check.name()).collect::<Vec<_>>());
}

/// A client certificate that runs out in so many days.
fn pair(days: i64) -> (String, String) {
    let day = k8s_openapi::jiff::Timestamp::now() + k8s_openapi::jiff::SignedDuration::from_hours(24 * days);
    let day = day.to_zoned(k8s_openapi::jiff::tz::TimeZone::UTC);
    let mut params = rcgen::CertificateParams::default();
    params.not_after = rcgen::date_time_ymd(day.year().into(), day.month().unsigned_abs(), day.day().unsigned_abs());
    let key = rcgen::KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

#[tokio::test]
async fn each_planted_fault_is_named_and_what_doctor_says_to_type_mends_it() {
    if e2e::skip() {
        return;
    }
    let bed = Bed::builder().start().await.unwrap();
    let case = bed.case("doctor").await.unwrap();
    let web = case.expose(service("web").tcp(8080)).await.unwrap();
    web.settled().await.unwrap();
    let second = case.expose(service("second").tcp(8080)).await.unwrap();
    second.settled().await.unwrap();
    let desk = Desk::new(&bed, case.namespace());
    desk.does("$K apply -f workloads.yaml");
    desk.is_content("nothing was planted").await;
    assert_eq!(desk.doctor(GOOD).status, "status 0");

    for Fault { check, plant, fill, after } in FAULTS {
        desk.does(plant);
        let said = desk.finds(check, GOOD).await;
        for finding in &said.findings {
            let mut remedy = finding["remedy"].as_str().unwrap().to_owned();
            for (placeholder, value) in fill {
                remedy = remedy.replace(placeholder, value);
            }
            let typed = desk.types(&remedy);
            eprintln!("{check}: {} -> {}", remedy, typed.trim_end().replace('\n', " | "));
        }
        if !after.is_empty() {
            desk.types(after);
        }
        desk.is_content(check).await;
    }

    // Programs that have stopped: here the bed starts them again, instead of the Deployment that is told to.
    let [controller, announcer, module] = PROGRAMS;
    bed.ccm().stop().unwrap();
    desk.finds(controller, GOOD).await;
    bed.ccm().start().unwrap();
    bed.announcer(2).kill();
    desk.finds(announcer, GOOD).await;
    // The module is there on this machine: an announcer that runs again takes the word back.
    desk.does(
        "$K -n kube-system annotate lease harvester-announcer-node2 \
         cloudprovider.harvesterhci.io/announcer-without-macvlans='Operation not supported (os error 95)'",
    );
    desk.finds(module, GOOD).await;
    bed.announcer(2).start().unwrap();
    bed.wait_until_announcing(2).await.unwrap();
    desk.is_content("stopped programs").await;

    let authority = harvester_sim::serve::tls::Authority::new().unwrap().certificate_pem;
    bed.dir().write("desk/other.pem", authority).unwrap();
    for (name, days) in [("past", -2), ("soon", 10)] {
        let (certificate, key) = pair(days);
        bed.dir().write(&format!("desk/{name}.pem"), certificate).unwrap();
        bed.dir().write(&format!("desk/{name}.key"), key).unwrap();
    }
    for (check, make, words) in FILES {
        let config = "kubectl --kubeconfig bad config";
        let ca = format!(
            "{config} set-cluster $({config} view -o jsonpath='{{.clusters[0].name}}') \
            --certificate-authority=other.pem --embed-certs"
        );
        let token = format!(
            "{config} set-credentials expired --token=expired && {config} set-context --current --user=expired"
        );
        let pair = format!(
            "{config} set-credentials $({config} view -o jsonpath='{{.users[0].name}}') \
             --client-certificate=$pair.pem --client-key=$pair.key --embed-certs"
        );
        desk.types(&make.replace("$CA", &ca).replace("$TOKEN", &token).replace("$PAIR", &pair));
        let guest = words.starts_with("--kubeconfig");
        desk.finds(check, &if guest { format!("{words} {GOOD}") } else { words.to_owned() }).await;
    }
    desk.is_content("good files again").await;
}
