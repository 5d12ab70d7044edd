//! A LAN: a segment with hosts, a router that may serve DHCP, and a client.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use anyhow::Result;

use crate::addresses::{lan4, lan6};
use crate::net::dhcp::{DhcpOptions, DhcpServer};
use crate::net::host::Host;
use crate::net::segment::Segment;
use crate::run_dir::RunDir;

/// Address of the client.
const CLIENT: u8 = 50;

/// A LAN with its hosts. See [`crate::addresses`] for who has which address.
#[derive(Debug)]
pub struct Lan {
    // Order of fields is order of drop: programs before the wires they use.
    dhcp: Option<DhcpServer>,
    hosts: Vec<Host>,
    client: Host,
    router: Arc<Host>,
    segment: Arc<Segment>,
    subnet: u8,
    dir: Arc<RunDir>,
}

/// What a LAN shall have.
#[derive(Debug)]
pub struct LanBuilder {
    hosts: u8,
    host_prefix: String,
    dhcp: Option<DhcpOptions>,
    subnet: u8,
}

impl Lan {
    /// A LAN with one host `node1`, a client and a router, without DHCP, unless told otherwise.
    pub fn builder() -> LanBuilder {
        LanBuilder { hosts: 1, host_prefix: "node".into(), dhcp: None, subnet: 100 }
    }

    /// Host `n`, counted from 1: `.10+n` (from the fortieth on `.11+n`), named `node<n>`.
    pub fn host(&self, n: usize) -> &Host {
        &self.hosts[n - 1]
    }

    /// All hosts.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The client at `.50`.
    pub fn client(&self) -> &Host {
        &self.client
    }

    /// The router at `.1`, also the DHCP host.
    pub fn router(&self) -> &Host {
        &self.router
    }

    /// The DHCP server; panics if the LAN was built without.
    pub fn dhcp(&self) -> &DhcpServer {
        self.dhcp.as_ref().expect("this LAN was built without .dhcp(..)")
    }

    /// The bridge.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// IPv4 address `last` of this LAN, for a VIP for example.
    pub fn ipv4(&self, last: u8) -> Ipv4Addr {
        lan4(self.subnet, last)
    }

    /// IPv6 address `last` of this LAN.
    pub fn ipv6(&self, last: u8) -> Ipv6Addr {
        lan6(self.subnet, last)
    }

    /// Its number: `192.168.<subnet>.0/24`.
    pub fn subnet(&self) -> u8 {
        self.subnet
    }

    /// Where everything on this LAN logs.
    pub fn dir(&self) -> &Arc<RunDir> {
        &self.dir
    }

    /// One more host with address `.last`, for example a squatter on an address.
    pub fn add_host(&self, name: &str, last: u8) -> Result<Host> {
        new_host(name, last, self.subnet, &self.dir, &self.segment)
    }
}

impl LanBuilder {
    /// How many hosts.
    #[must_use]
    pub fn hosts(mut self, hosts: u8) -> Self {
        self.hosts = hosts;
        self
    }

    /// Another beginning of the hosts' names than `node`, where several LANs share a control plane.
    #[must_use]
    pub fn host_prefix(mut self, prefix: &str) -> Self {
        self.host_prefix = prefix.into();
        self
    }

    /// With a DHCP server on the router.
    #[must_use]
    pub fn dhcp(mut self, options: DhcpOptions) -> Self {
        self.dhcp = Some(options);
        self
    }

    /// `192.168.<subnet>.0/24` and `fd00:<subnet>::/64` instead of 100.
    #[must_use]
    pub fn subnet(mut self, subnet: u8) -> Self {
        self.subnet = subnet;
        self
    }

    /// Builds it.
    pub fn build(self) -> Result<Lan> {
        let dir = RunDir::new("lan")?;
        let segment = Segment::new("lan", &dir)?;
        let router = Arc::new(Host::new("router", &dir, &segment, lan4(self.subnet, 1), lan6(self.subnet, 1))?);
        router.namespace().sysctl("net/ipv4/ip_forward", "1")?;
        let client = new_host("client", CLIENT, self.subnet, &dir, &segment)?;
        let hosts = (1..=self.hosts)
            .map(|n| new_host(&format!("{}{n}", self.host_prefix), address_of(n), self.subnet, &dir, &segment))
            .collect::<Result<Vec<_>>>()?;
        let dhcp = self.dhcp.map(|options| DhcpServer::start(router.clone(), self.subnet, options)).transpose()?;
        Ok(Lan { dhcp, hosts, client, router, segment, subnet: self.subnet, dir })
    }
}

/// Of host `n`: the fortieth and those behind it leave the client its own.
fn address_of(n: u8) -> u8 {
    let last = 10 + n;
    if last < CLIENT { last } else { last + 1 }
}

fn new_host(name: &str, last: u8, subnet: u8, dir: &Arc<RunDir>, segment: &Arc<Segment>) -> Result<Host> {
    let host = Host::new(name, dir, segment, lan4(subnet, last), lan6(subnet, last))?;
    // A default route even where nothing is behind it: kube-proxy translates Service addresses after the route lookup.
    host.ip([
        format!("route add default via {}", lan4(subnet, 1)),
        format!("route add default via {}", lan6(subnet, 1)),
    ])?;
    Ok(host)
}
