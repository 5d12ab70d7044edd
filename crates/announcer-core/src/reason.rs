//! Reasons of the Events on Services. Users filter by them and alerts match them, so they do not change.

use std::fmt;

/// `reason` of an Event. docs/announcer.md says when each is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// This node announces the Service from now on.
    AddressAnnounced,
    /// Another host uses or claims the address.
    AddressConflict,
    /// Annotations of kube-vip that have no effect.
    AnnotationIgnored,
    /// Something is wrong with the Service, its interface or the nodes.
    CannotAnnounce,
    /// No node is without a defect; the least bad one announces it.
    NoHealthyNode,
    /// The owner lives, and the node that would succeed it does not hear it.
    OwnerNotHeard,
    /// The policy is Local, and the node that announces has no endpoint.
    NoLocalEndpoint,
    /// It is announced, and connections to it get no answer or are refused.
    AddressNotServed,
    /// Connections to it are answered again.
    AddressServedAgain,
    /// The DHCP server has given another address than before.
    DhcpAddressChanged,
    /// The DHCP server offers another address than was requested.
    DhcpOtherAddress,
    /// No DHCP server answers.
    DhcpNoAnswer,
    /// The DHCP server refuses the request.
    DhcpRefused,
    /// The lease has ended.
    DhcpLeaseLost,
    /// Any other problem that a DHCP client reports.
    DhcpTrouble,
}

impl Reason {
    /// The text in the Event.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AddressAnnounced => "AddressAnnounced",
            Self::AddressConflict => "AddressConflict",
            Self::AnnotationIgnored => "AnnotationIgnored",
            Self::CannotAnnounce => "CannotAnnounce",
            Self::NoHealthyNode => "NoHealthyNode",
            Self::OwnerNotHeard => "OwnerNotHeard",
            Self::NoLocalEndpoint => "NoLocalEndpoint",
            Self::AddressNotServed => "AddressNotServed",
            Self::AddressServedAgain => "AddressServedAgain",
            Self::DhcpAddressChanged => "DHCPAddressChanged",
            Self::DhcpOtherAddress => "DHCPOtherAddress",
            Self::DhcpNoAnswer => "DHCPNoAnswer",
            Self::DhcpRefused => "DHCPRefused",
            Self::DhcpLeaseLost => "DHCPLeaseLost",
            Self::DhcpTrouble => "DHCPTrouble",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn the_manual_names_every_reason() {
        let manual = include_str!("../../../docs/announcer.md");
        for reason in [
            Reason::AddressAnnounced,
            Reason::AddressConflict,
            Reason::AnnotationIgnored,
            Reason::CannotAnnounce,
            Reason::NoHealthyNode,
            Reason::OwnerNotHeard,
            Reason::NoLocalEndpoint,
            Reason::AddressNotServed,
            Reason::AddressServedAgain,
            Reason::DhcpAddressChanged,
            Reason::DhcpOtherAddress,
            Reason::DhcpNoAnswer,
            Reason::DhcpRefused,
            Reason::DhcpLeaseLost,
            Reason::DhcpTrouble,
        ] {
            assert!(manual.contains(&format!("`{reason}`")), "{reason}");
        }
    }
}
