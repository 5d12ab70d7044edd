//! What a Service continues to ask for when its author makes a mistake. A lease that is released because of a typing
//! error may belong to another host before the error is fixed.

use super::{DhcpWishes, ServiceView};
use crate::annotations::{AddressRequest, Meanwhile};

/// How the request of a Service is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wish {
    /// The Service says it.
    #[default]
    Said,
    /// The Service says nothing; its status is used instead (kube-vip spec 3.3).
    Unsaid,
    /// A part of what it says cannot be read; its problems name it.
    Unreadable,
    /// The Service said it before. Now it says nothing, or nothing readable.
    Former,
}

impl ServiceView {
    /// The view of a Service that was seen as `before`, whose `wanted` is everything that it asked for then. If it
    /// cannot be read any more, everything stays as before. It may also say nothing any more: `kubectl replace` with
    /// the user's own manifest leaves that state until the cloud provider writes again. Then its DHCP addresses stay,
    /// because the status does not tell a leased address from a static one.
    pub fn following(self, before: &Self) -> Self {
        let mut leases =
            before.wanted.iter().filter(|wanted| matches!(wanted, AddressRequest::Dhcp4 | AddressRequest::Dhcp6));
        let loses_lease = leases.any(|lease| !self.wanted.contains(lease));
        let stays = match self.wish {
            // A Service that asked for nothing before has nothing to keep.
            Wish::Unreadable => before.wish != Wish::Unreadable && !before.wanted.is_empty() || loses_lease,
            Wish::Unsaid => loses_lease,
            Wish::Said | Wish::Former => false,
        };
        if !stays || self.uid != before.uid || before.retired {
            return self;
        }
        let interface = if self.wish == Wish::Unreadable { before.interface.clone() } else { self.interface };
        let problems = self.problems.into_iter().map(|mut problem| {
            if problem.meanwhile != Meanwhile::Said {
                problem.meanwhile = Meanwhile::Former;
            }
            problem
        });
        // Lease facts are written by announcers and are no request.
        let dhcp = DhcpWishes {
            requested: self.dhcp.requested.or(before.dhcp.requested),
            lease: self.dhcp.lease.or_else(|| before.dhcp.lease.clone()),
            requested6: self.dhcp.requested6.or(before.dhcp.requested6),
            lease6: self.dhcp.lease6.or_else(|| before.dhcp.lease6.clone()),
            ..before.dhcp.clone()
        };
        let problems = problems.collect();
        let (wanted, granted) = (before.wanted.clone(), before.granted.clone());
        Self { wish: Wish::Former, wanted, granted, interface, dhcp, problems, ..self }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use serde_json::{Value, json};

    use super::super::InterfaceWish;
    use super::*;
    use crate::annotations as keys;
    use crate::class::ClassRules;

    const MAC: &str = "00:00:6c:01:02:03";

    fn view(annotations: &Value) -> ServiceView {
        let object: Service = serde_json::from_value(json!({
            "metadata": {"namespace": "default", "name": "web", "uid": "1", "annotations": annotations},
            "spec": {"type": "LoadBalancer"},
            "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.50"}]}},
        }))
        .unwrap();
        ServiceView::of(&object, &ClassRules::default()).unwrap()
    }

    fn leased() -> ServiceView {
        view(&json!({keys::LOADBALANCER_IPS: "0.0.0.0", keys::HWADDR: MAC, keys::SERVICE_INTERFACE: "eth1"}))
    }

    #[test]
    fn what_cannot_be_read_or_is_not_said_any_more_stays() {
        for (what, annotations, told) in [
            (
                "MAC",
                json!({keys::LOADBALANCER_IPS: "0.0.0.0", keys::HWADDR: "x", keys::SERVICE_INTERFACE: "eth1"}),
                true,
            ),
            ("addresses", json!({keys::LOADBALANCER_IPS: "0.0.0.o", keys::HWADDR: MAC}), true),
            ("one of two addresses", json!({keys::LOADBALANCER_IPS: "0.0.0.o,fd00::1", keys::HWADDR: MAC}), true),
            ("too many", json!({keys::LOADBALANCER_IPS: "0.0.0.0,10.0.0.1,10.0.0.2", keys::HWADDR: MAC}), true),
            ("all annotations", json!({}), false),
        ] {
            let mut stays = leased();
            // A second mistake changes nothing.
            for _ in 0..2 {
                stays = view(&annotations).following(&stays);
                assert_eq!((stays.wish, &stays.wanted[..]), (Wish::Former, &[AddressRequest::Dhcp4][..]), "{what}");
                assert_eq!(stays.dhcp.mac, MAC.parse().ok(), "{what}");
                let text = stays.problems.iter().map(ToString::to_string).collect::<String>();
                assert_eq!(text.contains("asked for before is announced until"), told, "{what}: {text}");
            }
            assert_eq!(leased().following(&stays), leased(), "{what}: it is mended");
        }
        let stays = view(&json!({keys::LOADBALANCER_IPS: "0.0.0.o"})).following(&leased());
        assert_eq!(stays.interface, InterfaceWish::Named("eth1".into()), "it is not moved either");
    }

    #[test]
    fn a_mac_that_cannot_be_read_after_a_restart_costs_clients_no_address_that_they_know() {
        let wrong = |requested: &str| {
            view(&json!({keys::LOADBALANCER_IPS: "0.0.0.0", keys::HWADDR: "x", keys::REQUESTED_IP: requested}))
        };
        let restarted = wrong("10.0.0.50");
        assert_eq!((&restarted.wanted[..], restarted.dhcp.mac), (&[AddressRequest::Dhcp4][..], None));
        let text = restarted.problems.iter().map(ToString::to_string).collect::<String>();
        assert!(text.contains(keys::HWADDR) && text.contains("the MAC of its macvlan"), "{text}");
        // What is still remembered comes first.
        let stays = restarted.clone().following(&leased());
        assert_eq!((stays.wish, stays.dhcp.mac), (Wish::Former, MAC.parse().ok()));
        assert_eq!(restarted.clone().following(&restarted), restarted);
        assert_eq!(wrong("10.0.0.51").wanted, [], "clients were not told of that one");
    }

    #[test]
    fn what_asks_for_something_else_gets_it() {
        for (what, annotations) in [
            ("an address", json!({keys::LOADBALANCER_IPS: "10.0.0.7"})),
            ("none", json!({keys::LOADBALANCER_IPS: ""})),
            ("another MAC", json!({keys::LOADBALANCER_IPS: "0.0.0.0", keys::HWADDR: "00:00:6c:09:09:09"})),
            ("a MAC that is not used", json!({keys::LOADBALANCER_IPS: "10.0.0.7", keys::HWADDR: "x"})),
        ] {
            assert_eq!(view(&annotations).following(&leased()), view(&annotations), "{what}");
        }
        let other = ServiceView { uid: super::super::Uid("2".into()), ..view(&json!({})) };
        assert_eq!(other.clone().following(&leased()), other, "a new Service of the same name");
    }

    #[test]
    fn what_was_never_read_is_not_announced() {
        let first = view(&json!({keys::LOADBALANCER_IPS: "10.0.0.o,10.0.0.7"}));
        assert_eq!(first.wanted, [AddressRequest::Static("10.0.0.7".parse().unwrap())]);
        assert!(first.problems.iter().all(|problem| problem.to_string().contains("it is not announced until")));
        let second = view(&json!({keys::LOADBALANCER_IPS: "10.0.0.o,10.0.0.8"}));
        assert_eq!(second.clone().following(&first), second, "what could be read is followed");
        let new = ServiceView { wish: Wish::Unsaid, wanted: Vec::new(), ..view(&json!({})) };
        let wrong = view(&json!({keys::LOADBALANCER_IPS: "0.0.0.0", keys::HWADDR: "x"}));
        assert_eq!(wrong.clone().following(&new), wrong, "nothing was announced before");
    }
}
