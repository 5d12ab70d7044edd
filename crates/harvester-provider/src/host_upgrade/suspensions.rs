//! Tells the controllers whether an upgrade of the hosts suspends actions that cannot be undone.

use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::Stream;
use tokio::sync::watch;

/// How long a failed call of a webhook counts.
const WEBHOOK_COUNTS: Duration = Duration::from_mins(2);

/// What is suspended now, and why. Clones share one state.
#[derive(Clone, Default)]
pub struct Suspensions(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    resyncs: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    window: Option<SuspensionWindow>,
    webhook: Option<Instant>,
}

/// Why deletions and similar actions are suspended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuspensionWindow {
    /// The reason in words, for logs and Events.
    pub why: Arc<str>,
    /// True if there is a sign of an upgrade. False if the only sign is that the host's API does not answer.
    pub upgrade: bool,
}

impl Suspensions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// The window, if one is open.
    pub fn window(&self) -> Option<SuspensionWindow> {
        self.state().window.clone()
    }

    /// Returns `Err` with the reason while no Node may be deleted, whatever the state of its machine is.
    pub fn may_delete_nodes(&self) -> Result<(), Arc<str>> {
        self.window().map_or(Ok(()), |window| Err(window.why))
    }

    /// Returns `Err` with the reason while no load balancer may be deleted as garbage.
    pub fn may_collect_garbage(&self) -> Result<(), Arc<str>> {
        self.window().map_or(Ok(()), |window| Err(window.why))
    }

    /// True while the labels for zone, region and host of a Node must not change.
    pub fn zones_frozen(&self) -> bool {
        self.state().window.is_some()
    }

    /// True while no address may be removed from a Node.
    pub fn addresses_only_added(&self) -> bool {
        self.state().window.is_some()
    }

    /// Records that a webhook of the host could not be called.
    pub fn webhook_failed(&self) {
        self.state().webhook = Some(Instant::now());
    }

    /// Whether a webhook of the host failed within the last two minutes.
    pub fn webhooks_fail(&self) -> bool {
        self.state().webhook.is_some_and(|at| at.elapsed() < WEBHOOK_COUNTS)
    }

    /// Sets or ends the suspension.
    pub fn set(&self, window: Option<SuspensionWindow>) {
        self.state().window = window;
    }

    /// Makes every controller reconcile all its objects once more, because a window has closed.
    pub fn resync(&self) {
        self.0.resyncs.send_modify(|count| *count += 1);
    }

    /// The receiver changes when all objects have to be reconciled once more.
    pub fn resyncs(&self) -> watch::Receiver<u64> {
        self.0.resyncs.subscribe()
    }
}

/// A stream with one item for each request to reconcile all objects.
pub fn each(resyncs: watch::Receiver<u64>) -> impl Stream<Item = ()> {
    futures::stream::unfold(resyncs, |mut resyncs| async {
        resyncs.changed().await.ok()?;
        Some(((), resyncs))
    })
}
