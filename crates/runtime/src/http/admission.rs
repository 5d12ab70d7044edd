//! Limits the connections per client. A client with many connections must not keep the kubelet out, because the kubelet
//! would then restart the container.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Limit of concurrent connections from other hosts. Scrapers need a few.
const OTHERS: usize = 128;

/// Limit of these connections per host.
const PER_PEER: usize = 32;

/// Reserved for this node. The kubelet connects from the node's own address, because the pods are in the node's
/// network.
pub const NODE: usize = 16;

/// Counts the connections.
#[derive(Debug, Default)]
pub struct Admission(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    node: usize,
    others: usize,
    by_peer: HashMap<IpAddr, usize>,
}

/// One connection; dropping it frees its place.
#[derive(Debug)]
pub struct Pass {
    admission: Arc<Admission>,
    /// The host; `None` for this node.
    peer: Option<IpAddr>,
}

impl Admission {
    /// A place for a connection from `peer` to the local address `local`; `None` if there is none.
    pub fn admit(self: &Arc<Self>, local: IpAddr, peer: IpAddr) -> Option<Pass> {
        let (local, peer) = (local.to_canonical(), peer.to_canonical());
        let peer = (!peer.is_loopback() && peer != local).then(|| host(peer));
        self.held().enter(peer).then(|| Pass { admission: Arc::clone(self), peer })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock()
    }
}

impl Held {
    fn enter(&mut self, peer: Option<IpAddr>) -> bool {
        let Some(peer) = peer else {
            let free = self.node < NODE;
            self.node += usize::from(free);
            return free;
        };
        let of_peer = self.by_peer.get(&peer).copied().unwrap_or(0);
        let free = self.others < OTHERS && of_peer < PER_PEER;
        if free {
            self.others += 1;
            self.by_peer.insert(peer, of_peer + 1);
        }
        free
    }

    fn leave(&mut self, peer: Option<IpAddr>) {
        let Some(peer) = peer else {
            self.node -= 1;
            return;
        };
        self.others -= 1;
        if let Some(of_peer) = self.by_peer.get_mut(&peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                self.by_peer.remove(&peer);
            }
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.admission.held().leave(self.peer);
    }
}

/// The host that an address belongs to: for IPv6 its /64 network, because a host may use all addresses in it.
fn host(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE_IP: &str = "10.0.0.5";

    /// How many of so many connections get a place.
    fn admitted(admission: &Arc<Admission>, peers: impl IntoIterator<Item = String>) -> Vec<Pass> {
        let local = NODE_IP.parse().unwrap();
        peers.into_iter().filter_map(|peer| admission.admit(local, peer.parse().unwrap())).collect()
    }

    fn many(peer: &str) -> impl Iterator<Item = String> {
        std::iter::repeat_n(peer.to_owned(), 1000)
    }

    #[test]
    fn whoever_opens_many_takes_no_place_from_others_and_none_from_the_node() {
        let admission = Arc::new(Admission::default());
        let of_one = admitted(&admission, many("10.0.0.9"));
        assert_eq!(of_one.len(), PER_PEER);
        assert_eq!(admitted(&admission, ["10.0.0.8".into()]).len(), 1, "another host");
        let rest = admitted(&admission, (0..250).map(|number| format!("10.0.1.{number}")));
        assert_eq!(of_one.len() + rest.len(), OTHERS);
        assert_eq!(admitted(&admission, ["10.0.0.8".into()]).len(), 0, "full");
        for own in ["127.0.0.1", "::1", NODE_IP, "::ffff:10.0.0.5"] {
            assert_eq!(admitted(&admission, many(own)).len(), NODE, "{own}");
        }
        drop(of_one);
        assert_eq!(admitted(&admission, many("10.0.0.8")).len(), PER_PEER);
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_are_one_host() {
        let admission = Arc::new(Admission::default());
        let same = admitted(&admission, (0..100).map(|number| format!("fd00::{number}")));
        assert_eq!(same.len(), PER_PEER);
        assert_eq!(admitted(&admission, ["fd00:0:0:1::1".into()]).len(), 1);
    }

    #[test]
    fn what_has_ended_is_forgotten() {
        let admission = Arc::new(Admission::default());
        drop(admitted(&admission, many("10.0.0.9").chain(many("127.0.0.1"))));
        let held = admission.held();
        assert!(held.node == 0 && held.others == 0 && held.by_peer.is_empty(), "{held:?}");
    }
}
