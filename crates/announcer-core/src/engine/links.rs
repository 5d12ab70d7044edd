//! Interfaces that carry VIPs or should: their settings, and where frames are received.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use l2_types::InetConf;

use super::{Action, Engine, KernelOp};
use crate::network::Family;

/// Pause before settings that the kernel refused are tried again, with the next plan.
const PREPARE_AGAIN: Duration = Duration::from_mins(1);

/// State of the settings of one interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    /// The request was sent; `refused`: an earlier one was refused.
    Asked { refused: bool },
    /// The settings are made; these are restored when the interface carries no VIP any more.
    Done(InetConf),
    /// The kernel has refused; the next attempt is not before this time.
    Refused(Instant),
}

/// The settings of all interfaces, and the sockets.
#[derive(Debug, Default)]
pub(super) struct Interfaces {
    settings: BTreeMap<u32, Setting>,
    listening: BTreeSet<(u32, Family)>,
}

impl Interfaces {
    /// Makes interfaces that carry VIPs answer only for their own addresses (decisions.md 27), and restores the others.
    pub fn prepare(&mut self, now: Instant, used: &BTreeSet<u32>) -> Vec<Action> {
        let mut actions = Vec::new();
        for link in used {
            let refused = match self.settings.get(link) {
                None => false,
                Some(Setting::Refused(until)) if *until <= now => true,
                Some(Setting::Asked { .. } | Setting::Done(_) | Setting::Refused(_)) => continue,
            };
            self.settings.insert(*link, Setting::Asked { refused });
            actions.push(Action::Kernel(KernelOp::Prepare { link: *link }));
        }
        actions.extend(self.restore(used));
        actions
    }

    /// Restores interfaces that carry no VIP any more.
    pub fn restore(&mut self, used: &BTreeSet<u32>) -> Vec<Action> {
        let mut actions = Vec::new();
        self.settings.retain(|link, setting| match *setting {
            _ if used.contains(link) => true,
            // The settings to restore come with the answer.
            Setting::Asked { .. } => true,
            Setting::Refused(_) => false,
            Setting::Done(conf) => {
                actions.push(Action::Kernel(KernelOp::Restore { link: *link, conf }));
                false
            }
        });
        actions
    }

    /// Takes in the kernel's answer.
    pub fn prepared(&mut self, now: Instant, link: u32, result: Result<InetConf, String>) {
        let setting = match result {
            Ok(conf) => Setting::Done(conf),
            Err(error) => {
                if self.settings.get(&link) != Some(&Setting::Asked { refused: true }) {
                    tracing::warn!(
                        link,
                        error,
                        "the announcer cannot set arp_ignore and arp_announce on the interface; another interface may \
                        answer ARP for the addresses too"
                    );
                }
                Setting::Refused(now + PREPARE_AGAIN)
            }
        };
        self.settings.insert(link, setting);
    }

    /// Sets the interfaces and families whose frames are received.
    pub fn listen(&mut self, wanted: BTreeSet<(u32, Family)>) -> Option<Action> {
        if wanted == self.listening {
            return None;
        }
        self.listening.clone_from(&wanted);
        Some(Action::Listen(wanted))
    }

    /// Requests the sockets again: one that could not be opened, or has failed since, stays closed without a new
    /// request.
    pub fn listen_again(&self) -> Option<Action> {
        (!self.listening.is_empty()).then(|| Action::Listen(self.listening.clone()))
    }
}

impl Engine {
    pub(super) fn prepare_links(&mut self, now: Instant) {
        let used = self.used_links();
        self.out.extend(self.settings.interfaces.prepare(now, &used));
    }

    /// Restores interfaces whose last VIP has gone, when no further plan is made.
    pub(super) fn restore_unused_links(&mut self) {
        let used = self.used_links();
        self.out.extend(self.settings.interfaces.restore(&used));
    }

    /// Interfaces that carry VIPs, and those in the same LAN.
    fn used_links(&self) -> BTreeSet<u32> {
        let carrying: BTreeSet<u32> = self.vips.values().filter_map(|vip| vip.place).collect();
        // A second interface in the same LAN would answer for the VIPs too, with its own MAC.
        self.observer
            .network()
            .iter()
            .flat_map(|network| carrying.iter().flat_map(|link| network.same_lan(*link)))
            .chain(carrying.iter().copied())
            .collect()
    }

    pub(super) fn listen(&mut self) {
        let mut wanted: BTreeSet<(u32, Family)> = self
            .vips
            .iter()
            .flat_map(|(id, vip)| {
                let links = vip.place.into_iter().chain(vip.carrier.map(|carrier| carrier.link));
                links.map(|link| (link, id.family()))
            })
            .collect();
        wanted.extend(self.node_mode.links());
        if let Some(network) = self.observer.network() {
            for orphan in self.orphans() {
                let family = Family::of(orphan.net.addr());
                // A new owner's claims arrive at the parent of the macvlan.
                let parent = network.parent_of(orphan.interface).map(|parent| (parent, family));
                wanted.extend([(orphan.interface, family)].into_iter().chain(parent));
            }
            let there: BTreeSet<u32> = network.links.iter().map(|link| link.index).collect();
            let carrying: BTreeSet<u32> =
                self.vips.values().filter_map(|vip| vip.carrier).map(|carrier| carrier.link).collect();
            wanted.retain(|(index, _)| there.contains(index) || carrying.contains(index));
        }
        self.out.extend(self.settings.interfaces.listen(wanted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ops(actions: &[Action]) -> Vec<String> {
        let op = |action: &Action| match action {
            Action::Kernel(KernelOp::Prepare { link }) => format!("prepare {link}"),
            Action::Kernel(KernelOp::Restore { link, .. }) => format!("restore {link}"),
            other => format!("{other:?}"),
        };
        actions.iter().map(op).collect()
    }

    #[test]
    fn an_interface_is_set_once_and_put_back_when_its_last_vip_has_left() {
        let (now, mut interfaces) = (Instant::now(), Interfaces::default());
        let used = BTreeSet::from([2, 3]);
        assert_eq!(ops(&interfaces.prepare(now, &used)), ["prepare 2", "prepare 3"]);
        assert!(interfaces.prepare(now, &used).is_empty(), "the answer is on its way");
        interfaces.prepared(now, 2, Ok(InetConf::default()));
        assert!(interfaces.prepare(now, &used).is_empty());
        assert_eq!(ops(&interfaces.prepare(now, &BTreeSet::new())), ["restore 2"], "3 has not been answered");
        interfaces.prepared(now, 3, Ok(InetConf::default()));
        assert_eq!(ops(&interfaces.restore(&BTreeSet::new())), ["restore 3"]);
        assert!(interfaces.restore(&BTreeSet::new()).is_empty());
    }

    #[test]
    fn what_the_kernel_refuses_is_tried_again_after_a_minute_and_forgotten_with_the_last_vip() {
        let (now, mut interfaces) = (Instant::now(), Interfaces::default());
        let used = BTreeSet::from([2]);
        interfaces.prepare(now, &used);
        interfaces.prepared(now, 2, Err("busy".into()));
        assert!(interfaces.prepare(now + PREPARE_AGAIN / 2, &used).is_empty());
        assert_eq!(ops(&interfaces.prepare(now + PREPARE_AGAIN, &used)), ["prepare 2"]);
        interfaces.prepared(now + PREPARE_AGAIN, 2, Err("busy".into()));
        assert!(interfaces.prepare(now + PREPARE_AGAIN, &BTreeSet::new()).is_empty(), "nothing to put back");
        assert_eq!(ops(&interfaces.prepare(now + PREPARE_AGAIN, &used)), ["prepare 2"], "a new VIP does not wait");
    }

    #[test]
    fn sockets_are_asked_for_when_they_change_and_again_in_case_one_has_failed() {
        let mut interfaces = Interfaces::default();
        let wanted = BTreeSet::from([(2, Family::V4)]);
        assert_eq!(interfaces.listen_again(), None);
        assert_eq!(interfaces.listen(wanted.clone()), Some(Action::Listen(wanted.clone())));
        assert_eq!(interfaces.listen(wanted.clone()), None);
        assert_eq!(interfaces.listen_again(), Some(Action::Listen(wanted)));
    }
}
