//! A run in words.

use std::fmt;
use std::time::Duration;

use super::{DhcpServer, Fault, Scenario, Wish};

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.3} s, for {:.3} s: {:?}", self.at.as_secs_f64(), self.lasts.as_secs_f64(), self.kind)
    }
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.address)?;
        self.local.iter().try_for_each(|nodes| write!(f, ", policy Local, endpoints on {nodes:?}"))
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "mode {}, Lease {:?} s, {} nodes, {:.0} % of frames lost, {:.0} % of requests refused, processes late by \
             up to {:.1} ms",
            self.mode.as_str(),
            self.lease,
            self.nodes,
            self.loss * 100.0,
            self.refusals * 100.0,
            Duration::from_micros(self.busy_us).as_secs_f64() * 1000.0
        )?;
        if self.nics > 1 {
            write!(f, ", {} NICs each", self.nics)?;
        }
        if self.fail_back {
            write!(f, ", addresses go back where they belong")?;
        }
        if let Some(bound) = self.bound {
            write!(f, ", clients are answered again within {bound:?}")?;
        }
        for (n, service) in self.services.iter().enumerate() {
            write!(f, "\n  Service {n}: {service}")?;
        }
        if self.leasing().next().is_some() {
            let DhcpServer { lease_seconds, authoritative } = self.dhcp;
            write!(
                f,
                "\n  DHCP server: leases of {lease_seconds} s{}",
                if authoritative { ", authoritative" } else { "" }
            )?;
        }
        for fault in &self.faults {
            write!(f, "\n  {fault}")?;
        }
        Ok(())
    }
}
