//! Quotes values of users in texts for Events and logs.

use std::fmt;

/// The longest quoted part: longer than any valid name, short enough for a log.
const LONGEST: usize = 64;

/// A value as a user wrote it, for a text. Each part of `namespace/name` is cut at 64 characters, and control
/// characters are escaped. A valid value appears unchanged.
#[derive(Clone, Copy)]
pub struct Quoted<'a>(pub &'a str);

impl Quoted<'_> {
    fn cut(self) -> String {
        let parts: Vec<String> = self.0.splitn(2, '/').map(cut).collect();
        parts.join("/")
    }
}

fn cut(text: &str) -> String {
    let mut cut: String = text.chars().take(LONGEST).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cut().chars().try_for_each(|char| {
            if char.is_control() { write!(f, "{}", char.escape_default()) } else { write!(f, "{char}") }
        })
    }
}

impl fmt::Debug for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.cut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valid_value_reads_as_written_and_a_wild_one_stays_small() {
        let longest = format!("{0}/{0}", "a".repeat(63));
        let cases = [
            ("default/web", "default/web".to_owned()),
            (&longest, longest.clone()),
            ("a\nb\u{1b}", "a\\nb\\u{1b}".to_owned()),
            (&"x".repeat(65), format!("{}…", "x".repeat(64))),
            (&"ä".repeat(65), format!("{}…", "ä".repeat(64))),
        ];
        for (value, expected) in cases {
            assert_eq!(Quoted(value).to_string(), expected);
        }
        assert_eq!(format!("{:?}", Quoted("a\nb")), "\"a\\nb\"");
    }
}
