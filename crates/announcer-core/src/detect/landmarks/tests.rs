use std::net::Ipv4Addr;

use l2_types::arp::Arp;

use super::*;

fn mac(last: u8) -> Mac {
    Mac::new([2, 0, 0, 0, 0, last])
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn named(last: u8, who: LandmarkKind) -> Landmark {
    Landmark { link: 3, address: address(last), mac: Some(mac(last)), who }
}

fn member(last: u8) -> Landmark {
    named(last, LandmarkKind::Member(format!("node-{last}")))
}

/// The cluster knows of these landmarks on interface 3, and that these addresses make no host.
fn around(named: &[Landmark], excluded: &[IpAddr]) -> Neighbourhood {
    let excluded = excluded.iter().copied().collect();
    Neighbourhood { named: named.to_vec(), links: BTreeSet::from([3]), excluded, ..Neighbourhood::default() }
}

fn frame(last: u8, to_us: bool) -> Frame {
    Frame { link: 3, address: address(last), mac: mac(last), what: Heard::Answer, to_us, payload: None }
}

fn macs(all: &[u8]) -> BTreeSet<Mac> {
    all.iter().map(|last| mac(*last)).collect()
}

/// The gateway is 254; members are 2 and up, node-1 is the owner; hosts are 100 and up.
#[test]
fn more_than_half_of_those_heard_before_and_the_gateway_are_the_clients_side() {
    for (name, gateway, before, found, side) in [
        ("all are there", true, &[254, 2, 3, 100][..], &[254, 2, 3, 100][..], Side::Greater),
        ("one has gone home", true, &[254, 2, 3, 100], &[254, 2, 3], Side::Greater),
        ("two nodes with the gateway behind the owner", true, &[254, 2, 100], &[2], Side::Lesser),
        ("most of them, but no gateway", true, &[254, 2, 3, 100], &[2, 3, 100], Side::Lesser),
        ("half of them with the gateway: a successor died too", true, &[254, 2], &[254], Side::Greater),
        ("the gateway and few others", true, &[254, 2, 100, 101], &[254], Side::Lesser),
        ("no gateway, half", false, &[2, 100], &[2], Side::Lesser),
        ("no gateway, most", false, &[2, 100, 101], &[2, 101], Side::Greater),
        ("no gateway, two nodes of three", false, &[2], &[2], Side::Greater),
        ("all hosts were VMs beside the owner", true, &[254, 2, 100, 101, 102, 103], &[254, 2], Side::Greater),
        ("the same, and a member died too", true, &[254, 2, 3, 100, 101, 102], &[254, 2], Side::Greater),
        ("as many members as are left are lost, too", true, &[254, 2, 3, 4, 100, 101], &[254, 2], Side::Lesser),
        ("the gateway may be a VM beside this node", true, &[254, 100, 101], &[254], Side::Lesser),
        ("members without a gateway", false, &[2, 3, 100, 101, 102], &[2, 3], Side::Lesser),
        ("hosts make up for members as ever", true, &[254, 2, 3, 4, 100, 101], &[254, 2, 100, 101], Side::Greater),
        ("nobody was heard before", false, &[], &[2], Side::Greater),
        ("nobody answers", true, &[254, 2], &[], Side::Alone),
        ("there never was anybody", false, &[], &[], Side::Alone),
    ] {
        let gateway = gateway.then_some((address(254), mac(254)));
        let hosts = macs(&before.iter().copied().filter(|last| (100..200).contains(last)).collect::<Vec<_>>());
        let before = Before { gateway, all: macs(before), hosts, lately: BTreeSet::new() };
        assert_eq!(before.side(&macs(found)), side, "{name}");
    }
}

#[test]
fn landmarks_are_asked_now_and_then_and_those_that_never_answer_seldom() {
    let (mut landmarks, start) = (Landmarks::default(), Instant::now());
    let gateway = Landmark { mac: None, ..named(254, LandmarkKind::Gateway) };
    landmarks.set_neighbourhood(start, &around(&[member(2), gateway], &[]));
    let mut asked: BTreeMap<IpAddr, Vec<u64>> = BTreeMap::new();
    for second in 0..180 {
        let now = start + Duration::from_secs(second);
        for ask in landmarks.due(now) {
            asked.entry(ask.address).or_default().push(second);
            if ask.address == address(2) {
                landmarks.on_frame(now, &frame(2, true));
            } else {
                assert_eq!(ask.to, Mac::BROADCAST);
            }
        }
    }
    assert_eq!(asked[&address(2)].len(), 36);
    assert_eq!(asked[&address(254)], [1, 6, 11, 16, 76, 136]);
}

/// A single answer may be lost, and an owner that has lost its gateway hands over.
#[test]
fn a_gateway_that_misses_two_questions_is_asked_more_often_for_a_while() {
    let (mut landmarks, start) = (Landmarks::default(), Instant::now());
    landmarks.set_neighbourhood(start, &around(&[named(254, LandmarkKind::Gateway)], &[]));
    landmarks.on_frame(start, &frame(254, true));
    let (mut asked, mut by_broadcast) = (Vec::new(), Vec::new());
    for second in 0..40 {
        for ask in landmarks.due(start + Duration::from_secs(second)) {
            asked.push(second);
            by_broadcast.extend((ask.to == Mac::BROADCAST).then_some(second));
        }
    }
    assert_eq!(asked, [5, 10, 11, 12, 13, 14, 15, 16, 17, 22, 27, 32, 37]);
    assert_eq!(by_broadcast, [10]);
}

#[test]
fn a_gateway_that_members_hear_is_asked_for_anew_by_broadcast_once() {
    for answered in [false, true] {
        let (mut landmarks, start) = (Landmarks::default(), Instant::now());
        let mac = answered.then_some(mac(254));
        let gateway = Landmark { mac, ..named(254, LandmarkKind::Gateway) };
        landmarks.set_neighbourhood(start, &around(&[gateway], &[]));
        if answered {
            landmarks.on_frame(start, &frame(254, true));
        }
        let at = |seconds| start + Duration::from_secs(seconds);
        for second in 0..=20 {
            landmarks.due(at(second));
        }
        for (name, from, asks) in [("news", 18, 1), ("no news", 18, 0), ("it was away again", 19, 1)] {
            landmarks.seek_gateways(at(20), &BTreeMap::from([(3, at(from)), (9, at(from))]));
            let ask = Ask { link: 3, address: address(254), to: Mac::BROADCAST };
            assert_eq!(landmarks.due(at(20) + FIRST), vec![ask; asks], "{name}, answered: {answered}");
        }
    }
}

#[test]
fn a_gateway_that_a_node_of_the_cluster_has_tells_nothing_about_the_lan() {
    for (excluded, known) in [(vec![], true), (vec![address(254)], false)] {
        let (mut landmarks, now) = (Landmarks::default(), Instant::now());
        landmarks.set_neighbourhood(now, &around(&[named(254, LandmarkKind::Gateway)], &excluded));
        assert_eq!(landmarks.gateways(now).contains_key(&3), known, "{excluded:?}");
    }
}

#[test]
fn whoever_asks_for_somebody_is_a_host_and_stays_one_for_as_long_as_it_answers() {
    let (mut landmarks, start) = (Landmarks::default(), Instant::now());
    landmarks.set_neighbourhood(start, &around(&[member(2)], &[address(50)]));
    let mut spoken: Vec<Frame> = (100..120).map(|last| frame(last, false)).collect();
    let vip = Frame { address: address(50), ..frame(200, false) };
    let other_address_of_a_member = Frame { mac: mac(2), ..frame(201, false) };
    let elsewhere = Frame { link: 9, ..frame(202, false) };
    spoken.splice(0..0, [vip, other_address_of_a_member, elsewhere, frame(2, false)]);
    for frame in &spoken {
        landmarks.on_frame(start, frame);
    }
    let hosts =
        |landmarks: &Landmarks| landmarks.known.values().filter(|entry| entry.who == LandmarkKind::Host).count();
    assert_eq!(hosts(&landmarks), HOSTS);
    for second in 0..30 {
        let now = start + Duration::from_secs(second);
        for ask in landmarks.due(now) {
            if ask.address == address(101) {
                landmarks.on_frame(now, &frame(101, true));
            }
        }
    }
    assert_eq!(hosts(&landmarks), 1, "the others have never answered");
    let now = start + Duration::from_secs(30);
    assert_eq!(landmarks.hears(now), BTreeMap::from([(3, 1)]));
    assert!(landmarks.is_outside(3, mac(101)) && !landmarks.is_outside(3, mac(2)));
}

#[test]
fn a_client_that_asks_for_a_vip_in_the_ordinary_way_is_a_host() {
    let (vip, client) = (Ipv4Addr::new(10, 0, 0, 50), Ipv4Addr::new(10, 0, 0, 77));
    let asked = Arp::who_has(mac(77), client, vip).frame(Mac::BROADCAST);
    let announced = Arp::announcement_request(mac(2), vip).frame(Mac::BROADCAST);
    let (mut landmarks, now) = (Landmarks::default(), Instant::now());
    landmarks.set_neighbourhood(now, &around(&[member(2)], &[vip.into()]));
    for frame in [asked, announced] {
        landmarks.on_frame(now, &crate::frames::read(3, &frame).unwrap());
    }
    let hosts: Vec<IpAddr> = landmarks
        .known
        .iter()
        .filter(|(_, entry)| entry.who == LandmarkKind::Host)
        .map(|((_, address), _)| *address)
        .collect();
    assert_eq!(hosts, [IpAddr::from(client)], "and an owner that announces its VIP is none");
    assert!(landmarks.hears(now).is_empty(), "it has answered nothing yet");
}

#[test]
fn the_owner_and_what_stands_with_it_is_left_out_of_what_was_heard_before() {
    let (mut landmarks, now) = (Landmarks::default(), Instant::now());
    let api_on_1 = Landmark { mac: Some(mac(1)), ..named(9, LandmarkKind::ApiServer) };
    let named = [member(1), member(2), member(3), api_on_1, named(254, LandmarkKind::Gateway)];
    landmarks.set_neighbourhood(now, &around(&named, &[]));
    for heard in [1, 2, 3, 254] {
        landmarks.on_frame(now, &frame(heard, true));
    }
    landmarks.on_frame(now, &Frame { mac: mac(1), ..frame(9, true) });
    let before = |apart: &[&str], out: &[u8]| {
        let apart = apart.iter().map(|node| (*node).to_owned()).collect();
        landmarks.before(now, 3, &apart, &macs(out)).all
    };
    assert_eq!(before(&["node-1"], &[]), macs(&[2, 3, 254]));
    assert_eq!(before(&["node-1", "node-2"], &[]), macs(&[3, 254]), "both on one hypervisor");
    assert_eq!(before(&["node-1"], &[254]), macs(&[2, 3]));
    let later = landmarks.before(now + FORGOTTEN, 3, &BTreeSet::new(), &BTreeSet::new());
    assert_eq!(later, Before::default(), "it was too long ago");
}

/// Of the members at most eight are landmarks. All of them ask for somebody and answer, as clients do.
#[test]
fn members_are_no_other_hosts_however_many_there_are() {
    for count in [2, 8, 9, 40] {
        let (mut landmarks, now) = (Landmarks::default(), Instant::now());
        let members: Vec<u8> = (2..2 + count).collect();
        let named: Vec<Landmark> = members.iter().take(8).map(|last| member(*last)).collect();
        // The second address of one of them has a MAC that no card names.
        let second = Frame { mac: mac(200), ..frame(201, false) };
        let mut neighbourhood = around(&named, &[second.address]);
        // One process was heard before its card was read.
        let early = frame(members[usize::from(count) - 1], false);
        landmarks.set_neighbourhood(now, &neighbourhood);
        landmarks.on_frame(now, &early);
        neighbourhood.members = macs(&members);
        landmarks.set_neighbourhood(now, &neighbourhood);
        let asked = members.iter().map(|last| frame(*last, false)).chain([second, frame(100, false)]);
        for asked in asked {
            landmarks.on_frame(now, &asked);
            landmarks.on_frame(now, &Frame { to_us: true, ..asked });
        }
        assert_eq!(landmarks.hears(now), BTreeMap::from([(3, 1)]), "beside {count} members there is one client");
        let outside: Vec<u8> = (2..=200).filter(|last| landmarks.is_outside(3, mac(*last))).collect();
        assert_eq!(outside, [100], "{count} members");
    }
}

/// Its announcer was removed, so no Lease tells when its machine fails.
#[test]
fn a_former_member_counts_while_it_answers_and_is_no_other_host() {
    let (mut landmarks, start) = (Landmarks::default(), Instant::now());
    let former = named(2, LandmarkKind::FormerMember("node-2".to_owned()));
    landmarks.set_neighbourhood(start, &around(&[former, member(3)], &[address(2), address(3)]));
    let before = |landmarks: &Landmarks, now: Instant, apart: &[&str]| {
        let apart = apart.iter().map(|node| (*node).to_owned()).collect();
        landmarks.before(now, 3, &apart, &BTreeSet::new()).all
    };
    assert_eq!(before(&landmarks, start, &[]), macs(&[]), "nobody has answered yet");
    for last in [2, 3] {
        landmarks.on_frame(start, &frame(last, true));
    }
    assert_eq!(before(&landmarks, start, &[]), macs(&[2, 3]));
    assert_eq!(before(&landmarks, start, &["node-2"]), macs(&[3]), "it stands on the owner's hypervisor");
    assert!(landmarks.hears(start).is_empty() && !landmarks.is_outside(3, mac(2)));
    let mut now = start;
    for _ in 0..=MISSES {
        now += EVERY;
        landmarks.due(now);
    }
    assert_eq!(before(&landmarks, now, &[]), macs(&[3]), "a silent member counts as lost until its Lease has expired");
    landmarks.on_frame(now, &frame(2, true));
    assert_eq!(before(&landmarks, now, &[]), macs(&[2, 3]), "it is back");
}

/// Our kernel has asked for members by broadcast, and a router with proxy ARP answers in their place.
#[test]
fn a_member_is_heard_at_its_own_macs_alone() {
    for (name, answers_from, heard) in [
        ("its own one", 2, true),
        ("another NIC of it, which is on its card", 12, true),
        ("a router", 254, false),
        ("a host that is not known", 77, false),
    ] {
        for who in [LandmarkKind::Member("node-2".to_owned()), LandmarkKind::FormerMember("node-2".to_owned())] {
            let (mut landmarks, now) = (Landmarks::default(), Instant::now());
            let mut neighbourhood = around(&[named(2, who), named(254, LandmarkKind::Gateway)], &[]);
            neighbourhood.members = macs(&[2, 12]);
            landmarks.set_neighbourhood(now, &neighbourhood);
            landmarks.on_frame(now, &Frame { mac: mac(answers_from), ..frame(2, true) });
            assert_eq!(landmarks.last_answer(3, &macs(&[2])), heard.then_some(now), "{name}");
            let before = landmarks.before(now, 3, &BTreeSet::new(), &BTreeSet::new()).all;
            assert_eq!(before, if heard { macs(&[2]) } else { macs(&[]) }, "{name}");
        }
    }
    // The gateway's address may move from one router to another.
    let (mut landmarks, now) = (Landmarks::default(), Instant::now());
    landmarks.set_neighbourhood(now, &around(&[named(254, LandmarkKind::Gateway)], &[]));
    landmarks.on_frame(now, &Frame { mac: mac(253), ..frame(254, true) });
    assert_eq!(landmarks.last_answer(3, &macs(&[253])), Some(now));
}
