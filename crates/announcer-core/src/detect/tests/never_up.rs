//! A VIP that never came up at its owner, which answers for another one.

use super::*;

/// Node 2 has the first one of two. A stranger has the second one, or no host.
fn lan(stranger: bool) -> Lan {
    let mut lan = Lan::new(&[target(2, 0, &[5, 6])]);
    lan.holders.insert(vip(6), stranger.then_some(mac(4)).into_iter().collect());
    lan
}

#[test]
fn it_is_put_to_the_test_ever_less_often_and_never_given_up() {
    for stranger in [false, true] {
        let mut lan = lan(stranger);
        lan.run(Duration::from_hours(1));
        let hour = lan.detector.counters().bursts;
        assert!((18..=26).contains(&hour), "a stranger has it: {stranger}: {hour}");
        lan.run(Duration::from_hours(1));
        let next = lan.detector.counters().bursts - hour;
        assert!((13..=15).contains(&next), "a stranger has it: {stranger}: {next}");
    }
}

#[test]
fn it_is_put_to_the_test_at_once_with_the_others_when_its_owner_dies() {
    let mut lan = lan(true);
    lan.run(Duration::from_mins(20));
    lan.verdicts.clear();
    // It rests for minutes, and the stranger goes.
    lan.holders.remove(&vip(6));
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    lan.run(ms(260));
    assert_eq!(lan.silent(), [(name(2), vec![vip(5), vip(6)], true)]);
}

#[test]
fn that_it_has_come_up_is_noticed_at_once() {
    let mut lan = lan(false);
    lan.run(Duration::from_mins(20));
    lan.verdicts.clear();
    lan.holders.insert(vip(6), [mac(2)].into());
    lan.run(ms(200));
    let said: Vec<&OwnerVerdict> = lan.verdicts.iter().map(|(_, verdict)| verdict).collect();
    assert_eq!(said, [&OwnerVerdict::Answers { owner: name(2), vip: vip(6) }]);
}

/// The queue refuses the first questions of the burst about it, so that the burst lasts longer than a period. The owner
/// dies shortly before the burst, or in it.
#[test]
fn it_is_put_to_the_test_often_if_its_owner_dies_while_it_is_being_tested() {
    let mut well = lan(true);
    well.run(Duration::from_mins(1));
    let tests = well.detector.counters().bursts;
    while well.detector.counters().bursts == tests {
        well.run(ms(1));
    }
    let next_test = well.now - well.start;
    for early in 0..20 {
        let mut lan = lan(true);
        lan.run(next_test.saturating_sub(ms(2 + 10 * early)));
        lan.kill(2);
        lan.refused.insert(Mac::BROADCAST);
        while lan.detector.counters().bursts == tests {
            lan.run(ms(1));
        }
        lan.run(ms(25));
        lan.refused.clear();
        lan.run(Duration::from_secs(5));
        lan.verdicts.clear();
        lan.holders.remove(&vip(6));
        lan.run(ms(2500));
        let silent = lan.silent();
        assert!(silent.iter().any(|(_, vips, _)| vips.contains(&vip(6))), "{early}: {silent:?}");
    }
}
