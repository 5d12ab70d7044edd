//! What a prober saw, from its journal.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use super::{Journal, ProbeOptions, RETRANSMISSION, answerer};
use crate::stall::Stalls;

/// What a prober saw.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct ProbeReport {
    /// Requests whose fate is known.
    pub sent: u64,
    /// Requests answered in time.
    pub answered: u64,
    /// Requests refused or not answered in time.
    pub lost: u64,
    /// From the start to the sending of the first and of the last of them.
    pub lost_between: Option<(Duration, Duration)>,
    /// Lost requests in groups, each of which was under way at one moment: the number of groups. One event makes one
    /// group.
    pub lost_moments: u64,
    /// How many of the lost ones, at most, were under way only because the machine kept processes waiting.
    pub lost_explained: u64,
    /// From the start to the first answer.
    pub first_answer: Option<Duration>,
    /// The longest time between two answers that follow each other, counted at the client; an open end counts as well.
    /// Zero if nothing was lost.
    pub longest_gap: Duration,
    /// What of a gap the machine's business does not explain: a prober that sends nothing gets no answer, and who waits
    /// for a processor does nothing. See [`crate::stall`].
    pub outage: Duration,
    /// The longest time in which the prober itself sent nothing: a busy machine. A gap is not known better than this.
    pub longest_stall: Duration,
    /// Answers that came only after TCP had sent something again, or after as long a time; the machine's stalls are
    /// subtracted.
    pub late: u64,
    /// The latest of them took so long.
    pub latest: Duration,
    /// Answers by who gave them: the `node` field of our echo server, else the whole first line.
    pub answered_by: BTreeMap<String, u64>,
    /// The latest answer.
    pub last_answer: Option<String>,
    /// The latest failure.
    pub last_failure: Option<String>,
}

impl fmt::Display for ProbeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} sent, {} answered ({} late, {} ms at most), {} lost",
            self.sent,
            self.answered,
            self.late,
            self.latest.as_millis(),
            self.lost
        )?;
        match self.lost_between {
            Some((first, last)) if first == last => write!(f, " after {:.2} s", first.as_secs_f64())?,
            Some((first, last)) => {
                write!(f, " between {:.2} s and {:.2} s", first.as_secs_f64(), last.as_secs_f64())?;
            }
            None => {}
        }
        write!(
            f,
            ", longest gap {} ms, outage {} ms (prober stalled at most {} ms), by {:?}",
            self.longest_gap.as_millis(),
            self.outage.as_millis(),
            self.longest_stall.as_millis(),
            self.answered_by
        )?;
        if self.lost > 0 {
            write!(f, ", lost at {} moments, {} by stalls", self.lost_moments, self.lost_explained)?;
        }
        if let Some(failure) = &self.last_failure {
            write!(f, ", last failure: {failure}")?;
        }
        Ok(())
    }
}

/// Requests that were under way at one moment, and were lost.
struct Together {
    /// The first of them had met its fate.
    moment: Instant,
    first: Instant,
    last: Instant,
    count: u64,
}

impl Together {
    fn add(&mut self, sent: Instant, at: Instant) {
        (self.first, self.last, self.count) = (self.first.min(sent), self.last.max(at), self.count + 1);
    }
}

/// Pure: the same journal always gives the same report.
pub(super) fn summarize(journal: &Journal, machine: &Stalls, end: Instant, options: ProbeOptions) -> ProbeReport {
    let mut report = ProbeReport {
        sent: journal.fates.len() as u64,
        longest_stall: journal.longest_stall,
        ..ProbeReport::default()
    };
    let gap = |report: &mut ProbeReport, from: Instant, to: Instant| {
        report.longest_gap = report.longest_gap.max(to - from);
        // What is shorter than what was found already need not be explained.
        if to - from > report.outage {
            let stalled = machine.within(from, to, &journal.stalls);
            report.outage = report.outage.max((to - from).saturating_sub(stalled));
        }
    };
    let (mut last_answer_at, mut last_answer) = (None, None);
    let mut lost = Vec::<Together>::new();
    for (sent, at, fate) in &journal.fates {
        match fate {
            Ok(answer) => {
                report.answered += 1;
                if *at - *sent >= RETRANSMISSION {
                    let took = (*at - *sent).saturating_sub(machine.within(*sent, *at, &journal.stalls));
                    report.late += u64::from(took >= RETRANSMISSION);
                    report.latest = report.latest.max(took);
                }
                report.first_answer.get_or_insert(*at - journal.start);
                let by = answerer(answer);
                if let Some(count) = report.answered_by.get_mut(by) {
                    *count += 1;
                } else {
                    report.answered_by.insert(by.to_owned(), 1);
                }
                gap(&mut report, last_answer_at.unwrap_or(*at), *at);
                last_answer_at = Some(*at);
                last_answer = Some(answer);
            }
            Err(failure) => {
                report.lost += 1;
                let after = *sent - journal.start;
                let (first, last) = report.lost_between.unwrap_or((after, after));
                // In order of fate, which is not the one in which they were sent.
                report.lost_between = Some((first.min(after), last.max(after)));
                match lost.last_mut() {
                    Some(these) if *sent <= these.moment => these.add(*sent, *at),
                    _ => lost.push(Together { moment: *at, first: *sent, last: *at, count: 1 }),
                }
                report.last_failure = Some(failure.clone());
            }
        }
    }
    report.last_answer = last_answer.cloned();
    for these in &lost {
        let stalled = machine.within(these.first, these.last, &journal.stalls);
        let sent_meanwhile = stalled.as_millis() / options.interval.as_millis().max(1);
        report.lost_moments += 1;
        report.lost_explained += u64::try_from(sent_meanwhile).unwrap_or(u64::MAX).min(these.count);
    }
    // Without a loss there is no gap, only the pace of the prober and of the machine. At the end, answers still under
    // way do not count.
    if report.lost == 0 {
        report.longest_gap = Duration::ZERO;
        report.outage = Duration::ZERO;
    } else if let Some(last) = last_answer_at
        && end.saturating_duration_since(last) > options.connect
    {
        gap(&mut report, last, end);
    }
    report
}
