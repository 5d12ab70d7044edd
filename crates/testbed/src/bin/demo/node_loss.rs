//! A node loses its power: the address, the endpoints, and what several clients notice of it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use testbed::{Clients, ProbeReport, Users, wait_for};

use crate::bed::{Bed, NODES, PATIENCE, REPLICAS};
use crate::clients::{only_owner, probe, stopped};
use crate::report::{Figures, NodeLoss, Outage};
use crate::services::Vips;
use crate::step_log::{self, StepLog};

/// A take-over after a power loss takes a quarter of a second on an idle machine.
const LONGEST_GAP_MS: u64 = 1000;
/// Clients that ask at the same time.
const CLIENTS: u8 = 3;
/// For each of them, beside what kube-proxy waits for.
const MISSED_MS: u64 = 1000;
/// Answers that end the watch: two seconds of them.
const ENOUGH: u64 = 200;

/// A machine that was busy with something else is no fault of the failure detector: what it kept waiting is subtracted.
fn is_too_long(outage: &Outage) -> bool {
    outage.outage_ms > LONGEST_GAP_MS
}

/// Power off, and on again.
pub async fn lose(step_log: &mut StepLog, bed: &Bed, vips: Vips, owner: &str, figures: &mut Figures) -> Result<()> {
    step_log::command(&format!("# {owner} loses power"));
    let clients = Clients::start(&bed.lan, SocketAddr::from((vips.pool, 80)), CLIENTS, 0)?;
    let (outage, users) = step_log.step("failover", power_loss(bed, vips, owner, &clients)).await?;
    drop(clients);
    figures.failover = Some(outage.clone());
    figures.node_loss = Some(NodeLoss::new(&users));
    step_log::command(&format!("# {owner} is switched on again"));
    step_log.step("node-back", node_back(bed, vips, owner)).await?;
    ensure!(
        !is_too_long(&outage),
        "clients had no answer for {} ms after a power loss, of which the machine's stalls explain all but {} ms, more \
        than {LONGEST_GAP_MS} ms",
        outage.gap_ms,
        outage.outage_ms
    );
    let within = Duration::from_millis(MISSED_MS + figures.kube_proxy_min_sync_ms);
    // By their number, not by the last of them: a busy machine can make an address move once more.
    let missed = Duration::from_millis(10 * users.worst());
    ensure!(missed <= within, "a client missed requests of {missed:?}, more than {within:?}: {users}");
    Ok(())
}

async fn power_loss(bed: &Bed, vips: Vips, owner: &str, clients: &Clients) -> Result<((Outage, Users), String)> {
    let probes = [probe(bed, vips.pool)?, probe(bed, vips.dhcp)?];
    for probe in &probes {
        probe.wait_for_answers(20, PATIENCE)?;
    }
    let lost = Instant::now();
    bed.machine(owner)?.power_off()?;
    for (probe, vip) in probes.iter().zip([vips.pool, vips.dhcp]) {
        wait_for(&format!("another node to answer for {vip}"), PATIENCE, || async {
            // The wire, not the API: a node without the VIP may still forward what is sent to its MAC.
            let owners = bed.owner_on_the_wire(vip).map_err(|error| format!("{error:#}"))?;
            if owners.len() == 1 && owners[0] != owner {
                Ok(())
            } else {
                Err(format!("{owners:?} answers; {}", probe.report()))
            }
        })
        .await?;
    }
    let [pool, dhcp] = stopped(probes)?;
    let after = only_owner(bed, vips.pool)?;
    let users = clients.since(lost, ENOUGH)?;
    let gap = Outage::new(owner, &after, &pool);
    let text = format!(
        "{owner} lost power; {after} took over, and the pods of {owner} left their Services\n{}\n{}",
        unanswered(vips, &pool, &dhcp),
        requests(&users)
    );
    Ok(((gap, users), text))
}

/// How long nobody answered for the addresses.
fn unanswered(vips: Vips, pool: &ProbeReport, dhcp: &ProbeReport) -> String {
    let gap = |report: &ProbeReport| report.longest_gap.as_secs_f64();
    let longest = if pool.longest_gap < dhcp.longest_gap { dhcp } else { pool };
    format!(
        "nobody answered for {} during {:.2} s, nor for {} during {:.2} s{}",
        vips.pool,
        gap(pool),
        vips.dhcp,
        gap(dhcp),
        stood_still("the longer time", longest.longest_gap.saturating_sub(longest.outage))
    )
}

/// What several clients lost, until no request went to a pod of the lost node any more.
fn requests(users: &Users) -> String {
    let latest = users.clients.iter().max_by_key(|client| client.last).cloned().unwrap_or_default();
    let most = users.clients.iter().map(|client| client.missed).max().unwrap_or_default();
    let late = match users.late() {
        0 => String::new(),
        late => format!(", {late} more were answered late"),
    };
    let last = latest.last.map(|last| {
        format!(
            "\nthe last lost one was sent {:.2} s after the power loss: until then some went to the pods that were \
             lost{}",
            last.as_secs_f64(),
            stood_still("that time", latest.stalled)
        )
    });
    format!(
        "{} clients with a request every 10 ms lost {} of {} (at most {most} each){late}; {} of {} open connections \
         broke{}",
        users.clients.len(),
        users.missed(),
        users.sent(),
        users.broken,
        users.open,
        last.unwrap_or_default()
    )
}

/// How much of a time this machine's own stalls were, where that is worth a word.
fn stood_still(of: &str, stalled: Duration) -> String {
    if stalled < Duration::from_millis(20) {
        String::new()
    } else {
        format!(" ({:.2} s of {of} because this machine was busy)", stalled.as_secs_f64())
    }
}

async fn node_back(bed: &Bed, vips: Vips, lost: &str) -> Result<((), String)> {
    let machine = bed.machine(lost)?;
    machine.power_on()?;
    machine.wait_until_ready(&bed.control_plane).await?;
    bed.pods_ready("kube-system", "app.kubernetes.io/name=kube-vip", NODES.into()).await?;
    bed.pods_ready("kube-system", "app.kubernetes.io/name=harvester-cloud-provider", REPLICAS).await?;
    bed.pods_ready("default", "app=web", NODES.into()).await?;
    let owner = only_owner(bed, vips.pool)?;
    only_owner(bed, vips.dhcp)?;
    Ok(((), format!("{lost} is back and Ready, its pods run; {} is still answered by {owner} alone", vips.pool)))
}

#[cfg(test)]
mod tests {
    use testbed::Missed;

    use super::*;

    #[test]
    fn a_power_loss_is_told_in_short_lines() {
        let ms = Duration::from_millis;
        let seen = |gap, outage| ProbeReport { longest_gap: ms(gap), outage: ms(outage), ..ProbeReport::default() };
        let vips = Vips { pool: [10, 0, 0, 100].into(), dhcp: [10, 0, 0, 213].into() };
        let told = unanswered(vips, &seen(270, 270), &seen(310, 300));
        assert_eq!(told, "nobody answered for 10.0.0.100 during 0.27 s, nor for 10.0.0.213 during 0.31 s");
        let told = unanswered(vips, &seen(270, 270), &seen(510, 310));
        assert!(told.ends_with("0.51 s (0.20 s of the longer time because this machine was busy)"), "{told}");

        let client = |missed, last, stalled| Missed { sent: 800, missed, last, stalled, ..Missed::default() };
        let clients = vec![client(36, Some(ms(660)), ms(471)), client(40, Some(ms(500)), ms(0))];
        let mut users = Users { clients, open: 8, broken: 3 };
        assert_eq!(
            requests(&users),
            "2 clients with a request every 10 ms lost 76 of 1600 (at most 40 each); 3 of 8 open connections broke\n\
             the last lost one was sent 0.66 s after the power loss: until then some went to the pods that were lost \
             (0.47 s of that time because this machine was busy)"
        );
        users.clients = vec![Missed { late: 2, ..client(0, None, ms(0)) }];
        assert!(
            requests(&users).starts_with("1 clients with a request every 10 ms lost 0 of 800 (at most 0 each), 2 ")
        );
        assert!(!requests(&users).contains('\n'));
    }

    #[test]
    fn an_outage_of_more_than_a_second_fails_the_demo_unless_the_machine_stood_still() {
        let outage = |gap_ms: u64, outage_ms: u64| Outage {
            from: "a".into(),
            to: "b".into(),
            gap_ms,
            outage_ms,
            prober_stall_ms: 0,
            late: 0,
            sent: 1,
            lost: 0,
        };
        assert!(!is_too_long(&outage(230, 230)) && !is_too_long(&outage(1000, 1000)));
        assert!(is_too_long(&outage(1001, 1001)) && is_too_long(&outage(2500, 2200)));
        assert!(!is_too_long(&outage(2500, 900)));
    }
}
