//! Hosts that answer for an address which no record gives them: a duplicate, a router with proxy ARP, a fabric that
//! answers in the name of the dead, nodes whose kube-proxy runs in IPVS mode without strict ARP. Their veto has an end,
//! and the author of the Service is told. Pure.

use std::time::Instant;

use l2_types::Mac;

use super::Cluster;
use super::decide::{OwnerState, QuestionState, Step};
use super::round::{Round, Standing, Wake};
use super::silence::OwnerSilence;
use super::timing::{CARD_IS_LATE, HAND_OVER_LINGER, RECORD_IS_LATE, STRANGERS_TIME, TOLD_AFTER};
use crate::detect::profile::GRACE;
use crate::reason::Reason;
use crate::view::ServiceKey;

impl Cluster {
    /// What the detector found about the owner of a group, if that owner is silent.
    pub(super) fn silence(&self, standing: &Standing<'_>) -> Option<OwnerSilence> {
        self.silences.of(standing.owner_record.as_ref()?, &standing.owed_addresses())
    }

    /// When the last address of a group fell silent, if its owner is silent.
    pub(super) fn silent_since(&self, standing: &Standing<'_>) -> Option<Instant> {
        self.silences.latest(standing.owner_record.as_ref()?, &standing.owed_addresses())
    }

    /// When the first address of a group was missed, if its owner is silent: from then on clients had no answer.
    pub(super) fn missed_since(&self, standing: &Standing<'_>) -> Option<Instant> {
        self.silences.missed(standing.owner_record.as_ref()?, &standing.owed_addresses())
    }

    /// Whether most probably this node has lost the clients, and not the silent owner, whose Lease is valid
    /// (decisions.md 24). An owner that does not say how many hosts it hears gives no evidence.
    pub(super) fn owner_hears_more(&self, round: &Round<'_>, standing: &Standing<'_>, silent: OwnerSilence) -> bool {
        self.card_counts(round, standing)
            && self.owner_hears(round, standing).is_some_and(|theirs| silent.owner_hears_more(theirs))
    }

    /// Whether the owner's card may say what the owner hears now. A living owner writes its card within a third of the
    /// Lease. Without a newer card after that time the owner is most probably dead, and the hosts that its card counts
    /// may have died with it on one hypervisor. A node that does not see the API cannot tell.
    fn card_counts(&self, round: &Round<'_>, standing: &Standing<'_>) -> bool {
        let Some(owner_record) = &standing.owner_record else { return false };
        let Some(until) = self.owner_hears_more_until(standing) else { return true };
        let renewed = self.facts.renewed_at(&owner_record.host);
        round.now < until
            || !self.facts.in_touch(round.now)
            || renewed.zip(self.silent_since(standing)).is_some_and(|(renewed, silent)| renewed >= silent)
    }

    /// Until when a card that was written before the owner fell silent counts.
    fn owner_hears_more_until(&self, standing: &Standing<'_>) -> Option<Instant> {
        Some(self.silent_since(standing)? + self.facts.lease() / 3 + CARD_IS_LATE)
    }

    /// Whether the LAN most probably keeps this node and the owner apart (private VLAN, isolated ports), so that the
    /// silence proves nothing: the owner has not answered under its record, nor shortly before, and lives. An owner
    /// that lives renews its Lease, and an owner that is cut off says on its card that it hears no host, or few.
    pub(super) fn is_unreached(&self, round: &Round<'_>, standing: &Standing<'_>, silent: OwnerSilence) -> bool {
        let Some((owner_record, since)) = standing.owner_record.as_ref().zip(self.silent_since(standing)) else {
            return false;
        };
        if silent.was_heard(since) {
            return false;
        }
        // Since the record was seen. A renewal from before may arrive this much later.
        let proves = record_seen(since) + CARD_IS_LATE;
        let renewed = self.facts.renewed_at(&owner_record.host).is_some_and(|renewed| renewed >= proves);
        let lives = renewed || round.now < self.unreached_until(since) || !self.facts.in_touch(round.now);
        let lost = |theirs: u8| {
            theirs == 0 || self.owner_hears_fewer(round, standing, silent) && silent.hears_many_more(theirs)
        };
        lives && self.owner_hears(round, standing).is_some_and(|theirs| !lost(theirs))
    }

    /// Until when an owner that was never heard has to be seen to renew its Lease.
    fn unreached_until(&self, since: Instant) -> Instant {
        record_seen(since) + self.facts.lease() / 3 + 2 * CARD_IS_LATE
    }

    /// When what was found about a silent owner has to be judged anew.
    pub(super) fn judged_anew_at(&self, standing: &Standing<'_>) -> impl Iterator<Item = Instant> {
        let unreached = self.silent_since(standing).map(|since| self.unreached_until(since));
        self.owner_hears_more_until(standing).into_iter().chain(unreached)
    }

    /// Whether a host that answers with this MAC does so in the name of the owner.
    pub(super) fn in_its_name(&self, standing: &Standing<'_>, mac: Mac) -> bool {
        let on_macvlan = standing.addresses.iter().any(|(_, expected)| *expected == Some(mac));
        let owner = standing.owner_record.as_ref().map(|record| record.host.as_str());
        on_macvlan || self.facts.member_of(mac).is_some_and(|member| Some(member) == owner)
    }

    /// The opposite case: the silent owner still renews its Lease, and its newer card says that it hears fewer hosts
    /// than this node. Then the clients are on this side, even if more nodes are on the other.
    pub(super) fn owner_hears_fewer(&self, round: &Round<'_>, standing: &Standing<'_>, silent: OwnerSilence) -> bool {
        let Some(owner_record) = &standing.owner_record else { return false };
        let since = self.silent_since(standing).zip(self.facts.renewed_at(&owner_record.host));
        since.is_some_and(|(silent, renewed)| renewed >= silent + TOLD_AFTER)
            && self.owner_hears(round, standing).is_some_and(|theirs| theirs < silent.outside)
    }

    /// How many hosts the owner hears that are not members, as its card says.
    fn owner_hears(&self, round: &Round<'_>, standing: &Standing<'_>) -> Option<u8> {
        let owner = &standing.owner_record.as_ref()?.host;
        let there = self.facts.towards(owner, round.context.network, standing.link?)?;
        self.facts.card(owner)?.hears.get(&there.name).copied()
    }

    /// Until when a stranger's answers keep this node from taking the group. `None`: as long as the owner may live.
    pub(super) fn strangers_until(
        &self,
        round: &Round<'_>,
        standing: &Standing<'_>,
        owner_state: OwnerState,
    ) -> Option<Instant> {
        let key = &standing.primary().key;
        let since = match (&standing.owner_record, owner_state) {
            // This node does not know the MAC of an unseen owner, so the owner itself may be the one that answers.
            (Some(_), OwnerState::Unseen) => return None,
            // The owner renews its Lease and does not answer. It is treated as if its Lease had ended when it fell
            // silent. A renewal must have been seen since then: a node that does not see the API does not see a new
            // owner either.
            (Some(owner_record), OwnerState::Alive) => {
                let (silent, renewed) = (self.silent_since(standing)?, self.facts.renewed_at(&owner_record.host)?);
                let seen = renewed >= silent + TOLD_AFTER && self.facts.in_touch(round.now);
                seen.then_some(silent + self.facts.lease())?
            }
            (Some(owner_record), OwnerState::Expired) => self.facts.expired_since(round.now, &owner_record.host)?,
            // A Lease that is gone or was never known would have expired by then.
            (None, _) | (_, OwnerState::Absent) => *self.vacant.get(key)? + self.facts.lease(),
        };
        // A member that has lost the API may be an owner that this node does not know of.
        let by = self.answered_by(key).and_then(|mac| self.facts.member_of(mac));
        // A group that was given up for a valid claim most probably belongs to the claimant. The API says so as soon as
        // it can be read.
        let given_up = standing.owner_record.as_ref().is_some_and(|record| record.host.is_empty());
        let may_own = |node: &str| given_up || self.facts.is_expired(round.now, node);
        (!by.is_some_and(may_own)).then_some(since + STRANGERS_TIME)
    }

    /// The MAC that answers for a group whose owner does not.
    fn stranger(&self, round: &Round<'_>, standing: &Standing<'_>) -> Option<Mac> {
        let key = &standing.primary().key;
        let asked = || self.answered_by(key).filter(|_| self.asked(round.now, key) == QuestionState::Answered);
        self.silence(standing).and_then(|silent| silent.taken).or_else(asked)
    }

    /// Whether the bursts have shown somebody else only while a newer record may still come, or the former owner serve.
    fn is_taken_early(&self, standing: &Standing<'_>) -> bool {
        let explained = RECORD_IS_LATE.max(HAND_OVER_LINGER);
        let later = |record| self.silences.is_taken_after(record, &standing.owed_addresses(), explained);
        self.silence(standing).is_some_and(|silence| silence.taken.is_some())
            && !standing.owner_record.as_ref().is_some_and(later)
    }

    /// The addresses that a message about a stranger names: those for which the owner is silent, or all that were asked
    /// for by broadcast.
    fn contested(&self, standing: &Standing<'_>) -> String {
        let owed = standing.owed_addresses();
        let record = standing.owner_record.as_ref();
        let silent = record.map(|record| self.silences.silent_among(record, &owed)).unwrap_or_default();
        let named = if silent.is_empty() { owed } else { silent };
        named.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Messages for the authors of a group about a stranger that blocks its take-over, or despite which it is taken.
    pub(super) fn tell_strangers(
        &self,
        round: &Round<'_>,
        standing: &Standing<'_>,
        owner_state: OwnerState,
        step: &Step,
        wake: &mut Wake,
    ) -> Vec<(ServiceKey, Reason, String)> {
        let until = self.strangers_until(round, standing, owner_state);
        let stranger = self.stranger(round, standing);
        if let Some(until) = until.filter(|_| self.silence(standing).is_some() || stranger.is_some()) {
            wake.at(until);
        }
        let Some(mac) = stranger else { return Vec::new() };
        let owner = standing
            .owner_record
            .as_ref()
            .map(|owner_record| owner_record.host.as_str())
            .filter(|host| !host.is_empty());
        let first = owner.map_or(Some(0), |owner| self.rank(standing, owner));
        let takes = matches!(step, Step::Take(why) if why.is_despite_a_stranger());
        let member = self.facts.member_of(mac);
        let in_its_name = self.in_its_name(standing, mac);
        // A member may have taken it a moment ago, by a record that has not come here yet.
        let successor = owner_state == OwnerState::Alive && member.is_some() && !in_its_name;
        if !takes && (first != Some(0) || owner.is_none() || successor) {
            return Vec::new();
        }
        // The Service may have been made anew, and its owner answers with another MAC: that news is on its way. Or it
        // was handed over a moment ago, and its former owner still serves it. A later burst tells.
        if !takes && self.is_taken_early(standing) {
            return Vec::new();
        }
        let (addresses, owner) = (self.contested(standing), owner.unwrap_or("nobody that is known"));
        let who = if in_its_name { format!("somebody in the name of its MAC {mac}") } else { mac.to_string() };
        let remedy = remedy(mac, member, in_its_name);
        let text = if takes {
            format!(
                "address {addresses}: its owner {owner} is silent{}, so node {} takes it, although {who} answers for \
                 it too. {remedy}",
                if owner_state == OwnerState::Alive {
                    " though it renews its Lease"
                } else {
                    " and its Lease has run out"
                },
                self.me
            )
        } else if owner_state == OwnerState::Unseen {
            format!(
                "address {addresses}: the Lease of its owner {owner} has run out, and {who} answers for it. Nobody \
                 takes it while that lasts: it may be {owner}, which was never seen in this LAN. {remedy}"
            )
        } else {
            let besides = if in_its_name { " and says that it hears fewer hosts than its successor" } else { "" };
            format!(
                "address {addresses}: its owner {owner} does not answer any more, and {who} answers for it. It is \
                 taken when the Lease of {owner} has run out for {} s, and if {owner} goes on renewing that{besides}, \
                 {} s after it fell silent. {remedy}",
                STRANGERS_TIME.as_secs(),
                (self.facts.lease() + STRANGERS_TIME).as_secs()
            )
        };
        standing.members.iter().map(|view| (view.key.clone(), Reason::AddressConflict, text.clone())).collect()
    }
}

/// When the record was seen of an owner that never answered under it, and that was found silent at `since` (R5).
fn record_seen(since: Instant) -> Instant {
    since.checked_sub(GRACE).unwrap_or(since)
}

/// What to do about the host with this MAC; `member`: the node that has it.
fn remedy(mac: Mac, member: Option<&str>, in_its_name: bool) -> String {
    if in_its_name {
        return "It answers what is asked of everybody, and what is asked of that MAC nobody answers: find the fabric \
                that answers for its hosts (EVPN, ARP suppression) and let it forget the address"
            .to_owned();
    }
    member.map_or_else(
        || {
            format!(
                "Find {mac} (a duplicate, a router with proxy ARP, a fabric that answers for others) and stop its \
                 answers"
            )
        },
        |node| {
            format!(
                "{mac} is node {node}: most probably kube-proxy runs there in IPVS mode without strict ARP. Set \
                 ipvs.strictARP: true in its configuration"
            )
        },
    )
}
