//! The way to Harvester: clients for the endpoints of the cloud-config, which is read again when the file changes (decision 15).
//!
//! The file is looked at by its path, so it does not matter how it is replaced: a Secret's volume swaps a symbolic link two levels up,
//! a host's file is renamed over the old one, an editor writes in place.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use harvester_api::cloud_config::CloudConfig;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::config::KubeConfigOptions;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use runtime::client::{ApiMetrics, Endpoint, Settings, Switch};
use runtime::error::chain;
use runtime::events::{EventKind, Recorder};
use runtime::health::{Health, Matters};
use runtime::metrics::Metrics;
use runtime::tasks::Tasks;
use tokio::sync::watch;
use tokio::time::Instant;

use super::config::Configuration;
use super::flags::Flags;
use super::link_story::{Story, Teller};
use crate::PRODUCT;

/// How often to look at the file. The kubelet needs up to a minute to bring a changed Secret.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The client of the Harvester API, and what keeps it working.
pub struct Harvester {
    pub client: Client,
    kept: Option<Kept>,
}

struct Kept {
    switch: Switch,
    file: File,
    metrics: LinkMetrics,
}

impl Harvester {
    /// Makes the clients. Sends nothing.
    pub async fn open(
        flags: &Flags,
        configuration: &Configuration,
        requests: &ApiMetrics,
        metrics: &Metrics,
    ) -> anyhow::Result<Self> {
        let settings = Settings::new("harvester", &PRODUCT).metrics(requests);
        let switch = Switch::new(endpoints(&configuration.cloud_config).await?, settings)
            .context("cloud-config: cannot build a client for the Harvester API")?;
        let path = flags.cloud.cloud_config.clone().unwrap_or_default();
        let file = File::new(path, &configuration.cloud_config);
        let kept = Kept { switch: switch.clone(), file, metrics: metrics.register(LinkMetrics::register) };
        Ok(Self { client: switch.client(), kept: Some(kept) })
    }

    /// A client as it is, for tests.
    #[cfg(test)]
    pub fn fixed(client: Client) -> Self {
        Self { client, kept: None }
    }

    /// Starts the look at the file and at the other side; Events are about `object`. The answer changes when everything should be read
    /// anew.
    pub fn follow(
        self,
        object: &ObjectReference,
        recorder: &Recorder,
        health: &Health,
        tasks: &mut Tasks,
    ) -> Option<watch::Receiver<u64>> {
        let Kept { switch, file, metrics } = self.kept?;
        let link = switch.link();
        health.register(
            "harvester-api",
            Matters::Told,
            std::sync::Arc::new(move || {
                let link = link.borrow();
                match (&link.away, link.refused) {
                    (Some((since, error)), _) => Err(format!("away for {} s: {error}", since.elapsed().as_secs())),
                    (None, Some(_)) => Err("refuses the credentials in the cloud-config".to_owned()),
                    (None, None) => Ok(()),
                }
            }),
        );
        let returns = switch.returns();
        let told = Told { object: object.clone(), recorder: recorder.clone() };
        tasks.spawn_endless("look for Harvester", switch.clone().watch_over());
        tasks.spawn_endless(
            "story of Harvester",
            tell(switch.clone(), file.path.clone(), metrics.clone(), told.clone()),
        );
        tasks.spawn_endless("look at the cloud-config", reload(switch, file, metrics, told));
        Some(returns)
    }
}

async fn endpoints(cloud_config: &CloudConfig) -> anyhow::Result<Vec<Endpoint>> {
    let mut endpoints = Vec::new();
    for endpoint in &cloud_config.endpoints {
        let kubeconfig = cloud_config.kubeconfig(endpoint);
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .context("cloud-config: cannot use the credentials of the current context")?;
        endpoints.push(Endpoint { server: endpoint.server.clone(), config });
    }
    Ok(endpoints)
}

/// Where stories go.
#[derive(Clone)]
struct Told {
    object: ObjectReference,
    recorder: Recorder,
}

impl Told {
    fn tell(&self, story: &Story) {
        match story.kind {
            EventKind::Normal => tracing::info!("{}", story.message),
            EventKind::Warning => tracing::warn!("{}", story.message),
        }
        self.recorder.record(&self.object, story.kind, story.reason, &story.message);
    }
}

#[derive(Debug, Clone)]
struct LinkMetrics {
    reachable: Gauge,
    accepted: Gauge,
    reloads: Family<[(&'static str, &'static str); 1], Counter>,
}

impl LinkMetrics {
    fn register(registry: &mut prometheus_client::registry::Registry) -> Self {
        let metrics = Self { reachable: Gauge::default(), accepted: Gauge::default(), reloads: Family::default() };
        metrics.reachable.set(1);
        metrics.accepted.set(1);
        registry.register(
            "harvester_api_reachable",
            "0 while no endpoint of the Harvester API answers",
            metrics.reachable.clone(),
        );
        registry.register(
            "harvester_api_credentials_accepted",
            "0 while the Harvester API answers 401 Unauthorized",
            metrics.accepted.clone(),
        );
        registry.register(
            "harvester_cloud_config_reloads",
            "Changes of the cloud-config file, by whether they could be used",
            metrics.reloads.clone(),
        );
        metrics
    }
}

/// Turns what the switch sees into metrics, log lines and Events.
async fn tell(switch: Switch, path: PathBuf, metrics: LinkMetrics, told: Told) -> Infallible {
    let file = path.display().to_string();
    let mut link = switch.link();
    let mut teller = Teller::default();
    loop {
        let now = link.borrow_and_update().clone();
        metrics.reachable.set(i64::from(now.away.is_none()));
        metrics.accepted.set(i64::from(now.refused.is_none()));
        teller.step(Instant::now(), &now, &file).iter().for_each(|story| told.tell(story));
        let due = teller.deadline(&now);
        tokio::select! {
            changed = link.changed() => changed.expect("this task holds a switch"),
            () = async { tokio::time::sleep_until(due.expect("polled only if there is one")).await }, if due.is_some() => {}
        }
    }
}

/// Uses the file's new content.
async fn reload(switch: Switch, mut file: File, metrics: LinkMetrics, told: Told) -> Infallible {
    let mut look = tokio::time::interval(LOOK_EVERY);
    let failed = |text: &str| {
        metrics.reloads.get_or_create(&[("result", "failed")]).inc();
        let message = format!("The changed cloud-config cannot be used, going on with the one before: {text}");
        told.tell(&Story { kind: EventKind::Warning, reason: "CloudConfigInvalid", message });
    };
    loop {
        look.tick().await;
        match file.look() {
            Look::Nothing => {}
            Look::Bad(text) => failed(&text),
            Look::New(cloud_config) => {
                let replaced = match endpoints(&cloud_config).await {
                    Ok(endpoints) => switch.replace(endpoints).map_err(|error| chain(&error)),
                    Err(error) => Err(chain(error.as_ref())),
                };
                if let Err(text) = replaced {
                    failed(&text);
                    continue;
                }
                metrics.reloads.get_or_create(&[("result", "used")]).inc();
                let message = format!("{} has changed: its credentials and endpoints are in use", file.path.display());
                told.tell(&Story { kind: EventKind::Normal, reason: "CloudConfigReloaded", message });
            }
        }
    }
}

/// The file, and the content of the files that it names.
type Content = Result<(Vec<u8>, Vec<Option<Vec<u8>>>), String>;

/// What was seen of the file so far.
struct File {
    path: PathBuf,
    namespace: String,
    /// The bytes that were read last and the files that they name: to parse them at each look is most of what a controller at rest does.
    names: (Vec<u8>, Vec<PathBuf>),
    /// Content in use or refused.
    known: Content,
    /// Content seen once: a file that is being written is not read half.
    suspect: Option<Content>,
}

/// What a look at the file gives.
#[derive(Debug)]
enum Look {
    Nothing,
    Bad(String),
    New(Box<CloudConfig>),
}

impl File {
    /// The file from which `used` was read.
    fn new(path: PathBuf, used: &CloudConfig) -> Self {
        let (names, known) = (Default::default(), Err(String::new()));
        let mut file = Self { path, namespace: used.namespace.clone(), names, known, suspect: None };
        file.known = file.read();
        file
    }

    fn read(&mut self) -> Content {
        let bytes = std::fs::read(&self.path)
            .map_err(|error: io::Error| format!("cannot read {}: {error}", self.path.display()))?;
        if self.names.0 != bytes {
            let files = CloudConfig::parse(&bytes).map(|cloud_config| cloud_config.files()).unwrap_or_default();
            self.names = (bytes.clone(), files);
        }
        Ok((bytes, self.names.1.iter().map(|path| std::fs::read(path).ok()).collect()))
    }

    /// Content that can be used is used at once; other content is told when it is seen a second time, and once.
    fn look(&mut self) -> Look {
        let content = self.read();
        if self.known == content {
            self.suspect = None;
            return Look::Nothing;
        }
        match self.judge(&content) {
            Ok(cloud_config) => {
                (self.known, self.suspect) = (content, None);
                Look::New(Box::new(cloud_config))
            }
            Err(text) if self.suspect.as_ref() == Some(&content) => {
                (self.known, self.suspect) = (content, None);
                Look::Bad(text)
            }
            Err(_) => {
                self.suspect = Some(content);
                Look::Nothing
            }
        }
    }

    fn judge(&self, content: &Content) -> Result<CloudConfig, String> {
        let (bytes, _) = content.as_ref().map_err(Clone::clone)?;
        let cloud_config = CloudConfig::parse(bytes).map_err(|error| chain(&error))?;
        if cloud_config.namespace != self.namespace {
            return Err(format!(
                "its namespace is {}, not {}: machines and load balancers of this cluster are in the latter; restart to change it",
                cloud_config.namespace, self.namespace
            ));
        }
        Ok(cloud_config)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::config::tests::CLOUD_CONFIG;
    use super::*;

    fn file(path: &Path) -> File {
        std::fs::write(path, CLOUD_CONFIG).unwrap();
        let mut file = File::new(path.to_owned(), &CloudConfig::parse(CLOUD_CONFIG.as_bytes()).unwrap());
        assert!(matches!(file.look(), Look::Nothing));
        file
    }

    #[test]
    fn a_changed_file_is_used_once_however_it_was_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        // As the kubelet mounts a Secret: file -> ..data/file, ..data -> a directory per version.
        for version in ["v1", "v2"] {
            std::fs::create_dir(at(version)).unwrap();
        }
        std::os::unix::fs::symlink("v1", at("..data")).unwrap();
        std::fs::write(at("v1/cloud-config"), CLOUD_CONFIG).unwrap();
        std::os::unix::fs::symlink("..data/cloud-config", at("cloud-config")).unwrap();
        let path = at("cloud-config");
        let mut file = File::new(path.clone(), &CloudConfig::parse(CLOUD_CONFIG.as_bytes()).unwrap());
        assert!(matches!(file.look(), Look::Nothing), "the content in use");
        std::fs::write(at("v2/cloud-config"), CLOUD_CONFIG.replace("secret", "new")).unwrap();
        std::os::unix::fs::symlink("v2", at("..data_tmp")).unwrap();
        std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
        assert!(matches!(file.look(), Look::New(_)));
        assert!(matches!(file.look(), Look::Nothing));
        // As a provisioned cluster replaces a file of the host.
        std::fs::write(at("new"), CLOUD_CONFIG.replace("secret", "newer")).unwrap();
        std::fs::rename(at("new"), &path).unwrap();
        assert!(matches!(file.look(), Look::New(_)));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_told_once_if_it_stays_so_and_what_works_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cloud-config");
        let mut file = file(&path);
        for (content, part) in [
            ("{", "not valid YAML"),
            (&*CLOUD_CONFIG.replace("guests", "others"), "its namespace is others, not guests"),
        ] {
            std::fs::write(&path, content).unwrap();
            assert!(matches!(file.look(), Look::Nothing), "it may be half written");
            let Look::Bad(text) = file.look() else { panic!("it stays so") };
            assert!(text.contains(part), "{text}");
            assert!(matches!(file.look(), Look::Nothing), "once");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(file.look(), Look::Nothing));
        assert!(matches!(file.look(), Look::Bad(text) if text.contains("cannot read")));
        std::fs::write(&path, CLOUD_CONFIG.replace("secret", "new")).unwrap();
        assert!(matches!(file.look(), Look::New(_)));
    }

    #[test]
    fn a_certificate_that_the_file_names_counts_as_part_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let (path, authority) = (directory.path().join("cloud-config"), directory.path().join("ca.crt"));
        let named = CLOUD_CONFIG
            .replace("insecure-skip-tls-verify: true", &format!("certificate-authority: '{}'", authority.display()));
        std::fs::write(&authority, "old").unwrap();
        std::fs::write(&path, &named).unwrap();
        let mut file = File::new(path.clone(), &CloudConfig::parse(named.as_bytes()).unwrap());
        assert!(matches!(file.look(), Look::Nothing));
        std::fs::write(&authority, "new").unwrap();
        assert!(matches!(file.look(), Look::New(_)));
    }
}
