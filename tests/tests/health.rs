//! What an announcer says of itself and of the others: `/readyz`, `/livez`, `announcer status`.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

mod vip;

use std::net::IpAddr;
use std::time::Duration;

use e2e::watch::let_it_happen;
use e2e::{Bed, Beds, PATIENCE, service, wait_for};
use serde_json::Value;
use vip::{Vip, alone, nothing_was_lost};

static BEDS: Beds = Beds::new();

/// A cache may stand still for a minute before it counts as out of date.
const STALE: Duration = Duration::from_mins(1);

/// What a probe of node `n`'s announcer is answered: status and text.
fn probe(bed: &Bed, n: usize, path: &str) -> (String, String) {
    let url = format!("http://127.0.0.1:2112/{path}");
    let answer = bed.lan.host(n).exec(["curl", "-s", "-m", "10", "-w", "%{http_code}", &url]).unwrap();
    let (text, code) = answer.trim_end().split_at(answer.trim_end().len() - 3);
    (code.to_owned(), text.to_owned())
}

#[tokio::test]
async fn an_announcer_without_the_api_goes_on_serving_lives_and_is_not_ready() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone(&BEDS).await;
    let case = bed.case("stale").await.unwrap();
    let vip = Vip::new(&bed, &case, 153).await;
    for n in 1..=3 {
        assert_eq!(probe(&bed, n, "readyz").0, "200", "node{n}");
    }
    let watch = vip.watch();
    bed.control_plane.api_server().kill();
    wait_for("readiness to end", STALE + PATIENCE, || async {
        for n in 1..=3 {
            let (alive, why) = probe(&bed, n, "livez");
            assert_eq!(alive, "200", "node{n} must not be restarted: {why}");
            let (code, text) = probe(&bed, n, "readyz");
            let stale = ["services", "nodes", "leases"].map(|name| format!("[-]{name}-fresh failed: {name} not up to"));
            if code != "500" || !stale.iter().all(|line| text.contains(line.as_str())) {
                return Err(format!("node{n}: {code} {text}"));
            }
        }
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(bed.owner_of(vip.address).unwrap(), Some(vip.owner));
    bed.control_plane.api_server().start().await.unwrap();
    for n in 1..=3 {
        bed.wait_until_announcing(n).await.unwrap();
    }
    let_it_happen(3).await;
    nothing_was_lost("no API for anybody", watch).unwrap();
    vip.is_announced_by(vip.owner).await;
    vip.is_deleted().await;
    bed.restart_proxies().unwrap();
}

/// What `announcer status` prints on node `n`, and how it ends.
fn status(bed: &Bed, n: usize) -> (i32, Value) {
    let kubeconfig = bed.control_plane.admin().unwrap().inside;
    let command = "\"$0\" announcer status -o json --kubeconfig \"$1\"; echo \"ended $?\"";
    let words = ["sh", "-c", command].map(str::to_owned).into_iter();
    let words = words.chain([e2e::product::binary().unwrap(), kubeconfig].map(|path| path.display().to_string()));
    let said = bed.lan.host(n).exec(words).unwrap();
    let (json, ended) = said.trim_end().rsplit_once("ended ").unwrap();
    (ended.parse().unwrap(), serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {said}")))
}

/// The rows of this namespace.
fn rows(report: &Value, namespace: &str) -> Vec<Value> {
    let ours = |row: &&Value| row["service"].as_str().is_some_and(|name| name.starts_with(&format!("{namespace}/")));
    report["vips"].as_array().unwrap().iter().filter(ours).cloned().collect()
}

#[tokio::test]
async fn every_node_prints_the_same_rows_and_an_address_without_an_owner_shows_in_the_exit_status() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone(&BEDS).await;
    let case = bed.case("status").await.unwrap();
    let vip = Vip::new(&bed, &case, 154).await;
    let all = [1, 2, 3].map(|n| status(&bed, n));
    for (n, (ended, report)) in all.iter().enumerate() {
        assert_eq!(*ended, 0, "node{}: {report}", n + 1);
        let [row] = &rows(report, case.namespace())[..] else { panic!("one Service: {report}") };
        assert_eq!(row["owner"], bed.lan.host(vip.owner).name());
        assert_eq!((&row["state"], &row["addresses"][0]), (&"announced".into(), &vip.address.to_string().into()));
        assert_eq!(row["term"], vip.term().await);
        assert_eq!(report["vips"], all[0].1["vips"], "node{}", n + 1);
        assert_eq!(report["leases"].as_array().unwrap().len(), 3, "one member per node: {report}");
    }

    // Nobody can announce it.
    let address = IpAddr::from(bed.lan.ipv4(155));
    let spec = service("nowhere").at(&address.to_string()).annotation("kube-vip.io/serviceInterface", "nope0");
    let nowhere = case.create(spec.tcp(80)).await.unwrap();
    let all = [1, 2].map(|n| status(&bed, n));
    for (ended, report) in &all {
        assert_eq!(*ended, 3, "{report}");
        let states: Vec<_> = rows(report, case.namespace()).iter().map(|row| row["state"].clone()).collect();
        assert_eq!(states, ["pending", "announced"]);
        assert_eq!(report["vips"], all[0].1["vips"]);
    }
    nowhere.delete().await.unwrap();
    vip.is_deleted().await;
}
