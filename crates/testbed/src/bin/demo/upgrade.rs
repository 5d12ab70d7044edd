//! An upgrade of a Harvester host, replayed in seconds, and the question to `doctor` what is wrong.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::Api;
use parking_lot::Mutex;
use testbed::{Traffic, wait_for};

use crate::bed::{Bed, NODES, PATIENCE, VMS};
use crate::services::Vips;
use crate::step_log::{self, StepLog};

/// What the host does, in minutes; the demo plays it sixty times as fast.
const REPLAY: &str = include_str!("host-upgrade.yaml");
/// What the Node whose machine moves shows meanwhile.
const SHOWN: [&str; 3] = ["HostPreDraining", "VMLiveMigrating", "HostUpToDate"];
/// The Node whose machine moves.
const MOVES: &str = "node3";
/// The Node that somebody shuts out of announcing, for `doctor` to find.
const SHUT_OUT: &str = "node1";
/// What shuts it out.
const LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// The host of a machine is emptied and its machine moves away.
pub async fn host_upgrade(step_log: &mut StepLog, bed: &Bed, vips: Vips) -> Result<()> {
    step_log::command("harvester-sim replay host-upgrade.yaml --speed 60    # a host is emptied for its upgrade");
    step_log
        .step("host-upgrade", async {
            let file = bed.control_plane.dir().write("host-upgrade.yaml", REPLAY)?;
            let probe = bed.lan.client().probe(Traffic::Http(SocketAddr::from((vips.pool, 80))))?;
            probe.wait_for_answers(20, PATIENCE)?;
            let words = ["replay", &file.display().to_string(), "--namespace", VMS, "--speed", "60"];
            // The replay waits between its steps; meanwhile the Node is looked at.
            let shown = tokio::task::block_in_place(|| {
                let played = Mutex::new(None);
                let shown = std::thread::scope(|scope| {
                    scope.spawn(|| *played.lock() = Some(bed.harvester.sim(words)));
                    tokio::runtime::Handle::current().block_on(show(bed))
                });
                played.into_inner().context("the replay has not ended")??;
                shown
            })?;
            let report = probe.stop_after(50, PATIENCE)?;
            let nodes = Api::<Node>::all(bed.client.clone()).list_metadata(&kube::api::ListParams::default()).await?;
            ensure!(nodes.items.len() == usize::from(NODES), "Nodes were deleted: {} are left", nodes.items.len());
            ensure!(report.lost == 0, "replies were lost: {report}");
            let text = format!(
                "{MOVES} showed {shown}; no Node was deleted, and {} requests to {} had {} answers",
                report.sent,
                vips.pool,
                report.sent - report.lost
            );
            Ok(((), text))
        })
        .await
}

/// Waits for each of [`SHOWN`] in turn.
async fn show(bed: &Bed) -> Result<String> {
    let nodes: Api<Node> = Api::all(bed.client.clone());
    for wanted in SHOWN {
        wait_for(&format!("{MOVES} to show {wanted}"), PATIENCE, || async {
            let node = nodes.get(MOVES).await.map_err(|error| error.to_string())?;
            let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
            let found = conditions.iter().find(|one| one.type_ == "HarvesterHostMaintenance");
            let reason = found.and_then(|found| found.reason.clone()).unwrap_or_default();
            if reason == wanted { Ok(()) } else { Err(format!("{reason:?}")) }
        })
        .await?;
    }
    Ok(SHOWN.join(", "))
}

/// `doctor` on a fault that somebody planted, and after its remedy was typed.
pub async fn doctor(step_log: &mut StepLog, bed: &Bed) -> Result<()> {
    step_log::command(&format!("kubectl label node {SHUT_OUT} {LABEL}=true"));
    bed.kubectl(&["label", "node", SHUT_OUT, &format!("{LABEL}=true")]).await?;
    step_log::command("harvester-cloud-provider doctor");
    step_log
        .step("doctor-finds", async {
            let finding = wait_for("doctor to name the fault", PATIENCE, || async {
                let said = examine(bed).map_err(|error| format!("{error:#}"))?;
                let found = said.lines().find(|line| line.starts_with("WARNING") && line.contains(SHUT_OUT));
                found.map(str::to_owned).ok_or(said)
            })
            .await?;
            Ok(((), finding))
        })
        .await?;
    step_log::command(&format!("kubectl label node {SHUT_OUT} {LABEL}-"));
    bed.kubectl(&["label", "node", SHUT_OUT, &format!("{LABEL}-")]).await?;
    step_log::command("harvester-cloud-provider doctor");
    step_log
        .step("doctor-is-content", async {
            wait_for("doctor to find nothing", PATIENCE, || async {
                let said = examine(bed).map_err(|error| format!("{error:#}"))?;
                if said.contains("nothing is wrong\nstatus 0") { Ok(()) } else { Err(said) }
            })
            .await?;
            Ok(((), "nothing is wrong".to_owned()))
        })
        .await
}

/// What it says, and its exit status in the last line.
fn examine(bed: &Bed) -> Result<String> {
    let kubeconfig = bed.control_plane.admin()?.inside;
    let script = format!("{} doctor --kubeconfig {} 2>&1; echo status $?", bed.binary.display(), kubeconfig.display());
    let node = bed.machine("node1")?;
    node.host()?.exec(["sh", "-c", &script])
}
