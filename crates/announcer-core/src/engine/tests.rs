//! The engine on a fake kernel, a fake API and a clock that only tests move.

mod dhcp;
mod dhcp6;
mod dhcp_life;
mod fake;
mod hostile;
mod live;
mod node_mode;
mod ownership;
mod restart;
mod scale;
mod security;
mod service_mode;
mod static_vips;
mod stopping;
mod unsent;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use fake::FakeKernel;
use l2_types::Mac;

use super::*;
use crate::annotations::LeaseFacts;
use crate::claim::Claim;
use crate::detect::Ask;
use crate::frames::Frame;
use crate::network::fixtures::{config, network};
use crate::network::{Family, Network};
use crate::ownership::node::{Card, Swap};
use crate::ownership::service::LeaseKey;
use crate::reason::Reason;
use crate::view::{Ingress, Published, ServiceView, Uid};

pub(super) use crate::plan::fixtures::view;

pub(super) const MINE: LeaseState = LeaseState::Held { confirmed: true };
pub(super) const DOUBTFUL: LeaseState = LeaseState::Held { confirmed: false };

pub(super) fn theirs() -> LeaseState {
    LeaseState::Other("node-2".into())
}

/// A node whose engine, kernel and API are in memory. Actions of interest end up as text in `log`, with milliseconds
/// since the start.
pub(super) struct Node {
    pub engine: Engine,
    pub kernel: FakeKernel,
    pub start: Instant,
    pub now: Instant,
    pub log: Vec<String>,
    pub told: Vec<(String, ServiceEvent)>,
    pub records: usize,
    /// The API answers record requests.
    pub api: bool,
    pub exited: bool,
    pub listening: BTreeSet<(u32, Family)>,
    /// Swaps that were asked for and not answered yet.
    pub swaps: Vec<(ServiceKey, Swap)>,
    pub cards: Vec<Card>,
    /// Claims, as their recipients hear them.
    pub claims: Vec<Frame>,
    /// Whom to ask as a client would.
    pub probed: crate::prober::Targets,
    pub campaigns: Vec<BTreeSet<LeaseKey>>,
    /// How many of the next probes our send queue refuses.
    pub refused_probes: usize,
    /// Generation of each Service's last DHCP client.
    pub clients: BTreeMap<Uid, u64>,
}

impl Node {
    pub fn new(env: &[(&str, &str)], network: Network) -> Self {
        let start = Instant::now();
        Self {
            engine: Engine::new(start, config(env)),
            kernel: FakeKernel::new(network),
            start,
            now: start,
            log: Vec::new(),
            told: Vec::new(),
            records: 0,
            api: true,
            exited: false,
            listening: BTreeSet::new(),
            swaps: Vec::new(),
            cards: Vec::new(),
            claims: Vec::new(),
            probed: crate::prober::Targets::new(),
            campaigns: Vec::new(),
            refused_probes: 0,
            clients: BTreeMap::new(),
        }
    }

    /// A node that has seen its Services and the Lease.
    pub fn leading(views: &[ServiceView]) -> Self {
        Self::started(views, MINE, network())
    }

    pub fn started(views: &[ServiceView], lease: LeaseState, network: Network) -> Self {
        let mut node = Self::new(&[], network);
        node.start_with(views, lease);
        node
    }

    pub fn start_with(&mut self, views: &[ServiceView], lease: LeaseState) {
        self.tick();
        for view in views {
            self.upsert(view.clone());
        }
        self.feed(Input::Synced);
        self.feed(Input::Lease(lease));
    }

    pub fn upsert(&mut self, view: ServiceView) {
        self.feed(Input::Service(view.key.clone(), Some(Box::new(view))));
    }

    pub fn gone(&mut self, name: &str) {
        self.feed(Input::Service(ServiceKey::new("default", name), None));
    }

    fn note(&mut self, text: &str) {
        let text = format!("{} {text}", (self.now - self.start).as_millis());
        self.log.push(text);
    }

    pub fn feed(&mut self, input: Input) {
        self.run(Some(input));
    }

    /// Lets what is due be done.
    pub fn tick(&mut self) {
        self.run(None);
    }

    fn run(&mut self, input: Option<Input>) {
        let mut inputs: VecDeque<Input> = input.into_iter().collect();
        let mut steps = 0;
        while steps == 0 || !inputs.is_empty() {
            steps += 1;
            assert!(
                steps < 1000,
                "the engine goes round in circles: {:?}",
                &self.log[self.log.len().saturating_sub(10)..]
            );
            let actions = self.engine.step(self.now, inputs.pop_front());
            assert!(self.engine.deadline() > self.now, "a timer stays due: the loop would spin");
            for action in actions {
                match action {
                    Action::Kernel(op) => {
                        let before = self.kernel.journal.len();
                        let done = self.kernel.perform(self.now, op);
                        let entries = self.kernel.journal.split_off(before);
                        for entry in &entries {
                            self.note(entry);
                        }
                        inputs.extend(done.map(Input::Kernel));
                    }
                    Action::Announce { link, address, .. } => {
                        self.note(&format!("announce {} {address}", self.kernel.name(link)));
                    }
                    Action::Probe { link, address, .. } if self.refused_probes > 0 => {
                        self.refused_probes -= 1;
                        self.note(&format!("refused probe {} {address}", self.kernel.name(link)));
                        inputs.push_back(Input::NotSent(Ask { link, address, to: Mac::BROADCAST }));
                    }
                    Action::Probe { link, address, .. } => {
                        self.note(&format!("probe {} {address}", self.kernel.name(link)));
                    }
                    // Nobody can be asked from there.
                    Action::Ask { source: None, ask, .. } if ask.address.is_ipv6() => {
                        inputs.push_back(Input::NotSent(ask));
                    }
                    Action::Ask { ask, .. } => {
                        let to = if ask.to == Mac::BROADCAST { "everybody".to_owned() } else { ask.to.to_string() };
                        self.note(&format!("ask {} {} {to}", self.kernel.name(ask.link), ask.address));
                    }
                    Action::Claim(Claim { link, mac, address, to, payload }) => {
                        self.note(&format!("claim {} {address} {to}", self.kernel.name(link)));
                        let (what, payload) = (Heard::Claim, Some(payload));
                        self.claims.push(Frame { link, address, mac, what, to_us: true, payload });
                    }
                    Action::Record(key, record) => {
                        self.note(&format!("record {} {}", key.name, summary(&record)));
                        self.records += 1;
                        if self.api {
                            let view = self.engine.services.get(&key).cloned();
                            let standing = view.as_ref().and_then(|view| view.published.owner_record());
                            if standing.is_some_and(|standing| record.is_superseded_by(&standing)) {
                                inputs.push_back(Input::Recorded(key, Recorded::Superseded));
                            } else if let Some(mut view) = view {
                                apply(&mut view, &record);
                                inputs.push_back(Input::Recorded(key.clone(), Recorded::Done));
                                inputs.push_back(Input::Service(key, Some(Box::new(view))));
                            }
                        }
                    }
                    Action::Tell(key, tell) => {
                        self.note(&format!("tell {} {}", key.name, tell.reason));
                        self.told.push((key.name, tell));
                    }
                    Action::StartDhcp(uid, ClientStart::V4(start)) => {
                        self.clients.insert(uid.clone(), start.generation);
                        self.note(&format!(
                            "start dhcp {uid} lease {:?}",
                            start.lease.map(|lease| lease.address.to_string())
                        ));
                    }
                    Action::StartDhcp(uid, ClientStart::V6(start)) => {
                        self.clients.insert(Uid(format!("{uid}/6")), start.generation);
                        self.note(&format!(
                            "start dhcp6 {uid} lease {:?}",
                            start.lease.map(|lease| lease.address.to_string())
                        ));
                    }
                    Action::StopDhcp { id, release } => self.note(&format!("stop {id} release {release}")),
                    Action::DhcpLink { id, up } => {
                        self.note(&format!("link of {id} {}", if up { "up" } else { "down" }));
                    }
                    Action::DhcpTaken { id, address, by } => {
                        let by = by.map_or(String::new(), |mac| format!(" for {mac}"));
                        self.note(&format!("decline {address} of {id}{by}"));
                    }
                    Action::ReleaseLease => self.note("release lease"),
                    Action::Exit => {
                        self.exited = true;
                        self.note("exit");
                    }
                    Action::Listen(wanted) => self.listening = wanted,
                    Action::Swap(key, swap) => {
                        self.note(&format!("swap {} {} {}", key.name, swap.owner_record.host, swap.owner_record.term));
                        self.swaps.push((key, swap));
                    }
                    Action::Membership(card) => self.cards.push(card),
                    Action::AskKubelet { node, .. } => self.note(&format!("ask kubelet {node}")),
                    Action::ProbeServices(targets) => self.probed = targets,
                    Action::Campaign(wanted) => self.campaigns.push(wanted),
                    Action::Forget(_) => {}
                }
            }
        }
    }

    /// Lets time pass, timer by timer.
    pub fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        let mut idle = 0;
        loop {
            let next = self.engine.deadline().max(self.now);
            if next > end {
                break;
            }
            idle = if next == self.now { idle + 1 } else { 0 };
            assert!(idle < 100, "a timer is due and never served: {:?}", self.engine.status());
            self.now = next;
            self.expire();
            self.tick();
        }
        self.now = end;
        self.expire();
    }

    pub fn pass_ms(&mut self, milliseconds: u64) {
        self.pass(Duration::from_millis(milliseconds));
    }

    fn expire(&mut self) {
        if self.kernel.expire(self.now) {
            self.feed(Input::NetworkChanged);
        }
    }

    pub fn heard(&mut self, link: u32, address: &str, mac: [u8; 6], what: Heard) {
        let address = address.parse().unwrap();
        self.feed(Input::Heard(Frame { link, address, mac: mac.into(), what, to_us: false, payload: None }));
    }

    /// The last DHCP client of a Service says something.
    pub fn dhcp(&mut self, name: &str, event: DhcpEvent) {
        let generation = self.clients.get(&uid(name)).copied().unwrap_or_default();
        self.feed(Input::Dhcp(uid(name), generation, ClientEvent::V4(event)));
    }

    /// The log since the last call, without times.
    pub fn take_log(&mut self) -> Vec<String> {
        self.log.drain(..).map(|line| line.split_once(' ').map_or(String::new(), |(_, text)| text.to_owned())).collect()
    }

    pub fn reasons(&self) -> Vec<&'static str> {
        self.told.iter().map(|(_, tell)| tell.reason.as_str()).collect()
    }
}

pub(super) fn summary(record: &Record) -> String {
    let ingress = record
        .ingress
        .as_ref()
        .map_or("-".to_owned(), |all| all.iter().map(|(ip, _)| ip.to_string()).collect::<Vec<_>>().join("+"));
    format!("{ingress}{}", record.requested_ip.as_ref().map_or(String::new(), |ip| format!(" requested {ip}")))
}

/// What the API and the watch make of a record.
pub(super) fn apply(view: &mut ServiceView, record: &Record) {
    let published = &mut view.published;
    if record.vip_host.is_some() {
        published.vip_host.clone_from(&record.vip_host);
        published.term = record.term;
    }
    if let Some(hwaddr) = &record.hwaddr {
        published.hwaddr = Some(hwaddr.clone());
        view.dhcp.mac = hwaddr.parse().ok();
    }
    if let Some(requested) = &record.requested_ip {
        published.requested_ip = Some(requested.clone());
        view.dhcp.requested = requested.parse().ok();
    }
    if let Some(lease) = &record.lease {
        published.lease = Some(lease.clone());
        view.dhcp.lease = Some(lease.clone());
    }
    let lost = record.lost.standing(published);
    if lost.v4.is_some() {
        published.lease = None;
        view.dhcp.lease = None;
    }
    if lost.v6.is_some() {
        published.lease6 = None;
        view.dhcp.lease6 = None;
    }
    if let Some(lease) = &record.lease6 {
        published.lease6 = Some(lease.clone());
        view.dhcp.lease6 = Some(lease.clone());
    }
    if let Some(ingress) = &record.ingress {
        published.turn = record.turn;
        published.ingress = ingress.iter().map(|(ip, ports)| Ingress { ip: Some(*ip), ports: ports.clone() }).collect();
    }
}

/// A Service that clients know already, announced by `host`.
pub(super) fn published(name: &str, address: &str, host: &str) -> ServiceView {
    let mut view = view(name, &[address]);
    view.published = Published {
        vip_host: Some(host.into()),
        ingress: vec![Ingress { ip: address.parse().ok(), ports: view.ports.clone() }],
        ..Published::default()
    };
    view
}

pub(super) fn facts(address: &str) -> LeaseFacts {
    LeaseFacts {
        address: address.parse().unwrap(),
        server: "10.0.0.254".parse().unwrap(),
        expires: Some("2026-01-01T00:10:00Z".parse().unwrap()),
    }
}

pub(super) fn uid(name: &str) -> Uid {
    view(name, &[]).uid
}
