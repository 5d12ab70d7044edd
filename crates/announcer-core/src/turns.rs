//! The turns of a confirmation burst and of a doubt about many addresses: every host of the LAN receives each question
//! and each probe. Pure.

/// How many addresses are asked about at the same moment.
const AT_ONCE: usize = 32;
/// More addresses than that are asked about in at most so many turns.
const TURNS: usize = 16;

/// How many of so many addresses have the same turn.
pub(crate) fn addresses_per_turn(addresses: usize) -> usize {
    addresses.div_ceil(TURNS).max(AT_ONCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_addresses_have_one_turn_and_a_thousand_have_sixteen() {
        for (addresses, at_once, turns) in [(1, 32, 1), (32, 32, 1), (33, 32, 2), (512, 32, 16), (1000, 63, 16)] {
            assert_eq!(addresses_per_turn(addresses), at_once, "{addresses}");
            assert_eq!(addresses.div_ceil(at_once), turns, "{addresses}");
        }
    }
}
