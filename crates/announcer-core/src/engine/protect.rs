//! Service security inside the engine: the rules are set before the address, and are checked regularly.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::carrier::Carrier;
use super::vip::{Adding, Phase};
use super::{Action, Engine, KernelOp, Resumed, Vip};
use crate::plan::VipId;
use crate::security::{self, Protection, RuleInputs};
use crate::view::{ServiceKey, Uid};

/// The rules of service security, as far as the kernel has confirmed them. The kernel may take half a minute while
/// other programs change its tables. Addresses that are served do not wait for that, and only the latest rules count.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// The rules that should be set.
    wanted: Option<Protection>,
    /// The rules that were requested and not confirmed yet.
    asked: Option<Protection>,
    /// The rules that the kernel has confirmed.
    standing: Protection,
    /// The kernel has refused the last rules.
    refused: bool,
}

/// What an answer of the kernel changes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answered {
    /// Whether other rules are set than before, or a first refusal has come. Then VIPs that waited can go on.
    pub news: bool,
    /// The next request, if the rules have changed meanwhile.
    pub next: Option<Action>,
}

impl Rules {
    /// Sets the wanted rules.
    pub fn want(&mut self, wanted: Protection) -> Option<Action> {
        if self.wanted.as_ref() == Some(&wanted) {
            return None;
        }
        self.wanted = Some(wanted);
        self.ask()
    }

    /// Requests the rules, also again, because another program may have flushed them.
    pub fn ask(&mut self) -> Option<Action> {
        if self.asked.is_some() {
            return None;
        }
        self.asked.clone_from(&self.wanted);
        self.asked.clone().map(|asked| Action::Kernel(KernelOp::Protect(asked)))
    }

    /// Removes all rules.
    pub fn clear(&mut self) -> Option<Action> {
        let stood = self.wanted.take().is_some_and(|wanted| !wanted.is_empty());
        stood.then(|| Action::Kernel(KernelOp::Protect(Protection::default())))
    }

    /// Takes in the kernel's answer. `None`: nothing was requested here.
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

    /// Whether the kernel has refused the last rules.
    pub fn are_refused(&self) -> bool {
        self.refused
    }

    /// Whether the wanted rules have what `has` looks for, and the kernel has not confirmed it yet.
    fn awaited(&self, has: impl Fn(&Protection) -> bool) -> bool {
        let refused = self.refused || self.asked.is_none();
        !refused && !has(&self.standing) && self.wanted.as_ref().is_some_and(has)
    }

    /// Whether the rules for this address are awaited.
    pub fn awaited_for(&self, address: IpAddr) -> bool {
        self.awaited(|rules| rules.vips.contains_key(&address))
    }

    /// Whether the rules for this macvlan are awaited.
    pub fn awaited_for_link(&self, name: &str) -> bool {
        self.awaited(|rules| rules.quiet.contains(name))
    }
}

impl Engine {
    /// Requests the rules that should be set, if they have changed.
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

    /// Removes the rules when the announcer ends, if the node has no VIPs.
    pub(super) fn unprotect(&mut self) {
        if self.vips.values().all(|vip| vip.carrier.is_none()) {
            self.out.extend(self.settings.rules.clear());
        }
    }

    /// Whether an address has to wait for its rules. An address that is already on the node does not wait, because it
    /// would only be removed.
    pub(super) fn awaits_rules(&self, carrier: Carrier) -> bool {
        self.settings.rules.awaited_for(carrier.net.addr()) && !self.is_found(carrier)
    }

    /// Whether a macvlan has to wait for its rules. It would receive router advertisements, and with a continued lease
    /// it has an address from the start.
    pub(super) fn macvlan_awaits_rules(&self, name: &str, resumed: Option<Resumed>) -> bool {
        let found = self.observer.network().is_some_and(|network| network.link_by_name(name).is_some());
        !found
            && (self.settings.rules.awaited_for_link(name)
                || resumed.is_some_and(|resumed| self.settings.rules.awaited_for(resumed.address.into())))
    }

    /// The kernel has answered, so VIPs that waited for the rules are added now, whatever the answer was.
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
        assert_eq!(rules.want(quiet("a")), Some(Action::Kernel(KernelOp::Protect(quiet("a")))));
        assert_eq!(rules.want(quiet("a")), None);
        assert_eq!((rules.want(quiet("b")), rules.want(quiet("c"))), (None, None), "the kernel is at it");
        let next = Some(Action::Kernel(KernelOp::Protect(quiet("c"))));
        assert_eq!(rules.answered(Ok(())), Some(Answered { news: true, next }));
        assert_eq!(rules.answered(Ok(())), Some(Answered { news: true, next: None }));
        assert_eq!(rules.answered(Ok(())), None, "nothing was asked for");
        assert_eq!(rules.ask(), Some(Action::Kernel(KernelOp::Protect(quiet("c")))));
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
        rules.ask();
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
        assert_eq!(rules.clear(), Some(Action::Kernel(KernelOp::Protect(Protection::default()))));
        assert_eq!(rules.clear(), None);
    }
}
