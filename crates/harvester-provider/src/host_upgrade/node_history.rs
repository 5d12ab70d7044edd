//! The history of one Node during an upgrade of its host.

use std::collections::BTreeSet;

use super::facts::{MachineFacts, Power};
use super::shown::{NodeStatus, Reason};

/// A machine that has not run for this long before a window opens is not off because of the upgrade.
pub const OFF_FOR_LONG: i64 = 30 * 60;

/// What the controller remembers of a Node besides the status that is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeHistory {
    /// Reasons that an Event was written for in this window.
    pub told: BTreeSet<Reason>,
    /// Since when the machine is off.
    pub off: Option<i64>,
    /// Since when the machine does not run, whether it is off or does not get beyond its start.
    pub down: Option<i64>,
    /// It has not run for so long that no upgrade is the reason. The next process has to know that, too.
    pub down_for_long: bool,
    /// Seconds that the machine was off before that, in this window.
    pub was_off: i64,
    /// How often the machine has moved in this window.
    pub moves: u32,
    /// Its host when the window opened.
    pub first_host: String,
    /// Its addresses when the window opened.
    pub first_addresses: Vec<String>,
}

impl NodeHistory {
    /// Takes in the state of the machine at the time `now`. `opened`: when the window opened. `before`: what was shown
    /// of the Node so far.
    pub fn follow(&mut self, now: i64, opened: i64, machine: &MachineFacts, before: Option<&NodeStatus>) {
        match (machine.power, self.off) {
            (Power::Off | Power::Ended, None) => self.off = Some(now),
            (Power::On, Some(since)) => {
                self.was_off += now - since.max(opened);
                self.off = None;
            }
            _ => {}
        }
        self.down = match machine.power {
            Power::On => None,
            Power::Off | Power::Ended | Power::Starting => self.down.or(Some(now)),
            Power::Unknown => self.down,
        };
        self.down_for_long = is_long(self.down, now);
        let last = before.map_or(self.first_host.as_str(), |before| before.host.as_str());
        if !machine.host.is_empty() && !last.is_empty() && last != machine.host {
            self.moves += 1;
        }
    }

    /// What does not belong to a window: since when the machine does not run.
    pub fn beyond_window(&self) -> Self {
        Self { off: self.off, down: self.down, down_for_long: self.down_for_long, ..Self::default() }
    }
}

/// Whether `down` is long before the time `at`.
pub fn is_long(down: Option<i64>, at: i64) -> bool {
    down.is_some_and(|since| at - since >= OFF_FOR_LONG)
}
