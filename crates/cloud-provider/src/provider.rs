//! The interface of a cloud: load balancers and instances. The controllers in this crate access the cloud only through
//! these traits.
//!
//! No method may wait for the cloud to make progress. A method that finds work under way returns `Waiting`. The
//! provider wakes the key when it sees the change, so a worker is never blocked by another Service.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use tokio::time::Instant;

use crate::outlook::Write;
use crate::view::{NodeAddress, NodeView, ServiceKey, ServiceView};

/// The reason why nothing may be written now, for one object or for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// One word in CamelCase.
    pub reason: &'static str,
    /// The complete message.
    pub message: String,
    /// New Nodes are initialised nevertheless: no other program would do it, and it does no harm.
    pub initialises_nodes: bool,
    /// It ends by itself within seconds, as that of a process which has just started: nothing is told of it.
    pub passing: bool,
}

/// Reason of a hold: a user has paused the controller, or the object.
pub const PAUSED: &str = "Paused";

/// Load balancers of one cloud, for `Service`s of type LoadBalancer.
#[async_trait]
pub trait LoadBalancers: Send + Sync + 'static {
    /// Brings the load balancer of `service` one step closer to what the Service requests. Level-triggered and
    /// idempotent: if nothing has changed, it sends nothing. Never deletes on failure.
    async fn ensure(&self, service: &ServiceView) -> Result<Ensured, ProviderError>;

    /// Deletes everything that exists for `service`. Succeeds if there is nothing. If the Service is gone, it is called
    /// with the last view.
    async fn delete(&self, service: &ServiceView) -> Result<Deleted, ProviderError>;

    /// What the first call of [`Self::ensure`] for this Service would send, and its result. Sends nothing.
    fn preview(&self, _service: &ServiceView) -> (Vec<Write>, Result<Ensured, ProviderError>) {
        (Vec::new(), Ok(Ensured::ready(false)))
    }

    /// The same for [`Self::delete`].
    fn preview_deletion(&self, _service: &ServiceView) -> (Vec<Write>, Result<Deleted, ProviderError>) {
        (Vec::new(), Ok(Deleted::Gone { existed: false }))
    }

    /// The reason why nothing may be written for `service` now, neither in the cluster nor in the cloud. The provider
    /// wakes the Service when this is over.
    fn hold(&self, _service: &ServiceView) -> Option<Arc<Hold>> {
        None
    }

    /// Annotations to write (or to remove, if the value is `None`) together with the finalizer, on a Service that is
    /// taken over. They preserve requests that could not be recognised later. Called before anything else is done for
    /// the Service. `Err`: it is not known yet what has to be preserved, so the finalizer has to wait.
    fn at_first_sight(&self, _service: &ServiceView) -> Result<BTreeMap<String, Option<String>>, Waiting> {
        Ok(BTreeMap::new())
    }

    /// Whether an announcer is running that serves the addresses of Services.
    fn announced(&self) -> AnnouncerPresence {
        AnnouncerPresence::Running
    }

    /// Services to reconcile, because something they depend on changed: their load balancer, their primary, or a
    /// network mapping.
    fn wakes(&self) -> BoxStream<'static, ServiceKey>;
}

/// What is known about the announcers of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnnouncerPresence {
    /// An announcer is running, as far as is known.
    Running,
    /// No announcer has been running for minutes: an address in a status may not be served.
    Away,
    /// This process has not watched for long enough.
    NotKnownYet,
}

/// Reason of a wait: the lists that a decision needs have not arrived.
pub const NOT_READ_YET: &str = "NotReadYet";
/// Reason of a wait: the controllers on Harvester do not process the object.
pub const HARVESTER_SILENT: &str = "HarvesterSilent";
/// Reason of a wait: hosts are being upgraded.
pub const HOST_UPGRADE: &str = "HostUpgrade";

/// Result of [`LoadBalancers::ensure`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ensured {
    /// The address is published.
    Ready {
        /// A request that changes something was sent. If not, nothing is reported.
        changed: bool,
        /// The user requested more than that. Reported once; not a failure.
        remark: Option<Remark>,
    },
    /// Something else has to happen first.
    Waiting(Waiting),
}

impl Ensured {
    /// Everything is as requested.
    pub fn ready(changed: bool) -> Self {
        Self::Ready { changed, remark: None }
    }
}

/// Result of [`LoadBalancers::delete`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deleted {
    /// Nothing is left in the cloud; the finalizer may be removed.
    Gone {
        /// This call or an earlier one found something to delete.
        existed: bool,
    },
    /// The deletion is under way; the provider wakes the key when it is done.
    Waiting(Waiting),
    /// An object is left that no longer belongs to this Service; the finalizer may be removed.
    Left(Remark),
}

/// A remark about a result that the user may not expect; it becomes an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Reason of the Event, and of the condition on a Service that stays.
    pub reason: &'static str,
    /// The complete message: what is left where and which Service owns it now, or what there is instead of the
    /// requested state.
    pub message: String,
    /// The user may have to do something.
    pub warning: bool,
}

/// Why a key has to wait, as text for the user. Not an error: the retry back-off does not grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// One word in CamelCase for the condition on the Service, for example `NoMatchingPool`.
    pub reason: &'static str,
    /// The complete message for `kubectl describe`: what is missing and what the user can do, if anything.
    pub message: String,
    /// The user has to do something: reported as a Warning Event. Otherwise it is normal progress and only logged at
    /// debug level.
    pub needs_user: bool,
    /// The message quotes a failed request. That text differs from attempt to attempt, so while the reason stays it is
    /// told anew only now and then.
    pub failure: bool,
    /// Reconcile after this time, even without a wake-up.
    pub retry_after: Option<Duration>,
}

/// Machines of one cloud, for `Node`s.
#[async_trait]
pub trait Instances: Send + Sync + 'static {
    /// Everything that the Node should show. On `Err` the Node stays as it is (also tainted), and the error tells which
    /// step failed.
    async fn metadata(&self, node: &NodeView) -> Result<InstanceMetadata, ProviderError>;

    /// Whether the machine still exists.
    async fn existence(&self, node: &NodeView) -> Existence;

    /// Whether the machine is switched off, which is not the same as not ready. Answered from the caches, without a
    /// request.
    async fn power(&self, node: &NodeView) -> Power;

    /// Like [`Self::power`], but asks the cloud directly. Irreversible actions depend on this answer only.
    async fn power_now(&self, node: &NodeView) -> Power;

    /// Asks the cloud directly about a machine that does not answer. Called in every replica, also in those that do not
    /// lead.
    async fn machine_state(&self, _node: &NodeView) -> MachineState {
        MachineState::Unknown
    }

    /// The same as the caches have it; `Unknown` while they are not kept up to date.
    fn cached_machine_state(&self, _node: &NodeView) -> MachineState {
        MachineState::Unknown
    }

    /// Since when the knowledge about machines has been up to date without interruption; `None` if it is not.
    fn steady_since(&self) -> Option<Instant>;

    /// The reason why no Node may be written now. The provider wakes all Nodes when this is over.
    fn hold(&self) -> Option<Arc<Hold>> {
        None
    }

    /// Nodes to reconcile, because their machine changed.
    fn wakes(&self) -> BoxStream<'static, NodeWake>;
}

/// The Nodes to reconcile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeWake {
    /// This Node.
    Node(String),
    /// Every Node: the machine could not be assigned to one.
    All,
}

/// What the cloud knows about a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InstanceMetadata {
    /// Value for an empty `spec.providerID`.
    pub provider_id: String,
    /// Instance type label; empty sets none.
    pub instance_type: String,
    /// All addresses, in the order to show them. Empty means "not known now": the Node keeps its addresses.
    pub addresses: Vec<NodeAddress>,
    /// Zone label; empty sets none.
    pub zone: String,
    /// Region label; empty sets none.
    pub region: String,
    /// Further labels for the place of the machine, which are updated like zone and region; an empty value sets none.
    pub labels: BTreeMap<&'static str, String>,
}

/// Whether a machine exists. There are more than two answers, because a Node must not be deleted on doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Existence {
    /// The machine exists.
    Exists,
    /// Proven absent; the text names the API and its answer.
    Gone(String),
    /// Not found, but another machine that runs is probably the Node's by now; the text names it and says why. Nothing
    /// is changed, and the user is told.
    Elsewhere(String),
    /// Not known now; changes nothing.
    Unknown(String),
}

/// Power state of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Power {
    /// Running, starting, migrating or paused.
    On,
    /// Switched off.
    Off,
    /// Not known now; changes nothing.
    Unknown(String),
}

/// The state of a machine that does not answer, as the cloud reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineState {
    /// It is switched off.
    Off,
    /// It is `paused` or `being migrated`, and does nothing meanwhile.
    Still(&'static str),
    /// It should be running. This is also reported for some minutes after its host has died.
    Running,
    /// Not known now.
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
    /// A retry is pointless until the user changes the object, or the key is woken.
    pub permanent: bool,
    /// Reason of the condition on the Service, one word in CamelCase; empty for a temporary failure that the object
    /// does not show.
    pub reason: &'static str,
    /// The longest pause until the next attempt, if it has to be shorter than the usual back-off.
    pub longest_pause: Option<Duration>,
    /// Nothing has failed: an answer is under way, which wakes the key. A Node that waits for it grows no back-off;
    /// Services do not wait like this.
    pub under_way: bool,
}

impl ProviderError {
    /// An error without a cause.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            source: None,
            permanent: false,
            reason: "",
            longest_pause: None,
            under_way: false,
        }
    }

    /// An error with its cause.
    pub fn caused(message: impl Into<String>, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { source: Some(source.into()), ..Self::new(message) }
    }

    /// Marks the error as permanent: a retry is pointless until something changes.
    pub fn permanent(mut self) -> Self {
        self.permanent = true;
        self
    }

    /// Marks the error as no failure: an answer is under way. Without it there is another attempt after this time.
    pub fn under_way(mut self, longest_pause: Duration) -> Self {
        (self.under_way, self.longest_pause) = (true, Some(longest_pause));
        self
    }

    /// Sets the reason of the condition on the Service.
    pub fn because(mut self, reason: &'static str) -> Self {
        self.reason = reason;
        self
    }
}
