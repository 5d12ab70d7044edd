//! The timing of retries.

use std::time::Duration;

use rand::{Rng, RngExt};

const LONGEST_BACK_OFF: Duration = Duration::from_secs(64);

/// The wait before retry number `attempt` (RFC 2131 4.1): doubling up to 64 s, each shifted by up to a second, without
/// end. It starts at 1 s instead of the RFC's 4 s, because a lost first packet should not cost a Service four seconds,
/// and a single VIP does not start together with many hosts. The shift is at most a quarter of the wait, so that short
/// waits keep their order.
pub(crate) fn back_off(attempt: u32, rng: &mut impl Rng) -> Duration {
    let wait = Duration::from_secs(1 << attempt.saturating_sub(1).min(6)).min(LONGEST_BACK_OFF);
    let shift = (wait / 4).min(Duration::from_secs(1));
    wait.saturating_sub(shift) + (shift * 2).mul_f64(rng.random_range(0.0..=1.0))
}

/// The pause after consecutive NAKs: none after the first one, then longer and longer.
pub(crate) fn pause_after_nak(consecutive: u32, rng: &mut impl Rng) -> Duration {
    match consecutive {
        0 | 1 => Duration::ZERO,
        more => back_off(more - 1, rng),
    }
}

/// The wait between two RENEWs or REBINDs (RFC 2131 4.4.5): half of what remains, but at least 60 s, and never beyond
/// the end. For a lease of less than 20 minutes the minimum is a twentieth of its length. Otherwise a lease of a minute
/// or two would be requested once per phase, and one lost packet would end it.
pub(crate) fn extend_wait(remaining: Duration, lease: Duration) -> Duration {
    let least = (lease / 20).clamp(Duration::from_millis(250), Duration::from_mins(1));
    (remaining / 2).max(least).min(remaining)
}

/// Adds the random fuzz to T1 that RFC 2131 4.4.5 requires, so that two hundred Services which were created together do
/// not renew together for ever. T1 only moves earlier, by at most 3 %.
pub(crate) fn fuzz(renew_after: Duration, rng: &mut impl Rng) -> Duration {
    renew_after.mul_f64(rng.random_range(0.97..=1.0))
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::SmallRng};

    use super::*;

    #[test]
    fn back_off_starts_soon_doubles_to_64_s_and_never_ends() {
        let mut rng = SmallRng::seed_from_u64(1);
        let expected = [
            (1, 750, 1250),
            (2, 1500, 2500),
            (3, 3000, 5000),
            (4, 7000, 9000),
            (7, 63_000, 65_000),
            (8, 63_000, 65_000),
            (u32::MAX, 63_000, 65_000),
        ];
        for (attempt, least, most) in expected {
            let waits: Vec<_> = (0..200).map(|_| back_off(attempt, &mut rng).as_millis()).collect();
            let (low, high) = (*waits.iter().min().unwrap(), *waits.iter().max().unwrap());
            assert!(low >= least && high <= most, "attempt {attempt}: {low}..{high} ms");
            assert!(high - low > (most - least) / 2, "attempt {attempt}: too little randomness: {low}..{high} ms");
        }
    }

    #[test]
    fn the_first_nak_costs_no_time_and_later_ones_more_and_more() {
        let mut rng = SmallRng::seed_from_u64(1);
        assert_eq!(pause_after_nak(1, &mut rng), Duration::ZERO);
        assert!(pause_after_nak(2, &mut rng) < Duration::from_secs(2));
        assert!(pause_after_nak(20, &mut rng) > Duration::from_mins(1));
    }

    #[test]
    fn renewals_wait_half_of_what_remains_and_at_least_a_minute() {
        let seconds = Duration::from_secs_f64;
        let cases = [
            ("half", 1350.0, 3600.0, 675.0),
            ("never less than a minute", 100.0, 3600.0, 60.0),
            ("never beyond the end", 30.0, 3600.0, 30.0),
            ("a short lease scales", 3.75, 10.0, 1.875),
            ("a short lease near its phase's end", 0.6, 10.0, 0.5),
            ("a lease of a second is not a flood", 0.375, 1.0, 0.25),
        ];
        for (name, remaining, lease, expected) in cases {
            assert_eq!(extend_wait(seconds(remaining), seconds(lease)), seconds(expected), "{name}");
        }
    }

    #[test]
    fn fuzz_is_early_and_small() {
        let mut rng = SmallRng::seed_from_u64(1);
        for _ in 0..100 {
            let at = fuzz(Duration::from_secs(100), &mut rng);
            assert!((97.0..=100.0).contains(&at.as_secs_f64()), "{at:?}");
        }
    }
}
