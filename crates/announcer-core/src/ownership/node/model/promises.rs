//! What has to hold in every state and at the end of every run.

use super::{Bound, Event, LONGEST, NAMES, Node, World};

impl World {
    /// Nobody takes the address from an owner that clients hear and whose Lease is fresh.
    pub(super) fn robs(&self, bound: Bound, event: Event) -> bool {
        let Event::Look(n) = event else { return false };
        let takes = self.wants(bound, n).is_some_and(|(host, _)| host.map(usize::from) == Some(n));
        let owner = self.nodes[n].view.0.map(usize::from).filter(|owner| *owner != n);
        takes && owner.is_some_and(|owner| self.serves(owner) && self.nodes[owner].lease == 0)
    }

    /// Without another fault everything that is due happens. What is wrong then, if anything.
    pub(super) fn at_rest(&self, bound: Bound, steps: &[Event]) -> Result<Self, String> {
        let mut world = self.clone();
        for _ in 0..LONGEST {
            let Some(event) = steps.iter().copied().find(|event| world.can(bound, *event)) else {
                return world.is_well().map(|()| world);
            };
            world = world.after(bound, event);
        }
        Err("it does not come to rest".to_owned())
    }

    fn is_well(&self) -> Result<(), String> {
        let answering: Vec<usize> =
            (0..self.nodes.len()).filter(|n| self.nodes[*n].power && self.nodes[*n].has).collect();
        let knows = |n: usize| self.nodes[n].view.1 > 0;
        for (at, a) in answering.iter().enumerate() {
            if let Some(b) =
                answering[at + 1..].iter().find(|b| self.hear_each_other(*a, **b) && knows(*a) && knows(**b))
            {
                return Err(format!("{} and {} both answer", NAMES[*a], NAMES[*b]));
            }
        }
        let well = |node: &Node| node.power && node.process && !node.away && !node.cut && !node.excluded;
        if self.nodes.iter().any(well) && !answering.iter().any(|n| self.serves(*n)) {
            return Err("nobody answers clients, and a node is there that could".to_owned());
        }
        Ok(())
    }
}
