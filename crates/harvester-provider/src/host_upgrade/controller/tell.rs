//! Writes the log lines and Events of one step of an upgrade, each on the object that it is about.

use k8s_openapi::api::core::v1::ObjectReference;
use runtime::events::{EventKind, Recorder, reference};

use super::super::decide::{About, Step, UpgradeEvent};
use super::super::status;
use super::Controller;
use crate::events::config_map;

impl Controller {
    pub(super) fn tell(&self, step: &Step, events: &Recorder) {
        for UpgradeEvent { about, warning, reason, message } in &step.told {
            let kind = if *warning { EventKind::Warning } else { EventKind::Normal };
            match about {
                About::Node(name) => {
                    tracing::info!(node = name, "{message}");
                    events.record(&self.node(name), kind, reason, message);
                }
                About::Services => {
                    tracing::info!("{message}");
                    let all = self.sources.services.all();
                    for service in all.iter().filter(|service| service.is_load_balancer && !service.has_class) {
                        let (key, uid) = (&service.key, service.uid.0.clone());
                        let object = reference("Service", Some(&key.namespace), &key.name, Some(uid));
                        events.record(&object, kind, reason, message);
                    }
                }
                About::Upgrade => {
                    tracing::info!("{message}");
                    events.record(&config_map(status::NAME, self.uid.clone()), kind, reason, message);
                }
            }
        }
    }

    fn node(&self, name: &str) -> ObjectReference {
        // The kubelet's own Events carry the Node's name as UID; Events of the API server carry the real UID.
        let uid = self.sources.nodes.get(&name.to_owned()).map(|node| node.uid.0.clone());
        reference("Node", None, name, uid)
    }
}
