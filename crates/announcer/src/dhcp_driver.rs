//! Runs a DHCP client ([`announcer_core::dhcp_session`]) on packet sockets: for DHCPv4 on the macvlan of its VIP, for
//! DHCPv6 on the interface that carries the address. Each VIP has its own task, so that a silent server does not delay
//! other VIPs.

use std::net::IpAddr;
use std::time::Instant;

use announcer_core::dhcp_session::{DhcpAct, Happened, Protocol, Session, session4, session6};
use announcer_core::engine::{self, Dhcp6Start, DhcpEvent, DhcpStart};
use announcer_core::view::Uid;
use dhcp_client::machine::Address;
use jiff::Timestamp;
use l2::{Mac, PacketSocket};
use runtime::error::chain;
use tokio::sync::mpsc;

use crate::api_time::ApiTime;
use crate::clock;

/// Buffer size: Ethernet with VLAN tags and the largest DHCP message that is accepted (option 57: 1500), or an IPv6
/// packet of the usual size.
const FRAME: usize = 1600;

/// An order to a running client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// End, and release the lease or keep it for the next owner.
    Stop {
        /// Whether to send RELEASE.
        release: bool,
    },
    /// Another host uses the granted address.
    Taken {
        /// The address.
        address: IpAddr,
        /// The MAC of that host, if it is known.
        by: Option<Mac>,
    },
    /// The interface is unusable (no carrier or set down), or usable again.
    Link {
        /// Whether the interface can be used.
        up: bool,
    },
}

/// Sends orders to a client. Dropping it ends the client, which keeps its lease.
pub type Orders = mpsc::UnboundedSender<Order>;

/// The channel for events of clients to the engine.
pub type Inputs = mpsc::UnboundedSender<engine::Input>;

/// Makes the task of a DHCPv4 client. It ends on order; if the sender is dropped, it keeps the lease.
pub fn client(
    uid: Uid,
    start: DhcpStart,
    inputs: Inputs,
    time: ApiTime,
) -> (Orders, impl Future<Output = ()> + Send + 'static) {
    let identity = ClientIdentity { uid, generation: start.generation, link: start.link, inputs, time };
    task(identity, move |_, now, wall| session4(&start, now, wall, rand::random()).map_err(|error| chain(&error)))
}

/// Makes the task of a DHCPv6 client. It ends on order; if the sender is dropped, it keeps the lease.
pub fn client6(
    uid: Uid,
    start: Dhcp6Start,
    inputs: Inputs,
    time: ApiTime,
) -> (Orders, impl Future<Output = ()> + Send + 'static) {
    let identity = ClientIdentity { uid, generation: start.generation, link: start.link, inputs, time };
    task(identity, move |uid, now, wall| {
        session6(uid, &start, now, wall, rand::random()).map_err(|error| chain(&error))
    })
}

/// Makes the task of a client. `make` also gets the API server's time, because recorded facts outlive the process that
/// wrote them. Facts are written with the lower bound of that time and judged with the upper bound.
fn task<V: Protocol>(
    identity: ClientIdentity,
    make: impl FnOnce(&Uid, Instant, Timestamp) -> Result<Session<V>, String> + Send + 'static,
) -> (Orders, impl Future<Output = ()> + Send + 'static) {
    let (orders, ordered) = mpsc::unbounded_channel();
    let task = async move {
        let end = identity.clone();
        let session = make(&identity.uid, clock::now(), identity.time.latest());
        let result = match session.and_then(|session| Driver::new(session, identity)) {
            Ok(driver) => driver.run(ordered).await,
            Err(error) => Err(error),
        };
        end.tell::<V>(match result {
            Ok(()) => DhcpEvent::Stopped,
            Err(error) => DhcpEvent::Failed(error),
        });
    };
    (orders, task)
}

/// Identity of a client: its Service, its generation, its interface, and the channel to the engine.
#[derive(Clone)]
struct ClientIdentity {
    uid: Uid,
    generation: u64,
    link: u32,
    inputs: Inputs,
    time: ApiTime,
}

impl ClientIdentity {
    fn tell<V: Protocol>(&self, event: DhcpEvent<V::Facts>) {
        // If the receiver is gone, the engine has ended.
        let _ = self.inputs.send(V::input(self.uid.clone(), self.generation, event));
    }
}

struct Driver<V: Protocol> {
    identity: ClientIdentity,
    session: Session<V>,
    socket: PacketSocket,
    /// The socket for probes, and the address that is probed.
    probes: Option<(Address<V>, PacketSocket)>,
}

/// What woke the driver.
enum Woken {
    Order(Option<Order>),
    Message(std::io::Result<Vec<u8>>),
    Heard(std::io::Result<Vec<u8>>),
    Timer,
}

impl<V: Protocol> Driver<V> {
    fn new(session: Session<V>, identity: ClientIdentity) -> Result<Self, String> {
        let socket = PacketSocket::open(identity.link, V::MESSAGES).map_err(|error| chain(&error))?;
        Ok(Self { identity, session, socket, probes: None })
    }

    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) -> Result<(), String> {
        self.step(Happened::Start).await?;
        loop {
            let deadline = self.session.deadline();
            // Received frames are handled before a timer is judged (fail-over spec R1).
            let woken = tokio::select! {
                biased;
                order = orders.recv() => Woken::Order(order),
                result = self.socket.next::<FRAME>() => Woken::Message(result),
                result = on_frame(self.probes.as_ref().map(|(_, socket)| socket)) => Woken::Heard(result),
                () = clock::sleep_until_some(deadline) => Woken::Timer,
            };
            match woken {
                Woken::Order(Some(Order::Stop { release: true })) => return self.step(Happened::Release).await,
                Woken::Order(Some(Order::Stop { release: false }) | None) => return Ok(()),
                Woken::Order(Some(Order::Link { up })) => {
                    self.step(if up { Happened::LinkUp } else { Happened::LinkDown }).await?;
                }
                Woken::Order(Some(Order::Taken { address, by })) => self.step(Happened::Taken { address, by }).await?,
                Woken::Message(Ok(frame)) => self.step(Happened::Message(&frame)).await?,
                Woken::Heard(Ok(frame)) => self.step(Happened::Heard(&frame)).await?,
                Woken::Message(Err(error)) | Woken::Heard(Err(error)) if is_down(&error) => {
                    self.step(Happened::SocketDown).await?;
                }
                Woken::Message(Err(error)) | Woken::Heard(Err(error)) => {
                    return Err(format!("the interface of the {} client is gone: {error}", V::NAME));
                }
                Woken::Timer => self.step(Happened::Timer).await?,
            }
        }
    }

    async fn step(&mut self, happened: Happened<'_>) -> Result<(), String> {
        let mut next = Some(happened);
        while let Some(happened) = next.take() {
            let acts = self.session.step(clock::now(), self.identity.time.earliest(), happened);
            self.follow_probing()?;
            for act in acts {
                let probes = matches!(act, DhcpAct::Probe(_));
                let (socket, frame) = match act {
                    DhcpAct::Tell(event) => {
                        self.identity.tell::<V>(event);
                        continue;
                    }
                    DhcpAct::Send(frame) => (Some(&self.socket), frame),
                    DhcpAct::Probe(frame) => (self.probes.as_ref().map(|(_, socket)| socket), frame),
                };
                let Some(socket) = socket else { continue };
                match socket.send(&frame).await {
                    Err(error) if is_down(&error) => next = Some(Happened::SocketDown),
                    Err(error) if probes && l2::is_queue_full(&error) => next = Some(Happened::NotProbed),
                    // The client repeats its messages, so this loss is harmless.
                    Err(error) if l2::is_queue_full(&error) => {}
                    sent => sent.map_err(|error| format!("failed to send a {} message: {error}", V::NAME))?,
                }
            }
        }
        Ok(())
    }

    /// Opens or closes the socket for probes.
    fn follow_probing(&mut self) -> Result<(), String> {
        let wanted = self.session.probing();
        if self.probes.as_ref().map(|(address, _)| *address) != wanted {
            let open = |address| Ok((address, PacketSocket::open(self.identity.link, V::PROBES)?));
            let opened: Option<Result<_, l2::OpenError>> = wanted.map(open);
            self.probes = opened.transpose().map_err(|error| chain(&error))?;
        }
        Ok(())
    }
}

/// The interface is set down, not deleted, so the same interface may come up again.
fn is_down(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NetworkDown
}

async fn on_frame(socket: Option<&PacketSocket>) -> std::io::Result<Vec<u8>> {
    match socket {
        Some(socket) => socket.next::<FRAME>().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use announcer_core::engine::DhcpStart;

    use super::*;

    #[test]
    fn a_client_that_waits_keeps_no_room_for_frames() {
        let (inputs, _heard) = mpsc::unbounded_channel();
        let start = DhcpStart {
            generation: 1,
            link: 2,
            mac: Mac::new([0, 0, 0x6c, 0, 0, 1]),
            hostname: None,
            broadcast: false,
            requested: None,
            lease: None,
        };
        let (_orders, task) = client(Uid("u".into()), start, inputs, ApiTime::default());
        // With its client, and the same once more while it is made.
        let size = size_of_val(&task);
        assert!(size < 2 * FRAME, "{size} bytes");
    }
}
