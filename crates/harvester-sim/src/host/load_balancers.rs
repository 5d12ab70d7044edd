//! The LoadBalancer controller: book, report, finalizer; release on delete. Harvester spec 3.6, 4.2, 4.3;
//! host pace spec 5
//!
//! Reads load balancers from the cache and writes them guarded by resourceVersion, as the host does, so its conflicts
//! and its false alarms come about by themselves.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use harvester_api::load_balancer::{AllocatedAddress, LoadBalancer};
use kube::{Api, ResourceExt};
use tokio::time::Instant;

use super::books::Books;
use super::plan::{self, AddressStep, Deletion};
use super::queue::{Key, Outcome};
use super::world::{NO_MATCH_RETRY, World, is_conflict, is_not_found, now};
use crate::allocator::{self, BookError};
use crate::selector;

/// Why a pass ends without success. The text becomes the condition message.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NotReady {
    message: String,
    /// Looked at again each second instead of with a back-off.
    poll: bool,
}

impl NotReady {
    fn backing_off(message: String) -> Self {
        Self { message, poll: false }
    }
}

fn is_duplicate(error: &BookError) -> bool {
    matches!(error, BookError::Duplicate(..))
}

/// One controller; `work` runs in as many tasks as the profile has workers.
pub struct LoadBalancers {
    world: Arc<World>,
    /// Bookings, where nobody collides.
    books: Books,
    /// When an object was first seen, by UID and stage of its life, for delayed answers.
    first_seen: Mutex<HashMap<(String, &'static str), Instant>>,
}

impl LoadBalancers {
    /// Over the shared world.
    pub fn new(world: Arc<World>) -> Self {
        Self { world, books: Books::default(), first_seen: Mutex::default() }
    }

    /// Works off the queue for ever.
    pub async fn work(&self) {
        loop {
            let key = self.world.queue.next().await;
            let outcome = self.pass(&key).await;
            self.world.queue.done(&key, outcome);
        }
    }

    async fn pass(&self, key: &Key) -> Outcome {
        let Some(lb) = self.world.cached_load_balancer(key) else { return Outcome::Clean };
        if let Some(outcome) = self.held_back(&lb) {
            return outcome;
        }
        if lb.terminating() {
            return self.say_farewell(&lb).await;
        }
        let since = self.since(&lb, "new");
        let faults = self.world.faults.get(&key.0);
        let address = match faults.never_ready {
            Some(text) if lb.allocated_ip().is_none() => {
                if text.is_empty() {
                    return Outcome::Clean;
                }
                Err(NotReady::backing_off(text))
            }
            _ => self.address(&lb).await,
        };
        if lb.allocated_ip().is_none()
            && let Some(since) = since
        {
            // The profile's time is for booking and telling together.
            tokio::time::sleep_until(since + self.world.profile.answer()).await;
        }
        let poll = address.as_ref().is_err_and(|not_ready| not_ready.poll);
        let failed = address.is_err();
        let reported = address.map_err(|not_ready| not_ready.message);

        let mut base = (*lb).clone();
        if let Some(new) = plan::report(&lb, &reported, &now()) {
            match self.world.write_load_balancer(&new).await {
                Ok(written) => base = written,
                Err(_) => return Outcome::Failed,
            }
        }
        if let Some(new) = plan::with_finalizer(&base)
            && self.world.write_load_balancer(&new).await.is_err()
        {
            return Outcome::Failed;
        }
        match (failed, poll) {
            (false, _) => Outcome::Clean,
            (true, true) => Outcome::RequeueAfter(NO_MATCH_RETRY),
            (true, false) => Outcome::Failed,
        }
    }

    /// The pace of the profile at the end of an object's life, and the fault that delays its first allocation.
    fn held_back(&self, lb: &LoadBalancer) -> Option<Outcome> {
        let (stage, delay) = if lb.terminating() {
            ("going", self.world.profile.answer())
        } else if lb.allocated_ip().is_none() {
            ("new", Duration::from_millis(self.world.faults.get(&lb.namespace()?).allocation_delay_ms))
        } else {
            return None;
        };
        if delay.is_zero() {
            return None;
        }
        let left = (self.since(lb, stage)? + delay).checked_duration_since(Instant::now())?;
        (!left.is_zero()).then_some(Outcome::RequeueAfter(left))
    }

    /// When an object was first seen in this stage of its life.
    fn since(&self, lb: &LoadBalancer, stage: &'static str) -> Option<Instant> {
        let mut first_seen = self.first_seen.lock();
        Some(*first_seen.entry((lb.uid()?, stage)).or_insert_with(Instant::now))
    }

    /// `Ok(None)`: the booking stands as it is.
    async fn address(&self, lb: &LoadBalancer) -> Result<Option<AllocatedAddress>, NotReady> {
        match plan::address_step(lb) {
            AddressStep::Dhcp => Ok(Some(plan::dhcp_address())),
            AddressStep::Keep => Ok(None),
            AddressStep::Switch { from, to } => {
                let ip = lb.allocated_ip().unwrap_or_default();
                let failed =
                    |why: String| NotReady::backing_off(format!("fail to release ip {ip} to pool {to}, error: {why}"));
                self.release(&plan::owner_key(lb), &from).await.map_err(failed)?;
                Ok(Some(AllocatedAddress::default()))
            }
            AddressStep::BookIn(pool) => self.book(lb, &pool).await.map(Some),
            AddressStep::SelectAndBook(wanted) => {
                let pools = self.world.pools.state();
                let pools: Vec<_> = pools.iter().map(AsRef::as_ref).collect();
                let pool =
                    selector::select(self.world.version, &pools, &wanted, plan::is_cluster(lb)).ok_or_else(|| {
                        NotReady { message: format!("no matched IPPool with requirement {wanted}"), poll: true }
                    })?;
                self.book(lb, &pool.name_any()).await.map(Some)
            }
        }
    }

    async fn book(&self, lb: &LoadBalancer, pool: &str) -> Result<AllocatedAddress, NotReady> {
        let no_allocator = || NotReady::backing_off(format!("fail to get allocator {pool}"));
        let no_ip = |why: String| NotReady::backing_off(format!("fail to get ip from pool {pool}, error: {why}"));
        let ranges = self.world.allocator(pool).ok_or_else(no_allocator)?;
        let owner = plan::owner_key(lb);
        if !self.world.profile.collides() {
            let booker = owner.clone();
            let booked = self.books.change(&self.world, pool, move |status| {
                allocator::book(&ranges, status, &booker).map_err(|error| (error.to_string(), is_duplicate(&error)))
            });
            return match booked.await.ok_or_else(|| no_ip(format!("fail to reserve an address into {pool}")))? {
                Ok(address) => Ok(AllocatedAddress { ip_pool: Some(pool.to_owned()), ..address }),
                Err((error, duplicate)) => {
                    if duplicate && self.has_lost_its_address(lb).await {
                        let _ = self.release(&owner, pool).await;
                    }
                    Err(no_ip(error))
                }
            };
        }
        let current = self.world.pool(pool).await.ok().flatten().ok_or_else(no_allocator)?;
        let mut new = (*current).clone();
        let status = new.status.get_or_insert_default();
        match allocator::book(&ranges, status, &owner) {
            Ok(mut address) => {
                address.ip_pool = Some(pool.to_owned());
                let ip = address.ip.clone().unwrap_or_default();
                match self.world.write_pool(&new).await {
                    Ok(_) => Ok(address),
                    Err(error) => {
                        tracing::debug!(%error, pool, "booking not written");
                        Err(no_ip(format!("fail to reserve {ip} into {pool}")))
                    }
                }
            }
            Err(error) => {
                if is_duplicate(&error) {
                    // The record on the load balancer was lost: put the booking back, the next pass finds it in the
                    // history.
                    let _ = self.release(&owner, pool).await;
                }
                Err(no_ip(error.to_string()))
            }
        }
    }

    /// Whether the API has the load balancer without its address, too. The real host looks only into its cache. If
    /// that is late, it gives away the booking of an address that it has told already; where nobody collides, it is
    /// not late.
    async fn has_lost_its_address(&self, lb: &LoadBalancer) -> bool {
        let Some(namespace) = lb.namespace() else { return false };
        let lbs = Api::<LoadBalancer>::namespaced(self.world.client.clone(), &namespace);
        let found = lbs.get_opt(&lb.name_any()).await;
        found.is_ok_and(|found| found.is_some_and(|found| found.allocated_ip().is_none()))
    }

    /// Takes the owner's booking out of the pool's books. Nothing booked is success.
    async fn release(&self, owner: &str, pool: &str) -> Result<(), String> {
        let no_allocator = || format!("fail to get allocator {pool}");
        self.world.allocator(pool).ok_or_else(no_allocator)?;
        if !self.world.profile.collides() {
            let owner = owner.to_owned();
            let released = self.books.change(&self.world, pool, move |status| drop(allocator::release(status, &owner)));
            return released.await.ok_or_else(|| format!("fail to write {pool}"));
        }
        let current = self.world.pool(pool).await.map_err(|error| error.to_string())?.ok_or_else(no_allocator)?;
        let mut new = (*current).clone();
        if allocator::release(new.status.get_or_insert_default(), owner).is_none() {
            return Ok(());
        }
        self.world.write_pool(&new).await.map(drop).map_err(|error| error.to_string())
    }

    async fn say_farewell(&self, lb: &LoadBalancer) -> Outcome {
        match plan::deletion(lb) {
            Deletion::Nothing => return Outcome::Clean,
            Deletion::DropFinalizer => {}
            Deletion::Release(pool) => {
                if self.release(&plan::owner_key(lb), &pool).await.is_err() {
                    return Outcome::Failed;
                }
            }
        }
        let dropped = self.world.write_load_balancer(&plan::without_finalizer(lb)).await;
        if let Some(uid) = lb.uid() {
            let mut first_seen = self.first_seen.lock();
            first_seen.retain(|(seen, _), _| *seen != uid);
        }
        match dropped {
            Ok(_) => Outcome::Clean,
            failed if is_not_found(&failed) => Outcome::Clean,
            failed => {
                tracing::debug!(conflict = is_conflict(&failed), "finalizer not removed");
                Outcome::Failed
            }
        }
    }
}
