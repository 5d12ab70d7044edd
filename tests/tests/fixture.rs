//! The fixture itself, without the product: what every other test stands on.

use std::time::Instant;

use e2e::{Bed, service};
use serde_json::json;
use testbed::echo::field;

#[tokio::test]
async fn a_bed_without_the_product_has_nodes_pods_machines_and_a_pool() {
    if e2e::skip() {
        return;
    }
    let start = Instant::now();
    let bed = Bed::builder().network("guests/data", "eth1").without_ccm().without_announcers().start().await.unwrap();
    eprintln!("bed after {:.1} s", start.elapsed().as_secs_f64());
    let machine = bed.machines().await.unwrap().load(e2e::VM_NAMESPACE, "node1").await.unwrap();
    assert_eq!(machine.nics.len(), 2);
    assert_eq!(machine.nics[0].addresses, [bed.lan.host(1).ipv4().to_string()]);
    assert!(bed.bookings(e2e::bed::POOL).await.unwrap().is_empty());

    let case = bed.case("fixture").await.unwrap();
    let web = case.expose(service("web").tcp(80)).await.unwrap();
    let address = bed.lan.ipv4(150);
    bed.lan.host(1).ip([format!("addr add {address}/32 dev eth0")]).unwrap();
    web.patch_status(json!({"status": {"loadBalancer": {"ingress": [{"ip": address.to_string()}]}}})).await.unwrap();
    let reply = web.reply(address.into(), 80).await.unwrap();
    assert!(field(&reply, "pod").is_some_and(|pod| pod.starts_with("echo-")), "{reply}");
    assert_eq!(bed.owner_of(address.into()).unwrap(), Some(1));
    bed.wait_for_mac(address.into(), &bed.lan.host(1).mac()).await.unwrap();
    eprintln!("served after {:.1} s", start.elapsed().as_secs_f64());
}
