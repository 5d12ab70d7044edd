//! When a LoadBalancer may be deleted without leaking its pool address: pure.

use std::collections::BTreeMap;
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

/// Decision 7; host-throughput.md rule 6: the host releases a pool address only of an object that shows the address and
/// has its finalizer. One that is deleted in between leaves its address booked for ever.
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

/// For how long this process has known objects, by UID. Their creationTimestamp says nothing: it is of the host's
/// clock, and if ours is a minute ahead, an object that was made just now looks old, and a DELETE comes before the
/// address is booked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ages(BTreeMap<String, Duration>);

impl Ages {
    /// One that nobody has looked at before is as good as new.
    pub fn of(&self, lb: &LbView) -> Duration {
        self.0.get(&lb.uid).copied().unwrap_or_default()
    }
}

impl FromIterator<(String, Duration)> for Ages {
    fn from_iter<I: IntoIterator<Item = (String, Duration)>>(ages: I) -> Self {
        Self(ages.into_iter().collect())
    }
}
