use super::*;
use crate::annotations::{LeaseFacts, LeaseFacts6};
use crate::plan::tests::{told, view};

fn grouped(views: &[ServiceView]) -> Vec<String> {
    let services = views.iter().map(|view| (view.key.clone(), view.clone())).collect();
    let groups = groups(&services);
    assert_eq!(groups.of.len(), groups.members.values().map(Vec::len).sum::<usize>(), "each is in one group");
    groups
        .members
        .iter()
        .map(|(key, members)| {
            format!("{key}: {}", members.iter().map(|key| key.name.as_str()).collect::<Vec<_>>().join("+"))
        })
        .collect()
}

fn aged(created: i64, view: ServiceView) -> ServiceView {
    ServiceView { created, ..view }
}

fn leased(name: &str, address: &str) -> ServiceView {
    let mut view = told(view(name, &["dhcp"]), address);
    view.dhcp.lease =
        Some(LeaseFacts { address: address.parse().unwrap(), server: "10.0.0.254".parse().unwrap(), expires: None });
    view
}

#[test]
fn services_that_share_an_address_are_one_group_known_by_it() {
    assert_eq!(
        grouped(&[aged(2, view("a", &["10.0.0.5"])), aged(1, view("z", &["10.0.0.5"])), view("x", &["10.0.0.6"])]),
        ["10.0.0.5: z+a", "10.0.0.6: x"]
    );
}

#[test]
fn both_families_of_a_service_pull_their_groups_together() {
    assert_eq!(
        grouped(&[
            aged(1, view("v4", &["10.0.0.5"])),
            aged(2, view("v6", &["fd00::5"])),
            aged(3, view("both", &["fd00::5", "10.0.0.5"])),
            aged(4, view("later", &["fd00::5"])),
        ]),
        ["10.0.0.5: v4+v6+both+later"]
    );
}

#[test]
fn dhcp_services_have_nothing_in_common_until_one_names_the_others_lease() {
    assert_eq!(grouped(&[view("a", &["dhcp"]), view("b", &["dhcp"])]), ["a0000000-uid: a", "b0000000-uid: b"]);
    assert_eq!(grouped(&[aged(1, leased("a", "10.0.0.50")), aged(2, view("b", &["10.0.0.50"]))]), ["10.0.0.50: a+b"]);
}

#[test]
fn an_address_that_is_only_asked_for_joins_nobody() {
    let mut copied = leased("a", "10.0.0.50");
    copied.published.ingress.clear();
    copied.dhcp.requested = Some("10.0.0.50".parse().unwrap());
    let victim = view("b", &["10.0.0.50"]);
    assert_eq!(grouped(&[aged(1, copied), aged(2, victim)]), ["10.0.0.50: b", "a0000000-uid: a"]);
}

#[test]
fn a_secondary_stays_with_its_primary_while_the_leased_address_changes() {
    let primary = Some(ServiceKey::new("default", "a"));
    let secondary = ServiceView { primary, ..view("b", &["10.0.0.50"]) };
    assert_eq!(grouped(&[aged(1, leased("a", "10.0.0.60")), aged(2, secondary.clone())]), ["10.0.0.60: a+b"]);
    // Not without a lease to share, and not for itself.
    assert_eq!(grouped(&[aged(1, view("a", &["10.0.0.60"])), aged(2, secondary)]).len(), 2);
    let itself = ServiceView { primary: Some(ServiceKey::new("default", "a")), ..leased("a", "10.0.0.60") };
    assert_eq!(grouped(&[itself]), ["10.0.0.60: a"]);
}

#[test]
fn a_primary_on_its_way_out_keeps_its_secondaries_together() {
    let gone = ServiceView { retired: true, wanted: Vec::new(), ..leased("a", "10.0.0.50") };
    assert_eq!(
        grouped(&[aged(1, gone), aged(2, view("b", &["10.0.0.50"])), aged(3, view("c", &["10.0.0.50"]))]),
        ["10.0.0.50: a+b+c"]
    );
}

fn leased6(name: &str, address: &str) -> ServiceView {
    let mut view = told(view(name, &["dhcp6"]), address);
    view.dhcp.lease6 = Some(LeaseFacts6 { address: address.parse().unwrap(), server: "0001".into(), expires: None });
    view
}

#[test]
fn a_secondary_of_a_dhcpv6_lease_stays_with_its_primary_too() {
    let gone = ServiceView { retired: true, wanted: Vec::new(), ..leased6("a", "fd00::50") };
    assert_eq!(grouped(&[aged(1, gone), aged(2, view("b", &["fd00::50"]))]), ["fd00::50: a+b"]);
    // Its copy of the address is old, and its IPv4 address is its own.
    let primary = Some(ServiceKey::new("default", "a"));
    let secondary = ServiceView { primary, ..view("b", &["10.0.0.5", "fd00::50"]) };
    let other = aged(3, view("c", &["10.0.0.5"]));
    let stranger = aged(4, view("d", &["fd00::50"]));
    assert_eq!(
        grouped(&[aged(1, leased6("a", "fd00::60")), aged(2, secondary), other, stranger]),
        ["fd00::50: d", "fd00::60: a+b+c"]
    );
}

#[test]
fn a_service_without_an_address_is_in_no_group() {
    assert_eq!(grouped(&[view("a", &[])]), Vec::<String>::new());
}
