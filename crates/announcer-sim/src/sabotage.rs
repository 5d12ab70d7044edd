//! Engines that are broken on purpose, to see that the simulation notices. The engine itself stays whole: what it asks
//! for is altered on its way, so that no broken code is ever shipped.

use std::str::FromStr;

/// What is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Addresses are set for an hour: the kernel does not take them from a dead process in time.
    NoFence,
    /// What a former life of the process has left is not removed.
    NoSweep,
    /// Ownership is written without regard to what was written meanwhile.
    NoCompareAndSwap,
    /// A DHCP client begins with DISCOVER, whatever lease stands on its Service.
    NoInitReboot,
    /// Whoever hands an address over gives its lease back.
    ReleaseAtHandOver,
    /// Whoever asks for a kubelet is told that it answers.
    KubeletsAnswer,
    /// Each node calls another one silent.
    Slander,
}

impl FromStr for Sabotage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "no-fence" => Ok(Self::NoFence),
            "no-sweep" => Ok(Self::NoSweep),
            "no-cas" => Ok(Self::NoCompareAndSwap),
            "no-init-reboot" => Ok(Self::NoInitReboot),
            "release" => Ok(Self::ReleaseAtHandOver),
            "kubelets-answer" => Ok(Self::KubeletsAnswer),
            "slander" => Ok(Self::Slander),
            _ => Err(format!(
                "{text:?} is no sabotage: accepted are no-fence, no-sweep, no-cas, no-init-reboot, release, kubelets-answer and slander"
            )),
        }
    }
}
