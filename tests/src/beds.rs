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
        let (guard, bed) = self.free().await;
        Ok((guard, bed.get(start).await?))
    }

    /// Who finds both taken waits for whichever is free first.
    async fn free(&'static self) -> (MutexGuard<'static, ()>, &'static Shared<Bed>) {
        let [first, second] = &self.0;
        tokio::select! {
            biased;
            guard = first.0.lock() => (guard, &first.1),
            guard = second.0.lock() => (guard, &second.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_finds_both_beds_taken_gets_the_one_that_is_free_first() {
        static BEDS: Beds = Beds::new();
        for freed in 0..2 {
            let mut taken = vec![BEDS.free().await, BEDS.free().await];
            let waiting = tokio::spawn(BEDS.free());
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished());
            let (_, bed) = taken.remove(freed);
            assert!(std::ptr::eq(waiting.await.unwrap().1, bed));
        }
    }
}
