//! The rate limit of the host controller's client, as client-go has it: a token bucket that may be overdrawn, in order
//! of arrival. Host pace spec 5.1

use parking_lot::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// Pure part: how long a request has to wait.
#[derive(Debug, Clone)]
struct Tokens {
    per_second: f64,
    burst: f64,
    left: f64,
    at: Instant,
}

impl Tokens {
    fn reserve(&mut self, now: Instant) -> Duration {
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + elapsed * self.per_second).min(self.burst) - 1.0;
        self.at = now;
        Duration::from_secs_f64((-self.left).max(0.0) / self.per_second)
    }
}

/// One bucket for all requests that change load balancers and pools. Without limits it lets everything through.
#[derive(Debug)]
pub struct Bucket(Option<Mutex<Tokens>>);

impl Bucket {
    /// No limit.
    pub fn unlimited() -> Self {
        Self(None)
    }

    /// Full at start.
    pub fn new(per_second: f64, burst: f64) -> Self {
        Self(Some(Mutex::new(Tokens { per_second, burst, left: burst, at: Instant::now() })))
    }

    /// Waits for one token. Reservations are served in the order in which they were made.
    pub async fn take(&self) {
        let Some(tokens) = &self.0 else { return };
        let wait = tokens.lock().reserve(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_leave_in_a_burst_of_ten_then_every_200_ms() {
        let start = Instant::now();
        let mut tokens = Tokens { per_second: 5.0, burst: 10.0, left: 10.0, at: start };
        let waits: Vec<_> = (0..13).map(|_| tokens.reserve(start).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 200, 400, 600]);
        let later = start + Duration::from_mins(1);
        assert_eq!(tokens.reserve(later), Duration::ZERO);
        assert!((tokens.left - 9.0).abs() < 1e-9, "never fuller than the burst");
    }
}
