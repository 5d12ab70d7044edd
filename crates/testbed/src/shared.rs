//! One bed for many tests of a test binary.

use std::future::Future;
use std::sync::Arc;

use anyhow::Result;
use tokio::sync::Mutex;

/// A fixture that the first test starts and all others share, for example
/// `static CLUSTER: Shared<ControlPlane> = Shared::new();`.
///
/// It is kept until the test binary ends: tests that do not overlap in time would otherwise start it again and again.
/// Its processes end with ours (see the crate's description), its directory goes with the janitor. A failed start is
/// tried again by the next.
pub struct Shared<T>(Mutex<Option<Arc<T>>>);

impl<T> Shared<T> {
    /// Nothing is started yet.
    pub const fn new() -> Self {
        Self(Mutex::const_new(None))
    }

    /// The running fixture; `start` is awaited by the first caller only, the others wait for it.
    pub async fn get<F: Future<Output = Result<T>>>(&self, start: impl FnOnce() -> F) -> Result<Arc<T>> {
        let mut slot = self.0.lock().await;
        if let Some(running) = &*slot {
            return Ok(running.clone());
        }
        let started = Arc::new(start().await?);
        *slot = Some(started.clone());
        Ok(started)
    }
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_test_gets_what_the_first_one_started() {
        static FIXTURE: Shared<u32> = Shared::new();
        assert!(FIXTURE.get(|| async { anyhow::bail!("no luck") }).await.is_err());
        let first = FIXTURE.get(|| async { Ok(1) }).await.unwrap();
        let second = FIXTURE.get(|| async { Ok(2) }).await.unwrap();
        assert_eq!((*first, *second), (1, 1));
    }
}
