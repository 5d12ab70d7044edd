//! A host on a LAN.

use parking_lot::Mutex;
use std::ffi::OsStr;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::net::capture::Capture;
use crate::net::namespace::{Namespace, Task};
use crate::net::probe::{Probe, ProbeOptions, Traffic};
use crate::net::segment::{Nic, Segment, cut_right_after, with_prefix};
use crate::process::Process;
use crate::run_dir::RunDir;

/// A machine: a network namespace with its own host name and NICs. `eth0` is on the LAN; `mgmt0`, if it joined a
/// control plane, is the way to the API. The two are separate so that losing the LAN and losing the API can be told
/// apart.
#[derive(Debug)]
pub struct Host {
    namespace: Namespace,
    ipv4: Ipv4Addr,
    ipv6: Ipv6Addr,
    nics: Mutex<Vec<Arc<Nic>>>,
}

impl Host {
    /// A host with `eth0` on `segment`.
    pub fn new(name: &str, dir: &Arc<RunDir>, segment: &Arc<Segment>, ipv4: Ipv4Addr, ipv6: Ipv6Addr) -> Result<Self> {
        let namespace = Namespace::new(name, dir)?;
        let nic = segment.attach(&namespace, "eth0", &[with_prefix(ipv4), with_prefix(ipv6)])?;
        Ok(Self { namespace, ipv4, ipv6, nics: Mutex::new(vec![nic]) })
    }

    /// A host with `eth0` on `segment` that has this MAC address.
    pub fn with_mac(
        name: &str,
        dir: &Arc<RunDir>,
        segment: &Arc<Segment>,
        ipv4: Ipv4Addr,
        ipv6: Ipv6Addr,
        mac: &str,
    ) -> Result<Self> {
        let namespace = Namespace::new(name, dir)?;
        let nic = segment.attach_as(&namespace, "eth0", &[with_prefix(ipv4), with_prefix(ipv6)], mac)?;
        Ok(Self { namespace, ipv4, ipv6, nics: Mutex::new(vec![nic]) })
    }

    /// Its host name.
    pub fn name(&self) -> &str {
        self.namespace.name()
    }

    /// Its IPv4 address on the LAN.
    pub fn ipv4(&self) -> Ipv4Addr {
        self.ipv4
    }

    /// Its IPv6 address on the LAN.
    pub fn ipv6(&self) -> Ipv6Addr {
        self.ipv6
    }

    /// Its namespace, to run closures and tasks in.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// One more NIC.
    pub fn attach(&self, segment: &Arc<Segment>, interface: &str, addresses: &[String]) -> Result<Arc<Nic>> {
        let nic = segment.attach(&self.namespace, interface, addresses)?;
        self.nics().push(nic.clone());
        Ok(nic)
    }

    /// Makes it pass on packets, as a node does for its pods.
    pub fn enable_forwarding(&self) -> Result<()> {
        for (key, value) in [
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
            // Replies of pods leave by another interface than a VIP's requests came in by.
            ("net/ipv4/conf/all/rp_filter", "0"),
            ("net/ipv4/conf/default/rp_filter", "0"),
        ] {
            self.namespace.sysctl(key, value)?;
        }
        Ok(())
    }

    /// The NIC called `interface`; panics if there is none, since that is a mistake in the test.
    pub fn nic(&self, interface: &str) -> Arc<Nic> {
        let nics = self.nics();
        nics.iter()
            .find(|nic| nic.interface() == interface)
            .unwrap_or_else(|| panic!("{} has no NIC {interface}", self.name()))
            .clone()
    }

    /// MAC address of `eth0`.
    pub fn mac(&self) -> String {
        self.nic("eth0").mac().to_owned()
    }

    /// Pulls every cable: to all others this machine is dead. Its processes live on: see [`Host::lose_power`].
    pub fn cut_off(&self) -> Result<()> {
        self.nics().iter().try_for_each(|nic| nic.cut())
    }

    /// A power loss: `stop` ends or stops its processes, and every cable is cut in the same moment. Cables first would
    /// give them the time to see it and to say good-bye, and processes first would leave a kernel that goes on
    /// answering while the others already search.
    pub fn lose_power(&self, stop: impl FnOnce() -> Result<()>) -> Result<()> {
        let nics = self.nics();
        cut_right_after(&nics, stop)
    }

    /// Puts every cable back.
    pub fn plug_in(&self) -> Result<()> {
        self.nics().iter().try_for_each(|nic| nic.plug())
    }

    /// Starts a program on this host.
    pub fn spawn(&self, name: &str, command: Command) -> Result<Process> {
        self.namespace.spawn(name, command)
    }

    /// Runs a program on this host to its end.
    pub fn exec<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Result<String> {
        self.namespace.exec(words)
    }

    /// Runs `ip` commands on this host.
    pub fn ip<S: AsRef<str>>(&self, lines: impl IntoIterator<Item = S>) -> Result<()> {
        self.namespace.ip(lines)
    }

    /// Runs a closure on this host.
    pub fn run<T: Send + 'static>(&self, closure: impl FnOnce() -> T + Send + 'static) -> T {
        self.namespace.run(closure)
    }

    /// Runs a future on this host until the guard is dropped.
    pub fn task<F: Future<Output = ()>>(&self, name: &str, make: impl FnOnce() -> F + Send + 'static) -> Result<Task> {
        self.namespace.task(name, make)
    }

    /// All addresses, with interface and prefix length.
    pub fn addresses(&self) -> Result<Vec<(String, IpAddr, u8)>> {
        let mut found = Vec::new();
        for link in self.namespace.ip_json("addr show")? {
            let name = link["ifname"].as_str().unwrap_or_default();
            for info in link["addr_info"].as_array().into_iter().flatten() {
                let Some(address) = info["local"].as_str().and_then(|text| text.parse().ok()) else { continue };
                let prefix = info["prefixlen"]
                    .as_u64()
                    .and_then(|n| u8::try_from(n).ok())
                    .context("an address without prefix length")?;
                found.push((name.to_owned(), address, prefix));
            }
        }
        Ok(found)
    }

    /// True if any interface has this address.
    pub fn has_address(&self, address: impl Into<IpAddr>) -> Result<bool> {
        let address = address.into();
        Ok(self.addresses()?.iter().any(|(_, found, _)| *found == address))
    }

    /// Names of all interfaces.
    pub fn interfaces(&self) -> Result<Vec<String>> {
        Ok(self
            .namespace
            .ip_json("link show")?
            .iter()
            .filter_map(|link| link["ifname"].as_str().map(str::to_owned))
            .collect())
    }

    /// The MAC that this host believes `address` to have; `None` if it does not know.
    pub fn neighbour(&self, address: impl Into<IpAddr>) -> Result<Option<String>> {
        let address = address.into();
        let all = self.namespace.ip_json(&format!("neigh show {address}"))?;
        Ok(all.iter().find_map(|entry| entry["lladdr"].as_str().map(str::to_owned)))
    }

    /// Forgets whom it believes to have `address`.
    pub fn forget_neighbour(&self, address: impl Into<IpAddr>) -> Result<()> {
        let address = address.into();
        if self.neighbour(address)?.is_some() {
            self.ip([format!("neigh flush to {address}")])?;
        }
        Ok(())
    }

    /// All MACs that answer broadcast ARP requests of this host for `address` within a second.
    pub fn who_has(&self, address: Ipv4Addr) -> Result<Vec<String>> {
        // `-b`: go on broadcasting after the first answer, there may be a second machine. Exit status 1 says that
        // nobody answered.
        let text = self.exec(["sh", "-c", &format!("arping -b -c 2 -w 1 -I eth0 {address} || true")])?;
        let mut macs: Vec<String> = text
            .lines()
            .filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_ascii_lowercase()))
            .collect();
        macs.sort();
        macs.dedup();
        Ok(macs)
    }

    /// One HTTP GET of `/` from this host; the body.
    pub fn http_get(&self, target: SocketAddr, timeout: Duration) -> Result<String> {
        self.run(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("failed to make a runtime")?;
            runtime.block_on(crate::echo::get(target, timeout))
        })
    }

    /// Asks `traffic` every 10 ms from this host.
    pub fn probe(&self, traffic: Traffic) -> Result<Probe> {
        self.probe_with(traffic, ProbeOptions::default())
    }

    /// Asks `traffic` at another pace.
    pub fn probe_with(&self, traffic: Traffic, options: ProbeOptions) -> Result<Probe> {
        Probe::start(&self.namespace, traffic, options)
    }

    /// Records frames on `interface`; `filter` in tcpdump's language, empty for all.
    pub fn capture(&self, interface: &str, filter: &str) -> Result<Capture> {
        Capture::start(&self.namespace, interface, filter)
    }

    fn nics(&self) -> parking_lot::MutexGuard<'_, Vec<Arc<Nic>>> {
        self.nics.lock()
    }
}
