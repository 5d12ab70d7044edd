//! Names of the states, for those who watch.

use std::fmt;

/// Where the client is, for metrics, annotations and people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Not started yet, or pausing before the next DISCOVER.
    Init,
    /// DISCOVER sent, waiting for an offer.
    Selecting,
    /// REQUEST for an offered address sent.
    Requesting,
    /// A lease is remembered; not started yet.
    InitReboot,
    /// REQUEST for the remembered address sent.
    Rebooting,
    /// Granted; waiting for the result of the address probe.
    Probing,
    /// The address is ours.
    Bound,
    /// The address is ours; asking its server to extend it (from T1).
    Renewing,
    /// The address is ours; asking any server to extend it (from T2).
    Rebinding,
    /// Somebody else uses the address; waiting before asking for another.
    Declined,
    /// Given back.
    Released,
    /// The link is lost.
    Stopped,
}

impl State {
    /// A stable lower-case name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Selecting => "selecting",
            Self::Requesting => "requesting",
            Self::InitReboot => "init-reboot",
            Self::Rebooting => "rebooting",
            Self::Probing => "probing",
            Self::Bound => "bound",
            Self::Renewing => "renewing",
            Self::Rebinding => "rebinding",
            Self::Declined => "declined",
            Self::Released => "released",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
