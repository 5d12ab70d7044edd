//! Whatever arrives in whatever order: no panic, no stall, no address past its lease.

use std::time::{Duration, Instant};

use dhcp_client::{Client, Config, Expiry, Input};
use dhcproto::{
    Encodable,
    v4::{DhcpOption, MessageType},
};
use proptest::{prelude::*, sample::Index};

use crate::harness::*;

#[derive(Debug, Clone)]
enum Event {
    Start,
    Restart,
    LinkLost,
    Release,
    Junk(Vec<u8>),
    /// An answer to the latest message of the client.
    Answer {
        kind: MessageType,
        address: u8,
        server: bool,
        times: [Option<u32>; 3],
        damage: Vec<(Index, u8)>,
        truncate: Option<Index>,
    },
    /// The latest answer once more.
    Duplicate,
    ProbeFree,
    ProbeConflict,
    Pass(Duration),
    /// Until the deadline.
    Sleep,
}

fn event() -> impl Strategy<Value = Event> {
    let time = || {
        prop_oneof![
            Just(None),
            (0_u32..5).prop_map(Some),
            (5_u32..5000).prop_map(Some),
            Just(Some(u32::MAX)),
            any::<u32>().prop_map(Some)
        ]
    };
    let kind = prop_oneof![
        6 => Just(MessageType::Offer), 6 => Just(MessageType::Ack), 2 => Just(MessageType::Nak),
        1 => any::<u8>().prop_map(MessageType::from),
    ];
    let damage = prop_oneof![4 => Just(Vec::new()), 1 => prop::collection::vec((any::<Index>(), any::<u8>()), 1..6)];
    let answer = (
        kind,
        98_u8..103,
        prop::bool::weighted(0.9),
        [time(), time(), time()],
        damage,
        prop::option::weighted(0.1, any::<Index>()),
    )
        .prop_map(|(kind, address, server, times, damage, truncate)| Event::Answer {
            kind,
            address,
            server,
            times,
            damage,
            truncate,
        });
    prop_oneof![
        2 => Just(Event::Start),
        1 => Just(Event::Restart),
        1 => Just(Event::LinkLost),
        1 => prop::bool::weighted(0.3).prop_map(|really| if really { Event::Release } else { Event::Start }),
        1 => prop::collection::vec(any::<u8>(), 0..400).prop_map(Event::Junk),
        12 => answer,
        1 => Just(Event::Duplicate),
        4 => Just(Event::ProbeFree),
        1 => Just(Event::ProbeConflict),
        2 => (0_u64..20_000).prop_map(|ms| Event::Pass(Duration::from_millis(ms))),
        1 => (0_u64..20_000_000).prop_map(|ms| Event::Pass(Duration::from_millis(ms))),
        4 => Just(Event::Sleep),
    ]
}

fn run(remembered_seconds: Option<u32>, seed: u64, events: Vec<Event>) -> Result<(), TestCaseError> {
    let mut now = Instant::now();
    let expiry = remembered_seconds.map(|left| Expiry::At(now + Duration::from_secs(left.into())));
    let config = Config { remembered: expiry.map(|expiry| remembered(Some(expiry))), ..Config::new(mac()) };
    let mut client = Client::new(config, now, seed).expect("a good configuration");
    let mut watch = Watch::default();
    let mut last_sent: Option<Sent> = None;
    let mut last_answer = Vec::new();
    let mut probing = ADDRESS;
    for event in events {
        let frame = match &event {
            Event::Junk(bytes) => bytes.clone(),
            Event::Duplicate => last_answer.clone(),
            Event::Answer { kind, address, server, times, damage, truncate } => {
                let Some(sent) = &last_sent else { continue };
                let mut answer = ServerMessage::ack(sent).option(DhcpOption::MessageType(*kind));
                if sent.kind() == MessageType::Discover || *address < 100 {
                    answer = answer.address([10, 0, 0, *address].into());
                }
                if !server {
                    answer = answer.server(OTHER_SERVER);
                }
                let options =
                    [DhcpOption::AddressLeaseTime as fn(u32) -> _, DhcpOption::Renewal, DhcpOption::Rebinding];
                for (time, option) in times.iter().zip(options) {
                    answer = time.iter().fold(answer, |answer, time| answer.option(option(*time)));
                }
                let mut payload = answer.message.to_vec().expect("can be encoded");
                for (at, value) in damage {
                    let at = at.index(payload.len());
                    payload[at] = *value;
                }
                if let Some(length) = truncate {
                    payload.truncate(length.index(payload.len()));
                }
                last_answer = answer.frame_with_payload(&payload);
                last_answer.clone()
            }
            _ => Vec::new(),
        };
        let input = match event {
            Event::Start => Input::Start,
            Event::Restart => Input::Restart,
            Event::LinkLost => Input::LinkLost,
            Event::Release => Input::Release,
            Event::Junk(_) | Event::Duplicate | Event::Answer { .. } => Input::Frame(&frame),
            Event::ProbeFree => Input::ProbeFree(probing),
            Event::ProbeConflict => Input::ProbeConflict { address: probing, mac: neighbour_mac() },
            Event::Pass(time) => {
                now += time;
                Input::Timer
            }
            Event::Sleep => {
                now = client.deadline().unwrap_or(now).max(now);
                Input::Timer
            }
        };
        let outs = Outs(client.step(now, input));
        watch.after_step(&client, now, &input, &outs).map_err(TestCaseError::fail)?;
        last_sent = outs.sent().pop().or(last_sent);
        probing = outs.probe().unwrap_or(probing);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_events_panics_stalls_or_overuses_a_lease(
        remembered in prop::option::of(0_u32..5000), seed in any::<u64>(),
        events in prop::collection::vec(event(), 1..60),
    ) {
        run(remembered, seed, events)?;
    }

    #[test]
    fn junk_changes_nothing(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
        let mut bench = Bench::plain();
        bench.input(Input::Start);
        let (state, deadline) = (bench.client.state(), bench.client.deadline());
        bench.input(Input::Frame(&bytes)).assert_nothing();
        prop_assert_eq!((bench.client.state(), bench.client.deadline()), (state, deadline));
    }

    #[test]
    fn damaged_answers_inside_good_frames_never_panic(
        damage in prop::collection::vec((any::<Index>(), any::<u8>()), 0..20),
        tail in prop::collection::vec(any::<u8>(), 0..200), keep in any::<Index>(),
    ) {
        let mut bench = Bench::plain();
        let discover = bench.input(Input::Start).only(MessageType::Discover);
        let offer = ServerMessage::offer(&discover);
        let mut payload = offer.message.to_vec().unwrap();
        for (at, value) in damage {
            let at = at.index(payload.len());
            payload[at] = value;
        }
        payload.truncate(keep.index(payload.len() + 1));
        payload.extend(tail);
        bench.input(Input::Frame(&offer.frame_with_payload(&payload)));
    }
}
