//! A guest cluster with one real node that has a control plane's taint, waits for a cloud provider, and has the cloud-config where
//! RKE2 writes it: mode 0600, owned by root.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use testbed::node::{ImageStore, Machine, MachineSpec};
use testbed::{ControlPlane, DhcpOptions, HarvesterSide, Lan, Probe, ProxyMode, Traffic, VmSpec, programs, wait_for};

/// The image of the product, as the values name it.
const IMAGE: &str = "localhost/harvester-cloud-provider:test";
const PATIENCE: Duration = Duration::from_mins(1);
/// Two Services never share a pod here: connections by way of two addresses would meet in its socket table with the same source port
/// and other timestamps, and it drops such a first packet (PAWS) while the older one is in TIME_WAIT.
const WEB: &str = r"
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME}
spec:
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      tolerations: [{operator: Exists}]
      containers:
      - name: web
        image: localhost/echo:1
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
";

/// Everything; field order is the order in which it goes down.
pub struct Cluster {
    machine: Machine,
    _harvester: HarvesterSide,
    pub control_plane: ControlPlane,
    pub lan: Lan,
    pub cloud_config: PathBuf,
    _images: ImageStore,
}

/// What a container's process may do.
pub struct Rights {
    pub user: String,
    pub capabilities: u64,
    pub confined: bool,
}

impl Cluster {
    pub async fn start() -> Result<Self> {
        let images = ImageStore::new()?;
        images.build_pause()?;
        images.build_program("localhost/echo:1", &programs::own("testbed", "echo")?)?;
        images.build_program(IMAGE, &e2e::product::binary()?)?;
        let lan = Lan::builder().hosts(0).dhcp(DhcpOptions { range: (200, 239), ..DhcpOptions::default() }).build()?;
        let side = HarvesterSide::builder().namespace("guests").network("guests/lan");
        let (control_plane, harvester) = ControlPlane::builder().controllers("*").scheduler().start_with(side).await?;
        let spec = MachineSpec {
            name: "node1".into(),
            number: 1,
            of: 1,
            external_cloud_provider: true,
            proxy: ProxyMode::Nftables,
            proxy_min_sync: Duration::from_millis(100),
            images: images.archives(),
        };
        let machine = Machine::boot(spec, &lan, &control_plane)?;
        machine.wait_until_ready(&control_plane).await?;
        harvester.create_vm(&VmSpec {
            namespace: "guests".into(),
            name: "node1".into(),
            cluster: "prod".into(),
            network: "guests/lan".into(),
            addresses: vec![machine.ipv4().to_string()],
            zone: None,
            region: None,
            flags: Vec::new(),
        })?;
        let range = format!("{}/24,start={},end={}", lan.ipv4(0), lan.ipv4(100), lan.ipv4(149));
        harvester.create_pool("edge", "guests/lan", &range)?;
        let cloud_config = control_plane.dir().write("cloud-config", harvester.cloud_config("guests", "prod")?)?;
        let place = "/var/lib/rancher/rke2/etc/config-files";
        let install = format!(
            "install -d -m 0700 {place} && install -m 0600 {} {place}/cloud-provider-config",
            cloud_config.display()
        );
        machine.exec(["sh", "-c", &install])?;
        let cluster = Self { machine, _harvester: harvester, control_plane, lan, cloud_config, _images: images };
        let role = "node-role.kubernetes.io/control-plane=true";
        cluster.kubectl(&["label", "node", "node1", role]);
        // With a value, as some installers write it.
        cluster.kubectl(&["taint", "node", "node1", &format!("{role}:NoSchedule")]);
        Ok(cluster)
    }

    pub fn node(&self) -> Ipv4Addr {
        self.machine.ipv4()
    }

    /// Runs kubectl; panics with what it said.
    pub fn kubectl(&self, words: &[&str]) -> String {
        self.control_plane.kubectl(words).unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// For the message of a test that failed.
    pub fn state(&self) -> String {
        let pods = self.control_plane.kubectl(&["get", "pods", "-A", "-o=wide"]).unwrap_or_default();
        let events =
            self.control_plane.kubectl(&["get", "events", "-A", "--sort-by=.lastTimestamp"]).unwrap_or_default();
        let tail = |app: &str| {
            let selector = format!("-l=app.kubernetes.io/name={app}");
            self.control_plane.kubectl(&["logs", "-n=kube-system", &selector, "--tail=30"]).unwrap_or_default()
        };
        format!(
            "{pods}\n{events}\n--- provider\n{}\n--- announcer\n{}",
            tail("harvester-cloud-provider"),
            tail("kube-vip")
        )
    }

    /// Panics unless a workload is soon rolled out.
    pub fn assert_ready(&self, workload: &str) {
        self.kubectl(&["rollout", "status", "-n=kube-system", workload, "--timeout=20s"]);
    }

    pub async fn node_is_initialised(&self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.control_plane.client().await?);
        wait_for("the node to be initialised", PATIENCE, || async {
            let node = nodes.get("node1").await.map_err(|error| error.to_string())?;
            let spec = node.spec.unwrap_or_default();
            let tainted = spec.taints.iter().flatten().any(|taint| taint.key.ends_with("/uninitialized"));
            if tainted || spec.provider_id.is_none() { Err("it is tainted".to_owned()) } else { Ok(()) }
        })
        .await
    }

    /// A pod with a Service of type LoadBalancer, and its address once that answers.
    pub async fn expose(&self, name: &str, ipam: &str) -> Result<Ipv4Addr> {
        let service = serde_json::json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": name, "annotations": { "cloudprovider.harvesterhci.io/ipam": ipam } },
            "spec": { "type": "LoadBalancer", "selector": { "app": name }, "ports": [{ "port": 80, "targetPort": 8080 }] },
        });
        let file = self.control_plane.dir().write(&format!("{name}.json"), service.to_string())?;
        let web = self.control_plane.dir().write(&format!("{name}.yaml"), WEB.replace("NAME", name))?;
        self.kubectl(&["apply", "-f", &file.display().to_string(), "-f", &web.display().to_string()]);
        let answers = || async {
            let address = self.address_of(name).map_err(|error| format!("{error:#}"))?;
            let target = SocketAddr::from((address, 80));
            self.lan.client().http_get(target, Duration::from_secs(1)).map_err(|error| format!("{error:#}"))?;
            Ok(address)
        };
        wait_for(&format!("Service {name} to answer"), PATIENCE, answers).await
    }

    pub fn address_of(&self, service: &str) -> Result<Ipv4Addr> {
        let path = "-o=jsonpath={.status.loadBalancer.ingress[0].ip}";
        let text = self.control_plane.kubectl(&["get", "service", service, path])?;
        text.trim().parse().with_context(|| format!("Service {service} has address {text:?}"))
    }

    /// How many answer ARP for an address.
    pub fn owners(&self, address: Ipv4Addr) -> Result<usize> {
        Ok(self.lan.client().who_has(address)?.len())
    }

    /// Asks an address every 10 ms until it is stopped.
    pub fn client_of(&self, address: Ipv4Addr) -> Result<Probe> {
        let probe = self.lan.client().probe(Traffic::Http(SocketAddr::from((address, 80))))?;
        probe.wait_for_answers(20, PATIENCE)?;
        Ok(probe)
    }

    /// The running process of the pod with this label.
    pub async fn process(&self, app: &str) -> Result<Rights> {
        let pods: Api<Pod> = Api::namespaced(self.control_plane.client().await?, "kube-system");
        let selector = ListParams::default().labels(&format!("app.kubernetes.io/name={app}"));
        let pods = pods.list(&selector).await.with_context(|| format!("failed to list pods of {app}"))?;
        let id = pods
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .find_map(|pod| pod.status.as_ref()?.container_statuses.as_ref()?.first()?.container_id.clone())
            .with_context(|| format!("no container of {app} runs"))?;
        let pid = self.machine.container_pid(&id)?;
        let status = self.machine.exec(["cat", &format!("/proc/{pid}/status")])?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
            line.and_then(|rest| rest.split_whitespace().next()).unwrap_or_default().to_owned()
        };
        Ok(Rights {
            user: field("Uid"),
            capabilities: u64::from_str_radix(&field("CapEff"), 16).context("CapEff is a hexadecimal number")?,
            confined: field("Seccomp") == "2" && field("NoNewPrivs") == "1",
        })
    }

    /// What the provider said in this and in its last life.
    pub fn log_of_provider(&self) -> String {
        let log = |more: &[&str]| {
            let words =
                [&["logs", "-n=kube-system", "-l=app.kubernetes.io/name=harvester-cloud-provider", "--tail=40"], more]
                    .concat();
            self.control_plane.kubectl(&words).unwrap_or_else(|error| format!("{error:#}"))
        };
        log(&[]) + &log(&["--previous"])
    }
}
