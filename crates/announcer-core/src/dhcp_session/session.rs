//! One DHCP client with the decisions around it: the probes of a granted address, a link that goes down and up, the
//! events for the engine. No I/O and no clock: a driver runs it on packet sockets, a simulation in virtual time.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use dhcp_client::machine::{Address, Client, DhcpVersion, Input, Output};
use dhcp_client::{Expiry, Granted, State};
use jiff::Timestamp;
use l2_types::{Mac, Traffic};

use super::probing::Probing;
use crate::engine::{self, DhcpEvent, Leased};
use crate::reason::Reason;
use crate::view::Uid;

/// Interval of attempts after the socket has reported that the link is down. The engine may not notice a short loss, so
/// it may never report that the link is back.
const LINK_RETRY: Duration = Duration::from_secs(1);

/// What a session needs to know of a DHCP version.
pub trait Protocol: DhcpVersion {
    /// The name in texts.
    const NAME: &'static str;
    /// The traffic that the client reads.
    const MESSAGES: Traffic;
    /// The traffic that answers probes.
    const PROBES: Traffic;

    /// The facts that are recorded on the Service.
    type Facts: Send;

    /// The facts to record. `expires`: end of the lease by the wall clock.
    fn facts(lease: &Self::Lease, expires: Option<Timestamp>) -> Self::Facts;
    /// Reason of the Event for a report.
    fn reason(report: &Self::Report) -> Reason;
    /// Wraps an event for the engine.
    fn input(uid: Uid, generation: u64, event: DhcpEvent<Self::Facts>) -> engine::Input;
}

/// An event for the session.
#[derive(Debug, Clone, Copy)]
pub enum Happened<'a> {
    /// The client starts.
    Start,
    /// The lease is to be released, because the Service is gone. This is the last step.
    Release,
    /// The interface has lost its carrier or was set down.
    LinkDown,
    /// The interface can be used again.
    LinkUp,
    /// Another host uses the granted address, as the engine knows.
    Taken {
        /// The address.
        address: IpAddr,
        /// The MAC of that host, if it is known.
        by: Option<Mac>,
    },
    /// A socket has reported that the interface is down. There may be no report when it is up again.
    SocketDown,
    /// The last [`DhcpAct::Probe`] could not be sent, because the queue is full.
    NotProbed,
    /// A received frame for the client.
    Message(&'a [u8]),
    /// A received frame about addresses, while one is being probed.
    Heard(&'a [u8]),
    /// The deadline has come. A call at any other time is harmless.
    Timer,
}

/// An action of the driver.
#[derive(Debug)]
pub enum DhcpAct<F> {
    /// Send this message of the client.
    Send(Vec<u8>),
    /// Send this probe, and receive the answers.
    Probe(Vec<u8>),
    /// Tell the engine about this event.
    Tell(DhcpEvent<F>),
}

/// A client with its surroundings.
pub struct Session<V: Protocol> {
    client: Client<V>,
    mac: Mac,
    probing: Option<Probing<Address<V>>>,
    /// The address that the engine was last told as bound.
    bound: Option<Address<V>>,
    /// When the link is tried again, after a socket has reported it as down.
    link_retry: Option<Instant>,
    /// The state that the engine was last told.
    state: Option<State>,
}

impl<V: Protocol> Session<V> {
    /// Makes a session for a client with this MAC; it waits for [`Happened::Start`].
    pub(super) fn new(client: Client<V>, mac: Mac) -> Self {
        Self { client, mac, probing: None, bound: None, link_retry: None, state: None }
    }

    /// Takes in an event at `now`, which is `wall` by the wall clock. Returns the actions in their order.
    pub fn step(&mut self, now: Instant, wall: Timestamp, happened: Happened<'_>) -> Vec<DhcpAct<V::Facts>> {
        let mut acts = Vec::new();
        let input = match happened {
            Happened::Start => Some(Input::Start),
            Happened::Release => Some(Input::Release),
            Happened::LinkUp => {
                self.link_retry = None;
                Some(Input::Restart)
            }
            // The lease stays valid until its end (RFC 2131 3.7) and is confirmed when the link is back.
            Happened::LinkDown | Happened::SocketDown => {
                self.probing = None;
                self.link_retry = matches!(happened, Happened::SocketDown).then_some(now + LINK_RETRY);
                Some(Input::LinkLost)
            }
            Happened::NotProbed => {
                self.probing.iter_mut().for_each(Probing::not_sent);
                None
            }
            Happened::Message(frame) => Some(Input::Frame(frame)),
            Happened::Heard(frame) => self.conflict(frame),
            Happened::Taken { address, by } => {
                let bound = self.bound.filter(|bound| (*bound).into() == address);
                bound.map(|address| Input::ProbeConflict { address, mac: by.unwrap_or(Mac::BROADCAST).octets().into() })
            }
            Happened::Timer => Some(self.due(now, &mut acts)),
        };
        if let Some(input) = input {
            self.feed(now, wall, input, &mut acts);
        }
        if matches!(happened, Happened::Taken { .. }) {
            // The engine has already reported the user of the address, and knows more than its MAC.
            let conflict = |act: &DhcpAct<_>| {
                matches!(act, DhcpAct::Tell(DhcpEvent::Report { reason: Reason::AddressConflict, .. }))
            };
            acts.retain(|act| !conflict(act));
        }
        let state = self.client.state();
        if self.state.replace(state) != Some(state) {
            acts.push(DhcpAct::Tell(DhcpEvent::State(state)));
        }
        acts
    }

    /// When to call [`Self::step`] with [`Happened::Timer`] if no event comes before.
    pub fn deadline(&self) -> Option<Instant> {
        let probe = self.probing.as_ref().map(Probing::deadline);
        self.client.deadline().into_iter().chain(probe).chain(self.link_retry).min()
    }

    /// The address about which frames have to be received now.
    pub fn probing(&self) -> Option<Address<V>> {
        self.probing.as_ref().map(Probing::address)
    }

    /// Handles the timers beside the client. Returns the input that follows for the client.
    fn due(&mut self, now: Instant, acts: &mut Vec<DhcpAct<V::Facts>>) -> Input<'static, Address<V>> {
        if self.link_retry.take_if(|at| *at <= now).is_some() {
            return Input::Restart;
        }
        let Some(probing) = self.probing.as_mut().filter(|probing| probing.deadline() <= now) else {
            return Input::Timer;
        };
        if let Some(probe) = probing.go_on(self.mac, now) {
            acts.push(DhcpAct::Probe(probe));
            return Input::Timer;
        }
        let address = probing.address();
        self.probing = None;
        Input::ProbeFree(address)
    }

    fn conflict(&mut self, frame: &[u8]) -> Option<Input<'static, Address<V>>> {
        let probing = self.probing.as_ref()?;
        let mac = probing.conflict(self.mac, frame)?.octets().into();
        let address = probing.address();
        self.probing = None;
        Some(Input::ProbeConflict { address, mac })
    }

    fn feed(&mut self, now: Instant, wall: Timestamp, input: Input<'_, Address<V>>, acts: &mut Vec<DhcpAct<V::Facts>>) {
        for output in self.client.step(now, input) {
            acts.extend(match output {
                Output::Send(frame) => Some(DhcpAct::Send(frame)),
                Output::Probe(address) => {
                    if self.probing.as_ref().is_none_or(|probing| probing.address() != address) {
                        self.probing = Some(Probing::new(address, now));
                    }
                    None
                }
                Output::Bound(lease) => {
                    self.bound = Some(lease.address());
                    Some(DhcpAct::Tell(DhcpEvent::Bound(leased::<V>(&lease, now, wall))))
                }
                Output::Renewed(lease) => Some(DhcpAct::Tell(DhcpEvent::Renewed(leased::<V>(&lease, now, wall)))),
                Output::Lost { lease, reason } => {
                    (self.probing, self.bound) = (None, None);
                    let address = lease.address().into();
                    Some(DhcpAct::Tell(DhcpEvent::Lost { address, why: reason.to_string() }))
                }
                Output::Report(report) => {
                    let (reason, text) = (V::reason(&report), report.to_string());
                    Some(DhcpAct::Tell(DhcpEvent::Report { reason, text }))
                }
            });
        }
    }
}

/// Converts the recorded end of a lease; `None`: it does not end.
pub(super) fn expiry(expires: Option<Timestamp>, now: Instant, wall: Timestamp) -> Expiry {
    let Some(expires) = expires else { return Expiry::Never };
    let left = u64::try_from(expires.as_millisecond().saturating_sub(wall.as_millisecond())).unwrap_or(0);
    Expiry::At(now.checked_add(Duration::from_millis(left)).unwrap_or(now))
}

pub(super) fn leased<V: Protocol>(lease: &V::Lease, now: Instant, wall: Timestamp) -> Leased<V::Facts> {
    let expires = lease.expiry().instant();
    let end = expires.and_then(|at| {
        let left = i64::try_from(at.saturating_duration_since(now).as_millis()).ok()?;
        // Whole seconds, rounded down: the next owner must stop before the server considers the lease ended.
        Timestamp::from_second(wall.as_millisecond().checked_add(left)?.div_euclid(1000)).ok()
    });
    Leased { facts: V::facts(lease, end), expires }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dhcp_session::session4;
    use crate::engine::DhcpStart;
    use crate::frames;

    fn wall() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn start(lease: Option<crate::annotations::LeaseFacts>) -> DhcpStart {
        DhcpStart {
            generation: 1,
            link: 2,
            mac: Mac::new([2, 0, 0, 0, 0, 1]),
            hostname: None,
            broadcast: false,
            requested: None,
            lease,
        }
    }

    fn session(now: Instant) -> Session<dhcp_client::V4> {
        session4(&start(None), now, wall(), 7).unwrap()
    }

    #[test]
    fn what_was_remembered_comes_back_with_the_time_that_is_left() {
        let now = Instant::now();
        let at = |text: &str| Some(text.parse().unwrap());
        assert_eq!(expiry(at("2026-01-01T00:01:00Z"), now, wall()), Expiry::At(now + Duration::from_mins(1)));
        assert!(expiry(at("2025-12-31T23:59:00Z"), now, wall()).is_past(now));
        assert_eq!(expiry(None, now, wall()), Expiry::Never);
    }

    #[test]
    fn who_has_a_granted_address_is_in_the_way_and_who_only_asks_for_it_is_not() {
        let (now, address) = (Instant::now(), std::net::Ipv4Addr::new(10, 0, 0, 5));
        let mut session = session(now);
        session.probing = Some(Probing::new(address, now));
        let other = Mac::new([2, 0, 0, 0, 0, 9]);
        let question = frames::question(other, None, address.into(), Mac::BROADCAST).unwrap();
        assert_eq!(session.conflict(&question), None, "a node that watches the owner");
        let claim = &frames::announcement(other, address.into())[0];
        let mac = other.octets().into();
        assert_eq!(session.conflict(claim), Some(Input::ProbeConflict { address, mac }));
    }

    #[test]
    fn a_socket_that_is_down_is_tried_again_every_second_and_says_nothing_meanwhile() {
        let now = Instant::now();
        let mut session = session(now);
        let sends = |acts: &[DhcpAct<_>]| acts.iter().filter(|act| matches!(act, DhcpAct::Send(_))).count();
        assert_eq!(sends(&session.step(now, wall(), Happened::Start)), 1);
        assert_eq!(sends(&session.step(now, wall(), Happened::SocketDown)), 0);
        assert_eq!(session.deadline(), Some(now + LINK_RETRY));
        assert_eq!(sends(&session.step(now + LINK_RETRY, wall(), Happened::Timer)), 1);
        // Told that it is down, it waits to be told that it is back.
        session.step(now + LINK_RETRY, wall(), Happened::LinkDown);
        assert_eq!(session.deadline(), None);
        assert_eq!(sends(&session.step(now + LINK_RETRY, wall(), Happened::LinkUp)), 1);
    }

    #[test]
    fn a_probe_that_the_queue_refuses_is_sent_again() {
        let (mut now, address) = (Instant::now(), std::net::Ipv4Addr::new(10, 0, 0, 5));
        let mut session = session(now);
        session.step(now, wall(), Happened::Start);
        session.probing = Some(Probing::new(address, now));
        let mut probes = 0;
        while session.probing().is_some() {
            let acts = session.step(now, wall(), Happened::Timer);
            if acts.iter().any(|act| matches!(act, DhcpAct::Probe(_))) {
                probes += 1;
                if probes <= 2 {
                    session.step(now, wall(), Happened::NotProbed);
                }
            }
            now += Duration::from_millis(10);
        }
        assert_eq!(probes, 5, "three of them were sent");
    }

    #[test]
    fn only_the_address_that_was_given_is_declined_on_the_engines_word() {
        let now = Instant::now();
        let address = std::net::Ipv4Addr::new(10, 0, 0, 5);
        let facts = crate::annotations::LeaseFacts {
            address,
            server: "10.0.0.1".parse().unwrap(),
            expires: Some("2026-01-01T01:00:00Z".parse().unwrap()),
        };
        let mut session = session4(&start(Some(facts)), now, wall(), 7).unwrap();
        let by = None;
        let declines =
            |acts: &[DhcpAct<_>]| acts.iter().any(|act| matches!(act, DhcpAct::Tell(DhcpEvent::Lost { .. })));
        session.step(now, wall(), Happened::Start);
        let other = Happened::Taken { address: "10.0.0.6".parse().unwrap(), by };
        assert!(!declines(&session.step(now, wall(), other)));
        let taken = Happened::Taken { address: address.into(), by };
        let acts = session.step(now, wall(), taken);
        assert!(declines(&acts));
        let reports = |act: &DhcpAct<_>| matches!(act, DhcpAct::Tell(DhcpEvent::Report { .. }));
        assert!(!acts.iter().any(reports), "the engine has told it: {acts:?}");
        assert!(session.deadline().is_some_and(|at| at >= now + Duration::from_secs(10)), "RFC 2131 3.1 step 5");
    }
}
