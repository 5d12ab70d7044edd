//! What a DHCP VIP has beyond a static one: its client and its lease; its macvlan is in `dhcp/macvlan.rs`.

mod macvlan;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use ipnet::{IpNet, Ipv4Net};

use super::dhcp_events::has_moved;
use super::dhcp_state::{ClientState, Dhcp, MacvlanState};
use super::vip::Carrier;
use super::{Action, DhcpEvent, Engine, Leased, WireOp};
use crate::annotations::LeaseFacts;
use crate::network::{alias, is_macvlan_of, mac_of};
use crate::plan::VipId;
use crate::reason::Reason;
use crate::view::Uid;

/// A macvlan that stayed this long has made up for what was before.
const MACVLAN_STAYED: Duration = Duration::from_mins(2);
/// How long the macvlan waits for its client to have sent the RELEASE.
const RELEASE_WAIT: Duration = Duration::from_secs(1);

/// A macvlan that is about to go.
#[derive(Debug)]
pub(super) struct Leaving {
    link: u32,
    /// Generation of the client that is leaving.
    client: u64,
    /// Still on it: must not be set anywhere else meanwhile.
    address: Option<Ipv4Addr>,
    pub until: Instant,
}

impl Leaving {
    pub fn link(&self) -> u32 {
        self.link
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
            VipId::Dhcp6(_) => false,
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
            let found = network.link_by_name(&name).filter(|link| is_macvlan_of(link, uid)).and_then(|link| link.mac);
            // A lease that was just given back, because another MAC or name asks from now on, is nobody's.
            let given_back = self.given_back.remove(uid);
            let void = self.void.get(uid).and_then(|lost| lost.v4.as_ref());
            let facts = wishes.lease.clone().filter(|facts| Some(facts.address) != given_back && Some(facts) != void);
            vip.dhcp = Some(Dhcp {
                mac: wishes.mac.or(found).unwrap_or_else(|| mac_of(uid)),
                last: wishes.lease.as_ref().map(|facts| facts.address),
                facts,
                name,
                wishes,
                macvlan: MacvlanState::Absent,
                asked: None,
                made: None,
                troubles: 0,
                client: ClientState::default(),
                leased: None,
                link_up: true,
                noted: None,
            });
        }
        let dhcp = vip.dhcp.as_mut().expect("it was just set");
        let mut rebuild = before.is_some() && place.is_some() && before != place;
        let mut restart = false;
        let mut settings = false;
        if let Some(planned) = planned {
            let mac = planned.mac.unwrap_or(dhcp.mac);
            let name = planned.link_name.clone().unwrap_or_else(|| uid.link_name());
            // To the server another MAC or name is another client: it would keep the old one's lease, and refuse the
            // address to the new one.
            if (mac != dhcp.mac || planned.hostname != dhcp.wishes.hostname)
                && let Some(leased) = dhcp.leased.as_ref().filter(|_| dhcp.client.running.is_some())
            {
                self.given_back.insert(uid.clone(), leased.facts.address);
                self.withdraw(now, &id, true, "its lease is given back: its MAC or host name was changed");
                return;
            }
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
        } else if rebuild {
            // The annotation that was in the way was changed.
            let dhcp = self.vips.get_mut(&id).and_then(|vip| vip.dhcp.as_mut()).expect("it is there");
            if let MacvlanState::Failed { .. } = dhcp.macvlan {
                dhcp.macvlan = MacvlanState::Absent;
                dhcp.troubles = 0;
            }
        } else if restart {
            self.stop_client(uid, false);
        }
        self.advance_dhcp(now, uid, settings);
    }

    /// Macvlans whose clients have not said yet which address they go on with, and since when they could. What a former
    /// life left there stays meanwhile: removed and set again a moment later, it would cost connections.
    pub(super) fn confirming4(&self, now: Instant) -> BTreeMap<&str, Instant> {
        let clients = self.vips.values().filter_map(|vip| vip.dhcp.as_ref());
        let since = |dhcp: &Dhcp| match dhcp.macvlan {
            MacvlanState::Ready(..) => dhcp.made.unwrap_or(now),
            MacvlanState::Absent | MacvlanState::Making => now,
            MacvlanState::Failed { .. } => self.started,
        };
        clients.filter(|dhcp| dhcp.leased.is_none()).map(|dhcp| (dhcp.link_name(), since(dhcp))).collect()
    }

    fn stop_client(&mut self, uid: &Uid, release: bool) {
        let id = VipId::Dhcp(uid.clone());
        if let Some(dhcp) = self.vips.get_mut(&id).and_then(|vip| vip.dhcp.as_mut())
            && dhcp.client.running.take().is_some()
        {
            self.out.push(Action::StopDhcp { uid: uid.clone(), release });
        }
    }

    pub(super) fn dhcp_event(&mut self, now: Instant, uid: &Uid, generation: u64, event: DhcpEvent) {
        let id = VipId::Dhcp(uid.clone());
        if matches!(event, DhcpEvent::Stopped) {
            if self.leaving.get(uid).is_some_and(|leaving| leaving.client == generation) {
                self.has_left(uid);
            }
            return;
        }
        let Some(vip) = self.vips.get(&id) else { return };
        let runs = vip.dhcp.as_ref().is_some_and(|dhcp| dhcp.client.running == Some(generation));
        if let DhcpEvent::Bound(leased) = &event
            && runs
            && self.decline_taken(now, &id, leased.facts.address.into())
        {
            return;
        }
        let Some(vip) = self.vips.get_mut(&id) else { return };
        // What a client that was stopped has left in the queue is about a life that is over.
        let Some(dhcp) = vip.dhcp.as_mut().filter(|dhcp| dhcp.client.running == Some(generation)) else { return };
        match event {
            DhcpEvent::Bound(leased) | DhcpEvent::Renewed(leased) => {
                let Some(link) = dhcp.link() else { return };
                let address = leased.facts.address;
                let (before, server) = (dhcp.last.replace(address), leased.facts.server);
                let note = Some(alias(uid, leased.facts.expires));
                if dhcp.noted != note {
                    dhcp.noted.clone_from(&note);
                    self.out.extend(note.map(|alias| Action::Wire(WireOp::Note { link, alias })));
                }
                dhcp.facts = Some(facts_to_record(dhcp.facts.take(), &leased, now));
                if let Some(lost) = self.void.get_mut(uid) {
                    lost.v4 = None;
                }
                dhcp.leased = Some(leased);
                let net = IpNet::V4(Ipv4Net::new(address, 32).expect("32 is a length of IPv4"));
                let carrier = Carrier { link, mac: dhcp.mac, net };
                self.carry_lease(now, &id, carrier);
                if let Some(before) = before.filter(|before| *before != address) {
                    let text = format!(
                        "the address is {address} from now on, before {before}: DHCP server {server} has changed it"
                    );
                    for member in self.vips.get(&id).map(|vip| vip.members.clone()).unwrap_or_default() {
                        self.tell(now, &member, false, Reason::DhcpAddressChanged, &text);
                    }
                }
                self.dirty = true;
            }
            DhcpEvent::Lost { address, why } => {
                dhcp.leased = None;
                // Nothing is written while nothing is up: taken over again, this node would go on with what it knows to be
                // over, and the address may be somebody else's by now.
                if let Some(facts) = dhcp.facts.take() {
                    self.void.entry(uid.clone()).or_default().v4 = Some(facts);
                }
                self.lease_lost(now, &id, address, &why);
            }
            said => self.client_said(now, &id, said),
        }
    }

    /// Ends a DHCP VIP. The lease is given back only if its Service is gone: otherwise the successor comes back to it
    /// with the same MAC, and a RELEASE here would hand the address to somebody else.
    pub(super) fn leave_dhcp(&mut self, now: Instant, uid: &Uid, dhcp: &Dhcp, release: bool) {
        // Also one that was granted and is still being probed: the client knows what it has.
        if dhcp.client.running.is_some() {
            self.out.push(Action::StopDhcp { uid: uid.clone(), release });
        }
        let Some(link) = dhcp.link() else { return };
        if let Some(client) = dhcp.client.running.filter(|_| release) {
            // It is sent from the leased address; the macvlan goes when it is out.
            self.leaving.insert(
                uid.clone(),
                Leaving {
                    link,
                    client,
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
            self.has_left(&uid);
        }
    }

    fn has_left(&mut self, uid: &Uid) {
        if let Some(leaving) = self.leaving.remove(uid) {
            self.delete_link(leaving.link);
            self.dirty = true;
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
    if has_moved(recorded.expires, leased.facts.expires, leased.expires, now) { leased.facts.clone() } else { recorded }
}
