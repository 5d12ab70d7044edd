//! Service security inside the engine: rules stand before the address does, and are checked once in a while.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{Action, Engine, Vip, WireOp};
use crate::plan::VipId;
use crate::security::{self, Protection, Scene};
use crate::view::{ServiceKey, Uid};

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
        if self.protected.as_ref() != Some(&wanted) {
            self.protected = Some(wanted.clone());
            self.out.push(Action::Wire(WireOp::Protect(wanted)));
        }
    }

    /// Somebody may have flushed what is not his: the kernel is asked again.
    pub(super) fn check_protection(&mut self) {
        if let Some(wanted) = &self.protected {
            self.out.push(Action::Wire(WireOp::Protect(wanted.clone())));
        }
    }

    /// A node without VIPs keeps no rules when its announcer leaves.
    pub(super) fn unprotect(&mut self) {
        let left = self.vips.values().any(|vip| vip.carrier.is_some());
        if !left && self.protected.take().is_some_and(|stands| !stands.is_empty()) {
            self.out.push(Action::Wire(WireOp::Protect(Protection::default())));
        }
    }

    pub(super) fn protected(&mut self, result: Result<(), String>) {
        match result {
            Ok(()) => self.unprotected = false,
            Err(error) if std::mem::replace(&mut self.unprotected, true) => tracing::debug!(error, "still no rules"),
            Err(error) => {
                tracing::warn!(
                    error,
                    "cannot set the rules of service security: the node's own ports can be reached on its VIPs"
                );
            }
        }
    }
}
