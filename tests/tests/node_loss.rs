//! A node dies: real kubelets, kube-proxies and controllers, endpoints on every node, several clients at once. Bounds
//! are those of an idle machine: its stalls are subtracted ([`testbed::stall`]).
//!
//! The control plane has three machines; a node takes its own along where a test says so.
//!
//! `HCP_CASE=rest,owner` plays these parts only, for work on one of them; `CASES` has all names.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::PATIENCE;
use e2e::lost_node::{NODES, NodeLossBed, expose};
use e2e::watch::one_of_three;
use harvester_sim::guest::machines::{Machines, MigrationOutcome};
use k8s_openapi::jiff::Timestamp;
use testbed::stall;

/// What clients may notice of a lost node.
#[derive(Debug, Clone, Copy)]
struct Bound {
    /// No request that is missed was sent later than this after the loss.
    within: Duration,
    /// So many in all, of each client.
    missed: u64,
}

/// kube-proxy with `minSyncPeriod` 100 ms.
const QUICK: Bound = Bound { within: Duration::from_secs(1), missed: 60 };
/// kube-proxy as it is delivered: `minSyncPeriod` 1 s.
const DEFAULT: Bound = Bound { within: Duration::from_secs(2), missed: 120 };
/// The same with an API server and a member of etcd, which all three may have been using: 1 to 2 s until a watch on the
/// lost server ends, and as long until etcd has a leader.
const WITH_SERVER: Duration = Duration::from_secs(5);
/// From the loss of the leader's node to the first reply of a Service that was made then.
const LED_AGAIN: Duration = Duration::from_secs(6);
/// A pod that is ready gets traffic.
const SOON: Duration = Duration::from_secs(2);
/// A false verdict is over.
const HEALED: Duration = Duration::from_secs(2);

/// The parts of the test, in their order.
const CASES: [&str; 8] = ["rest", "pause", "false", "other", "owner", "server", "leader", "default"];

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_node_is_out_of_all_services_within_a_second_and_comes_back() {
    if e2e::skip() {
        return;
    }
    let only = std::env::var("HCP_CASE").unwrap_or_default();
    let asked: Vec<&str> = only.split(',').filter(|name| !name.is_empty()).collect();
    assert!(asked.iter().all(|name| CASES.contains(name)), "HCP_CASE={only}: the parts are {CASES:?}");
    let wanted = |name: &str| {
        assert!(CASES.contains(&name), "{name} cannot be asked for");
        asked.is_empty() || asked.contains(&name)
    };
    let bed = NodeLossBed::start().await.unwrap();

    if wanted("rest") {
        one_of_three("at rest", async || at_rest(&bed).await).await.unwrap();
    }
    if wanted("pause") {
        one_of_three("a machine stands still", async || pauses(&bed).await).await.unwrap();
    }
    if wanted("false") {
        one_of_three("a false verdict", async || false_verdict(&bed).await).await.unwrap();
    }
    if wanted("other") {
        one_of_three("another node is lost", async || {
            let taken = [bed.owner()?, bed.leader().await?].into();
            let n = NodeLossBed::other_than(&taken).unwrap_or(1);
            lost_and_back(&bed, "another node", n, QUICK).await
        })
        .await
        .unwrap();
    }
    if wanted("owner") {
        one_of_three("the owner's node is lost", async || {
            lost_and_back(&bed, "the owner's node", bed.owner()?, QUICK).await
        })
        .await
        .unwrap();
    }
    if wanted("server") {
        one_of_three("an API server is lost too", async || with_server(&bed).await).await.unwrap();
    }
    if wanted("leader") {
        one_of_three("the leader's node is lost", async || leader(&bed).await).await.unwrap();
    }
    if wanted("default") {
        for n in 1..=NODES {
            bed.cluster.machine(n).set_proxy_min_sync(Duration::from_secs(1)).unwrap();
        }
        bed.is_well().await.unwrap();
        one_of_three("the owner's node is lost, kube-proxy as it is delivered", async || {
            lost_and_back(&bed, "the owner's node, minSyncPeriod 1 s", bed.owner()?, DEFAULT).await
        })
        .await
        .unwrap();
    }
}

/// Everything is as before, also after an attempt that failed.
async fn lost_and_back(bed: &NodeLossBed, what: &str, n: usize, bound: Bound) -> Result<()> {
    let lost = bed.lose(n).await;
    let back = is_back(bed, what, n).await;
    let lost = lost?;
    eprintln!("{what}: node{n} lost; its endpoints left before {} ms; {}", lost.left.as_millis(), lost.users);
    let users = &lost.users;
    ensure!(users.lasted() <= bound.within && users.worst() < bound.missed, "{what}, {bound:?}: {lost:#?}");
    back
}

/// Watches and requests of announcers and controllers may lead to the lost server, and etcd may have to choose a leader
/// before anything is written.
async fn with_server(bed: &NodeLossBed) -> Result<()> {
    const WHAT: &str = "a node with its API server and member of etcd";
    let n = bed.node_with_a_server().await?;
    let (owner, etcd, leader) = (bed.owner()?, bed.cluster.control_plane.etcd_leader()?, bed.leader().await?);
    let lost = bed.lose_with_its_server(n).await;
    let back = is_back(bed, WHAT, n).await;
    let lost = lost?;
    eprintln!(
        "{WHAT}: node{n} lost (node{owner} had the address, member {etcd} led etcd, node{leader}'s controller \
         led); its endpoints left before {} ms; {}\n{}",
        lost.left.as_millis(),
        lost.users,
        lost.story
    );
    ensure!(lost.users.lasted() < WITH_SERVER, "{WHAT}, at most {WITH_SERVER:?}: {lost:#?}");
    back
}

async fn is_back(bed: &NodeLossBed, what: &str, n: usize) -> Result<()> {
    let back = bed.give_back(n).await?;
    eprintln!("{what}: node{n} is back: {back:?}");
    ensure!(back.traffic.saturating_sub(back.stalled) < SOON, "{what}: {back:?}");
    Ok(())
}

/// Two controllers cost the API what one leader does: the other one follows its Lease by a watch. Announcers renew
/// their Leases.
async fn at_rest(bed: &NodeLossBed) -> Result<()> {
    const LOOK: Duration = Duration::from_secs(20);
    let mark = bed.cluster.control_plane.audit().mark();
    tokio::time::sleep(LOOK).await;
    let requests = bed.cluster.control_plane.audit().since(mark)?;
    let by = |user: &str| -> Vec<String> {
        let ours = requests.iter().filter(|request| request.user.ends_with(user));
        ours.map(|request| format!("{} {}", request.verb, request.uri)).collect()
    };
    let (controllers, announcers) = (by(":harvester-cloud-provider"), by(":kube-vip"));
    eprintln!("at rest for {LOOK:?}: controllers {}, announcers {} requests", controllers.len(), announcers.len());
    // The leader renews every 2 s; watches begin anew every few minutes.
    let asked =
        controllers.iter().filter(|request| request.starts_with("get ") && request.contains("/leases/")).count();
    ensure!(asked <= 1, "the replica that waits asks for the Lease: {controllers:#?}");
    ensure!(controllers.len() <= 20, "{controllers:#?}");
    ensure!(announcers.len() <= 24, "{announcers:#?}");
    Ok(())
}

/// Of a machine that is known to be moved nothing is concluded, nor of one that nobody had the time to miss.
async fn pauses(bed: &NodeLossBed) -> Result<()> {
    let machines = Machines::new(bed.cluster.harvester.client().await?);
    for (milliseconds, migrating) in [(100, false), (500, true), (2000, true)] {
        let n = bed.owner()?;
        let machine = bed.cluster.machine(n);
        let mark = bed.cluster.control_plane.audit().mark();
        if migrating {
            machines.start_migration("guests", machine.name(), "host-2").await?;
        }
        let stood = machine.pause(Duration::from_millis(milliseconds))?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        if migrating {
            machines.finish_migration("guests", machine.name(), MigrationOutcome::Failed).await?;
        }
        let (writes, serving) = (bed.writes_since(mark)?, bed.serving().await?);
        eprintln!("node{n} stood still for {} ms: {} writes", stood.as_millis(), writes.len());
        bed.is_well().await?;
        ensure!(writes.is_empty() && serving == NODES, "after {stood:?}: {serving} endpoints serve, {writes:?}");
    }
    Ok(())
}

/// Its kubelet and the controller put it right, and no client notices.
async fn false_verdict(bed: &NodeLossBed) -> Result<()> {
    let n = bed.owner()?;
    let mark = bed.cluster.control_plane.audit().mark();
    let (begun, began) = (Instant::now(), Timestamp::now());
    bed.accuse(n).await?;
    bed.endpoints_are(NODES - 1).await?;
    let marked = Instant::now();
    bed.endpoints_are(NODES).await?;
    let (healed, stalled) = (marked.elapsed(), stall::since(marked).within(marked, Instant::now(), &[]));
    let users = bed.clients.lock().since(begun, 100)?;
    eprintln!(
        "a false verdict about node{n}: marked after {} ms, healed {} ms later (stalls: {} ms); {users}",
        (marked - begun).as_millis(),
        healed.as_millis(),
        stalled.as_millis()
    );
    bed.is_well().await?;
    ensure!(!bed.writes_since(mark)?.is_empty(), "nothing was written");
    let writers = bed.story(mark, began)?;
    ensure!(healed.saturating_sub(stalled) < HEALED, "it took {healed:?}, stalls {stalled:?}:\n{writers}");
    ensure!(users.worst() == 0, "{users}");
    Ok(())
}

/// A Service that is made while nobody leads is served soon.
async fn leader(bed: &NodeLossBed) -> Result<()> {
    let (n, owner) = (bed.leader().await?, bed.owner()?);
    stall::begin();
    let at = Instant::now();
    bed.cluster.machine(n).power_off()?;
    let served = expose(&bed.cluster, "late").await;
    let (took, stalled) = (at.elapsed(), stall::since(at).within(at, Instant::now(), &[]));
    eprintln!(
        "the leader's node: node{n} (node{owner} had the address); a new Service is served after {} ms (stalls: {} ms)",
        took.as_millis(),
        stalled.as_millis()
    );
    let verdicts = if served.is_err() { bed.verdicts() } else { String::new() };
    bed.cluster.control_plane.kubectl(&["delete", "service", "late", "--wait=false"])?;
    let back = is_back(bed, "the leader's node", n).await;
    served.map_err(|error| error.context(verdicts))?;
    ensure!(took.saturating_sub(stalled) < LED_AGAIN, "served after {took:?}, stalls {stalled:?}");
    testbed::wait_for("the Service to be gone", PATIENCE, || async {
        let left = bed.cluster.control_plane.kubectl(&["get", "services", "-o=name"]).unwrap_or_default();
        if left.contains("late") { Err(left) } else { Ok(()) }
    })
    .await?;
    back
}
