//! One DHCP client with its probes and its link, in virtual time. `announcer` runs it on packet sockets, a simulation
//! on its own LAN.

mod probing;
mod session;
mod v4;
mod v6;

pub use session::{DhcpAct, Happened, Protocol, Session};
pub use v4::session as session4;
pub use v6::session as session6;
