//! Beds for tests that need one to themselves.

use std::sync::Arc;

use anyhow::Result;
use testbed::Shared;
use tokio::sync::{Mutex, MutexGuard};

use crate::bed::Bed;

/// Two beds of one kind: a test has its bed alone, and two tests run at a time.
pub struct Beds([(Mutex<()>, Shared<Bed>); 2]);

impl Beds {
    /// Nothing is started yet.
    #[allow(clippy::new_without_default)] // for statics, where there is no `default()`
    pub const fn new() -> Self {
        Self([const { (Mutex::const_new(()), Shared::new()) }; 2])
    }

    /// A bed that nobody else uses until the guard is dropped; `start` makes it if it is not there yet.
    pub async fn alone<F: Future<Output = Result<Bed>>>(
        &'static self,
        start: impl FnOnce() -> F,
    ) -> Result<(MutexGuard<'static, ()>, Arc<Bed>)> {
        let [first, second] = &self.0;
        let (guard, bed) = match first.0.try_lock() {
            Ok(guard) => (guard, &first.1),
            Err(_) => (second.0.lock().await, &second.1),
        };
        Ok((guard, bed.get(start).await?))
    }
}
