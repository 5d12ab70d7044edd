//! The condition by which a Service records that it has joined others at an address. It is in the status, which authors
//! of Services may not write. Its message ends with the place of the Service in the order of those that joined.

/// Type of the condition.
pub const JOINED: &str = "cloudprovider.harvesterhci.io/joined-address";
/// Reason of the condition.
pub const JOINED_OTHERS: &str = "JoinedOthers";
const PLACE: &str = "Place in the order of joining: ";

/// The message of the condition [`JOINED`].
pub fn turn_message(turn: u32) -> String {
    format!(
        "Another Service had the address before this one, and decides which node announces it. Ask for another \
         address to be independent of it. {PLACE}{turn}"
    )
}

/// The place that the message of the condition [`JOINED`] records.
pub fn parse_turn(message: &str) -> Option<u32> {
    message.rsplit_once(PLACE)?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_read_back_from_its_message() {
        assert_eq!(parse_turn(&turn_message(3)), Some(3));
        for message in ["", "3", "Another Service had the address before", &format!("{PLACE}-1")] {
            assert_eq!(parse_turn(message), None, "{message}");
        }
    }
}
