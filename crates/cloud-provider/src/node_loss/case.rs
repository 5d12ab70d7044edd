//! The case of a silent node: its state, what was written for it, and when it is checked again.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::decide::LossDoubt;
use super::{AGAIN, SAID, SELDOM};
use crate::provider::MachineState;

/// The longest pause.
const LONGEST: Duration = Duration::from_mins(1);

/// The state of a case.
#[derive(Debug)]
pub enum CaseState {
    /// Nothing is written; with the last reported doubt.
    Open(Option<LossDoubt>),
    /// Its pods are marked; with the number of checks since then.
    Marked(usize),
    /// Its kubelet accepts connections or has corrected a mark, so it is alive. Nothing is done until the node is
    /// heard. `true`: the endpoints that the controller wrote are restored.
    Refuted(bool),
    /// The node is heard again since then; with the number of checks since then.
    Heard(Instant, usize),
}

/// The case of one silent node.
#[derive(Debug)]
pub struct LossCase {
    pub uid: String,
    pub since: Instant,
    pub state: CaseState,
    pub next: Instant,
    /// The last answer of the cloud with its time: the state of the machine, and whether hosts are being upgraded.
    pub machine: Option<(Instant, MachineState, bool)>,
    /// The last state of the machine that counted, also where the rest of that look failed.
    pub former: Option<MachineState>,
    /// Pods that have the mark, as confirmed by the API server. If one of them is ready, a kubelet is alive. A pod
    /// whose mark met a conflict proves nothing.
    pub pods: BTreeSet<String>,
    /// Pods whose endpoints were written, or may have been written because the answer was lost.
    pub endpoints: BTreeSet<String>,
    /// The pause after the next failure.
    pause: Duration,
    /// The pause while the result stays the same.
    said: Duration,
}

impl LossCase {
    pub fn new(now: Instant, uid: &str) -> Self {
        Self {
            uid: uid.to_owned(),
            since: now,
            state: CaseState::Open(None),
            next: now,
            machine: None,
            former: None,
            pods: BTreeSet::new(),
            endpoints: BTreeSet::new(),
            pause: AGAIN,
            said: SAID,
        }
    }

    pub fn is_lost(&self) -> bool {
        matches!(self.state, CaseState::Marked(_))
    }

    /// Whether nothing was written for the node.
    pub fn is_untouched(&self) -> bool {
        self.pods.is_empty() && self.endpoints.is_empty()
    }

    /// Records that something failed, or may not be done now. Returns true for the first failure in a row.
    pub fn back_off(&mut self) -> bool {
        self.next = Instant::now() + self.pause;
        let first = self.pause == AGAIN;
        self.pause = (self.pause * 2).min(LONGEST);
        first
    }

    /// Records that a right is missing. An administrator has to grant it, so the pause is long.
    pub fn rest(&mut self) {
        self.next = Instant::now() + SELDOM;
    }

    /// Records that the requests succeeded.
    pub fn went_well(&mut self) {
        self.pause = AGAIN;
    }

    /// Records that nothing is done because of `doubt`. Returns true if the doubt is new.
    pub fn doubted(&mut self, doubt: LossDoubt, until: Option<Instant>) -> bool {
        let known = matches!(&self.state, CaseState::Open(Some(before)) if before.word() == doubt.word());
        self.said = if known { (self.said * 2).min(LONGEST) } else { SAID };
        let now = Instant::now();
        self.next = until.map_or(now + self.said, |until| until.min(now + AGAIN));
        self.state = CaseState::Open(Some(doubt));
        !known
    }

    /// Whether the reason of the wait has gone, as far as that is known without a request. The pause may have grown
    /// long meanwhile.
    pub fn is_stirred(&self, enough: bool, silent: usize) -> bool {
        match &self.state {
            CaseState::Open(Some(LossDoubt::OneWatcher)) => enough,
            CaseState::Open(Some(LossDoubt::TooMany { silent: told, .. })) => *told != silent,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_a_minute_and_begin_anew() {
        let mut case = LossCase::new(Instant::now(), "u");
        let pauses = |case: &LossCase| case.next.duration_since(Instant::now()).as_millis();
        let mut failed = || (case.back_off(), pauses(&case));
        assert_eq!([failed(), failed(), failed()], [(true, 500), (false, 1000), (false, 2000)]);
        let last = (0..10).map(|_| failed()).last();
        assert_eq!(last, Some((false, 60_000)));
        case.went_well();
        assert!(case.back_off());
        let mut doubted = |doubt| (case.doubted(doubt, None), pauses(&case));
        assert_eq!([(); 3].map(|()| doubted(LossDoubt::OneWatcher)), [(true, 2000), (false, 4000), (false, 8000)]);
        assert_eq!(doubted(LossDoubt::HostUpgrade), (true, 2000));
        assert!(!case.is_stirred(true, 1));
        case.doubted(LossDoubt::OneWatcher, None);
        assert!(case.is_stirred(true, 1) && !case.is_stirred(false, 1));
    }
}
