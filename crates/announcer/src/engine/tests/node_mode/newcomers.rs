//! Services of others that ask for an address which is served, with records of their author's own making.

use super::*;
use crate::view::Port;

/// Another port of the same address, under a record that nobody has swapped.
fn newcomer(created: i64, term: u64) -> ServiceView {
    let mut view = view("newcomer", &["10.0.0.5"]);
    view.created = created;
    view.ports = vec![Port { port: 9, protocol: "TCP".into() }];
    view.published.vip_host = Some("nosuch".into());
    view.published.term = Some(Term(term));
    view
}

/// node-1 has the address of a Service that was made at 100.
fn served() -> Cluster {
    let web = ServiceView { created: 100, ..view("web", &["10.0.0.5"]) };
    let mut cluster = Cluster::new(&["node-1"], &[web]);
    cluster.won();
    cluster.node.pass_ms(50);
    assert!(cluster.has());
    cluster
}

#[test]
fn a_record_that_a_newcomer_brings_takes_an_address_off_no_node() {
    for term in [7, 1 << 40, (1 << 40) + 1, 1 << 41] {
        let mut cluster = served();
        cluster.node.upsert(newcomer(200, term));
        cluster.quiet(5000, &[], &["node-1"]);
        assert!(cluster.has(), "term {term}");
        assert_eq!(cluster.node.swaps, [], "term {term}");
    }
}

#[test]
fn a_record_that_a_newcomer_brings_keeps_no_address_from_a_service_that_has_none_yet() {
    let web = ServiceView { created: 100, ..view("web", &["10.0.0.5"]) };
    let mut cluster = Cluster::new(&["node-1"], &[web, newcomer(200, (1 << 40) + 1)]);
    cluster.won();
    cluster.node.pass_ms(50);
    assert!(cluster.has());
}
