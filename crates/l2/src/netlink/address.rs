//! IP addresses of interfaces, ours with a deadline that the kernel enforces.

use std::io;
use std::time::Duration;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{
        AddressAttribute, AddressFlags, AddressHeader, AddressHeaderFlags, AddressMessage, AddressProtocol, CacheInfo,
    },
};

use super::{EADDRNOTAVAIL, ENODEV, Netlink, NetlinkError};

/// The `IFA_PROTO` mark of addresses that we set, so that a sweep after a restart recognises them.
///
/// The kernel uses 1 to 3 itself. Kernels before 5.18 neither keep nor report the mark.
pub const OUR_ADDRESS_PROTOCOL: u8 = 0x76;

const FOREVER: u32 = u32::MAX;

/// How long the kernel keeps an address if nobody extends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressLifetime {
    /// Until it is removed.
    Forever,
    /// Then the kernel removes it, 0 to 0.3 s late (failover-protocol.md 5). Whole seconds: a fraction is cut off, the
    /// least is 1 s.
    For(Duration),
}

impl AddressLifetime {
    fn seconds(self) -> u32 {
        match self {
            Self::Forever => FOREVER,
            // Cut off, never rounded up: an address must not outlive its DHCP lease. 0 would mean "remove it".
            Self::For(duration) => u32::try_from(duration.as_secs()).unwrap_or(FOREVER - 1).clamp(1, FOREVER - 1),
        }
    }

    fn from_seconds(seconds: u32) -> Self {
        if seconds == FOREVER { Self::Forever } else { Self::For(Duration::from_secs(seconds.into())) }
    }
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// Index of the interface.
    pub interface: u32,
    /// The address with its prefix length; host bits are kept.
    pub net: IpNet,
    /// What is left of its life.
    pub valid: AddressLifetime,
    /// For how long it may be chosen as source address; ours never (`For(0)`).
    pub preferred: AddressLifetime,
    /// Who set it (`IFA_PROTO`); `None` if nobody said, or the kernel is older than 5.18.
    pub protocol: Option<u8>,
    /// IPv6: duplicate address detection has not ended.
    pub tentative: bool,
    /// IPv6: somebody else has it.
    pub duplicate: bool,
    /// IPv6: set without duplicate address detection.
    pub nodad: bool,
    /// The metric of its prefix route (`IFA_RT_PRIORITY`), if one was given.
    pub metric: Option<u32>,
}

impl Address {
    /// It carries our mark.
    pub fn is_ours(&self) -> bool {
        self.protocol == Some(OUR_ADDRESS_PROTOCOL)
    }

    pub(super) fn from_message(message: &AddressMessage) -> Option<Self> {
        let (mut ip, mut local, mut cache, mut protocol, mut metric) = (None, None, None, None, None);
        // The header has the lower eight only; every kernel since 3.14 sends all of them in an attribute.
        let mut flags = AddressFlags::empty();
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Address(address) => ip = Some(*address),
                // On a point-to-point link IFA_ADDRESS is the peer's.
                AddressAttribute::Local(address) => local = Some(*address),
                AddressAttribute::CacheInfo(info) => cache = Some(*info),
                AddressAttribute::Protocol(mark) => protocol = Some(u8::from(*mark)),
                AddressAttribute::RoutePriority(given) => metric = Some(*given),
                AddressAttribute::Flags(all) => flags = *all,
                _ => {}
            }
        }
        let lifetime = |seconds: Option<u32>| AddressLifetime::from_seconds(seconds.unwrap_or(FOREVER));
        Some(Self {
            interface: message.header.index,
            net: IpNet::new(local.or(ip)?, message.header.prefix_len).ok()?,
            valid: lifetime(cache.map(|info| info.ifa_valid)),
            // Of a permanent IPv4 address the kernel reports both lifetimes as endless; the flag tells the truth.
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
}

/// An address to be set.
#[derive(Debug, Clone, Copy)]
pub struct NewAddress {
    /// Index of the interface.
    pub interface: u32,
    /// The address with its prefix length.
    pub net: IpNet,
    /// From now on.
    pub valid: AddressLifetime,
    /// For the prefix route; `None` leaves it as it is. To a host address the metric means nothing, and the kernel keeps
    /// it: a number can be noted there that outlives the process.
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
                RouteNetlinkMessage::NewAddress(message) => Address::from_message(message),
                _ => None,
            })
            .filter(|address| interface.is_none_or(|index| address.interface == index))
            .collect())
    }

    /// Sets an address with our mark, or extends the one that is there: the address lives `lifetime` from now.
    ///
    /// Preferred lifetime is 0, so nothing picks it as source address. IPv6 comes without duplicate address detection, which
    /// would keep it silent for a second or two: whoever calls this has probed. Still, an IPv6 address answers only when a kernel
    /// worker has run, some time after this returns.
    ///
    /// The same address with another prefix length is another address to the kernel.
    pub async fn set_address(&self, interface: u32, net: IpNet, lifetime: AddressLifetime) -> Result<(), NetlinkError> {
        let address = NewAddress { interface, net, valid: lifetime, metric: None };
        self.change(RouteNetlinkMessage::NewAddress(address.message()), NLM_F_CREATE | NLM_F_REPLACE)
            .await
            .map_err(|failure| failure.while_trying_to(address.what_is_tried()))
    }

    /// [`Netlink::set_address`] for many, in one request to the kernel. The answers come in the same order.
    pub async fn set_addresses(&self, wanted: &[NewAddress]) -> Vec<Result<(), NetlinkError>> {
        let messages = wanted.iter().map(|address| RouteNetlinkMessage::NewAddress(address.message())).collect();
        let results = self.batches.perform(messages, NLM_F_CREATE | NLM_F_REPLACE).await;
        let explain = |(address, result): (&NewAddress, io::Result<()>)| {
            result.map_err(|source| NetlinkError::Refused { tried: address.what_is_tried(), source })
        };
        wanted.iter().zip(results).map(explain).collect()
    }

    /// Removes an address. What is not there, or whose interface is not there, counts as removed. True if it was there.
    pub async fn remove_address(&self, interface: u32, net: IpNet) -> Result<bool, NetlinkError> {
        match self.change(RouteNetlinkMessage::DelAddress(identity(interface, net)), 0).await {
            Ok(()) => Ok(true),
            Err(failure) if failure.is_one_of(&[EADDRNOTAVAIL, ENODEV]) => Ok(false),
            Err(failure) => Err(failure.while_trying_to(format!("remove address {net} from interface {interface}"))),
        }
    }
}

/// Interface, address and prefix length: what the kernel tells addresses apart by.
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

/// kube-vip spec 5.4: a broadcast address only where the prefix leaves room for one.
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
            let address = Address::from_message(&over_the_wire(&NewAddress { interface, net, valid, metric }.message())).unwrap();
            prop_assert!(address.is_ours());
            prop_assert_eq!((address.interface, address.net, address.valid), (interface, net, valid));
            prop_assert_eq!(address.metric, metric);
            prop_assert_eq!(address.preferred, AddressLifetime::For(Duration::ZERO));
            prop_assert_eq!(address.nodad, ip.is_ipv6());
        }
    }

    #[test]
    fn a_lifetime_is_whole_seconds_never_rounded_up_and_never_zero() {
        let seconds = |duration| AddressLifetime::For(duration).seconds();
        assert_eq!(seconds(Duration::from_millis(5999)), 5);
        assert_eq!(seconds(Duration::ZERO), 1);
        assert_eq!(seconds(Duration::MAX), u32::MAX - 1);
        assert_eq!(AddressLifetime::Forever.seconds(), u32::MAX);
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
