//! Translates the host's messages about a LoadBalancer without an address into texts for the user (Harvester spec
//! 3.6, 8.2). Pure.
//!
//! The text for a problem stays the same over time, so that one problem leads to one Event.

use std::time::Duration;

use harvester_api::keys::{cloudprovider, loadbalancer};
use harvester_api::load_balancer::{NO_ALLOCATOR, NotReady};

use super::view::LbView;
use super::wait_reason::{Wait, WaitReason};

/// How long the host may take to process a new object before the user is told to check the host (Harvester spec 6).
pub const HOST_SILENT: Duration = Duration::from_secs(30);

/// How long the host's message that it does not know a pool is ignored: after a restart of its controller it reports
/// this for every pool (Harvester spec 3.6, 8.2).
pub const POOL_UNKNOWN: Duration = Duration::from_secs(10);

/// How long a collision that the host reports, and an object that is ready without an address, count as a phase. As a
/// rule both pass within seconds.
pub const PASSES: Duration = Duration::from_mins(2);

/// Interval at which an object is sent again whose network or project the host could not determine: only a write runs
/// the host's webhook again (Harvester spec 3.5).
pub const READMIT_INTERVAL: Duration = Duration::from_secs(30);

/// Shortest interval between changes to an object that waits for an exhausted pool. The host's back-off grows up to two
/// minutes, and a change ends it (decision 13).
pub const NUDGE_INTERVAL: Duration = Duration::from_mins(1);

/// End of the texts for a Service without an address that needs an action of the user.
pub const GETS_ONE: &str = "The Service gets an address by itself then";

/// The same for a Service that is to move: it has an address, and keeps it until then.
pub const MOVES: &str = "The Service moves by itself then";

/// The reason why there is no address, and whether a request may help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoAddress {
    /// The reason.
    pub waiting: Wait,
    /// Set if sending the object again at intervals may help.
    pub resend: Option<Resend>,
}

/// How long an object has been without an address.
#[derive(Debug, Clone, Copy)]
pub struct Waited {
    /// How long the object has been known.
    pub known: Duration,
    /// How long it has waited since it was last sent.
    pub idle: Duration,
}

/// Why the object should be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resend {
    /// To run the host's webhook once more; nothing has to change.
    Readmit,
    /// To end the back-off of the host's controller; something has to change.
    Nudge,
}

impl Resend {
    /// The interval.
    pub fn interval(self) -> Duration {
        match self {
            Self::Readmit => READMIT_INTERVAL,
            Self::Nudge => NUDGE_INTERVAL,
        }
    }
}

/// The reason for a LoadBalancer without a usable address. `then`: the sentence about what follows when it gets one.
pub fn no_address(lb: &LbView, (cluster, namespace): (&str, &str), then: &str, waited: Waited) -> NoAddress {
    let message = lb.ready.as_ref().map_or("", |ready| ready.message.as_str());
    let text = format!("ip is not allocated, mode: {}, message: {message}", lb.effective_ipam());
    match &lb.ready {
        None => silent_host(&text, waited.known),
        // Ready without an address is normal during a switch of the pool, and between two writes of the host.
        Some(ready) if ready.status => {
            should_pass(&text, WaitReason::HostSilent, "shown no address of the object that can be used", waited.idle)
        }
        Some(_) => match NotReady::classify(message) {
            NotReady::Transient => should_pass(&text, WaitReason::Refused, "tried that in vain", waited.idle),
            NotReady::NoAllocator => no_such_pool(lb, &text, then, waited.known),
            NotReady::NoMatchingPool => no_matching_pool(lb, &text, (cluster, namespace), then),
            NotReady::PoolExhausted => NoAddress {
                waiting: Wait {
                    reason: WaitReason::PoolExhausted,
                    message: format!(
                        "{text}. The IPPool on Harvester is used up: enlarge it, or delete Services that need no \
                         address. {then}"
                    ),
                    needs_user: true,
                    retry_after: Some(NUDGE_INTERVAL),
                },
                resend: Some(Resend::Nudge),
            },
            NotReady::Other => NoAddress {
                waiting: Wait {
                    reason: WaitReason::Refused,
                    message: format!(
                        "{text}. Harvester refuses for this reason and tries again by itself; its administrator sees \
                         it on LoadBalancer {namespace}/{}",
                        lb.name
                    ),
                    needs_user: true,
                    retry_after: None,
                },
                resend: None,
            },
        },
    }
}

/// A state of the host that passes by itself, or lasts for so long that somebody has to look at the host. `lasts`: the
/// reason then; `what`: what its controller did meanwhile.
fn should_pass(text: &str, lasts: WaitReason, what: &str, idle: Duration) -> NoAddress {
    let left = PASSES.saturating_sub(idle);
    let (reason, message, retry_after) = if left.is_zero() {
        let message = format!(
            "{text}. Harvester's load balancer controller has {what} for more than {} min: see the log of \
             harvester-load-balancer in namespace harvester-system of Harvester",
            PASSES.as_secs() / 60
        );
        (lasts, message, None)
    } else {
        (WaitReason::Allocation, text.to_owned(), Some(left))
    };
    NoAddress { waiting: Wait { reason, message, needs_user: left.is_zero(), retry_after }, resend: None }
}

/// The controller may not read the host's pools, so the host's message is the only information.
fn no_such_pool(lb: &LbView, text: &str, then: &str, age: Duration) -> NoAddress {
    let left = POOL_UNKNOWN.saturating_sub(age);
    if !left.is_zero() {
        let (reason, message) = (WaitReason::Allocation, text.to_owned());
        return NoAddress {
            waiting: Wait { reason, message, needs_user: false, retry_after: Some(left) },
            resend: None,
        };
    }
    let said = lb.ready.as_ref().and_then(|ready| ready.message.strip_prefix(NO_ALLOCATOR));
    let pool = said.or(lb.wanted_pool.as_deref()).unwrap_or_default().trim();
    let message = format!(
        "{text}. IPPool {pool} does not exist on Harvester, or Harvester has just restarted: correct or remove \
         annotation {}, or make the IPPool. {then}",
        cloudprovider::IP_POOL
    );
    let reason = WaitReason::NoSuchPool;
    // The host's controller does not react to changes of pools, and its back-off grows to two minutes.
    let retry_after = Some(NUDGE_INTERVAL);
    NoAddress { waiting: Wait { reason, message, needs_user: true, retry_after }, resend: Some(Resend::Nudge) }
}

fn silent_host(text: &str, age: Duration) -> NoAddress {
    let silent = age >= HOST_SILENT;
    let message = if silent {
        format!(
            "{text}. Harvester's load balancer controller has not looked at the object for more than {} s: see \
             whether harvester-load-balancer runs in namespace harvester-system of Harvester",
            HOST_SILENT.as_secs()
        )
    } else {
        text.to_owned()
    };
    NoAddress {
        waiting: Wait {
            reason: if silent { WaitReason::HostSilent } else { WaitReason::Allocation },
            message,
            needs_user: silent,
            retry_after: (!silent).then(|| HOST_SILENT.saturating_sub(age)),
        },
        resend: None,
    }
}

fn no_matching_pool(lb: &LbView, text: &str, (cluster, namespace): (&str, &str), then: &str) -> NoAddress {
    let network = lb.annotation(loadbalancer::NETWORK);
    let (remedy, retry_after, resend) = if network.is_empty() {
        let remedy = format!(
            "Harvester could not tell the network of this cluster: set --management-network, or give the VMs in \
             namespace {namespace} the label guestcluster.harvesterhci.io/name={cluster}"
        );
        (remedy, Some(READMIT_INTERVAL), Some(Resend::Readmit))
    } else {
        let remedy = format!(
            "Make an IPPool on Harvester for network {network} whose scope covers namespace {namespace} and guest \
             cluster {cluster}, or change an existing one"
        );
        (remedy, None, None)
    };
    NoAddress {
        waiting: Wait {
            reason: WaitReason::NoMatchingPool,
            message: format!("{text}. {remedy}. {then}"),
            needs_user: true,
            retry_after,
        },
        resend,
    }
}

#[cfg(test)]
mod tests {
    use super::super::build;
    use super::*;

    fn tell(message: Option<&str>, network: &str) -> NoAddress {
        let mut lb = build::lb("x").network_of_host(network).done();
        if let Some(message) = message {
            lb = LbView { ready: Some(super::super::view::Ready { status: false, message: message.into() }), ..lb };
        }
        after(&lb, Duration::ZERO)
    }

    fn after(lb: &LbView, time: Duration) -> NoAddress {
        no_address(lb, ("demo", "guests"), GETS_ONE, Waited { known: time, idle: time })
    }

    #[test]
    fn a_busy_host_is_no_trouble_of_the_user() {
        for message in [
            "fail to reserve 10.0.0.1 into edge",
            "10.0.0.1 has been allocated to a/b, duplicate allocation is not allowed",
        ] {
            let told = tell(Some(message), "guests/mgmt");
            assert!(!told.waiting.needs_user && told.resend.is_none(), "{told:?}");
            assert_eq!(told.waiting.message, format!("ip is not allocated, mode: pool, message: {message}"));
            assert_eq!((told.waiting.reason, told.waiting.retry_after), (WaitReason::Allocation, Some(PASSES)));
        }
    }

    /// Both were told to nobody, however long they lasted.
    #[test]
    fn a_collision_and_a_ready_object_without_an_address_become_the_users_trouble_when_they_last() {
        let collides = build::lb("x").not_ready("fail to reserve 10.0.0.1 into edge").done();
        let ready = LbView { usable_address: None, ..build::lb("x").ready("10.0.0.1").done() };
        for (lb, reason, part) in [
            (collides, WaitReason::Refused, "fail to reserve 10.0.0.1 into edge. Harvester's load balancer controller"),
            (ready, WaitReason::HostSilent, "shown no address of the object"),
        ] {
            let soon = after(&lb, Duration::from_secs(119));
            assert_eq!((soon.waiting.needs_user, soon.waiting.retry_after), (false, Some(Duration::from_secs(1))));
            let late = after(&lb, PASSES);
            assert!(late.waiting.needs_user && late.waiting.message.contains(part), "{}", late.waiting.message);
            assert_eq!((late.waiting.reason, late.resend), (reason, None));
            assert_eq!(late, after(&lb, Duration::from_hours(9)), "one trouble, one Event");
            // An old object that collides again is no trouble yet.
            let again = Waited { known: Duration::from_hours(9), idle: Duration::from_secs(3) };
            assert!(!no_address(&lb, ("demo", "guests"), GETS_ONE, again).waiting.needs_user);
        }
    }

    /// It used to be a busy host's word for ever, and nobody learnt of a mistyped name.
    #[test]
    fn a_pool_that_does_not_exist_becomes_the_users_trouble_after_ten_seconds() {
        let lb = build::lb("x").not_ready("fail to get allocator nosuch").done();
        let soon = after(&lb, Duration::from_secs(4));
        assert!(!soon.waiting.needs_user && soon.resend.is_none(), "a host that starts says so of every pool");
        assert_eq!(soon.waiting.retry_after, Some(Duration::from_secs(6)));
        let late = after(&lb, Duration::from_secs(10));
        assert!(late.waiting.needs_user);
        assert_eq!((late.waiting.reason, late.resend), (WaitReason::NoSuchPool, Some(Resend::Nudge)));
        for part in ["IPPool nosuch does not exist on Harvester, or Harvester has just restarted", "/ippool"] {
            assert!(late.waiting.message.contains(part), "{}", late.waiting.message);
        }
        assert_eq!(late, after(&lb, Duration::from_mins(15)), "one trouble, one Event");
    }

    #[test]
    fn no_matching_pool_tells_which_pool_would_match() {
        let message =
            "no matched IPPool with requirement &{Network:guests/mgmt Project: Namespace:guests Cluster:demo}";
        let told = tell(Some(message), "guests/mgmt");
        assert!(told.waiting.needs_user && told.resend.is_none() && told.waiting.retry_after.is_none());
        assert!(
            told.waiting
                .message
                .starts_with(&format!("ip is not allocated, mode: pool, message: {message}. Make an IPPool"))
        );
        for part in ["network guests/mgmt", "namespace guests", "guest cluster demo"] {
            assert!(told.waiting.message.contains(part), "{}", told.waiting.message);
        }
    }

    /// Harvester spec 3.5.
    #[test]
    fn an_object_whose_network_the_host_could_not_tell_is_sent_again() {
        let told = tell(Some("no matched IPPool with requirement &{Network: }"), "");
        assert_eq!((told.resend, told.waiting.retry_after), (Some(Resend::Readmit), Some(READMIT_INTERVAL)));
        assert!(told.waiting.needs_user && told.waiting.message.contains("--management-network"));
    }

    #[test]
    fn an_exhausted_pool_asks_for_a_larger_one_and_is_looked_at_each_minute() {
        let told =
            tell(Some("fail to get ip from pool edge, error: no IP addresses available in range set: a-b"), "n/n");
        assert!(told.waiting.needs_user && told.waiting.message.contains("enlarge it"));
        assert_eq!(told.resend, Some(Resend::Nudge));
    }

    #[test]
    fn a_host_that_never_looked_becomes_the_users_trouble_after_half_a_minute() {
        let lb = build::lb("x").done();
        let soon = after(&lb, Duration::from_secs(10));
        assert_eq!((soon.waiting.reason, soon.waiting.needs_user), (WaitReason::Allocation, false));
        assert_eq!(soon.waiting.retry_after, Some(Duration::from_secs(20)));
        let late = after(&lb, Duration::from_secs(30));
        assert!(late.waiting.needs_user && late.waiting.message.contains("harvester-load-balancer"));
        assert_eq!(late.waiting.message, after(&lb, Duration::from_mins(15)).waiting.message, "one trouble, one Event");
    }
}
