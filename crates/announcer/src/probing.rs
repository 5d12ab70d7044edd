//! Asks Services as a client would: sockets and time for [`announcer_core::prober`], which decides whom and when.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use announcer_core::prober::{Output, Prober, Targets};
use futures::future::select_all;
use l2::{PacketSocket, Traffic};
use runtime::error::chain;
use tokio::sync::mpsc;

use crate::clock;
use crate::engine::Input;
use crate::metrics::Metrics;

/// Longer frames than answers to a SYN, ARP and neighbour discovery with our options do not exist.
const FRAME: usize = 512;
/// What is read from one socket in one go.
const AT_ONCE: usize = 256;

type Ear = (u32, Traffic);

/// Asks whoever is named last, until nobody can name any more. What changes goes to `inputs`.
pub fn start(inputs: mpsc::UnboundedSender<Input>, metrics: Arc<Metrics>) -> mpsc::UnboundedSender<Targets> {
    let (wanted, targets) = mpsc::unbounded_channel();
    tokio::spawn(run(targets, inputs, metrics));
    wanted
}

async fn run(
    mut targets: mpsc::UnboundedReceiver<Targets>,
    inputs: mpsc::UnboundedSender<Input>,
    metrics: Arc<Metrics>,
) {
    // Each has keys of its own that nobody else knows.
    let mut prober = Prober::new(clock::now(), RandomState::new().build_hasher().finish());
    let mut ears = Ears::default();
    loop {
        let mut outputs = Vec::new();
        tokio::select! {
            biased;
            wanted = targets.recv() => {
                let Some(wanted) = wanted else { return };
                prober.watch(clock::now(), wanted);
                ears.keep(&prober.listens().collect());
            }
            (link, frame) = ears.next() => outputs.extend(prober.heard(clock::now(), link, &frame)),
            () = sleep_until(prober.deadline()) => {}
        }
        // failover-protocol.md R1: what was received counts before any timer.
        for (link, frame) in ears.drain() {
            outputs.extend(prober.heard(clock::now(), link, &frame));
        }
        outputs.extend(prober.tick(clock::now()));
        for output in outputs {
            match output {
                Output::Send { link, traffic, frame } => ears.send((link, traffic), &frame),
                Output::Ended { outcome, after } => metrics.probed.ended(outcome, after),
                Output::Found(finding) => {
                    let _ = inputs.send(Input::Probed(finding));
                }
            }
        }
        metrics.probed.unserved(prober.unserved());
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => clock::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The sockets: kept while somebody is asked through them, since the kernel takes its time to close one.
#[derive(Debug, Default)]
struct Ears {
    open: HashMap<Ear, PacketSocket>,
    /// Could not be opened, and that was told.
    deaf: HashSet<Ear>,
}

impl Ears {
    /// Of these only what was opened already; the others when something is to be sent.
    fn keep(&mut self, wanted: &HashSet<Ear>) {
        self.open.retain(|ear, _| wanted.contains(ear));
        self.deaf.retain(|ear| wanted.contains(ear));
    }

    /// A frame that is lost is a miss, and one miss says nothing.
    fn send(&mut self, ear: Ear, frame: &[u8]) {
        if let std::collections::hash_map::Entry::Vacant(vacant) = self.open.entry(ear) {
            match PacketSocket::open(ear.0, ear.1) {
                Ok(socket) => {
                    self.deaf.remove(&ear);
                    vacant.insert(socket);
                }
                Err(error) => {
                    if self.deaf.insert(ear) {
                        let error = chain(&error);
                        tracing::warn!(
                            link = ear.0,
                            traffic = ?ear.1,
                            error,
                            "the announcer cannot probe Services on the interface; it tries again at the next probe"
                        );
                    }
                    return;
                }
            }
        }
        if let Some(Err(error)) = self.open.get(&ear).map(|socket| socket.try_send(frame)) {
            tracing::debug!(link = ear.0, %error, "the announcer cannot send a frame");
        }
    }

    /// The next frame, and on which interface it was heard.
    async fn next(&mut self) -> (u32, Vec<u8>) {
        loop {
            if self.open.is_empty() {
                return std::future::pending().await;
            }
            let heard =
                self.open.iter().map(|(ear, socket)| Box::pin(async move { (*ear, socket.next::<FRAME>().await) }));
            let ((ear, heard), ..) = select_all(heard).await;
            match heard {
                Ok(frame) => return (ear.0, frame),
                // Once per loss of the link; the socket goes on when it is back.
                Err(error) if error.kind() == std::io::ErrorKind::NetworkDown => {}
                Err(error) => {
                    tracing::debug!(
                        link = ear.0,
                        %error,
                        "the announcer stopped listening for answers of Services on the interface"
                    );
                    self.open.remove(&ear);
                }
            }
        }
    }

    /// What has come already.
    fn drain(&self) -> Vec<(u32, Vec<u8>)> {
        let (mut heard, mut buffer) = (Vec::new(), [0; FRAME]);
        for ((link, _), socket) in &self.open {
            for _ in 0..AT_ONCE {
                // Whoever waits for the next frame deals with errors.
                let Ok(Some(length)) = socket.try_recv(&mut buffer) else { break };
                heard.push((*link, buffer[..length].to_vec()));
            }
        }
        heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_cannot_be_asked_through_is_told_once_and_forgotten_with_the_wish() {
        let mut ears = Ears::default();
        // No interface has this index.
        let ear = (u32::MAX / 2, Traffic::Handshake);
        for _ in 0..2 {
            ears.send(ear, &[0; 60]);
            assert_eq!((ears.deaf.len(), ears.open.len(), ears.drain().len()), (1, 0, 0));
        }
        ears.keep(&HashSet::new());
        assert!(ears.deaf.is_empty());
    }

    #[tokio::test]
    async fn it_ends_when_nobody_can_name_anybody_any_more() {
        let product = runtime::Product { name: "announcer", metrics_prefix: "hcp", version: "1" };
        let metrics = runtime::metrics::Metrics::new(&product)
            .register(|registry| Metrics::register(registry, "node-1", "lock", "1"));
        let (inputs, mut told) = mpsc::unbounded_channel();
        let wanted = start(inputs, Arc::new(metrics));
        wanted.send(Targets::new()).unwrap();
        drop(wanted);
        assert!(told.recv().await.is_none());
    }
}
