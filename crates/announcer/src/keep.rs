//! Keeps the addresses of the previous process while the announcer determines its mode. The API may take longer to
//! answer than the addresses live in the kernel.

use std::collections::VecDeque;
use std::convert::Infallible;

use announcer_core::config::Config;
use announcer_core::engine::{Action, Engine, Input};
use tokio::sync::{Notify, mpsc};

use crate::clock;
use crate::kernel::Kernel;
use crate::listen::Listeners;

/// Limit of received frames that wait; more are dropped.
const FRAMES: usize = 64;

/// Runs until it is dropped. An engine without inputs from the API extends the addresses that it finds, and removes
/// those that another host announces.
pub(crate) async fn keep<K: Kernel>(config: Config, kernel: &K, network: &Notify) -> Infallible {
    let mut engine = Engine::new(clock::now(), config);
    let (frames_tx, mut frames) = mpsc::channel(FRAMES);
    let mut listeners = Listeners::new(frames_tx);
    let mut answers = VecDeque::new();
    let mut wake = clock::now();
    loop {
        let input = if let Some(answer) = answers.pop_front() {
            Some(Input::Kernel(answer))
        } else {
            tokio::select! {
                biased;
                Some(frame) = frames.recv() => Some(frame),
                () = network.notified() => Some(Input::NetworkChanged),
                () = clock::sleep_until(wake) => None,
            }
        };
        let now = clock::now();
        let mut actions: Vec<Action> = input.into_iter().flat_map(|input| engine.handle(now, input)).collect();
        actions.extend(engine.poll(now, !answers.is_empty()));
        for action in actions {
            match action {
                Action::Kernel(op) => answers.extend(kernel.perform(op).await),
                Action::Listen(wanted) => listeners.set(&wanted),
                _ => {}
            }
        }
        wake = engine.wake_at(clock::now());
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use std::time::Duration;

    use announcer_core::engine::{KernelDone, KernelOp};
    use l2::netlink::{Address, AddressLifetime};

    use super::*;
    use announcer_core::fixtures::{config, network, own_address};

    /// Carries 10.0.0.5, and notes what it is asked for.
    struct RecordingKernel(Mutex<Vec<KernelOp>>);

    impl Kernel for RecordingKernel {
        async fn perform(&self, op: KernelOp) -> Option<KernelDone> {
            self.0.lock().push(op.clone());
            let mut found = network();
            let valid = AddressLifetime::For(Duration::from_secs(3));
            found.addresses.push(Address { valid, ..own_address(2, "10.0.0.5/32") });
            match op {
                KernelOp::Observe => Some(KernelDone::Observed(Ok(found))),
                KernelOp::Extend(puts) => {
                    Some(KernelDone::Extended(puts.iter().map(|put| (put.link, put.net, Ok(()))).collect()))
                }
                _ => None,
            }
        }
    }

    #[tokio::test]
    async fn what_a_former_life_left_gets_more_time_at_once_and_nothing_else_is_done() {
        let kernel = RecordingKernel(Mutex::default());
        let network = Notify::new();
        let keeping = keep(config(&[("election_mode", "node")]), &kernel, &network);
        assert!(tokio::time::timeout(Duration::from_millis(500), keeping).await.is_err());
        let asked = kernel.0.into_inner();
        let kept = |op: &KernelOp| {
            let KernelOp::Extend(puts) = op else { return false };
            puts.iter().any(|put| put.net.to_string() == "10.0.0.5/32")
        };
        // The next second's pass may or may not be within the time.
        assert_eq!(asked.first(), Some(&KernelOp::Observe));
        assert!(asked.get(1).is_some_and(kept), "{asked:?}");
        assert!(asked.len() < 6 && asked.iter().all(|op| *op == KernelOp::Observe || kept(op)), "{asked:?}");
    }
}
