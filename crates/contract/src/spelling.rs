//! Finds the known word that a mistyped one probably stands for.

/// The closest known word, if it is close enough for a typing error.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).clamp(1, 4);
    let (distance, found) = known.into_iter().map(|known| (distance(word, known), known)).min()?;
    (distance <= limit).then_some(found)
}

/// The number of letters to change, add, remove or exchange with a neighbour, ignoring case (optimal string alignment).
pub fn distance(one: &str, other: &str) -> usize {
    let letters = |word: &str| word.chars().map(|letter| letter.to_ascii_lowercase()).collect::<Vec<_>>();
    let (one, other) = (letters(one), letters(other));
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.iter().enumerate() {
        let mut next = vec![at + 1];
        for (column, opposite) in other.iter().enumerate() {
            let changed = row[column] + usize::from(letter != opposite);
            let mut least = changed.min(row[column + 1] + 1).min(next[column] + 1);
            let exchanged = at > 0 && column > 0 && one[at - 1] == *opposite && *letter == other[column - 1];
            if exchanged {
                least = least.min(before[column - 1] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut row, next);
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_fingers_costs_one() {
        for (one, other, expected) in [
            ("pool", "pool", 0),
            ("DHCP", "dhcp", 0),
            ("dchp", "dhcp", 1),
            ("satus", "status", 1),
            ("statuss", "status", 1),
            ("staxus", "status", 1),
            ("sttaus", "status", 1),
            ("", "abc", 3),
            ("abc", "", 3),
            ("cloudprovider.harvester.io", "cloudprovider.harvesterhci.io", 3),
        ] {
            assert_eq!(distance(one, other), expected, "{one} {other}");
        }
    }

    #[test]
    fn a_word_that_is_like_none_has_no_neighbour() {
        let known = ["pool", "dhcp", "static"];
        for (word, expected) in
            [("DHCP", Some("dhcp")), ("statci", Some("static")), ("pol", Some("pool")), ("metallb", None)]
        {
            assert_eq!(nearest(word, known), expected, "{word}");
        }
        assert_eq!(nearest("x", []), None);
    }
}
