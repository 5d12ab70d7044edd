//! IP addresses of interfaces.

use std::time::Duration;

use ipnet::IpNet;

/// The `IFA_PROTO` mark of addresses that the announcer sets, so that the sweep after a restart recognises them.
///
/// The kernel uses 1 to 3 itself. Kernels before 5.18 neither keep nor report the mark.
pub const OUR_ADDRESS_PROTOCOL: u8 = 0x76;

const FOREVER: u32 = u32::MAX;

/// How long the kernel keeps an address if it is not extended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressLifetime {
    /// Until it is removed.
    Forever,
    /// For this time; then the kernel removes it, 0 to 0.3 s late (fail-over spec 5). It counts whole seconds: a
    /// fraction is cut off, the minimum is 1 s.
    For(Duration),
}

impl AddressLifetime {
    /// The kernel's value: whole seconds, `u32::MAX` for ever.
    pub fn seconds(self) -> u32 {
        match self {
            Self::Forever => FOREVER,
            // Rounded down, because an address must not outlive its DHCP lease. 0 would mean "remove it".
            Self::For(duration) => u32::try_from(duration.as_secs()).unwrap_or(FOREVER - 1).clamp(1, FOREVER - 1),
        }
    }

    /// Reads the kernel's value.
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
    /// Remaining lifetime.
    pub valid: AddressLifetime,
    /// How long it may be chosen as source address; our addresses never (`For(0)`).
    pub preferred: AddressLifetime,
    /// The program that set it (`IFA_PROTO`); `None` if it set no mark, or the kernel is older than 5.18.
    pub protocol: Option<u8>,
    /// IPv6: duplicate address detection has not ended.
    pub tentative: bool,
    /// IPv6: duplicate address detection has found another host with this address.
    pub duplicate: bool,
    /// IPv6: set without duplicate address detection.
    pub nodad: bool,
    /// The metric of its prefix route (`IFA_RT_PRIORITY`), if one was given.
    pub metric: Option<u32>,
}

impl Address {
    /// Whether it has our mark.
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
