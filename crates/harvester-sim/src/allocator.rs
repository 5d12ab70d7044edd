//! Booking and releasing addresses in the status of a pool: history first, then round robin. Harvester spec 3.7
//!
//! Pure: works on a copy of the status; whoever calls writes it with the resourceVersion that it was read with.

use std::net::IpAddr;

use harvester_api::ip_pool::IpPoolStatus;
use harvester_api::load_balancer::AllocatedAddress;

use crate::ranges::{Range, RangeSet, number};

/// Why no address could be booked. Texts of Harvester spec 3.6.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BookError {
    /// Everything is taken.
    #[error("no IP addresses available in range set: {0}")]
    Exhausted(String),
    /// The pool already has a booking of this owner, but the owner's own record of it was lost.
    #[error("{0} has been allocated to {1}, duplicate allocation is not allowed")]
    Duplicate(IpAddr, String),
    /// The remembered address is no longer free, or no longer in a range.
    #[error("requested IP address {0} is not available in range set {1}")]
    NotAvailable(String, String),
    /// The remembered address has become a gateway.
    #[error("requested ip {0} is subnet's gateway")]
    IsGateway(IpAddr),
}

/// Books an address for `owner` and returns it with the range it came from.
pub fn book(ranges: &RangeSet, status: &mut IpPoolStatus, owner: &str) -> Result<AllocatedAddress, BookError> {
    let remembered = status.allocated_history.iter().find(|(_, last)| *last == owner).map(|(ip, _)| ip.clone());
    let (address, range) = match remembered {
        Some(text) => remembered_address(ranges, status, owner, &text)?,
        None => next_free(ranges, status, owner)?,
    };
    let text = address.to_string();
    status.allocated_history.remove(&text);
    // If a remembered address is already booked for this owner, the number of free addresses does not change.
    if status.allocated.insert(text.clone(), owner.to_owned()).is_none() {
        status.available -= 1;
    }
    status.last_allocated.clone_from(&text);
    Ok(AllocatedAddress {
        ip: Some(text),
        mask: Some(range.mask()),
        gateway: Some(range.gateway_text()),
        ..AllocatedAddress::default()
    })
}

/// Takes one address back from `owner` and remembers it. `None`: there was nothing, which is success.
pub fn release(status: &mut IpPoolStatus, owner: &str) -> Option<String> {
    let ip = status.allocated.iter().find(|(_, holder)| *holder == owner).map(|(ip, _)| ip.clone())?;
    status.allocated.remove(&ip);
    status.allocated_history.insert(ip.clone(), owner.to_owned());
    status.available += 1;
    Some(ip)
}

/// After a rebuild of the allocator: counts anew and forgets history outside the ranges. Harvester spec 2.5
pub fn recount(ranges: &RangeSet, status: &mut IpPoolStatus) {
    status.total = ranges.total();
    status.available = status.total - i64::try_from(status.allocated.len()).unwrap_or(i64::MAX);
    status.allocated_history.retain(|ip, _| ip.parse().is_ok_and(|ip| ranges.find(ip).is_some()));
}

fn remembered_address<'a>(
    ranges: &'a RangeSet,
    status: &IpPoolStatus,
    owner: &str,
    text: &str,
) -> Result<(IpAddr, &'a Range), BookError> {
    let not_available = || BookError::NotAvailable(text.to_owned(), ranges.to_string());
    let address: IpAddr = text.parse().map_err(|_| not_available())?;
    let range = ranges.find(address).ok_or_else(not_available)?;
    if range.gateway == Some(number(address)) {
        return Err(BookError::IsGateway(address));
    }
    if status.allocated.get(text).is_some_and(|holder| holder != owner) {
        return Err(not_available());
    }
    Ok((address, range))
}

fn next_free<'a>(ranges: &'a RangeSet, status: &IpPoolStatus, owner: &str) -> Result<(IpAddr, &'a Range), BookError> {
    let held = status.allocated.iter().filter(|(_, holder)| *holder == owner).filter_map(|(ip, _)| ip.parse().ok());
    if let Some(ip) = held.into_iter().find(|ip| ranges.find(*ip).is_some()) {
        return Err(BookError::Duplicate(ip, owner.to_owned()));
    }
    let last = status.last_allocated.parse().ok();
    walk(ranges, last)
        .find(|(address, range)| {
            range.gateway != Some(number(*address)) && !status.allocated.contains_key(&address.to_string())
        })
        .ok_or_else(|| BookError::Exhausted(ranges.to_string()))
}

/// Every address of the set once, beginning behind `last` (or at the first range), ascending, then the next range,
/// wrapping.
fn walk(ranges: &RangeSet, last: Option<IpAddr>) -> impl Iterator<Item = (IpAddr, &Range)> {
    let found = last.and_then(|last| {
        let index = ranges.0.iter().position(|range| range.contains(last))?;
        Some((index, number(last)))
    });
    let (first, behind) = found.map_or((0, None), |(index, last)| (index, Some(last)));
    let tail = move |range: &Range| behind.map_or(range.start, |last| last + 1)..=range.end;
    let head = move |range: &Range| behind.map(|last| range.start..=last.min(range.end));
    let start = ranges.0.get(first);
    let part = |range: &'_ Range, numbers: std::ops::RangeInclusive<u128>| {
        let range = range.clone();
        numbers.map(move |value| range.address(value))
    };
    let others = (1..ranges.0.len()).map(move |step| &ranges.0[(first + step) % ranges.0.len()]);
    start
        .into_iter()
        .flat_map(move |range| part(range, tail(range)).map(move |address| (address, range)))
        .chain(others.flat_map(move |range| part(range, range.start..=range.end).map(move |address| (address, range))))
        .chain(start.into_iter().flat_map(move |range| {
            head(range).into_iter().flat_map(move |numbers| part(range, numbers).map(move |address| (address, range)))
        }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harvester_api::ip_pool::IpRange;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn set(ranges: &[(&str, &str, &str, &str)]) -> RangeSet {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let ranges: Vec<_> = ranges
            .iter()
            .map(|(subnet, start, end, gateway)| IpRange {
                subnet: (*subnet).to_owned(),
                range_start: some(start),
                range_end: some(end),
                gateway: some(gateway),
            })
            .collect();
        RangeSet::normalise(&ranges).unwrap()
    }

    fn new_status(ranges: &RangeSet) -> IpPoolStatus {
        let mut status = IpPoolStatus::default();
        recount(ranges, &mut status);
        status
    }

    /// Runs `+a .2`-like scripts: `+x ip`, `-x`, `+x !` for exhausted, `+x dup` for a duplicate.
    fn run(ranges: &RangeSet, script: &[(&str, &str)]) {
        let mut status = new_status(ranges);
        for (step, (operation, expected)) in script.iter().enumerate() {
            let owner = &operation[1..];
            if operation.starts_with('-') {
                assert!(release(&mut status, owner).is_some(), "step {step} {operation}");
                continue;
            }
            let outcome = match book(ranges, &mut status, owner) {
                Ok(address) => address.ip.unwrap(),
                Err(BookError::Exhausted(text)) => {
                    assert_eq!(text, ranges.to_string());
                    "exhausted".to_owned()
                }
                Err(BookError::Duplicate(..)) => "duplicate".to_owned(),
                Err(error) => error.to_string(),
            };
            assert!(
                outcome == *expected || outcome.ends_with(&format!(".{expected}")),
                "step {step} {operation}: {outcome} instead of {expected}"
            );
            assert_eq!(status.available, status.total - i64::try_from(status.allocated.len()).unwrap());
        }
    }

    /// Harvester spec 3.9, row by row.
    #[test]
    fn addresses_are_handed_out_in_the_hosts_order() {
        run(
            &set(&[("192.168.100.0/29", "", "", "")]),
            &[
                ("+a", "2"),
                ("+b", "3"),
                ("-a", ""),
                ("+c", "4"),
                ("+a", "2"),
                ("+d", "5"),
                ("+e", "6"),
                ("+f", "exhausted"),
            ],
        );
        run(
            &set(&[("192.168.100.0/24", "192.168.100.10", "192.168.100.12", "")]),
            &[
                ("+a", "10"),
                ("+b", "11"),
                ("+c", "12"),
                ("+d", "exhausted"),
                ("-a", ""),
                ("+d", "10"),
                ("-b", ""),
                ("+a", "11"),
            ],
        );
        run(
            &set(&[
                ("192.168.100.0/24", "192.168.100.10", "192.168.100.11", ""),
                ("192.168.200.0/24", "192.168.200.20", "192.168.200.21", ""),
            ]),
            &[
                ("+a", "100.10"),
                ("+b", "100.11"),
                ("+c", "200.20"),
                ("+d", "200.21"),
                ("-b", ""),
                ("+e", "100.11"),
                ("+f", "exhausted"),
            ],
        );
        run(&set(&[("192.168.100.10/32", "", "", "")]), &[("+a", "10"), ("+b", "exhausted"), ("+a", "duplicate")]);
        run(
            &set(&[("10.0.0.0/24", "10.0.0.5", "10.0.0.8", "10.0.0.6")]),
            &[("+a", "5"), ("+b", "7"), ("+c", "8"), ("+d", "exhausted")],
        );
        run(
            &set(&[("10.0.0.0/24", "10.0.0.9", "10.0.0.7", "")]),
            &[("+a", "7"), ("+b", "8"), ("+c", "9"), ("+d", "exhausted")],
        );
        run(
            &set(&[("10.0.0.0/24", "10.0.0.10", "10.0.0.14", "")]),
            &[
                ("+a", "10"),
                ("+b", "11"),
                ("-a", ""),
                ("-b", ""),
                ("+c", "12"),
                ("+d", "13"),
                ("+e", "14"),
                ("+f", "10"),
                ("+a", "11"),
                ("+g", "exhausted"),
            ],
        );
    }

    #[test]
    fn mask_and_gateway_come_from_the_range_and_a_host_route_has_none() {
        let ranges = set(&[("192.168.100.10/32", "", "", ""), ("10.0.0.0/16", "10.0.4.1", "10.0.4.9", "")]);
        let mut status = new_status(&ranges);
        let first = book(&ranges, &mut status, "n/a").unwrap();
        assert_eq!((first.gateway.as_deref(), first.mask.as_deref()), (Some("<nil>"), Some("255.255.255.255")));
        let second = book(&ranges, &mut status, "n/b").unwrap();
        assert_eq!((second.gateway.as_deref(), second.mask.as_deref()), (Some("10.0.0.1"), Some("255.255.0.0")));
    }

    #[test]
    fn a_lost_booking_comes_back_with_the_same_address_after_one_refusal() {
        let ranges = set(&[("10.0.0.0/24", "10.0.0.10", "10.0.0.14", "")]);
        let mut status = new_status(&ranges);
        book(&ranges, &mut status, "n/a").unwrap();
        let error = book(&ranges, &mut status, "n/a").unwrap_err();
        assert_eq!(error.to_string(), "10.0.0.10 has been allocated to n/a, duplicate allocation is not allowed");
        release(&mut status, "n/a");
        assert_eq!(book(&ranges, &mut status, "n/a").unwrap().ip.as_deref(), Some("10.0.0.10"));
    }

    #[test]
    fn a_remembered_address_that_cannot_be_had_is_an_error_and_not_another_address() {
        let ranges = set(&[("10.0.0.0/24", "10.0.0.10", "10.0.0.14", "10.0.0.12")]);
        let with_history = |ip: &str| IpPoolStatus {
            allocated_history: BTreeMap::from([(ip.to_owned(), "n/a".to_owned())]),
            allocated: BTreeMap::from([("10.0.0.11".to_owned(), "n/b".to_owned())]),
            ..new_status(&ranges)
        };
        let error = |ip| book(&ranges, &mut with_history(ip), "n/a").unwrap_err().to_string();
        assert_eq!(error("10.0.0.12"), "requested ip 10.0.0.12 is subnet's gateway");
        assert_eq!(
            error("10.0.0.11"),
            "requested IP address 10.0.0.11 is not available in range set 10.0.0.10-10.0.0.14"
        );
        assert!(error("10.9.9.9").starts_with("requested IP address 10.9.9.9 is not available"));
    }

    #[test]
    fn releasing_nothing_is_success_and_changes_nothing() {
        let ranges = set(&[("10.0.0.0/24", "", "", "")]);
        let mut status = new_status(&ranges);
        let before = status.clone();
        assert_eq!(release(&mut status, "n/a"), None);
        assert_eq!(status, before);
    }

    #[test]
    fn a_range_change_recounts_and_drops_history_outside() {
        let ranges = set(&[("10.0.0.0/24", "10.0.0.10", "10.0.0.19", "")]);
        let mut status = new_status(&ranges);
        book(&ranges, &mut status, "n/a").unwrap();
        book(&ranges, &mut status, "n/b").unwrap();
        release(&mut status, "n/a");
        let smaller = set(&[("10.0.0.0/24", "10.0.0.11", "10.0.0.12", "")]);
        recount(&smaller, &mut status);
        assert_eq!((status.total, status.available, status.allocated_history.len()), (2, 1, 0));
    }

    proptest! {
        #[test]
        fn no_address_has_two_owners_and_the_gateway_none(
            script in proptest::collection::vec((any::<bool>(), 0u8..8), 0..120), start in 2u8..20, len in 0u8..6,
        ) {
            let (first, last) = (format!("10.0.0.{start}"), format!("10.0.0.{}", start + len));
            let ranges = set(&[("10.0.0.0/24", &first, &last, "10.0.0.4"), ("10.1.0.0/30", "", "", "")]);
            let mut status = new_status(&ranges);
            for (books, owner) in script {
                let owner = format!("n/{owner}");
                if books { let _ = book(&ranges, &mut status, &owner); } else { release(&mut status, &owner); }
                prop_assert!(status.available >= 0 && status.available <= status.total);
                prop_assert!(!status.allocated.contains_key("10.0.0.4"));
                for (ip, owner) in &status.allocated {
                    prop_assert!(ranges.find(ip.parse().unwrap()).is_some());
                    prop_assert_eq!(status.allocated.values().filter(|other| *other == owner).count(), 1);
                    prop_assert!(!status.allocated_history.contains_key(ip));
                }
            }
        }

        #[test]
        fn a_free_address_is_always_found(taken in proptest::collection::btree_set(10u8..20, 0..10), last in 9u8..22) {
            let ranges = set(&[("10.0.0.0/24", "10.0.0.10", "10.0.0.19", "")]);
            let mut status = new_status(&ranges);
            status.allocated = taken.iter().map(|n| (format!("10.0.0.{n}"), format!("o/{n}"))).collect();
            status.last_allocated = format!("10.0.0.{last}");
            let booked = book(&ranges, &mut status, "n/a");
            prop_assert_eq!(booked.is_ok(), taken.len() < 10);
        }
    }
}
