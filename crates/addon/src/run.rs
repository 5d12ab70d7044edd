//! The whole command: observe, plan, check the endpoint, act, check again as the guest.

use harvester_api::cloud_config::{self, CloudConfig, CloudConfigError};
use kube::{Client, Config};
use runtime::Product;
use runtime::client::{ClientError, Settings, connect};
use runtime::error::chain;
use serde::Serialize;

use crate::apply::{self, ApplyError};
use crate::endpoint::{self, Check, pem};
use crate::plan::{Lines, Plan, PlanError, plan};
use crate::remote::{self, RemoteError};
use crate::request::{Issuer, Request, RequestError, check_admin_server};
use crate::step::{Step, Undo, undo};
use crate::usage::{self, UsageError};
use crate::view::{ObserveError, observe, root_authority};

/// Limit of attempts when the objects are changed by others at the same time.
const ATTEMPTS: u32 = 5;

/// What was done, and the result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The steps as `verb kind name`; in a dry run those that would be performed.
    pub steps: Vec<String>,
    /// Remarks.
    pub notes: Vec<String>,
    /// Results of the checks.
    pub checks: Vec<Check>,
    /// The cloud-config; absent after a dry run and a revocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<String>,
}

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Invalid values.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The administrator's API cannot be reached.
    #[error("failed to connect to Harvester")]
    Client(#[from] ClientError),
    /// The present state cannot be read.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// There is no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A step failed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// Harvester created nothing.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The kubeconfig from Harvester cannot be checked.
    #[error("Harvester's kubeconfig is not usable")]
    Kubeconfig(#[from] CloudConfigError),
    /// Guests could not use the Harvester API.
    #[error(
        "the Harvester API is not usable for a guest cluster ({name}): {text}. --server and --ca-file change what \
         is written, --skip-checks leaves this out"
    )]
    Endpoint {
        /// Name of the check.
        name: &'static str,
        /// The result.
        text: String,
    },
    /// Without the older tokens the guest would be locked out.
    #[error("nothing was revoked: it is not certain that the newest token works, which is in Secret {secret}")]
    Unproven {
        /// Namespace and name.
        secret: String,
        /// Why.
        source: Box<Error>,
    },
    /// An older token is still in use, or the newest one is not.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// Somebody else made or deleted a token while it was watched which ones ask.
    #[error("another client created or deleted tokens of service account {0} meanwhile; run the command again")]
    TokensChanged(String),
    /// It did not get to the end, and Harvester is not as it was.
    #[error("the command did not finish; it has done so far: {done}")]
    Unfinished {
        /// The steps that were performed.
        done: String,
        /// How to undo them.
        undo: Undo,
        /// Why.
        source: Box<Error>,
    },
}

/// Runs the command. `admin` are the administrator's credentials, `say` gets lines of progress, `stamp` is part of the
/// name of a further token.
pub async fn run(
    admin: Config,
    request: &Request,
    stamp: &str,
    product: &Product,
    say: &mut dyn FnMut(&str),
) -> Result<Outcome, Error> {
    request.validate()?;
    let admin_server = admin.cluster_url.to_string().trim_end_matches('/').to_owned();
    check_admin_server(request, &admin_server)?;
    let admin_ca = admin.root_cert.as_deref().map(pem);
    let client = connect(admin, &Settings::new("harvester", product))?;
    let server = request.server.clone().unwrap_or(admin_server);
    match request.issuer {
        Issuer::Own => own(&client, request, stamp, (server.as_str(), admin_ca), product, say).await,
        Issuer::Harvester => by_harvester(&client, request, product, say).await,
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
    let mut done = Vec::new();
    let mut attempt = 1;
    loop {
        match once(client, request, stamp, (server, &admin_ca), product, &mut done, say).await {
            Err(Error::Apply(error @ ApplyError::Changed { .. })) if attempt < ATTEMPTS => {
                attempt += 1;
                say(&format!("{}; looking and planning anew", chain(&error)));
            }
            outcome => return outcome.map_err(|error| unfinished(error, request, &done)),
        }
    }
}

/// Observes, plans and performs the steps once. `done` are the steps of this command so far.
async fn once(
    client: &Client,
    request: &Request,
    stamp: &str,
    (server, admin_ca): (&str, &Option<String>),
    product: &Product,
    done: &mut Vec<Step>,
    say: &mut dyn FnMut(&str),
) -> Result<Outcome, Error> {
    say(&format!("reading what namespace {} has", request.namespace));
    let seen = observe(client, request).await?;
    let plan = plan(request, &seen, stamp)?;
    let steps = done.iter().chain(&plan.steps).map(|step| line(step.describe(request))).collect();
    let mut outcome = Outcome { steps, notes: plan.notes.clone(), ..Outcome::default() };
    say(&format!("plan:\n{}", Lines(&plan, request).to_string().trim_end()));

    let admin_ca = admin_ca.as_deref();
    let guest = Guest { server, admin_ca, product, checked: plan.token.is_some() && !request.skip_checks };
    let trusted = guest.look(client, request, &plan, &mut outcome, say).await?;
    let unproven = |secret: &str, error| Error::Unproven {
        secret: format!("{}/{secret}", request.namespace),
        source: Box::new(error),
    };
    if let Some(secret) = &plan.proof {
        guest.prove(client, request, secret, &mut outcome, say).await.map_err(|error| unproven(secret, error))?;
    }
    if request.dry_run {
        say("dry run: nothing was written");
        return Ok(outcome);
    }
    let plan = match &plan.proof {
        Some(secret) if !request.skip_checks => {
            prove_use(client, request, stamp, &plan, secret, say).await.map_err(|error| unproven(secret, error))?
        }
        _ => plan,
    };
    write(client, request, (&plan, done), (&guest, trusted), &mut outcome, say).await?;
    Ok(outcome)
}

/// Watches which tokens are in use. This writes to the Secrets, so deletions are planned again afterwards.
async fn prove_use(
    client: &Client,
    request: &Request,
    stamp: &str,
    before: &Plan,
    newest: &str,
    say: &mut dyn FnMut(&str),
) -> Result<Plan, Error> {
    say(&format!(
        "watching for {} s which token the guest's cloud provider shows; older ones are deleted only if it has \
         left them",
        request.watch_tokens_for.as_secs()
    ));
    let old: Vec<&str> = before.steps.iter().filter_map(Step::deleted_token).collect();
    usage::prove(client, &request.namespace, newest, &old, request.watch_tokens_for).await?;
    let after = plan(request, &observe(client, request).await?, stamp)?;
    let same = after.proof == before.proof && after.steps.iter().filter_map(Step::deleted_token).eq(old);
    if same { Ok(after) } else { Err(Error::TokensChanged(request.service_account.clone())) }
}

/// The Harvester API from the guests' view.
struct Guest<'a> {
    server: &'a str,
    admin_ca: Option<&'a str>,
    product: &'a Product,
    /// Whether the checks are made.
    checked: bool,
}

impl Guest<'_> {
    /// Checks before anything is written: if no guest can use the address, the command ends. Returns the authority that
    /// has signed the certificate, if it is already known. A dry run makes all possible checks, and reports those that
    /// are not possible.
    async fn look(
        &self,
        client: &Client,
        request: &Request,
        plan: &Plan,
        outcome: &mut Outcome,
        say: &mut dyn FnMut(&str),
    ) -> Result<Option<String>, Error> {
        if request.dry_run && !plan.steps.is_empty() && !request.skip_checks {
            tell(outcome, vec![endpoint::check_administrator(client, request, &plan.steps).await], say)?;
        }
        let Some(secret) = plan.token.as_ref().filter(|_| self.checked) else { return Ok(None) };
        self.is_for_guests()?;
        tell(outcome, endpoint::check_port(self.server).await, say)?;

        let exists = !plan.steps.contains(&Step::CreateToken(secret.clone()));
        let credentials = if exists { Some(apply::credentials(client, request, secret).await?) } else { None };
        let own_ca = match &credentials {
            Some(credentials) => Some(credentials.ca_pem.clone()),
            None => root_authority(client, request).await,
        };
        let known = request.ca_pem.is_some() || own_ca.is_some();
        let (checks, trusted) = self.certificate(request, own_ca.as_deref()).await;
        // Without the API server's own authority the result is not final: the token will bring the authority.
        if known || trusted.is_some() || request.dry_run {
            tell(outcome, checks, say)?;
        }
        if request.dry_run {
            match (credentials, &trusted) {
                // A right that is yet to be granted cannot be checked.
                (Some(credentials), Some(ca_pem)) if plan.steps.is_empty() => {
                    let kubeconfig = cloud_config::render(self.server, ca_pem, &request.namespace, &credentials.token);
                    tell(outcome, endpoint::check_rights(&kubeconfig, request, self.product).await, say)?;
                }
                _ => outcome.notes.push("token and rights can be tried when they are made, not before".to_owned()),
            }
        }
        Ok(trusted)
    }

    /// Sends a request with the token that stays, before the other tokens are deleted.
    async fn prove(
        &self,
        client: &Client,
        request: &Request,
        secret: &str,
        outcome: &mut Outcome,
        say: &mut dyn FnMut(&str),
    ) -> Result<(), Error> {
        say(&format!("trying the token of Secret {}/{secret}, which stays", request.namespace));
        let credentials = apply::credentials(client, request, secret).await?;
        if request.skip_checks {
            return tell(outcome, vec![endpoint::check_token(client, &credentials.token).await], say);
        }
        self.is_for_guests()?;
        let (checks, trusted) = self.certificate(request, Some(&credentials.ca_pem)).await;
        tell(outcome, checks, say)?;
        let ca_pem = trusted.unwrap_or(credentials.ca_pem);
        let kubeconfig = cloud_config::render(self.server, &ca_pem, &request.namespace, &credentials.token);
        tell(outcome, endpoint::check_rights(&kubeconfig, request, self.product).await, say)
    }

    /// Fails for an address of this machine, because its answer says nothing about the one that guests get.
    fn is_for_guests(&self) -> Result<(), Error> {
        let unreachable = endpoint::unreachable_for_guests(self.server);
        unreachable.map_or(Ok(()), |text| Err(Error::Endpoint { name: "url", text }))
    }

    /// Checks the certificate. If the user gives an authority, only that one is used.
    async fn certificate(&self, request: &Request, own_ca: Option<&str>) -> (Vec<Check>, Option<String>) {
        let authorities: Vec<&str> = match &request.ca_pem {
            Some(given) => vec![given.as_str()],
            None => [own_ca, self.admin_ca].into_iter().flatten().collect(),
        };
        let (checks, trusted) = endpoint::check_certificate(self.server, &authorities, self.product).await;
        (checks, trusted.map(str::to_owned))
    }
}

/// Performs the steps, after those in `done`, and checks Harvester with the resulting credentials.
async fn write(
    client: &Client,
    request: &Request,
    (plan, done): (&Plan, &mut Vec<Step>),
    (guest, trusted): (&Guest<'_>, Option<String>),
    outcome: &mut Outcome,
    say: &mut dyn FnMut(&str),
) -> Result<(), Error> {
    for step in &plan.steps {
        apply::perform(client, request, step).await?;
        done.push(step.clone());
        say(&format!("done: {}", line(step.describe(request))));
    }
    let Some(secret) = &plan.token else { return Ok(()) };
    say(&format!("waiting for the token of Secret {}/{secret}", request.namespace));
    let credentials = apply::credentials(client, request, secret).await?;
    let ca_pem = if guest.checked && trusted.is_none() {
        let (checks, trusted) = guest.certificate(request, Some(&credentials.ca_pem)).await;
        tell(outcome, checks, say)?;
        trusted
    } else {
        trusted
    };
    let ca_pem = ca_pem.or_else(|| request.ca_pem.clone()).unwrap_or_else(|| credentials.ca_pem.clone());
    let kubeconfig = cloud_config::render(guest.server, &ca_pem, &request.namespace, &credentials.token);
    if guest.checked {
        tell(outcome, endpoint::check_rights(&kubeconfig, request, guest.product).await, say)?;
    }
    outcome.kubeconfig = Some(kubeconfig);
    Ok(())
}

/// Adds to an error after the first step what exists now.
fn unfinished(error: Error, request: &Request, done: &[Step]) -> Error {
    if done.is_empty() {
        return error;
    }
    let done_lines = done.iter().map(|step| line(step.describe(request))).collect::<Vec<_>>().join(", ");
    Error::Unfinished { done: done_lines, undo: undo(request.task, done), source: Box::new(error) }
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
        // Harvester has created or found account, rights and token: its answer does not tell which.
        let made = |error| Error::Unfinished {
            done: outcome_of_asking(request),
            undo: Undo::Revoke { fresh: false },
            source: Box::new(error),
        };
        let config = CloudConfig::parse(kubeconfig.as_bytes())?;
        let server = &config.endpoints[0].server;
        if let Some(text) = endpoint::unreachable_for_guests(server) {
            return Err(made(Error::Endpoint { name: "url", text }));
        }
        let checks = endpoint::check_port(server).await;
        tell(&mut outcome, checks, say).map_err(made)?;
        let checks = endpoint::check_rights(&kubeconfig, request, product).await;
        tell(&mut outcome, checks, say).map_err(made)?;
    }
    outcome.kubeconfig = Some(kubeconfig);
    Ok(outcome)
}

fn outcome_of_asking(request: &Request) -> String {
    format!("Harvester made the credentials of {}/{}", request.namespace, request.service_account)
}

fn line((verb, kind, name): (&str, &str, String)) -> String {
    format!("{verb} {kind} {name}")
}

/// Prints and stores the results of checks; the first failure ends the command.
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

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
