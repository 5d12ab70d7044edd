//! The LAN: switches that learn, cables that fail, hosts that are no nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use announcer_core::frames;
use announcer_core::network::Family;
use l2_types::Mac;
use l2_types::arp::Arp;
use l2_types::ethernet::EthernetHeader;

use super::{Event, World};
use crate::kernel::{GATEWAY, LANS, Lan, RESIDENT, lan_of, nic};

const ETHERTYPE_IPV4: u16 = 0x0800;
/// Frames that wait in a socket.
const SOCKET: usize = 1024;
/// Frames that the hypervisor keeps for a machine that stands still.
const TAP_QUEUE: usize = 64;
/// Of a storm: frames that arrive late and out of order, and by how much.
const REORDERED: f64 = 0.02;
const REORDERED_BY_US: u64 = 20_000;

/// The splits that a part of a LAN is cut off by: its switches learn nothing of what the others see.
pub(super) type Side = Vec<usize>;

impl World<'_> {
    /// Whether what `from` sends reaches `to`; others than nodes are on the core switch.
    pub(super) fn reaches(&self, lan: Lan, from: Option<usize>, to: usize) -> bool {
        let sends = from.is_none_or(|from| self.nodes[from].powered && self.nodes[from].mute[lan] == 0);
        let hears = self.nodes[to].powered && self.nodes[to].deaf[lan] == 0;
        let together = |(_, group): (usize, &BTreeSet<usize>)| {
            from.is_some_and(|from| group.contains(&from)) == group.contains(&to)
        };
        let apart = |pair: &(usize, usize)| from.is_some_and(|from| *pair == (from.min(to), from.max(to)));
        sends && hears && self.splits_of(lan).all(together) && !self.apart.iter().any(apart)
    }

    pub(super) fn hear_each_other(&self, lan: Lan, a: usize, b: usize) -> bool {
        self.reaches(lan, Some(a), b) && self.reaches(lan, Some(b), a)
    }

    /// LANs that this run has.
    pub(super) fn lans(&self) -> std::ops::Range<Lan> {
        0..self.scenario.nics.min(LANS)
    }

    /// Node groups without the rest of this LAN, with the fault that cuts them off.
    pub(super) fn splits_of(&self, lan: Lan) -> impl Iterator<Item = (usize, &BTreeSet<usize>)> {
        let there = move |split: &&(Option<Lan>, BTreeSet<usize>)| split.0.is_none_or(|of| of == lan);
        self.splits.iter().filter(move |(_, split)| there(split)).map(|(fault, (_, group))| (*fault, group))
    }

    /// The side on which a node is, or with `None` whoever else is on the core switch.
    fn side(&self, lan: Lan, node: Option<usize>) -> Side {
        let inside = |group: &BTreeSet<usize>| node.is_some_and(|node| group.contains(&node));
        self.splits_of(lan).filter(|(_, group)| inside(group)).map(|(fault, _)| fault).collect()
    }

    /// The node to which switches on the side of this node send what is for `mac`. `None`: they flood it.
    pub(super) fn learned(&self, lan: Lan, node: Option<usize>, mac: Mac) -> Option<usize> {
        self.learned.get(&(lan, self.side(lan, node), mac)).copied()
    }

    pub(super) fn transmit(&mut self, lan: Lan, from: Option<usize>, frame: Vec<u8>) {
        let Some((header, _)) = EthernetHeader::parse(&frame) else { return };
        let seen = (lan, self.side(lan, from), header.source);
        let before = match from {
            Some(n) => self.learned.insert(seen, n),
            None => self.learned.remove(&seen),
        };
        self.learnings += u64::from(before != from);
        self.fabric_sees(&frame);
        if [gateway(), resident()].contains(&header.destination)
            || (from.is_some() && header.destination.is_multicast())
        {
            self.others_answer(lan, from, &frame);
        }
        if let Some(from) = from
            && lan == 0
            && (header.destination == dhcp_server() || header.destination == Mac::BROADCAST)
        {
            self.ask_server(from, &frame);
        }
        self.clients_hear(lan, from, &frame);
        self.pass(lan, from, header.destination, frame);
    }

    /// Switches pass it on, to all ports or to where they have seen its destination.
    fn pass(&mut self, lan: Lan, from: Option<usize>, destination: Mac, frame: Vec<u8>) {
        let only = self.learned(lan, from, destination);
        let frame: Rc<[u8]> = frame.into();
        for to in 0..self.nodes.len() {
            if from == Some(to) || only.is_some_and(|only| only != to) || !self.reaches(lan, from, to) {
                continue;
            }
            if self.chance(self.scenario.loss) {
                continue;
            }
            let late = if self.chance(REORDERED) { self.between(0, REORDERED_BY_US) } else { Duration::ZERO };
            let after = self.between(20, 300) + late;
            self.schedule(after, Event::Frame { to, lan, frame: Rc::clone(&frame) });
        }
    }

    pub(super) fn arrives(&mut self, n: usize, lan: Lan, frame: &Rc<[u8]>) {
        let node = &mut self.nodes[n];
        if !node.powered {
            return;
        }
        if node.paused > 0 {
            if node.tap.len() < TAP_QUEUE {
                node.tap.push_back((lan, Rc::clone(frame)));
            }
            return;
        }
        let mut replies = node.kernel.reply(lan, frame);
        if self.ipvs > 0
            && replies.is_empty()
            && let Some(found) = l2_types::arp::parse_frame(frame)
            && found.arp.is_probe()
            && self.is_vip(found.arp.target_ip.into())
            && let Some(mac) = self.nodes[n].kernel.link(nic(lan)).and_then(|link| link.mac)
        {
            replies.push(Arp::answer(&found.arp, mac).frame(found.arp.sender_mac).to_vec());
        }
        for reply in replies {
            self.transmit(lan, Some(n), reply);
        }
        let node = &mut self.nodes[n];
        let Some(process) = &mut node.process else { return };
        let Some((header, _)) = EthernetHeader::parse(frame) else { return };
        let mut heard = false;
        let about_addresses = header.ethertype != ETHERTYPE_IPV4;
        for link in process.clients.links() {
            let own = node.kernel.link(link).and_then(|link| link.mac).filter(|_| lan == 0);
            if own.is_some_and(|own| header.destination == Mac::BROADCAST || header.destination == own) {
                heard |= process.clients.on_frame(link, about_addresses, frame);
            }
        }
        for (link, family) in &process.listening {
            let own = node.kernel.link(*link).and_then(|link| link.mac);
            let for_it = node.kernel.lower(*link) == nic(lan)
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
    fn others_answer(&mut self, lan: Lan, from: Option<usize>, frame: &[u8]) {
        let Some(question) = l2_types::arp::parse_frame(frame).map(|found| found.arp) else { return };
        // What the asker sends must get there.
        if !question.is_probe() || !from.is_some_and(|from| self.is_heard_outside(lan, from)) {
            return;
        }
        let asked = IpAddr::V4(question.target_ip);
        if lan_of(asked) != lan {
            return;
        }
        let (wanted, robbed) = (self.wanted.iter().filter(|_| self.kube_vips > 0), self.robbed.iter());
        let used = wanted.chain(robbed).chain(&self.duplicated).any(|service| self.scenario.address(*service) == asked);
        // Whoever asks for its own address is not answered by a router.
        let proxied = self.proxies > 0 && self.is_vip(asked);
        let routed = question.target_ip == GATEWAY || proxied;
        for (has, mac) in [(used, thief()), (routed, gateway()), (question.target_ip == RESIDENT, resident())] {
            if has {
                self.transmit(lan, None, Arp::answer(&question, mac).frame(question.sender_mac).to_vec());
            }
        }
        let everybody = frame.first().is_some_and(|first| first & 1 == 1);
        if let Some(mac) = self.fabric_answers(asked).filter(|mac| everybody && *mac != question.sender_mac) {
            // No switch learns a port from it.
            let answer = Arp::answer(&question, mac).frame(question.sender_mac).to_vec();
            self.pass(lan, None, question.sender_mac, answer);
        }
    }

    /// What a fabric remembers of the addresses of Services.
    fn fabric_sees(&mut self, frame: &[u8]) {
        if let Some(found) = self.scenario.has_fabric().then(|| l2_types::arp::parse_frame(frame)).flatten()
            && self.is_vip(found.arp.sender_ip.into())
        {
            self.fabric_saw.insert(found.arp.sender_ip, found.arp.sender_mac);
        }
    }

    /// With which MAC a fabric answers for it.
    pub(super) fn fabric_answers(&self, address: IpAddr) -> Option<Mac> {
        let IpAddr::V4(address) = address else { return None };
        self.fabric_saw.get(&address).copied().filter(|_| self.fabrics > 0)
    }

    /// The host in the second LAN asks for an address there: so nodes learn of it.
    pub(super) fn resident_asks(&mut self) {
        let services = 0..self.scenario.services.len();
        let address = services.map(|service| self.scenario.address(service)).find(|address| lan_of(*address) == 1);
        if let Some(IpAddr::V4(vip)) = address {
            let question = Arp::who_has(resident(), RESIDENT, vip);
            self.transmit(1, None, question.frame(Mac::BROADCAST).to_vec());
        }
    }

    pub(super) fn is_vip(&self, address: IpAddr) -> bool {
        (0..self.scenario.services.len()).any(|service| self.scenario.address(service) == address)
    }

    pub(super) fn is_heard_outside(&self, lan: Lan, from: usize) -> bool {
        let node = &self.nodes[from];
        node.powered && node.mute[lan] == 0 && self.splits_of(lan).all(|(_, group)| !group.contains(&from))
    }
}

pub(super) fn gateway() -> Mac {
    Mac::new([2, 0, 0, 0, 0xaa, 1])
}

pub(super) fn dhcp_server() -> Mac {
    Mac::new([2, 0, 0, 0, 0xcc, 1])
}

fn resident() -> Mac {
    Mac::new([2, 0, 0, 0, 0xdd, 1])
}

pub(super) fn thief() -> Mac {
    Mac::new([2, 0, 0, 0, 0xbb, 1])
}
