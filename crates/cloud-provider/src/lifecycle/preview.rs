//! Preview of what the controller would do to Nodes that are not Ready: the same decisions, without requests that
//! write.

use std::sync::Arc;

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::at_once::{Allowed, allowed};
use super::decide::{self, Action, Circumstances, MachineHistory};
use super::{PARALLEL, ask};
use crate::node::taints_value;
use crate::outlook::{Outlook, Place, Target, Verb, Write};
use crate::provider::Instances;
use crate::view::NodeView;

/// Makes two checks of each machine like the controller, but without the time between them.
pub(crate) async fn preview(provider: &dyn Instances, nodes: &[Arc<NodeView>]) -> Outlook {
    let looks = futures::stream::iter(nodes).map(|node| async move { (node, ask(provider, node).await) });
    let answered: Vec<_> = looks.buffered(PARALLEL).collect().await;
    let mut outlook = Outlook::default();
    let mut doomed = Vec::new();
    for (node, answers) in answered {
        let now = Instant::now();
        let circumstances = Circumstances { out_of_service_after: None, steady_since: Some(now), now };
        let look = |before: &MachineHistory| decide::decide(node, answers.clone(), before, circumstances);
        let first = look(&MachineHistory::default());
        // What keeps the Node is told once, by the first look.
        let second = look(&first.history).action;
        match if second == Action::Nothing { first.action } else { second } {
            Action::Nothing | Action::Watch(_) => {}
            Action::Keep(why) | Action::KeepElsewhere(why) => outlook.note(Target::node(node), "NodeKept", why, false),
            Action::SetTaints(taints) | Action::Confirm(_, taints) => {
                let body = json!({"spec": {"taints": taints_value(&taints)}});
                outlook.writes.push(Write::patch(Target::node(node), body));
            }
            Action::Delete(evidence) => doomed.push((node, evidence)),
        }
    }
    let refused = allowed(0, doomed.len(), nodes.len()) == Allowed::No;
    for (node, evidence) in doomed {
        let target = Target::node(node);
        if refused {
            let message = format!("{evidence}, but the machines of more than a third of all Nodes are gone");
            outlook.note(target, "NodesNotDeleted", message, true);
        } else {
            outlook.writes.push(Write {
                place: Place::Guest,
                verb: Verb::Delete,
                target,
                why: evidence,
                body: Value::Null,
            });
        }
    }
    outlook
}
