//! Nodes that are watched for their own sake.

use super::*;

/// A LAN in which node 2 owns nothing and is watched at its own address.
fn lan() -> Lan {
    let mut lan = Lan::new(&[]);
    let target = target(2, 0, &[12]);
    for vip in &target.vips {
        lan.holders.insert(vip.address, [vip.mac].into());
    }
    lan.detector.watch_nodes(lan.start, &[target]);
    lan
}

fn silent(finding: &NodeFinding) -> bool {
    matches!(finding, NodeFinding::Silent { .. })
}

#[test]
fn a_node_without_addresses_is_found_silent_as_soon_as_an_owner_and_without_a_broadcast() {
    let mut lan = lan();
    lan.run(Duration::from_secs(1));
    assert!(lan.findings.is_empty());
    let dead = lan.kill(2) - lan.start;
    lan.run(Duration::from_secs(30));
    let (at, found) = lan.findings[0].clone();
    assert_eq!(
        found,
        NodeFinding::Silent { node: name(2), address: vip(12), gateway: true, witnesses: 1 },
        "the gateway was heard meanwhile"
    );
    let after = at.saturating_sub(dead);
    assert!(after <= ms(250), "{after:?}");
    assert!(lan.asks.iter().all(|(_, ask)| ask.to == mac(2)), "by unicast only");
    let late = lan.asks.iter().filter(|(at, _)| *at > dead + Duration::from_secs(1)).count();
    assert!(late < 29 * 2 + 10 * 3, "a dead node is asked seldom: {late} in 29 s");
    assert!(lan.verdicts.is_empty(), "nothing is taken over for that");
    lan.holders.get_mut(&vip(12)).unwrap().insert(mac(2));
    lan.run(Duration::from_secs(1));
    assert_eq!(lan.findings.last().unwrap().1, NodeFinding::Answers { node: name(2) });
}

/// Node 2 owns an address, node 3 is first in line and this node second.
fn second_in_line() -> Lan {
    let second = Target { ahead: Some(name(3)), ..target(2, 1, &[5]) };
    let mut lan = Lan::new(&[second]);
    let first = target(3, 0, &[13]);
    lan.holders.insert(vip(13), [mac(3)].into());
    lan.detector.watch_nodes(lan.start, &[first]);
    lan.run(Duration::from_secs(1));
    lan
}

#[test]
fn the_second_in_line_waits_for_the_first_and_not_for_one_that_was_lost_with_the_owner() {
    let found_silent = |lan: &mut Lan, lost: &[u8]| {
        let dead = lan.now - lan.start;
        for node in lost {
            lan.kill(*node);
        }
        lan.run(Duration::from_secs(1));
        // What nobody takes is reported again.
        assert!(lan.silent().iter().all(|verdict| *verdict == (name(2), vec![vip(5)], true)));
        lan.verdicts[0].0.saturating_sub(dead)
    };
    let alone = found_silent(&mut second_in_line(), &[2]);
    assert!(alone > ms(300), "the first has its turn: {alone:?}");
    let both = found_silent(&mut second_in_line(), &[2, 3]);
    assert!(both <= ms(250), "{both:?}");
}

#[test]
fn a_first_in_line_that_was_never_heard_is_waited_for() {
    let mut lan = second_in_line();
    lan.detector.watch_nodes(lan.now, &[target(4, 0, &[14])]);
    lan.detector.watch(lan.now, &[Target { ahead: Some(name(4)), ..target(2, 1, &[5]) }]);
    lan.run(Duration::from_secs(1));
    let dead = lan.kill(2) - lan.start;
    lan.run(Duration::from_secs(1));
    assert!(lan.verdicts[0].0.saturating_sub(dead) > ms(300), "node 4 may be where this one cannot hear it");
}

#[test]
fn whoever_is_cut_off_himself_says_nothing_of_others() {
    let mut lan = lan();
    lan.run(Duration::from_secs(1));
    lan.deaf = true;
    lan.run(Duration::from_secs(20));
    assert!(!lan.findings.iter().any(|(_, finding)| silent(finding)), "{:?}", lan.findings);
}

#[test]
fn a_node_that_was_never_heard_is_never_called_silent() {
    let mut lan = lan();
    lan.kill(2);
    lan.run(Duration::from_mins(1));
    assert!(lan.findings.is_empty(), "{:?}", lan.findings);
}

#[test]
fn a_pause_that_is_shorter_than_three_periods_is_none() {
    let mut lan = lan();
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    lan.run(ms(100));
    lan.holders.get_mut(&vip(12)).unwrap().insert(mac(2));
    lan.run(Duration::from_secs(2));
    assert!(!lan.findings.iter().any(|(_, finding)| silent(finding)), "{:?}", lan.findings);
}

#[test]
fn an_owner_that_has_lost_its_address_is_heard_at_its_own_one_and_a_dead_one_is_not() {
    for landmark in [false, true] {
        let mut lan = Lan::new(&[target(2, 0, &[5])]);
        lan.holders.insert(vip(12), [mac(2)].into());
        assert!(lan.detector.at_own_addresses(lan.now).is_empty(), "it was never heard there");
        if landmark {
            let member =
                Landmark { address: vip(12), mac: Some(mac(2)), who: LandmarkKind::Member(name(2)), ..gateway() };
            lan.detector.set_neighbourhood(lan.now, &around(&[gateway(), member]));
        } else {
            lan.detector.watch_nodes(lan.now, &[target(2, 0, &[12])]);
        }
        lan.run(Duration::from_secs(8));
        let said = |lan: &Lan| lan.detector.at_own_addresses(lan.now).get(&name(2)).copied();
        lan.holders.remove(&vip(5));
        lan.run(ms(260));
        assert_eq!((lan.verdicts.len(), said(&lan)), (1, Some(true)), "a landmark: {landmark}");
        lan.run(Duration::from_secs(20));
        assert_eq!(said(&lan), Some(true), "a landmark: {landmark}");
        lan.kill(2);
        lan.run(if landmark { Duration::from_secs(6) } else { ms(260) });
        assert_eq!(said(&lan), Some(false), "a landmark: {landmark}");
    }
}

#[test]
fn an_owner_that_dies_is_not_heard_at_its_own_address_when_it_is_found_silent() {
    for landmark in [false, true] {
        let mut lan = Lan::new(&[target(2, 0, &[5])]);
        lan.holders.insert(vip(12), [mac(2)].into());
        let member = Landmark { address: vip(12), mac: Some(mac(2)), who: LandmarkKind::Member(name(2)), ..gateway() };
        let known = if landmark { vec![gateway(), member] } else { vec![gateway()] };
        lan.detector.set_neighbourhood(lan.now, &around(&known));
        if !landmark {
            lan.detector.watch_nodes(lan.now, &[target(2, 0, &[12])]);
        }
        lan.run(Duration::from_secs(8));
        lan.kill(2);
        while lan.verdicts.is_empty() {
            lan.run(ms(1));
        }
        assert_eq!(lan.detector.at_own_addresses(lan.now).get(&name(2)), Some(&false), "a landmark: {landmark}");
    }
}

/// Two of our interfaces are in one subnet, and a Service comes to the other one.
#[test]
fn what_was_reported_on_one_interface_is_taken_back_when_it_answers_on_another() {
    let mut lan = lan();
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    lan.run(Duration::from_secs(1));
    assert!(silent(&lan.findings[0].1));
    let elsewhere = Target { link: LINK + 1, ..target(2, 0, &[12]) };
    lan.detector.watch_nodes(lan.now, std::slice::from_ref(&elsewhere));
    lan.run(Duration::from_secs(1));
    assert!(lan.findings.iter().all(|(_, finding)| silent(finding)));
    lan.holders.get_mut(&vip(12)).unwrap().insert(mac(2));
    lan.run(Duration::from_secs(1));
    assert_eq!(lan.findings.last().unwrap().1, NodeFinding::Answers { node: name(2) });
}

/// The owner keeps another address on the first interface.
#[test]
fn an_owners_address_that_was_reported_on_one_interface_is_taken_back_on_another() {
    let mut lan = Lan::new(&[target(2, 0, &[5, 6])]);
    lan.run(Duration::from_secs(1));
    lan.holders.get_mut(&vip(6)).unwrap().clear();
    lan.run(Duration::from_secs(2));
    assert!(lan.silent().iter().all(|(owner, vips, _)| (owner, vips) == (&name(2), &vec![vip(6)])));
    let elsewhere = Target { link: LINK + 1, ..target(2, 0, &[6]) };
    lan.detector.watch(lan.now, &[target(2, 0, &[5]), elsewhere]);
    lan.holders.get_mut(&vip(6)).unwrap().insert(mac(2));
    lan.run(Duration::from_secs(1));
    let last = &lan.verdicts.last().unwrap().1;
    assert_eq!(*last, OwnerVerdict::Answers { owner: name(2), vip: vip(6) });
}

/// The path to the other interface may come later than our word of it.
#[test]
fn a_verdict_on_one_interface_takes_nothing_on_another_before_its_time() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    lan.run(Duration::from_secs(1));
    let before = lan.verdicts.len();
    assert!(before > 0);
    lan.detector.watch(lan.now, &[Target { link: LINK + 1, ..target(2, 0, &[5]) }]);
    lan.run(ms(4900));
    assert_eq!(lan.verdicts.len(), before, "R5");
    lan.run(Duration::from_secs(1));
    assert!(lan.verdicts.len() > before);
}
