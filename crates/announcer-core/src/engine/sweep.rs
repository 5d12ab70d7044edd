//! Addresses and macvlans that an earlier process or kube-vip left on this node. They are kept while their owner is
//! unknown, and removed if they do not belong here.
//!
//! Without this, the addresses of a crashed announcer would answer for ever beside those of the new owner (kube-vip
//! spec 10.1 rows 2 and 3).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use l2_types::{Address, AddressLifetime, Link, LinkKind};

use super::{Engine, Put};
use crate::annotations::AddressRequest;
use crate::claim::tag;
use crate::fence::LEFT_BEHIND;
use crate::frames::Frame;
use crate::network::{LeaseEnd, Network, is_own_macvlan, looks_like_a_vip, owner_in};
use crate::plan::VipId;
use crate::reason::Reason;
use crate::view::{ServiceView, Uid, is_on_record};

/// How long an address without our mark, which kube-vip set without a lifetime, may wait on an adopted macvlan until
/// its client confirms the lease.
const CONFIRM_LIMIT: Duration = Duration::from_mins(1);

/// What belongs to Services whose owner is undecided. It is kept as it is.
struct Doubtful {
    links: BTreeSet<u32>,
    addresses: BTreeSet<IpAddr>,
}

impl Doubtful {
    fn has(&self, address: &Address) -> bool {
        self.links.contains(&address.interface) || self.addresses.contains(&address.net.addr())
    }
}

/// Tells addresses that announcers have set from those of others: by their mark or, where the kernel keeps none, by
/// their lifetimes.
struct OfAnnouncers<'a> {
    network: &'a Network,
    fence: Duration,
    /// The addresses in the status of Services, which authors may not write. Empty if the kernel keeps marks.
    known: BTreeSet<IpAddr>,
    /// Services or owners are not known yet.
    early: bool,
}

impl OfAnnouncers<'_> {
    /// Whether an announcer has certainly set this address. It may be removed.
    fn proved(&self, address: &Address) -> bool {
        let longest = self.fence.max(LEFT_BEHIND);
        address.is_ours()
            || (self.known.contains(&address.net.addr()) && self.network.has_lifetimes_of_a_vip(address, longest))
    }

    /// The same, or very likely while too little is known to prove it.
    fn likely(&self, address: &Address) -> bool {
        self.proved(address) || (self.early && self.network.is_ours_without_mark(address, self.fence))
    }
}

/// All addresses that a Service has, had or asks for.
fn known_addresses(view: &ServiceView) -> impl Iterator<Item = IpAddr> + '_ {
    let given = view.wanted.iter().filter_map(|wanted| match wanted {
        AddressRequest::Static(address) => Some(*address),
        AddressRequest::Dhcp4 | AddressRequest::Dhcp6 => None,
    });
    given
        .chain(view.published.ingress.iter().filter_map(|ingress| ingress.ip))
        .chain(view.last_leased().map(IpAddr::V4))
        .chain(view.dhcp.lease6.as_ref().map(|lease| lease.address.into()))
}

/// Message for the author of a Service whose address is also on an interface where its record has never put it.
fn not_on_record(net: IpNet, interface: &str, node: &str) -> String {
    format!(
        "address {} of this Service is also set on interface {interface} of node {node}, and neither a mark nor the \
        Service's record says that an announcer has set it: the announcer leaves it there, and that node may answer \
        clients. Find the program that has set it (a kube-vip, its control plane's VIP, another daemon), or remove it \
        on that node: ip address del {net} dev {interface}",
        net.addr()
    )
}

fn is_macvlan(link: &Link) -> bool {
    matches!(link.kind, LinkKind::Macvlan { .. })
}

impl Engine {
    fn doubtful(&self, network: &Network) -> Doubtful {
        let views: Vec<&ServiceView> = self.plan.undecided.iter().filter_map(|key| self.services.get(key)).collect();
        let addresses: BTreeSet<IpAddr> = views.iter().flat_map(|view| known_addresses(view)).collect();
        let uids: BTreeSet<&str> = views.iter().map(|view| view.uid.0.as_str()).collect();
        let names: BTreeSet<String> =
            views.iter().map(|view| view.dhcp.link_name.clone().unwrap_or_else(|| view.uid.link_name())).collect();
        // A Service that shares a lease knows only the address, so the macvlan is found by the address.
        let carrying: BTreeSet<u32> = network
            .addresses
            .iter()
            .filter(|address| addresses.contains(&address.net.addr()))
            .map(|address| address.interface)
            .collect();
        let its = |link: &Link| {
            carrying.contains(&link.index)
                || names.contains(&link.name)
                || link.alias.as_deref().is_some_and(|alias| uids.contains(owner_in(alias)))
        };
        let links = network.links.iter().filter(|link| is_macvlan(link) && its(link)).map(|link| link.index).collect();
        Doubtful { links, addresses }
    }

    fn of_announcers<'a>(&self, network: &'a Network) -> OfAnnouncers<'a> {
        let told = self.services.values().flat_map(|view| &view.published.ingress).filter_map(|ingress| ingress.ip);
        let known = if network.keeps_no_marks() { told.collect() } else { BTreeSet::new() };
        OfAnnouncers { network, fence: self.config.fence(), known, early: self.unknown().is_some() }
    }

    /// Addresses of announcers that no VIP carries, or not yet.
    pub(super) fn orphans(&self) -> Vec<Address> {
        let carried: BTreeSet<(u32, IpNet)> =
            self.vips.values().filter_map(|vip| vip.carrier).map(|carrier| (carrier.link, carrier.net)).collect();
        let Some(network) = self.observer.network() else { return Vec::new() };
        let of_announcers = self.of_announcers(network);
        network
            .addresses
            .iter()
            .filter(|address| !carried.contains(&(address.interface, address.net)) && of_announcers.likely(address))
            .filter(|address| !self.observer.is_removed(address))
            .copied()
            .collect()
    }

    /// Extends the lifetime of orphans while their owner is unknown, for a bounded time, so that a restart costs no
    /// address. A DHCP lease is not extended beyond its end, which is noted on the macvlan or, for DHCPv6, on the
    /// address; on a macvlan without a note the lifetime stays. After a pause of this process, only addresses that were
    /// read again count. Extending an address that the kernel has removed would set it again without a probe, while
    /// another node may have it.
    pub(super) fn keep_orphans(&self, now: Instant) -> Vec<Put> {
        let ready = self.unknown().is_none();
        let undecided = !ready || !self.plan.undecided.is_empty();
        let kept = undecided && !self.observer.is_stale() && self.refresh.may_keep_undecided(now);
        if !kept || self.shutdown.has_begun() {
            return Vec::new();
        }
        let Some(network) = self.observer.network() else { return Vec::new() };
        let doubtful = self.doubtful(network);
        let (since, fence) = (self.observer.age(now), self.config.fence());
        self.orphans()
            .into_iter()
            .filter(|orphan| !ready || doubtful.has(orphan))
            .filter(|orphan| !self.refresh.is_let_go(orphan))
            // A process that ended in order has left a longer lifetime, which must not be shortened.
            .filter(|orphan| !matches!(orphan.valid, AddressLifetime::For(left) if left > fence + since))
            .filter_map(|orphan| {
                let left = match network.lease_end_of(&orphan) {
                    Some(LeaseEnd::At(end)) => end.saturating_duration_since(now),
                    None if is_macvlan(network.link(orphan.interface)?) => return None,
                    Some(LeaseEnd::Never) | None => Duration::MAX,
                };
                // The kernel's minimum is one second.
                (left >= Duration::from_secs(1)).then(|| Put {
                    link: orphan.interface,
                    net: orphan.net,
                    valid: fence.min(left),
                    until: network.address_ends.get(&(orphan.interface, orphan.net.addr())).copied(),
                })
            })
            .collect()
    }

    /// Whether an orphan is a lease that a confirmed record gives to this node and that its client is about to
    /// continue. A former owner, which may just have started too, repeats its announcements until it hears ours.
    fn is_being_taken_up(&self, orphan: &Address) -> bool {
        let Some(link) = self.observer.network().and_then(|network| network.link(orphan.interface)) else {
            return false;
        };
        let leased = self.vips.range(VipId::Dhcp(Uid::default())..);
        let mut ours = leased.filter(|(_, vip)| self.is_confirmed(&vip.members));
        ours.any(|(_, vip)| {
            let on_macvlan = vip.source.dhcp4().is_some_and(|dhcp| dhcp.name == link.name);
            let awaited = vip.source.dhcp6().and_then(|dhcp| dhcp.lease.recorded.as_ref());
            on_macvlan
                || (vip.place == Some(link.index)
                    && awaited.is_some_and(|facts| IpAddr::V6(facts.address) == orphan.net.addr()))
        })
    }

    /// Another host announces an orphan, so the orphan is removed. In `node` mode this needs a tagged claim, which this
    /// node cannot check before it has read the Service. Announcements of strangers do not count there. An orphan that
    /// may be another program's address is not extended any more instead.
    pub(super) fn orphan_claimed(&mut self, frame: &Frame) {
        let Frame { link, address, mac, .. } = *frame;
        let is_tagged = tag::is_tagged(frame.payload.as_ref());
        if self.cluster().is_some() && !is_tagged {
            return;
        }
        // A macvlan has the same MAC on every node. Orphans announce nothing, so a frame from that MAC comes from
        // another node.
        let own = self.observer.network().and_then(|network| network.link(link));
        if own.is_some_and(|own| own.mac == Some(mac) && !is_macvlan(own)) {
            return;
        }
        let Some(network) = self.observer.network() else { return };
        // Most announcements on a network are about other addresses.
        let here =
            |found: &Address| found.net.addr() == address && found.preferred == AddressLifetime::For(Duration::ZERO);
        if !network.addresses.iter().any(here) {
            return;
        }
        let of_announcers = self.of_announcers(network);
        let claimed: Vec<(Address, bool)> = self
            .orphans()
            .into_iter()
            .filter(|orphan| orphan.net.addr() == address)
            .filter(|orphan| orphan.interface == link || network.parent_of(orphan.interface) == Some(link))
            .filter(|orphan| !self.is_being_taken_up(orphan))
            .map(|orphan| (orphan, is_tagged || of_announcers.proved(&orphan)))
            .collect();
        for (orphan, proved) in claimed {
            if !proved {
                self.refresh.let_go(&orphan);
                continue;
            }
            tracing::warn!(
                %address,
                %mac,
                "another host announces an address that an earlier process of the announcer left on this node; the \
                announcer removes it"
            );
            self.remove_address(orphan.interface, orphan.net);
        }
    }

    /// Macvlans of announcers and kube-vips that belong to no Service of this node.
    fn strays<'a>(&self, network: &'a Network, doubtful: &Doubtful, beside_kube_vip: bool) -> Vec<&'a Link> {
        let names: BTreeSet<&str> =
            self.vips.values().filter_map(|vip| Some(vip.source.dhcp4()?.name.as_str())).collect();
        let leaving = self.dhcp.leaving_links();
        let uids: BTreeSet<&str> = self.services.values().map(|view| view.uid.0.as_str()).collect();
        // Another class may be served by a kube-vip, which writes no alias and need not hold the Lease.
        let left = |link: &Link| !beside_kube_vip && !self.services.is_macvlan_of_others(&link.name);
        let ours = |link: &Link| {
            (is_own_macvlan(link) && (link.alias.is_some() || left(link)))
                || (is_macvlan(link) && link.alias.as_deref().is_some_and(|alias| uids.contains(owner_in(alias))))
        };
        let used = |link: &Link| {
            names.contains(link.name.as_str()) || leaving.contains(&link.index) || doubtful.links.contains(&link.index)
        };
        network.links.iter().filter(|link| ours(link) && !used(link)).collect()
    }

    /// Removes what does not belong here. It needs the Services and their owners. Items of undecided Services are left
    /// alone, and only these: a Lease that cannot be read must not keep everything else here for ever.
    pub(super) fn sweep(&mut self, now: Instant) {
        let Some(network) = self.observer.network().filter(|_| self.unknown().is_none()) else { return };
        let doubtful = self.doubtful(network);
        // decisions.md 19: what has neither mark nor alias of ours belongs to a kube-vip on this node.
        let beside_kube_vip = self.ownership.is_beside_kube_vip(now);
        let leaving = self.dhcp.leaving_links();
        let (mut links, mut addresses, mut told) = (Vec::new(), Vec::new(), Vec::new());
        let mut doomed = BTreeSet::new();
        for link in self.strays(network, &doubtful, beside_kube_vip) {
            doomed.insert(link.index);
            if !self.observer.is_deleted(link.index) {
                tracing::info!(
                    interface = link.name,
                    "the announcer removes a macvlan that belongs to no Service of this node"
                );
                links.push(link.index);
            }
        }
        let carried: BTreeSet<(u32, IpNet)> =
            self.vips.values().filter_map(|vip| vip.carrier).map(|carrier| (carrier.link, carrier.net)).collect();
        let on_record = |address| is_on_record(&self.services, &self.config.node_name, address);
        let left = |address: &Address| network.is_left_over(address, on_record) || self.node_mode.left.has(address);
        let (awaited, confirming4) = (self.awaited6(), self.confirming4(now));
        let of_announcers = self.of_announcers(network);
        for address in &network.addresses {
            let Some(link) = network.link(address.interface) else { continue };
            let proved = of_announcers.proved(address);
            if !beside_kube_vip && !proved && looks_like_a_vip(address, link) && !left(address) {
                let answered = self.services.values().filter(|view| view.published.has(address.net.addr()));
                told.extend(
                    answered
                        .map(|view| (view.key.clone(), not_on_record(address.net, &link.name, &self.config.node_name))),
                );
            }
            let candidate = proved || (!beside_kube_vip && left(address));
            // What an announcer has set has a lifetime, so the kernel ends the wait, however late the API answers.
            let confirming = if proved {
                confirming4.contains_key(link.name.as_str()) || awaited.contains(&(link.index, address.net.addr()))
            } else {
                confirming4.get(link.name.as_str()).is_some_and(|adopted| now < *adopted + CONFIRM_LIMIT)
            };
            if !candidate
                || confirming
                || doubtful.has(address)
                || carried.contains(&(address.interface, address.net))
                || doomed.contains(&address.interface)
                || leaving.contains(&address.interface)
            {
                continue;
            }
            if !self.observer.is_removed(address) {
                tracing::info!(
                    address = %address.net,
                    interface = link.name,
                    "the announcer removes an address that belongs to no Service of this node"
                );
                addresses.push((address.interface, address.net));
            }
        }
        for link in links {
            self.delete_link(link);
        }
        for (link, net) in addresses {
            self.remove_address(link, net);
        }
        for (key, text) in told {
            self.out.warn(now, &key, Reason::AddressConflict, &text);
        }
    }
}
