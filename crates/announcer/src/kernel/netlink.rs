//! [`Kernel`] through rtnetlink.

use announcer_core::engine::{KernelDone, KernelOp, Put};
use announcer_core::network::{
    self, Network, has_no_macvlan, is_macvlan_of, mac_is_taken, misfit, name_is_taken, was_left_for,
};
use announcer_core::security::Protection;
use announcer_core::view::Uid;
use ipnet::IpNet;
use l2::netlink::{AddressLifetime, InetConf, InetConfChange, LinkKind, Macvlan, NewAddress};
use l2::{Mac, Netlink, Nftables};
use runtime::error::chain;
use tokio::sync::OnceCell;

use super::{Kernel, ruleset};
use crate::api_time::ApiTime;
use crate::clock;

/// Settings of an interface that carries VIPs: it answers only for its own addresses, and never uses a VIP as the
/// source of an ARP request (decisions.md 27).
const PARENT: InetConfChange = InetConfChange { arp_ignore: Some(1), arp_announce: Some(2), rp_filter: None };

/// [`Kernel`] on this machine's network namespace.
#[derive(Debug, Clone)]
pub struct NetlinkKernel {
    netlink: Netlink,
    time: ApiTime,
    /// Opened at first use, so that everything else works without nftables in the kernel.
    nftables: OnceCell<Nftables>,
}

impl NetlinkKernel {
    /// Uses this socket. `time` judges the ends of recorded leases.
    pub fn new(netlink: Netlink, time: ApiTime) -> Self {
        Self { netlink, time, nftables: OnceCell::new() }
    }

    async fn observe(&self) -> Result<Network, String> {
        let read = async {
            let links = self.netlink.links().await?;
            let boot = clock::boot();
            let lease_ends = links
                .iter()
                .filter(|link| matches!(link.kind, LinkKind::Macvlan { .. }))
                .filter_map(|link| Some((link.index, network::lease_end(link.alias.as_deref()?, boot)?)))
                .collect();
            let addresses = self.netlink.addresses(None).await?;
            let address_ends = addresses
                .iter()
                // Kernels before 5.18 keep no marks.
                .filter(|address| address.is_ours() || address.protocol.is_none())
                .filter_map(|own| Some(((own.interface, own.net.addr()), network::moment(own.metric?, boot))))
                .collect();
            let default = self.netlink.default_route().await?;
            Ok::<_, l2::netlink::NetlinkError>(Network {
                links,
                addresses,
                default_route: default.map(|route| route.interface),
                gateway: default.and_then(|route| route.gateway),
                lease_ends,
                address_ends,
            })
        };
        read.await.map_err(|error| chain(&error))
    }

    /// Sets all addresses in one request, so that 200 addresses cost one round.
    async fn put(&self, puts: Vec<Put>) -> Vec<(u32, IpNet, Result<(), String>)> {
        let wanted: Vec<_> = puts
            .iter()
            .map(|put| NewAddress {
                interface: put.link,
                net: put.net,
                valid: AddressLifetime::For(put.valid),
                metric: put.until.map(|end| network::noted(end, clock::boot())),
            })
            .collect();
        let results = self.netlink.set_addresses(&wanted).await;
        let of = |(put, result): (Put, Result<(), l2::netlink::NetlinkError>)| {
            (put.link, put.net, result.map_err(|error| chain(&error)))
        };
        puts.into_iter().zip(results).map(of).collect()
    }

    /// Adopts the existing macvlan if it is right, otherwise makes it again (kube-vip spec 10.5 item 12).
    async fn macvlan(&self, uid: &Uid, wanted: &Macvlan) -> Result<(u32, Mac), String> {
        let made = async {
            if let Some(found) = self.netlink.link_by_name(&wanted.name).await? {
                let left = async {
                    let addresses = self.netlink.addresses(Some(found.index)).await?;
                    Ok::<_, l2::netlink::NetlinkError>(was_left_for(&found, &addresses, wanted))
                };
                if !is_macvlan_of(&found, uid) && !left.await? {
                    return Ok(Err(name_is_taken(&wanted.name, uid)));
                }
                match misfit(&found, uid, wanted) {
                    None => {
                        if found.alias.is_none() {
                            self.netlink.set_alias(found.index, &wanted.alias).await?;
                        }
                        let current = self.netlink.inet_conf(found.index).await?;
                        self.netlink.set_inet_conf(found.index, wanted.inet_conf.difference(current)).await?;
                        if !found.up {
                            self.netlink.set_up(found.index).await?;
                        }
                        return Ok::<_, l2::netlink::NetlinkError>(Ok(found.index));
                    }
                    Some(mismatch) => {
                        tracing::info!(
                            interface = wanted.name,
                            why = %mismatch,
                            "the macvlan is not as it should be; the announcer creates it again"
                        );
                        self.netlink.delete_link(found.index).await?;
                    }
                }
            }
            Ok(Ok(self.netlink.add_macvlan(wanted).await?))
        };
        match made.await {
            Ok(made) => made.map(|index| (index, wanted.mac)),
            Err(error) if error.is_mac_in_use() => Err(mac_is_taken(wanted.mac)),
            Err(error) if error.is_unsupported() => Err(has_no_macvlan(&chain(&error))),
            Err(error) => Err(chain(&error)),
        }
    }

    async fn protect(&self, wanted: Protection) -> Result<(), String> {
        let nftables = self
            .nftables
            .get_or_try_init(async || Nftables::open(ruleset::TABLE))
            .await
            .map_err(|error| chain(&error))?;
        nftables.keep(ruleset::table(&wanted)).await.map_err(|error| chain(&error))
    }

    async fn prepare(&self, link: u32) -> Result<InetConf, String> {
        let prepared = async {
            let before = self.netlink.inet_conf(link).await?;
            self.netlink.set_inet_conf(link, PARENT.difference(before)).await?;
            Ok::<_, l2::netlink::NetlinkError>(before)
        };
        let before = prepared.await.map_err(|error| chain(&error))?;
        Ok(original(before, default_conf()))
    }
}

/// The settings that an interface had before the announcer. If it already has our values, an earlier announcer has set
/// them, and the namespace's default is the best guess. (If an administrator has set them for all interfaces, the
/// default has the same values.)
fn original(before: InetConf, default: Option<InetConf>) -> InetConf {
    match default {
        Some(default) if PARENT.difference(before).is_empty() => {
            InetConf { arp_ignore: default.arp_ignore, arp_announce: default.arp_announce, ..before }
        }
        _ => before,
    }
}

fn default_conf() -> Option<InetConf> {
    let read = |name: &str| {
        std::fs::read_to_string(format!("/proc/sys/net/ipv4/conf/default/{name}")).ok()?.trim().parse().ok()
    };
    Some(InetConf { arp_ignore: read("arp_ignore")?, arp_announce: read("arp_announce")?, rp_filter: 0 })
}

impl Kernel for NetlinkKernel {
    async fn perform(&self, op: KernelOp) -> Option<KernelDone> {
        match op {
            KernelOp::Observe => Some(KernelDone::Observed(self.observe().await)),
            KernelOp::Put(puts) => Some(KernelDone::Put(self.put(puts).await)),
            KernelOp::Extend(puts) => Some(KernelDone::Extended(self.put(puts).await)),
            KernelOp::Remove(unwanted) => {
                let results = self.netlink.remove_addresses(&unwanted).await;
                for ((link, net), result) in unwanted.into_iter().zip(results) {
                    let Err(error) = result else { continue };
                    tracing::warn!(
                        link,
                        address = %net,
                        error = %chain(&error),
                        "the announcer cannot remove the address; the kernel removes it when its lifetime ends"
                    );
                }
                None
            }
            KernelOp::Macvlan(uid, wanted, resumed) => {
                let address = resumed.and_then(|resumed| resumed.first_address(self.time.latest()));
                let made = self.macvlan(&uid, &Macvlan { address, ..wanted }).await;
                Some(KernelDone::Macvlan(uid, made))
            }
            KernelOp::Note { link, uid, end } => {
                let alias = network::alias(&uid, end, clock::boot());
                // The interface may just have been deleted. A restart then knows less, and nothing else is lost.
                if let Err(error) = self.netlink.set_alias(link, &alias).await {
                    tracing::debug!(
                        link,
                        error = %chain(&error),
                        "the announcer cannot write the end of a DHCP lease into the alias of the interface"
                    );
                }
                None
            }
            KernelOp::Delete { link } => {
                if let Err(error) = self.netlink.delete_link(link).await {
                    tracing::warn!(
                        link,
                        error = %chain(&error),
                        "the announcer cannot delete a macvlan; it tries again later"
                    );
                }
                None
            }
            KernelOp::Protect(wanted) => Some(KernelDone::Protected(self.protect(wanted).await)),
            KernelOp::Prepare { link } => Some(KernelDone::Prepared(link, self.prepare(link).await)),
            KernelOp::Restore { link, conf } => {
                let change = |value: i32| u32::try_from(value).ok();
                let back = InetConfChange {
                    arp_ignore: change(conf.arp_ignore),
                    arp_announce: change(conf.arp_announce),
                    rp_filter: None,
                };
                // The interface may have been deleted together with its settings.
                if let Err(error) = self.netlink.set_inet_conf(link, back).await {
                    tracing::debug!(
                        link,
                        error = %chain(&error),
                        "the announcer cannot restore the settings of the interface"
                    );
                }
                None
            }
        }
    }
}

/// What does not work because of the settings for all interfaces (decisions.md 27): the larger of the two values takes
/// effect.
pub fn obstacles(all: InetConf) -> Vec<String> {
    let mut found = Vec::new();
    if all.arp_ignore >= 2 {
        found.push(format!(
            "net.ipv4.conf.all.arp_ignore is {}: hosts outside a VIP's subnet, or all, get no answer for it; set it to \
            0 or 1",
            all.arp_ignore
        ));
    }
    found
}

/// The same for a setting that only matters to Services that ask for it; it is the default of many distributions.
pub fn strict_filter(all: InetConf) -> Option<&'static str> {
    (all.rp_filter == 1).then_some(
        "net.ipv4.conf.all.rp_filter is 1 (strict): it is raised to 2 on the macvlans of DHCP addresses, but a Service \
         with annotation kube-vip.io/rp_filter 0 or 1 gets no traffic",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_former_life_are_not_taken_for_the_original_ones() {
        let conf = |arp_ignore, arp_announce| InetConf { arp_ignore, arp_announce, rp_filter: 2 };
        assert_eq!(original(conf(0, 0), Some(conf(0, 0))), conf(0, 0));
        assert_eq!(original(conf(0, 1), Some(conf(0, 0))), conf(0, 1));
        assert_eq!(original(conf(1, 2), Some(conf(0, 0))), conf(0, 0));
        assert_eq!(original(conf(1, 2), Some(conf(1, 2))), conf(1, 2));
        assert_eq!(original(conf(1, 2), None), conf(1, 2));
    }

    #[test]
    fn settings_that_defeat_us_are_named() {
        assert!(obstacles(InetConf { arp_ignore: 1, arp_announce: 2, rp_filter: 2 }).is_empty());
        assert!(obstacles(InetConf { arp_ignore: 8, ..InetConf::default() })[0].contains("arp_ignore is 8"));
        let strict = InetConf { rp_filter: 1, ..InetConf::default() };
        assert!(obstacles(strict).is_empty() && strict_filter(strict).is_some());
    }
}
