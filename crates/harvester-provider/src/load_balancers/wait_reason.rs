//! What a Service waits for, for decisions and metrics. The texts for users are where the decisions are made.

use std::time::Duration;

use cloud_provider::provider::{HARVESTER_SILENT, NOT_READ_YET, Waiting};

/// What a Service waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitReason {
    /// The first list of a cache.
    Cache,
    /// The same, where the list fails.
    CacheFails,
    /// Its turn on the host.
    Turn,
    /// An allocation by the host.
    Allocation,
    /// The release of the address of a former object by the host.
    Terminating,
    /// The same, where the deletion fails.
    DeletionFails,
    /// The end of an allocation, because a deletion now would leak the address.
    Booking,
    /// Other Services that still use the address.
    Shared,
    /// The Service whose address is to be shared.
    Primary,
    /// The host, which does not process the object.
    HostSilent,
    /// The cluster has reached its limit of load balancers.
    Quota,
    /// An announcer that serves the published address.
    Unserved,
    /// No IPPool matches.
    NoMatchingPool,
    /// The named IPPool does not exist.
    NoSuchPool,
    /// The IPPool is exhausted.
    PoolExhausted,
    /// Another Service, whose static address Harvester has allocated for this one.
    AddressTaken,
    /// The host refuses for another reason.
    Refused,
    /// A second check, or an operator's confirmation: too much has changed at once.
    TooManyAtOnce,
    /// The end of a conflict with another writer.
    Undone,
    /// The user, whose request is impossible, for instance because of a wrong annotation.
    User,
}

/// A wait, as decisions see it. It becomes a [`Waiting`] where the provider answers the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// For the condition on the Service, for metrics, and for decisions.
    pub reason: WaitReason,
    /// The complete message for the user.
    pub message: String,
    /// The user has to do something.
    pub needs_user: bool,
    /// Reconcile after this time, even without a wake-up.
    pub retry_after: Option<Duration>,
}

impl From<Wait> for Waiting {
    fn from(wait: Wait) -> Self {
        let Wait { reason, message, needs_user, retry_after } = wait;
        let failure = matches!(reason, WaitReason::CacheFails | WaitReason::DeletionFails);
        Self { reason: reason.word(), message, needs_user, failure, retry_after }
    }
}

impl WaitReason {
    /// Reason of the condition on the Service.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cache | Self::CacheFails => NOT_READ_YET,
            Self::Turn => "WaitingForTurn",
            Self::Allocation => "Allocating",
            Self::Terminating | Self::DeletionFails => "Terminating",
            Self::Booking => "Booking",
            Self::Shared => "AddressShared",
            Self::Primary => "PrimaryWithoutAddress",
            Self::HostSilent => HARVESTER_SILENT,
            Self::Quota => "QuotaReached",
            Self::Unserved => "NotServed",
            Self::NoMatchingPool => "NoMatchingPool",
            Self::NoSuchPool => "NoSuchPool",
            Self::PoolExhausted => "PoolExhausted",
            Self::AddressTaken => "AddressTaken",
            Self::Refused => "RefusedByHarvester",
            Self::TooManyAtOnce => "TooManyAtOnce",
            Self::Undone => "UndoneByOthers",
            // The condition has a reason of its own for each such request.
            Self::User => "NotAccepted",
        }
    }

    /// Whether a deletion waits for Harvester alone, or for what is read of it.
    pub fn is_harvesters(self) -> bool {
        matches!(self, Self::Terminating | Self::Cache | Self::CacheFails)
    }

    /// The reason of a wait whose message names the way out as well: that is news, and no mere change of words.
    pub fn with_escape(self) -> Self {
        if self == Self::CacheFails { Self::DeletionFails } else { self }
    }

    /// Value of the label `reason` of `harvester_loadbalancer_waiting`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Cache | Self::CacheFails => "cache",
            Self::Turn => "turn",
            Self::Allocation => "allocation",
            Self::Terminating | Self::DeletionFails => "terminating",
            Self::Booking => "booking",
            Self::Shared => "shared",
            Self::Primary => "primary",
            Self::HostSilent => "host_silent",
            Self::Quota => "quota",
            Self::Unserved => "unserved",
            Self::NoMatchingPool => "no_matching_pool",
            Self::NoSuchPool => "no_such_pool",
            Self::PoolExhausted => "pool_exhausted",
            Self::AddressTaken => "address_taken",
            Self::Refused => "refused",
            Self::TooManyAtOnce => "too_many_at_once",
            Self::Undone => "undone",
            Self::User => "user",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_quotes_a_failure_says_so_and_is_another_trouble_once_it_names_the_way_out() {
        let told = |reason: WaitReason| {
            let waiting = Waiting::from(Wait { reason, message: String::new(), needs_user: true, retry_after: None });
            (waiting.reason, waiting.failure)
        };
        for (reason, before, with_escape) in [
            (WaitReason::CacheFails, (NOT_READ_YET, true), ("Terminating", true)),
            (WaitReason::DeletionFails, ("Terminating", true), ("Terminating", true)),
            (WaitReason::Terminating, ("Terminating", false), ("Terminating", false)),
            (WaitReason::Cache, (NOT_READ_YET, false), (NOT_READ_YET, false)),
        ] {
            assert_eq!((told(reason), told(reason.with_escape())), (before, with_escape), "{reason:?}");
        }
    }
}
