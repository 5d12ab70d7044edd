//! Names of the states for metrics and users.

use std::fmt;

/// State of a client, for metrics, annotations and users. `InitReboot` and `Rebooting` are of DHCPv4, `Confirming` is
/// of DHCPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Not started yet, or pausing before the next search.
    Init,
    /// DISCOVER or SOLICIT sent, waiting for an offer.
    Selecting,
    /// REQUEST for an offered address sent.
    Requesting,
    /// A lease is remembered; not started yet.
    InitReboot,
    /// REQUEST for the remembered address sent.
    Rebooting,
    /// CONFIRM for the address in use sent.
    Confirming,
    /// Granted; waiting for the result of the address probe.
    Probing,
    /// The address is in use.
    Bound,
    /// The address is in use; the client asks its server to extend it (from T1).
    Renewing,
    /// The address is in use; the client asks any server to extend it (from T2).
    Rebinding,
    /// Another host uses the address; the client waits before it asks for another one.
    Declined,
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
            Self::InitReboot => "init-reboot",
            Self::Rebooting => "rebooting",
            Self::Confirming => "confirming",
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
