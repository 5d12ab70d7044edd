//! The manifests of the pages for users, applied as they stand there: an API server takes each of them, and each
//! Service gets its address.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use e2e::case::{ingress, seen};
use e2e::documents::page;
use e2e::{Bed, NETWORK, PATIENCE, wait_for};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, ResourceExt};

/// Nobody runs its pods here, so that no node has an endpoint of it.
const WITHOUT_ENDPOINTS: &str = "web-local";

#[tokio::test]
async fn every_manifest_of_the_page_of_addresses_gets_an_address() {
    if e2e::skip() {
        return;
    }
    let bed = Bed::builder().start().await.unwrap();
    let services: Api<Service> = Api::namespaced(bed.client().await.unwrap(), "default");
    let mut applied = Vec::new();
    for block in page("docs/addresses.md").blocks().into_iter().filter(|block| block.language == "yaml") {
        // What the reader has to fill in.
        let text = block.text.replace("192.168.1.50", &bed.lan.ipv4(90).to_string()).replace("guests/data", NETWORK);
        let file = bed.dir().write(&format!("manifests/{}.yaml", applied.len()), &text).unwrap();
        let said = bed.control_plane.kubectl(&["apply", "-f", &file.display().to_string(), "-o", "name"]);
        let said = said.unwrap_or_else(|error| panic!("{}: {error:#}", block.place));
        applied.extend(said.split_whitespace().map(|name| name.trim_start_matches("service/").to_owned()));
    }
    assert!(applied.len() >= 8, "{applied:?}");
    for name in applied {
        wait_for(&format!("the condition of {name}"), PATIENCE, || async {
            let service = services.get(&name).await.map_err(|error| error.to_string())?;
            let conditions = service.status.clone().and_then(|status| status.conditions).unwrap_or_default();
            let ready = conditions.iter().find(|condition| condition.type_ == "LoadBalancerReady");
            let ready = ready.ok_or_else(|| format!("none; {:?}", service.annotations()))?;
            // Nobody serves it, so its condition says nothing of an address; its status does (decisions.md 33).
            let has_it = if name == WITHOUT_ENDPOINTS { !ingress(&service).is_empty() } else { ready.status == "True" };
            if has_it { Ok(()) } else { Err(format!("{}: {}; {}", ready.reason, ready.message, seen(&service))) }
        })
        .await
        .unwrap();
    }
    // In the order in which an address is given up: who shares it goes first.
    for name in ["web-tls", "mail", "imap", "web", "web-dhcp", "web-static", "web-data", WITHOUT_ENDPOINTS] {
        bed.control_plane.kubectl(&["delete", "service", name, "--timeout=60s"]).unwrap();
    }
}
