//! The limit of requests per second: `--kube-api-qps` and `--kube-api-burst`. A token bucket as in client-go. A request
//! that finds it empty reserves its own token and waits for it, so requests are sent in the order of their arrival.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// The token bucket. Clones share it. `None` in [`super::Settings::limit`] means no limit.
#[derive(Debug, Clone)]
pub struct Limit {
    per_second: f64,
    burst: f64,
    bucket: Arc<Mutex<Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    /// Available tokens; a negative number is the number of waiting requests.
    tokens: f64,
    filled: Instant,
}

impl Limit {
    /// Creates the limit; `None` for a rate of zero or less, as in client-go. A `burst` of zero means the tokens of one
    /// second.
    pub fn new(per_second: f64, burst: u32) -> Option<Self> {
        if !per_second.is_finite() || per_second <= 0.0 {
            return None;
        }
        let burst = if burst == 0 { per_second.ceil() } else { f64::from(burst) };
        let bucket = Bucket { tokens: burst, filled: Instant::now() };
        Some(Self { per_second, burst, bucket: Arc::new(Mutex::new(bucket)) })
    }

    /// Takes a token; returns how long to wait for it.
    pub(super) fn take(&self, now: Instant) -> Duration {
        let mut bucket = self.bucket.lock();
        let gained = now.saturating_duration_since(bucket.filled).as_secs_f64() * self.per_second;
        bucket.tokens = (bucket.tokens + gained).min(self.burst) - 1.0;
        bucket.filled = bucket.filled.max(now);
        Duration::try_from_secs_f64(-bucket.tokens.min(0.0) / self.per_second).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_leaves_at_once_and_the_rest_at_the_rate() {
        let limit = Limit::new(5.0, 3).unwrap();
        let start = Instant::now();
        let waits: Vec<u128> = (0..6).map(|_| limit.take(start).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 200, 400, 600]);
        // Five more tokens by then, of which three were promised already.
        let later = start + Duration::from_secs(1);
        let waits: Vec<u128> = (0..3).map(|_| limit.take(later).as_millis()).collect();
        assert_eq!(waits, [0, 0, 200]);
        assert_eq!(limit.take(later + Duration::from_hours(1)), Duration::ZERO, "and never more than the burst");
        assert_eq!(limit.take(later + Duration::from_hours(1)), Duration::ZERO);
    }

    #[test]
    fn zero_is_no_limit() {
        assert!(Limit::new(0.0, 30).is_none() && Limit::new(-1.0, 30).is_none() && Limit::new(f64::NAN, 1).is_none());
    }
}
