//! An upgrade of the host, step by step: what the cloud controller manager must not destroy, and how soon it goes on.
//! Each test names the rule it shows. One test at a time on a bed: they break what others need. Without announcers: an
//! address counts as given when it is published on the Service.
//!
//! Rules that are pure have tests beside the code: h2 (`only_a_status_about_that_very_vm_is_a_proof`), h9 and h10 as
//! well, h11 only there (`crates/announcer-core/src/engine/tests/ownership.rs`). h13 concerns the DHCP client.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::sync::Arc;

use e2e::machines::addresses;
use e2e::{Bed, Beds, Case, Exposed};
use harvester_sim::faults::Faults;
use kube::ResourceExt;
use tokio::sync::MutexGuard;

#[path = "survival/machines.rs"]
mod machines;
#[path = "survival/outages.rs"]
mod outages;
#[path = "survival/processes.rs"]
mod processes;
#[path = "survival/refusals.rs"]
mod refusals;

// Most of these tests wait for time-outs: three of them do so side by side. Those about machines share the bed of those
// about processes, which are the fewest.
static OUTAGES: Beds<1> = Beds::new();
static REFUSALS: Beds<1> = Beds::new();
static PROCESSES: Beds<1> = Beds::new();

/// The bed with everything well, also after a test that failed.
async fn alone(one: &'static Beds<1>) -> (MutexGuard<'static, ()>, Arc<Bed>) {
    let builder = Bed::one_node().ccm_arg("--cloud-config-all-contexts");
    let (guard, bed) = one.alone(|| builder.start()).await.unwrap();
    bed.set_faults(&Faults::default()).unwrap();
    bed.write_cloud_config(&bed.fresh_cloud_config().unwrap()).unwrap();
    if bed.ccm().check().is_err() {
        bed.ccm().start().unwrap();
    }
    bed.wait_until_ccm_is_ready().await.unwrap();
    (guard, bed)
}

/// What was written about the Services of one test. Others have Services that nobody serves, which is told again and
/// again.
fn writes_of(bed: &Bed, case: &Case<'_>, mark: e2e::Mark) -> e2e::Costs {
    let mut costs = bed.costs(mark).unwrap();
    costs.ccm_events.retain(|request| request.namespace.as_deref() == Some(case.namespace()));
    costs.ccm_guest.retain(|request| request.namespace.as_deref() == Some(case.namespace()));
    costs.ccm_harvester.retain(|request| request.verb != "create" && request.uri.contains(case.namespace()));
    costs
}

async fn uid_of_load_balancer(web: &Exposed<'_>) -> String {
    web.load_balancer().await.unwrap().unwrap().uid().unwrap()
}

async fn wait_for_internal_ip(bed: &Bed, node: &str, ip: &str) {
    let wanted = format!("InternalIP={ip}");
    bed.wait_for_node(node, &wanted, |node| {
        let found = addresses(node);
        if found.contains(&wanted) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await
    .unwrap();
}

fn deletions(bed: &Bed, mark: e2e::Mark) -> Vec<String> {
    let harvester = bed.harvester.audit().since(mark.harvester).unwrap();
    let guest = bed.control_plane.audit().since(mark.guest).unwrap();
    let ours = |user: &str| user.ends_with(":harvester-cloud-provider") || user.ends_with(":demo");
    let all =
        harvester.into_iter().chain(guest).filter(|request| request.verb.starts_with("delete") && ours(&request.user));
    all.map(|request| format!("{} {}", request.user, request.uri)).collect()
}
