//! The sockets for frames: for each interface with VIPs one for ARP, one for neighbour discovery, or both.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use announcer_core::engine::Input;
use announcer_core::frames::{self, Frame};
use announcer_core::network::Family;
use l2::{PacketSocket, Traffic};
use runtime::error::chain;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::AbortHandle;

/// Limit of frames that are read from one socket at a time. In a storm the rest waits, because the addresses that are
/// up have to be extended meanwhile.
const AT_ONCE: usize = 512;
/// Buffer size; ARP and neighbour discovery frames with our options are never longer.
const FRAME: usize = 512;

#[derive(Debug)]
struct Open {
    socket: Arc<PacketSocket>,
    reader: AbortHandle,
    /// Questions were sent through this socket. Its answers must be read early, because they decide about other nodes.
    asked: bool,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// The sockets of this node.
#[derive(Debug)]
pub struct Listeners {
    inputs: mpsc::Sender<Input>,
    open: BTreeMap<(u32, Family), Open>,
    /// Sockets that could not be opened; this was logged.
    deaf: BTreeSet<(u32, Family)>,
}

impl Listeners {
    /// Received frames go to `inputs`.
    pub fn new(inputs: mpsc::Sender<Input>) -> Self {
        Self { inputs, open: BTreeMap::new(), deaf: BTreeSet::new() }
    }

    /// Opens the wanted sockets and closes the others. A socket that could not be opened or has failed is tried again
    /// with each call.
    pub fn set(&mut self, wanted: &BTreeSet<(u32, Family)>) {
        self.open.retain(|open, _| wanted.contains(open));
        self.deaf.retain(|deaf| wanted.contains(deaf));
        for (link, family) in wanted {
            self.socket(*link, *family);
        }
    }

    /// Sends a frame about `address`. Returns false if that failed, for instance because the send queue is full.
    pub fn send(&mut self, link: u32, address: IpAddr, frame: &[u8]) -> bool {
        let Some(socket) = self.socket(link, Family::of(address)) else { return false };
        match socket.try_send(frame) {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(link, %address, %error, "the announcer cannot send a frame");
                false
            }
        }
    }

    /// Sends a question whose answer is awaited. Returns false if that failed.
    pub fn ask(&mut self, link: u32, address: IpAddr, frame: &[u8]) -> bool {
        let sent = self.send(link, address, frame);
        if let Some(open) = self.open.get_mut(&(link, Family::of(address))) {
            open.asked = true;
        }
        sent
    }

    /// The frames that have arrived and were not read yet, from the sockets that questions were sent through. Without
    /// this, a process that had no processor time for a moment would judge its timers first (fail-over spec R1).
    pub fn drain(&self) -> Vec<Frame> {
        let (mut heard, mut buffer) = (Vec::new(), [0; FRAME]);
        for ((link, _), open) in self.open.iter().filter(|(_, open)| open.asked) {
            for _ in 0..AT_ONCE {
                // The reader task handles errors.
                let Ok(Some(length)) = open.socket.try_recv(&mut buffer) else { break };
                heard.extend(frames::read(*link, &buffer[..length]));
            }
        }
        heard
    }

    fn socket(&mut self, link: u32, family: Family) -> Option<Arc<PacketSocket>> {
        if let Some(open) = self.open.get(&(link, family)).filter(|open| !open.reader.is_finished()) {
            return Some(Arc::clone(&open.socket));
        }
        let traffic = match family {
            Family::V4 => Traffic::Arp,
            Family::V6 => Traffic::NeighborDiscovery,
        };
        let socket = match PacketSocket::open(link, traffic) {
            Ok(socket) => Arc::new(socket),
            Err(error) => {
                if self.deaf.insert((link, family)) {
                    let error = chain(&error);
                    tracing::warn!(
                        link,
                        ?family,
                        error,
                        "the announcer cannot listen on the interface; it tries again every second"
                    );
                }
                return None;
            }
        };
        self.deaf.remove(&(link, family));
        let reader = tokio::spawn(read(link, Arc::clone(&socket), self.inputs.clone())).abort_handle();
        self.open.insert((link, family), Open { socket: Arc::clone(&socket), reader, asked: false });
        Some(socket)
    }
}

async fn read(link: u32, socket: Arc<PacketSocket>, inputs: mpsc::Sender<Input>) {
    let mut buffer = [0; FRAME];
    loop {
        match socket.recv(&mut buffer).await {
            Ok(length) => {
                if let Some(frame) = frames::read(link, &buffer[..length]) {
                    // The channel is bounded, so that a storm cannot fill the memory. A frame lost here would be lost
                    // on a full socket too.
                    if let Err(TrySendError::Closed(_)) = inputs.try_send(Input::Heard(frame)) {
                        return;
                    }
                }
            }
            // Comes once per loss of the link; the socket works again when the link is back.
            Err(error) if error.kind() == std::io::ErrorKind::NetworkDown => {
                tracing::debug!(link, "the interface is down");
            }
            Err(error) => {
                tracing::debug!(link, %error, "the announcer stopped listening on the interface");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_cannot_be_heard_is_told_once_and_forgotten_with_the_wish() {
        let (inputs, _heard) = mpsc::channel(1);
        let mut listeners = Listeners::new(inputs);
        // No interface has this index.
        let wanted = BTreeSet::from([(u32::MAX / 2, Family::V4)]);
        for _ in 0..2 {
            listeners.set(&wanted);
            assert_eq!((&listeners.deaf, listeners.open.len()), (&wanted, 0));
        }
        listeners.set(&BTreeSet::new());
        assert!(listeners.deaf.is_empty());
    }
}
