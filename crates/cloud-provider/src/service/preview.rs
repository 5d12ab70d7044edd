//! Preview of what the first pass over a Service would write: the decisions of the controller, without its requests.

use runtime::error::chain;

use super::condition;
use super::decide::{Release, Step, add_finalizer_patch, decide, release_patch};
use super::shown::timestamp;
use crate::outlook::{Outlook, Target, Write};
use crate::provider::{Deleted, Ensured, LoadBalancers, ProviderError, Waiting};
use crate::view::ServiceView;

/// Previews the pass of a process that has not seen the Service before.
pub(crate) fn preview(provider: &dyn LoadBalancers, service: &ServiceView) -> Outlook {
    let mut outlook = Outlook::default();
    let step = decide(Some(service), None);
    if step != Step::Nothing
        && let Some(hold) = provider.hold(service)
    {
        outlook.note(Target::service(service), hold.reason, hold.message.clone(), false);
        return outlook;
    }
    match step {
        Step::Nothing | Step::DeleteRemembered(_) => {}
        Step::Ensure { add_finalizer } => ensure(provider, service, add_finalizer, &mut outlook),
        Step::Cleanup(release) => clean_up(provider, service, release, &mut outlook),
    }
    outlook
}

fn ensure(provider: &dyn LoadBalancers, service: &ServiceView, add_finalizer: bool, outlook: &mut Outlook) {
    let mut written = service.clone();
    if add_finalizer {
        let annotations = match provider.at_first_sight(service) {
            Ok(annotations) => annotations,
            Err(waiting) => return waits(service, waiting, outlook),
        };
        let ready = condition::first(service, provider.announced(), &timestamp());
        let patch = add_finalizer_patch(service, &annotations, ready.as_ref());
        outlook.writes.push(Write::patch(Target::service(service), patch));
        if ready.is_some() {
            written.conditions.ready = ready;
        }
        for (key, value) in &annotations {
            match value {
                Some(value) => written.annotations.insert(key, value),
                None => written.annotations.remove(key),
            }
        }
    }
    let (writes, answer) = provider.preview(&written);
    outlook.writes.extend(writes);
    let text = answer.as_ref().err().map(|error| chain(error)).unwrap_or_default();
    let wanted = condition::after(&written, answer.as_ref(), &text, provider.announced(), &timestamp());
    if let Some(patch) = condition::patch(&written, &wanted) {
        outlook.writes.push(Write::patch(Target::service(service), patch));
    }
    match answer {
        Ok(Ensured::Ready { remark: None, .. }) => {}
        Ok(Ensured::Ready { remark: Some(remark), .. }) => {
            outlook.note(Target::service(service), remark.reason, remark.message, remark.warning);
        }
        Ok(Ensured::Waiting(waiting)) => waits(service, waiting, outlook),
        Err(error) => failed(service, &error, outlook),
    }
}

fn clean_up(provider: &dyn LoadBalancers, service: &ServiceView, release: Release, outlook: &mut Outlook) {
    let (writes, answer) = provider.preview_deletion(service);
    outlook.writes.extend(writes);
    let existed = match answer {
        Ok(Deleted::Gone { existed }) => existed,
        Ok(Deleted::Left(remark)) => {
            outlook.note(Target::service(service), remark.reason, remark.message, remark.warning);
            true
        }
        Ok(Deleted::Waiting(waiting)) => return waits(service, waiting, outlook),
        Err(error) => return failed(service, &error, outlook),
    };
    if let Some(patch) = release_patch(service, release == Release::Ours || existed) {
        outlook.writes.push(Write::patch(Target::service(service), patch));
    }
}

fn waits(service: &ServiceView, waiting: Waiting, outlook: &mut Outlook) {
    outlook.note(Target::service(service), waiting.reason, waiting.message, waiting.needs_user);
}

fn failed(service: &ServiceView, error: &ProviderError, outlook: &mut Outlook) {
    let reason = if error.reason.is_empty() { "Failed" } else { error.reason };
    outlook.note(Target::service(service), reason, chain(error), true);
}
