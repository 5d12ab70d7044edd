//! A node that was silent is heard again: a switch has its uplink back, and clients are behind it, too.

use super::*;

fn burst(log: &[String]) -> usize {
    log.iter().filter(|line| *line == "announce eth0 10.0.0.5").count()
}

#[test]
fn what_came_here_meanwhile_is_announced_anew_and_what_was_here_before_is_not() {
    let views = [seated("web", "10.0.0.5", "node-3", 4), seated("old", "10.0.0.6", "node-1", 3)];
    let mut cluster = Cluster::new(&ALL, &views);
    let facts = NodeFacts { uid: "u-3".into(), ..FACTS };
    cluster.node.feed(Input::Node("node-3".into(), Some(facts)));
    let two = ("node-2", "10.0.0.2");
    cluster.quiet(2000, &[("node-3", "10.0.0.5"), ("node-3", "10.0.0.3"), two], &ALL);
    cluster.quiet(300, &[two], &ALL);
    cluster.won();
    cluster.quiet(2000, &[two], &ALL);
    assert!(cluster.has());
    cluster.node.take_log();
    // It reads the API, and has withdrawn the address.
    cluster.quiet(1200, &[("node-3", "10.0.0.3"), two], &ALL);
    let log = cluster.node.take_log();
    assert_eq!(burst(&log), 5, "{log:?}");
    assert!(!log.contains(&"announce eth0 10.0.0.6".to_owned()), "{log:?}");
    cluster.quiet(5000, &[("node-3", "10.0.0.3"), two], &ALL);
    assert_eq!(burst(&cluster.node.take_log()), 0, "once");
}
