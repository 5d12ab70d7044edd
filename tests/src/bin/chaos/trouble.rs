//! What breaks, and how it is mended.

use std::time::Instant;

use anyhow::Result;
use clap::ValueEnum;
use harvester_sim::faults::Faults;
use testbed::Fault;

use crate::strangers::{Operator, Other, SecondController};
use crate::{Chaos, say};

/// How many writes to one Service are permitted while somebody undoes them. In the longest fight, 24 s, these are six
/// at once and then after 1, 3, 7 and 15 s. A new process and a change by the user start again.
const FIGHT: usize = 4 * 11;

/// What is broken at the moment, and until when.
pub struct Trouble {
    pub what: Broken,
    pub until: Instant,
    cut: Option<Fault>,
    operator: Option<Operator>,
}

/// What may break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Broken {
    HarvesterApi,
    HarvesterCable,
    GuestApi,
    GuestCable,
    StandIn,
    Webhooks,
    /// They take requests and never answer.
    HangingWebhooks,
    Refusals,
    SlowHost,
    Conflicts,
    /// Refusals that say when to come again, and pages that have expired.
    BusyApi,
    /// Of Harvester's two caches the second is behind.
    StaleCache,
    /// Watches of Harvester say that they are alive, and nothing else.
    SilentWatches,
    Replica,
    /// The cloud-config is the one of another Harvester.
    Swap,
    /// A copy of the cluster, restored from a backup of this moment, runs beside it.
    Copy,
    /// Somebody takes away what is written on Services.
    Operator,
    /// Two announcers say that a node is silent, which lives.
    FalseVerdict,
}

impl Broken {
    /// What the stand-in is told.
    fn faults(self) -> Option<Faults> {
        let none = Faults::default();
        Some(match self {
            Self::Webhooks => Faults { webhook_outage: true, ..none },
            Self::HangingWebhooks => Faults { webhooks_hang: true, ..none },
            Self::Refusals => Faults { refuse_creates: Some("the host is being upgraded".to_owned()), ..none },
            Self::SlowHost => Faults { allocation_delay_ms: 3000, ..none },
            Self::Conflicts => Faults { conflicts: 10, ..none },
            Self::BusyApi => Faults { too_many_requests: 30, retry_after_seconds: 1, expired_continues: 5, ..none },
            Self::StaleCache => Faults { stale_seconds: 10, ..none },
            Self::SilentWatches => Faults { bookmarks_only: true, ..none },
            _ => return None,
        })
    }

    /// Factor for the duration: some troubles have to be noticed first, or are slow themselves.
    fn patience(self) -> u32 {
        match self {
            Self::HarvesterCable | Self::GuestCable | Self::Replica | Self::HangingWebhooks => 3,
            Self::StaleCache | Self::Swap | Self::Copy | Self::Operator => 4,
            _ => 1,
        }
    }
}

impl Chaos {
    pub async fn trouble(&mut self, what: Broken) -> Result<()> {
        let (mut cut, mut operator) = (None, None);
        let time = self.rng.time(1000, 6000) * what.patience();
        say(&format!("{what:?} for {time:?}"));
        match what {
            Broken::HarvesterApi => self.bed.harvester.api_server().kill(),
            Broken::HarvesterCable | Broken::GuestCable => {
                let ours = self.bed.ccm().host().nic("mgmt0");
                let far =
                    if what == Broken::GuestCable { self.bed.control_plane.nic() } else { self.bed.harvester.nic() };
                cut = Some(self.bed.control_plane.management().block(&ours, far)?);
            }
            Broken::GuestApi => self.bed.control_plane.api_server().kill(),
            Broken::StandIn => self.bed.harvester.kill_sim(),
            Broken::Replica => self.bed.ccm().pause()?,
            Broken::Swap => {
                if self.other.is_none() {
                    self.other = Some(Other::start(&self.bed)?);
                }
                if let Some(other) = &self.other {
                    self.bed.write_cloud_config(&other.cloud_config(&self.bed)?)?;
                }
                // A process that begins with the wrong file has never seen the right one.
                if self.rng.below(2) == 0 {
                    self.replicas().into_iter().try_for_each(|replica| replica.stop().and_then(|_| replica.start()))?;
                }
            }
            Broken::Copy => {
                let renamed = self.rng.below(2) == 0;
                match &mut self.copy {
                    Some(copy) => copy.copy_again(&self.bed, renamed).await?,
                    none => *none = Some(SecondController::of_copy(&self.bed, renamed).await?),
                }
            }
            Broken::FalseVerdict => self.false_reports.begin().await?,
            Broken::Operator => operator = Some(Operator::begin(self.services.clone())),
            _ => {}
        }
        if let Some(faults) = what.faults() {
            self.bed.set_faults(&faults)?;
        }
        *self.drawn.entry(what).or_default() += 1;
        // What it took to break it is no part of it.
        self.trouble = Some(Trouble { what, until: Instant::now() + time, cut, operator });
        Ok(())
    }

    /// Ends what is broken.
    pub async fn mend(&mut self) -> Result<()> {
        let Some(Trouble { what, cut, operator, .. }) = self.trouble.take() else { return Ok(()) };
        drop(cut);
        match what {
            Broken::HarvesterApi => self.bed.harvester.api_server().start().await?,
            Broken::GuestApi => self.bed.control_plane.api_server().start().await?,
            Broken::StandIn => self.bed.harvester.start_sim().await?,
            Broken::Replica => {
                // It may have been replaced meanwhile.
                let _ = self.bed.ccm().resume();
            }
            Broken::Swap => self.bed.write_cloud_config(&self.right_file)?,
            Broken::FalseVerdict => {
                let fought = self.false_reports.end().await?;
                self.truth.violations.extend(fought);
            }
            Broken::Copy => {
                if let Some(copy) = &self.copy {
                    copy.end();
                }
            }
            _ => {}
        }
        if what.faults().is_some() {
            self.bed.set_faults(&Faults::default())?;
        }
        if let Some(operator) = operator {
            let (undone, bound) = (operator.end(), FIGHT);
            self.truth.violations.extend(undone.into_iter().filter(|(_, times)| *times > bound).map(
                |(name, times)| format!("{name}: what somebody undoes was written {times} times, more than {bound}"),
            ));
        }
        Ok(())
    }
}
