//! A guest cluster of real nodes (kubelet, containerd) that waits for a cloud provider, and what is installed in it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use harvester_api::keys::cloudprovider::IPAM;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use testbed::node::{ImageStore, Machine, MachineSpec};
use testbed::{
    ControlPlane, ControlPlaneBuilder, DhcpOptions, HarvesterSide, Lan, Probe, ProxyMode, Traffic, VmSpec, programs,
    wait_for,
};

use crate::machines::is_initialized;
use crate::product;

/// The image of the product on every node, tagged with its [`VERSION`].
pub const IMAGE: &str = "localhost/harvester-cloud-provider";
/// Of the product.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Where RKE2 has the cloud-config of a cluster that Rancher made.
pub const RKE2_FILE: &str = "/var/lib/rancher/rke2/etc/config-files/cloud-provider-config";
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane=true";
const PATIENCE: Duration = Duration::from_mins(1);
/// Two Services never share a pod here: connections by way of two addresses would meet in its socket table with the
/// same source port and other timestamps, and it drops such a first packet (PAWS) while the older one is in TIME_WAIT.
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

/// An installation. Fields are dropped in their order.
#[derive(Debug)]
pub struct Installation {
    machines: Vec<Machine>,
    /// Harvester.
    pub harvester: HarvesterSide,
    /// The guest cluster's control plane.
    pub control_plane: ControlPlane,
    /// The LAN with its client and DHCP server.
    pub lan: Lan,
    _images: ImageStore,
}

/// What a container's process may do.
#[derive(Debug)]
pub struct Rights {
    /// Its user's number.
    pub user: String,
    /// Effective capabilities.
    pub capabilities: u64,
    /// Whether a seccomp profile restricts it, and it cannot gain new privileges.
    pub confined: bool,
}

impl Installation {
    /// Starts nodes with their virtual machines, a control plane and a pool, without the product.
    pub async fn start(nodes: u8) -> Result<Self> {
        Self::with(nodes, ControlPlane::builder()).await
    }

    /// The same with this control plane.
    pub async fn with(nodes: u8, control_plane: ControlPlaneBuilder) -> Result<Self> {
        let images = ImageStore::new()?;
        images.build_pause()?;
        images.build_program("localhost/echo:1", &programs::own("testbed", "echo")?)?;
        // Newcomers know nginx as a web server. This image has its name and its port.
        let nginx = "FROM scratch\nCOPY root/ /\nENTRYPOINT [\"/usr/bin/echo\", \"80\"]\n";
        images.build("docker.io/library/nginx:1", nginx, &images.context("echo")?)?;
        images.build_program(&format!("{IMAGE}:{VERSION}"), &product::binary()?)?;
        let lan = Lan::builder().hosts(0).dhcp(DhcpOptions { range: (200, 239), ..DhcpOptions::default() }).build()?;
        let side = HarvesterSide::builder().namespace("guests").network("guests/lan");
        let (control_plane, harvester) = control_plane.controllers("*").scheduler().start_with(side).await?;
        let mut machines = Vec::new();
        for number in 1..=nodes {
            let spec = MachineSpec {
                name: format!("node{number}"),
                number,
                of: nodes,
                external_cloud_provider: true,
                proxy: ProxyMode::Nftables,
                proxy_min_sync: Duration::from_millis(100),
                images: images.archives(),
            };
            machines.push(Machine::boot(spec, &lan, &control_plane)?);
        }
        for machine in &machines {
            machine.wait_until_ready(&control_plane).await?;
            harvester.create_vm(&VmSpec {
                namespace: "guests".into(),
                name: machine.name().into(),
                cluster: "prod".into(),
                network: "guests/lan".into(),
                addresses: vec![machine.ipv4().to_string()],
                zone: None,
                region: None,
                flags: Vec::new(),
            })?;
            control_plane.kubectl(&["label", "node", machine.name(), CONTROL_PLANE])?;
        }
        let range = format!("{}/24,start={},end={}", lan.ipv4(0), lan.ipv4(100), lan.ipv4(149));
        harvester.create_pool("edge", "guests/lan", &range)?;
        Ok(Self { machines, harvester, control_plane, lan, _images: images })
    }

    /// The virtual machine behind a node, counted from 1.
    pub fn machine(&self, n: usize) -> &Machine {
        &self.machines[n - 1]
    }

    /// All of them.
    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// Waits for so many running pods of ours, all of them ready.
    pub async fn pods_ready(&self, namespace: &str, selector: &str, wanted: usize) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.control_plane.client().await?, namespace);
        let params = ListParams::default().labels(selector);
        let is_ready = |pod: &Pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
            pod.metadata.deletion_timestamp.is_none()
                && conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        wait_for(&format!("{wanted} ready pods with {selector}"), PATIENCE * 2, || async {
            let found = pods.list(&params).await.map_err(|error| error.to_string())?.items;
            let ready = found.iter().filter(|pod| is_ready(pod)).count();
            if ready == wanted && found.len() == wanted {
                return Ok(found);
            }
            Err(format!("{ready} of {} are ready", found.len()))
        })
        .await
    }

    /// The node (counted from 1) whose MAC answers ARP for an address. It is an error if several nodes answer, or none.
    pub fn owner_on_the_wire(&self, address: Ipv4Addr) -> Result<usize> {
        let macs = self.lan.client().who_has(address)?;
        let [mac] = &macs[..] else { bail!("{address} should be answered by one node, but is by {macs:?}") };
        for (index, machine) in self.machines.iter().enumerate().filter(|(_, machine)| machine.is_on()) {
            let links = machine.host()?.namespace().ip_json("link show")?;
            if links.iter().any(|link| link["address"].as_str() == Some(mac)) {
                return Ok(index + 1);
            }
        }
        bail!("{address} is answered by somebody with MAC {mac}")
    }

    /// The cloud-config that Rancher makes, on every node where RKE2 writes it: mode 0600, owned by root. The file,
    /// outside.
    pub fn provision(&self) -> Result<PathBuf> {
        let file = self.control_plane.dir().write("cloud-config", self.harvester.cloud_config("guests", "prod")?)?;
        self.place(
            &std::fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?,
            RKE2_FILE,
        )?;
        Ok(file)
    }

    /// A file on every node that only root can read.
    pub fn place(&self, content: &str, path: &str) -> Result<()> {
        let source = self.control_plane.dir().write("placed", content)?;
        let install = format!("install -D -m 0600 {} {path}", source.display());
        for machine in &self.machines {
            machine.exec(["sh", "-c", &install])?;
        }
        Ok(())
    }

    /// Taints the node so that ordinary pods do not run on it. Some installers give the taint a value.
    pub fn taint(&self, node: &str) {
        self.kubectl(&["taint", "node", node, &format!("{CONTROL_PLANE}:NoSchedule")]);
    }

    /// Address of the first node.
    pub fn node(&self) -> Ipv4Addr {
        self.machines[0].ipv4()
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

    /// Waits until the provider has found every node's machine.
    pub async fn nodes_are_initialised(&self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.control_plane.client().await?);
        wait_for("the nodes to be initialised", PATIENCE, || async {
            let nodes = nodes.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            match nodes.iter().find(|node| !is_initialized(node)) {
                Some(node) => Err(format!("{} is tainted", node.name_any())),
                None => Ok(()),
            }
        })
        .await
    }

    /// A pod with a Service of type LoadBalancer, and its address once that answers.
    pub async fn expose(&self, name: &str, ipam: &str) -> Result<Ipv4Addr> {
        let web = self.control_plane.dir().write(&format!("{name}.yaml"), WEB.replace("NAME", name))?;
        self.control_plane.kubectl(&["apply", "-f", &web.display().to_string()])?;
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "annotations": {IPAM: ipam}},
            "spec": {"type": "LoadBalancer", "selector": {"app": name}, "ports": [
                {"name": "http", "port": 80, "targetPort": 8080},
                {"name": "datagrams", "protocol": "UDP", "port": 80, "targetPort": 8080},
            ]},
        });
        self.publish(name, &service).await
    }

    /// Makes a Service of type LoadBalancer; its address once that answers at port 80.
    pub async fn publish(&self, name: &str, service: &Value) -> Result<Ipv4Addr> {
        let file = self.control_plane.dir().write(&format!("{name}.json"), service.to_string())?;
        self.control_plane.kubectl(&["apply", "-f", &file.display().to_string()])?;
        wait_for(&format!("Service {name} to answer"), PATIENCE, || async {
            let address = self.address_of(name).map_err(|error| format!("{error:#}"))?;
            let reply = self.lan.client().http_get(SocketAddr::from((address, 80)), Duration::from_millis(500));
            reply.map_err(|error| format!("{error:#}"))?;
            Ok(address)
        })
        .await
    }

    /// The address in the status of a Service.
    pub fn address_of(&self, service: &str) -> Result<Ipv4Addr> {
        let path = "-o=jsonpath={.status.loadBalancer.ingress[0].ip}";
        let text = self.control_plane.kubectl(&["get", "service", service, path])?;
        text.trim().parse().with_context(|| format!("Service {service} has address {text:?}"))
    }

    /// How many answer ARP for an address.
    pub fn owners(&self, address: Ipv4Addr) -> Result<usize> {
        Ok(self.lan.client().who_has(address)?.len())
    }

    /// Asks an address every 10 ms until it is stopped, each time by a connection of its own.
    pub fn client_of(&self, address: Ipv4Addr) -> Result<Probe> {
        self.probe(Traffic::Http(SocketAddr::from((address, 80))))
    }

    /// The same by datagrams: nothing of TCP repeats what was lost.
    pub fn datagrams_to(&self, address: Ipv4Addr) -> Result<Probe> {
        self.probe(Traffic::Udp(SocketAddr::from((address, 80))))
    }

    fn probe(&self, traffic: Traffic) -> Result<Probe> {
        let probe = self.lan.client().probe(traffic)?;
        probe.wait_for_answers(20, PATIENCE)?;
        Ok(probe)
    }

    /// The running process of the pod with this label, on the first node.
    pub async fn process(&self, app: &str) -> Result<Rights> {
        let pods: Api<Pod> = Api::namespaced(self.control_plane.client().await?, "kube-system");
        let selector = ListParams::default().labels(&format!("app.kubernetes.io/name={app}"));
        let pods = pods.list(&selector).await.with_context(|| format!("failed to list pods of {app}"))?;
        let id = pods
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .filter(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(self.machines[0].name()))
            .find_map(|pod| pod.status.as_ref()?.container_statuses.as_ref()?.first()?.container_id.clone())
            .with_context(|| format!("no container of {app} runs"))?;
        let pid = self.machines[0].container_pid(&id)?;
        let status = self.machines[0].exec(["cat", &format!("/proc/{pid}/status")])?;
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

    /// The log of the provider's current and previous container.
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
