//! Nodes that join all at once, and one whose machine changes its address.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use e2e::machines::{UNINITIALIZED, addresses, is_initialized};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;

use super::setup::{Setup, middle};
use super::{Figure, Results};
use crate::bench_bed::PARALLEL;
use crate::crowd::names;
use crate::figures::megabytes;
use crate::progress::{EVERY, say};
use crate::requests::Side;

/// `count` Nodes register at once; their machines are there before.
pub async fn join(count: usize, ccm_args: &[String], told: &mut Results<'_>) -> Result<()> {
    let setup = Setup::set("fast", ccm_args).await?;
    setup.start().await?;
    let (bench, bed) = (&setup.bench, &setup.bench.bed);
    let names = names("many", count);
    make_machines(&setup, &names).await?;
    let mark = bed.mark();
    let (made, all) = register(&setup, &names).await?;
    let all = Figure::seconds(format!("{count} Nodes join at once: all initialised"), all);
    told.tell(if count == 1000 { all.below(15.0).go("591 s") } else { all.below(60.0) });
    told.tell(Figure::seconds(format!("{count} Nodes: until the bench had made them"), made));
    bench.wait_until_quiet().await?;
    let guest = bench.tally(mark)?.side(Side::CcmGuest);
    let requests = Figure::count(format!("{count} Nodes: requests to the guest API"), guest.total());
    // The Go provider was measured with 1,000 Nodes.
    told.tell(if count == 1000 { requests.go("3966") } else { requests });
    let rss = megabytes(bed.ccm().usage()?.rss_bytes);
    told.tell(Figure::new(format!("{count} Nodes: RSS of the CCM then"), rss, "MB"));
    moving(&setup, &names, told).await
}

/// Their machines on Harvester.
pub async fn make_machines(setup: &Setup, names: &[String]) -> Result<()> {
    let bed = &setup.bench.bed;
    let machines = bed.machines().await?;
    say(format!("  making {} machines", names.len()));
    stream::iter(names.iter().enumerate())
        .map(|(n, name)| {
            let address = format!("10.201.{}.{}", n / 250, n % 250 + 1);
            let machine = bed.machine(name, &[&address]);
            let machines = &machines;
            async move { machines.save(&machine).await }
        })
        .buffer_unordered(PARALLEL)
        .try_collect::<Vec<_>>()
        .await?;
    setup.bench.wait_until_quiet().await
}

/// Registers Nodes as their kubelets do; how long that took, and until all of them were initialised.
pub async fn register(setup: &Setup, names: &[String]) -> Result<(Duration, Duration)> {
    let nodes: Api<Node> = Api::all(setup.bench.client.clone());
    let begin = Instant::now();
    stream::iter(names)
        .map(|name| {
            let node = json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "spec": {"taints": [{"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"}]},
                "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]},
            });
            let nodes = nodes.clone();
            async move {
                let node: Node = serde_json::from_value(node).context("failed to make a Node object")?;
                nodes.create(&PostParams::default(), &node).await.context("failed to create a Node")
            }
        })
        .buffer_unordered(PARALLEL)
        .try_collect::<Vec<_>>()
        .await?;
    let made = begin.elapsed();
    let mut last = Instant::now();
    loop {
        let asked = Instant::now();
        let list = nodes.list(&ListParams::default()).await.context("failed to list Nodes")?.items;
        let waiting = list.iter().filter(|node| !is_initialized(node)).count();
        if waiting == 0 {
            break;
        }
        if last.elapsed() > EVERY {
            say(format!("  {waiting} Nodes wait"));
            last = Instant::now();
        }
        if begin.elapsed() > Duration::from_mins(10) {
            bail!("{waiting} Nodes are not initialised");
        }
        tokio::time::sleep(asked.elapsed().max(Duration::from_millis(50))).await;
    }
    Ok((made, begin.elapsed()))
}

/// A machine reports another address.
async fn moving(setup: &Setup, names: &[String], told: &mut Results<'_>) -> Result<()> {
    let bed = &setup.bench.bed;
    let machines = bed.machines().await?;
    let mut each = Vec::new();
    for (n, name) in names.iter().take(5).enumerate() {
        let address = format!("10.202.0.{}", n + 1);
        let begin = Instant::now();
        machines.addresses(e2e::VM_NAMESPACE, name, "nic-0", std::slice::from_ref(&address)).await?;
        loop {
            let node = bed.node(name).await?.context("the Node is gone")?;
            if addresses(&node).iter().any(|found| found.ends_with(&address)) {
                break;
            }
            if begin.elapsed() > Duration::from_mins(1) {
                bail!("Node {name} does not show {address}: {:?}", addresses(&node));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        each.push(begin.elapsed());
    }
    let median = middle(each.clone());
    let changed = Figure::seconds("a VM's address changes: Node updated, median of 5", median).of(&each);
    told.tell(changed.below(1.0).go("5 min poll"));
    Ok(())
}
