//! In which elections this node takes part (`service` mode): which begin, which hand their Lease back, which wait for
//! that, and when nothing is held any more.
//!
//! A Service that is made anew at once has the Lease of the old one. Both elections speak in the name of this node, and
//! what the old one hands back would be what the new one has just taken: the new one waits.

use std::collections::BTreeSet;

use crate::ownership::service::LeaseKey;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Take part in the election for this Lease.
    Begin(LeaseKey),
    /// End that election and hand the Lease back; [`Campaigns::handed_back`] hears of it.
    HandBack(LeaseKey),
    /// Tell the engine that nothing is held any more; false: a Lease may still be in our name.
    Released(bool),
}

/// All elections of this node.
#[derive(Debug)]
pub struct Campaigns {
    running: BTreeSet<LeaseKey>,
    leaving: BTreeSet<LeaseKey>,
    /// Wanted again while their Lease is being handed back.
    waiting: BTreeSet<LeaseKey>,
    /// Whether all that ended since the engine last said what it wants has handed its Lease back.
    released: bool,
}

impl Default for Campaigns {
    fn default() -> Self {
        Self { running: BTreeSet::new(), leaving: BTreeSet::new(), waiting: BTreeSet::new(), released: true }
    }
}

impl Campaigns {
    /// Take part in these elections and in no others.
    pub fn want(&mut self, wanted: BTreeSet<LeaseKey>) -> Vec<Act> {
        // What was given up earlier, with its Service, is nothing that the engine waits for.
        self.released = true;
        let mut acts = Vec::new();
        for key in self.running.extract_if(.., |key| !wanted.contains(key)) {
            acts.push(Act::HandBack(key.clone()));
            self.leaving.insert(key);
        }
        self.waiting.clear();
        for key in wanted {
            if self.leaving.contains(&key) {
                self.waiting.insert(key);
            } else if self.running.insert(key.clone()) {
                acts.push(Act::Begin(key));
            }
        }
        acts.extend(self.all_released());
        acts
    }

    /// An election has ended as it was told to. `confirmed`: the API has said that the Lease does not bear our name.
    pub fn handed_back(&mut self, key: &LeaseKey, confirmed: bool) -> Vec<Act> {
        if !self.leaving.remove(key) {
            return Vec::new();
        }
        self.released &= confirmed;
        let mut acts = Vec::new();
        if let Some(again) = self.waiting.take(key) {
            self.running.insert(again.clone());
            acts.push(Act::Begin(again));
        }
        acts.extend(self.all_released());
        acts
    }

    /// Whether nothing runs and nothing is being handed back.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.leaving.is_empty() && self.waiting.is_empty()
    }

    /// Whether elections are wanted.
    pub fn are_wanted(&self) -> bool {
        !self.running.is_empty() || !self.waiting.is_empty()
    }

    /// The engine waits for this when it is about to end.
    fn all_released(&self) -> Option<Act> {
        self.is_idle().then_some(Act::Released(self.released))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> LeaseKey {
        LeaseKey { namespace: "default".into(), name: name.to_owned() }
    }

    fn keys(names: &[&str]) -> BTreeSet<LeaseKey> {
        names.iter().map(|name| key(name)).collect()
    }

    #[test]
    fn a_lease_that_is_wanted_again_is_handed_back_before_its_next_election_begins() {
        let mut campaigns = Campaigns::default();
        assert_eq!(campaigns.want(keys(&["web"])), [Act::Begin(key("web"))]);
        assert_eq!(campaigns.want(keys(&[])), [Act::HandBack(key("web"))]);
        assert_eq!(campaigns.want(keys(&["web"])), []);
        assert_eq!(campaigns.handed_back(&key("web"), true), [Act::Begin(key("web"))]);
    }

    #[test]
    fn an_election_that_is_not_wanted_any_more_before_its_turn_never_begins() {
        let mut campaigns = Campaigns::default();
        campaigns.want(keys(&["web"]));
        campaigns.want(keys(&[]));
        campaigns.want(keys(&["web"]));
        assert_eq!(campaigns.want(keys(&[])), []);
        assert_eq!(campaigns.handed_back(&key("web"), true), [Act::Released(true)]);
    }

    #[test]
    fn nothing_is_held_when_the_last_has_handed_back_and_one_that_could_not_is_told_once() {
        let mut campaigns = Campaigns::default();
        assert_eq!(campaigns.want(keys(&[])), [Act::Released(true)]);
        campaigns.want(keys(&["other", "web"]));
        campaigns.want(keys(&[]));
        assert_eq!(campaigns.handed_back(&key("web"), false), []);
        assert_eq!(campaigns.handed_back(&key("other"), true), [Act::Released(false)]);
        assert_eq!(campaigns.handed_back(&key("other"), true), [], "it has ended before");
        campaigns.want(keys(&["web"]));
        campaigns.want(keys(&[]));
        assert_eq!(campaigns.handed_back(&key("web"), true), [Act::Released(true)], "what was before does not count");
    }
}
