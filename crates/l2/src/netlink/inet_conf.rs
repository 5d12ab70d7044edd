//! IPv4 settings of an interface (`net.ipv4.conf.<interface>.*`), read and set through netlink.
//!
//! In a pod `/proc/sys` is read-only; `RTM_SETLINK` with `IFLA_INET_CONF` needs `CAP_NET_ADMIN` only
//! (kube-vip spec 10.5 item 12).

use std::{fs, io};

use l2_types::{InetConf, InetConfChange};
use netlink_packet_core::{DefaultNla, Emitable, NLA_F_NESTED};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{AfSpecInet, AfSpecUnspec, LinkAttribute, LinkMessage},
};

use super::{Failure, Netlink, NetlinkError};

const IFLA_INET_CONF: u16 = 1;
// linux/ip.h, IPV4_DEVCONF_*.
const RP_FILTER: u16 = 8;
const ARP_ANNOUNCE: u16 = 18;
const ARP_IGNORE: u16 = 19;

/// The attribute for `RTM_SETLINK`. It is built by hand, because the library's typed form omits zeros, and restoring a
/// setting to 0 is half of the use.
pub(super) fn attribute(change: InetConfChange) -> AfSpecUnspec {
    let settings: Vec<DefaultNla> =
        [(RP_FILTER, change.rp_filter), (ARP_ANNOUNCE, change.arp_announce), (ARP_IGNORE, change.arp_ignore)]
            .into_iter()
            .filter_map(|(index, value)| Some(DefaultNla::new(index, value?.to_ne_bytes().to_vec())))
            .collect();
    let mut bytes = vec![0; settings.as_slice().buffer_len()];
    settings.as_slice().emit(&mut bytes);
    AfSpecUnspec::Inet(vec![AfSpecInet::Other(DefaultNla::new(IFLA_INET_CONF | NLA_F_NESTED, bytes))])
}

/// The values of `net.ipv4.conf.all` in the calling thread's network namespace; netlink does not report them.
pub fn inet_conf_of_all() -> io::Result<InetConf> {
    let read = |name: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/all/{name}");
        let annotate =
            |error: &dyn std::fmt::Display, kind| io::Error::new(kind, format!("failed to read {path}: {error}"));
        let text = fs::read_to_string(&path).map_err(|error| annotate(&error, error.kind()))?;
        text.trim().parse().map_err(|error| annotate(&error, io::ErrorKind::InvalidData))
    };
    Ok(InetConf { arp_ignore: read("arp_ignore")?, arp_announce: read("arp_announce")?, rp_filter: read("rp_filter")? })
}

impl Netlink {
    /// The settings of one interface.
    pub async fn inet_conf(&self, interface: u32) -> Result<InetConf, NetlinkError> {
        let tried = || format!("read the IPv4 settings of interface {interface}");
        let message = self.get_link(interface).await.map_err(|failure| failure.while_trying_to(tried()))?;
        read(&message).ok_or_else(|| Failure::Incomplete("IPv4 settings").while_trying_to(tried()))
    }

    /// Changes settings of one interface. Sends nothing if `change` is empty.
    pub async fn set_inet_conf(&self, interface: u32, change: InetConfChange) -> Result<(), NetlinkError> {
        if change.is_empty() {
            return Ok(());
        }
        let mut message = LinkMessage::default();
        message.header.index = interface;
        message.attributes = vec![LinkAttribute::AfSpecUnspec(vec![attribute(change)])];
        self.change(RouteNetlinkMessage::SetLink(message), 0)
            .await
            .map_err(|failure| failure.while_trying_to(format!("set {change:?} on interface {interface}")))
    }
}

fn read(message: &LinkMessage) -> Option<InetConf> {
    let families = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::AfSpecUnspec(families) => Some(families),
        _ => None,
    })?;
    let inet = families.iter().find_map(|family| match family {
        AfSpecUnspec::Inet(inet) => Some(inet),
        _ => None,
    })?;
    inet.iter().find_map(|attribute| match attribute {
        AfSpecInet::DevConf(conf) => {
            Some(InetConf { arp_ignore: conf.arp_ignore, arp_announce: conf.arp_announce, rp_filter: conf.rp_filter })
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::{Nla, NlasIterator};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Zeros too: putting a setting back is half of our use.
        #[test]
        fn each_setting_to_change_is_in_the_message_once(
            arp_ignore: Option<u32>, arp_announce: Option<u32>, rp_filter: Option<u32>,
        ) {
            let change = InetConfChange { arp_ignore, arp_announce, rp_filter };
            let AfSpecUnspec::Inet(inet) = attribute(change) else { panic!("settings of IPv4") };
            let [AfSpecInet::Other(nested)] = inet.as_slice() else { panic!("one list of settings") };
            let mut bytes = vec![0; nested.value_len()];
            nested.emit_value(&mut bytes);
            let found: Vec<(u16, Vec<u8>)> =
                NlasIterator::new(&bytes).map(Result::unwrap).map(|nla| (nla.kind(), nla.value().to_vec())).collect();
            let expected = [(8, rp_filter), (18, arp_announce), (19, arp_ignore)];
            let expected: Vec<(u16, Vec<u8>)> =
                expected.into_iter().filter_map(|(kind, value)| Some((kind, value?.to_ne_bytes().to_vec()))).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
