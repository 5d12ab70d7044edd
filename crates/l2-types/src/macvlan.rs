//! The macvlans that carry DHCP addresses.

use ipnet::IpNet;

use crate::{AddressLifetime, InetConfChange, Link, LinkKind, Mac, MacvlanMode};

/// The wanted properties of a macvlan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Macvlan {
    /// Its name, see [`check_interface_name`](crate::check_interface_name).
    pub name: String,
    /// Index of the interface below.
    pub parent: u32,
    /// Its MAC.
    pub mac: Mac,
    /// Alias that names its Service; the sweep uses it.
    pub alias: String,
    /// IPv4 settings. They are set before it is up, so that it never answers with other settings.
    pub inet_conf: InetConfChange,
    /// Address that is set before it is up. The first frame of the macvlan draws the traffic of a MAC that was on
    /// another machine, and the kernel must accept that traffic from then on.
    pub address: Option<(IpNet, AddressLifetime)>,
}

/// Why an interface cannot be adopted in place of a wanted macvlan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The interface is no macvlan.
    #[error("{0} is no macvlan")]
    Kind(String),
    /// Its parent is another interface.
    #[error("its parent is interface {found}, not {wanted}")]
    Parent {
        /// Index of its parent.
        found: u32,
        /// Index of the wanted parent.
        wanted: u32,
    },
    /// Its mode is not bridge.
    #[error("its mode is {0:?}, not Bridge")]
    Mode(MacvlanMode),
    /// It has another MAC.
    #[error("its MAC is {found:?}, not {wanted}")]
    Mac {
        /// Its MAC.
        found: Option<Mac>,
        /// The wanted MAC.
        wanted: Mac,
    },
    /// The alias is not ours, or names another Service.
    #[error("its alias is {0:?}")]
    Alias(Option<String>),
}

impl Macvlan {
    /// Why `link` cannot be adopted; `None`: it can, but may still have to be set up.
    ///
    /// Type, parent and MAC are verified on adoption; a wrong macvlan is made again (kube-vip spec 10.5 item 12).
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
