//! Beds for tests that need one to themselves.

use std::sync::Arc;

use anyhow::Result;
use testbed::Shared;
use tokio::sync::{Mutex, MutexGuard};

use crate::bed::Bed;

/// Some beds of one kind, two by default. Each test has a bed to itself, so as many tests as beds run at the same time.
/// Tests that mostly wait may have more beds.
pub struct Beds<const N: usize = 2>([(Mutex<()>, Shared<Bed>); N]);

impl<const N: usize> Beds<N> {
    /// Nothing is started yet.
    #[allow(clippy::new_without_default)] // for statics, where there is no `default()`
    pub const fn new() -> Self {
        Self([const { (Mutex::const_new(()), Shared::new()) }; N])
    }

    /// A bed that nobody else uses until the guard is dropped; `start` makes it if it is not there yet.
    pub async fn alone<F: Future<Output = Result<Bed>>>(
        &'static self,
        start: impl FnOnce() -> F,
    ) -> Result<(MutexGuard<'static, ()>, Arc<Bed>)> {
        let (guard, bed) = self.free().await;
        Ok((guard, bed.get(start).await?))
    }

    /// If all beds are in use, the test waits for the first one that is free.
    async fn free(&'static self) -> (MutexGuard<'static, ()>, &'static Shared<Bed>) {
        let locks = self.0.iter().map(|(lock, bed)| Box::pin(async move { (lock.lock().await, bed) }));
        futures::future::select_all(locks).await.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_finds_all_beds_taken_gets_the_one_that_is_free_first() {
        static BEDS: Beds<3> = Beds::new();
        for freed in 0..3 {
            let mut taken = vec![BEDS.free().await, BEDS.free().await, BEDS.free().await];
            let waiting = tokio::spawn(BEDS.free());
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished());
            let (_, bed) = taken.remove(freed);
            assert!(std::ptr::eq(waiting.await.unwrap().1, bed));
        }
    }
}
