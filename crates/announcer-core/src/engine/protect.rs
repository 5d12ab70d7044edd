//! Service security inside the engine: rules stand before the address does, and are checked once in a while.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::vip::Carrier;
use super::{Action, Engine, Resumed, Vip, WireOp};
use crate::plan::VipId;
use crate::security::{self, Protection, Scene};
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
    pub refused: bool,
}

impl Rules {
    /// Whether what `has` looks for is among rules that the kernel has still to answer for.
    fn awaited(&self, has: impl Fn(&Protection) -> bool) -> bool {
        let refused = self.refused || self.asked.is_none();
        !refused && !has(&self.standing) && self.wanted.as_ref().is_some_and(has)
    }
}

impl Engine {
    /// Asks for the rules that should stand, if they changed.
    pub(super) fn protect(&mut self) {
        let Some(network) = &self.network else { return };
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
        let leased = self.vips.iter().filter(|(id, _)| matches!(id, VipId::Dhcp(_) | VipId::Dhcp6(_)));
        let leased: BTreeMap<IpAddr, Vec<ServiceKey>> =
            leased.filter_map(|(_, vip)| Some((Vip::address(vip)?, vip.members.clone()))).collect();
        let wanted = security::protection(&Scene {
            services: &self.services,
            network,
            leased: &leased,
            dhcp: &dhcp,
            fence: self.fence,
            enabled: self.config.service_security,
        });
        if self.rules.wanted.as_ref() != Some(&wanted) {
            self.rules.wanted = Some(wanted);
            self.ask_for_rules();
        }
    }

    /// Somebody may have flushed what is not his: the kernel is asked again.
    pub(super) fn check_protection(&mut self) {
        self.ask_for_rules();
    }

    fn ask_for_rules(&mut self) {
        if self.rules.asked.is_none()
            && let Some(wanted) = self.rules.wanted.clone()
        {
            self.rules.asked = Some(wanted.clone());
            self.out.push(Action::Wire(WireOp::Protect(wanted)));
        }
    }

    /// A node without VIPs keeps no rules when its announcer leaves.
    pub(super) fn unprotect(&mut self) {
        let left = self.vips.values().any(|vip| vip.carrier.is_some());
        if !left && self.rules.wanted.take().is_some_and(|stands| !stands.is_empty()) {
            self.out.push(Action::Wire(WireOp::Protect(Protection::default())));
        }
    }

    /// Whether an address has to wait for its rules. Not if it is on the node already: it would only fall.
    pub(super) fn awaits_rules(&self, carrier: Carrier) -> bool {
        let address = carrier.net.addr();
        self.rules.awaited(|rules| rules.vips.contains_key(&address)) && !self.is_found(carrier)
    }

    /// Whether a macvlan has to: it would listen to router advertisements, and with a lease to go on with it has an
    /// address from the start.
    pub(super) fn macvlan_awaits_rules(&self, name: &str, resumed: Option<Resumed>) -> bool {
        let found = self.network.as_ref().is_some_and(|network| network.link_by_name(name).is_some());
        let address = resumed.map(|resumed| IpAddr::V4(resumed.address));
        !found
            && (self.rules.awaited(|rules| rules.quiet.contains(name))
                || address.is_some_and(|address| self.rules.awaited(|rules| rules.vips.contains_key(&address))))
    }

    pub(super) fn protected(&mut self, result: Result<(), String>) {
        let Some(asked) = self.rules.asked.take() else { return };
        let refused = result.is_err();
        match result {
            Ok(()) => {
                // Macvlans that have waited are made by the next plan.
                self.dirty |= asked != self.rules.standing;
                self.rules.standing.clone_from(&asked);
            }
            Err(error) if self.rules.refused => tracing::debug!(error, "still no rules"),
            Err(error) => {
                tracing::warn!(
                    error,
                    "cannot set the rules of service security: the node's own ports can be reached on its VIPs"
                );
                self.dirty = true;
            }
        }
        self.rules.refused = refused;
        self.to_add.append(&mut self.awaiting_rules);
        if self.rules.wanted.as_ref().is_some_and(|wanted| *wanted != asked) {
            self.ask_for_rules();
        }
    }
}
