//! Runs one sans-IO DHCP client behind packet sockets: for DHCPv4 on the macvlan of its VIP, for DHCPv6 on the interface
//! that carries the address. One task per VIP: a silent server holds up nobody else.

mod probing;
mod v4;
mod v6;

use std::fmt::Display;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use dhcp_client::Expiry;
use dhcp_client::machine::{Input, Output};
use jiff::Timestamp;
use l2::{PacketSocket, Traffic};
use probing::Probing;
use runtime::error::chain;
use tokio::sync::mpsc;

use crate::clock;
use crate::engine::{self, Dhcp6Start, DhcpEvent, DhcpStart, Leased};
use crate::reason::Reason;
use crate::view::Uid;

/// Ethernet with VLAN tags and the largest message that we accept (option 57: 1500), or an IPv6 packet of the usual size.
const FRAME: usize = 1600;
/// What the kernel says to a frame for a link that has no carrier.
const ENOBUFS: i32 = 105;

/// The kernel reports a link that goes down on the socket, but not always the engine's way of one that came back in the
/// meantime: until somebody says that it is back, it is tried this often.
const LINK_RETRY: Duration = Duration::from_secs(1);

/// What a running client is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// End, giving the lease back or keeping it for a successor.
    Stop {
        /// Whether to send RELEASE.
        release: bool,
    },
    /// The interface has lost its carrier or was set down, or is back.
    Link {
        /// It can be used again.
        up: bool,
    },
}

/// Tells a client what to do. One that is dropped means: end, and keep the lease.
pub type Orders = mpsc::UnboundedSender<Order>;

/// Where the engine hears what clients say.
pub type Inputs = mpsc::UnboundedSender<engine::Input>;

/// A DHCPv4 client as a task. It ends when told to, or when the sender is dropped, keeping the lease.
pub fn client(uid: Uid, start: DhcpStart, inputs: Inputs) -> (Orders, impl Future<Output = ()> + Send + 'static) {
    let station = Station { uid, generation: start.generation, link: start.link, mac: start.mac, inputs };
    task(station, move |_, now, wall| {
        dhcp_client::Client::new(v4::config(&start, now, wall), now, rand::random()).map_err(|error| chain(&error))
    })
}

/// A DHCPv6 client as a task. It ends when told to, or when the sender is dropped, keeping the lease.
pub fn client6(uid: Uid, start: Dhcp6Start, inputs: Inputs) -> (Orders, impl Future<Output = ()> + Send + 'static) {
    let station = Station { uid, generation: start.generation, link: start.link, mac: start.mac, inputs };
    task(station, move |uid, now, wall| {
        let config = v6::config(uid, &start, now, wall);
        dhcp_client::v6::Client::new(config, rand::random()).map_err(|error| chain(&error))
    })
}

/// `make` gets the wall clock too, once: facts on a Service outlive the process that wrote them.
fn task<C: Protocol>(
    station: Station,
    make: impl FnOnce(&Uid, Instant, Timestamp) -> Result<C, String> + Send + 'static,
) -> (Orders, impl Future<Output = ()> + Send + 'static) {
    let (orders, ordered) = mpsc::unbounded_channel();
    let task = async move {
        let end = station.clone();
        let client = make(&station.uid, clock::now(), Timestamp::now());
        let result = match client.and_then(|client| Driver::new(client, station)) {
            Ok(driver) => driver.run(ordered).await,
            Err(error) => Err(error),
        };
        end.tell::<C>(match result {
            Ok(()) => DhcpEvent::Stopped,
            Err(error) => DhcpEvent::Failed(error),
        });
    };
    (orders, task)
}

type Outputs<C> =
    Vec<Output<<C as Protocol>::Address, <C as Protocol>::Lease, <C as Protocol>::LostReason, <C as Protocol>::Report>>;

/// A client of one version of DHCP, as the driver needs it.
trait Protocol: Sized + Send + 'static {
    /// For texts.
    const NAME: &'static str;
    /// The frames that the client reads.
    const MESSAGES: Traffic;
    /// The frames that say whether somebody uses an address.
    const PROBES: Traffic;

    type Address: Copy + Eq + Display + Into<IpAddr> + Send + Sync + 'static;
    type Lease: Send;
    type LostReason: Display + Send;
    type Report: Display + Send;
    type Facts;

    fn step(&mut self, now: Instant, input: Input<'_, Self::Address>) -> Outputs<Self>;
    fn deadline(&self) -> Option<Instant>;
    /// A stable lower-case name.
    fn state(&self) -> &'static str;

    fn address(lease: &Self::Lease) -> Self::Address;
    fn expiry(lease: &Self::Lease) -> Expiry;
    /// What to remember on the Service of a lease that ends at this time of the wall clock.
    fn facts(lease: &Self::Lease, expires: Option<Timestamp>) -> Self::Facts;
    /// Reason of the Event.
    fn reason(report: &Self::Report) -> Reason;
    fn input(uid: Uid, generation: u64, event: DhcpEvent<Self::Facts>) -> engine::Input;
}

/// Whose client it is, which of them, where it speaks, and to whom it reports.
#[derive(Clone)]
struct Station {
    uid: Uid,
    generation: u64,
    link: u32,
    mac: l2::Mac,
    inputs: Inputs,
}

impl Station {
    fn tell<C: Protocol>(&self, event: DhcpEvent<C::Facts>) {
        // A receiver that is gone means that nobody wants to know.
        let _ = self.inputs.send(C::input(self.uid.clone(), self.generation, event));
    }
}

struct Driver<C: Protocol> {
    station: Station,
    client: C,
    socket: PacketSocket,
    probing: Option<Probing<C::Address>>,
    /// The socket said that the link is down: when it is tried again.
    link_retry: Option<Instant>,
    state: &'static str,
}

/// What woke the driver.
enum Woken {
    Order(Option<Order>),
    Message(std::io::Result<usize>),
    Heard(std::io::Result<usize>),
    Timer,
}

impl<C: Protocol> Driver<C> {
    fn new(client: C, station: Station) -> Result<Self, String> {
        let socket = PacketSocket::open(station.link, C::MESSAGES).map_err(|error| chain(&error))?;
        Ok(Self { station, client, socket, probing: None, link_retry: None, state: "" })
    }

    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) -> Result<(), String> {
        let mut message = [0; FRAME];
        let mut heard = [0; FRAME];
        self.step(Input::Start).await?;
        loop {
            let probe = self.probing.as_ref().map(Probing::deadline);
            let deadline = self.client.deadline().into_iter().chain(probe).chain(self.link_retry).min();
            // What has arrived is read before a timer is judged (failover-protocol.md R1).
            let woken = tokio::select! {
                biased;
                order = orders.recv() => Woken::Order(order),
                result = self.socket.recv(&mut message) => Woken::Message(result),
                result = hear(self.probing.as_ref(), &mut heard) => Woken::Heard(result),
                () = sleep_until(deadline) => Woken::Timer,
            };
            match woken {
                Woken::Order(Some(Order::Stop { release: true })) => return self.step(Input::Release).await,
                Woken::Order(Some(Order::Stop { release: false }) | None) => return Ok(()),
                Woken::Order(Some(Order::Link { up })) => {
                    self.link_retry = None;
                    self.step(if up { Input::Restart } else { Input::LinkLost }).await?;
                }
                Woken::Message(Ok(length)) => self.step(Input::Frame(&message[..length])).await?,
                Woken::Heard(Ok(length)) => self.heard(&heard[..length]).await?,
                Woken::Message(Err(error)) | Woken::Heard(Err(error)) if is_down(&error) => self.link_lost().await?,
                Woken::Message(Err(error)) | Woken::Heard(Err(error)) => {
                    return Err(format!("the interface of the {} client is gone: {error}", C::NAME));
                }
                Woken::Timer => self.timer().await?,
            }
        }
    }

    /// RFC 2131 3.7: the lease stays valid and ends at its time; it is confirmed when the link is back.
    async fn link_lost(&mut self) -> Result<(), String> {
        self.probing = None;
        self.link_retry = Some(clock::now() + LINK_RETRY);
        Box::pin(self.step(Input::LinkLost)).await
    }

    async fn timer(&mut self) -> Result<(), String> {
        let now = clock::now();
        if self.link_retry.take_if(|at| *at <= now).is_some() {
            return self.step(Input::Restart).await;
        }
        if let Some(probing) = self.probing.as_mut().filter(|probing| probing.deadline() <= now) {
            let address = probing.address();
            match probing.go_on(self.station.mac, now).await {
                Ok(false) => {}
                Ok(true) => {
                    self.probing = None;
                    return self.step(Input::ProbeFree(address)).await;
                }
                Err(error) if is_down(&error) => return self.link_lost().await,
                Err(error) => return Err(format!("failed to send a probe for {address}: {error}")),
            }
        }
        self.step(Input::Timer).await
    }

    async fn heard(&mut self, frame: &[u8]) -> Result<(), String> {
        let Some(probing) = &self.probing else { return Ok(()) };
        let Some(mac) = probing.conflict(self.station.mac, frame) else { return Ok(()) };
        let address = probing.address();
        self.probing = None;
        self.step(Input::ProbeConflict { address, mac: mac.octets().into() }).await
    }

    async fn step(&mut self, input: Input<'_, C::Address>) -> Result<(), String> {
        let now = clock::now();
        let mut down = false;
        for output in self.client.step(now, input) {
            match output {
                // A full queue, or that of a link without carrier, loses a frame as the wire may; the client sends again.
                Output::Send(frame) => match self.socket.send(&frame).await {
                    Err(error) if is_down(&error) => down = true,
                    Err(error) if error.raw_os_error() == Some(ENOBUFS) => {}
                    sent => sent.map_err(|error| format!("failed to send a {} message: {error}", C::NAME))?,
                },
                Output::Probe(address) => {
                    if self.probing.as_ref().is_none_or(|probing| probing.address() != address) {
                        let probing = Probing::open(self.station.link, C::PROBES, address, now);
                        self.probing = Some(probing.map_err(|error| chain(&error))?);
                    }
                }
                Output::Bound(lease) => self.tell(DhcpEvent::Bound(leased::<C>(&lease, now, Timestamp::now()))),
                Output::Renewed(lease) => self.tell(DhcpEvent::Renewed(leased::<C>(&lease, now, Timestamp::now()))),
                Output::Lost { lease, reason } => {
                    self.probing = None;
                    self.tell(DhcpEvent::Lost { address: C::address(&lease).into(), why: reason.to_string() });
                }
                Output::Report(report) => {
                    self.tell(DhcpEvent::Report { reason: C::reason(&report), text: report.to_string() });
                }
            }
        }
        if down {
            return self.link_lost().await;
        }
        let state = self.client.state();
        if state != self.state {
            self.state = state;
            self.tell(DhcpEvent::State(state));
        }
        Ok(())
    }

    fn tell(&self, event: DhcpEvent<C::Facts>) {
        self.station.tell::<C>(event);
    }
}

/// Set down, not gone: it may come back as the same interface.
fn is_down(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NetworkDown
}

async fn hear<A: Copy + Into<IpAddr>>(probing: Option<&Probing<A>>, buffer: &mut [u8]) -> std::io::Result<usize> {
    match probing {
        Some(probing) => probing.recv(buffer).await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => clock::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The end of a lease that was written down; absent: never.
fn expiry(expires: Option<Timestamp>, now: Instant, wall: Timestamp) -> Expiry {
    let Some(expires) = expires else { return Expiry::Never };
    let left = u64::try_from(expires.as_millisecond().saturating_sub(wall.as_millisecond())).unwrap_or(0);
    Expiry::At(now.checked_add(Duration::from_millis(left)).unwrap_or(now))
}

fn leased<C: Protocol>(lease: &C::Lease, now: Instant, wall: Timestamp) -> Leased<C::Facts> {
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

    #[test]
    fn what_was_remembered_comes_back_with_the_time_that_is_left() {
        let (now, wall) = (Instant::now(), "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap());
        let at = |text: &str| Some(text.parse().unwrap());
        assert_eq!(expiry(at("2026-01-01T00:01:00Z"), now, wall), Expiry::At(now + Duration::from_mins(1)));
        assert!(expiry(at("2025-12-31T23:59:00Z"), now, wall).is_past(now));
        assert_eq!(expiry(None, now, wall), Expiry::Never);
    }
}
