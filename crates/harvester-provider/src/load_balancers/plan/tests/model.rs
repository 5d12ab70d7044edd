//! A model world in which plans are carried out until nothing is left to do.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::super::view::Ready;
use super::sharing::secondary;
use super::*;

/// A Harvester host, an announcer and an API server that do what they do to the objects; requests are counted.
struct Model {
    services: BTreeMap<ServiceKey, ServiceView>,
    objects: BTreeMap<ServiceKey, LbView>,
    creates: usize,
    updates: usize,
    deletes: usize,
    patches: usize,
}

impl Model {
    fn new(services: Vec<ServiceView>) -> Self {
        let services = services.into_iter().map(|service| (service.key.clone(), service)).collect();
        Self { services, objects: BTreeMap::new(), creates: 0, updates: 0, deletes: 0, patches: 0 }
    }

    fn plan(&self, key: &ServiceKey) -> Plan {
        let others: Vec<ServiceView> = self.services.values().cloned().collect();
        let names: Vec<(String, &LbView)> = self.objects.iter().map(|(key, lb)| (key.to_string(), lb)).collect();
        let lbs: Vec<(&str, &LbView)> = names.iter().map(|(name, lb)| (name.as_str(), *lb)).collect();
        plan(&self.services[key], &others, &lbs)
    }

    fn perform(&mut self, key: &ServiceKey, action: Action) {
        match action {
            Action::Create(object) => {
                self.creates += 1;
                let view = LbView { uid: format!("uid-{key}"), ..LbView::from(object.as_ref()) };
                assert!(self.objects.insert(key.clone(), view).is_none(), "created twice");
            }
            Action::Update { uid, changes } => {
                self.updates += 1;
                let lb = self.objects.get_mut(key).expect("an object to update");
                assert_eq!(lb.uid, uid);
                for change in changes {
                    match change {
                        Change::Label(key, value) => lb.labels.insert(key, &value),
                        Change::Annotation(key, value) => lb.annotations.insert(key, &value),
                        Change::NoAnnotation(key) => lb.annotations.remove(key),
                        Change::Ipam(ipam) => lb.ipam = Some(ipam.to_string()),
                        Change::Pool(pool) => lb.wanted_pool = Some(pool),
                        Change::NoPool => lb.wanted_pool = None,
                        Change::ClusterWorkload => lb.workload_type = Some("cluster".into()),
                        Change::Address(address) => lb.address = Some(address),
                    }
                }
            }
            Action::Rename { name, .. } => panic!("{name} gets another name, and the cluster was not renamed"),
            Action::Readmit { .. } => self.updates += 1,
            Action::Delete { uid, leaks, .. } => {
                assert!(!leaks, "deleted while the host was booking for {key}");
                let wants_none = rules::named_primary(&self.services[key]).is_some();
                assert!(wants_none, "deleted while {key} wants an address of its own");
                self.deletes += 1;
                assert_eq!(self.objects.remove(key).expect("an object to delete").uid, uid);
            }
            Action::Patch(patch) => {
                self.patches += 1;
                let service = patch.apply(&self.services[key]);
                self.services.insert(key.clone(), service);
            }
        }
    }

    /// The host allocates, the announcer serves.
    fn others_act(&mut self) {
        for (index, (key, lb)) in self.objects.iter_mut().enumerate() {
            if lb.ready.is_none() {
                let ip =
                    if lb.effective_ipam() == "dhcp" { "0.0.0.0".into() } else { format!("10.20.4.{}", index + 1) };
                lb.ready = Some(Ready { status: true, message: String::new() });
                lb.usable_address = Some(ip);
                lb.has_host_finalizer = true;
                lb.annotations.insert(loadbalancer::NETWORK, "guests/mgmt");
                lb.annotations.insert(loadbalancer::NAMESPACE, "guests");
                lb.annotations.insert(loadbalancer::PROJECT, "local/p-demo1");
            }
            let _ = key;
        }
        for (index, service) in self.services.values_mut().enumerate() {
            let Some(wanted) = service.annotations.get(kube_vip::LOADBALANCER_IPS) else { continue };
            let address = if wanted == "0.0.0.0" { format!("10.99.0.{}", index + 10) } else { wanted.to_owned() };
            service.ingress = vec![address.parse().unwrap()];
        }
    }

    /// Everybody acts until nobody has anything to do.
    fn settle(&mut self) {
        for _ in 0..20 {
            let mut quiet = true;
            for key in self.services.keys().cloned().collect::<Vec<_>>() {
                for action in self.plan(&key).actions {
                    quiet = false;
                    self.perform(&key, action);
                }
            }
            let before = (self.objects.clone(), self.services.clone());
            self.others_act();
            if quiet && before == (self.objects.clone(), self.services.clone()) {
                return;
            }
        }
        panic!("never quiet");
    }
}

/// ../golden 01-pool: the end state, with one POST, one PUT and one PATCH of the Service.
#[test]
fn a_pool_service_costs_one_post_one_put_and_one_patch_and_ends_as_the_go_provider_leaves_it() {
    let mut model = Model::new(vec![web()]);
    model.settle();
    assert_eq!((model.creates, model.updates, model.deletes, model.patches), (1, 1, 0, 1));
    let service = &model.services[&key("default/web")];
    assert_eq!(service.annotations, [(kube_vip::LOADBALANCER_IPS, IP)].into());
    assert_eq!(service.labels, Tags::default());
    let lb = &model.objects[&key("default/web")];
    let expected = [
        ("cloudprovider.harvesterhci.io/clusterUID", "uid-of-cluster"),
        ("cloudprovider.harvesterhci.io/guestRevision", "100"),
        ("cloudprovider.harvesterhci.io/lb-network", ""),
        ("cloudprovider.harvesterhci.io/serviceUID", "uid-of-default-web"),
        ("loadbalancer.harvesterhci.io/cluster", "demo"),
        ("loadbalancer.harvesterhci.io/namespace", "guests"),
        ("loadbalancer.harvesterhci.io/network", "guests/mgmt"),
        ("loadbalancer.harvesterhci.io/project", "local/p-demo1"),
    ];
    assert_eq!(lb.annotations, expected.into());
    assert_eq!(lb.address.as_deref(), Some(IP));
}

/// ../golden 02-dhcp.
#[test]
fn a_dhcp_service_shows_the_sentinel_and_the_mailbox_the_lease() {
    let mut model = Model::new(vec![service("default/lease").short(&[("ipam", "dhcp")]).done()]);
    model.settle();
    assert_eq!((model.creates, model.updates, model.deletes, model.patches), (1, 1, 0, 1));
    let key = key("default/lease");
    assert_eq!(model.services[&key].annotations.get(kube_vip::LOADBALANCER_IPS), Some("0.0.0.0"));
    assert_eq!(model.objects[&key].address.as_deref(), Some("10.99.0.10"));
}

/// ../golden 05-share.
#[test]
fn a_secondary_costs_one_patch_and_no_object() {
    let mut model = Model::new(vec![web(), secondary("default/web2").done()]);
    model.settle();
    assert_eq!((model.creates, model.updates, model.deletes, model.patches), (1, 1, 0, 2));
    assert!(!model.objects.contains_key(&key("default/web2")));
    assert_eq!(model.services[&key("default/web2")].annotations.get(kube_vip::LOADBALANCER_IPS), Some(IP));
}

fn any_service(index: usize) -> impl Strategy<Value = ServiceView> {
    let name = format!("default/s{index}");
    let primary = prop_oneof![
        4 => Just(None),
        3 => (0usize..4).prop_map(|other| Some(format!("default/s{other}"))),
        1 => prop_oneof![Just(String::new()), Just("x".into()), Just("nowhere/none".into())].prop_map(Some),
    ];
    let ipam =
        prop_oneof![3 => Just(None), 1 => Just(Some("dhcp")), 1 => Just(Some("pool")), 1 => Just(Some("static"))];
    let network = prop_oneof![3 => Just(None), 1 => Just(Some("a/b")), 1 => Just(Some("c/d"))];
    let ports = prop::collection::btree_set(prop_oneof![Just("TCP/80"), Just("UDP/80"), Just("TCP/443")], 1..3);
    let stale = prop_oneof![3 => Just(None), 1 => Just(Some("10.20.4.200"))];
    (primary, ipam, network, ports, stale).prop_map(move |(primary, ipam, network, ports, stale)| {
        let mut annotations: Vec<(&str, &str)> = Vec::new();
        annotations.extend(primary.as_deref().map(|value| ("primary", value)));
        annotations.extend(ipam.map(|value| ("ipam", value)));
        annotations.extend(network.map(|value| ("net", value)));
        annotations.extend(stale.map(|value| ("ip", value)));
        service(&name).short(&annotations).ports(&ports.into_iter().collect::<Vec<_>>()).done()
    })
}

impl Model {
    /// A user edits a Service: everything that is the user's is replaced, everything that is ours stays.
    fn edit(&mut self, edited: ServiceView) {
        let service = self.services.get_mut(&edited.key).expect("one of ours");
        for key in [cloudprovider::IPAM, cloudprovider::NETWORK, cloudprovider::PRIMARY_SERVICE] {
            match edited.annotations.get(key) {
                Some(value) => service.annotations.insert(key, value),
                None => service.annotations.remove(key),
            }
        }
        service.ports = edited.ports;
    }

    /// What holds in every world at rest.
    fn check(&self) {
        for (key, service) in &self.services {
            let plan = self.plan(key);
            assert!(plan.actions.is_empty(), "{key}: {plan:?}");
            if plan.verdict != PlanVerdict::Ready {
                continue;
            }
            let shown = service.annotations.get(kube_vip::LOADBALANCER_IPS).expect("it is ready");
            match rules::named_primary(service) {
                None => assert_eq!(Some(shown), self.objects[key].usable_address.as_deref(), "{key}"),
                Some(Ok(primary)) => {
                    assert!(!self.objects.contains_key(key), "{key} has an object of its own");
                    let primary = &self.services[&primary];
                    assert_eq!(shown.parse().ok(), primary.ingress.first().copied(), "{key}");
                    assert!(service.ports.is_disjoint(&primary.ports), "{key}");
                }
                Some(Err(error)) => panic!("{key} is Ready in spite of {error}"),
            }
        }
    }
}

fn any_services() -> impl Strategy<Value = Vec<ServiceView>> {
    (any_service(0), any_service(1), any_service(2), any_service(3)).prop_map(|(a, b, c, d)| vec![a, b, c, d])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// W-03.
    /// Whatever Services there are and whatever users make of them: everything comes to rest, nothing is deleted that
    /// somebody wants, and whoever is Ready shows the address that it should.
    #[test]
    fn every_world_comes_to_rest_and_deletes_nothing_that_is_wanted(
        services in any_services(), edits in prop::collection::vec(any_services(), 0..3),
    ) {
        let mut model = Model::new(services);
        model.settle();
        model.check();
        assert_eq!(model.deletes, 0);
        for edited in edits {
            for service in edited {
                model.edit(service);
            }
            model.settle();
            model.check();
        }
    }
}
