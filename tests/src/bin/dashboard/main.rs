//! `dashboard`: three minutes in the life of a cluster of three nodes, read by a real Prometheus, and what the chart's
//! dashboard makes of it, as JSON for `dev/dashboard.py`. `make dashboard-png` runs both.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::Parser;
use e2e::prometheus::Prometheus;
use e2e::{Bed, Case, Exposed, service};
use serde_json::{Value, json};

#[derive(Debug, Parser)]
#[command(
    name = "dashboard",
    about = "Lets a cluster live for some minutes and writes what the dashboard shows of it. Needs root."
)]
struct Cli {
    /// Where the data goes
    #[arg(long, value_name = "FILE", default_value = "target/dashboard/data.json")]
    output: PathBuf,
}

/// What Grafana would put into rates at this time range and rate of reading.
const RATE_INTERVAL: &str = "15s";
const POINTS: u32 = 160;

#[tokio::main]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    if e2e::skip() {
        bail!("network namespaces need root");
    }
    let bed = Bed::builder().nodes(3).start().await?;
    let nodes: Vec<Ipv4Addr> = bed.lan.hosts().iter().map(testbed::Host::ipv4).collect();
    let prometheus = Prometheus::start(&bed.lan, &bed.control_plane, &nodes[2..], &nodes, RATE_INTERVAL)?;
    prometheus.wait_until_it_reads_all().await?;
    let start = seconds();
    live(&bed).await?;
    let data = read(&prometheus, start, seconds())?;
    if let Some(parent) = cli.output.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("failed to make {}", parent.display()))?;
    }
    std::fs::write(&cli.output, data.to_string())
        .with_context(|| format!("failed to write {}", cli.output.display()))?;
    println!("{}", cli.output.display());
    Ok(())
}

fn seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Services come and go, machines fail, Harvester is away for a while.
async fn live(bed: &Bed) -> Result<()> {
    let begin = Instant::now();
    let case = bed.case("dashboard").await?;
    let mut pooled = Vec::new();
    for n in 0..8 {
        pooled.push(case.expose(service(&format!("web{n}")).tcp(80)).await?);
        wait(Duration::from_secs(3)).await;
    }
    let mut leased = Vec::new();
    for n in 0..3 {
        leased.push(case.expose(service(&format!("lease{n}")).ipam("dhcp").tcp(80)).await?);
        wait(Duration::from_secs(2)).await;
    }
    for service in pooled.iter().chain(&leased) {
        service.address().await?;
    }
    tell(begin, "eleven Services have addresses");

    burst(&case, 12, "burst").await?;
    wait(Duration::from_secs(15)).await;
    tell(begin, "a burst of twelve more");

    let victim = owner(bed, &pooled).await?;
    bed.power_off(victim)?;
    tell(begin, &format!("node{victim} lost power"));
    wait(Duration::from_secs(25)).await;
    bed.power_on(victim)?;
    wait(Duration::from_secs(15)).await;

    bed.harvester.nic().cut()?;
    tell(begin, "Harvester is away");
    let waiting = burst(&case, 3, "waits").await?;
    wait(Duration::from_secs(25)).await;
    bed.harvester.nic().plug()?;
    for service in &waiting {
        service.address().await?;
    }
    tell(begin, "Harvester is back");

    for n in 1..=2 {
        bed.announcer(n).restart()?;
        wait(Duration::from_secs(10)).await;
    }
    for service in pooled.iter().take(4) {
        service.delete().await?;
        wait(Duration::from_secs(3)).await;
    }
    wait(Duration::from_secs(15)).await;
    tell(begin, "done");
    Ok(())
}

async fn burst<'a>(case: &'a Case<'a>, count: usize, name: &str) -> Result<Vec<Exposed<'a>>> {
    let mut services = Vec::new();
    for n in 0..count {
        services.push(case.expose(service(&format!("{name}{n}")).tcp(80)).await?);
    }
    Ok(services)
}

/// A node with an address, but not the one on which the provider runs.
async fn owner(bed: &Bed, services: &[Exposed<'_>]) -> Result<usize> {
    for service in services {
        let address: IpAddr = service.address().await?;
        if let Some(owner) = bed.owner_of(address)?.filter(|owner| *owner != bed.nodes.len()) {
            return Ok(owner);
        }
    }
    bail!("the provider's node has all addresses")
}

/// The story needs time to pass, so that there are lines to see.
async fn wait(time: Duration) {
    tokio::time::sleep(time).await;
}

fn tell(begin: Instant, what: &str) {
    eprintln!("{:>6.1} s {what}", begin.elapsed().as_secs_f64());
}

/// Every query of the dashboard over the whole time.
fn read(prometheus: &Prometheus<'_>, start: f64, end: f64) -> Result<Value> {
    let step = ((end - start) / f64::from(POINTS)).max(0.5);
    let mut queries = Vec::new();
    for query in &prometheus.queries {
        queries.push(json!({
            "panel": query.panel,
            "legend": query.legend,
            "now": prometheus.query(&query.expression)?,
            "range": prometheus.query_range(&query.expression, start, end, step)?,
        }));
    }
    Ok(json!({ "start": start, "end": end, "step": step, "queries": queries }))
}
