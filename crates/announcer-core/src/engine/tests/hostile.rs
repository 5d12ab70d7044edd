//! Whatever happens in whatever order: no panic, and nothing stays that another node owns.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Event {
    Upsert(usize, usize),
    Gone(usize),
    Lease(usize),
    Heard(usize, usize, bool),
    Bound(usize, u8, u64),
    Lost(usize),
    Stopped(usize),
    Pass(u64),
    Jump(u64),
    NetworkChanged,
    Refuse(bool),
    Parent(bool),
    Api(bool),
}

const WANTED: [&[&str]; 5] = [&["10.0.0.5"], &["10.0.0.6", "fd00::6"], &["dhcp"], &["10.0.0.50"], &["dhcp", "fd00::7"]];
const NAMES: [&str; 3] = ["a", "b", "c"];
const ADDRESSES: [&str; 4] = ["10.0.0.5", "10.0.0.6", "10.0.0.50", "fd00::6"];

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..3usize, 0..5usize).prop_map(|(name, wanted)| Event::Upsert(name, wanted)),
        2 => (0..3usize).prop_map(Event::Gone),
        3 => (0..5usize).prop_map(Event::Lease),
        2 => (0..4usize, 0..3usize, any::<bool>())
            .prop_map(|(address, what, foreign)| Event::Heard(address, what, foreign)),
        3 => (0..3usize, 50..53u8, 0..700u64).prop_map(|(name, last, seconds)| Event::Bound(name, last, seconds)),
        1 => (0..3usize).prop_map(Event::Lost),
        1 => (0..3usize).prop_map(Event::Stopped),
        4 => (0..5000u64).prop_map(Event::Pass),
        1 => (0..20_000u64).prop_map(Event::Jump),
        1 => Just(Event::NetworkChanged),
        1 => any::<bool>().prop_map(Event::Refuse),
        1 => any::<bool>().prop_map(Event::Parent),
        1 => any::<bool>().prop_map(Event::Api),
    ]
}

fn happen(node: &mut Node, event: &Event) {
    match event {
        Event::Upsert(name, wanted) => {
            let key = ServiceKey::new("default", NAMES[*name]);
            let mut view = view(NAMES[*name], WANTED[*wanted]);
            if let Some(old) = node.engine.services.get(&key) {
                view.published = old.published.clone();
                view.dhcp = old.dhcp.clone();
            }
            node.upsert(view);
        }
        Event::Gone(name) => node.gone(NAMES[*name]),
        Event::Lease(state) => node.feed(Input::Lease(match state {
            0 => LeaseState::Unknown,
            1 => LeaseState::Other(String::new()),
            2 => theirs(),
            3 => DOUBTFUL,
            _ => MINE,
        })),
        Event::Heard(address, what, foreign) => {
            let mac = if *foreign { [2, 9, 9, 9, 9, 9] } else { [2, 0, 0, 0, 0, 2] };
            let what = [Heard::Claim, Heard::Answer, Heard::Probe][*what];
            node.heard(2, ADDRESSES[*address], mac, what);
        }
        // No server gives one address to two clients.
        Event::Bound(name, last, seconds) => {
            let leased = Leased {
                facts: facts(&format!("10.0.0.{}", usize::from(*last) + 10 * name)),
                expires: Some(node.now + Duration::from_secs(*seconds)),
            };
            node.dhcp(NAMES[*name], DhcpEvent::Bound(leased));
        }
        Event::Lost(name) => {
            node.dhcp(NAMES[*name], DhcpEvent::Lost { address: "10.0.0.50".parse().unwrap(), why: "x".into() });
        }
        Event::Stopped(name) => node.dhcp(NAMES[*name], DhcpEvent::Stopped),
        Event::Pass(milliseconds) => node.pass_ms(*milliseconds),
        Event::Jump(milliseconds) => {
            node.now += Duration::from_millis(*milliseconds);
            node.tick();
        }
        Event::NetworkChanged => node.feed(Input::NetworkChanged),
        Event::Refuse(refuse) => node.kernel.refuse = *refuse,
        Event::Parent(there) => {
            if *there && node.kernel.network.link(2).is_none() {
                node.kernel.network.links.push(crate::network::fixtures::link(2, "eth0"));
            } else if !there {
                node.kernel.delete(2);
            }
            node.feed(Input::NetworkChanged);
        }
        Event::Api(answers) => node.api = *answers,
    }
}

/// An address is never in two places.
fn check(node: &Node) -> Result<(), TestCaseError> {
    let mut addresses: Vec<_> =
        node.kernel.network.addresses.iter().filter(|address| address.is_ours()).map(|address| address.net).collect();
    let all = addresses.len();
    addresses.sort();
    addresses.dedup();
    prop_assert_eq!(all, addresses.len(), "one address in two places: {:?}", node.kernel.own());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn nothing_stays_that_another_node_owns(events in proptest::collection::vec(event(), 1..60)) {
        let mut node = Node::new(&[], network());
        node.start_with(&[], LeaseState::Unknown);
        for event in &events {
            happen(&mut node, event);
        }
        node.feed(Input::Lease(theirs()));
        node.pass_ms(2000);
        node.feed(Input::NetworkChanged);
        node.pass_ms(100);
        prop_assert_eq!(node.kernel.own(), Vec::<String>::new());
        prop_assert!(node.kernel.network.links.iter().all(|link| !crate::network::is_own_macvlan(link)));
    }

    #[test]
    fn an_address_is_never_in_two_places(events in proptest::collection::vec(event(), 1..60)) {
        let mut node = Node::new(&[], network());
        node.start_with(&[], MINE);
        for event in &events {
            happen(&mut node, event);
            if matches!(event, Event::Pass(_)) {
                check(&node)?;
            }
        }
    }
}
