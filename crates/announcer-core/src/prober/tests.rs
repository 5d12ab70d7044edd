use l2_types::handshake::SynAnswer;

use super::*;

const US: Mac = Mac::new([2, 0, 0, 0, 0, 1]);
const THEM: Mac = Mac::new([2, 0, 0, 0, 0, 2]);
const LINK: u32 = 7;

fn target(at: &str) -> Target {
    let at: SocketAddr = at.parse().unwrap();
    let source = if at.is_ipv4() { "10.0.0.1" } else { "fd00::1" };
    Target {
        service: ServiceKey::new("default", "web"),
        at,
        owner: "node-1".into(),
        link: LINK,
        mac: US,
        source: source.parse().unwrap(),
        first: true,
    }
}

/// A prober and whoever it asks.
struct Lan {
    prober: Prober,
    now: Instant,
    /// How each address answers.
    answers: BTreeMap<SocketAddr, Option<SynAnswer>>,
    /// Addresses that somebody has.
    present: bool,
    syns: Vec<(Instant, Handshake)>,
    resets: usize,
    questions: usize,
    ended: Vec<Outcome>,
    found: Vec<(Outcome, u32)>,
}

impl Lan {
    fn with(targets: &[&str]) -> Self {
        let now = Instant::now();
        let mut prober = Prober::new(now, 42);
        let targets: Targets = targets.iter().map(|at| target(at)).map(|target| (target.at, target)).collect();
        let answers = targets.keys().map(|at| (*at, Some(SynAnswer::Accepted))).collect();
        prober.watch(now, targets);
        Self {
            prober,
            now,
            answers,
            present: true,
            syns: Vec::new(),
            resets: 0,
            questions: 0,
            ended: Vec::new(),
            found: Vec::new(),
        }
    }

    fn take(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Send { link, traffic: Traffic::Handshake | Traffic::Handshake6, frame } => {
                    assert_eq!(link, LINK);
                    self.segment(&frame);
                }
                Output::Send { frame, .. } => {
                    self.questions += 1;
                    if self.present {
                        let heard = self.prober.heard(self.now, LINK, &there(&frame));
                        self.take(heard);
                    }
                }
                Output::Ended { outcome, after } => {
                    assert_eq!(after.is_some(), matches!(outcome, Outcome::Served | Outcome::Refused));
                    self.ended.push(outcome);
                }
                Output::Found(finding) => self.found.push((finding.outcome, finding.failures)),
            }
        }
    }

    fn segment(&mut self, frame: &[u8]) {
        let packet = etherparse::SlicedPacket::from_ethernet(frame).unwrap();
        let Some(etherparse::TransportSlice::Tcp(tcp)) = &packet.transport else { panic!("{packet:?}") };
        if tcp.rst() {
            self.resets += 1;
            return;
        }
        let (source, destination): (IpAddr, IpAddr) = match packet.net.as_ref().unwrap() {
            etherparse::NetSlice::Ipv4(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
            etherparse::NetSlice::Ipv6(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
            other @ etherparse::NetSlice::Arp(_) => panic!("{other:?}"),
        };
        let asks = Handshake {
            source_mac: US,
            destination_mac: THEM,
            source: SocketAddr::new(source, tcp.source_port()),
            destination: SocketAddr::new(destination, tcp.destination_port()),
            sequence: tcp.sequence_number(),
        };
        self.syns.push((self.now, asks));
        if let Some(answer) = self.answers[&asks.destination] {
            let heard = self.prober.heard(self.now, LINK, &reply(&asks, answer));
            self.take(heard);
        }
    }

    /// Lets so much time pass, and each timer be judged in time.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.prober.deadline().filter(|at| *at < end) {
            self.now = self.now.max(at);
            let outputs = self.prober.tick(self.now);
            self.take(outputs);
        }
        self.now = end;
    }
}

/// What the owner answers to a question for its address.
fn there(question: &[u8]) -> Vec<u8> {
    if let Some(asked) = arp::parse_frame(question) {
        return Arp::answer(&asked.arp, THEM).frame(US).to_vec();
    }
    let asked = ndp::parse_frame(question).unwrap();
    let message =
        Message::Advertisement { router: false, solicited: true, override_entry: true, target_mac: Some(THEM) };
    let target = asked.ndp.target;
    Ndp { source: target, destination: asked.ndp.source, target, message }.frame(THEM, US)
}

/// What comes back to a SYN.
fn reply(asks: &Handshake, answer: SynAnswer) -> Vec<u8> {
    let ethernet = etherparse::PacketBuilder::ethernet2(THEM.octets(), US.octets());
    let ip = match (asks.destination.ip(), asks.source.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets(), 64),
        _ => unreachable!(),
    };
    let tcp = ip.tcp(asks.destination.port(), asks.source.port(), 1, 1000).ack(asks.sequence.wrapping_add(1));
    let tcp = if answer == SynAnswer::Accepted { tcp.syn() } else { tcp.rst() };
    let mut frame = Vec::new();
    tcp.write(&mut frame, &[]).unwrap();
    frame
}

const WEB: &str = "10.0.0.5:80";

fn web() -> SocketAddr {
    WEB.parse().unwrap()
}

#[test]
fn one_that_is_served_is_asked_every_five_seconds_and_the_neighbour_only_once() {
    for at in [WEB, "[fd00::5]:80"] {
        let mut lan = Lan::with(&[at]);
        lan.pass(Duration::from_secs(26));
        assert_eq!((lan.syns.len(), lan.resets, lan.questions), (6, 6, 1), "{at}");
        assert_eq!((&lan.ended[..], &lan.found[..]), (&[Outcome::Served; 6][..], &[(Outcome::Served, 0)][..]));
        let ports: std::collections::BTreeSet<u16> = lan.syns.iter().map(|(_, asks)| asks.source.port()).collect();
        assert!(ports.len() == 6 && ports.iter().all(|port| PORTS.contains(port)), "each from a port of its own");
        let numbers: std::collections::BTreeSet<u32> = lan.syns.iter().map(|(_, asks)| asks.sequence).collect();
        assert_eq!(numbers.len(), 6);
    }
}

#[test]
fn many_are_asked_one_after_the_other_and_never_more_than_fifty_a_second() {
    for (count, times, gap) in [(5, 10, 1000), (250, 2, 20), (1000, 1, 20)] {
        let all: Vec<String> = (0..count).map(|n| format!("10.0.{}.{}:80", n / 250, n % 250 + 2)).collect();
        let mut lan = Lan::with(&all.iter().map(String::as_str).collect::<Vec<_>>());
        lan.pass(Duration::from_millis(gap * count * times - 1));
        assert_eq!(lan.syns.len(), usize::try_from(count * times).unwrap());
        let gaps = lan.syns.windows(2).map(|two| two[1].0 - two[0].0);
        assert_eq!(gaps.min(), Some(Duration::from_millis(gap)), "{count}");
    }
}

#[test]
fn three_misses_in_a_row_are_told_once_and_one_answer_ends_it() {
    for (answer, outcome) in [(None, Outcome::Silent), (Some(SynAnswer::Refused), Outcome::Refused)] {
        let mut lan = Lan::with(&[WEB]);
        lan.pass(Duration::from_secs(2));
        lan.answers.insert(web(), answer);
        lan.pass(Duration::from_secs(10));
        assert_eq!((lan.found.len(), lan.prober.unserved()), (1, 0), "two misses say nothing");
        lan.pass(Duration::from_secs(5));
        assert_eq!((lan.found[1], lan.prober.unserved()), ((outcome, 3), 1));
        lan.pass(Duration::from_mins(1));
        assert_eq!(&lan.found[2..], [(outcome, PERSISTS)], "and once more, for the second in line");
        lan.answers.insert(web(), Some(SynAnswer::Accepted));
        lan.pass(Duration::from_secs(6));
        assert_eq!((&lan.found[3..], lan.prober.unserved()), (&[(Outcome::Served, 0)][..], 0));
    }
}

#[test]
fn what_is_served_now_and_then_is_served() {
    let mut lan = Lan::with(&[WEB]);
    for n in 0..12 {
        let answer = (n % 3 == 0).then_some(SynAnswer::Accepted);
        lan.answers.insert(web(), answer);
        lan.pass(Duration::from_secs(5));
    }
    assert_eq!(lan.found, [(Outcome::Served, 0)]);
}

#[test]
fn how_it_is_missed_must_be_steady_to_be_told() {
    let mut lan = Lan::with(&[WEB]);
    for n in 0..9 {
        lan.answers.insert(web(), (n % 2 == 0).then_some(SynAnswer::Refused));
        lan.pass(Duration::from_secs(5));
    }
    assert_eq!(lan.found, [(Outcome::Refused, 3), (Outcome::Refused, 6)]);
    lan.answers.insert(web(), None);
    lan.pass(Duration::from_secs(16));
    assert_eq!(lan.found[2..], [(Outcome::Silent, 12)]);
}

#[test]
fn an_address_that_nobody_has_is_asked_for_and_found_when_it_is_back() {
    let mut lan = Lan::with(&[WEB]);
    lan.present = false;
    lan.pass(Duration::from_secs(12));
    assert_eq!((lan.syns.len(), lan.questions), (0, 6), "each question is sent twice");
    assert_eq!((&lan.found[..], &lan.ended[..]), (&[(Outcome::NoNeighbor, 3)][..], &[Outcome::NoNeighbor; 3][..]));
    lan.present = true;
    lan.pass(Duration::from_secs(5));
    assert_eq!(lan.found[1..], [(Outcome::Served, 0)]);
}

#[test]
fn a_frame_that_is_lost_is_sent_again_and_a_silent_neighbour_is_asked_for_anew() {
    let mut lan = Lan::with(&[WEB]);
    lan.answers.insert(web(), None);
    lan.pass(Duration::from_secs(4));
    let [(first, one), (second, two)] = lan.syns[..] else { panic!("{:?}", lan.syns) };
    assert!(one == two && second - first == Duration::from_millis(300), "the same segment");
    assert_eq!((lan.questions, lan.ended.len()), (1, 1));
    lan.pass(Duration::from_secs(4));
    assert_eq!(lan.questions, 2, "it may be somewhere else by now");
}

#[test]
fn only_the_answer_to_the_question_that_is_open_counts() {
    let mut lan = Lan::with(&[WEB]);
    lan.answers.insert(web(), None);
    lan.pass(Duration::from_millis(100));
    let asks = lan.syns[0].1;
    let port = SocketAddr::new(asks.source.ip(), asks.source.port() + 1);
    let other = SocketAddr::new("10.0.0.6".parse().unwrap(), 80);
    for (name, wrong, link) in [
        ("another number", Handshake { sequence: asks.sequence + 1, ..asks }, LINK),
        ("another port of ours", Handshake { source: port, ..asks }, LINK),
        ("another address", Handshake { destination: other, ..asks }, LINK),
        ("another interface", asks, LINK + 1),
    ] {
        assert_eq!(lan.prober.heard(lan.now, link, &reply(&wrong, SynAnswer::Accepted)), [], "{name}");
    }
    assert_eq!(lan.prober.heard(lan.now, LINK, &reply(&asks, SynAnswer::Accepted)).len(), 3);
    assert_eq!(lan.prober.heard(lan.now, LINK, &reply(&asks, SynAnswer::Accepted)), [], "it is answered");
}

#[test]
fn who_was_not_there_in_time_has_seen_nothing() {
    let mut lan = Lan::with(&[WEB]);
    lan.answers.insert(web(), None);
    for _ in 0..9 {
        lan.pass(Duration::from_millis(1));
        // The machine stands still.
        lan.now += Duration::from_secs(7);
        let outputs = lan.prober.tick(lan.now);
        lan.take(outputs);
    }
    assert!(lan.ended.is_empty() && lan.found.is_empty(), "{:?} {:?}", lan.ended, lan.found);
    assert!(lan.syns.len() > 8);
}

#[test]
fn another_owner_is_asked_for_anew_and_gets_its_own_three_misses() {
    let mut lan = Lan::with(&[WEB]);
    lan.answers.insert(web(), None);
    lan.pass(Duration::from_secs(9));
    let moved = Target { owner: "node-2".into(), ..target(WEB) };
    lan.prober.watch(lan.now, [(web(), moved.clone())].into());
    lan.pass(Duration::from_secs(5));
    assert_eq!(lan.found, [], "two of the former owner's count no more");
    lan.pass(Duration::from_secs(11));
    assert_eq!(lan.found, [(Outcome::Silent, 3)]);
    // What is known stays, and ends with an answer.
    lan.prober.watch(lan.now, [(web(), target(WEB))].into());
    assert_eq!(lan.prober.unserved(), 1);
    lan.answers.insert(web(), Some(SynAnswer::Accepted));
    lan.pass(Duration::from_secs(6));
    assert_eq!(lan.found[1..], [(Outcome::Served, 0)]);
    lan.prober.watch(lan.now, [(web(), Target { first: false, ..target(WEB) })].into());
    lan.pass(Duration::from_secs(20));
    assert_eq!(lan.found.len(), 2, "that another one tells is no news of it");
    lan.prober.watch(lan.now, Targets::new());
    assert_eq!((lan.prober.deadline(), lan.prober.unserved(), lan.prober.listens().count()), (None, 0, 0));
}

#[test]
fn sockets_of_one_family_are_needed_for_it() {
    let lan = Lan::with(&[WEB, "[fd00::5]:80"]);
    let needed: Vec<(u32, Traffic)> = lan.prober.listens().collect();
    let all = [Traffic::Arp, Traffic::Handshake, Traffic::NeighborDiscovery, Traffic::Handshake6];
    assert_eq!(needed, all.map(|traffic| (LINK, traffic)));
}
