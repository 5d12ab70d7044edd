//! Paces requests to the host (decisions 6 to 8; host pace spec). One window limits creates and deletes of load
//! balancers with a pool address (`scheduler.rs`, `window.rs`). The host's finalizer is preset once it was learnt
//! (`finalizer.rs`).
//!
//! The reconciliation of a Service never waits here: without a turn it gets "not yet", and the Service is woken when
//! its turn comes. Only the garbage collection, which has nothing else to do, waits ([`Pacer::turn`]).

mod finalizer;
#[cfg(test)]
mod host_model;
mod lane;
#[cfg(test)]
mod random;
mod scheduler;
#[cfg(test)]
mod simulation;
mod window;

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

use cloud_provider::view::ServiceKey;
use futures::stream::{self, Stream, StreamExt};
use harvester_api::load_balancer::NotReady;
use tokio::sync::Notify;
use tokio::time::Instant;

use finalizer::Finalizer;
use scheduler::{ObjectState, Scheduler};
pub use scheduler::{Turn, Work};

use super::view::LbView;

/// The pacing state that all reconciliations share.
#[derive(Debug, Default)]
pub struct Pacer {
    state: Mutex<State>,
    /// Notified when a turn was granted, or the next deadline has changed.
    changed: Notify,
    /// Notified when [`Self::wakes`] has delivered a wake-up.
    called: Notify,
}

#[derive(Debug, Default)]
struct State {
    scheduler: Scheduler,
    finalizer: Finalizer,
}

impl Pacer {
    fn change<R>(&self, change: impl FnOnce(&mut State, Instant) -> R) -> R {
        let result = change(&mut self.state.lock(), Instant::now());
        self.changed.notify_one();
        result
    }

    /// Requests a turn. After [`Turn::Now`], the caller reports [`Self::sent`] or [`Self::creates`], and
    /// [`Self::failed`] if the request failed.
    pub fn ask(&self, name: &str, service: &ServiceKey, work: Work) -> Turn {
        self.change(|state, now| state.scheduler.ask(now, name, service, work))
    }

    /// Like [`Self::ask`], for callers without a Service that could be woken: waits for the turn. [`Self::wakes`] has
    /// to be polled meanwhile.
    pub async fn turn(&self, name: &str, service: &ServiceKey, work: Work) {
        loop {
            let mut called = std::pin::pin!(self.called.notified());
            // Registered before the request for a turn, so that no notification in between is missed.
            called.as_mut().enable();
            if self.ask(name, service, work) == Turn::Now {
                return;
            }
            let deadline = self.state.lock().scheduler.deadline();
            match deadline {
                Some(deadline) => drop(tokio::time::timeout_at(deadline, called).await),
                None => called.await,
            }
        }
    }

    /// Reports that the request is about to be sent, or was just answered: the time for the host starts now.
    pub fn sent(&self, name: &str) {
        self.change(|state, now| state.scheduler.sent(now, name));
    }

    /// Reports that a POST is about to be sent. Returns whether to preset the host's finalizer.
    pub fn creates(&self, name: &str) -> bool {
        self.change(|state, now| {
            state.scheduler.sent(now, name);
            let preset = state.finalizer.is_known();
            if !preset {
                state.finalizer.created_without(name);
            }
            preset
        })
    }

    /// Reports that the request failed, or that nothing was left to do.
    pub fn failed(&self, name: &str) {
        self.change(|state, now| state.scheduler.give_back(now, name));
    }

    /// Reports that the Service currently sends requests for these objects and no others.
    pub fn wants_only(&self, service: &ServiceKey, names: &[String]) {
        self.change(|state, now| state.scheduler.wants_only(now, service, names));
    }

    /// Reports that nothing is left of the object.
    pub fn forget(&self, name: &str) {
        self.change(|state, now| {
            state.scheduler.forget(now, name);
            state.finalizer.seen(now, name, None);
        });
    }

    /// Reports what the watch shows: this object, or none.
    pub fn seen(&self, name: &str, lb: Option<&LbView>) {
        self.change(|state, now| {
            state.scheduler.seen(now, name, lb.map_or(ObjectState::Gone, seen));
            state.finalizer.seen(now, name, lb);
        });
    }

    /// How long the host may still take to delete an object whose finalizer was preset. Zero: the host does not remove
    /// the finalizer, and it is not preset any more. `None`: the host itself added the finalizer.
    pub fn patience(&self, name: &str) -> Option<Duration> {
        let mut state = self.state.lock();
        let known = state.finalizer.is_known();
        let left = state.finalizer.patience(Instant::now(), name);
        if known && !state.finalizer.is_known() {
            tracing::warn!(
                lb = name,
                "Harvester does not remove its finalizer from the load balancer; the controller creates new load \
                balancers without that finalizer until Harvester adds it to one itself"
            );
        }
        left
    }

    /// The size of the window.
    pub fn window(&self) -> usize {
        self.state.lock().scheduler.window()
    }

    /// A stream of the Services whose turn has come.
    pub fn wakes(self: &Arc<Self>) -> impl Stream<Item = ServiceKey> + use<> {
        let called = stream::unfold(Arc::clone(self), |pacer| async move {
            loop {
                let changed = pacer.changed.notified();
                let deadline = {
                    let mut state = pacer.state.lock();
                    state.scheduler.tick(Instant::now());
                    let called = state.scheduler.take_called();
                    if !called.is_empty() {
                        drop(state);
                        drop(changed);
                        pacer.called.notify_waiters();
                        return Some((stream::iter(called), pacer));
                    }
                    state.scheduler.deadline()
                };
                match deadline {
                    Some(deadline) => {
                        let _ = tokio::time::timeout_at(deadline, changed).await;
                    }
                    None => changed.await,
                }
            }
        });
        called.flatten()
    }
}

fn seen(lb: &LbView) -> ObjectState {
    match &lb.ready {
        Some(ready) if ready.status && lb.usable_address.is_some() => ObjectState::Ready,
        Some(ready) if !ready.status => match NotReady::classify(&ready.message) {
            NotReady::Transient => ObjectState::Collided,
            NotReady::NoAllocator | NotReady::NoMatchingPool | NotReady::PoolExhausted | NotReady::Other => {
                ObjectState::Refused
            }
        },
        _ => ObjectState::Working,
    }
}

/// Whether the host releases an address when this object is deleted. Objects without a pool are not paced, and an
/// object that the host refused has no allocation.
pub fn releases(lb: &LbView) -> bool {
    lb.effective_ipam() == "pool"
        && !lb.terminating
        && lb
            .ready
            .as_ref()
            .is_some_and(|ready| ready.status || NotReady::classify(&ready.message) == NotReady::Transient)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::super::build::{key, lb};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_next_service_is_woken_when_a_place_is_free_and_after_five_seconds_at_the_latest() {
        let pacer = Arc::new(Pacer::default());
        let mut wakes = std::pin::pin!(pacer.wakes());
        assert_eq!(pacer.ask("a", &key("default/a"), Work::CreateNew), Turn::Now);
        for name in ["b", "c"] {
            pacer.ask(name, &key(&format!("default/{name}")), Work::CreateNew);
        }
        assert!(wakes.next().now_or_never().is_none());
        assert!(!pacer.creates("a"), "not learnt yet");
        pacer.seen("a", Some(&lb("a").ready("10.0.0.1").done()));
        assert_eq!(wakes.next().await, Some(key("default/b")));
        assert!(pacer.creates("b"));
        let begin = Instant::now();
        assert_eq!(wakes.next().await, Some(key("default/c")));
        assert_eq!(begin.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pool_that_does_not_exist_gives_its_place_back_at_once_and_leaves_the_window_as_it_is() {
        let pacer = Arc::new(Pacer::default());
        let mut wakes = std::pin::pin!(pacer.wakes());
        let window = pacer.window();
        assert_eq!(pacer.ask("a", &key("default/a"), Work::CreateNew), Turn::Now);
        pacer.creates("a");
        pacer.ask("b", &key("default/b"), Work::CreateNew);
        let begin = Instant::now();
        pacer.seen("a", Some(&lb("a").not_ready("fail to get allocator nosuch").done()));
        assert_eq!(wakes.next().await, Some(key("default/b")));
        assert_eq!((begin.elapsed(), pacer.window()), (Duration::ZERO, window));
    }

    #[test]
    fn only_objects_with_a_booking_are_paced_when_they_are_deleted() {
        let ready = lb("a").ready("10.0.0.1").done();
        assert!(releases(&ready));
        assert!(releases(&lb("a").not_ready("fail to reserve 10.0.0.1 into edge").done()));
        assert!(!releases(&lb("a").not_ready("no matched IPPool").done()));
        assert!(!releases(&lb("a").not_ready("fail to get allocator nosuch").done()));
        assert!(!releases(&lb("a").done()));
        assert!(!releases(&LbView { ipam: Some("dhcp".into()), ..ready }));
    }
}
