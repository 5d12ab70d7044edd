//! An API that takes its time for each write, as behind a slow admission webhook or a busy etcd.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::response::Json;
use axum::routing::post;
use harvester_sim::serve::tls::{Authority, serve};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use testbed::{Task, wait_for};

use super::{ObservedOutage, OutageLimits};
use crate::PATIENCE;
use crate::bed::Bed;
use crate::case::Case;
use crate::vip::Vip;
use crate::watch::let_it_happen;

/// Each write takes so much longer.
const LATE: Duration = Duration::from_secs(1);
/// A power loss then: detection, one write, the announcement.
const LIMITS: OutageLimits = OutageLimits::within(3000, Duration::from_secs(3));
const NAME: &str = "late-writes.testbed.local";
/// In the API server's namespace.
const WEBHOOK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9449);

/// Every write is late until this is dropped: other tests use the bed.
struct LateWrites<'a> {
    bed: &'a Bed,
    _webhook: Task,
}

impl<'a> LateWrites<'a> {
    async fn new(bed: &'a Bed) -> Result<Self> {
        let authority = Authority::new()?;
        let acceptor = authority.acceptor(&[WEBHOOK.ip().to_string()])?;
        let webhook = bed.control_plane.namespace().task("late-writes", move || async move {
            let listener = tokio::net::TcpListener::bind(WEBHOOK).await.expect("nobody else listens there");
            let _ = serve(listener, acceptor, Router::new().route("/", post(allow_late))).await;
        })?;
        let this = Self { bed, _webhook: webhook };
        let rule =
            json!({"operations": ["CREATE", "UPDATE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]});
        let configuration: ValidatingWebhookConfiguration = serde_json::from_value(json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": NAME},
            "webhooks": [{
                "name": NAME, "rules": [rule], "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "failurePolicy": "Ignore", "timeoutSeconds": 10,
                "clientConfig": {"url": format!("https://{WEBHOOK}/"), "caBundle": ca_bundle(&authority)},
            }],
        }))
        .context("the webhook's configuration is not valid")?;
        let api = Api::all(bed.client().await?);
        api.create(&PostParams::default(), &configuration).await.context("failed to configure the webhook")?;
        Ok(this)
    }
}

/// What the API wants to have in base64.
fn ca_bundle(authority: &Authority) -> Value {
    json!(k8s_openapi::ByteString(authority.certificate_pem.clone().into_bytes()))
}

impl Drop for LateWrites<'_> {
    fn drop(&mut self) {
        let _ = self.bed.control_plane.kubectl(&["delete", "validatingwebhookconfiguration", NAME]);
    }
}

async fn allow_late(Json(review): Json<Value>) -> Json<Value> {
    tokio::time::sleep(LATE).await;
    let uid = &review["request"]["uid"];
    let response = json!({"uid": uid, "allowed": true});
    Json(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}

/// The owner loses its power while each write is late.
pub async fn a_power_loss_while_writes_are_late(bed: &Bed, case: &Case<'_>, last: u8) -> Result<ObservedOutage> {
    let vip = Vip::new(bed, case, last).await?;
    let late = LateWrites::new(bed).await?;
    wait_for("writes to be late", PATIENCE, || async {
        let begun = std::time::Instant::now();
        let written = vip.web.annotate("testbed.local/written", Some(&format!("{begun:?}"))).await;
        written.map_err(|error| format!("{error:#}"))?;
        let took = begun.elapsed();
        if took >= LATE { Ok(()) } else { Err(format!("one took {took:?}")) }
    })
    .await?;
    let_it_happen(3).await;
    let watch = vip.watch()?;
    bed.power_off(vip.owner)?;
    let second = vip.moved_from(vip.owner).await?;
    let_it_happen(2).await;
    let seen = ObservedOutage::end_both("power loss, each write late by 1 s", LIMITS, watch)?;
    drop(late);
    vip.is_gone_from(vip.owner).await?;
    bed.power_on(vip.owner)?;
    bed.wait_until_announcing(vip.owner).await?;
    vip.is_announced_by(second).await?;
    vip.is_deleted().await?;
    Ok(seen)
}
