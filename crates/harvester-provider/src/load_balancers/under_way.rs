//! Tracks what a running pass is about to take and the caches do not show yet, so that two Services that are reconciled
//! concurrently do not take the same. Pure. An entry lasts as long as the requests of the pass, so nothing has to be
//! given back later.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cloud_provider::view::{ServiceKey, ServiceView};

use super::choice::static_address;
use super::plan::{Action, Plan};
use super::service_patch::Role;

/// What one Service is about to take.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Taking {
    /// Names of objects that are to be created.
    objects: Vec<String>,
    /// Addresses that are to be published.
    addresses: Vec<IpAddr>,
    /// The Service requests the address as a static one.
    is_static: bool,
}

impl Taking {
    fn new(service: &ServiceView, plan: &Plan) -> Self {
        let objects = plan.actions.iter().filter_map(|action| match action {
            Action::Create(object) => object.metadata.name.clone(),
            _ => None,
        });
        let shown = plan.actions.iter().filter_map(|action| match action {
            Action::Patch(patch) if patch.role == Role::Primary => Some(patch.address.split(',')),
            _ => None,
        });
        let addresses = shown.flatten().filter_map(|ip| ip.parse().ok()).filter(|ip: &IpAddr| !ip.is_unspecified());
        Self {
            objects: objects.collect(),
            addresses: addresses.collect(),
            is_static: static_address(service).is_some(),
        }
    }
}

/// By Service: what its pass is about to take.
#[derive(Debug, Default)]
pub struct UnderWay(BTreeMap<ServiceKey, Taking>);

impl UnderWay {
    /// Records that the requests of this plan are about to be sent.
    pub fn begin(&mut self, service: &ServiceView, plan: &Plan) {
        let taking = Taking::new(service, plan);
        if !(taking.objects.is_empty() && taking.addresses.is_empty()) {
            self.0.insert(service.key.clone(), taking);
        }
    }

    /// Records that the requests are answered, with whatever result.
    pub fn end(&mut self, service: &ServiceKey) {
        self.0.remove(service);
    }

    /// Objects that other Services are about to create.
    pub fn objects<'a>(&'a self, service: &'a ServiceKey) -> impl Iterator<Item = &'a String> {
        self.0.iter().filter(move |(key, _)| *key != service).flat_map(|(_, taking)| &taking.objects)
    }

    /// Another Service that is about to publish this address; with `only_static`, only one that requests it as static.
    pub fn publisher(&self, service: &ServiceKey, address: IpAddr, only_static: bool) -> Option<&ServiceKey> {
        let takes = |taking: &Taking| taking.addresses.contains(&address) && (taking.is_static || !only_static);
        self.0.iter().find(|(key, taking)| *key != service && takes(taking)).map(|(key, _)| key)
    }

    /// Whether no pass is about to take anything.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::{config, key, service};
    use super::super::choice::Source;
    use super::super::desired::new_object;
    use super::super::plan::PlanVerdict;
    use super::super::service_patch::{ServicePatch, publish, share};
    use super::*;

    const IP: &str = "10.0.0.1";

    fn plan(actions: Vec<Action>) -> Plan {
        Plan { actions, verdict: PlanVerdict::Ready }
    }

    fn publisher(under_way: &UnderWay, only_static: bool) -> Option<&str> {
        let found = under_way.publisher(&key("default/other"), IP.parse().unwrap(), only_static);
        found.map(|key| key.name.as_str())
    }

    #[test]
    fn an_address_is_taken_from_the_decision_to_publish_it_until_the_pass_ends() {
        let fixed = service("default/fixed").short(&[("ipam", "static"), ("want", IP)]).done();
        let mut under_way = UnderWay::default();
        under_way.begin(&fixed, &plan(vec![Action::Patch(publish(&fixed, IP, None))]));
        assert_eq!(publisher(&under_way, true), Some("fixed"));
        assert_eq!(under_way.publisher(&fixed.key, IP.parse().unwrap(), false), None, "nobody is in its own way");
        assert_eq!(under_way.publisher(&key("default/other"), "10.0.0.2".parse().unwrap(), false), None);
        under_way.end(&fixed.key);
        assert!(under_way.is_empty());
    }

    #[test]
    fn only_who_brings_its_own_address_is_in_the_way_of_one_that_harvester_booked() {
        let pooled = service("default/web").done();
        let mut under_way = UnderWay::default();
        under_way.begin(&pooled, &plan(vec![Action::Patch(publish(&pooled, IP, None))]));
        assert_eq!((publisher(&under_way, false), publisher(&under_way, true)), (Some("web"), None));
    }

    #[test]
    fn who_shares_withdraws_or_asks_for_a_lease_takes_no_address() {
        let (web, primary) = (service("default/web").short(&[("ip", IP)]).done(), service("default/first").done());
        for patch in [
            share(&web, &primary, None, IP.parse().unwrap()),
            ServicePatch::forget_address(&web),
            publish(&web, "0.0.0.0,::", None),
        ] {
            let mut under_way = UnderWay::default();
            under_way.begin(&web, &plan(vec![Action::Patch(patch)]));
            assert!(under_way.is_empty());
        }
    }

    #[test]
    fn an_object_counts_for_others_while_it_is_being_created() {
        let web = service("default/web").done();
        let object = new_object(&config(), "lb-name", &web, &Source::Pool(None));
        let mut under_way = UnderWay::default();
        under_way.begin(&web, &plan(vec![Action::Create(Box::new(object))]));
        assert_eq!(under_way.objects(&key("default/other")).collect::<Vec<_>>(), ["lb-name"]);
        assert_eq!(under_way.objects(&web.key).count(), 0);
    }
}
