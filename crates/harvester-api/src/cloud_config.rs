//! The cloud-config: a kubeconfig for the Harvester API, which is validated before its first use (CCM spec 1.5,
//! decision 15).
//!
//! Every defect is an error that names the field, the value and what is accepted. The file was written by a machine
//! pool, a Secret or a script, so the reader of the message may never have seen it. Secrets never appear in a message.

use std::fmt;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::config::Kubeconfig;
use serde_json::{Map, Value, json};

mod account;
mod error;
mod render;
pub use account::Account;
pub use error::{CloudConfigError, CloudConfigFileError, CloudConfigWarning};
pub use render::render;

/// Namespace used when the context names none, as client-go does.
pub const DEFAULT_NAMESPACE: &str = "default";

/// A valid cloud-config: one identity, one namespace, one or more endpoints.
#[derive(Clone)]
pub struct CloudConfig {
    /// Name of the current context.
    pub context: String,
    /// Name of its user.
    pub user: String,
    /// Namespace of all VMs and load balancers of this guest cluster.
    pub namespace: String,
    /// Oddities that an operator should know, although the file works.
    pub warnings: Vec<CloudConfigWarning>,
    /// Endpoints of the Harvester API, the current context's first; never empty. Further ones come from contexts with
    /// the same user and namespace.
    pub endpoints: Vec<Endpoint>,
    credentials: Map<String, Value>,
}

/// One endpoint of the Harvester API.
#[derive(Clone)]
pub struct Endpoint {
    /// Name of the cluster entry.
    pub cluster: String,
    /// URL, with a path prefix if the API is behind Rancher's proxy.
    pub server: String,
    settings: Map<String, Value>,
}

impl CloudConfig {
    /// Parses and validates the bytes of a kubeconfig, YAML or JSON. Files that it refers to (certificates,
    /// `tokenFile`) are not read.
    pub fn parse(bytes: &[u8]) -> Result<Self, CloudConfigError> {
        let root = read(bytes)?;
        let contexts = entries(&root, "contexts", "context")?;
        let clusters = entries(&root, "clusters", "cluster")?;
        let users = entries(&root, "users", "user")?;

        let current = required(&root, "", "current-context", || {
            format!("the name of a context; contexts: {}", error::list(&names(&contexts)))
        })?;
        let context = find(&contexts, current)
            .ok_or_else(|| CloudConfigError::UnknownContext { name: current.to_owned(), known: names(&contexts) })?;
        let user = required(&context.body, &context.path, "user", || "the name of a user".to_owned())?;
        let user_entry = find(&users, user).ok_or_else(|| CloudConfigError::UnknownUser {
            context: current.to_owned(),
            name: user.to_owned(),
            known: names(&users),
        })?;
        check_credentials(user_entry)?;

        let mut warnings = Vec::new();
        let namespace = match text(&context.body, &context.path, "namespace")? {
            Some(namespace) if !namespace.is_empty() => namespace,
            _ => {
                warnings.push(CloudConfigWarning::NamespaceMissing { context: current.to_owned() });
                DEFAULT_NAMESPACE
            }
        };

        let mut endpoints = vec![endpoint(context, &clusters)?];
        for other in contexts.iter().filter(|other| other.name != current) {
            let same_user = text(&other.body, &other.path, "user").ok().flatten() == Some(user);
            let other_namespace =
                text(&other.body, &other.path, "namespace").ok().flatten().filter(|name| !name.is_empty());
            if !same_user || other_namespace.unwrap_or(DEFAULT_NAMESPACE) != namespace {
                continue;
            }
            match endpoint(other, &clusters) {
                Ok(found)
                    if endpoints.iter().all(|known| known.cluster != found.cluster && known.server != found.server) =>
                {
                    endpoints.push(found);
                }
                Ok(_) => {}
                // client-go does not look at other contexts, so a defect in one must not stop a provider that works
                // with the current context.
                Err(error) => warnings.push(CloudConfigWarning::EndpointSkipped(error)),
            }
        }
        Ok(Self {
            context: current.to_owned(),
            user: user.to_owned(),
            namespace: namespace.to_owned(),
            warnings,
            endpoints,
            credentials: user_entry.body.clone(),
        })
    }

    /// A kubeconfig with one cluster, user and context for one of [`Self::endpoints`], to build a client from.
    pub fn kubeconfig(&self, endpoint: &Endpoint) -> Kubeconfig {
        let document = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": self.context,
            "contexts": [{"name": self.context,
                "context": {"cluster": endpoint.cluster, "user": self.user, "namespace": self.namespace}}],
            "clusters": [{"name": endpoint.cluster, "cluster": endpoint.settings}],
            "users": [{"name": self.user, "user": self.credentials}],
        });
        serde_json::from_value(document).expect("members were checked by parse()")
    }

    /// Certificates of the certificate authority of the Harvester API, if the current context's cluster contains any.
    pub fn authority(&self) -> Option<Vec<u8>> {
        let settings = &self.endpoints.first()?.settings;
        let text = |key: &str| settings.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        match (text("certificate-authority-data"), text("certificate-authority")) {
            (Some(data), _) => STANDARD.decode(data.trim()).ok(),
            (None, Some(path)) => std::fs::read(path).ok(),
            (None, None) => None,
        }
    }

    /// The same cloud-config with the certificates of authorities instead of the names of their files, as far as they
    /// can be read. Other content of a file is another place then, and not this one by a later look.
    pub fn with_authorities(mut self) -> Self {
        for Endpoint { settings, .. } in &mut self.endpoints {
            let path = settings.get("certificate-authority").and_then(Value::as_str).map(PathBuf::from);
            let Some(path) = path.filter(|_| !settings.contains_key("certificate-authority-data")) else { continue };
            if let Some(content) = std::fs::read(path).ok().filter(|content| !content.is_empty()) {
                settings.remove("certificate-authority");
                settings.insert("certificate-authority-data".to_owned(), STANDARD.encode(content).into());
            }
        }
        self
    }

    /// Files that the cloud-config refers to. `tokenFile` is left out, because the client reads it again by itself.
    pub fn files(&self) -> Vec<PathBuf> {
        let named = self.endpoints.iter().map(|endpoint| (&endpoint.settings, "certificate-authority"));
        let named = named.chain(["client-certificate", "client-key"].map(|key| (&self.credentials, key)));
        named
            .filter_map(|(object, key)| Some(PathBuf::from(object.get(key)?.as_str().filter(|path| !path.is_empty())?)))
            .collect()
    }
}

/// Keeps credentials out of logs.
impl fmt::Debug for CloudConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloudConfig")
            .field("context", &self.context)
            .field("user", &self.user)
            .field("namespace", &self.namespace)
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("cluster", &self.cluster).field("server", &self.server).finish_non_exhaustive()
    }
}

/// A named entry of one of the three lists.
struct Entry {
    name: String,
    path: String,
    body: Map<String, Value>,
}

fn read(bytes: &[u8]) -> Result<Map<String, Value>, CloudConfigError> {
    let text = std::str::from_utf8(bytes).map_err(|error| CloudConfigError::NotText { valid: error.valid_up_to() })?;
    let text = text.trim_start_matches('\u{feff}');
    if text.trim().is_empty() {
        return Err(CloudConfigError::Empty);
    }
    // JSON that is indented with tabs is not valid YAML.
    let parsed = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(_) => serde_saphyr::from_str(text).map_err(|error| syntax(&error))?,
    };
    match parsed {
        Value::Object(root) => Ok(root),
        Value::Null => Err(CloudConfigError::Empty),
        other => Err(CloudConfigError::Type {
            field: "the document".to_owned(),
            found: type_name(&other),
            expected: "a kubeconfig object",
        }),
    }
}

fn syntax(error: &serde_saphyr::Error) -> CloudConfigError {
    // The first line is the message; the rest is an excerpt of the file, which may contain a token.
    let problem = error.without_snippet().to_string().lines().next().unwrap_or_default().to_owned();
    CloudConfigError::Syntax { line: error.location().map(|location| location.line()), problem }
}

fn entries(root: &Map<String, Value>, list_name: &str, body_name: &str) -> Result<Vec<Entry>, CloudConfigError> {
    let items = match root.get(list_name) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(other) => {
            return Err(CloudConfigError::Type {
                field: list_name.to_owned(),
                found: type_name(other),
                expected: "a list",
            });
        }
    };
    let mut found = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let item_path = format!("{list_name}[{index}]");
        let Value::Object(item) = item else {
            return Err(CloudConfigError::Type {
                field: item_path,
                found: type_name(item),
                expected: "an object with name",
            });
        };
        let name = required(item, &item_path, "name", || "a name".to_owned())?.to_owned();
        let path = format!("{item_path}.{body_name}");
        let body = match item.get(body_name) {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(body)) => body.clone(),
            Some(other) => {
                return Err(CloudConfigError::Type { field: path, found: type_name(other), expected: "an object" });
            }
        };
        found.push(Entry { name, path, body });
    }
    Ok(found)
}

fn find<'a>(entries: &'a [Entry], name: &str) -> Option<&'a Entry> {
    entries.iter().find(|entry| entry.name == name)
}

fn names(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(|entry| entry.name.clone()).collect()
}

fn text<'a>(object: &'a Map<String, Value>, path: &str, key: &str) -> Result<Option<&'a str>, CloudConfigError> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(CloudConfigError::Type {
            field: join(path, key),
            found: type_name(other),
            expected: "a string (quote it)",
        }),
    }
}

fn required<'a>(
    object: &'a Map<String, Value>,
    path: &str,
    key: &str,
    expected: impl Fn() -> String,
) -> Result<&'a str, CloudConfigError> {
    text(object, path, key)?
        .filter(|text| !text.is_empty())
        .ok_or_else(|| CloudConfigError::Missing { field: join(path, key), expected: expected() })
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn endpoint(context: &Entry, clusters: &[Entry]) -> Result<Endpoint, CloudConfigError> {
    let name = required(&context.body, &context.path, "cluster", || "the name of a cluster".to_owned())?;
    let cluster = find(clusters, name).ok_or_else(|| CloudConfigError::UnknownCluster {
        context: context.name.clone(),
        name: name.to_owned(),
        known: names(clusters),
    })?;
    let server =
        required(&cluster.body, &cluster.path, "server", || "a URL such as https://192.0.2.10:6443".to_owned())?;
    check_server(name, server)?;
    check_embedded(cluster, "certificate-authority-data", "a PEM certificate", "CERTIFICATE-----")?;
    let mut settings = Map::new();
    for key in ["server", "certificate-authority", "certificate-authority-data", "proxy-url", "tls-server-name"] {
        if let Some(value) = text(&cluster.body, &cluster.path, key)?.filter(|value| !value.is_empty()) {
            settings.insert(key.to_owned(), value.into());
        }
    }
    for key in ["insecure-skip-tls-verify", "disable-compression"] {
        match cluster.body.get(key) {
            None | Some(Value::Null) => {}
            Some(Value::Bool(value)) => _ = settings.insert(key.to_owned(), (*value).into()),
            Some(other) => {
                let field = join(&cluster.path, key);
                return Err(CloudConfigError::Type { field, found: type_name(other), expected: "true or false" });
            }
        }
    }
    Ok(Endpoint { cluster: name.to_owned(), server: server.to_owned(), settings })
}

fn check_server(cluster: &str, server: &str) -> Result<(), CloudConfigError> {
    let refused = |problem| CloudConfigError::Server { cluster: cluster.to_owned(), value: server.to_owned(), problem };
    let url: http::Uri = server.parse().map_err(|_| refused("is not a valid URL"))?;
    match url.scheme_str() {
        Some("https" | "http") => {}
        Some(_) => return Err(refused("has a scheme other than https or http")),
        None => return Err(refused("has no scheme")),
    }
    if url.host().is_none_or(str::is_empty) {
        return Err(refused("has no host"));
    }
    let after_host = url
        .authority()
        .map(|authority| authority.as_str().rsplit_once('@').map_or(authority.as_str(), |(_, host)| host));
    let port_text = after_host
        .and_then(|host| host.rsplit_once(']').map_or(host, |(_, rest)| rest).rsplit_once(':'))
        .map(|(_, port)| port);
    if port_text.is_some_and(|port| port.parse::<u16>().map_or(true, |port| port == 0)) {
        return Err(refused("has a port that is not within 1-65535"));
    }
    Ok(())
}

fn check_embedded(entry: &Entry, key: &str, expected: &'static str, marker: &str) -> Result<bool, CloudConfigError> {
    let Some(encoded) = text(&entry.body, &entry.path, key)?.filter(|data| !data.is_empty()) else {
        return Ok(false);
    };
    let field =
        || format!("{key} of {} {:?}", if key.starts_with("certificate") { "cluster" } else { "user" }, entry.name);
    let decoded = STANDARD
        .decode(encoded.trim())
        .map_err(|error| CloudConfigError::Base64 { field: field(), problem: error.to_string() })?;
    let pem = String::from_utf8_lossy(&decoded);
    if pem.contains("-----BEGIN ") && pem.contains(marker) {
        Ok(true)
    } else {
        Err(CloudConfigError::NotPem { field: field(), expected })
    }
}

fn check_credentials(user: &Entry) -> Result<(), CloudConfigError> {
    let given = |key| text(&user.body, &user.path, key).map(|value| value.is_some_and(|value| !value.is_empty()));
    let certificate = check_embedded(user, "client-certificate-data", "a PEM certificate", "CERTIFICATE-----")?
        | given("client-certificate")?;
    let key = check_embedded(user, "client-key-data", "a PEM private key", "PRIVATE KEY-----")? | given("client-key")?;
    let pair = |present, missing| CloudConfigError::IncompletePair { user: user.name.clone(), present, missing };
    match (certificate, key) {
        (true, false) => return Err(pair("a client certificate", "client-key or client-key-data")),
        (false, true) => return Err(pair("a client key", "client-certificate or client-certificate-data")),
        _ => {}
    }
    let token = given("token")? | given("tokenFile")?;
    let basic = match (given("username")?, given("password")?) {
        (true, false) if !certificate && !token => return Err(pair("username", "password")),
        (name, password) => name && password,
    };
    // The image does not contain such a program, and the author of the file could run any program with the controller's
    // rights.
    if let Some(plugin) =
        ["exec", "auth-provider"].into_iter().find(|key| user.body.get(*key).is_some_and(Value::is_object))
    {
        return Err(CloudConfigError::Plugin { user: user.name.clone(), plugin });
    }
    if !(certificate || token || basic) {
        return Err(CloudConfigError::NoCredentials { user: user.name.clone() });
    }
    // Errors that the client library would report without the place in the file.
    serde_json::from_value::<kube::config::AuthInfo>(Value::Object(user.body.clone()))
        .map(drop)
        .map_err(|error| CloudConfigError::Syntax { line: None, problem: format!("{}: {error}", user.path) })
}

#[cfg(test)]
mod tests;
