//! Reasons of the Events on Services. People filter by them and alerts match them: they do not change.

use std::fmt;

/// `reason` of an Event. docs/announcer.md says when each is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Who announces it from now on.
    AddressAnnounced,
    /// Another host uses or claims the address.
    AddressConflict,
    /// Annotations of kube-vip that have no effect.
    AnnotationIgnored,
    /// Something is wrong with the Service, its interface or the nodes.
    CannotAnnounce,
    /// No node is fully well: the least bad one announces it.
    NoHealthyNode,
    /// Policy Local, and no endpoint where the address is.
    NoLocalEndpoint,
    /// It is announced, and connections to it get no answer or are refused.
    AddressNotServed,
    /// That is over.
    AddressServedAgain,
    /// The server has given another address than before.
    DhcpAddressChanged,
    /// The server offers another address than was asked for.
    DhcpOtherAddress,
    /// No server answers.
    DhcpNoAnswer,
    /// The server refuses.
    DhcpRefused,
    /// The lease is over.
    DhcpLeaseLost,
    /// What else a client reports.
    DhcpTrouble,
}

impl Reason {
    /// As in the Event.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AddressAnnounced => "AddressAnnounced",
            Self::AddressConflict => "AddressConflict",
            Self::AnnotationIgnored => "AnnotationIgnored",
            Self::CannotAnnounce => "CannotAnnounce",
            Self::NoHealthyNode => "NoHealthyNode",
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
