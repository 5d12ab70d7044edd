//! What goes into the engine and what comes out of it. Data only.

mod record;
mod status;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use jiff::Timestamp;
use l2_types::Mac;
use l2_types::ethernet::Payload;
use l2_types::{InetConf, Macvlan};

pub use record::{LostLeases, Record, Recorded};
pub use status::{Observations, VipStatus};

use crate::annotations::{LeaseFacts, LeaseFacts6};
use crate::claim::ClaimSecret;
use crate::detect::Ask;
use crate::frames::Frame;
use crate::network::{Family, LeaseEnd, Network};
use crate::ownership::LeaseState;
use crate::ownership::node::{Card, ForeignLock, Member, NodeFacts, Swap, Swapped};
use crate::ownership::service::LeaseKey;
use crate::plan::VipId;
use crate::prober;
use crate::reason::Reason;
use crate::security::Protection;
use crate::view::{ServiceKey, ServiceView, Uid};

/// Something that happened.
#[derive(Debug)]
pub enum Input {
    /// A Service changed; absent: it is gone, or not ours to announce any more.
    Service(ServiceKey, Option<Box<ServiceView>>),
    /// The addresses inside the cluster of any Service; none: it is gone, or has none. Comes before what else is known
    /// of it.
    ClusterIps(ServiceKey, Vec<IpAddr>),
    /// The first complete list of Services has been fed in.
    Synced,
    /// On which nodes a Service with policy Local has endpoints; absent: not known (any more).
    Endpoints(ServiceKey, Option<BTreeSet<String>>),
    /// The election says something new.
    Lease(LeaseState),
    /// `service` mode: the election for one Lease says something new.
    ServiceLease(LeaseKey, LeaseState),
    /// `node` mode: the membership Lease of a node was read; absent: it is gone.
    Member(String, Option<Member>),
    /// All of them have been read once.
    MembersSynced,
    /// `node` mode: a Node was read; absent: it is gone.
    Node(String, Option<NodeFacts>),
    /// All Nodes have been read once; or they may not be read.
    NodesSynced {
        /// They may be read.
        readable: bool,
    },
    /// `node` mode: kube-vip's Lease for all Services was read; absent: there is none.
    Foreign(Option<ForeignLock>),
    /// `node` mode: whether the cloud controller is in safe mode.
    SafeMode(bool),
    /// `node` mode: with these keys claims are made and checked, in the order of their names.
    ClaimKeys(Vec<ClaimSecret>),
    /// Whether kube-proxy is healthy on this node, as far as can be told.
    KubeProxy(bool),
    /// Answer to an [`Action::AskKubelet`].
    Kubelet {
        /// Whose.
        node: String,
        /// It accepts or refuses; also where nothing can be told.
        answers: bool,
    },
    /// What was found out of those of the last [`Action::ProbeServices`].
    Probed(prober::Finding),
    /// Answer to an [`Action::Swap`].
    Swapped(ServiceKey, Swap, Swapped),
    /// The kernel reported a change that we did not make.
    NetworkChanged,
    /// Answer to a [`WireOp`].
    Wire(WireDone),
    /// Somebody spoke about an address.
    Heard(Frame),
    /// The DHCP client of a Service that was started with this generation.
    Dhcp(Uid, u64, ClientEvent),
    /// What became of an [`Action::Record`].
    Recorded(ServiceKey, Recorded),
    /// The process has been asked to end.
    Stop,
    /// Answer to [`Action::ReleaseLease`]: whether the Lease now says that nobody holds it.
    Released(bool),
    /// Where API servers are. Only in `node` mode.
    ApiServers(BTreeSet<IpAddr>),
    /// While stopping: another node has taken the Lease.
    Successor(String),
}

/// What a client of either version of DHCP reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEvent {
    /// One of DHCP.
    V4(DhcpEvent),
    /// One of DHCPv6.
    V6(DhcpEvent<LeaseFacts6>),
}

/// What a DHCP client reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DhcpEvent<F = LeaseFacts> {
    /// This address may be used.
    Bound(Leased<F>),
    /// The same address for longer.
    Renewed(Leased<F>),
    /// The address must not be used any more.
    Lost {
        /// Which.
        address: IpAddr,
        /// Why, in words.
        why: String,
    },
    /// Something people should know.
    Report {
        /// Reason of the Event.
        reason: Reason,
        /// Its text.
        text: String,
    },
    /// Where the client is, for metrics.
    State(&'static str),
    /// The client could not be started or broke off; it may be started again.
    Failed(String),
    /// It has ended, as asked for.
    Stopped,
}

/// A granted lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leased<F = LeaseFacts> {
    /// What to remember on the Service.
    pub facts: F,
    /// End of use; absent: never.
    pub expires: Option<Instant>,
}

/// One request to the kernel. They are performed one after the other, in order; only [`WireOp::Extend`] goes first, and
/// nothing waits for [`WireOp::Protect`]: what needs its rules is asked for when it was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WireOp {
    /// Read everything.
    Observe,
    /// Set addresses.
    Put(Vec<Put>),
    /// Put off the deadlines of addresses that are there. Two hundred macvlans that are being made must not let the
    /// kernel remove what is served.
    Extend(Vec<Put>),
    /// Remove an address.
    Remove {
        /// From which interface.
        link: u32,
        /// With its prefix length.
        net: IpNet,
    },
    /// Make a macvlan, or adopt the one that is there if it is right. With the lease that its client goes on with, the
    /// address is on it before its first frame: the former owner has the same MAC, and serves until it hears a claim.
    Macvlan(Uid, Macvlan, Option<Resumed>),
    /// Note on a macvlan whose it is and until when its lease runs.
    Note {
        /// Which.
        link: u32,
        /// Whose.
        uid: Uid,
        /// Until when.
        end: LeaseEnd,
    },
    /// Let this through to VIPs, and nothing else. Begun when all before it is done, so that no address outlives its
    /// rules; it may take half a minute, behind other programs' changes of the kernel's tables.
    Protect(Protection),
    /// Delete an interface.
    Delete {
        /// Which.
        link: u32,
    },
    /// Set `arp_ignore` and `arp_announce` of an interface that will carry VIPs.
    Prepare {
        /// Which.
        link: u32,
    },
    /// Put them back.
    Restore {
        /// Which.
        link: u32,
        /// To what.
        conf: InetConf,
    },
}

/// A lease that is gone on with, as recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resumed {
    /// Its address.
    pub address: Ipv4Addr,
    /// By the clock on the wall; absent: never.
    pub expires: Option<Timestamp>,
    /// The kernel's deadline until the client has said so too.
    pub fence: Duration,
}

/// An address for the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// On which interface.
    pub link: u32,
    /// With its prefix length.
    pub net: IpNet,
    /// How long it lives unless extended.
    pub valid: Duration,
    /// End of its lease, noted on it where it has no macvlan that could carry the note.
    pub until: Option<Instant>,
}

/// What became of a [`WireOp`]; those without an answer of interest have none. Errors are texts for people.
#[derive(Debug)]
pub enum WireDone {
    /// `Observe`.
    Observed(Result<Network, String>),
    /// `Put`, address by address.
    Put(Vec<(u32, IpNet, Result<(), String>)>),
    /// `Extend`, address by address.
    Extended(Vec<(u32, IpNet, Result<(), String>)>),
    /// `Macvlan`: its index and MAC.
    Macvlan(Uid, Result<(u32, Mac), String>),
    /// `Protect`.
    Protected(Result<(), String>),
    /// `Prepare`: what to put back one day.
    Prepared(u32, Result<InetConf, String>),
}

/// How to start a client of either version of DHCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientStart {
    /// One of DHCP.
    V4(DhcpStart),
    /// One of DHCPv6.
    V6(Dhcp6Start),
}

/// How to start a DHCP client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DhcpStart {
    /// Tells what it says from what an earlier client of the same Service said.
    pub generation: u64,
    /// Index of the macvlan.
    pub link: u32,
    /// Its MAC.
    pub mac: Mac,
    /// Option 12 and, as kube-vip has it, 61.
    pub hostname: Option<String>,
    /// Ask for broadcast answers.
    pub broadcast: bool,
    /// The address to come back to.
    pub requested: Option<Ipv4Addr>,
    /// The lease to come back to.
    pub lease: Option<LeaseFacts>,
}

/// How to start a DHCPv6 client. It speaks in the name of the interface that carries the address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dhcp6Start {
    /// Tells what it says from what an earlier client of the same Service said.
    pub generation: u64,
    /// Index of the interface.
    pub link: u32,
    /// Its MAC.
    pub mac: Mac,
    /// Its link-local address.
    pub source: Ipv6Addr,
    /// The address to come back to.
    pub requested: Option<Ipv6Addr>,
    /// The lease to come back to.
    pub lease: Option<LeaseFacts6>,
}

/// What a person should know about a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tell {
    /// A warning rather than news.
    pub warning: bool,
    /// Reason of the Event.
    pub reason: Reason,
    /// Text.
    pub text: String,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Ask the kernel.
    Wire(WireOp),
    /// Say that the address is here: for IPv4 a gratuitous reply and a gratuitous request, for IPv6 an unsolicited
    /// advertisement.
    Announce {
        /// On which interface.
        link: u32,
        /// With which MAC.
        mac: Mac,
        /// The address.
        address: IpAddr,
    },
    /// Ask whether anybody has the address.
    Probe {
        /// On which interface.
        link: u32,
        /// From which MAC.
        mac: Mac,
        /// The address.
        address: IpAddr,
    },
    /// Ask one node, or everybody, in our own name whether it has an address (`detect`, `claim`).
    Ask {
        /// MAC of our interface.
        mac: Mac,
        /// To ask about an IPv6 address: an address of ours on it, the link-local one if there is one.
        source: Option<Ipv6Addr>,
        /// What and whom.
        ask: Ask,
    },
    /// Ask by TCP whether anybody is at this address: an acceptance and a refusal are answers.
    AskKubelet {
        /// Which node is meant.
        node: String,
        /// Where its kubelet listens.
        address: SocketAddr,
    },
    /// Ask these as a client would, from now on and no others (`prober`).
    ProbeServices(prober::Targets),
    /// Tell a former owner that the address is here (`claim`).
    Claim {
        /// On which interface.
        link: u32,
        /// Where the address is.
        mac: Mac,
        /// The address.
        address: IpAddr,
        /// MAC of the former owner.
        to: Mac,
        /// Term and tag.
        payload: Payload,
    },
    /// Hear what is said about addresses of these families on these interfaces, and nothing else.
    Listen(BTreeSet<(u32, Family)>),
    /// Start the DHCP client of a Service.
    StartDhcp(Uid, ClientStart),
    /// Stop the DHCP client of a VIP, giving the lease back or keeping it for a successor.
    StopDhcp {
        /// Whose.
        id: VipId,
        /// Whether to send RELEASE.
        release: bool,
    },
    /// Tell the DHCP client of a VIP that its interface is down, or back.
    DhcpLink {
        /// Whose.
        id: VipId,
        /// It can be used again.
        up: bool,
    },
    /// Tell the DHCP client of this VIP that somebody uses the address which it was given: it declines it.
    DhcpTaken {
        /// Whose.
        id: VipId,
        /// The address.
        address: IpAddr,
        /// The MAC of whoever has it, where it is known.
        by: Option<Mac>,
    },
    /// Write on a Service.
    Record(ServiceKey, Record),
    /// `service` mode: take part in the elections for these Leases, and in no others; those that are held are handed
    /// back.
    Campaign(BTreeSet<LeaseKey>),
    /// `node` mode: change the owner in the record of this Service, if it is as we believe.
    Swap(ServiceKey, Swap),
    /// `node` mode: renew our membership Lease, with this in it.
    Membership(Card),
    /// Write nothing on it any more.
    Forget(ServiceKey),
    /// An Event on a Service.
    Tell(ServiceKey, Tell),
    /// Hand the Lease back and go on telling who takes it.
    ReleaseLease,
    /// All is done that had to be done before the end.
    Exit,
}
