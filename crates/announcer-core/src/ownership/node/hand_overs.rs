//! Groups that move from one node to another while both nodes work.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::timing::GIVE_BACK_PAUSE;
use crate::view::ServiceKey;

/// A group that this node has handed over because of a defect of its own.
#[derive(Debug, PartialEq, Eq)]
struct Given {
    /// The node that got it.
    to: String,
    /// The node that had lent it to this node before.
    lender: Option<String>,
}

/// Groups that move or have moved between well nodes.
#[derive(Debug, Default)]
pub(super) struct HandOvers {
    /// Groups that this node has handed over and still serves, until then or until the new owner is heard.
    pub lingering: BTreeMap<ServiceKey, Instant>,
    /// Own groups that belong to another node, and since when.
    pub misplaced: BTreeMap<ServiceKey, (String, Instant)>,
    /// Groups that the named node has handed to this node, and when. The defect that was the reason may become known
    /// later.
    pub received: BTreeMap<ServiceKey, (String, Instant)>,
    /// Groups that came here because the named node had a defect; they go back to it.
    pub lent: BTreeMap<ServiceKey, String>,
    /// Groups whose place is here, or with their lender, although another node owns them now.
    given: BTreeMap<ServiceKey, Given>,
    /// When a group was last given back.
    pub gave_back: Option<Instant>,
    /// The members that say that they hear the gateway which this node, an owner, has lost, and from when on a card of
    /// each tells so.
    pub awaited: BTreeSet<(String, Instant)>,
}

impl HandOvers {
    /// Whether a group was given back a moment ago; groups go back one at a time.
    pub fn rests(&self, now: Instant) -> bool {
        self.gave_back.is_some_and(|at| now < at + GIVE_BACK_PAUSE)
    }

    /// Whether the Lease of `node` that is renewed now, and was renewed `before`, has its first card that tells whether
    /// that node hears the gateway which this one has lost.
    pub fn is_awaited(&self, now: Instant, node: &str, before: Option<Instant>) -> bool {
        let is_first = |at: Instant| at <= now && before.is_none_or(|before| before < at);
        self.awaited.iter().any(|(awaited, at)| awaited == node && is_first(*at))
    }

    /// This node has handed a group to the node `to` because of a defect of its own. A group that goes back to its
    /// lender is where it belongs, so nothing is remembered of it.
    pub fn note_given(&mut self, key: &ServiceKey, to: &str) {
        let lender = self.lent.get(key).cloned();
        if lender.as_deref() == Some(to) {
            self.given.remove(key);
        } else {
            self.given.insert(key.clone(), Given { to: to.to_owned(), lender });
        }
    }

    /// The node `from` has handed a group to this node. A group that comes back from the node to which this node gave
    /// it is no loan of that node, whatever defect that node has: only the loan that stood before stands again.
    pub fn note_received(&mut self, now: Instant, key: &ServiceKey, from: &str) {
        match self.given.remove(key).filter(|given| given.to == from) {
            Some(Given { lender: Some(lender), .. }) => {
                self.lent.insert(key.clone(), lender);
            }
            Some(Given { lender: None, .. }) => {}
            None => {
                self.received.insert(key.clone(), (from.to_owned(), now));
            }
        }
    }

    /// Forgets Services that do not exist any more, loans of groups that are not ours any more, and what was given of
    /// groups that are ours again. `owner`: the node that the record of a Service names.
    pub fn retain<'a>(
        &mut self,
        now: Instant,
        me: &str,
        is_there: impl Fn(&ServiceKey) -> bool,
        owner: impl Fn(&ServiceKey) -> Option<&'a str>,
    ) {
        self.lingering.retain(|key, until| is_there(key) && now < *until);
        self.misplaced.retain(|key, _| is_there(key));
        self.received.retain(|key, _| owner(key) == Some(me));
        self.lent.retain(|key, _| owner(key) == Some(me));
        self.given.retain(|key, _| owner(key).is_some_and(|host| host != me));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_remembered_while_another_node_has_it_and_no_longer() {
        let (now, me) = (Instant::now(), "node-1");
        let key = ServiceKey::new("default", "web");
        for (name, owner, remembered) in [
            ("it is where it was given", Some("node-2"), true),
            ("it was passed on", Some("node-3"), true),
            ("a claim was heard, and the record is not known", Some(""), true),
            ("it is ours again", Some("node-1"), false),
            ("the Service is gone, or was made anew", None, false),
        ] {
            let mut hand_overs = HandOvers::default();
            hand_overs.note_given(&key, "node-2");
            hand_overs.retain(now, me, |_| owner.is_some(), |_| owner);
            let expected = Given { to: "node-2".into(), lender: None };
            assert_eq!(hand_overs.given.get(&key), remembered.then_some(&expected), "{name}");
        }
    }

    #[test]
    fn what_comes_back_from_the_node_that_got_it_is_no_loan_and_an_earlier_loan_stands_again() {
        let now = Instant::now();
        let key = ServiceKey::new("default", "web");
        for (name, lender, to, from, received, lent) in [
            ("ours, and it comes back", None, "node-2", "node-2", false, None),
            ("ours, and it comes from a third node", None, "node-2", "node-3", true, None),
            ("lent, passed on, and it comes back", Some("node-3"), "node-2", "node-2", false, Some("node-3")),
            ("lent, given back, and lent again", Some("node-2"), "node-2", "node-2", true, None),
        ] {
            let mut hand_overs = HandOvers::default();
            hand_overs.lent.extend(lender.map(|lender| (key.clone(), lender.to_owned())));
            hand_overs.note_given(&key, to);
            // The record names another node now.
            hand_overs.retain(now, "node-1", |_| true, |_| Some(to));
            hand_overs.note_received(now, &key, from);
            assert_eq!(hand_overs.received.contains_key(&key), received, "{name}");
            assert_eq!(hand_overs.lent.get(&key).map(String::as_str), lent, "{name}");
        }
    }
}
