//! Reasons of the Events on Services. Users filter by them and alerts match them, so they do not change.

use std::fmt;

/// The enum with its texts, and `ALL` of it: what is added here is known to every reader of the list.
macro_rules! reasons {
    ($($(#[$comment:meta])* $name:ident => $text:literal,)+) => {
        /// `reason` of an Event. docs/announcer.md says when each is told.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($(#[$comment])* $name,)+
        }

        impl Reason {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The text in the Event.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

reasons! {
    /// This node announces the Service from now on.
    AddressAnnounced => "AddressAnnounced",
    /// Another host uses or claims the address.
    AddressConflict => "AddressConflict",
    /// Annotations of kube-vip that have no effect.
    AnnotationIgnored => "AnnotationIgnored",
    /// Something is wrong with the Service, its interface or the nodes.
    CannotAnnounce => "CannotAnnounce",
    /// No node is without a defect; the least bad one announces it.
    NoHealthyNode => "NoHealthyNode",
    /// The owner lives, and the node that would succeed it does not hear it.
    OwnerNotHeard => "OwnerNotHeard",
    /// The policy is Local, and the node that announces has no endpoint.
    NoLocalEndpoint => "NoLocalEndpoint",
    /// It is announced, and connections to it get no answer or are refused.
    AddressNotServed => "AddressNotServed",
    /// Connections to it are answered again.
    AddressServedAgain => "AddressServedAgain",
    /// The DHCP server has given another address than before.
    DhcpAddressChanged => "DHCPAddressChanged",
    /// The DHCP server offers another address than was requested.
    DhcpOtherAddress => "DHCPOtherAddress",
    /// No DHCP server answers.
    DhcpNoAnswer => "DHCPNoAnswer",
    /// The DHCP server refuses the request.
    DhcpRefused => "DHCPRefused",
    /// The lease has ended.
    DhcpLeaseLost => "DHCPLeaseLost",
    /// Any other problem that a DHCP client reports.
    DhcpTrouble => "DHCPTrouble",
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
        for reason in Reason::ALL {
            assert!(manual.contains(&format!("`{reason}`")), "{reason}");
        }
    }
}
