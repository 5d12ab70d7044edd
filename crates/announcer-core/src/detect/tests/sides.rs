//! On which side of the LAN the detector says that we are, how certain that is, and what it says of single addresses.

use super::*;

/// The last verdict that somebody is silent: on the clients' side, for certain, hosts beside members.
fn last(lan: &Lan) -> Option<(bool, bool, u8)> {
    lan.verdicts.iter().rev().find_map(|(_, verdict)| match verdict {
        OwnerVerdict::Silent { side, certain, outside, .. } => Some((*side == Side::Greater, *certain, *outside)),
        OwnerVerdict::Answers { .. } => None,
    })
}

/// A LAN with these hosts that are no members beside the gateway, all heard before.
fn with_strangers(hosts: &[u8]) -> Lan {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    let host =
        |last: &u8| Landmark { link: LINK, address: vip(*last), mac: Some(mac(*last)), who: LandmarkKind::ApiServer };
    let named: Vec<Landmark> = hosts.iter().map(host).chain([gateway()]).collect();
    for host in hosts {
        lan.hosts.insert(vip(*host));
        lan.holders.insert(vip(*host), [mac(*host)].into());
    }
    lan.detector.set_neighbourhood(lan.now, &around(&named));
    lan.run(Duration::from_secs(1));
    lan
}

#[test]
fn who_has_lost_nobody_but_the_owner_is_certain() {
    for (name, hosts, lost, gateway_too, expected) in [
        ("all are there", &[100, 101][..], &[][..], false, (true, true, 3)),
        ("it has just started and knows the gateway alone", &[], &[], false, (true, true, 1)),
        ("one host is missing", &[100, 101], &[100], false, (true, false, 2)),
        ("the gateway is missing", &[100, 101], &[], true, (false, false, 2)),
    ] {
        let mut lan = with_strangers(hosts);
        lan.kill(2);
        for host in lost {
            lan.holders.remove(&vip(*host));
        }
        if gateway_too {
            lan.holders.remove(&GATEWAY);
        }
        lan.run(ms(240));
        assert_eq!(last(&lan), Some(expected), "{name}");
    }
}

#[test]
fn who_hears_the_owner_is_certain_whatever_else_is_missing() {
    let mut lan = Lan::new(&[target(2, 0, &[5, 6])]);
    lan.run(Duration::from_secs(1));
    lan.holders.remove(&vip(6));
    lan.holders.remove(&GATEWAY);
    lan.run(Duration::from_secs(2));
    assert_eq!(last(&lan), Some((true, true, 0)));
}

#[test]
fn a_host_that_went_home_minutes_ago_makes_nobody_uncertain() {
    let mut lan = with_strangers(&[100]);
    lan.holders.remove(&vip(100));
    lan.run(Duration::from_secs(20));
    lan.kill(2);
    lan.run(ms(240));
    assert_eq!(last(&lan), Some((true, true, 1)));
}

/// Of a LAN in which an answer takes 50 ms: longer than the burst.
#[test]
fn hosts_that_answer_slowly_are_counted_a_moment_later() {
    let mut lan = with_strangers(&[100, 101, 102]);
    lan.kill(2);
    for host in [100, 101, 102] {
        lan.holders.remove(&vip(host));
    }
    while last(&lan).is_none() {
        lan.run(ms(1));
    }
    assert_eq!(last(&lan), Some((false, false, 1)));
    let found = lan.now;
    lan.run(ms(20));
    for host in [100, 101, 102] {
        lan.heard(vip(host), mac(host), Heard::Answer);
    }
    while last(&lan) != Some((true, true, 4)) {
        lan.run(ms(1));
        assert!(lan.now < found + ms(150), "{:?}", lan.verdicts);
    }
}

#[test]
fn each_address_that_answers_again_is_reported_though_another_one_is_still_missing() {
    let mut lan = Lan::new(&[target(2, 0, &[5, 6])]);
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    lan.run(ms(240));
    assert_eq!(lan.silent(), [(name(2), vec![vip(5), vip(6)], true)]);
    lan.verdicts.clear();
    lan.holders.insert(vip(5), [mac(2)].into());
    lan.run(ms(200));
    let answers: Vec<&OwnerVerdict> = lan.verdicts.iter().map(|(_, verdict)| verdict).collect();
    assert!(answers.contains(&&OwnerVerdict::Answers { owner: name(2), vip: vip(5) }), "{answers:?}");
    assert!(!answers.contains(&&OwnerVerdict::Answers { owner: name(2), vip: vip(6) }), "{answers:?}");
}

/// Its NIC got another MAC under the same record: what was reported is taken back all the same.
#[test]
fn an_owner_that_answers_from_a_new_nic_is_reported_to_answer() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    lan.run(ms(240));
    lan.verdicts.clear();
    let mut moved = target(2, 0, &[5]);
    (moved.vips[0].mac, moved.nic_macs) = (mac(12), [mac(12)].into());
    lan.detector.watch(lan.now, &[moved]);
    lan.holders.insert(vip(5), [mac(12)].into());
    lan.run(ms(200));
    assert!(
        lan.verdicts.iter().any(|(_, verdict)| matches!(verdict, OwnerVerdict::Answers { .. })),
        "{:?}",
        lan.verdicts
    );
}

#[test]
fn an_owner_with_two_nics_in_the_lan_is_asked_at_the_one_that_answers() {
    let mut two = target(2, 0, &[5]);
    two.nic_macs = [mac(2), mac(12)].into();
    let mut lan = Lan::new(&[two]);
    lan.holders.insert(vip(5), [mac(12)].into());
    lan.run(Duration::from_secs(20));
    assert_eq!(lan.verdicts, [], "nobody else has it");
    assert_eq!(lan.broadcasts(), 1, "one burst, answered at its first question");
    assert_eq!(lan.asks.last().map(|(_, ask)| ask.to), Some(mac(12)));
    lan.holders.remove(&vip(5));
    lan.run(ms(240));
    assert_eq!(lan.silent().len(), 1);
}

#[test]
fn what_the_nic_beneath_a_macvlan_answers_is_no_sign_of_it() {
    let mut leased = target(2, 0, &[5]);
    (leased.vips[0].mac, leased.nic_macs) = (mac(50), [mac(2), mac(12)].into());
    let mut lan = Lan::new(&[leased]);
    lan.run(Duration::from_secs(1));
    lan.holders.insert(vip(5), [mac(2)].into());
    lan.run(ms(240));
    let Some((_, OwnerVerdict::Silent { taken, .. })) = lan.verdicts.first() else { panic!("{:?}", lan.verdicts) };
    assert_eq!(taken.len(), 1);
}

/// On our side of a split is the former owner of a leased address, which has not heard of its successor.
#[test]
fn a_leased_address_that_answers_does_not_show_that_this_node_hears_the_owner() {
    for (name, nics, sees) in [("a macvlan's MAC", [mac(2)], false), ("the MAC of its NIC", [mac(50)], true)] {
        let mut owner = target(2, 0, &[5, 6]);
        (owner.vips[1].mac, owner.nic_macs) = (mac(50), nics.into());
        let mut lan = Lan::new(&[owner]);
        lan.detector.set_neighbourhood(lan.now, &around(&[gateway()]));
        lan.holders.insert(vip(6), [mac(50)].into());
        lan.run(Duration::from_secs(1));
        // The gateway is on the owner's side.
        lan.holders.remove(&vip(5));
        lan.holders.remove(&GATEWAY);
        lan.run(Duration::from_secs(2));
        assert_eq!(last(&lan).map(|(greater, certain, _)| greater && certain), Some(sees), "{name}");
    }
}

/// Another router has taken over the gateway's address, with its own MAC.
#[test]
fn a_gateway_that_moved_to_another_router_is_still_the_gateway() {
    for moved in [ms(0), Duration::from_secs(30)] {
        let mut lan = with_strangers(&[100]);
        lan.holders.insert(GATEWAY, [mac(77)].into());
        lan.run(moved);
        lan.kill(2);
        lan.run(ms(240));
        assert_eq!(last(&lan), Some((true, true, 2)), "{moved:?} ago");
    }
}

/// Its verdicts back off to 16 s while it hears nobody at all.
#[test]
fn who_was_alone_finds_the_silent_owner_at_once_when_the_lan_is_whole_again() {
    let mut lan = with_strangers(&[100, 101]);
    let lan_before = lan.holders.clone();
    lan.holders.clear();
    lan.run(Duration::from_secs(40));
    assert_eq!(last(&lan).map(|(greater, ..)| greater), Some(false));
    lan.verdicts.clear();
    lan.holders = lan_before;
    lan.kill(2);
    let whole = lan.now;
    while last(&lan).is_none_or(|(greater, ..)| !greater) {
        lan.run(ms(1));
        assert!(lan.now < whole + ms(400), "{:?}", lan.verdicts);
    }
}

/// Questions are lost and answers to a few of them come: each host is heard now and then.
#[test]
fn who_hears_its_landmarks_one_by_one_does_not_put_a_silent_owner_to_the_test_all_the_time() {
    let hosts: Vec<u8> = (100..109).collect();
    let mut lan = with_strangers(&hosts);
    lan.kill(2);
    lan.holders.remove(&GATEWAY);
    for host in &hosts {
        lan.holders.remove(&vip(*host));
    }
    lan.run(ms(300));
    let before = lan.detector.counters().bursts;
    for round in 0..100 {
        lan.heard(GATEWAY, GATEWAY_MAC, Heard::Answer);
        let host = hosts[round % hosts.len()];
        lan.heard(vip(host), mac(host), Heard::Answer);
        lan.run(ms(50));
    }
    let bursts = lan.detector.counters().bursts - before;
    assert!((1..=11).contains(&bursts), "{bursts} in 5 s: accepted is one in half a second");
}

/// A LAN with these hosts beside the gateway, which were heard before; whom we hear from then on.
fn with_hosts(hosts: &[u8]) -> Lan {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    let member = |last: &u8| Landmark {
        link: LINK,
        address: vip(*last),
        mac: Some(mac(*last)),
        who: LandmarkKind::Member(name(*last)),
    };
    let named: Vec<Landmark> = hosts.iter().map(member).chain([gateway()]).collect();
    for host in hosts {
        lan.hosts.insert(vip(*host));
        lan.holders.insert(vip(*host), [mac(*host)].into());
    }
    lan.detector.set_neighbourhood(lan.now, &around(&named));
    lan.run(Duration::from_secs(1));
    lan
}

/// decisions.md 24: two of three nodes are cut off together from the owner, the gateway and the clients.
#[test]
fn a_group_that_is_cut_off_with_a_node_of_its_own_does_not_stand_on_the_clients_side() {
    let mut lan = with_hosts(&[103]);
    lan.kill(2);
    lan.holders.remove(&GATEWAY);
    lan.run(Duration::from_secs(10));
    assert!(!lan.silent().is_empty() && lan.silent().iter().all(|(.., greater)| !greater), "{:?}", lan.verdicts);
    // It forgets whom it missed no sooner than the owner answers.
    lan.run(Duration::from_mins(1));
    assert!(lan.silent().iter().all(|(.., greater)| !greater));
}

#[test]
fn a_landmark_that_missed_the_burst_is_asked_again_and_only_delays() {
    let mut lan = with_hosts(&[103]);
    lan.kill(2);
    lan.holders.remove(&GATEWAY);
    while lan.silent().is_empty() {
        lan.run(ms(1));
    }
    lan.verdicts.clear();
    lan.run(ms(120));
    lan.holders.insert(GATEWAY, [GATEWAY_MAC].into());
    let back = lan.now;
    while !lan.silent().iter().any(|(.., greater)| *greater) {
        lan.run(ms(1));
        assert!(lan.now < back + ms(250), "{:?}", lan.verdicts);
    }
}

#[test]
fn the_loss_of_an_owner_and_of_another_node_is_still_found_at_once() {
    let mut lan = with_hosts(&[103]);
    lan.kill(2);
    lan.kill(103);
    lan.run(ms(230));
    assert_eq!(lan.silent(), [(name(2), vec![vip(5)], true)]);
}
