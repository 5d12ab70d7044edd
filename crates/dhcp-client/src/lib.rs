//! An RFC 2131 DHCP client as a state machine without I/O.
//!
//! [`Client`] takes in what happened ([`Input`]) and when, and returns what to do ([`Output`]). It opens no socket and
//! reads no clock. [`frame`] converts messages to whole Ethernet frames and back, so that the adapter only moves bytes
//! through a packet socket. So a renewal needs neither port 68 nor a route nor a capability beyond `NET_RAW` (kube-vip
//! spec 6.7).
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
//! [`Output`] says what an adapter does with each output, [`RememberedLease`] how the next owner on another node
//! continues the same lease. DHCPv6 is another protocol with its own machine: [`v6`].

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

pub use client::{Client, Input, Output, V4};
pub use config::{Config, ConfigError};
pub use l2_types::Mac;
pub use lease::{Expiry, Granted, Lease, RememberedLease};
pub use report::{LostReason, Report};
pub use state::State;
