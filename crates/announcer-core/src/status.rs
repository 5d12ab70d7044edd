//! `announcer status`: who owns which VIP, from what stands in the API, so the same on every node and from outside.

mod served;
pub mod table;

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use serde::Serialize;

use crate::annotations::{Wanted, printable};
use crate::config::{Config, ElectionMode};
use crate::ownership::node::{CARD, Card, LEASE_PREFIX};
use crate::ownership::service::LeaseKey;
use crate::view::ServiceView;
pub use served::Probes;
use table::{age, table};

const VIP_COLUMNS: [&str; 7] = ["SERVICE", "ADDRESS", "OWNER", "TERM", "STATE", "PROBED", "DHCP"];
const LEASE_COLUMNS: [&str; 4] = ["LEASE", "HOLDER", "RENEWED", "STATE"];
/// Whoever lives renews far more often.
const STALLED_SECONDS: i64 = 60;

/// How a VIP stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It has an owner, and clients have been told of it.
    Announced,
    /// Clients have not been told of an address yet.
    Pending,
    /// Nobody announces it.
    Unowned,
    /// The Lease of its owner has run out. If the owner's kernel still answers, nothing is lost.
    OwnerSilent,
    /// Its DHCP lease has run out.
    LeaseExpired,
}

impl State {
    /// For people.
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

/// A DHCP lease as the owner has written it down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DhcpRow {
    /// What was given.
    pub address: IpAddr,
    /// Who gave it: an address, for DHCPv6 a DUID in hexadecimal digits.
    pub server: String,
    /// When it ends unless renewed; absent: never.
    pub expires: Option<Timestamp>,
    /// Until then; negative: it is over.
    pub remaining_seconds: Option<i64>,
}

/// One Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VipRow {
    /// `namespace/name`.
    pub service: String,
    /// What clients have been told, else what it asks for; empty while DHCP has not given any.
    pub addresses: Vec<IpAddr>,
    /// The node that announces it.
    pub owner: Option<String>,
    /// In `node` mode: how often its owner has changed.
    pub term: Option<u64>,
    /// How it stands.
    pub state: State,
    /// One for each family that DHCP was asked for and has answered; IPv4 first.
    pub dhcp: Vec<DhcpRow>,
    /// How it answers the nodes that ask it as a client would; absent: none does.
    pub probes: Option<Probes>,
}

/// One Lease that decides about owners.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseRow {
    /// Its name: a node's membership Lease, the one for all Services, or one Service's.
    pub lease: String,
    /// Who holds it.
    pub holder: Option<String>,
    /// Seconds since it was renewed, by this machine's clock.
    pub renewed_seconds_ago: Option<i64>,
    /// It has run out, by this machine's clock.
    pub expired: bool,
    /// Seconds until it will have, unless it is renewed; negative: since it has.
    pub valid_seconds: Option<i64>,
    /// Of a member: kube-proxy is well there.
    pub serving: Option<bool>,
    /// Of a member: it is about to end.
    pub leaving: Option<bool>,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What keeps all of them from being announced: each owner that is silent is only a consequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// By name.
    pub vips: Vec<VipRow>,
    /// By name.
    pub leases: Vec<LeaseRow>,
}

/// What the API says.
#[derive(Debug, Clone, Copy)]
pub struct Listed<'a> {
    /// All Services that the announcer watches.
    pub services: &'a [Service],
    /// All Leases of `namespace`.
    pub leases: &'a [Lease],
    /// Where the Leases of the announcers are.
    pub namespace: &'a str,
}

/// The report on these objects.
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
    // In `service` mode Leases stand beside their Services, and most are not read here.
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
    let member = owner.as_ref().map(|owner| format!("{LEASE_PREFIX}{owner}"));
    // Without a term it is not the membership Lease that decides.
    let silent = term.is_some() && leases.iter().any(|lease| lease.expired && Some(&lease.lease) == member.as_ref());
    let state = match () {
        () if published.is_empty() => State::Pending,
        () if owner.is_none() => State::Unowned,
        () if over => State::LeaseExpired,
        () if silent => State::OwnerSilent,
        () => State::Announced,
    };
    let asked = view.wanted.iter().filter_map(|wanted| match wanted {
        Wanted::Static(address) => Some(*address),
        Wanted::Dhcp4 | Wanted::Dhcp6 => None,
    });
    let addresses = if published.is_empty() { asked.collect() } else { published };
    VipRow { service: view.key.to_string(), addresses, owner, term, state, dhcp, probes: None }
}

fn lease_row(config: &Config, lease: &Lease, now: Timestamp) -> Option<LeaseRow> {
    let name = lease.metadata.name.as_deref()?;
    let member = name.starts_with(LEASE_PREFIX);
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

impl LeaseRow {
    /// Of a Lease that counts by its duration alone: for how long. Whoever waits for it waits for that.
    fn stalled_for(&self) -> Option<String> {
        let (ago, left) = (self.renewed_seconds_ago?, self.valid_seconds?);
        (!self.expired && self.holder.is_some() && ago >= STALLED_SECONDS)
            .then(|| format!("not renewed, counts for another {}: delete it if its holder is gone", age(left)))
    }
}

impl Report {
    /// Whether each VIP is announced, and none fails those that ask it.
    pub fn is_well(&self) -> bool {
        let fails = |vip: &VipRow| vip.probes.as_ref().is_some_and(Probes::has_failed);
        self.vips.iter().all(|vip| vip.state == State::Announced && !fails(vip))
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain fields are always valid JSON")
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let none = || "-".to_owned();
        let trouble = self.trouble.as_ref().map_or_else(String::new, |trouble| format!("{trouble}\n\n"));
        let vips = self.vips.iter().map(|vip| {
            let addresses: Vec<String> = vip.addresses.iter().map(ToString::to_string).collect();
            let dhcp = vip.dhcp.iter().map(|dhcp| match dhcp.remaining_seconds {
                None => format!("from {} for ever", dhcp.server),
                Some(left) if left < 0 => format!("from {}, ended {} ago", dhcp.server, age(-left)),
                Some(left) => format!("from {}, {} left", dhcp.server, age(left)),
            });
            let dhcp: Vec<String> = dhcp.collect();
            vec![
                vip.service.clone(),
                if addresses.is_empty() { none() } else { addresses.join(",") },
                vip.owner.clone().unwrap_or_else(none),
                vip.term.map_or_else(none, |term| term.to_string()),
                vip.state.text().to_owned(),
                vip.probes.as_ref().map_or_else(none, Probes::text),
                if dhcp.is_empty() { none() } else { dhcp.join("; ") },
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
                lease.holder.clone().unwrap_or_else(none),
                lease.renewed_seconds_ago.map_or_else(none, |ago| format!("{} ago", age(ago))),
                state.join(", "),
            ]
        });
        let vips = table(&VIP_COLUMNS, &vips.collect::<Vec<_>>());
        format!("{trouble}{vips}\n{}", table(&LEASE_COLUMNS, &leases.collect::<Vec<_>>()))
    }
}

#[cfg(test)]
mod tests;
