//! A Service with one address on three nodes, or one, and what is done to its owner.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{Bed, Case as Place, ENOUGH, Exposed, PATIENCE, service, wait_for};
use harvester_api::keys::kube_vip::LOADBALANCER_IPS;
use testbed::{AnswerReport, Answerers, Probe, ProbeReport, Traffic};

use crate::cases::{Case, Fault, Run, ms};

/// Longer than the kernel of a dead node keeps an address.
const AFTER_POWER_LOSS: Duration = Duration::from_secs(6);

/// One address, and where it is.
pub struct Experiment<'a> {
    bed: &'a Bed,
    place: &'a Place<'a>,
    web: Exposed<'a>,
    address: Ipv4Addr,
}

impl<'a> Experiment<'a> {
    /// A Service that answers.
    pub async fn new(bed: &'a Bed, place: &'a Place<'a>, case: &Case) -> Result<Self> {
        let asked = if case.dhcp { "0.0.0.0".to_owned() } else { bed.lan.ipv4(151).to_string() };
        let web = place.expose(service("web").at(&asked).tcp(80).udp(80)).await?;
        let IpAddr::V4(address) = web.address().await? else { anyhow::bail!("not an IPv4 address") };
        web.reply(address.into(), 80).await?;
        Ok(Self { bed, place, web, address })
    }

    fn owner(&self) -> Result<usize> {
        self.bed.owner_of(self.address.into())?.context("nobody has the address")
    }

    /// Endpoints on all nodes but one, and time for every kube-proxy to know it.
    async fn repoint(&self, case: &Case, without: usize) -> Result<()> {
        let name = self.bed.lan.host(without).name();
        let mut pods: Vec<_> = self.bed.pods().into_iter().filter(|pod| case.spread || pod.node != name).collect();
        if pods.is_empty() {
            pods = self.bed.pods();
        }
        self.web.publish(&pods).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(())
    }

    /// One run.
    pub async fn one(&self, case: &Case, run: usize, outage: Duration) -> Result<Run> {
        let Some(fault) = case.fault else { return self.new_service(run).await };
        let bed = self.bed;
        let owner = self.owner()?;
        self.repoint(case, owner).await?;
        let (probe, answerers) = self.watch()?;
        let mac = bed.macs(self.address.into())?;
        ensure!(self.owner()? == owner, "node{owner} has lost it by itself\n{}", bed.log_lines_about("owner"));
        let begun = Instant::now();
        match fault {
            Fault::PowerLoss => {
                bed.power_off(owner)?;
                tokio::time::sleep(AFTER_POWER_LOSS).await;
            }
            Fault::PowerLossWithEtcdLeader => {
                let leader = bed.control_plane.etcd_leader()?;
                bed.control_plane.cut_etcd(leader)?;
                bed.power_off(owner)?;
                tokio::time::sleep(AFTER_POWER_LOSS).await;
                bed.control_plane.mend_etcd(leader)?;
            }
            Fault::Pause(time) => {
                let nic = bed.lan.host(owner).nic("eth0");
                bed.announcer(owner).pause()?;
                nic.isolate()?;
                tokio::time::sleep(Duration::from_millis(time)).await;
                // The kernel is back a moment before the process, never after it.
                nic.plug()?;
                bed.announcer(owner).resume()?;
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
            Fault::Kill => {
                bed.announcer(owner).kill();
                tokio::time::sleep(Duration::from_secs(2)).await;
                bed.announcer(owner).start()?;
                // Beyond every deadline of the kernel that the dead process has left.
                tokio::time::sleep(Duration::from_secs(6)).await;
            }
            Fault::Terminate => {
                bed.announcer(owner).stop()?;
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            Fault::TerminateAlone => {
                bed.announcer(owner).restart()?;
                tokio::time::sleep(Duration::from_secs(6)).await;
            }
            Fault::OwnerWithoutApi => {
                let nic = bed.lan.host(owner).nic("mgmt0");
                nic.cut()?;
                tokio::time::sleep(outage).await;
                nic.plug()?;
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            Fault::NobodyHasApi => {
                bed.control_plane.api_server().kill();
                tokio::time::sleep(outage).await;
                bed.control_plane.api_server().start().await?;
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
        }
        probe.wait_for_answers(ENOUGH, PATIENCE)?;
        let answers = answerers.report();
        let report = probe.stop_after(ENOUGH, PATIENCE)?;
        ensure!(report.answered > 0, "no answers at all after {:?}", begun.elapsed());
        self.recover(owner).await?;
        let after = self.owner()?;
        if case.dhcp {
            ensure!(bed.macs(self.address.into())? == mac, "the MAC has changed");
        }
        Ok(run_of(&report, &answers, [owner, after]))
    }

    fn watch(&self) -> Result<(Probe, Answerers)> {
        let client = self.bed.lan.client();
        let probe = client.probe(Traffic::Udp((self.address, 80).into()))?;
        probe.wait_for_answers(100, PATIENCE)?;
        Ok((probe, client.ask_who_has(self.address, Duration::from_millis(10))?))
    }

    /// The node comes back as a rebooted one would: without the address.
    async fn recover(&self, owner: usize) -> Result<()> {
        let bed = self.bed;
        if bed.announcer(owner).check().is_err() {
            bed.power_on(owner)?;
        }
        bed.wait_until_announcing(owner).await?;
        wait_for("one owner", PATIENCE, || async { self.owner().map(drop).map_err(|error| format!("{error:#}")) })
            .await?;
        // Until the others have heard the owner under its new record (R5), and long enough that a retake is not put
        // off.
        tokio::time::sleep(Duration::from_secs(3)).await;
        self.web.reply(self.address.into(), 80).await?;
        Ok(())
    }

    /// After a run that failed somewhere in between.
    pub async fn mend(&self, patience: Duration) -> Result<()> {
        for n in 1..=self.bed.nodes.len() {
            self.bed.lan.host(n).plug_in()?;
            if self.bed.announcer(n).check().is_err() {
                self.bed.power_on(n)?;
            }
        }
        tokio::time::sleep(patience.min(Duration::from_secs(10))).await;
        for n in 1..=self.bed.nodes.len() {
            self.recover(n).await?;
        }
        Ok(())
    }

    /// From the annotation that names the address to the first answer.
    async fn new_service(&self, run: usize) -> Result<Run> {
        let last = 160 + u8::try_from(run % 80).context("few runs")?;
        let address = self.bed.lan.ipv4(last);
        let answerers = self.bed.lan.client().ask_who_has(address, Duration::from_millis(5))?;
        let name = format!("new{run}");
        let web = self.place.expose(service(&name).tcp(80)).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let before = answerers.report().asked;
        let begun = Instant::now();
        web.annotate(LOADBALANCER_IPS, Some(&address.to_string())).await?;
        wait_for("an answer", PATIENCE, || async {
            let report = answerers.report();
            if report.by.is_empty() { Err(report.to_string()) } else { Ok(()) }
        })
        .await?;
        web.reply(address.into(), 80).await?;
        let http = begun.elapsed();
        let first = answerers.first_answer().context("it was answered")?;
        ensure!(before > 0, "the prober has not begun");
        let owner = self.bed.wait_for_owner(address.into()).await?;
        let gap = first.saturating_duration_since(begun);
        let answers = answerers.report();
        drop(answerers);
        web.delete().await?;
        web.wait_until_withdrawn(address.into()).await?;
        Ok(Run {
            gap_ms: ms(gap),
            lost: 0,
            lost_between_ms: None,
            double_ms: ms(answers.double),
            double_span_ms: ms(answers.double_span),
            prober_stall_ms: 0.0,
            outage_ms: ms(gap),
            late: 0,
            http_ms: Some(ms(http)),
            owners: [owner, owner],
        })
    }
}

fn run_of(report: &ProbeReport, answers: &AnswerReport, owners: [usize; 2]) -> Run {
    Run {
        gap_ms: ms(report.longest_gap),
        lost: report.lost,
        lost_between_ms: report.lost_between.map(|(first, last)| (ms(first), ms(last))),
        double_ms: ms(answers.double),
        double_span_ms: ms(answers.double_span),
        prober_stall_ms: ms(report.longest_stall),
        outage_ms: ms(report.outage),
        late: report.late,
        http_ms: None,
        owners,
    }
}
