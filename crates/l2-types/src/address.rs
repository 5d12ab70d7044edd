//! IP addresses of interfaces.

use std::time::Duration;

use ipnet::IpNet;

/// The `IFA_PROTO` mark of addresses that we set, so that a sweep after a restart recognises them.
///
/// The kernel uses 1 to 3 itself. Kernels before 5.18 neither keep nor report the mark.
pub const OUR_ADDRESS_PROTOCOL: u8 = 0x76;

const FOREVER: u32 = u32::MAX;

/// How long the kernel keeps an address if nobody extends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressLifetime {
    /// Until it is removed.
    Forever,
    /// Then the kernel removes it, 0 to 0.3 s late (failover-protocol.md 5). Whole seconds: a fraction is cut off, the
    /// least is 1 s.
    For(Duration),
}

impl AddressLifetime {
    /// As the kernel counts it: whole seconds, `u32::MAX` for ever.
    pub fn seconds(self) -> u32 {
        match self {
            Self::Forever => FOREVER,
            // Cut off, never rounded up: an address must not outlive its DHCP lease. 0 would mean "remove it".
            Self::For(duration) => u32::try_from(duration.as_secs()).unwrap_or(FOREVER - 1).clamp(1, FOREVER - 1),
        }
    }

    /// What the kernel says.
    pub fn from_seconds(seconds: u32) -> Self {
        if seconds == FOREVER { Self::Forever } else { Self::For(Duration::from_secs(seconds.into())) }
    }
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// Index of the interface.
    pub interface: u32,
    /// The address with its prefix length; host bits are kept.
    pub net: IpNet,
    /// What is left of its life.
    pub valid: AddressLifetime,
    /// For how long it may be chosen as source address; ours never (`For(0)`).
    pub preferred: AddressLifetime,
    /// Who set it (`IFA_PROTO`); `None` if nobody said, or the kernel is older than 5.18.
    pub protocol: Option<u8>,
    /// IPv6: duplicate address detection has not ended.
    pub tentative: bool,
    /// IPv6: somebody else has it.
    pub duplicate: bool,
    /// IPv6: set without duplicate address detection.
    pub nodad: bool,
    /// The metric of its prefix route (`IFA_RT_PRIORITY`), if one was given.
    pub metric: Option<u32>,
}

impl Address {
    /// It carries our mark.
    pub fn is_ours(&self) -> bool {
        self.protocol == Some(OUR_ADDRESS_PROTOCOL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_is_whole_seconds_never_rounded_up_and_never_zero() {
        let seconds = |duration| AddressLifetime::For(duration).seconds();
        assert_eq!(seconds(Duration::from_millis(5999)), 5);
        assert_eq!(seconds(Duration::ZERO), 1);
        assert_eq!(seconds(Duration::MAX), u32::MAX - 1);
        assert_eq!(AddressLifetime::Forever.seconds(), u32::MAX);
    }
}
