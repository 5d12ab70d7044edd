//! What is remembered longer than a DHCP VIP exists on this node: clients that are sending their RELEASE, leases that
//! were released or lost, and the number of clients.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use super::LostLeases;
use super::dhcp_state::VersionFacts;
use crate::annotations::{AddressRequest, LeaseFacts};
use crate::plan::{Plan, VipId};
use crate::view::{ServiceKey, ServiceView, Uid};

/// How long the macvlan waits until its client has sent the RELEASE.
const RELEASE_WAIT: Duration = Duration::from_secs(1);

/// How long a lease of a deleted Service waits for the word of the controller, before it is left to end by itself.
const WORD_PATIENCE: Duration = Duration::from_mins(1);

/// A client whose Service was deleted while nobody could say whether its lease may be given back. It goes on until
/// then, without its address on this node.
#[derive(Debug)]
pub(super) struct Undecided {
    /// Its generation.
    pub client: u64,
    /// Its macvlan; DHCPv6 has none.
    pub link: Option<u32>,
    until: Instant,
}

/// A macvlan that will be deleted.
#[derive(Debug)]
struct Leaving {
    link: u32,
    /// Generation of the client that sends the RELEASE.
    client: u64,
    /// The address that is still on it; no other interface may get it meanwhile.
    address: Option<Ipv4Addr>,
    until: Instant,
}

/// The state that outlives VIPs.
#[derive(Debug, Default)]
pub(super) struct DhcpHistory {
    leaving: BTreeMap<Uid, Leaving>,
    undecided: BTreeMap<VipId, Undecided>,
    /// Leases that were released because their Service changed its MAC or host name; kept until the new client starts.
    given_back: BTreeMap<Uid, Ipv4Addr>,
    /// Leases that a server has refused to this node or has not renewed. Their Services may still show them.
    lost: BTreeMap<Uid, LostLeases>,
    /// Addresses of leases that were lost here, as long as a Service names them and they are not up here again. The
    /// server may have given them to another host.
    given_away: BTreeSet<IpAddr>,
    /// Services that are not there any more, and nobody has seen them go; until their leases are withdrawn.
    missing: BTreeSet<Uid>,
    /// Generation of the last client that was started.
    generation: u64,
}

impl DhcpHistory {
    /// The generation of the next client.
    pub fn next_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    /// Keeps the macvlan until the RELEASE is sent, because the RELEASE is sent from the leased address.
    pub fn leave(&mut self, now: Instant, uid: &Uid, link: u32, client: u64, address: Option<Ipv4Addr>) {
        self.leaving.insert(uid.clone(), Leaving { link, client, address, until: now + RELEASE_WAIT });
    }

    /// The client of this generation has ended. Returns its macvlan, if that waited for the client.
    pub fn ended(&mut self, uid: &Uid, client: u64) -> Option<u32> {
        let left = self.leaving.get(uid).is_some_and(|leaving| leaving.client == client);
        if left { self.leaving.remove(uid).map(|leaving| leaving.link) } else { None }
    }

    /// Macvlans whose wait is over.
    pub fn take_due(&mut self, now: Instant) -> Vec<u32> {
        let mut due = Vec::new();
        self.leaving.retain(|_, leaving| {
            let waits = now < leaving.until;
            if !waits {
                due.push(leaving.link);
            }
            waits
        });
        due
    }

    /// Keeps the client of a deleted Service until it is known whether its lease may be given back.
    pub fn wait_for_word(&mut self, now: Instant, id: VipId, client: u64, link: Option<u32>) {
        self.undecided.insert(id, Undecided { client, link, until: now + WORD_PATIENCE });
    }

    /// Clients that wait for a word, all of them; none waits any longer.
    pub fn take_undecided(&mut self) -> BTreeMap<VipId, Undecided> {
        std::mem::take(&mut self.undecided)
    }

    /// The same of those whose wait is over.
    pub fn take_overdue(&mut self, now: Instant) -> BTreeMap<VipId, Undecided> {
        self.undecided.extract_if(.., |_, undecided| undecided.until <= now).collect()
    }

    /// When the first wait ends.
    pub fn deadline(&self) -> Option<Instant> {
        let undecided = self.undecided.values().map(|undecided| undecided.until);
        self.leaving.values().map(|leaving| leaving.until).chain(undecided).min()
    }

    /// Macvlans that wait.
    pub fn leaving_links(&self) -> BTreeSet<u32> {
        let undecided = self.undecided.values().filter_map(|undecided| undecided.link);
        self.leaving.values().map(|leaving| leaving.link).chain(undecided).collect()
    }

    /// Whether the VIP or its address is on a macvlan that waits.
    pub fn is_leaving(&self, id: &VipId) -> bool {
        match id {
            VipId::Dhcp(uid) => self.leaving.contains_key(uid) || self.undecided.contains_key(id),
            VipId::Dhcp6(_) => self.undecided.contains_key(id),
            VipId::Static(address) => {
                self.leaving.values().any(|leaving| leaving.address.map(IpAddr::V4) == Some(*address))
            }
        }
    }

    /// Notes that the lease with this address is released, because the Service will ask with another identity.
    pub fn give_back(&mut self, uid: &Uid, address: Ipv4Addr) {
        self.given_back.insert(uid.clone(), address);
    }

    /// The recorded DHCPv4 lease that a new client may continue, unless it was released or lost.
    pub fn usable4(&mut self, uid: &Uid, recorded: Option<&LeaseFacts>) -> Option<LeaseFacts> {
        let given_back = self.given_back.remove(uid);
        self.usable(uid, recorded).filter(|facts| Some(facts.address) != given_back)
    }

    /// The recorded lease that a new client may continue, unless it was lost.
    pub fn usable<F: VersionFacts>(&mut self, uid: &Uid, recorded: Option<&F>) -> Option<F> {
        let lost = self.lost.get_mut(uid).and_then(|lost| F::lost(lost).as_ref());
        recorded.filter(|facts| Some(*facts) != lost).cloned()
    }

    /// Notes that a lease is lost. The Service keeps the record while no VIP is up. Without this note, this node would
    /// continue the lost lease after a later take-over, while the address may belong to another host.
    pub fn lose<F: VersionFacts>(&mut self, uid: &Uid, facts: F) {
        *F::lost(self.lost.entry(uid.clone()).or_default()) = Some(facts);
    }

    /// A server has granted a lease again.
    pub fn regain<F: VersionFacts>(&mut self, uid: &Uid) {
        if let Some(lost) = self.lost.get_mut(uid) {
            *F::lost(lost) = None;
        }
    }

    /// The lease of this address is lost.
    pub fn lose_address(&mut self, address: IpAddr) {
        self.given_away.insert(address);
    }

    /// The address is up here.
    pub fn came_up(&mut self, address: IpAddr) {
        self.given_away.remove(&address);
    }

    /// Whether another host may have the address, although clients know it as that of a Service.
    pub fn may_be_given_away(&self, address: IpAddr) -> bool {
        self.given_away.contains(&address)
    }

    /// The leases that this Service has lost.
    pub fn lost(&self, uid: &Uid) -> Option<&LostLeases> {
        self.lost.get(uid)
    }

    /// Nobody has seen how this Service went: another snapshot of etcd may bring it back with its lease.
    pub fn note_missing(&mut self, uid: &Uid) {
        self.missing.insert(uid.clone());
    }

    /// The Service is there.
    pub fn note_present(&mut self, uid: &Uid) {
        self.missing.remove(uid);
    }

    /// Whether nobody has seen how the Service with the lease of this VIP went.
    pub fn is_missing(&self, id: &VipId) -> bool {
        id.leased_by().is_some_and(|uid| self.missing.contains(uid))
    }

    /// Forgets missing Services without VIPs.
    pub fn keep_missing<'a>(&mut self, vips: impl Iterator<Item = &'a VipId>) {
        if !self.missing.is_empty() {
            let there: BTreeSet<&Uid> = vips.filter_map(VipId::leased_by).collect();
            self.missing.retain(|uid| there.contains(uid));
        }
    }

    /// The Service is deleted.
    pub fn forget(&mut self, uid: &Uid) {
        self.lost.remove(uid);
    }

    /// Forgets released leases of VIPs that are not planned any more, and lost addresses that no Service names.
    pub fn follow(&mut self, plan: &Plan, services: &BTreeMap<ServiceKey, ServiceView>) {
        self.given_back.retain(|uid, _| plan.vips.contains_key(&VipId::Dhcp(uid.clone())));
        self.given_away.retain(|address| {
            let named = AddressRequest::Static(*address);
            services.values().any(|view| view.wanted.contains(&named))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::facts;
    use super::*;

    fn uid() -> Uid {
        Uid("uid-web".into())
    }

    #[test]
    fn a_macvlan_waits_for_the_release_of_its_own_client_and_not_for_ever() {
        let (now, mut history) = (Instant::now(), DhcpHistory::default());
        let client = history.next_generation();
        let address = Ipv4Addr::new(10, 0, 0, 5);
        history.leave(now, &uid(), 9, client, Some(address));
        assert!(history.is_leaving(&VipId::Dhcp(uid())) && history.is_leaving(&VipId::Static(address.into())));
        assert!(!history.is_leaving(&VipId::Dhcp6(uid())));
        assert_eq!(history.ended(&uid(), client + 1), None, "a client of another life");
        assert_eq!(history.ended(&uid(), client), Some(9));
        assert_eq!(history.deadline(), None);
        history.leave(now, &uid(), 9, client, None);
        assert_eq!(history.deadline(), Some(now + RELEASE_WAIT));
        assert!(history.take_due(now).is_empty());
        assert_eq!(history.take_due(now + RELEASE_WAIT), [9]);
        assert!(history.leaving_links().is_empty());
    }

    #[test]
    fn a_lease_that_was_given_back_or_lost_is_not_gone_on_with() {
        let mut history = DhcpHistory::default();
        let (five, six) = (facts("10.0.0.5"), facts("10.0.0.6"));
        assert_eq!(history.usable4(&uid(), Some(&five)), Some(five.clone()));
        history.give_back(&uid(), five.address);
        assert_eq!(history.usable4(&uid(), Some(&five)), None);
        assert_eq!(history.usable4(&uid(), Some(&five)), Some(five.clone()), "the next client has a lease of its own");
        history.lose(&uid(), five.clone());
        assert_eq!(history.usable4(&uid(), Some(&five)), None);
        assert_eq!(history.usable4(&uid(), Some(&six)), Some(six), "another one stands there");
        history.regain::<LeaseFacts>(&uid());
        assert_eq!(history.usable4(&uid(), Some(&five)), Some(five.clone()));
        history.lose(&uid(), five.clone());
        history.forget(&uid());
        assert_eq!(history.usable4(&uid(), Some(&five)), Some(five));
    }

    #[test]
    fn what_was_given_back_for_a_vip_that_nobody_plans_is_forgotten() {
        let mut history = DhcpHistory::default();
        history.give_back(&uid(), Ipv4Addr::new(10, 0, 0, 5));
        history.follow(&Plan::default(), &BTreeMap::new());
        let recorded = facts("10.0.0.5");
        assert_eq!(history.usable4(&uid(), Some(&recorded)), Some(recorded));
    }
}
