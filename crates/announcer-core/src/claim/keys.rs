//! The keys with which tags are made and checked. Without a Secret the key is the UID of the Service. With a Secret
//! each entry is a key. All keys are accepted; a new key is used for sending only when all nodes have had the time to
//! read it. Pure.

use std::fmt;
use std::time::{Duration, Instant};

use super::tag::Key;
use crate::view::Uid;

/// How long a new key is only accepted. The kubelets of other nodes show it within two minutes.
const SPREADS_FOR: Duration = Duration::from_mins(5);

/// One entry of the Secret.
#[derive(Clone, PartialEq, Eq)]
pub struct ClaimSecret(Vec<u8>);

impl ClaimSecret {
    /// Minimum length in bytes; shorter secrets could be guessed.
    pub const LEAST: usize = 16;

    /// Takes the content of an entry; `None` if it is too short.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        (bytes.len() >= Self::LEAST).then_some(Self(bytes))
    }
}

impl fmt::Debug for ClaimSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClaimSecret(..)")
    }
}

/// The keys of this node.
#[derive(Debug, Default)]
pub(crate) struct ClaimKeys {
    /// The secrets in the order of their names, and from when each is used for sending.
    secrets: Vec<(ClaimSecret, Option<Instant>)>,
}

impl ClaimKeys {
    /// Sets the current secrets, in the order of their names. At the start this node does not know how long they have
    /// existed. It then takes the first for the one that the other nodes use.
    pub fn set(&mut self, now: Instant, secrets: Vec<ClaimSecret>) {
        let starting = self.secrets.is_empty();
        let before = std::mem::take(&mut self.secrets);
        self.secrets = secrets
            .into_iter()
            .enumerate()
            .map(|(at, secret)| {
                let known = before.iter().find(|(known, _)| *known == secret).map(|(_, from)| *from);
                let from = known.unwrap_or((!starting || at > 0).then(|| now + SPREADS_FOR));
                (secret, from)
            })
            .collect();
    }

    /// The key for sending: the last one that all nodes have had the time to read, otherwise the first one.
    pub fn sending(&self, now: Instant, uid: &Uid) -> Key {
        let known = self.secrets.iter().rev().find(|(_, from)| from.is_none_or(|from| from <= now));
        known.or(self.secrets.first()).map_or_else(|| Key::from(uid), |(secret, _)| Key::of(&secret.0, uid))
    }

    /// The keys with which a claim of this Service may be tagged.
    pub fn accepted(&self, uid: &Uid) -> Vec<Key> {
        if self.secrets.is_empty() {
            return vec![Key::from(uid)];
        }
        self.secrets.iter().map(|(secret, _)| Key::of(&secret.0, uid)).collect()
    }

    /// When another key is used for sending.
    pub fn deadline(&self) -> Option<Instant> {
        self.secrets.iter().filter_map(|(_, from)| *from).min()
    }

    /// Whether that moment has come; true once.
    pub fn take_due(&mut self, now: Instant) -> bool {
        let due = self.secrets.iter_mut().filter_map(|(_, from)| from.take_if(|at| *at <= now));
        due.count() > 0
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use l2_types::Mac;

    use super::super::tag;
    use super::*;
    use crate::ownership::node::Term;

    fn secret(text: &str) -> ClaimSecret {
        ClaimSecret::new(format!("{text:-<16}").into_bytes()).unwrap()
    }

    fn secrets(texts: &[&str]) -> Vec<ClaimSecret> {
        texts.iter().map(|text| secret(text)).collect()
    }

    /// Which of these keys it sends with.
    fn sends(keys: &ClaimKeys, now: Instant, texts: &[&'static str]) -> &'static str {
        let uid = Uid("u".into());
        let seal = |key: &Key| tag::seal(key, IpAddr::from([10, 0, 0, 5]), Mac::ZERO, Term(7));
        let sent = seal(&keys.sending(now, &uid));
        let found = texts.iter().find(|text| seal(&Key::of(&secret(text).0, &uid)) == sent);
        found.copied().unwrap_or(if sent == seal(&Key::from(&uid)) { "uid" } else { "unknown" })
    }

    #[test]
    fn a_new_key_is_accepted_at_once_and_sent_with_when_all_nodes_have_it() {
        let (mut keys, start, all) = (ClaimKeys::default(), Instant::now(), ["a", "b", "c"]);
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!((sends(&keys, start, &all), keys.accepted(&Uid("u".into())).len()), ("uid", 1));
        keys.set(start, secrets(&["a"]));
        assert_eq!((sends(&keys, start, &all), keys.deadline()), ("a", None), "there never was another one");
        keys.set(at(10), secrets(&["a", "b"]));
        assert_eq!((sends(&keys, at(309), &all), keys.accepted(&Uid("u".into())).len()), ("a", 2));
        assert!(!keys.take_due(at(309)));
        assert_eq!(keys.deadline(), Some(at(310)));
        keys.set(at(200), secrets(&["a", "b"]));
        assert!(keys.take_due(at(310)) && !keys.take_due(at(310)));
        assert_eq!((sends(&keys, at(310), &all), keys.deadline()), ("b", None));
        keys.set(at(400), secrets(&["b"]));
        assert_eq!((sends(&keys, at(400), &all), keys.accepted(&Uid("u".into())).len()), ("b", 1));
        keys.set(at(500), secrets(&["c"]));
        assert_eq!(sends(&keys, at(500), &all), "c", "nothing else is left");
    }

    #[test]
    fn a_process_that_starts_in_the_middle_of_a_rotation_sends_with_the_older_key_first() {
        let (mut keys, start, all) = (ClaimKeys::default(), Instant::now(), ["a", "b"]);
        keys.set(start, secrets(&["a", "b"]));
        assert_eq!(sends(&keys, start, &all), "a");
        assert_eq!(sends(&keys, start + SPREADS_FOR, &all), "b");
    }

    #[test]
    fn what_can_be_guessed_is_no_key_and_none_is_ever_printed() {
        assert_eq!(ClaimSecret::new(vec![0; ClaimSecret::LEAST - 1]), None);
        assert_eq!(format!("{:?}", secret("a")), "ClaimSecret(..)");
    }
}
