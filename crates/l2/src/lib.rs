//! Linux layer 2: packet sockets, netlink, ARP and NDP frames.
//!
//! * [`arp`] and [`ndp`]: frames, pure. [`ethernet`]: what they share. [`Mac`].
//! * [`PacketSocket`]: frames in and out of one interface, filtered in the kernel.
//! * [`netlink`]: links, macvlans, addresses with a lifetime, interface settings, change notifications.
//! * [`nftables`]: one table of the packet filter, kept as its owner wants it.
//! * [`capabilities`], [`clock`]: what the process may do, and the time that suspension does not stop.
//!
//! This is the only crate that may contain `unsafe`: two small functions behind [`PacketSocket`] do, each block
//! with its reason.

pub mod arp;
pub mod capabilities;
pub mod clock;
pub mod ethernet;
mod filter;
mod mac;
pub mod ndp;
pub mod netlink;
pub mod nftables;
mod packet_socket;

pub use filter::Traffic;
pub use mac::{Mac, ParseMacError};
pub use netlink::Netlink;
pub use nftables::Nftables;
pub use packet_socket::{OpenError, PacketSocket, is_queue_full};
