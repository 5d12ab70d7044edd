//! Runs one sans-IO DHCP client behind packet sockets on its macvlan. One task per VIP: a silent server holds up nobody
//! else.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use dhcp_client::{Client, Config, Expiry, Lease, LostReason, Output, RememberedLease, Report};
use jiff::Timestamp;
use l2::{PacketSocket, Traffic};
use runtime::error::chain;
use tokio::sync::mpsc;

use crate::annotations::LeaseFacts;
use crate::clock;
use crate::engine::{DhcpEvent, DhcpStart, Input, Leased};
use crate::frames::{self, Frame, Heard};
use crate::view::Uid;

/// decisions.md 22, as for static addresses.
const PROBES: u8 = 3;
const PROBE_GAP: Duration = Duration::from_millis(10);
/// Ethernet with VLAN tags and the largest message that we accept (option 57: 1500).
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

/// Where the engine hears what a client says.
#[derive(Debug, Clone)]
pub struct Events {
    /// Whose client it is.
    pub uid: Uid,
    /// Which of them.
    pub generation: u64,
    /// To the engine.
    pub inputs: mpsc::UnboundedSender<Input>,
}

impl Events {
    fn tell(&self, event: DhcpEvent) {
        // A receiver that is gone means that nobody wants to know.
        let _ = self.inputs.send(Input::Dhcp(self.uid.clone(), self.generation, event));
    }
}

/// The client as a task. It ends when told to, or when the sender is dropped, keeping the lease.
pub fn client(start: DhcpStart, events: Events) -> (Orders, impl Future<Output = ()> + Send + 'static) {
    let (orders, ordered) = mpsc::unbounded_channel();
    let task = async move {
        let driver = Driver::new(&start, events.clone());
        let result = match driver {
            Ok(driver) => driver.run(ordered).await,
            Err(error) => Err(error),
        };
        events.tell(match result {
            Ok(()) => DhcpEvent::Stopped,
            Err(error) => DhcpEvent::Failed(error),
        });
    };
    (orders, task)
}

struct Probing {
    socket: PacketSocket,
    address: Ipv4Addr,
    sent: u8,
    next: Instant,
}

struct Driver {
    link: u32,
    mac: l2::Mac,
    client: Client,
    socket: PacketSocket,
    probing: Option<Probing>,
    /// The socket said that the link is down: when it is tried again.
    link_retry: Option<Instant>,
    events: Events,
    state: &'static str,
}

/// What woke the driver.
enum Woken {
    Order(Option<Order>),
    Frame(std::io::Result<usize>),
    Arp(std::io::Result<usize>),
    Timer,
}

impl Driver {
    fn new(start: &DhcpStart, events: Events) -> Result<Self, String> {
        let now = clock::now();
        let config = client_config(start, now, Timestamp::now());
        let client = Client::new(config, now, rand::random()).map_err(|error| chain(&error))?;
        let socket = PacketSocket::open(start.link, Traffic::DhcpClient).map_err(|error| chain(&error))?;
        Ok(Self {
            link: start.link,
            mac: start.mac,
            client,
            socket,
            probing: None,
            link_retry: None,
            events,
            state: "",
        })
    }

    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) -> Result<(), String> {
        let mut buffer = [0; FRAME];
        let mut arp_buffer = [0; FRAME];
        self.step(dhcp_client::Input::Start).await?;
        loop {
            let probe = self.probing.as_ref().map(|probing| probing.next);
            let deadline = self.client.deadline().into_iter().chain(probe).chain(self.link_retry).min();
            // What has arrived is read before a timer is judged (failover-protocol.md R1).
            let woken = tokio::select! {
                biased;
                order = orders.recv() => Woken::Order(order),
                result = self.socket.recv(&mut buffer) => Woken::Frame(result),
                result = heard(self.probing.as_ref(), &mut arp_buffer) => Woken::Arp(result),
                () = sleep_until(deadline) => Woken::Timer,
            };
            match woken {
                Woken::Order(Some(Order::Stop { release: true })) => {
                    self.step(dhcp_client::Input::Release).await?;
                    return Ok(());
                }
                Woken::Order(Some(Order::Stop { release: false }) | None) => return Ok(()),
                Woken::Order(Some(Order::Link { up })) => {
                    self.link_retry = None;
                    let input = if up { dhcp_client::Input::Restart } else { dhcp_client::Input::LinkLost };
                    self.step(input).await?;
                }
                Woken::Frame(Ok(length)) => self.step(dhcp_client::Input::Frame(&buffer[..length])).await?,
                Woken::Arp(Ok(length)) => self.arp(&arp_buffer[..length]).await?,
                Woken::Frame(Err(error)) | Woken::Arp(Err(error)) if is_down(&error) => self.link_lost().await?,
                Woken::Frame(Err(error)) | Woken::Arp(Err(error)) => {
                    return Err(format!("the interface of the DHCP client is gone: {error}"));
                }
                Woken::Timer => self.timer().await?,
            }
        }
    }

    /// RFC 2131 3.7: the lease stays valid and ends at its time; it is confirmed when the link is back.
    async fn link_lost(&mut self) -> Result<(), String> {
        self.probing = None;
        self.link_retry = Some(clock::now() + LINK_RETRY);
        Box::pin(self.step(dhcp_client::Input::LinkLost)).await
    }

    async fn timer(&mut self) -> Result<(), String> {
        let now = clock::now();
        if self.link_retry.take_if(|at| *at <= now).is_some() {
            return self.step(dhcp_client::Input::Restart).await;
        }
        if let Some(probing) = self.probing.as_mut().filter(|probing| probing.next <= now) {
            let address = probing.address;
            if probing.sent < PROBES {
                probing.sent += 1;
                // From now, not from when it was due: an answer needs its time.
                probing.next = now + PROBE_GAP;
                let frame = frames::probe(self.mac, address.into());
                match probing.socket.send(&frame).await {
                    Err(error) if is_down(&error) => return self.link_lost().await,
                    sent => sent.map_err(|error| format!("failed to send an ARP probe for {address}: {error}"))?,
                }
            } else {
                self.probing = None;
                return self.step(dhcp_client::Input::ProbeFree(address)).await;
            }
        }
        self.step(dhcp_client::Input::Timer).await
    }

    async fn arp(&mut self, frame: &[u8]) -> Result<(), String> {
        let (Some(probing), Some(Frame { address, mac, what, .. })) = (&self.probing, frames::read(0, frame)) else {
            return Ok(());
        };
        let probed = probing.address;
        // RFC 5227 2.1.1: somebody has it, or wants it too.
        if address != IpAddr::V4(probed)
            || mac == self.mac
            || !matches!(what, Heard::Claim | Heard::Answer | Heard::Probe)
        {
            return Ok(());
        }
        self.probing = None;
        self.step(dhcp_client::Input::ProbeConflict { address: probed, mac: mac.octets().into() }).await
    }

    async fn step(&mut self, input: dhcp_client::Input<'_>) -> Result<(), String> {
        let now = clock::now();
        let mut down = false;
        for output in self.client.step(now, input) {
            match output {
                // A full queue, or that of a link without carrier, loses a frame as the wire may; the client sends again.
                Output::Send(frame) => match self.socket.send(&frame).await {
                    Err(error) if is_down(&error) => down = true,
                    Err(error) if error.raw_os_error() == Some(ENOBUFS) => {}
                    sent => sent.map_err(|error| format!("failed to send a DHCP message: {error}"))?,
                },
                Output::Probe(address) => {
                    if self.probing.as_ref().is_none_or(|probing| probing.address != address) {
                        let socket = PacketSocket::open(self.link, Traffic::Arp).map_err(|error| chain(&error))?;
                        self.probing = Some(Probing { socket, address, sent: 0, next: now });
                    }
                }
                Output::Bound(lease) => self.tell(DhcpEvent::Bound(leased(&lease, now, Timestamp::now()))),
                Output::Renewed(lease) => self.tell(DhcpEvent::Renewed(leased(&lease, now, Timestamp::now()))),
                Output::Lost { lease, reason } => {
                    self.probing = None;
                    self.tell(DhcpEvent::Lost { address: lease.address.into(), why: lost(&reason) });
                }
                Output::Report(report) => {
                    self.tell(DhcpEvent::Report { reason: reason(&report), text: report.to_string() });
                }
            }
        }
        if down {
            return self.link_lost().await;
        }
        let state = self.client.state().as_str();
        if state != self.state {
            self.state = state;
            self.tell(DhcpEvent::State(state));
        }
        Ok(())
    }

    fn tell(&self, event: DhcpEvent) {
        self.events.tell(event);
    }
}

/// Set down, not gone: it may come back as the same interface.
pub(crate) fn is_down(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NetworkDown
}

async fn heard(probing: Option<&Probing>, buffer: &mut [u8]) -> std::io::Result<usize> {
    match probing {
        Some(probing) => probing.socket.recv(buffer).await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => clock::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// What the client is told. The wall clock is needed once: facts on a Service outlive the process that wrote them.
fn client_config(start: &DhcpStart, now: Instant, wall: Timestamp) -> Config {
    let mut config = Config::new(start.mac.octets().into());
    config.hostname.clone_from(&start.hostname);
    config.broadcast_flag = start.broadcast;
    config.requested_ip = start.requested;
    config.remembered = match (&start.lease, start.requested) {
        (Some(facts), _) => Some(RememberedLease {
            address: facts.address,
            server_id: Some(facts.server),
            server_mac: None,
            expiry: Some(expiry(facts, now, wall)),
            network: None,
        }),
        // What kube-vip leaves: no word about the server or the end of the lease. The server decides.
        (None, Some(address)) => {
            Some(RememberedLease { address, server_id: None, server_mac: None, expiry: None, network: None })
        }
        (None, None) => None,
    };
    config
}

fn expiry(facts: &LeaseFacts, now: Instant, wall: Timestamp) -> Expiry {
    let Some(expires) = facts.expires else { return Expiry::Never };
    let left = u64::try_from(expires.as_millisecond().saturating_sub(wall.as_millisecond())).unwrap_or(0);
    Expiry::At(now.checked_add(Duration::from_millis(left)).unwrap_or(now))
}

fn leased(lease: &Lease, now: Instant, wall: Timestamp) -> Leased {
    let expires = match lease.expiry {
        Expiry::Never => None,
        Expiry::At(at) => Some(at),
    };
    let end = expires.and_then(|at| {
        let left = i64::try_from(at.saturating_duration_since(now).as_millis()).ok()?;
        // Whole seconds, cut off: a successor must stop before the server thinks it does.
        Timestamp::from_second(wall.as_millisecond().checked_add(left)?.div_euclid(1000)).ok()
    });
    Leased { facts: LeaseFacts { address: lease.address, server: lease.server_id, expires: end }, expires }
}

fn lost(reason: &LostReason) -> String {
    reason.to_string()
}

/// Reason of the Event.
fn reason(report: &Report) -> &'static str {
    match report {
        Report::NoAnswer { .. } => "DHCPNoAnswer",
        Report::Nak { .. } => "DHCPRefused",
        Report::Declined { .. } => "AddressConflict",
        Report::OtherAddress { .. } => "DHCPOtherAddress",
        _ => "DHCPTrouble",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_remembered_comes_back_with_the_time_that_is_left() {
        let (now, wall) = (Instant::now(), "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap());
        let facts = |expires: Option<&str>| LeaseFacts {
            address: "10.0.0.5".parse().unwrap(),
            server: "10.0.0.1".parse().unwrap(),
            expires: expires.map(|text| text.parse().unwrap()),
        };
        assert_eq!(expiry(&facts(Some("2026-01-01T00:01:00Z")), now, wall), Expiry::At(now + Duration::from_mins(1)));
        assert!(expiry(&facts(Some("2025-12-31T23:59:00Z")), now, wall).is_past(now));
        assert_eq!(expiry(&facts(None), now, wall), Expiry::Never);
    }

    #[test]
    fn a_lease_becomes_facts_that_never_end_later() {
        let (now, wall) = (Instant::now(), "2026-01-01T00:00:00.9Z".parse::<Timestamp>().unwrap());
        let lease = Lease {
            address: "10.0.0.5".parse().unwrap(),
            network: None,
            routers: Vec::new(),
            server_id: "10.0.0.1".parse().unwrap(),
            server_mac: None,
            since: now,
            renew_at: None,
            rebind_at: None,
            expiry: Expiry::At(now + Duration::from_millis(60_050)),
        };
        let leased = leased(&lease, now, wall);
        assert_eq!(leased.facts.expires, Some("2026-01-01T00:01:00Z".parse().unwrap()));
    }

    #[test]
    fn kube_vips_annotations_are_enough_to_ask_for_the_same_address() {
        let start = DhcpStart {
            generation: 1,
            link: 1,
            mac: l2::Mac::new([0, 0, 0x6c, 1, 2, 3]),
            hostname: None,
            broadcast: false,
            requested: Some("10.0.0.5".parse().unwrap()),
            lease: None,
        };
        let config = client_config(&start, Instant::now(), Timestamp::now());
        assert_eq!(config.remembered.unwrap().server_id, None);
    }
}
