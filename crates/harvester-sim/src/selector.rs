//! Which pool serves a load balancer. Harvester spec 3.2 to 3.4

use std::fmt;

use harvester_api::ip_pool::{IpPool, ScopeTuple};
use harvester_api::keys::loadbalancer::GLOBAL_IP_POOL;

use crate::version::HostVersion;

/// What a load balancer's annotations ask of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requirement {
    /// `namespace/name`, or empty.
    pub network: String,
    /// Rancher project, or empty.
    pub project: String,
    /// Namespace of the load balancer.
    pub namespace: String,
    /// Guest cluster name, or empty.
    pub cluster: String,
}

/// As it appears in the condition message.
impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { network, project, namespace, cluster } = self;
        write!(f, "&{{Network:{network} Project:{project} Namespace:{namespace} Cluster:{cluster}}}")
    }
}

/// How an empty member of a pool's scope counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matching {
    /// Equals only an empty requirement.
    Strict,
    /// An empty project or guest cluster in the pool matches anything.
    Loose,
}

/// Strict pass over all pools, then, for cluster load balancers, the loose one.
pub fn select<'a>(
    version: HostVersion,
    pools: &[&'a IpPool],
    wanted: &Requirement,
    is_cluster: bool,
) -> Option<&'a IpPool> {
    let wanted = if version == HostVersion::V1_9Rc && !is_cluster { wildcards(wanted) } else { wanted.clone() };
    pass(version, pools, &wanted, Matching::Strict)
        .or_else(|| is_cluster.then(|| pass(version, pools, &wanted, Matching::Loose)).flatten())
}

/// One pass: best priority among the matching pools, else the global pool. A global pool therefore hides the loose
/// pass.
fn pass<'a>(
    version: HostVersion,
    pools: &[&'a IpPool],
    wanted: &Requirement,
    matching: Matching,
) -> Option<&'a IpPool> {
    let mut best: Option<&IpPool> = None;
    let mut best_priority = 0;
    let mut global: Option<&IpPool> = None;
    for pool in pools {
        if is_fallback(version, pool) {
            let serves = version != HostVersion::V1_9Rc || pool.spec.selector.network == wanted.network;
            // Release candidates kept the first one, all other versions the last.
            if serves && (global.is_none() || version != HostVersion::V1_9Rc) {
                global = Some(pool);
            }
        } else if pool_matches(version, pool, wanted, matching) && pool.spec.selector.priority >= best_priority {
            best_priority = pool.spec.selector.priority;
            best = Some(pool);
        }
    }
    best.or(global)
}

/// Whether the pool is a global one: by its label, in the release candidates by its scope.
fn is_fallback(version: HostVersion, pool: &IpPool) -> bool {
    if version == HostVersion::V1_9Rc {
        return is_global_scope(&pool.spec.selector.scope);
    }
    pool.metadata.labels.as_ref().and_then(|labels| labels.get(GLOBAL_IP_POOL)).is_some_and(|value| value == "true")
}

/// Exactly one tuple, all three members `*`.
pub fn is_global_scope(scope: &[ScopeTuple]) -> bool {
    matches!(scope, [tuple] if tuple.project == "*" && tuple.namespace == "*" && tuple.guest_cluster == "*")
}

/// Whether a pool that is not global serves the requirement. An empty scope never matches.
fn pool_matches(version: HostVersion, pool: &IpPool, wanted: &Requirement, matching: Matching) -> bool {
    let any_network = version == HostVersion::V1_9Rc && wanted.network == "*";
    (any_network || pool.spec.selector.network == wanted.network)
        && pool.spec.selector.scope.iter().any(|tuple| tuple_matches(tuple, wanted, matching))
}

/// Project, namespace and cluster of one tuple.
pub fn tuple_matches(tuple: &ScopeTuple, wanted: &Requirement, matching: Matching) -> bool {
    let strict = |pool: &str, wanted: &str| pool == "*" || wanted == "*" || pool == wanted;
    let lenient = |pool: &str, wanted: &str| strict(pool, wanted) || (matching == Matching::Loose && pool.is_empty());
    lenient(&tuple.project, &wanted.project)
        && strict(&tuple.namespace, &wanted.namespace)
        && lenient(&tuple.guest_cluster, &wanted.cluster)
}

/// The release candidates let VM load balancers with empty requirements match anything.
fn wildcards(wanted: &Requirement) -> Requirement {
    let or_star = |text: &str| if text.is_empty() { "*".to_owned() } else { text.to_owned() };
    Requirement {
        network: or_star(&wanted.network),
        project: or_star(&wanted.project),
        namespace: wanted.namespace.clone(),
        cluster: or_star(&wanted.cluster),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use harvester_api::ip_pool::{IpPoolSpec, PoolSelector};

    fn pool(name: &str, network: &str, priority: u32, scope: &[[&str; 3]]) -> IpPool {
        let scope: Vec<_> = scope
            .iter()
            .map(|[project, namespace, cluster]| ScopeTuple {
                project: (*project).to_owned(),
                namespace: (*namespace).to_owned(),
                guest_cluster: (*cluster).to_owned(),
            })
            .collect();
        let global = is_global_scope(&scope).to_string();
        let mut pool = IpPool::new(
            name,
            IpPoolSpec {
                selector: PoolSelector { priority, network: network.to_owned(), scope },
                ..IpPoolSpec::default()
            },
        );
        pool.metadata.labels = Some([(GLOBAL_IP_POOL.to_owned(), global)].into());
        pool
    }

    fn wants(network: &str, project: &str, namespace: &str, cluster: &str) -> Requirement {
        let own = |text: &str| text.to_owned();
        Requirement { network: own(network), project: own(project), namespace: own(namespace), cluster: own(cluster) }
    }

    fn fixtures() -> [IpPool; 5] {
        [
            pool("default", "vlan10", 0, &[["*", "default", "*"]]),
            pool("priority", "vlan10", 100, &[["*", "default", "*"]]),
            pool("global", "", 0, &[["*", "*", "*"]]),
            pool("no-scope", "vlan10", 0, &[["", "default", ""]]),
            pool("with-scope", "vlan10", 0, &[["project1", "default", "cluster1"]]),
        ]
    }

    fn chosen(version: HostVersion, names: &[&str], wanted: &Requirement, is_cluster: bool) -> Option<String> {
        let all = fixtures();
        let pools: Vec<_> =
            names.iter().map(|name| all.iter().find(|p| p.metadata.name.as_deref() == Some(*name)).unwrap()).collect();
        select(version, &pools, wanted, is_cluster).map(|pool| pool.metadata.name.clone().unwrap())
    }

    /// Harvester spec 7.2
    #[test]
    fn the_hosts_own_cases_choose_the_same_pool() {
        let here = wants("vlan10", "", "default", "");
        let elsewhere = wants("vlan10", "", "other", "");
        let table: [(&[&str], Requirement, bool, Option<&str>); 9] = [
            (&["default", "global"], here.clone(), false, Some("default")),
            (&["default", "global"], elsewhere.clone(), false, Some("global")),
            (&["default", "global"], wants("x", "unknown", "other", "cluster1"), false, Some("global")),
            (&["default"], here.clone(), false, Some("default")),
            (&["default"], elsewhere, false, None),
            (&["default"], wants("a", "b", "c", "d"), false, None),
            (&["default", "priority"], here, false, Some("priority")),
            (&["with-scope", "no-scope"], wants("vlan10", "project1", "default", "cluster1"), true, Some("with-scope")),
            (&["with-scope", "no-scope"], wants("vlan10", "unknown", "default", "cluster1"), true, Some("no-scope")),
        ];
        for (pools, wanted, is_cluster, expected) in table {
            assert_eq!(
                chosen(HostVersion::V1_9, pools, &wanted, is_cluster).as_deref(),
                expected,
                "{pools:?} {wanted}"
            );
        }
        let empty = wants("vlan10", "", "default", "");
        assert_eq!(chosen(HostVersion::V1_9, &["no-scope"], &empty, true).as_deref(), Some("no-scope"));
    }

    #[test]
    fn a_global_pool_hides_loose_matching_and_ignores_the_network() {
        let wanted = wants("vlan10", "p", "default", "c");
        for version in [HostVersion::V1_8, HostVersion::V1_9] {
            assert_eq!(chosen(version, &["no-scope", "global"], &wanted, true).as_deref(), Some("global"));
            assert_eq!(chosen(version, &["no-scope"], &wanted, true).as_deref(), Some("no-scope"));
        }
    }

    #[test]
    fn in_the_release_candidates_the_global_pool_must_have_the_network() {
        assert_eq!(chosen(HostVersion::V1_9Rc, &["global"], &wants("vlan10", "", "a", ""), true), None);
        assert_eq!(chosen(HostVersion::V1_9Rc, &["global"], &wants("", "", "a", ""), true).as_deref(), Some("global"));
        let vm = wants("", "", "default", "");
        assert_eq!(chosen(HostVersion::V1_9Rc, &["with-scope"], &vm, false).as_deref(), Some("with-scope"));
        assert_eq!(chosen(HostVersion::V1_9, &["with-scope"], &vm, false), None);
    }

    #[test]
    fn a_pool_without_scope_is_reachable_only_by_name() {
        let bare = pool("bare", "", 0, &[]);
        assert_eq!(select(HostVersion::V1_9, &[&bare], &wants("", "", "a", ""), true), None);
    }

    #[test]
    fn a_requirement_of_star_matches_any_scope() {
        assert_eq!(
            chosen(HostVersion::V1_9, &["with-scope"], &wants("vlan10", "project1", "default", "*"), true).as_deref(),
            Some("with-scope")
        );
    }

    #[test]
    fn the_requirement_prints_as_in_the_condition() {
        assert_eq!(
            wants("guests/mgmt", "local/p-1", "guests", "demo").to_string(),
            "&{Network:guests/mgmt Project:local/p-1 Namespace:guests Cluster:demo}"
        );
    }
}
