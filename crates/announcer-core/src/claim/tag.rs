//! The eighteen bytes that a claim carries: magic, version, term and tag. Only a program that may read the Service can
//! make the tag.
//!
//! ```text
//! byte 0      1         2 .. 9             10 .. 17
//!      0xc1   version   term, big endian   first 8 bytes of HMAC-SHA256(UID of the Service, all before it,
//!                                          VIP, sender MAC)
//! ```
//!
//! The tag binds the claim to the VIP and to its new MAC. A replayed claim carries an old term.

use std::fmt;
use std::net::IpAddr;

use l2_types::Mac;
use l2_types::ethernet::{PAYLOAD_LEN, Payload};
use ring::hmac;

use crate::frames::Frame;
use crate::ownership::node::Term;
use crate::view::Uid;

const MAGIC: u8 = 0xc1;
const VERSION: u8 = 1;
const TAG: usize = 10;
const TAG_LEN: usize = PAYLOAD_LEN - TAG;

/// The key for the tags of a Service: its UID (that of the primary if several Services share the address), or a value
/// that a Secret of the announcers derives from that UID. A host on the LAN that may not read Services does not know
/// the UID.
#[derive(Clone)]
pub struct Key(hmac::Key);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl From<&Uid> for Key {
    fn from(uid: &Uid) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, uid.0.as_bytes()))
    }
}

impl Key {
    /// The key of a Service, derived from a secret that all announcers have.
    pub fn of(secret: &[u8], uid: &Uid) -> Self {
        let of_it = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), uid.0.as_bytes());
        Self(hmac::Key::new(hmac::HMAC_SHA256, of_it.as_ref()))
    }
}

/// Why a payload does not prove a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    /// The payload is the padding of an ordinary frame.
    #[error("it carries no tag")]
    NoTag,
    /// The tag was made by a later version of this program.
    #[error("its tag has version {0}, known is {VERSION}")]
    Version(u8),
    /// The tag was made without the key, or for another VIP or MAC.
    #[error("its tag is wrong")]
    Forged,
}

/// Makes the payload of a claim of `address` for `mac` with this term.
pub fn seal(key: &Key, address: IpAddr, mac: Mac, term: Term) -> Payload {
    let mut payload = [0; PAYLOAD_LEN];
    payload[0] = MAGIC;
    payload[1] = VERSION;
    payload[2..TAG].copy_from_slice(&term.0.to_be_bytes());
    let tag = tag(key, &payload, address, mac);
    payload[TAG..].copy_from_slice(&tag);
    payload
}

/// Whether a payload looks like a tagged claim; needs no key.
pub fn is_tagged(payload: Option<&Payload>) -> bool {
    payload.is_some_and(|payload| payload[0] == MAGIC)
}

/// Checks the payload of a claim of `address` for `mac`, and returns its term.
pub fn open(key: &Key, address: IpAddr, mac: Mac, payload: Option<&Payload>) -> Result<Term, Unproven> {
    let payload = payload.filter(|payload| payload[0] == MAGIC).ok_or(Unproven::NoTag)?;
    if payload[1] != VERSION {
        return Err(Unproven::Version(payload[1]));
    }
    // In constant time: a host that can measure on this LAN must not learn how many bytes were right.
    let differences = tag(key, payload, address, mac).iter().zip(&payload[TAG..]).fold(0, |all, (a, b)| all | (a ^ b));
    if differences != 0 {
        return Err(Unproven::Forged);
    }
    let term = payload[2..TAG].first_chunk().expect("eight bytes");
    Some(Term(u64::from_be_bytes(*term))).filter(|term| term.is_plausible()).ok_or(Unproven::Forged)
}

/// The same with any of these keys.
pub fn open_with(keys: &[Key], claim: &Frame) -> Result<Term, Unproven> {
    let open = |key| open(key, claim.address, claim.mac, claim.payload.as_ref());
    let mut refusal = Unproven::NoTag;
    for key in keys {
        match open(key) {
            Ok(term) => return Ok(term),
            Err(why) => refusal = why,
        }
    }
    Err(refusal)
}

fn tag(key: &Key, payload: &Payload, address: IpAddr, mac: Mac) -> [u8; TAG_LEN] {
    let address = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let mut context = hmac::Context::with_key(&key.0);
    context.update(&payload[..TAG]);
    context.update(&address.octets());
    context.update(&mac.octets());
    *context.sign().as_ref().first_chunk().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAC: Mac = Mac::new([2, 0, 0, 0, 0, 1]);

    fn key(uid: &str) -> Key {
        Key::from(&Uid(uid.to_owned()))
    }

    fn vip() -> IpAddr {
        "10.0.0.5".parse().unwrap()
    }

    /// Computed by another program: `hmac.new(b"uid-1", bytes.fromhex(…), "sha256").digest()[:8]`.
    #[test]
    fn the_bytes_are_these() {
        let payload = seal(&key("uid-1"), vip(), MAC, Term(7));
        assert_eq!(payload[..10], [0xc1, 1, 0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!(payload[10..], EXPECTED_TAG);
    }

    const EXPECTED_TAG: [u8; 8] = [0x12, 0x39, 0x55, 0xae, 0xc5, 0x81, 0x56, 0x65];

    #[test]
    fn a_claim_counts_only_for_its_service_its_address_and_its_sender() {
        let payload = seal(&key("uid-1"), vip(), MAC, Term(7));
        assert_eq!(open(&key("uid-1"), vip(), MAC, Some(&payload)), Ok(Term(7)));
        assert_eq!(open(&key("uid-2"), vip(), MAC, Some(&payload)), Err(Unproven::Forged));
        assert_eq!(open(&key("uid-1"), "10.0.0.6".parse().unwrap(), MAC, Some(&payload)), Err(Unproven::Forged));
        let thief = Mac::new([2, 0, 0, 0, 0, 9]);
        assert_eq!(open(&key("uid-1"), vip(), thief, Some(&payload)), Err(Unproven::Forged));
    }

    #[test]
    fn padding_is_no_tag_and_a_later_version_is_not_guessed_at() {
        let open = |payload: Option<&Payload>| open(&key("uid-1"), vip(), MAC, payload);
        assert_eq!(open(None), Err(Unproven::NoTag));
        assert_eq!(open(Some(&[0; 18])), Err(Unproven::NoTag));
        let mut later = seal(&key("uid-1"), vip(), MAC, Term(7));
        later[1] = 2;
        assert_eq!(open(Some(&later)), Err(Unproven::Version(2)));
    }

    proptest! {
        #[test]
        fn one_changed_bit_is_found(term: u64, at in 0..18_usize, bit in 0..8_u32) {
            let mut payload = seal(&key("uid-1"), vip(), MAC, Term(term));
            payload[at] ^= 1 << bit;
            prop_assert!(open(&key("uid-1"), vip(), MAC, Some(&payload)).is_err());
        }

        #[test]
        fn what_is_sealed_is_opened(uid: String, address: IpAddr, mac: [u8; 6], term in 0..=1_u64 << 41) {
            let payload = seal(&key(&uid), address, mac.into(), Term(term));
            prop_assert_eq!(open(&key(&uid), address, mac.into(), Some(&payload)), Ok(Term(term)));
        }

        #[test]
        fn any_bytes_are_answered(payload: Payload) {
            prop_assert!(open(&key("uid-1"), vip(), MAC, Some(&payload)).is_err());
        }
    }
}
