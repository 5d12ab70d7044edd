//! Runs one sans-IO DHCPv6 client behind a packet socket on the interface that carries its address. One task per VIP.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use dhcp_client::Expiry;
use dhcp_client::v6::{Client, Config, Input, Lease, Output, RememberedLease, Report, service_duid};
use jiff::Timestamp;
use l2::{PacketSocket, Traffic};
use runtime::error::chain;
use tokio::sync::mpsc;

use crate::annotations::LeaseFacts6;
use crate::clock;
use crate::dhcp_driver::{Order, Orders, is_down};
use crate::engine::{self, Dhcp6Start, DhcpEvent, Leased};
use crate::frames;
use crate::view::Uid;

/// decisions.md 22, as for static addresses.
const PROBES: u8 = 3;
const PROBE_GAP: Duration = Duration::from_millis(10);
/// Ethernet with an IPv6 packet of the usual size.
const FRAME: usize = 1600;
/// An interface that is down is tried again this often.
const LINK_RETRY: Duration = Duration::from_secs(1);

/// The client as a task. It ends when told to, or when the sender is dropped, keeping the lease.
pub fn client(
    uid: Uid,
    start: Dhcp6Start,
    inputs: mpsc::UnboundedSender<engine::Input>,
) -> (Orders, impl Future<Output = ()> + Send + 'static) {
    let (orders, ordered) = mpsc::unbounded_channel();
    let task = async move {
        let (generation, events) = (start.generation, inputs.clone());
        let result = match Driver::new(&uid, &start, inputs) {
            Ok(driver) => driver.run(ordered).await,
            Err(error) => Err(error),
        };
        let event = match result {
            Ok(()) => DhcpEvent::Stopped,
            Err(error) => DhcpEvent::Failed(error),
        };
        let _ = events.send(engine::Input::Dhcp6(uid, generation, event));
    };
    (orders, task)
}

struct Probing {
    socket: PacketSocket,
    address: Ipv6Addr,
    sent: u8,
    next: Instant,
}

struct Driver {
    uid: Uid,
    generation: u64,
    link: u32,
    mac: l2::Mac,
    client: Client,
    socket: PacketSocket,
    probing: Option<Probing>,
    link_retry: Option<Instant>,
    inputs: mpsc::UnboundedSender<engine::Input>,
    state: &'static str,
}

impl Driver {
    fn new(uid: &Uid, start: &Dhcp6Start, inputs: mpsc::UnboundedSender<engine::Input>) -> Result<Self, String> {
        let config = client_config(uid, start, clock::now(), Timestamp::now());
        let client = Client::new(config, rand::random()).map_err(|error| chain(&error))?;
        let socket = PacketSocket::open(start.link, Traffic::Dhcp6Client).map_err(|error| chain(&error))?;
        let (generation, link, mac) = (start.generation, start.link, start.mac);
        let uid = uid.clone();
        Ok(Self { uid, generation, link, mac, client, socket, probing: None, link_retry: None, inputs, state: "" })
    }

    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) -> Result<(), String> {
        let mut buffer = [0; FRAME];
        let mut heard_buffer = [0; FRAME];
        self.step(Input::Start).await?;
        loop {
            let probe = self.probing.as_ref().map(|probing| probing.next);
            let deadline = self.client.deadline().into_iter().chain(probe).chain(self.link_retry).min();
            let heard = async {
                match &self.probing {
                    Some(probing) => probing.socket.recv(&mut heard_buffer).await,
                    None => std::future::pending().await,
                }
            };
            let timer = async {
                match deadline {
                    Some(deadline) => clock::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            // What has arrived is read before a timer is judged (failover-protocol.md R1).
            tokio::select! {
                biased;
                order = orders.recv() => match order {
                    Some(Order::Stop { release: true }) => return self.step(Input::Release).await,
                    Some(Order::Stop { release: false }) | None => return Ok(()),
                    Some(Order::Link { up }) => self.step(if up { Input::Restart } else { Input::LinkLost }).await?,
                },
                result = self.socket.recv(&mut buffer) => match result {
                    Ok(length) => self.step(Input::Frame(&buffer[..length])).await?,
                    Err(error) if is_down(&error) => self.link_lost().await?,
                    Err(error) => return Err(format!("the interface of the DHCPv6 client is gone: {error}")),
                },
                result = heard => match result {
                    Ok(length) => self.heard(&heard_buffer[..length]).await?,
                    Err(error) if is_down(&error) => self.link_lost().await?,
                    Err(error) => return Err(format!("the interface of the DHCPv6 client is gone: {error}")),
                },
                () = timer => self.timer().await?,
            }
        }
    }

    /// The lease stays valid and ends at its time; it is confirmed when the link is back.
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
        if let Some(probing) = self.probing.as_mut().filter(|probing| probing.next <= now) {
            let address = probing.address;
            if probing.sent < PROBES {
                probing.sent += 1;
                // From now, not from when it was due: an answer needs its time.
                probing.next = now + PROBE_GAP;
                let frame = frames::probe(self.mac, address.into());
                match probing.socket.send(&frame).await {
                    Err(error) if is_down(&error) => return self.link_lost().await,
                    sent => sent.map_err(|error| format!("failed to send a probe for {address}: {error}"))?,
                }
            } else {
                self.probing = None;
                return self.step(Input::ProbeFree(address)).await;
            }
        }
        self.step(Input::Timer).await
    }

    async fn heard(&mut self, bytes: &[u8]) -> Result<(), String> {
        let (Some(probing), Some(frame)) = (&self.probing, frames::read(self.link, bytes)) else { return Ok(()) };
        let probed = probing.address;
        if frame.address != IpAddr::V6(probed) || frame.mac == self.mac {
            return Ok(());
        }
        self.probing = None;
        self.step(Input::ProbeConflict { address: probed, mac: frame.mac.octets().into() }).await
    }

    async fn step(&mut self, input: Input<'_>) -> Result<(), String> {
        let now = clock::now();
        let mut down = false;
        for output in self.client.step(now, input) {
            match output {
                // A full queue loses a frame as the wire may; the client sends again.
                Output::Send(frame) => match self.socket.send(&frame).await {
                    Err(error) if is_down(&error) => down = true,
                    sent => sent.map_err(|error| format!("failed to send a DHCPv6 message: {error}"))?,
                },
                Output::Probe(address) => {
                    if self.probing.as_ref().is_none_or(|probing| probing.address != address) {
                        let socket =
                            PacketSocket::open(self.link, Traffic::NeighborDiscovery).map_err(|error| chain(&error))?;
                        self.probing = Some(Probing { socket, address, sent: 0, next: now });
                    }
                }
                Output::Bound(lease) => self.tell(DhcpEvent::Bound(leased(&lease, now, Timestamp::now()))),
                Output::Renewed(lease) => self.tell(DhcpEvent::Renewed(leased(&lease, now, Timestamp::now()))),
                Output::Lost { lease, reason } => {
                    self.probing = None;
                    self.tell(DhcpEvent::Lost { address: lease.address.into(), why: reason.to_string() });
                }
                Output::Report(report) => {
                    let reason = match report {
                        Report::NoAnswer { .. } => "DHCPNoAnswer",
                        Report::Refused { .. } => "DHCPRefused",
                        Report::Declined { .. } => "AddressConflict",
                    };
                    self.tell(DhcpEvent::Report { reason, text: report.to_string() });
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

    fn tell(&self, event: DhcpEvent<LeaseFacts6>) {
        // A receiver that is gone means that nobody wants to know.
        let _ = self.inputs.send(engine::Input::Dhcp6(self.uid.clone(), self.generation, event));
    }
}

/// What the client is told. The wall clock is needed once: facts on a Service outlive the process that wrote them.
fn client_config(uid: &Uid, start: &Dhcp6Start, now: Instant, wall: Timestamp) -> Config {
    let remembered = start.lease.as_ref().and_then(|facts| {
        let expiry = match facts.expires {
            None => Expiry::Never,
            Some(expires) => {
                let left = u64::try_from(expires.as_millisecond().saturating_sub(wall.as_millisecond())).unwrap_or(0);
                Expiry::At(now.checked_add(Duration::from_millis(left)).unwrap_or(now))
            }
        };
        Some(RememberedLease { address: facts.address, server: facts.server_duid()?, expiry })
    });
    Config {
        duid: service_duid(&uid.0),
        mac: start.mac.octets().into(),
        source: start.source,
        requested: start.requested,
        remembered,
    }
}

fn leased(lease: &Lease, now: Instant, wall: Timestamp) -> Leased<LeaseFacts6> {
    let expires = lease.expiry.instant();
    let end = expires.and_then(|at| {
        let left = i64::try_from(at.saturating_duration_since(now).as_millis()).ok()?;
        // Whole seconds, cut off: a successor must stop before the server thinks it does.
        Timestamp::from_second(wall.as_millisecond().checked_add(left)?.div_euclid(1000)).ok()
    });
    let facts = LeaseFacts6 { address: lease.address, server: LeaseFacts6::digits(&lease.server), expires: end };
    Leased { facts, expires }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_becomes_facts_and_facts_a_lease_with_the_time_that_is_left() {
        let (now, wall) = (Instant::now(), "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap());
        let lease = Lease {
            address: "fd00::5".parse().unwrap(),
            server: vec![0, 1, 2],
            renew_at: None,
            rebind_at: None,
            expiry: Expiry::At(now + Duration::from_mins(1)),
        };
        let facts = leased(&lease, now, wall).facts;
        assert_eq!(facts.expires, Some("2026-01-01T00:01:00Z".parse().unwrap()));
        let start = Dhcp6Start {
            generation: 1,
            link: 2,
            mac: l2::Mac::new([2, 0, 0, 0, 0, 1]),
            source: "fe80::1".parse().unwrap(),
            requested: None,
            lease: Some(facts),
        };
        let later = "2026-01-01T00:00:20Z".parse().unwrap();
        let remembered =
            client_config(&Uid("6f1d7c2e-0a1b-4c3d-8e9f-001122334455".into()), &start, now, later).remembered;
        let remembered = remembered.unwrap();
        assert_eq!(remembered.server, [0, 1, 2]);
        assert_eq!(remembered.expiry, Expiry::At(now + Duration::from_secs(40)));
    }
}
