//! The window of an upgrade of the hosts, and when it has lasted too long. Pure.

/// Signals that have not changed for this long no longer suspend anything, until they change.
pub(super) const STALE: i64 = 4 * 3600;
/// The longest duration of a window, whatever changes.
pub(super) const LONGEST: i64 = 24 * 3600;
/// Seconds for which a process has to run before it finds that a window has lasted too long. The clock of a machine
/// that has just started may be hours ahead, and what the window suspends cannot be undone. Within this time it
/// learns the right time.
pub(super) const WATCHED: i64 = 120;

/// An open window: a time in which an upgrade, or silence of the host, suspends actions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradeWindow {
    /// When it opened.
    pub opened: i64,
    /// What opened it, in words.
    pub cause: String,
    /// When the signals changed last.
    pub changed: i64,
    /// When a signal was last seen.
    pub called: i64,
    /// There was a sign of an upgrade; silence alone is none.
    pub upgrade: bool,
    /// The window has lasted too long: it suspends nothing any more.
    pub spent: bool,
    /// UID of the plan that ran last in this window; empty if none did. `None`: a former version wrote the window.
    pub plan: Option<String>,
    /// Hash of the signals; `None` after a restart.
    pub(super) signals: Option<u64>,
}

impl UpgradeWindow {
    /// Reduces times in the future to `now`: the clock was set back since. Else nothing would be over before it shows
    /// those times again. What was too long by the former clock alone was not.
    pub(super) fn reduce_to(&mut self, now: i64) {
        for time in [&mut self.opened, &mut self.changed, &mut self.called] {
            *time = now.min(*time);
        }
        self.spent &= self.is_too_long(now);
    }

    /// Whether it lasts too long, by the clock.
    fn is_too_long(&self, now: i64) -> bool {
        now - self.changed >= STALE || now - self.opened >= LONGEST
    }

    /// Whether it is found now to have lasted too long. `running`: how long this process has looked at windows, in
    /// seconds.
    pub(super) fn gets_spent(&self, now: i64, running: i64) -> bool {
        !self.spent && self.is_too_long(now) && running >= WATCHED
    }
}
