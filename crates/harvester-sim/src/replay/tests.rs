use super::*;

fn placement() -> Placement {
    Placement { namespace: "guests".into(), cluster: "demo".into(), network: "guests/mgmt".into() }
}

#[test]
fn each_file_is_a_replay_whose_steps_go_forward_in_time() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/replays");
    let mut count = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let replay =
            Replay::parse(&std::fs::read_to_string(&path).unwrap()).unwrap_or_else(|e| panic!("{path:?}: {e:?}"));
        let snapshots = replay.snapshots(&placement()).unwrap();
        assert!(snapshots.windows(2).all(|pair| pair[0].minute <= pair[1].minute), "{path:?}");
        count += 1;
    }
    assert!(count >= 8, "{count}");
}

#[test]
fn what_is_not_named_stays_and_a_wrong_name_is_answered_with_those_that_there_are() {
    let text = "
name: one
machines: {node1: {host: host-1, zone: a, address: 10.0.0.1}}
steps:
  - {at: 0, plan: {phase: NodeUpgrading, hosts: {host-1: PreDraining}}}
  - {at: 1.5, machines: {node1: {moves_to: host-2}}}
  - {at: 2, machines: {node1: {arrived: true, zone: b}}}
";
    let snapshots = Replay::parse(text).unwrap().snapshots(&placement()).unwrap();
    assert!(snapshots[1].machines[0].migrating());
    assert_eq!((snapshots[2].machines[0].host.as_str(), snapshots[2].machines[0].migrating()), ("host-2", false));
    let plan = snapshots[2].plan.as_ref().unwrap();
    assert_eq!(plan["status"]["nodeUpgradeStatuses"]["host-1"]["state"], "PreDraining");
    let wrong = text.replace("machines: {node1: {arrived", "machines: {node2: {arrived");
    let error = Replay::parse(&wrong).unwrap().snapshots(&placement()).unwrap_err().to_string();
    assert_eq!(error, "step at minute 2 names machine \"node2\"; the replay has: node1");
    assert!(Replay::parse("name: x\nmachines: {}\nsteps: []\nmore: 1").is_err());
}
