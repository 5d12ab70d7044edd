//! Step 4, second half: what breaks, and what a client notices.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use testbed::wait_for;

use crate::bed::{Bed, CLUSTER, NODES, PATIENCE, REPLICAS};
use crate::clients::{only_owner, probe, stopped};
use crate::report::{Figures, Outage};
use crate::services::Vips;
use crate::step_log::{self, StepLog};

/// Kills processes; the node that owns the pool's address.
pub async fn fail(step_log: &mut StepLog, bed: &Bed, vips: Vips, figures: &mut Figures) -> Result<String> {
    let owner = step_log
        .step("owner", async {
            let owner = only_owner(bed, vips.pool)?;
            let dhcp = only_owner(bed, vips.dhcp)?;
            Ok((
                owner.clone(),
                format!("{} is answered by {owner}, {} by {dhcp}; by nobody else", vips.pool, vips.dhcp),
            ))
        })
        .await?;

    step_log::command("kill <cloud controller manager>");
    figures.ccm_ready_ms = Some(step_log.step("ccm-restarted", restart_ccm(bed)).await?);

    step_log::command(&format!("kill -9 <announcer on {owner}>"));
    figures.announcer_killed = Some(step_log.step("announcer-killed", kill_announcer(bed, vips, &owner)).await?);

    Ok(owner)
}

/// How long a new process takes until it is ready, and whether it leaves everything as it is.
async fn restart_ccm(bed: &Bed) -> Result<(u64, String)> {
    let app = "harvester-cloud-provider";
    let node =
        bed.our_pods(app).await?.iter().find_map(|pod| node_of(pod).map(str::to_owned)).context("no pod of the CCM")?;
    let machine = bed.machine(&node)?;
    let before = container_on(bed, app, &node).await?;
    let guest = bed.control_plane.audit().mark();
    let host = bed.harvester.audit().mark();
    let url = format!("https://{}:10258/readyz", machine.ipv4());
    let ready = || bed.lan.client().exec(["curl", "-ksf", "--noproxy", "*", "-m", "1", &url]).is_ok();
    machine.signal_container(&before, "TERM")?;
    wait_for("the CCM to end", PATIENCE, || async { if ready() { Err("it is ready".to_owned()) } else { Ok(()) } })
        .await?;
    // Asked all the time, not 25 times a second: this is what is measured.
    let deadline = std::time::Instant::now() + PATIENCE;
    while !ready() {
        ensure!(
            std::time::Instant::now() < deadline,
            "the CCM on {node} was not ready again after {} s",
            PATIENCE.as_secs()
        );
    }
    let ready_at = Duration::try_from(rustix::time::clock_gettime(rustix::time::ClockId::Boottime))
        .ok()
        .context("the clock runs before the boot")?;
    let after = wait_for("the container of the CCM to be reported", PATIENCE, || async {
        let now = container_on(bed, app, &node).await.map_err(|error| format!("{error:#}"))?;
        if now == before { Err("the old container".to_owned()) } else { Ok(now) }
    })
    .await?;
    let started = machine.started_after_boot(machine.container_pid(&after)?)?;
    bed.pods_ready("kube-system", "app.kubernetes.io/name=harvester-cloud-provider", REPLICAS).await?;
    // It leads after at most one retry period, and has then looked at everything.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let writes = [
        bed.control_plane.audit().writes_by(guest, ":harvester-cloud-provider")?,
        bed.harvester.audit().writes_by(host, &format!(":{CLUSTER}"))?,
    ]
    .concat();
    ensure!(writes.is_empty(), "a restart of the CCM should write nothing, but sent {writes:?}");
    let ready_ms = crate::services::millis(ready_at.saturating_sub(started));
    Ok((ready_ms, format!("CCM on {node} restarted: ready {ready_ms} ms after its start, no write to either API")))
}

async fn kill_announcer(bed: &Bed, vips: Vips, owner: &str) -> Result<(Outage, String)> {
    let before = container_on(bed, "kube-vip", owner).await?;
    let probes = [probe(bed, vips.pool)?, probe(bed, vips.dhcp)?];
    for probe in &probes {
        probe.wait_for_answers(20, PATIENCE)?;
    }
    bed.machine(owner)?.signal_container(&before, "KILL")?;
    wait_for("the announcer to run again", PATIENCE, || async {
        let now = container_on(bed, "kube-vip", owner).await.map_err(|error| format!("{error:#}"))?;
        if now == before { Err("the old container".to_owned()) } else { Ok(()) }
    })
    .await?;
    bed.pods_ready("kube-system", "app.kubernetes.io/name=kube-vip", NODES.into()).await?;
    // What a new process might do wrong with addresses that it finds, it does in its first seconds.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let [pool, dhcp] = stopped(probes)?;
    let after = only_owner(bed, vips.pool)?;
    ensure!(pool.lost + dhcp.lost == 0, "replies were lost; pool: {pool}; DHCP: {dhcp}");
    let text = format!(
        "announcer on {owner} killed and back: {} requests to {} and {} to {}, none lost; owner: {after}",
        pool.sent, vips.pool, dhcp.sent, vips.dhcp
    );
    Ok((Outage::new(owner, &after, &pool), text))
}

/// Id of the running container of `app` on a node.
async fn container_on(bed: &Bed, app: &str, node: &str) -> Result<String> {
    let pods = bed.our_pods(app).await?;
    let pod = pods.iter().find(|pod| node_of(pod) == Some(node)).with_context(|| format!("no {app} on {node}"))?;
    container_id(pod).with_context(|| format!("{app} on {node} does not run"))
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// Id of the first container of a pod, if it runs.
pub fn container_id(pod: &Pod) -> Option<String> {
    let container = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    container.state.as_ref()?.running.as_ref()?;
    container.container_id.clone()
}
