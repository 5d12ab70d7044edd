//! Step 3: the packaged chart and the cloud-config, as a user installs them.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use testbed::helm::{RELEASE, VERSIONS};
use testbed::{Helm, wait_for};

use crate::bed::{Bed, CLUSTER, IMAGE, NODES, PATIENCE, REPLICAS, VMS};
use crate::report::Figures;
use crate::step_log::{self, StepLog};

/// The taint that the provider takes away.
const TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// Installs everything and waits until it works.
pub async fn install(step_log: &mut StepLog, bed: &Bed, figures: &mut Figures) -> Result<()> {
    step_log
        .step("harvester", async {
            bed.furnish_harvester()?;
            Ok(((), format!("Harvester: {NODES} virtual machines in namespace {VMS}, pool of addresses .100-.149")))
        })
        .await?;
    step_log.step("nodes-wait", nodes_are_tainted(bed)).await?;
    step_log::command("kubectl create secret generic cloud-config -n kube-system --from-file=cloud-config");
    step_log::command(&format!(
        "helm install {RELEASE} {RELEASE}-*.tgz -n kube-system --wait --set {}",
        values().join(",")
    ));
    let begin = Instant::now();
    step_log
        .step("install", async {
            let cloud_config = bed.harvester.cloud_config(VMS, CLUSTER)?;
            let file = bed.control_plane.dir().write("cloud-config", cloud_config)?;
            bed.kubectl(&[
                "create",
                "secret",
                "generic",
                "cloud-config",
                "-n",
                "kube-system",
                &format!("--from-file=cloud-config={}", file.display()),
            ])
            .await?;
            let helm = Helm::of(VERSIONS[0], &bed.control_plane)?;
            tokio::task::spawn_blocking(move || install_chart(&helm))
                .await
                .context("the thread that runs helm panicked")??;
            bed.pods_ready("kube-system", "app.kubernetes.io/name=harvester-cloud-provider", REPLICAS).await?;
            bed.pods_ready("kube-system", "app.kubernetes.io/name=kube-vip", NODES.into()).await?;
            Ok(((), "the chart's Deployment (cloud controller manager) and DaemonSet (announcer) are ready".to_owned()))
        })
        .await?;
    figures.install_ms = u64::try_from(begin.elapsed().as_millis()).ok();
    step_log.step("nodes-initialised", nodes_are_initialised(bed)).await
}

/// The nodes here have no roles, so the announcer's preference for control plane nodes has to go.
fn values() -> [String; 5] {
    let (repository, tag) = IMAGE.rsplit_once(':').expect("it is written with a tag");
    [
        format!("global.cattle.clusterName={CLUSTER}"),
        "cloudConfig.secretName=cloud-config".to_owned(),
        "kube-vip.affinity=null".to_owned(),
        format!("image.repository={repository}"),
        format!("image.tag={tag}"),
    ]
}

fn install_chart(helm: &Helm) -> Result<()> {
    let archive = testbed::helm::package(&helm.dir().join("charts"), "109.1.0")?.plain.display().to_string();
    helm.run(&[
        "install",
        RELEASE,
        &archive,
        "--namespace=kube-system",
        "--wait",
        "--timeout=2m",
        "--set",
        &values().join(","),
    ])?;
    Ok(())
}

async fn nodes_are_tainted(bed: &Bed) -> Result<((), String)> {
    let nodes =
        Api::<Node>::all(bed.client.clone()).list(&ListParams::default()).await.context("failed to list Nodes")?;
    for node in &nodes {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        ensure!(
            taints.iter().any(|taint| taint.key == TAINT),
            "{} has no taint {TAINT} although no provider runs",
            node.name_any()
        );
    }
    Ok(((), format!("{} nodes wait for a cloud provider (taint {TAINT})", nodes.items.len())))
}

async fn nodes_are_initialised(bed: &Bed) -> Result<((), String)> {
    let api = Api::<Node>::all(bed.client.clone());
    let said = wait_for("nodes to be initialised", PATIENCE, || async {
        let nodes = api.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let said: Vec<String> = nodes
            .iter()
            .map(|node| what_is_missing(node).map_err(|missing| format!("{}: {missing}", node.name_any())))
            .collect::<Result<_, _>>()?;
        Ok(said)
    })
    .await?;
    Ok(((), format!("nodes initialised: taint gone, {}", said.join("; "))))
}

/// `Err` says what a node still lacks, `Ok` what it got.
fn what_is_missing(node: &Node) -> Result<String, String> {
    let spec = node.spec.clone().unwrap_or_default();
    if spec.taints.iter().flatten().any(|taint| taint.key == TAINT) {
        return Err("it has its taint".into());
    }
    let provider = spec.provider_id.filter(|id| id.starts_with("harvester://")).ok_or("no provider id")?;
    let addresses = node.status.clone().unwrap_or_default().addresses.unwrap_or_default();
    let internal = addresses.iter().find(|address| address.type_ == "InternalIP").ok_or("no InternalIP")?;
    let zone = node.labels().get("topology.kubernetes.io/zone").ok_or("no zone")?;
    Ok(format!("{} {provider} {} {zone}", node.name_any(), internal.address))
}
