//! Which controllers run: the grammar of `--controllers` (cloud-provider-framework.md 4.4).

/// The controllers of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller {
    /// Initialises nodes and keeps their addresses.
    CloudNode,
    /// Deletes nodes whose machine is gone and marks those that are switched off.
    CloudNodeLifecycle,
    /// Load balancers.
    ServiceLb,
    /// Known by name so that existing lists parse; Harvester has no routes.
    NodeRoute,
}

/// Name, and the historical alias (W-52: the Go provider refuses it, users still write it).
const KNOWN: [(Controller, &str, &str); 4] = [
    (Controller::CloudNode, "cloud-node-controller", "cloud-node"),
    (Controller::CloudNodeLifecycle, "cloud-node-lifecycle-controller", "cloud-node-lifecycle"),
    (Controller::ServiceLb, "service-lb-controller", "service"),
    (Controller::NodeRoute, "node-route-controller", "route"),
];

/// The selection made on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controllers(Vec<Controller>);

impl Controllers {
    /// Reads the list; an entry that names nothing is an error.
    pub fn parse(list: &[String]) -> Result<Self, String> {
        for entry in list {
            let name = entry.strip_prefix('-').unwrap_or(entry);
            if entry != "*" && !KNOWN.iter().any(|(_, canonical, alias)| name == *canonical || name == *alias) {
                let known: Vec<&str> = KNOWN.iter().map(|(_, canonical, _)| *canonical).collect();
                return Err(format!(
                    "--controllers: {entry:?} is not in the list of known controllers; accepted: *, {}, each also with - in front",
                    known.join(", ")
                ));
            }
        }
        let enabled = |canonical: &str, alias: &str| {
            let mut all = false;
            for entry in list {
                match entry.strip_prefix('-') {
                    Some(name) if name == canonical || name == alias => return false,
                    None if entry == canonical || entry == alias => return true,
                    None if entry == "*" => all = true,
                    _ => {}
                }
            }
            all
        };
        Ok(Self(KNOWN.iter().filter(|(_, canonical, alias)| enabled(canonical, alias)).map(|(c, ..)| *c).collect()))
    }

    /// Whether `controller` runs.
    pub fn has(&self, controller: Controller) -> bool {
        self.0.contains(&controller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(list: &[&str]) -> Vec<Controller> {
        Controllers::parse(&list.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap().0
    }

    #[test]
    fn the_first_match_wins_and_the_star_means_the_rest() {
        use Controller::{CloudNode, CloudNodeLifecycle, NodeRoute, ServiceLb};
        assert_eq!(selected(&["*"]), [CloudNode, CloudNodeLifecycle, ServiceLb, NodeRoute]);
        assert_eq!(selected(&["*", "-service-lb-controller"]), [CloudNode, CloudNodeLifecycle, NodeRoute]);
        assert_eq!(selected(&["*", "-service"]), [CloudNode, CloudNodeLifecycle, NodeRoute]);
        assert_eq!(
            selected(&["cloud-node-controller", "cloud-node-lifecycle-controller", "node-route-controller"]),
            [CloudNode, CloudNodeLifecycle, NodeRoute]
        );
        assert_eq!(selected(&["-service", "service"]), []);
        assert_eq!(selected(&["service", "-service"]), [ServiceLb]);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = Controllers::parse(&["loadbalancer".to_owned()]).unwrap_err();
        assert!(error.contains("\"loadbalancer\" is not in the list of known controllers"), "{error}");
        assert!(error.contains("service-lb-controller"), "{error}");
    }
}
