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
    /// A node takes every landmark for heard: it asks nobody whether it is cut off.
    NoWitness,
    /// An owner that was missed is not asked for once more by everybody.
    NoBurst,
    /// Whoever hands an address over gives it up at once.
    NoMakeBeforeBreak,
    /// Nobody tells a former owner what it has lost.
    NoClaims,
    /// An address is used without having asked whether somebody has it.
    NoProbe,
}

/// All of them, with their names.
pub const SABOTAGES: [(&str, Sabotage); 12] = [
    ("no-fence", Sabotage::NoFence),
    ("no-sweep", Sabotage::NoSweep),
    ("no-cas", Sabotage::NoCompareAndSwap),
    ("no-init-reboot", Sabotage::NoInitReboot),
    ("release", Sabotage::ReleaseAtHandOver),
    ("no-witness", Sabotage::NoWitness),
    ("no-burst", Sabotage::NoBurst),
    ("no-make-before-break", Sabotage::NoMakeBeforeBreak),
    ("no-claims", Sabotage::NoClaims),
    ("no-probe", Sabotage::NoProbe),
    ("kubelets-answer", Sabotage::KubeletsAnswer),
    ("slander", Sabotage::Slander),
];

impl FromStr for Sabotage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = SABOTAGES.iter().find(|(name, _)| *name == text).map(|(_, sabotage)| *sabotage);
        found.ok_or_else(|| {
            let names: Vec<&str> = SABOTAGES.iter().map(|(name, _)| *name).collect();
            format!("{text:?} is no sabotage: accepted are {}", names.join(", "))
        })
    }
}
