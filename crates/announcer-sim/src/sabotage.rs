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
    /// The owner is written unconditionally, so a concurrent write is overwritten.
    NoCompareAndSwap,
    /// A DHCP client always starts with DISCOVER and ignores the lease that its Service records.
    NoInitReboot,
    /// A node that hands an address over releases its DHCP lease.
    ReleaseAtHandOver,
    /// Each question to a kubelet is answered, even if the node is dead.
    KubeletsAnswer,
    /// Each node reports another node as silent.
    Slander,
    /// A node considers all landmarks as heard, so it never finds out that it is cut off.
    NoWitness,
    /// The confirmation burst, three broadcast questions about a missed owner, is not sent.
    NoBurst,
    /// A node that hands an address over removes it before its successor has it.
    NoMakeBeforeBreak,
    /// No node sends a claim to the former owner of an address.
    NoClaims,
    /// An address is used without a probe.
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
