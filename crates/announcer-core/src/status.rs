//! `announcer status`: the owners of all VIPs, from the objects in the API. So the report is the same on every node and
//! outside the cluster.

mod served;
pub mod table;

use std::net::IpAddr;

use contract::keys::cloudprovider::CARD;
use contract::leases::MEMBER_PREFIX;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use serde::Serialize;

use crate::annotations::{AddressRequest, printable};
use crate::config::{Config, ElectionMode};
use crate::ownership::node::Card;
use crate::ownership::service::LeaseKey;
use crate::view::ServiceView;
pub use served::Probes;
use table::{age, table};

const VIP_COLUMNS: [&str; 7] = ["SERVICE", "ADDRESS", "OWNER", "TERM", "STATE", "PROBED", "DHCP"];
const LEASE_COLUMNS: [&str; 4] = ["LEASE", "HOLDER", "RENEWED", "STATE"];
/// Whoever lives renews far more often.
const STALLED_SECONDS: i64 = 60;

/// State of a VIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It has an owner, and clients know its address.
    Announced,
    /// Clients do not know an address of it yet.
    Pending,
    /// No node announces it.
    Unowned,
    /// The Lease of its owner has expired. If the owner's kernel still answers, clients notice nothing.
    OwnerSilent,
    /// Its DHCP lease has ended.
    LeaseExpired,
}

impl State {
    /// The text for users.
    pub fn text(self) -> &'static str {
        match self {
            Self::Announced => "announced",
            Self::Pending => "pending",
            Self::Unowned => "unowned",
            Self::OwnerSilent => "owner silent",
            Self::LeaseExpired => "DHCP lease expired",
        }
    }
}

/// A DHCP lease as its owner has recorded it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DhcpRow {
    /// The leased address.
    pub address: IpAddr,
    /// The server: an address, for DHCPv6 a DUID in hexadecimal digits.
    pub server: String,
    /// End of the lease unless it is renewed; `None`: it does not end.
    pub expires: Option<Timestamp>,
    /// Seconds until the end; negative: it has ended.
    pub remaining_seconds: Option<i64>,
}

/// The row of one Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VipRow {
    /// `namespace/name`.
    pub service: String,
    /// The addresses that clients know, otherwise those that it asks for; empty while DHCP has given none.
    pub addresses: Vec<IpAddr>,
    /// The node that announces it.
    pub owner: Option<String>,
    /// In `node` mode: the term of its record, which grows with each change of owner.
    pub term: Option<u64>,
    /// Its state.
    pub state: State,
    /// One row for each family with a DHCP lease; IPv4 first.
    pub dhcp: Vec<DhcpRow>,
    /// Results of the nodes that probe it; `None`: no node does.
    pub probes: Option<Probes>,
}

/// The row of one Lease that decides about owners.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseRow {
    /// Name of the Lease: a node's membership Lease, the one for all Services, or that of one Service.
    pub lease: String,
    /// Its holder.
    pub holder: Option<String>,
    /// Seconds since its last renewal, by the clock of this machine.
    pub renewed_seconds_ago: Option<i64>,
    /// Whether it has expired, by the clock of this machine.
    pub expired: bool,
    /// Seconds until it expires if it is not renewed; negative: since it expired.
    pub valid_seconds: Option<i64>,
    /// Membership Lease: whether kube-proxy is healthy on the node.
    pub serving: Option<bool>,
    /// Membership Lease: whether the announcer is about to end.
    pub leaving: Option<bool>,
}

/// The whole report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The cause that keeps all VIPs from being announced; the silent owners are then only a consequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// The Services, by name.
    pub vips: Vec<VipRow>,
    /// The Leases, by name.
    pub leases: Vec<LeaseRow>,
}

/// The objects from the API.
#[derive(Debug, Clone, Copy)]
pub struct Listed<'a> {
    /// All Services that the announcer watches.
    pub services: &'a [Service],
    /// All Leases of `namespace`.
    pub leases: &'a [Lease],
    /// Namespace of the announcers' Leases.
    pub namespace: &'a str,
}

/// Makes the report from these objects.
pub fn report(config: &Config, listed: Listed<'_>, now: Timestamp) -> Report {
    let Listed { services, leases, namespace } = listed;
    let cards = served::fresh_cards(leases, now);
    let mut leases: Vec<LeaseRow> = leases.iter().filter_map(|lease| lease_row(config, lease, now)).collect();
    leases.sort_by(|a, b| a.lease.cmp(&b.lease));
    let mut views: Vec<ServiceView> =
        services.iter().filter_map(|service| ServiceView::of(service, &config.class)).collect();
    views.retain(|view| !view.wanted.is_empty());
    views.sort_by(|a, b| a.key.cmp(&b.key));
    let row = |view: &ServiceView| {
        let row = vip_row(view, &leases, now);
        VipRow { probes: served::probes(view, &row.addresses, &cards), ..row }
    };
    let vips: Vec<VipRow> = views.iter().map(row).collect();
    Report { trouble: trouble(config, namespace, &vips, &leases), vips, leases }
}

fn trouble(config: &Config, namespace: &str, vips: &[VipRow], leases: &[LeaseRow]) -> Option<String> {
    let alive = leases.iter().any(|lease| !lease.expired && lease.holder.is_some());
    // In `service` mode the Leases are in the namespaces of their Services, and most are not read here.
    let told = !alive && !vips.is_empty() && config.election_mode != ElectionMode::Service;
    told.then(|| {
        format!("no announcer runs, or none reaches this API server: no Lease of one in namespace {namespace} is fresh")
    })
}

fn vip_row(view: &ServiceView, leases: &[LeaseRow], now: Timestamp) -> VipRow {
    let published: Vec<IpAddr> = view.published.ingress.iter().filter_map(|entry| entry.ip).collect();
    let row = |address: IpAddr, server: String, expires: Option<Timestamp>| DhcpRow {
        address,
        server,
        expires,
        remaining_seconds: expires.map(|expires| expires.as_second() - now.as_second()),
    };
    let four = view.published.lease.as_ref().filter(|_| view.wants_dhcp());
    let six = view.published.lease6.as_ref().filter(|_| view.wants_dhcp6());
    let four = four.map(|lease| row(lease.address.into(), lease.server.to_string(), lease.expires));
    let six = six.map(|lease| row(lease.address.into(), lease.server.clone(), lease.expires));
    let dhcp: Vec<DhcpRow> = four.into_iter().chain(six).collect();
    let over = dhcp.iter().any(|row| row.remaining_seconds.is_some_and(|left| left < 0));
    let owner = view.published.vip_host.as_deref().map(printable).filter(|owner| !owner.is_empty());
    let term = view.published.term.map(|term| term.0);
    let member = owner.as_ref().map(|owner| format!("{MEMBER_PREFIX}{owner}"));
    // Without a term the membership Lease does not decide.
    let silent = term.is_some() && leases.iter().any(|lease| lease.expired && Some(&lease.lease) == member.as_ref());
    let state = if published.is_empty() {
        State::Pending
    } else if owner.is_none() {
        State::Unowned
    } else if over {
        State::LeaseExpired
    } else if silent {
        State::OwnerSilent
    } else {
        State::Announced
    };
    let asked = view.wanted.iter().filter_map(|wanted| match wanted {
        AddressRequest::Static(address) => Some(*address),
        AddressRequest::Dhcp4 | AddressRequest::Dhcp6 => None,
    });
    let addresses = if published.is_empty() { asked.collect() } else { published };
    VipRow { service: view.key.to_string(), addresses, owner, term, state, dhcp, probes: None }
}

fn lease_row(config: &Config, lease: &Lease, now: Timestamp) -> Option<LeaseRow> {
    let name = lease.metadata.name.as_deref()?;
    let member = name.starts_with(MEMBER_PREFIX);
    if !member && name != config.lease.name && LeaseKey::service_of(name).is_none() {
        return None;
    }
    let spec = lease.spec.as_ref();
    let card = lease.metadata.annotations.as_ref().and_then(|all| all.get(CARD)).filter(|_| member);
    let card = card.map(|text| Card::parse(text));
    let ago = spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| now.as_second() - time.0.as_second());
    let duration = i64::from(spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or_default());
    Some(LeaseRow {
        lease: printable(name),
        holder: spec
            .and_then(|spec| spec.holder_identity.as_deref())
            .filter(|holder| !holder.is_empty())
            .map(printable),
        renewed_seconds_ago: ago,
        expired: ago.is_none_or(|ago| ago > duration),
        valid_seconds: ago.map(|ago| duration - ago),
        serving: card.as_ref().map(|card| card.serving),
        leaving: card.as_ref().map(|card| card.leaving),
    })
}

impl DhcpRow {
    /// Its server and how long it lasts, as text.
    pub fn text(&self) -> String {
        match self.remaining_seconds {
            None => format!("from {} for ever", self.server),
            Some(left) if left < 0 => format!("from {}, ended {} ago", self.server, age(-left)),
            Some(left) => format!("from {}, {} left", self.server, age(left)),
        }
    }
}

impl LeaseRow {
    /// How long a Lease that is not renewed stays valid, as text. Other candidates wait that long for it.
    fn stalled_for(&self) -> Option<String> {
        let (ago, left) = (self.renewed_seconds_ago?, self.valid_seconds?);
        (!self.expired && self.holder.is_some() && ago >= STALLED_SECONDS)
            .then(|| format!("not renewed, counts for another {}: delete it if its holder is gone", age(left)))
    }
}

impl Report {
    /// Whether each VIP is announced and no probe fails.
    pub fn is_well(&self) -> bool {
        let fails = |vip: &VipRow| vip.probes.as_ref().is_some_and(Probes::has_failed);
        self.vips.iter().all(|vip| vip.state == State::Announced && !fails(vip))
    }

    /// The report as text, for users.
    pub fn to_text(&self) -> String {
        let trouble = self.trouble.as_ref().map_or_else(String::new, |trouble| format!("{trouble}\n\n"));
        let vips = self.vips.iter().map(|vip| {
            let addresses: Vec<String> = vip.addresses.iter().map(ToString::to_string).collect();
            let dhcp: Vec<String> = vip.dhcp.iter().map(DhcpRow::text).collect();
            vec![
                vip.service.clone(),
                addresses.join(","),
                vip.owner.clone().unwrap_or_default(),
                vip.term.map(|term| term.to_string()).unwrap_or_default(),
                vip.state.text().to_owned(),
                vip.probes.as_ref().map(Probes::text).unwrap_or_default(),
                dhcp.join("; "),
            ]
        });
        let leases = self.leases.iter().map(|lease| {
            let mut state = vec![if lease.expired { "expired" } else { "fresh" }];
            let stalled = lease.stalled_for();
            state.extend(stalled.as_deref());
            state.extend((lease.serving == Some(false)).then_some("kube-proxy not ready"));
            state.extend((lease.leaving == Some(true)).then_some("leaving"));
            vec![
                lease.lease.clone(),
                lease.holder.clone().unwrap_or_default(),
                lease.renewed_seconds_ago.map(|ago| format!("{} ago", age(ago))).unwrap_or_default(),
                state.join(", "),
            ]
        });
        let vips = table(&VIP_COLUMNS, &vips.collect::<Vec<_>>());
        format!("{trouble}{vips}\n{}", table(&LEASE_COLUMNS, &leases.collect::<Vec<_>>()))
    }
}

#[cfg(test)]
mod tests;
