//! What to type where a Service has a reason. A command that corrects stands before one that only shows more.

use contract::keys;
use harvester_api::keys::cloudprovider;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::{advice, pools};
use crate::snapshot::Snapshot;
use crate::{facts, reasons, sharing};

/// The command for this reason, and the message beside it.
pub fn of(snapshot: &Snapshot, service: &Service, reason: &str, message: &str) -> String {
    let annotate = |key: &str, value: &str| annotate(service, key, value);
    match reason {
        "PoolExhausted" => pools::widen(snapshot, service, message),
        "NoMatchingPool" => pools::select(snapshot),
        "NoSuchPool" => annotate(cloudprovider::IP_POOL, "-"),
        "WrongFamily" => {
            let (pool, note) = pools::of_family(snapshot, service);
            advice::noted(annotate(cloudprovider::IP_POOL, &format!("={pool}")), &[&note])
        }
        "HarvesterSilent" => "kubectl --kubeconfig harvester.yaml -n harvester-system rollout restart \
             deployment/harvester-load-balancer"
            .to_owned(),
        "HarvesterForbidden" => advice::write_credentials(snapshot, &snapshot.namespace, "", ""),
        "RefusedByHarvester" => "kubectl --kubeconfig harvester.yaml -n harvester-system get pods -l \
             app.kubernetes.io/name=harvester-load-balancer     # its webhook; else correct what its words name"
            .to_owned(),
        "AddressTaken" => advice::noted(
            annotate(cloudprovider::IP, "=<a free address>"),
            &[&format!("outside all pools, {} -o yaml shows their ranges", advice::LIST_POOLS)],
        ),
        "NoSuchNetwork" | "NetworkNotKept" => annotate(cloudprovider::NETWORK, "-"),
        "QuotaReached" => {
            let limit = facts::controller_flag(snapshot, "--max-load-balancers");
            let limit = limit.map(|limit| format!(" above {limit}")).unwrap_or_default();
            let change = format!("raise --max-load-balancers{limit} in extraArgs of values.yaml");
            advice::helm_upgrade_with_values(snapshot, &change)
        }
        "UnknownIPAM" => annotate(cloudprovider::IPAM, "=<pool, dhcp or static>"),
        "AddressNotAsAsked" => annotate(cloudprovider::IP, "-"),
        _ => {
            let known = match reason {
                "NoSuchPrimary" | "PrimaryWithoutAddress" | "PortTaken" => unshare(service, message),
                "WrongAnnotation" => correct_value(service, message),
                "IPAMChanged" => set_back(service, message),
                "UnknownAnnotation" => remove_unknown(service, message),
                "SharingNotAgreed" => agree(snapshot, service),
                _ => None,
            };
            known.unwrap_or_else(|| describe(service, reason))
        }
    }
}

/// `kubectl annotate`; `value` begins with `=`, or is `-`.
fn annotate(service: &Service, key: &str, value: &str) -> String {
    annotate_named(&service.namespace().unwrap_or_default(), &service.name_any(), key, value)
}

fn annotate_named(namespace: &str, name: &str, key: &str, value: &str) -> String {
    format!("kubectl -n {namespace} annotate --overwrite service {name} {key}{value}")
}

fn describe(service: &Service, reason: &str) -> String {
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    let what = reasons::find(reason).map_or("docs/reference.md lists all reasons", |known| known.remedy);
    format!("kubectl -n {namespace} describe service {name}     # {reason}: {what}")
}

/// Takes the annotation away by which a Service shares an address. The message names the Service where it is not this
/// one: the owner of the address is told of a port, too.
fn unshare(service: &Service, message: &str) -> Option<String> {
    const OWN: &str = "it gets an address of its own then";
    let said = message.split_once("remove annotation ").and_then(|(_, rest)| {
        let mut words = rest.split([' ', ',', ';']);
        let (key, from, whose) = (words.next()?, words.next()?, words.next()?);
        let plain = |text: &str| text.chars().all(|char| char.is_ascii_alphanumeric() || "-./".contains(char));
        let (namespace, name) =
            whose.split_once('/').filter(|_| from == "from" && keys::is_known(key) && plain(whose))?;
        Some(annotate_named(namespace, name, key, "-"))
    });
    let command = said.or_else(|| Some(annotate(service, sharing::shares_by(service)?, "-")))?;
    Some(advice::noted(command, &[OWN]))
}

/// Corrects the first annotation that the message names, or removes it. Annotations that contradict each other are not
/// corrected by another value.
fn correct_value(service: &Service, message: &str) -> Option<String> {
    let position = |key: &&str| mention(message, key);
    let (at, key) = keys::all().filter_map(|key| Some((position(&key)?, key))).min()?;
    if message.contains("remove one of the two") {
        return Some(advice::noted(annotate(service, key, "-"), &["or the other one that the text names"]));
    }
    // `static` without an address.
    let missing = message.find("has to name the address").is_some_and(|end| end > at);
    let (key, note) = if missing {
        (cloudprovider::IP, "outside all pools".to_owned())
    } else {
        (key, format!("the text says what is accepted; {key}- removes it"))
    };
    Some(advice::noted(annotate(service, key, "=<value>"), &[&note]))
}

/// Where the text names this key, and not a longer one that begins with it.
fn mention(text: &str, key: &str) -> Option<usize> {
    let ends = |at: usize| {
        let rest = &text[at + key.len()..];
        !rest.starts_with(|next: char| next.is_ascii_alphanumeric() || next == '-')
    };
    text.match_indices(key).map(|(at, _)| at).find(|at| ends(*at))
}

/// Sets the mode back to the one that the load balancer was made with.
fn set_back(service: &Service, message: &str) -> Option<String> {
    let (_, rest) = message.split_once("IPAM from ")?;
    let former = rest.split(' ').next().filter(|word| ["pool", "dhcp", "static"].contains(word))?;
    let note = "for another one delete the Service and create it again";
    Some(advice::noted(annotate(service, cloudprovider::IPAM, &format!("={former}")), &[note]))
}

/// Removes the annotation that no program reads.
fn remove_unknown(service: &Service, message: &str) -> Option<String> {
    let unread = |key: &&String| !keys::is_known(key) && mention(message, key).is_some();
    let key = service.annotations().keys().find(unread)?;
    Some(advice::noted(annotate(service, key, "-"), &["then set the one that the text names"]))
}

/// Lets the owner of the address agree.
fn agree(snapshot: &Snapshot, service: &Service) -> Option<String> {
    let named = facts::annotation(&service.metadata, cloudprovider::PRIMARY_SERVICE);
    let owner = snapshot.services.iter().find(|owner| facts::key(&owner.metadata) == named)?;
    let agreed = facts::annotation(&owner.metadata, cloudprovider::SHARE_WITH);
    let ours = service.namespace().unwrap_or_default();
    let all: Vec<&str> = [agreed, &ours].into_iter().filter(|text| !text.is_empty()).collect();
    let command = annotate(owner, cloudprovider::SHARE_WITH, &format!("={}", all.join(",")));
    Some(advice::noted(command, &["if the address of that Service may be shared with this namespace"]))
}

/// Takes their annotation away from Services that keep the load balancer of a deleted one.
pub fn release(keepers: &[&Service]) -> String {
    let of = |service: &&Service| {
        annotate(service, sharing::shares_by(service).unwrap_or(cloudprovider::PRIMARY_SERVICE), "-")
    };
    let commands: Vec<String> = keepers.iter().map(of).collect();
    advice::noted(commands.join(" && "), &["each gets an address of its own then, and the deletion goes on"])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::healthy::{self, read};

    /// The remedy of a Service `default/web` with these annotations below `cloudprovider.harvesterhci.io/`.
    fn remedy(annotations: &[(&str, &str)], reason: &str, message: &str) -> String {
        let mut object = healthy::service("web");
        for (key, value) in annotations {
            object["metadata"]["annotations"][format!("cloudprovider.harvesterhci.io/{key}")] = json!(value);
        }
        let mut snapshot = healthy::snapshot();
        let mut owner = healthy::service("web");
        owner["metadata"]["namespace"] = json!("shop");
        owner["metadata"]["annotations"][cloudprovider::SHARE_WITH] = json!("ci");
        snapshot.services.push(read(owner));
        of(&snapshot, &read(object), reason, message)
    }

    #[test]
    fn the_annotation_that_is_there_is_the_one_to_change() {
        const CLASH: &str = "error: port 80 has been used in service default/g1. Both want TCP/80: use another port in \
             one of them, or remove annotation cloudprovider.harvesterhci.io/share-group from default/g2 for an \
             address of its own";
        let one = |key: &str| format!("annotation cloudprovider.harvesterhci.io/{key}");
        for (annotations, reason, message, expected) in [
            (&[("share-group", "g")][..], "PortTaken", CLASH.to_owned(), "g2 share-group-"),
            (&[("share-group", "g")], "PortTaken", "x".to_owned(), "web share-group-"),
            (&[("primary-service", "a")], "PortTaken", "x".to_owned(), "web primary-service-"),
            // The owner of the address is told of it, too.
            (&[], "PortTaken", CLASH.to_owned(), "g2 share-group-"),
            (&[("primary-service", "nobody")], "NoSuchPrimary", "x".to_owned(), "web primary-service-"),
            (&[("share-group", "g")], "PrimaryWithoutAddress", "x".to_owned(), "web share-group-"),
            (
                &[("ip", "127.0.0.1")],
                "WrongAnnotation",
                format!("{} has the value \"127.0.0.1\", expected one IPv4 or IPv6 address", one("ip")),
                "web ip=<value>",
            ),
            (
                &[("ippool", "A b")],
                "WrongAnnotation",
                format!("{} has the value \"A b\", expected the name of an IPPool", one("ippool")),
                "web ippool=<value>",
            ),
            (
                &[("ipam", "static")],
                "WrongAnnotation",
                format!("{} is static, so {} has to name the address", one("ipam"), one("ip")),
                "web ip=<value>",
            ),
            (
                &[("ipam", "dhcp"), ("ippool", "edge")],
                "WrongAnnotation",
                format!("{} names an IPPool, but {} is dhcp: remove one of the two", one("ippool"), one("ipam")),
                "web ippool-",
            ),
            (
                &[("ipam", "dhcp")],
                "IPAMChanged",
                "can't change the IPAM from pool to dhcp of load balancer guests/x: set it back".to_owned(),
                "web ipam=pool",
            ),
            (
                &[("ippol", "edge")],
                "UnknownAnnotation",
                format!("nobody reads {} (the nearest known one is …): correct it or remove it", one("ippol")),
                "web ippol-",
            ),
        ] {
            let found = remedy(annotations, reason, &message);
            let (service, change) = expected.split_once(' ').unwrap();
            let command = format!(
                "kubectl -n default annotate --overwrite service {service} cloudprovider.harvesterhci.io/{change}"
            );
            let rest = found.strip_prefix(&command);
            assert!(rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("     # ")), "{expected}: {found}");
        }
        let agreed = remedy(&[("primary-service", "shop/web")], "SharingNotAgreed", "x");
        assert!(agreed.starts_with("kubectl -n shop annotate --overwrite service web "), "{agreed}");
        assert!(agreed.contains("/share-with-namespaces=ci,default "), "{agreed}");
    }

    /// What is not known is looked up.
    #[test]
    fn without_a_known_annotation_the_text_is_shown() {
        for (reason, message) in [
            ("PortTaken", "x"),
            ("PortTaken", "remove annotation evil.example/x from default/other for nothing"),
            ("WrongAnnotation", "the whole story"),
            ("IPAMChanged", "IPAM from ; rm -rf to x"),
            ("SharingNotAgreed", "x"),
        ] {
            let found = remedy(&[], reason, message);
            assert!(found.starts_with(&format!("kubectl -n default describe service web     # {reason}: ")), "{found}");
        }
    }
}
