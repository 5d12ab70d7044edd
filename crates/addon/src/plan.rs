//! Decides what to do, as a pure function of the request and the present state.

use std::fmt;

use harvester_api::keys::harvester::CLOUD_PROVIDER_ROLE;

use crate::request::{Request, Task};
use crate::step::Step;
use crate::view::{Observed, Token, first_token};

/// The steps, with remarks for the user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// In this order.
    pub steps: Vec<Step>,
    /// The Secret whose token is printed; absent if none is.
    pub token: Option<String>,
    /// The Secret whose token has to work before the first step, because the tokens to delete are in use until then.
    pub proof: Option<String>,
    /// Remarks.
    pub notes: Vec<String>,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// The namespace does not exist. A typing error would otherwise lead to a working account without machines.
    #[error("namespace {0} does not exist on Harvester; it has to be the one of the guest's virtual machines")]
    NoNamespace(String),
    /// The cluster is not Harvester, or a very old one.
    #[error("ClusterRole {CLOUD_PROVIDER_ROLE} does not exist: is the current context that of a Harvester cluster?")]
    NoRole,
    /// The object belongs to another owner.
    #[error(
        "RoleBinding {namespace}/{name} exists and grants another role; a role of a binding cannot be changed: \
         delete it if nobody needs it, or use another service account"
    )]
    ForeignBinding {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The Secret belongs to another owner, or is being deleted.
    #[error(
        "Secret {namespace}/{name} exists and is no token of service account {account}, or is being deleted: \
         delete it if nobody needs it, or use another service account"
    )]
    ForeignSecret {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The service account of the request.
        account: String,
    },
    /// There is no token to print or to keep.
    #[error("service account {0} has no token: run without --revoke-old first")]
    NoToken(String),
}

/// Makes the plan. `stamp` is part of the name of a further token Secret, for a rotation.
pub fn plan(request: &Request, seen: &Observed, stamp: &str) -> Result<Plan, PlanError> {
    if !seen.namespace {
        return Err(PlanError::NoNamespace(request.namespace.clone()));
    }
    match request.task {
        Task::Ensure | Task::Rotate => ensure(request, seen, stamp),
        Task::RevokeOld => revoke_old(request, seen),
        Task::Revoke => Ok(revoke(request, seen)),
    }
}

fn ensure(request: &Request, seen: &Observed, stamp: &str) -> Result<Plan, PlanError> {
    if !seen.role {
        return Err(PlanError::NoRole);
    }
    let mut plan = Plan::default();
    if seen.account.is_none() {
        plan.steps.push(Step::CreateAccount);
    }
    match &seen.binding {
        None => plan.steps.push(Step::CreateBinding),
        Some(binding) if !binding.our_role => {
            return Err(PlanError::ForeignBinding { namespace: request.namespace.clone(), name: binding.name.clone() });
        }
        Some(binding) if !binding.our_subject => {
            plan.steps.push(Step::UpdateBinding { others: binding.others, version: binding.version.clone() });
        }
        Some(_) => {}
    }
    let first = first_token(request);
    let newest = seen.tokens.last().map(|token| token.name.clone());
    let further = format!("{first}-{stamp}");
    let token = match (request.task, newest) {
        // This run has already created it, or another one within the same second.
        (Task::Rotate, Some(newest)) if newest == further => newest,
        (Task::Rotate, newest) => {
            if let Some(newest) = newest {
                plan.notes.push(format!(
                    "the token of Secret {}/{newest} stays valid; when every node has the new one, run with \
                     --revoke-old",
                    request.namespace
                ));
            }
            let used = seen.name_taken || seen.tokens.iter().any(|token| token.name == first);
            let name = if used { further } else { first };
            plan.steps.push(Step::CreateToken(name.clone()));
            name
        }
        (_, Some(newest)) => newest,
        (_, None) if seen.name_taken => {
            return Err(PlanError::ForeignSecret {
                namespace: request.namespace.clone(),
                name: first,
                account: request.service_account.clone(),
            });
        }
        (_, None) => {
            plan.steps.push(Step::CreateToken(first.clone()));
            first
        }
    };
    plan.token = Some(token);
    if let Some(wide) = seen.wide_binding.as_ref().filter(|wide| wide.our_role && wide.our_subject) {
        plan.notes.push(format!(
            "ClusterRoleBinding {} gives this account the role in every namespace of Harvester, more than it \
             needs. It is not touched here; to remove it: kubectl delete clusterrolebinding {}",
            wide.name, wide.name
        ));
    }
    Ok(plan)
}

fn revoke_old(request: &Request, seen: &Observed) -> Result<Plan, PlanError> {
    let Some((newest, old)) = seen.tokens.split_last() else {
        return Err(PlanError::NoToken(format!("{}/{}", request.namespace, request.service_account)));
    };
    Ok(Plan {
        steps: old.iter().map(delete_token).collect(),
        token: None,
        proof: (!old.is_empty()).then(|| newest.name.clone()),
        notes: vec![format!("the token of Secret {}/{} stays valid", request.namespace, newest.name)],
    })
}

/// Removes everything that grants access, but nothing that others may need.
fn revoke(request: &Request, seen: &Observed) -> Plan {
    let mut plan = Plan::default();
    plan.steps.extend(seen.tokens.iter().map(delete_token));
    let foreign = |kind: &str, name: &str| {
        format!("{kind} {name} has other subjects, too, and stays; remove {} from it by hand", request.service_account)
    };
    if let Some(binding) = seen.binding.as_ref().filter(|binding| binding.our_role && binding.our_subject) {
        if binding.others {
            plan.notes.push(foreign("RoleBinding", &binding.name));
        } else {
            plan.steps.push(Step::DeleteBinding(binding.name.clone(), binding.version.clone()));
        }
    }
    if let Some(wide) = seen.wide_binding.as_ref().filter(|wide| wide.our_role && wide.our_subject) {
        if wide.others {
            plan.notes.push(foreign("ClusterRoleBinding", &wide.name));
        } else {
            plan.steps.push(Step::DeleteWideBinding(wide.name.clone(), wide.version.clone()));
        }
    }
    match &seen.account {
        Some(account) if account.ours => plan.steps.push(Step::DeleteAccount(account.version.clone())),
        Some(_) => plan.notes.push(format!(
            "ServiceAccount {0} was not made by this command and stays: kubectl -n {1} delete serviceaccount {0}",
            request.service_account, request.namespace
        )),
        None if plan.steps.is_empty() && plan.notes.is_empty() => plan.notes.push(format!(
            "there is no service account {0} in namespace {1}, nor a token or binding of it: nothing to revoke \
             (kubectl -n {1} get serviceaccounts)",
            request.service_account, request.namespace
        )),
        None => {}
    }
    plan
}

fn delete_token(token: &Token) -> Step {
    Step::DeleteToken(token.name.clone(), token.version.clone())
}

/// The plan as text, one line per step.
pub struct Lines<'a>(pub &'a Plan, pub &'a Request);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.0.steps {
            let (verb, kind, name) = step.describe(self.1);
            writeln!(f, "  {verb} {kind} {name}")?;
        }
        if self.0.steps.is_empty() {
            writeln!(f, "  nothing to write: everything is as it should be")?;
        }
        // The notes are printed at the end, with the next actions.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::tests::request;
    use crate::view::{Account, Binding, ObjectVersion, Token};

    fn token(name: &str) -> Token {
        Token { name: name.into(), created: None, version: version(name) }
    }

    fn binding(name: &str) -> Binding {
        Binding { name: name.into(), version: version(name), our_role: true, our_subject: true, others: false }
    }

    fn version(name: &str) -> ObjectVersion {
        ObjectVersion { uid: format!("uid of {name}"), resource_version: "7".into() }
    }

    fn bare() -> Observed {
        Observed { namespace: true, role: true, ..Observed::default() }
    }

    fn complete() -> Observed {
        Observed {
            account: Some(Account { version: version("demo"), ours: true }),
            tokens: vec![token("demo-token")],
            binding: Some(binding("guests-demo")),
            ..bare()
        }
    }

    #[test]
    fn a_first_run_makes_account_binding_and_token_and_a_second_one_nothing() {
        let first = plan(&request(), &bare(), "s").unwrap();
        assert_eq!(first.steps, [Step::CreateAccount, Step::CreateBinding, Step::CreateToken("demo-token".into())]);
        let second = plan(&request(), &complete(), "s").unwrap();
        assert_eq!((second.steps, second.token.as_deref(), second.notes), (vec![], Some("demo-token"), vec![]));
    }

    #[test]
    fn a_namespace_or_role_that_is_missing_is_said_before_anything_is_written() {
        let error = plan(&request(), &Observed { namespace: false, ..bare() }, "s").unwrap_err();
        assert_eq!(error, PlanError::NoNamespace("guests".into()));
        assert_eq!(plan(&request(), &Observed { role: false, ..bare() }, "s"), Err(PlanError::NoRole));
    }

    #[test]
    fn somebody_elses_binding_is_refused_and_one_that_lost_its_subject_is_mended() {
        let foreign = Binding { our_role: false, ..binding("guests-demo") };
        let error = plan(&request(), &Observed { binding: Some(foreign), ..complete() }, "s").unwrap_err();
        assert!(matches!(error, PlanError::ForeignBinding { .. }));
        for others in [false, true] {
            let lost = Binding { our_subject: false, others, ..binding("guests-demo") };
            let plan = plan(&request(), &Observed { binding: Some(lost), ..complete() }, "s").unwrap();
            assert_eq!(plan.steps, [Step::UpdateBinding { others, version: version("guests-demo") }]);
        }
    }

    #[test]
    fn somebody_elses_secret_of_the_tokens_name_is_named_before_anything_is_written() {
        let taken = Observed { name_taken: true, ..bare() };
        let error = plan(&request(), &taken, "s").unwrap_err().to_string();
        assert!(
            error.starts_with("Secret guests/demo-token exists and is no token of service account demo"),
            "{error}"
        );
        // Who has a token already, or makes a further one, does not need the name.
        let other = Observed { name_taken: true, tokens: vec![token("demo-token-1")], ..complete() };
        assert_eq!(plan(&request(), &other, "s").unwrap().steps, []);
        let rotate = Request { task: Task::Rotate, ..request() };
        assert_eq!(plan(&rotate, &other, "s").unwrap().steps, [Step::CreateToken("demo-token-s".into())]);
    }

    #[test]
    fn rotation_adds_a_token_and_keeps_the_old_one_until_it_is_revoked() {
        let rotate = Request { task: Task::Rotate, ..request() };
        let rotated = plan(&rotate, &complete(), "20260102").unwrap();
        assert_eq!(rotated.steps, [Step::CreateToken("demo-token-20260102".into())]);
        assert_eq!(rotated.token.as_deref(), Some("demo-token-20260102"));
        assert!(rotated.notes[0].contains("demo-token stays valid"), "{:?}", rotated.notes);

        let two = Observed { tokens: vec![token("demo-token"), token("demo-token-20260102")], ..complete() };
        let old = plan(&Request { task: Task::RevokeOld, ..request() }, &two, "s").unwrap();
        assert_eq!(old.steps, [Step::DeleteToken("demo-token".into(), version("demo-token"))]);
        assert_eq!(old.proof.as_deref(), Some("demo-token-20260102"), "the last one is tried before the others go");
        let one = plan(&Request { task: Task::RevokeOld, ..request() }, &complete(), "s").unwrap();
        assert_eq!((one.steps, one.proof), (vec![], None));
        let none = plan(&Request { task: Task::RevokeOld, ..request() }, &bare(), "s");
        assert_eq!(none, Err(PlanError::NoToken("guests/demo".into())));
        // Two rotations within a second are one, and so is one that had to be planned anew.
        let again = plan(&rotate, &two, "20260102").unwrap();
        assert_eq!((again.steps, again.token.as_deref()), (vec![], Some("demo-token-20260102")));
        // The next plain run prints the newest one.
        assert_eq!(plan(&request(), &two, "s").unwrap().token.as_deref(), Some("demo-token-20260102"));
    }

    #[test]
    fn notes_are_no_part_of_the_plan_as_it_is_shown_so_that_they_are_read_once() {
        let rotate = Request { task: Task::Rotate, ..request() };
        let rotated = plan(&rotate, &complete(), "20260102").unwrap();
        assert!(!rotated.notes.is_empty());
        assert_eq!(Lines(&rotated, &rotate).to_string().lines().count(), rotated.steps.len());
    }

    #[test]
    fn revocation_takes_tokens_bindings_and_our_account_and_twice_is_once() {
        let revoke = Request { task: Task::Revoke, ..request() };
        let seen = Observed { wide_binding: Some(binding("demo")), ..complete() };
        let steps = plan(&revoke, &seen, "s").unwrap().steps;
        assert_eq!(
            steps,
            [
                Step::DeleteToken("demo-token".into(), version("demo-token")),
                Step::DeleteBinding("guests-demo".into(), version("guests-demo")),
                Step::DeleteWideBinding("demo".into(), version("demo")),
                Step::DeleteAccount(version("demo"))
            ]
        );
        let again = plan(&revoke, &bare(), "s").unwrap();
        assert_eq!(again.steps, []);
        assert!(again.notes[0].starts_with("there is no service account demo in namespace guests"), "{again:?}");
    }

    #[test]
    fn revocation_spares_what_others_use() {
        let revoke = Request { task: Task::Revoke, ..request() };
        let seen = Observed {
            account: Some(Account { version: version("demo"), ours: false }),
            binding: Some(Binding { others: true, ..binding("guests-demo") }),
            // Another cluster's: the shell script names it by the account alone.
            wide_binding: Some(Binding { our_subject: false, ..binding("demo") }),
            ..complete()
        };
        let plan = plan(&revoke, &seen, "s").unwrap();
        assert_eq!(plan.steps, [Step::DeleteToken("demo-token".into(), version("demo-token"))]);
        assert_eq!(plan.notes.len(), 2, "{:?}", plan.notes);
    }

    #[test]
    fn the_scripts_cluster_wide_binding_is_pointed_out_but_not_touched() {
        let seen = Observed { wide_binding: Some(binding("demo")), ..complete() };
        let plan = plan(&request(), &seen, "s").unwrap();
        assert!(plan.steps.is_empty());
        assert!(plan.notes[0].starts_with("ClusterRoleBinding demo gives"), "{:?}", plan.notes);
    }
}
