//! What nodes cost the API while nothing happens, with the loss of nodes watched for and without: two controllers, an
//! announcer on each node, one address.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use e2e::product::{ANNOUNCER_ACCOUNT, CCM_ACCOUNT, Handle};
use e2e::{Bed, service};
use serde::{Deserialize, Serialize};
use testbed::{ProxyMode, service_account_user};

/// Sizes of clusters.
const NODES: [u8; 2] = [3, 50];
/// How long it is watched.
const LOOK: Duration = Duration::from_mins(2);
/// After a start, until what a start costs is over.
const SETTLED: Duration = Duration::from_secs(45);

/// Requests per minute.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AtRest {
    /// Of the cluster.
    pub nodes: u8,
    /// `nodeLoss.enabled`.
    pub node_loss: bool,
    /// Of the controller that leads.
    pub leader: f64,
    /// Of the one that waits.
    pub waiting: f64,
    /// Of all announcers together.
    pub announcers: f64,
    /// How often each was asked in all that time.
    pub kinds: BTreeMap<String, usize>,
}

/// Each size on a bed of its own.
pub async fn measure() -> Result<Vec<AtRest>> {
    let mut found = Vec::new();
    for nodes in NODES {
        eprintln!("at-rest: {nodes} nodes");
        let bed = Bed::builder().nodes(nodes).proxy(ProxyMode::None).announcer_env("election_mode", "node");
        let bed = bed.start().await?;
        let place = bed.case("rest").await?;
        let web = place.create(service("web").tcp(80)).await?;
        web.address().await?;
        let host = bed.lan.add_host("standby", 62)?;
        let _cable = bed.control_plane.join(&host)?;
        let second = bed.ccm().program().twin();
        let second = second.on(&host);
        for node_loss in [true, false] {
            if !node_loss {
                bed.ccm().stop()?;
                second.stop()?;
                for controller in [bed.ccm(), second] {
                    controller.set_arg("--controllers=*,-node-loss");
                }
                bed.ccm().start()?;
            }
            bed.wait_until_initialized().await?;
            // The first one leads by now.
            tokio::time::sleep(Duration::from_secs(5)).await;
            second.start()?;
            let one = look(&bed, second, nodes, node_loss).await?;
            eprintln!("  {one:?}");
            found.push(one);
        }
        second.stop()?;
    }
    Ok(found)
}

async fn look(bed: &Bed, waiting: Handle<'_>, nodes: u8, node_loss: bool) -> Result<AtRest> {
    tokio::time::sleep(SETTLED).await;
    let (mark, since) = (bed.mark(), Instant::now());
    tokio::time::sleep(LOOK).await;
    let minutes = since.elapsed().as_secs_f64() / 60.0;
    let requests = bed.control_plane.audit().since(mark.guest)?;
    let of = |account: &str| service_account_user("kube-system", account);
    let (controllers, announcers) = (of(CCM_ACCOUNT), of(ANNOUNCER_ACCOUNT));
    let waits_at = waiting.host().addresses()?.into_iter().find(|(interface, ..)| interface == "mgmt0");
    let (_, waits_at, _) = waits_at.context("the second controller's host has no way to the API")?;
    let (mut counts, mut kinds) = ([0_u32; 3], BTreeMap::new());
    for request in requests {
        let (at, who) = match &request.user {
            user if *user == announcers => (2, "announcer"),
            user if *user != controllers => continue,
            _ if request.source == Some(waits_at) => (1, "waiting"),
            _ => (0, "leader"),
        };
        counts[at] += 1;
        *kinds.entry(format!("{who}: {} {}", request.verb, request.resource)).or_default() += 1;
    }
    let [leader, waiting, announcers] = counts.map(|count| (f64::from(count) / minutes * 10.0).round() / 10.0);
    Ok(AtRest { nodes, node_loss, leader, waiting, announcers, kinds })
}

/// As a table in Markdown.
pub fn print(found: &[AtRest]) {
    println!("\n| requests to the API per minute, at rest | leader | the replica that waits | all announcers |");
    println!("| --- | --- | --- | --- |");
    for one in found {
        let state = if one.node_loss { "on" } else { "off" };
        println!("| {} nodes, nodeLoss {state} | {} | {} | {} |", one.nodes, one.leader, one.waiting, one.announcers);
    }
}
