//! An address that is not on the node where it belongs.

use super::*;

/// node-1 has `address`, in a cluster where everybody is well.
fn owner_of(address: &str, env: &[(&str, &str)]) -> Cluster {
    let mut cluster = Cluster::with(env, &ALL, &[seated("web", address, "node-1", 4)]);
    cluster.quiet(1000, &[], &ALL);
    assert!(has(&cluster, address));
    cluster
}

fn has(cluster: &Cluster, address: &str) -> bool {
    cluster.node.kernel.has("eth0", &format!("{address}/32"))
}

/// Recipient node-1 gives it to within this time.
fn given_to(cluster: &mut Cluster, milliseconds: u64) -> Option<String> {
    cluster.quiet(milliseconds, &[], &ALL);
    cluster.node.swaps.first().map(|(_, swap)| swap.owner_record.host.clone())
}

/// Where one belongs follows from the address.
fn addresses() -> impl Iterator<Item = String> {
    (20..28).map(|last| format!("10.0.0.{last}"))
}

#[test]
fn an_address_goes_back_where_it_belongs_after_a_minute_if_that_is_wanted() {
    let mut homes = BTreeSet::new();
    for address in addresses() {
        let mut cluster = owner_of(&address, &[("vip_failback", "true")]);
        assert_eq!(given_to(&mut cluster, 58_000), None, "{address}: a node that has just come back may go again");
        let Some(home) = given_to(&mut cluster, 3000) else {
            homes.insert("node-1".to_owned());
            continue;
        };
        cluster.won();
        cluster.node.pass_ms(100);
        assert!(has(&cluster, &address), "{address}: its new owner announces it first");
        cluster.claims(&home, &address, "web", 5);
        assert!(!has(&cluster, &address));
        homes.insert(home);
    }
    assert_eq!(homes.len(), 3, "each node is home to some of them: {homes:?}");
}

#[test]
fn an_address_that_works_stays_where_it_is_otherwise() {
    for address in addresses() {
        let mut cluster = owner_of(&address, &[]);
        assert_eq!(given_to(&mut cluster, 120_000), None, "{address}");
    }
}

#[test]
fn a_home_that_comes_and_goes_gets_nothing_back() {
    for address in addresses() {
        let mut cluster = owner_of(&address, &[("vip_failback", "true")]);
        for _ in 0..4 {
            assert_eq!(given_to(&mut cluster, 40_000), None, "{address}");
            for ready in [false, true] {
                for node in ["node-2", "node-3"] {
                    cluster.node.feed(Input::Node(node.into(), Some(NodeFacts { ready, ..FACTS })));
                }
                cluster.quiet(1000, &[], &ALL);
            }
        }
    }
}

#[test]
fn a_lease_that_is_granted_moves_nothing() {
    let mut placed = 0;
    for number in 0..12 {
        let (name, address) = (format!("w{number}"), format!("10.0.0.{}", 50 + number));
        let mut cluster = Cluster::with(&[("vip_failback", "true")], &ALL, &[]);
        cluster.quiet(4000, &[], &ALL);
        cluster.node.upsert(view(&name, &["dhcp"]));
        cluster.quiet(500, &[], &ALL);
        if cluster.node.swaps.is_empty() {
            continue;
        }
        placed += 1;
        cluster.won();
        cluster.quiet(1000, &[], &ALL);
        let lease = dhcp::leased(&cluster.node, &address, 86_400);
        let mut told = cluster.node.engine.services[&ServiceKey::new("default", &name)].clone();
        told.dhcp.lease = Some(lease.facts.clone());
        told.published.ingress = vec![Ingress { ip: address.parse().ok(), ports: Vec::new() }];
        cluster.node.dhcp(&name, DhcpEvent::Bound(lease));
        cluster.node.upsert(told);
        assert_eq!(given_to(&mut cluster, 70_000), None, "{name} with {address}");
    }
    assert!(placed > 1, "{placed}");
}
