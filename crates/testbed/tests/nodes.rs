//! Real nodes: kubelet, containerd, CNI, kube-proxy. Needs root and the programs of `dev/tools.sh`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams};
use testbed::node::{ImageStore, Machine, MachineSpec};
use testbed::{ControlPlane, Lan, ProxyMode, programs, wait_for};

const WEB: &str = r"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app: web}}
      containers:
      - name: web
        image: localhost/echo:1
        env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
        securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
";

#[tokio::test]
async fn two_machines_run_pods_serve_them_lose_power_and_come_back() {
    let start = Instant::now();
    let images = ImageStore::new().unwrap();
    images.build_pause().unwrap();
    images.build_program("localhost/echo:1", &programs::own("testbed", "echo").unwrap()).unwrap();
    eprintln!("{:>6.1} s images", start.elapsed().as_secs_f64());
    let lan = Lan::builder().hosts(0).build().unwrap();
    let control_plane = ControlPlane::builder().controllers("*").scheduler().start().await.unwrap();
    eprintln!("{:>6.1} s control plane", start.elapsed().as_secs_f64());
    let machines: Vec<Machine> = (1..=2)
        .map(|number| {
            let spec = MachineSpec {
                name: format!("node{number}"),
                number,
                of: 2,
                external_cloud_provider: false,
                proxy: ProxyMode::Nftables,
                proxy_min_sync: Duration::from_secs(1),
                images: images.archives(),
            };
            Machine::boot(spec, &lan, &control_plane).unwrap()
        })
        .collect();
    for machine in &machines {
        machine.wait_until_ready(&control_plane).await.unwrap();
    }
    eprintln!("{:>6.1} s nodes Ready", start.elapsed().as_secs_f64());

    let manifest = control_plane.dir().write("web.yaml", WEB).unwrap();
    control_plane.kubectl(&["apply", "-f", &manifest.display().to_string()]).unwrap();
    control_plane.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]).unwrap();
    eprintln!("{:>6.1} s pods running", start.elapsed().as_secs_f64());
    for machine in &machines {
        let target = SocketAddr::from((machine.ipv4(), 30080));
        let answer = wait_for("the NodePort", Duration::from_secs(20), || async {
            lan.client().http_get(target, Duration::from_secs(2)).map_err(|error| format!("{error:#}"))
        })
        .await
        .unwrap();
        assert!(answer.contains("node=node"), "{answer}");
    }
    let client = control_plane.client().await.unwrap();
    let pods =
        Api::<Pod>::namespaced(client.clone(), "default").list(&ListParams::default().labels("app=web")).await.unwrap();
    let pod = pods.items.iter().find(|pod| pod.spec.as_ref().unwrap().node_name.as_deref() == Some("node1")).unwrap();
    let id = pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].container_id.clone().unwrap();
    let pid = machines[0].container_pid(&id).unwrap();
    let status = machines[0].exec(["cat", &format!("/proc/{pid}/status")]).unwrap();
    assert!(status.contains("CapBnd:\t0000000000000000"), "{status}");
    assert!(control_plane.kubectl(&["logs", "-l", "app=web"]).unwrap().contains("listening"));

    machines[1].power_off().unwrap();
    assert!(!machines[1].is_on());
    assert!(lan.client().who_has(machines[1].ipv4()).unwrap().is_empty(), "a machine without power answers ARP");
    eprintln!("{:>6.1} s power off", start.elapsed().as_secs_f64());
    machines[1].power_on().unwrap();
    machines[1].wait_until_ready(&control_plane).await.unwrap();
    eprintln!("{:>6.1} s Ready again", start.elapsed().as_secs_f64());
    assert_eq!(lan.client().who_has(machines[1].ipv4()).unwrap(), [machines[1].mac()]);
    assert_eq!(Api::<Node>::all(client).list(&ListParams::default()).await.unwrap().items.len(), 2);

    let name = lan.dir().path().parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
    drop(machines);
    let left = std::process::Command::new("find")
        .args(["/sys/fs/cgroup", "-type", "d", "-name", &format!("{name}*")])
        .output()
        .unwrap();
    assert!(left.stdout.is_empty(), "{}", String::from_utf8_lossy(&left.stdout));
}
