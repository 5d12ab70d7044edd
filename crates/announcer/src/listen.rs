//! Ears and mouth: per interface with VIPs one socket for ARP, one for neighbour discovery, or both.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use l2::arp::{self, Arp};
use l2::ndp::{self, Message, Ndp};
use l2::{Mac, PacketSocket, Traffic};
use runtime::error::chain;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::AbortHandle;

use crate::engine::{Heard, Input};
use crate::network::Family;

/// Longer frames than ARP and neighbour discovery with our options do not exist.
const FRAME: usize = 512;

/// What one frame says, if it concerns us at all: about which address, from whom.
pub fn interpret(frame: &[u8]) -> Option<(IpAddr, Mac, Heard)> {
    if let Some(found) = arp::parse_frame(frame) {
        let Arp { sender_ip, target_ip, sender_mac, .. } = found.arp;
        let (address, what) = if found.arp.is_probe() {
            (target_ip, Heard::Probe)
        } else if found.arp.is_claim_of(sender_ip) {
            (sender_ip, Heard::Claim)
        } else {
            (sender_ip, Heard::Answer)
        };
        return Some((address.into(), sender_mac, what));
    }
    let found = ndp::parse_frame(frame)?;
    let mac = found.ethernet.source;
    let Ndp { source, target, message, .. } = found.ndp;
    match message {
        Message::Solicitation { .. } if source.is_unspecified() => Some((target.into(), mac, Heard::Probe)),
        // Somebody asks with a VIP of ours as its own address.
        Message::Solicitation { .. } => Some((source.into(), mac, Heard::Claim)),
        Message::Advertisement { solicited, target_mac, .. } => {
            let what = if solicited { Heard::Answer } else { Heard::Claim };
            Some((target.into(), target_mac.unwrap_or(mac), what))
        }
    }
}

/// The frames that say where `address` is. For IPv4 both opcodes: some receivers heed only one of them
/// (failover-protocol.md 5).
pub fn announcement(mac: Mac, address: IpAddr) -> Vec<Vec<u8>> {
    match address {
        IpAddr::V4(v4) => vec![
            Arp::announcement_reply(mac, v4).frame(Mac::BROADCAST).to_vec(),
            Arp::announcement_request(mac, v4).frame(Mac::BROADCAST).to_vec(),
        ],
        IpAddr::V6(v6) => {
            let ndp = Ndp::announcement(mac, v6);
            vec![ndp.frame(mac, ndp.group_mac().expect("it goes to a group"))]
        }
    }
}

/// The frame that asks whether somebody has `address`.
pub fn probe(mac: Mac, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => Arp::probe(mac, v4).frame(Mac::BROADCAST).to_vec(),
        IpAddr::V6(v6) => {
            let ndp = Ndp::duplicate_detection(v6);
            ndp.frame(mac, ndp.group_mac().expect("it goes to a group"))
        }
    }
}

#[derive(Debug)]
struct Open {
    socket: Arc<PacketSocket>,
    reader: AbortHandle,
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
}

impl Listeners {
    /// What is heard goes to `inputs`.
    pub fn new(inputs: mpsc::Sender<Input>) -> Self {
        Self { inputs, open: BTreeMap::new() }
    }

    /// Hears this and nothing else.
    pub fn set(&mut self, wanted: &BTreeSet<(u32, Family)>) {
        self.open.retain(|open, _| wanted.contains(open));
        for (link, family) in wanted {
            self.socket(*link, *family);
        }
    }

    /// Sends a frame about `address`. Nothing depends on one frame: a failure is logged and the next one tried as
    /// usual.
    pub fn send(&mut self, link: u32, address: IpAddr, frame: &[u8]) -> bool {
        let Some(socket) = self.socket(link, Family::of(address)) else { return false };
        match socket.try_send(frame) {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(link, %address, %error, "cannot send a frame");
                false
            }
        }
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
                // The interface may just have gone.
                tracing::debug!(link, error = %chain(&error), "cannot listen");
                return None;
            }
        };
        let reader = tokio::spawn(read(link, Arc::clone(&socket), self.inputs.clone())).abort_handle();
        self.open.insert((link, family), Open { socket: Arc::clone(&socket), reader });
        Some(socket)
    }
}

async fn read(link: u32, socket: Arc<PacketSocket>, inputs: mpsc::Sender<Input>) {
    let mut buffer = [0; FRAME];
    loop {
        match socket.recv(&mut buffer).await {
            Ok(length) => {
                if let Some((address, mac, what)) = interpret(&buffer[..length]) {
                    // A storm must not fill the memory. What is lost here would be lost on a full socket too.
                    if let Err(TrySendError::Closed(_)) = inputs.try_send(Input::Heard { link, address, mac, what }) {
                        return;
                    }
                }
            }
            // Once per loss of the link; the socket goes on when it is back.
            Err(error) if error.kind() == std::io::ErrorKind::NetworkDown => {
                tracing::debug!(link, "the interface is down");
            }
            Err(error) => {
                tracing::debug!(link, %error, "stopped listening");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac::new([2, 0, 0, 0, 0, 1]);

    fn heard(frame: &[u8]) -> Option<(String, Heard)> {
        interpret(frame).map(|(address, mac, what)| {
            assert_eq!(mac, MAC);
            (address.to_string(), what)
        })
    }

    #[test]
    fn our_own_frames_mean_what_they_should() {
        let v4: IpAddr = "10.0.0.5".parse().unwrap();
        let v6: IpAddr = "fd00::5".parse().unwrap();
        for address in [v4, v6] {
            for frame in announcement(MAC, address) {
                assert_eq!(heard(&frame), Some((address.to_string(), Heard::Claim)));
            }
            assert_eq!(heard(&probe(MAC, address)), Some((address.to_string(), Heard::Probe)));
        }
        assert_eq!(announcement(MAC, v4).len(), 2, "both opcodes");
    }

    #[test]
    fn an_answer_is_told_from_a_claim() {
        let question = Arp::probe(Mac::new([2, 0, 0, 0, 0, 9]), "10.0.0.5".parse().unwrap());
        let answer = Arp::answer(&question, MAC).frame(Mac::new([2, 0, 0, 0, 0, 9]));
        assert_eq!(heard(&answer), Some(("10.0.0.5".into(), Heard::Answer)));
        let request = Arp::who_has(MAC, "10.0.0.5".parse().unwrap(), "10.0.0.1".parse().unwrap()).frame(Mac::BROADCAST);
        assert_eq!(heard(&request), Some(("10.0.0.5".into(), Heard::Claim)));
    }

    proptest::proptest! {
        #[test]
        fn no_frame_makes_it_panic(frame in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = interpret(&frame);
        }
    }
}
