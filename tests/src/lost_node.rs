//! Three real nodes with the chart installed, a web server on each of them behind one address, and what is done to a
//! node. The control plane has three machines, each with an API server and a member of etcd; the second and the third
//! lose their power together with the node of their number, if they shall.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use contract::leases::MEMBER_PREFIX;
use harvester_api::keys::cloudprovider::{CARD, SILENCE};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use testbed::helm::{RELEASE, VERSIONS, package};
use testbed::{AuditMark, Clients, ControlPlane, Helm, Request, Users, stall, wait_for};

use crate::installation::{IMAGE, Installation, VERSION};
use crate::{PATIENCE, host};

/// How many nodes.
pub const NODES: usize = 3;
/// Clients that ask at the same time.
const CLIENTS: u8 = 3;
/// Answers that end a watch: two seconds of them, so that what comes after the first second is seen.
const ENOUGH: u64 = 200;
const OURS: &str = ":harvester-cloud-provider";

/// One pod on each node, also on one that is not well.
const WEB: &str = r"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers:
      - name: web
        image: localhost/echo:1
        env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
";

/// What became of a node that lost its power.
#[derive(Debug)]
pub struct Loss {
    /// What clients saw.
    pub users: Users,
    /// Its endpoints had left before.
    pub left: Duration,
    /// What was written until then, by whom.
    pub story: String,
}

/// What became of a node that is switched on again.
#[derive(Debug)]
pub struct Back {
    /// From the power to its pods ready.
    pub ready: Duration,
    /// From then on until they got traffic.
    pub traffic: Duration,
    /// So much of that the machine stalled.
    pub stalled: Duration,
}

/// An installation with clients that ask all the time. Fields are dropped in their order.
pub struct NodeLossBed {
    /// The clients of the web servers.
    pub clients: Mutex<Clients>,
    /// The guest cluster's API.
    pub client: Client,
    /// Address of the web servers.
    pub address: Ipv4Addr,
    _helm: Helm,
    /// Nodes, control plane, Harvester, LAN.
    pub cluster: Installation,
}

impl NodeLossBed {
    /// Everything is installed and well.
    pub async fn start() -> Result<Self> {
        let cluster = Installation::with(u8::try_from(NODES)?, ControlPlane::builder().api_servers()).await?;
        let file =
            cluster.control_plane.dir().write("cloud-config", cluster.harvester.cloud_config("guests", "prod")?)?;
        let from = format!("--from-file=cloud-config={}", file.display());
        cluster.kubectl(&["create", "secret", "generic", "cloud-config", "-n=kube-system", &from]);
        let helm = Helm::of(VERSIONS[0], &cluster.control_plane)?;
        let archive = package(&helm.dir().join("charts"), "109.1.0")?.plain.display().to_string();
        let values = format!(
            "global.cattle.clusterName=prod,cloudConfig.secretName=cloud-config,image.repository={IMAGE},\
             image.tag={VERSION}"
        );
        helm.run(&["install", RELEASE, &archive, "-n=kube-system", "--wait", "--timeout=2m", "--set", &values])?;
        let client = cluster.control_plane.client().await?;
        let web = cluster.control_plane.dir().write("web.yaml", WEB)?;
        cluster.kubectl(&["apply", "-f", &web.display().to_string()]);
        cluster.nodes_are_initialised().await?;
        cluster.pods_ready("default", "app=web", NODES).await?;
        let address = expose(&cluster, "web").await?;
        let clients = Clients::start(&cluster.lan, SocketAddr::from((address, 80)), CLIENTS, 0)?;
        let bed = Self { clients: Mutex::new(clients), client, address, _helm: helm, cluster };
        bed.is_well().await?;
        Ok(bed)
    }

    /// Everything runs everywhere, and all endpoints get traffic.
    pub async fn is_well(&self) -> Result<()> {
        for machine in self.cluster.machines() {
            machine.wait_until_ready(&self.cluster.control_plane).await?;
        }
        self.cluster.pods_ready("kube-system", "app.kubernetes.io/name=kube-vip", NODES).await?;
        self.cluster.pods_ready("kube-system", "app.kubernetes.io/name=harvester-cloud-provider", 2).await?;
        self.cluster.pods_ready("default", "app=web", NODES).await?;
        self.endpoints_are(NODES).await?;
        for machine in self.cluster.machines() {
            self.clients.lock().wait_for_answers_by(machine.name(), PATIENCE)?;
        }
        // Every watcher has published that it hears all nodes.
        wait_for("nobody to be called silent", PATIENCE, || async {
            let reports = self.reports().await.map_err(|error| format!("{error:#}"))?;
            if reports.is_empty() { Ok(()) } else { Err(format!("reports of {reports:?}")) }
        })
        .await
    }

    /// The Leases of watchers that call a node silent.
    pub async fn reports(&self) -> Result<Vec<String>> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        let reports = ListParams::default().labels(&format!("{SILENCE}=true"));
        let reports = leases.list_metadata(&reports).await.context("failed to list Leases")?;
        Ok(reports.iter().map(ResourceExt::name_any).collect())
    }

    /// How many endpoints of the Service get traffic.
    pub async fn serving(&self) -> Result<usize> {
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), "default");
        let of_web = ListParams::default().labels("kubernetes.io/service-name=web");
        let slices = slices.list(&of_web).await.context("failed to list EndpointSlices")?;
        let endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
        Ok(endpoints.filter(|end| end.conditions.as_ref().is_none_or(|all| all.ready.unwrap_or(true))).count())
    }

    /// Waits until so many get traffic.
    pub async fn endpoints_are(&self, wanted: usize) -> Result<()> {
        wait_for(&format!("{wanted} endpoints that serve"), PATIENCE, || async {
            let found = self.serving().await.map_err(|error| format!("{error:#}"))?;
            if found == wanted { Ok(()) } else { Err(format!("{found}")) }
        })
        .await
    }

    /// The node that answers for the address.
    pub fn owner(&self) -> Result<usize> {
        self.cluster.owner_on_the_wire(self.address)
    }

    /// The node of the leading cloud controller.
    pub async fn leader(&self) -> Result<usize> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        let lease = leases.get(host::CCM_LEASE).await.context("failed to read the Lease")?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity).context("nobody leads")?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "kube-system");
        let pods = pods.list(&ListParams::default()).await.context("failed to list pods")?;
        let named = |pod: &&Pod| holder.starts_with(&format!("{}_", pod.name_any()));
        let by_pod = pods.iter().find(named).and_then(|pod| pod.spec.as_ref()?.node_name.clone());
        let node = by_pod.unwrap_or_else(|| holder.split('_').next().unwrap_or_default().to_owned());
        let found = self.cluster.machines().iter().position(|machine| machine.name() == node);
        found.map(|index| index + 1).with_context(|| format!("{holder} leads, who is on no node"))
    }

    /// A node loses its power, and its pods leave their Services.
    pub async fn lose(&self, n: usize) -> Result<Loss> {
        self.lost(|| self.cluster.machine(n).power_off(), async |_| Ok(())).await.map(|(loss, ())| loss)
    }

    /// The same, and something else is looked at from that moment on.
    pub async fn lose_and<T>(&self, n: usize, meanwhile: impl AsyncFnOnce(Instant) -> Result<T>) -> Result<(Loss, T)> {
        self.lost(|| self.cluster.machine(n).power_off(), meanwhile).await
    }

    /// The same, and an API server and a member of etcd are lost with it. See [`NodeLossBed::node_with_a_server`].
    pub async fn lose_with_its_server(&self, n: usize) -> Result<Loss> {
        let power_off = || {
            self.cluster.control_plane.cut_server(n)?;
            self.cluster.machine(n).power_off()
        };
        self.lost(power_off, async |_| Ok(())).await.map(|(loss, ())| loss)
    }

    /// A node that may be lost with its API server; the first of owner, leading member of etcd and leader that is one.
    pub async fn node_with_a_server(&self) -> Result<usize> {
        let wanted = [self.owner()?, self.cluster.control_plane.etcd_leader()?, self.leader().await?];
        Ok(wanted.into_iter().find(|n| *n > 1).unwrap_or(NODES))
    }

    async fn lost<T>(
        &self,
        power_off: impl FnOnce() -> Result<()>,
        meanwhile: impl AsyncFnOnce(Instant) -> Result<T>,
    ) -> Result<(Loss, T)> {
        stall::begin();
        self.clients.lock().reopen()?;
        let mark = self.cluster.control_plane.audit().mark();
        let (at, began) = (Instant::now(), Timestamp::now());
        power_off()?;
        let left = async {
            self.endpoints_are(NODES - 1).await.with_context(|| self.verdicts())?;
            Ok(at.elapsed())
        };
        let (left, seen) = tokio::try_join!(left, meanwhile(at))?;
        // This blocks the thread until the answers have come.
        let users = self.clients.lock().since(at, ENOUGH)?;
        Ok((Loss { users, left, story: self.story(mark, began)? }, seen))
    }

    /// It is switched on again, and its API server if that was lost too: its pods get traffic soon after they are
    /// ready, and no address moves.
    pub async fn give_back(&self, n: usize) -> Result<Back> {
        let owner = self.owner()?;
        let machine = self.cluster.machine(n);
        self.cluster.control_plane.mend_servers().await?;
        let begun = Instant::now();
        machine.power_on()?;
        machine.wait_until_ready(&self.cluster.control_plane).await?;
        self.cluster.pods_ready("default", "app=web", NODES).await.with_context(|| self.verdicts())?;
        let ready = Instant::now();
        self.clients.lock().wait_for_answers_by(machine.name(), PATIENCE)?;
        let traffic = ready.elapsed();
        let stalled = stall::since(ready).within(ready, Instant::now(), &[]);
        self.is_well().await?;
        ensure!(self.owner()? == owner, "the address has moved from node{owner}");
        Ok(Back { ready: ready - begun, traffic, stalled })
    }

    /// What the cloud controllers have written about pods and endpoints.
    pub fn writes_since(&self, mark: AuditMark) -> Result<Vec<String>> {
        let writes = self.cluster.control_plane.audit().writes_by(mark, OURS)?;
        let of_pods = writes.into_iter().filter(|write| ["pods", "endpointslices"].contains(&write.resource.as_str()));
        Ok(of_pods.map(|write| format!("{} {}", write.verb, write.uri)).collect())
    }

    /// Who has written Leases, pods and endpoints since then, and how long after `began` each request arrived.
    pub fn story(&self, mark: AuditMark, began: Timestamp) -> Result<String> {
        let requests = self.cluster.control_plane.audit().since(mark)?;
        let told = ["leases", "pods/status", "endpointslices"];
        let writes = requests.iter().filter(|write| write.is_write() && told.contains(&write.resource.as_str()));
        let writes = writes.filter(|write| !write.user.starts_with("system:node:"));
        let line = |write: &Request| {
            let at = write.at.map_or(0, |at| at.duration_since(began).as_millis());
            let Request { user, verb, uri, code, source, .. } = write;
            format!("{at} ms: {user} {source:?} {verb} {uri}: {code}")
        };
        Ok(writes.map(line).collect::<Vec<_>>().join("\n"))
    }

    /// Both other nodes say that this one is silent, which it is not.
    pub async fn accuse(&self, n: usize) -> Result<()> {
        let accused = self.cluster.machine(n).name();
        let nodes: Api<Node> = Api::all(self.client.clone());
        let uid = nodes.get(accused).await.context("failed to read the Node")?.uid();
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        for watcher in self.cluster.machines().iter().filter(|machine| machine.name() != accused) {
            let name = format!("{MEMBER_PREFIX}{}", watcher.name());
            let lease = leases.get(&name).await.with_context(|| format!("failed to read Lease {name}"))?;
            let card = lease.annotations().get(CARD).context("it has no card")?;
            let mut card: Value = serde_json::from_str(card).context("a card is JSON")?;
            card["silent"][accused] = json!({"uid": uid, "ms": 200, "unanswered": ["arp", "tcp"], "gateway": true});
            let patch = json!({"metadata": {"annotations": {CARD: card.to_string()}, "labels": {SILENCE: "true"}}});
            leases.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.context("failed to accuse")?;
        }
        Ok(())
    }

    /// For the message of a test that failed.
    pub fn verdicts(&self) -> String {
        let get = |words: &[&str]| self.cluster.control_plane.kubectl(words).unwrap_or_default();
        format!(
            "{}\n{}\n{}",
            get(&["get", "leases", "-n=kube-system", "-o=yaml", &format!("-l={SILENCE}=true")]),
            get(&["get", "events", "-A", "--field-selector=involvedObject.kind=Node"]),
            self.cluster.state()
        )
    }

    /// A node that is none of these.
    pub fn other_than(taken: &BTreeSet<usize>) -> Option<usize> {
        (1..=NODES).find(|n| !taken.contains(n))
    }
}

/// A Service for the web servers; its address once that answers.
pub async fn expose(cluster: &Installation, name: &str) -> Result<Ipv4Addr> {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    });
    cluster.publish(name, &service).await
}
