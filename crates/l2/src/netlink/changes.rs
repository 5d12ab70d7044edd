//! What the kernel reports without being asked.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures::{Stream, StreamExt, channel::mpsc::UnboundedReceiver};
use ipnet::IpNet;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage, link::LinkMessage};
use rtnetlink::{
    MulticastGroup,
    sys::{AsyncSocket, SocketAddr},
};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use socket2::SockRef;

use super::{Address, Connection, Link, NetlinkError};
use crate::filter::others;

const RECEIVE_BUFFER: usize = 1 << 20;

/// Something changed in the network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// An interface is new, or something about it is.
    Link(Link),
    /// An interface is gone.
    LinkGone {
        /// Its index.
        index: u32,
        /// Its last name.
        name: String,
    },
    /// An address is new, or its lifetime or state changed; but none with our mark.
    Address(Address),
    /// An address is gone: removed by somebody, expired, or its interface is gone.
    AddressGone {
        /// Index of the interface.
        interface: u32,
        /// The address with its prefix length.
        net: IpNet,
    },
    /// A route changed.
    Routes,
    /// The kernel had to drop reports because we were too slow: read everything again.
    Missed,
}

/// The stream of changes, with a socket of its own. It ends only if that socket breaks.
///
/// Addresses with our mark are left out while they are there, by the kernel: each extension would be a report, two
/// hundred of them a second. That one is gone is reported.
///
/// It does its own reading while it is polled; there is no task behind it.
pub struct Changes {
    connection: Connection,
    messages: UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
}

impl Changes {
    /// Subscribes in the calling thread's network namespace. Must be called inside a tokio runtime.
    ///
    /// Subscribe first, then read the present state: what changes in between is reported.
    pub fn subscribe() -> Result<Self, NetlinkError> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
        ];
        let (mut connection, _, messages) = rtnetlink::new_multicast_connection(&groups).map_err(NetlinkError::Open)?;
        // The default holds a few hundred reports: what comes and goes with as many pods, within a short pause of ours.
        // Without NET_ADMIN it stays at the default, and `Missed` comes earlier.
        let socket = connection.socket_mut().socket_mut();
        let _ = set_socket_recv_buffer_size_force(&*socket, RECEIVE_BUFFER);
        SockRef::from(&*socket).attach_filter(&others()).map_err(NetlinkError::Open)?;
        // Each poll must empty the socket, not stop at tokio's budget; see `Missed` below.
        let connection = tokio::task::unconstrained(connection);
        Ok(Self { connection: Connection(Box::pin(connection)), messages })
    }
}

impl Stream for Changes {
    type Item = Change;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Change>> {
        let open = Pin::new(&mut self.connection).poll(context).is_pending();
        loop {
            match self.messages.poll_next_unpin(context) {
                // Once it had to drop a report, the kernel silently drops all further ones until the socket is empty. The poll
                // above has emptied it, so whatever is read from now on is followed by reports again; what was
                // queued is older than that and would only contradict it.
                Poll::Ready(Some((message, _))) if matches!(message.payload, NetlinkPayload::Overrun(_)) => {
                    while self.messages.try_recv().is_ok() {}
                    return Poll::Ready(Some(Change::Missed));
                }
                Poll::Ready(Some((message, _))) => {
                    if let Some(change) = read(message.payload) {
                        return Poll::Ready(Some(change));
                    }
                }
                Poll::Pending if open => return Poll::Pending,
                Poll::Pending | Poll::Ready(None) => return Poll::Ready(None),
            }
        }
    }
}

fn read(payload: NetlinkPayload<RouteNetlinkMessage>) -> Option<Change> {
    match payload {
        NetlinkPayload::InnerMessage(message) => match message {
            RouteNetlinkMessage::NewLink(message) if is_about_the_link(&message) => {
                Link::from_message(&message).map(Change::Link)
            }
            RouteNetlinkMessage::DelLink(message) if is_about_the_link(&message) => {
                let link = Link::from_message(&message)?;
                Some(Change::LinkGone { index: link.index, name: link.name })
            }
            RouteNetlinkMessage::NewAddress(message) => Address::from_message(&message).map(Change::Address),
            RouteNetlinkMessage::DelAddress(message) => {
                let address = Address::from_message(&message)?;
                Some(Change::AddressGone { interface: address.interface, net: address.net })
            }
            RouteNetlinkMessage::NewRoute(_) | RouteNetlinkMessage::DelRoute(_) => Some(Change::Routes),
            _ => None,
        },
        _ => None,
    }
}

/// Bridges report their ports with the same messages: "deleted" then means "no longer a port".
fn is_about_the_link(message: &LinkMessage) -> bool {
    message.header.interface_family == AddressFamily::Unspec
}
