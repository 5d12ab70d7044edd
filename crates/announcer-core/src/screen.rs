//! Addresses that no Service gets although it asks for them: those of machines, cluster IPs, and ports of another
//! Service. Pure.
//!
//! The cloud controller refuses them too. But annotations can be written by hand, and a class can exclude that
//! controller. If two controllers give the same address, the Service that had it first must not lose its traffic.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use l2_types::Link;
use l2_types::Mac;

use crate::annotations::AddressRequest;
use crate::interface_wish::InterfaceWish;
use crate::network::mac_of;
use crate::seniority::by_seniority;
use crate::view::{Giver, Port, ServiceKey, ServiceView, Uid};

/// The node that tells the author; exactly one node does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reporter {
    /// The owner of this Service.
    OwnerOf(ServiceKey),
    /// This node.
    Node(String),
}

/// An address that a Service does not get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRefusal {
    /// The address.
    pub address: IpAddr,
    /// Message for its author.
    pub text: String,
    /// The node that sends the message.
    pub reporter: Reporter,
}

/// Message for the author of a Service whose address is on a node, as `net`, without a mark or record of ours. With the
/// prefix of a subnet it is most probably the node's own address.
pub fn somebodys(net: IpNet, interface: &str, node: &str) -> String {
    let address = net.addr();
    if net.prefix_len() < net.max_prefix_len() {
        return format!(
            "address {address} is this node's own address on {interface}: it is not announced. Give this Service \
            another one"
        );
    }
    format!(
        "address {address} is set on interface {interface} of node {node}, but the record of no Service names it: it \
        is the node's own, that of a control plane, or another program's. It is not announced. Give this Service \
        another address; if nobody uses it there any more, remove it on that node: ip address del {net} dev \
        {interface}"
    )
}

/// Why no Service may have an address: it is a machine's, or that of a subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForbiddenAddress {
    /// A description for users.
    pub what: String,
    /// The interface of the reporter that has the address; `None`: it is the machine's own address.
    pub interface: Option<String>,
    /// The node that reports it.
    pub reporter: String,
}

impl ForbiddenAddress {
    fn why(&self, address: IpAddr) -> String {
        match &self.interface {
            Some(interface) => somebodys(IpNet::from(address), interface, &self.reporter),
            None => format!("address {address} is {}: it is not announced. Give this Service another one", self.what),
        }
    }
}

/// Cluster IPs and their Services. As a VIP such an address would draw the traffic of all pods on the node to that
/// Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterIps {
    holders: BTreeMap<IpAddr, ServiceKey>,
    /// The cluster IPs of each Service, to forget them when it is deleted.
    of: BTreeMap<ServiceKey, Vec<IpAddr>>,
}

impl ClusterIps {
    /// Sets the cluster IPs of `key`. Returns the addresses that were added or removed.
    pub fn note(&mut self, key: &ServiceKey, addresses: Vec<IpAddr>) -> Vec<IpAddr> {
        let before = self.of.remove(key).unwrap_or_default();
        if before == addresses {
            if !before.is_empty() {
                self.of.insert(key.clone(), before);
            }
            return Vec::new();
        }
        for address in &before {
            // Another Service may have the address by now, because a list that is read again has no order.
            if self.holders.get(address) == Some(key) {
                self.holders.remove(address);
            }
        }
        self.holders.extend(addresses.iter().map(|address| (*address, key.clone())));
        let changed = before.into_iter().chain(addresses.iter().copied()).collect();
        if !addresses.is_empty() {
            self.of.insert(key.clone(), addresses);
        }
        changed
    }
}

/// The refused addresses of all Services. An address that clients know is normally kept. If a controller gave it to
/// another Service meanwhile, and never to the one that uses it, the other Service gets it.
pub fn refusals(
    services: &BTreeMap<ServiceKey, ServiceView>,
    forbidden: &BTreeMap<IpAddr, ForbiddenAddress>,
    cluster_ips: &ClusterIps,
) -> BTreeMap<ServiceKey, Vec<ServiceRefusal>> {
    let views: Vec<&ServiceView> = by_seniority(services).into_iter().filter(|view| !view.retired).collect();
    let mut holders: BTreeMap<(IpAddr, &Port), &ServiceView> = BTreeMap::new();
    let mut refused: BTreeMap<ServiceKey, Vec<ServiceRefusal>> = BTreeMap::new();
    // Order of claims to an address: first a Service that clients know by it and that may have been given it, then one
    // that a controller has given it to, then one that clients know by it without a grant.
    let turn = |view: &ServiceView, address: IpAddr| match (view.published.has(address), view.giver) {
        (true, Giver::Unknown | Giver::Controller) => 0,
        (false, Giver::Controller) => 1,
        (true, Giver::Withholding) => 2,
        (false, Giver::Unknown | Giver::Withholding) => 3,
    };
    for now in 0..4 {
        for view in &views {
            for address in view.asked().into_iter().filter(|address| turn(view, *address) == now) {
                let (told, squats) = (view.published.has(address), view.giver == Giver::Withholding);
                let taken = || view.ports.iter().find_map(|port| Some((port, *holders.get(&(address, port))?)));
                let refusal = if told
                    && !(squats && taken().is_some_and(|(_, holder)| holder.giver == Giver::Controller))
                {
                    None
                } else if let Some(entry) = forbidden.get(&address) {
                    let text = entry.why(address);
                    Some(ServiceRefusal { address, text, reporter: Reporter::Node(entry.reporter.clone()) })
                } else if let Some(holder) = cluster_ips.holders.get(&address) {
                    let text = format!(
                        "address {address} is that of Service {holder} inside the cluster: it is not announced. Give \
                        this Service another one"
                    );
                    Some(ServiceRefusal { address, text, reporter: Reporter::OwnerOf(view.key.clone()) })
                } else if let Some((port, holder)) = taken() {
                    let text = format!(
                        "port {}/{} of address {address} is in use by Service {}: it is not announced for this \
                        Service. Give it another port or another address",
                        port.protocol, port.port, holder.key
                    );
                    Some(ServiceRefusal { address, text, reporter: Reporter::OwnerOf(holder.key.clone()) })
                } else {
                    None
                };
                match refusal {
                    Some(refusal) => refused.entry(view.key.clone()).or_default().push(refusal),
                    None => {
                        for port in &view.ports {
                            holders.entry((address, port)).or_insert(view);
                        }
                    }
                }
            }
        }
    }
    refused
}

/// The user of a leased address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressUser {
    /// A clause that continues "address X, which".
    pub what: String,
    /// Its MAC, if it is known.
    pub mac: Option<Mac>,
}

/// The user of `address`, which a DHCP server has just leased to the Service `uid`. The probes leave from the Service's
/// macvlan, and the interface beneath it does not receive them, so addresses of this node have to be checked here.
/// `own_link` is the interface that has the address as the node's own. An address that clients know as this Service's
/// own is not refused. Secondaries of the Service, and Services with a lease of this address, are no conflict.
pub fn user_of_leased(
    services: &BTreeMap<ServiceKey, ServiceView>,
    forbidden: &BTreeMap<IpAddr, ForbiddenAddress>,
    own_link: Option<&Link>,
    uid: &Uid,
    address: IpAddr,
) -> Option<AddressUser> {
    let own = services.values().find(|view| view.uid == *uid)?;
    if own.published.has(address) {
        return None;
    }
    let has = |other: &&ServiceView| {
        let follows = other.primary.as_ref() == Some(&own.key);
        other.key != own.key
            && !follows
            && other.wanted.contains(&AddressRequest::Static(address))
            && other.published.has(address)
    };
    let other = services.values().find(has).map(|other| format!("is that of Service {}", other.key));
    let entry = || forbidden.get(&address).map(|entry| format!("is {}", entry.what));
    let unseen = |what| AddressUser { what, mac: None };
    let own_link = own_link
        .map(|link| AddressUser { what: format!("is this node's own address on {}", link.name), mac: link.mac });
    other.map(unseen).or(own_link).or_else(|| entry().map(unseen))
}

/// Services that want a DHCPv4 lease, and that come before one that wants to be the same client to the server.
///
/// The server gives two Services that look like one client the same address, and the second one's refusal takes it from
/// both. This happens with a manifest that was copied from a served Service, or if an author wants the address.
#[derive(Debug)]
pub struct DhcpSeniors<'a>(Vec<&'a ServiceView>);

impl<'a> DhcpSeniors<'a> {
    /// Those that come before `members`. `mac`: the MAC that these want. `goes_on`: they have a lease whose address
    /// clients know. A Service that goes on with a lease comes before each one that does not, also before an older one.
    /// Of two Services exactly one comes before the other.
    pub fn of(
        services: &'a BTreeMap<ServiceKey, ServiceView>,
        members: &[ServiceKey],
        mac: Mac,
        goes_on: bool,
    ) -> Self {
        let is_asking = |view: &ServiceView| members.contains(&view.key);
        let has_lease =
            |view: &ServiceView| view.dhcp.lease.as_ref().is_some_and(|facts| view.published.has(facts.address.into()));
        let mut order = by_seniority(services);
        order.sort_by_key(|view| {
            let goes_on = if is_asking(view) { goes_on } else { has_lease(view) };
            // Authors write MACs into annotations. The MAC that follows from a UID is certainly that of its Service.
            (!goes_on, mac_of(&view.uid) != mac, view.published.ingress.is_empty())
        });
        let leases = |view: &&ServiceView| view.wanted.contains(&AddressRequest::Dhcp4) && !view.retired;
        let before = order.into_iter().take_while(|view| !is_asking(view));
        Self(before.filter(leases).collect())
    }

    /// The one that has this MAC.
    pub fn with_mac(&self, mac: Mac) -> Option<&'a ServiceKey> {
        let has = |view: &&&ServiceView| view.dhcp.mac.unwrap_or_else(|| mac_of(&view.uid)) == mac;
        self.0.iter().find(has).map(|view| &view.key)
    }

    /// The one that has this host name and asks for the same network. The host name is the identifier of a client.
    pub fn with_hostname(&self, hostname: &str, interface: &InterfaceWish) -> Option<&'a ServiceKey> {
        let has = |view: &&&ServiceView| {
            view.dhcp.hostname.as_deref() == Some(hostname) && view.interface == *interface && !hostname.is_empty()
        };
        self.0.iter().find(has).map(|view| &view.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotations::LeaseFacts;
    use crate::view::Ingress;

    fn service(name: &str, created: i64, port: i32, address: &str, told: bool) -> (ServiceKey, ServiceView) {
        let mut view = crate::plan::tests::view(name, &[address]);
        view.created = created;
        view.ports = vec![Port { port, protocol: "TCP".into() }];
        view.published.ingress =
            if told { vec![Ingress { ip: address.parse().ok(), ports: view.ports.clone() }] } else { Vec::new() };
        (view.key.clone(), view)
    }

    fn refused(services: Vec<(ServiceKey, ServiceView)>, forbidden: &[(&str, &str)]) -> Vec<String> {
        let entry = |(address, node): &(&str, &str)| {
            let entry = ForbiddenAddress {
                what: format!("node {node}'s own address"),
                interface: None,
                reporter: (*node).to_owned(),
            };
            (address.parse().unwrap(), entry)
        };
        let forbidden = forbidden.iter().map(entry).collect();
        let mut cluster_ips = ClusterIps::default();
        cluster_ips.note(&ServiceKey::new("default", "dns"), vec!["10.96.0.10".parse().unwrap()]);
        let all = refusals(&services.into_iter().collect(), &forbidden, &cluster_ips);
        all.iter().flat_map(|(key, all)| all.iter().map(move |it| format!("{}: {}", key.name, it.text))).collect()
    }

    #[test]
    fn a_port_stays_with_the_service_that_clients_were_told_of_even_if_it_is_younger() {
        let services = vec![
            service("old", 1, 80, "192.0.2.1", false),
            service("served", 2, 80, "192.0.2.1", true),
            service("other-port", 3, 81, "192.0.2.1", false),
            service("other-address", 4, 80, "192.0.2.2", false),
        ];
        let all = refused(services, &[]);
        assert_eq!(all.len(), 1, "{all:?}");
        assert!(
            all[0].starts_with("old: port TCP/80 of address 192.0.2.1 is in use by Service default/served"),
            "{all:?}"
        );
    }

    #[test]
    fn of_two_that_nobody_was_told_of_the_older_has_it() {
        let services =
            vec![service("younger", 2, 80, "192.0.2.1", false), service("zz-older", 1, 80, "192.0.2.1", false)];
        let all = refused(services, &[]);
        assert!(all.len() == 1 && all[0].starts_with("younger: "), "{all:?}");
    }

    #[test]
    fn who_has_an_address_that_nobody_has_given_it_gives_way_to_whom_it_is_given() {
        let squats = |(key, view): (ServiceKey, ServiceView)| (key, ServiceView { giver: Giver::Withholding, ..view });
        let squatter = || squats(service("squatter", 1, 80, "192.0.2.1", true));
        assert_eq!(refused(vec![squatter()], &[]), Vec::<String>::new(), "clients know it, and nobody else wants it");
        assert_eq!(refused(vec![squatter(), service("b", 2, 81, "192.0.2.1", false)], &[]), Vec::<String>::new());
        let wish = || service("wish", 2, 80, "192.0.2.1", false);
        let (key, view) = service("given", 2, 80, "192.0.2.1", false);
        let given = (key, ServiceView { giver: Giver::Controller, ..view });
        let all = refused(vec![squatter(), given], &[]);
        assert!(all.len() == 1 && all[0].starts_with("squatter: port TCP/80"), "{all:?}");
        let all = refused(vec![squatter(), wish()], &[]);
        assert!(all.len() == 1 && all[0].starts_with("wish: port TCP/80"), "who only wishes takes nothing: {all:?}");
    }

    #[test]
    fn what_two_have_been_told_of_is_taken_from_nobody() {
        let services = vec![service("a", 1, 80, "192.0.2.1", true), service("b", 2, 80, "192.0.2.1", true)];
        assert_eq!(refused(services, &[]), Vec::<String>::new());
    }

    #[test]
    fn no_service_gets_the_address_of_a_machine() {
        let services = vec![service("a", 1, 80, "192.0.2.1", false), service("b", 2, 80, "192.0.2.2", true)];
        let all = refused(services, &[("192.0.2.1", "node-1"), ("192.0.2.2", "node-2")]);
        assert!(all.len() == 1 && all[0].contains("a: address 192.0.2.1 is node node-1's own address"), "{all:?}");
    }

    #[test]
    fn no_service_gets_the_address_that_another_one_has_inside_the_cluster() {
        let all = refused(vec![service("a", 1, 80, "10.96.0.10", false)], &[]);
        assert!(
            all.len() == 1
                && all[0].contains("a: address 10.96.0.10 is that of Service default/dns inside the cluster"),
            "{all:?}"
        );
    }

    #[test]
    fn an_address_inside_the_cluster_is_free_when_its_service_is_gone_and_not_when_a_younger_one_has_it() {
        let (old, new) = (ServiceKey::new("default", "old"), ServiceKey::new("default", "new"));
        let address: IpAddr = "10.96.0.7".parse().unwrap();
        let mut known = ClusterIps::default();
        assert_eq!(known.note(&old, vec![address]), [address]);
        assert!(known.note(&old, vec![address]).is_empty());
        known.note(&new, vec![address]);
        known.note(&old, Vec::new());
        assert_eq!(known.holders.get(&address), Some(&new));
        known.note(&new, Vec::new());
        assert_eq!(known, ClusterIps::default());
    }

    #[test]
    fn a_leased_address_is_taken_if_clients_know_it_as_another_services_given_one_or_it_is_a_machines() {
        let address: IpAddr = "10.0.0.5".parse().unwrap();
        let forbidden: BTreeMap<IpAddr, ForbiddenAddress> = [(
            address,
            ForbiddenAddress {
                what: "the own address of node node-1".into(),
                interface: None,
                reporter: "node-1".into(),
            },
        )]
        .into();
        let none = BTreeMap::new();
        let dhcp = crate::plan::tests::view("dhcp", &["dhcp"]);
        let told = crate::plan::tests::told(dhcp.clone(), "10.0.0.5");
        let follower = |mut web: (ServiceKey, ServiceView)| {
            web.1.primary = Some(dhcp.key.clone());
            web
        };
        let web = |told| service("web", 1, 80, "10.0.0.5", told);
        let eth0 = crate::network::fixtures::link(2, "eth0");
        let user = |what: &str, mac| Some(AddressUser { what: what.into(), mac });
        for (name, own, other, forbidden, link, expected) in [
            ("nobody has it", &dhcp, None, &none, None, None),
            ("served", &dhcp, Some(web(true)), &none, None, user("is that of Service default/web", None)),
            ("only asked for, by one that waits for the lease", &dhcp, Some(web(false)), &none, None, None),
            ("a follower", &dhcp, Some(follower(web(true))), &none, None, None),
            ("shared already", &told, Some(web(true)), &none, None, None),
            ("a machine", &dhcp, None, &forbidden, None, user("is the own address of node node-1", None)),
            ("this node", &dhcp, None, &forbidden, Some(&eth0), user("is this node's own address on eth0", eth0.mac)),
            ("served from here, and this node's own", &told, None, &forbidden, Some(&eth0), None),
        ] {
            let services = other.into_iter().chain([(own.key.clone(), own.clone())]).collect();
            assert_eq!(user_of_leased(&services, forbidden, link, &own.uid, address), expected, "{name}");
        }
    }

    fn leasing(name: &str, created: i64, told: bool, mac: Option<Mac>) -> ServiceView {
        let (_, mut view) = service(name, created, 80, "10.0.0.50", told);
        view.wanted = vec![AddressRequest::Dhcp4];
        view.dhcp.mac = mac;
        view.dhcp.hostname = Some("web".into());
        let (address, server) = ("10.0.0.50".parse().unwrap(), "10.0.0.254".parse().unwrap());
        view.dhcp.lease = told.then_some(LeaseFacts { address, server, expires: None });
        view
    }

    /// `asks` wants the MAC of `has`, or its host name. It may be older, and served by another lease.
    #[test]
    fn nobody_becomes_the_dhcp_client_that_another_service_is() {
        let mac = Mac::new([0, 0, 0x6c, 1, 2, 3]);
        let own = mac_of(&leasing("has", 2, true, None).uid);
        for (name, has, asks, goes_on, refused) in [
            ("served, older", leasing("has", 2, true, Some(mac)), leasing("asks", 1, true, Some(mac)), false, true),
            ("the MAC of a UID", leasing("has", 2, true, None), leasing("asks", 1, true, Some(own)), false, true),
            ("the same, with a lease", leasing("has", 2, true, None), leasing("asks", 1, true, Some(own)), true, true),
            ("both served", leasing("has", 2, true, Some(mac)), leasing("asks", 1, true, Some(mac)), true, false),
            ("both new", leasing("has", 1, false, Some(mac)), leasing("asks", 2, false, Some(mac)), false, true),
            (
                "nobody was told",
                leasing("has", 2, false, Some(mac)),
                leasing("asks", 1, false, Some(mac)),
                false,
                false,
            ),
            ("another MAC", leasing("has", 2, true, Some(mac)), leasing("asks", 1, true, Some(own)), false, false),
        ] {
            let asked = asks.dhcp.mac.unwrap();
            let services: BTreeMap<_, _> = [has, asks].map(|view| (view.key.clone(), view)).into();
            let (asking, own) = (ServiceKey::new("default", "asks"), ServiceKey::new("default", "has"));
            let seniors = DhcpSeniors::of(&services, std::slice::from_ref(&asking), asked, goes_on);
            assert_eq!(seniors.with_mac(asked), refused.then_some(&own), "{name}");
            let (wish, other) = (InterfaceWish::Default, InterfaceWish::Named("eth1".into()));
            let comes_before = refused || name == "another MAC";
            assert_eq!(seniors.with_hostname("web", &wish), comes_before.then_some(&own), "{name}");
            assert_eq!(seniors.with_hostname("web", &other), None, "{name}: on another network");
            assert_eq!(seniors.with_hostname("mail", &wish), None, "{name}");
        }
    }

    /// After a migration from kube-vip, which writes no lease down, or after leases were lost.
    #[test]
    fn of_two_services_that_clients_know_and_that_have_no_lease_one_is_refused() {
        let mac = Mac::new([0, 0, 0x6c, 1, 2, 3]);
        let told = |name: &str, created| {
            let mut view = leasing(name, created, true, Some(mac));
            view.dhcp.lease = None;
            (view.key.clone(), view)
        };
        let services: BTreeMap<_, _> = [told("old", 1), told("young", 2)].into();
        let before = |name: &str| {
            let key = ServiceKey::new("default", name);
            DhcpSeniors::of(&services, &[key], mac, false).with_mac(mac).map(|key| key.name.clone())
        };
        assert_eq!((before("old"), before("young")), (None, Some("old".into())));
    }

    #[test]
    fn a_service_that_leases_no_ipv4_address_holds_no_mac() {
        let mac = Mac::new([0, 0, 0x6c, 1, 2, 3]);
        let six = ServiceView { wanted: vec![AddressRequest::Dhcp6], ..leasing("six", 1, true, Some(mac)) };
        let services: BTreeMap<_, _> = [(six.key.clone(), six)].into();
        let asking = ServiceKey::new("default", "asks");
        assert_eq!(DhcpSeniors::of(&services, &[asking], mac, false).with_mac(mac), None);
    }
}
