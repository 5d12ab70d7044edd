//! What the announcer needs to know about a Service. It is extracted here; no other code reads the object.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use contract::keys::kubernetes::FINALIZER;
use k8s_openapi::api::core::v1::Service;
use l2_types::Mac;

use crate::annotations::{self as keys, AddressRequest, LeaseFacts, LeaseFacts6, Meanwhile, Problem, RpFilter};
use crate::class::ClassRules;
use crate::network::Family;
use crate::vip_id::VipId;
use contract::{OwnerRecord, Term};

mod grant;
mod read;
mod wish;

pub use grant::Giver;
pub use wish::Wish;

pub use crate::interface_wish::InterfaceWish;
pub use contract::{ServiceKey, Uid};

/// What a Service asks of its macvlan and its DHCP client.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DhcpWishes {
    /// `hwaddr`.
    pub mac: Option<Mac>,
    /// `macvlanName`.
    pub link_name: Option<String>,
    /// `requestedIP`.
    pub requested: Option<Ipv4Addr>,
    /// `loadbalancerHostname`.
    pub hostname: Option<String>,
    /// `dhcp-broadcast`.
    pub broadcast: bool,
    /// `rp_filter`.
    pub rp_filter: RpFilter,
    /// The lease of the last holder, as annotations show it.
    pub lease: Option<LeaseFacts>,
    /// The IPv6 address in `requestedIP`.
    pub requested6: Option<Ipv6Addr>,
    /// The DHCPv6 lease of the last holder, as annotations show it.
    pub lease6: Option<LeaseFacts6>,
}

impl DhcpWishes {
    /// Whether anything is known of a lease of this family.
    fn knows_lease(&self, family: Family) -> bool {
        match family {
            Family::V4 => self.lease.is_some() || self.requested.is_some(),
            Family::V6 => self.lease6.is_some() || self.requested6.is_some(),
        }
    }

    /// Forgets what annotations say of leases that were not asked for. Returns false if nothing is left.
    fn keep_leases(&mut self, wanted: &[AddressRequest]) -> bool {
        if !wanted.contains(&AddressRequest::Dhcp4) {
            (self.lease, self.requested) = (None, None);
        }
        if !wanted.contains(&AddressRequest::Dhcp6) {
            (self.lease6, self.requested6) = (None, None);
        }
        self.knows_lease(Family::V4) || self.knows_lease(Family::V6)
    }
}

/// One port of `status.loadBalancer.ingress[].ports`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// Port number.
    pub port: i32,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
}

/// One entry of `status.loadBalancer.ingress`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ingress {
    /// `ip`, if it is a valid address.
    pub ip: Option<IpAddr>,
    /// `ports`.
    pub ports: Vec<Port>,
}

/// What announcers have written on the Service so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Published {
    /// `vipHost`.
    pub vip_host: Option<String>,
    /// The term beside `vipHost`, in `node` mode.
    pub term: Option<Term>,
    /// `hwaddr` as written.
    pub hwaddr: Option<String>,
    /// `requestedIP` as written.
    pub requested_ip: Option<String>,
    /// The lease facts that announcers wrote.
    pub lease: Option<LeaseFacts>,
    /// The same for DHCPv6.
    pub lease6: Option<LeaseFacts6>,
    /// `status.loadBalancer.ingress`.
    pub ingress: Vec<Ingress>,
    /// The Service's turn among those that joined an address with others on it; zero if it was the first.
    pub turn: u32,
}

impl Published {
    /// The record of the owner; `None` without a term, as kube-vip leaves it.
    pub fn owner_record(&self) -> Option<OwnerRecord> {
        Some(OwnerRecord { host: self.vip_host.clone()?, term: self.term? })
    }

    /// Whether it names `node` as the announcer.
    pub fn names(&self, node: &str) -> bool {
        self.vip_host.as_deref().is_some_and(|host| host.eq_ignore_ascii_case(node))
    }

    /// Whether clients may have been told of `address` already.
    pub fn has(&self, address: IpAddr) -> bool {
        self.ingress.iter().any(|ingress| ingress.ip == Some(address))
    }
}

/// Whether clients know `address` as that of the Service with this UID. A manifest copied with its annotations names
/// the lease of another Service, perhaps of another cluster. So only an address that clients were told is used before
/// the server has answered. Any other address is requested from the server, and probed when it is granted.
pub(crate) fn is_told(services: &BTreeMap<ServiceKey, ServiceView>, uid: &Uid, address: impl Into<IpAddr>) -> bool {
    let address = address.into();
    services.values().any(|view| view.uid == *uid && view.published.has(address))
}

/// Whether a record puts `address` on `node`. The address must be in the status of a Service, which only controllers
/// write. With a term, the record also names the node. Without a term it comes from kube-vip or another mode and names
/// the last announcer only, and a node that crashed before may still have the address.
pub(crate) fn is_on_record(services: &BTreeMap<ServiceKey, ServiceView>, node: &str, address: IpAddr) -> bool {
    services
        .values()
        .any(|view| view.published.has(address) && (view.published.term.is_none() || view.published.names(node)))
}

/// A Service that this announcer may announce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceView {
    /// Namespace and name.
    pub key: ServiceKey,
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.creationTimestamp` in Unix seconds; the older Service is the senior. The UID breaks ties.
    pub created: i64,
    /// The addresses that it asks for, the most important first.
    pub wanted: Vec<AddressRequest>,
    /// How the wish is known.
    pub wish: Wish,
    /// The part of the wish that a cloud controller or an earlier announcer has granted; `None`: all of it.
    pub granted: Option<Vec<AddressRequest>>,
    /// Which program gives it addresses.
    pub giver: Giver,
    /// The interface that it asks for.
    pub interface: InterfaceWish,
    /// The settings for DHCP.
    pub dhcp: DhcpWishes,
    /// Its ports, in the order of the spec.
    pub ports: Vec<Port>,
    /// What announcers have written on it.
    pub published: Published,
    /// Problems that its author should know.
    pub problems: BTreeSet<Problem>,
    /// It wants nothing any more, but still exists: other Services may use the address that it leased, and only this
    /// Service records the MAC.
    pub retired: bool,
    /// A sentence about annotations of kube-vip that have no effect here.
    pub without_effect: Option<String>,
    /// `ignore-service-security`.
    pub unguarded: bool,
    /// `externalTrafficPolicy: Local`: a node without an endpoint of it drops packets of clients.
    pub local_traffic: bool,
    /// `leaseName`, for `service` mode.
    pub lease_name: Option<String>,
    /// Whether other nodes probe it as a client would; `None`: the announcer's setting counts.
    pub probe: Option<bool>,
    /// The Service whose address it shares, as its annotation says.
    pub primary: Option<ServiceKey>,
}

/// What is kept of a Service. For a Service that this announcer does not announce, only what it must leave alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenService {
    /// Its cluster IPs, which no VIP may use.
    pub cluster_ips: Vec<IpAddr>,
    /// The macvlan that a kube-vip may have for it, if it is a load balancer of another class.
    pub macvlan: Option<String>,
    /// Present if this announcer may announce the Service. Boxed, because most Services of a cluster are of another
    /// kind.
    pub view: Option<Box<ServiceView>>,
}

impl SeenService {
    /// `None` where there is nothing to keep.
    pub fn of(service: &Service, rules: &ClassRules) -> Option<Self> {
        let cluster_ips: Vec<IpAddr> = service
            .spec
            .iter()
            .flat_map(|spec| spec.cluster_ips.iter().flatten())
            // A headless Service has the word `None` here.
            .filter_map(|text| text.parse::<IpAddr>().ok())
            .map(|address| address.to_canonical())
            .collect();
        let of_others = service.spec.as_ref().is_some_and(|spec| {
            spec.type_.as_deref() == Some("LoadBalancer") && !rules.accept(spec.load_balancer_class.as_deref())
        });
        let uid = service.metadata.uid.clone().filter(|_| of_others);
        let macvlan = uid.map(|uid| Uid(uid).link_name());
        let view = ServiceView::of(service, rules).map(Box::new);
        let counts = view.is_some() || macvlan.is_some() || !cluster_ips.is_empty();
        counts.then_some(Self { cluster_ips, macvlan, view })
    }
}

impl ServiceView {
    /// The view of `service`, or `None` if it must not be announced (kube-vip spec 3.2): other type or class, annotated
    /// to be ignored, or being deleted. A Service that is being deleted counts as gone at once, because its address
    /// returns to the pool when the finalizer is released and must not be on our interface by then. If its address came
    /// from DHCP, the view is kept without wishes for the Services that share the lease (kube-vip spec 3.9).
    pub fn of(service: &Service, rules: &ClassRules) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let annotation =
            |key: &str| service.metadata.annotations.as_ref().and_then(|all| all.get(key)).map(String::as_str);
        let has_class = spec.load_balancer_class.is_some();
        let other_type = spec.type_.as_deref() != Some("LoadBalancer");
        let cleaning = service.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER);
        let retired = service.metadata.deletion_timestamp.is_some() || (other_type && cleaning);
        // The API server removes the class together with the type.
        let ours = (!other_type || retired)
            && annotation(keys::IGNORE) != Some("true")
            && (other_type || rules.accept(spec.load_balancer_class.as_deref()));
        if !ours {
            return None;
        }
        let published = read::published(service, &annotation);
        let mut problems = BTreeSet::new();
        let (mut wanted, found) =
            read::wanted(annotation(keys::LOADBALANCER_IPS), spec.load_balancer_ip.as_deref(), &published);
        let signs = grant::Signs {
            has_class,
            has_finalizer: cleaning,
            has_output: annotation(keys::LOADBALANCER_IPS).is_some(),
            published: &published,
        };
        let asks = signs.has_output
            || spec.load_balancer_ip.as_deref().is_some_and(|text| text.trim().parse::<IpAddr>().is_ok());
        problems.extend(found);
        let interface = read::interface(&annotation, &mut problems);
        problems.extend(read::misplaced(&annotation, published.term));
        let uid = Uid(service.metadata.uid.clone().unwrap_or_default());
        let mut dhcp = read::dhcp_wishes(&annotation, &uid, &published, &mut problems);
        if annotation(keys::HWADDR).is_some_and(|text| !text.trim().is_empty()) && dhcp.mac.is_none() {
            problems = read::without_mac(problems, &dhcp, &published, &mut wanted);
        }
        if retired {
            if !dhcp.keep_leases(&wanted) {
                return None;
            }
            wanted.clear();
            problems.clear();
        }
        let granted = if retired { None } else { grant::granted(&wanted, signs) };
        let giver = Giver::of(signs, retired);
        let probe = read::probe(&annotation, &mut problems);
        let wish = if problems.iter().any(|problem| problem.meanwhile != Meanwhile::Said) {
            Wish::Unreadable
        } else if asks || retired {
            Wish::Said
        } else {
            Wish::Unsaid
        };
        Some(Self {
            key: ServiceKey::new(
                service.metadata.namespace.clone().unwrap_or_default(),
                service.metadata.name.clone().unwrap_or_default(),
            ),
            uid,
            created: service.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
            wanted,
            wish,
            granted,
            giver,
            interface,
            dhcp,
            ports: read::ports(spec),
            published,
            problems,
            without_effect: keys::without_effect(&annotation).filter(|_| !retired),
            unguarded: annotation(keys::IGNORE_SERVICE_SECURITY) == Some("true"),
            retired,
            local_traffic: spec.external_traffic_policy.as_deref() == Some("Local"),
            lease_name: annotation(keys::LEASE_NAME).map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned),
            probe,
            primary: read::primary(&annotation, service.metadata.namespace.as_deref()),
        })
    }

    /// The static addresses that it asks for, and the addresses of its leases.
    pub fn asked(&self) -> BTreeSet<IpAddr> {
        let given = self.wanted.iter().filter_map(|wanted| match wanted {
            AddressRequest::Static(address) => Some(*address),
            AddressRequest::Dhcp4 | AddressRequest::Dhcp6 => None,
        });
        let leased4 = self.told_leased().map(IpAddr::from);
        given.chain(leased4).chain(self.told_leased6().map(IpAddr::from)).collect()
    }

    /// The port that probes use.
    pub fn first_tcp_port(&self) -> Option<u16> {
        let mut tcp = self.ports.iter().filter(|port| port.protocol == "TCP");
        tcp.find_map(|port| u16::try_from(port.port).ok())
    }

    /// Whether it asks for DHCPv4.
    pub fn wants_dhcp(&self) -> bool {
        self.wanted.contains(&AddressRequest::Dhcp4)
    }

    /// Whether it asks for DHCPv6.
    pub fn wants_dhcp6(&self) -> bool {
        self.wanted.contains(&AddressRequest::Dhcp6)
    }

    /// Whether it asks for a lease of this family, or had one before it began to go.
    pub fn leases(&self, family: Family) -> bool {
        let asks = match family {
            Family::V4 => self.wants_dhcp(),
            Family::V6 => self.wants_dhcp6(),
        };
        asks || (self.retired && self.dhcp.knows_lease(family))
    }

    /// The last known address of its DHCP lease.
    pub fn last_leased(&self) -> Option<Ipv4Addr> {
        self.dhcp
            .lease
            .as_ref()
            .map(|lease| lease.address)
            .or(self.dhcp.requested)
            .filter(|_| self.wants_dhcp() || self.retired)
    }

    /// The address of its DHCP lease, if clients were told of it. An address that only annotations name is not trusted:
    /// any user who may write Services can write it, and it may belong to another Service.
    pub fn told_leased(&self) -> Option<Ipv4Addr> {
        let said = [self.dhcp.lease.as_ref().map(|lease| lease.address), self.dhcp.requested];
        let told = said.into_iter().flatten().find(|address| self.published.has((*address).into()));
        told.filter(|_| self.wants_dhcp() || self.retired)
    }

    /// The same for DHCPv6.
    pub fn told_leased6(&self) -> Option<Ipv6Addr> {
        let said = [self.dhcp.lease6.as_ref().map(|lease| lease.address), self.dhcp.requested6];
        let told = said.into_iter().flatten().find(|address| self.published.has((*address).into()));
        told.filter(|_| self.wants_dhcp6() || self.retired)
    }

    /// The addresses of its leases of which clients were told, and the VIPs that have them.
    pub(crate) fn told_leases(&self) -> impl Iterator<Item = (IpAddr, VipId)> {
        let four = self.told_leased().map(|v4| (IpAddr::V4(v4), VipId::Dhcp(self.uid.clone())));
        four.into_iter().chain(self.told_leased6().map(|v6| (IpAddr::V6(v6), VipId::Dhcp6(self.uid.clone()))))
    }
}

#[cfg(test)]
mod tests;
