//! What a Service asks for, and what it was given. Where a cloud controller gives addresses, a request is no grant:
//! without a grant the address is not reserved, and another Service may get it. Pure.

use super::{Published, ServiceView};
use crate::annotations::{AddressRequest, Problem};

/// The field in which a Service requests an address.
pub(super) const SPEC: &str = "spec.loadBalancerIP";

/// The facts that tell a grant from a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signs<'a> {
    /// It has a `loadBalancerClass`, so no cloud controller gives it addresses.
    pub has_class: bool,
    /// It has the finalizer of cloud controllers. They set it before they give addresses, and remove what other writers
    /// put in the place of their output.
    pub has_finalizer: bool,
    /// It has `kube-vip.io/loadbalancerIPs`, the output of cloud controllers.
    pub has_output: bool,
    /// What clients were told.
    pub published: &'a Published,
}

/// The source of a Service's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Giver {
    /// Unknown: no cloud controller has marked it.
    #[default]
    Unknown,
    /// A cloud controller, as its finalizer says.
    Controller,
    /// A cloud controller that has given no address. Addresses that clients know were taken for granted by an
    /// announcer.
    Withholding,
}

impl Giver {
    pub(super) fn of(signs: Signs<'_>, retired: bool) -> Self {
        match signs {
            Signs { has_class: true, .. } | Signs { has_finalizer: false, .. } => Self::Unknown,
            Signs { has_output: false, .. } if !retired => Self::Withholding,
            _ => Self::Controller,
        }
    }
}

/// The granted part of `wanted`, which kube-vip would announce; `None`: all of it.
///
/// The status counts, because clients know it and authors of Services may not write it. A Service that is served stays
/// served, even if another writer has replaced all its annotations and finalizers.
pub(super) fn granted(wanted: &[AddressRequest], signs: Signs<'_>) -> Option<Vec<AddressRequest>> {
    let Signs { has_class, has_finalizer, has_output, published } = signs;
    let told: Vec<AddressRequest> =
        published.ingress.iter().filter_map(|ingress| ingress.ip.map(AddressRequest::Static)).collect();
    let leased = wanted.iter().any(|wanted| matches!(wanted, AddressRequest::Dhcp4 | AddressRequest::Dhcp6));
    let granted = match (has_output, told.is_empty()) {
        _ if has_class => return None,
        (true, true) if !has_finalizer => Vec::new(),
        (true, _) => return None,
        // This holds also if the request cannot be read.
        (false, true) => return Some(Vec::new()),
        // The status does not tell a leased address from a static one.
        (false, false) if leased => return None,
        (false, false) => told,
    };
    (granted != wanted).then_some(granted)
}

impl ServiceView {
    /// The same view with only the granted addresses; `None`: nothing is withheld.
    pub fn as_granted(&self) -> Option<Self> {
        let granted = self.granted.clone()?;
        let is_wish = |problem: &Problem| problem.annotation == SPEC;
        let problems = self.problems.iter().filter(|problem| !is_wish(problem)).cloned().collect();
        Some(Self { wanted: granted, problems, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use serde_json::{Value, json};

    use super::super::FINALIZER;
    use super::*;
    use crate::annotations::LOADBALANCER_IPS;
    use crate::class::ClassRules;

    fn view(change: impl FnOnce(&mut Value)) -> ServiceView {
        let mut object = json!({
            "metadata": {"namespace": "default", "name": "web", "uid": "1", "annotations": {}},
            "spec": {"type": "LoadBalancer"},
            "status": {"loadBalancer": {}},
        });
        change(&mut object);
        let object: Service = serde_json::from_value(object).unwrap();
        ServiceView::of(&object, &ClassRules { name: "ours".into(), ..ClassRules::default() }).unwrap()
    }

    fn texts(wanted: &[AddressRequest]) -> Vec<String> {
        let text = |wanted: &AddressRequest| match wanted {
            AddressRequest::Static(address) => address.to_string(),
            AddressRequest::Dhcp4 => "dhcp".to_owned(),
            AddressRequest::Dhcp6 => "dhcp6".to_owned(),
        };
        wanted.iter().map(text).collect()
    }

    #[test]
    fn a_wish_is_no_grant() {
        for (what, finalizer, output, spec, status, as_kube_vip, granted) in [
            ("a wish, before the controller has looked", false, "", "10.0.0.5", "", "10.0.0.5", ""),
            ("a wish in the place of the output", false, "10.0.0.5", "", "", "10.0.0.5", ""),
            ("a wish that the controller refuses", true, "", "10.0.0.5", "", "10.0.0.5", ""),
            ("a wish for a lease", true, "", "0.0.0.0", "", "dhcp", ""),
            ("published", true, "10.0.0.7", "10.0.0.5", "", "10.0.0.7", "10.0.0.7"),
            ("published, and served at the former address", true, "10.0.0.7", "", "10.0.0.6", "10.0.0.7", "10.0.0.7"),
            ("a lease is asked for", true, "0.0.0.0", "", "", "dhcp", "dhcp"),
            (
                "served, and replaced by the author's manifest",
                false,
                "",
                "10.0.0.5",
                "10.0.0.6",
                "10.0.0.5",
                "10.0.0.6",
            ),
            ("the same with the finalizer", true, "", "10.0.0.5", "10.0.0.6", "10.0.0.5", "10.0.0.6"),
            ("served by a lease, and replaced", false, "", "0.0.0.0", "10.0.0.6", "dhcp", "dhcp"),
            ("served, and the finalizer is gone", false, "10.0.0.6", "", "10.0.0.6", "10.0.0.6", "10.0.0.6"),
            ("served, and nothing else is known", false, "", "", "10.0.0.6", "10.0.0.6", "10.0.0.6"),
        ] {
            let view = view(|object| {
                if finalizer {
                    object["metadata"]["finalizers"] = json!([FINALIZER]);
                }
                if !output.is_empty() {
                    object["metadata"]["annotations"][LOADBALANCER_IPS] = json!(output);
                }
                object["spec"]["loadBalancerIP"] = json!(spec);
                if !status.is_empty() {
                    object["status"]["loadBalancer"]["ingress"] = json!([{"ip": status}]);
                }
            });
            let list = |text: &'static str| if text.is_empty() { Vec::new() } else { vec![text] };
            assert_eq!(texts(&view.wanted), list(as_kube_vip), "{what}");
            let given = view.as_granted().map_or(view.wanted.clone(), |view| view.wanted);
            assert_eq!(texts(&given), list(granted), "{what}");
            let giver = match (finalizer, output.is_empty()) {
                (false, _) => Giver::Unknown,
                (true, false) => Giver::Controller,
                (true, true) => Giver::Withholding,
            };
            assert_eq!(view.giver, giver, "{what}");
        }
    }

    #[test]
    fn who_names_our_class_is_nobody_elses() {
        let view = view(|object| {
            object["spec"]["loadBalancerClass"] = json!("ours");
            object["spec"]["loadBalancerIP"] = json!("10.0.0.5");
        });
        assert_eq!((view.as_granted(), texts(&view.wanted)), (None, vec!["10.0.0.5".to_owned()]));
    }

    #[test]
    fn what_is_wrong_with_a_wish_is_no_concern_of_who_is_given_an_address() {
        let view = view(|object| object["spec"]["loadBalancerIP"] = json!("web.example"));
        assert_eq!(view.problems.len(), 1);
        assert_eq!(view.as_granted().map(|view| view.problems.len()), Some(0));
    }
}
