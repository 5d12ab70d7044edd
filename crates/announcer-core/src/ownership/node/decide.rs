//! What this node does about one group of Services, from all that is known of it. Pure; `cluster.rs` collects the
//! facts.

use super::OwnerRecord;
use super::candidates::Candidates;
use super::silence::Silence;
use crate::detect::landmarks::Side;

/// What is known of the node in the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// Its membership Lease is renewed, or the API is in no state to tell.
    Alive,
    /// Its Lease has stood unchanged for its whole duration while the API was well.
    Expired,
    /// The same, and no card of it has ever named an interface in the LAN of the addresses: nobody watches it.
    Unseen,
    /// It has no Lease: nobody can say where it would have to answer.
    Absent,
}

/// What came of asking everybody for the addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Nothing was asked, or so long ago that it does not count.
    NotYet,
    /// It is being asked.
    Waiting,
    /// Somebody has it.
    Answered,
    /// Nobody has it.
    Silence,
}

/// One group at one moment.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools)] // independent facts, not the states of one machine
pub struct Case<'a> {
    /// This node.
    pub me: &'a str,
    /// What is hashed.
    pub group: &'a str,
    /// The record.
    pub owner_record: Option<&'a OwnerRecord>,
    /// `vipHost` without a term: kube-vip's, a hint and no record (decisions.md 19).
    pub hint: Option<&'a str>,
    /// One of its addresses is on this node.
    pub holding: bool,
    /// It has an address that can be asked for; one that waits for DHCP has none.
    pub addressed: bool,
    /// Clients know one of its addresses.
    pub published: bool,
    /// This node's place among the successors of the owner; absent: it is none.
    pub rank: Option<usize>,
    /// Nodes that may have it, this one included.
    pub candidates: &'a Candidates<'a>,
    /// Nobody has excluded this node, and it has an interface for it.
    pub keeps: bool,
    /// The node in the record.
    pub holder: Holder,
    /// What the detector found, if it is silent.
    pub silent: Option<Silence>,
    /// The owner hears many more hosts than this node does, and its Lease is fresh.
    pub outheard: bool,
    /// The owner lives and hears fewer hosts by now: it is the one that clients have lost.
    pub outdone: bool,
    /// The Lease of the owner has run out some seconds ago, or would have if it were not renewed since it fell silent:
    /// nobody waits any longer for a stranger to cease to answer, or for a node that hears more to go first.
    pub others_had_their_time: bool,
    /// The broadcast question.
    pub asked: Asked,
    /// It was a node that takes part which has answered it.
    pub answered_by_member: bool,
    /// This process is about to end.
    pub stopping: bool,
    /// Its node goes on, so the next process is here soon: what is here stays for it.
    pub stays: bool,
    /// The cloud controller is in safe mode: this cluster may be a copy of another one, which serves the addresses.
    pub safe_mode: bool,
    /// How many candidates before this node have had their time and have not taken what nobody owns.
    pub passed_over: usize,
    /// Nobody that we know has had it for as long as a Lease needs to come into view.
    pub vacant_long_enough: bool,
    /// Where it belongs, if not here.
    pub home: Option<&'a str>,
    /// Fail-back is wanted, and the group has belonged elsewhere for long enough.
    pub fail_back: bool,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Rest,
    /// Ask everybody whether somebody has the addresses.
    Ask,
    /// Become the owner, for this reason.
    Take(&'static str),
    /// Make that node the owner, for this reason.
    Give(String, &'static str),
}

/// failover-protocol.md 1 and R8, decisions.md 20, 21, 24 and 26.
pub fn decide(case: &Case<'_>) -> Step {
    let step = match case.owner_record {
        Some(owner_record) if owner_record.host == case.me => keep(case),
        Some(owner_record) => succeed(case, &owner_record.host),
        None => settle(case),
    };
    if case.safe_mode { carefully(case, step) } else { step }
}

/// Of what would be taken: what is here stays, what clients know and nobody answers for is taken all the same, and
/// nothing new begins. A member that answers is no original: its kube-proxy, or proxy ARP, answers for what it does not
/// own.
fn carefully(case: &Case<'_>, step: Step) -> Step {
    let Step::Take(why) = step else { return step };
    match case.asked {
        _ if case.holding => Step::Take(why),
        _ if !case.published => Step::Rest,
        Asked::NotYet => Step::Ask,
        Asked::Silence => Step::Take(why),
        Asked::Answered if case.answered_by_member && case.others_had_their_time => Step::Take(why),
        Asked::Waiting | Asked::Answered => Step::Rest,
    }
}

/// An address goes back.
pub const BELONGS_THERE: &str = "it belongs there";

/// Whoever answers is not known to the record.
pub const DESPITE_A_STRANGER: &str = "its node is silent and its Lease has run out, though a stranger answers for it";

/// The same while the owner renews its Lease.
pub const THOUGH_IT_RENEWS: &str = "its node is silent, though it renews its Lease and a stranger answers for it";

/// It was withdrawn for a claim, and the record does not say for whom.
const GIVEN_UP: &str = "it was given up for a claim that nobody stands behind";

/// We are the owner. Whoever is better off gets it from us, announced before we withdraw.
fn keep(case: &Case<'_>) -> Step {
    if case.stopping && case.stays {
        // A hand-over would cost every client its connections, and the kernel answers meanwhile.
        return Step::Rest;
    }
    let why = if case.stopping {
        "its announcer is ending"
    } else if !case.keeps {
        "the node may not serve it any more"
    } else if case.candidates.has_better_than(case.me) {
        "another node is better off"
    } else if case.fail_back {
        return give_to(case.home.or_else(|| case.candidates.home_elsewhere(case.group, case.me)), BELONGS_THERE);
    } else {
        return Step::Rest;
    };
    give_to(case.candidates.home_elsewhere(case.group, case.me), why)
}

fn give_to(to: Option<&str>, why: &'static str) -> Step {
    to.map_or(Step::Rest, |to| Step::Give(to.to_owned(), why))
}

/// Somebody else is. Only silence on the wire takes it away: an expired Lease alone moves nothing (R8).
fn succeed(case: &Case<'_>, owner: &str) -> Step {
    let Some(rank) = case.rank.filter(|_| !case.stopping) else { return Step::Rest };
    match (case.silent, case.holder) {
        // A duplicate, proxy ARP, a fabric that answers for the dead: it is no owner, and its veto ends.
        (Some(Silence { taken: Some(_), side, heard, .. }), Holder::Alive) if case.others_had_their_time => {
            if heard && side == Side::Greater && !case.outheard { Step::Take(THOUGH_IT_RENEWS) } else { Step::Rest }
        }
        (Some(Silence { taken: Some(_), .. }), _) if case.others_had_their_time => Step::Take(DESPITE_A_STRANGER),
        (Some(Silence { taken: Some(_), .. }), _) => Step::Rest,
        (Some(Silence { side: Side::Greater, .. }), _) if !case.outheard => {
            Step::Take("its node does not answer any more")
        }
        (Some(Silence { side: Side::Lesser, .. }), _) if case.outdone => {
            Step::Take("its node does not answer here, and hears fewer hosts than this one")
        }
        // decisions.md 24: we may be cut off, from clients too, unless the API says that the owner is. Who hears nobody
        // at all lets those go first that do.
        (Some(Silence { side: Side::Alone, .. }), _) if case.candidates.len() > 1 && !case.others_had_their_time => {
            Step::Rest
        }
        (Some(_), Holder::Expired) => Step::Take("its node does not answer any more and its Lease has expired"),
        // There is nothing yet that could be silent, and nothing that two could answer for.
        (None, Holder::Expired | Holder::Unseen) if !case.addressed && rank == 0 => {
            Step::Take("its node's Lease has expired")
        }
        // The detector has nobody to ask, so everybody is asked instead; or the addresses would stay on a dead node.
        (_, Holder::Unseen) if rank == 0 => ask(case, "its node's Lease has expired, and nobody answers for it"),
        // Not before its Lease has had the time to come: on the wire our question looks as if a stranger wanted the
        // address.
        (_, Holder::Absent) if rank == 0 && case.vacant_long_enough => {
            ask(case, if owner.is_empty() { GIVEN_UP } else { "its node is gone" })
        }
        _ => Step::Rest,
    }
}

/// There is no record. Whoever has the addresses writes one; else the node where they belong, or kube-vip had them.
fn settle(case: &Case<'_>) -> Step {
    if case.stopping {
        return Step::Rest;
    }
    if case.holding {
        return Step::Take("it has the address already");
    }
    let Some(position) = case.candidates.position(case.group, case.me) else { return Step::Rest };
    let hinted = case.hint.filter(|hint| case.candidates.has(hint));
    let before = match hinted {
        Some(hint) if hint == case.me => 0,
        // Who may have died a moment ago, with a Lease that still stands.
        hint => usize::from(hint.is_some()) + position,
    };
    if before > case.passed_over {
        return Step::Rest;
    }
    if case.published {
        ask(case, "nobody is recorded as its owner, and nobody answers for it")
    } else {
        // Nobody has begun with it; the probe before first use finds a stranger who has the address.
        Step::Take("it is new")
    }
}

fn ask(case: &Case<'_>, why: &'static str) -> Step {
    match case.asked {
        Asked::NotYet => Step::Ask,
        Asked::Silence => Step::Take(why),
        Asked::Answered if case.others_had_their_time => Step::Take(DESPITE_A_STRANGER),
        Asked::Waiting | Asked::Answered => Step::Rest,
    }
}

#[cfg(test)]
impl<'a> Case<'a> {
    /// An address that clients know, while nothing is amiss: for tests, which change what they are about.
    pub(super) fn quiet(me: &'a str, owner_record: Option<&'a OwnerRecord>, candidates: &'a Candidates<'a>) -> Self {
        Self {
            me,
            group: "10.0.0.5",
            owner_record,
            hint: None,
            holding: false,
            addressed: true,
            published: true,
            rank: owner_record.and_then(|owner_record| candidates.rank(&owner_record.host, me, |_| None)),
            candidates,
            keeps: true,
            holder: Holder::Alive,
            silent: None,
            outheard: false,
            outdone: false,
            others_had_their_time: false,
            asked: Asked::NotYet,
            answered_by_member: false,
            stopping: false,
            stays: false,
            safe_mode: false,
            passed_over: 0,
            vacant_long_enough: false,
            home: None,
            fail_back: false,
        }
    }
}

#[cfg(test)]
mod tests;
