//! Groups that this node owns while its kernel repeatedly refuses their addresses, so that another node could have
//! them. Pure.
//!
//! They are written on the membership card, so that no other node gives them back. They stay there so long that two
//! nodes which both cannot set the addresses do not pass the group back and forth.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::timing::UNABLE_FOR;

const DOUBLINGS: u32 = 4;
/// Limits the size of the card: a node that can set no address at all need not name every group.
const MOST: usize = 200;

#[derive(Debug)]
struct Entry {
    until: Instant,
    times: u32,
}

/// Groups that the kernel of this node refuses, each with the end of its pause.
#[derive(Debug, Default)]
pub struct Unable(BTreeMap<String, Entry>);

impl Unable {
    /// Notes that the kernel refused the group too often. Returns true if that is news. A group for which the card has
    /// no room is not noted. The other nodes would still take this node for able, and would give the group back.
    pub fn note(&mut self, now: Instant, group: &str) -> bool {
        let before = self.0.get(group);
        if before.is_some_and(|entry| now < entry.until) || self.active(now).count() >= MOST {
            return false;
        }
        let times = before.map_or(0, |entry| (entry.times + 1).min(DOUBLINGS));
        self.0.insert(group.to_owned(), Entry { until: now + UNABLE_FOR * (1 << times), times });
        true
    }

    /// Whether this node must not try the group now.
    pub fn has(&self, now: Instant, group: &str) -> bool {
        self.0.get(group).is_some_and(|entry| now < entry.until)
    }

    /// Whether the group was refused not long ago. Then its next refusal lasts longer.
    pub fn knows(&self, group: &str) -> bool {
        self.0.contains_key(group)
    }

    /// The groups to write on the card.
    pub fn on_card(&self, now: Instant) -> BTreeSet<String> {
        self.active(now).cloned().collect()
    }

    fn active(&self, now: Instant) -> impl Iterator<Item = &String> {
        self.0.iter().filter(move |(_, entry)| now < entry.until).map(|(group, _)| group)
    }

    /// Forgets groups that are `well` again, and refusals of long ago.
    pub fn retain(&mut self, now: Instant, mut well: impl FnMut(&str) -> bool) {
        self.0.retain(|group, entry| now < entry.until + UNABLE_FOR * (1 << DOUBLINGS) && !well(group));
    }

    /// When the next group may be tried again.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        self.0.values().map(|entry| entry.until).filter(|until| *until > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_tried_again_ever_later_until_it_is_well() {
        let start = Instant::now();
        let mut unable = Unable::default();
        assert!(unable.note(start, "a") && !unable.note(start, "a"));
        assert!(unable.has(start, "a") && !unable.has(start, "b") && !unable.has(start + UNABLE_FOR, "a"));
        let again = start + UNABLE_FOR;
        assert!(unable.note(again, "a"));
        assert_eq!(unable.deadline(again), Some(again + UNABLE_FOR * 2));
        assert_eq!(unable.on_card(again), BTreeSet::from(["a".to_owned()]));
        unable.retain(again, |_| false);
        assert!(unable.has(again, "a"));
        unable.retain(again, |group| group == "a");
        assert!(!unable.has(again, "a") && unable.note(again, "a"));
        assert_eq!(unable.deadline(again), Some(again + UNABLE_FOR), "it begins anew");
    }

    #[test]
    fn what_has_no_room_on_the_card_is_not_given_away() {
        let now = Instant::now();
        let mut unable = Unable::default();
        let groups: Vec<String> = (0..=MOST).map(|number| format!("{number:04}")).collect();
        let noted = groups.iter().filter(|group| unable.note(now, group)).count();
        assert_eq!(noted, MOST);
        let card = unable.on_card(now);
        assert!(groups.iter().all(|group| unable.has(now, group) == card.contains(group)));
        assert!(unable.note(now + UNABLE_FOR, &groups[MOST]), "there is room again");
    }
}
