//! Inputs, actions and answers in the words of a trace; and what is left out of it.

use announcer_core::engine::{Action, ClientEvent, DhcpEvent, Input, KernelOp};
use announcer_core::frames::Heard;

use crate::api::ApiAnswer;

/// Too frequent to be told.
pub fn is_dull_input(input: &Input) -> bool {
    match input {
        Input::Kernel(_) | Input::Member(..) | Input::Dhcp(_, _, ClientEvent::V4(DhcpEvent::State(_))) => true,
        Input::Heard(frame) => frame.what != Heard::Claim,
        _ => false,
    }
}

/// Too frequent to be told.
pub fn is_dull(action: &Action) -> bool {
    matches!(
        action,
        Action::Kernel(KernelOp::Put(_) | KernelOp::Extend(_) | KernelOp::Observe)
            | Action::Ask { .. }
            | Action::Membership(_)
            | Action::Claim(_)
    )
}

/// An input.
pub fn describe(input: &Input) -> String {
    match input {
        Input::Service(key, Some(view)) => {
            let published = &view.published;
            let (host, term) = (published.vip_host.as_deref().unwrap_or("nobody"), published.term.map(|term| term.0));
            format!("Service {key}: vipHost {host}, term {term:?}, {} in status", published.ingress.len())
        }
        Input::Heard(frame) => format!("{:?} of {} by {}", frame.what, frame.address, frame.mac),
        // The end as the Service has it: what it is on this machine's clock differs from run to run.
        Input::Dhcp(uid, client, ClientEvent::V4(DhcpEvent::Bound(lease))) => {
            format!("Dhcp {}, client {client}, bound: {:?}", uid.0, lease.facts)
        }
        Input::Dhcp(uid, client, ClientEvent::V4(DhcpEvent::Renewed(lease))) => {
            format!("Dhcp {}, client {client}, renewed: {:?}", uid.0, lease.facts)
        }
        other => format!("{other:?}"),
    }
}

/// An action.
pub fn short(action: &Action) -> String {
    match action {
        Action::Record(key, record) => {
            let ingress = record.ingress.as_ref().map(|all| all.iter().map(|(ip, _)| *ip).collect::<Vec<_>>());
            let host = record.vip_host.as_deref().unwrap_or("untouched");
            format!("Record on {key}: vipHost {host}, ingress {ingress:?}")
        }
        Action::Tell(key, tell) => format!("Tell {key} {}: {}", tell.reason, tell.text),
        Action::Announce { address, .. } => format!("Announce {address}"),
        Action::Probe { address, .. } => format!("Probe {address}"),
        // The end is a moment of the machine's clock, which no seed decides.
        Action::Kernel(KernelOp::Note { link, uid, .. }) => format!("Note on {link} that it is of {uid}"),
        other => format!("{other:?}"),
    }
}

/// An answer.
pub fn outcome(answer: &ApiAnswer) -> &'static str {
    match answer {
        ApiAnswer::Lease(_) | ApiAnswer::Service(Some(_)) | ApiAnswer::MemberFound(_) | ApiAnswer::MemberWritten(_) => {
            "ok"
        }
        ApiAnswer::LeaseWritten(_) => "written",
        ApiAnswer::Service(None) => "not found",
        ApiAnswer::Conflict => "409",
        ApiAnswer::Failed => "failed",
    }
}
