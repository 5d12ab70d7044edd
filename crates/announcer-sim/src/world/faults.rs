//! Faults begin and end.

use std::time::Duration;

use announcer_core::engine::Input;
use announcer_core::ownership::node::NodeFacts;

use super::{Event, World};
use crate::api::Change;
use crate::kernel::{Kernel, Lan};
use crate::process::Message;
use crate::scenario::{CONFLICT, Cable, Kind};

/// A pod that does not end in time is killed.
const GRACE: Duration = Duration::from_secs(30);

impl World<'_> {
    pub(super) fn begins(&mut self, index: usize) {
        let fault = self.scenario.faults[index].clone();
        self.note(|| format!("FAULT begins: {:?}", fault.kind));
        self.judge.changed = true;
        match fault.kind {
            Kind::ApiAway(n) => {
                self.nodes[n].api_away += 1;
                self.disconnect(n);
            }
            Kind::ApiDown => {
                self.api_down += 1;
                (0..self.nodes.len()).for_each(|n| self.disconnect(n));
            }
            Kind::ApiLate(milliseconds) => self.api_late += Duration::from_millis(milliseconds),
            Kind::Split(group) => {
                self.splits.insert(index, (None, group.into_iter().collect()));
            }
            Kind::SplitLan(lan, group) => {
                self.splits.insert(index, (Some(lan), group.into_iter().collect()));
            }
            Kind::Carrier(n) => {
                for lan in self.lans() {
                    self.nic_fails(n, lan, Cable::Out, true);
                }
            }
            Kind::Nic(n, lan, cable) => self.nic_fails(n, lan, cable, true),
            Kind::Kill(n) => self.end_process(n, "killed"),
            Kind::Terminate(n) => {
                if let Some(process) = &mut self.nodes[n].process
                    && !std::mem::replace(&mut process.stopping, true)
                {
                    self.deliver(n, Message::Engine(Input::Stop));
                    let life = self.nodes[n].life;
                    self.schedule(GRACE, Event::Deadline { node: n, life });
                }
            }
            Kind::Freeze(n) => self.nodes[n].frozen += 1,
            Kind::Pause(n, _) => {
                self.nodes[n].paused += 1;
                if self.nodes[n].paused == 1 {
                    self.nodes[n].paused_at = self.now;
                }
            }
            Kind::PowerLoss(n) => {
                self.end_process(n, "power lost");
                let node = &mut self.nodes[n];
                node.powered = false;
                node.lost_at = self.now;
                node.boot += 1;
                node.kernel = Kernel::new(n, self.scenario.nics);
                self.disconnect(n);
            }
            Kind::WallJump(n, seconds) => self.nodes[n].wall_jump += seconds,
            Kind::SlowKernel(n, milliseconds) => self.nodes[n].kernel_late += Duration::from_millis(milliseconds),
            Kind::Deleted(service) => self.delete(service),
            Kind::Endpoints(service, nodes) => {
                self.endpoints[service] = nodes;
                self.tell_endpoints(service);
            }
            Kind::Thief(service) => {
                self.robbed.insert(service);
                self.strange_since.entry(service).or_insert(self.now);
                self.rob(service, index);
            }
            Kind::Duplicate(service) => {
                self.duplicated.insert(service);
                self.strange_since.entry(service).or_insert(self.now);
            }
            Kind::ProxyArp => self.proxies += 1,
            Kind::Ipvs => self.ipvs += 1,
            Kind::Fabric => self.fabrics += 1,
            Kind::Apart(a, b) => self.apart.push((a, b)),
            Kind::Claims(service) => self.thief_announces(service),
            Kind::Lie(service, ahead) => self.lie(service, ahead),
            Kind::AllNotReady => self.all_not_ready(true),
            Kind::Server(fault) => self.server_fault(fault, true),
            Kind::KubeVip(_) => {
                self.kube_vips += 1;
                self.renew_kube_vip(index);
            }
            kind => self.count(&kind, true),
        }
    }

    pub(super) fn ends(&mut self, index: usize) {
        let fault = self.scenario.faults[index].clone();
        self.note(|| format!("FAULT ends: {:?}", fault.kind));
        self.judge.changed = true;
        match fault.kind {
            Kind::ApiAway(n) => self.nodes[n].api_away -= 1,
            Kind::ApiDown => self.api_down -= 1,
            Kind::ApiLate(milliseconds) => self.api_late -= Duration::from_millis(milliseconds),
            Kind::Split(_) | Kind::SplitLan(..) => {
                self.splits.remove(&index);
            }
            Kind::Carrier(n) => {
                for lan in self.lans() {
                    self.nic_fails(n, lan, Cable::Out, false);
                }
            }
            Kind::Nic(n, lan, cable) => self.nic_fails(n, lan, cable, false),
            Kind::Kill(n) | Kind::Terminate(n) => {
                let boot = self.nodes[n].boot;
                self.schedule(Duration::ZERO, Event::Starts { node: n, boot });
            }
            Kind::Freeze(n) => {
                self.nodes[n].frozen -= 1;
                self.resume(n);
            }
            Kind::Pause(n, shows) => self.go_on(n, shows),
            Kind::PowerLoss(n) => {
                self.nodes[n].powered = true;
                let boot = self.nodes[n].boot;
                let after = self.between(500_000, 3_000_000);
                self.schedule(after, Event::Starts { node: n, boot });
            }
            Kind::WallJump(n, seconds) => self.nodes[n].wall_jump -= seconds,
            Kind::SlowKernel(n, milliseconds) => self.nodes[n].kernel_late -= Duration::from_millis(milliseconds),
            Kind::Deleted(service) => self.create(service),
            Kind::Endpoints(service, _) => {
                self.endpoints[service] = self.scenario.services[service].local.clone().unwrap_or_default();
                self.tell_endpoints(service);
            }
            Kind::Thief(service) => {
                let mut others = self.scenario.faults.iter().enumerate().filter(|(other, _)| *other != index);
                if !others.any(|(_, other)| other.kind == fault.kind && other.is_on(self.now)) {
                    self.robbed.remove(&service);
                    self.after_conflict(service);
                }
            }
            Kind::Duplicate(service) => {
                self.duplicated.remove(&service);
                self.after_conflict(service);
            }
            Kind::ProxyArp => {
                self.proxies -= 1;
                (0..self.scenario.services.len()).for_each(|service| self.after_conflict(service));
            }
            Kind::Ipvs => {
                self.ipvs -= 1;
                (0..self.scenario.services.len()).for_each(|service| self.after_conflict(service));
            }
            Kind::Fabric => {
                self.fabrics -= 1;
                (0..self.scenario.services.len()).for_each(|service| self.after_conflict(service));
            }
            Kind::Apart(a, b) => {
                if let Some(at) = self.apart.iter().position(|pair| *pair == (a, b)) {
                    self.apart.swap_remove(at);
                }
            }
            Kind::Claims(_) | Kind::Lie(..) => {}
            Kind::AllNotReady => self.all_not_ready(false),
            Kind::Server(fault) => self.server_fault(fault, false),
            Kind::KubeVip(hands_back) => {
                self.kube_vips -= 1;
                self.end_kube_vip(hands_back);
            }
            kind => self.count(&kind, false),
        }
    }

    /// What is only counted.
    fn count(&mut self, kind: &Kind, begins: bool) {
        let count = |counter: &mut u32| if begins { *counter += 1 } else { *counter -= 1 };
        let Some(n) = kind.node() else { return };
        let node = &mut self.nodes[n];
        match kind {
            Kind::Stale(_) => count(&mut node.stale),
            Kind::ApiSlow(_) => count(&mut node.api_slow),
            Kind::ReadOnly(_) => count(&mut node.read_only),
            Kind::Mute(_) => node.mute.iter_mut().for_each(count),
            Kind::Deaf(_) => node.deaf.iter_mut().for_each(count),
            Kind::Cut(_) => node.mute.iter_mut().chain(&mut node.deaf).for_each(count),
            Kind::ProxyIll(_) => {
                count(&mut node.proxy_ill);
                self.tell_kube_proxy(n);
            }
            Kind::NotReady(_) => count(&mut node.not_ready),
            Kind::Cordoned(_) => count(&mut node.cordoned),
            Kind::ShutOut(_) => count(&mut node.shut_out),
            _ => {}
        }
        if let Kind::NotReady(_) | Kind::Cordoned(_) | Kind::ShutOut(_) = kind {
            self.tell_node(n);
        }
    }

    /// Nodes fall silent to their cluster within a second, and come back three seconds apart.
    fn all_not_ready(&mut self, begins: bool) {
        for node in 0..self.nodes.len() {
            let apart = if begins {
                self.between(0, 1_000_000)
            } else {
                Duration::from_secs(3) * u32::try_from(node).expect("few")
            };
            self.schedule(apart, Event::Ready { node, begins });
        }
    }

    pub(super) fn ready(&mut self, n: usize, begins: bool) {
        let count = &mut self.nodes[n].not_ready;
        if begins {
            *count += 1;
        } else {
            *count -= 1;
        }
        self.judge.changed = true;
        self.tell_node(n);
    }

    fn after_conflict(&mut self, service: usize) {
        if !self.robbed.contains(&service) && !self.duplicated.contains(&service) {
            self.strange_since.remove(&service);
        }
        self.conflicts.insert(service, self.now + CONFLICT);
        self.schedule(CONFLICT, Event::Look);
    }

    fn tell_node(&mut self, n: usize) {
        self.note_storm();
        let (now, node) = (self.now, &mut self.nodes[n]);
        node.unready_since = if node.not_ready > 0 { node.unready_since.or(Some(now)) } else { None };
        self.note_storm();
        let node = &self.nodes[n];
        let host = self.scenario.hosts.get(n).map(|host| format!("host-{host}"));
        let facts = NodeFacts {
            uid: format!("uid-{}", node.name),
            ready: node.not_ready == 0,
            shut_out: node.shut_out > 0,
            cordoned: node.cordoned > 0,
            departs: false,
            host,
        };
        let change = self.api.note(Change::Node(node.name.clone(), facts));
        self.publish(&change);
    }

    /// Until the moment before something changes, many were not ready.
    fn note_storm(&mut self) {
        let unready = self.nodes.iter().filter(|node| node.unready_since.is_some()).count();
        if unready >= 2 && unready * 2 >= self.nodes.len() {
            self.storm_until = self.now + Duration::from_mins(1);
        }
    }

    /// One NIC of a node, or its cable.
    fn nic_fails(&mut self, n: usize, lan: Lan, cable: Cable, begins: bool) {
        let node = &mut self.nodes[n];
        let count = |counter: &mut u32| if begins { *counter += 1 } else { *counter -= 1 };
        if cable != Cable::Deaf {
            count(&mut node.mute[lan]);
        }
        if cable != Cable::Mute {
            count(&mut node.deaf[lan]);
        }
        if cable == Cable::Out {
            node.kernel.set_carrier(lan, !begins);
            self.deliver(n, Message::Engine(Input::NetworkChanged));
        }
    }

    /// As `membership/kube_proxy.rs` tells it, once it has made up its mind.
    pub(super) fn tell_kube_proxy(&mut self, n: usize) {
        let well = self.nodes[n].proxy_ill == 0;
        self.deliver(n, Message::Engine(Input::KubeProxy(well)));
    }

    /// A machine that stood still goes on.
    fn go_on(&mut self, n: usize, shows: bool) {
        self.nodes[n].paused -= 1;
        if self.nodes[n].paused > 0 {
            return;
        }
        let stood = self.now.saturating_sub(self.nodes[n].paused_at);
        self.nodes[n].stood_still += stood;
        if !shows {
            self.nodes[n].behind += stood;
            self.nodes[n].deceived_at = Some(self.now);
        }
        for (lan, frame) in std::mem::take(&mut self.nodes[n].tap) {
            self.arrives(n, lan, &frame);
        }
        self.expect_expiry(n);
        self.resume(n);
        if std::mem::take(&mut self.nodes[n].starts_late) {
            let boot = self.nodes[n].boot;
            self.schedule(Duration::ZERO, Event::Starts { node: n, boot });
        }
    }
}
