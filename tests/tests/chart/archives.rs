//! The archives that are shipped, and the index by which Rancher chooses.

use std::path::Path;

use serde_json::Value;
use testbed::Helm;
use testbed::helm::{RELEASE, package};

use super::{find, try_render};

#[test]
fn the_same_tree_gives_the_same_archives_in_both_forms() {
    let helm = Helm::new("helm3").unwrap();
    let places = ["a", "b"].map(|name| helm.dir().join(name));
    let made = places.each_ref().map(|place| package(place, "107.0.2").unwrap());
    let read = |path: &Path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(read(&made[0].plain) == read(&made[1].plain) && read(&made[0].rancher) == read(&made[1].rancher));
    for form in ["plain", "rancher"] {
        let index = |place: &Path| String::from_utf8(read(&place.join(form).join("index.yaml"))).unwrap();
        assert_eq!(index(&places[0]), index(&places[1]));
    }

    // Chart spec 3.2 and 11.2: Rancher chooses by these without downloading anything.
    let up = env!("CARGO_PKG_VERSION");
    let index: Value = serde_saphyr::from_slice(&read(&places[0].join("rancher/index.yaml"))).unwrap();
    let entry = &index["entries"][RELEASE][0];
    assert_eq!(entry["version"], format!("107.0.2+up{up}"));
    assert_eq!(entry["urls"][0], format!("{RELEASE}-107.0.2+up{up}.tgz"));
    for (annotation, value) in [
        ("upstream-version", up),
        ("rancher-version", ">= 2.12.0-0 < 2.13.0-0"),
        ("kube-version", ">= 1.28.0-0 < 1.34.0-0"),
        ("permits-os", "linux"),
        ("release-name", RELEASE),
        ("namespace", "kube-system"),
    ] {
        assert_eq!(entry["annotations"][format!("catalog.cattle.io/{annotation}")], value, "{annotation}");
    }
    assert_eq!(entry["kubeVersion"], ">= 1.28.0-0");
    assert!(entry["annotations"]["catalog.cattle.io/certified"].is_null(), "only Rancher certifies a chart");
    let objects = try_render(&made[0].rancher, "").unwrap();
    let label = &find(&objects, "Deployment harvester-cloud-provider")["metadata"]["labels"]["helm.sh/chart"];
    assert_eq!(*label, format!("{RELEASE}-107.0.2_up{up}"));

    // A further version stays beside the first one, and comes first.
    package(&places[0], "107.0.3").unwrap();
    let index: Value = serde_saphyr::from_slice(&read(&places[0].join("rancher/index.yaml"))).unwrap();
    let versions = index["entries"][RELEASE].as_array().unwrap();
    let versions: Vec<_> = versions.iter().map(|entry| entry["version"].as_str().unwrap()).collect();
    assert_eq!(versions, [format!("107.0.3+up{up}"), format!("107.0.2+up{up}")]);
}
