//! What stands on each Service, and when it has to be written. Nothing is asked for that stands there already.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::due::Timed;
use super::vip::Phase;
use super::{Action, Engine, Owners, Record, Recorded};
use crate::ownership::node::Change;
use crate::plan::VipId;
use crate::reason::Reason;
use crate::seniority::turn;
use crate::view::{Port, Published, ServiceKey, ServiceView};

/// How long after our write the cached Service may still be the old one, before somebody must have changed it back.
const RECORD_SETTLE: Duration = Duration::from_secs(1);
/// How long another node's name stays where ours stood, unless the Lease is read to be another's before: a holder reads it
/// each retry period. Two nodes that both believe to hold it would overwrite each other with every event of the watch.
const HOLD: Duration = Duration::from_secs(10);

/// What was asked for one Service.
#[derive(Debug, Default)]
pub(super) struct ServiceRecord {
    asked: Option<Record>,
    in_flight: bool,
    done_at: Option<Instant>,
    /// Ours has stood there since this node took it over.
    stood: bool,
    /// Since when another node's name stands there instead.
    replaced: Option<Instant>,
    recheck: Option<Instant>,
    /// Who announced it when we first looked.
    previous: Option<String>,
    /// The change of owner has been told.
    told: bool,
}

impl ServiceRecord {
    /// Whether it has to be looked at again. Cleared whatever comes of that: a VIP that is down by now asks for nothing.
    pub fn wake(&mut self, now: Instant) -> bool {
        self.recheck.take_if(|at| *at <= now).is_some()
    }
}

impl Timed for ServiceRecord {
    fn deadline(&self) -> Option<Instant> {
        self.recheck
    }
}

impl Engine {
    pub(super) fn update_records(&mut self, now: Instant) {
        let gone: Vec<ServiceKey> =
            self.records.keys().filter(|key| !self.plan.of_service.contains_key(*key)).cloned().collect();
        for key in gone {
            self.records.remove(&key);
            self.out.push(Action::Forget(key));
        }
        let planned = std::mem::take(&mut self.plan.of_service);
        for (key, ids) in &planned {
            let Some(view) = self.services.get(key) else { continue };
            let wanted = self.wanted_record(view, ids);
            self.tell_owner(now, key, ids);
            if let Some(wanted) = wanted.filter(|_| !self.config.disable_service_updates) {
                self.ask_record(now, key, wanted);
            }
        }
        self.plan.of_service = planned;
    }

    fn ask_record(&mut self, now: Instant, key: &ServiceKey, mut wanted: Record) {
        // Of Services that come together the watch shows one before the other: nobody is behind another for that.
        let asked = self.records.get(key).and_then(|record| record.asked.as_ref());
        if let Some(asked) = asked.filter(|asked| asked.ingress == wanted.ingress) {
            wanted.turn = asked.turn;
        }
        let published = self.services.get(key).map(|view| &view.published);
        let stands = published.is_some_and(|published| stands(published, &wanted));
        let replaced = wanted.term.is_none()
            && published.and_then(|published| published.vip_host.as_ref()).is_some_and(|host| *host != wanted.vip_host);
        let confirmed = self.is_confirmed(std::slice::from_ref(key));
        let record = self.records.entry(key.clone()).or_default();
        record.recheck = None;
        if stands {
            // Somebody may change it back later: then it is asked for again.
            if !record.in_flight {
                record.asked = None;
            }
            record.stood = true;
            record.replaced = None;
            return;
        }
        if replaced && record.stood && !record.in_flight {
            let until = *record.replaced.get_or_insert(now) + HOLD;
            if now < until || !confirmed {
                record.recheck = Some(until.max(now + RECORD_SETTLE));
                return;
            }
            record.replaced = None;
        }
        if record.asked.as_ref() == Some(&wanted) {
            if record.in_flight {
                return;
            }
            // The watch may lag behind our own write.
            if let Some(settled) = record.done_at.map(|done| done + RECORD_SETTLE)
                && now < settled
            {
                record.recheck = Some(settled);
                return;
            }
        }
        record.asked = Some(wanted.clone());
        record.in_flight = true;
        self.out.push(Action::Record(key.clone(), wanted));
    }

    pub(super) fn recorded(&mut self, now: Instant, key: &ServiceKey, recorded: &Recorded) {
        let Some(record) = self.records.get_mut(key) else { return };
        if *recorded == Recorded::Failed {
            return;
        }
        record.in_flight = false;
        record.done_at = Some(now);
        self.dirty = true;
        if matches!(recorded, Recorded::Gone | Recorded::Superseded) {
            // The watch will say so too. Nothing is published that an announcement could have waited for.
            return;
        }
        record.stood = true;
        let written: Vec<IpAddr> =
            record.asked.iter().flat_map(|asked| &asked.ingress).flatten().map(|(ip, _)| *ip).collect();
        for id in self.plan.of_service.get(key).cloned().unwrap_or_default() {
            let Some(vip) = self.vips.get_mut(&id) else { continue };
            if vip.address().is_some_and(|address| written.contains(&address)) {
                vip.status_written(now);
                self.vip_timer(now, &id);
            }
        }
    }

    /// kube-vip spec 3.8. While nothing is up nothing but which lease is lost; no status before every address that is being
    /// probed is settled, so that a Service with two families costs one write; never an address that is not up, unless
    /// clients know it already.
    fn wanted_record(&self, view: &ServiceView, ids: &[VipId]) -> Option<Record> {
        let vips: Vec<_> = ids.iter().filter_map(|id| Some((id, self.vips.get(id)?))).collect();
        let up = vips.iter().any(|(_, vip)| vip.is_up());
        let probing = vips.iter().any(|(_, vip)| matches!(vip.phase, Phase::Probing(_)));
        let settling = probing || vips.iter().any(|(_, vip)| vip.phase == Phase::Adding);
        // A successor would answer for the address at once, until the server says what it has said here.
        let lost = self.void.get(&view.uid).map(|lost| lost.standing(&view.published)).unwrap_or_default();
        if !up && lost.is_empty() {
            return None;
        }
        let term = match &self.ownership {
            Owners::Global(_) | Owners::Service(_) => None,
            // What was handed over is the new owner's to write on.
            Owners::Node(cluster) => {
                Some(cluster.seat(&view.key).filter(|seat| seat.host == self.config.node_name)?.term)
            }
        };
        let vip_host = self.config.node_name.clone();
        let mut record = Record { uid: view.uid.clone(), vip_host, term, lost, ..Record::default() };
        if !up {
            return Some(record);
        }
        let own = vips.iter().find(|(id, _)| matches!(id, VipId::Dhcp(uid) if *uid == view.uid));
        if let Some(dhcp) = own.filter(|(_, vip)| vip.is_up()).and_then(|(_, vip)| vip.dhcp.as_ref()) {
            record.hwaddr = Some(dhcp.mac.to_string());
            record.requested_ip = dhcp.leased.as_ref().map(|leased| leased.facts.address.to_string());
            record.lease.clone_from(&dhcp.facts);
        }
        let own6 = vips.iter().find(|(id, _)| matches!(id, VipId::Dhcp6(uid) if *uid == view.uid));
        if let Some(dhcp) = own6.filter(|(_, vip)| vip.is_up()).and_then(|(_, vip)| vip.dhcp6.as_ref()) {
            let v6 = dhcp.leased.as_ref().map(|leased| leased.facts.address.to_string());
            let both = record.requested_ip.take().into_iter().chain(v6).collect::<Vec<_>>().join(",");
            record.requested_ip = Some(both).filter(|text| !text.is_empty());
            record.lease6.clone_from(&dhcp.facts);
        }
        if !settling {
            let mut ingress: Vec<(IpAddr, Vec<Port>)> = Vec::new();
            for id in ids {
                let vip = self.vips.get(id);
                let address = match id {
                    VipId::Static(address) => Some(*address),
                    VipId::Dhcp(_) | VipId::Dhcp6(_) => vip.and_then(super::vip::Vip::address),
                };
                let Some(address) = address else { continue };
                if vip.is_some_and(super::vip::Vip::is_up) || view.published.has(address) {
                    ingress.push((address, view.ports.clone()));
                }
            }
            record.ingress = Some(ingress);
            let members = self.groups.of.get(&view.key).and_then(|group| self.groups.members.get(group));
            let members = members.into_iter().flatten().filter_map(|key| self.services.get(key));
            record.turn = turn(view, members);
        }
        Some(record)
    }

    fn tell_owner(&mut self, now: Instant, key: &ServiceKey, ids: &[VipId]) {
        let Some(view) = self.services.get(key) else { return };
        let record = self
            .records
            .entry(key.clone())
            .or_insert_with(|| ServiceRecord { previous: view.published.vip_host.clone(), ..ServiceRecord::default() });
        let up: Vec<String> = ids
            .iter()
            .filter_map(|id| self.vips.get(id).filter(|vip| vip.is_up())?.address())
            .map(|address| address.to_string())
            .collect();
        if up.is_empty() {
            return;
        }
        let change = self.moved.remove(key);
        let told = std::mem::replace(&mut record.told, true);
        let previous = record.previous.take();
        let node = &self.config.node_name;
        let before = match &change {
            Some(Change { from, why, silent, .. }) => {
                let from = from
                    .as_ref()
                    .filter(|from| *from != node)
                    .map_or(String::new(), |from| format!(", before by node {from}"));
                let gap = silent.map_or(String::new(), |silent| {
                    format!("; nobody answered for about {} ms", self.lookout.gap(silent, now).as_millis())
                });
                format!("{from}: {why}{gap}")
            }
            None if told || previous.as_deref() == Some(node.as_str()) => return,
            None => previous.map_or(String::new(), |from| format!(", before by node {from}")),
        };
        let routed = self.routed(ids);
        let text = format!("address {} is announced by node {node}{before}{routed}", up.join(", "));
        let gap = change.and_then(|change| Some(self.lookout.gap(change.silent?, now)));
        self.observations.last_gap = gap.or(self.observations.last_gap);
        self.tell(now, key, false, Reason::AddressAnnounced, &text);
    }

    /// What to know of addresses that nobody beside the node takes for a neighbour's: on purpose, or a slip of the pen.
    fn routed(&self, ids: &[VipId]) -> String {
        let Some(network) = &self.network else { return String::new() };
        let given = ids.iter().filter(|id| matches!(id, VipId::Static(_)));
        let carriers = given.filter_map(|id| self.vips.get(id)?.carrier);
        let missed = carriers.filter_map(|carrier| {
            let (address, link) = (carrier.net.addr(), network.link(carrier.link)?);
            let subnet = network.missed_subnet(carrier.link, address)?;
            Some(format!(
                "; {address} is not in network {subnet} of interface {}: only clients with a route to it by this node reach it",
                link.name
            ))
        });
        missed.collect()
    }
}

/// Whether the Service says what it should. Of the status only what we write is compared: the API server adds `ipMode`.
pub fn stands(published: &Published, wanted: &Record) -> bool {
    let text = |published: &Option<String>, wanted: &Option<String>| {
        wanted
            .as_ref()
            .is_none_or(|wanted| published.as_ref().is_some_and(|published| published.eq_ignore_ascii_case(wanted)))
    };
    let turn = wanted.turn;
    published.vip_host.as_deref() == Some(wanted.vip_host.as_str())
        && wanted.term.is_none_or(|term| published.term == Some(term))
        && text(&published.hwaddr, &wanted.hwaddr)
        && text(&published.requested_ip, &wanted.requested_ip)
        && wanted.lease.as_ref().is_none_or(|lease| published.lease.as_ref() == Some(lease))
        && wanted.lost.standing(published).is_empty()
        && wanted.lease6.as_ref().is_none_or(|lease| published.lease6.as_ref() == Some(lease))
        && wanted.ingress.as_ref().is_none_or(|wanted| {
            published.turn == turn
                && published.ingress.len() == wanted.len()
                && published
                    .ingress
                    .iter()
                    .zip(wanted)
                    .all(|(entry, (ip, ports))| entry.ip == Some(*ip) && entry.ports == *ports)
        })
}
