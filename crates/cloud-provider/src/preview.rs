//! Preview of what the controllers would write now: their decisions, made once for each object, without writing.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;

pub use crate::outlook::{Outlook, OutlookNote, Place, Target, Verb, Write};

use crate::controllers::{Controller, Controllers};
use crate::provider::{Instances, LoadBalancers};
use crate::start::{Caches, Settings};
use crate::view::ServiceView;
use crate::{lifecycle, node, service};

/// Number of machines that the cloud is asked about concurrently.
const PARALLEL: usize = 8;

/// The first pass of each selected controller over each object. Later passes depend on answers that do not exist yet,
/// such as the address that the cloud allocates for a new load balancer.
pub async fn outlook(
    caches: &Caches,
    load_balancers: &dyn LoadBalancers,
    instances: &dyn Instances,
    settings: &Settings,
) -> Outlook {
    let chosen = |controllers: &Controllers, controller| controllers.has(controller);
    let mut outlook = Outlook::default();
    let mut nodes = caches.nodes.all();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    if chosen(&settings.controllers, Controller::Node) {
        let looks = futures::stream::iter(&nodes).map(|node| node::preview(instances, node, settings));
        let found: Vec<Outlook> = looks.buffered(PARALLEL).collect().await;
        for found in found {
            outlook.extend(found);
        }
    }
    if chosen(&settings.controllers, Controller::NodeLifecycle) && instances.hold().is_none() {
        outlook.extend(lifecycle::preview(instances, &nodes).await);
    }
    if chosen(&settings.controllers, Controller::Service) && instances.hold().is_none() {
        let services: BTreeMap<_, Arc<ServiceView>> =
            caches.services.all().into_iter().map(|service| (service.key.clone(), service)).collect();
        for service in services.values() {
            outlook.extend(service::preview(load_balancers, service));
        }
    }
    outlook
}
