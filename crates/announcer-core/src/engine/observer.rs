//! Reads the node's network: when to read it again, what the last reading showed, and which removals it cannot show
//! yet.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use l2_types::Address;

use super::{Action, KernelOp};
use crate::network::{DefaultRoute, Network};

/// Minimum time between two readings. Each pod that starts or ends changes links and routes.
const PAUSE: Duration = Duration::from_millis(50);
/// Interval of readings without a reported change.
const INTERVAL: Duration = Duration::from_mins(1);
/// Pause after a failed reading.
const RETRY: Duration = Duration::from_secs(1);

/// The state of the readings. They are numbered: a reading does not show what was requested after it began.
#[derive(Debug)]
pub(super) struct Observer {
    network: Option<Network>,
    route: DefaultRoute,
    gateway: Option<IpAddr>,
    next: Instant,
    last: Instant,
    /// Number of the last requested reading; of the last answered one; of the first one that shows what happened while
    /// this process was paused.
    asked: u64,
    answered: u64,
    fresh_from: u64,
    /// Whether a reading is under way, and whether another one is needed after it.
    in_flight: bool,
    again: bool,
    /// Addresses and interfaces (without an address) that were removed, with the last reading requested then. Readings
    /// up to that number may still show them.
    removed: BTreeMap<(u32, Option<IpNet>), u64>,
}

/// What was known before a reading.
#[derive(Debug)]
pub(super) struct Before {
    /// The previous network; `None`: this was the first reading.
    pub network: Option<Network>,
    pub gateway: Option<IpAddr>,
    /// The previous network was older than the last pause of this process.
    pub stale: bool,
}

impl Observer {
    /// Starts without a reading; the first one is due at once.
    pub fn new(now: Instant) -> Self {
        Self {
            network: None,
            route: DefaultRoute::default(),
            gateway: None,
            next: now,
            last: now,
            asked: 0,
            answered: 0,
            fresh_from: 0,
            in_flight: false,
            again: false,
            removed: BTreeMap::new(),
        }
    }

    /// The network of the last reading.
    pub fn network(&self) -> Option<&Network> {
        self.network.as_ref()
    }

    /// The default gateway. Where the node has no default route now, it is the last one that it had: a lease that could
    /// not be renewed takes the route away while the router restarts.
    pub fn gateway(&self) -> Option<IpAddr> {
        self.gateway
    }

    /// Number of readings requested so far.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// Time since the last reading was requested.
    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last)
    }

    /// When the next reading is due; only after the current one is answered.
    pub fn deadline(&self) -> Option<Instant> {
        (!self.in_flight).then_some(self.next)
    }

    /// Whether the next reading is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|at| at <= now)
    }

    /// Requests a reading because something has changed; it may be delayed by [`PAUSE`].
    pub fn ask(&mut self, now: Instant) -> Option<Action> {
        if self.in_flight {
            self.again = true;
            return None;
        }
        let earliest = self.last + PAUSE;
        if self.asked > 0 && now < earliest {
            self.next = self.next.min(earliest);
            return None;
        }
        (self.last, self.next) = (now, now + INTERVAL);
        self.in_flight = true;
        self.asked += 1;
        Some(Action::Kernel(KernelOp::Observe))
    }

    /// Takes in the result of a reading. `None`: it failed, and the previous network stays.
    pub fn answer(&mut self, now: Instant, result: Result<Network, String>) -> Option<Before> {
        self.in_flight = false;
        let mut network = match result {
            Ok(network) => network,
            Err(error) => {
                tracing::warn!(
                    error,
                    "the announcer cannot read the interfaces and addresses of this node; it tries again"
                );
                self.next = now + RETRY;
                return None;
            }
        };
        if let Some(until) = self.route.settle(now, &mut network) {
            // No event tells that the last default route does not count any more; a reading then shows what does.
            self.next = self.next.min(until.max(self.last + PAUSE));
        }
        let gateway = network.gateway.or(self.gateway);
        let before = Before {
            network: self.network.replace(network),
            gateway: std::mem::replace(&mut self.gateway, gateway),
            stale: self.is_stale(),
        };
        self.answered = self.asked;
        let answered = self.answered;
        self.removed.retain(|_, asked| *asked >= answered);
        Some(before)
    }

    /// Requests the reading that was needed while another one was under way.
    pub fn ask_again(&mut self, now: Instant) -> Option<Action> {
        if std::mem::take(&mut self.again) { self.ask(now) } else { None }
    }

    /// This process was paused. Only a later reading shows what happened meanwhile.
    pub fn stood_still(&mut self) {
        if self.network.is_some() {
            self.fresh_from = self.asked + 1;
        }
    }

    /// Whether the last reading is older than the last pause of this process.
    pub fn is_stale(&self) -> bool {
        self.answered < self.fresh_from
    }

    /// Whether the last reading shows what was requested from the kernel after reading number `asked`.
    pub fn shows(&self, asked: u64) -> bool {
        self.answered > asked
    }

    /// Requests the removal of an address, and remembers it.
    pub fn remove_address(&mut self, link: u32, net: IpNet) -> Action {
        self.removed.insert((link, Some(net)), self.asked);
        Action::Kernel(KernelOp::Remove(vec![(link, net)]))
    }

    /// Requests the deletion of an interface, and remembers it.
    pub fn delete_link(&mut self, link: u32) -> Action {
        self.removed.insert((link, None), self.asked);
        Action::Kernel(KernelOp::Delete { link })
    }

    /// Whether the address was removed after the last reading.
    pub fn is_removed(&self, address: &Address) -> bool {
        self.removed.contains_key(&(address.interface, Some(address.net))) || self.is_deleted(address.interface)
    }

    /// The same for an interface.
    pub fn is_deleted(&self, link: u32) -> bool {
        self.removed.contains_key(&(link, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::fixtures::{network, own_address};

    fn answered(now: Instant) -> Observer {
        let mut observer = Observer::new(now);
        assert_eq!(observer.ask(now), Some(Action::Kernel(KernelOp::Observe)));
        assert!(observer.answer(now, Ok(network())).unwrap().network.is_none());
        observer
    }

    #[test]
    fn changes_that_come_together_are_read_together() {
        let start = Instant::now();
        let mut observer = answered(start);
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        assert_eq!(observer.ask(at(10)), None, "it was read just now");
        assert_eq!(observer.deadline(), Some(at(50)));
        assert!(observer.ask(at(50)).is_some());
        assert_eq!(observer.deadline(), None, "one at a time");
        assert_eq!((observer.ask(at(60)), observer.ask(at(70))), (None, None));
        observer.answer(at(80), Ok(network()));
        assert_eq!(observer.ask_again(at(80)), None, "the pause is kept");
        assert_eq!(observer.deadline(), Some(at(100)));
        assert!(observer.ask(at(100)).is_some() && observer.ask_again(at(100)).is_none());
    }

    #[test]
    fn a_reading_that_fails_is_tried_again_and_takes_nothing_away() {
        let now = Instant::now();
        let mut observer = answered(now);
        observer.ask(now + INTERVAL);
        assert!(observer.answer(now + INTERVAL, Err("busy".into())).is_none());
        assert!(observer.network().is_some());
        assert_eq!(observer.deadline(), Some(now + INTERVAL + RETRY));
    }

    #[test]
    fn a_default_route_that_is_gone_is_looked_for_again_when_the_last_one_does_not_count_any_more() {
        let start = Instant::now();
        let mut observer = answered(start);
        let mut read = |seconds, default_route| {
            let now = start + Duration::from_secs(seconds);
            assert!(observer.ask(now).is_some());
            observer.answer(now, Ok(Network { default_route, ..network() }));
            let due = observer.deadline().expect("none is under way");
            (observer.network().and_then(|network| network.default_route), due.duration_since(start).as_secs())
        };
        assert_eq!(read(20, None), (Some(2), 30));
        assert_eq!(read(25, None), (Some(2), 30));
        assert_eq!(read(30, None), (None, 90), "from then on at the usual interval");
    }

    #[test]
    fn a_removal_hides_what_an_older_reading_shows_and_nothing_that_is_read_after_it() {
        let now = Instant::now();
        let mut observer = answered(now);
        let (own, other) = (own_address(2, "10.0.0.5/32"), own_address(3, "10.0.0.5/32"));
        observer.ask(now + INTERVAL);
        observer.remove_address(2, own.net);
        observer.answer(now + INTERVAL, Ok(network()));
        assert!(observer.is_removed(&own) && !observer.is_removed(&other), "it was asked for before the removal");
        observer.delete_link(3);
        assert!(observer.is_removed(&other) && observer.is_deleted(3));
        observer.ask(now + INTERVAL * 2);
        observer.answer(now + INTERVAL * 2, Ok(network()));
        assert!(!observer.is_removed(&own) && !observer.is_deleted(3));
    }

    #[test]
    fn after_a_pause_of_the_process_only_a_new_reading_counts() {
        let now = Instant::now();
        let mut observer = Observer::new(now);
        observer.stood_still();
        assert!(!observer.is_stale(), "nothing is known that could be stale");
        let mut observer = answered(now);
        let asked = observer.asked();
        observer.stood_still();
        assert!(observer.is_stale() && !observer.shows(asked));
        observer.ask(now + INTERVAL);
        assert!(observer.answer(now + INTERVAL, Ok(network())).unwrap().stale);
        assert!(!observer.is_stale() && observer.shows(asked));
    }
}
