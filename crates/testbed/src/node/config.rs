//! The configuration files of a machine's daemons.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

/// Where Debian's containernetworking-plugins lie.
const CNI_PLUGINS: &str = "/usr/lib/cni";
/// The image of the sandbox process; `images` builds it.
pub const PAUSE_IMAGE: &str = "localhost/pause:1";

/// A bridge on each machine, addresses from its own range, no address translation between pods.
pub fn cni(pod_range: &str) -> Value {
    json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
                "ipam": { "type": "host-local", "ranges": [[{ "subnet": pod_range }]],
                    "routes": [{ "dst": "0.0.0.0/0" }] },
            },
            { "type": "portmap", "capabilities": { "portMappings": true } },
        ],
    })
}

/// `restrict_oom_score_adj`: without `CAP_SYS_RESOURCE` lowering a score is refused, and no container would start.
pub fn containerd(config_dir: &Path) -> String {
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]

[grpc]
  address = "/run/containerd/containerd.sock"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{CNI_PLUGINS}"
  conf_dir = "{}"

[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
"#,
        config_dir.join("cni").display()
    )
}

/// Never collects images, which could not be pulled again, and never evicts for a disk that it shares with everybody.
pub fn kubelet(config_dir: &Path, ca: &Path, dns: Ipv4Addr) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "clusterDNS": [dns],
        "clusterDomain": "cluster.local",
        "authentication": { "anonymous": { "enabled": false }, "webhook": { "enabled": true },
            "x509": { "clientCAFile": ca } },
        "authorization": { "mode": "Webhook" },
        "tlsCertFile": config_dir.join("kubelet.crt"),
        "tlsPrivateKeyFile": config_dir.join("kubelet.key"),
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
        // A Secret that has changed is in its pods within this, instead of a minute and a half.
        "syncFrequency": "10s",
        // A shutdown of this computer does not concern a node that is a namespace.
        "shutdownGracePeriod": "0s",
    })
}

/// The limits of connection tracking cannot be written outside the machine's first network namespace; 0 leaves them
/// alone.
pub fn kube_proxy(kubeconfig: &Path, name: &str, mode: &str, pods: &str, min_sync: Duration) -> Value {
    let pace = json!({ "minSyncPeriod": format!("{}ms", min_sync.as_millis()) });
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode,
        "hostnameOverride": name,
        "clientConnection": { "kubeconfig": kubeconfig },
        "clusterCIDR": pods,
        "iptables": pace,
        "nftables": pace,
        "conntrack": { "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s" },
    })
}
