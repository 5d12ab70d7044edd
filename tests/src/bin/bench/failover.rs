//! The owner of an address loses power: how long the client goes without answers.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use testbed::{ProxyMode, Traffic};

use crate::bench_bed::{BenchBed, pods_not_on};
use crate::creation;
use crate::figures::{Quantiles, ms};
use crate::progress::say;

/// Some power losses.
#[derive(Debug, Clone, Serialize)]
pub struct Failover {
    /// Of the gaps.
    pub gap: Option<Quantiles>,
    /// One by one.
    pub runs: Vec<PowerLoss>,
}

/// One power loss.
#[derive(Debug, Clone, Serialize)]
pub struct PowerLoss {
    /// The node that owned the address.
    pub from: String,
    /// The node that owned it afterwards.
    pub to: String,
    /// The longest time without an answer to the prober, which asks every 10 ms.
    pub gap_ms: f64,
    /// The longest time in which the prober itself was not scheduled.
    pub prober_stall_ms: f64,
    /// What of the gap the machine's stalls do not explain.
    pub outage_ms: f64,
    /// Answers that came only after a retransmission.
    pub late: u64,
}

/// `runs` power losses of the owner of one address; the node comes back each time.
pub async fn measure(bench: &BenchBed, runs: usize) -> Result<Failover> {
    let created = creation::create(bench, "failover", 1, "pool").await?;
    let address = *created.addresses.first().context("the Service got no address")?;
    let (mut losses, mut gaps) = (Vec::new(), Vec::new());
    for run in 1..=runs {
        let loss = one(bench, address).await.with_context(|| format!("run {run}"))?;
        say(format!(
            "  {run}/{runs}: {} to {}, gap {:.0} ms (prober stalled {:.0} ms)",
            loss.from, loss.to, loss.gap_ms, loss.prober_stall_ms
        ));
        gaps.push(Duration::from_secs_f64(loss.gap_ms / 1000.0));
        losses.push(loss);
    }
    Ok(Failover { gap: Quantiles::of(gaps), runs: losses })
}

async fn one(bench: &BenchBed, address: IpAddr) -> Result<PowerLoss> {
    let bed = &bench.bed;
    let owner = bench.owner(address)?;
    // The pods of the dead node would get their share of the requests, which is not measured here.
    repoint(bench, "failover-0", owner).await?;
    let probe = bed.lan.client().probe(Traffic::Http(SocketAddr::from((address, 80))))?;
    probe.wait_for_answers(100, e2e::PATIENCE)?;
    bed.power_off(owner)?;
    let begin = Instant::now();
    e2e::wait_for("another node to own the address", Duration::from_mins(1), || async {
        let owners =
            (1..=bed.nodes.len()).filter(|n| *n != owner).filter(|n| bench.owned(*n, &[address]).unwrap_or(0) > 0);
        owners.min().ok_or_else(|| format!("nobody after {:.0} s", begin.elapsed().as_secs_f64()))
    })
    .await?;
    let report = probe.stop_after(200, e2e::PATIENCE)?;
    let to = (1..=bed.nodes.len()).find(|n| *n != owner && bench.owned(*n, &[address]).unwrap_or(0) > 0);
    let to = to.context("nobody owns the address any more")?;

    // The node comes back as a rebooted one would: without the addresses of its former life, if the kernel has kept
    // them.
    let host = bed.lan.host(owner);
    if host.has_address(address)? {
        host.ip([format!("addr del {address}/32 dev eth0")])?;
    }
    host.plug_in()?;
    bed.nodes[owner - 1].start_proxy(host, ProxyMode::default())?;
    bed.nodes[owner - 1].start_heartbeat(&bed.control_plane)?;
    if bed.ccm().check().is_err() {
        bed.ccm().start()?;
    }
    bed.announcer(owner).start()?;
    bed.wait_until_announcing(owner).await?;
    bench.wait_until_quiet().await?;
    bench.wait_for_reply(address).await?;
    Ok(PowerLoss {
        from: host.name().to_owned(),
        to: bed.lan.host(to).name().to_owned(),
        gap_ms: ms(report.longest_gap),
        prober_stall_ms: ms(report.longest_stall),
        outage_ms: ms(report.outage),
        late: report.late,
    })
}

/// Endpoints on all nodes but one, and time for kube-proxy to know it.
async fn repoint(bench: &BenchBed, name: &str, node: usize) -> Result<()> {
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use kube::api::{Api, DeleteParams};
    let slices: Api<EndpointSlice> = Api::namespaced(bench.client.clone(), &bench.namespace);
    slices.delete(name, &DeleteParams::default()).await.context("failed to delete endpoints")?;
    bench.publish(&[name.to_owned()], &pods_not_on(&bench.bed, node)).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(())
}
