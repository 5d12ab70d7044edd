//! The elections of this node in `service` mode: which start, which release their Lease, which wait for that, and when
//! all Leases are released.
//!
//! A Service that is deleted and created at once has the same Lease as before. Both elections use this node's name, and
//! the old one would release the Lease that the new one has just acquired. So the new one waits.

use std::collections::BTreeSet;

use crate::ownership::service::LeaseKey;

/// An action of the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CampaignAct {
    /// Take part in the election for this Lease.
    Begin(LeaseKey),
    /// End this election and release its Lease; then call [`Campaigns::handed_back`].
    HandBack(LeaseKey),
    /// Tell the engine that no Lease is held any more; false: a Lease may still name this node.
    Released(bool),
}

/// All elections of this node.
#[derive(Debug)]
pub struct Campaigns {
    running: BTreeSet<LeaseKey>,
    leaving: BTreeSet<LeaseKey>,
    /// Elections that are wanted again while their Lease is being released.
    waiting: BTreeSet<LeaseKey>,
    /// Whether every election that has ended since the engine's last request has released its Lease.
    released: bool,
}

impl Default for Campaigns {
    fn default() -> Self {
        Self { running: BTreeSet::new(), leaving: BTreeSet::new(), waiting: BTreeSet::new(), released: true }
    }
}

impl Campaigns {
    /// Sets the elections to take part in; all others end.
    pub fn want(&mut self, wanted: BTreeSet<LeaseKey>) -> Vec<CampaignAct> {
        // Elections that ended earlier, with their Services, do not concern the engine's current request.
        self.released = true;
        let mut acts = Vec::new();
        for key in self.running.extract_if(.., |key| !wanted.contains(key)) {
            acts.push(CampaignAct::HandBack(key.clone()));
            self.leaving.insert(key);
        }
        self.waiting.clear();
        for key in wanted {
            if self.leaving.contains(&key) {
                self.waiting.insert(key);
            } else if self.running.insert(key.clone()) {
                acts.push(CampaignAct::Begin(key));
            }
        }
        acts.extend(self.all_released());
        acts
    }

    /// An election has ended as requested. `confirmed`: the API server has confirmed that the Lease does not name this
    /// node.
    pub fn handed_back(&mut self, key: &LeaseKey, confirmed: bool) -> Vec<CampaignAct> {
        if !self.leaving.remove(key) {
            return Vec::new();
        }
        self.released &= confirmed;
        let mut acts = Vec::new();
        if let Some(again) = self.waiting.take(key) {
            self.running.insert(again.clone());
            acts.push(CampaignAct::Begin(again));
        }
        acts.extend(self.all_released());
        acts
    }

    /// Whether no election runs and no Lease is being released.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.leaving.is_empty() && self.waiting.is_empty()
    }

    /// Whether any election is wanted.
    pub fn are_wanted(&self) -> bool {
        !self.running.is_empty() || !self.waiting.is_empty()
    }

    /// The report that the engine waits for before it ends.
    fn all_released(&self) -> Option<CampaignAct> {
        self.is_idle().then_some(CampaignAct::Released(self.released))
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
        assert_eq!(campaigns.want(keys(&["web"])), [CampaignAct::Begin(key("web"))]);
        assert_eq!(campaigns.want(keys(&[])), [CampaignAct::HandBack(key("web"))]);
        assert_eq!(campaigns.want(keys(&["web"])), []);
        assert_eq!(campaigns.handed_back(&key("web"), true), [CampaignAct::Begin(key("web"))]);
    }

    #[test]
    fn an_election_that_is_not_wanted_any_more_before_its_turn_never_begins() {
        let mut campaigns = Campaigns::default();
        campaigns.want(keys(&["web"]));
        campaigns.want(keys(&[]));
        campaigns.want(keys(&["web"]));
        assert_eq!(campaigns.want(keys(&[])), []);
        assert_eq!(campaigns.handed_back(&key("web"), true), [CampaignAct::Released(true)]);
    }

    #[test]
    fn nothing_is_held_when_the_last_has_handed_back_and_one_that_could_not_is_told_once() {
        let mut campaigns = Campaigns::default();
        assert_eq!(campaigns.want(keys(&[])), [CampaignAct::Released(true)]);
        campaigns.want(keys(&["other", "web"]));
        campaigns.want(keys(&[]));
        assert_eq!(campaigns.handed_back(&key("web"), false), []);
        assert_eq!(campaigns.handed_back(&key("other"), true), [CampaignAct::Released(false)]);
        assert_eq!(campaigns.handed_back(&key("other"), true), [], "it has ended before");
        campaigns.want(keys(&["web"]));
        campaigns.want(keys(&[]));
        assert_eq!(
            campaigns.handed_back(&key("web"), true),
            [CampaignAct::Released(true)],
            "what was before does not count"
        );
    }
}
