//! Waiting requests of one kind. Namespaces take turns, so that a thousand Services of one do not delay the one of
//! another. Within a namespace the order of arrival counts. Pure.

use std::collections::{BTreeMap, BTreeSet};

/// Requests by the number of their arrival.
#[derive(Debug, Default)]
pub struct Lane {
    numbers: BTreeSet<u64>,
    namespaces: BTreeMap<String, Namespace>,
    /// Namespaces in the order in which they get turns: each goes to the end when it has had one.
    order: BTreeSet<(u64, String)>,
}

#[derive(Debug)]
struct Namespace {
    /// Its place in the order.
    place: u64,
    numbers: BTreeSet<u64>,
}

impl Lane {
    /// Adds a request. `now` is later than every earlier one and orders the namespaces: a new one goes to the end.
    pub fn insert(&mut self, namespace: &str, number: u64, now: u64) {
        self.numbers.insert(number);
        let of = self.namespaces.entry(namespace.to_owned()).or_insert_with(|| {
            self.order.insert((now, namespace.to_owned()));
            Namespace { place: now, numbers: BTreeSet::new() }
        });
        of.numbers.insert(number);
    }

    /// Removes a request, if it is here.
    pub fn remove(&mut self, namespace: &str, number: u64) {
        self.numbers.remove(&number);
        let Some(of) = self.namespaces.get_mut(namespace) else { return };
        of.numbers.remove(&number);
        if of.numbers.is_empty() {
            self.order.remove(&(of.place, namespace.to_owned()));
            self.namespaces.remove(namespace);
        }
    }

    /// The namespace has had a turn: it goes to the end of the order. `now` as in [`Self::insert`].
    pub fn had_a_turn(&mut self, namespace: &str, now: u64) {
        let Some(of) = self.namespaces.get_mut(namespace) else { return };
        self.order.remove(&(of.place, namespace.to_owned()));
        of.place = now;
        self.order.insert((now, namespace.to_owned()));
    }

    /// The request whose turn is next.
    pub fn next(&self) -> Option<u64> {
        let (_, namespace) = self.order.first()?;
        self.namespaces.get(namespace)?.numbers.first().copied()
    }

    /// The request that has waited longest.
    pub fn oldest(&self) -> Option<u64> {
        self.numbers.first().copied()
    }

    /// How many requests have their turn before this one, if no others arrive.
    pub fn before(&self, namespace: &str, number: u64) -> usize {
        let Some(own) = self.namespaces.get(namespace) else { return 0 };
        let rounds = own.numbers.range(..number).count();
        // Of its own namespace this counts `rounds`.
        let of = |other: &Namespace| other.numbers.len().min(rounds + usize::from(other.place < own.place));
        self.namespaces.values().map(of).sum()
    }

    /// How many requests wait.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order in which all have their turns.
    fn turns(lane: &mut Lane, of: &BTreeMap<u64, &str>) -> Vec<u64> {
        let mut order = Vec::new();
        while let Some(number) = lane.next() {
            let namespace = of[&number];
            assert_eq!(lane.before(namespace, number), 0, "{number} is next");
            lane.remove(namespace, number);
            lane.had_a_turn(namespace, 1000 + number + u64::try_from(order.len()).unwrap() * 100);
            order.push(number);
        }
        order
    }

    fn lane(requests: &[(u64, &'static str)]) -> (Lane, BTreeMap<u64, &'static str>) {
        let mut lane = Lane::default();
        for (number, namespace) in requests {
            lane.insert(namespace, *number, *number);
        }
        (lane, requests.iter().copied().collect())
    }

    #[test]
    fn namespaces_take_turns_and_each_has_its_own_order() {
        for (requests, expected) in [
            (&[(0, "a"), (1, "a"), (2, "a")][..], &[0, 1, 2][..]),
            (&[(0, "a"), (1, "a"), (2, "a"), (3, "b")], &[0, 3, 1, 2]),
            (&[(0, "a"), (1, "b"), (2, "a"), (3, "c"), (4, "b")], &[0, 1, 3, 2, 4]),
        ] {
            let (mut lane, of) = lane(requests);
            let foreseen: Vec<usize> = expected.iter().map(|number| lane.before(of[number], *number)).collect();
            assert_eq!(foreseen, (0..expected.len()).collect::<Vec<_>>(), "{requests:?}");
            assert_eq!(turns(&mut lane, &of), expected);
            assert_eq!((lane.len(), lane.namespaces.len(), lane.order.len()), (0, 0, 0), "nothing stays");
        }
    }

    #[test]
    fn a_namespace_that_comes_back_goes_to_the_end() {
        let (mut lane, _) = lane(&[(0, "a"), (1, "b"), (2, "c")]);
        lane.remove("a", 0);
        lane.insert("a", 3, 3);
        assert_eq!((lane.next(), lane.oldest(), lane.before("a", 3)), (Some(1), Some(1), 2));
    }
}
