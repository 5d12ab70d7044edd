//! Probes that do not leave this node, because its send queue is full.

use super::*;

const STRANGER: [u8; 6] = [2, 9, 9, 9, 9, 9];

/// A Service is new, and the queue refuses so many probes.
fn beginning(refused: usize) -> Node {
    let mut node = Node::new(&[], network());
    node.refused_probes = refused;
    node.start_with(&[view("web", &["10.0.0.5"])], MINE);
    node
}

fn has(node: &Node) -> bool {
    node.kernel.has("eth0", "10.0.0.5/32")
}

/// How many probes were refused and sent since the last look.
fn probes(node: &mut Node) -> (usize, usize) {
    let log = node.take_log();
    let count = |what: &str| log.iter().filter(|line| line.starts_with(what)).count();
    (count("refused probe"), count("probe"))
}

#[test]
fn an_address_about_which_no_host_could_be_asked_is_not_used_before_three_probes_were_sent() {
    let mut node = beginning(4);
    node.pass_ms(215);
    assert!(!has(&node), "the last probe was sent 5 ms ago");
    node.pass_ms(10);
    assert!(has(&node));
    assert_eq!(probes(&mut node), (4, 3));
}

#[test]
fn a_stranger_that_hears_only_the_probe_that_was_sent_in_the_end_keeps_its_address() {
    let mut node = beginning(4);
    node.pass_ms(195);
    node.heard(2, "10.0.0.5", STRANGER, Heard::Answer);
    node.pass_ms(1000);
    assert!(!has(&node));
    assert_eq!(node.reasons(), ["AddressConflict"]);
}

#[test]
fn an_interface_that_sends_nothing_keeps_an_address_from_its_clients_for_ten_seconds_and_asks_seldom() {
    let mut node = beginning(usize::MAX);
    node.pass_ms(10_000);
    assert!(!has(&node));
    node.pass_ms(500);
    assert!(has(&node));
    assert_eq!(probes(&mut node), (13, 0));
}

/// The process has stood still for 4 s, and its address lives for less than 9 s more.
fn doubting(refused: usize) -> Node {
    let mut node = Node::leading(&[view("web", &["10.0.0.5"])]);
    node.pass_ms(5500);
    assert!(has(&node));
    node.take_log();
    node.refused_probes = refused;
    node.now += Duration::from_secs(4);
    node.tick();
    node
}

fn lives_for(node: &Node) -> Duration {
    node.kernel.valid("10.0.0.5/32", node.now).expect("it is there")
}

#[test]
fn what_is_in_doubt_is_not_extended_before_three_probes_were_sent() {
    let mut node = doubting(3);
    let before = lives_for(&node);
    node.pass_ms(125);
    assert!(lives_for(&node) < before, "the last probe was sent 5 ms ago");
    node.pass_ms(10);
    assert!(lives_for(&node) > before);
    assert_eq!(probes(&mut node), (3, 3));
}

#[test]
fn a_host_that_answers_in_doubt_once_it_is_asked_has_the_address() {
    let mut node = doubting(3);
    node.pass_ms(105);
    node.heard(2, "10.0.0.5", STRANGER, Heard::Answer);
    node.pass_ms(100);
    assert!(!has(&node));
}

/// Otherwise the kernel would drop what no other node has.
#[test]
fn a_doubt_ends_though_the_interface_sends_nothing() {
    let mut node = doubting(usize::MAX);
    node.pass_ms(400);
    assert!(lives_for(&node) > Duration::from_secs(11));
    node.pass_ms(60_000);
    assert!(has(&node) && lives_for(&node) > Duration::from_secs(10));
    assert_eq!(probes(&mut node), (8, 0));
}
