//! Checks the effective Linux capabilities of this process.

use std::{fmt, io};

use rustix::thread::{CapabilitySet, capabilities};

/// A capability that the announcer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Capability {
    /// `CAP_NET_ADMIN`: links, addresses, interface settings.
    NetAdmin,
    /// `CAP_NET_RAW`: packet sockets.
    NetRaw,
}

impl Capability {
    fn bit(self) -> CapabilitySet {
        match self {
            Self::NetAdmin => CapabilitySet::NET_ADMIN,
            Self::NetRaw => CapabilitySet::NET_RAW,
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NetAdmin => "NET_ADMIN",
            Self::NetRaw => "NET_RAW",
        })
    }
}

/// Those of `wanted` that are not in the effective set of the calling thread.
///
/// A process that is not root has an empty effective set, whatever the pod's capabilities say (decisions.md 2). So the
/// set itself is read, not the user.
pub fn missing(wanted: &[Capability]) -> io::Result<Vec<Capability>> {
    let effective = capabilities(None)?.effective;
    Ok(wanted.iter().copied().filter(|capability| !effective.contains(capability.bit())).collect())
}
