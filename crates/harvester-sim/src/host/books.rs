//! The books of the pools on a host that is not in a hurry: changes that come at the same time go in one PUT, so that
//! nobody collides. The real host writes each change alone, see [`super::world::Profile::Real`].

use std::collections::HashMap;

use harvester_api::ip_pool::IpPoolStatus;
use parking_lot::Mutex as SyncMutex;
use tokio::sync::{Mutex, oneshot};

use super::world::World;

/// Sends the result to the caller that waits. `None`: the pool could not be written.
type Tell = Box<dyn FnOnce(bool) + Send>;
type Change = Box<dyn FnOnce(&mut IpPoolStatus) -> Tell + Send>;

/// Changes by pool that wait to be written.
#[derive(Default)]
pub struct Books {
    waiting: SyncMutex<HashMap<String, Vec<Change>>>,
    pen: Mutex<()>,
}

impl Books {
    /// Changes the books of a pool; gives what `change` gave, or nothing if the pool is gone or somebody else wrote it
    /// meanwhile.
    pub async fn change<T: Send + 'static>(
        &self,
        world: &World,
        pool: &str,
        change: impl FnOnce(&mut IpPoolStatus) -> T + Send + 'static,
    ) -> Option<T> {
        let (tell, mut told) = oneshot::channel();
        let change: Change = Box::new(move |status| {
            let result = change(status);
            Box::new(move |written| drop(tell.send(written.then_some(result))))
        });
        self.waiting.lock().entry(pool.to_owned()).or_default().push(change);
        let _pen = self.pen.lock().await;
        // Whoever had the pen before may have written ours too.
        if let Ok(result) = told.try_recv() {
            return result;
        }
        let changes = self.waiting.lock().remove(pool).unwrap_or_default();
        let current = world.pool(pool).await.ok().flatten();
        if let Some(current) = current {
            let mut new = (*current).clone();
            let status = new.status.get_or_insert_default();
            let tells: Vec<Tell> = changes.into_iter().map(|change| change(status)).collect();
            let written = new == *current || world.write_pool(&new).await.is_ok();
            for tell in tells {
                tell(written);
            }
        }
        told.await.ok().flatten()
    }
}
