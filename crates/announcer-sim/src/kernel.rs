//! A node's kernel: interfaces, addresses with a deadline, and who answers ARP and neighbour discovery for them. It
//! lives on when the process dies.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use announcer_core::engine::{KernelDone, KernelOp, Put};
use announcer_core::network::{Network, alias, is_macvlan_of, lease_end, misfit, name_is_taken, noted, owner_in};
use jiff::Timestamp;
use l2_types::arp::{self, Arp};
use l2_types::ndp::{self, Message, Ndp};
use l2_types::{Address, AddressLifetime, InetConf, Link, LinkKind, Mac, MacvlanMode, OUR_ADDRESS_PROTOCOL, OperState};

/// The router, which every node may ask whether it is heard at all.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Index of `eth0`.
pub const ETH0: u32 = 2;

/// A LAN, counted from 0, and on each node the NIC towards it. The gateway and the DHCP server are in the first.
pub type Lan = usize;
/// As many as a node may have.
pub const LANS: usize = 2;

/// A host in the second LAN, which has no gateway: it asks for addresses now and then, and answers for its own.
pub const RESIDENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 9);

/// Index of the NIC towards a LAN.
pub fn nic(lan: Lan) -> u32 {
    ETH0 + u32::try_from(lan).expect("there are two")
}

/// The LAN in which `address` is.
pub fn lan_of(address: IpAddr) -> Lan {
    match address {
        IpAddr::V4(v4) => usize::from(v4.octets()[1] == 1),
        IpAddr::V6(v6) => usize::from(v6.segments()[0] == 0xfd01),
    }
}

/// One moment by the clocks of a node.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// The kernel's, by which addresses come to their end.
    pub kernel: Duration,
    /// The process's.
    pub clock: Instant,
    /// When it was booted, by that one.
    pub boot: Instant,
    /// The API server's, as the process knows it.
    pub api: Timestamp,
}

/// An address with the announcer's mark.
#[derive(Debug, Clone, Copy)]
pub struct Own<'a> {
    /// Which.
    pub address: IpAddr,
    /// Its end, by the kernel's time.
    pub until: Option<Duration>,
    /// UID of the Service whose macvlan it is on.
    pub lessee: Option<&'a str>,
}

/// One boot of a node.
#[derive(Debug)]
pub struct Kernel {
    links: Vec<Link>,
    /// With the end of life of each, by the kernel's own time.
    addresses: Vec<(Address, Option<Duration>)>,
    next_index: u32,
    /// Counts changes of what carries the announcer's mark.
    changes: u64,
}

impl Kernel {
    /// Node `n` with so many NICs after booting.
    pub fn new(n: usize, nics: usize) -> Self {
        let last = u8::try_from(n + 11).expect("few nodes");
        let link = |index, name: &str, mac| Link {
            index,
            name: name.into(),
            mac: Some(mac),
            up: true,
            carrier: true,
            state: OperState::Up,
            mtu: 1500,
            kind: LinkKind::Physical,
            alias: None,
        };
        let own = |interface, net: &str| Address {
            interface,
            net: format!("{net}{last}/{}", if net.contains(':') { 64 } else { 24 }).parse().expect("a network"),
            valid: AddressLifetime::Forever,
            preferred: AddressLifetime::Forever,
            protocol: None,
            tentative: false,
            duplicate: false,
            nodad: false,
            metric: None,
        };
        let mut links = vec![link(1, "lo", Mac::ZERO), link(ETH0, "eth0", Mac::new([2, 0, 0, 0, 0, last]))];
        let mut addresses = ["10.0.0.", "fd00::", "fe80::"].map(|net| (own(ETH0, net), None)).to_vec();
        if nics > 1 {
            links.push(link(nic(1), "eth1", Mac::new([2, 0, 0, 0, 1, last])));
            addresses.extend(["10.1.0.", "fd01::", "fe80::"].map(|net| (own(nic(1), net), None)));
        }
        Self { links, addresses, next_index: 100, changes: 0 }
    }

    /// MAC of `eth0`.
    pub fn mac(&self) -> Mac {
        self.link(ETH0).and_then(|link| link.mac).expect("it is never removed")
    }

    /// What a process is shown.
    fn network(&self, moment: Moment) -> Network {
        let at = moment.kernel;
        let addresses = self.addresses.iter().map(|(address, until)| Address {
            valid: until.map_or(AddressLifetime::Forever, |until| {
                AddressLifetime::For(Duration::from_secs(until.saturating_sub(at).as_secs()))
            }),
            ..*address
        });
        Network {
            links: self.links.clone(),
            addresses: addresses.collect(),
            default_route: Some(ETH0),
            gateway: Some(GATEWAY.into()),
            lease_ends: self
                .links
                .iter()
                .filter(|link| matches!(link.kind, LinkKind::Macvlan { .. }))
                .filter_map(|link| Some((link.index, lease_end(link.alias.as_deref()?, moment.boot)?)))
                .collect(),
            ..Network::default()
        }
    }

    /// The interface with this index.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }

    /// The interface below, for a macvlan; the interface itself otherwise.
    pub fn lower(&self, index: u32) -> u32 {
        match self.link(index).map(|link| &link.kind) {
            Some(LinkKind::Macvlan { parent, .. }) => *parent,
            _ => index,
        }
    }

    /// The cable of the NIC towards a LAN comes out or goes in.
    pub fn set_carrier(&mut self, lan: Lan, carrier: bool) {
        let there = |link: &Link| match link.kind {
            LinkKind::Macvlan { parent, .. } => parent == nic(lan),
            _ => link.index == nic(lan),
        };
        for link in self.links.iter_mut().filter(|link| there(link)) {
            link.carrier = carrier;
            link.state = if carrier { OperState::Up } else { OperState::Down };
        }
    }

    /// MACs that answer for `address`.
    pub fn answers(&self, address: IpAddr) -> impl Iterator<Item = Mac> {
        self.addresses
            .iter()
            .filter(move |(own, _)| own.net.addr() == address)
            .filter_map(|(own, _)| self.link(own.interface)?.mac)
    }

    /// MACs that answer for `address` in a LAN.
    fn answers_in(&self, lan: Lan, address: IpAddr) -> impl Iterator<Item = Mac> {
        let there = move |own: &Address| own.net.addr() == address && self.lower(own.interface) == nic(lan);
        self.addresses.iter().filter(move |(own, _)| there(own)).filter_map(|(own, _)| self.link(own.interface)?.mac)
    }

    /// What the kernel sends back when it gets this frame from a LAN.
    pub fn reply(&self, lan: Lan, bytes: &[u8]) -> Vec<Vec<u8>> {
        let Some(found) = arp::parse_frame(bytes) else { return self.reply6(lan, bytes) };
        let asks = found.arp.operation == arp::Operation::Request && found.arp.sender_ip != found.arp.target_ip;
        if !asks {
            return Vec::new();
        }
        // As with `arp_ignore=1` on the parent of a macvlan: only the interface that has the address answers.
        let meant = |mac: &Mac| found.ethernet.destination == *mac || found.ethernet.destination.is_multicast();
        self.answers_in(lan, found.arp.target_ip.into())
            .filter(meant)
            .map(|mac| Arp::answer(&found.arp, mac).frame(found.arp.sender_mac).to_vec())
            .collect()
    }

    /// The same for neighbour discovery: whoever asks from `::` is answered before everybody.
    fn reply6(&self, lan: Lan, bytes: &[u8]) -> Vec<Vec<u8>> {
        let Some(found) = ndp::parse_frame(bytes) else { return Vec::new() };
        let Message::Solicitation { source_mac } = found.ndp.message else { return Vec::new() };
        let (target, asker) = (found.ndp.target, found.ndp.source);
        let meant = |mac: &Mac| found.ethernet.destination == *mac || found.ethernet.destination.is_multicast();
        let answer = |mac: Mac| {
            if asker.is_unspecified() {
                let to_all = Ndp::announcement(mac, target);
                return to_all.frame(mac, to_all.group_mac().expect("it goes to a group"));
            }
            let solicited = true;
            let message =
                Message::Advertisement { router: false, solicited, override_entry: true, target_mac: Some(mac) };
            let back = source_mac.unwrap_or(found.ethernet.source);
            Ndp { source: target, destination: asker, target, message }.frame(mac, back)
        };
        self.answers_in(lan, Ipv6Addr::into(target)).filter(meant).map(answer).collect()
    }

    /// Whether it answers for `address`.
    pub fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| own.net.addr() == address)
    }

    /// Addresses and macvlans with the announcer's mark.
    pub fn marked(&self) -> Vec<String> {
        let addresses = self.addresses.iter().filter(|(own, _)| own.is_ours()).map(|(own, _)| own.net.to_string());
        let links = self.links.iter().filter(|link| matches!(link.kind, LinkKind::Macvlan { .. }));
        addresses.chain(links.map(|link| link.name.clone())).collect()
    }

    /// How often what has the announcer's mark has changed.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Addresses with the announcer's mark.
    pub fn ours(&self) -> impl Iterator<Item = Own<'_>> {
        self.addresses.iter().filter(|(own, _)| own.is_ours()).map(|(own, until)| {
            let macvlan = self.link(own.interface).filter(|link| matches!(link.kind, LinkKind::Macvlan { .. }));
            let lessee = macvlan.and_then(|link| link.alias.as_deref()).map(owner_in);
            Own { address: own.net.addr(), until: *until, lessee }
        })
    }

    /// What stands on the macvlan of the Service with this UID.
    pub fn leased(&self, uid: &str) -> impl Iterator<Item = IpAddr> {
        self.ours().filter(move |own| own.lessee == Some(uid)).map(|own| own.address)
    }

    /// Removes what has come to its end; true if there was something.
    pub fn expire(&mut self, at: Duration) -> bool {
        let before = self.addresses.len();
        self.addresses.retain(|(_, until)| until.is_none_or(|until| until > at));
        self.changes += u64::from(self.addresses.len() != before);
        self.addresses.len() != before
    }

    /// The next end of an address.
    pub fn next_end(&self) -> Option<Duration> {
        self.addresses.iter().filter_map(|(_, until)| *until).min()
    }

    /// Performs one request.
    pub fn perform(&mut self, moment: Moment, op: KernelOp) -> Option<KernelDone> {
        match op {
            KernelOp::Observe => Some(KernelDone::Observed(Ok(self.network(moment)))),
            KernelOp::Extend(puts) => {
                Some(KernelDone::Extended(puts.iter().map(|put| (put.link, put.net, self.put(moment, put))).collect()))
            }
            KernelOp::Put(puts) => {
                Some(KernelDone::Put(puts.iter().map(|put| (put.link, put.net, self.put(moment, put))).collect()))
            }
            KernelOp::Remove(unwanted) => {
                self.changes += 1;
                self.addresses.retain(|(own, _)| !unwanted.contains(&(own.interface, own.net)));
                None
            }
            KernelOp::Macvlan(uid, wanted, resumed) => {
                let found = self.links.iter().find(|link| link.name == wanted.name).cloned();
                if let Some(found) = found {
                    if !is_macvlan_of(&found, &uid) {
                        let text = name_is_taken(&wanted.name, &uid);
                        return Some(KernelDone::Macvlan(uid, Err(text)));
                    }
                    if misfit(&found, &uid, &wanted).is_none() {
                        return Some(KernelDone::Macvlan(uid, Ok((found.index, wanted.mac))));
                    }
                    self.delete(found.index);
                }
                let Some(parent) = self.link(wanted.parent).cloned() else {
                    return Some(KernelDone::Macvlan(uid, Err("no such parent".to_owned())));
                };
                self.next_index += 1;
                self.changes += 1;
                self.links.push(Link {
                    index: self.next_index,
                    name: wanted.name,
                    mac: Some(wanted.mac),
                    kind: LinkKind::Macvlan { parent: wanted.parent, mode: MacvlanMode::Bridge },
                    alias: Some(wanted.alias),
                    ..parent
                });
                if let Some((net, AddressLifetime::For(valid))) =
                    resumed.and_then(|resumed| resumed.first_address(moment.api))
                {
                    let put = Put { link: self.next_index, net, valid, until: None };
                    self.put(moment, &put).expect("the interface was just made");
                }
                Some(KernelDone::Macvlan(uid, Ok((self.next_index, wanted.mac))))
            }
            KernelOp::Note { link, uid, end } => {
                if let Some(found) = self.links.iter_mut().find(|found| found.index == link) {
                    found.alias = Some(alias(&uid, end, moment.boot));
                }
                None
            }
            KernelOp::Delete { link } => {
                self.delete(link);
                None
            }
            KernelOp::Prepare { link } => Some(KernelDone::Prepared(link, Ok(InetConf::default()))),
            KernelOp::Protect(_) => Some(KernelDone::Protected(Ok(()))),
            KernelOp::Restore { .. } => None,
        }
    }

    fn put(&mut self, moment: Moment, put: &Put) -> Result<(), String> {
        if self.link(put.link).is_none() {
            return Err("no such interface".to_owned());
        }
        // As in `l2`: whole seconds, cut off, at least one.
        let valid = Duration::from_secs(put.valid.as_secs().max(1));
        let address = Address {
            interface: put.link,
            net: put.net,
            valid: AddressLifetime::For(valid),
            preferred: AddressLifetime::For(Duration::ZERO),
            protocol: Some(OUR_ADDRESS_PROTOCOL),
            tentative: false,
            duplicate: false,
            nodad: false,
            metric: put.until.map(|end| noted(end, moment.boot)),
        };
        let before = self.addresses.len();
        self.addresses.retain(|(own, _)| (own.interface, own.net) != (put.link, put.net));
        self.changes += u64::from(self.addresses.len() == before);
        self.addresses.push((address, Some(moment.kernel + valid)));
        Ok(())
    }

    /// Addresses are taken away by somebody's hand.
    pub fn drop_addresses(&mut self, addresses: &[IpAddr]) {
        self.changes += 1;
        self.addresses.retain(|(own, _)| !addresses.contains(&own.net.addr()));
    }

    fn delete(&mut self, index: u32) {
        self.changes += 1;
        self.links.retain(|link| link.index != index);
        self.addresses.retain(|(own, _)| own.interface != index);
    }
}
