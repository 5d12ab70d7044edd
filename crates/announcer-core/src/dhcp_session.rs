//! One DHCP client with what surrounds it on a node, in virtual time. `announcer` runs it behind packet sockets, a
//! simulation behind its own LAN.

mod probing;
mod session;
mod v4;
mod v6;

pub use session::{Act, Happened, Outputs, Protocol, Session};
pub use v4::session as session4;
pub use v6::session as session6;
