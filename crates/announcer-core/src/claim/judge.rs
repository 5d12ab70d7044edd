//! Judges claims of addresses that this node owns (decisions.md 23).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::tag::{self, Key};
use crate::frames::Frame;
use crate::ownership::node::Term;

/// Limits for unproven claims. Each makes this node defend the address and read the record again: at most once in this
/// time per address, and [`PER_SECOND`] times for all addresses. Any host on the LAN can send such frames at wire
/// speed.
const PER_ADDRESS: Duration = Duration::from_secs(1);
const PER_SECOND: u32 = 20;

/// What to do about a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// The claim is proven and newer: withdraw first, ask later.
    Concede(Term),
    /// The claim is proven and older: its sender has lost the VIP and does not know it. Our own claims tell it, if a
    /// record has named it.
    Outdated(Term),
    /// The claim is unproven: defend the address, and read the record again.
    Doubt,
    /// The claim is an echo or repetition of what this node knows, or exceeds the limit for unproven claims.
    Ignore,
}

/// Judges claims, and limits and counts the unproven ones.
#[derive(Debug, Default)]
pub struct Judge {
    doubted: BTreeMap<IpAddr, Instant>,
    window: Option<(Instant, u32)>,
    forged: u64,
}

impl Judge {
    /// `keys`: the keys of the Service whose VIP is claimed. `ours`: the newest known term of that Service.
    pub fn judge(&mut self, now: Instant, claim: &Frame, keys: &[Key], ours: Term) -> Judgement {
        match tag::open_with(keys, claim) {
            Ok(term) if term > ours => Judgement::Concede(term),
            Ok(term) if term < ours => Judgement::Outdated(term),
            Ok(_) => Judgement::Ignore,
            Err(why) => {
                self.forged += u64::from(why == tag::Unproven::Forged);
                if self.may_doubt(now, claim.address) { Judgement::Doubt } else { Judgement::Ignore }
            }
        }
    }

    /// Number of claims with a wrong tag.
    pub fn forged(&self) -> u64 {
        self.forged
    }

    /// Whether this node may read the record now because of a claim of this address; counts against the limits.
    pub fn may_doubt(&mut self, now: Instant, address: IpAddr) -> bool {
        self.doubted.retain(|_, until| *until > now);
        if self.doubted.contains_key(&address) {
            return false;
        }
        let (until, used) = self.window.filter(|(until, _)| *until > now).unwrap_or((now + PER_ADDRESS, 0));
        if used >= PER_SECOND {
            return false;
        }
        self.window = Some((until, used + 1));
        self.doubted.insert(address, now + PER_ADDRESS);
        true
    }
}

#[cfg(test)]
mod tests {
    use l2_types::Mac;

    use super::*;
    use crate::frames::Heard;
    use crate::view::Uid;

    const MAC: Mac = Mac::new([2, 0, 0, 0, 0, 9]);

    fn key() -> Key {
        Key::from(&Uid("uid-1".into()))
    }

    fn claim(last: u8, term: Option<u64>) -> Frame {
        let address = IpAddr::from([10, 0, 0, last]);
        let payload = term.map(|term| tag::seal(&key(), address, MAC, Term(term)));
        Frame { link: 1, address, mac: MAC, what: Heard::Claim, to_us: true, payload }
    }

    #[test]
    fn a_proven_claim_is_judged_by_its_term() {
        let (mut judge, now) = (Judge::default(), Instant::now());
        for (term, expected) in
            [(8, Judgement::Concede(Term(8))), (6, Judgement::Outdated(Term(6))), (7, Judgement::Ignore)]
        {
            // Each time: a rate limit that delays the former owner would be a double answer.
            for _ in 0..100 {
                assert_eq!(judge.judge(now, &claim(5, Some(term)), &[key()], Term(7)), expected);
            }
        }
    }

    #[test]
    fn a_flood_of_unproven_claims_is_doubted_once_per_second() {
        let (mut judge, start) = (Judge::default(), Instant::now());
        let mut doubts = |at_ms: u64, last| {
            let now = start + Duration::from_millis(at_ms);
            judge.judge(now, &claim(last, None), &[key()], Term(7)) == Judgement::Doubt
        };
        assert!(doubts(0, 5));
        assert!(!doubts(0, 5) && !doubts(999, 5));
        assert!(doubts(500, 6), "another address");
        assert!(doubts(1000, 5), "later");
        let many = (100..200).filter(|last| doubts(2500, *last)).count();
        assert_eq!(many, 20, "a thief of all addresses at once costs as little");
    }

    #[test]
    fn a_wrong_tag_is_counted_and_doubted_as_no_tag_is() {
        let (mut judge, now) = (Judge::default(), Instant::now());
        let mut forged = claim(5, Some(9));
        forged.payload.as_mut().unwrap()[17] ^= 1;
        assert_eq!(judge.judge(now, &forged, &[key()], Term(7)), Judgement::Doubt);
        assert_eq!(judge.judge(now, &forged, &[key()], Term(7)), Judgement::Ignore);
        assert_eq!(judge.forged(), 2);
        assert_eq!(judge.judge(now, &claim(5, Some(9)), &[key()], Term(7)), Judgement::Concede(Term(9)), "still heard");
    }
}
