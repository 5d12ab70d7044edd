//! Clients of the addresses. One is on the switch of the gateway, and one is behind the switch of each group that a
//! fault cuts off. Each client has a neighbour cache like a host's, asks for every address all the time, and records
//! since when nobody has answered.
//!
//! They have a random generator of their own, so a seed gives the same run with and without them.

use std::net::IpAddr;
use std::time::Duration;

use announcer_core::frames::{self, Heard};
use l2_types::Mac;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::judge::Vip;
use super::lan::{gateway, thief};
use super::{Event, World};
use crate::api::uid;
use crate::kernel::{ETH0, Lan, nic};
use crate::promises::{CLIENT_ASKS, DOUBT};
use crate::scenario::{Kind, Scenario};

/// Between two questions to everybody.
const AGAIN: Duration = Duration::from_secs(1);

/// How often the host in the second LAN asks for somebody.
const RESIDENT_ASKS: Duration = Duration::from_secs(5);

/// One client.
pub(super) struct Client {
    /// The fault whose switch it is behind; none: it is where the gateway is.
    pub behind: Option<usize>,
    /// For each address.
    pub entries: Vec<Entry>,
}

/// What a client knows of one address.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Entry {
    mac: Option<Mac>,
    /// When it last asked everybody.
    asked: Option<Duration>,
    /// Somebody of ours has answered it once since the Service was made.
    pub served_once: bool,
    /// Since when nobody answers.
    pub lost_since: Option<Duration>,
}

/// All of them.
pub(super) struct Clients {
    pub all: Vec<Client>,
    rng: SmallRng,
    /// The state in which every client got an answer for every address. They ask again only when it has changed.
    content_at: Option<(u64, u64)>,
}

impl Clients {
    pub fn new(scenario: &Scenario, addresses: usize) -> Self {
        let is_split = |kind: &Kind| matches!(kind, Kind::Split(_) | Kind::SplitLan(..));
        let splits = scenario.faults.iter().enumerate().filter(|(_, fault)| is_split(&fault.kind));
        let behind = std::iter::once(None).chain(splits.map(|(index, _)| Some(index)));
        let client = |behind| Client { behind, entries: vec![Entry::default(); addresses] };
        let rng = SmallRng::seed_from_u64(scenario.seed ^ 0xc11e_0000_0000);
        Self { all: behind.map(client).collect(), rng, content_at: None }
    }

    /// The Service of this address was created or deleted. Clients miss the address only after it was served again.
    pub fn begin_anew(&mut self, index: usize) {
        self.content_at = None;
        for client in &mut self.all {
            let entry = &mut client.entries[index];
            (entry.served_once, entry.lost_since) = (false, None);
        }
    }
}

impl World<'_> {
    /// Whether this client is behind the switch of that split.
    fn is_behind_switch(&self, client: usize, split: usize) -> bool {
        let Some(own) = self.clients.all[client].behind else { return false };
        // A switch may stand behind another one.
        own == split || {
            let group = |fault: usize| match &self.scenario.faults[fault].kind {
                Kind::Split(group) | Kind::SplitLan(_, group) => group.as_slice(),
                _ => &[],
            };
            self.splits.contains_key(&own) && group(own).iter().all(|node| group(split).contains(node))
        }
    }

    /// Frames go both ways between this client and that node in this LAN. Each client has a NIC in both.
    pub(super) fn client_reaches(&self, lan: Lan, client: usize, n: usize) -> bool {
        let node = &self.nodes[n];
        node.powered && node.mute[lan] == 0 && node.deaf[lan] == 0 && self.same_side(lan, client, n)
    }

    /// Whether this client is on the same side as the gateway and all hosts that are no nodes.
    pub(super) fn is_outside(&self, lan: Lan, client: usize) -> bool {
        self.splits_of(lan).all(|(split, _)| !self.is_behind_switch(client, split))
    }

    /// What everybody hears, clients hear too.
    pub(super) fn clients_hear(&mut self, lan: Lan, from: Option<usize>, bytes: &[u8]) {
        if bytes.first().is_none_or(|first| first & 1 == 0) {
            return;
        }
        let Some(found) = frames::read(ETH0, bytes).filter(|found| !found.to_us && found.what != Heard::Probe) else {
            return;
        };
        let loss = if self.stormy() { self.scenario.loss } else { 0.0 };
        for index in self.judge.indices_of(found.address) {
            for client in 0..self.clients.all.len() {
                let reaches = match from {
                    Some(n) => {
                        let node = &self.nodes[n];
                        node.powered && node.mute[lan] == 0 && self.same_side(lan, client, n)
                    }
                    None => self.is_outside(lan, client),
                };
                let lost = loss > 0.0 && self.clients.rng.random_bool(loss);
                // Only an entry that is there is changed, as in Linux.
                let entry = &mut self.clients.all[client].entries[index];
                if reaches && !lost && entry.mac.is_some_and(|mac| mac != found.mac) {
                    entry.mac = Some(found.mac);
                    self.clients.content_at = None;
                }
            }
        }
    }

    fn same_side(&self, lan: Lan, client: usize, n: usize) -> bool {
        self.splits_of(lan).all(|(split, group)| group.contains(&n) == self.is_behind_switch(client, split))
    }

    /// Each client asks for each address.
    pub(super) fn clients_ask(&mut self) {
        let state = (self.judge.changes, self.learnings);
        if self.clients.content_at != Some(state) {
            let content = self.all_ask();
            self.clients.content_at = content.then_some(state);
        }
        if self.scenario.nics > 1 && self.now.as_millis().is_multiple_of(RESIDENT_ASKS.as_millis()) {
            self.resident_asks();
        }
        if self.now < self.scenario.end {
            self.schedule(CLIENT_ASKS, Event::ClientsAsk);
        }
    }

    /// Whether everything was answered.
    fn all_ask(&mut self) -> bool {
        let mut content = true;
        for index in 0..self.judge.moves.len() {
            let vip = self.judge.vip(index);
            for client in 0..self.clients.all.len() {
                let answered = self.is_answered(client, index, vip);
                let now = self.now;
                let entry = &mut self.clients.all[client].entries[index];
                let before = entry.lost_since;
                if answered {
                    (entry.served_once, entry.lost_since) = (true, None);
                } else {
                    entry.lost_since = before.or(Some(now));
                    self.resolve(client, index, vip);
                }
                self.judge.changed |= before.is_some() == answered;
                content &= answered;
            }
        }
        content
    }

    /// The MACs with which this node answers for it.
    fn macs(&self, n: usize, vip: Vip) -> Vec<Mac> {
        let kernel = &self.nodes[n].kernel;
        match vip {
            Vip::Given(address) => kernel.answers(address).collect(),
            Vip::Leased(service) => {
                let addresses: Vec<IpAddr> = kernel.leased(&uid(service, self.generation[service])).collect();
                addresses.into_iter().flat_map(|address| kernel.answers(address)).collect()
            }
        }
    }

    fn is_answered(&self, client: usize, index: usize, vip: Vip) -> bool {
        let Some(mac) = self.clients.all[client].entries[index].mac else { return false };
        let lan = vip.lan();
        (0..self.nodes.len()).any(|n| {
            self.nodes[n].paused == 0
                && self.client_reaches(lan, client, n)
                // The client is on the same side, whose switches send it where that MAC was seen last.
                && self.learned(lan, Some(n), mac).is_none_or(|only| only == n)
                && self.macs(n, vip).contains(&mac)
        })
    }

    /// Asks everybody, if the cache has nothing or is not believed any more.
    fn resolve(&mut self, client: usize, index: usize, vip: Vip) {
        let entry = self.clients.all[client].entries[index];
        let doubted = entry.lost_since.is_none_or(|since| self.now >= since + DOUBT);
        let due = entry.asked.is_none_or(|asked| self.now >= asked + AGAIN);
        if !due || !(entry.mac.is_none() || doubted) {
            return;
        }
        let loss = if self.stormy() { self.scenario.loss } else { 0.0 };
        let lan = vip.lan();
        let answers: Vec<Mac> = (0..self.nodes.len())
            .filter(|n| self.nodes[*n].paused == 0 && self.client_reaches(lan, client, *n))
            .flat_map(|n| self.answers_of(n, vip))
            .chain(self.answers_of_strangers(client, index, vip))
            .collect();
        let lost = loss > 0.0 && self.clients.rng.random_bool(loss);
        let heard = (!answers.is_empty()).then(|| answers[self.clients.rng.random_range(0..answers.len())]);
        let now = self.now;
        let entry = &mut self.clients.all[client].entries[index];
        entry.asked = Some(now);
        if let Some(mac) = heard.filter(|_| !lost) {
            entry.mac = Some(mac);
        }
    }

    /// Its own, or what its kube-proxy makes its kernel answer.
    fn answers_of(&self, n: usize, vip: Vip) -> Vec<Mac> {
        let mut macs = self.macs(n, vip);
        if self.ipvs > 0 && matches!(vip, Vip::Given(IpAddr::V4(_))) {
            macs.extend(self.nodes[n].kernel.link(nic(vip.lan())).and_then(|link| link.mac));
        }
        macs
    }

    fn answers_of_strangers(&self, client: usize, index: usize, vip: Vip) -> Vec<Mac> {
        if !self.is_outside(vip.lan(), client) || !matches!(vip, Vip::Given(IpAddr::V4(_))) {
            return Vec::new();
        }
        let used =
            |service: &usize| self.robbed.contains(service) || self.duplicated.contains(service) || self.kube_vips > 0;
        let robbed = self.judge.services(index).iter().any(used);
        let hosts = [(robbed, thief()), (self.proxies > 0, gateway())];
        let fabric = match vip {
            Vip::Given(address) => self.fabric_answers(address),
            Vip::Leased(_) => None,
        };
        hosts.into_iter().filter_map(|(has, mac)| has.then_some(mac)).chain(fabric).collect()
    }
}
