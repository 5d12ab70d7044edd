//! A kernel in memory, for tests of the engine. Addresses with a deadline expire.

use std::time::{Duration, Instant};

use ipnet::IpNet;
use l2_types::{Address, AddressLifetime, InetConf, LinkKind, MacvlanMode};

use crate::engine::{KernelDone, KernelOp, Put};
use crate::network::{Network, alias, fixtures, is_macvlan_of, name_is_taken, noted, owner_in, was_left_for};
use crate::security::Protection;

pub struct FakeKernel {
    pub network: Network,
    pub deadlines: Vec<(u32, IpNet, Instant)>,
    /// Every operation but `Observe`, as text.
    pub journal: Vec<String>,
    pub refuse: bool,
    /// How many of the next requests to extend lifetimes fail, and change nothing.
    pub failing_extensions: u32,
    pub protection: Protection,
    /// How often rules were asked for, and how often an address stood without them.
    pub protects: usize,
    pub exposed: usize,
    /// Other programs change the tables: rules wait until [`FakeKernel::set_rules`].
    pub busy: bool,
    pub waiting: Vec<Protection>,
    /// From when what is noted of leases is counted.
    pub boot: Instant,
    /// Whether it keeps the marks of addresses, as Linux does since 5.18.
    marks: bool,
    next_index: u32,
}

impl FakeKernel {
    pub fn new(network: Network) -> Self {
        Self {
            marks: !network.keeps_no_marks(),
            network,
            deadlines: Vec::new(),
            journal: Vec::new(),
            refuse: false,
            failing_extensions: 0,
            protection: Protection::default(),
            protects: 0,
            exposed: 0,
            busy: false,
            waiting: Vec::new(),
            boot: Instant::now(),
            next_index: 100,
        }
    }

    pub fn name(&self, link: u32) -> String {
        self.network.link(link).map_or_else(|| format!("#{link}"), |link| link.name.clone())
    }

    pub fn has(&self, link: &str, net: &str) -> bool {
        let net: IpNet = net.parse().unwrap();
        self.network.link_by_name(link).is_some_and(|link| self.carries(link.index, net))
    }

    fn carries(&self, link: u32, net: IpNet) -> bool {
        self.network.addresses.iter().any(|address| (address.interface, address.net) == (link, net))
    }

    /// Addresses that carry our mark.
    pub fn own(&self) -> Vec<String> {
        let own = self.network.addresses.iter().filter(|address| address.is_ours());
        own.map(|address| format!("{} {}", self.name(address.interface), address.net)).collect()
    }

    pub fn valid(&self, net: &str, now: Instant) -> Option<Duration> {
        let net: IpNet = net.parse().unwrap();
        self.deadlines.iter().find(|entry| entry.1 == net).map(|entry| entry.2 - now)
    }

    /// True if something expired.
    pub fn expire(&mut self, now: Instant) -> bool {
        let dead: Vec<(u32, IpNet)> =
            self.deadlines.iter().filter(|entry| entry.2 <= now).map(|entry| (entry.0, entry.1)).collect();
        for (link, net) in &dead {
            self.journal.push(format!("expired {} {net}", self.name(*link)));
            self.remove(*link, *net);
        }
        !dead.is_empty()
    }

    pub fn remove(&mut self, link: u32, net: IpNet) {
        self.network.addresses.retain(|address| (address.interface, address.net) != (link, net));
        self.deadlines.retain(|entry| (entry.0, entry.1) != (link, net));
    }

    pub fn delete(&mut self, link: u32) {
        self.network.links.retain(|found| {
            found.index != link && !matches!(found.kind, LinkKind::Macvlan { parent, .. } if parent == link)
        });
        let links: Vec<u32> = self.network.links.iter().map(|link| link.index).collect();
        self.network.addresses.retain(|address| links.contains(&address.interface));
        self.deadlines.retain(|entry| links.contains(&entry.0));
    }

    fn note(&mut self, link: u32, alias: &str) {
        for found in self.network.links.iter_mut().filter(|found| found.index == link) {
            found.alias = Some(alias.to_owned());
        }
    }

    /// The rules that were asked for first, or that they are refused.
    pub fn set_rules(&mut self, result: Result<(), String>) -> KernelDone {
        let wanted = self.waiting.remove(0);
        if result.is_ok() {
            let lost = self.protection.vips.keys().filter(|vip| !wanted.vips.contains_key(vip));
            let own = self.network.addresses.iter().filter(|address| address.is_ours());
            self.exposed += lost.filter(|vip| own.clone().any(|address| address.net.addr() == **vip)).count();
            self.protection = wanted;
        }
        KernelDone::Protected(result)
    }

    pub fn perform(&mut self, now: Instant, op: KernelOp) -> Option<KernelDone> {
        match op {
            KernelOp::Extend(puts) if self.failing_extensions > 0 => {
                self.failing_extensions -= 1;
                let refused = |put: Put| (put.link, put.net, Err("no buffer space".to_owned()));
                Some(KernelDone::Extended(puts.into_iter().map(refused).collect()))
            }
            KernelOp::Extend(puts) => match self.perform(now, KernelOp::Put(puts)) {
                Some(KernelDone::Put(results)) => Some(KernelDone::Extended(results)),
                other => other,
            },
            KernelOp::Observe => Some(KernelDone::Observed(Ok(self.network.clone()))),
            KernelOp::Put(puts) => {
                let mut results = Vec::new();
                for put in puts {
                    let exists = self.carries(put.link, put.net);
                    if self.refuse || self.network.link(put.link).is_none() {
                        results.push((put.link, put.net, Err("refused".to_owned())));
                        continue;
                    }
                    if !exists {
                        self.exposed += usize::from(!self.protection.vips.contains_key(&put.net.addr()));
                        self.journal.push(format!("add {} {}", self.name(put.link), put.net));
                    }
                    self.remove(put.link, put.net);
                    let mut address: Address = fixtures::own_address(put.link, &put.net.to_string());
                    address.valid = AddressLifetime::For(put.valid);
                    address.protocol = address.protocol.filter(|_| self.marks);
                    address.metric = put.until.map(|end| noted(end, self.boot));
                    self.network.addresses.push(address);
                    self.deadlines.push((put.link, put.net, now + put.valid));
                    results.push((put.link, put.net, Ok(())));
                }
                Some(KernelDone::Put(results))
            }
            KernelOp::Remove(unwanted) => {
                for (link, net) in unwanted {
                    self.journal.push(format!("remove {} {net}", self.name(link)));
                    self.remove(link, net);
                }
                None
            }
            KernelOp::Macvlan(uid, wanted, _) => {
                if self.refuse {
                    return Some(KernelDone::Macvlan(uid, Err("refused".to_owned())));
                }
                let found = self.network.link_by_name(&wanted.name).cloned();
                if let Some(found) = found {
                    if !is_macvlan_of(&found, &uid) && !was_left_for(&found, &self.network.addresses, &wanted) {
                        self.journal.push(format!("refuse {}", wanted.name));
                        let text = name_is_taken(&wanted.name, &uid);
                        return Some(KernelDone::Macvlan(uid, Err(text)));
                    }
                    let mut adopted = found.clone();
                    if adopted.alias.as_deref().is_none_or(|alias| owner_in(alias) == uid.0) {
                        adopted.alias = Some(wanted.alias.clone());
                    }
                    if wanted.mismatch(&adopted).is_none() {
                        if found.alias.is_none() {
                            self.note(found.index, &wanted.alias);
                        }
                        self.journal.push(format!("adopt {}", wanted.name));
                        return Some(KernelDone::Macvlan(uid, Ok((found.index, wanted.mac))));
                    }
                    self.delete(found.index);
                }
                self.next_index += 1;
                let mut link = fixtures::macvlan(self.next_index, &wanted.name, wanted.parent, Some(&wanted.alias));
                link.mac = Some(wanted.mac);
                link.kind = LinkKind::Macvlan { parent: wanted.parent, mode: MacvlanMode::Bridge };
                self.network.links.push(link);
                self.journal.push(format!("macvlan {} on {}", wanted.name, self.name(wanted.parent)));
                Some(KernelDone::Macvlan(uid, Ok((self.next_index, wanted.mac))))
            }
            KernelOp::Note { link, uid, end } => {
                self.note(link, &alias(&uid, end, self.boot));
                None
            }
            KernelOp::Protect(wanted) => {
                self.protects += 1;
                self.waiting.push(wanted);
                if self.busy { None } else { Some(self.set_rules(Ok(()))) }
            }
            KernelOp::Delete { link } => {
                self.journal.push(format!("delete {}", self.name(link)));
                self.delete(link);
                None
            }
            KernelOp::Prepare { link } => {
                self.journal.push(format!("prepare {}", self.name(link)));
                Some(KernelDone::Prepared(link, Ok(InetConf::default())))
            }
            KernelOp::Restore { link, .. } => {
                self.journal.push(format!("restore {}", self.name(link)));
                None
            }
        }
    }
}
