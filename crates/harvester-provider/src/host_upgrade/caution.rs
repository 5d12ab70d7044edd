//! What the controllers ask before they do what cannot be undone: whether an upgrade of the hosts suspends it.

use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::Stream;
use tokio::sync::watch;

/// A webhook that could not be asked counts for so long.
const WEBHOOK_COUNTS: Duration = Duration::from_mins(2);

/// What is suspended now, and why. Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub struct Caution(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    resyncs: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    window: Option<Window>,
    webhook: Option<Instant>,
}

/// Why deletions and the like are suspended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// In words for logs and Events.
    pub why: Arc<str>,
    /// Something tells of an upgrade; else the host's API is silent, and that is all that is known.
    pub upgrade: bool,
}

impl fmt::Debug for Caution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Caution").field(&self.state().window).finish()
    }
}

impl Caution {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// The window, if one is open.
    pub fn window(&self) -> Option<Window> {
        self.state().window.clone()
    }

    /// `Err` with the reason while no Node may be deleted, whatever is known of its machine.
    pub fn may_delete_nodes(&self) -> Result<(), Arc<str>> {
        self.window().map_or(Ok(()), |window| Err(window.why))
    }

    /// `Err` with the reason while no load balancer is deleted because no Service has it.
    pub fn may_collect_garbage(&self) -> Result<(), Arc<str>> {
        self.window().map_or(Ok(()), |window| Err(window.why))
    }

    /// While zone, region and host of a Node stay as they are.
    pub fn zones_frozen(&self) -> bool {
        self.state().window.is_some()
    }

    /// While a Node loses no address.
    pub fn addresses_only_added(&self) -> bool {
        self.state().window.is_some()
    }

    /// A webhook of the host could not be asked.
    pub fn webhook_failed(&self) {
        self.state().webhook = Some(Instant::now());
    }

    /// Whether that was a moment ago.
    pub fn webhooks_fail(&self) -> bool {
        self.state().webhook.is_some_and(|at| at.elapsed() < WEBHOOK_COUNTS)
    }

    /// What is suspended from now on.
    pub fn set(&self, window: Option<Window>) {
        self.state().window = window;
    }

    /// A window has closed: everybody looks at everything once more.
    pub fn resync(&self) {
        self.0.resyncs.send_modify(|count| *count += 1);
    }

    /// Changes when everything is to be looked at once more.
    pub fn resyncs(&self) -> watch::Receiver<u64> {
        self.0.resyncs.subscribe()
    }
}

/// One item each time that everything is to be looked at once more.
pub fn each(resyncs: watch::Receiver<u64>) -> impl Stream<Item = ()> {
    futures::stream::unfold(resyncs, |mut resyncs| async {
        resyncs.changed().await.ok()?;
        Some(((), resyncs))
    })
}
