//! One step of a plan: what it does in words, which right it needs, and how what was done is taken back.

use crate::request::{Request, Task};
use crate::view::{ObjectVersion, binding_name};

/// One step. A step that changes or deletes an object contains the observed version, so that it applies to no other
/// one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Create the service account.
    CreateAccount,
    /// Bind it to Harvester's role, in its namespace only.
    CreateBinding,
    /// Add the account to the existing binding; its other subjects keep their rights.
    UpdateBinding {
        /// The binding has other subjects.
        others: bool,
        /// The observed version.
        version: ObjectVersion,
    },
    /// Create a token Secret of this name.
    CreateToken(String),
    /// Delete a token Secret: clients with this token are locked out at once.
    DeleteToken(String, ObjectVersion),
    /// Delete the RoleBinding of this name.
    DeleteBinding(String, ObjectVersion),
    /// Delete the ClusterRoleBinding of this name.
    DeleteWideBinding(String, ObjectVersion),
    /// Delete the service account.
    DeleteAccount(ObjectVersion),
}

impl Step {
    /// The Secret whose token is deleted.
    pub fn deleted_token(&self) -> Option<&str> {
        if let Self::DeleteToken(name, _) = self { Some(name) } else { None }
    }

    /// Verb, kind and name, for users and JSON.
    pub fn describe(&self, request: &Request) -> (&'static str, &'static str, String) {
        let named = |name: &str| format!("{}/{name}", request.namespace);
        let account = named(&request.service_account);
        match self {
            Self::CreateAccount => ("create", "ServiceAccount", account),
            Self::CreateBinding => ("create", "RoleBinding", named(&binding_name(request))),
            Self::UpdateBinding { .. } => ("update", "RoleBinding", named(&binding_name(request))),
            Self::CreateToken(name) => ("create", "Secret", named(name)),
            Self::DeleteToken(name, _) => ("delete", "Secret", named(name)),
            Self::DeleteBinding(name, _) => ("delete", "RoleBinding", named(name)),
            Self::DeleteWideBinding(name, _) => ("delete", "ClusterRoleBinding", name.clone()),
            Self::DeleteAccount(_) => ("delete", "ServiceAccount", account),
        }
    }

    /// The right that the step needs.
    pub fn right(&self) -> Right {
        let rbac = "rbac.authorization.k8s.io";
        match self {
            Self::CreateAccount => ("", "serviceaccounts", "create"),
            Self::CreateBinding => (rbac, "rolebindings", "create"),
            Self::UpdateBinding { .. } => (rbac, "rolebindings", "patch"),
            Self::CreateToken(_) => ("", "secrets", "create"),
            Self::DeleteToken(..) => ("", "secrets", "delete"),
            Self::DeleteBinding(..) => (rbac, "rolebindings", "delete"),
            Self::DeleteWideBinding(..) => (rbac, CLUSTER_ROLE_BINDINGS, "delete"),
            Self::DeleteAccount(_) => ("", "serviceaccounts", "delete"),
        }
    }
}

/// API group, resource and verb of a required right.
pub type Right = (&'static str, &'static str, &'static str);

/// The only resource here without a namespace.
pub const CLUSTER_ROLE_BINDINGS: &str = "clusterrolebindings";

/// How to undo the steps that were performed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undo {
    /// The steps only removed things: there is nothing to undo.
    Nothing,
    /// Revoke everything.
    Revoke {
        /// Nothing existed before.
        fresh: bool,
    },
    /// Delete this Secret: the account had other tokens before, which are in use.
    DeleteToken(String),
}

/// How to undo the steps in `done`.
pub fn undo(task: Task, done: &[Step]) -> Undo {
    let fresh = done.contains(&Step::CreateAccount);
    let token = done.iter().find_map(|step| if let Step::CreateToken(name) = step { Some(name) } else { None });
    match (task, token) {
        (Task::RevokeOld | Task::Revoke, _) => Undo::Nothing,
        (Task::Rotate, Some(name)) if !fresh => Undo::DeleteToken(name.clone()),
        (Task::Ensure | Task::Rotate, _) => Undo::Revoke { fresh },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undoing_a_rotation_spares_the_tokens_that_are_in_use() {
        let version = ObjectVersion { uid: "uid of demo".into(), resource_version: "7".into() };
        let token = Step::CreateToken("demo-token-s".into());
        for (task, done, expected) in [
            (Task::Ensure, &[Step::CreateAccount][..], Undo::Revoke { fresh: true }),
            (Task::Ensure, &[Step::CreateBinding], Undo::Revoke { fresh: false }),
            (Task::Rotate, std::slice::from_ref(&token), Undo::DeleteToken("demo-token-s".into())),
            (Task::Rotate, &[Step::CreateAccount, token.clone()], Undo::Revoke { fresh: true }),
            (Task::Revoke, &[Step::DeleteAccount(version)], Undo::Nothing),
        ] {
            assert_eq!(undo(task, done), expected, "{task} {done:?}");
        }
    }
}
