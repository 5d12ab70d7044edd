//! Linux layer 2: packet sockets, netlink, nftables. What they carry are the plain values of `l2-types`, which stand
//! here too:
//!
//! * [`arp`], [`ndp`] and [`handshake`]: frames. [`ethernet`]: what they share. [`Mac`].
//! * [`PacketSocket`]: frames in and out of one interface, filtered in the kernel.
//! * [`netlink`]: links, macvlans, addresses with a lifetime, interface settings, change notifications.
//! * [`nftables`]: one table of the packet filter, kept as its owner wants it.
//! * [`capabilities`], [`clock`]: what the process may do, and the time that suspension does not stop.
//!
//! This is the only crate that may contain `unsafe`: two small functions behind [`PacketSocket`] do, each block
//! with its reason.

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
