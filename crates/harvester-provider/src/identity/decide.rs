//! Decides which name this cluster has (decision 11). Pure.

use std::collections::BTreeMap;

use harvester_api::names::ClusterName;

/// All sources of the cluster's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clues {
    /// From the record in the guest cluster.
    pub remembered: Option<ClusterName>,
    /// From each LoadBalancer object that is proven to belong to this cluster.
    pub adopted: Vec<ClusterName>,
    /// From the command line.
    pub flag: Option<ClusterName>,
    /// From the label of each virtual machine of the namespace; `None`: a machine without the label.
    pub machines: Vec<Option<ClusterName>>,
}

/// Where the name comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The record.
    Remembered,
    /// LoadBalancer objects of this cluster.
    Adopted,
    /// The command line.
    Flag,
    /// The virtual machines' label.
    Machines,
    /// No source has a name.
    Default,
}

impl Source {
    /// All of them, first to last.
    pub const ALL: [Self; 5] = [Self::Remembered, Self::Adopted, Self::Flag, Self::Machines, Self::Default];

    /// For programs; stays the same between versions.
    pub fn word(self) -> &'static str {
        match self {
            Self::Remembered => "record",
            Self::Adopted => "loadBalancers",
            Self::Flag => "flag",
            Self::Machines => "machines",
            Self::Default => "default",
        }
    }

    /// For users.
    pub fn words(self) -> &'static str {
        match self {
            Self::Remembered => "remembered in ConfigMap kube-system/harvester-cloud-provider",
            Self::Adopted => "as its load balancers on Harvester are labelled",
            Self::Flag => "from --cluster-name",
            Self::Machines => "as its virtual machines are labelled",
            Self::Default => "the default, because no name is given",
        }
    }
}

/// The decided name and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameDecision {
    /// The name in use from now on.
    pub name: ClusterName,
    /// Where the name comes from.
    pub source: Source,
}

impl NameDecision {
    /// Whether the name should be written to the record. The default name identifies no cluster; if it were recorded,
    /// the first real name would count as a change. A name that no object can have is a mistake to correct, not to
    /// record.
    pub fn is_to_be_remembered(&self) -> bool {
        self.source != Source::Remembered && !self.name.is_default() && self.name.can_name_objects()
    }

    /// Whether the flag contradicts the decided name. Nothing changes then, and the operator should confirm the new
    /// name or correct the flag.
    pub fn differs_from(&self, flag: &ClusterName) -> bool {
        self.name != *flag && matches!(self.source, Source::Remembered | Source::Adopted)
    }
}

/// Decides the name. The sources, first to last: the record, the label of this cluster's objects, the flag, the label
/// that all machines agree on, the default.
pub fn decide(clues: &Clues) -> NameDecision {
    if let Some(name) = clues.remembered.clone().filter(|name| !name.is_default()) {
        return NameDecision { name, source: Source::Remembered };
    }
    if let Some(name) = most_frequent(&clues.adopted, clues.flag.as_ref()) {
        return NameDecision { name, source: Source::Adopted };
    }
    let flag = clues.flag.clone().unwrap_or_else(|| ClusterName::from_record("kubernetes"));
    if !flag.is_default() {
        return NameDecision { name: flag, source: Source::Flag };
    }
    match agreed(&clues.machines) {
        Some(name) => NameDecision { name, source: Source::Machines },
        None => NameDecision { name: flag, source: Source::Default },
    }
}

/// The name that most objects carry, so that most keep their label. The flag decides a tie.
fn most_frequent(names: &[ClusterName], flag: Option<&ClusterName>) -> Option<ClusterName> {
    let mut counts: BTreeMap<&ClusterName, usize> = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    let best = counts.into_iter().max_by_key(|(name, count)| (*count, Some(*name) == flag, std::cmp::Reverse(*name)));
    best.map(|(name, _)| name.clone())
}

fn agreed(machines: &[Option<ClusterName>]) -> Option<ClusterName> {
    let first = machines.first()?.as_ref()?;
    let all = machines.iter().all(|name| name.as_ref() == Some(first));
    (all && !first.is_default()).then(|| first.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ClusterName {
        ClusterName::from_record(text)
    }

    fn names(texts: &[&str]) -> Vec<ClusterName> {
        texts.iter().copied().map(name).collect()
    }

    /// Decision 11.
    #[test]
    fn the_name_is_the_remembered_one_else_that_of_our_objects_else_the_flag_else_that_of_the_machines() {
        use Source::{Adopted, Default, Flag, Machines, Remembered};
        let machines = |texts: &[&str]| -> Vec<Option<ClusterName>> {
            texts.iter().map(|text| (!text.is_empty()).then(|| name(text))).collect()
        };
        for (sentence, remembered, adopted, flag, vms, expected, source) in [
            ("a fresh cluster takes its flag", None, &[][..], "prod", &["vm", "vm"][..], "prod", Flag),
            ("a changed flag changes nothing", Some("prod"), &["prod"], "prod2", &[], "prod", Remembered),
            ("nor does a lost one", Some("prod"), &[], "kubernetes", &["vm"], "prod", Remembered),
            ("without a record our objects know", None, &["prod"], "kubernetes", &[], "prod", Adopted),
            ("also against the flag", None, &["prod"], "prod2", &[], "prod", Adopted),
            ("of several names the most frequent", None, &["a", "b", "b"], "a", &[], "b", Adopted),
            ("a draw goes to the flag", None, &["a", "b"], "b", &[], "b", Adopted),
            (
                "a cluster that the Go provider ran without a name",
                None,
                &["kubernetes"],
                "kubernetes",
                &["vm"],
                "kubernetes",
                Adopted,
            ),
            ("no flag, and machines that agree", None, &[], "kubernetes", &["vm", "vm"], "vm", Machines),
            ("no flag, and machines of two clusters", None, &[], "kubernetes", &["vm", "other"], "kubernetes", Default),
            ("no flag, and a machine without a label", None, &[], "", &["vm", ""], "", Default),
            ("a default name is no memory", Some("kubernetes"), &[], "prod", &[], "prod", Flag),
        ] {
            let clues = Clues {
                remembered: remembered.map(name),
                adopted: names(adopted),
                flag: Some(name(flag)),
                machines: machines(vms),
            };
            assert_eq!(decide(&clues), NameDecision { name: name(expected), source }, "{sentence}");
        }
    }

    #[test]
    fn a_name_is_remembered_once_and_a_default_one_never() {
        let decision = |text, source| NameDecision { name: name(text), source };
        assert!(decision("prod", Source::Flag).is_to_be_remembered());
        assert!(decision("prod", Source::Adopted).is_to_be_remembered());
        assert!(!decision("prod", Source::Remembered).is_to_be_remembered());
        assert!(!decision("kubernetes", Source::Adopted).is_to_be_remembered());
        assert!(!decision("My Cluster", Source::Flag).is_to_be_remembered());
    }

    /// Scripts compare them.
    #[test]
    fn programs_get_one_word_for_each_source() {
        let words = ["record", "loadBalancers", "flag", "machines", "default"];
        assert_eq!(Source::ALL.map(Source::word), words);
    }

    #[test]
    fn only_a_flag_that_is_not_followed_is_talked_about() {
        let decision = |source| NameDecision { name: name("prod"), source };
        assert!(decision(Source::Remembered).differs_from(&name("kubernetes")));
        assert!(decision(Source::Adopted).differs_from(&name("prod2")));
        assert!(!decision(Source::Remembered).differs_from(&name("prod")));
        assert!(!decision(Source::Machines).differs_from(&name("kubernetes")), "it stands in for a flag");
    }
}
