//! What Kubernetes accepts as a name, a label of DNS and the value of a label.

/// Lower-case letters, digits and `-`, at most 63, starting with a letter and not ending with `-`.
pub fn is_dns_1035_label(text: &str) -> bool {
    is_dns_1123_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())
}

/// Lower-case letters, digits and `-`, at most 63, neither starting nor ending with `-`.
pub fn is_dns_1123_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

/// Whether `text` can be the name of most objects: lower-case letters, digits and `-` in parts that are joined by dots,
/// at most 253. As with the API server, only the whole is limited.
pub fn is_object_name(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

fn is_part(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether `text` can be the value of a label: at most 63 of letters, digits, `-`, `_`, `.`, alphanumeric at both ends;
/// or empty.
pub fn is_label_value(text: &str) -> bool {
    let alphanumeric = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    text.is_empty()
        || text.len() <= 63
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
            && alphanumeric(bytes.first())
            && alphanumeric(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_told_from_other_text() {
        assert!(is_dns_1123_label("1a") && !is_dns_1035_label("1a") && is_dns_1035_label("a-1"));
        for bad in ["", "-a", "a-", "A", "a.b", &"a".repeat(64)] {
            assert!(!is_dns_1123_label(bad), "{bad}");
        }
        assert!(is_object_name(&"a".repeat(64)) && !is_object_name(&"a".repeat(254)));
        assert!(is_object_name("a.b-1") && !is_object_name("") && !is_object_name("a..b") && !is_object_name("A"));
        assert!(
            is_label_value("")
                && is_label_value("A.b_c-1")
                && !is_label_value(".a")
                && !is_label_value(&"a".repeat(64))
        );
    }
}
