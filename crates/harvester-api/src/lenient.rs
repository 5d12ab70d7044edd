//! Lenient parsing of objects that other programs write: a field of a wrong type counts as absent. One malformed object
//! must not break a watch of all objects.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// For `#[serde(default, deserialize_with = "lenient::or_default")]`: null and wrong types become the default.
pub fn or_default<'de, D: Deserializer<'de>, T: Default + DeserializeOwned>(deserializer: D) -> Result<T, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

/// Lenient parsing of lists: items of a wrong type are skipped.
pub fn items<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Array(items) => items.into_iter().filter_map(|item| serde_json::from_value(item).ok()).collect(),
        _ => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Object {
        #[serde(deserialize_with = "or_default")]
        text: Option<String>,
        #[serde(deserialize_with = "items")]
        numbers: Vec<u8>,
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,5}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 20, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::hash_map("[a-z]{1,3}", inner, 0..5).prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    #[test]
    fn a_wrong_type_reads_as_absent_and_the_good_items_of_a_list_stay() {
        let read = |object: Value| serde_json::from_value::<Object>(object).unwrap();
        assert_eq!(read(json!({"text": 5, "numbers": "none"})), Object::default());
        assert_eq!(read(json!({"text": null, "numbers": null})), Object::default());
        let kept = read(json!({"text": "a", "numbers": [1, "2", 300, null, 4]}));
        assert_eq!(kept, Object { text: Some("a".into()), numbers: vec![1, 4] });
    }

    proptest! {
        #[test]
        fn nothing_in_a_field_makes_the_object_unreadable(text in any_json(), numbers in any_json()) {
            let read: Object = serde_json::from_value(json!({"text": text, "numbers": numbers})).unwrap();
            prop_assert_eq!(read.text.as_deref(), text.as_str());
            prop_assert_eq!(read.numbers.is_empty(),
                !numbers.as_array().is_some_and(|all| all.iter().any(|n| n.as_u64().is_some_and(|n| n < 256))));
        }
    }
}
