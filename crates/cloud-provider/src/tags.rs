//! Labels and annotations in compact form, for views.

use std::fmt;

/// Labels or annotations of an object, by key, in as little memory as possible. There are as many of these as objects,
/// and most have three entries; a `BTreeMap` would reserve space for eleven, with two `String`s each.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tags(Vec<Tag>);

/// Key and value in one string.
#[derive(Clone, PartialEq, Eq)]
struct Tag {
    text: Box<str>,
    key: usize,
}

impl Tag {
    fn new(key: &str, value: &str) -> Self {
        Self { text: [key, value].concat().into(), key: key.len() }
    }

    fn key(&self) -> &str {
        &self.text[..self.key]
    }

    fn value(&self) -> &str {
        &self.text[self.key..]
    }
}

impl Tags {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.find(key).ok().map(|at| self.0[at].value())
    }

    /// Whether there is such a key, whatever its value.
    pub fn contains_key(&self, key: &str) -> bool {
        self.find(key).is_ok()
    }

    /// Sets the value of a key.
    pub fn insert(&mut self, key: &str, value: &str) {
        let tag = Tag::new(key, value);
        match self.find(key) {
            Ok(at) => self.0[at] = tag,
            Err(at) => self.0.insert(at, tag),
        }
    }

    /// Removes a key, if it exists.
    pub fn remove(&mut self, key: &str) {
        if let Ok(at) = self.find(key) {
            self.0.remove(at);
        }
    }

    /// Keys and values, in order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|tag| (tag.key(), tag.value()))
    }

    fn find(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|tag| tag.key().cmp(key))
    }
}

impl<K: AsRef<str>, V: AsRef<str>> FromIterator<(K, V)> for Tags {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(tags: I) -> Self {
        let mut all = Self::default();
        tags.into_iter().for_each(|(key, value)| all.insert(key.as_ref(), value.as_ref()));
        all.0.shrink_to_fit();
        all
    }
}

impl<K: AsRef<str>, V: AsRef<str>, const N: usize> From<[(K, V); N]> for Tags {
    fn from(tags: [(K, V); N]) -> Self {
        tags.into_iter().collect()
    }
}

impl fmt::Debug for Tags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(tags: &[(&str, &str)]) -> Tags {
        tags.iter().copied().collect()
    }

    #[test]
    fn they_are_found_by_their_whole_key_in_whatever_order_they_came() {
        let tags = tags(&[("b/ip", "10.0.0.1"), ("b", ""), ("a", "1"), ("b/", "x")]);
        assert_eq!(
            ["a", "b", "b/", "b/ip", "b/i", ""].map(|key| tags.get(key)),
            [Some("1"), Some(""), Some("x"), Some("10.0.0.1"), None, None]
        );
        assert!(tags.contains_key("b") && !tags.contains_key("b/i"));
        assert_eq!(tags.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["a", "b", "b/", "b/ip"]);
    }

    #[test]
    fn a_key_has_one_value() {
        let mut tags = tags(&[("a", "1"), ("a", "2")]);
        assert_eq!(tags.get("a"), Some("2"));
        tags.insert("a", "3");
        assert_eq!(tags.iter().collect::<Vec<_>>(), [("a", "3")]);
        tags.remove("b");
        tags.remove("a");
        assert_eq!(tags, Tags::default());
    }

    #[test]
    fn they_take_no_more_room_than_they_need() {
        let tags = tags(&[("a", "1"), ("b", "2"), ("c", "3")]);
        assert_eq!((tags.0.capacity(), size_of::<Tag>()), (3, 24));
    }

    #[test]
    fn where_a_key_ends_makes_a_difference() {
        assert_ne!(tags(&[("ab", "c")]), tags(&[("a", "bc")]));
    }
}
