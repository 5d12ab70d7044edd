//! What stands on each Service, and when it has to be written. Nothing is asked for that stands there already.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::dhcp_state::Source;
use super::due::{Due, Timed};
use super::node_mode::Announced;
use super::vip::Phase;
use super::{Action, Engine, Owners, Ownership, Record, Recorded};
use crate::annotations::Wanted;
use crate::plan::VipId;
use crate::reason::Reason;
use crate::seniority::turn;
use crate::view::{Port, Published, ServiceKey, ServiceView};

/// How long after our write the cached Service may still be the old one, before somebody must have changed it back.
const RECORD_SETTLE: Duration = Duration::from_secs(1);
/// How long another node's name stays where ours stood, unless the Lease is read to be another's before: a holder reads
/// it each retry period. Two nodes that both believe to hold it would overwrite each other with every event of the
/// watch.
const HOLD: Duration = Duration::from_secs(10);

/// What was asked for one Service.
#[derive(Debug, Default)]
struct ServiceRecord {
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
    /// The addresses of which it was told last that this node announces them.
    told: BTreeSet<IpAddr>,
    /// Those of them of which it was told since that they are not announced.
    over: BTreeSet<IpAddr>,
}

impl Timed for ServiceRecord {
    fn deadline(&self) -> Option<Instant> {
        self.recheck
    }
}

/// What was asked for each Service, and what became of it.
#[derive(Debug, Default)]
pub(super) struct Records(Due<ServiceKey, ServiceRecord>);

impl Records {
    /// When one has to be looked at again.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.first()
    }

    /// Finds out now what will be asked for more than once.
    pub fn settle(&mut self) {
        self.0.settle();
    }

    /// Whether one has to be looked at again now. Cleared whatever comes of that: a VIP that is down by now asks for
    /// nothing.
    pub fn take_due(&mut self, now: Instant) -> bool {
        if !self.0.is_due(now) {
            return false;
        }
        let mut due = false;
        for record in self.0.values_mut() {
            due |= record.recheck.take_if(|at| *at <= now).is_some();
        }
        due
    }

    /// Nothing more is written on Services that have no VIP here.
    pub fn keep(&mut self, mut has_vips: impl FnMut(&ServiceKey) -> bool) -> Vec<Action> {
        let gone: Vec<ServiceKey> = self.0.keys().filter(|key| !has_vips(key)).cloned().collect();
        for key in &gone {
            self.0.remove(key);
        }
        gone.into_iter().map(Action::Forget).collect()
    }

    /// This should stand on the Service, on which `published` does. `confirmed`: it is known to be this node's.
    pub fn want(
        &mut self,
        now: Instant,
        key: &ServiceKey,
        mut wanted: Record,
        published: Option<&Published>,
        confirmed: bool,
    ) -> Option<Action> {
        let record = self.0.entry(key.clone()).or_default();
        // Of Services that come together the watch shows one before the other: nobody is behind another for that.
        if let Some(asked) = record.asked.as_ref().filter(|asked| asked.ingress == wanted.ingress) {
            wanted.turn = asked.turn;
        }
        let replaced = wanted.term.is_none()
            && wanted.vip_host.is_some()
            && published.is_some_and(|published| published.vip_host.is_some() && published.vip_host != wanted.vip_host);
        record.recheck = None;
        if published.is_some_and(|published| stands(published, &wanted)) {
            // Somebody may change it back later: then it is asked for again.
            if !record.in_flight {
                record.asked = None;
            }
            record.stood = true;
            record.replaced = None;
            return None;
        }
        if replaced && record.stood && !record.in_flight {
            let until = *record.replaced.get_or_insert(now) + HOLD;
            if now < until || !confirmed {
                record.recheck = Some(until.max(now + RECORD_SETTLE));
                return None;
            }
            record.replaced = None;
        }
        if record.asked.as_ref() == Some(&wanted) {
            if record.in_flight {
                return None;
            }
            // The watch may lag behind our own write.
            if let Some(settled) = record.done_at.map(|done| done + RECORD_SETTLE)
                && now < settled
            {
                record.recheck = Some(settled);
                return None;
            }
        }
        record.asked = Some(wanted.clone());
        record.in_flight = true;
        Some(Action::Record(key.clone(), wanted))
    }

    /// What became of a record; answers with the addresses that were written, if it was written at all.
    pub fn answered(&mut self, now: Instant, key: &ServiceKey, recorded: &Recorded) -> Answered {
        let record = match (self.0.get_mut(key), recorded) {
            (None, _) | (_, Recorded::Failed) => return Answered::Nothing,
            (Some(record), _) => record,
        };
        record.in_flight = false;
        record.done_at = Some(now);
        if matches!(recorded, Recorded::Gone | Recorded::Superseded) {
            // The watch will say so too. Nothing is published that an announcement could have waited for.
            return Answered::Settled;
        }
        record.stood = true;
        Answered::Written(record.asked.iter().flat_map(|asked| &asked.ingress).flatten().map(|(ip, _)| *ip).collect())
    }

    /// The Service is planned here, on `node`; `published` is what stood there before this node has written anything.
    /// What a former life of this node has published, it has told of, too.
    pub fn look(&mut self, key: &ServiceKey, published: &Published, node: &str) {
        if self.0.contains_key(key) {
            return;
        }
        let mut record = ServiceRecord { previous: published.vip_host.clone(), ..ServiceRecord::default() };
        if record.previous.as_deref() == Some(node) {
            record.told = published.ingress.iter().filter_map(|entry| entry.ip).collect();
        }
        self.0.insert(key.clone(), record);
    }

    /// VIPs of the Service are up under these addresses, and `wanted` are meant to be. Whether that is news.
    pub fn announced(&mut self, key: &ServiceKey, up: &BTreeSet<IpAddr>, wanted: &BTreeSet<IpAddr>) -> News {
        let Some(record) = self.0.get_mut(key) else { return News::None };
        // One of two that is down for a moment is no news, and neither is that it is back.
        let stays = |address: &IpAddr| up.contains(address) || wanted.contains(address);
        if up.is_subset(&record.told) && up.is_disjoint(&record.over) && record.told.iter().all(stays) {
            return News::None;
        }
        record.over.clear();
        let former: Vec<IpAddr> = record.told.difference(up).copied().collect();
        let first = record.told.is_empty();
        record.told.clone_from(up);
        if first { News::First { announcer: record.previous.take() } } else { News::Other { former } }
    }

    /// An Event has said that this address is not announced any more: that it is again, is news.
    pub fn told_over(&mut self, key: &ServiceKey, address: IpAddr) {
        if let Some(record) = self.0.get_mut(key).filter(|record| record.told.contains(&address)) {
            record.over.insert(address);
        }
    }
}

/// What has become known of the addresses of a Service that this node announces.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Nothing.
    None,
    /// They are the first ones.
    First {
        /// Who announced the Service when we first looked.
        announcer: Option<String>,
    },
    /// Some were not there before.
    Other {
        /// Those that are not there any more.
        former: Vec<IpAddr>,
    },
}

/// See [`Records::answered`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// It is being tried again, or was asked for by nobody any more.
    Nothing,
    /// It is over, and nothing is written.
    Settled,
    /// These are in the status.
    Written(Vec<IpAddr>),
}

impl Engine {
    pub(super) fn update_records(&mut self, now: Instant) {
        let (plan, unannounced) = (&self.plan, &self.node_mode.unannounced);
        self.out.extend(self.records.keep(|key| plan.of_service.contains_key(key) || unannounced.contains(key)));
        let planned = std::mem::take(&mut self.plan.of_service);
        for (key, ids) in &planned {
            let Some(view) = self.services.get(key) else { continue };
            self.records.look(key, &view.published, &self.config.node_name);
            let wanted = self.wanted_record(view, ids).filter(|_| !self.config.disable_service_updates);
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

    /// The given addresses and no owner: whoever announces them when the first endpoint is ready writes that.
    fn unannounced_record(&self, view: &ServiceView) -> Record {
        let given = view.wanted.iter().filter_map(|wanted| match wanted {
            Wanted::Static(address) => Some((*address, view.ports.clone())),
            Wanted::Dhcp4 | Wanted::Dhcp6 => None,
        });
        let turn = turn(view, self.services.group_of(&view.key));
        Record { uid: view.uid.clone(), ingress: Some(given.collect()), turn, ..Record::default() }
    }

    pub(super) fn recorded(&mut self, now: Instant, key: &ServiceKey, recorded: &Recorded) {
        let answered = self.records.answered(now, key, recorded);
        self.out.replan_if(answered != Answered::Nothing);
        let Answered::Written(written) = answered else { return };
        for id in self.plan.of_service.get(key).cloned().unwrap_or_default() {
            let Some(vip) = self.vips.get_mut(&id) else { continue };
            if vip.address().is_some_and(|address| written.contains(&address)) {
                vip.status_written(now);
                self.vip_timer(now, &id);
            }
        }
    }

    /// kube-vip spec 3.8. While nothing is up nothing but which lease is lost; no status before every address that is
    /// being probed is settled, so that a Service with two families costs one write; never an address that is not up,
    /// unless clients know it already.
    fn wanted_record(&self, view: &ServiceView, ids: &[VipId]) -> Option<Record> {
        let vips: Vec<_> = ids.iter().filter_map(|id| Some((id, self.vips.get(id)?))).collect();
        let up = vips.iter().any(|(_, vip)| vip.is_up());
        let probing = vips.iter().any(|(_, vip)| matches!(vip.phase, Phase::Probing(_)));
        let settling = probing || vips.iter().any(|(_, vip)| matches!(vip.phase, Phase::Adding(_)));
        // A successor would answer for the address at once, until the server says what it has said here.
        let lost = self.dhcp.lost(&view.uid).map(|lost| lost.standing(&view.published)).unwrap_or_default();
        if !up && lost.is_empty() {
            return None;
        }
        let term = match &self.ownership {
            Owners::Elected(_) => None,
            // What was handed over is the new owner's to write on.
            Owners::Node(cluster) => Some(
                cluster.owner_record(&view.key).filter(|owner_record| owner_record.host == self.config.node_name)?.term,
            ),
        };
        let vip_host = Some(self.config.node_name.clone());
        let mut record = Record { uid: view.uid.clone(), vip_host, term, lost, ..Record::default() };
        if !up {
            return Some(record);
        }
        // An IPv4 address comes before one of IPv6.
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
                    VipId::Dhcp(_) | VipId::Dhcp6(_) => vip.and_then(super::vip::Vip::address),
                };
                let Some(address) = address else { continue };
                if vip.is_some_and(super::vip::Vip::is_up) || view.published.has(address) {
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
            (Some(Announced { from, why, gap }), _) => {
                let from = formerly(from.as_ref().filter(|from| *from != node));
                let gap =
                    gap.map_or(String::new(), |gap| format!("; nobody answered for about {} ms", gap.as_millis()));
                format!("{from}: {why}{gap}")
            }
            (None, News::None) => return,
            (None, News::First { announcer }) if announcer.as_ref() == Some(node) => return,
            (None, News::First { announcer }) => formerly(announcer.as_ref()),
            (None, News::Other { former }) if former.is_empty() => String::new(),
            (None, News::Other { former }) => format!(", and not {} any more", listed(&former)),
        };
        let routed = self.routed(ids);
        let text = format!("address {} is announced by node {node}{before}{routed}", listed(&up));
        self.out.news(key, false, Reason::AddressAnnounced, &text);
    }

    /// What to know of addresses that nobody beside the node takes for a neighbour's: on purpose, or a slip of the pen.
    fn routed(&self, ids: &[VipId]) -> String {
        let Some(network) = self.observer.network() else { return String::new() };
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

/// Who had it, as part of a sentence.
fn formerly(node: Option<&String>) -> String {
    node.map_or(String::new(), |node| format!(", before by node {node}"))
}

fn listed(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Whether the Service says what it should. Of the status only what we write is compared: the API server adds `ipMode`.
pub fn stands(published: &Published, wanted: &Record) -> bool {
    let text = |published: &Option<String>, wanted: &Option<String>| {
        wanted
            .as_ref()
            .is_none_or(|wanted| published.as_ref().is_some_and(|published| published.eq_ignore_ascii_case(wanted)))
    };
    let turn = wanted.turn;
    (wanted.vip_host.is_none() || published.vip_host == wanted.vip_host)
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
