//! A silent node: where it has got to, what was written for it, and when to look again.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::decide::Doubt;
use super::{AGAIN, SAID, SELDOM};
use crate::provider::Standing;

/// Pauses that grow end here.
const LONGEST: Duration = Duration::from_mins(1);

/// Where a silent node has got to.
#[derive(Debug)]
pub enum Stage {
    /// Nothing is written; what was said of it last.
    Open(Option<Doubt>),
    /// Its pods are marked; so many looks since.
    Marked(usize),
    /// Its kubelet accepts connections or has put a mark right: it lives. Nothing more until it is heard; `true`: our
    /// endpoints are taken back.
    Refuted(bool),
    /// It is heard again since then; so many looks since.
    Heard(Instant, usize),
}

/// A silent node.
#[derive(Debug)]
pub struct Case {
    pub uid: String,
    pub since: Instant,
    pub stage: Stage,
    pub next: Instant,
    /// What the cloud has said: about its machine, and whether hosts are being upgraded.
    pub machine: Option<(Instant, Standing, bool)>,
    /// Pods that are known to bear the mark: the API server has said so. That one of them is ready shows that a kubelet
    /// lives; of a pod whose mark was refused by a conflict it shows nothing.
    pub pods: BTreeSet<String>,
    /// Pods whose endpoints we have written, or tried to: an answer may have been lost.
    pub endpoints: BTreeSet<String>,
    /// The pause after the next failure.
    pause: Duration,
    /// The pause while the finding stays the same.
    said: Duration,
}

impl Case {
    pub fn new(now: Instant, uid: &str) -> Self {
        Self {
            uid: uid.to_owned(),
            since: now,
            stage: Stage::Open(None),
            next: now,
            machine: None,
            pods: BTreeSet::new(),
            endpoints: BTreeSet::new(),
            pause: AGAIN,
            said: SAID,
        }
    }

    pub fn is_lost(&self) -> bool {
        matches!(self.stage, Stage::Marked(_))
    }

    /// Nothing was written for it.
    pub fn is_untouched(&self) -> bool {
        self.pods.is_empty() && self.endpoints.is_empty()
    }

    /// Something has failed, or may not be done now. True: for the first time in a row.
    pub fn back_off(&mut self) -> bool {
        self.next = Instant::now() + self.pause;
        let first = self.pause == AGAIN;
        self.pause = (self.pause * 2).min(LONGEST);
        first
    }

    /// A right is missing: somebody has to grant it, which takes its time.
    pub fn rest(&mut self) {
        self.next = Instant::now() + SELDOM;
    }

    /// The requests were answered.
    pub fn went_well(&mut self) {
        self.pause = AGAIN;
    }

    /// Nothing is done, because of `doubt`. True: that is new.
    pub fn doubted(&mut self, doubt: Doubt, until: Option<Instant>) -> bool {
        let known = matches!(&self.stage, Stage::Open(Some(before)) if before.word() == doubt.word());
        self.said = if known { (self.said * 2).min(LONGEST) } else { SAID };
        let now = Instant::now();
        self.next = until.map_or(now + self.said, |until| until.min(now + AGAIN));
        self.stage = Stage::Open(Some(doubt));
        !known
    }

    /// Whether what it waits for has come about, as far as that is known without a request: the pause has grown
    /// meanwhile.
    pub fn is_stirred(&self, enough: bool, silent: usize) -> bool {
        match &self.stage {
            Stage::Open(Some(Doubt::OneWatcher)) => enough,
            Stage::Open(Some(Doubt::TooMany { silent: told, .. })) => *told != silent,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_a_minute_and_begin_anew() {
        let mut case = Case::new(Instant::now(), "u");
        let pauses = |case: &Case| case.next.duration_since(Instant::now()).as_millis();
        let mut failed = || (case.back_off(), pauses(&case));
        assert_eq!([failed(), failed(), failed()], [(true, 500), (false, 1000), (false, 2000)]);
        let last = (0..10).map(|_| failed()).last();
        assert_eq!(last, Some((false, 60_000)));
        case.went_well();
        assert!(case.back_off());
        let mut doubted = |doubt| (case.doubted(doubt, None), pauses(&case));
        assert_eq!([(); 3].map(|()| doubted(Doubt::OneWatcher)), [(true, 2000), (false, 4000), (false, 8000)]);
        assert_eq!(doubted(Doubt::HostUpgrade), (true, 2000));
        assert!(!case.is_stirred(true, 1));
        case.doubted(Doubt::OneWatcher, None);
        assert!(case.is_stirred(true, 1) && !case.is_stirred(false, 1));
    }
}
