//! What a cloud offers: load balancers and instances. The controllers in this crate call these traits and nothing else.
//!
//! No method may wait for the cloud to make progress. A method that finds work under way answers `Waiting`; the
//! provider wakes the key when it sees the change, so a worker is never blocked by somebody else's Service.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use tokio::time::Instant;

use crate::outlook::Write;
use crate::view::{NodeAddress, NodeView, ServiceKey, ServiceView};

/// Why nothing may be written now, for one object or for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// One word in CamelCase.
    pub reason: &'static str,
    /// The whole story.
    pub message: String,
    /// Nodes that were never initialised are initialised all the same: that can be undone by nobody else, and harms
    /// nobody.
    pub initialises_nodes: bool,
}

/// Load balancers of one cloud, for `Service`s of type LoadBalancer.
#[async_trait]
pub trait LoadBalancers: Send + Sync + 'static {
    /// Brings the load balancer of `service` one step nearer to what the Service asks for. Level-triggered and
    /// idempotent: on an unchanged world it sends nothing. Never deletes on failure.
    async fn ensure(&self, service: &ServiceView) -> Result<Ensured, ProviderError>;

    /// Deletes what exists for `service`. Success when nothing is there. Called with the last view seen when the object
    /// is gone.
    async fn delete(&self, service: &ServiceView) -> Result<Deleted, ProviderError>;

    /// What the first pass of [`Self::ensure`] over this Service would send, and how it would end. Sends nothing.
    fn preview(&self, _service: &ServiceView) -> (Vec<Write>, Result<Ensured, ProviderError>) {
        (Vec::new(), Ok(Ensured::ready(false)))
    }

    /// The same for [`Self::delete`].
    fn preview_deletion(&self, _service: &ServiceView) -> (Vec<Write>, Result<Deleted, ProviderError>) {
        (Vec::new(), Ok(Deleted::Gone { existed: false }))
    }

    /// Why nothing may be written for `service` now, neither here nor in the cloud. The Service is woken when that is
    /// over.
    fn hold(&self, _service: &ServiceView) -> Option<Arc<Hold>> {
        None
    }

    /// Annotations to write (or, without a value, to remove) together with the finalizer, on a Service that is taken
    /// over: what it asked for in ways that mean nothing later. Called once, before anything is done for it.
    fn at_first_sight(&self, _service: &ServiceView) -> BTreeMap<String, Option<String>> {
        BTreeMap::new()
    }

    /// Whether an announcer is there that keeps what a Service shows as its address.
    fn announced(&self) -> Announced {
        Announced::Yes
    }

    /// Services to look at again, because something they depend on changed: their load balancer, their primary, a
    /// network mapping.
    fn wakes(&self) -> BoxStream<'static, ServiceKey>;
}

/// What is known of the announcers of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    /// Somebody announces, as far as can be told.
    Yes,
    /// Nobody has for minutes: an address in a status may be served by nobody.
    Away,
    /// This process has not looked for long enough.
    Untold,
}

/// Reason of a wait: what this program has to read first has not arrived.
pub const NOT_READ_YET: &str = "NotReadYet";
/// Reason of a wait: the controllers on Harvester do not look at the object.
pub const HARVESTER_SILENT: &str = "HarvesterSilent";
/// Reason of a wait: hosts are being upgraded.
pub const HOST_UPGRADE: &str = "HostUpgrade";

/// Result of [`LoadBalancers::ensure`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ensured {
    /// The address is published. `changed` tells whether this call sent anything; if not, nobody needs to hear of it.
    Ready {
        /// A request that changes something was sent.
        changed: bool,
        /// It is not all that was asked for. Told once, and no failure.
        remark: Option<Remark>,
    },
    /// Something has to happen elsewhere first.
    Waiting(Waiting),
}

impl Ensured {
    /// All is as it was asked for.
    pub fn ready(changed: bool) -> Self {
        Self::Ready { changed, remark: None }
    }
}

/// Result of [`LoadBalancers::delete`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deleted {
    /// Nothing is left in the cloud; the finalizer may go. `existed`: this or an earlier call found something to
    /// delete.
    Gone {
        /// There was something to delete.
        existed: bool,
    },
    /// Deletion is under way; the key is woken when it is done.
    Waiting(Waiting),
    /// It is there, and not this Service's any more; the finalizer may go.
    Left(Remark),
}

/// How something ended that is done and not as one would expect; an Event of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Reason of the Event, and of the condition on a Service that stays.
    pub reason: &'static str,
    /// The whole story: what is left where, and whose it is now; or what there is instead of what was asked for.
    pub message: String,
    /// Somebody may have to look after it.
    pub warning: bool,
}

/// Why a key has to wait, in words for the user. Not an error: the retry back-off does not grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// One word in CamelCase for the condition on the Service, for example `NoMatchingPool`.
    pub reason: &'static str,
    /// The whole story for `kubectl describe`: what is missing and what the user can do, if anything.
    pub message: String,
    /// The user has to do something: reported as a Warning Event. Otherwise it is normal progress and only logged at
    /// debug level.
    pub needs_user: bool,
    /// Look again after this time even if no wake-up comes.
    pub retry_after: Option<Duration>,
}

/// Machines of one cloud, for `Node`s.
#[async_trait]
pub trait Instances: Send + Sync + 'static {
    /// Everything the node should show. `Err` leaves the node as it is (and tainted, if it is) and says which step is
    /// missing.
    async fn metadata(&self, node: &NodeView) -> Result<InstanceMetadata, ProviderError>;

    /// Whether the machine still exists.
    async fn existence(&self, node: &NodeView) -> Existence;

    /// Whether the machine is switched off, which is not the same as not ready. As far as is known, without asking
    /// anybody.
    async fn power(&self, node: &NodeView) -> Power;

    /// The same from the cloud itself, at this moment: what cannot be taken back is done on this answer only.
    async fn power_now(&self, node: &NodeView) -> Power;

    /// What the cloud says at this moment about a machine that does not answer. Every replica asks, also one that does
    /// not lead.
    async fn standing(&self, _node: &NodeView) -> Standing {
        Standing::Unknown
    }

    /// Since when what is known of machines has been kept up to date without interruption; `None`: it is not.
    fn steady_since(&self) -> Option<Instant>;

    /// Why no Node may be written now. All Nodes are woken when that is over.
    fn hold(&self) -> Option<Arc<Hold>> {
        None
    }

    /// Nodes to look at again, because their machine changed. `None` as name means all of them.
    fn wakes(&self) -> BoxStream<'static, NodeWake>;
}

/// Which nodes to look at again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeWake {
    /// This one.
    Node(String),
    /// Every node: the machine could not be assigned to one.
    All,
}

/// What the cloud knows about a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InstanceMetadata {
    /// Goes into `spec.providerID` where that is empty.
    pub provider_id: String,
    /// Instance type label; empty sets none.
    pub instance_type: String,
    /// All addresses, in the order they should be shown. Empty means "not known now": the node keeps what it has.
    pub addresses: Vec<NodeAddress>,
    /// Zone label; empty sets none.
    pub zone: String,
    /// Region label; empty sets none.
    pub region: String,
    /// Further labels of the machine's place, which follow it like zone and region; an empty value sets none.
    pub labels: BTreeMap<&'static str, String>,
}

/// Three answers, because deleting a Node on doubt would be wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Existence {
    /// The machine is there.
    Exists,
    /// Proven absent: the text says by which answer of which API.
    Gone(String),
    /// Cannot be told now; changes nothing.
    Unknown(String),
}

/// Power state of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Power {
    /// Running, starting, migrating or paused.
    On,
    /// Switched off.
    Off,
    /// Cannot be told now; changes nothing.
    Unknown(String),
}

/// What the cloud knows of a machine that does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is switched off.
    Off,
    /// It is `paused` or `being migrated`, and does nothing meanwhile.
    Still(&'static str),
    /// It should be running; of a host that has just died nobody knows yet.
    Running,
    /// Cannot be told now.
    Unknown,
}

/// A provider call that failed. The text says what was tried; the cause is the source.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    /// What was tried, and for the user's own mistakes what is accepted.
    pub message: String,
    /// The cause, if another error is behind it.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
    /// Retrying is pointless until the user changes the object (or something wakes the key).
    pub permanent: bool,
    /// One word in CamelCase for the condition on the Service; empty: a passing failure that the object does not show.
    pub reason: &'static str,
    /// The longest pause until the next try, where that is to be shorter than the usual back-off may become.
    pub longest_pause: Option<Duration>,
}

impl ProviderError {
    /// An error without a cause.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None, permanent: false, reason: "", longest_pause: None }
    }

    /// An error with its cause.
    pub fn caused(message: impl Into<String>, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { source: Some(source.into()), ..Self::new(message) }
    }

    /// Retrying is pointless until something changes.
    pub fn permanent(mut self) -> Self {
        self.permanent = true;
        self
    }

    /// Worth a condition on the Service, with this reason.
    pub fn because(mut self, reason: &'static str) -> Self {
        self.reason = reason;
        self
    }
}
