//! The whole command: observe, plan, look at the endpoint, act, look again as the guest.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use harvester_api::cloud_config::{self, CloudConfig, CloudConfigError};
use kube::{Client, Config};
use runtime::Product;
use runtime::client::{ClientError, Settings, connect};
use serde::Serialize;

use crate::apply::{self, ApplyError};
use crate::endpoint::{self, Check};
use crate::plan::{Lines, PlanError, plan};
use crate::remote::{self, RemoteError};
use crate::request::{Request, RequestError, Road};
use crate::view::{ObserveError, observe};

/// What was done and what came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// Steps, `verb kind name`; with a dry run those that would have been taken.
    pub steps: Vec<String>,
    /// Remarks.
    pub notes: Vec<String>,
    /// What was looked at.
    pub checks: Vec<Check>,
    /// The cloud-config; absent after a dry run and a revocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<String>,
}

/// Why it did not work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Bad values.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// No way to the administrator's API.
    #[error("failed to connect to Harvester")]
    Client(#[from] ClientError),
    /// Nothing can be read.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// Nothing can be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A step failed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// Harvester made nothing.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// Harvester's answer cannot be checked.
    #[error("Harvester's kubeconfig is not usable")]
    Kubeconfig(#[from] CloudConfigError),
    /// Guests would not get through.
    #[error(
        "the Harvester API is not usable for a guest cluster ({name}): {text}. --server and --ca-file change what is written, --skip-checks leaves this out"
    )]
    Endpoint {
        /// Which check.
        name: &'static str,
        /// What was found.
        text: String,
    },
}

/// Runs it. `admin` are the administrator's credentials, `say` gets a line of progress at a time, `stamp` names a further token.
pub async fn run(
    admin: Config,
    request: &Request,
    stamp: &str,
    product: &Product,
    say: &mut dyn FnMut(&str),
) -> Result<Outcome, Error> {
    request.validate()?;
    let admin_server = admin.cluster_url.to_string().trim_end_matches('/').to_owned();
    let admin_ca = admin.root_cert.as_deref().map(pem);
    let client = connect(admin, &Settings::new("harvester", product))?;
    let server = request.server.clone().unwrap_or(admin_server);
    match request.road {
        Road::Own => own(&client, request, stamp, (server.as_str(), admin_ca), product, say).await,
        Road::Harvester => by_harvester(&client, request, product, say).await,
    }
}

async fn own(
    client: &Client,
    request: &Request,
    stamp: &str,
    (server, admin_ca): (&str, Option<String>),
    product: &Product,
    say: &mut dyn FnMut(&str),
) -> Result<Outcome, Error> {
    let mut outcome = Outcome::default();
    say(&format!("reading what namespace {} has", request.namespace));
    let seen = observe(client, request).await?;
    let plan = plan(request, &seen, stamp)?;
    outcome.steps = plan.steps.iter().map(|step| line(step.describe(request))).collect();
    outcome.notes.clone_from(&plan.notes);
    say(&format!("plan:\n{}", Lines(&plan, request).to_string().trim_end()));

    // Before anything is written: an address that no guest can use is a reason not to begin.
    let checked = plan.token.is_some() && !request.skip_checks;
    if checked {
        if let Some(text) = endpoint::unreachable_for_guests(server) {
            return Err(Error::Endpoint { name: "url", text });
        }
        let checks = endpoint::check_port(server).await;
        tell(&mut outcome, checks, say)?;
    }
    if request.dry_run {
        say("dry run: nothing was written");
        return Ok(outcome);
    }
    for step in &plan.steps {
        apply::perform(client, request, step).await?;
        say(&format!("done: {}", line(step.describe(request))));
    }
    let Some(secret) = &plan.token else { return Ok(outcome) };
    say(&format!("waiting for the token of Secret {}/{secret}", request.namespace));
    let credentials = apply::credentials(client, request, secret).await?;
    let mut ca_pem = request.ca_pem.clone().unwrap_or_else(|| credentials.ca_pem.clone());
    if checked {
        let authorities: Vec<&str> = match &request.ca_pem {
            Some(given) => vec![given.as_str()],
            None => [Some(credentials.ca_pem.as_str()), admin_ca.as_deref()].into_iter().flatten().collect(),
        };
        let (certificate, trusted) = endpoint::check_certificate(server, &authorities, product).await;
        ca_pem = trusted.map_or(ca_pem, str::to_owned);
        tell(&mut outcome, vec![certificate], say)?;
    }
    let kubeconfig = cloud_config::render(server, &ca_pem, &request.namespace, &credentials.token);
    if checked {
        let checks = endpoint::check_rights(&kubeconfig, request, product).await;
        tell(&mut outcome, checks, say)?;
    }
    outcome.kubeconfig = Some(kubeconfig);
    Ok(outcome)
}

async fn by_harvester(
    client: &Client,
    request: &Request,
    product: &Product,
    say: &mut dyn FnMut(&str),
) -> Result<Outcome, Error> {
    let mut outcome = Outcome {
        steps: vec![format!("ask Harvester for the credentials of {}/{}", request.namespace, request.service_account)],
        ..Outcome::default()
    };
    if request.dry_run {
        say("dry run: Harvester was not asked, because asking makes the account");
        return Ok(outcome);
    }
    say(&outcome.steps[0]);
    let kubeconfig = remote::kubeconfig(client, request).await?;
    if !request.skip_checks {
        let config = CloudConfig::parse(kubeconfig.as_bytes())?;
        let server = &config.endpoints[0].server;
        if let Some(text) = endpoint::unreachable_for_guests(server) {
            return Err(Error::Endpoint { name: "url", text });
        }
        let checks = endpoint::check_port(server).await;
        tell(&mut outcome, checks, say)?;
        let checks = endpoint::check_rights(&kubeconfig, request, product).await;
        tell(&mut outcome, checks, say)?;
    }
    outcome.kubeconfig = Some(kubeconfig);
    Ok(outcome)
}

fn line((verb, kind, name): (&str, &str, String)) -> String {
    format!("{verb} {kind} {name}")
}

/// Tells and keeps the checks; the first that failed ends the command.
fn tell(outcome: &mut Outcome, checks: Vec<Check>, say: &mut dyn FnMut(&str)) -> Result<(), Error> {
    for check in checks {
        let mark = if check.ok { "ok" } else { "FAILED" };
        say(&format!("{mark}: {}: {} ({} ms)", check.name, check.text, check.ms));
        let failed = (!check.ok).then(|| Error::Endpoint { name: check.name, text: check.text.clone() });
        outcome.checks.push(check);
        if let Some(error) = failed {
            return Err(error);
        }
    }
    Ok(())
}

fn pem(certificates: &[Vec<u8>]) -> String {
    let block = |der: &Vec<u8>| {
        let text = STANDARD.encode(der);
        let lines: Vec<&str> =
            text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).expect("base64 is ASCII")).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    };
    certificates.iter().map(block).collect()
}
