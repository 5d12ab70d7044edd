//! The macvlans that carry DHCP addresses.

use ipnet::IpNet;

use crate::{AddressLifetime, InetConfChange, Link, LinkKind, Mac, MacvlanMode};

/// A macvlan as it shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Macvlan {
    /// Its name, see [`check_interface_name`](crate::check_interface_name).
    pub name: String,
    /// Index of the interface below.
    pub parent: u32,
    /// Its MAC.
    pub mac: Mac,
    /// Says whose it is; a sweep goes by it.
    pub alias: String,
    /// Set before it is up, so that it never answers with other settings.
    pub inet_conf: InetConfChange,
    /// Set before it is up. Its first frame draws the traffic for a MAC that was on another machine: from then on
    /// whatever arrives is for this address.
    pub address: Option<(IpNet, AddressLifetime)>,
}

/// Why an interface cannot be adopted in place of a wanted macvlan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Something else has the name.
    #[error("{0} is no macvlan")]
    Kind(String),
    /// On another interface.
    #[error("its parent is interface {found}, not {wanted}")]
    Parent {
        /// Index.
        found: u32,
        /// Index.
        wanted: u32,
    },
    /// Another mode than bridge.
    #[error("its mode is {0:?}, not Bridge")]
    Mode(MacvlanMode),
    /// Another MAC.
    #[error("its MAC is {found:?}, not {wanted}")]
    Mac {
        /// What it has.
        found: Option<Mac>,
        /// What it should have.
        wanted: Mac,
    },
    /// Somebody else's, or ours of another Service.
    #[error("its alias is {0:?}")]
    Alias(Option<String>),
}

impl Macvlan {
    /// Whether `link` can be adopted as it is (it may still have to be set up), and why not.
    ///
    /// kube-vip spec 10.5 item 12: type, parent and MAC are verified on adoption, a wrong one is made anew.
    pub fn mismatch(&self, link: &Link) -> Option<Mismatch> {
        let LinkKind::Macvlan { parent, mode } = link.kind else {
            return Some(Mismatch::Kind(link.name.clone()));
        };
        if parent != self.parent {
            Some(Mismatch::Parent { found: parent, wanted: self.parent })
        } else if mode != MacvlanMode::Bridge {
            Some(Mismatch::Mode(mode))
        } else if link.mac != Some(self.mac) {
            Some(Mismatch::Mac { found: link.mac, wanted: self.mac })
        } else if link.alias.as_ref() != Some(&self.alias) {
            Some(Mismatch::Alias(link.alias.clone()))
        } else {
            None
        }
    }
}
