//! The aggregated API `subresources.kubevirt.io/v1`, as far as `guestosinfo`. Harvester spec 9.2
//!
//! The API server in front has authenticated and authorised; that is trusted here, as this is a stand-in.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use harvester_api::virtual_machine_instance::{Phase, VirtualMachineInstance};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::machine::HOSTNAME;
use crate::faults::FaultSwitch;

const GROUP: &str = "subresources.kubevirt.io";
const GROUP_VERSION: &str = "subresources.kubevirt.io/v1";

/// What the handlers need.
#[derive(Clone)]
pub struct Subresources {
    /// To read VMIs.
    pub client: Client,
    /// Agents may be silent.
    pub faults: Arc<FaultSwitch>,
}

/// The aggregated API.
pub fn router(state: Subresources) -> Router {
    let version = json!({"groupVersion": GROUP_VERSION, "version": "v1"});
    let group = json!({"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version],
        "preferredVersion": version});
    let groups = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]});
    let resources = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP_VERSION, "resources": [
        {"name": "virtualmachineinstances/guestosinfo", "singularName": "", "namespaced": true, "kind": "",
            "verbs": ["get"]}]});
    Router::new()
        .route("/apis", get(async || Json(groups)))
        .route("/apis/subresources.kubevirt.io", get(async || Json(group)))
        .route("/apis/subresources.kubevirt.io/v1", get(async || Json(resources)))
        .route(
            "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances/{name}/guestosinfo",
            get(guest_os_info),
        )
        .fallback(async |uri: Uri| failure(StatusCode::NOT_FOUND, "NotFound", uri.path()))
        .with_state(state)
}

async fn guest_os_info(State(state): State<Subresources>, Path((namespace, name)): Path<(String, String)>) -> Response {
    let api: Api<VirtualMachineInstance> = Api::namespaced(state.client, &namespace);
    match api.get_opt(&name).await {
        Ok(vmi) => answer(vmi.as_ref(), &name, state.faults.get(&namespace).agents_silent).into_response(),
        Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &error.to_string()),
    }
}

/// What virt-api answers for this VMI.
fn answer(vmi: Option<&VirtualMachineInstance>, name: &str, silent: bool) -> (StatusCode, Json<Value>) {
    let Some(vmi) = vmi else {
        let text = format!("virtualmachineinstance.kubevirt.io \"{name}\" not found");
        return status(StatusCode::NOT_FOUND, "NotFound", &text);
    };
    if vmi.phase() != Phase::Running {
        return status(StatusCode::CONFLICT, "Conflict", "VMI is not running");
    }
    if silent || !vmi.agent_connected() {
        return status(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            "Internal error occurred: VMI does not have guest agent connected",
        );
    }
    let hostname = vmi.annotation(HOSTNAME).unwrap_or(name);
    let info = json!({"kind": "VirtualMachineInstanceGuestAgentInfo", "apiVersion": GROUP_VERSION, "metadata": {},
        "guestAgentVersion": "9.1.0", "hostname": hostname, "os": {"name": "Linux", "id": "linux"},
        "timezone": "UTC, 0"});
    (StatusCode::OK, Json(info))
}

fn status(code: StatusCode, reason: &str, message: &str) -> (StatusCode, Json<Value>) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason,
        "message": message, "code": code.as_u16()});
    (code, Json(status))
}

fn failure(code: StatusCode, reason: &str, message: &str) -> Response {
    status(code, reason, message).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::machine::Machine;
    use crate::guest::render;

    fn vmi(machine: &Machine) -> VirtualMachineInstance {
        serde_json::from_value(render::vmi(machine, "u").unwrap()).unwrap()
    }

    #[test]
    fn the_agent_tells_the_hostname_or_nothing() {
        let machine = Machine::node("guests", "vm-1", "demo", "guests/mgmt", &[]);
        let (code, Json(body)) = answer(Some(&vmi(&machine)), "vm-1", false);
        assert_eq!((code, body["hostname"].as_str()), (StatusCode::OK, Some("vm-1")));
        let (_, Json(body)) = answer(Some(&vmi(&machine.clone().called("node-x"))), "vm-1", false);
        assert_eq!(body["hostname"], "node-x");

        assert_eq!(answer(Some(&vmi(&machine)), "vm-1", true).0, StatusCode::INTERNAL_SERVER_ERROR);
        let silent = Machine { agent: false, ..machine };
        let (code, Json(body)) = answer(Some(&vmi(&silent)), "vm-1", false);
        assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(body["message"].as_str().unwrap().contains("VMI does not have guest agent connected"));
        assert_eq!(answer(None, "vm-1", false).0, StatusCode::NOT_FOUND);
    }
}
