//! Interfaces.

use crate::Mac;

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its number, unique in the network namespace and not soon reused.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its MAC; `None` if it has no MAC of six bytes (a tunnel, InfiniBand).
    pub mac: Option<Mac>,
    /// Whether it is set up administratively.
    pub up: bool,
    /// Whether it has a carrier (`LOWER_UP`).
    pub carrier: bool,
    /// Operational state of the driver; many virtual interfaces report `Unknown`.
    pub state: OperState,
    /// Maximum size of a packet.
    pub mtu: u32,
    /// Its kind.
    pub kind: LinkKind,
    /// `IFLA_IFALIAS`: free text that stays with the interface.
    pub alias: Option<String>,
}

impl Link {
    /// Whether frames can be sent and received: operational state UP or UNKNOWN (kube-vip spec 5.7).
    pub fn is_usable(&self) -> bool {
        self.up && self.carrier && matches!(self.state, OperState::Up | OperState::Unknown)
    }
}

/// Operational state (RFC 2863).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperState {
    /// Ready.
    Up,
    /// Not ready.
    Down,
    /// Not ready, because the interface below is not.
    LowerLayerDown,
    /// The driver does not report it.
    Unknown,
    /// Waiting for an event, under test, or gone.
    Other,
}

/// Kind of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkKind {
    /// A macvlan on an interface of this network namespace.
    Macvlan {
        /// Index of the interface below.
        parent: u32,
        /// How it exchanges frames with its siblings.
        mode: MacvlanMode,
    },
    /// Another virtual interface, by the kernel's name of its kind (`veth`, `bridge`, `vlan`).
    Virtual(String),
    /// Hardware, or an interface that looks like it.
    Physical,
}

/// How the macvlans of one parent exchange frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MacvlanMode {
    /// Directly. The announcer creates this mode.
    Bridge,
    /// Through the switch, which must reflect the frames. kube-vip creates this mode, because it is the kernel's
    /// default.
    Vepa,
    /// Never.
    Private,
    /// The single macvlan takes over the parent.
    Passthrough,
    /// Only from listed MACs.
    Source,
    /// A mode that is not known here.
    Other,
}

/// The text is not a valid interface name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be an interface name: accepted are 1 to 15 bytes without '/', ':' and white space, not \".\" or \
    \"..\""
)]
pub struct BadInterfaceName(String);

/// Checks the kernel's rule for interface names. The kernel would only report "invalid argument" or "result out of
/// range".
pub fn check_interface_name(name: &str) -> Result<(), BadInterfaceName> {
    let bad = name.is_empty()
        || name.len() > 15
        || name == "."
        || name == ".."
        || name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c == '\0');
    if bad { Err(BadInterfaceName(name.to_owned())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_are_those_that_the_kernel_takes() {
        for name in ["vip-0a1b2c3d", "eth0", "a", "fifteen-letters", "bond0.100", "é"] {
            assert_eq!(check_interface_name(name), Ok(()), "{name}");
        }
        for name in ["", ".", "..", "sixteen--letters", "a b", "a/b", "eth0:1", "a\tb", "ééééééée\u{e9}"] {
            assert!(check_interface_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn an_interface_is_usable_when_up_plugged_in_and_not_known_to_be_down() {
        let link = |up, carrier, state| Link {
            index: 2,
            name: "eth0".to_owned(),
            mac: None,
            up,
            carrier,
            state,
            mtu: 1500,
            kind: LinkKind::Physical,
            alias: None,
        };
        assert!(link(true, true, OperState::Up).is_usable());
        assert!(link(true, true, OperState::Unknown).is_usable());
        assert!(!link(false, true, OperState::Up).is_usable());
        assert!(!link(true, false, OperState::Up).is_usable());
        assert!(!link(true, true, OperState::LowerLayerDown).is_usable());
        assert!(!link(true, true, OperState::Down).is_usable());
    }
}
