//! One DHCP client with what surrounds it on a node, as far as something is decided there: the probes for an address
//! that was granted, a link that comes and goes, what the engine is told. No I/O and no clock: the driver runs it
//! behind packet sockets, a simulation in virtual time.

use std::fmt::Display;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use dhcp_client::Expiry;
use dhcp_client::machine::{Input, Output};
use jiff::Timestamp;
use l2_types::{Mac, Traffic};

use super::probing::Probing;
use crate::engine::{self, DhcpEvent, Leased};
use crate::reason::Reason;
use crate::view::Uid;

/// The kernel reports a link that goes down on the socket, but not always the engine's way of one that came back in the
/// meantime: until somebody says that it is back, it is tried this often.
const LINK_RETRY: Duration = Duration::from_secs(1);

/// What the machine of one version answers.
pub type Outputs<C> =
    Vec<Output<<C as Protocol>::Address, <C as Protocol>::Lease, <C as Protocol>::LostReason, <C as Protocol>::Report>>;

/// A client of one version of DHCP, as a session needs it.
pub trait Protocol: Sized + Send + 'static {
    /// For texts.
    const NAME: &'static str;
    /// The frames that the client reads.
    const MESSAGES: Traffic;
    /// The frames that say whether somebody uses an address.
    const PROBES: Traffic;

    /// An address of its family.
    type Address: Copy + Eq + Display + Into<IpAddr> + Send + Sync + 'static;
    /// A granted lease.
    type Lease;
    /// Why one was lost.
    type LostReason: Display;
    /// Progress and trouble.
    type Report: Display;
    /// What is remembered on the Service.
    type Facts: Send;

    /// The machine's own step.
    fn step(&mut self, now: Instant, input: Input<'_, Self::Address>) -> Outputs<Self>;
    /// The machine's own deadline.
    fn deadline(&self) -> Option<Instant>;
    /// A stable lower-case name.
    fn state(&self) -> &'static str;

    /// Which address was leased.
    fn address(lease: &Self::Lease) -> Self::Address;
    /// Until when.
    fn expiry(lease: &Self::Lease) -> Expiry;
    /// What to remember on the Service of a lease that ends at this time of the wall clock.
    fn facts(lease: &Self::Lease, expires: Option<Timestamp>) -> Self::Facts;
    /// Reason of the Event.
    fn reason(report: &Self::Report) -> Reason;
    /// What the engine is told.
    fn input(uid: Uid, generation: u64, event: DhcpEvent<Self::Facts>) -> engine::Input;
}

/// Something that happened.
#[derive(Debug, Clone, Copy)]
pub enum Happened<'a> {
    /// It begins.
    Start,
    /// The Service is gone: the lease is given back. The last step.
    Release,
    /// The interface has lost its carrier or was set down.
    LinkDown,
    /// It can be used again.
    LinkUp,
    /// Somebody uses the address that was given, by what the engine knows.
    Taken {
        /// The address.
        address: IpAddr,
        /// Who, where it is known.
        by: Option<Mac>,
    },
    /// A socket says that the interface is down. Nobody may say when it is back.
    SocketDown,
    /// A frame for the client.
    Message(&'a [u8]),
    /// A frame about addresses, while one is being probed.
    Heard(&'a [u8]),
    /// The deadline has come. Harmless at any other time.
    Timer,
}

/// Something to do.
#[derive(Debug)]
pub enum Act<F> {
    /// Send this message.
    Send(Vec<u8>),
    /// Send this probe, and hear what is answered.
    Probe(Vec<u8>),
    /// Tell the engine.
    Tell(DhcpEvent<F>),
}

/// See the module.
pub struct Session<C: Protocol> {
    client: C,
    mac: Mac,
    probing: Option<Probing<C::Address>>,
    /// The address that the engine was told of last.
    bound: Option<C::Address>,
    /// A socket said that the link is down: when it is tried again.
    link_retry: Option<Instant>,
    state: &'static str,
}

impl<C: Protocol> Session<C> {
    /// A client that speaks with this MAC, and waits for [`Happened::Start`].
    pub(super) fn new(client: C, mac: Mac) -> Self {
        Self { client, mac, probing: None, bound: None, link_retry: None, state: "" }
    }

    /// Takes in what happened at `now`, which is `wall` by the clock on the wall, and says what to do, in this order.
    pub fn step(&mut self, now: Instant, wall: Timestamp, happened: Happened<'_>) -> Vec<Act<C::Facts>> {
        let mut acts = Vec::new();
        let input = match happened {
            Happened::Start => Some(Input::Start),
            Happened::Release => Some(Input::Release),
            Happened::LinkUp => {
                self.link_retry = None;
                Some(Input::Restart)
            }
            // RFC 2131 3.7: the lease stays valid and ends at its time; it is confirmed when the link is back.
            Happened::LinkDown | Happened::SocketDown => {
                self.probing = None;
                self.link_retry = matches!(happened, Happened::SocketDown).then_some(now + LINK_RETRY);
                Some(Input::LinkLost)
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
            // The engine has told who has the address, and knows it better than by a MAC.
            let conflict =
                |act: &Act<_>| matches!(act, Act::Tell(DhcpEvent::Report { reason: Reason::AddressConflict, .. }));
            acts.retain(|act| !conflict(act));
        }
        let state = self.client.state();
        if state != self.state {
            self.state = state;
            acts.push(Act::Tell(DhcpEvent::State(state)));
        }
        acts
    }

    /// When to step with [`Happened::Timer`] if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        let probe = self.probing.as_ref().map(Probing::deadline);
        self.client.deadline().into_iter().chain(probe).chain(self.link_retry).min()
    }

    /// The address about which frames have to be heard now.
    pub fn probing(&self) -> Option<C::Address> {
        self.probing.as_ref().map(Probing::address)
    }

    /// What is due beside the client, and what that means to it.
    fn due(&mut self, now: Instant, acts: &mut Vec<Act<C::Facts>>) -> Input<'static, C::Address> {
        if self.link_retry.take_if(|at| *at <= now).is_some() {
            return Input::Restart;
        }
        let Some(probing) = self.probing.as_mut().filter(|probing| probing.deadline() <= now) else {
            return Input::Timer;
        };
        if let Some(probe) = probing.go_on(self.mac, now) {
            acts.push(Act::Probe(probe));
            return Input::Timer;
        }
        let address = probing.address();
        self.probing = None;
        Input::ProbeFree(address)
    }

    fn conflict(&mut self, frame: &[u8]) -> Option<Input<'static, C::Address>> {
        let probing = self.probing.as_ref()?;
        let mac = probing.conflict(self.mac, frame)?.octets().into();
        let address = probing.address();
        self.probing = None;
        Some(Input::ProbeConflict { address, mac })
    }

    fn feed(&mut self, now: Instant, wall: Timestamp, input: Input<'_, C::Address>, acts: &mut Vec<Act<C::Facts>>) {
        for output in self.client.step(now, input) {
            acts.extend(match output {
                Output::Send(frame) => Some(Act::Send(frame)),
                Output::Probe(address) => {
                    if self.probing.as_ref().is_none_or(|probing| probing.address() != address) {
                        self.probing = Some(Probing::new(address, now));
                    }
                    None
                }
                Output::Bound(lease) => {
                    self.bound = Some(C::address(&lease));
                    Some(Act::Tell(DhcpEvent::Bound(leased::<C>(&lease, now, wall))))
                }
                Output::Renewed(lease) => Some(Act::Tell(DhcpEvent::Renewed(leased::<C>(&lease, now, wall)))),
                Output::Lost { lease, reason } => {
                    (self.probing, self.bound) = (None, None);
                    let address = C::address(&lease).into();
                    Some(Act::Tell(DhcpEvent::Lost { address, why: reason.to_string() }))
                }
                Output::Report(report) => {
                    let (reason, text) = (C::reason(&report), report.to_string());
                    Some(Act::Tell(DhcpEvent::Report { reason, text }))
                }
            });
        }
    }
}

/// The end of a lease that was written down; absent: never.
pub(super) fn expiry(expires: Option<Timestamp>, now: Instant, wall: Timestamp) -> Expiry {
    let Some(expires) = expires else { return Expiry::Never };
    let left = u64::try_from(expires.as_millisecond().saturating_sub(wall.as_millisecond())).unwrap_or(0);
    Expiry::At(now.checked_add(Duration::from_millis(left)).unwrap_or(now))
}

pub(super) fn leased<C: Protocol>(lease: &C::Lease, now: Instant, wall: Timestamp) -> Leased<C::Facts> {
    let expires = C::expiry(lease).instant();
    let end = expires.and_then(|at| {
        let left = i64::try_from(at.saturating_duration_since(now).as_millis()).ok()?;
        // Whole seconds, cut off: a successor must stop before the server thinks it does.
        Timestamp::from_second(wall.as_millisecond().checked_add(left)?.div_euclid(1000)).ok()
    });
    Leased { facts: C::facts(lease, end), expires }
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

    fn session(now: Instant) -> Session<dhcp_client::Client> {
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
        let sends = |acts: &[Act<_>]| acts.iter().filter(|act| matches!(act, Act::Send(_))).count();
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
        let declines = |acts: &[Act<_>]| acts.iter().any(|act| matches!(act, Act::Tell(DhcpEvent::Lost { .. })));
        session.step(now, wall(), Happened::Start);
        let other = Happened::Taken { address: "10.0.0.6".parse().unwrap(), by };
        assert!(!declines(&session.step(now, wall(), other)));
        let taken = Happened::Taken { address: address.into(), by };
        let acts = session.step(now, wall(), taken);
        assert!(declines(&acts));
        let reports = |act: &Act<_>| matches!(act, Act::Tell(DhcpEvent::Report { .. }));
        assert!(!acts.iter().any(reports), "the engine has told it: {acts:?}");
        assert!(session.deadline().is_some_and(|at| at >= now + Duration::from_secs(10)), "RFC 2131 3.1 step 5");
    }
}
