//! The macvlans that carry DHCP addresses.

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{
        AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoMacVlan, LinkAttribute, LinkInfo,
        LinkMessage, MacVlanMode,
    },
};

use super::{AddressLifetime, Failure, InetConfChange, Link, LinkKind, MacvlanMode, Netlink, NetlinkError};
use crate::Mac;

/// A macvlan as it shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Macvlan {
    /// Its name, see [`check_interface_name`](super::check_interface_name).
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

impl Netlink {
    /// Creates a macvlan and sets it up: bridge mode, no automatic IPv6 address. Returns its index.
    ///
    /// If a later step fails it is removed again. An interface of that name makes it fail with `EEXIST`: look it up
    /// first and compare ([`Macvlan::mismatch`]). Two with one MAC on one parent cannot be up: `EADDRINUSE` or `EBUSY`.
    pub async fn add_macvlan(&self, wanted: &Macvlan) -> Result<u32, NetlinkError> {
        let name = &wanted.name;
        self.change(RouteNetlinkMessage::NewLink(new_macvlan(wanted)), NLM_F_CREATE | NLM_F_EXCL).await.map_err(
            |failure| failure.while_trying_to(format!("create macvlan {name} on interface {}", wanted.parent)),
        )?;
        let tried = || format!("look up macvlan {name}, just created");
        let Some(link) = self.link_by_name(name).await? else {
            return Err(Failure::Incomplete("it").while_trying_to(tried()));
        };
        // In this order: the kernel takes neither alias nor settings when it creates a link, and a link that is up without
        // them answers with wrong settings and has made itself a link-local address.
        let configured = async {
            self.change(RouteNetlinkMessage::SetLink(settings(link.index, wanted)), 0)
                .await
                .map_err(|failure| failure.while_trying_to(format!("set alias and IP settings of macvlan {name}")))?;
            if let Some((net, valid)) = wanted.address {
                self.set_address(link.index, net, valid).await?;
            }
            // By its name: the index is another one with each attempt, and so would be the text.
            self.up(link.index).await.map_err(|failure| failure.while_trying_to(format!("set macvlan {name} up")))
        };
        match configured.await {
            Ok(()) => Ok(link.index),
            Err(error) => {
                if let Err(left) = self.delete_link(link.index).await {
                    tracing::warn!(interface = %name, error = %left, "a half-made macvlan is left behind");
                }
                Err(error)
            }
        }
    }
}

fn new_macvlan(wanted: &Macvlan) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::IfName(wanted.name.clone()),
        LinkAttribute::Link(wanted.parent),
        LinkAttribute::Address(wanted.mac.octets().to_vec()),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::MacVlan),
            LinkInfo::Data(InfoData::MacVlan(vec![InfoMacVlan::Mode(MacVlanMode::Bridge)])),
        ]),
    ];
    message
}

fn settings(index: u32, wanted: &Macvlan) -> LinkMessage {
    let mut families = vec![AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)])];
    if !wanted.inet_conf.is_empty() {
        families.push(wanted.inet_conf.attribute());
    }
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes = vec![LinkAttribute::IfAlias(wanted.alias.clone()), LinkAttribute::AfSpecUnspec(families)];
    message
}
