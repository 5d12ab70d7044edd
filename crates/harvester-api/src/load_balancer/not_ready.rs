//! Classifies the host's messages about a load balancer without an address.

/// Precedes the name of the pool at the start of a message. Elsewhere in a message the pool is the old one of a switch,
/// whose address is still allocated.
pub const NO_ALLOCATOR: &str = "fail to get allocator ";

/// The meaning of the host's message about a load balancer that is not ready (Harvester spec 3.6, host pace spec
/// 1.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReady {
    /// The host is busy or repairs its own state. It continues by itself, however long it takes.
    Transient,
    /// The named pool does not exist. After a restart of the host's controller, this is for a moment reported for every
    /// pool. Nothing was allocated. The host tries again with growing pauses, and a new pool does not shorten them.
    NoAllocator,
    /// No pool matches; a user has to create or change one. The host tries again every second.
    NoMatchingPool,
    /// The pool is exhausted; a user has to enlarge it or release an address.
    PoolExhausted,
    /// Any other message.
    Other,
}

impl NotReady {
    /// Classifies by the fragments that all host versions share.
    pub fn classify(message: &str) -> Self {
        const TRANSIENT: [&str; 3] = ["fail to reserve", "duplicate allocation", "fail to get allocator"];
        if message.starts_with(NO_ALLOCATOR) {
            Self::NoAllocator
        } else if TRANSIENT.iter().any(|fragment| message.contains(fragment)) {
            Self::Transient
        } else if message.contains("no matched IPPool") || message.contains("no matching IP pool") {
            Self::NoMatchingPool
        } else if message.contains("no IP addresses available") {
            Self::PoolExhausted
        } else {
            Self::Other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_messages_are_told_apart() {
        let table = [
            ("fail to get ip from pool edge, error: fail to reserve 10.0.0.1 into edge", NotReady::Transient),
            ("10.0.0.1 has been allocated to a/b, duplicate allocation is not allowed", NotReady::Transient),
            // Was Transient once. It stays for ever when the name is wrong, and nobody was told.
            ("fail to get allocator edge", NotReady::NoAllocator),
            ("fail to release ip 10.0.0.1 to pool edge, error: fail to get allocator old", NotReady::Transient),
            ("no matched IPPool with requirement &{Network: Project: Namespace:a Cluster:b}", NotReady::NoMatchingPool),
            ("no matching IP pool with requirement x", NotReady::NoMatchingPool),
            (
                "fail to get ip from pool edge, error: no IP addresses available in range set: a-b",
                NotReady::PoolExhausted,
            ),
            ("requested ip 10.0.0.1 is subnet's gateway", NotReady::Other),
        ];
        for (message, expected) in table {
            assert_eq!(NotReady::classify(message), expected, "{message}");
        }
    }
}
