//! Faults of what the installation stands on: certificates, clocks, versions, hosts.

use jiff::SignedDuration;

use super::*;
use crate::snapshot::{Certificate, Owner, feature};

const DAY: i64 = 24 * 60 * 60;

fn certificate(guest: bool, owner: Owner, left: i64) -> impl Fn(&mut Snapshot) {
    move |snapshot| {
        let expires = snapshot.now + SignedDuration::from_secs(left);
        let side = if guest { &mut snapshot.guest } else { &mut snapshot.harvester };
        side.certificates = vec![Certificate { owner, expires }];
    }
}

fn control_plane(hosts: [&'static str; 3]) -> impl Fn(&mut Snapshot) {
    move |snapshot| {
        for (at, host) in hosts.into_iter().enumerate() {
            let mut object = healthy::node(&format!("etcd{at}"));
            object["spec"] = json!({});
            object["metadata"]["labels"] =
                json!({"node-role.kubernetes.io/etcd": "true", "cloudprovider.harvesterhci.io/host": host});
            snapshot.nodes.push(read(object));
        }
    }
}

fn kubelet(renewed: &'static str) -> impl Fn(&mut Snapshot) {
    move |snapshot| {
        let mut lease = healthy::member("node2");
        lease["metadata"]["name"] = json!("node2");
        lease["metadata"]["annotations"] = json!({});
        lease["spec"]["renewTime"] = json!(renewed);
        snapshot.kubelet_leases = vec![read(lease)];
        // Without an announcer, whose Lease would tell it, too.
        snapshot.leases.truncate(2);
    }
}

pub fn faults() -> Vec<(&'static str, Plant)> {
    let plant = |check, plant: Plant| (check, plant);
    vec![
        plant("node-silent", Box::new(|snapshot| healthy::fall_silent(snapshot, "node2", "node1"))),
        plant("certificate-expired", Box::new(certificate(true, Owner::Server, -1))),
        plant("certificate-expired", Box::new(certificate(false, Owner::Credentials, 0))),
        plant("certificate-expires", Box::new(certificate(true, Owner::Credentials, 29 * DAY))),
        plant("certificate-expires", Box::new(certificate(false, Owner::Server, DAY))),
        plant(
            "certificate-expired",
            Box::new(|snapshot| {
                trouble(false, TroubleKind::Certificate)(snapshot);
                certificate(false, Owner::Server, -DAY)(snapshot);
            }),
        ),
        plant("clock-skew", Box::new(|snapshot| snapshot.guest.clock_ahead = Some(-6))),
        plant("clock-skew", Box::new(|snapshot| snapshot.harvester.clock_ahead = Some(3_600))),
        plant("clock-skew", Box::new(kubelet("2026-01-01T12:03:00.000000Z"))),
        plant("quorum-at-risk", Box::new(control_plane(["host-1", "host-2", "host-1"]))),
        plant("harvester-too-old", Box::new(|snapshot| snapshot.harvester.version = "v1.24.11+rke2r1".into())),
        plant("guest-too-old", Box::new(|snapshot| snapshot.guest.version = "v1.27.16".into())),
        plant(
            "harvester-kind-missing",
            Box::new(|snapshot| snapshot.host.features = [(feature::LOAD_BALANCERS, false)].into()),
        ),
        plant(
            "harvester-kind-missing",
            Box::new(|snapshot| snapshot.host.features = [(feature::MACHINES, false)].into()),
        ),
        plant(
            "macvlan-missing",
            Box::new(member(|object| {
                object["metadata"]["annotations"]["cloudprovider.harvesterhci.io/announcer-without-macvlans"] =
                    json!("Operation not supported (os error 95)");
            })),
        ),
    ]
}

#[test]
fn what_is_far_enough_away_or_not_known_is_no_finding() {
    let plants: [Plant; 7] = [
        Box::new(certificate(true, Owner::Server, 31 * DAY)),
        Box::new(|snapshot| snapshot.guest.clock_ahead = Some(5)),
        Box::new(kubelet("2026-01-01T11:59:55.000000Z")),
        Box::new(control_plane(["host-1", "host-2", "host-3"])),
        Box::new(control_plane(["", "", ""])),
        Box::new(|snapshot| snapshot.harvester.version = "v1.25.9+rke2r1".into()),
        Box::new(|snapshot| {
            snapshot.host.features = [(feature::UPGRADE_PLANS, false), (feature::IPV6_POOL, false)].into();
        }),
    ];
    for (at, plant) in plants.iter().enumerate() {
        assert_eq!(planted(plant).findings, [], "{at}");
    }
}

/// Its Lease is valid for a while, and its Node is Ready for longer.
#[test]
fn a_silent_node_is_one_finding_from_the_first_second_on() {
    for renewed in ["2026-01-01T11:59:58.000000Z", "2026-01-01T11:59:30.000000Z"] {
        let found = findings_of(move |snapshot: &mut Snapshot| {
            member(move |object| {
                object["spec"]["renewTime"] = json!(renewed);
                object["metadata"]["managedFields"] = json!([]);
            })(snapshot);
            healthy::fall_silent(snapshot, "node2", "node1");
        });
        assert_eq!(found.len(), 1, "{renewed}: {found:?}");
        assert_eq!((found[0].check, found[0].severity), (Check::NodeSilent, Severity::Warning));
        assert_eq!(found[0].object, "Node node2");
        assert_eq!(found[0].what, "it is silent, by node1: no answer to arp 10.0.0.12, tcp 10.0.0.12:10250");
        assert!(found[0].remedy.contains(" -n guests get virtualmachineinstances.kubevirt.io node2 "), "{found:?}");
    }
}

#[test]
fn files_that_a_remedy_names_are_explained_once_and_no_others() {
    let text = |plant: fn(&mut Snapshot)| planted(&(Box::new(plant) as Plant)).to_text();
    let said = text(|snapshot| snapshot.pools[0].status.as_mut().unwrap().available = 0);
    assert_eq!(
        said.matches("\nharvester.yaml: the kubeconfig of an administrator of Harvester\n").count(),
        1,
        "{said}"
    );
    assert!(!said.contains("values.yaml"), "{said}");
    assert!(!text(|_| ()).contains(".yaml"));
}

#[test]
fn a_report_says_which_versions_were_looked_at_and_what_the_host_offers() {
    let mut snapshot = healthy::snapshot();
    snapshot.host.version = "v1.6.0".into();
    snapshot.host.features = [(feature::IPV6_POOL, false), (feature::UPGRADE_PLANS, true)].into();
    let found = examine(&snapshot);
    let line = "Harvester API https://harvester:6443: Kubernetes v1.32.1, Harvester v1.6.0; it has: plans of the \
         Upgrade Toolkit; it has not: a second pool, of IPv6, for one load balancer";
    assert!(found.to_text().lines().any(|one| one == line), "{}", found.to_text());
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json["clusters"]["guest"]["kubernetes"], "v1.33.1");
    assert_eq!(json["clusters"]["harvester"]["features"]["upgrade-plans"], true);
}
