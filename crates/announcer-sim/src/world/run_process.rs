//! A process wakes, is fed with what waits, and what it says is done; and its node's kernel at work.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use announcer_core::VipId;
use announcer_core::claim::Claim;
use announcer_core::detect::Ask;
use announcer_core::engine::{Action, ClientStart, DhcpStart, Input, KernelOp};
use announcer_core::frames::{self, Frame, Heard};
use announcer_core::network::Family;
use announcer_core::ownership::node::Card;
use announcer_core::view::{ServiceKey, Uid};
use l2_types::Mac;
use rand::RngExt;

use super::{Event, World};
use crate::kernel::{lan_of, nic};
use crate::process::{Message, Process};
use crate::promises::NO_CIRCLES;
use crate::sabotage::Sabotage;
use crate::words::{describe, is_dull, is_dull_input, short};

/// A process that asks for nothing within this many steps at one moment goes round in circles.
const STEPS_AT_ONCE: u32 = 200;

impl World<'_> {
    pub(super) fn wake(&mut self, n: usize) {
        if !self.nodes[n].runs() {
            return;
        }
        let (clock, wall) = (self.clock(n), self.wall(n));
        let traced = self.trace.is_some();
        let process = self.nodes[n].process.as_mut().expect("it runs");
        let inputs = process.gather(clock, wall);
        let foreign = inputs.iter().rev().find_map(|input| match input {
            Input::Foreign(lock) => Some(lock.clone()),
            _ => None,
        });
        let mut actions = Vec::new();
        let mut seen = Vec::new();
        for input in inputs {
            if traced && !is_dull_input(&input) {
                seen.push(describe(&input));
            }
            actions.extend(process.engine.handle(clock, input));
        }
        actions.extend(process.engine.poll(clock, false));
        let requests = std::mem::take(&mut process.requests);
        if let Some(lock) = foreign {
            self.honour(n, lock.as_ref());
        }
        for text in seen {
            self.note_of(n, || format!("<- {text}"));
        }
        self.send_dhcp(n);
        for action in actions {
            if !self.act(n, action) {
                return;
            }
        }
        let late = std::mem::take(&mut self.process(n).requests);
        for (purpose, request) in requests.into_iter().chain(late) {
            self.send(n, purpose, request);
        }
        let process = self.nodes[n].process.as_mut().expect("it did not exit");
        let (sleep, leads) = (process.wake_at(clock).saturating_duration_since(clock), process.leads());
        self.judge.changed |= std::mem::replace(&mut self.nodes[n].led, leads) != leads;
        self.count_steps(n, sleep);
        let lateness = self.between(0, self.scenario.busy_us);
        self.wake_at(n, self.now + sleep + lateness);
    }

    fn count_steps(&mut self, n: usize, sleep: Duration) {
        let steps = &mut self.nodes[n].steps;
        if !sleep.is_zero() {
            steps.1 = 0;
        } else if steps.0 == self.now {
            steps.1 += 1;
        } else {
            *steps = (self.now, steps.1 + 1);
        }
        if steps.1 > STEPS_AT_ONCE {
            let name = self.nodes[n].name.clone();
            self.broken(NO_CIRCLES, format!("{name} goes round in circles"));
        }
    }

    /// False if the process has ended.
    fn act(&mut self, n: usize, action: Action) -> bool {
        if self.trace.is_some() && !is_dull(&action) {
            self.note_of(n, || format!("-> {}", short(&action)));
        }
        // As `listen.rs`: what is sent through a socket is answered through it.
        if let Action::Announce { link, address, .. }
        | Action::Probe { link, address, .. }
        | Action::Claim(Claim { link, address, .. })
        | Action::Ask { ask: Ask { link, address, .. }, .. } = &action
        {
            self.process(n).listening.insert((*link, Family::of(*address)));
        }
        if self.is_withheld(n, &action) {
            return true;
        }
        match action {
            Action::Kernel(op) => self.ask_kernel(n, op),
            Action::Announce { link, mac, address } => {
                for frame in frames::announcement(mac, address) {
                    self.send_frame(n, link, frame);
                }
            }
            Action::Probe { link, mac, address } => self.send_frame(n, link, frames::probe(mac, address)),
            Action::Ask { mac, source, ask } => match frames::question(mac, source, ask.address, ask.to) {
                Some(frame) => self.send_frame(n, ask.link, frame),
                None => self.deliver(n, Message::Engine(Input::NotSent(ask))),
            },
            Action::AskKubelet { node, address } => {
                let lan = lan_of(address.ip());
                // A kernel answers, whatever its processes do; a machine that stands still does not.
                let there = self.nodes.iter().position(|other| other.name == node);
                let answers = there.is_none_or(|to| self.nodes[to].paused == 0 && self.hear_each_other(lan, n, to))
                    || self.sabotage == Some(Sabotage::KubeletsAnswer);
                self.deliver(n, Message::Engine(Input::Kubelet { node, answers }));
            }
            Action::Claim(Claim { link, mac, address, to, payload }) => {
                self.send_frame(n, link, frames::claim(mac, address, to, &payload));
            }
            Action::Listen(links) => self.process(n).listening = links,
            Action::StartDhcp(uid, ClientStart::V4(start)) => self.start_dhcp(n, uid, start),
            Action::StopDhcp { id: VipId::Dhcp(uid), release } => self.stop_dhcp(n, &uid, release),
            Action::DhcpLink { id: VipId::Dhcp(uid), up } => {
                self.process(n).clients.link(&uid, up);
                self.rouse(n);
            }
            Action::DhcpTaken { id: VipId::Dhcp(uid), address, by } => {
                self.process(n).clients.taken(&uid, address, by);
                self.rouse(n);
            }
            // No Service here asks for DHCPv6.
            Action::StartDhcp(..) | Action::StopDhcp { .. } | Action::DhcpLink { .. } | Action::DhcpTaken { .. } => {}
            Action::Tell(key, tell) => self.judge_alarm(n, &key, tell.reason, &tell.text),
            Action::Exit => {
                self.exit(n);
                return false;
            }
            action => self.ask_api(n, action),
        }
        true
    }

    /// A broken engine would not do this; what it would do instead is done.
    fn is_withheld(&mut self, n: usize, action: &Action) -> bool {
        match (self.sabotage, action) {
            (Some(Sabotage::NoClaims), Action::Claim(_)) | (Some(Sabotage::NoProbe), Action::Probe { .. }) => true,
            (Some(Sabotage::NoBurst), Action::Ask { ask, .. }) => ask.to == Mac::BROADCAST && self.is_vip(ask.address),
            (Some(Sabotage::NoWitness), Action::Ask { ask, .. }) if !self.is_vip(ask.address) => {
                let Ask { link, address, to: mac } = *ask;
                let heard = Frame { link, address, mac, what: Heard::Answer, to_us: true, payload: None };
                if mac != Mac::BROADCAST {
                    self.process(n).frames.push_back(Input::Heard(heard));
                    self.rouse(n);
                }
                false
            }
            (Some(Sabotage::NoMakeBeforeBreak), Action::Swap(key, swap)) => {
                if swap.owner_record.host != self.nodes[n].name {
                    self.break_before_make(n, key);
                }
                false
            }
            _ => false,
        }
    }

    fn break_before_make(&mut self, n: usize, key: &ServiceKey) {
        let services = 0..self.scenario.services.len();
        let addresses: Vec<IpAddr> = services
            .filter(|service| crate::api::key(*service) == *key)
            .map(|service| self.scenario.address(service))
            .collect();
        self.nodes[n].kernel.drop_addresses(&addresses);
        self.judge.changed = true;
    }

    /// What goes to the API.
    fn ask_api(&mut self, n: usize, action: Action) {
        let (clock, wall) = (self.clock(n), self.wall(n));
        let slandered = if self.sabotage == Some(Sabotage::Slander) {
            let other = &self.nodes[(n + 1) % self.nodes.len()].name;
            let said = format!("{{\"silent\":{{\"{other}\":{{\"uid\":\"u\",\"ms\":0,\"unanswered\":[]}}}}}}");
            Card::parse(&said).silent
        } else {
            BTreeMap::new()
        };
        let process = self.process(n);
        let out = &mut process.requests;
        let said = match action {
            Action::Swap(key, swap) => process.swapper.begin(clock, key, swap, out),
            Action::Membership(mut card) => {
                card.silent.extend(slandered);
                process.membership.renew(clock, wall, card, out);
                Vec::new()
            }
            Action::Record(key, record) => process.writer.want(clock, &key, *record, out),
            Action::Forget(key) => {
                process.writer.forget(&key);
                Vec::new()
            }
            Action::Campaign(wanted) => process.elections.campaign(clock, wall, wanted, out),
            Action::ReleaseLease => process.elections.release(clock, wall, out),
            _ => Vec::new(),
        };
        for input in said {
            self.deliver(n, Message::Engine(input));
        }
    }

    fn start_dhcp(&mut self, n: usize, uid: Uid, mut start: DhcpStart) {
        if self.sabotage == Some(Sabotage::NoInitReboot) {
            (start.lease, start.requested) = (None, None);
        }
        let (clock, wall) = (self.clock(n), self.wall(n));
        let seed = self.rng.random();
        let process = self.process(n);
        let time = process.api_clock.latest(clock, wall);
        process.clients.start(clock, time, uid, &start, seed);
        self.rouse(n);
    }

    fn stop_dhcp(&mut self, n: usize, uid: &Uid, release: bool) {
        let (clock, wall) = (self.clock(n), self.wall(n));
        let release = release || self.sabotage == Some(Sabotage::ReleaseAtHandOver);
        let Process { clients, sent, api_clock, .. } = self.process(n);
        let time = api_clock.earliest(clock, wall);
        if let Some(stopped) = clients.stop(clock, time, uid, release, sent) {
            self.deliver(n, Message::Engine(stopped));
        }
        self.send_dhcp(n);
    }

    /// What the DHCP clients have said leaves through their interfaces, while they are there.
    fn send_dhcp(&mut self, n: usize) {
        for (link, frame) in std::mem::take(&mut self.process(n).sent) {
            if self.nodes[n].kernel.link(link).is_some() {
                self.send_frame(n, link, frame);
            }
        }
    }

    /// Through an interface, or the NIC beneath it.
    fn send_frame(&mut self, n: usize, link: u32, frame: Vec<u8>) {
        let lower = self.nodes[n].kernel.lower(link);
        if let Some(lan) = self.lans().find(|lan| nic(*lan) == lower) {
            self.transmit(lan, Some(n), frame);
        }
    }

    /// What was asked of the kernel is done before the process ends.
    fn exit(&mut self, n: usize) {
        let moment = self.moment(n);
        let mut left = std::mem::take(&mut self.process(n).kernel_queue);
        while let Some(op) = left.next_in_order().or_else(|| left.next_rules()) {
            self.nodes[n].kernel.perform(moment, op);
        }
        self.nodes[n].left_in_order = true;
        self.expect_expiry(n);
        self.end_process(n, "it is done");
        self.expect_restart(n);
    }

    pub(super) fn process(&mut self, n: usize) -> &mut Process {
        self.nodes[n].process.as_mut().expect("it acts")
    }

    fn ask_kernel(&mut self, n: usize, op: KernelOp) {
        let Some(op) = self.altered(n, op) else { return };
        self.process(n).kernel_queue.push(op);
        if !std::mem::replace(&mut self.nodes[n].performing, true) {
            let life = self.nodes[n].life;
            let after = self.between(50, 500);
            self.schedule(after, Event::Perform { node: n, life });
        }
    }

    /// What a broken engine would have asked for instead.
    fn altered(&mut self, n: usize, mut op: KernelOp) -> Option<KernelOp> {
        let node = &mut self.nodes[n];
        let is_put = matches!(op, KernelOp::Put(_));
        match (&mut op, self.sabotage) {
            (KernelOp::Put(puts) | KernelOp::Extend(puts), sabotage) => {
                // What is only kept is not what it has set.
                if is_put {
                    node.set.extend(puts.iter().map(|put| put.net.addr()));
                }
                if sabotage == Some(Sabotage::NoFence) {
                    for put in puts {
                        put.valid = Duration::from_hours(1);
                    }
                }
                Some(op)
            }
            (KernelOp::Remove(unwanted), Some(Sabotage::NoSweep)) => {
                unwanted.retain(|(_, net)| node.set.contains(&net.addr()));
                (!unwanted.is_empty()).then_some(op)
            }
            _ => Some(op),
        }
    }

    pub(super) fn perform(&mut self, n: usize, life: u64) {
        if self.nodes[n].life != life {
            return;
        }
        if !self.nodes[n].runs() {
            // Goes on when the process does.
            self.nodes[n].performing = false;
            return;
        }
        let moment = self.moment(n);
        let queue = &mut self.process(n).kernel_queue;
        let Some(op) = queue.next_in_order().or_else(|| queue.next_rules()) else {
            self.nodes[n].performing = false;
            return;
        };
        let kernel = &mut self.nodes[n].kernel;
        let before = kernel.changes();
        let done = kernel.perform(moment, op);
        if before != kernel.changes() {
            self.judge.changed = true;
            self.note_kernel(n);
        }
        self.expect_expiry(n);
        if let Some(done) = done {
            self.deliver(n, Message::Engine(Input::Kernel(done)));
        }
        let late = u64::try_from(self.nodes[n].kernel_late.as_micros()).unwrap_or(u64::MAX);
        let pause = self.between(50, 500 + late);
        self.schedule(pause, Event::Perform { node: n, life });
    }

    fn note_kernel(&mut self, n: usize) {
        if self.trace.is_some() {
            let marked = self.nodes[n].kernel.marked();
            self.note_of(n, || format!("kernel: has {marked:?}"));
        }
    }

    pub(super) fn expect_expiry(&mut self, n: usize) {
        if let Some(end) = self.nodes[n].kernel.next_end() {
            let boot = self.nodes[n].boot;
            let after = end.saturating_sub(self.kernel_time(n)) + self.between(0, 300_000);
            self.schedule(after, Event::Expiry { node: n, boot });
        }
    }

    pub(super) fn expire(&mut self, n: usize, boot: u64) {
        let at = self.kernel_time(n);
        let node = &mut self.nodes[n];
        if node.boot == boot && node.paused == 0 && node.kernel.expire(at) {
            self.judge.changed = true;
            self.note_of(n, || "kernel: an address came to its end".to_owned());
            self.note_kernel(n);
            // The others are not due yet.
            self.expect_expiry(n);
        }
    }
}
