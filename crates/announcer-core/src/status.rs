//! `announcer status`: who owns which VIP, from what stands in the API, so the same on every node and from outside.

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
    let mut leases: Vec<LeaseRow> = leases.iter().filter_map(|lease| lease_row(config, lease, now)).collect();
    leases.sort_by(|a, b| a.lease.cmp(&b.lease));
    let mut views: Vec<ServiceView> =
        services.iter().filter_map(|service| ServiceView::of(service, &config.class)).collect();
    views.retain(|view| !view.wanted.is_empty());
    views.sort_by(|a, b| a.key.cmp(&b.key));
    let vips: Vec<VipRow> = views.iter().map(|view| vip_row(view, &leases, now)).collect();
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
    VipRow { service: view.key.to_string(), addresses, owner, term, state, dhcp }
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
            .then(|| format!("not renewed, counts for another {}: delete it if its holder is gone", span(left)))
    }
}

impl Report {
    /// Whether each VIP is announced.
    pub fn is_well(&self) -> bool {
        self.vips.iter().all(|vip| vip.state == State::Announced)
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain fields are always valid JSON")
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let none = || "-".to_owned();
        let trouble = self.trouble.as_ref().map_or_else(String::new, |trouble| format!("{trouble}\n\n"));
        let mut vips = vec![["SERVICE", "ADDRESS", "OWNER", "TERM", "STATE", "DHCP"].map(str::to_owned).to_vec()];
        vips.extend(self.vips.iter().map(|vip| {
            let addresses: Vec<String> = vip.addresses.iter().map(ToString::to_string).collect();
            let dhcp = vip.dhcp.iter().map(|dhcp| match dhcp.remaining_seconds {
                None => format!("from {} for ever", dhcp.server),
                Some(left) if left < 0 => format!("from {}, ended {} ago", dhcp.server, span(-left)),
                Some(left) => format!("from {}, {} left", dhcp.server, span(left)),
            });
            let dhcp: Vec<String> = dhcp.collect();
            vec![
                vip.service.clone(),
                if addresses.is_empty() { none() } else { addresses.join(",") },
                vip.owner.clone().unwrap_or_else(none),
                vip.term.map_or_else(none, |term| term.to_string()),
                vip.state.text().to_owned(),
                if dhcp.is_empty() { none() } else { dhcp.join("; ") },
            ]
        }));
        let mut leases = vec![["LEASE", "HOLDER", "RENEWED", "STATE"].map(str::to_owned).to_vec()];
        leases.extend(self.leases.iter().map(|lease| {
            let mut state = vec![if lease.expired { "expired" } else { "fresh" }];
            let stalled = lease.stalled_for();
            state.extend(stalled.as_deref());
            state.extend((lease.serving == Some(false)).then_some("kube-proxy not ready"));
            state.extend((lease.leaving == Some(true)).then_some("leaving"));
            vec![
                lease.lease.clone(),
                lease.holder.clone().unwrap_or_else(none),
                lease.renewed_seconds_ago.map_or_else(none, |ago| format!("{} ago", span(ago.max(0)))),
                state.join(", "),
            ]
        }));
        format!("{trouble}{}\n{}", table(&vips), table(&leases))
    }
}

/// Two units at most: what people compare at a glance.
fn span(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        ..=119 => format!("{seconds}s"),
        120..=3599 => format!("{minutes}m{}s", seconds % 60),
        3600..=172_799 => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> =
        (0..columns).map(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", cells.join("   ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::network::fixtures::config;

    fn report(config: &Config, services: &[Service], leases: &[Lease]) -> Report {
        super::report(config, Listed { services, leases, namespace: "kube-system" }, now())
    }

    fn now() -> Timestamp {
        "2026-01-01T12:00:00Z".parse().unwrap()
    }

    fn service(name: &str, annotations: &serde_json::Value, ingress: &[&str]) -> Service {
        let ingress: Vec<_> = ingress.iter().map(|ip| json!({"ip": ip})).collect();
        serde_json::from_value(json!({
            "metadata": {"namespace": "default", "name": name, "uid": format!("uid-{name}"), "annotations": annotations},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
            "status": {"loadBalancer": {"ingress": ingress}},
        }))
        .unwrap()
    }

    fn member(node: &str, renewed: &str, card: &str) -> Lease {
        serde_json::from_value(json!({
            "metadata": {"name": format!("harvester-announcer-{node}"), "annotations": {CARD: card}},
            "spec": {"holderIdentity": node, "leaseDurationSeconds": 15, "renewTime": renewed},
        }))
        .unwrap()
    }

    const TERM: &str = crate::annotations::TERM;
    const LEASE: &str = crate::annotations::DHCP_LEASE;
    const LEASE6: &str = crate::annotations::DHCP6_LEASE;

    fn world() -> (Vec<Service>, Vec<Lease>) {
        let fixed = |address: &str, owner: &str, term: &str| json!({"kube-vip.io/loadbalancerIPs": address, "kube-vip.io/vipHost": owner, TERM: term});
        let four =
            |expires: &str| json!({"address": "10.0.0.77", "server": "10.0.0.2", "expires": expires}).to_string();
        let six = |expires: &str| json!({"address": "fd00::77", "server": "00010203", "expires": expires}).to_string();
        let (later, before) = ("2026-01-01T13:30:00Z", "2026-01-01T11:59:00Z");
        let dhcp = |asked: &str, leases: &[(&str, String)]| {
            let mut all = json!({"kube-vip.io/loadbalancerIPs": asked, "kube-vip.io/vipHost": "node-1", TERM: "1"});
            for (key, lease) in leases {
                all[*key] = json!(lease);
            }
            all
        };
        let services = vec![
            service("web", &fixed("10.0.0.50", "node-1", "3"), &["10.0.0.50"]),
            service("stale", &fixed("10.0.0.51", "node-2", "8"), &["10.0.0.51"]),
            service("new", &json!({"kube-vip.io/loadbalancerIPs": "10.0.0.52,fd00::52"}), &[]),
            service("lost", &json!({"kube-vip.io/loadbalancerIPs": "10.0.0.53"}), &["10.0.0.53"]),
            service("leased", &dhcp("0.0.0.0", &[(LEASE, four(later))]), &["10.0.0.77"]),
            service("over", &dhcp("0.0.0.0", &[(LEASE, four(before))]), &["10.0.0.77"]),
            service("six", &dhcp("::", &[(LEASE6, six(later))]), &["fd00::77"]),
            service("six-over", &dhcp("::", &[(LEASE6, six(before))]), &["fd00::77"]),
            service(
                "both",
                &dhcp("0.0.0.0,::", &[(LEASE, four(later)), (LEASE6, six(before))]),
                &["10.0.0.77", "fd00::77"],
            ),
            // What is left of an earlier wish counts for nothing.
            service("was-six", &dhcp("0.0.0.0", &[(LEASE, four(later)), (LEASE6, six(before))]), &["10.0.0.77"]),
            service("not-ours", &json!({"kube-vip.io/ignore": "true"}), &["10.0.0.54"]),
        ];
        let leases = vec![
            member("node-1", "2026-01-01T11:59:57.000000Z", r#"{"serving":true}"#),
            member("node-2", "2026-01-01T11:50:00.000000Z", r#"{"serving":false,"leaving":true}"#),
            serde_json::from_value(json!({"metadata": {"name": "somebody-elses"}})).unwrap(),
        ];
        (services, leases)
    }

    #[test]
    fn each_vip_has_its_line_and_its_state() {
        let (services, leases) = world();
        let report = report(&config(&[]), &services, &leases);
        assert!(!report.is_well());
        assert_eq!(
            report.to_text(),
            "\
SERVICE            ADDRESS              OWNER    TERM   STATE                DHCP
default/both       10.0.0.77,fd00::77   node-1   1      DHCP lease expired   from 10.0.0.2, 1h30m left; from 00010203, ended 60s ago
default/leased     10.0.0.77            node-1   1      announced            from 10.0.0.2, 1h30m left
default/lost       10.0.0.53            -        -      unowned              -
default/new        10.0.0.52,fd00::52   -        -      pending              -
default/over       10.0.0.77            node-1   1      DHCP lease expired   from 10.0.0.2, ended 60s ago
default/six        fd00::77             node-1   1      announced            from 00010203, 1h30m left
default/six-over   fd00::77             node-1   1      DHCP lease expired   from 00010203, ended 60s ago
default/stale      10.0.0.51            node-2   8      owner silent         -
default/was-six    10.0.0.77            node-1   1      announced            from 10.0.0.2, 1h30m left
default/web        10.0.0.50            node-1   3      announced            -

LEASE                        HOLDER   RENEWED     STATE
harvester-announcer-node-1   node-1   3s ago      fresh
harvester-announcer-node-2   node-2   10m0s ago   expired, kube-proxy not ready, leaving
"
        );
    }

    #[test]
    fn where_no_announcer_lives_that_is_said_first() {
        let (services, mut leases) = world();
        assert_eq!(report(&config(&[]), &services, &leases).trouble, None);
        leases.remove(0);
        let text = report(&config(&[]), &services, &leases).to_text();
        let expected =
            "no announcer runs, or none reaches this API server: no Lease of one in namespace kube-system is fresh\n\n";
        assert!(text.starts_with(expected), "{text}");
        assert_eq!(report(&config(&[]), &[], &leases).trouble, None, "nothing is to be announced");
        let service = config(&[("election_mode", "service")]);
        assert_eq!(report(&service, &services, &leases).trouble, None, "its Leases are elsewhere");
    }

    #[test]
    fn all_is_well_only_if_each_vip_is_announced() {
        let (mut services, leases) = world();
        services.truncate(1);
        let well = report(&config(&[]), &services, &leases);
        assert!(well.is_well());
        assert!(report(&config(&[]), &[], &[]).is_well(), "nothing to announce");
    }

    #[test]
    fn programs_read_the_same() {
        let (services, leases) = world();
        let report = report(&config(&[]), &services, &leases);
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["vips"][0]["service"], "default/both");
        assert_eq!(json["vips"][0]["dhcp"][0]["remainingSeconds"], 5400);
        assert_eq!(json["vips"][0]["dhcp"][1]["address"], "fd00::77");
        assert_eq!(json["vips"][7]["state"], "owner-silent");
        assert_eq!(json["leases"][1]["renewedSecondsAgo"], 600);
    }

    #[test]
    fn a_lease_that_nobody_renews_and_that_counts_for_years_says_so() {
        let lock = |holder: &str| -> Lease {
            serde_json::from_value(json!({"metadata": {"name": "plndr-svcs-lock"}, "spec": {"holderIdentity": holder,
                "leaseDurationSeconds": i32::MAX, "renewTime": "2026-01-01T11:50:00.000000Z"}}))
            .unwrap()
        };
        let held = report(&config(&[]), &[], &[lock("gone")]).to_text();
        let expected =
            "gone     10m0s ago   fresh, not renewed, counts for another 24855d3h: delete it if its holder is gone";
        assert!(held.contains(expected), "{held}");
        let free = report(&config(&[]), &[], &[lock("")]).to_text();
        assert!(!free.contains("delete"), "{free}");
    }

    #[test]
    fn what_others_wrote_does_not_reach_the_terminal_raw() {
        let owner = json!({"kube-vip.io/loadbalancerIPs": "10.0.0.5", "kube-vip.io/vipHost": "\u{1b}[2Jnode"});
        let text = report(&config(&[]), &[service("web", &owner, &["10.0.0.5"])], &[]).to_text();
        assert!(!text.contains('\u{1b}') && text.contains("node"), "{text}");
    }
}
