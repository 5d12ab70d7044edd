//! Flags of the Go provider that are accepted without effect, so that existing manifests keep working.

/// Kind of a flag that is accepted without effect.
#[derive(Clone, Copy)]
pub enum Kind {
    Bool,
    Value,
}

/// Flags of the Go binary without effect here, each with the reason.
pub const WITHOUT_EFFECT: &[(&str, Kind, &str)] = &[
    ("allow-untagged-cloud", Kind::Bool, "clusters on Harvester have no tags"),
    ("configure-cloud-routes", Kind::Bool, "Harvester has no routes"),
    ("route-reconciliation-period", Kind::Value, "Harvester has no routes"),
    ("allocate-node-cidrs", Kind::Bool, "Harvester has no routes"),
    ("cluster-cidr", Kind::Value, "Harvester has no routes"),
    ("cidr-allocator-type", Kind::Value, "Harvester has no routes"),
    ("external-cloud-volume-plugin", Kind::Value, "volumes are the CSI driver's"),
    ("node-sync-period", Kind::Value, "had no effect in the Go provider either"),
    ("use-service-account-credentials", Kind::Bool, "one identity serves all controllers"),
    ("concurrent-node-status-updates", Kind::Value, "addresses are written when they change"),
    ("controller-start-interval", Kind::Value, "controllers start together"),
    ("min-resync-period", Kind::Value, "watches need no resync"),
    ("kube-api-content-type", Kind::Value, "requests are JSON"),
    ("enable-leader-migration", Kind::Bool, "there is nothing to migrate from"),
    ("leader-migration-config", Kind::Value, "there is nothing to migrate from"),
    ("cert-dir", Kind::Value, "the serving certificate is made in memory"),
    ("tls-sni-cert-key", Kind::Value, "one certificate is served"),
    ("http2-max-streams-per-connection", Kind::Value, "HTTP/1.1 is served, HTTP/2 is not"),
    ("disable-http2-serving", Kind::Bool, "HTTP/1.1 is served, HTTP/2 is not"),
    ("permit-port-sharing", Kind::Bool, "the port belongs to one process"),
    ("permit-address-sharing", Kind::Bool, "the port belongs to one process"),
    ("authentication-kubeconfig", Kind::Value, "the guest cluster's client asks"),
    ("authentication-skip-lookup", Kind::Bool, "no ConfigMap is looked up"),
    ("authentication-tolerate-lookup-failure", Kind::Bool, "no ConfigMap is looked up"),
    ("authentication-token-webhook-cache-ttl", Kind::Value, "answers are kept for 10 s"),
    ("requestheader-client-ca-file", Kind::Value, "readers of /metrics show a token"),
    ("requestheader-allowed-names", Kind::Value, "readers of /metrics show a token"),
    ("requestheader-username-headers", Kind::Value, "readers of /metrics show a token"),
    ("requestheader-uid-headers", Kind::Value, "readers of /metrics show a token"),
    ("requestheader-group-headers", Kind::Value, "readers of /metrics show a token"),
    ("requestheader-extra-headers-prefix", Kind::Value, "readers of /metrics show a token"),
    ("authorization-kubeconfig", Kind::Value, "the guest cluster's client asks"),
    ("authorization-webhook-cache-authorized-ttl", Kind::Value, "answers are kept for 10 s"),
    ("authorization-webhook-cache-unauthorized-ttl", Kind::Value, "answers are kept for 10 s"),
    ("webhooks", Kind::Value, "there are no webhooks"),
    ("webhook-bind-address", Kind::Value, "there are no webhooks"),
    ("webhook-secure-port", Kind::Value, "there are no webhooks"),
    ("webhook-cert-dir", Kind::Value, "there are no webhooks"),
    ("webhook-tls-cert-file", Kind::Value, "there are no webhooks"),
    ("webhook-tls-private-key-file", Kind::Value, "there are no webhooks"),
    ("profiling", Kind::Bool, "there is no profiler to serve"),
    ("contention-profiling", Kind::Bool, "there is no profiler to serve"),
    ("feature-gates", Kind::Value, "there are no gates"),
    ("vmodule", Kind::Value, "use RUST_LOG"),
    ("log-flush-frequency", Kind::Value, "lines are written at once"),
    ("log-text-split-stream", Kind::Bool, "lines go to stderr"),
    ("log-text-info-buffer-size", Kind::Value, "lines are written at once"),
];

/// Those of them that users may rely on for protection, which they do not give here.
pub const UNSAFE_TO_IGNORE: &[(&str, &str)] = &[
    ("requestheader-client-ca-file", "no proxy is believed; readers of /metrics show a token of the guest cluster"),
    ("authentication-kubeconfig", "who reads /metrics is asked of the guest cluster of --kubeconfig"),
    ("authorization-kubeconfig", "what a reader of /metrics may do is asked of the guest cluster of --kubeconfig"),
    ("tls-sni-cert-key", "one certificate is served: that of --tls-cert-file"),
];

/// The flags without effect on this command line, for one line in the log.
pub fn given(arguments: &[String]) -> Vec<&'static str> {
    let given = |name: &str| {
        arguments.iter().any(|a| a.strip_prefix("--").is_some_and(|a| a == name || a.starts_with(&format!("{name}="))))
    };
    WITHOUT_EFFECT.iter().map(|&(name, ..)| name).filter(|name| given(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_effect_is_named() {
        let arguments = ["--kube-api-content-type=x".to_owned(), "--profiling".to_owned(), "--v=2".to_owned()];
        assert_eq!(given(&arguments), ["kube-api-content-type", "profiling"]);
        for (flag, _) in UNSAFE_TO_IGNORE {
            assert!(WITHOUT_EFFECT.iter().any(|(name, ..)| name == flag), "{flag}");
        }
    }
}
