//! Validation and mutation of IPPools. Harvester spec 5.4, 5.5

use std::collections::BTreeMap;

use harvester_api::ip_pool::IpPool;
use harvester_api::keys::{harvester, loadbalancer};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::ranges::RangeSet;
use crate::selector::{Matching, Requirement, is_global_scope, tuple_matches};
use crate::version::HostVersion;

/// Rules for a create or update. `others`: all pools with another name.
pub fn validate(version: HostVersion, pool: &IpPool, others: &[IpPool], verb: Verb) -> Result<(), String> {
    if verb == Verb::Update && pool.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    check(version, pool, others, verb).map_err(|problem| {
        let verb = if verb == Verb::Create { "create" } else { "update" };
        format!("can't {verb} IP pool {} because {problem}", pool.name_any())
    })
}

/// What is being done to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Create.
    Create,
    /// Update, including every booking.
    Update,
}

/// Rule for a delete: nothing may be booked.
pub fn validate_delete(pool: &IpPool) -> Result<(), String> {
    if pool.status.as_ref().is_some_and(|status| !status.allocated.is_empty()) {
        return Err(format!(
            "can't delete IP pool {} because can't delete pool before releasing all the allocated IP",
            pool.name_any()
        ));
    }
    Ok(())
}

fn check(version: HostVersion, pool: &IpPool, others: &[IpPool], verb: Verb) -> Result<(), String> {
    let ranges = check_ranges(pool, others)?;
    if verb == Verb::Update {
        check_allocated(pool, &ranges)?;
    }
    check_selector(version, pool, others)
}

fn check_ranges(pool: &IpPool, others: &[IpPool]) -> Result<RangeSet, String> {
    if pool.spec.ranges.is_empty() {
        return Err("range can't be empty".to_owned());
    }
    let ranges = RangeSet::normalise(&pool.spec.ranges).map_err(|error| error.to_string())?;
    if ranges.overlaps_itself() {
        return Err(format!("there are overlaps between range {ranges}"));
    }
    for other in others {
        // One bad pool makes every other write fail, bookings included, as on the real host.
        let theirs =
            RangeSet::normalise(&other.spec.ranges).map_err(|error| format!("pool {}: {error}", other.name_any()))?;
        if ranges.overlaps(&theirs) {
            return Err(format!("range {ranges} overlap with other pools: {}", other.name_any()));
        }
    }
    Ok(ranges)
}

fn check_allocated(pool: &IpPool, ranges: &RangeSet) -> Result<(), String> {
    for ip in pool.status.iter().flat_map(|status| status.allocated.keys()) {
        let address = ip.parse().map_err(|_| format!("invalid ip string {ip}"))?;
        if ranges.find(address).is_none() {
            return Err(format!("allocated IP {ip} is excluded"));
        }
    }
    Ok(())
}

fn check_selector(version: HostVersion, pool: &IpPool, others: &[IpPool]) -> Result<(), String> {
    let selector = &pool.spec.selector;
    if is_global_scope(&selector.scope) {
        let rc = version == HostVersion::V1_9Rc;
        let taken = others
            .iter()
            .find(|other| is_labelled_global(other) && (!rc || other.spec.selector.network == selector.network));
        return match taken {
            Some(other) if rc => {
                Err(format!("there is already a global IP pool: {} for network {}", other.name_any(), selector.network))
            }
            Some(other) => Err(format!("there is already a global IP pool: {}", other.name_any())),
            None => Ok(()),
        };
    }
    let requirements: Vec<_> = selector.scope.iter().map(requirement).collect();
    for (index, requirement) in requirements.iter().enumerate() {
        if selector.scope[index + 1..].iter().any(|later| tuple_matches(later, requirement, Matching::Strict)) {
            return Err(format!("scope overlaps: {requirement}"));
        }
    }
    for other in others.iter().filter(|other| !is_labelled_global(other)) {
        let theirs = &other.spec.selector;
        let same_network = theirs.network == selector.network;
        let compared = version != HostVersion::V1_9Rc || same_network;
        if selector.priority != 0 && theirs.priority == selector.priority && compared {
            return Err(format!("the priority can't be the same as the pool {}", other.name_any()));
        }
        let both_zero = selector.priority == 0 && theirs.priority == 0;
        let meets = |requirement| theirs.scope.iter().any(|tuple| tuple_matches(tuple, requirement, Matching::Strict));
        if both_zero && same_network && requirements.iter().any(meets) {
            return Err(format!(
                "scope selector is same as the pool {} with priority 0, set a priority",
                other.name_any()
            ));
        }
    }
    Ok(())
}

fn requirement(tuple: &harvester_api::ip_pool::ScopeTuple) -> Requirement {
    Requirement {
        network: String::new(),
        project: tuple.project.clone(),
        namespace: tuple.namespace.clone(),
        cluster: tuple.guest_cluster.clone(),
    }
}

fn is_labelled_global(pool: &IpPool) -> bool {
    pool.labels().get(loadbalancer::GLOBAL_IP_POOL).is_some_and(|value| value == "true")
}

/// Facts about a NetworkAttachmentDefinition that carry its VLAN id.
#[derive(Debug, Clone, Default)]
pub struct NetworkFacts {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// `spec.config`, JSON.
    pub config: String,
}

/// Namespace and name of the network whose definition [`mutate`] needs; `None` for a pool without network.
pub fn network_to_look_up(pool: &IpPool) -> Result<Option<(String, String)>, String> {
    let network = &pool.spec.selector.network;
    if network.is_empty() {
        return Ok(None);
    }
    match network.split('/').collect::<Vec<_>>().as_slice() {
        [namespace, name] => Ok(Some(((*namespace).to_owned(), (*name).to_owned()))),
        _ => Err(format!("invalid network {network}")),
    }
}

/// JSON patch that sets the two labels; empty when both are right.
pub fn mutate(pool: &IpPool, network: Option<&NetworkFacts>) -> Result<Vec<Value>, String> {
    let vid = network.map_or_else(|| Ok("0".to_owned()), vlan_id)?;
    let mut labels = pool.labels().clone();
    labels.insert(loadbalancer::GLOBAL_IP_POOL.to_owned(), is_global_scope(&pool.spec.selector.scope).to_string());
    labels.insert(loadbalancer::VID.to_owned(), vid);
    if &labels == pool.labels() {
        return Ok(Vec::new());
    }
    Ok(vec![json!({"op": "add", "path": "/metadata/labels", "value": labels})])
}

fn vlan_id(network: &NetworkFacts) -> Result<String, String> {
    if let Some(vid) = network.labels.get(harvester::VLAN_ID) {
        return vid.parse::<u16>().map(|vid| vid.to_string()).map_err(|_| format!("invalid vlan {vid}"));
    }
    let config: Value =
        serde_json::from_str(&network.config).map_err(|error| format!("parse network config: {error}"))?;
    Ok(config["vlan"].as_u64().unwrap_or_default().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use harvester_api::ip_pool::{IpPoolSpec, IpRange, PoolSelector, ScopeTuple};

    /// Namespace, project, cluster: the order of Harvester spec 7.3.
    fn pool(name: &str, ranges: &[(&str, &str, &str)], priority: u32, scope: &[[&str; 3]]) -> IpPool {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let spec = IpPoolSpec {
            ranges: ranges
                .iter()
                .map(|(subnet, start, end)| IpRange {
                    subnet: (*subnet).to_owned(),
                    range_start: some(start),
                    range_end: some(end),
                    gateway: None,
                })
                .collect(),
            selector: PoolSelector {
                priority,
                network: "default/vlan10".to_owned(),
                scope: scope
                    .iter()
                    .map(|[namespace, project, cluster]| ScopeTuple {
                        namespace: (*namespace).to_owned(),
                        project: (*project).to_owned(),
                        guest_cluster: (*cluster).to_owned(),
                    })
                    .collect(),
            },
            ..IpPoolSpec::default()
        };
        let mut pool = IpPool::new(name, spec);
        let global = is_global_scope(&pool.spec.selector.scope).to_string();
        pool.metadata.labels = Some([(loadbalancer::GLOBAL_IP_POOL.to_owned(), global)].into());
        pool
    }

    const LOW: (&str, &str, &str) = ("192.168.0.0/24", "192.168.0.10", "192.168.0.20");
    const MID: (&str, &str, &str) = ("192.168.0.0/24", "192.168.0.50", "192.168.0.60");
    const FULL: (&str, &str, &str) = ("192.168.0.0/24", "", "");
    const OTHER: (&str, &str, &str) = ("192.168.1.0/24", "", "");

    fn refusal(new: &IpPool, others: &[IpPool]) -> Option<String> {
        validate(HostVersion::V1_9, new, others, Verb::Create).err()
    }

    fn expect(outcome: Option<String>, fragment: Option<&str>) {
        match fragment {
            None => assert_eq!(outcome, None),
            Some(fragment) => {
                let text = outcome.unwrap_or_else(|| panic!("allowed instead of {fragment}"));
                assert!(text.starts_with("can't create IP pool new because") && text.contains(fragment), "{text}");
            }
        }
    }

    /// Harvester spec 7.3, `CheckRange`
    #[test]
    fn ranges_must_not_overlap_within_a_pool_or_between_pools() {
        let star = [["a", "b", "c"]];
        let new = |ranges: &[(&str, &str, &str)]| pool("new", ranges, 0, &star);
        let old = |ranges: &[(&str, &str, &str)]| [pool("old", ranges, 0, &[["x", "y", "z"]])];
        expect(refusal(&new(&[LOW, MID]), &[]), None);
        expect(refusal(&new(&[FULL, LOW]), &[]), Some("there are overlaps between range"));
        expect(refusal(&new(&[LOW, MID]), &old(&[FULL])), Some("overlap with other pools"));
        expect(refusal(&new(&[LOW]), &old(&[MID])), None);
        expect(refusal(&new(&[]), &[]), Some("range can't be empty"));
        expect(refusal(&new(&[("192.168.0.0", "", "")]), &[]), Some("invalid CIDR"));
        expect(refusal(&new(&[LOW]), &old(&[("bad", "", "")])), Some("pool old"));
    }

    /// Harvester spec 7.3, `CheckAllocated`
    #[test]
    fn booked_addresses_must_stay_inside() {
        let with = |ips: &[&str]| {
            let mut pool = pool("new", &[LOW], 0, &[]);
            pool.status = Some(harvester_api::ip_pool::IpPoolStatus {
                allocated: ips.iter().map(|ip| ((*ip).to_owned(), "a/b".to_owned())).collect(),
                ..Default::default()
            });
            validate(HostVersion::V1_9, &pool, &[], Verb::Update)
        };
        assert_eq!(with(&["192.168.0.11", "192.168.0.12"]), Ok(()));
        assert!(with(&["xxxxxxxx"]).unwrap_err().contains("invalid ip string"));
        assert!(with(&["192.168.0.11", "192.168.0.30"]).unwrap_err().contains("allocated IP 192.168.0.30 is excluded"));
        assert!(with(&["10.0.0.1"]).unwrap_err().starts_with("can't update IP pool new because"));
    }

    /// Harvester spec 7.3, `CheckSelector` 1 to 8
    #[test]
    fn scopes_and_priorities_must_tell_pools_apart() {
        let new = |priority, scope: &[[&str; 3]]| pool("new", &[LOW], priority, scope);
        let old = |priority, scope: &[[&str; 3]]| [pool("old", &[OTHER], priority, scope)];
        let global = [["*", "*", "*"]];
        expect(refusal(&new(0, &global), &old(0, &global)), Some("there is already a global IP pool: old"));
        expect(refusal(&new(0, &global), &old(0, &[["ns1", "pj1", "*"]])), None);
        expect(refusal(&new(0, &[["ns1", "pj1", "*"], ["ns2", "pj1", "*"], ["ns1", "pj2", "cluster1"]]), &[]), None);
        expect(refusal(&new(0, &[["ns1", "pj1", "*"], ["*", "pj1", "cluster1"]]), &[]), Some("scope overlaps"));
        let same = [["ns1", "pj1", "cluster1"]];
        expect(refusal(&new(1, &same), &old(2, &same)), None);
        expect(refusal(&new(1, &[]), &old(1, &[])), Some("the priority can't be the same as the pool old"));
        expect(
            refusal(
                &new(0, &[["ns1", "pj1", "cluster2"], ["ns2", "pj1", "cluster1"], ["*", "pj2", "*"]]),
                &old(0, &same),
            ),
            None,
        );
        expect(
            refusal(&new(0, &[["ns1", "pj1", "cluster2"]]), &old(0, &[["*", "pj1", "*"]])),
            Some("scope selector is same as the pool old with priority 0"),
        );
    }

    #[test]
    fn in_the_release_candidates_there_is_one_global_pool_per_network() {
        let global = [["*", "*", "*"]];
        let mut elsewhere = pool("old", &[OTHER], 0, &global);
        let new = pool("new", &[LOW], 0, &global);
        let refusal = validate(HostVersion::V1_9Rc, &new, std::slice::from_ref(&elsewhere), Verb::Create).unwrap_err();
        assert!(refusal.ends_with("there is already a global IP pool: old for network default/vlan10"), "{refusal}");
        elsewhere.spec.selector.network = "default/vlan20".to_owned();
        assert_eq!(validate(HostVersion::V1_9Rc, &new, &[elsewhere], Verb::Create), Ok(()));
    }

    #[test]
    fn a_pool_with_bookings_cannot_be_deleted() {
        let mut pool = pool("new", &[LOW], 0, &[]);
        assert_eq!(validate_delete(&pool), Ok(()));
        pool.status = Some(harvester_api::ip_pool::IpPoolStatus {
            allocated: [("192.168.0.11".to_owned(), "a/b".to_owned())].into(),
            ..Default::default()
        });
        assert!(
            validate_delete(&pool).unwrap_err().contains("can't delete pool before releasing all the allocated IP")
        );
    }

    #[test]
    fn the_labels_tell_global_and_vlan() {
        let vids = [
            (None, Ok("0")),
            (
                Some(NetworkFacts {
                    labels: [(harvester::VLAN_ID.to_owned(), "100".to_owned())].into(),
                    config: String::new(),
                }),
                Ok("100"),
            ),
            (Some(NetworkFacts { config: r#"{"vlan": 7}"#.to_owned(), ..Default::default() }), Ok("7")),
            (Some(NetworkFacts { config: "{}".to_owned(), ..Default::default() }), Ok("0")),
            (Some(NetworkFacts { config: "x".to_owned(), ..Default::default() }), Err("parse network config")),
        ];
        for (network, expected) in vids {
            let mut fresh = pool("new", &[LOW], 0, &[["*", "*", "*"]]);
            fresh.metadata.labels = Some([("keep".to_owned(), "me".to_owned())].into());
            match (mutate(&fresh, network.as_ref()), expected) {
                (Ok(patch), Ok(vid)) => {
                    let expected = json!({"keep": "me", loadbalancer::GLOBAL_IP_POOL: "true", loadbalancer::VID: vid});
                    assert_eq!(patch[0]["value"], expected);
                    fresh.metadata.labels = serde_json::from_value(expected).unwrap();
                    assert_eq!(mutate(&fresh, network.as_ref()), Ok(vec![]));
                }
                (Err(text), Err(fragment)) => assert!(text.contains(fragment), "{text}"),
                (outcome, expected) => panic!("{outcome:?} instead of {expected:?}"),
            }
        }
    }

    #[test]
    fn the_network_must_be_a_namespaced_name() {
        let mut pool = pool("new", &[LOW], 0, &[]);
        assert_eq!(network_to_look_up(&pool), Ok(Some(("default".to_owned(), "vlan10".to_owned()))));
        pool.spec.selector.network = String::new();
        assert_eq!(network_to_look_up(&pool), Ok(None));
        for bad in ["vlan10", "a/b/c"] {
            pool.spec.selector.network = bad.to_owned();
            assert_eq!(network_to_look_up(&pool), Err(format!("invalid network {bad}")));
        }
    }
}
