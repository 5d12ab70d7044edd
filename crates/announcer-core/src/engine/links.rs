//! Interfaces that carry VIPs, or should: how they are set, and on which of them frames are heard.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use l2_types::InetConf;

use super::{Action, Engine, WireOp};
use crate::network::Family;

/// An interface whose settings were refused is tried again after this time, when something is planned anyway.
const PREPARE_AGAIN: Duration = Duration::from_mins(1);

/// How one interface is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    /// The kernel was asked to set it, perhaps after it had refused.
    Asked { refused: bool },
    /// It is set; this is put back when it carries nothing any more.
    Done(InetConf),
    /// The kernel has refused; tried again after this time.
    Refused(Instant),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Interfaces {
    settings: BTreeMap<u32, Setting>,
    listening: BTreeSet<(u32, Family)>,
}

impl Interfaces {
    /// Interfaces that carry VIPs answer only for their own addresses (decisions.md 27); the others are put back as
    /// they were.
    pub fn prepare(&mut self, now: Instant, used: &BTreeSet<u32>) -> Vec<Action> {
        let mut actions = Vec::new();
        for link in used {
            let refused = match self.settings.get(link) {
                None => false,
                Some(Setting::Refused(until)) if *until <= now => true,
                Some(Setting::Asked { .. } | Setting::Done(_) | Setting::Refused(_)) => continue,
            };
            self.settings.insert(*link, Setting::Asked { refused });
            actions.push(Action::Wire(WireOp::Prepare { link: *link }));
        }
        actions.extend(self.restore(used));
        actions
    }

    /// Puts back what carries nothing any more.
    pub fn restore(&mut self, used: &BTreeSet<u32>) -> Vec<Action> {
        let mut actions = Vec::new();
        self.settings.retain(|link, setting| match *setting {
            _ if used.contains(link) => true,
            // What to put back is known with the answer.
            Setting::Asked { .. } => true,
            Setting::Refused(_) => false,
            Setting::Done(conf) => {
                actions.push(Action::Wire(WireOp::Restore { link: *link, conf }));
                false
            }
        });
        actions
    }

    /// The kernel has answered.
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

    /// Frames of these families are heard on these interfaces, and on no others.
    pub fn listen(&mut self, wanted: BTreeSet<(u32, Family)>) -> Option<Action> {
        if wanted == self.listening {
            return None;
        }
        self.listening.clone_from(&wanted);
        Some(Action::Listen(wanted))
    }

    /// A socket that could not be opened, or has failed since, is missing until somebody asks for it anew.
    pub fn listen_again(&self) -> Option<Action> {
        (!self.listening.is_empty()).then(|| Action::Listen(self.listening.clone()))
    }
}

impl Engine {
    pub(super) fn prepare_links(&mut self, now: Instant) {
        let used = self.used_links();
        self.out.extend(self.settings.interfaces.prepare(now, &used));
    }

    /// Nothing is planned any more: interfaces whose last VIP has just gone are put back.
    pub(super) fn restore_unused_links(&mut self) {
        let used = self.used_links();
        self.out.extend(self.settings.interfaces.restore(&used));
    }

    /// Interfaces that carry VIPs, and those that would answer for them too.
    fn used_links(&self) -> BTreeSet<u32> {
        let carrying: BTreeSet<u32> = self.vips.values().filter_map(|vip| vip.place).collect();
        // A second interface in the same LAN would answer for them too, with its own MAC.
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
                // A new owner's claims come to the interface beneath its macvlan.
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
            Action::Wire(WireOp::Prepare { link }) => format!("prepare {link}"),
            Action::Wire(WireOp::Restore { link, .. }) => format!("restore {link}"),
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
