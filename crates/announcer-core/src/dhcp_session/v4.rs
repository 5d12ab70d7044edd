//! DHCPv4 for [`Session`], on the macvlan of its VIP.

use std::time::Instant;

use dhcp_client::{Client, Config, ConfigError, Lease, RememberedLease, Report, V4};
use jiff::Timestamp;
use l2_types::Traffic;

use super::session::{Protocol, Session, expiry};
use crate::annotations::LeaseFacts;
use crate::engine::{self, ClientEvent, DhcpEvent, DhcpStart};
use crate::reason::Reason;
use crate::view::Uid;

impl Protocol for V4 {
    const NAME: &'static str = "DHCP";
    const MESSAGES: Traffic = Traffic::DhcpClient;
    const PROBES: Traffic = Traffic::Arp;

    type Facts = LeaseFacts;

    fn facts(lease: &Lease, expires: Option<Timestamp>) -> LeaseFacts {
        LeaseFacts { address: lease.address, server: lease.server_id, expires }
    }

    fn reason(report: &Report) -> Reason {
        match report {
            Report::NoAnswer { .. } => Reason::DhcpNoAnswer,
            Report::Nak { .. } => Reason::DhcpRefused,
            Report::Declined { .. } => Reason::AddressConflict,
            Report::OtherAddress { .. } => Reason::DhcpOtherAddress,
            _ => Reason::DhcpTrouble,
        }
    }

    fn input(uid: Uid, generation: u64, event: DhcpEvent) -> engine::Input {
        engine::Input::Dhcp(uid, generation, ClientEvent::V4(event))
    }
}

/// Makes the session that the engine has requested. `seed` determines transaction IDs and jitter.
pub fn session(start: &DhcpStart, now: Instant, wall: Timestamp, seed: u64) -> Result<Session<V4>, ConfigError> {
    let client = Client::new(config(start, now, wall), now, seed)?;
    Ok(Session::new(client, start.mac))
}

/// The configuration of the client.
fn config(start: &DhcpStart, now: Instant, wall: Timestamp) -> Config {
    let mut config = Config::new(start.mac.octets().into());
    config.hostname.clone_from(&start.hostname);
    config.broadcast_flag = start.broadcast;
    config.requested_ip = start.requested;
    config.remembered = match (&start.lease, start.requested) {
        (Some(facts), _) => Some(RememberedLease {
            address: facts.address,
            server_id: Some(facts.server),
            server_mac: None,
            expiry: Some(expiry(facts.expires, now, wall)),
            network: None,
        }),
        // kube-vip records only the address, without server and end of the lease. The server decides whether the lease
        // is valid.
        (None, Some(address)) => {
            Some(RememberedLease { address, server_id: None, server_mac: None, expiry: None, network: None })
        }
        (None, None) => None,
    };
    config
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dhcp_client::Expiry;

    use super::super::session::leased;
    use super::*;

    #[test]
    fn a_lease_becomes_facts_that_never_end_later() {
        let (now, wall) = (Instant::now(), "2026-01-01T00:00:00.9Z".parse::<Timestamp>().unwrap());
        let lease = Lease {
            address: "10.0.0.5".parse().unwrap(),
            network: None,
            routers: Vec::new(),
            server_id: "10.0.0.1".parse().unwrap(),
            server_mac: None,
            since: now,
            renew_at: None,
            rebind_at: None,
            expiry: Expiry::At(now + Duration::from_millis(60_050)),
        };
        let leased = leased::<V4>(&lease, now, wall);
        assert_eq!(leased.facts.expires, Some("2026-01-01T00:01:00Z".parse().unwrap()));
    }

    #[test]
    fn kube_vips_annotations_are_enough_to_ask_for_the_same_address() {
        let start = DhcpStart {
            generation: 1,
            link: 1,
            mac: l2_types::Mac::new([0, 0, 0x6c, 1, 2, 3]),
            hostname: None,
            broadcast: false,
            requested: Some("10.0.0.5".parse().unwrap()),
            lease: None,
        };
        let config = config(&start, Instant::now(), Timestamp::now());
        assert_eq!(config.remembered.unwrap().server_id, None);
    }
}
