//! Decides whether a machine is switched off (Harvester spec 9.1; W-27). Pure.

use cloud_provider::provider::{MachineState, Power};
use harvester_api::virtual_machine::PrintableStatus;
use harvester_api::virtual_machine_instance::Phase;

use super::view::{VmView, VmiView};

/// The power state of a machine. `status.ready` is not used: a VM that boots, is paused or fails its probe is not
/// ready, and yet not switched off.
pub fn power(vm: &VmView, vmi: Option<&VmiView>) -> Power {
    let runs = match (vm.status, vmi.map(|vmi| vmi.phase)) {
        (PrintableStatus::Stopped, _) => false,
        // The machine changes its state; the instance may be missing or ended for a moment.
        (PrintableStatus::Starting | PrintableStatus::Migrating | PrintableStatus::Paused, _) => true,
        (_, Some(phase)) => phase != Phase::Ended,
        // The two caches are fed by separate watches, and that of the instances may lag behind.
        (status, None) => status == PrintableStatus::Running,
    };
    if runs { Power::On } else { Power::Off }
}

/// The state of a machine whose Node does not answer. When a host has just died, Harvester reports its machines as
/// running for some minutes.
pub fn machine_state(vm: &VmView, vmi: Option<&VmiView>) -> MachineState {
    let ended = vmi.is_none_or(|vmi| vmi.phase == Phase::Ended);
    match vm.status {
        PrintableStatus::Stopped if ended => MachineState::Off,
        PrintableStatus::Paused => MachineState::Still("paused"),
        PrintableStatus::Migrating => MachineState::Still("being migrated"),
        _ if vmi.is_some_and(|vmi| vmi.migrating) => MachineState::Still("being migrated"),
        PrintableStatus::Running => MachineState::Running,
        _ => MachineState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::build;
    use super::*;

    #[test]
    fn what_is_said_of_a_machine_that_does_not_answer() {
        let vmi = |phase, migrating| {
            let mut vmi = build::vmi("a");
            (vmi.phase, vmi.migrating) = (phase, migrating);
            vmi
        };
        let (runs, moves, ended) = (vmi(Phase::Running, false), vmi(Phase::Running, true), vmi(Phase::Ended, false));
        for (status, vmi, expected) in [
            (PrintableStatus::Running, Some(&runs), MachineState::Running),
            (PrintableStatus::Running, Some(&moves), MachineState::Still("being migrated")),
            (PrintableStatus::Migrating, Some(&runs), MachineState::Still("being migrated")),
            (PrintableStatus::Paused, Some(&runs), MachineState::Still("paused")),
            (PrintableStatus::Stopped, None, MachineState::Off),
            (PrintableStatus::Stopped, Some(&ended), MachineState::Off),
            (PrintableStatus::Stopped, Some(&runs), MachineState::Unknown),
            (PrintableStatus::Stopping, Some(&runs), MachineState::Unknown),
            (PrintableStatus::Unknown, None, MachineState::Unknown),
        ] {
            let mut vm = build::vm("a", "u");
            vm.status = status;
            assert_eq!(machine_state(&vm, vmi), expected, "{status:?} {vmi:?}");
        }
    }

    #[test]
    fn only_a_machine_that_does_not_run_is_switched_off() {
        use Power::{Off, On};
        use PrintableStatus::{Migrating, Paused, Running, Starting, Stopped, Stopping, Unknown};
        for (status, phase, expected) in [
            (Stopped, None, Off),
            (Stopped, Some(Phase::Running), Off),
            (Running, Some(Phase::Running), On),
            (Running, Some(Phase::Ended), Off),
            (Running, None, On),
            (Starting, None, On),
            (Starting, Some(Phase::Ended), On),
            (Paused, Some(Phase::Running), On),
            (Migrating, Some(Phase::Running), On),
            (Stopping, Some(Phase::Running), On),
            (Stopping, None, Off),
            (Unknown, None, Off),
            (Unknown, Some(Phase::Starting), On),
            (Unknown, Some(Phase::Unknown), On),
        ] {
            let vm = VmView { status, ..build::vm("a", "u") };
            let vmi = phase.map(|phase| VmiView { phase, ..build::vmi("a") });
            assert_eq!(power(&vm, vmi.as_ref()), expected, "{status:?} {phase:?}");
        }
    }
}
