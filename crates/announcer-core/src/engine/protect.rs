//! Service security inside the engine: rules stand before the address does, and are checked once in a while.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::carrier::Carrier;
use super::vip::{Adding, Phase};
use super::{Action, Engine, Resumed, Vip, WireOp};
use crate::plan::VipId;
use crate::security::{self, Protection, RuleInputs};
use crate::view::{ServiceKey, Uid};

/// The rules of service security, as far as the kernel has said. It may take half a minute over them, behind others who
/// change its tables: what is served does not wait for that, and only the last word counts.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// What should stand.
    wanted: Option<Protection>,
    /// Asked for and not answered yet.
    asked: Option<Protection>,
    /// What the kernel has said to have set.
    standing: Protection,
    /// The kernel has refused the last ones.
    refused: bool,
}

/// What an answer of the kernel means.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answered {
    /// Whether other rules stand than before, or the first refusal has come: what has waited for a plan goes on.
    pub news: bool,
    /// The rules have changed since they were asked for.
    pub next: Option<Action>,
}

impl Rules {
    /// These should stand from now on.
    pub fn want(&mut self, wanted: Protection) -> Option<Action> {
        if self.wanted.as_ref() == Some(&wanted) {
            return None;
        }
        self.wanted = Some(wanted);
        self.ask()
    }

    /// Somebody may have flushed what is not his: the kernel is asked again.
    pub fn check(&mut self) -> Option<Action> {
        self.ask()
    }

    fn ask(&mut self) -> Option<Action> {
        if self.asked.is_some() {
            return None;
        }
        self.asked.clone_from(&self.wanted);
        self.asked.clone().map(|asked| Action::Wire(WireOp::Protect(asked)))
    }

    /// Takes all rules away.
    pub fn clear(&mut self) -> Option<Action> {
        let stood = self.wanted.take().is_some_and(|wanted| !wanted.is_empty());
        stood.then(|| Action::Wire(WireOp::Protect(Protection::default())))
    }

    /// The kernel has answered; absent: to nothing that was asked for here.
    pub fn answered(&mut self, result: Result<(), String>) -> Option<Answered> {
        let asked = self.asked.take()?;
        let refused = result.is_err();
        let news = match result {
            Ok(()) => {
                let other = asked != self.standing;
                self.standing.clone_from(&asked);
                other
            }
            Err(error) if self.refused => {
                tracing::debug!(error, "the announcer still cannot set the nftables rules of service security");
                false
            }
            Err(error) => {
                tracing::warn!(
                    error,
                    "the announcer cannot set the nftables rules of service security; the node's own ports can be \
                    reached on its VIPs"
                );
                true
            }
        };
        self.refused = refused;
        let changed = self.wanted.as_ref().is_some_and(|wanted| *wanted != asked);
        Some(Answered { news, next: if changed { self.ask() } else { None } })
    }

    /// Whether the kernel has refused the last ones.
    pub fn are_refused(&self) -> bool {
        self.refused
    }

    /// Whether what `has` looks for is among rules that the kernel has still to answer for.
    fn awaited(&self, has: impl Fn(&Protection) -> bool) -> bool {
        let refused = self.refused || self.asked.is_none();
        !refused && !has(&self.standing) && self.wanted.as_ref().is_some_and(has)
    }

    /// Whether those of this address are.
    pub fn awaited_for(&self, address: IpAddr) -> bool {
        self.awaited(|rules| rules.vips.contains_key(&address))
    }

    /// Whether those of this macvlan are.
    pub fn awaited_for_link(&self, name: &str) -> bool {
        self.awaited(|rules| rules.quiet.contains(name))
    }
}

impl Engine {
    /// Asks for the rules that should stand, if they changed.
    pub(super) fn protect(&mut self) {
        let Some(network) = self.observer.network() else { return };
        let dhcp: BTreeSet<Uid> = self
            .plan
            .vips
            .keys()
            .chain(self.vips.keys())
            .filter_map(|id| match id {
                VipId::Dhcp(uid) => Some(uid.clone()),
                VipId::Static(_) | VipId::Dhcp6(_) => None,
            })
            .collect();
        let leased = self.vips.iter().filter(|(id, _)| id.is_dhcp());
        let leased: BTreeMap<IpAddr, Vec<ServiceKey>> =
            leased.filter_map(|(_, vip)| Some((Vip::address(vip)?, vip.members.clone()))).collect();
        let wanted = security::protection(&RuleInputs {
            services: &self.services,
            network,
            leased: &leased,
            dhcp: &dhcp,
            node: &self.config.node_name,
            fence: self.config.fence(),
            enabled: self.config.service_security,
        });
        self.out.extend(self.settings.rules.want(wanted));
    }

    /// A node without VIPs keeps no rules when its announcer leaves.
    pub(super) fn unprotect(&mut self) {
        if self.vips.values().all(|vip| vip.carrier.is_none()) {
            self.out.extend(self.settings.rules.clear());
        }
    }

    /// Whether an address has to wait for its rules. Not if it is on the node already: it would only fall.
    pub(super) fn awaits_rules(&self, carrier: Carrier) -> bool {
        self.settings.rules.awaited_for(carrier.net.addr()) && !self.is_found(carrier)
    }

    /// Whether a macvlan has to: it would listen to router advertisements, and with a lease to go on with it has an
    /// address from the start.
    pub(super) fn macvlan_awaits_rules(&self, name: &str, resumed: Option<Resumed>) -> bool {
        let found = self.observer.network().is_some_and(|network| network.link_by_name(name).is_some());
        !found
            && (self.settings.rules.awaited_for_link(name)
                || resumed.is_some_and(|resumed| self.settings.rules.awaited_for(resumed.address.into())))
    }

    /// The kernel has answered: what has waited for the rules is added now, with them or without.
    pub(super) fn protected(&mut self, result: Result<(), String>) {
        let Some(answered) = self.settings.rules.answered(result) else { return };
        self.out.replan_if(answered.news);
        self.out.extend(answered.next);
        for vip in self.vips.values_mut() {
            if vip.phase == Phase::Adding(Adding::AwaitsRules) {
                vip.phase = Phase::Adding(Adding::Due);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet(name: &str) -> Protection {
        Protection { quiet: [name.to_owned()].into(), ..Protection::default() }
    }

    #[test]
    fn one_request_at_a_time_and_the_last_word_counts() {
        let mut rules = Rules::default();
        assert_eq!(rules.want(quiet("a")), Some(Action::Wire(WireOp::Protect(quiet("a")))));
        assert_eq!(rules.want(quiet("a")), None);
        assert_eq!((rules.want(quiet("b")), rules.want(quiet("c"))), (None, None), "the kernel is at it");
        let next = Some(Action::Wire(WireOp::Protect(quiet("c"))));
        assert_eq!(rules.answered(Ok(())), Some(Answered { news: true, next }));
        assert_eq!(rules.answered(Ok(())), Some(Answered { news: true, next: None }));
        assert_eq!(rules.answered(Ok(())), None, "nothing was asked for");
        assert_eq!(rules.check(), Some(Action::Wire(WireOp::Protect(quiet("c")))));
        assert_eq!(rules.answered(Ok(())), Some(Answered { news: false, next: None }));
    }

    #[test]
    fn a_macvlan_waits_for_rules_that_are_on_their_way_and_for_no_others() {
        let mut rules = Rules::default();
        assert!(!rules.awaited_for_link("a"), "nobody has asked for any");
        rules.want(quiet("a"));
        assert!(rules.awaited_for_link("a") && !rules.awaited_for_link("b"));
        rules.answered(Ok(()));
        assert!(!rules.awaited_for_link("a"));
        rules.want(quiet("b"));
        assert_eq!(rules.answered(Err("no".into())), Some(Answered { news: true, next: None }));
        rules.check();
        assert!(!rules.awaited_for_link("b") && rules.are_refused(), "a kernel that refuses holds up nothing");
        assert_eq!(rules.answered(Err("no".into())), Some(Answered { news: false, next: None }));
    }

    #[test]
    fn rules_that_never_stood_are_not_taken_away() {
        let mut rules = Rules::default();
        assert_eq!(rules.clear(), None);
        rules.want(Protection::default());
        assert_eq!(rules.clear(), None);
        rules.want(quiet("a"));
        assert_eq!(rules.clear(), Some(Action::Wire(WireOp::Protect(Protection::default()))));
        assert_eq!(rules.clear(), None);
    }
}
