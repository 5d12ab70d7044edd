//! Many addresses.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::ensure;
use e2e::watch::{let_it_happen, nothing_was_written, one_of_three};
use e2e::{service, wait_for};

use super::alone;

/// Spread over the nodes, silent once announced, and moved together.
#[tokio::test]
async fn two_hundred_addresses_at_once() {
    const COUNT: u8 = 200;
    // An idle machine makes them in 3 s and moves them in 1 s. Other programs run beside this one.
    const MADE: Duration = Duration::from_secs(30);
    const MOVED: Duration = Duration::from_secs(15);
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("many").await.unwrap();
    // Addresses of a range of their own: the LAN's first subnet has not that many left.
    let address = |n: u8| IpAddr::from(Ipv4Addr::new(172, 31, 0, n));
    let mut services = Vec::new();
    for n in 1..=COUNT {
        services.push(case.create(service(&format!("web{n}")).at(&address(n).to_string()).tcp(80)).await.unwrap());
    }
    let all_here = || {
        let mut found: Vec<Vec<usize>> = vec![Vec::new(); usize::from(COUNT) + 1];
        for (index, host) in bed.lan.hosts().iter().enumerate() {
            for (_, ip, _) in host.addresses().unwrap() {
                if let Some(n) = (1..=COUNT).find(|n| address(*n) == ip) {
                    found[usize::from(n)].push(index + 1);
                }
            }
        }
        found
    };
    let one_each = |found: &[Vec<usize>]| {
        let bad = found.iter().skip(1).filter(|nodes| nodes.len() != 1).count();
        if bad == 0 { Ok(()) } else { Err(format!("{bad} without exactly one owner")) }
    };
    wait_for("each address to have one owner", MADE, || async { one_each(&all_here()) }).await.unwrap();
    for service in &services {
        service
            .wait_for("to have its address", |service| {
                if e2e::case::ingress(service).is_empty() { Err("no status".to_owned()) } else { Ok(()) }
            })
            .await
            .unwrap();
    }
    let found = all_here();
    for node in 1..=3 {
        let here = found.iter().filter(|nodes| nodes.contains(&node)).count();
        assert!((35..=100).contains(&here), "node{node} has {here} of {COUNT}");
    }
    // Who gives way to the preferred node does so a moment later: rest comes soon, not at once.
    let_it_happen(20).await;
    // A node that had no time to answer may be asked for by broadcast, and replaced; what is sent or written now and
    // then at rest leaves no window quiet.
    let rest = async || {
        let capture = bed.lan.client().capture("eth0", "arp and ether broadcast")?;
        let mark = bed.mark();
        let_it_happen(10).await;
        let noise = capture.stop()?;
        ensure!(noise.is_empty(), "broadcast at rest: {noise:?}");
        nothing_was_written(&bed, mark)
    };
    one_of_three("ten seconds of rest with many addresses", rest).await.unwrap();

    bed.power_off(1).unwrap();
    wait_for("the survivors to have all of them", MOVED, || async {
        let found = all_here();
        let missing = found.iter().skip(1).filter(|nodes| nodes.iter().filter(|n| **n != 1).count() != 1).count();
        if missing == 0 { Ok(()) } else { Err(format!("{missing} are missing")) }
    })
    .await
    .unwrap();
    bed.power_on(1).unwrap();
    bed.wait_until_announcing(1).await.unwrap();
    wait_for("each address to have one owner again", MADE, || async { one_each(&all_here()) }).await.unwrap();
    for service in &services {
        service.delete().await.unwrap();
    }
    wait_for("all addresses to be gone", MADE, || async {
        let left = all_here().iter().filter(|nodes| !nodes.is_empty()).count();
        if left == 0 { Ok(()) } else { Err(format!("{left} left")) }
    })
    .await
    .unwrap();
}
