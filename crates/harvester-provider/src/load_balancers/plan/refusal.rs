//! The requests of a Service that cannot be fulfilled, with texts for the user.

use std::net::IpAddr;

use cloud_provider::provider::Remark;
use cloud_provider::view::{Family, ServiceKey};
use harvester_api::keys::{cloudprovider, kube_vip};
use harvester_api::names::ClusterName;

use super::super::choice::{AddressHolder, ChoiceError};
use super::super::network::NetworkError;
use super::super::quoted::Quoted;
use super::super::sharing::ShareError;

/// Something that the user has to change. A retry is pointless until then, or until the Service is woken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanRefusal {
    /// An annotation with an unusable value.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// The API server would reject every object, with a text that does not name the flag.
    #[error(
        "this cluster is called {name:?} on Harvester, and no load balancer can be named after it: {accepted}. Correct \
         --cluster-name",
        name = .0.as_str(), accepted = ClusterName::ACCEPTED
    )]
    ClusterName(ClusterName),
    /// Harvester chooses the addresses of a pool itself (decision 9: reported, never acted on).
    #[error(
        "address {asked} was asked for, Harvester booked {booked}: it chooses the addresses of a pool by itself, and \
         {booked} is served. Remove annotation {ip} to keep it; or make an IPPool with that address alone and name it \
         in annotation {pool}; or use annotation {ipam}: static with an address outside all pools, in a new Service",
        ip = cloudprovider::IP, pool = cloudprovider::IP_POOL, ipam = cloudprovider::IPAM
    )]
    NotAsAsked {
        /// The address in the annotation.
        asked: IpAddr,
        /// The address that is served.
        booked: String,
    },
    /// A DHCP server decides by itself, too.
    #[error(
        "address {asked} was asked for, the DHCP server gave {leased}, which is served: the server decides. Remove \
         annotation {ip} to keep it; or reserve {asked} on the server for the MAC in annotation {mac} of this Service; \
         or use annotation {ipam}: static with an address that the server gives to nobody, in a new Service",
        ip = cloudprovider::IP, mac = kube_vip::HWADDR, ipam = cloudprovider::IPAM
    )]
    NotLeased {
        /// The address in the annotation.
        asked: IpAddr,
        /// The leased address of the same family.
        leased: IpAddr,
    },
    /// A static address that another Service has.
    #[error("address {address} is already used by service {by}: choose another one, or share it with annotation \
        {key}", key = cloudprovider::PRIMARY_SERVICE)]
    AddressTaken {
        /// The address in the annotation.
        address: IpAddr,
        /// The Service that has it.
        by: ServiceKey,
    },
    /// A static address that answers for something else already.
    #[error("address {address} is {holder}: name another one in annotation {key}, an address of the network that is in \
        no pool", key = cloudprovider::IP)]
    AddressHeld {
        /// The address in the annotation.
        address: IpAddr,
        /// The owner of the address.
        holder: AddressHolder,
    },
    /// The host does not change the mode of an object (Harvester spec 5.2 F).
    #[error(
        "can't change the IPAM from {found} to {wanted} of load balancer {lb}: set annotation {key} back to {found}, \
         or delete the Service and create it again", key = cloudprovider::IPAM
    )]
    IpamChanged {
        /// `namespace/name` of the object.
        lb: String,
        /// The object's mode.
        found: String,
        /// The mode in the annotation now.
        wanted: &'static str,
    },
    /// The network is fixed at creation (CCM spec 3.5 step 2).
    #[error(
        "network annotation of service {service} is not same as the load balancer {lb}, service: '{}', lb: '{}'",
        Quoted(wanted),
        Quoted(found)
    )]
    NetworkChanged {
        /// The Service.
        service: String,
        /// `namespace/name` of the object.
        lb: String,
        /// The network that the Service requests now.
        wanted: String,
        /// The network that the object was created with.
        found: String,
    },
    /// The host chose another network.
    #[error(
        "network {} was asked for by service {service}, and Harvester has put {} in its place: the address is of a \
         pool for that network. Harvester up to 1.8 decides on the network by itself. Remove annotation {key}, or \
         upgrade Harvester; and create the Service again",
        Quoted(wanted), Quoted(found), key = cloudprovider::NETWORK
    )]
    NetworkNotKept {
        /// The Service.
        service: ServiceKey,
        /// The network in the annotation.
        wanted: String,
        /// The network that the host chose.
        found: String,
    },
    /// Two families are requested, but there is one address.
    #[error(
        "service {service} asks for two address families{}, and with {} it gets one address: Harvester books one for a \
         load balancer. Set ipFamilyPolicy: SingleStack, or annotation {key}: dhcp, where a DHCP server of each family \
         leases one",
        if *required { " (RequireDualStack)" } else { "" },
        if *annotated {
            format!("annotation {} {word}", cloudprovider::IPAM)
        } else {
            format!("IPAM {word}, the default,")
        },
        key = cloudprovider::IPAM
    )]
    SingleStack {
        /// The Service.
        service: ServiceKey,
        /// `RequireDualStack`.
        required: bool,
        /// `pool` or `static`.
        word: &'static str,
        /// The annotation has that word; otherwise it is the default.
        annotated: bool,
    },
    /// The pool's address has a family that kube-proxy would not serve for this Service, so it is not published.
    #[error(
        "Harvester booked {booked}, an {found} address, but spec.ipFamilies of service {service} is [{families}], so \
        the Service cannot be reached at it. Name an IPPool with addresses of these families in annotation {pool}, or \
        use annotation {ipam}: dhcp, or add {found} to spec.ipFamilies",
        found = Family::from(*booked),
        families = families.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        pool = cloudprovider::IP_POOL, ipam = cloudprovider::IPAM
    )]
    WrongFamily {
        /// The Service.
        service: ServiceKey,
        /// The address.
        booked: IpAddr,
        /// Families of the Service.
        families: Vec<Family>,
    },
    /// An object with the name for this Service belongs to another Service.
    #[error("load balancer {lb} belongs to service {owner} by its labels, so service {service} cannot use it")]
    Foreign {
        /// `namespace/name` of the object.
        lb: String,
        /// The Service that its labels name.
        owner: String,
        /// This Service.
        service: String,
    },
    /// The network has no interface on the nodes.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A problem with the primary, or a port conflict.
    #[error(transparent)]
    Share(#[from] ShareError),
}

impl PlanRefusal {
    /// The remark for a Service that is served nevertheless.
    pub fn remark(&self) -> Remark {
        // With `PreferDualStack` one family is sufficient.
        let warning = !matches!(self, Self::SingleStack { required: false, .. });
        Remark { reason: self.word(), message: self.to_string(), warning }
    }

    /// Reason of the condition on the Service.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Choice(ChoiceError::UnknownIpam(_)) => "UnknownIPAM",
            Self::Choice(_)
            | Self::Share(
                ShareError::InvalidGroup { .. } | ShareError::GroupAndPrimary | ShareError::GroupNeedsPool { .. },
            ) => "WrongAnnotation",
            Self::ClusterName(_) => "BadClusterName",
            Self::NotAsAsked { .. } | Self::NotLeased { .. } => "AddressNotAsAsked",
            Self::AddressTaken { .. } | Self::AddressHeld { .. } => "AddressTaken",
            Self::IpamChanged { .. } => "IPAMChanged",
            Self::NetworkChanged { .. } => "NetworkChanged",
            Self::NetworkNotKept { .. } => "NetworkNotKept",
            Self::SingleStack { .. } => "SingleStackOnly",
            Self::WrongFamily { .. } => "WrongFamily",
            Self::Foreign { .. } => "NameTaken",
            Self::Network(_) => "NoSuchNetwork",
            Self::Share(ShareError::PortTaken(_)) => "PortTaken",
            Self::Share(ShareError::NoConsent { .. }) => "SharingNotAgreed",
            Self::Share(_) => "NoSuchPrimary",
        }
    }
}
