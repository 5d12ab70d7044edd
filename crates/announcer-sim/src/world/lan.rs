//! The LAN: switches that learn, cables that fail, hosts that are no nodes.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use announcer_core::frames;
use announcer_core::network::Family;
use l2::Mac;
use l2::arp::Arp;
use l2::ethernet::EthernetHeader;

use super::{Event, World};
use crate::kernel::{ETH0, GATEWAY};

const ETHERTYPE_IPV4: u16 = 0x0800;
/// Frames that wait in a socket.
const SOCKET: usize = 1024;
/// Frames that the hypervisor keeps for a machine that stands still.
const TAP_QUEUE: usize = 64;
/// Of a storm: frames that arrive late and out of order, and by how much.
const REORDERED: f64 = 0.02;
const REORDERED_BY_US: u64 = 20_000;

impl World<'_> {
    /// Whether what `from` sends reaches `to`; others than nodes are on the core switch.
    pub(super) fn reaches(&self, from: Option<usize>, to: usize) -> bool {
        let sends = from.is_none_or(|from| self.nodes[from].powered && self.nodes[from].mute == 0);
        let hears = self.nodes[to].powered && self.nodes[to].deaf == 0;
        let together =
            self.splits.values().all(|group| from.is_some_and(|from| group.contains(&from)) == group.contains(&to));
        sends && hears && together
    }

    pub(super) fn hear_each_other(&self, a: usize, b: usize) -> bool {
        self.reaches(Some(a), b) && self.reaches(Some(b), a)
    }

    pub(super) fn transmit(&mut self, from: Option<usize>, frame: Vec<u8>) {
        let Some((header, _)) = EthernetHeader::parse(&frame) else { return };
        match from {
            Some(n) => self.learned.insert(header.source, n),
            None => self.learned.remove(&header.source),
        };
        let only = self.learned.get(&header.destination).copied();
        if header.destination == gateway() || (from.is_some() && header.destination.is_multicast()) {
            self.others_answer(from, &frame);
        }
        if let Some(from) = from
            && (header.destination == dhcp_server() || header.destination == Mac::BROADCAST)
        {
            self.ask_server(from, &frame);
        }
        self.clients_hear(from, &frame);
        let frame: Rc<[u8]> = frame.into();
        for to in 0..self.nodes.len() {
            if from == Some(to) || only.is_some_and(|only| only != to) || !self.reaches(from, to) {
                continue;
            }
            if self.chance(self.scenario.loss) {
                continue;
            }
            let late = if self.chance(REORDERED) { self.between(0, REORDERED_BY_US) } else { Duration::ZERO };
            let after = self.between(20, 300) + late;
            self.schedule(after, Event::Frame { to, frame: Rc::clone(&frame) });
        }
    }

    pub(super) fn arrives(&mut self, n: usize, frame: &Rc<[u8]>) {
        let node = &mut self.nodes[n];
        if !node.powered {
            return;
        }
        if node.paused > 0 {
            if node.tap.len() < TAP_QUEUE {
                node.tap.push_back(Rc::clone(frame));
            }
            return;
        }
        let mut replies = node.kernel.reply(frame);
        if self.ipvs > 0
            && replies.is_empty()
            && let Some(found) = l2::arp::parse_frame(frame)
            && found.arp.is_probe()
            && self.is_vip(found.arp.target_ip.into())
            && let Some(mac) = self.nodes[n].kernel.link(ETH0).and_then(|link| link.mac)
        {
            replies.push(Arp::answer(&found.arp, mac).frame(found.arp.sender_mac).to_vec());
        }
        for reply in replies {
            self.transmit(Some(n), reply);
        }
        let node = &mut self.nodes[n];
        let Some(process) = &mut node.process else { return };
        let Some((header, _)) = EthernetHeader::parse(frame) else { return };
        let mut heard = false;
        let about_addresses = header.ethertype != ETHERTYPE_IPV4;
        for link in process.clients.links() {
            let own = node.kernel.link(link).and_then(|link| link.mac);
            if own.is_some_and(|own| header.destination == Mac::BROADCAST || header.destination == own) {
                heard |= process.clients.on_frame(link, about_addresses, frame);
            }
        }
        for (link, family) in &process.listening {
            let own = node.kernel.link(*link).and_then(|link| link.mac);
            let for_it = node.kernel.lower(*link) == ETH0
                && own.is_some_and(|own| header.destination.is_multicast() || header.destination == own);
            if for_it
                && process.frames.len() < SOCKET
                && let Some(found) = frames::read(*link, frame)
                && Family::of(found.address) == *family
            {
                process.frames.push_back(announcer_core::engine::Input::Heard(found));
                heard = true;
            }
        }
        if heard {
            self.rouse(n);
        }
    }

    /// Hosts that are no nodes: the gateway, and whoever uses somebody's address.
    fn others_answer(&mut self, from: Option<usize>, frame: &[u8]) {
        let Some(question) = l2::arp::parse_frame(frame).map(|found| found.arp) else { return };
        // What the asker sends must get there.
        if !question.is_probe() || !from.is_some_and(|from| self.is_heard_outside(from)) {
            return;
        }
        let asked = IpAddr::V4(question.target_ip);
        let (wanted, robbed) = (self.wanted.iter().filter(|_| self.kube_vips > 0), self.robbed.iter());
        let used = wanted.chain(robbed).chain(&self.duplicated).any(|service| self.scenario.address(*service) == asked);
        // Whoever asks for its own address is not answered by a router.
        let proxied = self.proxies > 0 && self.is_vip(asked);
        for (has, mac) in [(used, thief()), (question.target_ip == GATEWAY || proxied, gateway())] {
            if has {
                self.transmit(None, Arp::answer(&question, mac).frame(question.sender_mac).to_vec());
            }
        }
    }

    pub(super) fn is_vip(&self, address: IpAddr) -> bool {
        (0..self.scenario.services.len()).any(|service| self.scenario.address(service) == address)
    }

    pub(super) fn is_heard_outside(&self, from: usize) -> bool {
        let node = &self.nodes[from];
        node.powered && node.mute == 0 && self.splits.values().all(|group| !group.contains(&from))
    }
}

pub(super) fn gateway() -> Mac {
    Mac::new([2, 0, 0, 0, 0xaa, 1])
}

pub(super) fn dhcp_server() -> Mac {
    Mac::new([2, 0, 0, 0, 0xcc, 1])
}

pub(super) fn thief() -> Mac {
    Mac::new([2, 0, 0, 0, 0xbb, 1])
}
