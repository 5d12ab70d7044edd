//! Which host is played. Harvester spec 0

use std::fmt;
use std::str::FromStr;

/// Versions of the host that differ in what a guest cluster sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostVersion {
    /// 1.8 and before (with the loose pass of 1.7): the webhook recomputes the network at every write, by name prefix
    /// only.
    V1_8,
    /// 1.9 and the main branch: a network given by the client or the management network wins.
    #[default]
    V1_9,
    /// Release candidates 1 to 4 of 1.9: as 1.9, but the global pool must match the network. Reverted since.
    V1_9Rc,
}

impl HostVersion {
    /// What the command line accepts.
    pub const ACCEPTED: [&str; 3] = ["<=1.8", ">=1.9", "1.9-rc"];
}

impl fmt::Display for HostVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1_8 => "<=1.8",
            Self::V1_9 => ">=1.9",
            Self::V1_9Rc => "1.9-rc",
        })
    }
}

impl FromStr for HostVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "<=1.8" | "1.8" => Ok(Self::V1_8),
            ">=1.9" | "1.9" => Ok(Self::V1_9),
            "1.9-rc" => Ok(Self::V1_9Rc),
            _ => Err(format!("unknown host version {text:?}; accepted: {}", Self::ACCEPTED.join(", "))),
        }
    }
}
