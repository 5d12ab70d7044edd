//! Keeps the ConfigMap equal to the mapping that follows from the VMs. Runs on the leader only.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use cloud_provider::damping::{Damper, undone};
use cloud_provider::managed_fields::other_writer;
use cloud_provider::preview::{Place, Target, Verb, Write};
use harvester_api::names::ClusterName;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use runtime::cache::Touched;
use runtime::events::Recorder;
use serde_json::json;
use tokio::time::Instant;

use super::{KEY, MappingSource, NAME, NAMESPACE, compute, value};
use crate::events::config_map;
use crate::identity::Identity;
use crate::instances::view::VmiCache;
use crate::metrics::Metrics;

/// Changes within this time are written together, because many VMs may start at once.
const DEBOUNCE: Duration = Duration::from_millis(500);
/// Pause after a failed write.
const TRY_AGAIN: Duration = Duration::from_secs(30);

/// Why the ConfigMap could not be written.
#[derive(Debug, thiserror::Error)]
#[error("failed to sync NAD mapping ConfigMap")]
pub struct WriteError(#[from] kube::Error);

/// Writes the mapping of one cluster.
pub struct Writer {
    client: Client,
    cluster: Identity,
    vmis: VmiCache,
    mapping: MappingSource,
    metrics: Arc<Metrics>,
    /// Values that another writer undoes.
    damper: Damper<String>,
}

impl Writer {
    /// Creates the writer. It sends no request before [`Self::run`].
    pub fn new(
        client: Client,
        cluster: Identity,
        vmis: VmiCache,
        mapping: MappingSource,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { client, cluster, vmis, mapping, metrics, damper: Damper::default() }
    }

    /// Follows the VMIs, and the ConfigMap itself, which others may change or delete.
    pub async fn run(mut self, events: Recorder) -> Infallible {
        let mut name = self.cluster.subscribe();
        let is_default = |name: &Option<ClusterName>| name.as_ref().is_some_and(ClusterName::is_default);
        if name.wait_for(Option::is_some).await.is_ok_and(|name| is_default(&name)) {
            tracing::warn!(
                "no NAD mapping without a name for this cluster: guest cluster name configuration is empty/default, we \
                 cannot identify the cluster; set --cluster-name"
            );
        }
        if name.wait_for(|name| !is_default(name)).await.is_err() {
            return std::future::pending().await;
        }
        self.vmis.wait_synced().await;
        let (mut machines, mut config_map) = (self.vmis.subscribe(), self.mapping.subscribe());
        let mut failing = false;
        let mut holds = self.cluster.holds();
        loop {
            if holds.wait_for(Option::is_none).await.is_err() {
                return std::future::pending().await;
            }
            match self.sync(&events).await {
                Ok(rest) => {
                    failing = false;
                    let touched = touched(&mut machines, &mut config_map);
                    match rest {
                        Some(rest) => drop(tokio::time::timeout(rest, touched).await),
                        None => touched.await,
                    }
                }
                // Another writer was faster; its version is read at once.
                Err(error) if runtime::error::is_conflict(&error) => tokio::time::sleep(DEBOUNCE).await,
                Err(error) => {
                    let error = runtime::error::chain(&error);
                    if std::mem::replace(&mut failing, true) {
                        tracing::debug!(
                            error,
                            "the controller cannot write the NAD mapping to ConfigMap {NAMESPACE}/{NAME}; it tries \
                            again"
                        );
                    } else {
                        tracing::warn!(
                            error,
                            "the controller cannot write the NAD mapping to ConfigMap {NAMESPACE}/{NAME}; it tries \
                            again"
                        );
                    }
                    // The pause is not shortened by changes: a machine that starts must not cause a request with each
                    // of its changes.
                    tokio::time::sleep(TRY_AGAIN).await;
                }
            }
        }
    }

    /// The write that is due now. Sends nothing.
    pub fn foresee(&self) -> Option<Write> {
        let vmis = self.vmis.all();
        let wanted = value(&compute(&self.cluster.name_or_flag(), vmis.iter().map(Arc::as_ref))?);
        let there = self.mapping.get().is_some();
        let right = self.mapping.is_known() && self.mapping.value().as_deref() == Some(&wanted);
        (!right).then(|| Write {
            place: Place::Guest,
            verb: if there { Verb::Update } else { Verb::Create },
            target: Target { kind: "ConfigMap", namespace: NAMESPACE.to_owned(), name: NAME.to_owned() },
            why: String::new(),
            body: json!({"data": {KEY: wanted}}),
        })
    }

    /// Writes the mapping if it differs from the ConfigMap. Returns how long the ConfigMap is left alone, if another
    /// writer keeps undoing that.
    pub async fn sync(&mut self, events: &Recorder) -> Result<Option<Duration>, WriteError> {
        let vmis = self.vmis.all();
        let mapping = compute(&self.cluster.name_or_flag(), vmis.iter().map(Arc::as_ref));
        let Some(mapping) = mapping else { return Ok(None) };
        self.metrics.nad_mapping_networks.set(i64::try_from(mapping.len()).unwrap_or(i64::MAX));
        let wanted = value(&mapping);
        if self.mapping.is_known() && self.mapping.value().as_deref() == Some(&wanted) {
            return Ok(None);
        }
        if let Some(rest) = self.damper.rest(&wanted, Instant::now()) {
            return Ok(Some(rest));
        }
        let config_maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let mut replaced = Vec::new();
        let written = match config_maps.get_opt(NAME).await? {
            None => {
                let metadata = ObjectMeta {
                    name: Some(NAME.to_owned()),
                    namespace: Some(NAMESPACE.to_owned()),
                    ..ObjectMeta::default()
                };
                let data = Some(BTreeMap::from([(KEY.to_owned(), wanted.clone())]));
                let config_map = ConfigMap { metadata, data, ..ConfigMap::default() };
                config_maps.create(&PostParams::default(), &config_map).await?
            }
            Some(config_map) if config_map.data.as_ref().and_then(|data| data.get(KEY)) == Some(&wanted) => {
                return Ok(None);
            }
            Some(mut config_map) => {
                // A write takes its fields over, so that the new version need not name who had them before.
                replaced = config_map.metadata.managed_fields.clone().unwrap_or_default();
                config_map.data.get_or_insert_default().insert(KEY.to_owned(), wanted.clone());
                config_maps.replace(NAME, &PostParams::default(), &config_map).await?
            }
        };
        tracing::info!(
            networks = mapping.len(),
            "the controller wrote the NAD mapping to ConfigMap {NAMESPACE}/{NAME}"
        );
        if self.damper.repaired(wanted, Instant::now()) {
            let by = other_writer(&replaced, &["data"]);
            let text = undone(&format!("ConfigMap {NAMESPACE}/{NAME}"), by.as_deref(), &format!("the key {KEY}"));
            tracing::warn!("{text}");
            events.warning(&config_map(NAME, written.metadata.uid), "UndoneByOthers", &text);
        }
        Ok(None)
    }
}

/// Waits for a change, and a moment longer to collect further changes.
async fn touched(machines: &mut Touched<String>, config_map: &mut Touched<String>) {
    tokio::select! {
        _ = machines.next() => {}
        _ = config_map.next() => {}
    }
    let more = async {
        loop {
            tokio::select! {
                key = machines.next() => if key.is_none() { return std::future::pending::<()>().await },
                key = config_map.next() => if key.is_none() { return std::future::pending::<()>().await },
            }
        }
    };
    drop(tokio::time::timeout(DEBOUNCE, more).await);
}

#[cfg(test)]
mod tests {
    use harvester_api::keys::harvester::GUEST_CLUSTER_NAME;
    use prometheus_client::registry::Registry;
    use runtime::cache::Cache;
    use runtime::log_lines::Lines;
    use runtime::scenario::Scenario;
    use serde_json::{Value, json};

    use super::*;
    use crate::instances::view::{InterfaceView, NetworkView, VmiView, build};
    use crate::nad_mapping::NadMapping;

    fn machine() -> VmiView {
        let mut vmi = build::vmi("a");
        vmi.labels.insert(GUEST_CLUSTER_NAME, "demo");
        for (nic, network, interface) in [("nic-0", "guests/mgmt", "enp1s0"), ("nic-1", "guests/data", "enp2s0")] {
            vmi.networks.push(NetworkView { name: nic.into(), multus: Some(network.into()) });
            let addresses = Vec::new();
            vmi.interfaces.push(InterfaceView { name: nic.into(), addresses, interface_name: interface.into() });
        }
        vmi
    }

    const VALUE: &str = r#"{"guests/data":"enp2s0","guests/mgmt":"enp1s0"}"#;

    async fn sync(there: Option<Value>, watched: Option<NadMapping>, vmis: &[VmiView]) -> Scenario {
        let server = Scenario::answering(move |request| match (request.method.as_str(), &there) {
            ("GET", None) => (404, Scenario::status(404, "NotFound", "configmaps \"harvester-nad-mapping\" not found")),
            ("GET", Some(object)) => (200, object.clone()),
            _ => (200, request.body.clone()),
        });
        let cache = Cache::in_memory(|old, new| old != new, vmis.iter().map(|vmi| (vmi.name.clone(), vmi.clone())));
        let metrics = Arc::new(Metrics::register(&mut Registry::default()));
        let cluster = Identity::known("demo");
        let mut writer = Writer::new(server.client(), cluster, cache, MappingSource::in_memory(watched), metrics);
        let (events, _told) = Recorder::to_channel("test");
        assert_eq!(writer.sync(&events).await.unwrap(), None);
        server
    }

    fn known() -> NadMapping {
        serde_json::from_str::<BTreeMap<String, String>>(VALUE).map(NadMapping::Known).unwrap()
    }

    /// W-11, W-44.
    #[tokio::test(start_paused = true)]
    async fn a_cluster_without_a_name_is_told_so_once_and_writes_no_mapping() {
        let log = Lines::default();
        let _collecting = log.collect();
        let server = Scenario::answering(|_| (404, Scenario::status(404, "NotFound", "not found")));
        let vmis = Cache::in_memory(|old, new| old != new, [("a".to_owned(), machine())]);
        let metrics = Arc::new(Metrics::register(&mut Registry::default()));
        let (cluster, mapping) = (Identity::known("kubernetes"), MappingSource::in_memory(None));
        let (events, _told) = Recorder::to_channel("test");
        let running = tokio::spawn(Writer::new(server.client(), cluster, vmis.clone(), mapping, metrics).run(events));
        for minute in 0..10 {
            vmis.apply("a".to_owned(), VmiView { uid: minute.to_string(), ..machine() });
            tokio::time::sleep(Duration::from_mins(1)).await;
        }
        assert_eq!(log.count("no NAD mapping without a name for this cluster"), 1, "{}", log.text());
        assert_eq!(server.requests(), []);
        running.abort();
    }

    /// Without damping: two writes per second, for ever.
    #[tokio::test(start_paused = true)]
    async fn who_undoes_the_mapping_is_answered_more_seldom_each_time_and_named_once() {
        let theirs = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": NAMESPACE, "uid": "u", "resourceVersion": "7",
                "managedFields": [{"manager": "argocd-controller", "operation": "Update",
                    "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:data": {}}}]},
            "data": {KEY: ""}
        });
        let server = Scenario::answering(move |request| match request.method.as_str() {
            "GET" => (200, theirs.clone()),
            _ => (200, request.body.clone()),
        });
        let vmis = Cache::in_memory(|old, new| old != new, [("a".to_owned(), machine())]);
        let mapping = MappingSource::in_memory(Some(NadMapping::Empty));
        let metrics = Arc::new(Metrics::register(&mut Registry::default()));
        let (events, mut told) = Recorder::to_channel("test");
        let writer = Writer::new(server.client(), Identity::known("demo"), vmis.clone(), mapping.clone(), metrics);
        let running = tokio::spawn(writer.run(events));
        for _ in 0..3600 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            // The watch shows each write, and what undoes it.
            mapping.cache.apply(NAME.to_owned(), known());
            mapping.cache.apply(NAME.to_owned(), NadMapping::Empty);
        }
        let writes = server.writes().len();
        assert!((6..30).contains(&writes), "{writes}");
        let events: Vec<_> = std::iter::from_fn(|| told.try_recv().ok()).collect();
        assert_eq!(events.iter().map(|event| event.reason.as_str()).collect::<Vec<_>>(), ["UndoneByOthers"]);
        assert_eq!((events[0].object.name.as_deref(), events[0].object.uid.as_deref()), (Some(NAME), Some("u")));
        let message = &events[0].message;
        assert!(message.contains("\"argocd-controller\" (Update at 2026-01-01T00:00:00Z)"), "{message}");
        // What is new is written at once.
        let mut other = machine();
        other.interfaces[0].interface_name = "enp9s0".into();
        vmis.apply("a".to_owned(), other);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(server.writes().len(), writes + 1);
        running.abort();
    }

    /// ../golden 00-node-init.
    #[tokio::test]
    async fn the_first_mapping_is_created_with_nothing_but_its_key() {
        let writes = sync(None, None, &[machine()]).await.writes();
        assert_eq!(writes.len(), 1);
        assert_eq!(
            (writes[0].method.as_str(), writes[0].path.as_str()),
            ("POST", "/api/v1/namespaces/kube-system/configmaps")
        );
        assert_eq!(writes[0].body["metadata"], json!({"name": "harvester-nad-mapping", "namespace": "kube-system"}));
        assert_eq!(writes[0].body["data"], json!({"interface-nad-mapping": VALUE}));
    }

    #[tokio::test]
    async fn an_unchanged_mapping_costs_no_request() {
        assert_eq!(sync(None, Some(known()), &[machine()]).await.requests(), []);
    }

    #[tokio::test]
    async fn what_others_put_into_the_config_map_stays() {
        let there = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": NAMESPACE, "resourceVersion": "7", "labels": {"a": "b"}},
            "data": {"other": "x", KEY: ""}
        });
        let writes = sync(Some(there), Some(NadMapping::Empty), &[machine()]).await.writes();
        assert_eq!(writes.len(), 1);
        assert_eq!(writes[0].method, "PUT");
        assert_eq!(writes[0].body["metadata"]["resourceVersion"], "7");
        assert_eq!(writes[0].body["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(writes[0].body["data"], json!({"other": "x", KEY: VALUE}));
    }

    /// W-15.
    #[tokio::test]
    async fn without_anything_to_tell_the_last_mapping_is_kept() {
        assert_eq!(sync(None, Some(known()), &[]).await.requests(), []);
    }
}
