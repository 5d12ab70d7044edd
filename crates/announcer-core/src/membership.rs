//! Keeps the membership Lease of this node (`node` mode). The engine says when to write which card; each write is a
//! renewal.
//!
//! A machine without I/O: it says what to read and write, and takes in the answers.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::ownership::node::Card;

/// Limit for one request. The Lease lasts longer than several such requests, so a slow API server can renew it too.
const LIMIT: Duration = Duration::from_secs(3);
/// Consecutive conflicts after which there is a pause.
const TRIES: u32 = 3;
/// Pause before the second attempt. It is short, because other nodes decide by the card which node may have an address,
/// and the engine requests the next write only with the next renewal. It doubles with each further attempt, because a
/// permanent refusal meets every node.
const AGAIN: Duration = Duration::from_secs(1);

/// An action of the caller. It replaces all earlier requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipAct<O> {
    /// Read the Lease, and answer with this number.
    Read(u64),
    /// Write the card into the object that was read, or into a new Lease.
    Write(u64, Option<O>, Box<Card>),
}

/// Answer to an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipAnswer<O> {
    /// The Lease; `None`: it does not exist.
    Found(Option<O>),
    /// The Lease after the write.
    Written(O),
    /// The Lease was changed by hand, deleted with its Node, or created by the previous process a moment ago.
    Conflict(String),
    /// Any other failure.
    Failed(String),
}

#[derive(Debug)]
enum State {
    Idle,
    /// The request with this number is under way, and is given up at `until`.
    Busy {
        id: u64,
        until: Instant,
    },
    /// The last attempt has failed; the next one is at `until`.
    Waiting {
        until: Instant,
    },
}

/// The membership Lease. `O` is what the caller keeps of the object to write it.
#[derive(Debug)]
pub struct Membership<O> {
    /// Duration of the Lease.
    duration: Duration,
    state: State,
    /// The card that is being written.
    doing: Option<Card>,
    /// The card that is written next.
    next: Option<Card>,
    /// The nodes that the last card calls silent.
    silent: BTreeSet<String>,
    /// When a request was last given up because a node fell silent.
    cut_short: Option<Instant>,
    /// The object as the API server returned it last.
    latest: Option<O>,
    tries: u32,
    pause: Duration,
    failing: bool,
    /// The error that was not reported yet.
    trouble: Option<String>,
    numbers: u64,
}

impl<O> Membership<O> {
    /// Makes the machine for a Lease of this duration.
    pub fn new(duration: Duration) -> Self {
        Self {
            duration,
            state: State::Idle,
            doing: None,
            next: None,
            silent: BTreeSet::new(),
            cut_short: None,
            latest: None,
            tries: 0,
            pause: AGAIN,
            failing: false,
            trouble: None,
            numbers: 0,
        }
    }

    /// The engine wants the Lease renewed. Of several waiting cards only the last counts.
    pub fn renew(&mut self, now: Instant, card: Card) -> Option<MembershipAct<O>> {
        let before = std::mem::replace(&mut self.silent, card.silent.keys().cloned().collect());
        let busy = matches!(self.state, State::Busy { .. });
        let may_cut_short = !busy || self.cut_short.is_none_or(|at| now >= at + LIMIT);
        if may_cut_short && !self.silent.is_subset(&before) {
            // The leader of etcd may be lost with that node. A write that is sent to it before its successor is elected
            // is not answered for 7 s. A read waits for the successor, and the write after it finds one. Nodes that
            // fall silent one after the other must not keep the Lease from being renewed.
            self.cut_short = if busy { Some(now) } else { self.cut_short };
            (self.latest, self.next) = (None, None);
            return self.begin(now, card);
        }
        match self.state {
            State::Idle => self.begin(now, card),
            State::Busy { .. } => {
                self.next = Some(card);
                None
            }
            // The next attempt writes the same card and is a renewal too.
            State::Waiting { .. } if self.doing.as_ref() == Some(&card) => None,
            State::Waiting { .. } => {
                self.pause = AGAIN;
                self.begin(now, card)
            }
        }
    }

    /// An action was answered.
    pub fn answered(&mut self, now: Instant, number: u64, answer: MembershipAnswer<O>) -> Option<MembershipAct<O>> {
        let State::Busy { id, .. } = self.state else { return None };
        if id != number {
            return None;
        }
        match answer {
            MembershipAnswer::Found(found) => self.write(now, found),
            MembershipAnswer::Written(object) => {
                self.latest = Some(object);
                (self.state, self.doing, self.pause, self.failing) = (State::Idle, None, AGAIN, false);
                self.next.take().and_then(|card| self.begin(now, card))
            }
            MembershipAnswer::Conflict(_) if self.tries < TRIES => Some(self.read(now)),
            MembershipAnswer::Conflict(why) | MembershipAnswer::Failed(why) => self.failed(now, why),
        }
    }

    /// Handles what is due.
    pub fn tick(&mut self, now: Instant) -> Option<MembershipAct<O>> {
        match self.state {
            State::Busy { until, .. } if until <= now => self.failed(now, format!("no answer within {LIMIT:?}")),
            State::Waiting { until } if until <= now => {
                // After a third of the duration the Lease would be renewed anyway.
                self.pause = (self.pause * 2).min(self.duration / 3).max(AGAIN);
                let card = self.doing.take()?;
                self.begin(now, card)
            }
            _ => None,
        }
    }

    /// When to call [`Self::tick`] if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Idle => None,
            State::Busy { until, .. } | State::Waiting { until } => Some(until),
        }
    }

    /// Why the Lease cannot be renewed; reported once per outage, because the engine keeps its VIPs.
    pub fn trouble(&mut self) -> Option<String> {
        self.trouble.take()
    }

    fn begin(&mut self, now: Instant, card: Card) -> Option<MembershipAct<O>> {
        (self.doing, self.tries) = (Some(card), 0);
        match self.latest.take() {
            Some(latest) => self.write(now, Some(latest)),
            None => Some(self.read(now)),
        }
    }

    fn read(&mut self, now: Instant) -> MembershipAct<O> {
        self.numbers += 1;
        self.state = State::Busy { id: self.numbers, until: now + LIMIT };
        MembershipAct::Read(self.numbers)
    }

    fn write(&mut self, now: Instant, found: Option<O>) -> Option<MembershipAct<O>> {
        let card = self.doing.clone()?;
        self.tries += 1;
        self.numbers += 1;
        self.state = State::Busy { id: self.numbers, until: now + LIMIT };
        Some(MembershipAct::Write(self.numbers, found, Box::new(card)))
    }

    /// After a failure it is unknown whether the write took effect, so the Lease is read before the next write.
    fn failed(&mut self, now: Instant, why: String) -> Option<MembershipAct<O>> {
        if !std::mem::replace(&mut self.failing, true) {
            self.trouble = Some(why);
        }
        self.state = State::Waiting { until: now + self.pause };
        match self.next.take() {
            Some(other) if self.doing.as_ref() != Some(&other) => {
                self.pause = AGAIN;
                self.begin(now, other)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use contract::Silence;

    use super::*;

    const LEASE: Duration = Duration::from_secs(15);

    fn card(serving: bool) -> Card {
        Card { serving, ..Card::default() }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_lease_is_read_once_and_written_over_what_the_last_write_returned() {
        let (now, mut lease) = (Instant::now(), Membership::new(LEASE));
        assert_eq!(lease.renew(now, card(false)), Some(MembershipAct::Read(1)));
        assert_eq!(
            lease.answered(now, 1, MembershipAnswer::Found(None)),
            Some(MembershipAct::Write(2, None, Box::new(card(false))))
        );
        assert_eq!(lease.answered(now, 2, MembershipAnswer::Written(5)), None);
        assert_eq!(
            (lease.deadline(), lease.renew(now, card(true))),
            (None, Some(MembershipAct::Write(3, Some(5), Box::new(card(true)))))
        );
    }

    #[test]
    fn of_cards_that_come_while_one_is_written_the_last_is_written_next() {
        let (now, mut lease) = (Instant::now(), Membership::<u64>::new(LEASE));
        lease.renew(now, card(false));
        assert_eq!(lease.renew(now, card(false)), None);
        assert_eq!(lease.renew(now, card(true)), None);
        lease.answered(now, 1, MembershipAnswer::Found(Some(1)));
        assert_eq!(
            lease.answered(now, 2, MembershipAnswer::Written(2)),
            Some(MembershipAct::Write(3, Some(2), Box::new(card(true))))
        );
        assert_eq!(lease.answered(now, 3, MembershipAnswer::Written(3)), None);
    }

    #[test]
    fn a_lease_that_changed_meanwhile_is_read_and_written_again_three_times() {
        let (now, mut lease) = (Instant::now(), Membership::new(LEASE));
        lease.renew(now, card(false));
        for number in [1, 3, 5] {
            let written = lease.answered(now, number, MembershipAnswer::Found(Some(number)));
            assert_eq!(written, Some(MembershipAct::Write(number + 1, Some(number), Box::new(card(false)))));
            let again = lease.answered(now, number + 1, MembershipAnswer::Conflict("changed".into()));
            assert_eq!(again, (number < 5).then_some(MembershipAct::Read(number + 2)));
        }
        assert_eq!((lease.trouble().as_deref(), lease.deadline()), (Some("changed"), Some(now + AGAIN)));
    }

    #[test]
    fn a_failure_is_told_once_and_tried_again_ever_more_seldom() {
        let (mut now, mut lease) = (Instant::now(), Membership::<u64>::new(LEASE));
        lease.renew(now, card(false));
        let mut pauses = Vec::new();
        for number in 1..=5 {
            assert_eq!(lease.answered(now, number, MembershipAnswer::Failed("no".into())), None);
            assert_eq!(lease.trouble().is_some(), number == 1);
            let next = lease.deadline().unwrap();
            pauses.push(next - now);
            now = next;
            // A renewal of the same is no reason to come earlier.
            assert_eq!(lease.renew(now, card(false)), None);
            assert_eq!(lease.tick(now), Some(MembershipAct::Read(number + 1)));
        }
        assert_eq!(pauses, [1, 2, 4, 5, 5].map(Duration::from_secs));
        lease.answered(now, 6, MembershipAnswer::Found(None));
        lease.answered(now, 7, MembershipAnswer::Written(1));
        lease.renew(now, card(false));
        lease.answered(now, 8, MembershipAnswer::Failed("again".into()));
        assert_eq!((lease.trouble().as_deref(), lease.deadline()), (Some("again"), Some(now + AGAIN)), "a new outage");
    }

    #[test]
    fn another_card_does_not_wait_for_the_next_attempt() {
        let (now, mut lease) = (Instant::now(), Membership::<u64>::new(LEASE));
        lease.renew(now, card(false));
        lease.answered(now, 1, MembershipAnswer::Failed("no".into()));
        assert_eq!(lease.renew(now + ms(10), card(true)), Some(MembershipAct::Read(2)));
        // The same if it came while the first was being written.
        assert_eq!(lease.renew(now + ms(10), card(false)), None);
        assert_eq!(
            lease.answered(now + ms(20), 2, MembershipAnswer::Failed("no".into())),
            Some(MembershipAct::Read(3))
        );
    }

    #[test]
    fn a_card_about_a_lost_node_does_not_wait_behind_a_write_that_etcd_has_lost_and_begins_with_a_read() {
        let (now, mut lease) = (Instant::now(), Membership::new(LEASE));
        let silence = Silence { uid: "u".into(), ms: 200, unanswered: Vec::new(), gateway: true, witnesses: 1 };
        let loss = || Card { silent: [("node-2".to_owned(), silence.clone())].into(), ..Card::default() };
        lease.renew(now, card(false));
        lease.answered(now, 1, MembershipAnswer::Found(Some(1)));
        assert_eq!(lease.renew(now, loss()), Some(MembershipAct::Read(3)));
        assert_eq!(lease.answered(now, 2, MembershipAnswer::Written(2)), None);
        assert_eq!(
            lease.answered(now, 3, MembershipAnswer::Found(Some(1))),
            Some(MembershipAct::Write(4, Some(1), Box::new(loss())))
        );
        lease.answered(now, 4, MembershipAnswer::Written(2));
        assert_eq!(lease.renew(now, loss()), Some(MembershipAct::Write(5, Some(2), Box::new(loss()))), "known by now");
        lease.answered(now, 5, MembershipAnswer::Written(3));
        assert_eq!(lease.renew(now, card(false)), Some(MembershipAct::Write(6, Some(3), Box::new(card(false)))));
        lease.answered(now, 6, MembershipAnswer::Written(4));
        assert_eq!(lease.renew(now, loss()), Some(MembershipAct::Read(7)), "lost again");
    }

    #[test]
    fn nodes_that_fall_silent_one_after_the_other_cut_one_request_short_in_three_seconds() {
        let (now, mut lease) = (Instant::now(), Membership::<u64>::new(LEASE));
        let silence = Silence { uid: "u".into(), ms: 200, unanswered: Vec::new(), gateway: true, witnesses: 1 };
        let lost = |count: u64| Card {
            silent: (0..count).map(|node| (format!("node-{node}"), silence.clone())).collect(),
            ..Card::default()
        };
        lease.renew(now, card(false));
        for (at, count, expected) in [
            (0, 1, Some(MembershipAct::Read(2))),
            (1000, 2, None),
            (2999, 3, None),
            (3000, 4, Some(MembershipAct::Read(3))),
            (3500, 5, None),
        ] {
            assert_eq!(lease.renew(now + ms(at), lost(count)), expected, "{at} ms");
        }
        let at = now + ms(3600);
        assert_eq!(
            lease.answered(at, 3, MembershipAnswer::Found(Some(1))),
            Some(MembershipAct::Write(4, Some(1), Box::new(lost(4))))
        );
        let next = MembershipAct::Write(5, Some(2), Box::new(lost(5)));
        assert_eq!(
            lease.answered(at, 4, MembershipAnswer::Written(2)),
            Some(next),
            "the last of those that came meanwhile"
        );
        lease.answered(at, 5, MembershipAnswer::Written(3));
        assert_eq!(lease.renew(at, lost(6)), Some(MembershipAct::Read(6)), "nothing is cut short");
    }

    #[test]
    fn an_api_that_does_not_answer_is_given_up_after_three_seconds_and_what_it_says_later_counts_for_nothing() {
        let (now, mut lease) = (Instant::now(), Membership::<u64>::new(LEASE));
        lease.renew(now, card(false));
        lease.answered(now, 1, MembershipAnswer::Found(None));
        assert_eq!(lease.tick(now + ms(2999)), None);
        assert_eq!((lease.tick(now + LIMIT), lease.trouble()), (None, Some("no answer within 3s".into())));
        assert_eq!(lease.answered(now + LIMIT, 2, MembershipAnswer::Written(1)), None);
        assert_eq!(lease.tick(now + LIMIT + AGAIN), Some(MembershipAct::Read(3)), "what took effect is read");
    }
}
