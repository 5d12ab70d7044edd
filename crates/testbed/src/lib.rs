//! Networks, control planes and nodes in namespaces, for tests and the demo. Needs root; never a dependency of anything
//! shipped.
//!
//! Two levels:
//!
//! * *hosts* ([`Lan`], [`ControlPlane`], [`HarvesterSide`], [`SimNode`]): network namespaces with plain processes. A
//!   LAN is up in a fraction of a second, a control plane in a few. For announcer, DHCP and controller tests.
//! * *nodes* ([`node`]): real kubelet, containerd, CNI and kube-proxy per node. For the demo and for installation
//!   tests.
//!
//! **Nothing stays behind.** Network namespaces have no name in the file system: they live as long as a thread, a
//! process or a file descriptor holds them. Every child gets SIGKILL from the kernel when the thread that started it
//! ends. Directories and cgroups are removed by guards, and if this process is killed, by a janitor process that sees
//! the end of its standard input. So beds never collide: all of them use the same addresses ([`addresses`]), none of
//! them has a global name.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use testbed::{ControlPlane, Lan, Traffic};
//! let lan = Lan::builder().hosts(2).dhcp(Default::default()).build()?;
//! let control_plane = ControlPlane::builder().start().await?;
//! control_plane.join(lan.host(1))?;
//! lan.host(1).ip(["addr add 192.168.100.150/32 dev eth0"])?;
//! let probe = lan.client().probe(Traffic::http("192.168.100.150:80".parse()?))?;
//! // ... act ...
//! let report = probe.stop_after(50, std::time::Duration::from_secs(30))?;
//! assert_eq!(report.lost, 0, "{report}");
//! # Ok(()) }
//! ```

pub mod addresses;
pub mod cluster;
pub mod conformance;
pub mod echo;
pub mod helm;
pub mod net;
pub mod node;
pub mod process;
pub mod programs;
pub mod run_dir;
pub mod shared;
pub mod stall;
pub mod wait;

pub use cluster::api_server::ApiServer;
pub use cluster::audit::{AuditLog, AuditMark, Request, service_account_user};
pub use cluster::control_plane::{ControlPlane, ControlPlaneBuilder};
pub use cluster::credentials::Credentials;
pub use cluster::harvester::{HarvesterBuilder, HarvesterSide, VmSpec};
pub use cluster::second_cluster::SecondCluster;
pub use cluster::sim_node::{NodeSpec, ProxyMode, SimNode, SimPod};
pub use helm::Helm;
pub use net::capture::{Capture, Frame};
pub use net::clients::{Clients, Users};
pub use net::connection::{Broken, Connection};
pub use net::dhcp::{DhcpLease, DhcpOptions, DhcpServer};
pub use net::host::Host;
pub use net::lan::{Lan, LanBuilder};
pub use net::namespace::{Namespace, Task};
pub use net::probe::{Missed, Probe, ProbeOptions, ProbeReport, Traffic};
pub use net::segment::{Fault, Nic, Segment};
pub use net::who_has::{AnswerReport, Answerers, Roll};
pub use process::Process;
pub use run_dir::RunDir;
pub use shared::Shared;
pub use wait::{wait_for, wait_until};
