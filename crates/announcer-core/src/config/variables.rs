//! All variables of kube-vip (kube-vip spec 1.2), their flags, and their effect here. Data only; the reference is
//! generated from it.

/// One environment variable.
#[derive(Debug)]
pub struct Variable {
    /// Name in the environment.
    pub name: &'static str,
    /// kube-vip's flag for it, without the dashes.
    pub flag: Option<&'static str>,
    boolean: bool,
    /// The value if it is not set; empty: none.
    pub default: &'static str,
    /// Its effect. Empty: accepted so that an existing manifest works, but without effect.
    pub meaning: &'static str,
}

impl Variable {
    pub(super) fn is_boolean(&self) -> bool {
        self.boolean
    }

    /// Whether the variable is accepted without any effect.
    pub fn has_no_effect(&self) -> bool {
        self.meaning.is_empty()
    }
}

const fn text(
    name: &'static str,
    flag: Option<&'static str>,
    default: &'static str,
    meaning: &'static str,
) -> Variable {
    Variable { name, flag, boolean: false, default, meaning }
}

const fn boolean(
    name: &'static str,
    flag: Option<&'static str>,
    default: &'static str,
    meaning: &'static str,
) -> Variable {
    Variable { name, flag, boolean: true, default, meaning }
}

const fn idle_text(name: &'static str, flag: Option<&'static str>) -> Variable {
    Variable { name, flag, boolean: false, default: "", meaning: "" }
}

const fn idle_boolean(name: &'static str, flag: Option<&'static str>) -> Variable {
    Variable { name, flag, boolean: true, default: "", meaning: "" }
}

/// All variables.
pub const VARIABLES: &[Variable] = &[
    boolean("vip_arp", Some("arp"), "true", "Announce with ARP and NDP, the only way there is: `false` is refused"),
    text(
        "vip_arpRate",
        None,
        "",
        "Repeat announcements for ever, every so many milliseconds (below 500: 3000). Unset: a short burst, then \
        silence",
    ),
    text("vip_interface", Some("interface"), "", "NIC that carries addresses. Unset: the one of the default route"),
    text(
        "vip_servicesinterface",
        Some("serviceInterface"),
        "",
        "Another NIC than `vip_interface` for addresses of Services; `auto`: the one whose subnet the address is in",
    ),
    text(
        "vip_subnet",
        Some("vipSubnet"),
        "32,128",
        "Prefix length of addresses, IPv4 and IPv6; `auto` takes the NIC's",
    ),
    boolean(
        "svc_enable",
        Some("services"),
        "true",
        "Serve Services of type LoadBalancer, all that this does: `false` is refused",
    ),
    boolean(
        "svc_election",
        Some("servicesElection"),
        "false",
        "`true` stands for `election_mode` `service`, where that is not set",
    ),
    text(
        "election_mode",
        None,
        "node",
        "How the owner of an address is chosen. `node`: each node its part, a new owner in a quarter of a second; \
         `service`: kube-vip's Lease per Service; `global`: kube-vip's one Lease",
    ),
    text(
        "failover_profile",
        None,
        "default",
        "Mode `node`: `default`, `fast` (more questions on the wire) or `patient` (machines that pause)",
    ),
    boolean(
        "vip_failback",
        None,
        "false",
        "Mode `node`: addresses move back, gracefully, when their node has been well again for a minute",
    ),
    boolean(
        "vip_handover",
        None,
        "false",
        "Mode `node`: what becomes of the addresses of a process that ends while its node stays. `true`: other nodes \
        take them over, and every connection through them ends. `false`: they stay on the node for 300 s, for the next \
        process, and connections go on",
    ),
    boolean(
        "vip_probe",
        None,
        "false",
        "Mode `node`: two other nodes ask each address of a Service at its first TCP port every 5 s, as a client \
         would, and tell if it is not served. Annotation `cloudprovider.harvesterhci.io/probe` says otherwise for one \
         Service",
    ),
    text(
        "vip_claim_keys",
        None,
        "",
        "Mode `node`: directory in which a Secret is mounted. Each file is a key of at least 16 bytes that \
        authenticates claims (messages in which a node says that it has an address). Claims with any of these keys \
        are accepted. The announcer signs with the key whose file name is last in alphabetical order, 5 minutes \
        after the file has appeared. Unset: the UID of the Service is the key",
    ),
    text(
        "svc_leasename",
        Some("servicesLeaseName"),
        "plndr-svcs-lock",
        "Mode `global`: the one Lease, `[namespace/]name`",
    ),
    text(
        "svc_lease_namespaces",
        None,
        "",
        "Mode `service`: other namespaces than the Service's own, separated by commas, where the annotation \
        `leaseName` may name a Lease. Unset: none",
    ),
    text("svc_namespace", None, "", "Serve Services of this namespace only. Unset: of all"),
    text("cp_namespace", Some("namespace"), "kube-system", "Namespace of Leases where the pod's own cannot be read"),
    text(
        "vip_leaseduration",
        Some("leaseDuration"),
        "15",
        "Seconds from the last renewal until others may take a Lease",
    ),
    text("vip_renewdeadline", Some("leaseRenewDuration"), "10", "Seconds for which the holder tries to renew"),
    text("vip_retryperiod", Some("leaseRetry"), "2", "Seconds between two tries"),
    text("vip_nodename", Some("nodeName"), "", "Name of this node. Unset: `NODE_NAME`, then the host name"),
    boolean("lb_class_only", Some("lbClassOnly"), "false", "Leave Services without a `loadBalancerClass` alone"),
    text("lb_class_name", Some("lbClassName"), "kube-vip.io/kube-vip-class", "The `loadBalancerClass` that is served"),
    boolean(
        "lb_class_legacy_handling",
        Some("lbClassNameLegacyHandling"),
        "true",
        "Serve Services without a class, and those of ours; `false`: of ours only",
    ),
    text(
        "svc_controller",
        None,
        "",
        "`true`: a cloud controller gives Services without a class their addresses, and only what it has published is \
        announced; `false`: what a Service asks for is announced, as by kube-vip. Unset: `true` as soon as a Service \
        has the finalizer of a cloud controller",
    ),
    boolean(
        "disable_service_updates",
        Some("disableServiceUpdates"),
        "false",
        "Do not write addresses to the status of Services; somebody else has to",
    ),
    text(
        "prometheus_server",
        Some("prometheusHTTPServer"),
        ":2112",
        // An empty variable counts as unset (kube-vip spec 1.2), because the chart's probes rely on it.
        "Serves `/metrics`, `/healthz`, `/livez` and `/readyz`, as `[address]:port`. An empty variable counts as \
        unset; the flag without a value (`--prometheusHTTPServer=`) serves none of them",
    ),
    text("health_check_port", Some("healthCheckPort"), "0", "Serves health on a port of its own; `0`: no"),
    text("vip_loglevel", Some("log"), "0", "`-8` trace, `-4` debug, `0` info, `4` warnings, `8` errors"),
    text(
        "k8s_config_file",
        Some("k8sConfigPath"),
        "",
        "Kubeconfig file. Unset: kubeadm's or `~/.kube/config` where it is, else the pod's service account",
    ),
    text("kubernetes_addr", None, "", "Replaces the URL of the API server"),
    boolean(
        "cp_enable",
        Some("controlplane"),
        "false",
        "An address for the control plane: `true` is refused, a kube-vip beside this one can have it",
    ),
    boolean("bgp_enable", Some("bgp"), "false", "`true` is refused: ARP and NDP only"),
    boolean("vip_routingtable", Some("table"), "false", "`true` is refused: ARP and NDP only"),
    boolean("vip_wireguard", Some("wireguard"), "false", "`true` is refused: ARP and NDP only"),
    // The announcer always waits for an interface that is down, as if this were on.
    idle_boolean("vip_allow_interface_not_up", Some("allowInterfaceNotUp")),
    idle_boolean("vip_loseleadership", Some("loseLeadership")),
    idle_text("vip_loseleadership_timeout_seconds", Some("loseLeadershiptTimeoutSeconds")),
    idle_boolean("vip_interfaceloglobal", Some("loInterfaceGlobalScope")),
    idle_text("vip_cidr", Some("cidr")),
    idle_boolean("per_service_election_on_demand", Some("perServiceElectionOnDemand")),
    idle_boolean("vip_leaderelection", Some("leaderElection")),
    idle_text("vip_leaseannotations", None),
    idle_boolean("vip_preserve_on_leadership_loss", Some("preserveVipOnLeadershipLoss")),
    // The announcer does not wait for endpoints, whichever object lists them.
    idle_boolean("enable_endpoints", Some("enableEndpoints")),
    idle_boolean("enable_endpointslices", None),
    boolean(
        "enable_service_security",
        Some("onlyAllowTrafficServicePorts"),
        "true",
        "Traffic to an address on ports that its Services do not have is dropped. kube-vip's default is `false`",
    ),
    idle_boolean("enable_node_labeling", Some("enableNodeLabeling")),
    idle_boolean("vip_skipdad", None),
    idle_text("dns_mode", Some("dnsMode")),
    idle_text("dhcp_mode", Some("dhcpMode")),
    idle_text("dhcp_backoff_attempts", Some("dhcpBackoffAttempts")),
    idle_boolean("vip_ddns", Some("ddns")),
    idle_text("egress_podcidr", None),
    idle_text("egress_servicecidr", None),
    idle_boolean("egress_withnftables", Some("egressWithNftables")),
    idle_boolean("egress_enableinternalsnat", None),
    idle_boolean("egress_clean", None),
    idle_boolean("EGRESS_CLEAN", None),
    idle_text("instance_name", Some("instanceName")),
    idle_text("INSTANCE_NAME", None),
    idle_boolean("enable_upnp", None),
    idle_boolean("enableUPNP", None),
    idle_text("iptables_backend", None),
    idle_text("mirror_dest_interface", Some("mirrorDestInterface")),
    idle_text("annotation", Some("annotations")),
    idle_boolean("lb_enable", Some("lbEnable")),
    idle_text("lb_port", Some("lbPort")),
    idle_text("lb_fwdmethod", Some("lbForwardingMethod")),
    idle_text("debounce_time", Some("debounceTime")),
    idle_text("vip_configmap", Some("configMap")),
    idle_boolean("vip_singlenode", Some("singleNode")),
    idle_boolean("vip_startleader", Some("startAsLeader")),
    idle_text("vip_address", Some("vip")),
    idle_text("address", Some("address")),
    idle_text("port", Some("port")),
    idle_text("config_file", Some("config-file")),
];

/// Variables that must not be on, each with an alternative.
pub(super) const UNSUPPORTED: &[(&str, &str)] = &[
    (
        "bgp_enable",
        "BGP is not supported, this announcer speaks ARP and NDP only: remove it and set vip_arp=true, or keep \
        kube-vip",
    ),
    (
        "vip_routingtable",
        "routing table mode is not supported, this announcer speaks ARP and NDP only: remove it and set vip_arp=true",
    ),
    (
        "vip_wireguard",
        "WireGuard mode is not supported, this announcer speaks ARP and NDP only: remove it and set vip_arp=true",
    ),
    (
        "cp_enable",
        "an address for the control plane is not supported, this announcer serves LoadBalancer Services: set it to \
        false",
    ),
];

/// Variables that must not be off, because nothing would be left to do.
pub(super) const REQUIRED: &[(&str, &str)] = &[
    ("vip_arp", "ARP and NDP are the only way this announcer has: set it to true or remove it"),
    ("svc_enable", "serving LoadBalancer Services is all this announcer does: set it to true or remove it"),
];
