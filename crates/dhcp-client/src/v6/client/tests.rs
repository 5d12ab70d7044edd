use dhcproto::v6::{DhcpOption, DhcpOptions, IAAddr, IANA, Message, OptionCode, Status, StatusCode, UnknownOption};
use dhcproto::{Decodable, Decoder, Encodable, Encoder};
use proptest::prelude::*;

use super::*;
use crate::Expiry;

const SERVER: &[u8] = b"server";
const DUID: &[u8] = b"client";

/// A server's reply to a message of the client.
#[derive(Debug, Clone, Copy)]
struct ServerMessage6<'a> {
    kind: MessageType,
    server: &'a [u8],
    /// Address and its valid lifetime; T1 and T2 are a half and four fifths of it.
    address: Option<(Ipv6Addr, u32)>,
    status: Option<Status>,
    /// SOL_MAX_RT in seconds.
    longest_wait: Option<u32>,
}

const REPLY: ServerMessage6<'static> =
    ServerMessage6 { kind: MessageType::Reply, server: SERVER, address: None, status: None, longest_wait: None };

struct Bench {
    client: Client,
    now: Instant,
    sent: Vec<Message>,
    said: Vec<Output>,
}

fn ip(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)
}

fn config() -> Config {
    Config {
        duid: DUID.to_vec(),
        mac: Mac::from([2, 0, 0, 0, 0, 1]),
        source: "fe80::1".parse().unwrap(),
        requested: None,
        remembered: None,
    }
}

impl Bench {
    fn new(config: Config) -> Self {
        let client = Client::new(config, 1).unwrap();
        Self { client, now: Instant::now(), sent: vec![], said: vec![] }
    }

    /// A client that has an address for a hundred seconds.
    fn bound() -> Self {
        let mut bench = Self::new(config());
        bench.feed(Input::Start);
        bench.answer(ServerMessage6 { kind: MessageType::Advertise, ..grant(1, 100) });
        bench.answer(grant(1, 100));
        bench.feed(Input::ProbeFree(ip(1)));
        assert_eq!(bench.client.state(), State::Bound);
        bench.said.clear();
        bench.sent.clear();
        bench
    }

    fn feed(&mut self, input: Input<'_>) {
        for output in self.client.step(self.now, input) {
            match output {
                Output::Send(frame) => {
                    let message = &frame[14 + 40 + 8..];
                    self.sent.push(Message::decode(&mut Decoder::new(message)).unwrap());
                }
                other => self.said.push(other),
            }
        }
        assert!(self.client.deadline().is_none_or(|at| at > self.now), "a timer stays due");
    }

    fn last(&self) -> &Message {
        self.sent.last().expect("something was sent")
    }

    /// The server answers the last message.
    fn answer(&mut self, answer: ServerMessage6<'_>) {
        let mut message = Message::new_with_id(answer.kind, self.last().xid());
        let status = |status| DhcpOption::StatusCode(StatusCode { status, msg: "its words".into() });
        let mut inner = DhcpOptions::new();
        let mut valid = 0;
        if let Some((addr, valid_life)) = answer.address {
            valid = valid_life;
            inner.insert(DhcpOption::IAAddr(IAAddr {
                addr,
                preferred_life: valid_life,
                valid_life,
                opts: DhcpOptions::new(),
            }));
        }
        let options = message.opts_mut();
        options.insert(DhcpOption::ClientId(DUID.to_vec()));
        options.insert(DhcpOption::ServerId(answer.server.to_vec()));
        if let Some(seconds) = answer.longest_wait {
            let value = seconds.to_be_bytes().to_vec();
            options.insert(DhcpOption::Unknown(UnknownOption::new(OptionCode::SolMaxRt, value)));
        }
        if let Some(fault) = answer.status {
            if fault == Status::NotOnLink {
                options.insert(status(fault));
            } else {
                inner.insert(status(fault));
            }
        }
        options.insert(DhcpOption::IANA(IANA { id: IAID, t1: valid / 2, t2: valid * 4 / 5, opts: inner }));
        let mut bytes = Vec::new();
        message.encode(&mut Encoder::new(&mut bytes)).unwrap();
        let mut frame = frame::build(Mac::from([2, 0, 0, 0, 0, 2]), "fe80::2".parse().unwrap(), &bytes);
        frame[14 + 40 + 2..14 + 40 + 4].copy_from_slice(&frame::CLIENT_PORT.to_be_bytes());
        self.feed(Input::Frame(&frame));
    }

    /// Lets time pass, timer by timer.
    fn pass(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        while let Some(at) = self.client.deadline().filter(|at| *at <= end) {
            self.now = at;
            self.feed(Input::Timer);
        }
        self.now = end;
    }

    fn lost(&self) -> Vec<&LostReason> {
        let losses = self.said.iter().filter_map(|output| match output {
            Output::Lost { reason, .. } => Some(reason),
            _ => None,
        });
        losses.collect()
    }

    fn kinds(&self) -> Vec<MessageType> {
        self.sent.iter().map(Message::msg_type).collect()
    }
}

fn grant(last: u16, valid: u32) -> ServerMessage6<'static> {
    ServerMessage6 { address: Some((ip(last), valid)), ..REPLY }
}

fn fault(status: Status) -> ServerMessage6<'static> {
    ServerMessage6 { status: Some(status), ..REPLY }
}

#[test]
fn four_messages_and_a_probe_bind_an_address() {
    let mut bench = Bench::new(Config { requested: Some(ip(9)), ..config() });
    bench.feed(Input::Start);
    assert_eq!(bench.last().msg_type(), MessageType::Solicit);
    let Some(DhcpOption::IANA(association)) = bench.last().opts().get(OptionCode::IANA) else { panic!("no IA_NA") };
    assert!(matches!(association.opts.get(OptionCode::IAAddr), Some(DhcpOption::IAAddr(wish)) if wish.addr == ip(9)));
    bench.answer(ServerMessage6 { kind: MessageType::Advertise, ..grant(1, 100) });
    assert_eq!(bench.last().msg_type(), MessageType::Request);
    assert_eq!(bench.last().opts().get(OptionCode::ServerId), Some(&DhcpOption::ServerId(SERVER.to_vec())));
    bench.answer(grant(1, 100));
    assert_eq!(bench.said, [Output::Probe(ip(1))]);
    bench.feed(Input::ProbeFree(ip(1)));
    assert!(matches!(&bench.said[1], Output::Bound(lease) if lease.address == ip(1) && lease.server == SERVER));
}

#[test]
fn answers_to_other_questions_and_of_other_servers_do_not_count() {
    let mut bench = Bench::new(config());
    bench.feed(Input::Start);
    bench.answer(grant(1, 100));
    assert_eq!(bench.client.state(), State::Selecting, "no advertisement");
    bench.answer(ServerMessage6 { kind: MessageType::Advertise, ..grant(1, 100) });
    bench.answer(ServerMessage6 { server: b"another", ..grant(1, 100) });
    assert_eq!(bench.client.state(), State::Requesting);
    let mut bench = Bench::bound();
    bench.pass(51);
    bench.answer(ServerMessage6 { server: b"another", ..grant(1, 100) });
    assert_eq!(bench.client.state(), State::Renewing);
    bench.sent.push(Message::new_with_id(MessageType::Renew, [0xff; 3]));
    bench.answer(grant(1, 100));
    assert_eq!(bench.client.state(), State::Renewing, "another transaction");
}

#[test]
fn the_lease_is_renewed_at_t1_with_its_server_and_rebound_at_t2_with_any() {
    let mut bench = Bench::bound();
    bench.pass(51);
    assert_eq!(bench.last().msg_type(), MessageType::Renew);
    assert!(bench.last().opts().get(OptionCode::ServerId).is_some());
    bench.pass(30);
    assert_eq!(bench.last().msg_type(), MessageType::Rebind);
    assert!(bench.last().opts().get(OptionCode::ServerId).is_none());
    let renews = bench.kinds().iter().filter(|kind| **kind == MessageType::Renew).count();
    assert!((2..6).contains(&renews), "{renews}");
    bench.answer(ServerMessage6 { server: b"another", ..grant(1, 100) });
    assert!(matches!(bench.said.last(), Some(Output::Renewed(lease)) if lease.server == b"another"));
    bench.pass(48);
    assert_eq!(bench.client.state(), State::Bound, "T1 counts from the new one");
}

#[test]
fn ten_lease_times_pass_without_losing_the_address() {
    let mut bench = Bench::bound();
    for _ in 0..20 {
        bench.now = bench.client.deadline().unwrap();
        bench.feed(Input::Timer);
        bench.answer(grant(1, 100));
    }
    assert!(bench.lost().is_empty() && bench.sent.len() == 20);
}

#[test]
fn a_lease_that_nobody_extends_ends_to_the_moment() {
    let mut bench = Bench::bound();
    bench.pass(99);
    assert!(bench.client.lease().is_some());
    bench.pass(1);
    assert_eq!(bench.lost(), [&LostReason::Expired]);
    assert_eq!((bench.client.lease(), bench.last().msg_type()), (None, MessageType::Solicit));
    assert!(bench.said.iter().any(|output| matches!(output, Output::Report(Report::NoAnswer { .. }))));
}

#[test]
fn a_server_that_lost_its_book_is_asked_for_the_same_address_without_a_gap() {
    let mut bench = Bench::bound();
    bench.pass(51);
    bench.answer(fault(Status::NoBinding));
    assert_eq!(bench.last().msg_type(), MessageType::Request);
    bench.answer(grant(1, 100));
    assert!(bench.lost().is_empty());
    assert!(matches!(bench.said.last(), Some(Output::Renewed(_))));
}

#[test]
fn an_address_that_is_taken_back_or_exchanged_is_lost_at_once() {
    for (answer, expected) in [
        (grant(1, 0), MessageType::Solicit),
        (fault(Status::NotOnLink), MessageType::Solicit),
        (grant(2, 100), MessageType::Renew),
    ] {
        let mut bench = Bench::bound();
        bench.pass(51);
        bench.answer(answer);
        assert_eq!(bench.lost().len(), 1);
        assert_eq!(bench.last().msg_type(), expected);
        assert_eq!(bench.client.lease(), None);
    }
}

#[test]
fn a_server_without_addresses_is_told_and_asked_less_and_less() {
    let mut bench = Bench::new(config());
    bench.feed(Input::Start);
    bench.answer(ServerMessage6 { kind: MessageType::Advertise, ..fault(Status::NoAddrsAvail) });
    assert_eq!(bench.said, [Output::Report(Report::Refused { message: "its words".into() })]);
    bench.pass(600);
    assert!((8..20).contains(&bench.sent.len()), "{}", bench.sent.len());
    // One that offers and then refuses does not make us spin.
    for _ in 0..50 {
        if bench.client.state() == State::Selecting {
            bench.answer(ServerMessage6 { kind: MessageType::Advertise, ..grant(1, 100) });
            bench.answer(fault(Status::UnspecFail));
        }
        bench.pass(1);
    }
    assert!(bench.sent.len() < 60, "{}", bench.sent.len());
}

#[test]
fn an_address_in_use_is_declined_and_another_one_asked_for_later() {
    let mut bench = Bench::new(config());
    bench.feed(Input::Start);
    bench.answer(ServerMessage6 { kind: MessageType::Advertise, ..grant(1, 100) });
    bench.answer(grant(1, 100));
    bench.feed(Input::ProbeConflict { address: ip(1), mac: Mac::from([2, 0, 0, 0, 0, 9]) });
    assert_eq!(bench.last().msg_type(), MessageType::Decline);
    bench.pass(9);
    bench.feed(Input::Restart);
    assert_eq!(bench.last().msg_type(), MessageType::Decline, "nothing shortens the ten seconds");
    bench.pass(2);
    assert_eq!(bench.last().msg_type(), MessageType::Solicit);
}

/// RFC 8415 18.2.9: also where the answer grants nothing.
#[test]
fn a_server_says_how_long_to_wait_between_two_solicits_at_most() {
    for (named, longest) in [(None, 64), (Some(59), 64), (Some(600), 600), (Some(60), 60), (Some(86_401), 64)] {
        let mut bench = Bench::new(config());
        bench.feed(Input::Start);
        let nothing_left = ServerMessage6 { kind: MessageType::Advertise, ..fault(Status::NoAddrsAvail) };
        bench.answer(ServerMessage6 { longest_wait: named, ..nothing_left });
        bench.pass(6000);
        let before = bench.sent.len();
        bench.pass(20 * longest);
        let asked = (bench.sent.len() - before) as u64;
        assert!((18..=23).contains(&asked), "{named:?}: asked {asked} times");
    }
}

#[test]
fn a_lost_link_silences_the_client_and_a_returned_one_confirms_the_lease() {
    let mut bench = Bench::bound();
    bench.feed(Input::LinkLost);
    bench.pass(20);
    assert!(bench.sent.is_empty() && bench.client.lease().is_some());
    bench.feed(Input::Restart);
    assert_eq!(bench.last().msg_type(), MessageType::Confirm);
    bench.answer(REPLY);
    assert_eq!(bench.client.state(), State::Bound);
    bench.feed(Input::Restart);
    bench.answer(fault(Status::NotOnLink));
    assert!(matches!(bench.lost()[..], [LostReason::Refused { .. }]));
    // Silence means that it may be used on.
    let mut bench = Bench::bound();
    bench.feed(Input::Restart);
    bench.pass(15);
    assert_eq!(bench.client.state(), State::Bound);
    assert!(bench.lost().is_empty());
}

#[test]
fn a_successor_uses_a_lease_that_still_runs_at_once_and_asks_for_it_beside() {
    let start = Instant::now();
    let remembered = |seconds| RememberedLease {
        address: ip(1),
        server: SERVER.to_vec(),
        expiry: Expiry::At(start + Duration::from_secs(seconds)),
    };
    let mut bench = Bench::new(Config { remembered: Some(remembered(60)), ..config() });
    bench.now = start;
    bench.feed(Input::Start);
    assert!(matches!(&bench.said[..], [Output::Bound(lease)] if lease.address == ip(1)));
    assert_eq!(bench.last().msg_type(), MessageType::Rebind);
    bench.answer(grant(1, 100));
    assert!(matches!(bench.said.last(), Some(Output::Renewed(_))));
    // Over: only a wish.
    let mut bench = Bench::new(Config { remembered: Some(remembered(0)), ..config() });
    bench.now = start + Duration::from_secs(1);
    bench.feed(Input::Start);
    assert!(bench.said.is_empty());
    assert_eq!(bench.last().msg_type(), MessageType::Solicit);
}

/// A client that goes on with the lease of another one, for a minute, and has asked all servers for it.
fn successor() -> Bench {
    let start = Instant::now();
    let expiry = Expiry::At(start + Duration::from_mins(1));
    let remembered = Some(RememberedLease { address: ip(1), server: SERVER.to_vec(), expiry });
    let mut bench = Bench::new(Config { remembered, ..config() });
    bench.now = start;
    bench.feed(Input::Start);
    assert_eq!(bench.kinds(), [MessageType::Rebind]);
    bench
}

fn by_another(answer: ServerMessage6<'static>) -> ServerMessage6<'static> {
    ServerMessage6 { server: b"another", ..answer }
}

#[test]
fn a_second_server_takes_nothing_away_that_the_first_one_still_grants() {
    let statuses = [Status::NoBinding, Status::NotOnLink, Status::NoAddrsAvail];
    for other in statuses.map(fault).into_iter().chain([grant(1, 0), grant(2, 100)]) {
        let mut bench = successor();
        bench.answer(by_another(other));
        assert_eq!(bench.kinds(), [MessageType::Rebind], "{other:?}: nobody else is asked");
        bench.answer(grant(1, 100));
        assert!(bench.lost().is_empty(), "{other:?}");
        assert_eq!((bench.client.state(), bench.client.lease().unwrap().address), (State::Bound, ip(1)));
        bench.pass(10);
        assert!(bench.lost().is_empty(), "{other:?}: it was answered");
    }
}

#[test]
fn a_second_server_that_refuses_is_believed_if_the_first_one_says_nothing() {
    for (other, lost_after_seconds) in [
        (fault(Status::NotOnLink), Some(5)),
        (grant(1, 0), Some(5)),
        (fault(Status::NoBinding), None),
        (grant(2, 100), None),
    ] {
        let mut bench = successor();
        bench.answer(by_another(other));
        bench.pass(1);
        assert!(bench.lost().is_empty(), "{other:?}");
        bench.pass(lost_after_seconds.unwrap_or(59) - 2);
        assert_eq!(bench.lost().len(), usize::from(lost_after_seconds.is_some()), "{other:?}");
        let told = bench.said.iter().filter(|output| matches!(output, Output::Report(Report::AddressIgnored { .. })));
        assert_eq!(told.count(), usize::from(other.address.is_some_and(|(address, _)| address == ip(2))), "{other:?}");
    }
}

#[test]
fn after_a_link_loss_a_second_server_may_confirm_the_address_and_refuses_it_in_vain() {
    let mut bench = Bench::bound();
    bench.feed(Input::Restart);
    bench.answer(by_another(fault(Status::NotOnLink)));
    bench.answer(REPLY);
    bench.pass(10);
    assert_eq!((bench.lost().len(), bench.client.state()), (0, State::Bound));
    bench.feed(Input::Restart);
    bench.answer(by_another(REPLY));
    assert_eq!(bench.client.state(), State::Bound);
    // Where no other one answers, the LAN is another one.
    bench.feed(Input::Restart);
    bench.answer(by_another(fault(Status::NotOnLink)));
    bench.pass(5);
    assert!(matches!(bench.lost()[..], [LostReason::Refused { .. }]));
}

#[test]
fn a_second_server_is_asked_for_the_lease_when_the_first_one_is_silent_until_t2() {
    let rebinding = || {
        let mut bench = Bench::bound();
        bench.pass(81);
        bench.answer(by_another(fault(Status::NoBinding)));
        assert_eq!(bench.last().msg_type(), MessageType::Request);
        bench
    };
    let mut bench = rebinding();
    bench.answer(by_another(grant(1, 100)));
    assert!(matches!(bench.said.last(), Some(Output::Renewed(lease)) if lease.server == b"another"));
    for refusal in [fault(Status::NoAddrsAvail), grant(2, 100), fault(Status::NoBinding)] {
        let mut bench = rebinding();
        let sent = bench.sent.len();
        bench.answer(by_another(refusal));
        assert_eq!((bench.client.state(), bench.sent.len()), (State::Rebinding, sent), "{refusal:?}: not at once");
        bench.pass(10);
        assert_eq!(bench.last().msg_type(), MessageType::Rebind, "{refusal:?}");
        assert!(bench.lost().is_empty(), "{refusal:?}: it lasts to its end");
        bench.pass(10);
        assert_eq!(bench.lost(), [&LostReason::Expired], "{refusal:?}");
    }
}

#[test]
fn release_names_server_and_address_and_is_the_last_word() {
    let mut bench = Bench::bound();
    bench.feed(Input::Release);
    assert_eq!(bench.kinds(), [MessageType::Release]);
    assert!(bench.last().opts().get(OptionCode::ServerId).is_some());
    bench.pass(1000);
    assert_eq!(bench.sent.len(), 1);
    let mut never = Bench::new(config());
    never.feed(Input::Release);
    assert!(never.sent.is_empty());
}

#[test]
fn what_cannot_work_is_refused() {
    let text = |config| Client::new(config, 1).unwrap_err().to_string();
    assert!(text(Config { duid: vec![], ..config() }).contains("0 bytes"));
    assert!(text(Config { source: ip(1), ..config() }).contains("fd00::1"));
}

proptest! {
    /// Whatever arrives and whenever: never past its end, never silent without a reason, never a panic.
    #[test]
    fn no_sequence_of_events_breaks_a_promise(events in proptest::collection::vec((0..16_u8, 0..40_u64), 1..120)) {
        let mut bench = Bench::new(config());
        bench.feed(Input::Start);
        for (event, seconds) in events {
            match event {
                0 | 1 => bench.answer(ServerMessage6 { kind: MessageType::Advertise, ..grant(1, 60) }),
                2 | 3 => bench.answer(grant(1, 60)),
                4 => bench.answer(grant(2, 30)),
                5 => bench.answer(fault(Status::NoBinding)),
                6 => bench.answer(fault(Status::NotOnLink)),
                7 => bench.feed(Input::LinkLost),
                8 => bench.feed(Input::Restart),
                9 => bench.feed(Input::ProbeConflict { address: ip(1), mac: Mac::BROADCAST }),
                10 => bench.answer(by_another(grant(1, 60))),
                11 => bench.answer(by_another(grant(2, 30))),
                12 => bench.answer(by_another(fault(Status::NoBinding))),
                13 => bench.answer(by_another(fault(Status::NotOnLink))),
                _ => {}
            }
            if event % 2 == 0 {
                bench.feed(Input::ProbeFree(ip(1)));
                bench.feed(Input::ProbeFree(ip(2)));
            }
            let before = bench.sent.len();
            bench.pass(seconds);
            prop_assert!(bench.sent.len() - before < 100, "a flood");
            prop_assert!(bench.client.lease().is_none_or(|lease| !lease.expiry.is_past(bench.now)));
            prop_assert!(bench.client.deadline().is_some() || bench.client.state() == State::Stopped);
        }
    }
}
