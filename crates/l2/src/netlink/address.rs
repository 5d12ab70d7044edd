//! IP addresses of interfaces; our addresses have a lifetime that the kernel enforces.

use std::io;
use std::time::Duration;

use ipnet::IpNet;
use l2_types::{Address, AddressLifetime, OUR_ADDRESS_PROTOCOL};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{
        AddressAttribute, AddressFlags, AddressHeader, AddressHeaderFlags, AddressMessage, AddressProtocol, CacheInfo,
    },
};

use super::{EADDRNOTAVAIL, ENODEV, Netlink, NetlinkError};

/// An address to set.
#[derive(Debug, Clone, Copy)]
pub struct NewAddress {
    /// Index of the interface.
    pub interface: u32,
    /// The address with its prefix length.
    pub net: IpNet,
    /// Its lifetime from now on.
    pub valid: AddressLifetime,
    /// Metric of the prefix route; `None` leaves it unchanged. For a host address the metric has no effect, but the
    /// kernel keeps it, so it can store a number that outlives the process.
    pub metric: Option<u32>,
}

impl Netlink {
    /// All addresses, of all interfaces or of one.
    pub async fn addresses(&self, interface: Option<u32>) -> Result<Vec<Address>, NetlinkError> {
        let answers = self
            .dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))
            .await
            .map_err(|failure| failure.while_trying_to("list the addresses"))?;
        Ok(answers
            .iter()
            .filter_map(|answer| match answer {
                RouteNetlinkMessage::NewAddress(message) => parse(message),
                _ => None,
            })
            .filter(|address| interface.is_none_or(|index| address.interface == index))
            .collect())
    }

    /// Sets an address with our mark, or extends the one that is there: the address lives `lifetime` from now.
    ///
    /// The preferred lifetime is 0, so that the kernel does not pick it as source address. An IPv6 address is set
    /// without duplicate address detection, which would delay it by a second or two; the caller has probed it. Even so
    /// an IPv6 address answers only after a kernel worker has run, some time after this returns.
    ///
    /// The same address with another prefix length is another address to the kernel.
    pub async fn set_address(&self, interface: u32, net: IpNet, lifetime: AddressLifetime) -> Result<(), NetlinkError> {
        let address = NewAddress { interface, net, valid: lifetime, metric: None };
        self.change(RouteNetlinkMessage::NewAddress(address.message()), NLM_F_CREATE | NLM_F_REPLACE)
            .await
            .map_err(|failure| failure.while_trying_to(address.what_is_tried()))
    }

    /// [`Netlink::set_address`] for many addresses in one request. The results are in the same order.
    pub async fn set_addresses(&self, wanted: &[NewAddress]) -> Vec<Result<(), NetlinkError>> {
        let messages = wanted.iter().map(|address| RouteNetlinkMessage::NewAddress(address.message())).collect();
        let results = self.batches.perform(messages, NLM_F_CREATE | NLM_F_REPLACE).await;
        let explain = |(address, result): (&NewAddress, io::Result<()>)| {
            result.map_err(|source| NetlinkError::Refused { tried: address.what_is_tried(), source })
        };
        wanted.iter().zip(results).map(explain).collect()
    }

    /// Removes addresses from interfaces, given by index, in one request: hosts must not find the last one here while
    /// the kernel is slow to remove the others. An address or interface that does not exist counts as removed; the
    /// result is true if the address existed. The results are in the same order.
    pub async fn remove_addresses(&self, unwanted: &[(u32, IpNet)]) -> Vec<Result<bool, NetlinkError>> {
        let message = |(interface, net): &(u32, IpNet)| RouteNetlinkMessage::DelAddress(identity(*interface, *net));
        let results = self.batches.perform(unwanted.iter().map(message).collect(), 0).await;
        let explain = |((interface, net), result): (&(u32, IpNet), io::Result<()>)| match result {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error().is_some_and(|code| [EADDRNOTAVAIL, ENODEV].contains(&code)) => Ok(false),
            Err(source) => {
                let tried = format!("remove address {net} from interface {interface}");
                Err(NetlinkError::Refused { tried, source })
            }
        };
        unwanted.iter().zip(results).map(explain).collect()
    }
}

fn parse(message: &AddressMessage) -> Option<Address> {
    let (mut ip, mut local, mut cache, mut protocol, mut metric) = (None, None, None, None, None);
    // The header has only the lower eight flags; every kernel since 3.14 sends all of them in an attribute.
    let mut flags = AddressFlags::empty();
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Address(address) => ip = Some(*address),
            // On a point-to-point link IFA_ADDRESS is the address of the peer.
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::CacheInfo(info) => cache = Some(*info),
            AddressAttribute::Protocol(mark) => protocol = Some(u8::from(*mark)),
            AddressAttribute::RoutePriority(given) => metric = Some(*given),
            AddressAttribute::Flags(all) => flags = *all,
            _ => {}
        }
    }
    let lifetime = |seconds: Option<u32>| seconds.map_or(AddressLifetime::Forever, AddressLifetime::from_seconds);
    Some(Address {
        interface: message.header.index,
        net: IpNet::new(local.or(ip)?, message.header.prefix_len).ok()?,
        valid: lifetime(cache.map(|info| info.ifa_valid)),
        // For a permanent IPv4 address the kernel reports both lifetimes as infinite; only the flag is right.
        preferred: if flags.contains(AddressFlags::Deprecated) {
            AddressLifetime::For(Duration::ZERO)
        } else {
            lifetime(cache.map(|info| info.ifa_preferred))
        },
        protocol,
        tentative: flags.contains(AddressFlags::Tentative),
        duplicate: flags.contains(AddressFlags::Dadfailed),
        nodad: flags.contains(AddressFlags::Nodad),
        metric,
    })
}

/// The kernel identifies an address by interface, address and prefix length.
fn identity(interface: u32, net: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    let family = match net {
        IpNet::V4(_) => AddressFamily::Inet,
        IpNet::V6(_) => AddressFamily::Inet6,
    };
    message.header = AddressHeader { family, prefix_len: net.prefix_len(), index: interface, ..Default::default() };
    message.attributes = vec![AddressAttribute::Local(net.addr()), AddressAttribute::Address(net.addr())];
    message
}

impl NewAddress {
    fn what_is_tried(&self) -> String {
        format!("set address {} on interface {}", self.net, self.interface)
    }

    fn message(&self) -> AddressMessage {
        let mut message = identity(self.interface, self.net);
        if let Some(broadcast) = broadcast(self.net) {
            message.attributes.push(broadcast);
        }
        if self.net.addr().is_ipv6() {
            message.header.flags = AddressHeaderFlags::Nodad;
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        let mut cache = CacheInfo::default();
        cache.ifa_valid = self.valid.seconds();
        message.attributes.push(AddressAttribute::CacheInfo(cache));
        message.attributes.push(AddressAttribute::Protocol(AddressProtocol::Other(OUR_ADDRESS_PROTOCOL)));
        message.attributes.extend(self.metric.map(AddressAttribute::RoutePriority));
        message
    }
}

/// The broadcast address, only if the prefix has one (kube-vip spec 5.4).
fn broadcast(net: IpNet) -> Option<AddressAttribute> {
    match net {
        IpNet::V4(net) if net.prefix_len() < 31 => Some(AddressAttribute::Broadcast(net.broadcast())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use netlink_packet_core::{Emitable, Parseable};
    use proptest::prelude::*;

    use super::*;

    /// As the kernel would read it.
    fn over_the_wire(message: &AddressMessage) -> AddressMessage {
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        AddressMessage::parse(bytes.as_slice()).unwrap()
    }

    proptest! {
        #[test]
        fn what_is_asked_for_is_what_is_recognised_as_ours(
            interface: u32, ip: IpAddr, prefix in 0..=128_u8, seconds in proptest::option::of(1..u32::MAX),
            metric in proptest::option::of(1..u32::MAX),
        ) {
            let net = IpNet::new(ip, prefix.min(if ip.is_ipv4() { 32 } else { 128 })).unwrap();
            let valid = seconds.map_or(AddressLifetime::Forever, AddressLifetime::from_seconds);
            let address = parse(&over_the_wire(&NewAddress { interface, net, valid, metric }.message())).unwrap();
            prop_assert!(address.is_ours());
            prop_assert_eq!((address.interface, address.net, address.valid), (interface, net, valid));
            prop_assert_eq!(address.metric, metric);
            prop_assert_eq!(address.preferred, AddressLifetime::For(Duration::ZERO));
            prop_assert_eq!(address.nodad, ip.is_ipv6());
        }
    }

    #[test]
    fn a_host_address_has_no_broadcast_address() {
        let net = |text: &str| text.parse().expect("a network");
        assert_eq!(broadcast(net("192.0.2.7/32")), None);
        assert_eq!(broadcast(net("192.0.2.7/31")), None);
        assert_eq!(broadcast(net("2001:db8::7/64")), None);
        assert_eq!(
            broadcast(net("192.0.2.7/24")),
            Some(AddressAttribute::Broadcast("192.0.2.255".parse().expect("an address")))
        );
    }
}
