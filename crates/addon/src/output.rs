//! Formats the credentials for the setup of a cluster. Pure: reads and writes no files.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// Directory in which the provider looks, unless the chart's `cloudConfigPath` is set.
const LEGACY_PATH: &str = "/etc/kubernetes/cloud-config";
/// Path where RKE2 itself writes it, and the chart's default.
const RKE2_PATH: &str = "/var/lib/rancher/rke2/etc/config-files/cloud-provider-config";
/// Path of a manifest that RKE2 applies; a HelmChartConfig changes the values of a bundled chart.
const RKE2_MANIFEST: &str = "/var/lib/rancher/rke2/server/manifests/harvester-cloud-provider-values.yaml";
/// Path of a file that K3s reads in addition to its configuration.
const K3S_CONFIG: &str = "/etc/rancher/k3s/config.yaml.d/60-harvester-cloud-provider.yaml";

/// Default name of the Secret in the guest cluster.
pub const GUEST_SECRET: &str = "harvester-cloud-config";
/// Key in the Secret, the chart's default.
const GUEST_SECRET_KEY: &str = "cloud-config";

/// Kubernetes distribution of the machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    /// Not specified: only the file, at the path of the shell script.
    Any,
    /// RKE2.
    Rke2,
    /// K3s.
    K3s,
}

/// A file for cloud-init.
struct File {
    path: &'static str,
    content: String,
}

/// User data for the machines of a guest cluster, without the first line `#cloud-config`, because it will be pasted
/// below one.
pub fn cloud_init(kubeconfig: &str, cluster_name: &str, distribution: Distribution) -> String {
    let secret = |path| File { path, content: kubeconfig.to_owned() };
    let files = match distribution {
        Distribution::Any => vec![secret(LEGACY_PATH)],
        Distribution::Rke2 => vec![
            secret(LEGACY_PATH),
            secret(RKE2_PATH),
            File { path: RKE2_MANIFEST, content: helm_chart_config(cluster_name) },
        ],
        Distribution::K3s => {
            vec![secret(LEGACY_PATH), File { path: K3S_CONFIG, content: k3s_config() }]
        }
    };
    let entry = |File { path, content }: File| {
        let content = STANDARD.encode(content);
        // By default cloud-init would make the file readable for everyone.
        format!("- encoding: b64\n  content: {content}\n  owner: root:root\n  path: {path}\n  permissions: '0600'\n")
    };
    let entries: Vec<String> = files.into_iter().map(entry).collect();
    format!("write_files:\n{}", entries.concat())
}

/// The output of the former shell script: both parts under their headings.
pub fn script_text(kubeconfig: &str, cloud_init: &str) -> String {
    format!(
        "########## cloud config ############\n{kubeconfig}\n########## cloud-init user data ############\n{cloud_init}"
    )
}

/// A Secret of this name for the guest cluster.
pub fn secret_manifest(kubeconfig: &str, name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: {name}\n  namespace: kube-system\ntype: Opaque\ndata:\n  \
         {GUEST_SECRET_KEY}: {}\n",
        STANDARD.encode(kubeconfig)
    )
}

/// Values for the chart, with [`secret_manifest`] of the same name applied in the guest.
pub fn helm_values(cluster_name: &str, secret_name: &str) -> String {
    format!(
        "cloudConfig:\n  secretName: {secret_name}\n  secretKey: {GUEST_SECRET_KEY}\nglobal:\n  cattle:\n    \
         clusterName: {}\n",
        quoted(cluster_name)
    )
}

/// Sets the cluster name: without it, two guests in one namespace would use each other's load balancers.
fn helm_chart_config(cluster_name: &str) -> String {
    let values =
        format!("cloudConfigPath: {RKE2_PATH}\nglobal:\n  cattle:\n    clusterName: {}\n", quoted(cluster_name));
    let indented = values.trim_end().replace('\n', "\n    ");
    format!(
        "apiVersion: helm.cattle.io/v1\nkind: HelmChartConfig\nmetadata:\n  name: harvester-cloud-provider\n  \
         namespace: kube-system\nspec:\n  valuesContent: |-\n    {indented}\n"
    )
}

/// Disables the load balancer and the cloud controller of K3s, which would conflict with this project's. A `+` extends
/// a list of the user's configuration; without it, the list in the last file would replace the others.
fn k3s_config() -> String {
    "disable+:\n- servicelb\ndisable-cloud-controller: true\nkubelet-arg+:\n- cloud-provider=external\n".to_owned()
}

/// The text as a JSON string, which is also a valid YAML string.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> String {
        harvester_api::cloud_config::render("https://10.0.0.9:6443", "CA", "guests", "1.2.3")
    }

    fn files(text: &str) -> Vec<(String, String, String)> {
        let mut found = Vec::new();
        let value = |line: &str| line.split_once(": ").map(|(_, value)| value.trim_matches('\'').to_owned()).unwrap();
        for block in text.split("- encoding: b64\n").skip(1) {
            let line = |key: &str| value(block.lines().find(|line| line.trim().starts_with(key)).unwrap());
            let content = String::from_utf8(STANDARD.decode(line("content")).unwrap()).unwrap();
            found.push((line("path"), line("permissions"), content));
        }
        found
    }

    #[test]
    fn only_root_may_read_what_cloud_init_writes() {
        for distribution in [Distribution::Any, Distribution::Rke2, Distribution::K3s] {
            let files = files(&cloud_init(&sample(), "demo", distribution));
            assert!(files.iter().all(|(_, permissions, _)| permissions == "0600"), "{files:?}");
            assert_eq!((files[0].0.as_str(), &files[0].2), (LEGACY_PATH, &sample()));
        }
    }

    #[test]
    fn rke2_gets_the_file_where_the_chart_looks_and_the_name_of_the_cluster() {
        let files = files(&cloud_init(&sample(), "demo", Distribution::Rke2));
        assert_eq!((files[1].0.as_str(), &files[1].2), (RKE2_PATH, &sample()));
        assert!(files[2].2.contains("    clusterName: \"demo\"") && files[2].2.contains(RKE2_PATH), "{}", files[2].2);
    }

    #[test]
    fn k3s_leaves_its_own_load_balancer_and_cloud_controller_off() {
        let files = files(&cloud_init(&sample(), "demo", Distribution::K3s));
        assert!(files[1].2.contains("servicelb") && files[1].2.contains("disable-cloud-controller: true"));
        // A plain list would take the place of the user's own `disable` and `kubelet-arg`.
        let lists: Vec<&str> = files[1].2.lines().filter(|line| line.ends_with(':')).collect();
        assert_eq!(lists, ["disable+:", "kubelet-arg+:"]);
    }

    #[test]
    fn the_default_output_has_the_headings_of_the_script() {
        let text = script_text(&sample(), &cloud_init(&sample(), "demo", Distribution::Any));
        let (config, user_data) = text.split_once("########## cloud-init user data ############\n").unwrap();
        assert!(config.starts_with("########## cloud config ############\napiVersion: v1\n"));
        assert!(user_data.starts_with("write_files:\n- encoding: b64\n"));
    }

    #[test]
    fn secret_and_values_name_the_same_secret_and_key() {
        for name in [GUEST_SECRET, "cloud-config"] {
            assert!(secret_manifest(&sample(), name).contains(&format!("  name: {name}\n")));
            let values = helm_values("demo", name);
            assert!(values.contains(&format!("secretName: {name}\n  secretKey: cloud-config\n")), "{values}");
        }
    }
}
