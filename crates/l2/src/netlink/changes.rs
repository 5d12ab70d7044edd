//! What the kernel reports without being asked.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures::{Stream, StreamExt, channel::mpsc::UnboundedReceiver};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use rtnetlink::{
    MulticastGroup,
    sys::{AsyncSocket, SocketAddr},
};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use socket2::SockRef;

use super::{Connection, NetlinkError};
use crate::filter::others;

const RECEIVE_BUFFER: usize = 1 << 20;

/// Something changed in the network namespace. What, the kernel says best when it is asked for all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// An interface, an address or a route. But no address with our mark that is new or extended.
    Reported,
    /// The kernel had to drop reports because we were too slow: there may have been others.
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
                // Once it had to drop a report, the kernel silently drops all further ones until the socket is empty.
                // The poll above has emptied it, so whatever is read from now on is followed by reports again; what was
                // queued is older than that and would only contradict it.
                Poll::Ready(Some((message, _))) if matches!(message.payload, NetlinkPayload::Overrun(_)) => {
                    while self.messages.try_recv().is_ok() {}
                    return Poll::Ready(Some(Change::Missed));
                }
                Poll::Ready(Some((message, _))) => {
                    if matches!(message.payload, NetlinkPayload::InnerMessage(_)) {
                        return Poll::Ready(Some(Change::Reported));
                    }
                }
                Poll::Pending if open => return Poll::Pending,
                Poll::Pending | Poll::Ready(None) => return Poll::Ready(None),
            }
        }
    }
}
