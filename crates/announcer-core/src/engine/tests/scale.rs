//! Many Services at once: what the kernel is asked for, and how often, must not grow with their square.

use super::dhcp::leased;
use super::*;

/// Two hundred DHCP Services with macvlans and clients, all waiting for their leases.
fn waiting(count: usize) -> (Node, Vec<String>) {
    let mut node = Node::leading(&[]);
    let names: Vec<String> = (0..count).map(|number| format!("{number:03}x")).collect();
    for name in &names {
        node.upsert(view(name, &["dhcp"]));
    }
    assert_eq!(node.clients.len(), count);
    (node, names)
}

fn kernel_ops(actions: &[Action]) -> Vec<&KernelOp> {
    let ops = actions.iter().filter_map(|action| if let Action::Kernel(op) = action { Some(op) } else { None });
    ops.collect()
}

#[test]
fn two_hundred_leases_at_once_are_one_request_and_one_set_of_rules() {
    let (mut node, names) = waiting(200);
    let mut actions = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let event = DhcpEvent::Bound(leased(&node, &format!("10.0.1.{number}"), 600));
        actions.extend(
            node.engine.handle(node.now, Input::Dhcp(uid(name), node.clients[&uid(name)], ClientEvent::V4(event))),
        );
    }
    actions.extend(node.engine.poll(node.now, false));
    let puts = |actions: &[Action]| -> Vec<usize> {
        let puts = |op: &KernelOp| if let KernelOp::Put(puts) = op { Some(puts.len()) } else { None };
        kernel_ops(actions).into_iter().filter_map(puts).collect()
    };
    let rules = kernel_ops(&actions).iter().filter(|op| matches!(op, KernelOp::Protect(_))).count();
    assert_eq!((rules, puts(&actions)), (1, vec![]), "the rules stand before the addresses");
    let actions = node.engine.step(node.now, Input::Kernel(KernelDone::Protected(Ok(()))));
    assert_eq!(puts(&actions), [200]);
}

#[test]
fn what_is_up_is_extended_by_a_request_of_its_own_while_others_are_being_made() {
    let mut node = Node::leading(&[view("web", &["10.0.0.5"])]);
    node.pass_ms(1000);
    // The kernel is busy: nothing that is asked for from here on is answered.
    let mut actions = Vec::new();
    for number in 0..200 {
        let new = view(&format!("{number:03}x"), &["dhcp"]);
        actions.extend(node.engine.handle(node.now, Input::Service(new.key.clone(), Some(Box::new(new)))));
    }
    actions.extend(node.engine.poll(node.now + REFRESH, false));
    // But for the rules, without which no macvlan is made.
    actions.extend(node.engine.step(node.now + REFRESH, Input::Kernel(KernelDone::Protected(Ok(())))));
    let ops = kernel_ops(&actions);
    assert_eq!(ops.iter().filter(|op| matches!(op, KernelOp::Macvlan(..))).count(), 200);
    let extended: Vec<_> =
        ops.iter().filter_map(|op| if let KernelOp::Extend(puts) = op { Some(puts) } else { None }).collect();
    assert!(matches!(&extended[..], [puts] if puts.len() == 1), "{extended:?}");
}

#[test]
fn after_a_pause_a_hundred_addresses_are_asked_about_in_turns_and_soon() {
    let view_of = |number: u8| view(&format!("web{number}"), &[&format!("10.0.1.{number}")]);
    let mut node = Node::leading(&(1..=100).map(view_of).collect::<Vec<_>>());
    node.pass_ms(1500);
    node.log.clear();
    node.now += Duration::from_secs(4);
    node.tick();
    node.pass_ms(500);
    assert_eq!(probes(&node), 300, "each address is asked about three times");
    assert!(node.engine.vips.values().all(|vip| vip.phase == Phase::Up { doubt: None }), "all are ours again");
}

#[test]
fn a_hundred_addresses_are_asked_about_in_turns_before_their_first_use() {
    let view_of = |number: u8| view(&format!("web{number}"), &[&format!("10.0.1.{number}")]);
    let mut node = Node::started(&(1..=100).map(view_of).collect::<Vec<_>>(), theirs(), network());
    node.feed(Input::Lease(MINE));
    node.pass_ms(500);
    assert_eq!(probes(&node), 300, "each address is asked about three times");
    assert!(node.engine.vips.values().all(Vip::is_up));
}

/// How many probes were sent, of which 32 at most at the same moment.
fn probes(node: &Node) -> usize {
    let mut probes: BTreeMap<&str, usize> = BTreeMap::new();
    for line in &node.log {
        let (at, what) = line.split_once(' ').unwrap();
        *probes.entry(at).or_default() += usize::from(what.starts_with("probe"));
    }
    assert!(probes.values().all(|at_once| *at_once <= 32), "{probes:?}");
    probes.values().sum()
}
