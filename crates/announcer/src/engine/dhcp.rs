//! What a DHCP VIP has beyond a static one: its macvlan, its client, its lease.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use ipnet::{IpNet, Ipv4Net};
use l2::Mac;
use l2::netlink::{InetConfChange, LinkKind, Macvlan};

use super::vip::Carrier;
use super::{Action, DhcpEvent, DhcpStart, Engine, Leased, Tell, WireOp};
use crate::annotations::LeaseFacts;
use crate::plan::VipId;
use crate::view::{DhcpWishes, Uid};

const FAILED_RETRY: Duration = Duration::from_secs(5);
/// How long the macvlan waits for its client to have sent the RELEASE.
const RELEASE_WAIT: Duration = Duration::from_secs(1);
/// A renewal is written down when it moves the end of the lease by this much: short leases must not cost the API a
/// write per renewal.
const FACTS_STEP: Duration = Duration::from_mins(1);
/// How often one kind of trouble is told.
const REPORT_INTERVAL: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MacvlanState {
    Absent,
    Making,
    /// Index, and from which observation on it must be visible.
    Ready(u32, u64),
    Failed {
        until: Instant,
    },
}

/// The DHCP side of a VIP.
#[derive(Debug)]
pub(super) struct Dhcp {
    pub wishes: DhcpWishes,
    name: String,
    pub mac: Mac,
    pub macvlan: MacvlanState,
    running: bool,
    pub leased: Option<Leased>,
    /// The lease facts that should stand on the Service.
    pub facts: Option<LeaseFacts>,
    pub state: &'static str,
    retry: Option<Instant>,
}

/// A macvlan that is about to go.
#[derive(Debug)]
pub(super) struct Leaving {
    link: u32,
    /// Still on it: must not be set anywhere else meanwhile.
    address: Option<Ipv4Addr>,
    pub until: Instant,
}

impl Leaving {
    pub fn link(&self) -> u32 {
        self.link
    }
}

impl Dhcp {
    pub fn deadline(&self) -> Option<Instant> {
        let macvlan = match self.macvlan {
            MacvlanState::Failed { until } => Some(until),
            _ => None,
        };
        macvlan.into_iter().chain(self.retry).min()
    }

    /// Whether something that waited is due.
    pub fn wake(&mut self, now: Instant) -> bool {
        let mut due = false;
        if matches!(self.macvlan, MacvlanState::Failed { until } if until <= now) {
            self.macvlan = MacvlanState::Absent;
            due = true;
        }
        if self.retry.is_some_and(|at| at <= now) {
            self.retry = None;
            due = true;
        }
        due
    }

    fn link(&self) -> Option<u32> {
        match self.macvlan {
            MacvlanState::Ready(link, _) => Some(link),
            _ => None,
        }
    }

    pub fn link_name(&self) -> &str {
        &self.name
    }
}

impl Engine {
    /// DHCP VIPs that are here, with the addresses they have.
    pub(super) fn leases(&self) -> BTreeMap<Uid, Option<Ipv4Addr>> {
        let address = |dhcp: &Dhcp| dhcp.leased.as_ref().map(|leased| leased.facts.address);
        self.vips
            .iter()
            .filter_map(|(id, vip)| match (id, &vip.dhcp) {
                (VipId::Dhcp(uid), Some(dhcp)) => Some((uid.clone(), address(dhcp))),
                _ => None,
            })
            .collect()
    }

    pub(super) fn is_leaving(&self, id: &VipId) -> bool {
        match id {
            VipId::Dhcp(uid) => self.leaving.contains_key(uid),
            VipId::Static(address) => {
                self.leaving.values().any(|leaving| leaving.address.map(IpAddr::V4) == Some(*address))
            }
        }
    }

    pub(super) fn place_dhcp(&mut self, now: Instant, uid: &Uid, place: Option<u32>) {
        let id = VipId::Dhcp(uid.clone());
        let planned = self.plan.vips[&id].dhcp.clone();
        let network = self.network.as_ref().expect("planned only with a network");
        let vip = self.vips.get_mut(&id).expect("it is there");
        let before = vip.place;
        vip.place = place;
        if vip.dhcp.is_none() {
            let wishes = planned.clone().unwrap_or_default();
            let name = wishes.link_name.clone().unwrap_or_else(|| uid.link_name());
            // Without a MAC on the Service that of a macvlan which is there already is the best guess: kube-vip may
            // have died before it wrote it.
            let found = network
                .link_by_name(&name)
                .filter(|link| matches!(link.kind, LinkKind::Macvlan { .. }))
                .and_then(|link| link.mac);
            vip.dhcp = Some(Dhcp {
                mac: wishes.mac.or(found).unwrap_or_else(Mac::random_vip),
                facts: wishes.lease.clone(),
                name,
                wishes,
                macvlan: MacvlanState::Absent,
                running: false,
                leased: None,
                state: "init",
                retry: None,
            });
        }
        let dhcp = vip.dhcp.as_mut().expect("it was just set");
        let mut rebuild = before.is_some() && place.is_some() && before != place;
        let mut restart = false;
        let mut settings = false;
        if let Some(planned) = planned {
            let mac = planned.mac.unwrap_or(dhcp.mac);
            let name = planned.link_name.clone().unwrap_or_else(|| uid.link_name());
            rebuild |= mac != dhcp.mac || name != dhcp.name;
            restart = planned.hostname != dhcp.wishes.hostname || planned.broadcast != dhcp.wishes.broadcast;
            settings = planned.rp_filter != dhcp.wishes.rp_filter;
            dhcp.mac = mac;
            dhcp.name = name;
            dhcp.wishes = planned;
        }
        if rebuild && let Some(link) = dhcp.link() {
            tracing::info!(%uid, "the macvlan is made anew: its MAC, name or interface was changed");
            self.drop_macvlan(&id, Some(link));
        } else if restart {
            self.stop_client(uid, false);
        }
        self.advance_dhcp(now, uid, settings);
    }

    /// The next thing that the macvlan or the client needs.
    fn advance_dhcp(&mut self, now: Instant, uid: &Uid, settings: bool) {
        let id = VipId::Dhcp(uid.clone());
        let Some(vip) = self.vips.get_mut(&id) else { return };
        let (Some(dhcp), Some(parent)) = (vip.dhcp.as_mut(), vip.place) else { return };
        let wanted = Macvlan {
            name: dhcp.name.clone(),
            parent,
            mac: dhcp.mac,
            alias: uid.0.clone(),
            inet_conf: InetConfChange {
                arp_ignore: Some(1),
                arp_announce: Some(2),
                rp_filter: Some(dhcp.wishes.rp_filter.value()),
            },
        };
        match dhcp.macvlan {
            MacvlanState::Absent => {
                dhcp.macvlan = MacvlanState::Making;
                self.prepare_links();
                self.out.push(Action::Wire(WireOp::Macvlan(uid.clone(), wanted)));
            }
            MacvlanState::Ready(link, _) => {
                if settings {
                    self.out.push(Action::Wire(WireOp::Macvlan(uid.clone(), wanted)));
                }
                let dhcp = self.vips.get_mut(&id).and_then(|vip| vip.dhcp.as_mut()).expect("it is there");
                if !dhcp.running && dhcp.retry.is_none_or(|at| at <= now) {
                    dhcp.running = true;
                    let start = DhcpStart {
                        link,
                        mac: dhcp.mac,
                        hostname: dhcp.wishes.hostname.clone(),
                        broadcast: dhcp.wishes.broadcast,
                        requested: dhcp.wishes.requested,
                        lease: dhcp.leased.as_ref().map(|leased| leased.facts.clone()).or_else(|| dhcp.facts.clone()),
                    };
                    self.out.push(Action::StartDhcp(uid.clone(), start));
                }
            }
            MacvlanState::Making | MacvlanState::Failed { .. } => {}
        }
    }

    pub(super) fn macvlan_done(&mut self, now: Instant, uid: &Uid, result: Result<(u32, Mac), String>) {
        let id = VipId::Dhcp(uid.clone());
        let observes = self.observes;
        let Some(dhcp) = self.vips.get_mut(&id).and_then(|vip| vip.dhcp.as_mut()) else {
            // Given up while it was being made.
            if let Ok((link, _)) = result {
                self.delete_link(link);
            }
            return;
        };
        match result {
            Ok((link, mac)) if mac == dhcp.mac => {
                dhcp.macvlan = MacvlanState::Ready(link, observes);
                self.dirty = true;
            }
            // Made for an annotation that has changed since.
            Ok((link, _)) => {
                dhcp.macvlan = MacvlanState::Absent;
                self.delete_link(link);
                self.dirty = true;
            }
            Err(error) => {
                dhcp.macvlan = MacvlanState::Failed { until: now + FAILED_RETRY };
                let name = dhcp.name.clone();
                tracing::warn!(macvlan = name, error, "cannot make the macvlan, trying again");
                self.tell_members(now, &id, "CannotAnnounce", &format!("{error}; trying again"));
                self.observe(now);
            }
        }
    }

    /// Macvlans go with their parents, or by somebody's hand.
    pub(super) fn check_macvlans(&mut self, observation: u64) {
        let network = self.network.as_ref().expect("called with a fresh observation");
        let gone: Vec<Uid> = self
            .vips
            .iter()
            .filter_map(|(id, vip)| match (id, vip.dhcp.as_ref()?.macvlan) {
                (VipId::Dhcp(uid), MacvlanState::Ready(link, from))
                    if observation > from && network.link(link).is_none() =>
                {
                    Some(uid.clone())
                }
                _ => None,
            })
            .collect();
        for uid in gone {
            tracing::warn!(%uid, "the macvlan is gone: it is made again as soon as its interface is there");
            let id = VipId::Dhcp(uid);
            self.drop_macvlan(&id, None);
        }
    }

    /// Stops the client, keeping the lease, and forgets the macvlan, deleting it if it is still there.
    fn drop_macvlan(&mut self, id: &VipId, delete: Option<u32>) {
        let VipId::Dhcp(uid) = id else { return };
        self.stop_client(uid, false);
        let Some(vip) = self.vips.get_mut(id) else { return };
        vip.put_down();
        if let Some(dhcp) = vip.dhcp.as_mut() {
            dhcp.macvlan = MacvlanState::Absent;
        }
        if let Some(link) = delete {
            self.delete_link(link);
        }
    }

    fn stop_client(&mut self, uid: &Uid, release: bool) {
        let id = VipId::Dhcp(uid.clone());
        if let Some(dhcp) = self.vips.get_mut(&id).and_then(|vip| vip.dhcp.as_mut())
            && std::mem::take(&mut dhcp.running)
        {
            self.out.push(Action::StopDhcp { uid: uid.clone(), release });
        }
    }

    pub(super) fn dhcp_event(&mut self, now: Instant, uid: &Uid, event: DhcpEvent) {
        let id = VipId::Dhcp(uid.clone());
        if matches!(event, DhcpEvent::Stopped) {
            if let Some(leaving) = self.leaving.remove(uid) {
                self.delete_link(leaving.link);
                self.dirty = true;
            }
            return;
        }
        let fence = self.fence;
        let Some(vip) = self.vips.get_mut(&id) else { return };
        let Some(dhcp) = vip.dhcp.as_mut() else { return };
        match event {
            DhcpEvent::Bound(leased) | DhcpEvent::Renewed(leased) => {
                let Some(link) = dhcp.link() else { return };
                let address = leased.facts.address;
                dhcp.facts = Some(facts_to_record(dhcp.facts.take(), &leased, now));
                dhcp.leased = Some(leased);
                let net = IpNet::V4(Ipv4Net::new(address, 32).expect("32 is a length of IPv4"));
                let carrier = Carrier { link, mac: dhcp.mac, net };
                if vip.carrier == Some(carrier) && vip.is_up() {
                    // The kernel's deadline may have been cut to the end of the lease.
                    if let Some(put) = vip.put(now, fence) {
                        self.out.push(Action::Wire(WireOp::Put(vec![put])));
                    }
                } else {
                    self.carry(now, &id, Some(carrier));
                }
                self.dirty = true;
            }
            DhcpEvent::Lost { address, why } => {
                dhcp.leased = None;
                dhcp.facts = None;
                self.carry(now, &id, None);
                self.tell_members(
                    now,
                    &id,
                    "DHCPLeaseLost",
                    &format!("address {address} is not announced any more: {why}"),
                );
                self.dirty = true;
            }
            DhcpEvent::Report { reason, text } => self.tell_report(now, &id, reason, &text),
            DhcpEvent::State(state) => dhcp.state = state,
            DhcpEvent::Failed(error) => {
                dhcp.running = false;
                dhcp.retry = Some(now + FAILED_RETRY);
                tracing::warn!(%uid, error, "the DHCP client failed, starting it again");
                self.tell_members(now, &id, "CannotAnnounce", &format!("{error}; trying again"));
                self.observe(now);
            }
            DhcpEvent::Stopped => {}
        }
    }

    /// What a client reports changes with each attempt; people need it once a minute.
    fn tell_report(&mut self, now: Instant, id: &VipId, reason: &'static str, text: &str) {
        let Some(vip) = self.vips.get(id) else { return };
        let parent = vip
            .place
            .and_then(|index| self.network.as_ref()?.link(index))
            .map_or("?", |link| link.name.as_str())
            .to_owned();
        for member in vip.members.clone() {
            if self.may_tell(now, &member, reason, REPORT_INTERVAL) {
                let text = format!("{text} (network of interface {parent})");
                self.out.push(Action::Tell(member, Tell { warning: reason != "DHCPOtherAddress", reason, text }));
            }
        }
    }

    /// Ends a DHCP VIP. The lease is given back only if its Service is gone: otherwise the successor comes back to it
    /// with the same MAC, and a RELEASE here would hand the address to somebody else.
    pub(super) fn leave_dhcp(&mut self, now: Instant, uid: &Uid, dhcp: &Dhcp, release: bool) {
        let release = release && dhcp.leased.is_some();
        if dhcp.running {
            self.out.push(Action::StopDhcp { uid: uid.clone(), release });
        }
        let Some(link) = dhcp.link() else { return };
        if release && dhcp.running {
            // It is sent from the leased address; the macvlan goes when it is out.
            self.leaving.insert(
                uid.clone(),
                Leaving {
                    link,
                    address: dhcp.leased.as_ref().map(|leased| leased.facts.address),
                    until: now + RELEASE_WAIT,
                },
            );
        } else {
            self.delete_link(link);
        }
    }

    pub(super) fn leaving_timers(&mut self, now: Instant) {
        let due: Vec<Uid> =
            self.leaving.iter().filter(|(_, leaving)| leaving.until <= now).map(|(uid, _)| uid.clone()).collect();
        for uid in due {
            self.dhcp_event(now, &uid, DhcpEvent::Stopped);
        }
    }
}

/// The facts on the Service stay as they are while they are good enough for a successor.
fn facts_to_record(recorded: Option<LeaseFacts>, leased: &Leased, now: Instant) -> LeaseFacts {
    let Some(recorded) =
        recorded.filter(|old| old.address == leased.facts.address && old.server == leased.facts.server)
    else {
        return leased.facts.clone();
    };
    match (recorded.expires, leased.facts.expires) {
        (Some(old), Some(new)) => {
            let quarter = leased.expires.map_or(Duration::ZERO, |at| at.saturating_duration_since(now) / 4);
            let step = quarter.max(FACTS_STEP);
            let moved = u64::try_from((new.as_second() - old.as_second()).abs()).unwrap_or(0);
            if moved >= step.as_secs() { leased.facts.clone() } else { recorded }
        }
        (None, None) => recorded,
        _ => leased.facts.clone(),
    }
}
