//! The condition by which a Service records that it has joined others at an address. It is in the status, which authors
//! of Services may not write. The reason contains its place in the order.

/// Type of the condition.
pub const JOINED: &str = "cloudprovider.harvesterhci.io/joined-address";
const TURN: &str = "JoinedAs";

/// The reason of the condition [`JOINED`].
pub fn turn_reason(turn: u32) -> String {
    format!("{TURN}{turn}")
}

/// The turn in the reason of the condition [`JOINED`].
pub fn parse_turn(reason: &str) -> Option<u32> {
    reason.strip_prefix(TURN)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_read_back_from_its_reason() {
        assert_eq!(parse_turn(&turn_reason(3)), Some(3));
        assert_eq!((parse_turn("JoinedAs"), parse_turn("JoinedAs-1"), parse_turn("3")), (None, None, None));
    }
}
