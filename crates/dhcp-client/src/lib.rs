//! An RFC 2131 DHCP client as a state machine without I/O.
//!
//! [`Client`] is told what happened ([`Input`]) and when, and answers with what to do ([`Output`]); it opens no socket
//! and reads no clock.
//! [`frame`] turns messages into whole Ethernet frames and back, so that the adapter around it only moves bytes through
//! a packet socket: a renewal then needs neither port 68 nor a route nor a capability beyond `NET_RAW` (kube-vip spec
//! 6.7).
//!
//! ```
//! use std::time::Instant;
//! use dhcp_client::{Client, Config, Input, Mac, Output};
//!
//! let now = Instant::now();
//! let mac = Mac::from([0x00, 0x00, 0x6c, 0xaa, 0xbb, 0xcc]);
//! let mut client = Client::new(Config::new(mac), now, 42)?;
//! for output in client.step(now, Input::Start) {
//!     if let Output::Send(frame) = output {
//!         assert_eq!(&frame[..6], &[0xff; 6], "the first DISCOVER is a broadcast and leaves at once");
//!     }
//! }
//! assert!(client.deadline().is_some(), "call step(Input::Timer) then, if nothing happens before");
//! # Ok::<(), dhcp_client::ConfigError>(())
//! ```
//!
//! What an adapter does with each output: [`Output`]. How a successor on another node comes back to the same lease:
//! [`RememberedLease`]. DHCPv6 is another protocol, with a machine of its own: [`v6`].

mod client;
mod config;
pub mod frame;
mod lease;
pub mod machine;
mod message;
mod report;
mod state;
mod timing;
pub mod v6;

pub use client::{Client, Input, Output};
pub use config::{Config, ConfigError};
pub use l2_types::Mac;
pub use lease::{Expiry, Lease, RememberedLease};
pub use report::{LostReason, Report};
pub use state::State;
