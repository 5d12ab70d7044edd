//! One fault, some times over: what a client missed, and how long two nodes answered.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{Bed, Case as Place, Exposed, PATIENCE, service, wait_for};
use serde::Serialize;
use testbed::{Answerers, Probe, ProbeReport, Traffic};

/// What is done to the owner, or to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Cables out, processes dead.
    PowerLoss,
    /// SIGKILL of the announcer, started again after 2 s.
    Kill,
    /// SIGTERM of the announcer; another one is there.
    Terminate,
    /// SIGTERM of the only announcer, started again at once.
    TerminateAlone,
    /// The owner alone does not reach the API.
    OwnerWithoutApi,
    /// Nobody does: the API server is killed, and started again.
    NobodyHasApi,
    /// No fault: a Service is given its address.
    NewService,
}

/// A line of the table.
#[derive(Debug)]
pub struct Case {
    /// For `--only`.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// What happens.
    pub fault: Fault,
    /// Timers of the detector.
    pub profile: &'static str,
    /// The address comes from a DHCP server.
    pub dhcp: bool,
}

/// All of them, in the order of the table.
pub const CASES: [Case; 9] = [
    case("power-loss", "node power loss, default timers", Fault::PowerLoss, "default", false),
    case("power-loss-fast", "node power loss, fast profile", Fault::PowerLoss, "fast", false),
    case("kill", "announcer killed, restarted after 2 s", Fault::Kill, "default", false),
    case("terminate", "graceful stop with a successor", Fault::Terminate, "default", false),
    case("terminate-alone", "SIGTERM on a one-node cluster", Fault::TerminateAlone, "default", false),
    case("owner-without-api", "owner alone loses the API", Fault::OwnerWithoutApi, "default", false),
    case("nobody-has-api", "API server down for all", Fault::NobodyHasApi, "default", false),
    case("new-service", "address set to first ARP answer", Fault::NewService, "default", false),
    case("dhcp-power-loss", "DHCP address, node power loss", Fault::PowerLoss, "default", true),
];

const fn case(name: &'static str, title: &'static str, fault: Fault, profile: &'static str, dhcp: bool) -> Case {
    Case { name, title, fault, profile, dhcp }
}

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// The longest time without an answer, or the time that was asked for.
    pub gap_ms: f64,
    /// Requests without an answer.
    pub lost: u64,
    /// Time during which two MACs answered who-has.
    pub double_ms: f64,
    /// The longest time in which the prober itself was not scheduled: no gap is known better.
    pub prober_stall_ms: f64,
    /// From the address to the first HTTP reply, for a new Service.
    pub http_ms: Option<f64>,
    /// The owner before and after.
    pub owners: [usize; 2],
}

/// What a case has shown.
#[derive(Debug, Clone, Serialize)]
pub struct Found {
    /// Its name.
    pub case: &'static str,
    /// For people.
    pub title: &'static str,
    /// One by one.
    pub runs: Vec<Run>,
    /// What could not be measured.
    pub failures: Vec<String>,
}

/// Runs it on a bed of its own.
pub async fn measure(case: &Case, runs: usize, outage: Duration) -> Found {
    let mut found = Found { case: case.name, title: case.title, runs: Vec::new(), failures: Vec::new() };
    eprintln!("{}: {}", case.name, case.title);
    let nodes = if case.fault == Fault::TerminateAlone { 1 } else { 3 };
    let bed = Bed::builder()
        .nodes(nodes)
        .without_ccm()
        .without_pool()
        .announcer_env("election_mode", "node")
        .announcer_env("failover_profile", case.profile);
    let outcome = async {
        let bed = bed.start().await?;
        let place = bed.case("bench").await?;
        let stage = Stage::new(&bed, &place, case).await?;
        for run in 1..=runs {
            match stage.one(case, run, outage).await {
                Ok(one) => {
                    eprintln!("  {run}/{runs}: {one:?}");
                    found.runs.push(one);
                }
                Err(error) => {
                    eprintln!("  {run}/{runs}: {error:#}");
                    found.failures.push(format!("run {run}: {error:#}"));
                    stage.mend(outage).await?;
                }
            }
        }
        Ok::<(), anyhow::Error>(())
    }
    .await;
    if let Err(error) = outcome {
        eprintln!("  {error:#}");
        found.failures.push(format!("{error:#}"));
    }
    found
}

struct Stage<'a> {
    bed: &'a Bed,
    place: &'a Place<'a>,
    web: Exposed<'a>,
    address: Ipv4Addr,
}

impl<'a> Stage<'a> {
    async fn new(bed: &'a Bed, place: &'a Place<'a>, case: &Case) -> Result<Self> {
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
    async fn repoint(&self, without: usize) -> Result<()> {
        let name = self.bed.lan.host(without).name();
        let mut pods: Vec<_> = self.bed.pods().into_iter().filter(|pod| pod.node != name).collect();
        if pods.is_empty() {
            pods = self.bed.pods();
        }
        self.web.publish(&pods).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok(())
    }

    async fn one(&self, case: &Case, run: usize, outage: Duration) -> Result<Run> {
        if case.fault == Fault::NewService {
            return self.new_service(run).await;
        }
        let bed = self.bed;
        let owner = self.owner()?;
        self.repoint(owner).await?;
        let mac = bed.macs(self.address.into())?;
        let (probe, answerers) = self.watch()?;
        let begun = Instant::now();
        match case.fault {
            Fault::PowerLoss => {
                bed.power_off(owner)?;
                tokio::time::sleep(Duration::from_secs(7)).await;
            }
            Fault::Kill => {
                bed.announcer(owner).kill();
                tokio::time::sleep(Duration::from_secs(2)).await;
                bed.announcer(owner).start()?;
                tokio::time::sleep(Duration::from_secs(4)).await;
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
            Fault::NewService => unreachable!("it has its own way"),
        }
        probe.wait_for_answers(50, PATIENCE)?;
        let answers = answerers.report();
        let report = probe.stop();
        ensure!(report.answered > 0, "no answers at all after {:?}", begun.elapsed());
        self.recover(owner).await?;
        let after = self.owner()?;
        if case.dhcp {
            ensure!(bed.macs(self.address.into())? == mac, "the MAC has changed");
        }
        Ok(run_of(&report, answers.double, [owner, after]))
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
        // Beyond the grace that a detector gives to a new record (R5).
        tokio::time::sleep(Duration::from_secs(7)).await;
        self.web.reply(self.address.into(), 80).await?;
        Ok(())
    }

    /// After a run that failed somewhere in between.
    async fn mend(&self, patience: Duration) -> Result<()> {
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
        web.annotate("kube-vip.io/loadbalancerIPs", Some(&address.to_string())).await?;
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
        let double = answerers.report().double;
        drop(answerers);
        web.delete().await?;
        web.wait_until_withdrawn(address.into()).await?;
        Ok(Run {
            gap_ms: ms(gap),
            lost: 0,
            double_ms: ms(double),
            prober_stall_ms: 0.0,
            http_ms: Some(ms(http)),
            owners: [owner, owner],
        })
    }
}

fn run_of(report: &ProbeReport, double: Duration, owners: [usize; 2]) -> Run {
    Run {
        gap_ms: ms(report.longest_gap),
        lost: report.lost,
        double_ms: ms(double),
        prober_stall_ms: ms(report.longest_stall),
        http_ms: None,
        owners,
    }
}

/// Milliseconds with one decimal, which is more than the machine is good for.
pub fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}
