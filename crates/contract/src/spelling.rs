//! Finds the known word that a mistyped one probably stands for.

/// The closest known word, if it is close enough for a typing error.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).clamp(1, 4);
    let (distance, found) = known.into_iter().map(|known| (distance(word, known), known)).min()?;
    (distance <= limit).then_some(found)
}

/// The number of letters to change, add, remove or exchange with a neighbour, ignoring case (optimal string alignment).
pub fn distance(one: &str, other: &str) -> usize {
    strsim::osa_distance(&one.to_ascii_lowercase(), &other.to_ascii_lowercase())
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
