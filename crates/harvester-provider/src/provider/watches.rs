//! The watches of the two clusters.

use harvester_api::load_balancer::LoadBalancer;
use harvester_api::virtual_machine::VirtualMachine;
use harvester_api::virtual_machine_instance::VirtualMachineInstance;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use runtime::cache::Cache;
use runtime::reflect::Reflector;

use super::name;
use crate::identity::keeper::RecordCache;
use crate::identity::record::{self, Record};
use crate::instances::view::{VmCache, VmView, VmiCache, VmiView};
use crate::load_balancers::own_writes::LbCache;
use crate::load_balancers::view::LbView;
use crate::nad_mapping::{self, NadMapping};

#[derive(Debug)]
pub(super) struct Watches {
    pub lbs: Reflector<LoadBalancer, String, LbView>,
    pub vms: Reflector<VirtualMachine, String, VmView>,
    pub vmis: Reflector<VirtualMachineInstance, String, VmiView>,
    pub mapping: Reflector<ConfigMap, String, NadMapping>,
    pub record: Reflector<ConfigMap, String, Record>,
}

impl Watches {
    /// Watches of the namespace on Harvester, and of two ConfigMaps in the guest cluster.
    pub fn new(
        guest: &Client,
        harvester: &Client,
        namespace: &str,
        (lbs, vms, vmis): (&LbCache, &VmCache, &VmiCache),
        (mapping, record): (&Cache<String, NadMapping>, &RecordCache),
    ) -> Self {
        Self {
            lbs: Reflector::new(
                "loadbalancers",
                Api::namespaced(harvester.clone(), namespace),
                lbs.clone(),
                name,
                |lb| Some(LbView::from(lb)),
            ),
            vms: Reflector::new(
                "virtualmachines",
                Api::namespaced(harvester.clone(), namespace),
                vms.clone(),
                name,
                |vm| Some(VmView::from(vm)),
            ),
            vmis: Reflector::new(
                "virtualmachineinstances",
                Api::namespaced(harvester.clone(), namespace),
                vmis.clone(),
                name,
                |vmi| Some(VmiView::from(vmi)),
            ),
            // Only this object, not all ConfigMaps of the cluster (W-38).
            mapping: Reflector::new(
                "nad-mapping",
                Api::namespaced(guest.clone(), nad_mapping::NAMESPACE),
                mapping.clone(),
                name,
                |config_map| Some(NadMapping::from_config_map(config_map)),
            )
            .fields(&format!("metadata.name={}", nad_mapping::NAME)),
            record: Reflector::new(
                "record",
                Api::namespaced(guest.clone(), record::NAMESPACE),
                record.clone(),
                name,
                |config_map| Some(Record::from(config_map)),
            )
            .fields(&format!("metadata.name={}", record::NAME)),
        }
    }
}
