//! The meaning of a host's upgrade state for the machines on it. The stored strings vary between versions of Harvester.
//! Therefore only letters and digits are compared. An unknown state means nothing and is shown as it is.

/// The stage of a host in its upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Nothing happens to its machines yet; also any unknown state.
    Waiting,
    /// An administrator has paused it.
    Paused,
    /// Its machines are being migrated or shut down.
    Emptied,
    /// It is empty, and is being upgraded or restarts.
    Changed,
    /// Something went wrong.
    Failed,
    /// The upgrade of the host is complete.
    Done,
}

impl Stage {
    /// The stage that belongs to a state of `UpgradePlan` or `Upgrade`.
    pub fn of(state: &str) -> Self {
        let letters: String =
            state.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
        match letters.as_str() {
            "upgradepaused" => Self::Paused,
            "predraining" => Self::Emptied,
            "predrained" | "postdraining" | "waitingreboot" | "singlenodeupgrading" => Self::Changed,
            "postdrained" | "imagecleaning" | "imagecleaned" | "singlenodeupgraded" | "succeeded" => Self::Done,
            other if other.ends_with("failed") => Self::Failed,
            _ => Self::Waiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_states_of_both_ways_have_a_stage_and_a_string_of_another_version_is_no_error() {
        use Stage::{Changed, Done, Emptied, Failed, Paused, Waiting};
        for (state, expected) in [
            ("ImagePreloading", Waiting),
            ("ImagePreloaded", Waiting),
            ("ImagePreloadFailed", Failed),
            ("UpgradePaused", Paused),
            ("PreDraining", Emptied),
            ("PreDrained", Changed),
            ("PreDrainFailed", Failed),
            ("PostDraining", Changed),
            ("WaitingReboot", Changed),
            ("PostDrained", Done),
            ("PostDrainFailed", Failed),
            ("ImageCleaning", Done),
            ("ImageCleaned", Done),
            ("ImageCleanFailed", Failed),
            ("SingleNodeUpgrading", Changed),
            ("SingleNodeUpgraded", Done),
            ("SingleNodeUpgradeFailed", Failed),
            ("Images preloaded", Waiting),
            ("Pre-draining", Emptied),
            ("pre-drained", Changed),
            ("Waiting Reboot", Changed),
            ("Succeeded", Done),
            ("Failed", Failed),
            ("Replacing the engine", Waiting),
            ("", Waiting),
        ] {
            assert_eq!(Stage::of(state), expected, "{state}");
        }
    }
}
