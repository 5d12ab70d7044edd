//! What happens in one run, as data: a run is repeated exactly from it, and shrunk by taking faults away.
//! `scenario/make.rs` makes one from a seed.

mod lies;
mod make;
mod nics;
mod text;
mod wide;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use announcer_core::ElectionMode;
pub use lies::LIES;
pub use nics::TWO_NICS;
pub use wide::WIDE;

use crate::kernel::Lan;

/// Faults begin after this: by then every node has started and every Service is announced.
pub const WARM_UP: Duration = Duration::from_secs(15);
/// Before the Services are deleted nothing has moved and nothing was written for so long.
pub const REST: Duration = Duration::from_secs(10);

/// How long a kube-vip's Lease lasts.
pub const KUBE_VIP_LEASE: Duration = Duration::from_secs(15);
/// An address that somebody else used is tried again after 10 s and up to 2.55 s by the node's MAC; what was given up
/// is looked at again after the duration of a Lease.
pub const CONFLICT: Duration = Duration::from_secs(15);

/// One run.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Of delays and losses.
    pub seed: u64,
    /// Of all announcers.
    pub mode: ElectionMode,
    /// Lease duration, renew deadline and retry period in seconds.
    pub lease: [u64; 3],
    /// How many nodes.
    pub nodes: usize,
    /// How many NICs each has, each in a LAN of its own.
    pub nics: usize,
    /// The hypervisor of each node; none: no node says.
    pub hosts: Vec<usize>,
    /// What users have made.
    pub services: Vec<Wish>,
    /// Frames lost between warm-up and calm.
    pub loss: f64,
    /// Requests answered with 500 or 409, or performed without an answer, between warm-up and calm.
    pub refusals: f64,
    /// Up to this long until the scheduler lets a process run.
    pub busy_us: u64,
    /// Addresses go back where they belong (`node` mode).
    pub fail_back: bool,
    /// The run has one fault, and clients are answered again within this.
    pub bound: Option<Duration>,
    /// That fault is over so soon that nothing may move for it.
    pub blip: bool,
    /// How the DHCP server is set up.
    pub dhcp: DhcpServer,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// From here on nothing goes wrong any more.
    pub calm: Duration,
    /// All has come to rest by then; Services are deleted.
    pub deletion: Duration,
    /// Nothing is left by then.
    pub end: Duration,
}

/// A Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// What it asks for.
    pub address: Address,
    /// With policy Local: the nodes that have an endpoint unless a fault moves them.
    pub local: Option<BTreeSet<usize>>,
}

/// Which address a Service asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// An IPv4 address of its own.
    V4,
    /// An IPv6 address of its own.
    V6,
    /// An IPv4 address of its own in the LAN of the second NIC.
    Second,
    /// That of this Service.
    SharedWith(usize),
    /// Whatever the DHCP server gives.
    Dhcp,
}

/// How the DHCP server is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DhcpServer {
    /// For how long it leases.
    pub lease_seconds: u32,
    /// It refuses what it does not know, instead of staying silent.
    pub authoritative: bool,
}

/// Something that goes wrong for a while.
#[derive(Debug, Clone)]
pub struct Fault {
    /// From when.
    pub at: Duration,
    /// How long.
    pub lasts: Duration,
    /// What.
    pub kind: Kind,
}

/// What goes wrong. Nodes and Services are counted from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// This node does not reach the API.
    ApiAway(usize),
    /// Nobody does.
    ApiDown,
    /// This node's requests and watch events take up to 150 ms longer.
    ApiSlow(usize),
    /// Every request takes so many milliseconds longer until the API performs it, whoever sends it.
    ApiLate(u64),
    /// This node's watches stand still.
    Stale(usize),
    /// This node's cable carries nothing, without a carrier event.
    Cut(usize),
    /// What this node sends is lost.
    Mute(usize),
    /// This node receives nothing.
    Deaf(usize),
    /// The switch of these nodes has lost its uplink: they hear one another and nobody else.
    Split(Vec<usize>),
    /// The cable of this node is out, and its kernel knows it.
    Carrier(usize),
    /// One NIC of this node, and not the other one.
    Nic(usize, Lan, Cable),
    /// The same as [`Kind::Split`] in one of two LANs.
    SplitLan(Lan, Vec<usize>),
    /// SIGKILL of the process, which is started again afterwards.
    Kill(usize),
    /// SIGTERM of the process, which is started again afterwards.
    Terminate(usize),
    /// SIGSTOP, then SIGCONT.
    Freeze(usize),
    /// The whole machine stands still; its clocks show it afterwards, or do not.
    Pause(usize, bool),
    /// Power loss; the machine boots afterwards.
    PowerLoss(usize),
    /// The wall clock of this node jumps by so many seconds, there and back.
    WallJump(usize, i64),
    /// The Node is not ready.
    NotReady(usize),
    /// The Node is cordoned.
    Cordoned(usize),
    /// The Node carries a taint or label that shuts it out.
    ShutOut(usize),
    /// kube-proxy on this node is ill.
    ProxyIll(usize),
    /// This Service is deleted, and made again afterwards.
    Deleted(usize),
    /// The endpoints of this Service with policy Local are on these nodes.
    Endpoints(usize, BTreeSet<usize>),
    /// A host uses the address of this Service and announces it.
    Thief(usize),
    /// A host answers whoever asks for the address of this Service, and announces nothing.
    Duplicate(usize),
    /// A router answers for every address that somebody asks everybody for.
    ProxyArp,
    /// Every node that runs answers for the addresses of all Services: kube-proxy in IPVS mode without strict ARP.
    Ipvs,
    /// A host announces the address of this Service once and answers nobody.
    Claims(usize),
    /// A host that knows the UID of this Service claims its address once, in the name of a member and this many terms
    /// ahead.
    Lie(usize, u64),
    /// All Nodes are not ready, one after another, and come back one by one.
    AllNotReady,
    /// A kube-vip holds the Lease for all Services, and has all their addresses; it hands the Lease back at its end, or
    /// not.
    KubeVip(bool),
    /// Something is wrong with the DHCP server.
    Server(ServerFault),
    /// Each request to this node's kernel takes up to so many milliseconds.
    SlowKernel(usize, u64),
    /// These two nodes do not hear each other, and hear everybody else.
    Apart(usize, usize),
    /// A fabric answers, for each address that somebody asks everybody for, with the MAC that it saw there last.
    Fabric,
    /// The API lets this node read and refuses what it writes.
    ReadOnly(usize),
}

/// What is wrong with one NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cable {
    /// It carries nothing, without a carrier event.
    Dead,
    /// It is out, and the kernel knows it.
    Out,
    /// What is sent is lost.
    Mute,
    /// Nothing is received.
    Deaf,
}

/// What goes wrong with the DHCP server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerFault {
    /// It says nothing.
    Silent,
    /// It takes up to two seconds for an answer.
    Slow,
    /// It refuses whatever is asked of it.
    Refuses,
    /// It starts anew and has lost its book.
    Forgets,
    /// All addresses that it has given are somebody else's from now on.
    GivesAway,
    /// It leases for ten seconds.
    Short,
}

impl Kind {
    /// The node that alone suffers.
    pub fn node(&self) -> Option<usize> {
        match self {
            Self::ApiAway(n)
            | Self::ApiSlow(n)
            | Self::Stale(n)
            | Self::Cut(n)
            | Self::Mute(n)
            | Self::Deaf(n)
            | Self::Carrier(n)
            | Self::Nic(n, ..)
            | Self::Kill(n)
            | Self::Terminate(n)
            | Self::Freeze(n)
            | Self::Pause(n, _)
            | Self::PowerLoss(n)
            | Self::WallJump(n, _)
            | Self::NotReady(n)
            | Self::Cordoned(n)
            | Self::ShutOut(n)
            | Self::ProxyIll(n)
            | Self::ReadOnly(n)
            | Self::SlowKernel(n, _) => Some(*n),
            Self::ApiDown
            | Self::ApiLate(_)
            | Self::Split(_)
            | Self::SplitLan(..)
            | Self::Deleted(_)
            | Self::Endpoints(..)
            | Self::Thief(_)
            | Self::Duplicate(_)
            | Self::ProxyArp
            | Self::Ipvs
            | Self::Claims(_)
            | Self::Lie(..)
            | Self::AllNotReady
            | Self::KubeVip(_)
            | Self::Apart(..)
            | Self::Fabric
            | Self::Server(_) => None,
        }
    }

    /// The highest number of a node in it.
    pub fn last_node(&self) -> Option<usize> {
        match self {
            Self::Split(group) | Self::SplitLan(_, group) => group.iter().max().copied(),
            Self::Endpoints(_, nodes) => nodes.last().copied(),
            Self::Apart(a, b) => Some(*a.max(b)),
            other => other.node(),
        }
    }

    /// The Service that it is about.
    pub fn service(&self) -> Option<usize> {
        match self {
            Self::Deleted(service)
            | Self::Endpoints(service, _)
            | Self::Thief(service)
            | Self::Duplicate(service)
            | Self::Claims(service)
            | Self::Lie(service, _) => Some(*service),
            _ => None,
        }
    }

    /// Whether it keeps the process on this node from running.
    pub fn holds_down(&self, node: usize) -> bool {
        matches!(self, Self::Kill(n) | Self::Terminate(n) | Self::PowerLoss(n) if *n == node)
    }
}

impl Fault {
    /// From so many seconds on, for so many.
    pub fn in_seconds(at: u64, lasts: u64, kind: Kind) -> Self {
        Self { at: Duration::from_secs(at), lasts: Duration::from_secs(lasts), kind }
    }

    /// When it is over.
    pub fn end(&self) -> Duration {
        self.at + self.lasts
    }

    /// When nothing that it has begun has to be waited for any more.
    pub fn is_over_at(&self) -> Duration {
        match self.kind {
            // They come back one by one.
            Kind::AllNotReady => self.end() + Duration::from_secs(15),
            // Its Lease has to expire.
            Kind::KubeVip(false) => self.end() + KUBE_VIP_LEASE,
            _ => self.end(),
        }
    }

    /// Whether it lasts at `now`.
    pub fn is_on(&self, now: Duration) -> bool {
        self.at <= now && self.end() > now
    }
}

impl Scenario {
    /// Of three nodes, any of which may serve these addresses, in a LAN and with an API that lose nothing: only these
    /// faults. A quarter of a minute after the last one all has to be well, and a minute later the Services go.
    pub fn of_three(seed: u64, mode: ElectionMode, addresses: &[Address], faults: Vec<Fault>) -> Self {
        let mut scenario = Self::of(seed, mode);
        (scenario.nodes, scenario.loss, scenario.refusals, scenario.fail_back) = (3, 0.0, 0.0, false);
        scenario.hosts.clear();
        scenario.services = addresses.iter().map(|address| Wish { address: *address, local: None }).collect();
        scenario.calm = faults.iter().map(Fault::end).max().unwrap_or_default() + Duration::from_secs(15);
        scenario.faults = faults;
        scenario.deletion = scenario.calm + Duration::from_mins(1);
        scenario.end = scenario.deletion + Duration::from_secs(20);
        scenario
    }

    /// Whether the DHCP server has this fault at some time.
    pub fn has(&self, fault: ServerFault) -> bool {
        self.faults.iter().any(|one| matches!(one.kind, Kind::Server(kind) if kind == fault))
    }

    /// Whether a host that is no node may use an address of a Service at some time.
    pub fn has_strangers(&self) -> bool {
        self.faults.iter().any(|one| match one.kind {
            Kind::Thief(_)
            | Kind::Duplicate(_)
            | Kind::Claims(_)
            | Kind::KubeVip(_)
            | Kind::ProxyArp
            | Kind::Ipvs
            | Kind::Fabric => true,
            Kind::Server(fault) => matches!(fault, ServerFault::Forgets | ServerFault::GivesAway),
            _ => false,
        })
    }

    /// The address that Service `n` asks for; unspecified for one by DHCP.
    pub fn address(&self, n: usize) -> IpAddr {
        let last = u8::try_from(100 + n).expect("few Services");
        match self.services[n].address {
            Address::V4 => [10, 0, 0, last].into(),
            Address::Second => [10, 1, 0, last].into(),
            Address::V6 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)).into(),
            Address::SharedWith(primary) => self.address(primary),
            Address::Dhcp => Ipv4Addr::UNSPECIFIED.into(),
        }
    }

    /// How long the kernel keeps an address that nobody extends, at most.
    pub fn fence(&self) -> Duration {
        let [duration, _, retry] = self.lease;
        let fence = Duration::from_secs((duration - retry - 1).max(2));
        if self.mode == ElectionMode::Node { fence.min(Duration::from_secs(5)) } else { fence }
    }

    /// Whether a fabric answers for others at some time.
    pub fn has_fabric(&self) -> bool {
        self.faults.iter().any(|fault| fault.kind == Kind::Fabric)
    }

    /// The LAN of two that the one fault of the run does not concern.
    pub fn spared_lan(&self) -> Option<Lan> {
        match self.faults.first()?.kind {
            Kind::Nic(_, lan, _) | Kind::SplitLan(lan, _) => Some(1 - lan),
            _ => None,
        }
    }

    /// Services whose address comes by DHCP.
    pub fn leasing(&self) -> impl Iterator<Item = usize> + '_ {
        self.services.iter().enumerate().filter(|(_, wish)| wish.address == Address::Dhcp).map(|(n, _)| n)
    }

    /// How much longer a request to a kernel takes at most.
    pub fn kernel_late(&self) -> Duration {
        let late = |fault: &Fault| match fault.kind {
            Kind::SlowKernel(_, milliseconds) => milliseconds,
            _ => 0,
        };
        Duration::from_millis(self.faults.iter().map(late).max().unwrap_or_default())
    }

    /// How much longer each request takes at most.
    pub fn api_late(&self) -> Duration {
        let late = |fault: &Fault| match fault.kind {
            Kind::ApiLate(milliseconds) => milliseconds,
            _ => 0,
        };
        Duration::from_millis(self.faults.iter().map(late).sum())
    }

    /// Whether frames or requests are lost while it storms.
    pub fn has_weather(&self) -> bool {
        self.loss > 0.0 || self.refusals > 0.0
    }
}
