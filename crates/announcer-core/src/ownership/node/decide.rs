//! Decides what this node does about one group of Services. Pure; `standing.rs` collects the facts.

use super::OwnerRecord;
use super::candidates::Candidates;
use super::silence::OwnerSilence;
use crate::detect::landmarks::Side;

/// State of the node that the record names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerState {
    /// Its membership Lease is renewed, or this node cannot tell because of the API.
    Alive,
    /// Its Lease was unchanged for its whole duration while the API was well.
    Expired,
    /// Its Lease has expired, and no card of it ever named an interface in the LAN of the addresses. So no node watches
    /// it.
    Unseen,
    /// It has no Lease, so no node knows at which MAC it would answer.
    Absent,
}

/// Result of the broadcast question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionState {
    /// No question was sent, or its result is too old.
    NotYet,
    /// The question is under way.
    Waiting,
    /// A host has answered.
    Answered,
    /// No host has answered.
    Silence,
}

/// The facts about one group at one moment.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools)] // independent facts, not the states of one machine
pub struct Case<'a> {
    /// This node.
    pub me: &'a str,
    /// The key that is hashed to find the home.
    pub group: &'a str,
    /// The record that counts for the group.
    pub owner_record: Option<&'a OwnerRecord>,
    /// `vipHost` without a term. kube-vip wrote it; it is a hint, not a record (decisions.md 19).
    pub hint: Option<&'a str>,
    /// One of its addresses is on this node.
    pub holding: bool,
    /// The group has an address that can be probed; a group that still waits for DHCP has none.
    pub addressed: bool,
    /// One of its addresses is published, so clients know it.
    pub published: bool,
    /// This node's place among the successors of the owner; `None`: it is no successor.
    pub rank: Option<usize>,
    /// A node that is not worse off than this owner and hears the gateway, which this owner has lost.
    pub with_gateway: Option<&'a str>,
    /// Nodes that may own the group, this one included.
    pub candidates: &'a Candidates<'a>,
    /// This node is not excluded and has an interface for the group.
    pub eligible: bool,
    /// State of the node in the record.
    pub owner_state: OwnerState,
    /// What the detector found, if the owner is silent.
    pub silent: Option<OwnerSilence>,
    /// The owner hears many more hosts than this node does, and its Lease is valid.
    pub owner_hears_more: bool,
    /// The owner has answered this node neither under its record nor shortly before, and its Lease and card say that it
    /// lives and hears hosts. So most probably the LAN keeps these two nodes apart, as isolated ports do.
    pub unreached: bool,
    /// The stranger answers with the MAC of the owner: a fabric in its name, or the owner itself, which this node does
    /// not reach by unicast.
    pub in_its_name: bool,
    /// The owner renews its Lease and hears fewer hosts than this node does, so it is the owner that clients have lost.
    pub owner_hears_fewer: bool,
    /// The Lease of the owner expired some seconds ago, or would have if the silent owner had not renewed it. From then
    /// on this node waits neither for a stranger's answers to end nor for a node that hears more hosts to go first.
    pub others_had_their_time: bool,
    /// Result of the broadcast question.
    pub asked: QuestionState,
    /// A member has answered the broadcast question.
    pub answered_by_member: bool,
    /// This process is about to end.
    pub stopping: bool,
    /// The node stays in service, and another process follows this one.
    pub node_stays: bool,
    /// Only nodes with endpoints may own the group, and nobody on this node follows those between two processes.
    pub endpoint_bound: bool,
    /// The cloud controller is in safe mode: this cluster may be a copy of another cluster that serves the addresses.
    pub safe_mode: bool,
    /// How many candidates before this node have had their time to take the group and have not done so.
    pub passed_over: usize,
    /// The group has had no known owner for as long as a Lease needs to become visible.
    pub vacant_long_enough: bool,
    /// The node where the group belongs, if that is another node.
    pub home: Option<&'a str>,
    /// Fail-back is wanted, and the group has belonged elsewhere for long enough.
    pub fail_back: bool,
}

/// Why a group gets another owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// A fail-back.
    BelongsThere,
    /// A take-over while a host that no record names answers for the address.
    DespiteAStranger,
    /// The same while the owner renews its Lease.
    ThoughItRenews,
    /// A reason that is only told.
    Told(&'static str),
}

impl Why {
    /// The reason for users.
    pub fn words(self) -> &'static str {
        match self {
            Self::BelongsThere => "it belongs there",
            Self::DespiteAStranger => "its node is silent and its Lease has run out, though a stranger answers for it",
            Self::ThoughItRenews => "its node is silent, though it renews its Lease and a stranger answers for it",
            Self::Told(words) => words,
        }
    }

    /// Whether another host answers for the address all the same.
    pub fn is_despite_a_stranger(self) -> bool {
        matches!(self, Self::DespiteAStranger | Self::ThoughItRenews)
    }
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Do nothing.
    Rest,
    /// Leave the group to its owner, which is silent here, because it lives and the LAN may keep the two apart.
    LeaveUnreached,
    /// Ask the LAN by broadcast for the addresses.
    Ask,
    /// Become the owner, for this reason.
    Take(Why),
    /// Make that node the owner, for this reason.
    Give(String, Why),
}

/// Decides the next step for one group (fail-over spec 1 and R8, decisions.md 20, 21, 24 and 26).
pub fn decide(case: &Case<'_>) -> Step {
    let step = match case.owner_record {
        Some(owner_record) if owner_record.host == case.me => keep(case),
        Some(owner_record) => succeed(case, &owner_record.host),
        None => settle(case),
    };
    if case.safe_mode { carefully(case, step) } else { step }
}

/// Restricts take-overs in safe mode. This node keeps what it holds, and takes a published address that no host answers
/// for. It starts nothing new. An answer from a member does not show that another cluster serves the address: its
/// kube-proxy or proxy ARP may answer for addresses that it does not own.
fn carefully(case: &Case<'_>, step: Step) -> Step {
    let Step::Take(why) = step else { return step };
    match case.asked {
        _ if case.holding => Step::Take(why),
        _ if !case.published => Step::Rest,
        QuestionState::NotYet => Step::Ask,
        QuestionState::Silence => Step::Take(why),
        QuestionState::Answered if case.answered_by_member && case.others_had_their_time => Step::Take(why),
        QuestionState::Waiting | QuestionState::Answered => Step::Rest,
    }
}

/// Reason of a hand-over by an owner that is cut off from the clients.
const HEARS_THE_GATEWAY: &str = "it hears the gateway, which this node has lost";

/// Reason after this node withdrew because of a claim, while no record names the claimant.
pub(super) const GIVEN_UP: &str = "it was given up for a claim that nobody stands behind";

/// This node is the owner. It hands the group over if another node is better placed; it withdraws only after the new
/// owner has announced.
fn keep(case: &Case<'_>) -> Step {
    if case.stopping && case.node_stays && !case.endpoint_bound {
        // A hand-over would cost every client its connections, while the kernel goes on answering without a process.
        return Step::Rest;
    }
    // What was lent goes to its lender, if that one is as well off as any other node. The kernel of a node that stays
    // in service goes on answering without a process: that is better than a node that nobody hears.
    let last_resort = !(case.stopping && case.eligible && case.node_stays);
    let by_hash = || case.candidates.home_elsewhere(case.group, case.me, case.home, last_resort);
    // Clients reach nodes that hear the gateway, whatever the reason of the hand-over is.
    let elsewhere = || case.with_gateway.or_else(by_hash);
    let why = if case.stopping {
        "its announcer is ending"
    } else if !case.eligible {
        "the node may not serve it any more"
    } else if case.candidates.has_better_than(case.me) {
        "another node is better off"
    } else if case.with_gateway.is_some() {
        HEARS_THE_GATEWAY
    } else if case.fail_back {
        return give_to(case.home.or_else(elsewhere), Why::BelongsThere);
    } else {
        return Step::Rest;
    };
    give_to(elsewhere(), Why::Told(why))
}

fn give_to(to: Option<&str>, why: Why) -> Step {
    to.map_or(Step::Rest, |to| Step::Give(to.to_owned(), why))
}

/// Another node is the owner. Only silence on the wire causes a take-over: an expired Lease alone moves nothing (R8).
fn succeed(case: &Case<'_>, owner: &str) -> Step {
    let Some(rank) = case.rank.filter(|_| !case.stopping) else { return Step::Rest };
    match (case.silent, case.owner_state) {
        // A duplicate, proxy ARP, or a fabric that answers for dead hosts. Such a host is no owner, so its answers stop
        // blocking the take-over.
        (Some(OwnerSilence { taken: Some(_), side, heard, .. }), OwnerState::Alive) if case.others_had_their_time => {
            // An owner that hears hosts is reached by unicast, by all but this node.
            let lost = if case.in_its_name { case.owner_hears_fewer } else { !case.owner_hears_more };
            if heard && side == Side::Greater && lost { Step::Take(Why::ThoughItRenews) } else { Step::Rest }
        }
        (Some(OwnerSilence { taken: Some(_), .. }), _) if case.others_had_their_time => {
            Step::Take(Why::DespiteAStranger)
        }
        (Some(OwnerSilence { taken: Some(_), .. }), _) => Step::Rest,
        (Some(OwnerSilence { side: Side::Greater, .. }), _) if !case.owner_hears_more && !case.unreached => {
            Step::Take(Why::Told("its node does not answer any more"))
        }
        (Some(OwnerSilence { side: Side::Greater, .. }), OwnerState::Alive) if !case.owner_hears_more => {
            Step::LeaveUnreached
        }
        (Some(OwnerSilence { side: Side::Lesser, .. }), _) if case.owner_hears_fewer => {
            Step::Take(Why::Told("its node does not answer here, and hears fewer hosts than this one"))
        }
        // decisions.md 24: this node itself may be cut off, also from clients, unless the API shows that the owner is.
        // A node that hears no host at all lets nodes go first that hear some.
        (Some(OwnerSilence { side: Side::Alone, .. }), _)
            if case.candidates.len() > 1 && !case.others_had_their_time =>
        {
            Step::Rest
        }
        (Some(_), OwnerState::Expired) => {
            Step::Take(Why::Told("its node does not answer any more and its Lease has expired"))
        }
        // The group has no address yet, so the owner cannot be silent and two nodes cannot both answer.
        (None, OwnerState::Expired | OwnerState::Unseen) if !case.addressed && rank == 0 => {
            Step::Take(Why::Told("its node's Lease has expired"))
        }
        // The detector has no interface to ask, so the whole LAN is asked. Otherwise the addresses would stay on a dead
        // node.
        (_, OwnerState::Unseen) if rank == 0 => ask(case, "its node's Lease has expired, and nobody answers for it"),
        // Wait until the Lease of that node has had time to appear: our broadcast question looks on the wire as if a
        // stranger wanted the address.
        (_, OwnerState::Absent) if rank == 0 && case.vacant_long_enough => {
            ask(case, if owner.is_empty() { GIVEN_UP } else { "its node is gone" })
        }
        _ => Step::Rest,
    }
}

/// There is no record. A node that holds the addresses writes one; otherwise the node in kube-vip's hint or the home
/// does.
fn settle(case: &Case<'_>) -> Step {
    if case.stopping {
        return Step::Rest;
    }
    if case.holding {
        return Step::Take(Why::Told("it has the address already"));
    }
    let Some(position) = case.candidates.position(case.group, case.me) else { return Step::Rest };
    let hinted = case.hint.filter(|hint| case.candidates.has(hint));
    let before = match hinted {
        Some(hint) if hint == case.me => 0,
        // The hinted node goes first. It may have died a moment ago while its Lease is still valid.
        hint => usize::from(hint.is_some()) + position,
    };
    if before > case.passed_over {
        return Step::Rest;
    }
    if case.published {
        ask(case, "nobody is recorded as its owner, and nobody answers for it")
    } else {
        // No node has announced the address yet. The probe before first use finds a stranger that has it.
        Step::Take(Why::Told("it is new"))
    }
}

fn ask(case: &Case<'_>, why: &'static str) -> Step {
    match case.asked {
        QuestionState::NotYet => Step::Ask,
        QuestionState::Silence => Step::Take(Why::Told(why)),
        QuestionState::Answered if case.others_had_their_time => Step::Take(Why::DespiteAStranger),
        QuestionState::Waiting | QuestionState::Answered => Step::Rest,
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
            with_gateway: None,
            candidates,
            eligible: true,
            owner_state: OwnerState::Alive,
            silent: None,
            owner_hears_more: false,
            unreached: false,
            in_its_name: false,
            owner_hears_fewer: false,
            others_had_their_time: false,
            asked: QuestionState::NotYet,
            answered_by_member: false,
            stopping: false,
            node_stays: false,
            endpoint_bound: false,
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
