//! Preview of what a pass over a Node would write: the decisions of the controller, without requests that write.

use runtime::error::chain;

use super::{is_uninitialized, plan};
use crate::outlook::{Outlook, Target, Write};
use crate::provider::Instances;
use crate::start::Settings;
use crate::view::NodeView;

/// Previews the pass. A move of the machine is believed at once, while the controller waits for a moment.
pub(crate) async fn preview(provider: &dyn Instances, node: &NodeView, settings: &Settings) -> Outlook {
    let mut outlook = Outlook::default();
    let uninitialized = is_uninitialized(node);
    let held = provider.hold().is_some_and(|hold| !(hold.initialises_nodes && uninitialized));
    if node.deleting || held {
        return outlook;
    }
    let rules = plan::Rules { follow_topology: settings.follow_topology, obey_node_ip: settings.obey_node_ip };
    let planned = match provider.metadata(node).await {
        Ok(machine) => plan::plan(node, &machine, rules).map_err(|error| chain(&error)),
        Err(error) => Err(chain(&error)),
    };
    match planned {
        Ok(plan) => {
            let version = &node.resource_version;
            let patches = [plan.status_patch(version), plan.node_patch(version)];
            outlook.writes.extend(patches.into_iter().flatten().map(|patch| Write::patch(Target::node(node), patch)));
        }
        Err(text) => outlook.note(Target::node(node), "MachineNotKnown", text, uninitialized),
    }
    outlook
}
