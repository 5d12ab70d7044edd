//! During an upgrade of the hosts, served load balancers are left alone and new ones wait patiently. Pure.

use std::time::Duration;

use cloud_provider::provider::{Ensured, HOST_UPGRADE, ProviderError, Waiting};
use cloud_provider::view::ServiceView;
use harvester_api::keys::kube_vip;
use runtime::error::chain;

use crate::host_upgrade::suspensions::SuspensionWindow;

/// Pause between attempts: a host that is being upgraded refuses for minutes at a time.
const PAUSE: Duration = Duration::from_secs(15);

/// The wait state of a Service with an address during an upgrade of the hosts. Anything wrong with its load balancer
/// may be caused by the upgrade, and is handled afterwards. A host that merely does not answer suspends nothing, and
/// cannot be asked anyway.
pub(super) fn served(service: &ServiceView, window: Option<SuspensionWindow>) -> Option<Waiting> {
    let window = window.filter(|window| window.upgrade)?;
    let served = !service.ingress.is_empty() && service.annotations.contains_key(kube_vip::LOADBALANCER_IPS);
    served.then(|| Waiting {
        reason: HOST_UPGRADE,
        message: format!("{}: the load balancer is left as it is until that is over", window.why),
        needs_user: false,
        failure: false,
        retry_after: None,
    })
}

/// Turns a failure during an upgrade of the hosts into a wait state: it is no news for the user of a new Service.
pub(super) fn patiently(
    result: Result<Ensured, ProviderError>,
    window: Option<SuspensionWindow>,
) -> Result<Ensured, ProviderError> {
    match (result, window.filter(|window| window.upgrade)) {
        (Err(error), Some(window)) if !error.permanent => Ok(Ensured::Waiting(Waiting {
            reason: HOST_UPGRADE,
            message: format!("{}: it is tried again. The last answer: {}", window.why, chain(&error)),
            needs_user: false,
            failure: true,
            retry_after: Some(PAUSE),
        })),
        (result, _) => result,
    }
}

/// Whether the API server failed to call a webhook of the host.
pub(super) fn is_webhook_failure(error: &ProviderError) -> bool {
    chain(error).contains("failed calling webhook")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(upgrade: bool) -> SuspensionWindow {
        SuspensionWindow { why: "hosts are being upgraded".into(), upgrade }
    }

    #[test]
    fn what_is_served_waits_for_the_end_of_an_upgrade_and_what_is_new_does_not() {
        let new = crate::load_balancers::build::service("default/web").done();
        let mut served_one = new.clone();
        served_one.ingress.push("10.0.0.5".parse().unwrap());
        served_one.annotations.insert(kube_vip::LOADBALANCER_IPS, "10.0.0.5");
        for (service, window, waits) in [
            (&new, Some(window(true)), false),
            (&served_one, Some(window(true)), true),
            (&served_one, Some(window(false)), false),
            (&served_one, None, false),
        ] {
            assert_eq!(served(service, window.clone()).is_some(), waits, "{window:?}");
        }
    }

    #[test]
    fn a_refusal_that_passes_is_waited_for_and_one_of_the_users_own_making_is_told() {
        let failed = || Err(ProviderError::new("failed calling webhook \"x\": connection refused"));
        assert!(is_webhook_failure(&failed().unwrap_err()));
        assert!(
            matches!(patiently(failed(), Some(window(true))), Ok(Ensured::Waiting(waiting)) if !waiting.needs_user)
        );
        assert!(patiently(failed(), Some(window(false))).is_err() && patiently(failed(), None).is_err());
        assert!(patiently(Err(ProviderError::new("no such network").permanent()), Some(window(true))).is_err());
    }
}
