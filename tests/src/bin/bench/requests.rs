//! Who of the product asked for what, from the audit logs of both API servers. The counting is pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use e2e::product::{ANNOUNCER_ACCOUNT, CCM_ACCOUNT};
use e2e::{CLUSTER, VM_NAMESPACE};
use serde::Serialize;
use testbed::{Request, service_account_user};

/// Requests of one process to one API server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Gets, lists, beginnings of watches, and reviews, which are created but change nothing. Without Leases.
    pub reads: usize,
    /// Whatever changes an object, or tries to. Without Leases and Events.
    pub writes: usize,
    /// Events.
    pub events: usize,
    /// Reads and writes of Leases.
    pub leases: usize,
    /// Of all these, answered with an error.
    pub refused: usize,
    /// Writes by verb and resource.
    pub writes_by_kind: BTreeMap<String, usize>,
    /// Reads by verb and resource.
    pub reads_by_kind: BTreeMap<String, usize>,
}

impl Counts {
    /// All of them.
    pub fn total(&self) -> usize {
        self.reads + self.writes + self.events + self.leases
    }

    fn add(&mut self, request: &Request) {
        self.refused += usize::from(request.code >= 400);
        let kind = || format!("{} {}", request.verb, request.resource);
        if request.resource == "leases" {
            self.leases += 1;
        } else if !request.is_write() {
            self.reads += 1;
            *self.reads_by_kind.entry(kind()).or_default() += 1;
        } else if request.resource == "events" {
            self.events += 1;
        } else {
            self.writes += 1;
            *self.writes_by_kind.entry(kind()).or_default() += 1;
        }
    }

    fn join(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.events += other.events;
        self.leases += other.leases;
        self.refused += other.refused;
        for (mine, theirs) in
            [(&mut self.writes_by_kind, &other.writes_by_kind), (&mut self.reads_by_kind, &other.reads_by_kind)]
        {
            for (kind, count) in theirs {
                *mine.entry(kind.clone()).or_default() += count;
            }
        }
    }
}

/// Part of the product, with the API server that it asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// The cloud controller manager, guest API.
    CcmGuest,
    /// The cloud controller manager, Harvester API.
    CcmHarvester,
    /// The announcers, guest API.
    Announcer,
}

impl Side {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::CcmGuest, Self::CcmHarvester, Self::Announcer];

    /// As tables say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::CcmGuest => "CCM, guest API",
            Self::CcmHarvester => "CCM, Harvester API",
            Self::Announcer => "announcers",
        }
    }
}

/// What the product asked for: by part, and by the address of the process within it.
#[derive(Debug, Clone, Default)]
pub struct Tally(BTreeMap<(Side, Option<IpAddr>), Counts>);

impl Tally {
    /// Counts the requests of the product among those of everybody.
    pub fn of(guest: &[Request], harvester: &[Request]) -> Self {
        let in_cluster = |account: &str| service_account_user("kube-system", account);
        let (ccm, announcer) = (in_cluster(CCM_ACCOUNT), in_cluster(ANNOUNCER_ACCOUNT));
        let ccm_there = service_account_user(VM_NAMESPACE, CLUSTER);
        let mut tally = Self::default();
        for request in guest {
            if request.user == ccm {
                tally.entry(Side::CcmGuest, request);
            } else if request.user == announcer {
                tally.entry(Side::Announcer, request);
            }
        }
        harvester
            .iter()
            .filter(|request| request.user == ccm_there)
            .for_each(|request| tally.entry(Side::CcmHarvester, request));
        tally
    }

    fn entry(&mut self, side: Side, request: &Request) {
        self.0.entry((side, request.source)).or_default().add(request);
    }

    /// All requests of one part.
    pub fn side(&self, side: Side) -> Counts {
        self.collect(|&(found, _)| found == side)
    }

    /// Requests of a process that the API servers know by `source`, of these parts.
    pub fn process(&self, sides: &[Side], source: IpAddr) -> Counts {
        self.collect(|(side, from)| sides.contains(side) && *from == Some(source))
    }

    /// Everything but Leases.
    pub fn work(&self) -> usize {
        self.0.values().map(|counts| counts.reads + counts.writes + counts.events).sum()
    }

    /// Everything but Leases and Events.
    pub fn work_without_events(&self) -> usize {
        self.0.values().map(|counts| counts.reads + counts.writes).sum()
    }

    fn collect(&self, wanted: impl Fn(&(Side, Option<IpAddr>)) -> bool) -> Counts {
        let mut sum = Counts::default();
        self.0.iter().filter(|(key, _)| wanted(key)).for_each(|(_, counts)| sum.join(counts));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(user: &str, verb: &str, resource: &str, source: [u8; 4]) -> Request {
        Request {
            user: format!("system:serviceaccount:{user}"),
            user_agent: String::new(),
            source: Some(source.into()),
            verb: verb.into(),
            resource: resource.into(),
            namespace: None,
            name: None,
            code: 200,
            uri: String::new(),
            at: None,
        }
    }

    #[test]
    fn replicas_of_one_account_are_told_apart_by_their_address() {
        let (leader, standby) = ([10, 99, 1, 2], [10, 99, 1, 1]);
        let ccm = "kube-system:harvester-cloud-provider";
        let guest = [
            request(ccm, "patch", "services", leader),
            request(ccm, "create", "events", leader),
            request(ccm, "update", "leases", leader),
            request(ccm, "create", "tokenreviews", leader),
            request(ccm, "get", "leases", standby),
            request("kube-system:kube-vip", "update", "services/status", standby),
            request("kube-system:somebody", "update", "services/status", standby),
        ];
        let harvester = [request("guests:demo", "create", "loadbalancers", leader)];
        let tally = Tally::of(&guest, &harvester);
        let ours = tally.side(Side::CcmGuest);
        assert_eq!((ours.reads, ours.writes, ours.events, ours.leases), (1, 1, 1, 2));
        let ccm = [Side::CcmGuest, Side::CcmHarvester];
        assert_eq!(tally.process(&ccm, leader.into()).writes, 2);
        assert_eq!(tally.process(&ccm, standby.into()).total(), 1);
        assert_eq!(tally.side(Side::Announcer).writes_by_kind["update services/status"], 1);
        assert_eq!(tally.work(), 5);
    }
}
