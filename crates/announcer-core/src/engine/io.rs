//! The inputs and the actions of the engine. Data only.

mod record;
mod status;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use dhcp_client::State;
use ipnet::IpNet;
use jiff::Timestamp;
use l2_types::Mac;
use l2_types::{InetConf, Macvlan};

pub use record::{LostLeases, Record, Recorded};
pub use status::{Observations, VipStatus};

use crate::annotations::{LeaseFacts, LeaseFacts6};
use crate::claim::{Claim, ClaimSecret};
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

/// An input of the engine.
#[derive(Debug)]
pub enum Input {
    /// A Service changed; `None`: it was seen to be deleted, or is not this announcer's any more.
    Service(ServiceKey, Option<Box<ServiceView>>),
    /// A new list does not have this Service, and nobody has seen how it went: it was deleted meanwhile, or etcd was
    /// restored from an older snapshot.
    Missing(ServiceKey),
    /// What counts of any Service; nothing of it: it is deleted. Comes before [`Input::Service`] for the same change.
    Seen {
        /// The Service.
        key: ServiceKey,
        /// Its cluster IPs.
        cluster_ips: Vec<IpAddr>,
        /// The macvlan that a kube-vip may have for it, if it is of another class.
        macvlan: Option<String>,
    },
    /// The first complete list of Services has been fed in.
    Synced,
    /// The nodes with endpoints of a Service with policy Local; `None`: not known any more.
    Endpoints(ServiceKey, Option<BTreeSet<String>>),
    /// `global` mode: the state of the election has changed.
    Lease(LeaseState),
    /// `service` mode: the state of the election for one Lease has changed.
    ServiceLease(LeaseKey, LeaseState),
    /// `node` mode: the membership Lease of a node was read; `None`: it was deleted.
    Member(String, Option<Member>),
    /// `node` mode: the first list of membership Leases is complete.
    MembersSynced,
    /// `node` mode: a Node was read; `None`: it was deleted.
    Node(String, Option<NodeFacts>),
    /// `node` mode: the first list of Nodes is complete, or Nodes cannot be read.
    NodesSynced {
        /// Whether this node may read Nodes.
        readable: bool,
    },
    /// `node` mode: kube-vip's Lease for all Services was read; `None`: it does not exist.
    Foreign(Option<ForeignLock>),
    /// `node` mode: whether the cloud controller is in safe mode.
    SafeMode(bool),
    /// `node` mode: the keys with which claims are made and checked, in the order of their names.
    ClaimKeys(Vec<ClaimSecret>),
    /// Whether kube-proxy is healthy on this node, as far as the announcer can tell. In `node` mode decisions wait for
    /// the first word, for a limited time.
    KubeProxy(bool),
    /// Answer to an [`Action::AskKubelet`].
    Kubelet {
        /// The node.
        node: String,
        /// Whether the kubelet's port accepts or refuses a connection; true also if this cannot be told.
        answers: bool,
    },
    /// A finding about a target of the last [`Action::ProbeServices`].
    Probed(prober::ProbeFinding),
    /// Answer to an [`Action::Swap`].
    Swapped(ServiceKey, Swap, Swapped),
    /// The kernel has reported a change that this process did not make.
    NetworkChanged,
    /// Answer to a [`KernelOp`].
    Kernel(KernelDone),
    /// A frame about an address was received.
    Heard(Frame),
    /// The question of an [`Action::Ask`] could not be sent, or an [`Action::Probe`], which is a question to everybody.
    /// It has to come before the next [`super::Engine::poll`].
    NotSent(Ask),
    /// An event of the DHCP client of this Service that was started with this generation.
    Dhcp(Uid, u64, ClientEvent),
    /// Result of an [`Action::Record`].
    Recorded(ServiceKey, Recorded),
    /// The process has to end.
    Stop,
    /// Answer to [`Action::ReleaseLease`]: whether the Lease has no holder now.
    Released(bool),
    /// `node` mode: the addresses of the API servers.
    ApiServers(BTreeSet<IpAddr>),
    /// While stopping: another node has taken the Lease.
    Successor(String),
}

/// An event of a DHCPv4 or DHCPv6 client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEvent {
    /// From a DHCPv4 client.
    V4(DhcpEvent),
    /// From a DHCPv6 client.
    V6(DhcpEvent<LeaseFacts6>),
}

/// An event of a DHCP client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DhcpEvent<F = LeaseFacts> {
    /// The address may be used.
    Bound(Leased<F>),
    /// The lease was extended; the address is the same.
    Renewed(Leased<F>),
    /// The address must not be used any more.
    Lost {
        /// The address.
        address: IpAddr,
        /// The reason as text.
        why: String,
    },
    /// Something that users should know.
    Report {
        /// Reason of the Event.
        reason: Reason,
        /// Its text.
        text: String,
    },
    /// State of the client, for metrics.
    State(State),
    /// The client could not be started or has ended with an error; it may be started again.
    Failed(String),
    /// The client has ended as requested.
    Stopped,
}

/// A granted lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leased<F = LeaseFacts> {
    /// The facts to record on the Service.
    pub facts: F,
    /// End of the lease; `None`: it does not end.
    pub expires: Option<Instant>,
}

/// One request to the kernel. Requests are performed one after the other, in order, with two exceptions.
/// [`KernelOp::Extend`] goes first. No request waits for [`KernelOp::Protect`]: the engine requests what needs the
/// rules after the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelOp {
    /// Read links, addresses and routes.
    Observe,
    /// Add addresses.
    Put(Vec<Put>),
    /// Extend the lifetime of addresses that are there. It goes first, so that the kernel does not remove served
    /// addresses while two hundred macvlans are being made.
    Extend(Vec<Put>),
    /// Remove addresses, each with its prefix length, from interfaces, each given by its index. Requests that follow
    /// each other become one: a node that loses its addresses must not answer for the last one while the kernel is slow
    /// to remove the others.
    Remove(Vec<(u32, IpNet)>),
    /// Make a macvlan, or adopt the existing one if it is right. If its client continues a lease, the address is on the
    /// macvlan before its first frame: the former owner has the same MAC, and serves until it hears a claim.
    Macvlan(Uid, Macvlan, Option<Resumed>),
    /// Note on a macvlan the UID of its Service and the end of its lease.
    Note {
        /// Index of the macvlan.
        link: u32,
        /// UID of the Service.
        uid: Uid,
        /// End of the lease.
        end: LeaseEnd,
    },
    /// Replace the packet filter rules: they let these packets through to VIPs, and no others. It starts after all
    /// earlier requests, so that no address outlives its rules. It may take half a minute while other programs change
    /// the kernel's tables.
    Protect(Protection),
    /// Delete an interface.
    Delete {
        /// Index of the interface.
        link: u32,
    },
    /// Set `arp_ignore` and `arp_announce` of an interface that will carry VIPs.
    Prepare {
        /// Index of the interface.
        link: u32,
    },
    /// Restore those settings.
    Restore {
        /// Index of the interface.
        link: u32,
        /// The settings to restore.
        conf: InetConf,
    },
}

/// A lease that a client continues, as it was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resumed {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its end by the wall clock; `None`: it does not end.
    pub expires: Option<Timestamp>,
    /// The lifetime in the kernel until the client has confirmed the lease.
    pub fence: Duration,
}

/// An address to set in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// Index of the interface.
    pub link: u32,
    /// The address with its prefix length.
    pub net: IpNet,
    /// Its lifetime unless it is extended.
    pub valid: Duration,
    /// End of its lease. It is noted on the address itself, where there is no macvlan to carry the note.
    pub until: Option<Instant>,
}

/// Result of a [`KernelOp`]; some have none. Errors are texts for users.
#[derive(Debug)]
pub enum KernelDone {
    /// Result of `Observe`.
    Observed(Result<Network, String>),
    /// Result of `Put` for each address.
    Put(Vec<(u32, IpNet, Result<(), String>)>),
    /// Result of `Extend` for each address.
    Extended(Vec<(u32, IpNet, Result<(), String>)>),
    /// Result of `Macvlan`: its index and MAC.
    Macvlan(Uid, Result<(u32, Mac), String>),
    /// Result of `Protect`.
    Protected(Result<(), String>),
    /// Result of `Prepare`: the settings to restore later.
    Prepared(u32, Result<InetConf, String>),
}

/// How to start a DHCPv4 or DHCPv6 client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientStart {
    /// A DHCPv4 client.
    V4(DhcpStart),
    /// A DHCPv6 client.
    V6(Dhcp6Start),
}

/// How to start a DHCPv4 client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DhcpStart {
    /// Number that tells events of this client from those of an earlier client of the same Service.
    pub generation: u64,
    /// Index of the macvlan.
    pub link: u32,
    /// MAC of the macvlan.
    pub mac: Mac,
    /// Host name for option 12 and, as kube-vip does, option 61.
    pub hostname: Option<String>,
    /// Whether to ask the server for broadcast answers.
    pub broadcast: bool,
    /// The address to request.
    pub requested: Option<Ipv4Addr>,
    /// The lease to continue.
    pub lease: Option<LeaseFacts>,
}

/// How to start a DHCPv6 client. It uses the identity of the interface that carries the address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dhcp6Start {
    /// Number that tells events of this client from those of an earlier client of the same Service.
    pub generation: u64,
    /// Index of the interface.
    pub link: u32,
    /// MAC of the interface.
    pub mac: Mac,
    /// Link-local address of the interface.
    pub source: Ipv6Addr,
    /// The address to request.
    pub requested: Option<Ipv6Addr>,
    /// The lease to continue.
    pub lease: Option<LeaseFacts6>,
}

/// A message for the author of a Service, sent as an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceEvent {
    /// Whether the Event is a warning.
    pub warning: bool,
    /// Reason of the Event.
    pub reason: Reason,
    /// Text.
    pub text: String,
}

/// An action that the caller has to perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send a request to the kernel.
    Kernel(KernelOp),
    /// Announce the address: for IPv4 by a gratuitous ARP reply and request, for IPv6 by an unsolicited neighbour
    /// advertisement.
    Announce {
        /// Index of the interface.
        link: u32,
        /// The MAC of the address.
        mac: Mac,
        /// The address.
        address: IpAddr,
    },
    /// Ask whether any host has the address, before it is used.
    Probe {
        /// Index of the interface.
        link: u32,
        /// The sender MAC.
        mac: Mac,
        /// The address.
        address: IpAddr,
    },
    /// Ask one node, or the whole LAN, whether it has an address; the sender is this node itself (`detect`, `claim`).
    Ask {
        /// MAC of our interface.
        mac: Mac,
        /// For IPv6: an own address on that interface, the link-local one if there is one.
        source: Option<Ipv6Addr>,
        /// The question and its recipient.
        ask: Ask,
    },
    /// Try a TCP connection to a kubelet: an acceptance and a refusal are answers.
    AskKubelet {
        /// Name of the node.
        node: String,
        /// Address and port of its kubelet.
        address: SocketAddr,
    },
    /// Replace the targets that are probed as a client would (`prober`).
    ProbeServices(prober::Targets),
    /// Tell a former owner that the address is here (`claim`).
    Claim(Claim),
    /// Receive frames about addresses of these families on these interfaces, and no others.
    Listen(BTreeSet<(u32, Family)>),
    /// Start the DHCP client of a Service.
    StartDhcp(Uid, ClientStart),
    /// Stop the DHCP client of a VIP, and release its lease or keep it for the next owner.
    StopDhcp {
        /// The VIP.
        id: VipId,
        /// Whether to send RELEASE.
        release: bool,
    },
    /// Tell the DHCP client of a VIP that its interface is down or up again.
    DhcpLink {
        /// The VIP.
        id: VipId,
        /// Whether the interface can be used again.
        up: bool,
    },
    /// Tell the DHCP client of a VIP that another host uses the granted address, so that it declines the lease.
    DhcpTaken {
        /// The VIP.
        id: VipId,
        /// The address.
        address: IpAddr,
        /// The MAC of that host, if it is known.
        by: Option<Mac>,
    },
    /// Write a record on a Service.
    Record(ServiceKey, Box<Record>),
    /// `service` mode: take part in the elections for these Leases only; release all others.
    Campaign(BTreeSet<LeaseKey>),
    /// `node` mode: change the owner in the record of this Service, if the record is the expected one.
    Swap(ServiceKey, Swap),
    /// `node` mode: renew our membership Lease with this card.
    Membership(Card),
    /// Write nothing more on this Service.
    Forget(ServiceKey),
    /// Create an Event on a Service.
    Tell(ServiceKey, ServiceEvent),
    /// Release the Lease and go on reporting its new holder.
    ReleaseLease,
    /// Everything that must precede the end is done; the process exits.
    Exit,
}
