//! The fixture of the end-to-end tests: the whole product, as it is shipped, on real components in network namespaces.
//!
//! | module | what lives there |
//! | --- | --- |
//! | [`bed`] | [`Bed`]: LAN with DHCP and client, guest control plane, nodes with kube-proxy and echo pods, |
//! | | Harvester side, the product |
//! | [`beds`] | [`Beds`]: for tests that need a bed to themselves |
//! | [`product`] | the product's processes with the rights, arguments and environment of the chart |
//! | [`case`] | [`Case`]: one test's place on a shared bed; Services, and waiting for what a user sees |
//! | [`machines`] | virtual machines and Node objects without a host behind them |
//! | [`neighbour`] | [`Neighbour`]: another cluster on the same LAN |
//! | [`second_controller`] | of a second cluster in one namespace of Harvester: a copy of this one, or another one |
//! | [`churn`] | everything that the cloud controller looks at changes all the time, also while it is in safe mode |
//! | [`cost`] | API writes of the product, from the audit logs |
//! | [`host`] | what goes wrong at Harvester, and how the cloud controller manager says that it is |
//! | [`wire`] | who answers for an address, where it is, and who may announce |
//! | [`journal`] | attempts and figures, for `make test` to sum up |
//! | [`watch`] | clients that ask all the time while something happens, and what may not happen meanwhile |
//! | [`vip`], [`lan_faults`] | an address of `node` mode; faults of a LAN, for tests and for the bench |
//! | [`installation`] | [`installation::Installation`]: real nodes without the product, for tests that install it |
//! | [`lost_node`] | [`lost_node::NodeLossBed`]: real nodes with the product and several clients, |
//! | | for what happens when a node dies |
//! | [`repositories`] | where charts come from: a web server, an OCI registry |
//! | [`prometheus`] | a real Prometheus with the chart's alerts and the dashboard's queries |
//! | [`documents`] | the documents: their blocks by section |
//! | [`facts`] | what is left of an object when identities, times and random names are taken away |
//!
//! # How to write a test
//!
//! Tests of one file share a bed where they do not break anything that others use; each works in a Kubernetes namespace
//! of its own. A test that kills or cuts what others need builds its own.
//!
//! ```no_run
//! use e2e::{Bed, Case, Shared, service};
//! static BED: Shared<Bed> = Shared::new();
//!
//! # #[allow(clippy::unwrap_used)]
//! #[tokio::test]
//! async fn a_pool_service_answers() {
//!     if e2e::skip() {
//!         return;
//!     }
//!     let bed = BED.get(|| Bed::builder().start()).await.unwrap();
//!     let case = bed.case("pool").await.unwrap();             // prints the product's logs if this test panics
//!     let web = case.expose(service("web").tcp(80)).await.unwrap(); // Service, endpoints on every node
//!     let address = web.address().await.unwrap();             // status.loadBalancer.ingress[0].ip
//!     let reply = web.reply(address, 80).await.unwrap();      // from the client host, waits for the data plane
//!     assert_eq!(testbed::echo::field(&reply, "pod"), Some("echo-node1"));
//! }
//! ```
//!
//! The product's binary is the one that `HCP_BINARY` names: `make test-e2e` builds what is shipped, and drives that.
//! Without it the debug build is taken as it lies in the target directory, and built where it is missing.
//!
//! Everything that waits has a generous deadline ([`PATIENCE`]) and says what it saw last. What a machine without time
//! for an announcer can spoil, and rightly, is tried up to three times ([`watch::one_of_three`]), each time seen.
//! Limits of time are those of an idle machine: its stalls are subtracted. Nothing has to be cleaned up: a bed has no
//! name outside its process, and the kernel ends it with the process (see [`testbed`]). `TESTBED_KEEP_LOGS=1` keeps
//! logs and data.

use std::time::Duration;

pub mod bed;
pub mod beds;
pub mod case;
pub mod churn;
pub mod cost;
pub mod documents;
pub mod facts;
pub mod host;
pub mod installation;
pub mod journal;
pub mod lan_faults;
pub mod lost_node;
pub mod machines;
pub mod neighbour;
pub mod product;
pub mod prometheus;
pub mod repositories;
pub mod second_controller;
pub mod vip;
pub mod watch;
pub mod wire;

pub use bed::{Bed, BedBuilder, CLUSTER, NETWORK, VM_NAMESPACE};
pub use beds::Beds;
pub use case::{Case, EventFact, Exposed, ServiceSpec, service};
pub use cost::{Costs, Mark};
pub use machines::NodeSketch;
pub use neighbour::Neighbour;
pub use product::Handle;
pub use testbed::{Shared, wait_for};

/// A deadline for what the product does at once on an idle machine: long enough for a busy one.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// Answers after an event that end a watch: what comes right after the event belongs to it, and a short watch proves
/// little.
pub const ENOUGH: u64 = 50;

/// Requires root, so that nobody takes a skipped run for a passed one.
pub const REQUIRE_ROOT_VARIABLE: &str = "HCP_REQUIRE_ROOT";

/// True, with a message, where these tests cannot run: namespaces need root. Panics instead if
/// [`REQUIRE_ROOT_VARIABLE`] is `1`.
pub fn skip() -> bool {
    if rustix::process::geteuid().is_root() {
        return false;
    }
    assert!(
        std::env::var(REQUIRE_ROOT_VARIABLE).as_deref() != Ok("1"),
        "end-to-end tests need root, and {REQUIRE_ROOT_VARIABLE}=1 forbids to skip them"
    );
    eprintln!(
        "skipped: end-to-end tests need root for network namespaces ({REQUIRE_ROOT_VARIABLE}=1 makes this a failure)"
    );
    true
}
