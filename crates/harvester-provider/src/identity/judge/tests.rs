//! What operators and machines do to clusters, as tables.

use std::collections::BTreeSet;

use super::*;

mod copied_machine;

fn name(text: &str) -> ClusterName {
    ClusterName::from_record(text)
}

/// A Node on the machine of its provider ID, which this Harvester has.
fn on(node: &str, machine: &str, label: &str, kubelet: KubeletLiveness) -> NodeFact {
    NodeFact {
        name: node.into(),
        machine: Some(machine.into()),
        seen: true,
        namesake: None,
        label: (!label.is_empty()).then(|| name(label)),
        kubelet,
        system_uuid: None,
        firmware: None,
    }
}

/// The same on a machine that this Harvester does not have.
fn lost(node: &str, machine: &str, kubelet: KubeletLiveness) -> NodeFact {
    NodeFact { seen: false, label: None, ..on(node, machine, "", kubelet) }
}

/// A Node that has just registered, without a provider ID.
fn new(node: &str, namesake: Option<&str>, label: &str, kubelet: KubeletLiveness) -> NodeFact {
    NodeFact { machine: None, seen: false, namesake: namesake.map(str::to_owned), ..on(node, "", label, kubelet) }
}

fn card(machines: &[&str]) -> IdentityCard {
    IdentityCard {
        cluster_uid: "cluster".into(),
        former_uids: ["service".to_owned()].into(),
        namespace: "guests".into(),
        authority: "ca".into(),
        names: ["prod".to_owned()].into(),
        machines: machines.iter().map(|uid| (*uid).to_owned()).collect(),
        started_on: BTreeSet::new(),
        absent: BTreeSet::new(),
        outside: false,
    }
}

struct Case<'a> {
    card: Option<IdentityCard>,
    remembered: Option<&'a str>,
    flag: &'a str,
    cluster_uid: &'a str,
    namespace: &'a str,
    authority: &'a str,
    nodes: Vec<NodeFact>,
    settled: bool,
    unregistered: Option<&'a str>,
}

/// Cluster `prod` on machines `a`, `b` and `c`, all well.
fn prod() -> Case<'static> {
    let nodes = ["a", "b", "c"].map(|machine| on(machine, machine, "prod", KubeletLiveness::Lives)).to_vec();
    Case {
        card: Some(card(&["a", "b", "c"])),
        remembered: Some("prod"),
        flag: "prod",
        cluster_uid: "cluster",
        namespace: "guests",
        authority: "ca",
        nodes,
        settled: true,
        unregistered: None,
    }
}

impl Case<'_> {
    fn with<R>(&self, then: impl FnOnce(&IdentityFacts<'_>) -> R) -> R {
        let (flag, remembered) = (name(self.flag), self.remembered.map(name));
        then(&IdentityFacts {
            card: self.card.as_ref(),
            name: remembered.as_ref(),
            flag: &flag,
            names: &BTreeSet::new(),
            cluster_uid: Some(self.cluster_uid).filter(|uid| !uid.is_empty()),
            service_uid: Some("service"),
            namespace: self.namespace,
            server: "https://h",
            authority: Some(self.authority),
            nodes: &self.nodes,
            machines: 7,
            settled: self.settled,
            unregistered: self.unregistered,
        })
    }

    fn verdict(&self) -> IdentityVerdict {
        self.with(judge)
    }

    /// In one word.
    fn word(&self) -> &'static str {
        match self.verdict() {
            IdentityVerdict::Normal(_) => "Normal",
            IdentityVerdict::New(_) => "New",
            IdentityVerdict::SafeMode(contradiction) => contradiction.reason,
            IdentityVerdict::Undecided(_) => "Undecided",
        }
    }
}

const SILENT: KubeletLiveness = KubeletLiveness::Silent;
const READY: KubeletLiveness = KubeletLiveness::Reports;
const LIVES: KubeletLiveness = KubeletLiveness::Lives;
const OWN: KubeletLiveness = KubeletLiveness::Own;

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn what_happens_to_clusters_and_what_follows() {
    // In a snapshot the Nodes of the original stand beside those of the new machines; Ready until the controller
    // manager has looked.
    let original =
        |kubelet: KubeletLiveness| ["a", "b", "c"].map(|machine| on(machine, machine, "prod", kubelet)).to_vec();
    let copied = |old: KubeletLiveness, label: &str, new_kubelet: KubeletLiveness| {
        let mut nodes = original(old);
        nodes.push(new("x1", Some("x"), label, new_kubelet));
        nodes
    };
    let unlabelled = |nodes: Vec<NodeFact>| -> Vec<NodeFact> {
        nodes.into_iter().map(|node| NodeFact { label: None, ..node }).collect()
    };
    let early = |case: Case<'static>| Case { settled: false, ..case };
    for (what, case, expected) in vec![
        ("all is well", prod(), "Normal"),
        ("at the start too", early(prod()), "Normal"),
        (
            "a new cluster",
            Case { card: None, remembered: None, nodes: vec![new("a", Some("a"), "prod", OWN)], ..prod() },
            "New",
        ),
        ("a new cluster without Nodes", Case { card: None, remembered: None, nodes: vec![], ..prod() }, "New"),
        ("from the Go provider", Case { card: None, ..prod() }, "New"),
        ("from the Go provider, the flag lost", Case { card: None, flag: "kubernetes", ..prod() }, "New"),
        ("from the Go provider, another flag, machines say prod", Case { card: None, flag: "prod2", ..prod() }, "New"),
        (
            "a copy of a cluster of the Go provider",
            Case { card: None, flag: "prod2", nodes: vec![new("x1", Some("x"), "prod2", OWN)], ..prod() },
            "AnotherClusterName",
        ),
        // Copies.
        (
            "a copy with a name of its own",
            Case { flag: "prod2", nodes: copied(SILENT, "prod2", READY), ..prod() },
            "AnotherClusterName",
        ),
        (
            "the same before the old Nodes are known to be silent",
            early(Case { flag: "prod2", nodes: copied(READY, "prod2", SILENT), ..prod() }),
            "AnotherClusterName",
        ),
        (
            "a copy with a name of its own on machines without labels, at once",
            early(Case { flag: "prod2", nodes: unlabelled(copied(READY, "", OWN)), ..prod() }),
            "Undecided",
        ),
        (
            "and after a while",
            Case { flag: "prod2", nodes: unlabelled(copied(SILENT, "", OWN)), ..prod() },
            "MachinesReplaced",
        ),
        (
            "a copy with the same name, at once",
            early(Case { nodes: copied(READY, "prod", OWN), ..prod() }),
            "Undecided",
        ),
        ("and after a while", Case { nodes: copied(SILENT, "prod", OWN), ..prod() }, "MachinesReplaced"),
        (
            "where this process runs is not known",
            Case { nodes: copied(SILENT, "prod", READY), ..prod() },
            "MachinesReplaced",
        ),
        (
            "a copy whose own Node has not registered: what it shows is the original",
            Case { unregistered: Some("x1"), nodes: copied(SILENT, "prod", READY)[..3].to_vec(), ..prod() },
            "Undecided",
        ),
        (
            "the same before the old Nodes are known to be silent",
            early(Case { unregistered: Some("x1"), nodes: copied(READY, "prod", READY)[..3].to_vec(), ..prod() }),
            "Undecided",
        ),
        (
            "a copy of a cluster without a card, before its own Node has registered",
            Case { card: None, unregistered: Some("x1"), ..prod() },
            "Undecided",
        ),
        (
            "a wrong file is a wrong file, registered or not",
            Case { unregistered: Some("x1"), nodes: vec![lost("a", "a", READY)], authority: "other", ..prod() },
            "WrongHarvester",
        ),
        (
            "a copy on a machine labelled otherwise, whatever the flag",
            early(Case { nodes: copied(READY, "prod2", OWN), ..prod() }),
            "AnotherClusterName",
        ),
        (
            "a copy on another Harvester",
            Case {
                nodes: vec![lost("a", "a", SILENT), new("x1", Some("x"), "prod", OWN)],
                authority: "other",
                ..prod()
            },
            "WrongHarvester",
        ),
        // The Kubernetes controller manager of the copy is late, or does not run: what is old looks alive.
        ("a copy with the same name", Case { nodes: copied(READY, "prod", OWN), ..prod() }, "Undecided"),
        (
            "the same, where this process runs is not known",
            Case { nodes: copied(READY, "prod", READY), ..prod() },
            "Undecided",
        ),
        // A controller that runs outside sees the original in its copy, until a kubelet is seen to report.
        ("from outside, at once", early(Case { nodes: original(READY), ..prod() }), "Undecided"),
        ("from outside, after a while", Case { nodes: original(READY), ..prod() }, "Undecided"),
        ("from outside, no kubelet reports", Case { nodes: original(SILENT), ..prod() }, "Undecided"),
        ("from outside, a kubelet was seen to report", early(Case { nodes: original(LIVES), ..prod() }), "Normal"),
        // Wrong files.
        (
            "another Harvester's file",
            Case { nodes: vec![lost("a", "a", OWN), lost("b", "b", READY)], authority: "other", ..prod() },
            "WrongHarvester",
        ),
        ("one that names no authority", Case { nodes: vec![lost("a", "a", READY)], ..prod() }, "MachinesNotSeen"),
        (
            "a context that lost its namespace",
            Case { nodes: vec![lost("a", "a", OWN)], namespace: "default", ..prod() },
            "WrongNamespace",
        ),
        (
            "at the first start",
            Case { card: None, remembered: None, nodes: vec![lost("a", "a", OWN)], ..prod() },
            "MachinesNotSeen",
        ),
        (
            "one machine is seen",
            Case { nodes: vec![lost("a", "a", READY), on("b", "b", "", LIVES)], ..prod() },
            "Normal",
        ),
        // Moves: every machine has another UID afterwards.
        (
            "to another namespace",
            Case {
                nodes: vec![NodeFact { namesake: Some("a2".into()), ..lost("a", "a", OWN) }],
                namespace: "others",
                ..prod()
            },
            "WrongNamespace",
        ),
        (
            "the same, confirmed",
            Case {
                card: Some(IdentityCard { namespace: "others".into(), ..card(&["a2"]) }),
                nodes: vec![NodeFact { namesake: Some("a2".into()), ..lost("a", "a", OWN) }],
                namespace: "others",
                ..prod()
            },
            "Normal",
        ),
        // Names.
        ("a flag that changed on the same machines", Case { flag: "prod2", ..prod() }, "Normal"),
        ("a flag that was lost", Case { flag: "kubernetes", ..prod() }, "Normal"),
        (
            "the flag and the labels of the same machines",
            Case { flag: "prod2", nodes: vec![on("a", "a", "prod2", LIVES), on("b", "b", "prod2", READY)], ..prod() },
            "Normal",
        ),
        (
            "the same, and a new machine",
            Case {
                flag: "prod2",
                nodes: vec![on("a", "a", "prod2", LIVES), new("d", Some("d"), "prod2", READY)],
                ..prod()
            },
            "Normal",
        ),
        // Restores and upgrades.
        (
            "a restore in place",
            early(Case { nodes: vec![on("a", "a", "prod", OWN), on("b", "b", "prod", SILENT)], ..prod() }),
            "Normal",
        ),
        (
            "a restore in place, no kubelet is back yet",
            early(Case { nodes: vec![on("a", "a", "prod", SILENT), on("b", "b", "prod", SILENT)], ..prod() }),
            "Undecided",
        ),
        (
            "a restore in place with a Node that is newer than the snapshot",
            early(Case { nodes: vec![on("a", "a", "prod", OWN), new("d", Some("d"), "prod", READY)], ..prod() }),
            "Normal",
        ),
        (
            "a new Node of the same cluster leads, the others are well",
            Case { nodes: vec![on("a", "a", "prod", LIVES), on("d", "d", "prod", OWN)], ..prod() },
            "Normal",
        ),
        (
            "one machine on which nothing runs, of another cluster's name",
            Case { nodes: vec![on("a", "a", "prod", LIVES), new("d", Some("d"), "other", READY)], ..prod() },
            "Normal",
        ),
        // Records.
        ("a record of another cluster", Case { cluster_uid: "mine", ..prod() }, "RecordOfAnotherCluster"),
        ("the UID may not be read", Case { cluster_uid: "", ..prod() }, "Normal"),
        ("a record of an earlier version", Case { card: None, ..prod() }, "New"),
    ] {
        assert_eq!(case.word(), expected, "{what}: {:?}", case.verdict());
    }
}

#[test]
fn machines_that_are_replaced_one_at_a_time_never_trip_it() {
    let mut case = prod();
    for (place, successor) in ["d", "e", "f", "g"].into_iter().enumerate() {
        let registers = new(successor, Some(successor), "prod", KubeletLiveness::Silent);
        let steps = [
            registers,
            on(successor, successor, "prod", KubeletLiveness::Silent),
            on(successor, successor, "prod", KubeletLiveness::Lives),
        ];
        for step in steps {
            let nodes: Vec<NodeFact> =
                case.nodes.iter().filter(|node| node.name != successor).cloned().chain([step]).collect();
            case.nodes = nodes;
            let IdentityVerdict::Normal(card) = case.verdict() else { panic!("{successor}: {:?}", case.verdict()) };
            case.card = Some(card);
        }
        // The oldest machine is gone, its Node a moment later.
        let old = case.nodes.remove(0);
        let machine = old.machine.expect("it was a member");
        let mut nodes = vec![lost(&old.name, &machine, KubeletLiveness::Silent)];
        nodes.extend(case.nodes.clone());
        let gone = Case { nodes, card: case.card.clone(), ..prod() };
        assert_eq!(gone.word(), "Normal", "{place}");
        let IdentityVerdict::Normal(card) = case.verdict() else { panic!("{place}") };
        assert!(!card.machines.contains(&machine), "{place}");
        case.card = Some(card);
    }
    let machines: Vec<&str> = case.card.as_ref().unwrap().machines.iter().map(String::as_str).collect();
    assert_eq!(machines, ["e", "f", "g"]);
    // Seen from outside, nobody has seen a successor report yet: they are asked then.
    case.nodes = case.nodes.into_iter().map(|node| NodeFact { kubelet: READY, ..node }).collect();
    assert_eq!((case.word(), case.with(worth_asking)), ("Undecided", vec!["e".into(), "f".into(), "g".into()]));
}

#[test]
fn what_a_snapshot_merely_contains_never_comes_into_the_card() {
    let mut nodes = prod().nodes;
    nodes.push(on("old", "old", "prod", KubeletLiveness::Silent));
    let IdentityVerdict::Normal(card) = (Case { nodes, ..prod() }).verdict() else { panic!() };
    assert!(!card.machines.contains("old"));
    let first = Case { card: None, nodes: vec![on("a", "a", "", READY), on("old", "old", "", SILENT)], ..prod() };
    let IdentityVerdict::New(card) = first.verdict() else { panic!() };
    assert_eq!(card.machines, ["a".to_owned()].into());
}

/// Nodes of a snapshot look Ready for a while, and an operator may speak meanwhile.
#[test]
fn a_machine_that_came_into_the_card_because_its_node_looked_ready_lets_nothing_pass() {
    let mut passed = 0;
    for true_kubelet in [None, Some(SILENT), Some(READY), Some(LIVES), Some(OWN)] {
        for stranger in [None, Some(SILENT), Some(READY), Some(LIVES), Some(OWN)] {
            for (false_kubelet, label) in [(SILENT, "prod"), (READY, "prod"), (READY, "prod2"), (READY, "")] {
                for (settled, unregistered) in [(false, None), (true, None), (true, Some("x1"))] {
                    let members = true_kubelet.map(|kubelet| on("a", "a", "prod", kubelet));
                    let mut nodes: Vec<NodeFact> = members.into_iter().collect();
                    nodes.push(on("old", "old", label, false_kubelet));
                    nodes.extend(stranger.map(|kubelet| new("x1", Some("x"), "prod2", kubelet)));
                    let verdict = |machines: &[&str]| {
                        let card = Some(card(machines));
                        Case { card, nodes: nodes.clone(), settled, unregistered, flag: "prod2", ..prod() }.word()
                    };
                    let what =
                        format!("{true_kubelet:?} {stranger:?} {false_kubelet:?} {label} {settled} {unregistered:?}");
                    let (right, wrong) = (verdict(&["a"]), verdict(&["a", "old"]));
                    if wrong == "Normal" {
                        passed += 1;
                        // A kubelet of this cluster was seen: it is no copy, whatever the labels say.
                        assert!(true_kubelet.is_some_and(|kubelet| kubelet >= LIVES), "{what}: before, it was {right}");
                    }
                }
            }
        }
    }
    assert!(passed > 0);
}

/// The same, by the word of an operator who does not wait until the Nodes of the original are silent.
#[test]
fn an_early_word_leaves_machines_of_the_original_in_the_card_and_the_next_copy_is_known_all_the_same() {
    let mut nodes = ["a", "b", "c"].map(|machine| on(machine, machine, "prod", READY)).to_vec();
    nodes.push(on("x", "x", "prod2", OWN));
    let early = Case { flag: "prod2", nodes, settled: false, ..prod() };
    let card = early.with(|facts| confirmed_card(facts, &OperatorConfirmation::Copy(name("prod2"))));
    assert_eq!(card.machines.len(), 4);
    let of = |machine: &str, label: &str, kubelet| on(machine, machine, label, kubelet);
    for (what, nodes, expected) in [
        ("it goes on", vec![of("a", "prod", SILENT), of("x", "prod2", OWN)], "Normal"),
        ("from outside, at once", vec![of("a", "prod", READY), of("x", "prod2", READY)], "Undecided"),
        (
            "a copy of the copy",
            vec![of("a", "prod", SILENT), of("x", "prod2", SILENT), of("y", "prod2", OWN)],
            "MachinesReplaced",
        ),
        (
            "the same, while all look Ready",
            vec![of("a", "prod", READY), of("x", "prod2", READY), of("y", "prod2", OWN)],
            "Undecided",
        ),
    ] {
        let case = Case { card: Some(card.clone()), remembered: Some("prod2"), flag: "prod2", nodes, ..prod() };
        assert_eq!(case.word(), expected, "{what}: {:?}", case.verdict());
    }
}

#[test]
fn a_human_ends_each_contradiction_with_the_command_that_it_names() {
    let old = || ["a", "b", "c"].map(|machine| on(machine, machine, "prod", SILENT)).to_vec();
    let copy = || {
        let mut nodes = old();
        nodes.push(on("x", "x", "prod2", OWN));
        Case { flag: "prod2", nodes, ..prod() }
    };
    let moved = || NodeFact { namesake: Some("a2".into()), ..lost("a", "a", OWN) };
    for (what, case, word, remembered, names) in [
        ("a copy", copy(), OperatorConfirmation::Copy(name("prod2")), "prod2", &["prod2"][..]),
        ("a real rename", copy(), OperatorConfirmation::Rename(name("prod2")), "prod2", &["prod", "prod2"]),
        (
            "a restore on new machines",
            Case { flag: "prod", ..copy() },
            OperatorConfirmation::Confirm,
            "prod",
            &["prod"],
        ),
        (
            "a move",
            Case { nodes: vec![moved()], namespace: "others", ..prod() },
            OperatorConfirmation::Confirm,
            "prod",
            &["prod"],
        ),
        (
            "a copied record",
            Case { cluster_uid: "mine", ..prod() },
            OperatorConfirmation::Copy(name("mine")),
            "mine",
            &["mine"],
        ),
    ] {
        let IdentityVerdict::SafeMode(contradiction) = case.verdict() else { panic!("{what}: {:?}", case.verdict()) };
        assert!(contradiction.message().contains("harvester-cloud-provider identity "), "{what}");
        let card = case.with(|facts| confirmed_card(facts, &word));
        assert_eq!(card.names.iter().collect::<Vec<_>>(), names, "{what}");
        assert!(!(card.machines.contains("b") && what != "a copied record"), "{what}: a machine of the original");
        let after = Case { card: Some(card.clone()), remembered: Some(remembered), ..case };
        let IdentityVerdict::Normal(next) = after.verdict() else { panic!("{what}: {:?}", after.verdict()) };
        assert_eq!(next, card, "{what}: nothing more is to be written");
    }
}

/// An earlier version kept no names for a cluster with the default name, and that stood for any name: a copy's, too.
#[test]
fn a_card_without_names_gets_those_in_use_and_what_a_human_says_is_added() {
    let in_use: BTreeSet<String> = ["kubernetes".to_owned()].into();
    let nameless = || IdentityCard { names: BTreeSet::new(), ..card(&["a", "b", "c"]) };
    for card in [Some(nameless()), None] {
        let case = Case { card, remembered: None, flag: "kubernetes", ..prod() };
        case.with(|facts| {
            let facts = IdentityFacts { names: &in_use, ..facts.clone() };
            let (IdentityVerdict::Normal(next) | IdentityVerdict::New(next)) = judge(&facts) else { panic!() };
            assert_eq!(next.names, in_use);
            for (word, expected) in [
                (OperatorConfirmation::Confirm, &["kubernetes"][..]),
                (OperatorConfirmation::Rename(name("prod")), &["kubernetes", "prod"]),
                (OperatorConfirmation::Copy(name("copied")), &["copied"]),
            ] {
                let names = confirmed_card(&facts, &word).names;
                assert_eq!(names.iter().collect::<Vec<_>>(), expected, "{word:?}");
            }
        });
    }
    let copied = Case { cluster_uid: "mine", ..prod() };
    copied.with(|facts| {
        let facts = IdentityFacts { names: &in_use, ..facts.clone() };
        let names = confirmed_card(&facts, &OperatorConfirmation::Confirm).names;
        assert_eq!(names, in_use, "the names in the record are those of another cluster");
    });
}

/// A machine that was moved has another UID, and nothing tells that Node `node-1` is on VM `pool-x1`.
#[test]
fn what_a_human_has_said_to_be_absent_proves_nothing_until_it_is_seen_again() {
    let moved = |kubelet| vec![lost("node-1", "a", kubelet), lost("node-2", "b", SILENT)];
    let case = Case { nodes: moved(OWN), namespace: "others", ..prod() };
    assert_eq!(case.word(), "WrongNamespace");
    let confirmed = case.with(|facts| confirmed_card(facts, &OperatorConfirmation::Confirm));
    assert_eq!(confirmed.absent, ["a".to_owned(), "b".to_owned()].into());
    let after = Case { card: Some(confirmed.clone()), ..case };
    let IdentityVerdict::Normal(card) = after.verdict() else { panic!("{:?}", after.verdict()) };
    assert_eq!(card, confirmed, "nothing more is to be written");

    // New Nodes come on machines that can be seen: from then on they prove the place, and a wrong file is noticed
    // again.
    let mut nodes = moved(SILENT);
    nodes.push(on("node-3", "d", "prod", OWN));
    let grown = Case { nodes, ..after };
    let IdentityVerdict::Normal(card) = grown.verdict() else { panic!("{:?}", grown.verdict()) };
    assert_eq!((&card.machines, &card.absent), (&["d".to_owned()].into(), &confirmed.absent));
    let mut nodes = moved(SILENT);
    nodes.push(lost("node-3", "d", OWN));
    let wrong = Case { card: Some(card.clone()), nodes, authority: "other", ..grown };
    assert_eq!(wrong.word(), "WrongHarvester");

    // A Node that goes takes its machine with it, and one that is seen again is absent no more.
    let nodes = vec![on("node-1", "a", "prod", READY), on("node-3", "d", "prod", OWN)];
    let back = Case { card: Some(card), nodes, ..prod() };
    let IdentityVerdict::Normal(card) = back.verdict() else { panic!("{:?}", back.verdict()) };
    assert_eq!((card.machines.len(), card.absent.len()), (2, 0));
}

#[test]
fn each_contradiction_names_both_facts_values_and_what_to_do() {
    let text = |case: Case<'_>| match case.verdict() {
        IdentityVerdict::SafeMode(contradiction) => contradiction.message(),
        other => panic!("{other:?}"),
    };
    let wrong = text(Case { nodes: vec![lost("a", "vm-a", READY)], authority: "other", ..prod() });
    for part in
        ["authority ca", "vm-a of Node a", "none of them is among the 7 in namespace guests of Harvester at https://h"]
    {
        assert!(wrong.contains(part), "{part}: {wrong}");
    }
    let copy = text(Case { flag: "prod2", nodes: vec![on("x", "x", "prod2", OWN)], ..prod() });
    for part in ["\"prod\", but Node x", "\"prod2\"", "`harvester-cloud-provider identity rename prod2 --copy`"] {
        assert!(copy.contains(part), "{part}: {copy}");
    }
}

/// A control plane that is hosted elsewhere: its pods run on Nodes of another cluster.
#[test]
fn a_controller_outside_its_cluster_is_confirmed_once_and_for_good() {
    let hosted = || Case { unregistered: Some("host-1"), ..prod() };
    assert_eq!(hosted().word(), "Undecided");
    let confirmed = hosted().with(|facts| confirmed_card(facts, &OperatorConfirmation::Confirm));
    assert!(confirmed.outside);
    // After a restart, or on another host: nothing but the record is left of the word.
    for leader in ["host-1", "host-2"] {
        let case = Case { unregistered: Some(leader), card: Some(confirmed.clone()), ..prod() };
        let IdentityVerdict::Normal(card) = case.verdict() else { panic!("{leader}: {:?}", case.verdict()) };
        assert_eq!(card, confirmed, "nothing more is to be written");
    }
    // What else is known of copies and wrong files counts as before.
    let with = |case: Case<'static>| Case { unregistered: Some("host-1"), card: Some(confirmed.clone()), ..case };
    let old = |kubelet: KubeletLiveness| ["a", "b", "c"].map(|machine| on(machine, machine, "prod", kubelet)).to_vec();
    let (silent, reports) = (|| old(SILENT), || old(READY));
    let mut replaced = silent();
    replaced.push(new("x1", Some("x"), "prod", READY));
    for (what, case, expected) in [
        ("a new leader: a snapshot looks like this too", with(Case { nodes: reports(), ..prod() }), "Undecided"),
        ("a kubelet was seen to report", with(Case { settled: false, ..prod() }), "Normal"),
        ("a copy before any of its Nodes has registered", with(Case { nodes: silent(), ..prod() }), "Undecided"),
        ("a copy on new machines", with(Case { nodes: replaced, ..prod() }), "MachinesReplaced"),
        (
            "a wrong file",
            with(Case { nodes: vec![lost("a", "a", READY)], authority: "other", ..prod() }),
            "WrongHarvester",
        ),
        ("a copied record", with(Case { cluster_uid: "mine", ..prod() }), "RecordOfAnotherCluster"),
    ] {
        assert_eq!(case.word(), expected, "{what}: {:?}", case.verdict());
    }
    // The controller moves into the cluster: from then on a Node of its own that is missing counts again.
    let mut nodes = prod().nodes;
    nodes[0].kubelet = OWN;
    let IdentityVerdict::Normal(inside) = (Case { card: Some(confirmed.clone()), nodes, ..prod() }).verdict() else {
        panic!()
    };
    assert!(!inside.outside);
    assert_eq!(Case { unregistered: Some("x1"), card: Some(inside), ..prod() }.word(), "Undecided");
}
