//! Reading objects that somebody else writes: a field of a wrong type reads as absent. One odd object must not end a watch that
//! serves all the others.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// For `#[serde(default, deserialize_with = "lenient::or_default")]`: null and wrong types become the default.
pub fn or_default<'de, D: Deserializer<'de>, T: Default + DeserializeOwned>(deserializer: D) -> Result<T, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

/// The same for lists: items of a wrong type are left out, the others stay.
pub fn items<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Array(items) => items.into_iter().filter_map(|item| serde_json::from_value(item).ok()).collect(),
        _ => Vec::new(),
    })
}
