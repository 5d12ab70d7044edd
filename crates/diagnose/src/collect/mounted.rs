//! Which Secret, and which key of it, the cloud controller reads as its cloud-config.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{PodSpec, SecretVolumeSource, VolumeMount};

use crate::facts;

/// A Secret in the namespace of the Deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    pub secret: String,
    /// Empty if the command line names no file.
    pub key: String,
}

impl Mounted {
    /// The cloud-config; otherwise what is wrong with the Secret, of which the caller says the name.
    pub fn of<'a>(&self, data: &'a BTreeMap<String, ByteString>) -> Result<&'a [u8], String> {
        let only = data.values().next().filter(|_| self.key.is_empty() && data.len() == 1);
        data.get(&self.key).or(only).map(|bytes| bytes.0.as_slice()).ok_or_else(|| {
            let keys = data.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            format!("has no key {} {LISTED}{})", self.key, if keys.is_empty() { "none" } else { &keys })
        })
    }
}

/// Begins the list of the keys that a Secret has.
const LISTED: &str = "(it has: ";

/// The keys in a text of [`Mounted::of`].
pub fn keys_named(text: &str) -> Vec<String> {
    let listed = text.split_once(LISTED).and_then(|(_, rest)| rest.split(')').next()).filter(|keys| *keys != "none");
    listed.into_iter().flat_map(|keys| keys.split(", ")).map(str::to_owned).collect()
}

/// `None` if the cloud-config is not in a Secret.
pub fn cloud_config(deployment: &Deployment) -> Option<Mounted> {
    let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
    let arguments = facts::arguments(&facts::containers(deployment));
    let path = path(&arguments).unwrap_or_default();
    let mounts = pod.containers.iter().flat_map(|container| container.volume_mounts.iter().flatten());
    let covering = mounts.filter_map(|mount| Some((mount, below(mount, path)?)));
    let Some((mount, file)) = covering.max_by_key(|(mount, _)| mount.mount_path.len()) else {
        let secret = secrets(pod).find_map(|(_, secret)| secret.secret_name.clone())?;
        return Some(Mounted { secret, key: path.rsplit('/').next().unwrap_or_default().to_owned() });
    };
    let secret = secrets(pod).find_map(|(name, secret)| (name == mount.name).then_some(secret))?;
    let mapped = secret.items.iter().flatten().find(|item| item.path == file);
    let key = mapped.map_or(file, |item| item.key.clone());
    Some(Mounted { secret: secret.secret_name.clone()?, key })
}

fn path(arguments: &[String]) -> Option<&str> {
    let joined = arguments.iter().find_map(|argument| argument.strip_prefix("--cloud-config="));
    let apart = || arguments.windows(2).find(|pair| pair[0] == "--cloud-config").map(|pair| pair[1].as_str());
    joined.or_else(apart)
}

fn secrets(pod: &PodSpec) -> impl Iterator<Item = (&str, &SecretVolumeSource)> {
    pod.volumes.iter().flatten().filter_map(|volume| Some((volume.name.as_str(), volume.secret.as_ref()?)))
}

/// The file's path in the volume, if it is in this one.
fn below(mount: &VolumeMount, path: &str) -> Option<String> {
    let rest = path.strip_prefix(mount.mount_path.trim_end_matches('/'))?;
    let sub = mount.sub_path.as_deref().unwrap_or_default().trim_matches('/');
    match (rest.strip_prefix('/'), sub) {
        (Some(file), "") => Some(file.to_owned()),
        (Some(file), sub) => Some(format!("{sub}/{file}")),
        (None, sub) => (rest.is_empty() && !sub.is_empty()).then(|| sub.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::healthy::{self, read};

    fn deployment(mounts: &Value, volumes: &Value) -> Deployment {
        let mut object = healthy::deployment("harvester-cloud-provider", &["--cloud-config=/etc/kubernetes/c/config"]);
        object["spec"]["template"]["spec"]["volumes"] = volumes.clone();
        object["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = mounts.clone();
        read(object)
    }

    #[test]
    fn the_key_is_the_one_that_the_volume_shows_under_the_path_of_the_flag() {
        let whole = json!([{"name": "c", "mountPath": "/etc/kubernetes/c"}, {"name": "d", "mountPath": "/etc"}]);
        let single = json!([{"name": "c", "mountPath": "/etc/kubernetes/c/config", "subPath": "one"}]);
        let volumes = |items: Value| {
            json!([{"name": "d", "secret": {"secretName": "other"}},
                {"name": "c", "secret": {"secretName": "named", "items": items}}])
        };
        let node = json!([{"name": "c", "hostPath": {"path": "/x"}}, {"name": "d", "secret": {"secretName": "other"}}]);
        let mapped = json!([{"key": "kubeconfig", "path": "config"}]);
        for (mounts, volumes, expected) in [
            (&whole, volumes(mapped), Some(("named", "kubeconfig"))),
            (&whole, volumes(json!([])), Some(("named", "config"))),
            (&single, volumes(json!([])), Some(("named", "one"))),
            (&json!([]), volumes(json!([])), Some(("other", "config"))),
            (&whole, node, None),
        ] {
            let found = cloud_config(&deployment(mounts, &volumes));
            let found = found.as_ref().map(|found| (found.secret.as_str(), found.key.as_str()));
            assert_eq!(found, expected, "{mounts} {volumes}");
        }
    }

    #[test]
    fn another_key_is_not_taken_for_the_one_that_is_missing() {
        let data = |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), ByteString(b"x".to_vec()))).collect();
        let wanted = Mounted { secret: "s".into(), key: "cloud-config".into() };
        assert_eq!(wanted.of(&data(&["cloud-config", "b"])), Ok(b"x".as_slice()));
        assert_eq!(wanted.of(&data(&["a", "b"])).unwrap_err(), "has no key cloud-config (it has: a, b)");
        assert_eq!(wanted.of(&data(&[])).unwrap_err(), "has no key cloud-config (it has: none)");
        for keys in [&["a", "b"][..], &["a"], &[]] {
            assert_eq!(keys_named(&wanted.of(&data(keys)).unwrap_err()), keys);
        }
    }
}
