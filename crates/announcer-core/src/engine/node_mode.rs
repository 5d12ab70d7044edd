//! `node` mode inside the engine. It feeds ownership with frames and API objects, the detector with the targets of
//! ownership, and the API with swaps. `claims.rs` handles former and new owners, `card.rs` decides when this node's
//! card is written, `questions.rs` sends what is asked on the LAN.

mod card;
mod changes;
mod claims;
mod controller;
mod kube_proxy;
mod left;
mod own_answers;
mod probed;
mod questions;
mod used_links;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use card::WrittenCard;
use claims::ClaimState;
use controller::ControllerWord;
use kube_proxy::KubeProxy;
use l2_types::{Address, Mac};
use left::Left;
use probed::ProbeResults;
use used_links::UsedLinks;

pub(super) use changes::EffectiveChange;
use changes::OwnerChanges;

use super::{Action, Engine, Observations, Phase, Vip};
use crate::claim;
use crate::config::Config;
use crate::detect::{self, Ask, Detector, Neighbourhood, Timers};
use crate::frames::Frame;
use crate::network::{Family, Network};
use crate::node_watch::{NodeFinding, NodeWatch};
use crate::ownership::Owners;
use crate::ownership::node::{
    Card, Change, Cluster, OwnerVerdict, Review, ReviewContext, Swap, Swapped, Targets, card_links,
};
use crate::plan::VipId;
use crate::reason::Reason;
use crate::view::{ServiceKey, is_on_record};

/// Consecutive refusals of an address or its macvlan by the kernel after which another node may be better.
const REFUSALS: u32 = 4;

/// The state of `node` mode beside ownership: the failure detector, claims in both directions, changes of owner to
/// report, this node's card. Unused in the other modes.
pub(super) struct NodeMode {
    detector: Detector,
    pub changes: OwnerChanges,
    claims: ClaimState,
    told: Told,
    nodes: NodeWatch,
    pub controller: ControllerWord,
    /// Whether owners answered at addresses of their own, at the last review.
    pub at_own_addresses: BTreeMap<String, bool>,
    /// How long a node has been silent when the detector reports it.
    silent_for: Duration,
    links: UsedLinks,
    /// Interfaces without an IPv6 source, from which no host can be asked about an IPv6 address; logged once.
    mute: BTreeSet<u32>,
    kube_proxy: KubeProxy,
    probed: ProbeResults,
    written: WrittenCard,
    /// Services without an owner whose addresses this node writes to the status (decisions.md 33).
    pub unannounced: BTreeSet<ServiceKey>,
    pub left: Left,
}

/// What the detector was told last. It is told again only what has changed.
#[derive(Default)]
struct Told {
    owners: Targets,
    nodes: Targets,
    neighbourhood: Neighbourhood,
}

impl NodeMode {
    pub fn new(now: Instant, config: &Config) -> Self {
        let timers = Timers::from(config.profile);
        Self {
            // On average, an owner fails half a period before the first question that it does not answer.
            changes: OwnerChanges::new(timers.period * timers.patience(0) + timers.period / 2 + timers.confirm),
            detector: Detector::new(now, timers),
            claims: ClaimState::default(),
            told: Told::default(),
            nodes: NodeWatch::default(),
            controller: ControllerWord::new(config.controller),
            at_own_addresses: BTreeMap::new(),
            silent_for: timers.period * timers.patience(0) + timers.confirm,
            links: UsedLinks::default(),
            mute: BTreeSet::new(),
            kube_proxy: KubeProxy::new(now),
            probed: ProbeResults::default(),
            written: WrittenCard::new(config.lease.duration),
            unannounced: BTreeSet::new(),
            left: Left::default(),
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.detector.deadline().into_iter().chain(self.claims.sent.deadline()).chain(self.claims.keys.deadline()).min()
    }

    /// Adds the counters of detector, claims and changes, for metrics.
    pub fn count(&self, counted: &mut Observations) {
        (counted.probes, counted.claims, counted.forged) =
            (self.detector.counters(), self.claims.sent.len(), self.claims.judge.forged());
        self.changes.count(counted);
    }

    pub fn links(&self) -> impl Iterator<Item = (u32, Family)> + '_ {
        // The interfaces of landmarks too, because their answers are needed in every burst.
        let named = self.told.neighbourhood.named.iter();
        let links = named.map(|landmark| (landmark.link, Family::of(landmark.address)));
        self.links.iter().chain(links)
    }
}

impl Engine {
    pub(super) fn cluster(&mut self) -> Option<&mut Cluster> {
        match &mut self.ownership {
            Owners::Node(cluster) => Some(cluster),
            Owners::Elected(_) => None,
        }
    }

    /// Whether `mac` is or was an interface of another member.
    pub(super) fn is_peer(&self, mac: Mac) -> bool {
        matches!(&self.ownership, Owners::Node(cluster) if cluster.facts.is_of_member(mac))
    }

    /// Passes an input on to the cluster, in `node` mode only.
    pub(super) fn tell_cluster(&mut self, tell: impl FnOnce(&mut Cluster)) {
        if let Some(cluster) = self.cluster() {
            tell(cluster);
            self.out.replan();
        }
    }

    pub(super) fn swapped(&mut self, now: Instant, key: &ServiceKey, asked: &Swap, swapped: Swapped) {
        self.node_mode.changes.swapped(&swapped);
        if let Swapped::Refused(why) = &swapped {
            let text = format!("the API server refuses the record of its owner; the announcer tries again: {why}");
            self.out.warn(now, key, Reason::CannotAnnounce, &text);
        }
        self.tell_cluster(|cluster| cluster.swapped(now, key, asked, swapped));
    }

    /// Reviews ownership and follows the result. Runs before each plan.
    pub(super) fn review(&mut self, now: Instant) {
        let (Owners::Node(cluster), Some(network)) = (&mut self.ownership, self.observer.network()) else { return };
        let used = self.node_mode.links.serving(network.default_route);
        self.node_mode.left.note(network, &self.services);
        let (serving, leaving) = (self.node_mode.kube_proxy.is_healthy(), self.shutdown.has_begun());
        let (services, config) = (&self.services, &self.config);
        let (observer, left) = (&self.observer, &self.node_mode.left);
        let left_over = |found: &Address| {
            let on_record = |address| is_on_record(services, &config.node_name, address);
            network.is_left_over(found, on_record)
                || left.has(found)
                || network.is_ours_without_mark(found, config.fence())
        };
        let (hears, silent) = (self.node_mode.detector.hears(now), self.node_mode.nodes.on_card());
        let gateways = self.node_mode.detector.gateways(now);
        let carrying = network.carrying(|found| found.is_ours() || left_over(found));
        let card = |used: &BTreeSet<u32>| {
            let links = card_links(network, |index| used.contains(&index) || carrying.contains(&index));
            let hears = card::hears(network, &links, &hears);
            let gateways = card::gateways(network, &links, &gateways);
            let occupied = network.occupied(&links, |found| observer.is_removed(found) || left_over(found));
            Card { links, serving, leaving, hears, gateways, occupied, silent: silent.clone(), ..Card::default() }
        };
        cluster.set_card(now, card(&used));
        let holding = holding(network, &self.vips, |found| !observer.is_removed(found) && left_over(found));
        let refused = refused(&self.vips);
        let at_own_addresses = self.node_mode.detector.at_own_addresses(now);
        let context = ReviewContext {
            refused: &refused,
            at_own_addresses: &at_own_addresses,
            gateways: &gateways,
            services: &self.services,
            groups: self.services.groups(),
            endpoints: self.services.endpoints(),
            network,
            config: &self.config,
            holding: &holding,
            stopping: leaving,
            stays: self.shutdown.stays(),
            safe_mode: self.node_mode.controller.is_safe_mode(),
            kube_proxy_known: self.node_mode.kube_proxy.is_known(),
        };
        let review = cluster.review(now, &context);
        self.node_mode.links.note(now, &review.links, network.default_route);
        let uses = self.node_mode.links.serving(network.default_route);
        if uses != used || cluster.is_card_outdated(now) {
            // Other nodes may be waiting for a node with this interface, or may take what this node cannot.
            cluster.set_card(now, card(&uses));
        }
        let changes = cluster.take_changes();
        self.note_changes(changes);
        self.node_mode.at_own_addresses = at_own_addresses;
        let vips = review.vips.clone();
        self.follow(now, review);
        self.set_neighbourhood(now, vips);
        self.watch_nodes(now);
        self.note_losers();
        self.note_mute();
    }

    /// Notes the VIPs that this node has become the owner of.
    fn note_changes(&mut self, changes: Vec<Change>) {
        for change in changes {
            // The VIP was given up for a claim under an older record than this one.
            let regained: BTreeSet<&VipId> = self.plan.of_service.get(&change.key).into_iter().flatten().collect();
            self.conceded.retain(|id| !regained.contains(id));
            self.node_mode.changes.add(change);
        }
    }

    /// Performs the results of a review.
    fn follow(&mut self, now: Instant, review: Review) {
        self.out.extend(review.swaps.into_iter().map(|(key, swap)| Action::Swap(key, swap)));
        for (link, address) in review.questions {
            self.ask(Ask { link, address, to: Mac::BROADCAST });
        }
        self.node_mode.detector.seek_gateways(now, &review.sought_gateways);
        if self.node_mode.told.owners != review.targets {
            self.node_mode.detector.watch(now, &review.targets);
            self.node_mode.told.owners = review.targets;
        }
        review.former_owners.into_iter().for_each(|former_owner| self.node_mode.claims.unclaimed.add(former_owner));
        self.claim_all(now);
        self.node_mode.unannounced = review.unannounced;
        self.probe(review.probes);
        for (key, reason, text) in review.told {
            // A network that keeps nodes apart may be meant to.
            if reason == Reason::OwnerNotHeard {
                self.out.remind(now, &key, reason, &text);
            } else {
                self.out.warn(now, &key, reason, &text);
            }
        }
    }

    fn note_mute(&mut self) {
        let Some(network) = self.observer.network() else { return };
        let six = self.node_mode.links.iter().filter(|(_, family)| *family == Family::V6).map(|(link, _)| link);
        let mute: BTreeSet<u32> = six.filter(|link| network.ipv6_source(*link).is_none()).collect();
        for link in mute.difference(&self.node_mode.mute).filter_map(|link| network.link(*link)) {
            tracing::warn!(
                interface = link.name,
                "the interface has no IPv6 address, not even a link-local one; this node cannot watch the owners of \
                IPv6 addresses there, and other nodes are preferred as owners"
            );
        }
        self.node_mode.mute = mute;
    }

    /// Updates what the detector knows of the LAN of each interface that carries VIPs.
    fn set_neighbourhood(&mut self, now: Instant, vips: BTreeSet<IpAddr>) {
        let (Owners::Node(cluster), Some(network)) = (&self.ownership, self.observer.network()) else { return };
        let links = self.node_mode.links.indices();
        let neighbourhood = cluster.neighbourhood(now, network, links, vips);
        if neighbourhood != self.node_mode.told.neighbourhood {
            self.node_mode.detector.set_neighbourhood(now, &neighbourhood);
            self.node_mode.told.neighbourhood = neighbourhood;
        }
    }

    /// Updates the nodes that are watched for their own sake, on the interfaces with addresses of Services. Where none
    /// has been for a while, no node is watched.
    fn watch_nodes(&mut self, now: Instant) {
        let (Owners::Node(cluster), Some(network)) = (&self.ownership, self.observer.network()) else { return };
        let links = self.node_mode.links.indices();
        let (targets, uids) = cluster.nodes_to_watch(now, network, &links);
        let changed = self.node_mode.nodes.watch(uids);
        self.out.replan_if(changed);
        if self.node_mode.told.nodes != targets {
            self.node_mode.detector.watch_nodes(now, &targets);
            self.node_mode.told.nodes = targets;
        }
    }

    /// Takes in a finding of the detector about a node.
    fn found(&mut self, now: Instant, finding: NodeFinding) {
        if let NodeFinding::Answers { node } = &finding {
            tracing::info!(node, "the node did not answer for a while and answers again");
            self.out.replan_urgently();
            if let Some(since) = self.node_mode.nodes.silent_since(node) {
                self.announce_since(now, since);
            }
        }
        if let Some((node, address)) = self.node_mode.nodes.note(now, self.node_mode.silent_for, finding) {
            self.out.push(Action::AskKubelet { node, address });
        }
    }

    /// Takes in whether the kubelet of a silent node answers.
    pub(super) fn kubelet(&mut self, now: Instant, node: &str, answers: bool) {
        if self.node_mode.nodes.asked(now, node, answers) {
            tracing::warn!(node, "the node answers neither on the network nor at the TCP port of its kubelet");
            self.out.replan_urgently();
        }
    }

    /// Takes in a frame before the timers are judged (fail-over spec R1).
    pub(super) fn note_frame(&mut self, now: Instant, frame: &Frame) {
        let (Owners::Node(cluster), Some(network)) = (&mut self.ownership, self.observer.network()) else { return };
        let own = |mac| network.links.iter().any(|link| link.mac == Some(mac));
        self.out.replan_if(cluster.frame(now, frame, own));
        self.node_mode.detector.on_frame(now, frame);
        self.node_mode.claims.sent.on_frame(now, frame);
    }

    /// Runs what is due: questions to owners, verdicts, claims, the card.
    pub(super) fn node_mode_timers(&mut self, now: Instant) {
        if self.cluster().is_none() {
            return;
        }
        for output in self.node_mode.detector.tick(now) {
            match output {
                detect::Output::Ask(ask) => self.ask(ask),
                detect::Output::Node(finding) => self.found(now, finding),
                detect::Output::Verdict(verdict) => {
                    if let OwnerVerdict::Silent { owner, vips, taken, side, .. } = &verdict {
                        let vips: Vec<IpAddr> = vips.iter().map(|vip| vip.address).collect();
                        let taken: Vec<(IpAddr, Mac)> = taken.iter().map(|(vip, by)| (vip.address, *by)).collect();
                        tracing::warn!(owner, ?vips, ?taken, ?side, "the owner of the addresses does not answer");
                        self.out.replan_urgently();
                    }
                    self.tell_cluster(|cluster| cluster.verdict(now, verdict));
                }
            }
        }
        self.note_own_answers(now);
        self.kube_proxy_timer(now);
        if self.node_mode.claims.keys.take_due(now) {
            self.seal_anew(now);
        }
        for output in self.node_mode.claims.sent.tick(now) {
            match output {
                claim::Output::Claim(claim) => self.out.push(Action::Claim(claim)),
                claim::Output::Ask(ask) => self.ask(ask),
                claim::Output::Announce(address) => {
                    if let Some(id) = self.vip_with(address) {
                        self.vips.get_mut(&id).into_iter().for_each(|vip| vip.announce_now(now));
                        self.vip_timer(now, &id);
                    }
                }
            }
        }
        if self.next_review().is_some_and(|at| at <= now) {
            self.out.replan();
        }
    }

    /// Before everything is known and after the end there are no reviews, so their deadline does not count.
    fn next_review(&self) -> Option<Instant> {
        let Owners::Node(cluster) = &self.ownership else { return None };
        let reviews = self.services.are_listed() && self.observer.network().is_some() && !self.shutdown.is_done();
        cluster.deadline().into_iter().chain(self.node_mode.links.deadline()).min().filter(|_| reviews)
    }

    pub(super) fn node_mode_deadline(&self) -> Option<Instant> {
        let Owners::Node(cluster) = &self.ownership else { return None };
        let card = self.observer.network().and_then(|_| self.node_mode.written.due(cluster.card()));
        let review = self.next_review();
        let proxy = self.node_mode.kube_proxy.deadline();
        self.node_mode.deadline().into_iter().chain(review).chain(card).chain(proxy).min()
    }
}

/// VIPs that are on this node, or were when the process started.
fn holding(
    network: &Network,
    vips: &BTreeMap<VipId, Vip>,
    mut left_over: impl FnMut(&Address) -> bool,
) -> BTreeSet<IpAddr> {
    let up = vips.values().filter(|vip| matches!(vip.phase, Phase::Adding(_) | Phase::Up { .. }));
    let found = network.addresses.iter().filter(|address| left_over(address));
    up.filter_map(Vip::address).chain(found.map(|address| address.net.addr())).collect()
}

/// Services with a VIP that the kernel has refused [`REFUSALS`] times in a row.
fn refused(vips: &BTreeMap<VipId, Vip>) -> BTreeSet<ServiceKey> {
    let refused = vips.values().filter(|vip| vip.refusals >= REFUSALS);
    refused.flat_map(|vip| vip.members.iter().cloned()).collect()
}
