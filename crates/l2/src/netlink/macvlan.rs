//! The macvlans that carry DHCP addresses.

use l2_types::{Mac, Macvlan};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{
        AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoMacVlan, LinkAttribute, LinkInfo,
        LinkMessage, MacVlanMode,
    },
};

use super::inet_conf::attribute;
use super::{Failure, Netlink, NetlinkError};

impl Netlink {
    /// Creates a macvlan and deletes it again, to learn whether the kernel can have one. It is never up: the kernel
    /// answers ARP for every address of the node on each interface that is, with that interface's MAC.
    pub async fn try_macvlan(&self, name: &str, parent: u32, mac: Mac) -> Result<(), NetlinkError> {
        self.create_macvlan(name, parent, mac).await?;
        let Some(link) = self.link_by_name(name).await? else { return Ok(()) };
        if let Err(error) = self.delete_link(link.index).await {
            tracing::warn!(interface = name, %error, "the macvlan with which the kernel was tried cannot be deleted");
        }
        Ok(())
    }

    async fn create_macvlan(&self, name: &str, parent: u32, mac: Mac) -> Result<(), NetlinkError> {
        let request = RouteNetlinkMessage::NewLink(new_macvlan(name, parent, mac));
        let created = self.change(request, NLM_F_CREATE | NLM_F_EXCL).await;
        created.map_err(|failure| failure.while_trying_to(format!("create macvlan {name} on interface {parent}")))
    }

    /// Creates a macvlan and sets it up: bridge mode, no automatic IPv6 address. Returns its index.
    ///
    /// If a later step fails, the macvlan is removed again. An interface of that name makes it fail with `EEXIST`, so
    /// look it up first and compare ([`Macvlan::mismatch`]). Two macvlans with the same MAC on one parent cannot both
    /// be up: `EADDRINUSE` or `EBUSY`.
    pub async fn add_macvlan(&self, wanted: &Macvlan) -> Result<u32, NetlinkError> {
        let name = &wanted.name;
        self.create_macvlan(name, wanted.parent, wanted.mac).await?;
        let tried = || format!("look up macvlan {name}, just created");
        let Some(link) = self.link_by_name(name).await? else {
            return Err(Failure::Incomplete("it").while_trying_to(tried()));
        };
        // The order matters: the kernel accepts neither alias nor settings when it creates a link. A link that is up
        // without them answers with wrong settings and creates a link-local address.
        let configured = async {
            self.change(RouteNetlinkMessage::SetLink(settings(link.index, wanted)), 0)
                .await
                .map_err(|failure| failure.while_trying_to(format!("set alias and IP settings of macvlan {name}")))?;
            if let Some((net, valid)) = wanted.address {
                self.set_address(link.index, net, valid).await?;
            }
            // The error names the interface by its name, because the index changes with each attempt, and so would the
            // text.
            self.up(link.index).await.map_err(|failure| failure.while_trying_to(format!("set macvlan {name} up")))
        };
        match configured.await {
            Ok(()) => Ok(link.index),
            Err(error) => {
                if let Err(left) = self.delete_link(link.index).await {
                    tracing::warn!(
                        interface = %name,
                        error = %left,
                        "the macvlan was not completed, and could not be deleted either"
                    );
                }
                Err(error)
            }
        }
    }
}

fn new_macvlan(name: &str, parent: u32, mac: Mac) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::IfName(name.to_owned()),
        LinkAttribute::Link(parent),
        LinkAttribute::Address(mac.octets().to_vec()),
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
        families.push(attribute(wanted.inet_conf));
    }
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes = vec![LinkAttribute::IfAlias(wanted.alias.clone()), LinkAttribute::AfSpecUnspec(families)];
    message
}
