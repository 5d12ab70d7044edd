//! What a node costs while nothing happens. Counted, not timed: two hundred VIPs must not wake the loop more often than
//! one, nor be planned for again and again.

use super::*;

const VIPS: u8 = 200;
/// Of them on this node; the others are node-2's and node-3's.
const OURS: u8 = 115;
const MINUTE: Duration = Duration::from_mins(1);

/// What was counted in a minute.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counted {
    wakes: usize,
    plans: usize,
    questions: usize,
    landmarks: usize,
    extensions: usize,
    extended: usize,
    observations: usize,
    rules: usize,
    renewals: usize,
    listens: usize,
    anything_else: Vec<String>,
}

fn address(number: u8) -> String {
    format!("10.0.2.{number}")
}

/// Everybody is there, owns something and answers.
fn settled() -> Cluster {
    let owner = |number| if number < OURS { "node-1" } else { ["node-2", "node-3"][usize::from(number % 2)] };
    let services: Vec<_> = (0..VIPS)
        .map(|number| seated(&format!("{number:03}x"), &address(number), owner(number), u64::from(number) + 1))
        .collect();
    // Whoever does not know what is ours would be claimed at.
    let mut cluster = Cluster::new(&["node-1"], &[]);
    for node in ["node-2", "node-3"] {
        cluster.node.feed(Input::Node(node.into(), Some(FACTS)));
        let card = card_of(&cluster, node);
        cluster.member(node, card);
    }
    for service in services {
        cluster.node.upsert(service);
    }
    minute(&mut cluster);
    cluster
}

/// A minute in which all owners answer, and everybody renews in time.
fn minute(cluster: &mut Cluster) -> Counted {
    let mut counted = Counted::default();
    let end = cluster.node.now + MINUTE;
    let mut renewal = cluster.node.now;
    loop {
        let now = cluster.node.engine.deadline().min(renewal);
        if now >= end {
            return counted;
        }
        cluster.node.now = now;
        if now == renewal {
            renewal += LEASE / 3;
            for node in ALL {
                cluster.renewals += 1;
                let member =
                    Member { renewal: cluster.renewals.to_string(), duration: LEASE, card: card_of(cluster, node) };
                step(cluster, Input::Member(node.to_owned(), Some(member)), &mut counted);
            }
        } else {
            counted.wakes += 1;
            step(cluster, None, &mut counted);
        }
    }
}

/// As it stands: a card that changes is news.
fn card_of(cluster: &Cluster, node: &str) -> Card {
    match cluster.node.cards.last() {
        Some(own) if node == "node-1" => own.clone(),
        _ => Card { term: Term(u64::from(VIPS)), ..card(node) },
    }
}

/// As [`Engine::step`], with a look at whether it plans; then the kernel and the owners answer.
fn step(cluster: &mut Cluster, input: impl Into<Option<Input>>, counted: &mut Counted) {
    let now = cluster.node.now;
    let mut inputs: VecDeque<Option<Input>> = VecDeque::from([input.into()]);
    while let Some(input) = inputs.pop_front() {
        let engine = &mut cluster.node.engine;
        if let Some(input) = input {
            engine.take(now, input);
        }
        engine.timers(now);
        counted.plans += usize::from(engine.out.plans());
        engine.settle(now);
        for action in engine.out.take() {
            match action {
                Action::Ask { ask, .. } => {
                    let gateway = Mac::new([2, 0, 0, 0, 0, 254]);
                    let asked = ALL.into_iter().map(|node| mac(node).into()).find(|mac| *mac == ask.to);
                    // Its MAC is asked for once.
                    let first = counted.landmarks < 9
                        && ask.to == Mac::BROADCAST
                        && ask.address == IpAddr::from([10, 0, 0, 254]);
                    let answers = asked.or((first || ask.to == gateway).then_some(gateway));
                    let Some(mac) = answers else { panic!("no broadcast at rest: {ask:?}") };
                    if ask.address.to_string().starts_with("10.0.2.") {
                        counted.questions += 1;
                    } else {
                        counted.landmarks += 1;
                    }
                    let what = Heard::Answer;
                    let (link, address) = (ask.link, ask.address);
                    inputs.push_back(Some(Input::Heard(Frame {
                        link,
                        address,
                        mac,
                        what,
                        to_us: true,
                        payload: None,
                    })));
                }
                Action::Kernel(op) => {
                    match &op {
                        KernelOp::Extend(puts) => {
                            counted.extensions += 1;
                            counted.extended += puts.len();
                        }
                        KernelOp::Observe => counted.observations += 1,
                        KernelOp::Protect(_) => counted.rules += 1,
                        other => counted.anything_else.push(format!("{other:?}")),
                    }
                    inputs.extend(cluster.node.kernel.perform(now, op).map(|done| Some(Input::Kernel(done))));
                }
                Action::Membership(card) => {
                    counted.renewals += 1;
                    cluster.node.cards.push(card);
                }
                Action::Listen(_) => counted.listens += 1,
                other => counted.anything_else.push(format!("{other:?}")),
            }
        }
    }
}

#[test]
fn a_minute_at_rest_costs_a_wake_up_per_round_of_questions_and_one_plan() {
    let mut cluster = settled();
    let Counted {
        wakes,
        plans,
        questions,
        landmarks,
        extensions,
        extended,
        observations,
        rules,
        renewals,
        listens,
        anything_else,
    } = minute(&mut cluster);
    assert!(anything_else.is_empty(), "{} more, the first {:?}", anything_else.len(), anything_else.first());
    // Rounds are 50 ms apart, and each asks each of the two other owners about one of its VIPs (fail-over spec
    // 2).
    assert!((2390..=2400).contains(&questions), "{questions}");
    // With them the two other nodes and the gateway, every five seconds.
    assert!((33..=36).contains(&landmarks), "{landmarks}");
    // Beside them the extensions, one request per second for all VIPs, and our own renewals.
    assert!((59..=60).contains(&extensions), "{extensions}");
    assert_eq!(extended, extensions * usize::from(OURS));
    assert!((12..=13).contains(&renewals), "{renewals}");
    assert!(wakes <= questions / 2 + extensions + renewals + 2, "{wakes}");
    // The network is read once a minute, and planned for, and the rules are looked at. The renewals of everybody, 36 of
    // them, change nothing.
    assert_eq!((observations, rules), (1, 1));
    // A socket that is open costs nothing to ask for again.
    assert!(listens <= 60, "{listens}");
    assert!(plans <= 1, "{plans}");
}

#[test]
fn a_renewal_that_does_not_come_is_noticed_all_the_same() {
    let mut cluster = settled();
    // node-3 answers on the wire, and its Lease stands. That moves nothing (R8), but it has to be looked at.
    let begun = cluster.node.now;
    let mut counted = Counted::default();
    while cluster.node.now < begun + LEASE * 2 {
        let next = cluster.node.now + Duration::from_secs(5);
        for node in ["node-1", "node-2"] {
            cluster.renewals += 1;
            let member =
                Member { renewal: cluster.renewals.to_string(), duration: LEASE, card: card_of(&cluster, node) };
            step(&mut cluster, Input::Member(node.to_owned(), Some(member)), &mut counted);
        }
        while cluster.node.engine.deadline() < next {
            cluster.node.now = cluster.node.engine.deadline();
            step(&mut cluster, None, &mut counted);
        }
        cluster.node.now = next;
    }
    assert!((1..=2).contains(&counted.plans), "{counted:?}");
    // The next renewal is news.
    let before = counted.plans;
    let member = Member { renewal: "back".into(), duration: LEASE, card: card_of(&cluster, "node-3") };
    step(&mut cluster, Input::Member("node-3".into(), Some(member)), &mut counted);
    assert_eq!(counted.plans, before + 1);
}
