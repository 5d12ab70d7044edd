//! Linux layer 2: packet sockets, netlink, nftables. They carry the plain values of `l2-types`, which are re-exported
//! here:
//!
//! * [`arp`], [`ndp`] and [`handshake`]: frames. [`ethernet`]: what they share. [`Mac`].
//! * [`PacketSocket`]: frames in and out of one interface, filtered in the kernel.
//! * [`netlink`]: links, macvlans, addresses with a lifetime, interface settings, change notifications.
//! * [`nftables`]: one table of the packet filter, kept as its owner wants it.
//! * [`capabilities`], [`clock`]: the capabilities of the process, and a clock that includes suspensions.
//!
//! Only this crate may contain `unsafe`: two small functions behind [`PacketSocket`], each block with its reason.

pub mod capabilities;
pub mod clock;
mod filter;
pub mod netlink;
pub mod nftables;
mod packet_socket;

pub use l2_types::{Mac, ParseMacError, Traffic, arp, ethernet, handshake, ndp};
pub use netlink::Netlink;
pub use nftables::Nftables;
pub use packet_socket::{OpenError, PacketSocket, is_queue_full};
