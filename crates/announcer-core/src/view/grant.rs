//! What a Service asks for, and what it has been given. Where a cloud controller gives addresses, a wish is no grant:
//! nobody has booked the address, and it may be another one's a moment later. Pure.

use super::{Published, ServiceView};
use crate::annotations::{Problem, Wanted};

/// Where a Service names its addresses.
pub(super) const SPEC: &str = "spec.loadBalancerIP";

/// What tells a grant from a wish.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signs<'a> {
    /// It has a `loadBalancerClass`: no cloud controller gives it anything.
    pub has_class: bool,
    /// The finalizer of cloud controllers stands on it. They put it there before they give anything, and take away what
    /// others have written in the place of their output.
    pub has_finalizer: bool,
    /// `kube-vip.io/loadbalancerIPs` is there: the output of cloud controllers.
    pub has_output: bool,
    /// What clients were told.
    pub published: &'a Published,
}

/// Who gives a Service its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Giver {
    /// Nobody that it tells of.
    #[default]
    Unknown,
    /// A cloud controller: its finalizer says so.
    Controller,
    /// The same, and it has published none: what clients know an announcer has taken for granted once.
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

/// What is granted of `wanted`, which is what kube-vip would announce; absent: all of it.
///
/// Clients know what stands in the status, which the authors of Services may not write. Who is served goes on, also
/// where somebody has replaced all annotations, and finalizers, by his own.
pub(super) fn granted(wanted: &[Wanted], signs: Signs<'_>) -> Option<Vec<Wanted>> {
    let Signs { has_class, has_finalizer, has_output, published } = signs;
    let told: Vec<Wanted> = published.ingress.iter().filter_map(|ingress| ingress.ip.map(Wanted::Static)).collect();
    let leased = wanted.iter().any(|wanted| matches!(wanted, Wanted::Dhcp4 | Wanted::Dhcp6));
    let granted = match (has_output, told.is_empty()) {
        _ if has_class => return None,
        (true, true) if !has_finalizer => Vec::new(),
        (true, _) => return None,
        // Also where nothing is asked for in a way that can be read.
        (false, true) => return Some(Vec::new()),
        // The status does not tell a leased address from a given one.
        (false, false) if leased => return None,
        (false, false) => told,
    };
    (granted != wanted).then_some(granted)
}

impl ServiceView {
    /// The view of a Service that a cloud controller gives its addresses, with those alone. Absent: it is the same.
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

    fn texts(wanted: &[Wanted]) -> Vec<String> {
        let text = |wanted: &Wanted| match wanted {
            Wanted::Static(address) => address.to_string(),
            Wanted::Dhcp4 => "dhcp".to_owned(),
            Wanted::Dhcp6 => "dhcp6".to_owned(),
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
