//! Kubernetes clients: source of the credentials, time-outs, and a count of all requests.
//!
//! [`connect`] makes every client, as a stack of tower layers. A [`Switch`] in front of several clients serves a server
//! with more than one endpoint, or with credentials that are replaced at run time.

mod dial;
mod kubeconfig;
mod layer;
mod limit;
mod outcome;
mod servers;
mod switch;
mod transport;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use http::header::{HeaderValue, USER_AGENT};
use kube::client::ClientBuilder;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

pub use kubeconfig::{KubeconfigFileError, KubeconfigFiles};
pub use layer::ApiMetrics;
use layer::ObserveLayer;
pub(crate) use layer::REQUESTS;
pub use limit::Limit;
pub use servers::Servers;
pub use switch::{Endpoint, Link, Switch};
pub use transport::towards;

use crate::Product;

/// The source of the credentials of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A kubeconfig file, explicitly named.
    File(PathBuf),
    /// The pod's service account.
    InCluster,
}

impl Source {
    /// The source of the guest cluster's credentials: first the flag, then the environment variable `KUBECONFIG`, then
    /// the pod's service account (CCM spec W-36: the Go provider could end up with two different clusters). Empty
    /// values count as unset.
    pub fn choose(flag: Option<&str>, environment: Option<&str>) -> Self {
        let given = [flag, environment].into_iter().flatten().find(|path| !path.trim().is_empty());
        given.map_or(Self::InCluster, |path| Self::File(PathBuf::from(path)))
    }

    /// The API servers to use directly, instead of the address that the pod is told. An address that somebody has
    /// chosen is used as it is.
    pub fn servers(&self, master: Option<&str>) -> Option<Servers> {
        (*self == Self::InCluster && master.is_none_or(str::is_empty)).then(Servers::default)
    }

    /// Reads the credentials. `master`, if given, replaces the server's URL (`--master`).
    pub async fn load(&self, master: Option<&str>) -> Result<Config, ClientError> {
        let mut config = match self {
            Self::File(path) => {
                let document = std::fs::read_to_string(path)
                    .map_err(|source| ClientError::Unreadable { path: path.clone(), source })?;
                from_document(&document, &path.display().to_string()).await?
            }
            Self::InCluster => Config::incluster().map_err(ClientError::InCluster)?,
        };
        if let Some(master) = master.filter(|master| !master.is_empty()) {
            config.cluster_url = server_url(master).ok_or_else(|| ClientError::Master { url: master.to_owned() })?;
        }
        Ok(config)
    }
}

/// Description of a valid URL of an API server, for messages.
pub const SERVER_URL: &str =
    "http:// or https://, a host, and a port unless it is the scheme's own, such as https://10.0.0.1:6443";

/// Parses the URL of an API server. Checked early, because the library panics later on a URL without scheme or host.
pub fn server_url(text: &str) -> Option<Uri> {
    text.parse().ok().filter(is_server_url)
}

fn is_server_url(uri: &Uri) -> bool {
    matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
}

/// Reads a kubeconfig from memory, with its current context. `origin` is its name in errors. Relative paths inside are
/// resolved against the working directory, as in the Go provider. The context's namespace becomes `default_namespace`;
/// if empty, it is `default`.
pub async fn from_document(document: &str, origin: &str) -> Result<Config, ClientError> {
    let malformed = |source| ClientError::Malformed { origin: origin.to_owned(), source };
    let kubeconfig = Kubeconfig::from_yaml(document).map_err(malformed)?;
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(malformed)?;
    if config.default_namespace.is_empty() {
        config.default_namespace = "default".into();
    }
    Ok(config)
}

/// Configuration of a client.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the server in metrics and errors, for example `guest` or `host`.
    pub server: &'static str,
    /// `User-Agent`.
    pub user_agent: String,
    /// Limit for the TCP and TLS handshakes.
    pub connect_timeout: Duration,
    /// Limit for a request from the first byte to the last of the answer. Watches are exempt.
    pub request_timeout: Duration,
    /// Whether the client retries after 429, 503 and 504, within the request time-out. Evictions are sent once, except
    /// through a proxy.
    pub retry: bool,
    /// Metrics that count the requests.
    pub metrics: Option<ApiMetrics>,
    /// Limit of requests per second.
    pub limit: Option<Limit>,
    /// Listener for the time in each answer.
    pub time: Option<Arc<dyn ServerTime>>,
    /// Requests that could change anything are not sent.
    pub read_only: bool,
    /// The API servers behind the address in the configuration, which are used directly.
    pub servers: Option<Servers>,
}

/// A listener for the server's time, which is in the header `Date` of each answer.
pub trait ServerTime: fmt::Debug + Send + Sync {
    /// The current time of the listener's clock, taken when a request is sent.
    fn now(&self) -> std::time::Instant;
    /// Reports the date of an answer whose request was sent at `asked`.
    fn answered(&self, asked: std::time::Instant, date: &str);
}

impl Settings {
    /// 5 s to connect, 10 s per request, retries, no metrics.
    pub fn new(server: &'static str, product: &Product) -> Self {
        Self {
            server,
            user_agent: product.user_agent(),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            retry: true,
            metrics: None,
            limit: None,
            time: None,
            read_only: false,
            servers: None,
        }
    }

    /// Sets the API servers that are used directly.
    pub fn servers(mut self, servers: Option<Servers>) -> Self {
        self.servers = servers;
        self
    }

    /// Sets the listener for the time in each answer.
    pub fn time(mut self, listener: Arc<dyn ServerTime>) -> Self {
        self.time = Some(listener);
        self
    }

    /// Sets the limit of requests per second.
    pub fn limit(mut self, limit: Option<Limit>) -> Self {
        self.limit = limit;
        self
    }

    /// Makes the client refuse requests that could change anything.
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Sets whether the client retries.
    pub fn retries(mut self, retry: bool) -> Self {
        self.retry = retry;
        self
    }

    /// Sets the metrics that count the requests.
    pub fn metrics(mut self, metrics: &ApiMetrics) -> Self {
        self.metrics = Some(metrics.clone());
        self
    }
}

/// Makes a client. Nothing is sent yet. Needs a tokio runtime.
pub fn connect(mut config: Config, settings: &Settings) -> Result<Client, ClientError> {
    install_crypto_provider();
    if !is_server_url(&config.cluster_url) {
        return Err(ClientError::Server { url: config.cluster_url.to_string() });
    }
    let agent = HeaderValue::from_str(&settings.user_agent)
        .map_err(|_| ClientError::UserAgent { user_agent: settings.user_agent.clone() })?;
    config.headers.push((USER_AGENT, agent));
    config.connect_timeout = Some(settings.connect_timeout);
    config.default_retry = settings.retry;
    // Without verification no root certificates are needed. The library would look for those of the system, which the
    // image does not contain.
    if config.accept_invalid_certs && config.root_cert.is_none() {
        config.root_cert = Some(Vec::new());
    }
    let server = config.cluster_url.to_string();
    let observe = ObserveLayer::new(settings, &server);
    let client = match config.proxy_url {
        None => {
            transport::direct(&config, settings.servers.as_ref()).map(|builder| builder.with_layer(&observe).build())
        }
        // TCP probes would reach only the proxy, and prove nothing about the server behind it.
        Some(_) => ClientBuilder::try_from(config).map(|builder| builder.with_layer(&observe).build()),
    };
    client.map_err(|source| ClientError::Build { server, source: Box::new(source) })
}

/// Selects `ring` for TLS in the whole process, unless a provider is already set.
fn install_crypto_provider() {
    // An error means that another thread has set it first.
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
}

/// Why no client could be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The file cannot be read.
    #[error("cannot read kubeconfig {}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The document is not a usable kubeconfig.
    #[error("{origin} is not a usable kubeconfig")]
    Malformed {
        /// The origin of the document.
        origin: String,
        /// Cause.
        source: KubeconfigError,
    },
    /// Outside a pod, or without a service account token.
    #[error(
        "no kubeconfig was given (--kubeconfig, or KUBECONFIG; to the announcer k8s_config_file, or --k8sConfigPath) \
         and there is no service account of a pod"
    )]
    InCluster(#[source] InClusterError),
    /// `--master` is not a URL.
    #[error("--master={url} is not the URL of an API server; accepted: {}", SERVER_URL)]
    Master {
        /// The value.
        url: String,
    },
    /// The server in the kubeconfig is not a URL.
    #[error("{url:?} is not the URL of an API server; accepted: {}", SERVER_URL)]
    Server {
        /// The value.
        url: String,
    },
    /// The user agent contains characters that are not allowed in a header.
    #[error("{user_agent:?} cannot be used as User-Agent")]
    UserAgent {
        /// The value.
        user_agent: String,
    },
    /// Certificates, keys or the proxy are not usable.
    #[error("cannot use the credentials for {server}")]
    Build {
        /// URL of the API server.
        server: String,
        /// Cause.
        source: Box<kube::Error>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::chain;

    const DOCUMENT: &str = "
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: 'https://rancher.example/k8s/clusters/local', insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u, namespace: guests}}]
current-context: x
";

    /// W-36.
    #[test]
    fn the_flag_wins_over_the_environment_and_both_over_the_service_account() {
        let file = |path: &str| Source::File(path.into());
        assert_eq!(Source::choose(Some("/flag"), Some("/env")), file("/flag"));
        assert_eq!(Source::choose(Some(""), Some("/env")), file("/env"));
        assert_eq!(Source::choose(None, Some(" ")), Source::InCluster);
        assert!(Source::InCluster.servers(Some("")).is_some());
        assert!(Source::InCluster.servers(Some("https://master")).is_none() && file("/flag").servers(None).is_none());
    }

    #[tokio::test]
    async fn the_current_context_gives_server_and_namespace_and_the_path_of_the_url_is_kept() {
        let config = from_document(DOCUMENT, "cloud-config").await.unwrap();
        assert_eq!(config.default_namespace, "guests");
        assert_eq!(config.cluster_url.path(), "/k8s/clusters/local");
        let config = from_document(&DOCUMENT.replace(", namespace: guests", ""), "cloud-config").await.unwrap();
        assert_eq!(config.default_namespace, "default");
        let config = from_document(&DOCUMENT.replace("guests", "''"), "cloud-config").await.unwrap();
        assert_eq!(config.default_namespace, "default");
        assert!(connect(config, &Settings::new("host", &Product::TEST)).is_ok());
    }

    #[tokio::test]
    async fn what_is_wrong_with_a_document_is_said_with_its_origin() {
        for (document, expected) in [
            ("", "cloud-config is not a usable kubeconfig: "),
            ("{", "cloud-config is not a usable kubeconfig: "),
            (
                &DOCUMENT.replace("current-context: x", "current-context: y"),
                "cloud-config is not a usable kubeconfig: ",
            ),
        ] {
            let error = from_document(document, "cloud-config").await.unwrap_err();
            assert!(chain(&error).starts_with(expected), "{}", chain(&error));
        }
        let error = Source::File("/does/not/exist".into()).load(None).await.unwrap_err();
        assert!(chain(&error).starts_with("cannot read kubeconfig /does/not/exist: No such file"), "{}", chain(&error));
    }

    /// kube-client panics on them when the first request is made.
    #[tokio::test]
    async fn what_is_no_url_of_a_server_is_refused_before_anything_is_asked() {
        for wrong in ["foo", "10.0.0.1:6443", "ftp://x", "https://"] {
            assert_eq!(server_url(wrong), None, "{wrong}");
        }
        assert!(server_url("https://[fd00::1]:6443").is_some());
        let mut config = from_document(DOCUMENT, "cloud-config").await.unwrap();
        config.cluster_url = Uri::from_static("foo");
        let error = connect(config, &Settings::new("host", &Product::TEST)).map(drop).unwrap_err();
        assert!(chain(&error).contains("accepted: http:// or https://"), "{}", chain(&error));
    }

    #[tokio::test]
    async fn a_client_that_only_reads_sends_no_write() {
        let config = Config::new("http://127.0.0.1:1".parse().unwrap());
        let settings = Settings::new("guest", &Product::TEST).retries(false).read_only();
        let maps: kube::Api<k8s_openapi::api::core::v1::ConfigMap> =
            kube::Api::namespaced(connect(config, &settings).unwrap(), "x");
        let error = maps.delete("a", &kube::api::DeleteParams::default()).await.unwrap_err();
        assert!(chain(&error).contains("DELETE /api/v1/namespaces/x/configmaps/a is not sent"), "{}", chain(&error));
        let error = maps.get("a").await.unwrap_err();
        assert!(chain(&error).contains("cannot connect"), "{}", chain(&error));
    }

    /// W-47.
    #[tokio::test]
    async fn each_request_bears_the_name_and_version_of_the_program() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = Config::new(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
        let client = connect(config, &Settings::new("guest", &Product::TEST).retries(false)).unwrap();
        let received = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = [0; 4096];
            let length = tokio::io::AsyncReadExt::read(&mut stream, &mut bytes).await.unwrap();
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        };
        let (request, _) = tokio::join!(received, client.apiserver_version());
        assert!(request.contains("user-agent: tested/1.2.3\r\n"), "{request}");
    }

    #[tokio::test]
    async fn who_cannot_be_reached_is_named() {
        // The port is ours, and nobody listens there.
        let taken = tokio::net::TcpSocket::new_v4().unwrap();
        taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = taken.local_addr().unwrap();
        let config = Config::new(format!("http://{address}").parse().unwrap());
        let settings = Settings::new("guest", &Product::TEST).retries(false);
        let error = connect(config, &settings).unwrap().apiserver_version().await.unwrap_err();
        let expected = format!("cannot connect to the guest server at http://{address}/: ");
        assert!(chain(&error).starts_with(&expected), "{}", chain(&error));
        assert!(chain(&error).contains("refused"), "{}", chain(&error));
    }
}
