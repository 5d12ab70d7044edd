//! Interfaces.

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{InfoData, InfoKind, InfoMacVlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, MacVlanMode, State},
};

use super::{ENODEV, Failure, Netlink, NetlinkError};
use crate::Mac;

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its number, unique in the network namespace and not soon used again.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its MAC; `None` if it has none of six bytes (a tunnel, InfiniBand).
    pub mac: Option<Mac>,
    /// Set up by an administrator.
    pub up: bool,
    /// The cable is in (`LOWER_UP`).
    pub carrier: bool,
    /// What the driver says; many virtual ones say nothing (`Unknown`).
    pub state: OperState,
    /// The largest packet.
    pub mtu: u32,
    /// What kind of interface it is.
    pub kind: LinkKind,
    /// `IFLA_IFALIAS`: free text that stays with the interface.
    pub alias: Option<String>,
}

impl Link {
    /// Frames can go out and come in. kube-vip spec 5.7: operational state UP or UNKNOWN.
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
    /// Not ready because the interface below is not.
    LowerLayerDown,
    /// The driver does not say.
    Unknown,
    /// Waiting for an event, under test, or gone.
    Other,
}

/// What kind of interface.
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
    /// Hardware, or something that looks like it.
    Physical,
}

/// How macvlans of one parent exchange frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MacvlanMode {
    /// Directly. What we create.
    Bridge,
    /// Through the switch, which must reflect them. What kube-vip creates, unknowingly.
    Vepa,
    /// Never.
    Private,
    /// The single macvlan takes over the parent.
    Passthrough,
    /// Only from listed MACs.
    Source,
    /// None of the known ones.
    Other,
}

/// A name that no interface can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be an interface name: accepted are 1 to 15 bytes without '/', ':' and white space, not \".\" or \"..\""
)]
pub struct BadInterfaceName(String);

/// The kernel's rule for interface names, which it would report as "invalid argument" or "result out of range".
pub fn check_interface_name(name: &str) -> Result<(), BadInterfaceName> {
    let bad = name.is_empty()
        || name.len() > 15
        || name == "."
        || name == ".."
        || name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c == '\0');
    if bad { Err(BadInterfaceName(name.to_owned())) } else { Ok(()) }
}

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
                RouteNetlinkMessage::NewLink(message) => Link::from_message(message),
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

    /// Deletes an interface. What is not there counts as deleted. True if it was there.
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
        Ok(message) => match Link::from_message(&message) {
            Some(link) => Ok(Some(link)),
            None => Err(Failure::Incomplete("its name").while_trying_to(tried())),
        },
        Err(failure) if failure.is_one_of(&[ENODEV]) => Ok(None),
        Err(failure) => Err(failure.while_trying_to(tried())),
    }
}

impl Link {
    pub(super) fn from_message(message: &LinkMessage) -> Option<Self> {
        let flags = message.header.flags;
        let (mut name, mut kind, mut mode, mut parent, mut foreign_parent) = (None, None, None, None, false);
        let mut link = Self {
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
                LinkAttribute::OperState(state) => link.state = (*state).into(),
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::IfAlias(alias) => link.alias = Some(alias.clone()),
                LinkAttribute::Link(index) => parent = Some(*index),
                // The parent's index is one of another network namespace.
                LinkAttribute::LinkNetNsId(_) => foreign_parent = true,
                LinkAttribute::LinkInfo(infos) => {
                    for info in infos {
                        match info {
                            LinkInfo::Kind(found) => kind = Some(found.clone()),
                            LinkInfo::Data(InfoData::MacVlan(data)) => {
                                mode = data.iter().find_map(|info| match info {
                                    InfoMacVlan::Mode(mode) => Some(MacvlanMode::from(*mode)),
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
            (Some(InfoKind::MacVlan), Some(mode), Some(parent)) if !foreign_parent => {
                LinkKind::Macvlan { parent, mode }
            }
            (Some(kind), ..) => LinkKind::Virtual(kind.to_string()),
        };
        Some(link)
    }
}

impl From<State> for OperState {
    fn from(state: State) -> Self {
        match state {
            State::Up => Self::Up,
            State::Down => Self::Down,
            State::LowerLayerDown => Self::LowerLayerDown,
            State::Unknown => Self::Unknown,
            _ => Self::Other,
        }
    }
}

impl From<MacVlanMode> for MacvlanMode {
    fn from(mode: MacVlanMode) -> Self {
        match mode {
            MacVlanMode::Bridge => Self::Bridge,
            MacVlanMode::Vepa => Self::Vepa,
            MacVlanMode::Private => Self::Private,
            MacVlanMode::Passthrough => Self::Passthrough,
            MacVlanMode::Source => Self::Source,
            _ => Self::Other,
        }
    }
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
