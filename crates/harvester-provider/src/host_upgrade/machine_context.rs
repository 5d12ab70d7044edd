//! Decides which status is shown for one machine. Pure.

use super::facts::{MachineFacts, PlanView, Power, Progress};
use super::node_history::{NodeHistory, is_long};
use super::shown::{Expect, Reason};
use super::stage::Stage;

/// One machine, with what is known of its host and of the upgrade.
pub(super) struct MachineContext<'a> {
    pub machine: &'a MachineFacts,
    pub host: &'a str,
    pub state: &'a str,
    pub plan: Option<&'a PlanView>,
    pub inferred: Option<&'a str>,
    pub upgrade: bool,
    /// When the window opened.
    pub opened: i64,
}

impl MachineContext<'_> {
    /// The reason to show; `None` if there is nothing to show for this Node.
    pub fn reason(&self, history: &NodeHistory, before: Option<Reason>) -> Option<Reason> {
        let machine = self.machine;
        let progress = self.plan.map(|plan| plan.progress);
        if self.upgrade {
            // A machine that had not run for long before has other reasons. Its Node would get the taint and the
            // warning of a machine that the upgrade has shut down, and would be expected back.
            let by_upgrade = !is_long(history.down, self.opened);
            let off = machine.should_run && machine.power == Power::Off && by_upgrade;
            let stage = Stage::of(self.state);
            // The upgrade touches the host or the machine. A migration without a known cause is not attributed to the
            // upgrade.
            let touched = progress == Some(Progress::Running) || self.inferred == Some(self.host) || machine.evacuating;
            if machine.migrating && touched {
                return Some(Reason::LiveMigrating);
            }
            if off {
                return Some(if stage == Stage::Changed { Reason::Rebooting } else { Reason::ShutDown });
            }
            // The process may have been down with the machine and not have seen it go off; then the stage of the host
            // is the evidence.
            let starting = machine.power == Power::Starting && by_upgrade;
            if starting && (history.off.is_some() || stage == Stage::Changed) {
                return Some(Reason::Restoring);
            }
            if machine.evacuating {
                return Some(Reason::PreDraining);
            }
        }
        let by_host = match (progress, Stage::of(self.state)) {
            (Some(Progress::Running | Progress::Failed), Stage::Done) | (Some(Progress::Succeeded), _) => {
                Reason::UpToDate
            }
            (Some(Progress::Failed), _) => Reason::Failed,
            (Some(Progress::Running), stage) => match stage {
                Stage::Waiting => Reason::Pending,
                Stage::Paused => Reason::Paused,
                Stage::Emptied => Reason::PreDraining,
                Stage::Changed => Reason::Rebooting,
                Stage::Failed => Reason::Failed,
                Stage::Done => Reason::UpToDate,
            },
            (Some(Progress::Idle) | None, _) if self.inferred == Some(self.host) => Reason::PreDraining,
            (Some(Progress::Idle) | None, _) => Reason::UpToDate,
        };
        // A Node without a status has nothing to correct.
        let quiet = by_host == Reason::UpToDate && before.is_none() && progress != Some(Progress::Running);
        let old = matches!(progress, Some(Progress::Failed)) && before.is_none() && !self.upgrade;
        (!quiet && !old).then_some(by_host)
    }

    pub fn expect(&self, before: Option<Expect>) -> Expect {
        let running = self.plan.is_some_and(|plan| plan.progress == Progress::Running);
        let over = Stage::of(self.state) == Stage::Done;
        if over || !(running || self.inferred == Some(self.host)) {
            return Expect::Nothing;
        }
        if self.plan.is_some_and(|plan| plan.single_host) {
            return Expect::Shutdown;
        }
        match self.machine.live_migratable {
            Some(true) => Expect::Migrate,
            Some(false) => Expect::Shutdown,
            None => before.unwrap_or(Expect::Nothing),
        }
    }
}
