//! Probes Services as a client: sockets and timers for [`announcer_core::prober`], which decides what to probe and
//! when.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use announcer_core::engine::Input;
use announcer_core::prober::{Output, Prober, Targets};
use futures::future::select_all;
use l2::{PacketSocket, Traffic};
use runtime::error::chain;
use tokio::sync::mpsc;

use crate::clock;
use crate::metrics::Metrics;

/// Buffer size; answers to a SYN, ARP and neighbour discovery frames with our options are never longer.
const FRAME: usize = 512;
/// Limit of frames that are read from one socket at a time.
const AT_ONCE: usize = 256;

type ProbeSource = (u32, Traffic);

/// Starts the prober. It probes the targets that were sent last, until the sender is dropped. Findings go to `inputs`.
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
    // A random seed that other hosts do not know.
    let mut prober = Prober::new(clock::now(), RandomState::new().build_hasher().finish());
    let mut sockets = ProbeSockets::default();
    loop {
        let mut outputs = Vec::new();
        tokio::select! {
            biased;
            wanted = targets.recv() => {
                let Some(wanted) = wanted else { return };
                prober.watch(clock::now(), wanted);
                sockets.keep(&prober.listens().collect());
            }
            (link, frame) = sockets.next() => outputs.extend(prober.heard(clock::now(), link, &frame)),
            () = clock::sleep_until_some(prober.deadline()) => {}
        }
        // Received frames count before any timer (fail-over spec R1).
        for (link, frame) in sockets.drain() {
            outputs.extend(prober.heard(clock::now(), link, &frame));
        }
        outputs.extend(prober.tick(clock::now()));
        for output in outputs {
            match output {
                Output::Send { link, traffic, frame } => sockets.send((link, traffic), &frame),
                Output::Ended { outcome, after } => metrics.probed.ended(outcome, after),
                Output::Found(finding) => {
                    let _ = inputs.send(Input::Probed(finding));
                }
            }
        }
        metrics.probed.unserved(prober.unserved());
    }
}

/// The sockets. They stay open while a target needs them, because the kernel takes its time to close one.
#[derive(Debug, Default)]
struct ProbeSockets {
    open: HashMap<ProbeSource, PacketSocket>,
    /// Sockets that could not be opened; this was logged.
    deaf: HashSet<ProbeSource>,
}

impl ProbeSockets {
    /// Closes all sockets that are not wanted. A wanted one is opened when a frame has to be sent.
    fn keep(&mut self, wanted: &HashSet<ProbeSource>) {
        self.open.retain(|ear, _| wanted.contains(ear));
        self.deaf.retain(|ear| wanted.contains(ear));
    }

    /// Sends a frame. A lost frame only leads to one failure, which alone proves nothing.
    fn send(&mut self, ear: ProbeSource, frame: &[u8]) {
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

    /// Waits for the next frame. Returns it with its interface.
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
                // Comes once per loss of the link; the socket works again when the link is back.
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

    /// The frames that have arrived and were not read yet.
    fn drain(&self) -> Vec<(u32, Vec<u8>)> {
        let (mut heard, mut buffer) = (Vec::new(), [0; FRAME]);
        for ((link, _), socket) in &self.open {
            for _ in 0..AT_ONCE {
                // [`Self::next`] handles errors.
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
        let mut sockets = ProbeSockets::default();
        // No interface has this index.
        let ear = (u32::MAX / 2, Traffic::Handshake);
        for _ in 0..2 {
            sockets.send(ear, &[0; 60]);
            assert_eq!((sockets.deaf.len(), sockets.open.len(), sockets.drain().len()), (1, 0, 0));
        }
        sockets.keep(&HashSet::new());
        assert!(sockets.deaf.is_empty());
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
