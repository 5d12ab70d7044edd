use super::super::super::build::key;
use super::*;

struct Desk {
    scheduler: Scheduler,
    now: Instant,
}

impl Desk {
    fn new() -> Self {
        Self { scheduler: Scheduler::default(), now: Instant::now() }
    }

    fn ask(&mut self, name: &str, work: Work) -> Turn {
        self.ask_for(&format!("default/{name}"), name, work)
    }

    fn ask_for(&mut self, service: &str, name: &str, work: Work) -> Turn {
        self.scheduler.ask(self.now, name, &key(service), work)
    }

    fn pass(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
        self.scheduler.tick(self.now);
    }

    fn sent(&mut self, name: &str) {
        self.scheduler.sent(self.now, name);
    }

    fn wants_only(&mut self, service: &str, names: &[&str]) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        self.scheduler.wants_only(self.now, &key(&format!("default/{service}")), &names);
    }

    fn seen(&mut self, name: &str, seen: ObjectState) {
        self.scheduler.seen(self.now, name, seen);
    }

    fn called(&mut self) -> Vec<String> {
        self.scheduler.take_called().into_iter().map(|key| key.name).collect()
    }

    /// Who is called, one after the other, when each takes this long.
    fn order(&mut self, each_ms: u64, mut under_way: String) -> Vec<String> {
        let mut order = Vec::new();
        loop {
            self.sent(&under_way);
            self.pass(each_ms);
            let delete = self.scheduler.under_way[&under_way].delete;
            self.seen(&under_way, if delete { ObjectState::Gone } else { ObjectState::Ready });
            let Some(next) = self.called().pop() else { return order };
            order.push(next.clone());
            under_way = next;
        }
    }
}

#[test]
fn one_at_a_time_and_the_next_one_is_called_when_the_host_is_done() {
    let mut desk = Desk::new();
    assert_eq!(desk.ask("a", Work::CreateNew), Turn::Now);
    assert_eq!(desk.ask("b", Work::CreateNew), Turn::NotYet { ahead: 1 });
    assert_eq!(desk.ask("c", Work::CreateNew), Turn::NotYet { ahead: 2 });
    assert_eq!(desk.ask("c", Work::CreateNew), Turn::NotYet { ahead: 2 }, "asking again changes nothing");
    desk.sent("a");
    desk.seen("a", ObjectState::Working);
    assert!(desk.called().is_empty());
    desk.seen("a", ObjectState::Ready);
    assert_eq!(desk.called(), ["b"]);
    assert_eq!(desk.ask("b", Work::CreateNew), Turn::Now);
}

#[test]
fn new_services_go_before_the_backlog_and_that_before_deletions() {
    let mut desk = Desk::new();
    desk.ask("first", Work::Delete);
    for n in 0..3 {
        desk.ask(&format!("gone{n}"), Work::Delete);
        desk.ask(&format!("old{n}"), Work::CreateAgain);
    }
    for n in 0..2 {
        desk.ask(&format!("new{n}"), Work::CreateNew);
    }
    // The fifth turn is the oldest one's.
    assert_eq!(desk.order(400, "first".into()), ["new0", "new1", "old0", "gone0", "old1", "old2", "gone1", "gone2"]);
}

#[test]
fn who_waits_long_is_overtaken_by_who_comes_new_but_does_not_starve() {
    let mut desk = Desk::new();
    desk.ask("first", Work::CreateNew);
    desk.ask("patient", Work::CreateNew);
    desk.pass(1_000);
    desk.sent("first");
    desk.pass(4_500);
    desk.ask("new", Work::CreateNew);
    assert_eq!(desk.ask("newer", Work::CreateNew), Turn::NotYet { ahead: 3 });
    assert_eq!(desk.order(100, "first".into()), ["new", "newer", "patient"]);
}

#[test]
fn a_crowd_in_one_namespace_delays_the_services_of_another_by_one_turn() {
    for (work, newcomer) in [
        (Work::CreateNew, Work::CreateNew),
        (Work::CreateAgain, Work::CreateAgain),
        (Work::CreateAgain, Work::CreateNew),
        (Work::Delete, Work::Delete),
    ] {
        let mut desk = Desk::new();
        desk.ask("first", work);
        for n in 0..100 {
            desk.ask(&format!("crowd{n}"), work);
        }
        let ahead = if work == newcomer { 2 } else { 1 };
        assert_eq!(desk.ask_for("other/web", "web", newcomer), Turn::NotYet { ahead });
        let order = desk.order(400, "first".into());
        let place = order.iter().position(|name| name == "web");
        assert_eq!(place, Some(ahead - 1), "{work:?} {newcomer:?}: {:?}", &order[..5]);
    }
}

#[test]
fn what_is_deleted_in_one_name_and_wanted_again_in_another_leaves_nothing_behind() {
    let mut desk = Desk::new();
    desk.ask("busy", Work::CreateNew);
    desk.ask_for("vms/nobody", "web", Work::Delete);
    desk.ask_for("shop/web", "web", Work::CreateAgain);
    desk.ask("next", Work::CreateAgain);
    desk.scheduler.give_back(desk.now, "busy");
    assert_eq!(desk.called(), ["nobody", "web"], "both are woken: the one who asked first may not want it any more");
    desk.scheduler.give_back(desk.now, "web");
    assert_eq!(desk.called(), ["next"]);
    desk.scheduler.give_back(desk.now, "next");
    assert_eq!(desk.ask("later", Work::Delete), Turn::Now, "nothing is in its way");
    assert!(desk.scheduler.lanes.iter().all(|lane| lane.len() == 0));
}

#[test]
fn deletions_of_a_namespace_do_not_cost_its_creations_their_turn() {
    let mut desk = Desk::new();
    desk.ask("first", Work::CreateAgain);
    for n in 0..20 {
        desk.ask(&format!("gone{n}"), Work::Delete);
    }
    for n in 0..4 {
        desk.ask(&format!("own{n}"), Work::CreateAgain);
        for other in ["a", "b"] {
            let name = format!("{other}{n}");
            desk.ask_for(&format!("{other}/{name}"), &name, Work::CreateAgain);
        }
    }
    let order = desk.order(400, "first".into());
    let own: Vec<usize> = (0..4).filter_map(|n| order.iter().position(|name| *name == format!("own{n}"))).collect();
    // Every third turn of a creation is its own, and every fifth turn goes to the oldest request.
    assert_eq!(own, [0, 4, 7, 11], "{order:?}");
}

#[test]
fn a_place_is_free_after_five_seconds_or_when_the_host_refuses_or_the_request_failed() {
    let mut desk = Desk::new();
    for name in ["a", "b", "c", "d", "e"] {
        desk.ask(name, Work::CreateNew);
    }
    assert_eq!(desk.called(), [""; 0]);
    desk.sent("a");
    assert_eq!(desk.scheduler.deadline(), Some(desk.now + PLACE));
    desk.seen("a", ObjectState::Collided);
    desk.pass(4_999);
    assert_eq!(desk.called(), [""; 0]);
    desk.pass(1);
    assert_eq!(desk.called(), ["b"]);
    desk.sent("b");
    desk.seen("b", ObjectState::Refused);
    assert_eq!(desk.called(), ["c"]);
    desk.scheduler.give_back(desk.now, "c");
    assert_eq!(desk.called(), ["d"]);
    // Called, and does not come.
    desk.pass(5_000);
    assert_eq!(desk.called(), ["e"]);
}

#[test]
fn a_retry_is_backlog() {
    let mut desk = Desk::new();
    desk.ask("a", Work::CreateNew);
    desk.sent("a");
    desk.scheduler.give_back(desk.now, "a");
    desk.ask("busy", Work::CreateNew);
    desk.ask("a", Work::CreateNew);
    desk.ask("new", Work::CreateNew);
    assert_eq!(desk.order(100, "busy".into()), ["new", "a"]);
}

#[test]
fn what_is_not_wanted_any_more_leaves_the_line_and_gives_an_unused_place_back() {
    let mut desk = Desk::new();
    for name in ["a", "b", "c"] {
        desk.ask(name, Work::CreateNew);
    }
    desk.wants_only("b", &[]);
    desk.wants_only("a", &[]);
    assert_eq!(desk.called(), ["c"]);
    desk.sent("c");
    desk.wants_only("c", &[]);
    assert_eq!(desk.ask("d", Work::CreateNew), Turn::NotYet { ahead: 1 }, "what was sent is the host's matter");
    desk.scheduler.forget(desk.now, "c");
    assert_eq!(desk.called(), ["d"]);
}

#[test]
fn a_service_that_changes_its_mind_gives_back_every_turn_but_those_it_still_wants() {
    let mut desk = Desk::new();
    desk.ask("busy", Work::CreateNew);
    for name in ["p0", "p1", "p2"] {
        desk.ask_for("default/web", name, Work::CreateNew);
    }
    assert_eq!(desk.ask("next", Work::CreateNew), Turn::NotYet { ahead: 4 });
    desk.wants_only("web", &["p2"]);
    assert_eq!(desk.ask("next", Work::CreateNew), Turn::NotYet { ahead: 2 });
    desk.sent("busy");
    desk.seen("busy", ObjectState::Ready);
    assert_eq!(desk.called(), ["web"]);
    desk.wants_only("web", &["p3"]);
    assert_eq!(desk.called(), ["next"], "who was called for something else frees the place at once");
}

#[test]
fn a_deletion_holds_its_place_until_the_object_is_gone() {
    let mut desk = Desk::new();
    assert_eq!(desk.ask("a", Work::Delete), Turn::Now);
    desk.ask("b", Work::Delete);
    desk.sent("a");
    desk.seen("a", ObjectState::Ready);
    assert_eq!(desk.called(), [""; 0]);
    desk.seen("a", ObjectState::Gone);
    assert_eq!(desk.called(), ["b"]);
}

#[test]
fn a_fast_host_is_used_sixteen_at_a_time() {
    let mut desk = Desk::new();
    for n in 0..100 {
        desk.ask(&format!("s{n:02}"), Work::CreateNew);
    }
    for n in 0..10 {
        let name = format!("s{n:02}");
        desk.sent(&name);
        desk.pass(30);
        desk.seen(&name, ObjectState::Ready);
    }
    assert_eq!(desk.scheduler.window(), 16);
    assert_eq!(desk.called().len(), 9 + 16);
}
