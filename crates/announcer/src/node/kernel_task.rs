//! Performs requests to the kernel, in the order of [`KernelQueue`].

use announcer_core::engine::{Input, KernelDone, KernelOp};
use announcer_core::kernel_queue::KernelQueue;
use tokio::sync::mpsc;

use crate::kernel::Kernel;

/// Performs requests until all of them are done. They run one after the other in the order of [`KernelQueue`]; rules
/// run beside them.
pub(super) async fn perform<K: Kernel>(
    kernel: K,
    mut requests: mpsc::UnboundedReceiver<KernelOp>,
    inputs: mpsc::UnboundedSender<Input>,
) {
    let mut queue = KernelQueue::default();
    let (mut next, mut rules, mut is_asked) = (None, None, true);
    let tell = |done: Option<KernelDone>| {
        if let Some(done) = done {
            let _ = inputs.send(Input::Kernel(done));
        }
    };
    loop {
        // All waiting requests are queued before the next one is chosen.
        while let Ok(op) = requests.try_recv() {
            queue.push(op);
        }
        if next.is_none() {
            next = queue.next_in_order().map(|op| Box::pin(kernel.perform(op)));
        }
        if rules.is_none() {
            rules = queue.next_rules().map(|op| Box::pin(kernel.perform(op)));
        }
        if !is_asked && next.is_none() && rules.is_none() {
            return;
        }
        tokio::select! {
            op = requests.recv(), if is_asked => match op {
                Some(op) => queue.push(op),
                None => is_asked = false,
            },
            done = result_of(&mut next) => {
                next = None;
                tell(done);
            }
            done = result_of(&mut rules) => {
                rules = None;
                tell(done);
            }
        }
    }
}

/// The result of the request under way; waits for ever if there is none.
async fn result_of<F: Future + Unpin>(request: &mut Option<F>) -> F::Output {
    match request {
        Some(request) => request.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::sync::Notify;

    use super::*;
    use crate::node::tests::Noting;

    #[tokio::test]
    async fn deadlines_are_put_off_before_everything_else_that_waits_for_the_kernel() {
        let (noted, mut performed) = mpsc::unbounded_channel();
        let (ops, requests) = mpsc::unbounded_channel();
        let (inputs, _answers) = mpsc::unbounded_channel();
        for link in 0..200 {
            ops.send(KernelOp::Delete { link }).unwrap();
        }
        ops.send(KernelOp::Extend(Vec::new())).unwrap();
        drop(ops);
        perform(Noting(noted), requests, inputs).await;
        assert_eq!(performed.recv().await, Some(KernelOp::Extend(Vec::new())));
        assert_eq!(performed.recv().await, Some(KernelOp::Delete { link: 0 }));
        assert_eq!(performed.len(), 199, "and nothing is lost");
    }

    /// The kernel's tables are busy: rules are set when told to. Notes what is begun and what is done.
    struct Busy {
        rules: Arc<Notify>,
        noted: mpsc::UnboundedSender<&'static str>,
    }

    impl Kernel for Busy {
        async fn perform(&self, op: KernelOp) -> Option<KernelDone> {
            let (begun, done) = match op {
                KernelOp::Protect(_) => ("rules begun", "rules stand"),
                KernelOp::Extend(_) => ("extending", "extended"),
                _ => ("removing", "removed"),
            };
            let _ = self.noted.send(begun);
            if begun == "rules begun" {
                self.rules.notified().await;
            } else {
                tokio::task::yield_now().await;
            }
            let _ = self.noted.send(done);
            None
        }
    }

    #[tokio::test]
    async fn neither_deadlines_nor_removals_wait_for_rules_that_the_kernel_is_slow_to_set() {
        let (noted, mut seen) = mpsc::unbounded_channel();
        let (ops, requests) = mpsc::unbounded_channel();
        let (inputs, _answers) = mpsc::unbounded_channel();
        let rules = Arc::new(Notify::new());
        let kernel = tokio::spawn(perform(Busy { rules: Arc::clone(&rules), noted }, requests, inputs));
        let mut next = async || tokio::time::timeout(Duration::from_secs(5), seen.recv()).await.expect("it goes on");
        let net: ipnet::IpNet = "10.0.0.5/32".parse().unwrap();
        // No address is left without rules: what is removed first is gone before they change.
        ops.send(KernelOp::Remove(vec![(2, net)])).unwrap();
        ops.send(KernelOp::Protect(announcer_core::security::Protection::default())).unwrap();
        for expected in ["removing", "removed", "rules begun"] {
            assert_eq!(next().await, Some(expected));
        }
        ops.send(KernelOp::Extend(Vec::new())).unwrap();
        ops.send(KernelOp::Remove(vec![(2, net)])).unwrap();
        for expected in ["extending", "extended", "removing", "removed"] {
            assert_eq!(next().await, Some(expected));
        }
        drop(ops);
        rules.notify_one();
        assert_eq!(next().await, Some("rules stand"), "the last request is done before the end");
        kernel.await.unwrap();
    }
}
