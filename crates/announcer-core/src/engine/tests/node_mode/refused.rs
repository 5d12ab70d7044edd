//! Changes of owner that the API server refuses: annotations that are too large, a missing right, a rule of admission.

use super::*;

const TOO_LONG: &str = "metadata.annotations: Too long: may not be more than 262144 bytes";

/// node-1 is alone with a new Service that nobody may write.
fn refused() -> Cluster {
    Cluster::new(&["node-1"], &[view("web", &["10.0.0.5"])])
}

/// The API server refuses for so long. How often it was asked.
fn refuse(cluster: &mut Cluster, time: Duration) -> usize {
    let end = cluster.node.now + time;
    let mut asked = 0;
    while cluster.node.now < end {
        while let Some(swap) = cluster.node.swaps.pop() {
            asked += 1;
            cluster.answered(swap, Swapped::Refused(TOO_LONG.into()));
        }
        cluster.renew(&["node-1"]);
        cluster.node.pass(Duration::from_secs(1).min(end - cluster.node.now));
    }
    asked
}

#[test]
fn what_the_api_server_refuses_is_asked_ever_less_often_and_told_once() {
    let mut cluster = refused();
    let minute = refuse(&mut cluster, Duration::from_mins(1));
    assert!((8..=14).contains(&minute), "{minute}");
    let later = refuse(&mut cluster, Duration::from_mins(5));
    assert!((7..=11).contains(&later), "{later}: at most every 37.5 s, at least every 30 s");
    assert_eq!(cluster.node.reasons(), ["CannotAnnounce"]);
    let text = &cluster.node.told[0].1.text;
    assert!(text.contains(TOO_LONG), "{text}");
    let failed = cluster.node.engine.observations().failed_swaps;
    assert_eq!(failed, u64::try_from(minute + later).unwrap());
}

#[test]
fn what_was_refused_is_asked_again_at_once_when_somebody_has_changed_the_service() {
    let mut cluster = refused();
    refuse(&mut cluster, Duration::from_mins(2));
    let changed = cluster.node.engine.services[&ServiceKey::new("default", "web")].clone();
    cluster.node.upsert(changed);
    cluster.node.pass_ms(100);
    cluster.won();
    cluster.node.pass_ms(50);
    assert!(cluster.has());
}

#[test]
fn a_refusal_at_the_end_leaves_the_address_and_no_timer() {
    let mut cluster = owner(&["node-1", "node-2"]);
    cluster.leaves();
    for _ in 0..200 {
        if let Some(asked) = cluster.node.swaps.pop() {
            cluster.answered(asked, Swapped::Refused(TOO_LONG.into()));
        }
        cluster.node.pass_ms(50);
    }
    assert!(cluster.node.exited && cluster.has());
}

/// node-1 owns a Service whose address its kernel refuses.
fn refused_by_the_kernel(nodes: &[&str]) -> Cluster {
    let web = seated("web", "10.0.0.5", "node-1", 4);
    let mut cluster = Cluster::new(nodes, &[]);
    cluster.node.kernel.refuse = true;
    cluster.node.upsert(web);
    cluster.quiet(30_000, &[], nodes);
    assert!(!cluster.has());
    cluster
}

#[test]
fn an_owner_whose_kernel_refuses_the_address_hands_it_over_and_says_so() {
    let cluster = refused_by_the_kernel(&["node-1", "node-2"]);
    let to: BTreeSet<&str> = cluster.node.swaps.iter().map(|(_, swap)| swap.owner_record.host.as_str()).collect();
    assert_eq!(to, ["node-2"].into());
    let said = |part: &str| cluster.node.told.iter().any(|(_, tell)| tell.text.contains(part));
    assert!(said("node node-1 cannot set the address"), "{:?}", cluster.node.told);
    let card = cluster.node.cards.last().unwrap();
    assert_eq!(card.unable, ["10.0.0.5".to_owned()].into(), "no other node gives it back");
}

#[test]
fn nodes_that_all_cannot_do_not_throw_an_address_at_one_another() {
    let mut cluster = refused_by_the_kernel(&["node-1"]);
    assert_eq!(cluster.node.swaps, [], "there is nobody else");
    let cannot = Card { unable: ["10.0.0.5".to_owned()].into(), ..card("node-2") };
    cluster.node.feed(Input::Node("node-2".into(), Some(FACTS)));
    for _ in 0..20 {
        cluster.member("node-2", cannot.clone());
        cluster.quiet(5000, &[], &["node-1"]);
    }
    assert_eq!(cluster.node.swaps, []);
    // It stays where it is tried, and is up as soon as it can be.
    cluster.node.kernel.refuse = false;
    cluster.quiet(6000, &[], &["node-1"]);
    assert!(cluster.has());
    assert_eq!(cluster.node.cards.last().unwrap().unable, BTreeSet::new());
}

#[test]
fn what_is_served_here_again_after_its_hold_is_held_no_longer_than_the_first_time_when_it_is_refused_again() {
    let mut cluster = refused_by_the_kernel(&["node-1"]);
    let unable = |cluster: &Cluster| cluster.node.cards.last().unwrap().unable.clone();
    let minutes = |cluster: &mut Cluster, minutes: u64| {
        for _ in 0..minutes * 12 {
            cluster.renew(&["node-1"]);
            cluster.node.pass(Duration::from_secs(5));
        }
    };
    cluster.node.gone("web");
    minutes(&mut cluster, 11);
    assert_eq!(unable(&cluster), BTreeSet::new());
    cluster.node.kernel.refuse = false;
    cluster.node.upsert(seated("web", "10.0.0.5", "node-1", 4));
    minutes(&mut cluster, 1);
    assert!(cluster.has());
    cluster.node.gone("web");
    cluster.node.kernel.refuse = true;
    cluster.node.upsert(seated("web", "10.0.0.5", "node-1", 4));
    minutes(&mut cluster, 1);
    assert_eq!(unable(&cluster), ["10.0.0.5".to_owned()].into());
    cluster.node.gone("web");
    minutes(&mut cluster, 11);
    assert_eq!(unable(&cluster), BTreeSet::new(), "not doubled");
}
