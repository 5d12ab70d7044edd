//! A deterministic simulation: some engines of the announcer on a virtual LAN, with virtual kernels, a virtual API
//! server and one virtual clock, all from one seed. After every step it checks what users were promised; a run that
//! breaks a promise is shrunk and told as a readable trace.
//!
//! | module | what lives there |
//! | --- | --- |
//! | [`scenario`] | what goes wrong in a run, as data |
//! | [`mod@world`] | the run: events, faults, frames, requests, and who judges them |
//! | [`promises`] | what users are promised: how long each trouble may last |
//! | [`checks`] | since when each trouble has lasted |
//! | [`process`] | one life of the announcer: the real engine and the real election, with their surroundings |
//! | [`kernel`], [`api`] | a node's kernel; the API server |
//! | [`sabotage`] | broken engines, to see that it bites |
//! | [`mod@shrink`] | the shortest run that still breaks the promise |
//! | [`words`] | what a trace says |
//!
//! DHCP (in `node` mode): the real client, with what surrounds it up to its sockets
//! ([`announcer_core::dhcp_session::Session`]), in virtual time; only the task around it, which moves frames, is
//! replaced. The server is [`dhcp_sim::Server`].
//!
//! Not simulated: DHCPv6, DHCP in modes `global` and `service`, Services that share a lease, a stranger on a leased
//! address, service security.
//!
//! Never a dependency of what is shipped.

pub mod api;
pub mod checks;
pub mod kernel;
pub mod process;
pub mod promises;
pub mod sabotage;
pub mod scenario;
pub mod shrink;
pub mod words;
pub mod world;

pub use checks::Violation;
pub use sabotage::{SABOTAGES, Sabotage};
pub use scenario::Scenario;
pub use shrink::shrink;
pub use world::{Outcome, run};
