//! Addresses that a kube-vip has left on this node. They carry no mark, and once a term names another node the record
//! does not show that they were ever here.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use l2_types::Address;

use crate::network::{Network, looks_like_a_vip};
use crate::view::{ServiceKey, ServiceView};

/// Addresses that this process saw on record while there was no term; each is kept while it is on the interface.
#[derive(Debug, Default)]
pub(in crate::engine) struct Left(BTreeSet<(u32, IpNet)>);

impl Left {
    /// Updates the list from the network and the Services.
    pub fn note(&mut self, network: &Network, services: &BTreeMap<ServiceKey, ServiceView>) {
        let on_record = |address: &Address| {
            services.values().any(|view| view.published.term.is_none() && view.published.has(address.net.addr()))
        };
        let unmarked = network.addresses.iter().filter(|address| !address.is_ours());
        let formed = unmarked
            .filter(|address| network.link(address.interface).is_some_and(|link| looks_like_a_vip(address, link)));
        self.0 = formed
            .filter(|address| self.has(address) || on_record(address))
            .map(|address| (address.interface, address.net))
            .collect();
    }

    /// Whether this address is one of them.
    pub fn has(&self, address: &Address) -> bool {
        self.0.contains(&(address.interface, address.net))
    }
}
