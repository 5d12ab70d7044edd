//! The request, which is validated before anything is sent.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use harvester_api::names::is_object_name;

/// The account, the way to create its credentials, and the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Service account on Harvester; by custom the name of the guest cluster.
    pub service_account: String,
    /// Namespace of the guest's virtual machines.
    pub namespace: String,
    /// Name of the guest cluster for Helm values.
    pub cluster_name: String,
    /// URL of the Harvester API for guests; absent: that of the administrator's kubeconfig.
    pub server: Option<String>,
    /// Certificate authority of that URL, PEM, if it is not the API server's own.
    pub ca_pem: Option<String>,
    /// Who creates account and token.
    pub issuer: Issuer,
    /// The task.
    pub task: Task,
    /// Name of the Secret in the guest that holds the credentials.
    pub secret_name: String,
    /// [`Task::RevokeOld`]: how long to watch which tokens are in use.
    pub watch_tokens_for: Duration,
    /// Print what would be done, and write nothing.
    pub dry_run: bool,
    /// Skip the checks of the URL, which may answer guests only.
    pub skip_checks: bool,
}

/// Who creates account and token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Issuer {
    /// This command creates them, with the administrator's rights.
    Own,
    /// Harvester creates them: `POST /v1/harvester/kubeconfig` (Harvester spec 10.3).
    Harvester,
}

/// The task of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Create what is missing, and print the newest credentials.
    Ensure,
    /// Create a further token and print it; older ones stay valid until [`Task::RevokeOld`].
    Rotate,
    /// Delete all tokens but the newest.
    RevokeOld,
    /// Delete all tokens and the rights.
    Revoke,
}

/// Why a request is rejected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RequestError {
    /// Not a valid Kubernetes name.
    #[error(
        "{field} {value:?} is not a valid name: lower-case letters, digits and '-', at most {limit} characters, \
         first and last a letter or digit"
    )]
    Name {
        /// Name of the argument.
        field: &'static str,
        /// Its value.
        value: String,
        /// Longest accepted length.
        limit: usize,
    },
    /// `--secret-name`.
    #[error(
        "--secret-name {0:?} is not a name of a Secret; accepted: lower-case letters, digits, '-' and '.', first \
         and last a letter or digit, such as harvester-cloud-config"
    )]
    SecretName(String),
    /// Only this command's own way supports the task.
    #[error(
        "{0} needs --credentials own: Harvester's own endpoint only makes what is missing and always hands out \
         the same token"
    )]
    NeedsOwnIssuer(Task),
    /// The URL contains credentials, which would be written to every machine. The message does not repeat it.
    #[error(
        "--server must not hold a user or a password: guests show their token. Accepted: an https URL such as \
         https://192.168.1.10:6443"
    )]
    UserInServer,
    /// Not a URL that a client could use.
    #[error("--server {0:?} is not an https URL such as https://192.168.1.10:6443")]
    Server(String),
    /// Tokens of the administrator, and new ones, would be sent in clear text.
    #[error(
        "clusters[].cluster.server {0:?} of the administrator's kubeconfig would send tokens across the network \
         in clear text; accepted: an https URL such as https://192.168.1.10:6443, or http to this machine alone, \
         such as that of kubectl proxy"
    )]
    ClearText(String),
    /// The URL of the administrator's kubeconfig is not usable for guests.
    #[error(
        "a guest cluster cannot use clusters[].cluster.server {0:?} of the administrator's kubeconfig: give --server \
        with an https URL such as https://192.168.1.10:6443"
    )]
    NoUrlForGuests(String),
}

/// Limit of the account's name, which leaves room for `-token-` and a time stamp.
const ACCOUNT_LIMIT: usize = 230;
const LABEL_LIMIT: usize = 63;

impl Request {
    /// Validates the values of the user.
    pub fn validate(&self) -> Result<(), RequestError> {
        check_name("service account", &self.service_account, ACCOUNT_LIMIT)?;
        check_name("namespace", &self.namespace, LABEL_LIMIT)?;
        check_name("--cluster-name", &self.cluster_name, LABEL_LIMIT)?;
        if !is_object_name(&self.secret_name) {
            return Err(RequestError::SecretName(self.secret_name.clone()));
        }
        if let Some(server) = &self.server {
            // A password may contain characters that end the host in a URL, so any `@` is rejected.
            if server.contains('@') {
                return Err(RequestError::UserInServer);
            }
            if !is_server(server) {
                return Err(RequestError::Server(server.clone()));
            }
        }
        match (self.issuer, self.task) {
            (Issuer::Harvester, Task::Rotate | Task::RevokeOld | Task::Revoke) => {
                Err(RequestError::NeedsOwnIssuer(self.task))
            }
            _ => Ok(()),
        }
    }
}

/// Whether the URL has scheme, host, and at most a port and a path, as in a kubeconfig.
fn is_server(server: &str) -> bool {
    let Ok(uri) = server.parse::<http::Uri>() else { return false };
    let Some(authority) = uri.authority() else { return false };
    let host = authority.host();
    let port = authority.as_str().strip_prefix(host).unwrap_or_default();
    let port_is_one =
        port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse().is_ok_and(|port: u16| port > 0));
    uri.scheme_str() == Some("https")
        && !host.is_empty()
        && port_is_one
        && uri.query().is_none()
        && !server.contains('#')
}

/// Validates the server of the administrator's kubeconfig, before anything is sent there.
pub fn check_admin_server(request: &Request, server: &str) -> Result<(), RequestError> {
    let uri = server.parse::<http::Uri>().unwrap_or_default();
    if uri.scheme_str() != Some("http") {
        return Ok(());
    }
    if !uri.host().is_some_and(is_loopback) {
        return Err(RequestError::ClearText(server.to_owned()));
    }
    // The proof before a revocation uses the guests' URL. A `kubectl proxy` would answer as the administrator, whatever
    // the token is.
    let for_guests = match request.task {
        Task::Ensure | Task::Rotate => true,
        Task::RevokeOld => !request.skip_checks,
        Task::Revoke => false,
    };
    if request.issuer == Issuer::Own && for_guests && request.server.is_none() {
        return Err(RequestError::NoUrlForGuests(server.to_owned()));
    }
    Ok(())
}

/// Whether `host`, in the form of a URL, is the local machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn check_name(field: &'static str, value: &str, limit: usize) -> Result<(), RequestError> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let edge = |c: Option<char>| c.is_some_and(|c| inner(c) && c != '-');
    if value.len() <= limit && value.chars().all(inner) && edge(value.chars().next()) && edge(value.chars().last()) {
        return Ok(());
    }
    Err(RequestError::Name { field, value: value.to_owned(), limit })
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ensure => "making credentials",
            Self::Rotate => "--rotate",
            Self::RevokeOld => "--revoke-old",
            Self::Revoke => "--revoke",
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn request() -> Request {
        Request {
            service_account: "demo".into(),
            namespace: "guests".into(),
            cluster_name: "demo".into(),
            server: None,
            ca_pem: None,
            issuer: Issuer::Own,
            task: Task::Ensure,
            secret_name: "harvester-cloud-config".into(),
            watch_tokens_for: crate::usage::USUAL_WINDOW,
            dry_run: false,
            skip_checks: false,
        }
    }

    #[test]
    fn names_that_kubernetes_would_refuse_are_refused_with_field_and_value() {
        for bad in ["", "Demo", "-demo", "demo-", "a.b", "a/b", "ä", &"x".repeat(64)] {
            let error = Request { namespace: bad.into(), ..request() }.validate().unwrap_err();
            assert!(error.to_string().starts_with(&format!("namespace {bad:?} is not a valid name")), "{error}");
        }
        assert_eq!(request().validate(), Ok(()));
        let named = |name: &str| Request { secret_name: name.into(), ..request() }.validate();
        assert_eq!(named("cloud-config"), Ok(()));
        assert_eq!(named("Cloud Config"), Err(RequestError::SecretName("Cloud Config".into())));
    }

    #[test]
    fn a_server_is_an_https_url_and_may_have_a_path_as_behind_rancher() {
        let server = |url: &str| Request { server: Some(url.into()), ..request() }.validate();
        assert_eq!(server("https://rancher.example/k8s/clusters/c-abc"), Ok(()));
        assert_eq!(server("https://[fd00::1]:6443"), Ok(()));
        // Neither is repeated: it may be a password.
        for bad in [
            "https://admin:secret@10.0.0.1:6443",
            "https://admin:sec/ret@10.0.0.1",
            "https://admin:sec ret@10.0.0.1",
            "https://admin@harvester.example",
        ] {
            let error = server(bad).unwrap_err();
            assert!(error == RequestError::UserInServer && !error.to_string().contains("secret"), "{error}");
        }
        for bad in [
            "",
            "10.0.0.1:6443",
            "http://10.0.0.1",
            "https://",
            "https://10.0.0.1:",
            "https://10.0.0.1:abc",
            "https://10.0.0.1:99999",
            "https://10.0.0.1:6443?token=abc",
            "https://10.0.0.1:6443#a",
        ] {
            assert_eq!(server(bad), Err(RequestError::Server(bad.into())));
        }
    }

    #[test]
    fn a_token_goes_in_clear_text_to_this_machine_alone() {
        let check = |url: &str| check_admin_server(&request(), url);
        for clear in ["http://10.0.0.1:8080", "http://harvester", "http://[fd00::1]:80", "http://127.0.0.1.example"] {
            assert_eq!(check(clear), Err(RequestError::ClearText(clear.into())));
        }
        assert_eq!(check("https://10.0.0.1:6443"), Ok(()));
        // A kubectl proxy serves the administrator, and no guest.
        for own in ["http://127.0.0.1:8001", "http://localhost:8001", "http://[::1]:8001"] {
            assert_eq!(check(own), Err(RequestError::NoUrlForGuests(own.into())));
            let told = Request { server: Some("https://10.0.0.1:6443".into()), ..request() };
            assert_eq!(check_admin_server(&told, own), Ok(()));
            assert_eq!(check_admin_server(&Request { task: Task::Revoke, ..request() }, own), Ok(()));
            // It would vouch for any token, with its own rights.
            let revoke_old = Request { task: Task::RevokeOld, ..request() };
            assert_eq!(check_admin_server(&revoke_old, own), Err(RequestError::NoUrlForGuests(own.into())));
            let by_review = Request { skip_checks: true, ..revoke_old };
            assert_eq!(check_admin_server(&by_review, own), Ok(()));
        }
    }

    #[test]
    fn harvesters_own_endpoint_cannot_rotate_or_revoke() {
        for task in [Task::Rotate, Task::RevokeOld, Task::Revoke] {
            let request = Request { issuer: Issuer::Harvester, task, ..request() };
            assert_eq!(request.validate(), Err(RequestError::NeedsOwnIssuer(task)));
        }
    }
}
