//! Interfaces.

use l2_types::{Link, LinkKind, Mac, MacvlanMode, OperState, check_interface_name};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{InfoData, InfoKind, InfoMacVlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, MacVlanMode, State},
};

use super::{ENODEV, Failure, Netlink, NetlinkError};

impl Netlink {
    /// All interfaces.
    pub async fn links(&self) -> Result<Vec<Link>, NetlinkError> {
        let answers = self
            .dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))
            .await
            .map_err(|failure| failure.while_trying_to("list the interfaces"))?;
        Ok(answers
            .iter()
            .filter_map(|answer| match answer {
                RouteNetlinkMessage::NewLink(message) => parse(message),
                _ => None,
            })
            .collect())
    }

    /// The interface with this index, if there is one.
    pub async fn link(&self, index: u32) -> Result<Option<Link>, NetlinkError> {
        let tried = || format!("look up interface {index}");
        found(self.get_link(index).await, tried)
    }

    /// The interface with this name, if there is one.
    pub async fn link_by_name(&self, name: &str) -> Result<Option<Link>, NetlinkError> {
        if check_interface_name(name).is_err() {
            return Ok(None);
        }
        let mut message = LinkMessage::default();
        message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        found(self.ask_link(message).await, || format!("look up interface {name}"))
    }

    /// Deletes an interface. An interface that does not exist counts as deleted. Returns true if it existed.
    pub async fn delete_link(&self, index: u32) -> Result<bool, NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        match self.change(RouteNetlinkMessage::DelLink(message), 0).await {
            Ok(()) => Ok(true),
            Err(failure) if failure.is_one_of(&[ENODEV]) => Ok(false),
            Err(failure) => Err(failure.while_trying_to(format!("delete interface {index}"))),
        }
    }

    /// Sets an interface up.
    pub async fn set_up(&self, index: u32) -> Result<(), NetlinkError> {
        self.up(index).await.map_err(|failure| failure.while_trying_to(format!("set interface {index} up")))
    }

    pub(super) async fn up(&self, index: u32) -> Result<(), Failure> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.change(RouteNetlinkMessage::SetLink(message), 0).await
    }

    /// Sets the alias of an interface (at most 255 bytes).
    pub async fn set_alias(&self, index: u32, alias: &str) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes = vec![LinkAttribute::IfAlias(alias.to_owned())];
        self.change(RouteNetlinkMessage::SetLink(message), 0)
            .await
            .map_err(|failure| failure.while_trying_to(format!("set the alias of interface {index} to {alias:?}")))
    }

    pub(super) async fn get_link(&self, index: u32) -> Result<LinkMessage, Failure> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.ask_link(message).await
    }

    async fn ask_link(&self, message: LinkMessage) -> Result<LinkMessage, Failure> {
        match self.get(RouteNetlinkMessage::GetLink(message)).await? {
            RouteNetlinkMessage::NewLink(message) => Ok(message),
            _ => Err(Failure::Incomplete("an interface")),
        }
    }
}

fn found(answer: Result<LinkMessage, Failure>, tried: impl Fn() -> String) -> Result<Option<Link>, NetlinkError> {
    match answer {
        Ok(message) => match parse(&message) {
            Some(link) => Ok(Some(link)),
            None => Err(Failure::Incomplete("its name").while_trying_to(tried())),
        },
        Err(failure) if failure.is_one_of(&[ENODEV]) => Ok(None),
        Err(failure) => Err(failure.while_trying_to(tried())),
    }
}

pub(super) fn parse(message: &LinkMessage) -> Option<Link> {
    let flags = message.header.flags;
    let (mut name, mut kind, mut mode, mut parent, mut foreign_parent) = (None, None, None, None, false);
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        mac: None,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        state: OperState::Unknown,
        mtu: 0,
        kind: LinkKind::Physical,
        alias: None,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(text) => name = Some(text.clone()),
            LinkAttribute::Address(bytes) => link.mac = <[u8; 6]>::try_from(bytes.as_slice()).ok().map(Mac::new),
            LinkAttribute::OperState(state) => link.state = oper_state(*state),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::IfAlias(alias) => link.alias = Some(alias.clone()),
            LinkAttribute::Link(index) => parent = Some(*index),
            // The parent's index belongs to another network namespace.
            LinkAttribute::LinkNetNsId(_) => foreign_parent = true,
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(found) => kind = Some(found.clone()),
                        LinkInfo::Data(InfoData::MacVlan(data)) => {
                            mode = data.iter().find_map(|info| match info {
                                InfoMacVlan::Mode(mode) => Some(macvlan_mode(*mode)),
                                _ => None,
                            });
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    link.name = name?;
    link.kind = match (kind, mode, parent) {
        (None, ..) => LinkKind::Physical,
        (Some(InfoKind::MacVlan), Some(mode), Some(parent)) if !foreign_parent => LinkKind::Macvlan { parent, mode },
        (Some(kind), ..) => LinkKind::Virtual(kind.to_string()),
    };
    Some(link)
}

fn oper_state(state: State) -> OperState {
    match state {
        State::Up => OperState::Up,
        State::Down => OperState::Down,
        State::LowerLayerDown => OperState::LowerLayerDown,
        State::Unknown => OperState::Unknown,
        _ => OperState::Other,
    }
}

fn macvlan_mode(mode: MacVlanMode) -> MacvlanMode {
    match mode {
        MacVlanMode::Bridge => MacvlanMode::Bridge,
        MacVlanMode::Vepa => MacvlanMode::Vepa,
        MacVlanMode::Private => MacvlanMode::Private,
        MacVlanMode::Passthrough => MacvlanMode::Passthrough,
        MacVlanMode::Source => MacvlanMode::Source,
        _ => MacvlanMode::Other,
    }
}
