//! Change reports that the kernel sends unasked.

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

/// A change in the network namespace. The receiver has to read the new state itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A report about an interface, an address or a route, except new or extended addresses with our mark.
    Reported,
    /// The kernel has dropped reports because this process was too slow; any change may be missing.
    Missed,
}

/// The stream of changes, with a socket of its own. It ends only if that socket breaks.
///
/// The kernel filters out reports of new or extended addresses with our mark, because each extension would make a
/// report, two hundred per second. Their removal is reported.
///
/// The stream reads only while it is polled; there is no task behind it.
pub struct Changes {
    connection: Connection,
    messages: UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
}

impl Changes {
    /// Subscribes in the calling thread's network namespace. Must be called inside a tokio runtime.
    ///
    /// Subscribe first, then read the state, so that changes in between are reported.
    pub fn subscribe() -> Result<Self, NetlinkError> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
        ];
        let (mut connection, _, messages) = rtnetlink::new_multicast_connection(&groups).map_err(NetlinkError::Open)?;
        // The default size holds a few hundred reports, as many as that many pods make when they start or end during a
        // short pause of the process. Without NET_ADMIN the default stays, and `Missed` comes earlier.
        let socket = connection.socket_mut().socket_mut();
        let _ = set_socket_recv_buffer_size_force(&*socket, RECEIVE_BUFFER);
        SockRef::from(&*socket).attach_filter(&others()).map_err(NetlinkError::Open)?;
        // Each poll must empty the socket, without a stop at tokio's budget; see `Missed` below.
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
                // After it had to drop a report, the kernel silently drops all further ones until the socket is empty.
                // The poll above has emptied it, so that everything read from now on is followed by reports again. The
                // queued reports are older and would only contradict it.
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
