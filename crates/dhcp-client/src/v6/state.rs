//! Names of the states for metrics and users.

use std::fmt;

/// State of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not started, or waiting before the next request.
    Init,
    /// SOLICIT sent.
    Selecting,
    /// REQUEST sent.
    Requesting,
    /// CONFIRM sent.
    Confirming,
    /// Granted; waiting for the result of the address probe.
    Probing,
    /// The address is in use.
    Bound,
    /// The address is in use; the client asks its server to extend it.
    Renewing,
    /// The address is in use; the client asks any server to extend it.
    Rebinding,
    /// The lease is released.
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
