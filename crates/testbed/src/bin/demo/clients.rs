//! The client's clients: who answers for an address, and what a client sees of it.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Result, ensure};
use testbed::{Probe, ProbeReport, Traffic};

use crate::bed::{Bed, PATIENCE};

/// Both have answers again.
pub fn stopped([pool, dhcp]: [Probe; 2]) -> Result<[ProbeReport; 2]> {
    Ok([pool.stop_after(50, PATIENCE)?, dhcp.stop_after(50, PATIENCE)?])
}

/// Asks an address all the time.
pub fn probe(bed: &Bed, vip: Ipv4Addr) -> Result<Probe> {
    bed.lan.client().probe(Traffic::Http(SocketAddr::from((vip, 80))))
}

/// The one machine that answers for an address; two of them are as bad as none.
pub fn only_owner(bed: &Bed, vip: Ipv4Addr) -> Result<String> {
    let mut owners = bed.owner_on_the_wire(vip)?;
    ensure!(owners.len() == 1, "{vip} should be answered by one node, but is by {owners:?}");
    Ok(owners.remove(0))
}
