//! Step 4, the end: Services go, and nothing of them stays. And what everything cost.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use testbed::{AuditMark, DhcpOptions, wait_for};

use crate::bed::{Bed, CLUSTER, PATIENCE, megabytes};
use crate::failures::container_id;
use crate::report::{Figures, ProcessFigure, by_user};
use crate::step_log::{self, StepLog};

/// Deletes all Services of type LoadBalancer and looks everywhere.
pub async fn clean(step_log: &mut StepLog, bed: &Bed) -> Result<()> {
    step_log::command("kubectl delete service --all");
    step_log
        .step("delete", async {
            let services = bed.services().list(&ListParams::default()).await.context("failed to list Services")?;
            let names: Vec<String> =
                services.iter().map(ResourceExt::name_any).filter(|name| name != "kubernetes").collect();
            let begun = Timestamp::now();
            let mut words = vec!["delete", "service", "--wait=false"];
            words.extend(names.iter().map(String::as_str));
            bed.kubectl(&words).await?;
            wait_for("the Services to be gone", PATIENCE, || async {
                let left = bed.services().list(&ListParams::default()).await.map_err(|error| error.to_string())?;
                let left: Vec<String> =
                    left.iter().filter(|service| names.contains(&service.name_any())).map(finalizers).collect();
                if left.is_empty() { Ok(()) } else { Err(left.join(", ")) }
            })
            .await?;
            let leases: Api<Lease> = Api::namespaced(bed.control_plane.client().await?, "kube-system");
            let lease = leases.get("cloud-controller-manager").await.context("failed to get the CCM's Lease")?;
            Ok(((), format!("{} Services deleted{}", names.len(), led_anew(&lease, begun))))
        })
        .await?;
    step_log
        .step("nothing-left", async {
            let longest = DhcpOptions::default().lease.as_secs();
            let what = format!(
                "everything of the Services to be gone (a DHCP lease that was not given back ends after {longest} s at \
                 most)"
            );
            wait_for(&what, PATIENCE, || async {
                let left = leftovers(bed).await.map_err(|error| format!("{error:#}"))?;
                if left.is_empty() { Ok(()) } else { Err(left.join(", ")) }
            })
            .await?;
            Ok((
                (),
                "nothing left: no LoadBalancer object, no pool allocation, no address, no macvlan, no DHCP lease"
                    .to_owned(),
            ))
        })
        .await
}

/// Why it took so long, where the cloud controller that led was lost with its node and the next one had to wait for its
/// Lease to run out.
fn led_anew(lease: &Lease, begun: Timestamp) -> String {
    let acquired = lease.spec.as_ref().and_then(|spec| spec.acquire_time.as_ref()).map(|time| time.0);
    match acquired.filter(|acquired| *acquired > begun) {
        Some(acquired) => format!(
            ", begun after {:.0} s: the cloud controller that led was lost with its node, and the next one waits until \
             the Lease of that one has run out (15 s). With replicasCount: 2 another one leads by the time that the \
             node is back",
            acquired.duration_since(begun).as_secs_f64()
        ),
        None => String::new(),
    }
}

/// A Service that is still there, and who keeps it.
fn finalizers(service: &Service) -> String {
    format!("{} (kept by {})", service.name_any(), service.finalizers().join(", "))
}

async fn leftovers(bed: &Bed) -> Result<Vec<String>> {
    let mut left = Vec::new();
    let harvester = bed.harvester.client().await?;
    let balancers: Api<DynamicObject> = Api::all_with(harvester.clone(), &resource("LoadBalancer", "loadbalancers"));
    for object in balancers.list(&ListParams::default()).await.context("failed to list LoadBalancer objects")? {
        left.push(format!("LoadBalancer {}", object.name_any()));
    }
    let pools: Api<DynamicObject> = Api::all_with(harvester, &resource("IPPool", "ippools"));
    for pool in pools.list(&ListParams::default()).await.context("failed to list IPPools")? {
        let allocated = pool.data["status"]["allocated"].as_object();
        left.extend(
            allocated
                .into_iter()
                .flatten()
                .map(|(address, holder)| format!("pool {} holds {address} for {holder}", pool.name_any())),
        );
    }
    for machine in bed.machines.iter().filter(|machine| machine.is_on()) {
        let host = machine.host()?;
        for (interface, address, _) in host.addresses()? {
            let ours = matches!(address,
                std::net::IpAddr::V4(v4) if v4.octets()[..3] == bed.lan.ipv4(0).octets()[..3] && v4 != machine.ipv4());
            if ours {
                left.push(format!("{address} on {interface} of {}", machine.name()));
            }
        }
        for link in host.namespace().ip_json("-d link show type macvlan")? {
            left.push(format!("macvlan {} on {}", link["ifname"].as_str().unwrap_or("?"), machine.name()));
        }
    }
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
    left.extend(bed.lan.dhcp().leases()?.iter().map(|lease| lease_left(lease.address, lease.expires, now)));
    Ok(left)
}

/// A lease that the server still has, and until when at most.
fn lease_left(address: Ipv4Addr, expires: u64, now: u64) -> String {
    format!("DHCP lease of {address}, which ends in {} s by itself", expires.saturating_sub(now))
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: "loadbalancer.harvesterhci.io".into(),
        version: "v1beta1".into(),
        api_version: "loadbalancer.harvesterhci.io/v1beta1".into(),
        kind: kind.into(),
        plural: plural.into(),
    }
}

/// Memory, processor time and requests of everything that is ours.
pub async fn weigh(step_log: &mut StepLog, bed: &Bed, figures: &mut Figures) -> Result<()> {
    step_log
        .step("costs", async {
            let mut all = Vec::new();
            for (name, app) in [("cloud controller manager", "harvester-cloud-provider"), ("announcer", "kube-vip")] {
                for pod in bed.our_pods(app).await? {
                    all.push(figure(bed, name, &pod)?);
                }
            }
            ensure!(!all.is_empty(), "none of our pods runs");
            let sim = bed.harvester.with_sim(testbed::Process::usage)?;
            let text: Vec<String> = all
                .iter()
                .map(|process| {
                    format!("{} on {} {:.1} MB, {} ms CPU", process.name, process.node, process.rss_mb, process.cpu_ms)
                })
                .collect();
            all.push(ProcessFigure {
                name: "harvester-sim".into(),
                node: "harvester".into(),
                rss_mb: megabytes(sim.rss_bytes),
                cpu_ms: sim.cpu_ms,
                up_s: 0,
            });
            figures.processes = all;
            let ours = |user: &str| user.ends_with(":harvester-cloud-provider") || user.ends_with(":kube-vip");
            figures
                .api_requests
                .insert("guest", by_user(&bed.control_plane.audit().since(AuditMark::default())?, ours));
            let theirs = |user: &str| user.ends_with(&format!(":{CLUSTER}"));
            figures
                .api_requests
                .insert("harvester", by_user(&bed.harvester.audit().since(AuditMark::default())?, theirs));
            figures.binary_bytes = std::fs::metadata(&bed.binary)
                .with_context(|| format!("failed to read {}", bed.binary.display()))?
                .len();
            figures.image_bytes = bed.image_bytes;
            Ok(((), format!("costs: {}; binary {:.1} MB", text.join("; "), megabytes(figures.binary_bytes))))
        })
        .await
}

fn figure(bed: &Bed, name: &str, pod: &Pod) -> Result<ProcessFigure> {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).context("a pod without node")?;
    let id = container_id(pod).with_context(|| format!("{} does not run", pod.name_any()))?;
    let usage = bed.machine(&node)?.container_usage(&id)?;
    let started = pod.status.as_ref().and_then(|status| {
        let state = status.container_statuses.as_ref()?.first()?.state.as_ref()?;
        Some(state.running.as_ref()?.started_at.as_ref()?.0.as_second())
    });
    let up_s = started.map_or(0, |at| u64::try_from(Timestamp::now().as_second() - at).unwrap_or(0));
    Ok(ProcessFigure { name: name.into(), node, rss_mb: megabytes(usage.rss_bytes), cpu_ms: usage.cpu_ms, up_s })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_was_not_given_back_says_when_it_ends() {
        let left = lease_left(Ipv4Addr::new(192, 168, 100, 213), 1_000_110, 1_000_000);
        assert_eq!(left, "DHCP lease of 192.168.100.213, which ends in 110 s by itself");
    }

    #[test]
    fn a_deletion_that_had_to_wait_for_a_leader_says_so() {
        let lease = |acquired: &str| {
            serde_json::from_value::<Lease>(serde_json::json!({"metadata": {}, "spec": {"acquireTime": acquired}}))
                .unwrap()
        };
        let begun: Timestamp = "2026-01-01T00:00:10Z".parse().unwrap();
        assert_eq!(led_anew(&lease("2026-01-01T00:00:00.000000Z"), begun), "");
        let told = led_anew(&lease("2026-01-01T00:00:25.000000Z"), begun);
        assert!(told.starts_with(", begun after 15 s: ") && told.contains("replicasCount: 2"), "{told}");
    }
}
