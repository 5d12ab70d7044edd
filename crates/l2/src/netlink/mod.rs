//! rtnetlink: links, addresses, interface settings, routes. One socket for requests; batches and changes have their
//! own.
//!
//! The requests are built here, not with rtnetlink's request types, because those take a connection that breaks
//! half-way for success. Here a change counts as made when the kernel has acknowledged it, and a list as read when its
//! end has arrived.

mod address;
mod batch;
mod changes;
mod inet_conf;
mod link;
mod macvlan;
mod route;

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use futures::StreamExt;
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::io::Errno;

pub use l2_types::{
    Address, AddressLifetime, BadInterfaceName, InetConf, InetConfChange, Link, LinkKind, Macvlan, MacvlanMode,
    Mismatch, OUR_ADDRESS_PROTOCOL, OperState, check_interface_name,
};

pub use self::{
    address::NewAddress,
    changes::{Change, Changes},
    inet_conf::inet_conf_of_all,
};

const EADDRNOTAVAIL: i32 = Errno::ADDRNOTAVAIL.raw_os_error();
const ENODEV: i32 = Errno::NODEV.raw_os_error();

/// How often a list is read again that has changed while it was read.
const DUMP_ATTEMPTS: usize = 10;

/// A netlink request failed. The text names the request; the kernel's reason is the source.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket could not be opened.
    #[error("failed to open a netlink socket")]
    Open(#[source] io::Error),
    /// The kernel refused the request.
    #[error("failed to {tried}")]
    Refused {
        /// The request as text.
        tried: String,
        /// The kernel's errno.
        source: io::Error,
    },
    /// The connection's future ended or was dropped.
    #[error("failed to {tried}: the netlink connection is closed")]
    Closed {
        /// The request as text.
        tried: String,
    },
    /// The kernel's answer lacks what was requested.
    #[error("failed to {tried}: the answer of the kernel lacks {lacks}")]
    Incomplete {
        /// The request as text.
        tried: String,
        /// What is missing.
        lacks: &'static str,
    },
}

impl NetlinkError {
    /// Whether another macvlan of the same interface has the MAC already.
    pub fn is_mac_in_use(&self) -> bool {
        let in_use = [Errno::BUSY, Errno::ADDRINUSE].map(Errno::raw_os_error);
        self.raw_os_error().is_some_and(|code| in_use.contains(&code))
    }

    /// Whether the kernel does not know this kind of interface: its module is missing.
    pub fn is_unsupported(&self) -> bool {
        self.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error())
    }

    /// The kernel's errno, if the kernel refused the request.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Open(source) | Self::Refused { source, .. } => source.raw_os_error(),
            Self::Closed { .. } | Self::Incomplete { .. } => None,
        }
    }
}

/// Why a request failed, without the text of the request.
enum Failure {
    Refused(io::Error),
    Closed,
    Incomplete(&'static str),
}

impl Failure {
    /// Adds the text of the request ("add address ...").
    fn while_trying_to(self, tried: impl Into<String>) -> NetlinkError {
        let tried = tried.into();
        match self {
            Self::Refused(source) => NetlinkError::Refused { tried, source },
            Self::Closed => NetlinkError::Closed { tried },
            Self::Incomplete(lacks) => NetlinkError::Incomplete { tried, lacks },
        }
    }

    fn is_one_of(&self, codes: &[i32]) -> bool {
        matches!(self, Self::Refused(error) if error.raw_os_error().is_some_and(|code| codes.contains(&code)))
    }
}

/// The future that carries the requests of a [`Netlink`] and its clones; the caller must spawn and await it.
///
/// It ends when the last clone is dropped or when the socket breaks. Then every request fails with
/// [`NetlinkError::Closed`], and the caller should end the process.
#[must_use = "nothing is sent until it is polled"]
pub struct Connection(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Future for Connection {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

/// Handle for requests; cheap to clone, usable from many tasks at once.
#[derive(Debug, Clone)]
pub struct Netlink {
    handle: rtnetlink::Handle,
    batches: batch::Batches,
}

impl Netlink {
    /// Opens a socket in the calling thread's network namespace. Must be called inside a tokio runtime.
    pub fn open() -> Result<(Self, Connection), NetlinkError> {
        // Notifications are not read here: `changes` has its own socket, so that a flood cannot disturb requests.
        let (mut connection, handle, _) = rtnetlink::new_connection().map_err(NetlinkError::Open)?;
        connection.set_forward_ack(true);
        connection.set_forward_done(true);
        let batches = batch::Batches::open().map_err(NetlinkError::Open)?;
        Ok((Self { handle, batches }, Connection(Box::pin(connection))))
    }

    /// Sends a change and waits for the kernel's acknowledgement.
    async fn change(&self, message: RouteNetlinkMessage, flags: u16) -> Result<(), Failure> {
        let mut answers = self.send(message, NLM_F_REQUEST | NLM_F_ACK | flags)?;
        while let Some(answer) = answers.next().await {
            if let NetlinkPayload::Error(error) = answer.payload {
                return if error.code.is_none() { Ok(()) } else { Err(Failure::Refused(error.to_io())) };
            }
        }
        Err(Failure::Closed)
    }

    /// Asks for one object.
    async fn get(&self, message: RouteNetlinkMessage) -> Result<RouteNetlinkMessage, Failure> {
        let mut answers = self.send(message, NLM_F_REQUEST)?;
        while let Some(answer) = answers.next().await {
            match answer.payload {
                NetlinkPayload::InnerMessage(message) => return Ok(message),
                NetlinkPayload::Error(error) => return Err(Failure::Refused(error.to_io())),
                _ => {}
            }
        }
        Err(Failure::Closed)
    }

    /// Asks for all objects of a kind.
    async fn dump(&self, message: RouteNetlinkMessage) -> Result<Vec<RouteNetlinkMessage>, Failure> {
        for _ in 0..DUMP_ATTEMPTS {
            if let Some(all) = self.try_dump(message.clone()).await? {
                return Ok(all);
            }
        }
        Err(Failure::Incomplete("consistency: it changed each time while it was read"))
    }

    /// Reads a list. `None` if the kernel says that it changed meanwhile: an entry may be missing or doubled.
    async fn try_dump(&self, message: RouteNetlinkMessage) -> Result<Option<Vec<RouteNetlinkMessage>>, Failure> {
        let mut answers = self.send(message, NLM_F_REQUEST | NLM_F_DUMP)?;
        let (mut all, mut interrupted) = (Vec::new(), false);
        while let Some(answer) = answers.next().await {
            interrupted |= answer.header.flags & NLM_F_DUMP_INTR != 0;
            match answer.payload {
                NetlinkPayload::InnerMessage(message) => all.push(message),
                NetlinkPayload::Error(error) => return Err(Failure::Refused(error.to_io())),
                NetlinkPayload::Done(_) => return Ok((!interrupted).then_some(all)),
                _ => {}
            }
        }
        Err(Failure::Closed)
    }

    fn send(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<impl StreamExt<Item = NetlinkMessage<RouteNetlinkMessage>> + Unpin + use<>, Failure> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = flags;
        self.handle.clone().request(request).map_err(|_| Failure::Closed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    // Reading needs no rights: these run without root, in whatever namespace the tests run in.

    #[tokio::test]
    async fn a_dead_connection_is_an_error_not_a_success() {
        let (netlink, connection) = Netlink::open().expect("netlink");
        drop(connection);
        let error = netlink.links().await.expect_err("nobody carries the request");
        assert_eq!(error.to_string(), "failed to list the interfaces: the netlink connection is closed");
        let error = netlink.delete_link(u32::MAX >> 1).await.expect_err("nobody carries the request");
        assert!(matches!(error, NetlinkError::Closed { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_connection_that_dies_before_the_answer_is_an_error_too() {
        let (netlink, connection) = Netlink::open().expect("netlink");
        let request = tokio::spawn(async move { netlink.set_up(u32::MAX >> 1).await });
        // The request is under way, but nothing has polled the connection yet.
        tokio::task::yield_now().await;
        drop(connection);
        let error = request.await.expect("no panic").expect_err("not acknowledged");
        assert!(matches!(error, NetlinkError::Closed { .. }), "{error}");
    }

    #[tokio::test]
    async fn the_connection_ends_when_nobody_uses_it_any_more() {
        let (netlink, connection) = Netlink::open().expect("netlink");
        let task = tokio::spawn(connection);
        let clone = netlink.clone();
        drop(netlink);
        assert!(clone.link_by_name("lo").await.expect("look up").is_some());
        drop(clone);
        tokio::time::timeout(Duration::from_secs(10), task).await.expect("it ends").expect("no panic");
    }

    #[tokio::test]
    async fn many_requests_share_one_connection() {
        let (netlink, connection) = Netlink::open().expect("netlink");
        let task = tokio::spawn(connection);
        let requests = (0..100).map(|_| netlink.link_by_name("lo"));
        for link in futures::future::join_all(requests).await {
            assert_eq!(link.expect("look up").expect("every namespace has it").name, "lo");
        }
        drop(netlink);
        task.await.expect("no panic");
    }
}
