//! The IPPool controller: builds allocators, counts, keeps the finalizer, releases by hand. Harvester spec 2.4, 2.5,
//! 3.8

use std::sync::Arc;

use harvester_api::ip_pool::IpPool;
use harvester_api::keys::harvester::POOL_FINALIZER;
use harvester_api::keys::loadbalancer::MANUALLY_RELEASE_IP;
use harvester_api::load_balancer::Condition;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::queue::{Key, Outcome};
use super::world::{World, is_not_found, now};
use crate::allocator;
use crate::ranges::RangeSet;

/// Works off the queue of pools for ever.
pub async fn work(world: Arc<World>) {
    loop {
        let key = world.pool_queue.next().await;
        let outcome = pass(&world, &key).await;
        world.pool_queue.done(&key, outcome);
    }
}

async fn pass(world: &World, key: &Key) -> Outcome {
    let Some(pool) = world.pools.get(&ObjectRef::new(&key.1)) else {
        return Outcome::Clean;
    };
    match look_at(world, &pool).await {
        Ok(()) => Outcome::Clean,
        Err(error) => {
            tracing::debug!(%error, ?key, "pool not looked after");
            Outcome::Failed
        }
    }
}

async fn look_at(world: &World, pool: &IpPool) -> kube::Result<()> {
    let name = pool.name_any();
    if pool.metadata.deletion_timestamp.is_some() {
        world.allocators.lock().remove(&name);
        let mut new = pool.clone();
        new.finalizers_mut().retain(|finalizer| finalizer != POOL_FINALIZER);
        if new.finalizers().len() < pool.finalizers().len() {
            let outcome = world.write_pool(&new).await;
            return if is_not_found(&outcome) { Ok(()) } else { outcome.map(drop) };
        }
        return Ok(());
    }
    let Ok(ranges) = RangeSet::normalise(&pool.spec.ranges) else {
        return Ok(());
    };
    let changed = world.allocator(&name).as_deref() != Some(&ranges);
    let mut new = pool.clone();
    if world.allocator(&name).is_none() {
        // After a restart the host knows only what it can still read.
        let forgets = |owner: &str| {
            owner.split_once('/').is_some_and(|(namespace, _)| world.faults.get(namespace).forget_bookings)
        };
        let status = new.status.get_or_insert_default();
        status.allocated.retain(|_, owner| !forgets(owner));
    }
    let mut new = upkeep(&new, changed.then_some(&ranges));
    if let Some(wanted) = pool.annotations().get(MANUALLY_RELEASE_IP) {
        new.annotations_mut().remove(MANUALLY_RELEASE_IP);
        release_by_hand(world, &mut new, wanted).await?;
    }
    if new != *pool {
        // A booking that came between is not lost: the write conflicts and is tried again on the newer object.
        world.write_pool(&new).await?;
    }
    world.allocators.lock().insert(name, Arc::new(ranges));
    Ok(())
}

/// The pool as it should be stored. After a booking nothing is to be done: a write here would cost the host's bucket a
/// token.
fn upkeep(pool: &IpPool, new_ranges: Option<&RangeSet>) -> IpPool {
    let mut new = pool.clone();
    if let Some(ranges) = new_ranges {
        refresh(&mut new, ranges);
    }
    if !pool.finalizers().iter().any(|finalizer| finalizer == POOL_FINALIZER) {
        new.finalizers_mut().push(POOL_FINALIZER.to_owned());
    }
    new
}

/// New, restarted or changed: counts, history and condition anew.
fn refresh(pool: &mut IpPool, ranges: &RangeSet) {
    let status = pool.status.get_or_insert_default();
    allocator::recount(ranges, status);
    if !status.conditions.iter().any(|condition| condition.kind == "Ready" && condition.status == "True") {
        status.conditions = vec![Condition {
            kind: "Ready".to_owned(),
            status: "True".to_owned(),
            last_update_time: Some(now()),
            ..Condition::default()
        }];
    }
}

/// Releases if the record is exactly so and no load balancer of that name exists; the annotation goes in any case.
async fn release_by_hand(world: &World, pool: &mut IpPool, wanted: &str) -> kube::Result<()> {
    let Some((ip, owner)) = parse_manual_release(wanted) else {
        tracing::warn!(wanted, "manual release: expected <ip>: <namespace>/<name>");
        return Ok(());
    };
    let Some((namespace, name)) = owner.split_once('/') else { return Ok(()) };
    let booked = pool.status.as_ref().and_then(|status| status.allocated.get(ip)).is_some_and(|holder| holder == owner);
    let lbs = Api::<harvester_api::load_balancer::LoadBalancer>::namespaced(world.client.clone(), namespace);
    if !booked || lbs.get_opt(name).await?.is_some() {
        tracing::warn!(wanted, "manual release: no such record, or the load balancer still exists");
        return Ok(());
    }
    allocator::release(pool.status.get_or_insert_default(), owner);
    Ok(())
}

/// Exactly two parts around one colon, so no IPv6.
fn parse_manual_release(value: &str) -> Option<(&str, &str)> {
    let (ip, owner) = value.split_once(':')?;
    (!owner.contains(':')).then(|| (ip.trim(), owner.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_release_has_two_parts() {
        assert_eq!(parse_manual_release("10.0.0.1: ns/lb"), Some(("10.0.0.1", "ns/lb")));
        assert_eq!(parse_manual_release("fd00::1: ns/lb"), None);
        assert_eq!(parse_manual_release("10.0.0.1"), None);
    }

    #[test]
    fn a_refreshed_pool_is_counted_and_ready() {
        let mut pool: IpPool = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "edge"}, "spec": {"ranges": [{"subnet": "10.0.0.0/29"}]}}))
        .unwrap();
        let ranges = RangeSet::normalise(&pool.spec.ranges).unwrap();
        pool = upkeep(&pool, Some(&ranges));
        let status = pool.status.as_mut().unwrap();
        assert_eq!((status.total, status.available, status.conditions[0].status.as_str()), (5, 5, "True"));
        allocator::book(&ranges, status, "n/a").unwrap();
        assert_eq!(upkeep(&pool, None), pool, "a booking needs nothing more");
        assert_eq!(upkeep(&pool, Some(&ranges)), pool, "nor does a restart");
    }
}
