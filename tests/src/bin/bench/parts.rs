//! The parts of the benchmark. Each has a bed of its own, so that any of them can be run alone and one that fails
//! spoils no other.

use std::time::Duration;

use anyhow::{Context, Result};
use e2e::{Bed, BedBuilder};
use serde::Serialize;

use crate::bench_bed::BenchBed;
use crate::ccm::{self, Case, Figure};
use crate::creation::{self, Creation};
use crate::crowd;
use crate::failover::{self, Failover};
use crate::progress::{say, show};
use crate::report;
use crate::restarts::{self, AnnouncerRestart, AtRest, CcmRestart, End, Handover};
use crate::steady::{self, Steady};

/// What a part measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Size, start, memory.
    Rest,
    /// New Services, a quiet time, restarts.
    Services {
        /// How many.
        count: usize,
        /// Where their addresses come from.
        ipam: &'static str,
        /// How it differs from the usual.
        variant: Variant,
    },
    /// Power losses.
    Failover,
    /// The cloud controller alone, against its bounds.
    Ccm(Case),
}

/// Differences between parts with Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// The stand-in for Harvester answers as fast as it can. kube-proxy has its default pace, one change of rules per
    /// second, where there are many Services; with one Service, where that pace would be all that is seen, it has a
    /// tenth of a second.
    Usual,
    /// One Service, kube-proxy at its default pace. Only creation is measured.
    DefaultProxy,
    /// The stand-in keeps a real host's pace. Only creation is measured.
    RealHost,
}

/// kube-proxy's pace where one Service is measured.
const FAST_PROXY: Duration = Duration::from_millis(100);

const fn many(count: usize, ipam: &'static str) -> Kind {
    Kind::Services { count, ipam, variant: Variant::Usual }
}

/// All parts, in order: name, what it measures, whether `--quick` includes it.
pub const PARTS: [(&str, Kind, bool); 20] = [
    ("rest", Kind::Rest, true),
    ("pool-1", many(1, "pool"), true),
    ("pool-1-default-proxy", Kind::Services { count: 1, ipam: "pool", variant: Variant::DefaultProxy }, true),
    ("pool-100", many(100, "pool"), true),
    ("pool-1000", many(1000, "pool"), false),
    ("dhcp-1", many(1, "dhcp"), true),
    ("dhcp-20", many(20, "dhcp"), true),
    ("real-100", Kind::Services { count: 100, ipam: "pool", variant: Variant::RealHost }, false),
    ("failover", Kind::Failover, true),
    ("ccm-one", Kind::Ccm(Case::One), true),
    ("ccm-fast-100", Kind::Ccm(Case::Fast(100, 0)), true),
    ("ccm-fast-1000", Kind::Ccm(Case::Fast(1000, 0)), false),
    ("ccm-slow-20", Kind::Ccm(Case::Slow(20)), true),
    ("ccm-real", Kind::Ccm(Case::Real), true),
    ("ccm-backlog", Kind::Ccm(Case::Backlog), true),
    ("ccm-healthy-100", Kind::Ccm(Case::Healthy(100)), true),
    ("ccm-healthy-500", Kind::Ccm(Case::Healthy(500)), false),
    ("ccm-outage", Kind::Ccm(Case::Outage), false),
    ("ccm-pools", Kind::Ccm(Case::Pools), false),
    ("ccm-nodes-1000", Kind::Ccm(Case::Nodes(1000)), false),
];

/// Too much for everyday: only when asked for with `--only`.
pub const LIMITS: [(&str, Kind); 4] = [
    ("ccm-fast-3000", Kind::Ccm(Case::Fast(3000, 1500))),
    ("ccm-fast-10000", Kind::Ccm(Case::Fast(10_000, 5000))),
    ("ccm-nodes-5000", Kind::Ccm(Case::Nodes(5000))),
    ("ccm-safe-mode", Kind::Ccm(Case::SafeMode(Duration::from_mins(10)))),
];

/// How thorough.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Services made one at a time, starts, power losses.
    pub runs: usize,
    /// Length of a quiet time.
    pub quiet: Duration,
}

/// What a part found.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PartResult {
    /// The part.
    pub part: String,
    /// What could not be measured, and why.
    pub failures: Vec<String>,
    /// Load of the machine when it began, averaged over a minute.
    pub load: f64,
    /// How long it took.
    pub seconds: f64,
    /// Arguments that were given to the cloud controller manager.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ccm_args: Vec<String>,
    /// See [`AtRest`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rest: Option<AtRest>,
    /// See [`Creation`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation: Option<Creation>,
    /// See [`Steady`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steady: Option<Steady>,
    /// See [`Handover`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handover: Option<Handover>,
    /// See [`CcmRestart`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ccm_restart: Option<CcmRestart>,
    /// See [`AnnouncerRestart`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub announcer_restarts: Vec<AnnouncerRestart>,
    /// From the first deletion until all Services were gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_ms: Option<f64>,
    /// See [`Failover`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failover: Option<Failover>,
    /// Figures beside their bounds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
}

/// Runs one part. It never fails as a whole: what could not be measured is in [`PartResult::failures`].
pub async fn run(name: &str, kind: Kind, effort: Effort, ccm_args: &[String]) -> PartResult {
    let mut found = PartResult {
        part: name.to_owned(),
        load: report::load(),
        ccm_args: ccm_args.to_vec(),
        ..PartResult::default()
    };
    let begin = std::time::Instant::now();
    say(format!("{name}: load {:.1}", found.load));
    if let Err(error) = Box::pin(measure(kind, effort, &mut found)).await {
        fail(&mut found, "this part", &error);
    }
    found.seconds = crate::figures::tenths(begin.elapsed().as_secs_f64());
    found
}

fn fail(found: &mut PartResult, what: &str, error: &anyhow::Error) {
    say(format!("FAILED: {what}: {error:#}"));
    found.failures.push(format!("{what}: {error:#}"));
}

async fn measure(kind: Kind, effort: Effort, found: &mut PartResult) -> Result<()> {
    if let Kind::Ccm(case) = kind {
        let args = found.ccm_args.clone();
        return Box::pin(ccm::measure(case, &args, &mut found.figures)).await;
    }
    let bed = found.ccm_args.iter().fold(Bed::builder(), |bed, arg| bed.ccm_arg(arg));
    match kind {
        Kind::Rest => {
            let bench = BenchBed::set(bed).await?;
            let rest = restarts::at_rest(&bench, effort.runs).await.map_err(|error| tell(&bench, error))?;
            show(report::rest(&rest));
            found.rest = Some(rest);
            let steady = steady::observe(&bench, 0, effort.quiet).await?;
            show(report::steady(&steady));
            found.steady = Some(steady);
        }
        Kind::Services { count, ipam, variant } => {
            Box::pin(services(bed, (count, ipam, variant), effort, found)).await?;
        }
        Kind::Failover => {
            let bench = BenchBed::set(bed.nodes(3)).await?;
            bench.start_product().await?;
            let failover =
                failover::measure(&bench, effort.runs.div_ceil(2)).await.map_err(|error| tell(&bench, error))?;
            show(report::failover(&failover));
            found.failover = Some(failover);
        }
        Kind::Ccm(_) => unreachable!("measured above"),
    }
    Ok(())
}

async fn services(
    bed: BedBuilder,
    (count, ipam, variant): (usize, &'static str, Variant),
    effort: Effort,
    found: &mut PartResult,
) -> Result<()> {
    let bed = match variant {
        Variant::RealHost => bed.harvester_flag("--profile=real"),
        Variant::Usual | Variant::DefaultProxy => bed,
    };
    let bench = BenchBed::set(bed).await?;
    if count == 1 && variant == Variant::Usual {
        bench.pace_proxies(FAST_PROXY)?;
    }
    bench.start_product().await?;
    bench.wait_until_quiet().await?;
    let prefix = format!("{ipam}{count}");
    say(format!("  making {count} {ipam} Services"));
    let one_by_one = match count {
        1 => Some(creation::one_by_one(&bench, &prefix, effort.runs, ipam).await.map_err(|error| tell(&bench, error))?),
        _ => None,
    };
    // The rest of this part needs Services that stay.
    let mut creation = creation::create(&bench, &prefix, count, ipam).await.map_err(|error| tell(&bench, error))?;
    let addresses = std::mem::take(&mut creation.addresses);
    let creation = one_by_one.unwrap_or(creation);
    show(report::creation(&creation));
    found.creation = Some(creation);
    if variant == Variant::Usual {
        after(&bench, count, &addresses, effort, found).await?;
    }
    say(format!("  deleting {count} Services"));
    match crowd::delete(&bench, &crowd::names(&prefix, count)).await {
        Ok(took) => {
            show(format!("    all {count} deleted and gone after {:.1} s", took.as_secs_f64()));
            found.deletion_ms = Some(crate::figures::ms(took));
        }
        Err(error) => fail(found, "deletion", &tell(&bench, error)),
    }
    Ok(())
}

/// Quiet time and restarts over Services that are there.
async fn after(
    bench: &BenchBed,
    count: usize,
    addresses: &[std::net::IpAddr],
    effort: Effort,
    found: &mut PartResult,
) -> Result<()> {
    bench.standby().start().context("failed to start a second cloud controller manager")?;
    bench.wait_until_ccm_is_ready(&bench.standby()).await?;
    bench.wait_until_quiet().await?;
    match steady::observe(bench, count, effort.quiet).await {
        Ok(steady) => {
            show(report::steady(&steady));
            found.steady = Some(steady);
        }
        Err(error) => fail(found, "quiet time", &tell(bench, error)),
    }
    say("  SIGTERM to the leading CCM while another one waits");
    match restarts::of_leader(bench, count).await {
        Ok(handover) => {
            show(report::handover(&handover));
            found.handover = Some(handover);
        }
        Err(error) => fail(found, "hand-over of the CCM", &tell(bench, error)),
    }
    say("  restart of the only CCM");
    match restarts::of_ccm(bench, count).await {
        Ok(restart) => {
            show(report::ccm_restart(&restart));
            found.ccm_restart = Some(restart);
        }
        Err(error) => fail(found, "restart of the CCM", &tell(bench, error)),
    }
    for (end, what) in [(End::Crash, "SIGKILL and start"), (End::Stop, "SIGTERM and start")] {
        say(format!("  {what} of the owning announcer"));
        match restarts::of_announcer(bench, addresses, end).await {
            Ok(restart) => {
                show(report::announcer_restart(&restart));
                found.announcer_restarts.push(restart);
            }
            Err(error) => fail(found, &format!("{what} of the announcer"), &tell(bench, error)),
        }
    }
    Ok(())
}

/// The error, with what the product has to say.
fn tell(bench: &BenchBed, error: anyhow::Error) -> anyhow::Error {
    show(bench.bed.log_lines_about("ERROR"));
    error
}
