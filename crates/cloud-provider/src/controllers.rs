//! Which controllers run: the names and the grammar of `--controllers` (framework spec 4.4, CCM spec 1.3).

use std::fmt;

/// A controller that this program knows by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Initialises Nodes and keeps their addresses.
    Node,
    /// Marks and deletes Nodes whose machine is off or gone.
    NodeLifecycle,
    /// Load balancers.
    Service,
    /// Accepted and never started: the cloud has no routes.
    Route,
    /// Takes pods of a lost node out of their Services. Runs in every replica, also in those that do not lead.
    NodeLoss,
}

impl Controller {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Node, Self::NodeLifecycle, Self::Service, Self::Route, Self::NodeLoss];

    /// The name in `--controllers` and in health checks.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "cloud-node-controller",
            Self::NodeLifecycle => "cloud-node-lifecycle-controller",
            Self::Service => "service-lb-controller",
            Self::Route => "node-route-controller",
            Self::NodeLoss => "node-loss-controller",
        }
    }

    /// The historical name: in the metric `running_managed_controllers`, and accepted in `--controllers`.
    pub fn metric_name(self) -> &'static str {
        match self {
            Self::Node => "cloud-node",
            Self::NodeLifecycle => "cloud-node-lifecycle",
            Self::Service => "service",
            Self::Route => "route",
            Self::NodeLoss => "node-loss",
        }
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The selected controllers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controllers(Vec<Controller>);

/// `--controllers` names something that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not in the list of known controllers (known: {known})", known = known_names())]
pub struct UnknownController(pub String);

fn known_names() -> String {
    Controller::ALL.map(|controller| format!("{} or {}", controller.metric_name(), controller.name())).join(", ")
}

impl Controllers {
    /// Parses the list. A name switches a controller on, `-name` switches it off; the first mention counts. `*`
    /// switches on all controllers that are not mentioned; without it they are off. The historical names are accepted,
    /// too: users still write `-service`, which the Go provider rejects (W-52).
    pub fn parse<'a>(list: impl IntoIterator<Item = &'a str>) -> Result<Self, UnknownController> {
        let entries: Vec<&str> = list.into_iter().map(str::trim).filter(|entry| !entry.is_empty()).collect();
        let named = |controller: Controller, name: &str| name == controller.name() || name == controller.metric_name();
        for entry in &entries {
            let name = entry.strip_prefix('-').unwrap_or(entry);
            if name != "*" && !Controller::ALL.iter().any(|controller| named(*controller, name)) {
                return Err(UnknownController(name.to_owned()));
            }
        }
        let enabled = |controller: &Controller| {
            let mention = entries.iter().find(|entry| named(*controller, entry.strip_prefix('-').unwrap_or(entry)));
            mention.map_or_else(|| entries.contains(&"*"), |entry| !entry.starts_with('-'))
        };
        Ok(Self(Controller::ALL.into_iter().filter(enabled).collect()))
    }

    /// Whether this controller was selected.
    pub fn has(&self, controller: Controller) -> bool {
        self.0.contains(&controller)
    }
}

impl Default for Controllers {
    /// All of them.
    fn default() -> Self {
        Self(Controller::ALL.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W-52.
    #[test]
    fn the_first_mention_counts_and_a_star_stands_for_what_is_not_mentioned() {
        use Controller::{Node, NodeLifecycle, NodeLoss, Route, Service};
        for (list, expected) in [
            (&["*"][..], &[Node, NodeLifecycle, Service, Route, NodeLoss][..]),
            (&["*", "-node-loss"], &[Node, NodeLifecycle, Service, Route]),
            (&["*", "-service-lb-controller"], &[Node, NodeLifecycle, Route, NodeLoss]),
            (
                &["cloud-node-controller", "cloud-node-lifecycle-controller", "node-route-controller"],
                &[Node, NodeLifecycle, Route],
            ),
            (&["*", "-service"], &[Node, NodeLifecycle, Route, NodeLoss]),
            (&["route", "cloud-node"], &[Node, Route]),
            (&["-cloud-node-controller"], &[]),
            (&["-service-lb-controller", "service-lb-controller"], &[]),
            (
                &["service-lb-controller", "-service-lb-controller", "*"],
                &[Node, NodeLifecycle, Service, Route, NodeLoss],
            ),
            (&[], &[]),
        ] {
            assert_eq!(Controllers::parse(list.iter().copied()).unwrap(), Controllers(expected.to_vec()), "{list:?}");
        }
    }

    #[test]
    fn an_unknown_name_is_refused_by_name() {
        for name in ["loadbalancer", "-routes", "x"] {
            let error = Controllers::parse(["*", name]).unwrap_err().to_string();
            let bare = name.trim_start_matches('-');
            assert!(error.starts_with(&format!("{bare:?} is not in the list of known controllers")), "{error}");
            assert!(error.contains("(known: cloud-node or cloud-node-controller, cloud-node-l"), "{error}");
        }
    }
}
