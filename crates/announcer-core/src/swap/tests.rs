use super::connections::{FIRST_PATIENCE, LEARNT_FOR};
use super::*;
use crate::ownership::node::Term;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn owner_record(host: &str, term: u64) -> OwnerRecord {
    OwnerRecord { host: host.into(), term: Term(term) }
}

fn swap() -> Swap {
    Swap { uid: Uid("u".into()), expect: Some(owner_record("node-1", 3)), owner_record: owner_record("node-2", 4) }
}

fn web() -> ServiceKey {
    ServiceKey::new("default", "web")
}

/// One Service behind some API servers, and a network that takes its time.
struct Api {
    start: Instant,
    now: Instant,
    swaps: Swaps<u64>,
    standing: OwnerRecord,
    uid: &'static str,
    version: u64,
    /// How long a request over this connection takes, by its number; absent: it is never answered.
    takes: Box<dyn Fn(u64) -> Option<Duration>>,
    /// What a request is answered with instead.
    fails: Box<dyn FnMut(u64, bool) -> Option<SwapAnswer<u64>>>,
    /// What will be answered, by when.
    coming: BTreeMap<(Instant, u64), (ServiceKey, SwapRequest<u64>, u64)>,
    opened: Vec<u64>,
    closed: Vec<u64>,
    sent: Vec<(u64, bool)>,
    /// Requests that are lost, before others are answered.
    lost: usize,
    told: Vec<(Duration, Swapped)>,
}

impl Api {
    fn new(takes: impl Fn(u64) -> Option<Duration> + 'static) -> Self {
        let start = Instant::now();
        Self {
            start,
            now: start,
            swaps: Swaps::default(),
            standing: owner_record("node-1", 3),
            uid: "u",
            version: 1,
            takes: Box::new(takes),
            fails: Box::new(|_, _| None),
            coming: BTreeMap::new(),
            opened: Vec::new(),
            closed: Vec::new(),
            sent: Vec::new(),
            lost: 0,
            told: Vec::new(),
        }
    }

    fn ask(&mut self, swap: Swap) {
        self.swaps.ask(self.now, web(), swap);
        self.act();
    }

    fn act(&mut self) {
        for act in self.swaps.acts() {
            match act {
                SwapAct::Open { connection, .. } => self.opened.push(connection),
                SwapAct::Close(connection) => self.closed.push(connection),
                SwapAct::Send { id, connection, key, ask } => {
                    self.sent.push((connection, matches!(ask, SwapRequest::Write(..))));
                    let is_lost = self.lost > 0;
                    self.lost = self.lost.saturating_sub(1);
                    if let Some(takes) = (self.takes)(connection).filter(|_| !is_lost) {
                        self.coming.insert((self.now + takes, id), (key, ask, connection));
                    }
                }
                SwapAct::Drop(id) => self.coming.retain(|(_, other), _| *other != id),
                SwapAct::Tell(_, _, swapped) => self.told.push((self.now - self.start, swapped)),
            }
        }
    }

    /// Until nothing is under way, or for so long.
    fn run(&mut self, longest: Duration) {
        let end = self.now + longest;
        loop {
            let answer = self.coming.keys().next().map(|(at, _)| *at);
            let timer = self.swaps.deadline(self.now);
            let Some(next) = answer.into_iter().chain(timer).min().filter(|next| *next <= end) else { return };
            assert!(next >= self.now, "a timer in the past is never over");
            self.now = next;
            if answer == Some(next) {
                let ((_, id), (_, ask, connection)) = self.coming.pop_first().unwrap();
                let answer = self.answer(connection, ask);
                self.swaps.answered(self.now, id, answer);
            } else {
                self.swaps.tick(self.now);
                assert!(self.swaps.deadline(self.now).is_none_or(|at| at > self.now), "what was due is done");
            }
            self.act();
        }
    }

    fn answer(&mut self, connection: u64, ask: SwapRequest<u64>) -> SwapAnswer<u64> {
        if let Some(answer) = (self.fails)(connection, matches!(ask, SwapRequest::Write(..))) {
            return answer;
        }
        match ask {
            SwapRequest::Read => SwapAnswer::Found(Some(FoundService {
                uid: Uid(self.uid.into()),
                owner_record: Some(self.standing.clone()),
                object: self.version,
            })),
            SwapRequest::Write(version, _) if version != self.version => SwapAnswer::Conflict,
            SwapRequest::Write(_, swap) => {
                self.version += 1;
                self.standing = swap.owner_record;
                SwapAnswer::Written
            }
        }
    }
}

/// One that failed before: requests were given up after 100 ms, then after 300 ms, four times, for ever.
#[test]
fn an_api_that_is_slow_for_everybody_lets_a_swap_through_with_few_new_connections() {
    for (takes, connections) in [(ms(50), 0), (ms(400), 1), (ms(1000), 2), (ms(4000), 4), (ms(9000), 6)] {
        let mut api = Api::new(move |_| Some(takes));
        api.ask(swap());
        api.run(Duration::from_mins(1));
        assert_eq!(api.told, [(takes * 2, Swapped::Won)], "{takes:?}");
        assert_eq!(api.opened.len(), connections, "{takes:?}");
        assert_eq!(api.opened, api.closed, "none stays open");
        // The next one knows that it takes so long.
        (api.told, api.standing, api.start) = (Vec::new(), owner_record("node-1", 3), api.now);
        api.ask(swap());
        api.run(Duration::from_mins(1));
        assert_eq!(
            (api.told.as_slice(), api.opened.len()),
            (&[(takes * 2, Swapped::Won)][..], connections),
            "{takes:?}"
        );
    }
}

#[test]
fn an_api_that_was_slow_is_trusted_anew_a_minute_later() {
    let mut api = Api::new(|connection| (connection == USUAL).then_some(ms(1000)));
    api.ask(swap());
    api.run(Duration::from_mins(1));
    assert_eq!(api.swaps.patience(api.now), ms(3000));
    api.run(Duration::from_mins(1));
    assert_eq!(api.swaps.patience(api.now + LEARNT_FOR), FIRST_PATIENCE);
}

#[test]
fn a_dead_api_server_costs_a_swap_a_tenth_of_a_second_and_the_next_ones_nothing() {
    let mut api = Api::new(|connection| (connection != USUAL).then_some(ms(5)));
    api.ask(swap());
    api.run(Duration::from_mins(1));
    assert_eq!(api.told, [(ms(110), Swapped::Won)]);
    let found = api.opened[0];
    assert_eq!((api.opened.len(), api.closed.len()), (1, 0));
    (api.told, api.standing, api.start) = (Vec::new(), owner_record("node-1", 3), api.now);
    api.ask(swap());
    api.run(Duration::from_mins(1));
    assert_eq!(api.told, [(ms(10), Swapped::Won)], "it begins there");
    // That one dies too: the usual way may be the better one again.
    api.takes = Box::new(|connection| (connection == USUAL).then_some(ms(5)));
    (api.told, api.standing, api.start) = (Vec::new(), owner_record("node-1", 3), api.now);
    api.ask(swap());
    api.run(Duration::from_mins(1));
    assert_eq!(api.told, [(ms(110), Swapped::Won)]);
    assert_eq!((api.opened.len(), api.closed), (1, vec![found]));
}

#[test]
fn of_three_dead_servers_the_fourth_answers() {
    // The usual one and the first two others.
    let mut api = Api::new(|_| None);
    api.ask(swap());
    api.run(ms(999));
    let third = api.opened.len();
    assert_eq!((third, api.opened.len() - api.closed.len()), (2, 1), "one at a time");
    api.takes = Box::new(|_| Some(ms(5)));
    api.run(Duration::from_mins(1));
    assert_eq!(api.told, [(ms(100 + 300 + 600 + 10), Swapped::Won)]);
}

#[test]
fn two_hundred_swaps_share_the_second_connection() {
    let mut api = Api::new(|connection| (connection != USUAL).then_some(ms(5)));
    for n in 0..200 {
        api.swaps.ask(api.now, ServiceKey::new("default", format!("web{n}")), swap());
    }
    api.act();
    api.run(ms(500));
    assert_eq!((api.opened.len(), api.told.len()), (1, 200));
}

#[test]
fn an_api_that_is_away_is_told_after_ten_seconds_and_asked_again_when_it_is_back() {
    let mut api = Api::new(|_| None);
    api.ask(swap());
    api.run(Duration::from_mins(1));
    assert_eq!(api.told, [(LIMIT, Swapped::Failed("no answer within 10s".into()))]);
    assert_eq!((api.opened.len(), &api.opened), (7, &api.closed), "after 0.1, 0.4, 1, 2.2, 4.6, 7 and 9.4 s");
    (api.told, api.start) = (Vec::new(), api.now);
    api.takes = Box::new(|_| Some(ms(5)));
    api.ask(swap());
    api.run(Duration::from_mins(1));
    assert_eq!(api.told, [(ms(10), Swapped::Won)]);
}

#[test]
fn a_failure_says_why_the_last_request_failed() {
    let mut api = Api::new(|_| Some(ms(5)));
    api.fails = Box::new(|connection, _| Some(SwapAnswer::Failed(format!("refused by {}", connection.min(1)))));
    api.ask(swap());
    api.run(Duration::from_mins(1));
    assert_eq!(api.told, [(ms(20), Swapped::Failed("refused by 1".into()))]);
    assert_eq!(api.sent.len(), 4, "once on the usual connection, then on others");
    assert_eq!(api.opened.len(), 3);
    assert_eq!(api.opened, api.closed);
}

#[test]
fn only_a_record_that_is_as_believed_is_replaced() {
    for (name, standing, writes) in [
        ("as believed", owner_record("node-1", 3), true),
        ("older: somebody put it back", owner_record("node-9", 2), true),
        ("another owner of the same term", owner_record("node-3", 3), false),
        ("a newer owner", owner_record("node-3", 4), false),
    ] {
        let mut api = Api::new(|_| Some(ms(5)));
        api.standing = standing.clone();
        api.ask(swap());
        api.run(Duration::from_mins(1));
        let expected = if writes { Swapped::Won } else { Swapped::Other(standing) };
        assert_eq!(api.told, [(ms(if writes { 10 } else { 5 }), expected)], "{name}");
    }
}

/// Who reads its record may have given it up.
#[test]
fn a_read_writes_nothing_whatever_stands() {
    let (own, older, newer) = (owner_record("node-1", 3), owner_record("node-1", 2), owner_record("node-9", 4));
    for (standing, told) in [
        (None, Swapped::Unrecorded),
        (Some(older.clone()), Swapped::Other(older)),
        (Some(own.clone()), Swapped::Won),
        (Some(newer.clone()), Swapped::Other(newer)),
    ] {
        let (now, mut swaps) = (Instant::now(), Swaps::default());
        swaps.ask(now, web(), Swap { expect: Some(own.clone()), owner_record: own.clone(), ..swap() });
        let Some(SwapAct::Send { id, .. }) = swaps.acts().pop() else { panic!("it is read") };
        let found = FoundService { uid: Uid("u".into()), owner_record: standing.clone(), object: 1 };
        swaps.answered(now, id, SwapAnswer::Found(Some(found)));
        let acts = swaps.acts();
        let [SwapAct::Tell(_, _, swapped)] = acts.as_slice() else { panic!("{standing:?}: {acts:?}") };
        assert_eq!(*swapped, told);
    }
}

#[test]
fn a_write_whose_answer_was_lost_is_recognised() {
    let mut api = Api::new(|_| Some(ms(5)));
    api.standing = swap().owner_record;
    api.ask(swap());
    api.run(Duration::from_mins(1));
    assert_eq!((api.told.as_slice(), api.sent.as_slice()), (&[(ms(5), Swapped::Won)][..], &[(USUAL, false)][..]));
}

#[test]
fn another_service_of_the_same_name_is_left_alone() {
    let mut api = Api::new(|_| Some(ms(5)));
    api.uid = "new";
    api.ask(swap());
    api.run(Duration::from_mins(1));
    assert_eq!((api.told.as_slice(), api.sent.as_slice()), (&[(ms(5), Swapped::Gone)][..], &[(USUAL, false)][..]));
}

#[test]
fn what_an_api_server_refuses_is_asked_of_no_other() {
    let mut api = Api::new(|_| Some(ms(5)));
    api.fails = Box::new(|_, write| write.then(|| SwapAnswer::Refused("annotations too long".into())));
    api.ask(swap());
    api.run(Duration::from_mins(1));
    assert_eq!(api.told, [(ms(10), Swapped::Refused("annotations too long".into()))]);
    assert_eq!(api.sent, [(USUAL, false), (USUAL, true)]);
}

#[test]
fn a_conflict_is_read_again_at_once_and_decided_by_what_stands_then() {
    for (standing, expected, took) in [
        (owner_record("node-1", 3), Swapped::Won, 20),
        (owner_record("node-3", 4), Swapped::Other(owner_record("node-3", 4)), 15),
    ] {
        let mut api = Api::new(|_| Some(ms(5)));
        let mut once = true;
        api.fails = Box::new(move |_, write| (write && std::mem::take(&mut once)).then_some(SwapAnswer::Conflict));
        api.ask(swap());
        api.run(ms(7));
        api.standing = standing;
        api.run(Duration::from_mins(1));
        assert_eq!(api.told, [(ms(took), expected)]);
    }
}

#[test]
fn whoever_writes_the_service_all_the_time_makes_the_engine_decide_anew() {
    let mut api = Api::new(|_| Some(ms(5)));
    api.fails = Box::new(|_, write| write.then_some(SwapAnswer::Conflict));
    api.ask(swap());
    api.run(Duration::from_mins(1));
    assert_eq!(api.told, [(ms(40), Swapped::Failed("somebody else writes the Service all the time".into()))]);
}

#[test]
fn a_second_connection_that_has_answered_once_and_hangs_then_is_left_like_one_that_never_answered() {
    let (second, asked) = (std::cell::Cell::new(USUAL), std::cell::Cell::new(0));
    let mut api = Api::new(move |connection| {
        if second.get() == USUAL {
            second.set(connection);
        }
        if connection == second.get() {
            asked.set(asked.get() + 1);
        }
        let hangs = connection == USUAL || (connection == second.get() && asked.get() > 1);
        (!hangs).then_some(ms(20))
    });
    api.ask(swap());
    api.run(Duration::from_mins(1));
    let [(took, Swapped::Won)] = api.told.as_slice() else { panic!("{:?}", api.told) };
    assert!(*took < ms(600), "{took:?}");
    assert_eq!(
        (api.opened.len(), api.opened == api.closed),
        (2, false),
        "the next one begins where an answer came from"
    );
}

/// The API was away, and has lost what was asked first over both connections.
#[test]
fn what_the_api_has_lost_is_asked_again_when_it_answers_what_was_asked_later() {
    let mut api = Api::new(|_| Some(ms(5)));
    api.lost = 2;
    api.ask(swap());
    api.run(ms(150));
    assert_eq!((api.sent.len(), api.told.len()), (2, 0), "over each connection once");
    api.swaps.ask(api.now, ServiceKey::new("default", "mail"), swap());
    api.act();
    api.run(ms(100));
    assert_eq!(api.told.iter().filter(|(_, swapped)| *swapped == Swapped::Won).count(), 2, "{:?}", api.told);
    let before = api.sent.len();
    api.run(Duration::from_secs(20));
    assert_eq!(api.sent.len(), before);
}
