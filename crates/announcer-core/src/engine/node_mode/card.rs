//! Decides when this node's card is written to its membership Lease. Each write renews the Lease.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use contract::Silence;

use super::super::{Action, Engine};
use crate::detect::GatewayState;
use crate::network::Network;
use crate::ownership::Owners;
use crate::ownership::node::{Card, CardLink};

/// Minimum time between two writes of a changed card: a fail-over of 200 VIPs changes the term 200 times.
const CARD_PAUSE: Duration = Duration::from_secs(1);

/// The last written card.
pub(super) struct WrittenCard {
    last: Option<(Card, Instant)>,
    /// A third of the duration of the Lease, so that two renewals may be lost.
    renewal: Duration,
}

impl WrittenCard {
    /// Starts without a written card. `lease`: duration of the Lease.
    pub fn new(lease: Duration) -> Self {
        Self { last: None, renewal: lease / 3 }
    }

    /// When `card` has to be written; `None`: at once.
    pub fn due(&self, card: &Card) -> Option<Instant> {
        let (written, at) = self.last.as_ref()?;
        let urgent = by_which_others_decide(card) != by_which_others_decide(written);
        // Changes of what the node hears are frequent and wait for the renewal.
        let soon = card.term != written.term || occupied(card) != occupied(written);
        let pause = match (urgent, soon) {
            (true, _) => Duration::ZERO,
            (false, true) => CARD_PAUSE,
            (false, false) => self.renewal,
        };
        Some(*at + pause)
    }
}

type Urgent<'a> = (&'a [CardLink], [bool; 3], &'a BTreeSet<String>, &'a BTreeMap<String, Silence>);

fn by_which_others_decide(card: &Card) -> Urgent<'_> {
    (&card.links, [card.serving, card.leaving, card.yields], &card.unable, &card.silent)
}

/// Addresses that no Service may get, on any interface. Other daemons add and remove them at any time.
fn occupied(card: &Card) -> BTreeSet<IpAddr> {
    card.occupied.values().flatten().copied().collect()
}

/// How many hosts this node hears on each interface of its card. Zero is written too, because a card without the entry
/// counts as that of an older version.
pub(super) fn hears(network: &Network, links: &[CardLink], heard: &BTreeMap<u32, u8>) -> BTreeMap<String, u8> {
    let on = |link: &CardLink| network.link_by_name(&link.name).and_then(|link| heard.get(&link.index).copied());
    links.iter().map(|link| (link.name.clone(), on(link).unwrap_or(0))).collect()
}

/// Whether the default gateway answers on each interface of the card where there is one.
pub(super) fn gateways(
    network: &Network,
    links: &[CardLink],
    known: &BTreeMap<u32, GatewayState>,
) -> BTreeMap<String, bool> {
    let on = |link: &CardLink| known.get(&network.link_by_name(&link.name)?.index)?.answers;
    links.iter().filter_map(|link| Some((link.name.clone(), on(link)?))).collect()
}

impl Engine {
    /// Renews our Lease, if that is due. The first card is written after a review ([`Engine::write_card`]).
    pub(in crate::engine) fn renew_card(&mut self, now: Instant) {
        if self.node_mode.written.last.is_some() {
            self.write_card(now);
        }
    }

    /// Writes what the last review put on the card, if that is due.
    ///
    /// The first card waits until Services, Leases and Nodes are known. A card that is written before lacks interfaces,
    /// and may be the only one that another node reads. That node would take an answer from such an interface for a
    /// stranger's. Until then the card of the process before this one stands.
    pub(in crate::engine) fn write_card(&mut self, now: Instant) {
        if self.unknown().is_some() {
            return;
        }
        let (Owners::Node(cluster), Some(network)) = (&mut self.ownership, self.observer.network()) else { return };
        if self.node_mode.written.due(cluster.card()).is_none_or(|at| at <= now) {
            // The last review may be old, and the renewal claims that the card is current.
            let (detector, links) = (&self.node_mode.detector, &cluster.card().links);
            let heard = hears(network, links, &detector.hears(now));
            let changed = cluster.note_heard(heard, gateways(network, links, &detector.gateways(now)));
            cluster.note_probed(self.node_mode.probed.on_card());
            let card = cluster.card().clone();
            self.node_mode.written.last = Some((card.clone(), now));
            self.out.push(Action::Membership(card));
            self.out.replan_if(changed);
        }
    }
}

#[cfg(test)]
mod tests {
    use contract::Probed;

    use super::*;
    use crate::ownership::node::Term;

    #[test]
    fn what_others_decide_by_is_written_at_once_and_the_rest_with_the_next_renewal_or_after_a_pause() {
        let (start, lease) = (Instant::now(), Duration::from_secs(15));
        let written = Card { serving: true, ..Card::default() };
        let link = CardLink {
            name: "eth0".into(),
            mac: [2, 0, 0, 0, 0, 1].into(),
            addresses: vec!["10.0.0.1/24".parse().unwrap()],
            no_ipv6: false,
        };
        for (name, card, pause) in [
            ("nothing new", written.clone(), lease / 3),
            ("a newer term", Card { term: Term(7), ..written.clone() }, CARD_PAUSE),
            ("another interface", Card { links: vec![link], ..written.clone() }, Duration::ZERO),
            (
                "a Service that is not served",
                Card {
                    probed: Probed { silent: ["10.0.0.5:80".parse().unwrap()].into(), ..Probed::default() },
                    ..written.clone()
                },
                lease / 3,
            ),
            ("other hosts", Card { hears: [("eth0".to_owned(), 3)].into(), ..written.clone() }, lease / 3),
            ("kube-proxy", Card { serving: false, ..written.clone() }, Duration::ZERO),
            ("what it cannot have", Card { unable: ["10.0.0.5".to_owned()].into(), ..written.clone() }, Duration::ZERO),
            (
                "somebody's address",
                Card {
                    occupied: [("eth0".to_owned(), ["10.0.0.9".parse().unwrap()].into())].into(),
                    ..written.clone()
                },
                CARD_PAUSE,
            ),
            ("a kube-vip", Card { yields: true, ..written.clone() }, Duration::ZERO),
            ("the end", Card { leaving: true, ..written.clone() }, Duration::ZERO),
        ] {
            let mut last = WrittenCard::new(lease);
            assert_eq!(last.due(&card), None, "{name}: nothing is written yet");
            last.last = Some((written.clone(), start));
            assert_eq!(last.due(&card), Some(start + pause), "{name}");
        }
    }
}
