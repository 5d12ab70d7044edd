//! Many VIPs of one owner are put to the test in turns.

use super::unsent::earned;
use super::*;

fn addresses_of(count: u16) -> impl Iterator<Item = IpAddr> {
    (0..count).map(|number| {
        let [high, low] = number.to_be_bytes();
        IpAddr::from([10, 1, high, low])
    })
}

/// A LAN in which node 2 has so many VIPs, and dies now.
fn dead_owner(count: u16) -> Lan {
    let watched = |address| Watched { address, mac: mac(2), term: Term(1) };
    let mut lan = Lan::new(&[Target { vips: addresses_of(count).map(watched).collect(), ..target(2, 0, &[]) }]);
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    lan
}

fn until_the_verdict(lan: &mut Lan) {
    while lan.verdicts.is_empty() {
        lan.run(ms(1));
    }
}

/// How many broadcasts have left at each moment.
fn broadcasts(lan: &Lan) -> BTreeMap<Duration, usize> {
    let mut sent = BTreeMap::new();
    for (at, _) in lan.asks.iter().filter(|(_, ask)| ask.to == Mac::BROADCAST) {
        *sent.entry(*at).or_default() += 1;
    }
    sent
}

#[test]
fn up_to_32_addresses_are_asked_about_at_once_and_more_in_turns_that_begin_10_ms_apart() {
    for (count, expected) in
        [(1, &[1, 1, 1][..]), (32, &[32, 32, 32]), (33, &[32, 33, 33, 1]), (100, &[32, 64, 96, 68, 36, 4])]
    {
        let mut lan = dead_owner(count);
        until_the_verdict(&mut lan);
        let sent = broadcasts(&lan);
        let begun = *sent.keys().next().expect("nobody is silent without a burst");
        let expected: BTreeMap<Duration, usize> =
            (0..).zip(expected).map(|(step, number)| (begun + ms(10) * step, *number)).collect();
        assert_eq!(sent, expected, "{count}");
        let last = *sent.keys().last().expect("there is a first one");
        assert_eq!(lan.verdicts[0].0, last + ms(10), "{count}: an answer to the last question has its full time");
        let all: Vec<IpAddr> = addresses_of(count).collect();
        assert_eq!(lan.silent(), [(name(2), all, true)], "{count}");
    }
}

/// Each broadcast is received by every host. Many at once are cut off by switches with storm control, and refused by
/// the queues of our own kernel.
#[test]
fn a_thousand_addresses_cost_189_broadcasts_in_10_ms_at_most_and_the_verdict_0_15_s() {
    const COUNT: u16 = 1000;
    let mut lan = dead_owner(COUNT);
    let beside = lan.beside;
    until_the_verdict(&mut lan);
    let sent = broadcasts(&lan);
    assert!(sent.values().all(|number| *number <= 189), "{sent:?}");
    let moments: Vec<Duration> = sent.keys().copied().collect();
    assert!(moments.windows(2).all(|pair| pair[1].saturating_sub(pair[0]) >= ms(10)), "{sent:?}");
    assert_eq!(lan.verdicts[0].0.saturating_sub(moments[0]), ms(30 + 150));
    let OwnerVerdict::Silent { longer, .. } = &lan.verdicts[0].1 else { panic!("it is silent") };
    assert_eq!(*longer, ms(150), "what is told of the gap has it in it");
    for address in addresses_of(COUNT) {
        let asked = lan.asks.iter().filter(|(_, ask)| ask.to == Mac::BROADCAST && ask.address == address);
        assert_eq!(asked.count(), 3, "{address}");
    }
    assert_eq!(lan.silent(), [(name(2), addresses_of(COUNT).collect(), true)]);
    assert_eq!(lan.beside - beside, 3, "the gateway is asked beside the first turn alone");
}

/// It answers for the turns that are left. That it has missed the first ones says nothing about their addresses.
#[test]
fn an_owner_that_comes_back_in_the_middle_of_a_burst_keeps_all_its_addresses() {
    const COUNT: u16 = 1000;
    for away in [5, 25, 45, 105, 165] {
        let mut lan = dead_owner(COUNT);
        while lan.broadcasts() == 0 {
            lan.run(ms(1));
        }
        lan.run(ms(away));
        lan.holders.extend(addresses_of(COUNT).map(|address| (address, [mac(2)].into())));
        lan.run(Duration::from_secs(1));
        assert_eq!(lan.verdicts, [], "{away} ms after the burst began");
        assert!(lan.detector.counters().refuted > 0, "{away}");
    }
}

#[test]
fn a_full_queue_holds_the_next_turn_back_and_is_not_made_up_for_at_once() {
    const COUNT: u16 = 1000;
    let mut lan = dead_owner(COUNT);
    while lan.broadcasts() == 0 {
        lan.run(ms(1));
    }
    lan.queue = 70;
    lan.run(ms(35));
    lan.queue = usize::MAX;
    until_the_verdict(&mut lan);
    let sent = broadcasts(&lan);
    assert!(sent.values().all(|number| *number <= 189), "{sent:?}");
    assert!(lan.detector.counters().unsent > 0);
    assert_eq!(earned(&lan, ms(30 + 150 + 30)).len(), usize::from(COUNT));
}
