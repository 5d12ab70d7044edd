//! client-go's rules, one sentence each.

use super::super::Timing;
use super::super::hand_back::{HandBack, Step};
use super::*;

const ME: &str = "me";

struct Run {
    elector: Elector,
    start: Instant,
}

impl Run {
    fn new(on_loss: OnLoss) -> Self {
        let start = Instant::now();
        let config = LeaderConfig {
            namespace: "kube-system".into(),
            name: "cloud-controller-manager".into(),
            identity: ME.into(),
            component: "test".into(),
            timing: Timing::default(),
            on_loss,
            watch: true,
        };
        Self { elector: Elector::new(start, config), start }
    }

    /// `at` in seconds since the start; the wall clock runs along.
    fn at(&mut self, at: f64, input: Input) -> Option<Action> {
        self.elector.step(self.start + Duration::from_secs_f64(at), wall(at), input)
    }

    fn leads(&self) -> bool {
        self.elector.leadership().is_leading()
    }

    /// Creates the Lease and leads from second 0.
    fn leading(on_loss: OnLoss) -> Self {
        let mut run = Self::new(on_loss);
        run.at(0.0, Input::Tick);
        let Some(Action::Create(record)) = run.at(0.0, Input::Read(None)) else { panic!("a missing Lease is created") };
        assert_eq!(run.at(0.0, Input::Wrote(seen(record, "1"))), None);
        run
    }
}

fn wall(at: f64) -> Timestamp {
    #[allow(clippy::cast_possible_truncation)]
    Timestamp::from_millisecond(1_700_000_000_000 + (at * 1000.0) as i64).unwrap()
}

fn seen(record: Record, version: &str) -> Observation {
    Observation { record, version: version.into() }
}

fn held_by(holder: &str, renewed: f64, version: &str) -> Observation {
    seen(
        Record {
            holder: holder.into(),
            lease_duration: Duration::from_secs(15),
            acquire_time: Some(wall(0.0)),
            renew_time: Some(wall(renewed)),
            transitions: 4,
        },
        version,
    )
}

#[test]
fn a_missing_lease_is_created_with_both_times_and_no_transition() {
    let mut run = Run::new(OnLoss::End);
    assert_eq!(run.elector.leadership(), Leadership::Unknown);
    assert_eq!(run.at(0.0, Input::Tick), Some(Action::Read));
    let expected = Record {
        holder: ME.into(),
        lease_duration: Duration::from_secs(15),
        acquire_time: Some(wall(0.5)),
        renew_time: Some(wall(0.5)),
        transitions: 0,
    };
    assert_eq!(run.at(0.5, Input::Read(None)), Some(Action::Create(expected.clone())));
    assert!(!run.leads());
    run.at(0.6, Input::Wrote(seen(expected, "1")));
    assert!(run.leads());
}

/// H12.
#[test]
fn a_released_lease_is_taken_at_once_and_counts_a_transition() {
    let mut run = Run::new(OnLoss::End);
    run.at(0.0, Input::Tick);
    let Some(Action::Update { record, version }) = run.at(0.0, Input::Read(Some(held_by("", 0.0, "7")))) else {
        panic!("an empty holder means free")
    };
    assert_eq!((record.holder.as_str(), record.transitions, version.as_str()), (ME, 5, "7"));
    assert_eq!(record.acquire_time, Some(wall(0.0)));
}

/// decisions.md 18: whoever asks first after an outage must not take the Lease from a holder that is alive.
#[test]
fn time_in_which_the_api_did_not_answer_counts_against_no_holder_where_losing_is_not_the_end() {
    for (on_loss, taken_at_once) in [(OnLoss::KeepTrying, false), (OnLoss::End, true)] {
        let mut run = Run::new(on_loss);
        run.at(0.0, Input::Tick);
        assert_eq!(run.at(0.0, Input::Read(Some(held_by("other", 0.0, "7")))), None);
        for second in [2.0, 5.0, 8.0, 20.0, 40.0] {
            assert_eq!(run.at(second, Input::Tick), Some(Action::Read));
            assert_eq!(run.at(second + 0.5, Input::Failed), None);
        }
        assert_eq!(run.at(60.0, Input::Tick), Some(Action::Read));
        let taken = run.at(60.0, Input::Read(Some(held_by("other", 0.0, "7"))));
        assert_eq!(taken.is_some(), taken_at_once, "{on_loss:?}: {taken:?}");
        if taken_at_once {
            continue;
        }
        // 2 s had passed before the outage of 58 s: a holder that is dead is replaced 13 s after it.
        assert_eq!(run.at(72.0, Input::Tick), Some(Action::Read));
        assert_eq!(run.at(72.0, Input::Read(Some(held_by("other", 0.0, "7")))), None);
        assert_eq!(run.elector.deadline(), Some(run.start + Duration::from_secs(73)));
        run.at(73.0, Input::Tick);
        assert!(run.at(73.0, Input::Read(Some(held_by("other", 0.0, "7")))).is_some());
    }
}

/// H12.
#[test]
fn a_foreign_lease_is_taken_only_after_it_stood_still_for_its_own_duration_by_our_clock() {
    let mut run = Run::new(OnLoss::End);
    run.at(0.0, Input::Tick);
    // The renew time is ancient: it is another machine's clock and says nothing.
    assert_eq!(run.at(0.0, Input::Read(Some(held_by("other", -500.0, "7")))), None);
    assert_eq!(run.elector.leadership(), Leadership::Following { holder: "other".into() });
    assert_eq!(run.at(1.0, Input::Tick), None, "polled at the retry period");
    assert_eq!(run.at(2.0, Input::Tick), Some(Action::Read));
    assert_eq!(run.at(2.0, Input::Read(Some(held_by("other", 1.0, "8")))), None, "it renewed: the clock starts anew");
    for second in [4, 6, 8, 10, 12, 14, 16] {
        assert_eq!(run.at(f64::from(second), Input::Tick), Some(Action::Read));
        assert_eq!(run.at(f64::from(second), Input::Read(Some(held_by("other", 1.0, "8")))), None);
    }
    // 2 + 15, not the next full poll.
    assert_eq!(run.elector.deadline(), Some(run.start + Duration::from_secs(17)));
    assert_eq!(run.at(17.0, Input::Tick), Some(Action::Read));
    let taken = run.at(17.0, Input::Read(Some(held_by("other", 1.0, "8"))));
    assert!(matches!(taken, Some(Action::Update { record, .. }) if record.transitions == 5 && record.holder == ME));
}

#[test]
fn a_renewal_at_the_last_moment_keeps_the_lease_with_its_holder() {
    let mut run = Run::new(OnLoss::End);
    run.at(0.0, Input::Tick);
    run.at(0.0, Input::Read(Some(held_by("other", 0.0, "7"))));
    run.at(15.0, Input::Tick);
    assert_eq!(run.at(15.0, Input::Read(Some(held_by("other", 14.9, "8")))), None);
}

#[test]
fn a_lease_that_names_us_is_ours_to_go_on_with() {
    // The announcer's identity is its node: a restarted process goes on where it left.
    let mut run = Run::new(OnLoss::KeepTrying);
    run.at(0.0, Input::Tick);
    let Some(Action::Update { record, .. }) = run.at(0.0, Input::Read(Some(held_by(ME, 0.0, "7")))) else {
        panic!("renewed")
    };
    assert_eq!((record.transitions, record.acquire_time), (4, Some(wall(0.0))));
    assert_eq!(run.elector.leadership(), Leadership::Unknown, "until the renewal has arrived");
}

#[test]
fn losing_the_race_for_a_free_lease_means_following() {
    let mut run = Run::new(OnLoss::End);
    run.at(0.0, Input::Tick);
    run.at(0.0, Input::Read(Some(held_by("", 0.0, "7"))));
    assert_eq!(run.at(0.1, Input::Conflict), Some(Action::Read));
    assert_eq!(run.at(0.2, Input::Read(Some(held_by("other", 0.1, "8")))), None);
    assert_eq!(run.elector.leadership(), Leadership::Following { holder: "other".into() });
}

#[test]
fn a_lease_that_changes_all_the_time_is_not_read_in_a_tight_loop() {
    let mut run = Run::new(OnLoss::End);
    run.at(0.0, Input::Tick);
    run.at(0.0, Input::Read(Some(held_by("", 0.0, "7"))));
    assert_eq!(run.at(0.1, Input::Conflict), Some(Action::Read));
    run.at(0.2, Input::Read(Some(held_by("", 0.1, "8"))));
    assert_eq!(run.at(0.3, Input::Conflict), None);
    assert_eq!(run.elector.deadline(), Some(run.start + Duration::from_secs_f64(2.3)));
}

#[test]
fn the_leader_renews_every_retry_period_with_one_request_that_keeps_the_time_of_acquisition() {
    let mut run = Run::leading(OnLoss::End);
    assert_eq!(run.at(1.9, Input::Tick), None);
    let Some(Action::Update { record, version }) = run.at(2.0, Input::Tick) else { panic!("renews without reading") };
    assert_eq!((record.acquire_time, record.renew_time, record.transitions), (Some(wall(0.0)), Some(wall(2.0)), 0));
    assert_eq!(version, "1");
    run.at(2.1, Input::Wrote(seen(record, "2")));
    assert_eq!(run.elector.version(), Some("2"));
    assert_eq!(run.elector.renewed(), Some(run.start + Duration::from_secs(2)), "counted from when it was sent");
}

#[test]
fn a_leader_that_cannot_renew_ends_after_the_renew_deadline_of_its_round() {
    let mut run = Run::leading(OnLoss::End);
    for second in [2, 4, 6, 8, 10] {
        assert!(run.at(f64::from(second), Input::Tick).is_some());
        assert_eq!(run.at(f64::from(second), Input::Failed), None);
        assert!(run.leads());
    }
    // The round began at 2 s.
    assert_eq!(run.at(12.0, Input::Tick), None);
    assert!(run.elector.has_ended() && !run.leads());
    assert_eq!(run.elector.deadline(), None);
}

#[test]
fn nobody_believes_in_a_lease_for_longer_than_it_lasts() {
    let mut run = Run::new(OnLoss::KeepTrying);
    // Allowed by client-go's rules, although the deadline of a round ends after the Lease.
    run.elector.config.timing = Timing {
        lease_duration: Duration::from_secs(5),
        renew_deadline: Duration::from_secs(4),
        retry_period: Duration::from_secs(3),
    };
    run.at(0.0, Input::Tick);
    let Some(Action::Create(record)) = run.at(0.0, Input::Read(None)) else { panic!("a missing Lease is created") };
    run.at(0.0, Input::Wrote(seen(record, "1")));
    let confirmed = |run: &Run| matches!(run.elector.leadership(), Leadership::Leading { confirmed: true, .. });
    run.at(4.9, Input::Tick);
    assert!(confirmed(&run));
    run.at(5.0, Input::Tick);
    assert!(!confirmed(&run));
}

#[test]
fn a_request_that_hangs_does_not_delay_the_loss() {
    let mut run = Run::leading(OnLoss::End);
    assert!(run.at(2.0, Input::Tick).is_some());
    assert_eq!(run.elector.deadline(), Some(run.start + Duration::from_secs(12)));
    run.at(12.0, Input::Tick);
    assert!(run.elector.has_ended());
}

#[test]
fn a_renewal_counts_from_when_it_was_sent_however_late_its_answer() {
    for (answered, lost) in [(2.0, 14.0), (4.5, 14.0), (7.0, 14.0)] {
        let mut run = Run::leading(OnLoss::KeepTrying);
        let Some(Action::Update { record, .. }) = run.at(2.0, Input::Tick) else { panic!("renews") };
        run.at(answered, Input::Wrote(seen(record, "2")));
        let confirmed = |run: &Run| matches!(run.elector.leadership(), Leadership::Leading { confirmed: true, .. });
        // From here on no request is answered.
        run.at(lost - 0.1, Input::Tick);
        assert!(confirmed(&run), "answered at {answered} s");
        run.at(lost, Input::Tick);
        assert!(!confirmed(&run), "answered at {answered} s: others may take the Lease at 17 s");
    }
}

#[test]
fn a_renewal_that_is_answered_after_its_deadline_renews_nothing() {
    let mut run = Run::leading(OnLoss::End);
    let Some(Action::Update { record, .. }) = run.at(2.0, Input::Tick) else { panic!("renews") };
    // The process was stopped meanwhile: the answer is the first thing that it sees.
    run.at(20.0, Input::Wrote(seen(record, "2")));
    assert!(run.elector.has_ended() && !run.leads());
}

/// H12.
#[test]
fn a_process_that_was_stopped_for_longer_than_its_deadline_does_not_believe_it_leads() {
    let mut run = Run::leading(OnLoss::End);
    assert_eq!(run.at(60.0, Input::Tick), None);
    assert!(run.elector.has_ended());
}

#[test]
fn a_leader_that_keeps_trying_stays_unconfirmed_until_the_api_answers() {
    let mut run = Run::leading(OnLoss::KeepTrying);
    let since = run.start;
    for second in [2, 4, 6, 8, 10, 12, 14, 30] {
        run.at(f64::from(second), Input::Tick);
        run.at(f64::from(second), Input::Failed);
    }
    assert_eq!(run.elector.leadership(), Leadership::Leading { since, confirmed: false });
    let Some(Action::Update { record, .. }) = run.at(32.0, Input::Tick) else { panic!("keeps trying") };
    assert_eq!(record.transitions, 0);
    run.at(32.0, Input::Wrote(seen(record, "2")));
    assert_eq!(run.elector.leadership(), Leadership::Leading { since, confirmed: true });
}

/// A machine and its clock stood still. Another replica held the Lease meanwhile, and has released it.
#[test]
fn a_leader_that_keeps_trying_is_unconfirmed_while_the_lease_has_no_holder() {
    for (on_loss, still) in [(OnLoss::KeepTrying, false), (OnLoss::End, true)] {
        let mut run = Run::leading(on_loss);
        let since = run.start;
        assert!(matches!(run.at(2.0, Input::Tick), Some(Action::Update { .. })));
        assert_eq!(run.at(2.0, Input::Conflict), Some(Action::Read));
        let Some(Action::Update { record, .. }) = run.at(2.0, Input::Read(Some(held_by("", 2.0, "9")))) else {
            panic!("nobody holds it")
        };
        assert_eq!(run.elector.leadership(), Leadership::Leading { since, confirmed: still });
        run.at(2.0, Input::Wrote(seen(record, "10")));
        assert_eq!(run.elector.leadership(), Leadership::Leading { since, confirmed: true });
    }
}

#[test]
fn a_leader_that_keeps_trying_follows_as_soon_as_it_reads_another_holder() {
    let mut run = Run::leading(OnLoss::KeepTrying);
    for second in [2, 14] {
        run.at(f64::from(second), Input::Tick);
        run.at(f64::from(second), Input::Failed);
    }
    run.at(20.0, Input::Tick);
    assert_eq!(run.at(20.0, Input::Conflict), Some(Action::Read));
    assert_eq!(run.at(20.0, Input::Read(Some(held_by("other", 19.0, "9")))), None);
    assert_eq!(run.elector.leadership(), Leadership::Following { holder: "other".into() });
    assert!(!run.elector.has_ended());
    run.at(22.0, Input::Tick);
    assert!(matches!(run.at(22.0, Input::Read(Some(held_by("", 21.0, "10")))), Some(Action::Update { .. })));
}

#[test]
fn a_stolen_lease_ends_leadership_without_waiting_for_the_deadline() {
    let mut run = Run::leading(OnLoss::End);
    run.at(1.0, Input::Watched(Some(held_by("other", 1.0, "2"))));
    assert!(run.elector.has_ended());
}

#[test]
fn a_late_watch_event_from_before_our_own_write_is_ignored() {
    let mut run = Run::new(OnLoss::End);
    run.at(0.0, Input::Tick);
    let Some(Action::Update { record, .. }) = run.at(0.0, Input::Read(Some(held_by("", 0.0, "7")))) else { panic!() };
    run.at(0.1, Input::Wrote(seen(record, "8")));
    assert_eq!(run.at(0.2, Input::Watched(Some(held_by("other", 0.0, "6")))), None);
    assert_eq!(run.at(0.2, Input::Watched(Some(held_by("", 0.0, "7")))), None);
    assert!(run.leads());
}

#[test]
fn a_watching_replica_takes_a_released_lease_without_waiting_for_its_poll() {
    let mut run = Run::new(OnLoss::End);
    run.at(0.0, Input::Tick);
    run.at(0.0, Input::Read(Some(held_by("other", 0.0, "7"))));
    let action = run.at(0.3, Input::Watched(Some(held_by("", 0.3, "8"))));
    assert!(matches!(action, Some(Action::Update { version, .. }) if version == "8"));
}

#[test]
fn watched_renewals_send_nothing() {
    let mut run = Run::new(OnLoss::End);
    run.at(0.0, Input::Tick);
    run.at(0.0, Input::Read(Some(held_by("other", 0.0, "7"))));
    assert_eq!(run.at(0.3, Input::Watched(Some(held_by("other", 0.3, "8")))), None);
}

/// H12.
#[test]
fn release_names_nobody_for_one_second_and_only_the_holder_releases() {
    let run = Run::leading(OnLoss::End);
    let Some(Action::Update { record, version }) = run.elector.release(wall(1.0)) else {
        panic!("the leader releases")
    };
    assert_eq!((record.holder.as_str(), record.lease_duration, version.as_str()), ("", Duration::from_secs(1), "1"));
    assert_eq!((record.renew_time, record.transitions), (Some(wall(1.0)), 0));

    let mut following = Run::new(OnLoss::End);
    following.at(0.0, Input::Tick);
    following.at(0.0, Input::Read(Some(held_by("other", 0.0, "7"))));
    assert_eq!(following.elector.release(wall(1.0)), None);
}

/// Two replicas on one Lease with compare-and-swap, requests that fail or are delayed, and pauses: never two leaders.
mod race {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn two_replicas_never_lead_at_once(
            script in proptest::collection::vec((0..2_usize, 0..4_u8, 1..4000_u64), 1..400),
        ) {
            let mut runs = [Run::new(OnLoss::End), Run::new(OnLoss::End)];
            runs[1].start = runs[0].start;
            runs[0].elector.config.identity = "a".into();
            runs[1].elector.config.identity = "b".into();
            let mut lease: Option<(Record, u64)> = None;
            let mut pending: [Option<Action>; 2] = [None, None];
            let mut millis = 0;
            for (who, luck, pause) in script {
                millis += pause;
                #[allow(clippy::cast_precision_loss)]
                let now = millis as f64 / 1000.0;
                let input = match (pending[who].take(), luck) {
                    (None, _) => Input::Tick,
                    (Some(_), 0) => Input::Failed,
                    (Some(Action::Read), _) => {
                        Input::Read(lease.clone().map(|(record, version)| seen(record, &version.to_string())))
                    }
                    (Some(Action::Create(record)), _) if lease.is_none() => {
                        lease = Some((record.clone(), 1));
                        if luck == 1 { Input::Failed } else { Input::Wrote(seen(record, "1")) }
                    }
                    (Some(Action::Update { record, version }), _)
                        if lease.as_ref().is_some_and(|(_, current)| current.to_string() == version) =>
                    {
                        let next = version.parse::<u64>().unwrap() + 1;
                        lease = Some((record.clone(), next));
                        if luck == 1 { Input::Failed } else { Input::Wrote(seen(record, &next.to_string())) }
                    }
                    (Some(_), _) => Input::Conflict,
                };
                pending[who] = runs[who].at(now, input);
                // Time passes for the other one too: its deadline timer runs.
                let other = 1 - who;
                if pending[other].is_none() {
                    pending[other] = runs[other].at(now, Input::Tick);
                } else {
                    runs[other].at(now, Input::Tick);
                }
                prop_assert!(!(runs[0].leads() && runs[1].leads()), "both lead at {now} s");
            }
        }
    }
}

#[test]
fn only_a_lease_that_was_seen_since_our_last_write_surely_bears_another_name() {
    let mut run = Run::new(OnLoss::KeepTrying);
    assert!(run.elector.may_name_us(), "from a former life");
    run.at(0.0, Input::Tick);
    run.at(0.0, Input::Read(Some(held_by("other", 0.0, "1"))));
    assert!(!run.elector.may_name_us());
    run.at(2.0, Input::Tick);
    let action = run.at(2.0, Input::Read(Some(held_by("", 2.0, "2"))));
    assert!(matches!(action, Some(Action::Update { .. })));
    assert!(run.elector.may_name_us(), "on its way");
    run.at(7.0, Input::Failed);
    assert!(run.elector.may_name_us(), "and perhaps arrived");
    run.at(9.0, Input::Tick);
    run.at(9.0, Input::Read(Some(held_by("other", 9.0, "3"))));
    assert!(!run.elector.may_name_us());
    run.at(11.0, Input::Tick);
    run.at(11.0, Input::Read(Some(held_by(ME, 11.0, "4"))));
    run.at(11.0, Input::Conflict);
    assert!(run.elector.may_name_us(), "it was seen in it");
    run.at(11.0, Input::Read(None));
    run.at(11.0, Input::Conflict);
    assert!(!run.elector.may_name_us(), "refused is not written");
}

#[test]
fn of_a_holder_whose_host_is_silent_two_missed_renewals_are_enough() {
    let other = "node-1_0e1c";
    for (name, silent, taken) in [
        ("nobody is silent", &[][..], false),
        ("another host is silent", &["node-2"], false),
        ("the holder's host is silent", &["node-1"], true),
    ] {
        let mut run = Run::new(OnLoss::End);
        run.at(0.0, Input::Tick);
        assert_eq!(run.at(0.0, Input::Read(Some(held_by(other, 0.0, "7")))), None);
        let hosts = silent.iter().map(|host| (*host).to_owned()).collect();
        assert_eq!(run.at(1.0, Input::Silent(hosts)), None, "{name}: one renewal is not even due");
        assert_eq!(run.at(2.0, Input::Tick), Some(Action::Read));
        assert_eq!(run.at(2.0, Input::Read(Some(held_by(other, 0.0, "7")))), None, "{name}");
        assert_eq!(run.at(4.0, Input::Tick), Some(Action::Read));
        assert_eq!(run.at(4.0, Input::Read(Some(held_by(other, 0.0, "7")))), None, "{name}: the second may be late");
        assert_eq!(run.at(4.4, Input::Tick).is_some(), taken, "{name}");
        if taken {
            let update = run.at(4.4, Input::Read(Some(held_by(other, 0.0, "7"))));
            assert!(matches!(update, Some(Action::Update { ref version, .. }) if version == "7"), "{name}: {update:?}");
        }
    }
}

#[test]
fn a_holder_that_renews_keeps_the_lease_however_silent_its_host_is_said_to_be() {
    let mut run = Run::new(OnLoss::End);
    run.at(0.0, Input::Tick);
    run.at(0.0, Input::Read(Some(held_by("node-1_a", 0.0, "7"))));
    run.at(0.5, Input::Silent(["node-1".to_owned()].into()));
    for (second, version) in [(2.0, "8"), (4.0, "9"), (6.0, "10"), (8.0, "11")] {
        assert_eq!(run.at(second, Input::Watched(Some(held_by("node-1_a", second, version)))), None);
        let read = run.at(second + 0.1, Input::Tick);
        if read.is_some() {
            assert_eq!(run.at(second + 0.2, Input::Read(Some(held_by("node-1_a", second, version)))), None);
        }
    }
    // It falls silent in the API, too: the Lease is taken; and a word that is taken back counts no more.
    run.at(8.5, Input::Silent(BTreeSet::new()));
    run.at(12.5, Input::Tick);
    assert_eq!(run.at(12.6, Input::Read(Some(held_by("node-1_a", 8.0, "11")))), None);
}

#[test]
fn a_leader_that_was_called_silent_and_lives_stops_at_its_next_renewal() {
    let mut run = Run::leading(OnLoss::End);
    assert!(matches!(run.at(2.0, Input::Tick), Some(Action::Update { .. })));
    assert_eq!(run.at(2.1, Input::Conflict), Some(Action::Read));
    assert_eq!(run.at(2.2, Input::Read(Some(held_by("node-2_b", 2.0, "2")))), None);
    assert!(!run.leads() && run.elector.has_ended());
}

#[test]
fn a_replica_that_waits_asks_nothing_while_the_watch_shows_each_renewal() {
    let mut run = Run::new(OnLoss::KeepTrying);
    run.at(0.0, Input::Tick);
    run.at(0.0, Input::Read(Some(held_by("other", 0.0, "1"))));
    for (round, second) in (1_u32..).zip([1.9, 3.9, 5.9, 7.9, 9.9]) {
        let renewed = held_by("other", second, &(round + 1).to_string());
        assert_eq!(run.at(second, Input::Watched(Some(renewed))), None);
        assert_eq!(run.at(second + 1.9, Input::Tick), None, "nothing is asked");
    }
    // A renewal is late, or the watch has died in silence.
    assert_eq!(run.at(12.9, Input::Tick), Some(Action::Read));
    assert_eq!(run.at(12.9, Input::Read(Some(held_by("other", 12.0, "7")))), None);
    assert_eq!(run.at(14.9, Input::Tick), Some(Action::Read), "it is asked until the watch speaks again");
    assert_eq!(run.at(14.9, Input::Read(Some(held_by("other", 14.0, "8")))), None);
    assert_eq!(run.at(15.0, Input::Watched(Some(held_by("other", 15.0, "9")))), None);
    assert_eq!(run.at(17.9, Input::Tick), None);
    // Handed back: taken at once.
    assert!(matches!(run.at(17.9, Input::Watched(Some(held_by("", 17.9, "10")))), Some(Action::Update { .. })));
}

/// A holder whose machine stood still together with its clock learns only from the refusal of its write.
#[test]
fn a_release_that_is_refused_tells_who_holds_the_lease() {
    for (name, read, expected) in [
        ("nobody", Input::Read(Some(held_by("", 1.0, "2"))), HandBack::Done),
        ("it is deleted", Input::Read(None), HandBack::Done),
        ("another replica", Input::Read(Some(held_by("other", 1.0, "2"))), HandBack::Taken("other".into())),
        ("the API does not answer", Input::Failed, HandBack::Uncertain),
    ] {
        let run = Run::leading(OnLoss::KeepTrying);
        let Ok((mut handing_back, _)) = run.elector.hand_back(wall(1.0)) else { panic!("the leader hands back") };
        assert_eq!(handing_back.step(Input::Conflict), Step::Send(Action::Read), "{name}");
        assert_eq!(handing_back.step(read), Step::End(expected.clone()), "{name}");
        assert_eq!(expected.is_confirmed(), expected != HandBack::Uncertain, "{name}");
    }
}
