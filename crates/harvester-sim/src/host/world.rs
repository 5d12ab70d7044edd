//! What the host's controllers share: the API, their caches, their pace, and what is to go wrong.

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use harvester_api::ip_pool::IpPool;
use harvester_api::load_balancer::LoadBalancer;
use harvester_api::virtual_machine::VirtualMachine;
use kube::api::PostParams;
use kube::runtime::reflector::{self, ObjectRef, Store, store::Writer};
use kube::runtime::watcher as watch;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::bucket::Bucket;
use super::queue::{Backlog, Key, Queue};
use crate::faults::FaultSwitch;
use crate::ranges::RangeSet;
use crate::version::HostVersion;

/// How fast the host is. Host pace spec
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// An answer after 20 ms, for any number of load balancers at a time: no rate limit, no collisions.
    Fast,
    /// The same after half a second.
    Slow,
    /// Five requests per second after a burst of ten, two workers that read pools from a cache: as measured on a real
    /// host.
    #[default]
    Real,
}

impl Profile {
    fn bucket(self) -> Bucket {
        match self {
            Self::Fast | Self::Slow => Bucket::unlimited(),
            Self::Real => Bucket::new(5.0, 10.0),
        }
    }

    /// Workers for load balancers.
    pub fn workers(self) -> usize {
        match self {
            // Each of them waits with its answer.
            Self::Fast | Self::Slow => 64,
            Self::Real => 2,
        }
    }

    /// From the host's first sight of an object to its answer, and before it is released.
    pub fn answer(self) -> Duration {
        match self {
            Self::Fast => Duration::from_millis(20),
            Self::Slow => Duration::from_millis(500),
            Self::Real => Duration::ZERO,
        }
    }

    /// Whether workers get into each other's way at the pools, as those of the real host do.
    pub fn collides(self) -> bool {
        self == Self::Real
    }
}

/// Requests sent by the host's controllers, for reports.
#[derive(Debug, Default)]
pub struct Counters {
    /// PUTs of pools.
    pub pool_writes: AtomicU64,
    /// PUTs of load balancers.
    pub load_balancer_writes: AtomicU64,
    /// Of both, those answered 409.
    pub conflicts: AtomicU64,
}

/// A copy of [`Counters`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// PUTs of pools.
    pub pool_writes: u64,
    /// PUTs of load balancers.
    pub load_balancer_writes: u64,
    /// Of both, those answered 409.
    pub conflicts: u64,
}

impl Counters {
    /// As they stand.
    pub fn read(&self) -> Counts {
        Counts {
            pool_writes: self.pool_writes.load(Ordering::Relaxed),
            load_balancer_writes: self.load_balancer_writes.load(Ordering::Relaxed),
            conflicts: self.conflicts.load(Ordering::Relaxed),
        }
    }
}

/// What the controllers have before them, for whoever asks why nothing happens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Backlogs {
    /// Of load balancers.
    pub load_balancers: Backlog,
    /// Of pools.
    pub pools: Backlog,
    /// Pools that have an allocator.
    pub allocators: Vec<String>,
    /// `kind/name` and `resourceVersion` of what the caches hold.
    pub cached: BTreeMap<String, String>,
}

/// Shared by all tasks of a running stand-in.
pub struct World {
    /// API of the host.
    pub client: Client,
    /// Which host.
    pub version: HostVersion,
    /// How fast.
    pub profile: Profile,
    /// What is to go wrong.
    pub faults: Arc<FaultSwitch>,
    /// What was sent.
    pub counters: Counters,
    /// Cache of load balancers.
    pub load_balancers: Store<LoadBalancer>,
    /// Cache of pools.
    pub pools: Store<IpPool>,
    /// Cache of virtual machines.
    pub machines: Store<VirtualMachine>,
    /// Load balancers to look at.
    pub queue: Queue,
    /// Pools to look at.
    pub pool_queue: Queue,
    /// Virtual machines to look at.
    pub machine_queue: Queue,
    /// Allocators of pools, by pool name: gone from here, bookings in that pool fail.
    pub allocators: Mutex<HashMap<String, Arc<RangeSet>>>,
    bucket: Bucket,
}

/// The feeding ends of the caches.
pub struct Writers {
    /// For [`World::load_balancers`].
    pub load_balancers: Writer<LoadBalancer>,
    /// For [`World::pools`].
    pub pools: Writer<IpPool>,
    /// For [`World::machines`].
    pub machines: Writer<VirtualMachine>,
}

impl World {
    /// Nothing runs yet; the writers go to the tasks that watch.
    pub fn new(client: Client, version: HostVersion, profile: Profile, faults: Arc<FaultSwitch>) -> (Self, Writers) {
        let (load_balancers, lb_writer) = reflector::store();
        let (pools, pool_writer) = reflector::store();
        let (machines, machine_writer) = reflector::store();
        let world = Self {
            client,
            version,
            profile,
            faults,
            counters: Counters::default(),
            load_balancers,
            pools,
            machines,
            queue: Queue::default(),
            pool_queue: Queue::default(),
            machine_queue: Queue::default(),
            allocators: Mutex::default(),
            bucket: profile.bucket(),
        };
        (world, Writers { load_balancers: lb_writer, pools: pool_writer, machines: machine_writer })
    }

    /// Why nothing happens, if nothing happens.
    pub fn backlog(&self) -> Backlogs {
        let allocators = self.allocators.lock();
        let mut cached = BTreeMap::new();
        for lb in self.load_balancers.state() {
            cached.insert(format!("LoadBalancer/{}", lb.name_any()), lb.resource_version().unwrap_or_default());
        }
        for pool in self.pools.state() {
            cached.insert(format!("IPPool/{}", pool.name_any()), pool.resource_version().unwrap_or_default());
        }
        Backlogs {
            load_balancers: self.queue.backlog(),
            pools: self.pool_queue.backlog(),
            allocators: allocators.keys().cloned().collect(),
            cached,
        }
    }

    /// The allocator of a pool, if the pool controller has built it.
    pub fn allocator(&self, pool: &str) -> Option<Arc<RangeSet>> {
        self.allocators.lock().get(pool).cloned()
    }

    /// Load balancer from the cache.
    pub fn cached_load_balancer(&self, (namespace, name): &Key) -> Option<Arc<LoadBalancer>> {
        self.load_balancers.get(&ObjectRef::new(name).within(namespace))
    }

    /// A pool: from the cache, as the real host reads it, or from the API where collisions are not wanted.
    pub async fn pool(&self, name: &str) -> kube::Result<Option<Arc<IpPool>>> {
        if self.profile.collides() {
            return Ok(self.pools.get(&ObjectRef::new(name)));
        }
        Ok(Api::<IpPool>::all(self.client.clone()).get_opt(name).await?.map(Arc::new))
    }

    /// PUT of a pool, guarded by its resourceVersion. Waits for its token first, as late as the host does.
    pub async fn write_pool(&self, pool: &IpPool) -> kube::Result<IpPool> {
        self.counters.pool_writes.fetch_add(1, Ordering::Relaxed);
        self.put(&Api::all(self.client.clone()), pool).await
    }

    /// PUT of a load balancer, guarded by its resourceVersion.
    pub async fn write_load_balancer(&self, lb: &LoadBalancer) -> kube::Result<LoadBalancer> {
        self.counters.load_balancer_writes.fetch_add(1, Ordering::Relaxed);
        let namespace = lb.namespace().unwrap_or_default();
        self.put(&Api::namespaced(self.client.clone(), &namespace), lb).await
    }

    async fn put<K>(&self, api: &Api<K>, object: &K) -> kube::Result<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        self.bucket.take().await;
        let outcome = api.replace(&object.name_any(), &PostParams::default(), object).await;
        if is_conflict(&outcome) {
            self.counters.conflicts.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }
}

/// Somebody else has written the object since we read it.
pub fn is_conflict<T>(outcome: &kube::Result<T>) -> bool {
    matches!(outcome, Err(kube::Error::Api(status)) if status.code == 409)
}

/// The object is gone.
pub fn is_not_found<T>(outcome: &kube::Result<T>) -> bool {
    matches!(outcome, Err(kube::Error::Api(status)) if status.code == 404)
}

/// Pause after a watch that failed.
pub const WATCH_AGAIN: Duration = Duration::from_millis(500);

/// Keeps a cache filled and queues the key of every object that changed, deleted ones included. Never ends by itself.
pub async fn feed<K>(api: Api<K>, writer: Writer<K>, queue: Queue)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
    let events = watch(api, watcher::Config::default());
    let mut events = std::pin::pin!(reflector::reflector(writer, events));
    // A listing shows in the cache only when it is complete: a key that was queued before would find nothing there.
    let mut listed = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object) | Event::Delete(object)) => queue.add(key(&object)),
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => listed.push(key(&object)),
            Ok(Event::InitDone) => listed.drain(..).for_each(|key| queue.add(key)),
            Err(error) => {
                tracing::debug!(%error, "watch failed, trying again");
                // A host's controllers run beside its API server: they are back as soon as it is.
                tokio::time::sleep(WATCH_AGAIN).await;
            }
        }
    }
}

/// The time as the host writes it.
pub fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// One second: how often an unmatched load balancer is looked at again. Harvester spec 6
pub const NO_MATCH_RETRY: Duration = Duration::from_secs(1);
