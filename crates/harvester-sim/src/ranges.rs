//! Ranges of an IPPool: defaults and checks, counting, overlap. Harvester spec 2.3
//!
//! Addresses are numbers here; a family is part of the range, so numbers of two families never meet.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use harvester_api::ip_pool::IpRange;
use ipnet::IpNet;

/// A range with everything filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// Network, without host bits.
    pub subnet: IpNet,
    /// First address, as a number.
    pub start: u128,
    /// Last address, as a number.
    pub end: u128,
    /// Never handed out.
    pub gateway: Option<u128>,
}

/// The ranges of one pool, in list order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RangeSet(pub Vec<Range>);

/// Why a range is refused. The host's fragments, in our words around them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// Not a CIDR.
    #[error("invalid CIDR address: {0}, a subnet looks like 192.168.100.0/24")]
    Subnet(String),
    /// Bad start.
    #[error("invalid range start: {0}")]
    Start(AddressError),
    /// Bad end.
    #[error("invalid range end: {0}")]
    End(AddressError),
    /// Bad gateway.
    #[error("invalid gateway: {0}")]
    Gateway(AddressError),
}

/// What is wrong with an explicit address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not an address of the subnet's family.
    #[error("invalid IP {0}")]
    Invalid(String),
    /// Elsewhere.
    #[error("{0} is out of subnet {1}")]
    OutOfSubnet(IpAddr, IpNet),
    /// First of the subnet.
    #[error("{0} is the network address")]
    Network(IpAddr),
    /// Last of the subnet.
    #[error("{0} is the broadcast address")]
    Broadcast(IpAddr),
}

impl Range {
    /// Fills in defaults and checks what is explicit.
    pub fn normalise(range: &IpRange) -> Result<Self, RangeError> {
        let parsed: IpNet = range.subnet.parse().map_err(|_| RangeError::Subnet(range.subnet.clone()))?;
        let subnet = parsed.trunc();
        let network = number(subnet.network());
        let last = number(subnet.broadcast());
        let explicit = |text: &Option<String>| -> Result<Option<u128>, AddressError> {
            text.as_deref().filter(|text| !text.is_empty()).map(|text| explicit(text, &subnet)).transpose()
        };
        let start = explicit(&range.range_start).map_err(RangeError::Start)?;
        let end = explicit(&range.range_end).map_err(RangeError::End)?;
        let gateway = explicit(&range.gateway).map_err(RangeError::Gateway)?;
        if network == last {
            return Ok(Self { subnet, start: network, end: network, gateway: None });
        }
        let is_v4 = matches!(subnet, IpNet::V4(_));
        let start = start.unwrap_or(network + 1);
        let end = end.unwrap_or(if is_v4 { last - 1 } else { last });
        Ok(Self { subnet, start: start.min(end), end: start.max(end), gateway: Some(gateway.unwrap_or(network + 1)) })
    }

    fn is_v4(&self) -> bool {
        matches!(self.subnet, IpNet::V4(_))
    }

    /// An address of this range's family.
    pub fn address(&self, value: u128) -> IpAddr {
        if self.is_v4() {
            let value = u32::try_from(value).expect("numbers of an IPv4 range fit");
            IpAddr::V4(Ipv4Addr::from(value))
        } else {
            IpAddr::V6(Ipv6Addr::from(value))
        }
    }

    /// Whether the address lies between start and end, the gateway included.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.is_v4() && (self.start..=self.end).contains(&number(address))
    }

    /// Whether the two share an address.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.is_v4() == other.is_v4() && self.start <= other.end && other.start <= self.end
    }

    /// Addresses that can be handed out.
    pub fn total(&self) -> i64 {
        let gateway = u128::from(self.gateway.is_some_and(|gateway| (self.start..=self.end).contains(&gateway)));
        i64::try_from((self.end - self.start).saturating_add(1) - gateway).unwrap_or(i64::MAX)
    }

    /// Network mask as the host writes it.
    pub fn mask(&self) -> String {
        self.subnet.netmask().to_string()
    }

    /// Gateway as the host writes it, with the literal `<nil>` for none.
    pub fn gateway_text(&self) -> String {
        self.gateway.map_or_else(|| "<nil>".to_owned(), |gateway| self.address(gateway).to_string())
    }
}

impl RangeSet {
    /// Normalises all ranges of a pool.
    pub fn normalise(ranges: &[IpRange]) -> Result<Self, RangeError> {
        ranges.iter().map(Range::normalise).collect::<Result<_, _>>().map(Self)
    }

    /// The range that holds the address.
    pub fn find(&self, address: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(address))
    }

    /// Addresses that can be handed out.
    pub fn total(&self) -> i64 {
        self.0.iter().fold(0, |sum: i64, range| sum.saturating_add(range.total()))
    }

    /// Whether two of the set's own ranges share an address.
    pub fn overlaps_itself(&self) -> bool {
        self.0.iter().enumerate().any(|(index, range)| self.0[index + 1..].iter().any(|later| range.overlaps(later)))
    }

    /// Whether any address is in both sets.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().any(|mine| other.0.iter().any(|theirs| mine.overlaps(theirs)))
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}-{}", range.address(range.start), range.address(range.end))?;
        }
        Ok(())
    }
}

/// The address as a number.
pub fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

fn explicit(text: &str, subnet: &IpNet) -> Result<u128, AddressError> {
    let address: IpAddr = text.parse().map_err(|_| AddressError::Invalid(text.to_owned()))?;
    if !subnet.contains(&address) {
        Err(AddressError::OutOfSubnet(address, *subnet))
    } else if address == subnet.network() {
        Err(AddressError::Network(address))
    } else if address == subnet.broadcast() {
        Err(AddressError::Broadcast(address))
    } else {
        Ok(number(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(subnet: &str, start: &str, end: &str, gateway: &str) -> IpRange {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        IpRange { subnet: subnet.to_owned(), range_start: some(start), range_end: some(end), gateway: some(gateway) }
    }

    fn shown(range: &IpRange) -> Result<String, String> {
        let range = Range::normalise(range).map_err(|error| error.to_string())?;
        let set = RangeSet(vec![range]);
        Ok(format!("{set} gw {} total {}", set.0[0].gateway_text(), set.total()))
    }

    /// Harvester spec 2.3, 7.1 (`CheckSubnet`, `Total`, `MakeRange`, `NetworkIP`, `BroadcastIP`)
    #[test]
    fn defaults_and_counts_are_the_hosts() {
        let net = "192.168.100.0/24";
        let table = [
            (range(net, "", "", ""), "192.168.100.1-192.168.100.254 gw 192.168.100.1 total 253"),
            (
                range(net, "192.168.100.1", "192.168.100.10", "192.168.100.11"),
                "192.168.100.1-192.168.100.10 gw 192.168.100.11 total 10",
            ),
            (
                range(net, "192.168.100.1", "192.168.100.10", ""),
                "192.168.100.1-192.168.100.10 gw 192.168.100.1 total 9",
            ),
            (range(net, "192.168.100.251", "", ""), "192.168.100.251-192.168.100.254 gw 192.168.100.1 total 4"),
            (range(net, "", "192.168.100.10", ""), "192.168.100.1-192.168.100.10 gw 192.168.100.1 total 9"),
            (
                range(net, "192.168.100.30", "192.168.100.40", ""),
                "192.168.100.30-192.168.100.40 gw 192.168.100.1 total 11",
            ),
            (
                range(net, "192.168.100.20", "192.168.100.10", ""),
                "192.168.100.10-192.168.100.20 gw 192.168.100.1 total 11",
            ),
            (range("192.168.100.10/32", "", "", ""), "192.168.100.10-192.168.100.10 gw <nil> total 1"),
            (range("172.19.111.10/27", "", "", ""), "172.19.111.1-172.19.111.30 gw 172.19.111.1 total 29"),
            (range("10.0.0.0/31", "", "", ""), "10.0.0.0-10.0.0.1 gw 10.0.0.1 total 1"),
            (range("10.0.0.0/30", "", "", ""), "10.0.0.1-10.0.0.2 gw 10.0.0.1 total 1"),
            (range("fd00::/126", "", "", ""), "fd00::1-fd00::3 gw fd00::1 total 2"),
        ];
        for (range, expected) in table {
            assert_eq!(shown(&range).as_deref(), Ok(expected), "{range:?}");
        }
    }

    #[test]
    fn bad_ranges_say_which_member_is_wrong() {
        let net = "192.168.100.0/24";
        let table = [
            (range("192.168.100.0", "", "", ""), "invalid CIDR"),
            (range("192.168.100.0/100", "", "", ""), "invalid CIDR"),
            (range("192.168.300.0/24", "", "", ""), "invalid CIDR"),
            (range("", "", "", ""), "invalid CIDR"),
            (
                range("192.168.100.10/32", "192.168.101.10", "", ""),
                "invalid range start: 192.168.101.10 is out of subnet",
            ),
            (range("192.168.100.10/32", "192.168.100.10", "", ""), "is the network address"),
            (range(net, "192.168.100.0", "", ""), "invalid range start: 192.168.100.0 is the network address"),
            (range(net, "", "192.168.100.255", ""), "invalid range end: 192.168.100.255 is the broadcast address"),
            (
                range(net, "192.168.101.10", "", ""),
                "invalid range start: 192.168.101.10 is out of subnet 192.168.100.0/24",
            ),
            (range(net, "", "", "x"), "invalid gateway: invalid IP x"),
        ];
        for (range, expected) in table {
            let error = shown(&range).expect_err(expected);
            assert!(error.contains(expected), "{error} instead of {expected}");
        }
    }

    /// Harvester spec 7.1 (`LBRangesToAllocatorRangeSet`), 7.3 (`CheckRange`)
    #[test]
    fn sets_print_in_list_order_and_overlaps_are_found() {
        let low = range("192.168.100.0/24", "192.168.100.10", "192.168.100.20", "");
        let high = range("192.168.100.0/24", "192.168.100.50", "192.168.100.60", "");
        let full = range("192.168.100.0/24", "", "", "");
        let set =
            |ranges: &[&IpRange]| RangeSet::normalise(&ranges.iter().map(|&r| r.clone()).collect::<Vec<_>>()).unwrap();
        assert_eq!(set(&[&low, &high]).to_string(), "192.168.100.10-192.168.100.20,192.168.100.50-192.168.100.60");
        assert!(!set(&[&low, &high]).overlaps_itself());
        assert!(set(&[&full, &low]).overlaps_itself());
        assert!(set(&[&low]).overlaps(&set(&[&full])) && !set(&[&low]).overlaps(&set(&[&high])));
    }

    proptest! {
        #[test]
        fn any_range_is_refused_or_lies_in_its_subnet(
            net in "[0-9]{1,3}(\\.[0-9]{1,3}){3}/[0-9]{1,2}|[0-9a-f:]{2,9}/[0-9]{1,3}",
            start in any::<Option<Ipv4Addr>>(), end in any::<Option<Ipv4Addr>>(),
        ) {
            let text = |a: Option<Ipv4Addr>| a.map(|a| a.to_string());
            let given = IpRange { subnet: net, range_start: text(start), range_end: text(end), gateway: None };
            if let Ok(range) = Range::normalise(&given) {
                prop_assert!(range.start <= range.end && range.total() >= 0);
                prop_assert!(range.subnet.contains(&range.address(range.start)));
                prop_assert!(range.subnet.contains(&range.address(range.end)));
            }
        }

        #[test]
        fn explicit_bounds_are_kept_in_order(a in 1u8..=254, b in 1u8..=254) {
            let given = range("10.1.2.0/24", &format!("10.1.2.{a}"), &format!("10.1.2.{b}"), "");
            let range = Range::normalise(&given).unwrap();
            prop_assert_eq!(range.address(range.start).to_string(), format!("10.1.2.{}", a.min(b)));
            prop_assert_eq!(range.address(range.end).to_string(), format!("10.1.2.{}", a.max(b)));
        }
    }
}
