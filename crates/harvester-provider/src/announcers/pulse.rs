//! Decides from successive checks of the announcers' Leases whether any of them is still renewed. Pure: no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// How long a Lease may stay unrenewed. Longer than a rollout, or the reboot of a single node.
pub const PATIENCE: Duration = Duration::from_mins(5);

/// The result of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// Nothing can be concluded.
    Unknown,
    /// At least one Lease is being renewed.
    Alive,
    /// No Lease is renewed any more, although at least one was before.
    Missing,
}

/// One Lease.
#[derive(Debug)]
struct Beat {
    renewal: String,
    /// When a check last found a different renewal time than the check before.
    renewed: Option<Instant>,
}

impl Beat {
    fn is_recent(&self, now: Instant) -> bool {
        self.renewed.is_some_and(|at| now.saturating_duration_since(at) < PATIENCE)
    }
}

/// The announcers' Leases by name, as the checks so far have seen them.
#[derive(Debug, Default)]
pub struct AnnouncerLeases {
    beats: BTreeMap<String, Beat>,
    /// Time of the last check, successful or not.
    looked: Option<Instant>,
}

impl AnnouncerLeases {
    /// Adds Leases that count as renewed although there was no earlier check to compare with.
    pub fn presume(&mut self, now: Instant, leases: BTreeMap<String, String>) {
        let beats = leases.into_iter().map(|(name, renewal)| (name, Beat { renewal, renewed: Some(now) }));
        self.beats.extend(beats);
    }

    /// Compares the Leases of a new check (name and `renewTime`) with those of the check before.
    pub fn look(&mut self, now: Instant, leases: BTreeMap<String, String>) -> Finding {
        self.looked = Some(now);
        let there: BTreeSet<String> = leases.keys().cloned().collect();
        for (name, renewal) in leases {
            match self.beats.get_mut(&name) {
                Some(beat) if beat.renewal == renewal => {}
                Some(beat) => *beat = Beat { renewal, renewed: Some(now) },
                None => drop(self.beats.insert(name, Beat { renewal, renewed: None })),
            }
        }
        let alive = self.beats.values().any(|beat| beat.is_recent(now));
        // A Lease that was deleted is evidence only while no other one is renewed: nodes come and go.
        self.beats.retain(|name, beat| there.contains(name) || !alive && beat.renewed.is_some());
        match (alive, self.beats.values().any(|beat| beat.renewed.is_some())) {
            (true, _) => Finding::Alive,
            (false, true) => Finding::Missing,
            (false, false) => Finding::Unknown,
        }
    }

    /// Records a check that failed. The announcers may not have reached the API either, so the time without an answer
    /// does not count against them. Leases that were silent for long when the outage began stay silent: an outage
    /// revives no announcer.
    pub fn blind(&mut self, now: Instant) {
        let passed = self.looked.replace(now).map_or(Duration::ZERO, |looked| now.saturating_duration_since(looked));
        for beat in self.beats.values_mut().filter(|beat| beat.is_recent(now)) {
            beat.renewed = beat.renewed.map(|at| at + passed);
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
        let mut pulse = AnnouncerLeases::default();
        assert_eq!(pulse.look(start, leases(&[])), Finding::Unknown, "another announcer, without Leases");
        let left = [(LOCK, "long ago")];
        for minute in 0..30 {
            assert_eq!(pulse.look(start + MINUTE * minute, leases(&left)), Finding::Unknown, "left behind");
        }
        let alive = start + MINUTE * 30;
        assert_eq!(pulse.look(alive, leases(&[(LOCK, "now")])), Finding::Alive);
        assert_eq!(pulse.look(alive + PATIENCE / 2, leases(&[(LOCK, "now")])), Finding::Alive, "a roll-out");
        assert_eq!(pulse.look(alive + PATIENCE, leases(&[(LOCK, "now")])), Finding::Missing);
        assert_eq!(pulse.look(alive + PATIENCE + MINUTE, leases(&[])), Finding::Missing, "it went with its node");
        assert_eq!(pulse.look(alive + PATIENCE * 2, leases(&[(LOCK, "later")])), Finding::Alive);
    }

    #[test]
    fn one_of_many_announcers_is_enough_and_nodes_that_are_gone_are_forgotten() {
        let start = Instant::now();
        let mut pulse = AnnouncerLeases::default();
        let mut found = Finding::Unknown;
        for minute in 0..60 {
            let renewal = minute.to_string();
            let passing = format!("harvester-announcer-{}", minute / 3);
            let both = leases(&[("harvester-announcer-stays", &renewal), (&passing, &renewal)]);
            found = pulse.look(start + MINUTE * minute, both);
        }
        assert_eq!((found, pulse.beats.len()), (Finding::Alive, 2));
    }

    #[test]
    fn an_api_that_was_away_gives_announcers_their_time_anew() {
        let start = Instant::now();
        let mut pulse = AnnouncerLeases::default();
        pulse.look(start, leases(&[(LOCK, "1")]));
        pulse.look(start + MINUTE, leases(&[(LOCK, "2")]));
        (2..=60).for_each(|minute| pulse.blind(start + MINUTE * minute));
        let back = start + MINUTE * 60;
        assert_eq!(pulse.look(back + MINUTE, leases(&[(LOCK, "2")])), Finding::Alive);
        assert_eq!(pulse.look(back + PATIENCE, leases(&[(LOCK, "2")])), Finding::Missing);
    }

    #[test]
    fn a_look_that_fails_now_and_then_hides_nobody_who_is_silent() {
        let start = Instant::now();
        let mut pulse = AnnouncerLeases::default();
        pulse.look(start, leases(&[(LOCK, "1")]));
        pulse.look(start + MINUTE, leases(&[(LOCK, "2")]));
        let missed = (2..30).find(|minute| {
            let now = start + MINUTE * *minute;
            if minute % 3 == 0 {
                pulse.blind(now);
                return false;
            }
            pulse.look(now, leases(&[(LOCK, "2")])) == Finding::Missing
        });
        assert!(missed.is_some_and(|minute| minute <= 10), "{missed:?}");
    }

    #[test]
    fn an_outage_brings_back_nobody_who_was_missing_before() {
        let start = Instant::now();
        let mut pulse = AnnouncerLeases::default();
        pulse.look(start, leases(&[(LOCK, "1")]));
        pulse.look(start + MINUTE, leases(&[(LOCK, "2")]));
        let late = start + Duration::from_hours(1);
        assert_eq!(pulse.look(late, leases(&[(LOCK, "2")])), Finding::Missing);
        pulse.blind(late + MINUTE);
        assert_eq!(pulse.look(late + MINUTE * 2, leases(&[(LOCK, "2")])), Finding::Missing);
    }
}
