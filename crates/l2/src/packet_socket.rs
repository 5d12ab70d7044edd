//! Packet sockets: whole Ethernet frames in and out of one interface.

use std::io;

use rustix::net::{RecvFlags, SendFlags, sockopt::set_socket_recv_buffer_size_force};
use socket2::{Domain, SockAddr, SockAddrStorage, Socket, Type};
use tokio::io::{Interest, unix::AsyncFd};

use crate::Traffic;
use crate::filter::program;

const RECEIVE_BUFFER: usize = 1 << 20;

/// A packet socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("failed to open a packet socket for {traffic:?} on interface {interface} ({step})")]
pub struct OpenError {
    interface: u32,
    traffic: Traffic,
    step: &'static str,
    source: io::Error,
}

/// A socket that receives and sends whole Ethernet frames of one kind on one interface. It needs `CAP_NET_RAW`.
///
/// It does not receive frames that this machine sends on that interface, nor frames of a VLAN interface or for a
/// macvlan above it.
///
/// Checksums of *datagrams* must not be verified: frames from a peer on the same machine or hypervisor arrive with the
/// sum still to be filled in by hardware. ARP has no checksum, and that of neighbour discovery is always computed by
/// the sender.
#[derive(Debug)]
pub struct PacketSocket {
    socket: AsyncFd<Socket>,
}

impl PacketSocket {
    /// Opens a socket for `traffic` on the interface with this index. Must be called inside a tokio runtime.
    ///
    /// A packet socket belongs to the interface, not to its name. When the interface is deleted and made again, `recv`
    /// fails with `ENODEV` or `ENETDOWN`, and the socket must be opened again.
    pub fn open(interface: u32, traffic: Traffic) -> Result<Self, OpenError> {
        let error = |step| move |source| OpenError { interface, traffic, step, source };
        // Protocol 0 receives nothing, so that the filter is in place before the first frame arrives after `bind`.
        let socket = Socket::new(Domain::PACKET, Type::RAW.nonblocking(), None).map_err(error("socket"))?;
        socket.attach_filter(&program(interface, traffic)).map_err(error("filter"))?;
        // The default size holds some 300 small frames, as many as arrive while a throttled process sleeps for a
        // moment. Without NET_ADMIN the default stays.
        let _ = set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER);
        socket.bind(&link_layer_address(interface, traffic.ethertype())).map_err(error("bind"))?;
        let socket = register(socket).map_err(error("register"))?;
        Ok(Self { socket })
    }

    /// Waits for the next frame and copies it to `buffer`. Returns the length of the frame, at most that of the buffer.
    ///
    /// `ENETDOWN` is reported once each time the interface goes down; the socket works again when it comes up. Cancel
    /// safe.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // Errors are waited for too; with "readable" alone an error would be reported with the next frame.
            let mut ready = self.socket.ready(Interest::READABLE | Interest::ERROR).await?;
            if let Ok(result) = ready.try_io(|socket| receive(socket.get_ref(), buffer)) {
                return result;
            }
        }
    }

    /// The same with a buffer that exists only while a frame is read: hundreds of tasks may wait, and each would hold
    /// memory for the longest frame. Frames longer than `N` are cut. Cancel safe.
    pub async fn next<const N: usize>(&self) -> io::Result<Vec<u8>> {
        loop {
            let mut ready = self.socket.ready(Interest::READABLE | Interest::ERROR).await?;
            let read = |socket: &Socket| {
                let mut buffer = [0; N];
                receive(socket, &mut buffer).map(|length| buffer[..length].to_vec())
            };
            if let Ok(result) = ready.try_io(|socket| read(socket.get_ref())) {
                return result;
            }
        }
    }

    /// The next frame that has already arrived; `None` if there is none.
    ///
    /// Used to read all input before any timer is judged (fail-over spec R1).
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match receive(self.socket.get_ref(), buffer) {
            Ok(length) => Ok(Some(length)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends one whole frame, Ethernet header first. Waits only while the send buffer is full.
    ///
    /// Fails with `ENETDOWN` while the interface is down. Cancel safe: a frame is sent whole or not at all.
    pub async fn send(&self, frame: &[u8]) -> io::Result<()> {
        loop {
            let mut ready = self.socket.writable().await?;
            if let Ok(result) = ready.try_io(|socket| transmit(socket.get_ref(), frame)) {
                return result;
            }
        }
    }

    /// Sends one whole frame now, or fails with `WouldBlock` if the send buffer is full.
    pub fn try_send(&self, frame: &[u8]) -> io::Result<()> {
        transmit(self.socket.get_ref(), frame)
    }
}

/// Whether a frame was not sent because a queue is full or the link has no carrier. The frame is lost, as on a cable.
pub fn is_queue_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error())
}

fn receive(socket: &Socket, buffer: &mut [u8]) -> io::Result<usize> {
    let (length, _) = rustix::net::recv(socket, buffer, RecvFlags::empty())?;
    Ok(length)
}

fn transmit(socket: &Socket, frame: &[u8]) -> io::Result<()> {
    // A packet socket sends a frame whole or fails.
    rustix::net::send(socket, frame, SendFlags::empty())?;
    Ok(())
}

// tokio has no safe function to watch a descriptor that it did not open.
#[allow(unsafe_code)]
fn register(socket: Socket) -> io::Result<AsyncFd<Socket>> {
    // SAFETY: Socket owns its descriptor and has no way to exchange it; as a value of the private AsyncFd it stays open
    // until that is dropped.
    Ok(unsafe { AsyncFd::register(socket) }?)
}

/// `struct sockaddr_ll` of linux/if_packet.h.
#[repr(C)]
struct LinkLayerAddress {
    family: u16,
    /// In network order.
    protocol: u16,
    interface: i32,
    hardware_type: u16,
    packet_type: u8,
    address_length: u8,
    address: [u8; 8],
}

// The assumptions of the blocks below.
const _: () = assert!(size_of::<LinkLayerAddress>() == 20);
const _: () = assert!(size_of::<LinkLayerAddress>() <= size_of::<SockAddrStorage>());
const _: () = assert!(align_of::<LinkLayerAddress>() <= align_of::<SockAddrStorage>());

// Neither socket2 nor rustix can make this kind of address without `unsafe`.
#[allow(unsafe_code)]
fn link_layer_address(interface: u32, ethertype: u16) -> SockAddr {
    let family = u16::try_from(i32::from(Domain::PACKET)).expect("AF_PACKET is 17");
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: LinkLayerAddress has the layout of sockaddr_ll; it is no larger than the zeroed storage and no stricter
    // aligned (asserted above), and any bits are a valid one.
    let address = unsafe { storage.view_as::<LinkLayerAddress>() };
    address.family = family;
    address.protocol = ethertype.to_be();
    address.interface = interface.cast_signed();
    let length = u32::try_from(size_of::<LinkLayerAddress>()).expect("20 bytes");
    // SAFETY: family, content and length are those of a sockaddr_ll, set just above.
    unsafe { SockAddr::new(storage, length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_is_told_from_an_interface_that_is_down() {
        for (errno, full) in [(rustix::io::Errno::NOBUFS, true), (rustix::io::Errno::NETDOWN, false)] {
            assert_eq!(is_queue_full(&errno.into()), full, "{errno}");
        }
    }
}
