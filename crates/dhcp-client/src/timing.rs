//! When to try again.

use std::time::Duration;

use rand::{Rng, RngExt};

const LONGEST_BACK_OFF: Duration = Duration::from_secs(64);

/// RFC 2131 4.1: doubling up to 64 s, each wait shifted by up to a second, for ever. It starts at 1 s instead of the
/// RFC's 4: a lost first packet should not cost a Service four seconds, and one VIP is not a classroom of hosts that
/// are switched on together. The shift is at most a quarter of the wait, so that the short ones stay in order.
pub(crate) fn back_off(attempt: u32, rng: &mut impl Rng) -> Duration {
    let wait = Duration::from_secs(1 << attempt.saturating_sub(1).min(6)).min(LONGEST_BACK_OFF);
    let shift = (wait / 4).min(Duration::from_secs(1));
    wait.saturating_sub(shift) + (shift * 2).mul_f64(rng.random_range(0.0..=1.0))
}

/// A server that refuses again and again is asked less and less often; the first refusal costs nothing.
pub(crate) fn pause_after_nak(consecutive: u32, rng: &mut impl Rng) -> Duration {
    match consecutive {
        0 | 1 => Duration::ZERO,
        more => back_off(more - 1, rng),
    }
}

/// RFC 2131 4.4.5 for RENEW and REBIND: half of what remains, but at least 60 s; never beyond the end. A lease of less
/// than 20 minutes gets a twentieth of its length instead of the 60 s, else a lease of a minute or two would be asked
/// for once per phase, and one lost packet would end it.
pub(crate) fn extend_wait(remaining: Duration, lease: Duration) -> Duration {
    let least = (lease / 20).clamp(Duration::from_millis(250), Duration::from_mins(1));
    (remaining / 2).max(least).min(remaining)
}

/// RFC 2131 4.4.5 asks for fuzz around T1: two hundred Services that were created together shall not renew together for
/// ever. Only earlier, and by 3 % at most, so nobody who looks for a renewal at T1 is surprised.
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
