//! A DHCP server as data, for tests and simulations: what a client has sent, taken apart by an independent decoder
//! ([`Sent`]); what a server answers ([`Answer`]); and a server with a book ([`Server`]), whose record of what it ever
//! promised is the truth that clients are measured by. Silence, delay and loss are the network's, and not in here.
//!
//! Never a dependency of what is shipped.

mod message;
mod server;

pub use message::{ADDRESS, Answer, ClientId, LEASE_SECONDS, SERVER, Sent, server_mac};
pub use server::Server;
