//! The names of all checks. Scripts rely on them, and docs/troubleshooting.md has a line for each.

use std::fmt;

use serde::{Serialize, Serializer};

/// Checks and their names, and `ALL` of them: what is added here is known to every reader of the list.
macro_rules! checks {
    ($($check:ident = $name:literal,)+) => {
        /// A problem that can be found.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Check {
            $(#[doc = concat!("`", $name, "`")] $check,)+
        }

        impl Check {
            /// All of them, in alphabetical order.
            pub const ALL: &'static [Self] = &[$(Self::$check),+];

            /// Its name; stays the same between versions.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$check => $name,)+
                }
            }
        }
    };
}

checks! {
    AddressConflict = "address-conflict",
    AddressTaken = "address-taken",
    AddressUnowned = "address-unowned",
    AnnouncerMissing = "announcer-missing",
    AnnouncerSilent = "announcer-silent",
    CannotAnnounce = "cannot-announce",
    CertificateExpired = "certificate-expired",
    CertificateExpires = "certificate-expires",
    ClockSkew = "clock-skew",
    CloudConfigKeyMissing = "cloud-config-key-missing",
    CloudConfigMissing = "cloud-config-missing",
    ClusterCopy = "cluster-copy",
    ClusterNameChanged = "cluster-name-changed",
    ClusterNameDefault = "cluster-name-default",
    ClusterNameMismatch = "cluster-name-mismatch",
    CniAutodetection = "cni-autodetection",
    ControllerMissing = "controller-missing",
    DhcpLeaseExpired = "dhcp-lease-expired",
    DhcpRefused = "dhcp-refused",
    DhcpSilent = "dhcp-silent",
    GuestApiUnreachable = "guest-api-unreachable",
    GuestCertificateRefused = "guest-certificate-refused",
    GuestCredentialsMissing = "guest-credentials-missing",
    GuestRightMissing = "guest-right-missing",
    GuestTokenRefused = "guest-token-refused",
    GuestTooOld = "guest-too-old",
    HarvesterApiUnreachable = "harvester-api-unreachable",
    HarvesterCertificateRefused = "harvester-certificate-refused",
    HarvesterControllerSilent = "harvester-controller-silent",
    HarvesterForbids = "harvester-forbids",
    HarvesterKindMissing = "harvester-kind-missing",
    HarvesterRightMissing = "harvester-right-missing",
    HarvesterTokenRefused = "harvester-token-refused",
    HarvesterTooOld = "harvester-too-old",
    HarvesterWebhookRefuses = "harvester-webhook-refuses",
    HostUpgradeFailed = "host-upgrade-failed",
    HostUpgradePaused = "host-upgrade-paused",
    IdentityNotKnown = "identity-not-known",
    InterfaceMissing = "interface-missing",
    KubeProxyNotReady = "kube-proxy-not-ready",
    LoadBalancerAbandoned = "load-balancer-abandoned",
    LoadBalancerNameTaken = "load-balancer-name-taken",
    LoadBalancerOrphaned = "load-balancer-orphaned",
    MachineLabelMissing = "machine-label-missing",
    MachinesElsewhere = "machines-elsewhere",
    MacvlanMissing = "macvlan-missing",
    NetworkMissing = "network-missing",
    NoEligibleNode = "no-eligible-node",
    NoLocalEndpoint = "no-local-endpoint",
    NoReadyEndpoint = "no-ready-endpoint",
    NodeExcluded = "node-excluded",
    NodeNotInitialised = "node-not-initialised",
    NodeSilent = "node-silent",
    NodeWithoutMachine = "node-without-machine",
    OwnerSilent = "owner-silent",
    Paused = "paused",
    PodWaiting = "pod-waiting",
    PoolExhausted = "pool-exhausted",
    PoolFull = "pool-full",
    PoolMissing = "pool-missing",
    QuorumAtRisk = "quorum-at-risk",
    QuotaReached = "quota-reached",
    SafeMode = "safe-mode",
    ServiceClass = "service-class",
    ServiceIgnored = "service-ignored",
    ServiceNotAsAsked = "service-not-as-asked",
    ServiceNotDeleted = "service-not-deleted",
    ServiceNotReady = "service-not-ready",
    ServiceNotServed = "service-not-served",
    ServicePaused = "service-paused",
    ShareImpossible = "share-impossible",
    StaticElsewhere = "static-elsewhere",
    StaticInPool = "static-in-pool",
    TwoAnnouncers = "two-announcers",
    TwoControllers = "two-controllers",
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Check {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
