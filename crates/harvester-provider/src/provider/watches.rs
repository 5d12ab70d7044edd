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
        mapping: &Cache<String, NadMapping>,
        record: &RecordCache,
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use runtime::scenario::Scenario;
    use serde_json::{Value, json};

    use super::*;
    use crate::identity::keeper::record_cache;
    use crate::instances::view::machine_caches;
    use crate::load_balancers::own_writes::lb_cache;
    use crate::nad_mapping::MappingSource;

    /// W-38, W-07.
    #[tokio::test(start_paused = true)]
    async fn two_config_maps_are_watched_by_their_names_and_each_other_kind_once() {
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []});
        let server = Scenario::answering(move |request| {
            if request.query.contains("watch=true") { (0, Value::Null) } else { (200, list.clone()) }
        });
        let (lbs, (vms, vmis)) = (lb_cache(), machine_caches());
        let (mapping, record) = (MappingSource::cache(), record_cache());
        let client = server.client();
        let watches = Watches::new(&client, &client, "guests", (&lbs, &vms, &vmis), &mapping, &record);
        let Watches { lbs, vms, vmis, mapping, record } = watches;
        let all = Box::pin(futures::future::join5(lbs.run(), vms.run(), vmis.run(), mapping.run(), record.run()));
        assert!(tokio::time::timeout(Duration::from_mins(10), all).await.is_err(), "a watch never ends");
        let mut asked: BTreeMap<String, usize> = BTreeMap::new();
        for request in server.requests() {
            let only = request.query.split('&').find(|part| part.starts_with("fieldSelector=")).unwrap_or_default();
            let verb = if request.query.contains("watch=true") { "watch" } else { "list" };
            let kind = request.path.rsplit('/').next().unwrap_or_default();
            *asked.entry(format!("{verb} {kind} {only}").trim().to_owned()).or_default() += 1;
        }
        let once = |verb: &str, what: &str| (format!("{verb} {what}"), 1);
        let expected: BTreeMap<String, usize> = [
            "configmaps fieldSelector=metadata.name%3Dharvester-cloud-provider",
            "configmaps fieldSelector=metadata.name%3Dharvester-nad-mapping",
            "loadbalancers",
            "virtualmachineinstances",
            "virtualmachines",
        ]
        .iter()
        .flat_map(|what| [once("list", what), once("watch", what)])
        .collect();
        assert_eq!(asked, expected);
    }
}
