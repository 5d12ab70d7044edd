//! What this node knows of its default gateways. Pure.

use std::collections::BTreeMap;
use std::time::Instant;

use super::{Entry, FIRST, LATELY, LandmarkKind, Landmarks};

/// What this node knows of the default gateway on one interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GatewayState {
    /// When it last answered, or when it was first known if it never did.
    pub since: Instant,
    /// Whether it answers; `None` before it had the time to.
    pub answers: Option<bool>,
}

impl Landmarks {
    /// Asks anew for the gateways on these interfaces, by broadcast and soon, because members hear them. A gateway
    /// that is back may have another MAC, and one that never answered is asked only once a minute. `links`: with the
    /// moment from which the members' cards count. Under the same one nothing is asked again.
    pub fn seek_gateways(&mut self, now: Instant, links: &BTreeMap<u32, Instant>) {
        for ((link, _), entry) in &mut self.known {
            if entry.who == LandmarkKind::Gateway
                && links.get(link).is_some_and(|from| self.sought.get(link) != Some(from))
            {
                // The next question is the second one without an answer, and that is a broadcast.
                (entry.next, entry.unanswered) = (now + FIRST, 1);
            }
        }
        self.sought.clone_from(links);
    }

    /// What is known of the default gateways, by interface. A gateway whose address is a VIP or a member's is left out:
    /// the node that has it asks itself in vain, and the others hear a member.
    pub fn gateways(&self, now: Instant) -> BTreeMap<u32, GatewayState> {
        let gateways = self.known.iter().filter(|(_, entry)| entry.who == LandmarkKind::Gateway);
        let all = gateways.filter(|((_, address), _)| !self.excluded.contains(address));
        let state = |entry: &Entry| {
            let since = entry.answered.unwrap_or(entry.known);
            let is_early = entry.answered.is_none() && now < since + LATELY;
            GatewayState { since, answers: (!is_early).then(|| entry.is_heard(now, LATELY)) }
        };
        all.map(|((link, _), entry)| (*link, state(entry))).collect()
    }
}
