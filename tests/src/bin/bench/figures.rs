//! Numbers out of samples. Pure.

use std::time::Duration;

use serde::Serialize;

/// Median and tail of some durations, in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Quantiles {
    /// How many were measured.
    pub samples: usize,
    /// The smallest.
    pub min_ms: f64,
    /// The median: the lower one of the two in the middle.
    pub median_ms: f64,
    /// 99 of 100 are not larger; the largest where there are fewer than 100.
    pub p99_ms: f64,
    /// The largest.
    pub max_ms: f64,
    /// All of them, sorted.
    pub values_ms: Vec<f64>,
}

impl Quantiles {
    /// `None` without samples.
    pub fn of(mut samples: Vec<Duration>) -> Option<Self> {
        samples.sort_unstable();
        // Nearest rank: the smallest sample that this share of all samples does not exceed.
        let at = |percent: usize| samples.get((samples.len() * percent).div_ceil(100).max(1) - 1).copied().map(ms);
        let values_ms = samples.iter().copied().map(ms).collect();
        Some(Self {
            samples: samples.len(),
            min_ms: at(0)?,
            median_ms: at(50)?,
            p99_ms: at(99)?,
            max_ms: at(100)?,
            values_ms,
        })
    }
}

/// Milliseconds with one decimal, which is more than the machine is good for.
pub fn ms(duration: Duration) -> f64 {
    tenths(duration.as_secs_f64() * 1000.0)
}

/// Rounded to one decimal.
pub fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// `count` shared out over `n`, to two decimals.
pub fn per(count: usize, n: usize) -> f64 {
    let [count, n] = [count, n.max(1)].map(|value| f64::from(u32::try_from(value).unwrap_or(u32::MAX)));
    (count / n * 100.0).round() / 100.0
}

/// `count` in `time`, as so many per minute, to one decimal.
pub fn per_minute(count: usize, time: Duration) -> f64 {
    tenths(f64::from(u32::try_from(count).unwrap_or(u32::MAX)) * 60.0 / time.as_secs_f64().max(0.001))
}

/// Megabytes of 10^6 bytes, to one decimal.
pub fn megabytes(bytes: u64) -> f64 {
    let kilobytes = u32::try_from(bytes / 1000).unwrap_or(u32::MAX);
    tenths(f64::from(kilobytes) / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantiles(samples: impl IntoIterator<Item = u64>) -> Quantiles {
        Quantiles::of(samples.into_iter().map(Duration::from_millis).collect()).expect("there are samples")
    }

    #[test]
    fn the_tail_of_a_thousand_leaves_ten_out() {
        let found = quantiles((1..=1000).rev());
        assert_eq!((found.min_ms, found.median_ms, found.p99_ms, found.max_ms), (1.0, 500.0, 990.0, 1000.0));
    }

    #[test]
    fn the_tail_of_a_few_is_the_largest() {
        let found = quantiles([30, 10, 20]);
        assert_eq!((found.median_ms, found.p99_ms, found.max_ms), (20.0, 30.0, 30.0));
        let found = quantiles([7]);
        assert_eq!((found.min_ms, found.median_ms, found.p99_ms), (7.0, 7.0, 7.0));
        assert_eq!(quantiles([30, 10, 20]).values_ms, [10.0, 20.0, 30.0]);
        assert_eq!(Quantiles::of(Vec::new()), None);
    }

    #[test]
    fn shares_and_rates() {
        assert_eq!(per(2001, 1000).to_string(), "2");
        assert_eq!(per(7, 3).to_string(), "2.33");
        assert_eq!(per_minute(31, Duration::from_mins(1)).to_string(), "31");
        assert_eq!(megabytes(13_596_848).to_string(), "13.6");
    }
}
