//! Reads the objects that `probe` checks; [`diagnose::installed`] judges them.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use diagnose::installed::{self, Announcer};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::core::Selector;
use kube::{Api, Client};
use runtime::client::{Settings, Source, connect};

use crate::PRODUCT;

/// An object in a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    namespace: String,
    name: String,
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err("accepted is NAMESPACE/NAME, such as kube-system/kube-vip".to_owned()),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A client of the cluster that the pod, or KUBECONFIG, belongs to.
pub struct Workloads(Client);

impl Workloads {
    /// Connects with the rights of the pod's account, or those of KUBECONFIG.
    pub async fn of_this_cluster() -> Result<Self> {
        let source = Source::choose(None, std::env::var("KUBECONFIG").ok().as_deref());
        let config = source.load(None).await.context("cannot find credentials for the cluster")?;
        let settings = Settings::new("guest", &PRODUCT).retries(false);
        Ok(Self(connect(config, &settings).context("cannot ask the cluster")?))
    }

    /// Fails if no holder renews the Lease.
    pub async fn lease(&self, name: &Name) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.0.clone(), &name.namespace);
        let lease = leases.get_opt(&name.name).await.with_context(|| format!("cannot read Lease {name}"))?;
        match installed::lease(&name.to_string(), lease.as_ref(), Timestamp::now()) {
            Some(wrong) => bail!(wrong),
            None => Ok(()),
        }
    }

    /// Fails if a node that should have a pod has no ready one.
    pub async fn daemonset(&self, name: &Name) -> Result<Vec<Announcer>> {
        let sets: Api<DaemonSet> = Api::namespaced(self.0.clone(), &name.namespace);
        let set = sets.get_opt(&name.name).await.with_context(|| format!("cannot read DaemonSet {name}"))?;
        let set = set.with_context(|| format!("DaemonSet {name} does not exist"))?;
        let selector = set.spec.as_ref().map(|spec| spec.selector.clone()).unwrap_or_default();
        let selector: Selector = selector.try_into().with_context(|| {
            format!(
                "cannot read the selector of DaemonSet \
        {name}"
            )
        })?;
        let pods: Api<Pod> = Api::namespaced(self.0.clone(), &name.namespace);
        let pods = pods.list(&ListParams::default().labels_from(&selector)).await;
        let announcers = installed::announcers(&pods.with_context(|| format!("cannot list pods of {name}"))?.items);
        match installed::daemonset(&name.to_string(), &set, &announcers) {
            Some(wrong) => bail!(wrong),
            None => Ok(announcers),
        }
    }

    /// Fails also if the announcer of one of these nodes does not renew its Lease.
    pub async fn announcers(&self, name: &Name) -> Result<()> {
        for announcer in self.daemonset(name).await? {
            let lease = Name { namespace: name.namespace.clone(), name: installed::member_lease(&announcer.node) };
            self.lease(&lease).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_named_with_its_namespace() {
        let name: Name = "kube-system/kube-vip".parse().unwrap();
        assert_eq!((name.namespace.as_str(), name.name.as_str()), ("kube-system", "kube-vip"));
        assert_eq!(name.to_string(), "kube-system/kube-vip");
        for wrong in ["kube-vip", "/kube-vip", "kube-system/", "a/b/c", ""] {
            assert!(wrong.parse::<Name>().unwrap_err().contains("NAMESPACE/NAME"), "{wrong}");
        }
    }
}
