//! Preview of a pass over a Service: makes the same decisions, but sends no request.

use cloud_provider::preview::{Place, Target, Verb, Write};
use cloud_provider::provider::{Deleted, Ensured, ProviderError};
use cloud_provider::view::ServiceView;
use serde_json::{Value, json};

use super::super::desired::{self, Change};
use super::super::plan::{self, Action, DeletePlan, Plan, PlanVerdict};
use super::{HarvesterLoadBalancers, Now, refused, soon};

impl HarvesterLoadBalancers {
    fn write(&self, verb: Verb, name: &str, body: Value) -> Write {
        let target = Target { kind: "LoadBalancer", namespace: self.given.namespace.clone(), name: name.to_owned() };
        Write { place: Place::Cloud, verb, target, why: String::new(), body }
    }

    /// Previews the pass. What the decision claims for this Service stays claimed, as if the requests had been sent, so
    /// that the next Service takes it into account.
    pub(super) fn foresee(&self, service: &ServiceView) -> (Vec<Write>, Result<Ensured, ProviderError>) {
        if let Some(wait) = self.not_synced(false) {
            return (Vec::new(), Ok(Ensured::Waiting(wait.into())));
        }
        let config = self.config();
        let owned = self.owned(service, &config);
        let Plan { actions, verdict } = self.decide(service, &config, &owned, Now::read());
        let writes: Vec<Write> =
            actions.into_iter().map(|action| self.write_of(service, &owned.name, action)).collect();
        let changed = !writes.is_empty();
        let answer = match verdict {
            PlanVerdict::Ready => Ok(Ensured::ready(changed)),
            PlanVerdict::Served(less) => Ok(Ensured::Ready { changed, remark: Some(less.remark()) }),
            PlanVerdict::Waiting(wait) => Ok(Ensured::Waiting(wait.into())),
            PlanVerdict::Refused(refusal) => Err(refused(&refusal)),
        };
        (writes, answer)
    }

    fn write_of(&self, service: &ServiceView, name: &str, action: Action) -> Write {
        match action {
            Action::Create(object) => {
                let name = object.metadata.name.clone().unwrap_or_default();
                self.write(Verb::Create, &name, serde_json::to_value(object).unwrap_or_default())
            }
            Action::Update { changes, .. } => self.write(Verb::Update, name, merge_patch(&changes)),
            Action::Rename { name, changes, .. } => self.write(Verb::Update, &name, merge_patch(&changes)),
            Action::Readmit { .. } => self.write(Verb::Update, name, json!({})),
            Action::Delete { name, .. } => self.write(Verb::Delete, &name, Value::Null),
            Action::Patch(patch) => Write::patch(Target::service(service), patch.body(&service.uid.0)),
        }
    }

    /// Previews the deletion of the Service's object. Further objects are left to the next pass.
    pub(super) fn foresee_deletion(&self, service: &ServiceView) -> (Vec<Write>, Result<Deleted, ProviderError>) {
        if let Some(wait) = self.not_synced(false) {
            return (Vec::new(), Ok(Deleted::Waiting(wait.into())));
        }
        let config = self.config();
        if let Some(name) = plan::abandoned(service, [self.owned(service, &config).name]) {
            let message =
                format!("load balancer {}/{name} is left behind, as its annotation asks", self.given.namespace);
            return (Vec::new(), Ok(Deleted::Waiting(soon(message).into())));
        }
        let Some(lb) = self.owned(service, &config).lb else {
            return (Vec::new(), Ok(Deleted::Gone { existed: false }));
        };
        match self.plan_deletion(service, &lb.name) {
            DeletePlan::HandedOver | DeletePlan::Verify => (Vec::new(), Ok(Deleted::Gone { existed: false })),
            DeletePlan::Soon(message) => (Vec::new(), Ok(Deleted::Waiting(soon(message).into()))),
            DeletePlan::Send { .. } => {
                let message =
                    format!("load balancer {}/{} is being deleted on Harvester", self.given.namespace, lb.name);
                (vec![self.write(Verb::Delete, &lb.name, Value::Null)], Ok(Deleted::Waiting(soon(message).into())))
            }
            DeletePlan::HandOver { heir, changes, .. } => {
                let message = format!("load balancer {}/{} goes on with service {heir}", self.given.namespace, lb.name);
                let write = self.write(Verb::Update, &lb.name, merge_patch(&changes));
                (vec![write], Ok(Deleted::Waiting(soon(message).into())))
            }
            DeletePlan::Waiting(wait) => (Vec::new(), Ok(Deleted::Waiting(wait.into()))),
            DeletePlan::Refused(refusal) => (Vec::new(), Err(refused(&refusal))),
        }
    }
}

/// The effect of a PUT with these changes, as a merge patch; null removes.
fn merge_patch(changes: &[Change]) -> Value {
    let mut patch = json!({});
    desired::apply(&mut patch, changes);
    for change in changes {
        match change {
            Change::NoAnnotation(key) => patch["metadata"]["annotations"][*key] = Value::Null,
            Change::NoPool => patch["spec"]["ipPool"] = Value::Null,
            _ => {}
        }
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_removed_is_shown_too() {
        let patch = merge_patch(&[Change::NoAnnotation("a"), Change::NoPool, Change::Label("l", "v".into())]);
        let expected =
            json!({"metadata": {"annotations": {"a": null}, "labels": {"l": "v"}}, "spec": {"ipPool": null}});
        assert_eq!(patch, expected);
    }
}
