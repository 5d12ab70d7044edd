//! Names of the states, for those who watch.

use std::fmt;

/// Where the client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not started, or waiting before it asks again.
    Init,
    /// SOLICIT sent.
    Selecting,
    /// REQUEST sent.
    Requesting,
    /// CONFIRM sent.
    Confirming,
    /// Granted; waiting for the result of the address probe.
    Probing,
    /// The address is ours.
    Bound,
    /// The same, asking its server to extend it.
    Renewing,
    /// The same, asking any server to extend it.
    Rebinding,
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
            Self::Confirming => "confirming",
            Self::Probing => "probing",
            Self::Bound => "bound",
            Self::Renewing => "renewing",
            Self::Rebinding => "rebinding",
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
