use std::time::Duration;

use super::*;
use crate::annotations::{LeaseFacts, LeaseFacts6};
use crate::network::fixtures::{config, network};
use crate::ownership::LeaseState;
use crate::ownership::service::{LeaseKey, Leases};
use crate::view::InterfaceWish;

pub use super::fixtures::{told, view};

fn planned(views: &[ServiceView], state: LeaseState, leases: &[(&str, Option<&str>)]) -> Plan {
    let services = views.iter().map(|view| (view.key.clone(), view.clone())).collect();
    let lease = |(uid, address): &(&str, Option<&str>)| {
        (VipId::Dhcp(Uid((*uid).into())), address.map(|text| text.parse().unwrap()))
    };
    let leases = leases.iter().map(lease).collect();
    let lock = LeaseKey { namespace: "kube-system".into(), name: "lock".into() };
    let mut ownership = Leases::one_for_all("node-1".into(), lock.clone(), Duration::from_secs(5));
    ownership.lease(&lock, state);
    plan(&World {
        services: &services,
        ownership: &ownership,
        network: &network(),
        config: &config(&[]),
        leases: &leases,
    })
}

const MINE: LeaseState = LeaseState::Held { confirmed: true };

fn ids(plan: &Plan) -> Vec<String> {
    plan.vips
        .iter()
        .map(|(id, vip)| {
            format!("{id}: {}", vip.members.iter().map(|key| key.name.as_str()).collect::<Vec<_>>().join("+"))
        })
        .collect()
}

#[test]
fn one_vip_per_address_however_many_services_use_it() {
    let older = ServiceView { created: 1, ..view("z", &["10.0.0.5"]) };
    let newer = ServiceView { created: 2, ..view("a", &["10.0.0.5", "fd00::5"]) };
    let plan = planned(&[older, newer], MINE, &[]);
    assert_eq!(ids(&plan), ["10.0.0.5: z+a", "fd00::5: a"]);
    assert_eq!(plan.of_service[&ServiceKey::new("default", "a")].len(), 2);
}

/// All Services but one are ours.
struct AllBut(&'static str);

impl Ownership for AllBut {
    fn of(&self, service: &ServiceView) -> Owner {
        if service.key.name == self.0 { Owner::Theirs } else { Owner::Mine }
    }

    fn confirmed(&self, service: &ServiceView) -> bool {
        self.of(service) == Owner::Mine
    }
}

fn plan_of(services: &BTreeMap<ServiceKey, ServiceView>, ownership: &AllBut) -> Plan {
    plan(&World { services, ownership, network: &network(), config: &config(&[]), leases: &BTreeMap::new() })
}

#[test]
fn an_address_that_is_leased_on_another_node_is_never_a_static_one_here() {
    let mut primary = told(view("first", &["dhcp"]), "10.0.0.50");
    primary.dhcp.requested = Some("10.0.0.50".parse().unwrap());
    let by_address = view("second", &["10.0.0.50", "10.0.0.6"]);
    let by_name = ServiceView { primary: Some(primary.key.clone()), ..view("third", &["10.0.0.51"]) };
    let services = [primary, by_address, by_name].map(|view| (view.key.clone(), view)).into();
    let plan = plan_of(&services, &AllBut("first"));
    assert_eq!(ids(&plan), ["10.0.0.6: second"]);
}

#[test]
fn two_dhcp_services_share_nothing() {
    let plan = planned(&[view("a", &["dhcp"]), view("b", &["dhcp"])], MINE, &[]);
    assert_eq!(ids(&plan), ["dhcp a0000000-uid: a", "dhcp b0000000-uid: b"]);
}

#[test]
fn a_secondary_joins_the_macvlan_of_its_dhcp_primary() {
    let secondary = view("second", &["10.0.0.50"]);
    // By the running client.
    let plan = planned(&[view("first", &["dhcp"]), secondary.clone()], MINE, &[("first000-uid", Some("10.0.0.50"))]);
    assert_eq!(ids(&plan), ["dhcp first000-uid: first+second"]);
    // After a restart, before the client knows anything: by what is written on the primary.
    let mut primary = told(view("first", &["dhcp"]), "10.0.0.50");
    primary.dhcp.requested = Some("10.0.0.50".parse().unwrap());
    let plan = planned(&[primary.clone(), secondary.clone()], MINE, &[("first000-uid", None)]);
    assert_eq!(ids(&plan), ["dhcp first000-uid: first+second"]);
    primary.dhcp.requested = None;
    primary.dhcp.lease = Some(LeaseFacts {
        address: "10.0.0.50".parse().unwrap(),
        server: "10.0.0.254".parse().unwrap(),
        expires: None,
    });
    assert_eq!(ids(&planned(&[primary.clone(), secondary.clone()], MINE, &[])), ["dhcp first000-uid: first+second"]);
    // The client has another address by now: the secondary's old one is not that VIP any more.
    let plan = planned(&[primary, secondary], MINE, &[("first000-uid", Some("10.0.0.60"))]);
    assert_eq!(ids(&plan), ["10.0.0.50: second", "dhcp first000-uid: first"]);
}

/// Whoever may write a Service may write any address into its annotations.
#[test]
fn an_address_that_is_only_asked_for_is_taken_from_nobody() {
    let victim = view("victim", &["10.0.0.50", "fd00::5"]);
    let four =
        LeaseFacts { address: "10.0.0.50".parse().unwrap(), server: "10.0.0.254".parse().unwrap(), expires: None };
    let six = LeaseFacts6 { address: "fd00::5".parse().unwrap(), server: "00010203".into(), expires: None };
    let mut asking = view("asking", &["dhcp", "dhcp6"]);
    asking.dhcp.requested = Some(four.address);
    asking.dhcp.requested6 = Some(six.address);
    let mut copied = view("asking", &["dhcp", "dhcp6"]);
    copied.dhcp.lease = Some(four);
    copied.dhcp.lease6 = Some(six);
    for other in [asking, copied] {
        let retired = ServiceView { retired: true, wanted: Vec::new(), ..other.clone() };
        let plan = planned(&[victim.clone(), retired], MINE, &[]);
        assert_eq!(ids(&plan), ["10.0.0.50: victim", "fd00::5: victim"]);
        let services = [victim.clone(), other].map(|view| (view.key.clone(), view)).into();
        for ownership in [&AllBut("nobody"), &AllBut("asking")] {
            let plan = plan_of(&services, ownership);
            assert_eq!(ids(&plan)[..2], ["10.0.0.50: victim", "fd00::5: victim"]);
        }
    }
}

#[test]
fn a_dhcpv6_lease_is_shared_before_its_address_is_published() {
    let services =
        [view("first", &["dhcp6"]), view("second", &["fd00::5"])].map(|view| (view.key.clone(), view)).into();
    let plan = plan(&World {
        services: &services,
        ownership: &AllBut("nobody"),
        network: &network(),
        config: &config(&[]),
        leases: &BTreeMap::from([(VipId::Dhcp6(Uid("first000-uid".into())), "fd00::5".parse().ok())]),
    });
    assert_eq!(ids(&plan), ["dhcp6 first000-uid: first+second"]);
}

#[test]
fn a_secondary_of_a_dhcpv6_lease_follows_it_and_never_has_its_address_without_it() {
    let primary = Some(ServiceKey::new("default", "first"));
    let by_name = ServiceView { primary, created: 1, ..view("second", &["fd00::5"]) };
    let by_address = view("third", &["fd00::5"]);
    let id = VipId::Dhcp6(Uid("first000-uid".into()));
    let planned = |services: &[ServiceView], theirs: &'static str, leased: Option<&str>| {
        let services = services.iter().map(|view| (view.key.clone(), view.clone())).collect();
        let leases = leased.map(|address| (id.clone(), address.parse().ok())).into_iter().collect();
        let ownership = &AllBut(theirs);
        plan(&World { services: &services, ownership, network: &network(), config: &config(&[]), leases: &leases })
    };
    let mut first = told(view("first", &["dhcp6"]), "fd00::5");
    first.dhcp.requested6 = Some("fd00::5".parse().unwrap());
    let all = [first.clone(), by_name.clone(), by_address.clone()];
    assert_eq!(ids(&planned(&all, "nobody", None)), ["dhcp6 first000-uid: first+third+second"]);
    // The lease has another address.
    assert_eq!(ids(&planned(&all[..2], "nobody", Some("fd00::6"))), ["dhcp6 first000-uid: first+second"]);
    // Another node has it.
    assert_eq!(ids(&planned(&all, "first", None)), Vec::<String>::new());
    // The primary is on its way out.
    first.retired = true;
    first.wanted.clear();
    let all = [first.clone(), by_name, by_address.clone()];
    for leased in [None, Some("fd00::5")] {
        let plan = planned(&all, "nobody", leased);
        assert_eq!(ids(&plan), ["dhcp6 first000-uid: third+second"]);
        assert_eq!(plan.vips[&id].dhcp.as_ref(), Some(&first.dhcp), "its client may start anew");
        assert!(planned(&all[..1], "nobody", leased).vips.is_empty(), "alone it has no VIP");
    }
    let elsewhere = planned(&[first, by_address.clone()], "first", None).elsewhere;
    assert_eq!(elsewhere, BTreeSet::from([Uid("first000-uid".into())]), "the successor needs the lease");
    // It is gone; the client goes on for the last secondary.
    assert_eq!(ids(&planned(&[by_address], "nobody", Some("fd00::5"))), ["dhcp6 first000-uid: third"]);
}

#[test]
fn a_secondary_that_names_its_primary_follows_it_to_another_leased_address() {
    let primary = Some(ServiceKey::new("default", "first"));
    let secondary = ServiceView { primary, created: 1, ..view("second", &["10.0.0.50", "fd00::5"]) };
    let running = [("first000-uid", Some("10.0.0.60"))];
    let plan = planned(&[view("first", &["dhcp"]), secondary.clone()], MINE, &running);
    assert_eq!(ids(&plan), ["fd00::5: second", "dhcp first000-uid: first+second"]);
    // A primary with a given address leads nobody.
    let plan = planned(&[view("first", &["10.0.0.60"]), secondary], MINE, &[]);
    assert_eq!(ids(&plan), ["10.0.0.50: second", "10.0.0.60: first", "fd00::5: second"]);
}

#[test]
fn the_address_of_a_deleted_dhcp_primary_goes_with_its_last_secondary() {
    let running = [("first000-uid", Some("10.0.0.50"))];
    assert_eq!(ids(&planned(&[view("second", &["10.0.0.50"])], MINE, &running)), ["dhcp first000-uid: second"]);
    assert!(planned(&[], MINE, &running).vips.is_empty());
}

#[test]
fn a_dhcp_primary_on_its_way_out_stays_the_source_of_its_secondaries_after_a_restart() {
    let mut primary = told(ServiceView { retired: true, ..view("first", &[]) }, "10.0.0.50");
    primary.dhcp.mac = Some(l2_types::Mac::new([0, 0, 0x6c, 1, 2, 3]));
    primary.dhcp.requested = Some("10.0.0.50".parse().unwrap());
    primary.interface = InterfaceWish::Named("eth1".into());
    let secondary = view("second", &["10.0.0.50"]);
    for leases in [&[][..], &[("first000-uid", Some("10.0.0.50"))]] {
        let plan = planned(&[primary.clone(), secondary.clone()], MINE, leases);
        assert_eq!(ids(&plan), ["dhcp first000-uid: second"]);
        let vip = &plan.vips[&VipId::Dhcp(primary.uid.clone())];
        assert_eq!((vip.place.clone(), vip.dhcp.as_ref()), (Ok(3), Some(&primary.dhcp)));
        assert_eq!(plan.of_service.len(), 1, "nothing is written on the primary any more");
        // Alone it has no VIP.
        assert!(planned(&[primary.clone()], MINE, leases).vips.is_empty());
    }
    let theirs = LeaseState::Other("node-2".into());
    let plan = planned(&[primary.clone(), secondary], theirs.clone(), &[]);
    assert_eq!(plan.elsewhere, BTreeSet::from([primary.uid.clone()]), "the successor needs the lease");
    assert!(planned(&[primary], theirs, &[]).elsewhere.is_empty());
}

#[test]
fn a_service_that_pins_its_leased_address_stops_asking_dhcp() {
    let plan = planned(&[view("first", &["10.0.0.50"])], MINE, &[("first000-uid", Some("10.0.0.50"))]);
    assert_eq!(ids(&plan), ["10.0.0.50: first"]);
}

#[test]
fn what_belongs_to_another_node_is_not_planned_and_its_lease_is_kept() {
    let plan = planned(&[view("a", &["dhcp"]), view("b", &["10.0.0.5"])], LeaseState::Other("node-2".into()), &[]);
    assert!(plan.vips.is_empty() && plan.of_service.is_empty() && plan.undecided.is_empty());
    assert_eq!(plan.elsewhere, BTreeSet::from([Uid("a0000000-uid".into())]));
}

#[test]
fn undecided_is_said() {
    let plan = planned(&[view("b", &["10.0.0.5"])], LeaseState::Unknown, &[]);
    assert_eq!(plan.undecided, BTreeSet::from([ServiceKey::new("default", "b")]));
    assert_eq!(plan.vips[&VipId::Static("10.0.0.5".parse().unwrap())].owner, Owner::Undecided);
}

#[test]
fn a_missing_interface_is_told_to_every_member() {
    let on = |name: &str| ServiceView { interface: InterfaceWish::Named("eth9".into()), ..view(name, &["10.0.0.5"]) };
    let plan = planned(&[on("a"), on("b")], MINE, &[]);
    assert_eq!(plan.told.len(), 2);
    assert!(plan.told.iter().all(|(_, text)| text.contains("eth9")));
}

#[test]
fn the_oldest_service_decides_where_a_shared_address_is() {
    let older = ServiceView { created: 1, interface: InterfaceWish::Named("eth1".into()), ..view("z", &["10.0.0.5"]) };
    let newer = ServiceView { created: 2, ..view("a", &["10.0.0.5"]) };
    let plan = planned(&[older, newer], MINE, &[]);
    assert_eq!(plan.vips[&VipId::Static("10.0.0.5".parse().unwrap())].place, Ok(3));
    let told: Vec<&ServiceKey> = plan.told.iter().map(|(key, _)| key).collect();
    assert_eq!(told, [&ServiceKey::new("default", "a")]);
}

#[test]
fn who_names_a_missing_interface_does_not_decide_where_a_shared_address_is() {
    let older = ServiceView { created: 1, interface: InterfaceWish::Named("eth9".into()), ..view("z", &["10.0.0.5"]) };
    let newer = ServiceView { created: 2, ..view("a", &["10.0.0.5"]) };
    let plan = planned(&[older, newer], MINE, &[]);
    assert_eq!(plan.vips[&VipId::Static("10.0.0.5".parse().unwrap())].place, Ok(2));
    let told: Vec<(&str, bool)> =
        plan.told.iter().map(|(key, text)| (key.name.as_str(), text.contains("eth9"))).collect();
    assert_eq!(told, [("z", true)]);
}

#[test]
fn each_who_names_what_no_vip_can_be_on_is_told_what_he_names_and_is_passed_over() {
    let on = |created, name: &str, interface: &str| {
        let interface = InterfaceWish::Named(interface.into());
        ServiceView { created, interface, ..view(name, &["10.0.0.5"]) }
    };
    let third = ServiceView { created: 3, ..view("c", &["10.0.0.5"]) };
    let id = VipId::Static("10.0.0.5".parse().unwrap());
    for (first, second) in [("eth8", "eth9"), ("lo", "eth9"), ("eth8", "lo")] {
        let both = [on(1, "a", first), on(2, "b", second)];
        for (services, place) in
            [(both.to_vec(), None), ([both.as_slice(), std::slice::from_ref(&third)].concat(), Some(2))]
        {
            let plan = planned(&services, MINE, &[]);
            assert_eq!(plan.vips[&id].place.as_ref().ok(), place.as_ref(), "{first} {second}");
            let told: Vec<(&str, &str)> =
                plan.told.iter().map(|(key, text)| (key.name.as_str(), text.split('"').nth(1).unwrap())).collect();
            assert_eq!(told, [("a", first), ("b", second)]);
        }
    }
}

#[test]
fn an_address_that_is_leased_is_known_as_such_in_both_families() {
    let uid = Uid("web".into());
    assert!(VipId::Dhcp(uid.clone()).is_dhcp());
    assert!(VipId::Dhcp6(uid).is_dhcp(), "the rules of service security are made again before it is set");
    assert!(!VipId::Static("fd00::5".parse().unwrap()).is_dhcp());
}
