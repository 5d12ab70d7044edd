//! When a LoadBalancer may be deleted without leaking its pool address: pure.

use std::time::Duration;

use harvester_api::load_balancer::NotReady;

use super::view::LbView;

/// How long a deletion waits for the host to finish booking (decision 7).
pub const BOOKING: Duration = Duration::from_secs(10);

/// When a DELETE may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At once. `leaks`: the address may stay booked for ever.
    Now {
        /// The host had not finished booking.
        leaks: bool,
    },
    /// Unless the object changes before.
    In(Duration),
}

/// Decision 7; host-throughput.md rule 6: the host releases a pool address only of an object that shows the address and has its
/// finalizer. One that is deleted in between leaves its address booked for ever.
pub fn when(lb: &LbView, age: Duration) -> When {
    let old = age >= BOOKING;
    let booked = match &lb.ready {
        _ if lb.effective_ipam() == "dhcp" => true,
        Some(ready) if ready.status => lb.has_host_finalizer || old,
        Some(ready) => NotReady::classify(&ready.message) != NotReady::Transient,
        None => false,
    };
    if booked || old { When::Now { leaks: !booked } } else { When::In(BOOKING.saturating_sub(age)) }
}

/// How old an object is by the host's clock, which may differ from ours, or as long as a deletion has been `held` back already,
/// which is the bound that holds whatever the clocks say.
pub fn age(lb: &LbView, now: i64, held: Duration) -> Duration {
    let seconds = lb.created.and_then(|created| u64::try_from(now.saturating_sub(created)).ok());
    Duration::from_secs(seconds.unwrap_or(0)).max(held)
}
