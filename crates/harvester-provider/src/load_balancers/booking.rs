//! Decides when a LoadBalancer can be deleted without leaking its pool address. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use harvester_api::load_balancer::NotReady;

use super::view::LbView;

/// How long a deletion waits for the host to finish booking (decision 7).
pub const BOOKING: Duration = Duration::from_secs(10);

/// When a DELETE may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At once. `leaks`: the address may stay allocated forever.
    Now {
        /// The host had not finished booking, or does not release the address of such an object.
        leaks: bool,
    },
    /// After this time, unless the object changes before.
    In(Duration),
}

/// Decides when to delete (decision 7; host pace spec rule 6). The host releases a pool address only if the object
/// shows the address and has the host's finalizer. An object that is deleted between these two steps leaves its address
/// allocated forever, and so does one without an IPAM mode.
pub fn when(lb: &LbView, age: Duration) -> When {
    let booked = is_booked(lb, age);
    if booked || age >= BOOKING {
        When::Now { leaks: !booked || lb.keeps_booking() }
    } else {
        When::In(BOOKING.saturating_sub(age))
    }
}

/// Whether the host has finished booking, so that nothing would come of waiting longer.
pub fn is_booked(lb: &LbView, age: Duration) -> bool {
    match &lb.ready {
        _ if lb.effective_ipam() == "dhcp" => true,
        Some(ready) if ready.status => lb.has_host_finalizer || age >= BOOKING,
        Some(ready) => NotReady::classify(&ready.message) != NotReady::Transient,
        None => false,
    }
}

/// How long this process has known each object, by UID. The creationTimestamp is not used, because it comes from the
/// host's clock. If this process's clock is a minute ahead, a new object looks old, and the DELETE comes before the
/// address is allocated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ages(BTreeMap<String, Duration>);

impl Ages {
    /// The age of the object; zero if it was not seen before.
    pub fn of(&self, lb: &LbView) -> Duration {
        self.0.get(&lb.uid).copied().unwrap_or_default()
    }
}

impl FromIterator<(String, Duration)> for Ages {
    fn from_iter<I: IntoIterator<Item = (String, Duration)>>(ages: I) -> Self {
        Self(ages.into_iter().collect())
    }
}
