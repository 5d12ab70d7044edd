//! A DHCP server as data, for tests and simulations. [`Sent`] is a message of a client, read by an independent decoder.
//! [`ServerMessage`] is an answer of a server. [`Server`] keeps a record of every lease that it ever granted, by which
//! clients are judged. Silence, delay and loss belong to the network and are not simulated here.
//!
//! Never a dependency of what is shipped.

mod message;
mod server;

pub use message::{ADDRESS, ClientId, LEASE_SECONDS, SERVER, Sent, ServerMessage, server_mac};
pub use server::Server;
