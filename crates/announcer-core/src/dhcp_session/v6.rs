//! DHCPv6 for [`Session`], on the interface that carries the address.

use std::time::Instant;

use dhcp_client::v6::{Client, Config, ConfigError, Lease, RememberedLease, Report, V6, service_duid};
use jiff::Timestamp;
use l2_types::Traffic;

use super::session::{Protocol, Session, expiry};
use crate::annotations::LeaseFacts6;
use crate::engine::{self, ClientEvent, Dhcp6Start, DhcpEvent};
use crate::reason::Reason;
use crate::view::Uid;

impl Protocol for V6 {
    const NAME: &'static str = "DHCPv6";
    const MESSAGES: Traffic = Traffic::Dhcp6Client;
    const PROBES: Traffic = Traffic::NeighborDiscovery;

    type Facts = LeaseFacts6;

    fn facts(lease: &Lease, expires: Option<Timestamp>) -> LeaseFacts6 {
        LeaseFacts6 { address: lease.address, server: LeaseFacts6::digits(&lease.server), expires }
    }

    fn reason(report: &Report) -> Reason {
        match report {
            Report::NoAnswer { .. } => Reason::DhcpNoAnswer,
            Report::Refused { .. } => Reason::DhcpRefused,
            Report::Declined { .. } => Reason::AddressConflict,
            Report::AddressIgnored { .. } => Reason::DhcpTrouble,
        }
    }

    fn input(uid: Uid, generation: u64, event: DhcpEvent<LeaseFacts6>) -> engine::Input {
        engine::Input::Dhcp(uid, generation, ClientEvent::V6(event))
    }
}

/// Makes the session that the engine has requested. `seed` determines transaction IDs and jitter.
pub fn session(
    uid: &Uid,
    start: &Dhcp6Start,
    now: Instant,
    wall: Timestamp,
    seed: u64,
) -> Result<Session<V6>, ConfigError> {
    let client = Client::new(config(uid, start, now, wall), seed)?;
    Ok(Session::new(client, start.mac))
}

/// The configuration of the client.
fn config(uid: &Uid, start: &Dhcp6Start, now: Instant, wall: Timestamp) -> Config {
    let remembered = start.lease.as_ref().and_then(|facts| {
        let expiry = expiry(facts.expires, now, wall);
        Some(RememberedLease { address: facts.address, server: facts.server_duid()?, expiry })
    });
    Config {
        duid: service_duid(&uid.0),
        mac: start.mac.octets().into(),
        source: start.source,
        requested: start.requested,
        remembered,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dhcp_client::Expiry;

    use super::super::session::leased;
    use super::*;

    #[test]
    fn a_lease_becomes_facts_and_facts_a_lease_with_the_time_that_is_left() {
        let (now, wall) = (Instant::now(), "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap());
        let lease = Lease {
            address: "fd00::5".parse().unwrap(),
            server: vec![0, 1, 2],
            renew_at: None,
            rebind_at: None,
            expiry: Expiry::At(now + Duration::from_mins(1)),
        };
        let facts = leased::<V6>(&lease, now, wall).facts;
        assert_eq!(facts.expires, Some("2026-01-01T00:01:00Z".parse().unwrap()));
        let start = Dhcp6Start {
            generation: 1,
            link: 2,
            mac: l2_types::Mac::new([2, 0, 0, 0, 0, 1]),
            source: "fe80::1".parse().unwrap(),
            requested: None,
            lease: Some(facts),
        };
        let later = "2026-01-01T00:00:20Z".parse().unwrap();
        let remembered = config(&Uid("6f1d7c2e-0a1b-4c3d-8e9f-001122334455".into()), &start, now, later).remembered;
        let remembered = remembered.unwrap();
        assert_eq!(remembered.server, [0, 1, 2]);
        assert_eq!(remembered.expiry, Expiry::At(now + Duration::from_secs(40)));
    }
}
