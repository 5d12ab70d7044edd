//! A lease of DHCPv4 or DHCPv6: its client, what was granted, and what is recorded on the Service.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use contract::LeaseRecord;
use dhcp_client::State;
use jiff::Timestamp;

use super::Leased;

/// A renewal is recorded if it moves the end of the lease by at least this much. Without this, short leases would cost
/// one API write per renewal.
const FACTS_STEP: Duration = Duration::from_mins(1);
/// The same for a lease that would otherwise end before its end is recorded again.
const SHORT_FACTS_STEP: Duration = Duration::from_secs(8);

/// State of a VIP's DHCP client.
#[derive(Debug)]
pub(super) struct ClientState {
    /// Generation of the running client.
    pub running: Option<u64>,
    /// State of the running or the last client.
    pub state: State,
    /// When a client that has failed is started again.
    pub retry: Option<Instant>,
    /// A server has refused an address, and none has given one since.
    pub refused: bool,
}

impl Default for ClientState {
    fn default() -> Self {
        Self { running: None, state: State::Init, retry: None, refused: false }
    }
}

impl ClientState {
    /// Whether a client may be started.
    pub fn may_start(&self, now: Instant) -> bool {
        self.running.is_none() && self.retry.is_none_or(|at| at <= now)
    }

    /// Whether the retry is due; clears it.
    pub fn wake(&mut self, now: Instant) -> bool {
        self.retry.take_if(|at| *at <= now).is_some()
    }
}

/// The facts of a lease that are recorded on its Service.
pub(super) trait RecordedLease: Clone + PartialEq {
    /// An address of its family.
    type Address: Copy + PartialEq + Into<IpAddr>;

    /// The leased address.
    fn address(&self) -> Self::Address;
    /// End of the lease; `None`: it does not end.
    fn expires(&self) -> Option<Timestamp>;
    /// Whether both leases come from the same server.
    fn is_of_server_of(&self, other: &Self) -> bool;
}

impl<A: Copy + PartialEq + Into<IpAddr>, S: Clone + PartialEq> RecordedLease for LeaseRecord<A, S> {
    type Address = A;

    fn address(&self) -> A {
        self.address
    }

    fn expires(&self) -> Option<Timestamp> {
        self.expires
    }

    fn is_of_server_of(&self, other: &Self) -> bool {
        self.server == other.server
    }
}

/// A lease and its client.
#[derive(Debug)]
pub(super) struct Lease<F> {
    pub client: ClientState,
    /// The lease as the running or the last client has reported it.
    pub granted: Option<Leased<F>>,
    /// The facts that should be on the Service.
    pub recorded: Option<F>,
    /// An earlier client had it, perhaps the one of another cluster of which this one is a copy.
    pub inherited: bool,
}

impl<F: RecordedLease> Lease<F> {
    /// Starts without a client. `recorded`: the facts on the Service that a client may continue.
    pub fn new(recorded: Option<F>) -> Self {
        Self { client: ClientState::default(), granted: None, inherited: recorded.is_some(), recorded }
    }

    /// The granted address.
    pub fn address(&self) -> Option<F::Address> {
        self.granted.as_ref().map(|leased| leased.facts.address())
    }

    /// A lease was granted or renewed. The recorded facts stay as long as the next owner could use them.
    pub fn grant(&mut self, leased: Leased<F>, now: Instant) {
        let good = |recorded: &F| {
            recorded.address() == leased.facts.address()
                && recorded.is_of_server_of(&leased.facts)
                && !has_moved(recorded.expires(), leased.facts.expires(), leased.expires, now)
        };
        if !self.recorded.as_ref().is_some_and(good) {
            self.recorded = Some(leased.facts.clone());
        }
        self.granted = Some(leased);
        self.client.refused = false;
    }

    /// Whether what an earlier process left stays until the client has spoken to a server.
    pub fn is_awaited(&self) -> bool {
        self.granted.is_none() && !self.client.refused
    }

    /// The lease is lost. Returns the facts that are recorded.
    pub fn lose(&mut self) -> Option<F> {
        self.granted = None;
        self.recorded.take()
    }

    /// The lease that a new client continues, and the address that it only requests. `told`: whether clients know an
    /// address as that of the Service. An annotation alone is not trusted, because it may have been copied.
    pub fn remembered(&self, told: impl FnOnce(F::Address) -> bool) -> (Option<F>, Option<F::Address>) {
        let granted = self.granted.as_ref().map(|leased| leased.facts.clone());
        match self.recorded.clone() {
            Some(facts) if told(facts.address()) => (granted.or(Some(facts)), None),
            recorded => (granted, recorded.map(|facts| facts.address())),
        }
    }
}

/// Whether the recorded end of a lease is too outdated for the next owner. Either it moved by [`FACTS_STEP`] and by a
/// quarter of what is left until `expires`. Or it comes before the next renewal, which is due after half of that time,
/// and it moved by [`SHORT_FACTS_STEP`]; the next owner would take the lease for ended. An end that comes sooner than
/// recorded is always written.
fn has_moved(recorded: Option<Timestamp>, end: Option<Timestamp>, expires: Option<Instant>, now: Instant) -> bool {
    let (Some(old), Some(new)) = (recorded, end) else { return recorded != end };
    let left = expires.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
    let moved = (new.as_second() - old.as_second()).unsigned_abs();
    // The recorded end is in whole seconds.
    let soon_over = new > old && moved > (left / 2).as_secs() + 1;
    // The next owner would continue to use an address that the server may give to another client.
    let shortened = new < old && moved > 1;
    shortened || moved >= (left / 4).max(FACTS_STEP).as_secs() || (soon_over && moved >= SHORT_FACTS_STEP.as_secs())
}

#[cfg(test)]
mod tests {
    use super::super::tests::facts;
    use super::*;

    /// The renewals, counted from the first, at which the end is written.
    fn written(lease: u64, renewals: usize) -> Vec<usize> {
        let (start, wall) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let lease = Duration::from_secs(lease);
        let mut recorded = wall + lease;
        let mut written = Vec::new();
        for renewal in 1..=renewals {
            // The client is early by up to 3 %.
            let passed = lease.mul_f64(0.49) * u32::try_from(renewal).unwrap();
            assert!(recorded > wall + passed, "a successor found a lease of {lease:?} that was over");
            let (end, now) = (wall + passed + lease, start + passed);
            if has_moved(Some(recorded), Some(end), Some(now + lease), now) {
                recorded = end;
                written.push(renewal);
            }
        }
        written
    }

    #[test]
    fn what_stands_on_the_service_is_never_over_and_short_leases_are_not_written_each_time() {
        assert_eq!(written(10, 4), [2, 4]);
        assert_eq!(written(30, 4), [2, 4]);
        assert_eq!(written(59, 4), [2, 4]);
        assert_eq!(written(3600, 3), [1, 2, 3]);
    }

    #[test]
    fn an_end_that_hardly_moves_is_not_written_and_one_that_comes_sooner_is() {
        let (now, wall) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let moved = |seconds: i64, left: u64| {
            let (old, new) = (wall + Duration::from_secs(1000), wall + jiff::SignedDuration::from_secs(1000 + seconds));
            has_moved(Some(old), Some(new), Some(now + Duration::from_secs(left)), now)
        };
        assert!(!moved(59, 3600) && !moved(600, 3600) && moved(900, 3600) && moved(-900, 3600));
        assert!(!moved(-1, 30) && moved(-20, 30) && moved(17, 30));
        assert!(has_moved(Some(wall), None, None, now) && !has_moved(None, None, None, now));
    }

    #[test]
    fn a_client_goes_on_with_what_was_granted_or_told_and_only_asks_for_what_an_annotation_says() {
        let (now, five) = (Instant::now(), facts("10.0.0.5"));
        let mut lease = Lease::new(Some(five.clone()));
        assert_eq!(lease.remembered(|_| true), (Some(five.clone()), None));
        assert_eq!(lease.remembered(|_| false), (None, Some(five.address)));
        let six = facts("10.0.0.6");
        lease.grant(Leased { facts: six.clone(), expires: None }, now);
        assert_eq!(lease.recorded, Some(six.clone()), "another address is written at once");
        assert_eq!(lease.remembered(|_| true), (Some(six.clone()), None));
        assert_eq!(lease.lose(), Some(six));
        assert_eq!((lease.remembered(|_| true), lease.address()), ((None, None), None));
    }
}
