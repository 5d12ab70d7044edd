//! Step 2: a LAN, a guest cluster with three real nodes, and the Harvester side.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use testbed::node::{ImageStore, Machine, MachineSpec};
use testbed::{ControlPlane, DhcpOptions, HarvesterSide, Lan, ProxyMode, VmSpec, programs, wait_for};

use crate::step_log::StepLog;

/// The image of the product.
pub const IMAGE: &str = "localhost/harvester-cloud-provider:dev";
/// The workload's image.
pub const WEB_IMAGE: &str = "localhost/echo:1";
/// Name of the guest cluster.
pub const CLUSTER: &str = "demo";
/// Namespace of the virtual machines on Harvester.
pub const VMS: &str = "guests";
/// The network of the virtual machines on Harvester: our LAN.
const NETWORK: &str = "guests/lan";
/// How many nodes.
pub const NODES: u8 = 3;
/// Of the cloud controller: the chart makes two where there is more than one Node.
pub const REPLICAS: usize = 2;
/// For what may take long on a busy machine.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// Builds what nodes have to have beside the usual images.
pub type MoreImages = fn(&ImageStore) -> Result<()>;

/// Everything that runs. Field order is the order in which it goes down.
pub struct Bed {
    /// The nodes.
    pub machines: Vec<Machine>,
    /// Harvester's API and its stand-in.
    pub harvester: HarvesterSide,
    /// The guest cluster.
    pub control_plane: Arc<ControlPlane>,
    /// The wire.
    pub lan: Lan,
    /// Archives of all images: a machine that is switched on again looks for them.
    _images: ImageStore,
    /// Administrator of the guest cluster.
    pub client: Client,
    /// Size of the image of the product.
    pub image_bytes: u64,
    /// The program that is shipped.
    pub binary: PathBuf,
}

impl Bed {
    /// Builds images and brings everything up.
    pub async fn up(step_log: &mut StepLog, binary: &Path, proxy_min_sync: Duration, more: MoreImages) -> Result<Self> {
        let product = binary.to_owned();
        let image_work = tokio::task::spawn_blocking(move || build_images(&product, more));
        let lan = step_log
            .step("lan", async {
                let lan = Lan::builder()
                    .hosts(0)
                    .dhcp(DhcpOptions { range: (200, 239), ..DhcpOptions::default() })
                    .build()?;
                let text = format!(
                    "LAN {}/24 with a DHCP server (.200-.239) and a client host ({})",
                    lan.ipv4(0),
                    lan.client().ipv4()
                );
                Ok((lan, text))
            })
            .await?;
        let (images, image_bytes) = step_log
            .step("images", async {
                let (images, bytes) = image_work.await.context("the thread that builds images panicked")??;
                Ok((
                    (images, bytes),
                    format!(
                        "images built without a registry: {IMAGE} ({:.1} MB), {WEB_IMAGE}, pause",
                        megabytes(bytes)
                    ),
                ))
            })
            .await?;
        let (control_plane, harvester) = step_log
            .step("control-planes", async {
                let pair = ControlPlane::builder()
                    .controllers("*")
                    .scheduler()
                    .start_with(HarvesterSide::builder().namespace(VMS).network(NETWORK))
                    .await?;
                Ok((
                    pair,
                    "guest cluster (etcd, API server, controller manager, scheduler) and Harvester API with its \
                    stand-in"
                        .to_owned(),
                ))
            })
            .await?;
        let control_plane = Arc::new(control_plane);
        let machines = step_log.step("nodes", boot(&lan, &control_plane, &images, proxy_min_sync)).await?;
        let client = control_plane.client().await?;
        Ok(Self {
            machines,
            harvester,
            control_plane,
            lan,
            _images: images,
            client,
            image_bytes,
            binary: binary.to_owned(),
        })
    }

    /// The virtual machines behind the nodes, and a pool of addresses.
    pub fn furnish_harvester(&self) -> Result<()> {
        for machine in &self.machines {
            self.harvester.create_vm(&VmSpec {
                namespace: VMS.into(),
                name: machine.name().into(),
                cluster: CLUSTER.into(),
                network: NETWORK.into(),
                addresses: vec![machine.ipv4().to_string()],
                zone: Some("zone-1".into()),
                region: Some("region-1".into()),
                flags: Vec::new(),
            })?;
        }
        let range = format!("{}/24,start={},end={}", self.lan.ipv4(0), self.lan.ipv4(100), self.lan.ipv4(149));
        self.harvester.create_pool("demo", NETWORK, &range)
    }

    /// Runs kubectl as a user would, without blocking others.
    pub async fn kubectl(&self, words: &[&str]) -> Result<String> {
        let control_plane = self.control_plane.clone();
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let run = move || control_plane.kubectl(&words.iter().map(String::as_str).collect::<Vec<_>>());
        tokio::task::spawn_blocking(run).await.context("the thread that runs kubectl panicked")?
    }

    /// The machine of this name.
    pub fn machine(&self, name: &str) -> Result<&Machine> {
        self.machines
            .iter()
            .find(|machine| machine.name() == name)
            .with_context(|| format!("there is no machine {name:?}"))
    }

    /// The machine that answers ARP for an address, whatever anybody says; by the MAC that the client learns.
    pub fn owner_on_the_wire(&self, vip: std::net::Ipv4Addr) -> Result<Vec<String>> {
        let macs = self.lan.client().who_has(vip)?;
        let mut names = Vec::new();
        for mac in macs {
            let mut name = format!("somebody with MAC {mac}");
            for machine in self.machines.iter().filter(|machine| machine.is_on()) {
                let links = machine.host()?.namespace().ip_json("link show")?;
                if links.iter().any(|link| link["address"].as_str() == Some(&mac)) {
                    machine.name().clone_into(&mut name);
                }
            }
            names.push(name);
        }
        Ok(names)
    }

    /// All Services of the namespace `default`.
    pub fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Pods of ours, by their label.
    pub async fn our_pods(&self, app: &str) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "kube-system");
        let selector = ListParams::default().labels(&format!("app.kubernetes.io/name={app}"));
        Ok(pods.list(&selector).await.with_context(|| format!("failed to list pods of {app}"))?.items)
    }

    /// Waits until `wanted` pods of `app` in `namespace` are Ready.
    pub async fn pods_ready(&self, namespace: &str, selector: &str, wanted: usize) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let params = ListParams::default().labels(selector);
        wait_for(&format!("{wanted} Ready pods with {selector}"), PATIENCE, || async {
            let list = pods.list(&params).await.map_err(|error| error.to_string())?;
            let (ready, others): (Vec<&Pod>, Vec<&Pod>) = list.iter().partition(|pod| is_ready(pod));
            if ready.len() == wanted && others.is_empty() {
                return Ok(());
            }
            Err(format!(
                "{} ready, {}",
                ready.len(),
                others.iter().map(|pod| describe(pod)).collect::<Vec<_>>().join(", ")
            ))
        })
        .await
    }
}

async fn boot(
    lan: &Lan,
    control_plane: &ControlPlane,
    images: &ImageStore,
    proxy_min_sync: Duration,
) -> Result<(Vec<Machine>, String)> {
    let mut machines = Vec::new();
    for number in 1..=NODES {
        let spec = MachineSpec {
            name: format!("node{number}"),
            number,
            of: NODES,
            external_cloud_provider: true,
            proxy: ProxyMode::Nftables,
            proxy_min_sync,
            images: images.archives(),
        };
        machines.push(Machine::boot(spec, lan, control_plane)?);
    }
    for machine in &machines {
        machine.wait_until_ready(control_plane).await?;
    }
    let pace = proxy_min_sync.as_millis();
    let text =
        format!("{NODES} real nodes Ready: kubelet, containerd, CNI, kube-proxy (nftables, minSyncPeriod {pace} ms)");
    Ok((machines, text))
}

fn build_images(binary: &Path, more: MoreImages) -> Result<(ImageStore, u64)> {
    let images = ImageStore::new()?;
    more(&images)?;
    images.build_pause()?;
    images.build_program(WEB_IMAGE, &programs::own("testbed", "echo")?)?;
    let context = images.context("product")?;
    testbed::node::images::install(binary, &context.join("root"), "usr/bin/harvester-cloud-provider")?;
    let dockerfile = programs::workspace().join("Dockerfile");
    let dockerfile =
        std::fs::read_to_string(&dockerfile).with_context(|| format!("failed to read {}", dockerfile.display()))?;
    let archive = images.build(IMAGE, &dockerfile, &context)?;
    let bytes = std::fs::metadata(&archive).with_context(|| format!("failed to read {}", archive.display()))?.len();
    Ok((images, bytes))
}

/// Millions of bytes, for people.
#[allow(clippy::cast_precision_loss)] // sizes of files
pub fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    pod.metadata.deletion_timestamp.is_none()
        && conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Why a pod is not ready, in the words of the kubelet or the scheduler.
fn describe(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let waiting = status.container_statuses.iter().flatten().find_map(|container| {
        let state = container.state.as_ref()?;
        if let Some(waiting) = &state.waiting {
            return Some(format!("{}: {}", waiting.reason.as_deref()?, waiting.message.as_deref().unwrap_or_default()));
        }
        let ended = state.terminated.as_ref()?;
        Some(format!("ended with {}: {}", ended.exit_code, ended.message.as_deref().unwrap_or_default()))
    });
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .and_then(|c| c.message.clone());
    let why = waiting.or(unscheduled).or(status.phase).unwrap_or_default();
    format!("{} {why}", pod.name_any())
}
