//! What a Service waits for, for decisions and metrics; the words for the user stand where the decision is made.

use cloud_provider::provider::{HARVESTER_SILENT, NOT_READ_YET};

/// What a Service waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitReason {
    /// The first list of a cache.
    Cache,
    /// Its turn on the host.
    Turn,
    /// The host books an address.
    Allocation,
    /// The host releases the address of the object that was there.
    Terminating,
    /// The host has not finished booking, so that a deletion now would leak the address.
    Booking,
    /// Other Services still use the address.
    Shared,
    /// The Service whose address is to be shared.
    Primary,
    /// The host does not look at the object.
    HostSilent,
    /// The cluster has as many load balancers as it may have.
    Quota,
    /// An announcer that serves the published address.
    Unserved,
    /// No IPPool fits.
    NoMatchingPool,
    /// The IPPool that is named does not exist.
    NoSuchPool,
    /// The IPPool is used up.
    PoolExhausted,
    /// A Service with a static address that Harvester booked for this one.
    AddressTaken,
    /// The host refuses for another reason.
    Refused,
    /// A second look, or a human's word: too much has changed at once.
    TooManyAtOnce,
    /// The end of a fight with another writer.
    Undone,
    /// The user, who asks for what cannot be: a wrong annotation, for instance.
    User,
}

impl WaitReason {
    /// Reason of the condition on the Service.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cache => NOT_READ_YET,
            Self::Turn => "WaitingForTurn",
            Self::Allocation => "Allocating",
            Self::Terminating => "Terminating",
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
            // The condition has a word of its own for each such wish.
            Self::User => "NotAccepted",
        }
    }

    /// Value of the label `reason` of `harvester_loadbalancer_waiting`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Turn => "turn",
            Self::Allocation => "allocation",
            Self::Terminating => "terminating",
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
