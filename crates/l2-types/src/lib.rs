//! Frames of a LAN and interfaces of a node as plain values. No socket and no task. Code that decides about addresses
//! needs only this crate; `l2` moves these values to and from the kernel.
//!
//! * [`arp`], [`ndp`] and [`handshake`]: frames. [`ethernet`]: what they share. [`Mac`]. [`Traffic`]: the kinds of
//!   frames.
//! * [`Link`], [`Address`], [`Macvlan`], [`InetConf`]: interfaces, their addresses, and their IPv4 settings.

mod address;
pub mod arp;
pub mod ethernet;
pub mod handshake;
mod inet_conf;
mod link;
mod mac;
mod macvlan;
pub mod ndp;
mod traffic;

pub use address::{Address, AddressLifetime, OUR_ADDRESS_PROTOCOL};
pub use inet_conf::{InetConf, InetConfChange};
pub use link::{BadInterfaceName, Link, LinkKind, MacvlanMode, OperState, check_interface_name};
pub use mac::{Mac, ParseMacError};
pub use macvlan::{Macvlan, Mismatch};
pub use traffic::Traffic;
