//! Decides from successive checks of the announcers' Leases whether any of them is still renewed. Pure: no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// How long a Lease may stay unrenewed. Longer than a rollout, or the reboot of a single node.
pub const PATIENCE: Duration = Duration::from_mins(5);

/// The result of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenewalState {
    /// Nothing can be concluded.
    Unknown,
    /// At least one Lease is being renewed.
    Alive,
    /// No Lease is renewed any more, although at least one was before.
    Missing,
}

/// One Lease.
#[derive(Debug)]
struct Lease {
    renewal: String,
    /// When a check last found a different renewal time than the check before.
    renewed: Option<Instant>,
}

impl Lease {
    fn is_recent(&self, now: Instant) -> bool {
        self.renewed.is_some_and(|at| now.saturating_duration_since(at) < PATIENCE)
    }
}

/// The announcers' Leases by name, as the checks so far have seen them.
#[derive(Debug, Default)]
pub struct Renewals {
    leases_seen: BTreeMap<String, Lease>,
    /// Time of the last check, successful or not.
    checked: Option<Instant>,
}

impl Renewals {
    /// Adds Leases that count as renewed although there was no earlier check to compare with.
    pub fn presume(&mut self, now: Instant, leases: BTreeMap<String, String>) {
        let leases_seen = leases.into_iter().map(|(name, renewal)| (name, Lease { renewal, renewed: Some(now) }));
        self.leases_seen.extend(leases_seen);
    }

    /// Compares the Leases of a new check (name and `renewTime`) with those of the check before.
    pub fn compare(&mut self, now: Instant, leases: BTreeMap<String, String>) -> RenewalState {
        self.checked = Some(now);
        let there: BTreeSet<String> = leases.keys().cloned().collect();
        for (name, renewal) in leases {
            match self.leases_seen.get_mut(&name) {
                Some(lease) if lease.renewal == renewal => {}
                Some(lease) => *lease = Lease { renewal, renewed: Some(now) },
                None => drop(self.leases_seen.insert(name, Lease { renewal, renewed: None })),
            }
        }
        let alive = self.leases_seen.values().any(|lease| lease.is_recent(now));
        // A Lease that was deleted is evidence only while no other one is renewed: nodes come and go.
        self.leases_seen.retain(|name, lease| there.contains(name) || !alive && lease.renewed.is_some());
        match (alive, self.leases_seen.values().any(|lease| lease.renewed.is_some())) {
            (true, _) => RenewalState::Alive,
            (false, true) => RenewalState::Missing,
            (false, false) => RenewalState::Unknown,
        }
    }

    /// Records a check that failed. The announcers may not have reached the API either, so the time without an answer
    /// does not count against them. Leases that were silent for long when the outage began stay silent: an outage
    /// revives no announcer.
    pub fn failed_check(&mut self, now: Instant) {
        let passed = self.checked.replace(now).map_or(Duration::ZERO, |checked| now.saturating_duration_since(checked));
        for lease in self.leases_seen.values_mut().filter(|lease| lease.is_recent(now)) {
            lease.renewed = lease.renewed.map(|at| at + passed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "plndr-svcs-lock";

    const MINUTE: Duration = Duration::from_mins(1);

    fn leases(all: &[(&str, &str)]) -> BTreeMap<String, String> {
        all.iter().map(|(name, renewal)| ((*name).to_owned(), (*renewal).to_owned())).collect()
    }

    #[test]
    fn silence_is_missed_only_where_a_lease_was_seen_being_renewed() {
        let start = Instant::now();
        let mut renewals = Renewals::default();
        assert_eq!(renewals.compare(start, leases(&[])), RenewalState::Unknown, "another announcer, without Leases");
        let left = [(LOCK, "long ago")];
        for minute in 0..30 {
            assert_eq!(renewals.compare(start + MINUTE * minute, leases(&left)), RenewalState::Unknown, "left behind");
        }
        let alive = start + MINUTE * 30;
        assert_eq!(renewals.compare(alive, leases(&[(LOCK, "now")])), RenewalState::Alive);
        assert_eq!(renewals.compare(alive + PATIENCE / 2, leases(&[(LOCK, "now")])), RenewalState::Alive, "a roll-out");
        assert_eq!(renewals.compare(alive + PATIENCE, leases(&[(LOCK, "now")])), RenewalState::Missing);
        assert_eq!(
            renewals.compare(alive + PATIENCE + MINUTE, leases(&[])),
            RenewalState::Missing,
            "it went with its node"
        );
        assert_eq!(renewals.compare(alive + PATIENCE * 2, leases(&[(LOCK, "later")])), RenewalState::Alive);
    }

    #[test]
    fn one_of_many_announcers_is_enough_and_nodes_that_are_gone_are_forgotten() {
        let start = Instant::now();
        let mut renewals = Renewals::default();
        let mut found = RenewalState::Unknown;
        for minute in 0..60 {
            let renewal = minute.to_string();
            let passing = format!("harvester-announcer-{}", minute / 3);
            let both = leases(&[("harvester-announcer-stays", &renewal), (&passing, &renewal)]);
            found = renewals.compare(start + MINUTE * minute, both);
        }
        assert_eq!((found, renewals.leases_seen.len()), (RenewalState::Alive, 2));
    }

    #[test]
    fn an_api_that_was_away_gives_announcers_their_time_anew() {
        let start = Instant::now();
        let mut renewals = Renewals::default();
        renewals.compare(start, leases(&[(LOCK, "1")]));
        renewals.compare(start + MINUTE, leases(&[(LOCK, "2")]));
        (2..=60).for_each(|minute| renewals.failed_check(start + MINUTE * minute));
        let back = start + MINUTE * 60;
        assert_eq!(renewals.compare(back + MINUTE, leases(&[(LOCK, "2")])), RenewalState::Alive);
        assert_eq!(renewals.compare(back + PATIENCE, leases(&[(LOCK, "2")])), RenewalState::Missing);
    }

    #[test]
    fn a_look_that_fails_now_and_then_hides_nobody_who_is_silent() {
        let start = Instant::now();
        let mut renewals = Renewals::default();
        renewals.compare(start, leases(&[(LOCK, "1")]));
        renewals.compare(start + MINUTE, leases(&[(LOCK, "2")]));
        let missed = (2..30).find(|minute| {
            let now = start + MINUTE * *minute;
            if minute % 3 == 0 {
                renewals.failed_check(now);
                return false;
            }
            renewals.compare(now, leases(&[(LOCK, "2")])) == RenewalState::Missing
        });
        assert!(missed.is_some_and(|minute| minute <= 10), "{missed:?}");
    }

    #[test]
    fn an_outage_brings_back_nobody_who_was_missing_before() {
        let start = Instant::now();
        let mut renewals = Renewals::default();
        renewals.compare(start, leases(&[(LOCK, "1")]));
        renewals.compare(start + MINUTE, leases(&[(LOCK, "2")]));
        let late = start + Duration::from_hours(1);
        assert_eq!(renewals.compare(late, leases(&[(LOCK, "2")])), RenewalState::Missing);
        renewals.failed_check(late + MINUTE);
        assert_eq!(renewals.compare(late + MINUTE * 2, leases(&[(LOCK, "2")])), RenewalState::Missing);
    }
}
