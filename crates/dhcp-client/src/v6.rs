//! An RFC 8415 client for one address (`IA_NA`), as a state machine without I/O, of the same kind as the one for
//! DHCPv4.
//!
//! A DHCPv6 server identifies a client by its DUID and not by its MAC. So [`Client`] can use any interface, and its
//! lease moves from node to node with the DUID ([`service_duid`]).

mod client;
pub mod frame;
mod lease;
mod message;

pub use client::{Client, Config, ConfigError, Input, Output, V6};
pub use lease::{Lease, LostReason, RememberedLease, Report};

use uuid::Uuid;

const DUID_UUID: [u8; 2] = [0, 4];
const DUID_ENTERPRISE: [u8; 6] = [0, 2, 0, 0, 0, 0];

/// The DUID of a Service, of the type that is made from a UUID (RFC 6355). It accepts any text that is as unique as a
/// UUID, such as the UID of a Service. It is the same on every node and different for each Service, unlike kube-vip's
/// (kube-vip spec 10.1 row 23).
pub fn service_duid(uid: &str) -> Vec<u8> {
    if let Ok(uuid) = Uuid::try_parse(uid) {
        return [&DUID_UUID[..], uuid.as_bytes()].concat();
    }
    // The text is no UUID: its bytes become a DUID of an enterprise without a number (RFC 8415 11.3 allows 128 bytes).
    [&DUID_ENTERPRISE[..], &uid.as_bytes()[..uid.len().min(120)]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_has_a_duid_of_its_own_that_is_the_same_everywhere() {
        let duid = service_duid("6f1d7c2e-0a1b-4c3d-8e9f-001122334455");
        assert_eq!(duid[..6], [0, 4, 0x6f, 0x1d, 0x7c, 0x2e]);
        assert_eq!(duid.len(), 18);
        assert_ne!(duid, service_duid("6f1d7c2e-0a1b-4c3d-8e9f-001122334456"));
        for odd in ["", "web", "6f1d7c2e-0a1b-4c3d-8e9f-0011223344556", "zf1d7c2e-0a1b-4c3d-8e9f-001122334455"] {
            assert_eq!(service_duid(odd)[..2], [0, 2], "{odd}");
            assert!(service_duid(&odd.repeat(20)).len() <= 128);
        }
    }
}
