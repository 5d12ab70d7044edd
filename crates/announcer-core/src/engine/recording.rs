//! What this node writes on a Service and tells its author, from the state of its VIPs.

use std::net::IpAddr;
use std::time::Instant;

use super::dhcp_state::Source;
use super::node_mode::EffectiveChange;
use super::records::{Answered, RecordNews};
use super::vip::{Phase, Vip};
use super::{Engine, Owners, Ownership, Record, Recorded};
use crate::annotations::AddressRequest;
use crate::plan::VipId;
use crate::reason::Reason;
use crate::seniority::turn;
use crate::view::{Port, ServiceKey, ServiceView};

impl Engine {
    pub(super) fn update_records(&mut self, now: Instant) {
        let (plan, unannounced) = (&self.plan, &self.node_mode.unannounced);
        self.out.extend(self.records.keep(|key| plan.of_service.contains_key(key) || unannounced.contains(key)));
        let planned = std::mem::take(&mut self.plan.of_service);
        for (key, ids) in &planned {
            let Some(view) = self.services.get(key) else { continue };
            self.records.look(key, &view.published, &self.config.node_name);
            let may_write = !self.config.disable_service_updates && self.may_record(view);
            let wanted = self.wanted_record(view, ids).filter(|_| may_write);
            self.tell_owner(now, key, ids);
            if let (Some(wanted), Some(view)) = (wanted, self.services.get(key)) {
                let confirmed = self.ownership.confirmed(view);
                self.out.extend(self.records.want(now, key, wanted, Some(&view.published), confirmed));
            }
        }
        for key in self.node_mode.unannounced.iter().filter(|key| !planned.contains_key(*key)) {
            let Some(view) = self.services.get(key).filter(|_| !self.config.disable_service_updates) else { continue };
            let wanted = self.unannounced_record(view);
            self.out.extend(self.records.want(now, key, wanted, Some(&view.published), false));
        }
        self.plan.of_service = planned;
    }

    /// A record with the static addresses and without an owner. The node that announces them when the first endpoint is
    /// ready writes the owner.
    fn unannounced_record(&self, view: &ServiceView) -> Record {
        let given = view.wanted.iter().filter_map(|wanted| match wanted {
            AddressRequest::Static(address) => Some((*address, view.ports.clone())),
            AddressRequest::Dhcp4 | AddressRequest::Dhcp6 => None,
        });
        let turn = turn(view, self.services.group_of(&view.key));
        self.copied(view, Record { uid: view.uid.clone(), ingress: Some(given.collect()), turn, ..Record::default() })
    }

    /// Makes a copy of `record` if the Service is not the first of its group. What stands there does not count then,
    /// however new its term is: the Service had it before it joined the others, or its author wrote it. The copy gets a
    /// newer term, so that the owner remains the same on all nodes when the Service becomes the first.
    fn copied(&self, view: &ServiceView, mut record: Record) -> Record {
        let Owners::Node(cluster) = &self.ownership else { return record };
        let is_first = *cluster.primary(&view.key) == view.key;
        let Some(standing) = view.published.owner_record().filter(|_| !is_first) else { return record };
        let ours = record.vip_host.as_ref() == Some(&standing.host);
        let least = if ours { standing.term } else { standing.term.next() };
        record.term = record.term.map(|term| term.max(least));
        record.void = Some(standing).filter(|standing| record.is_superseded_by(standing));
        record
    }

    pub(super) fn recorded(&mut self, now: Instant, key: &ServiceKey, recorded: &Recorded) {
        let answered = self.records.answered(now, key, recorded);
        self.out.replan_if(answered != Answered::Nothing);
        if *recorded == Recorded::Gone {
            self.said_to_be_gone(now, key);
        }
        let Answered::Written(written) = answered else { return };
        for id in self.plan.of_service.get(key).cloned().unwrap_or_default() {
            let Some(vip) = self.vips.get_mut(&id) else { continue };
            if vip.address().is_some_and(|address| written.contains(&address)) {
                vip.status_written(now);
                self.vip_timer(now, &id);
            }
        }
    }

    /// The record to write (kube-vip spec 3.8). While no VIP is up, it only says which lease is lost. The status waits
    /// until every probed address is settled, so that a Service with two families costs one write. An address that is
    /// not up is only written if clients know it already.
    fn wanted_record(&self, view: &ServiceView, ids: &[VipId]) -> Option<Record> {
        let vips: Vec<_> = ids.iter().filter_map(|id| Some((id, self.vips.get(id)?))).collect();
        let up = vips.iter().any(|(_, vip)| vip.is_up());
        let probing = vips.iter().any(|(_, vip)| matches!(vip.phase, Phase::Probing(_)));
        let settling = probing || vips.iter().any(|(_, vip)| matches!(vip.phase, Phase::Adding(_)));
        // Without this, the next owner would use the address at once, until the DHCP server refuses it again.
        let lost = self.dhcp.lost(&view.uid).map(|lost| lost.standing(&view.published)).unwrap_or_default();
        if !up && lost.is_empty() {
            return None;
        }
        let term = match &self.ownership {
            Owners::Elected(_) => None,
            // After a hand-over the new owner writes the record.
            Owners::Node(cluster) => Some(
                cluster.owner_record(&view.key).filter(|owner_record| owner_record.host == self.config.node_name)?.term,
            ),
        };
        let vip_host = Some(self.config.node_name.clone());
        let mut record = self.copied(view, Record { uid: view.uid.clone(), vip_host, term, lost, ..Record::default() });
        if !up {
            return Some(record);
        }
        // IPv4 addresses come before IPv6 addresses.
        let mut leased = Vec::new();
        for (id, vip) in vips.iter().filter(|(_, vip)| vip.is_up()) {
            match (id, &vip.source) {
                (VipId::Dhcp(uid), Source::Dhcp4(dhcp)) if *uid == view.uid => {
                    record.hwaddr = Some(dhcp.mac.to_string());
                    record.lease.clone_from(&dhcp.lease.recorded);
                }
                (VipId::Dhcp6(uid), Source::Dhcp6(dhcp)) if *uid == view.uid => {
                    record.lease6.clone_from(&dhcp.lease.recorded);
                }
                _ => continue,
            }
            leased.extend(vip.source.leased());
        }
        leased.sort_unstable();
        let leased: Vec<String> = leased.iter().map(ToString::to_string).collect();
        record.requested_ip = Some(leased.join(",")).filter(|text| !text.is_empty());
        if !settling {
            let mut ingress: Vec<(IpAddr, Vec<Port>)> = Vec::new();
            for id in ids {
                let vip = self.vips.get(id);
                let address = match id {
                    VipId::Static(address) => Some(*address),
                    VipId::Dhcp(_) | VipId::Dhcp6(_) => vip.and_then(Vip::address),
                };
                let Some(address) = address else { continue };
                if vip.is_some_and(Vip::is_up) || view.published.has(address) {
                    ingress.push((address, view.ports.clone()));
                }
            }
            record.ingress = Some(ingress);
            record.turn = turn(view, self.services.group_of(&view.key));
        }
        Some(record)
    }

    fn tell_owner(&mut self, now: Instant, key: &ServiceKey, ids: &[VipId]) {
        let up: Vec<IpAddr> =
            ids.iter().filter_map(|id| self.vips.get(id).filter(|vip| vip.is_up())?.address()).collect();
        if up.is_empty() {
            return;
        }
        let wanted = ids.iter().filter_map(|id| match id {
            VipId::Static(address) => Some(*address),
            VipId::Dhcp(_) | VipId::Dhcp6(_) => self.vips.get(id)?.source.leased(),
        });
        let news = self.records.announced(key, &up.iter().copied().collect(), &wanted.collect());
        let node = &self.config.node_name;
        let before = match (self.node_mode.changes.take(now, key), news) {
            (Some(EffectiveChange { from, why, gap }), _) => {
                let from = formerly(from.as_ref().filter(|from| *from != node));
                let gap =
                    gap.map_or(String::new(), |gap| format!("; nobody answered for about {} ms", gap.as_millis()));
                format!("{from}: {why}{gap}")
            }
            (None, RecordNews::None) => return,
            (None, RecordNews::First { announcer }) if announcer.as_ref() == Some(node) => return,
            (None, RecordNews::First { announcer }) => formerly(announcer.as_ref()),
            (None, RecordNews::Other { former }) if former.is_empty() => String::new(),
            (None, RecordNews::Other { former }) => format!(", and not {} any more", listed(&former)),
        };
        let routed = self.routed(ids);
        let text = format!("address {} is announced by node {node}{before}{routed}", listed(&up));
        self.out.news(key, false, Reason::AddressAnnounced, &text);
    }

    /// A hint about addresses outside the subnet of their interface: hosts on that LAN do not ask for them by ARP. It
    /// may be intended or a typing mistake.
    fn routed(&self, ids: &[VipId]) -> String {
        let Some(network) = self.observer.network() else { return String::new() };
        let given = ids.iter().filter(|id| matches!(id, VipId::Static(_)));
        let carriers = given.filter_map(|id| self.vips.get(id)?.carrier);
        let missed = carriers.filter_map(|carrier| {
            let (address, link) = (carrier.net.addr(), network.link(carrier.link)?);
            let subnet = network.missed_subnet(carrier.link, address)?;
            Some(format!(
                "; {address} is not in network {subnet} of interface {}: only clients with a route to it by this node \
                 reach it",
                link.name
            ))
        });
        missed.collect()
    }
}

/// The former announcer as part of a sentence.
fn formerly(node: Option<&String>) -> String {
    node.map_or(String::new(), |node| format!(", before by node {node}"))
}

fn listed(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
