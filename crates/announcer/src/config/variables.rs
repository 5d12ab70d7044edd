//! Every variable of kube-vip (announcer.md 1.2), its flag, and whether it does anything here. Data only.

/// One variable.
pub(super) struct Variable {
    pub name: &'static str,
    pub flag: Option<&'static str>,
    boolean: bool,
    /// Accepted so that an existing manifest starts, but it changes nothing.
    pub no_effect: bool,
}

impl Variable {
    pub fn is_boolean(&self) -> bool {
        self.boolean
    }
}

const fn text(name: &'static str, flag: Option<&'static str>) -> Variable {
    Variable { name, flag, boolean: false, no_effect: false }
}

const fn boolean(name: &'static str, flag: Option<&'static str>) -> Variable {
    Variable { name, flag, boolean: true, no_effect: false }
}

const fn idle_text(name: &'static str, flag: Option<&'static str>) -> Variable {
    Variable { name, flag, boolean: false, no_effect: true }
}

const fn idle_boolean(name: &'static str, flag: Option<&'static str>) -> Variable {
    Variable { name, flag, boolean: true, no_effect: true }
}

pub(super) const VARIABLES: &[Variable] = &[
    boolean("vip_arp", Some("arp")),
    text("vip_arpRate", None),
    text("vip_interface", Some("interface")),
    text("vip_servicesinterface", Some("serviceInterface")),
    text("vip_subnet", Some("vipSubnet")),
    boolean("svc_enable", Some("services")),
    boolean("svc_election", Some("servicesElection")),
    text("election_mode", None),
    text("failover_profile", None),
    boolean("vip_failback", None),
    text("svc_leasename", Some("servicesLeaseName")),
    text("svc_namespace", None),
    text("cp_namespace", Some("namespace")),
    text("vip_leaseduration", Some("leaseDuration")),
    text("vip_renewdeadline", Some("leaseRenewDuration")),
    text("vip_retryperiod", Some("leaseRetry")),
    text("vip_nodename", Some("nodeName")),
    boolean("lb_class_only", Some("lbClassOnly")),
    text("lb_class_name", Some("lbClassName")),
    boolean("lb_class_legacy_handling", Some("lbClassNameLegacyHandling")),
    boolean("disable_service_updates", Some("disableServiceUpdates")),
    text("prometheus_server", Some("prometheusHTTPServer")),
    text("health_check_port", Some("healthCheckPort")),
    text("vip_loglevel", Some("log")),
    text("k8s_config_file", Some("k8sConfigPath")),
    text("kubernetes_addr", None),
    boolean("cp_enable", Some("controlplane")),
    boolean("bgp_enable", Some("bgp")),
    boolean("vip_routingtable", Some("table")),
    boolean("vip_wireguard", Some("wireguard")),
    // A down interface is waited for, never fatal: always as if this were on.
    idle_boolean("vip_allow_interface_not_up", Some("allowInterfaceNotUp")),
    idle_boolean("vip_loseleadership", Some("loseLeadership")),
    idle_text("vip_loseleadership_timeout_seconds", Some("loseLeadershiptTimeoutSeconds")),
    idle_boolean("vip_interfaceloglobal", Some("loInterfaceGlobalScope")),
    idle_text("vip_cidr", Some("cidr")),
    idle_boolean("per_service_election_on_demand", Some("perServiceElectionOnDemand")),
    idle_boolean("vip_leaderelection", Some("leaderElection")),
    idle_text("vip_leaseannotations", None),
    idle_boolean("vip_preserve_on_leadership_loss", Some("preserveVipOnLeadershipLoss")),
    // We do not wait for endpoints, whichever object tells them.
    idle_boolean("enable_endpoints", Some("enableEndpoints")),
    idle_boolean("enable_endpointslices", None),
    boolean("enable_service_security", Some("onlyAllowTrafficServicePorts")),
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

/// What must not be on, and what to do instead.
pub(super) const UNSUPPORTED: &[(&str, &str)] = &[
    (
        "bgp_enable",
        "BGP is not supported, this announcer speaks ARP and NDP only: remove it and set vip_arp=true, or keep kube-vip",
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
        "an address for the control plane is not supported, this announcer serves LoadBalancer Services: set it to false",
    ),
];

/// What must not be turned off: nothing would be left to do.
pub(super) const REQUIRED: &[(&str, &str)] = &[
    ("vip_arp", "ARP and NDP are the only way this announcer has: set it to true or remove it"),
    ("svc_enable", "serving LoadBalancer Services is all this announcer does: set it to true or remove it"),
];
