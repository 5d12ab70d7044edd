//! Every replay of an upgrade, step by step and in between.

use cloud_provider::view::{NodeAddress, NodeAddressKind, NodeView, Uid};
use harvester_sim::guest::machine::Machine;
use harvester_sim::guest::render;
use harvester_sim::replay::{Placement, Replay, Snapshot};
use std::sync::Arc;

use super::super::facts::{PlanView, machines, newest};
use super::super::node_history::OFF_FOR_LONG;
use super::super::shown::Expect;
use super::super::status::{data, news, restore};
use super::super::window::{STALE, WATCHED};
use std::collections::BTreeSet;

use super::*;
use crate::instances::view::{VmView, VmiView};

fn placement() -> Placement {
    Placement { namespace: "guests".into(), cluster: "demo".into(), network: "guests/mgmt".into() }
}

fn snapshots(file: &str) -> Vec<Snapshot> {
    let path = format!("{}/../harvester-sim/replays/{file}.yaml", env!("CARGO_MANIFEST_DIR"));
    let replay = Replay::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    replay.snapshots(&placement()).unwrap()
}

fn node(machine: &Machine) -> Arc<NodeView> {
    let mut node = crate::load_balancers::build::node(&machine.name, &[]);
    node.uid = Uid(format!("node-{}", machine.name));
    node.provider_id = Some(format!("harvester://uid-{}", machine.name));
    node.labels.insert(harvester_api::keys::cloudprovider::HOST, "host-1");
    let address = machine.nics[0].addresses[0].clone();
    node.addresses = vec![NodeAddress { kind: NodeAddressKind::InternalIp, address }];
    Arc::new(node)
}

/// The facts of a snapshot, `silent` since so many seconds.
fn facts(snapshot: &Snapshot, silent: Option<i64>) -> UpgradeFacts {
    let nodes: Vec<_> = snapshot.machines.iter().map(node).collect();
    let vm = |machine: &Machine| {
        let mut object = render::vm(machine);
        object["status"] = render::vm_status(machine);
        object["metadata"]["uid"] = format!("uid-{}", machine.name).into();
        Arc::new(VmView::from(&serde_json::from_value(object).unwrap()))
    };
    let vmi = |machine: &Machine| {
        let object = render::vmi(machine, &format!("uid-{}", machine.name))?;
        Some(Arc::new(VmiView::from(&serde_json::from_value(object).unwrap())))
    };
    let vms: Vec<_> = snapshot.machines.iter().map(vm).collect();
    let vmis: Vec<_> = snapshot.machines.iter().filter_map(vmi).collect();
    let plan = snapshot.plan.clone().map(|plan| PlanView::from(&serde_json::from_value(plan).unwrap()));
    let upgrade =
        snapshot.upgrade.clone().and_then(|plan| PlanView::of_upgrade(&serde_json::from_value(plan).unwrap()));
    let known = plan.into_iter().chain(upgrade).filter(|_| snapshot.rights).map(Arc::new);
    UpgradeFacts {
        running: WATCHED,
        plan: newest(known),
        machines: machines(&nodes, &vms, &vmis),
        silent_seconds: silent,
        webhooks_fail: false,
    }
}

/// What a replay has cost and told.
#[derive(Debug, Default)]
struct ReplayCost {
    events: Vec<UpgradeEvent>,
    resyncs: usize,
    /// Changes of what is shown of each Node.
    shown: BTreeMap<String, usize>,
    /// Changes of the ConfigMap.
    written: usize,
}

/// Plays a file with a look every ten seconds; after each step everything is as the file says. With `restarts` each
/// step is followed by a new process.
fn play(file: &str, restarts: bool) -> ReplayCost {
    let snapshots = snapshots(file);
    let start = 1_767_225_600;
    let mut upgrade = HostUpgrade::default();
    let mut told = ReplayCost::default();
    let mut shown: BTreeMap<String, (Reason, String, String)> = BTreeMap::new();
    let mut written = None;
    let mut away_since = None::<i64>;
    for (index, snapshot) in snapshots.iter().enumerate() {
        #[allow(clippy::cast_possible_truncation)]
        let at = |minute: f64| start + (minute * 60.0) as i64;
        let begin = at(snapshot.minute);
        away_since = if snapshot.api { None } else { away_since.or(Some(begin)) };
        // A host that does not answer tells what it told before.
        let frozen = snapshots[..=index].iter().rev().find(|snapshot| snapshot.api).unwrap_or(snapshot);
        let end = snapshots.get(index + 1).map_or(begin + 10, |next| at(next.minute));
        let mut now = begin;
        while now < end {
            let silent = away_since.map(|since| now - since);
            let step = upgrade.step(now, &facts(frozen, silent));
            told.resyncs += usize::from(step.resync);
            told.events.extend(step.told);
            for (name, status) in &upgrade.nodes {
                let new = (status.reason, status.state.clone(), status.host.clone());
                if shown.get(name) != Some(&new) {
                    *told.shown.entry(name.clone()).or_default() += 1;
                    shown.insert(name.clone(), new);
                }
            }
            if let Some(new) = news(&upgrade, written.as_ref()) {
                told.written += 1;
                written = Some(new);
            }
            if now == begin {
                check(file, snapshot, &upgrade);
                let suspended = written.as_ref().is_some_and(is_suspended);
                assert_eq!(suspended, upgrade.suspended().is_some(), "ConfigMap of {file} at {}", snapshot.minute);
            }
            if restarts && now == begin {
                let taken_up = written.as_ref().map_or_else(HostUpgrade::default, |data| restore(data, now));
                let same = HostUpgrade { plan: upgrade.plan.clone(), ..taken_up.clone() };
                assert_eq!(news(&same, written.as_ref()), None, "{file} at {}", snapshot.minute);
                upgrade = taken_up;
            }
            now += 10;
        }
    }
    told
}

fn is_suspended(data: &BTreeMap<String, String>) -> bool {
    let status: serde_json::Value = serde_json::from_str(&data["status.json"]).unwrap();
    status["window"]["suspended"] == true
}

fn check(file: &str, snapshot: &Snapshot, upgrade: &HostUpgrade) {
    let Some(expect) = &snapshot.expect else { return };
    let at = format!("{file} at minute {}: {:?} {:?}", snapshot.minute, upgrade.window, upgrade.nodes);
    if let Some(suspended) = expect.suspended {
        assert_eq!(upgrade.suspended().is_some(), suspended, "{at}");
    }
    for (name, reason) in &expect.nodes {
        let found = upgrade.nodes.get(name).map_or("none", |node| node.reason.word());
        assert_eq!(found, reason, "{name} in {at}");
    }
}

const FILES: [(&str, usize); 9] = [
    ("toolkit-three-hosts", 1),
    ("v1-three-hosts", 1),
    ("single-host", 1),
    ("paused", 1),
    ("failed", 1),
    ("without-rights", 1),
    ("two-machines-off", 1),
    ("migrations", 0),
    ("host-away", 0),
];

#[test]
fn at_each_step_of_each_replay_conditions_and_suspension_are_right_and_writes_are_few() {
    for (file, windows) in FILES {
        let told = play(file, false);
        let spent = told.events.iter().filter(|tell| tell.reason == "HostUpgradeStale").count();
        let silent = usize::from(file == "host-away");
        let expected = windows + spent + silent;
        assert_eq!(told.resyncs, expected, "{file}: one look at everything when nothing is suspended any more");
        let to_services = told.events.iter().filter(|tell| tell.about == About::Services).count();
        assert_eq!(to_services, windows, "{file}: once per window");
        let reports = told.events.iter().filter(|tell| tell.reason == "HostUpgradeReport").count();
        assert_eq!(reports, windows, "{file}");
        let mut seen = BTreeSet::new();
        for tell in told.events.iter().filter(|tell| matches!(tell.about, About::Node(_))) {
            assert!(seen.insert((tell.about.clone(), tell.reason)), "{file}: {tell:?} twice");
        }
        assert!(told.shown.values().all(|changes| *changes <= 16), "{file}: {:?}", told.shown);
        assert!(told.written <= 45, "{file}: {}", told.written);
        if windows == 0 {
            // Of a silence: that it began, that the host answers, and that nothing is suspended any more.
            assert_eq!((told.shown.len(), told.written), (0, 3 * silent), "{file}: nothing to show on Nodes");
        }
    }
}

#[test]
fn a_process_that_takes_over_at_any_step_goes_on_as_if_it_had_been_there() {
    for (file, windows) in FILES {
        let told = play(file, true);
        let to_services = told.events.iter().filter(|tell| tell.about == About::Services).count();
        assert_eq!(to_services, windows, "{file}: once per window");
    }
}

#[test]
fn the_report_names_who_was_moved_who_was_off_and_whose_address_changed() {
    let told = play("two-machines-off", false);
    let report = told.events.iter().find(|tell| tell.reason == "HostUpgradeReport").unwrap();
    assert_eq!(
        report.message,
        "UpgradePlan upgrade-v1.9.0 (Succeeded), 20 min: node node1 was off for 14 min; node node2 was off for 14 min, \
         shows 10.20.0.99, before 10.20.0.12"
    );
    let told = play("toolkit-three-hosts", false);
    let report = told.events.iter().find(|tell| tell.reason == "HostUpgradeReport").unwrap();
    assert!(report.message.contains("node node1 moved 2 times") && report.message.contains("96 min"), "{report:?}");
    // No plan is seen: what was seen is said.
    let told = play("without-rights", false);
    let report = told.events.iter().find(|tell| tell.reason == "HostUpgradeReport").unwrap();
    let begins = "Machines of this cluster left Harvester host host-1, as in an upgrade of hosts; it took ";
    assert!(report.message.starts_with(begins) && report.message.contains(" min: node node"), "{report:?}");
}

#[test]
fn what_to_expect_follows_from_the_machine_and_the_host() {
    let expected = |file: &str, name: &str| {
        let mut upgrade = HostUpgrade::default();
        upgrade.step(0, &facts(&snapshots(file)[0], None));
        upgrade.nodes[name].expect
    };
    assert_eq!(expected("toolkit-three-hosts", "node1"), Expect::Migrate);
    assert_eq!(expected("two-machines-off", "node1"), Expect::Shutdown);
    assert_eq!(expected("single-host", "node1"), Expect::Shutdown);
    assert_eq!(expected("paused", "node1"), Expect::Nothing, "its host is done");
}

#[test]
fn one_machine_off_or_moving_is_no_upgrade_unless_webhooks_fail_too() {
    let all = snapshots("two-machines-off");
    let mut snapshot = all[0].clone();
    snapshot.plan = None;
    snapshot.machines[0].powered = false;
    snapshot.machines[0].upgrade.shut_down = true;
    let mut upgrade = HostUpgrade::default();
    let before = Snapshot { plan: None, ..all[0].clone() };
    upgrade.step(0, &facts(&before, None));
    upgrade.step(10, &facts(&snapshot, None));
    assert_eq!(upgrade.suspended(), None);
    let webhooks = UpgradeFacts { webhooks_fail: true, ..facts(&snapshot, None) };
    upgrade.step(20, &webhooks);
    assert!(upgrade.suspended().is_some());
    let mut upgrade = HostUpgrade::default();
    let migrating = {
        let mut snapshot = all[0].clone();
        snapshot.plan = None;
        snapshot.machines[0].migration = Some(harvester_sim::guest::machine::Migration {
            source: "host-1".into(),
            target: "host-2".into(),
            started: "2026-01-01T00:00:00Z".into(),
            ended: None,
            failed: false,
        });
        UpgradeFacts { webhooks_fail: true, ..facts(&snapshot, None) }
    };
    upgrade.step(30, &migrating);
    assert!(upgrade.suspended().is_some());
}

/// The first snapshot of `two-machines-off` without a plan, and two machines of one host off: stopped by somebody, or
/// ended from inside.
fn two_off(power: Power) -> (UpgradeFacts, UpgradeFacts) {
    let all = snapshots("two-machines-off");
    let before = UpgradeFacts { plan: None, ..facts(&Snapshot { plan: None, ..all[0].clone() }, None) };
    let mut off = before.clone();
    for machine in off.machines.iter_mut().take(2) {
        (machine.power, machine.host) = (power, String::new());
    }
    (before, off)
}

#[test]
fn machines_that_their_guests_switched_off_leave_no_host() {
    let (before, off) = two_off(Power::Ended);
    let mut upgrade = HostUpgrade::default();
    upgrade.step(0, &before);
    // They had a host, and somebody has looked at it.
    for machine in &before.machines {
        upgrade.nodes.insert(machine.node.clone(), shown(machine));
    }
    for minute in 0..600 {
        upgrade.step(10 + minute * 60, &off);
        assert_eq!(upgrade.suspended(), None, "minute {minute}");
    }
    let (_, stopped) = two_off(Power::Off);
    let mut upgrade = HostUpgrade { nodes: upgrade.nodes, ..HostUpgrade::default() };
    upgrade.step(0, &before);
    upgrade.step(10, &stopped);
    assert!(upgrade.suspended().is_some(), "the same without an ended instance: the host stops them");
}

fn shown(machine: &MachineFacts) -> NodeStatus {
    NodeStatus {
        uid: machine.node_uid.clone(),
        vm: machine.vm.clone(),
        host: machine.host.clone(),
        state: String::new(),
        reason: Reason::UpToDate,
        since: 0,
        expect: Expect::Nothing,
    }
}

#[test]
fn machines_that_have_been_off_for_half_an_hour_open_no_window_and_a_window_forgets_nothing_of_that() {
    let (before, off) = two_off(Power::Off);
    let nodes = before.machines.iter().map(|machine| (machine.node.clone(), shown(machine))).collect();
    // One has been off for long when the other is stopped.
    let mut upgrade = HostUpgrade { nodes, ..HostUpgrade::default() };
    let one = {
        let mut one = off.clone();
        one.machines[1] = before.machines[1].clone();
        one
    };
    upgrade.step(0, &one);
    // A window of silence opens and closes meanwhile.
    let silent = UpgradeFacts { silent_seconds: Some(40), ..one.clone() };
    upgrade.step(600, &silent);
    assert!(upgrade.suspended().is_some());
    upgrade.step(610, &one);
    upgrade.step(700, &one);
    assert_eq!(upgrade.suspended(), None);
    upgrade.step(OFF_FOR_LONG, &off);
    assert_eq!(upgrade.suspended(), None, "only one of them has just been stopped");
    // Within half an hour both count, and the window stays open for as long as they are off: an upgrade may take longer
    // than that.
    let mut upgrade = HostUpgrade { nodes: upgrade.nodes, ..HostUpgrade::default() };
    upgrade.step(0, &one);
    upgrade.step(600, &off);
    assert!(upgrade.suspended().is_some());
    upgrade.step(OFF_FOR_LONG + 1200, &off);
    assert!(upgrade.suspended().is_some());
}

#[test]
fn everything_is_looked_at_again_when_a_window_is_spent_or_a_silence_ends() {
    let all = snapshots("paused");
    let mut upgrade = HostUpgrade::default();
    assert!(!upgrade.step(0, &facts(&all[0], None)).resync);
    assert!(!upgrade.step(STALE - 1, &facts(&all[0], None)).resync);
    assert!(upgrade.step(STALE, &facts(&all[0], None)).resync, "nothing is suspended any more");
    assert!(!upgrade.step(STALE + 10, &facts(&all[0], None)).resync, "once");
    let (calm, _) = two_off(Power::Off);
    let mut upgrade = HostUpgrade::default();
    upgrade.step(0, &UpgradeFacts { silent_seconds: Some(SILENT), ..calm.clone() });
    assert!(upgrade.suspended().is_some() && !upgrade.step(10, &calm).resync);
    assert!(upgrade.step(SETTLES + 10, &calm).resync);
}

#[test]
fn a_silence_is_written_down_as_no_upgrade_and_its_end_too_and_a_new_process_does_not_doubt_it_meanwhile() {
    let (calm, _) = two_off(Power::Off);
    let mut upgrade = HostUpgrade::default();
    upgrade.step(0, &calm);
    assert_eq!(news(&upgrade, None), None, "there was never anything to tell");
    upgrade.step(100, &UpgradeFacts { silent_seconds: Some(SILENT), ..calm.clone() });
    let written = news(&upgrade, None).unwrap();
    let status: serde_json::Value = serde_json::from_str(&written["status.json"]).unwrap();
    assert_eq!((&status["window"]["suspended"], &status["window"]["upgrade"]), (&true.into(), &false.into()));
    assert!(written["summary"].starts_with("The Harvester API gives no usable answer"), "{written:?}");

    // A new process finds the host silent, and has to wait itself until that is long enough.
    upgrade = restore(&written, 110);
    for second in 0..=60 {
        let silent = UpgradeFacts { silent_seconds: (second > 3).then(|| second - 3), ..UpgradeFacts::default() };
        assert!(!upgrade.step(110 + second, &silent).resync);
        assert!(upgrade.suspended().is_some_and(|window| !window.upgrade), "second {second}");
    }
    assert!(!upgrade.step(169 + SETTLES, &calm).resync);
    assert!(upgrade.step(170 + SETTLES, &calm).resync);
    let over = news(&upgrade, Some(&written)).unwrap();
    assert!(!is_suspended(&over) && over["summary"].starts_with("no upgrade"), "{over:?}");
    assert_eq!(news(&upgrade, Some(&over)), None);
}

#[test]
fn a_plan_that_never_ends_suspends_nothing_after_a_day_whatever_it_does() {
    let all = snapshots("paused");
    let mut upgrade = HostUpgrade::default();
    for hour in 0..48 {
        // Something changes every hour.
        let snapshot = if hour % 2 == 0 { &all[0] } else { &all[4] };
        upgrade.step(hour * 3600, &facts(snapshot, None));
        assert_eq!(upgrade.suspended().is_some(), hour < 24, "hour {hour}");
    }
}

/// The leader's clock was six hours ahead, and NTP corrects it.
#[test]
fn a_clock_that_is_set_back_keeps_no_window_open_and_forgets_no_machine_that_is_off() {
    let (calm, off) = two_off(Power::Off);
    let ahead = 6 * 3600;
    let mut upgrade = HostUpgrade::default();
    upgrade.step(ahead, &UpgradeFacts { silent_seconds: Some(40), ..calm.clone() });
    assert!(upgrade.suspended().is_some());
    upgrade.step(0, &calm);
    assert!(upgrade.suspended().is_some(), "half a minute has to pass");
    assert!(upgrade.step(60, &calm).resync);
    assert_eq!(upgrade.suspended(), None);

    // An upgrade that goes on is stale as long after the correction as after its beginning.
    let all = snapshots("paused");
    let mut upgrade = HostUpgrade::default();
    upgrade.step(ahead, &facts(&all[0], None));
    upgrade.step(0, &facts(&all[0], None));
    assert!(!upgrade.step(STALE - 1, &facts(&all[0], None)).resync);
    assert!(upgrade.step(STALE, &facts(&all[0], None)).resync);
    assert_eq!(upgrade.suspended(), None);

    let mut upgrade = HostUpgrade::default();
    upgrade.step(ahead, &off);
    upgrade.step(0, &off);
    assert!(upgrade.histories.values().all(|history| history.off.is_none_or(|since| since == 0)));
    upgrade.step(600, &off);
    upgrade.step(610, &calm);
    assert!(upgrade.histories.values().any(|history| history.was_off == 610), "{:?}", upgrade.histories);
}

/// The machine of a new leader started with a clock that is ahead; NTP corrects it, within two minutes or later.
#[test]
fn a_clock_that_is_ahead_for_a_while_does_not_end_what_an_upgrade_suspends() {
    let all = snapshots("paused");
    let look = |upgrade: &mut HostUpgrade, now, running| {
        upgrade.step(now, &UpgradeFacts { running, ..facts(&all[0], None) });
        upgrade.suspended().is_some()
    };
    for (what, ahead) in [("stale", STALE), ("too long in all", LONGEST)] {
        for (corrected, suspended) in [(60, true), (600, false)] {
            let mut former = HostUpgrade::default();
            look(&mut former, 0, WATCHED);
            let mut upgrade = restore(&data(&former), 600 + ahead);
            for running in [0, 30, corrected] {
                let now = 600 + ahead + running;
                assert_eq!(look(&mut upgrade, now, running), running < 600, "{what} at {running} s");
            }
            let written = data(&upgrade);
            assert_eq!(is_suspended(&written), suspended, "{what}, corrected after {corrected} s");
            let now = 600 + corrected + 5;
            assert!(look(&mut upgrade, now, corrected + 5), "{what}, corrected after {corrected} s");
            let mut next = restore(&written, now);
            assert!(look(&mut next, now, 0), "{what}, corrected after {corrected} s: the next process");
            assert!(look(&mut upgrade, STALE - 1, STALE), "{what}: it has its time");
            assert!(!look(&mut upgrade, STALE, STALE), "{what}: and no more");
            assert!(!look(&mut upgrade, STALE + 5, STALE), "{what}: it stays so");
        }
    }
}

#[test]
fn a_controller_that_restarts_does_not_make_a_stale_plan_look_fresh() {
    let all = snapshots("paused");
    let mut upgrade = HostUpgrade::default();
    upgrade.step(0, &facts(&all[0], None));
    for hour in 1..6 {
        let now = hour * 3600;
        upgrade = restore(&data(&upgrade), now);
        // The lists come one after the other.
        upgrade.step(now, &UpgradeFacts::default());
        upgrade.step(now + 1, &facts(&all[0], None));
        assert_eq!(upgrade.suspended().is_some(), hour < 4, "hour {hour}");
    }
}

/// The window stayed open for as long as they were off, and the upgrade that came then opened none.
#[test]
fn machines_that_stay_off_do_not_hide_the_next_upgrade() {
    for power in [Power::Off, Power::Starting] {
        let (before, off) = two_off(power);
        let mut upgrade = HostUpgrade::default();
        upgrade.step(0, &before);
        upgrade.step(10, &off);
        assert!(upgrade.suspended().is_some(), "{power:?}");
        let minutes = 3 * 24 * 60;
        for minute in 1..minutes {
            upgrade.step(10 + minute * 60, &off);
        }
        assert_eq!(upgrade.window, None, "{power:?}: it is over");
        let plan = facts(&snapshots("paused")[0], None).plan;
        let planned = UpgradeFacts { plan, ..off };
        let step = upgrade.step(minutes * 60, &planned);
        assert!(upgrade.suspended().is_some(), "{power:?}");
        assert!(step.told.iter().any(|tell| tell.reason == "HostUpgradeStarted"), "{power:?}");
        // The upgrade did not shut them down, nor does it start them: they hear what it does to their host.
        upgrade = restore(&data(&upgrade), minutes * 60 + 5);
        let again = upgrade.step(minutes * 60 + 10, &planned);
        let wrong = [Reason::ShutDown, Reason::Restoring];
        for told in step.told.iter().chain(&again.told) {
            assert!(wrong.iter().all(|wrong| told.reason != wrong.word()), "{power:?}: {told:?}");
        }
        for machine in &planned.machines {
            let shown = upgrade.nodes.get(&machine.node).map(|status| status.reason);
            assert!(shown.is_none_or(|reason| !wrong.contains(&reason)), "{power:?}: {shown:?}");
        }
        // A machine that runs when the window opens, and is off then, was shut down by the upgrade.
        let mut third = planned.clone();
        third.machines[2].power = power;
        upgrade.step(minutes * 60 + 20, &third);
        let reason = upgrade.nodes[&third.machines[2].node].reason;
        assert_eq!(wrong.contains(&reason), power == Power::Off, "{power:?}: {reason:?}");
    }
}

/// Nobody ended the first plan; it was deleted, and the next one was made at once.
#[test]
fn a_plan_that_follows_one_that_lasted_too_long_is_an_upgrade_of_its_own() {
    let first = facts(&snapshots("paused")[0], None);
    let mut upgrade = HostUpgrade::default();
    for hour in 0..=24 {
        upgrade.step(hour * 3600, &first);
    }
    assert_eq!(upgrade.suspended(), None);
    // A new process knows which plan it was.
    upgrade = restore(&data(&upgrade), LONGEST + 10);
    upgrade.step(LONGEST + 10, &first);
    assert_eq!(upgrade.suspended(), None);
    let another = PlanView { uid: "another".into(), ..PlanView::clone(first.plan.as_deref().unwrap()) };
    let next = UpgradeFacts { plan: Some(Arc::new(another)), ..first };
    for (after, begins) in [(20, true), (30, false)] {
        let step = upgrade.step(LONGEST + after, &next);
        assert!(upgrade.suspended().is_some(), "after {after} s");
        assert_eq!(step.told.iter().any(|tell| tell.reason == "HostUpgradeStarted"), begins, "after {after} s");
    }
    upgrade.step(LONGEST + 20 + STALE, &next);
    assert_eq!(upgrade.suspended(), None, "it has its own time");
}

/// Two machines that had been off for days were taken for an upgrade by each new leader.
#[test]
fn a_new_process_knows_which_machines_have_been_off_for_long_and_a_restart_of_one_is_not_written_down() {
    for power in [Power::Off, Power::Starting] {
        let (before, off) = two_off(power);
        let mut one = off.clone();
        one.machines[1] = before.machines[1].clone();
        let mut upgrade = HostUpgrade::default();
        upgrade.step(0, &one);
        upgrade.step(OFF_FOR_LONG - 1, &one);
        assert_eq!(news(&upgrade, None), None, "{power:?}");
        upgrade.step(OFF_FOR_LONG, &off);
        upgrade.step(2 * OFF_FOR_LONG, &off);
        assert_eq!(upgrade.suspended(), None, "{power:?}");
        let written = news(&upgrade, None).unwrap();
        assert_eq!(news(&upgrade, Some(&written)), None, "{power:?}: once");

        let mut next = restore(&written, 3 * OFF_FOR_LONG);
        next.step(3 * OFF_FOR_LONG, &off);
        assert_eq!(next.suspended(), None, "{power:?}: a restart is no upgrade");
        assert_eq!(news(&next, Some(&written)), None, "{power:?}: a restart writes nothing");
        next.step(4 * OFF_FOR_LONG, &before);
        let over = news(&next, Some(&written)).unwrap();
        assert_eq!(news(&next, Some(&over)), None, "{power:?}: both run");
    }
}

/// One that cannot be scheduled is starting for days.
#[test]
fn a_machine_that_does_not_get_beyond_its_start_and_an_everyday_migration_are_no_upgrade() {
    let (before, mut facts) = two_off(Power::Starting);
    facts.machines[1] = before.machines[1].clone();
    let mut upgrade = HostUpgrade::default();
    upgrade.step(0, &facts);
    facts.machines[1].migrating = true;
    upgrade.step(OFF_FOR_LONG, &facts);
    assert_eq!(upgrade.suspended(), None);
}

#[test]
fn the_state_of_thousands_of_nodes_fits_into_a_config_map() {
    let (_, off) = two_off(Power::Off);
    let mut upgrade = HostUpgrade::default();
    upgrade.step(0, &off);
    assert!(upgrade.suspended().is_some() && data(&upgrade)["status.json"].contains('\n'), "a small one is for people");
    let status = NodeStatus { uid: "0".repeat(36), ..shown(&off.machines[0]) };
    let history = NodeHistory { first_addresses: vec!["192.168.100.100".into()], ..NodeHistory::default() };
    for number in 0..2500 {
        upgrade.nodes.insert(format!("node-{number}"), status.clone());
        upgrade.histories.insert(format!("node-{number}"), history.clone());
    }
    let written = data(&upgrade);
    assert!(written["status.json"].len() < 1024 * 1024, "{} bytes", written["status.json"].len());
    assert_eq!(data(&restore(&written, 0)), written);
}
