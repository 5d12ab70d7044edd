//! A fabric that answers broadcasts in the name of its hosts, also of dead ones.

use super::*;

/// What was said of addresses that somebody else answers for: when, and who.
fn taken(lan: &Lan) -> Vec<(Duration, Vec<(IpAddr, Mac)>)> {
    let said = lan.verdicts.iter().filter_map(|(at, verdict)| match verdict {
        OwnerVerdict::Silent { vips, taken, .. } => {
            assert_eq!(vips, &[], "nobody answers for it, it is said");
            Some((*at, taken.iter().map(|(vip, by)| (vip.address, *by)).collect()))
        }
        OwnerVerdict::Answers { .. } => None,
    });
    said.collect()
}

fn with_a_fabric(vips: &[u8]) -> Lan {
    let mut lan = Lan::new(&[target(2, 0, vips)]);
    lan.fabric = vips.iter().map(|last| (vip(*last), mac(2))).collect();
    lan.run(Duration::from_secs(1));
    lan
}

#[test]
fn a_fabric_that_answers_for_a_dead_owner_is_found_out_within_seconds_and_asked_seldom() {
    let hundred: Vec<u8> = (5..105).collect();
    for vips in [&[5][..], &[5, 6, 7, 8], &hundred] {
        let mut lan = with_a_fabric(vips);
        let begun = lan.kill(2);
        lan.run(Duration::from_secs(20));
        let first = lan.start + taken(&lan)[0].0 - begun;
        assert!(first < Duration::from_secs(8), "{vips:?}: {first:?}");
        let all: BTreeSet<IpAddr> = taken(&lan).iter().flat_map(|(_, found)| found).map(|(vip, _)| *vip).collect();
        assert_eq!(all, vips.iter().map(|last| vip(*last)).collect(), "each is named");
        assert!(taken(&lan).iter().flat_map(|(_, found)| found).all(|(_, by)| *by == mac(2)));
        // Three to each address in each burst, of which there are one each two seconds in the end.
        assert!(lan.broadcasts() <= vips.len() * 3 * 20, "{vips:?}: {}", lan.broadcasts());
    }
}

#[test]
fn an_owner_that_never_answered_a_unicast_question_is_not_said_to_have_been_heard() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    lan.kill(2);
    lan.fabric.insert(vip(5), mac(2));
    lan.run(Duration::from_secs(20));
    let heard: BTreeSet<bool> = lan
        .verdicts
        .iter()
        .filter_map(|(_, verdict)| match verdict {
            OwnerVerdict::Silent { heard, .. } => Some(!heard.is_empty()),
            OwnerVerdict::Answers { .. } => None,
        })
        .collect();
    assert_eq!(heard, [false].into());
}

#[test]
fn an_owner_that_answers_again_itself_ends_the_suspicion() {
    let mut lan = with_a_fabric(&[5]);
    lan.kill(2);
    lan.run(Duration::from_secs(10));
    assert!(!taken(&lan).is_empty());
    lan.holders.insert(vip(5), [mac(2)].into());
    lan.run(Duration::from_secs(3));
    let said = lan.verdicts.last().map(|(_, verdict)| verdict);
    assert_eq!(said, Some(&OwnerVerdict::Answers { owner: name(2), vip: vip(5) }));
    let before = lan.verdicts.len();
    lan.run(Duration::from_secs(20));
    assert_eq!(lan.verdicts.len(), before);
}

#[test]
fn an_owner_that_misses_questions_now_and_then_answers_for_itself() {
    let mut lan = with_a_fabric(&[5]);
    for _ in 0..20 {
        lan.kill(2);
        lan.run(ms(400));
        lan.holders.insert(vip(5), [mac(2)].into());
        lan.run(ms(400));
    }
    assert_eq!(taken(&lan), []);
}

#[test]
fn the_loss_of_power_after_a_hiccup_is_found_as_soon_as_without_a_fabric() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    lan.run(Duration::from_secs(1));
    lan.fabric.insert(vip(5), mac(2));
    lan.kill(2);
    lan.run(ms(250));
    lan.holders.insert(vip(5), [mac(2)].into());
    lan.run(Duration::from_secs(1));
    lan.fabric.clear();
    let begun = lan.kill(2);
    lan.run(ms(300));
    assert_eq!(lan.silent(), [(name(2), vec![vip(5)], true)]);
    let found = lan.start + lan.verdicts[0].0 - begun;
    assert!(found < ms(260), "{found:?}");
}
