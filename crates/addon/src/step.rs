//! One step of a plan: what it does in words, which right it needs, and how what was done is taken back.

use crate::request::{Request, Task};
use crate::view::{Version, binding_name};

/// One thing to do. What changes or deletes an object names the version that was seen: nobody looked at any other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Make the service account.
    CreateAccount,
    /// Give it Harvester's role in its namespace, and there only.
    CreateBinding,
    /// Make the binding that is there name our account; the other accounts that it names keep their rights.
    UpdateBinding {
        /// It names others.
        others: bool,
        /// As seen.
        version: Version,
    },
    /// Make a token Secret of this name.
    CreateToken(String),
    /// Delete a token Secret: whoever uses that token is locked out at once.
    DeleteToken(String, Version),
    /// Delete the RoleBinding of this name.
    DeleteBinding(String, Version),
    /// Delete the ClusterRoleBinding of this name.
    DeleteWideBinding(String, Version),
    /// Delete the service account.
    DeleteAccount(Version),
}

impl Step {
    /// The Secret whose token goes.
    pub fn deleted_token(&self) -> Option<&str> {
        if let Self::DeleteToken(name, _) = self { Some(name) } else { None }
    }

    /// For people and JSON: verb, kind, name.
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

    /// What whoever takes it has to be allowed.
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

/// API group, resource and verb that somebody needs.
pub type Right = (&'static str, &'static str, &'static str);

/// The only resource here that is in no namespace.
pub const CLUSTER_ROLE_BINDINGS: &str = "clusterrolebindings";

/// How to take back what was done of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undo {
    /// Everything was taken away or is being: there is nothing to take back.
    Nothing,
    /// Revoke all of it.
    Revoke {
        /// There was nothing before.
        fresh: bool,
    },
    /// Delete this Secret: the account had other tokens, and they are in use.
    DeleteToken(String),
}

/// `done` are the steps that were taken.
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
        let version = Version { uid: "uid of demo".into(), resource_version: "7".into() };
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
