//! `node` mode inside the engine: feeds ownership with what was heard and read, the detector with what ownership wants
//! watched, the losers with claims, and the API with swaps and this node's card.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use l2::Mac;

use super::{Action, Engine, Heard, Phase};
use crate::claim::{self, Claims, Judge, Judgement, Key, Won};
use crate::config::Config;
use crate::detect::{self, Ask, Detector, Timers, Witness};
use crate::frames::Frame;
use crate::network::{Family, Network, looks_like_a_vip};
use crate::ownership::Owners;
use crate::ownership::node::{Card, Cluster, Loser, Scene, Swapped, Targets, Term, Verdict, card_links};
use crate::plan::VipId;
use crate::view::ServiceKey;

/// A card that changed is written again, but not more often than this: a fail-over of 200 VIPs changes the term 200
/// times.
const CARD_PAUSE: Duration = Duration::from_secs(1);

/// What looks and speaks for `node` mode. Idle in the others.
pub(super) struct Lookout {
    detector: Detector,
    pub claims: Claims,
    /// Losers of what is ours and not up here yet. A claim makes a former owner withdraw, and draws the traffic of a
    /// macvlan's MAC: until we serve, that would be a gap.
    unclaimed: Vec<Loser>,
    judge: Judge,
    targets: Targets,
    witnesses: Vec<Witness>,
    links: BTreeSet<(u32, Family)>,
    /// Interfaces from which nobody can be asked about an IPv6 address; told once.
    mute: BTreeSet<u32>,
    serving: bool,
    /// How long an owner was silent when the detector says so: half a period before the first question that it did not
    /// answer, in the mean.
    patience: Duration,
    written: Option<Card>,
    written_at: Option<Instant>,
    /// A third of the duration of the Lease: two renewals may be lost.
    renewal: Duration,
}

impl Lookout {
    pub fn new(now: Instant, config: &Config) -> Self {
        Self {
            detector: Detector::new(now, Timers::from(config.profile)),
            claims: Claims::new(),
            unclaimed: Vec::new(),
            judge: Judge::default(),
            targets: Targets::new(),
            witnesses: Vec::new(),
            links: BTreeSet::new(),
            mute: BTreeSet::new(),
            serving: false,
            patience: {
                let timers = Timers::from(config.profile);
                timers.period * timers.patience(0) + timers.period / 2 + timers.confirm
            },
            written: None,
            written_at: None,
            renewal: config.lease.duration / 3,
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.detector.deadline().into_iter().chain(self.claims.deadline()).min()
    }

    /// When the card has to be written again, given what it should say.
    fn card_due(&self, card: &Card) -> Option<Instant> {
        let (Some(written), Some(at)) = (&self.written, self.written_at) else { return None };
        let urgent = (&card.links, card.serving, card.leaving) != (&written.links, written.serving, written.leaving);
        let pause = match (urgent, card == written) {
            (true, _) => Duration::ZERO,
            (false, false) => CARD_PAUSE,
            (false, true) => self.renewal,
        };
        Some(at + pause)
    }

    /// How long clients had nobody, if the verdict came at `verdict`. The API's part is in it, the client's own is not.
    pub fn gap(&self, verdict: Instant, now: Instant) -> Duration {
        now.saturating_duration_since(verdict) + self.patience
    }

    /// What detector and claims have counted, for metrics.
    pub fn counted(&self) -> (detect::Counters, usize, u64) {
        (self.detector.counters(), self.claims.len(), self.judge.forged())
    }

    pub fn links(&self) -> impl Iterator<Item = (u32, Family)> + '_ {
        self.links.iter().copied()
    }
}

impl Engine {
    pub(super) fn cluster(&mut self) -> Option<&mut Cluster> {
        match &mut self.ownership {
            Owners::Node(cluster) => Some(cluster),
            Owners::Global(_) | Owners::Service(_) => None,
        }
    }

    /// Whether this is, or was, an interface of another member.
    pub(super) fn is_peer(&self, mac: Mac) -> bool {
        matches!(&self.ownership, Owners::Node(cluster) if cluster.is_of_member(mac))
    }

    /// Something that only concerns `node` mode.
    pub(super) fn tell_cluster(&mut self, tell: impl FnOnce(&mut Cluster)) {
        if let Some(cluster) = self.cluster() {
            tell(cluster);
            self.dirty = true;
        }
    }

    pub(super) fn kube_proxy(&mut self, healthy: bool) {
        self.dirty |= std::mem::replace(&mut self.lookout.serving, healthy) != healthy;
    }

    pub(super) fn swapped(&mut self, now: Instant, key: &ServiceKey, swapped: Swapped) {
        self.observations.failed_swaps += u64::from(matches!(swapped, Swapped::Failed(_)));
        self.tell_cluster(|cluster| cluster.swapped(now, key, swapped));
    }

    /// Who owns what by now, and what follows. Before each plan.
    pub(super) fn review(&mut self, now: Instant) {
        let (Owners::Node(cluster), Some(network)) = (&mut self.ownership, &self.network) else { return };
        let used: BTreeSet<u32> = self.lookout.links.iter().map(|(link, _)| *link).collect();
        let (serving, leaving) = (self.lookout.serving, self.stopping.is_some());
        let card = |used: &BTreeSet<u32>| {
            let links = card_links(network, |index| used.contains(&index));
            Card { links, serving, leaving, ..Card::default() }
        };
        cluster.set_card(card(&used));
        let up = self.vips.values().filter(|vip| matches!(vip.phase, Phase::Adding | Phase::Up { .. }));
        let found = network.addresses.iter().filter(|address| {
            let gone = self.removed.contains_key(&(address.interface, Some(address.net)))
                || self.removed.contains_key(&(address.interface, None));
            !gone && network.link(address.interface).is_some_and(|link| looks_like_a_vip(address, link))
        });
        let holding: BTreeSet<IpAddr> =
            up.filter_map(super::Vip::address).chain(found.map(|address| address.net.addr())).collect();
        let scene = Scene {
            services: &self.services,
            groups: &self.groups,
            endpoints: &self.endpoints,
            network,
            config: &self.config,
            holding: &holding,
            stopping: self.stopping.is_some(),
        };
        let review = cluster.review(now, &scene);
        let uses: BTreeSet<u32> = review.links.iter().map(|(link, _)| *link).collect();
        if uses != used {
            // The others may be waiting for a node that has this interface.
            cluster.set_card(card(&uses));
        }
        for change in cluster.take_changes() {
            *self.observations.changes.entry(change.why).or_default() += 1;
            // It was given up for a record that is older than this one.
            let regained: BTreeSet<&VipId> = self.plan.of_service.get(&change.key).into_iter().flatten().collect();
            self.yielded.retain(|id, _| !regained.contains(id));
            self.moved.insert(change.key.clone(), change);
        }
        let family = |v4| if v4 { Family::V4 } else { Family::V6 };
        self.lookout.links = review.links.iter().map(|(link, v4)| (*link, family(*v4))).collect();
        self.out.extend(review.swaps.into_iter().map(|(key, swap)| Action::Swap(key, swap)));
        for (link, address) in review.questions {
            self.ask(Ask { link, address, to: Mac::BROADCAST });
        }
        if self.lookout.targets != review.targets {
            self.lookout.detector.watch(now, &review.targets);
            self.lookout.targets = review.targets;
        }
        for loser in review.losers {
            self.lookout.unclaimed.retain(|waiting| waiting.address != loser.address);
            self.lookout.unclaimed.push(loser);
        }
        self.claim(now);
        for (key, reason, text) in review.told {
            self.tell(now, &key, true, reason, &text);
        }
        self.call_witnesses();
        self.note_losers();
        self.note_mute();
    }

    fn note_mute(&mut self) {
        let Some(network) = &self.network else { return };
        let six = self.lookout.links.iter().filter(|(_, family)| *family == Family::V6).map(|(link, _)| *link);
        let mute: BTreeSet<u32> = six.filter(|link| network.ipv6_source(*link).is_none()).collect();
        for link in mute.difference(&self.lookout.mute).filter_map(|link| network.link(*link)) {
            tracing::warn!(
                interface = link.name,
                "the interface has no IPv6 address, not even a link-local one: owners of IPv6 addresses are not watched from here, and other nodes get them first"
            );
        }
        self.lookout.mute = mute;
    }

    /// Everybody on our interfaces who can tell that it is not we who are cut off: the other members, and the gateway.
    fn call_witnesses(&mut self) {
        let (Owners::Node(cluster), Some(network)) = (&self.ownership, &self.network) else { return };
        let mut witnesses: Vec<Witness> = Vec::new();
        for link in self.lookout.targets.iter().map(|target| target.link).collect::<BTreeSet<u32>>() {
            let peers = cluster.peers().filter_map(|card| card.towards(network, link));
            let at = |address, mac| Witness { link, address, mac };
            witnesses.extend(peers.filter_map(|peer| Some(at(peer.addresses.first()?.addr(), Some(peer.mac)))));
            witnesses.extend(network.gateway_on(link).map(|address| at(address, None)));
        }
        witnesses.sort_unstable();
        if witnesses != self.lookout.witnesses {
            self.lookout.witnesses.clone_from(&witnesses);
            self.lookout.detector.witnesses(witnesses);
        }
    }

    /// Tells the losers of what is up here.
    pub(super) fn claim(&mut self, now: Instant) {
        let Owners::Node(cluster) = &self.ownership else { return };
        if self.lookout.unclaimed.is_empty() {
            return;
        }
        let me = &self.config.node_name;
        let is_ours = |loser: &Loser| cluster.seat(&loser.service).is_some_and(|seat| seat.host == *me);
        self.lookout.unclaimed.retain(is_ours);
        let up: BTreeSet<IpAddr> =
            self.vips.values().filter(|vip| vip.is_up()).filter_map(super::Vip::address).collect();
        for loser in self.lookout.unclaimed.extract_if(.., |loser| up.contains(&loser.address)).collect::<Vec<_>>() {
            self.claim_from(now, loser);
        }
    }

    fn claim_from(&mut self, now: Instant, loser: Loser) {
        let Some(view) = self.services.get(&loser.service) else { return };
        let key = Key::from(&view.uid);
        let found = self.plan_id(loser.address);
        let own_mac = self.network.as_ref().and_then(|network| network.link(loser.link)?.mac);
        let macvlan = self
            .services
            .values()
            .find(|view| view.last_leased().map(IpAddr::V4) == Some(loser.address))
            .and_then(|view| view.dhcp.mac);
        let carried = found.and_then(|id| self.vips.get(&id)?.carrier).map(|carrier| carrier.mac);
        let Some(mac) = carried.or(macvlan).or(own_mac) else { return };
        let won = Won {
            address: loser.address,
            mac,
            loser_mac: loser.mac,
            on_macvlan: macvlan.is_some(),
            term: loser.term,
            key,
        };
        self.lookout.claims.begin(now, claim::Loser { owner: loser.owner, link: loser.link }, &won);
    }

    fn plan_id(&self, address: IpAddr) -> Option<VipId> {
        self.vips.iter().find(|(_, vip)| vip.address() == Some(address)).map(|(id, _)| id.clone())
    }

    /// A loser whose Lease says that it knows the new term has withdrawn.
    fn note_losers(&mut self) {
        let Owners::Node(cluster) = &self.ownership else { return };
        if self.lookout.claims.is_empty() {
            return;
        }
        for owner in self.lookout.claims.losers() {
            if cluster.members().all(|(node, _)| node != owner) {
                self.lookout.claims.gone(&owner);
            }
        }
        for (owner, card) in cluster.members() {
            for view in self.services.values() {
                let Some(seat) = cluster.seat(&view.key) else { continue };
                if card.term >= seat.term {
                    for address in self.plan.of_service.get(&view.key).into_iter().flatten() {
                        if let Some(address) = self.vips.get(address).and_then(super::Vip::address) {
                            self.lookout.claims.known(owner, address, seat.term);
                        }
                    }
                }
            }
        }
    }

    /// Questions and claims go from our interface's own MAC; those about IPv6 from an address of ours (`frames`).
    fn ask(&mut self, ask: Ask) {
        let Some((mac, source)) = self.network.as_ref().and_then(|network| speaker(network, ask.link)) else { return };
        self.out.push(Action::Ask { mac, source, ask });
    }

    /// Before the timers: what was heard counts first (failover-protocol.md R1).
    pub(super) fn look(&mut self, now: Instant, frame: &Frame) {
        let (Owners::Node(cluster), Some(network)) = (&mut self.ownership, &self.network) else { return };
        let own = |mac| network.links.iter().any(|link| link.mac == Some(mac));
        self.dirty |= cluster.frame(now, frame, own);
        self.lookout.detector.hear(frame);
        self.lookout.claims.hear(now, frame);
    }

    /// decisions.md 23: a claim of a VIP that we have or had. True if nothing else is to be made of it.
    pub(super) fn judge_claim(&mut self, now: Instant, id: &VipId, frame: &Frame) -> bool {
        if frame.what != Heard::Claim {
            return false;
        }
        let members = self.vips[id].members.clone();
        let Owners::Node(cluster) = &mut self.ownership else { return false };
        let Some(seat) = members.first().and_then(|key| cluster.seat(key)).cloned() else { return false };
        let primary = members.first().map(|key| cluster.primary(key).clone());
        let Some((primary, view)) = primary.and_then(|key| Some((key.clone(), self.services.get(&key)?))) else {
            return false;
        };
        // What we have handed over is claimed with the term that stands in the record by now.
        let lingering = cluster.is_lingering(&primary);
        let ours = if lingering { Term(seat.term.0.saturating_sub(1)) } else { seat.term };
        match self.lookout.judge.judge(now, frame, &Key::from(&view.uid), ours) {
            Judgement::Yield(term) => {
                if !lingering {
                    cluster.claimed(now, &primary, term);
                }
                self.yield_to(now, id, frame.mac);
                self.successor_heard(&primary);
                true
            }
            Judgement::Outdated(_) | Judgement::Ignore => !lingering,
            Judgement::Doubt => {
                let uid = view.uid.clone();
                let echo = self.vips[id].carrier.is_some_and(|carrier| carrier.mac == frame.mac);
                if !lingering
                    && !echo
                    && let Some(cluster) = self.cluster()
                    && let Some(swap) = cluster.read_again(now, &primary, &uid)
                {
                    self.out.push(Action::Swap(primary, swap));
                }
                false
            }
        }
    }

    /// The new owner of a group that we serve for a last moment has claimed one of its addresses. The group is its own
    /// once it has claimed all: it sets them one by one.
    fn successor_heard(&mut self, primary: &ServiceKey) {
        let Owners::Node(cluster) = &mut self.ownership else { return };
        let mut left = self.vips.values().flat_map(|vip| &vip.members);
        if cluster.is_lingering(primary) && !left.any(|member| cluster.primary(member) == primary) {
            cluster.successor_heard(primary);
        }
    }

    /// What is due: questions to owners, verdicts, claims, the card.
    pub(super) fn look_around(&mut self, now: Instant) {
        if self.cluster().is_none() {
            return;
        }
        for output in self.lookout.detector.tick(now) {
            match output {
                detect::Output::Ask(ask) => self.ask(ask),
                detect::Output::Verdict(verdict) => {
                    if let Verdict::Silent { owner, vips, witnessed } = &verdict {
                        tracing::warn!(owner, ?vips, witnessed, "an owner does not answer any more");
                        self.urgent = true;
                    }
                    self.tell_cluster(|cluster| cluster.verdict(now, verdict));
                }
            }
        }
        for output in self.lookout.claims.tick(now) {
            match output {
                claim::Output::Claim { link, mac, address, to, payload } => {
                    self.out.push(Action::Claim { link, mac, address, to, payload });
                }
                claim::Output::Ask(ask) => self.ask(ask),
                claim::Output::Announce(address) => {
                    if let Some(vip) = self.plan_id(address).and_then(|id| self.vips.get_mut(&id)) {
                        vip.announce_now(now);
                    }
                }
            }
        }
        if self.cluster().and_then(|cluster| cluster.deadline()).is_some_and(|at| at <= now) {
            self.dirty = true;
        }
    }

    /// Renews our Lease, and tells in it what has changed.
    pub(super) fn write_card(&mut self, now: Instant) {
        let (Owners::Node(cluster), Some(_)) = (&self.ownership, &self.network) else { return };
        let card = cluster.card();
        if self.lookout.card_due(card).is_none_or(|at| at <= now) {
            self.lookout.written = Some(card.clone());
            self.lookout.written_at = Some(now);
            self.out.push(Action::Membership(card.clone()));
        }
    }

    pub(super) fn lookout_deadline(&self) -> Option<Instant> {
        let Owners::Node(cluster) = &self.ownership else { return None };
        let card = self.network.as_ref().and_then(|_| self.lookout.card_due(cluster.card()));
        self.lookout.deadline().into_iter().chain(cluster.deadline()).chain(card).min()
    }
}

/// Our MAC on an interface, and the address from which neighbours are solicited.
fn speaker(network: &Network, link: u32) -> Option<(Mac, Option<Ipv6Addr>)> {
    Some((network.link(link)?.mac?, network.ipv6_source(link)))
}
