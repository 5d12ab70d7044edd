//! The control endpoint: faults, counters and a few actions, for tests and the demo while the stand-in runs as its own
//! process.
//!
//! | request | effect |
//! | --- | --- |
//! | `GET /faults` | all that is set, by namespace |
//! | `PUT /faults/{namespace}` | sets the faults of a namespace (`*`: all others), JSON as [`Faults`] |
//! | `POST /lose-booking/{namespace}/{name}` | a load balancer forgets its address, as after a lost status write |
//! | `POST /restart` | the host's controllers start again: they know of pools and bookings what the API server kept |
//! | `GET /backlog` | keys that wait, are in work or fail, and the versions that the caches have |
//! | `GET /counts` | PUTs that the host's controllers have sent |
//! | `GET /healthz` | `ok` once everything runs |

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post, put};
use harvester_api::load_balancer::LoadBalancer;
use kube::api::PostParams;
use kube::{Api, ResourceExt};

use crate::faults::Faults;
use crate::host::world::{World, is_conflict};

/// The control endpoint.
pub fn router(world: Arc<World>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/faults", get(async |State(world): State<Arc<World>>| Json(world.faults.all())))
        .route("/faults/{namespace}", put(set_faults))
        .route("/lose-booking/{namespace}/{name}", post(lose))
        .route("/restart", post(async |State(world): State<Arc<World>>| restart(&world)))
        .route("/backlog", get(async |State(world): State<Arc<World>>| Json(world.backlog())))
        .route("/counts", get(async |State(world): State<Arc<World>>| Json(world.counters.read())))
        .with_state(world)
}

async fn set_faults(State(world): State<Arc<World>>, Path(namespace): Path<String>, body: String) -> Response {
    match serde_json::from_str::<Faults>(&body) {
        Ok(faults) => {
            world.faults.set(&namespace, faults);
            Json(world.faults.all()).into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("faults not understood: {error}\n")).into_response(),
    }
}

async fn lose(State(world): State<Arc<World>>, Path((namespace, name)): Path<(String, String)>) -> Response {
    match lose_booking(&world, &namespace, &name).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Allocators are made anew, and bookings are forgotten where a fault says so.
pub fn restart(world: &World) {
    world.allocators.lock().clear();
    for pool in world.pools.state() {
        world.pool_queue.add((String::new(), pool.name_any()));
    }
}

/// Clears `status.allocatedAddress` and the conditions; the pool's books keep the address.
pub async fn lose_booking(world: &World, namespace: &str, name: &str) -> kube::Result<()> {
    let api: Api<LoadBalancer> = Api::namespaced(world.client.clone(), namespace);
    loop {
        let mut lb = api.get(name).await?;
        let status = lb.status.get_or_insert_default();
        status.allocated_address = harvester_api::load_balancer::AllocatedAddress::default();
        status.conditions.clear();
        let outcome = api.replace(name, &PostParams::default(), &lb).await;
        if !is_conflict(&outcome) {
            return outcome.map(drop);
        }
    }
}
