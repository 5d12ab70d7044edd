//! A Lease for all Services that somebody else holds, and does not renew.

use super::*;

const YEARS: Duration = Duration::from_secs(1 << 31);

fn lock(renewal: u32) -> Input {
    let (holder, renewal) = ("gone".to_owned(), renewal.to_string());
    Input::Foreign(Some(ForeignLock { holder, renewal, duration: YEARS, leftover: false }))
}

#[test]
fn a_lease_that_counts_for_years_and_that_nobody_renews_is_told_once() {
    let mut cluster = owner(&["node-1"]);
    cluster.node.told.clear();
    cluster.node.feed(lock(1));
    cluster.quiet(50_000, &[], &["node-1"]);
    assert_eq!(cluster.node.told, [], "its holder may live");
    cluster.node.feed(lock(2));
    cluster.quiet(50_000, &[], &["node-1"]);
    assert_eq!(cluster.node.told, [], "he does");
    cluster.quiet(800_000, &[], &["node-1"]);
    assert!(!cluster.has());
    let [(service, tell)] = &cluster.node.told[..] else { panic!("{:?}", cluster.node.told) };
    assert_eq!((service.as_str(), tell.reason), ("web", Reason::CannotAnnounce));
    for part in ["Lease plndr-svcs-lock", "\"gone\"", "for another 2147483588 s", "delete the Lease"] {
        assert!(tell.text.contains(part), "{}", tell.text);
    }
    cluster.node.feed(Input::Foreign(None));
    cluster.quiet(1000, &[], &["node-1"]);
    assert!(cluster.has());
}
