//! Takes a Service over: the finalizer is added, and with it what preserves the requests on the Service.

use std::sync::Arc;

use runtime::error::is_absent;
use tokio::time::Instant;

use super::memory::ServiceState;
use super::pause::{not_after, wait};
use super::reports::Failing;
use super::shown::timestamp;
use super::{AFTER_CONFLICT, ServiceController, condition};
use crate::provider::{Ensured, ProviderError, Waiting};
use crate::view::ServiceView;
use crate::worker::Next;

impl ServiceController {
    /// Adds the finalizer, and returns the Service as it was written. `Err`: the pass ends, with the time of the next
    /// attempt.
    pub(super) async fn take_over(
        &self,
        service: &Arc<ServiceView>,
        memory: &mut ServiceState,
    ) -> Result<Arc<ServiceView>, Next> {
        let annotations = match self.provider.at_first_sight(service) {
            Ok(annotations) => annotations,
            Err(waiting) => return Err(self.not_known_yet(service, waiting, memory).await),
        };
        let ready = condition::first(service, self.provider.announced(), &timestamp());
        match self.writer.add_finalizer(service, &annotations, ready.as_ref()).await {
            Ok(written) => {
                let written = Arc::new(written);
                memory.written.note(service.resource_version.clone(), Arc::clone(&written));
                memory.served = Some(Arc::clone(&written));
                self.tell(&written, memory.reports.began());
                Ok(written)
            }
            // The Service was deleted meanwhile; the watch will report it.
            Err(error) if is_absent(&error) => Err(Next::After(AFTER_CONFLICT)),
            Err(error) => {
                Err(self.failed(service, "failed to add load balancer cleanup finalizer", &error, false, memory))
            }
        }
    }

    /// Ends the pass over a Service of which it is not known yet what has to be preserved. After the finalizer, a
    /// request of another program would look like an address that this controller has granted. So nothing is written,
    /// except that the user is told what only the user can change.
    async fn not_known_yet(&self, service: &ServiceView, waiting: Waiting, memory: &mut ServiceState) -> Next {
        let next = self.show_trouble(service, &waiting, memory).await;
        let answer = Ensured::Waiting(waiting);
        self.tell(service, memory.reports.ensured(Instant::now(), &answer, !service.ingress.is_empty()));
        next
    }

    /// Shows by condition what only the user can change.
    async fn show_trouble(&self, service: &ServiceView, waiting: &Waiting, memory: &mut ServiceState) -> Next {
        let next = wait(waiting);
        if !waiting.needs_user {
            return next;
        }
        let answer = Ensured::Waiting(waiting.clone());
        let later = self.show(service, Ok(&answer), memory).await;
        later.map_or(next, |later| not_after(next, later))
    }

    /// Ends the pass over a Service that waits until the load balancer of the one that had its name before is deleted.
    pub(super) async fn waits_for_former(
        &self,
        service: &ServiceView,
        waiting: Waiting,
        failing: Failing,
        memory: &mut ServiceState,
    ) -> Next {
        if failing.is_told_to_next() {
            self.not_known_yet(service, waiting, memory).await
        } else {
            self.show_trouble(service, &waiting, memory).await
        }
    }

    /// Tells a Service that this deletion, or the look for what there is to delete, has failed.
    pub(super) async fn former_fails(
        &self,
        service: &ServiceView,
        error: &ProviderError,
        failing: Failing,
        memory: &mut ServiceState,
    ) {
        self.show(service, Err(error), memory).await;
        if failing.is_told_to_next() {
            let step = "failed to delete load balancer of the former Service of this name";
            self.failed(service, step, error, false, memory);
        }
    }
}
