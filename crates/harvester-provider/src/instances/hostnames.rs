//! Finds the VM of a Node by the host names that guest agents report, for Nodes whose provider ID does not tell. Pure;
//! `requests.rs` sends what is asked.
//!
//! An agent is asked only while a Node is unresolved, or before a Node counts as one without a machine, and once per
//! start of its machine (W-39). Names are compared
//! case-insensitively, with or without domain. A name that two machines report resolves to neither (W-25).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::view::VmiView;

/// An agent that did not answer is asked again after this time, if the name is still needed.
pub const ASK_AGAIN: Duration = Duration::from_secs(30);
/// An agent that has not answered so many times counts as silent, also where another machine claims its Node's name.
const BELIEVED: u32 = 2;

/// The answers of the guest agents, by VM name. No operation scans all answers for one Node, or all Nodes for one
/// answer, because thousands of Nodes may join at once.
#[derive(Debug, Default)]
pub struct Hostnames {
    answers: BTreeMap<String, HostnameAnswer>,
    /// VMs by the host name that they report, and by its first label; in lower case.
    called: BTreeMap<String, BTreeSet<String>>,
    /// How many requests are not answered yet.
    open: usize,
    /// How many host names are known.
    known: usize,
}

#[derive(Debug)]
struct HostnameAnswer {
    /// The UID of the instance that the answer belongs to; it changes with each start.
    vmi_uid: String,
    outcome: Outcome,
    /// How many requests to this instance have failed.
    failures: u32,
}

#[derive(Debug)]
enum Outcome {
    /// The request is sent, or waits for its turn, for however long. Every request ends, at the latest by a time-out.
    Asked,
    /// In lower case.
    Is(String),
    Failed(Instant),
}

/// One request to a guest agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRequest {
    /// Name of VM and VMI.
    pub vm: String,
    /// UID of the instance, which changes with each start.
    pub vmi_uid: String,
}

/// The machine of a Node, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// The Node runs on this VM.
    Vm(String),
    /// These agents have to be asked first (empty: the requests are under way, or due again in [`ASK_AGAIN`]).
    Ask(Vec<AgentRequest>),
    /// More than one machine reports this host name.
    Ambiguous(Vec<String>),
    /// No machine reports this name. Connected agents that did not answer are asked again after this time; `None`: none
    /// is. An agent that connects later is no reason to wait: its machine changes then, which as a rule wakes the Node.
    /// Where it does not, the back-off of a failed Node ends the wait.
    Nobody(Option<Duration>),
}

/// What guest agents say about one Node, by VM names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    /// They report the name of the Node.
    pub claimants: Vec<String>,
    /// They have not said their name since the start of their machine, or are not connected.
    pub silent: Vec<String>,
    /// Agents to ask now.
    pub asks: Vec<AgentRequest>,
}

impl Hostnames {
    /// Finds the machine of the Node named `node` among the running machines that may belong to this cluster.
    /// `name_exists`: a VM has the same name as the Node, whether it runs or not.
    pub fn resolve(&mut self, node: &str, name_exists: bool, candidates: &[&VmiView], now: Instant) -> Resolution {
        let same_name = candidates.iter().find(|vmi| name_exists && vmi.name == node);
        // The machine of the Node's own name is asked first. A copy of it, such as a restored backup, may have been
        // asked before and reports the same host name.
        let by_agent = self.claimants(node, candidates);
        let is_silent = match same_name.map(|vmi| (self.outcome(vmi), vmi)) {
            Some((Some(Outcome::Asked), _)) => return Resolution::Ask(Vec::new()),
            Some((None, vmi)) if vmi.agent_connected => return Resolution::Ask(vec![self.ask(vmi)]),
            // One answer may be lost on the way. Where another machine claims the name, that decides nothing.
            Some((Some(Outcome::Failed(at)), vmi))
                if vmi.agent_connected && !by_agent.is_empty() && self.failures(vmi) < BELIEVED =>
            {
                let left = ASK_AGAIN.saturating_sub(now.duration_since(*at));
                return Resolution::Ask(if left.is_zero() { vec![self.ask(vmi)] } else { Vec::new() });
            }
            Some((Some(Outcome::Failed(_)) | None, _)) => true,
            // The agent reports a host name, or the machine does not run.
            Some((Some(Outcome::Is(_)), _)) | None => false,
        };
        match by_agent.as_slice() {
            // The VM's name is the best hint then, and the only one that most clusters need.
            [] | [_] if is_silent => return Resolution::Vm(node.to_owned()),
            [] if name_exists && same_name.is_none() => return Resolution::Vm(node.to_owned()),
            [] => {}
            [vm] => return Resolution::Vm(vm.clone()),
            _ => return Resolution::Ambiguous(by_agent),
        }

        let mut under_way = false;
        let mut asks = Vec::new();
        let mut again: Option<Duration> = None;
        for vmi in candidates {
            match self.outcome(vmi) {
                Some(Outcome::Is(_)) => {}
                Some(Outcome::Asked) => under_way = true,
                // Nobody would be asked when the time is over.
                Some(Outcome::Failed(_)) | None if !vmi.agent_connected => {}
                Some(Outcome::Failed(at)) if now.duration_since(*at) < ASK_AGAIN => {
                    let left = ASK_AGAIN.saturating_sub(now.duration_since(*at));
                    again = Some(again.map_or(left, |before| before.min(left)));
                }
                Some(Outcome::Failed(_)) | None => asks.push(self.ask(vmi)),
            }
        }
        if asks.is_empty() && !under_way { Resolution::Nobody(again) } else { Resolution::Ask(asks) }
    }

    /// What the agents of these machines, which run or start, say about the Node named `node`.
    pub fn census(&mut self, node: &str, candidates: &[&VmiView], now: Instant) -> Census {
        let mut census = Census { claimants: self.claimants(node, candidates), ..Census::default() };
        for vmi in candidates {
            let due = match self.outcome(vmi) {
                Some(Outcome::Is(_)) => continue,
                Some(Outcome::Asked) => false,
                Some(Outcome::Failed(at)) => now.duration_since(*at) >= ASK_AGAIN,
                None => true,
            };
            census.silent.push(vmi.name.clone());
            if due && vmi.agent_connected {
                census.asks.push(self.ask(vmi));
            }
        }
        census
    }

    /// Records an answer. `None`: the agent did not answer. An empty name counts as no answer.
    pub fn answered(&mut self, ask: &AgentRequest, hostname: Option<&str>, now: Instant) {
        if self.answers.get(&ask.vm).is_none_or(|answer| answer.vmi_uid != ask.vmi_uid) {
            return; // restarted meanwhile
        }
        let hostname = hostname.map(|name| name.trim().to_ascii_lowercase()).filter(|name| !name.is_empty());
        self.note(ask, hostname.map_or(Outcome::Failed(now), Outcome::Is));
    }

    /// The names that a Node on this machine may have, according to its agent.
    pub fn names_of(&self, vm: &str) -> impl Iterator<Item = &str> {
        let hostname = self.answers.get(vm).and_then(|answer| match &answer.outcome {
            Outcome::Is(hostname) => Some(hostname.as_str()),
            Outcome::Asked | Outcome::Failed(_) => None,
        });
        hostname.into_iter().flat_map(names)
    }

    /// Whether this machine's agent reported this host name, with or without its domain.
    pub fn is_called(&self, vm: &str, node: &str) -> bool {
        self.called.get(&node.to_ascii_lowercase()).is_some_and(|vms| vms.contains(vm))
    }

    /// Whether only the machine with the Node's name has to be considered: no other machine reports this name, and its
    /// own agent does not report another one.
    pub fn is_plain(&self, node: &str) -> bool {
        match self.called.get(&node.to_ascii_lowercase()) {
            Some(vms) => vms.iter().all(|vm| vm == node),
            None => !self.answers.get(node).is_some_and(|answer| matches!(answer.outcome, Outcome::Is(_))),
        }
    }

    /// Whether an agent is being asked.
    pub fn is_asking(&self) -> bool {
        self.open > 0
    }

    /// Forgets machines that are gone (W-14).
    pub fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self.answers.keys().filter(|vm| !exists(vm)).cloned().collect();
        for vm in gone {
            self.forget(&vm);
        }
    }

    /// How many host names are known, for the metrics.
    pub fn known(&self) -> usize {
        self.known
    }

    /// What is known about this instance.
    fn answer(&self, vmi: &VmiView) -> Option<&HostnameAnswer> {
        self.answers.get(&vmi.name).filter(|answer| answer.vmi_uid == vmi.uid)
    }

    fn outcome(&self, vmi: &VmiView) -> Option<&Outcome> {
        Some(&self.answer(vmi)?.outcome)
    }

    fn failures(&self, vmi: &VmiView) -> u32 {
        self.answer(vmi).map_or(0, |answer| answer.failures)
    }

    fn ask(&mut self, vmi: &VmiView) -> AgentRequest {
        let ask = AgentRequest { vm: vmi.name.clone(), vmi_uid: vmi.uid.clone() };
        self.note(&ask, Outcome::Asked);
        ask
    }

    fn note(&mut self, ask: &AgentRequest, outcome: Outcome) {
        let before = self.answers.get(&ask.vm).filter(|answer| answer.vmi_uid == ask.vmi_uid);
        let mut failures = before.map_or(0, |answer| answer.failures);
        self.forget(&ask.vm);
        match &outcome {
            Outcome::Asked => self.open += 1,
            Outcome::Is(hostname) => {
                self.known += 1;
                for name in names(hostname) {
                    self.called.entry(name.to_owned()).or_default().insert(ask.vm.clone());
                }
            }
            Outcome::Failed(_) => failures += 1,
        }
        self.answers.insert(ask.vm.clone(), HostnameAnswer { vmi_uid: ask.vmi_uid.clone(), outcome, failures });
    }

    /// Forgets what this machine's agent reported.
    pub fn forget(&mut self, vm: &str) {
        match self.answers.remove(vm).map(|answer| answer.outcome) {
            Some(Outcome::Asked) => self.open -= 1,
            Some(Outcome::Is(hostname)) => {
                self.known -= 1;
                for name in names(&hostname) {
                    if let Some(vms) = self.called.get_mut(name) {
                        vms.remove(vm);
                        if vms.is_empty() {
                            self.called.remove(name);
                        }
                    }
                }
            }
            Some(Outcome::Failed(_)) | None => {}
        }
    }

    /// VMs whose agent reports this host name. A match of the full name takes precedence over one without the domain.
    fn claimants(&self, node: &str, candidates: &[&VmiView]) -> Vec<String> {
        let reported: BTreeSet<(&str, &str)> = candidates
            .iter()
            .filter_map(|vmi| match self.outcome(vmi) {
                Some(Outcome::Is(hostname)) => Some((vmi.name.as_str(), hostname.as_str())),
                _ => None,
            })
            .collect();
        let matching = |same: &dyn Fn(&str) -> bool| -> Vec<String> {
            reported.iter().filter(|(_, hostname)| same(hostname)).map(|(vm, _)| (*vm).to_owned()).collect()
        };
        let whole = matching(&|hostname| hostname.eq_ignore_ascii_case(node));
        if !whole.is_empty() {
            return whole;
        }
        matching(&|hostname| hostname.split('.').next().is_some_and(|first| first.eq_ignore_ascii_case(node)))
    }
}

/// A host name and, if it has a domain, its first label.
fn names(hostname: &str) -> impl Iterator<Item = &str> {
    std::iter::once(hostname).chain(hostname.split_once('.').map(|(first, _)| first))
}

#[cfg(test)]
mod tests {
    use super::super::view::build::vmi;
    use super::*;

    /// Asks and answers until nothing is asked any more. `says`: VM name and the host name that its agent reports.
    fn resolve(node: &str, vms: &[&str], says: &[(&str, Option<&str>)]) -> (Resolution, Vec<String>) {
        let mut book = Hostnames::default();
        let now = Instant::now();
        let vmis: Vec<VmiView> = vms.iter().map(|name| vmi(name)).collect();
        let candidates: Vec<&VmiView> = vmis.iter().collect();
        let mut asked = Vec::new();
        for _ in 0..10 {
            match book.resolve(node, vms.contains(&node), &candidates, now) {
                Resolution::Ask(asks) => {
                    for ask in asks {
                        let answer = says.iter().find(|(vm, _)| *vm == ask.vm).and_then(|(_, name)| *name);
                        book.answered(&ask, answer, now);
                        asked.push(ask.vm);
                    }
                }
                done => return (done, asked),
            }
        }
        panic!("never done");
    }

    fn vm(name: &str) -> Resolution {
        Resolution::Vm(name.into())
    }

    #[test]
    fn a_vm_called_like_the_node_is_the_only_one_asked() {
        let (found, asked) = resolve("a", &["a", "b", "c"], &[("a", Some("a"))]);
        assert_eq!((found, asked), (vm("a"), vec!["a".to_owned()]));
    }

    #[test]
    fn a_vm_of_the_same_name_whose_agent_is_silent_is_taken_by_its_name() {
        assert_eq!(resolve("a", &["a", "b"], &[]).0, vm("a"));
    }

    #[test]
    fn a_vm_of_the_same_name_with_another_host_name_is_not_the_machine() {
        let says = [("a", Some("c")), ("b", Some("a"))];
        assert_eq!(resolve("a", &["a", "b"], &says).0, vm("b"));
    }

    /// W-10.
    #[test]
    fn a_node_with_another_name_than_its_vm_is_found_by_its_host_name() {
        for hostname in ["node-1", "NODE-1", "node-1.example.org", " node-1\n"] {
            assert_eq!(resolve("node-1", &["vm-1", "vm-2"], &[("vm-2", Some(hostname))]).0, vm("vm-2"), "{hostname:?}");
        }
    }

    #[test]
    fn the_whole_host_name_wins_over_the_one_without_domain() {
        let says = [("x", Some("a.one")), ("y", Some("a.two"))];
        assert_eq!(resolve("a.two", &["x", "y"], &says).0, vm("y"));
        assert_eq!(resolve("a", &["x", "y"], &says).0, Resolution::Ambiguous(vec!["x".into(), "y".into()]));
    }

    #[test]
    fn a_host_name_that_two_machines_report_resolves_to_neither() {
        let says = [("x", Some("a")), ("y", Some("a"))];
        assert_eq!(resolve("a", &["x", "y"], &says).0, Resolution::Ambiguous(vec!["x".into(), "y".into()]));
    }

    /// A restored backup runs beside its original.
    #[test]
    fn a_copy_that_was_asked_before_does_not_win_over_the_vm_of_the_nodes_own_name() {
        let now = Instant::now();
        let silent = VmiView { agent_connected: false, ..vmi("a") };
        for (own, says, expected) in [
            (vmi("a"), Some("a"), Resolution::Ambiguous(vec!["a".into(), "copy".into()])),
            (vmi("a"), Some("b"), vm("copy")),
            (vmi("a"), None, vm("a")),
            (silent, None, vm("a")),
        ] {
            let mut book = Hostnames::default();
            let copy = vmi("copy");
            let ask = book.ask(&copy);
            book.answered(&ask, Some("a"), now);
            let mut found = book.resolve("a", true, &[&own, &copy], now);
            if own.agent_connected {
                let Resolution::Ask(asks) = found else { panic!("{found:?}") };
                assert_eq!(asks, [AgentRequest { vm: "a".into(), vmi_uid: own.uid.clone() }]);
                assert_eq!(book.resolve("a", true, &[&own, &copy], now), Resolution::Ask(Vec::new()));
                book.answered(&asks[0], says, now);
                found = book.resolve("a", true, &[&own, &copy], now);
                if says.is_none() {
                    assert_eq!(found, Resolution::Ask(Vec::new()), "one answer may be lost");
                    let later = now + ASK_AGAIN;
                    let Resolution::Ask(asks) = book.resolve("a", true, &[&own, &copy], later) else { panic!() };
                    book.answered(&asks[0], says, later);
                    found = book.resolve("a", true, &[&own, &copy], later);
                }
            }
            assert_eq!(found, expected, "{says:?}");
            assert_eq!(book.resolve("a", true, &[&copy], now), vm("copy"), "the machine of that name does not run");
        }
    }

    #[test]
    fn an_empty_host_name_is_no_name() {
        assert_eq!(resolve("a", &["x"], &[("x", Some(" "))]).0, Resolution::Nobody(Some(ASK_AGAIN)));
    }

    #[test]
    fn a_restarted_machine_is_asked_again_and_a_silent_one_after_a_while() {
        let mut book = Hostnames::default();
        let start = Instant::now();
        let first = vmi("x");
        let Resolution::Ask(asks) = book.resolve("a", false, &[&first], start) else { panic!() };
        assert_eq!(book.resolve("a", false, &[&first], start), Resolution::Ask(Vec::new()), "being asked");
        book.answered(&asks[0], None, start);
        for (after, left) in [(0, 30), (29, 1)] {
            let (now, left) = (start + Duration::from_secs(after), Duration::from_secs(left));
            assert_eq!(book.resolve("a", false, &[&first], now), Resolution::Nobody(Some(left)));
        }
        assert_eq!(book.resolve("a", false, &[], start), Resolution::Nobody(None), "there is nobody to ask");
        let again = book.resolve("a", false, &[&first], start + ASK_AGAIN);
        assert_eq!(again, Resolution::Ask(asks.clone()));
        book.answered(&asks[0], Some("a"), start);
        assert_eq!(book.resolve("a", false, &[&first], start), vm("x"));

        let second = VmiView { uid: "second".into(), ..vmi("x") };
        assert!(matches!(book.resolve("a", false, &[&second], start), Resolution::Ask(asks) if asks.len() == 1));
        book.answered(&asks[0], Some("a"), start);
        assert_eq!(
            book.resolve("a", false, &[&second], start),
            Resolution::Ask(Vec::new()),
            "a late answer of the first start"
        );
    }

    #[test]
    fn a_node_is_woken_for_another_question_only_where_an_agent_is_connected() {
        let second = Duration::from_secs(1);
        let asks = |vm: &str| Resolution::Ask(vec![AgentRequest { vm: vm.into(), vmi_uid: vmi(vm).uid }]);
        // Both agents were asked and gave no answer; `y` two seconds after `x`.
        for (x_connected, y_connected, after, expected) in [
            (true, true, second * 3, Resolution::Nobody(Some(ASK_AGAIN.saturating_sub(second * 3)))),
            (false, true, second * 3, Resolution::Nobody(Some(ASK_AGAIN.saturating_sub(second)))),
            (false, false, second * 3, Resolution::Nobody(None)),
            (false, true, ASK_AGAIN, Resolution::Nobody(Some(second * 2))),
            (true, false, ASK_AGAIN, asks("x")),
            (false, false, ASK_AGAIN * 2, Resolution::Nobody(None)),
        ] {
            let mut book = Hostnames::default();
            let start = Instant::now();
            for (name, at) in [("x", start), ("y", start + second * 2)] {
                let ask = book.ask(&vmi(name));
                book.answered(&ask, None, at);
            }
            let [x, y] = [("x", x_connected), ("y", y_connected)]
                .map(|(name, agent_connected)| VmiView { agent_connected, ..vmi(name) });
            let found = book.resolve("a", false, &[&x, &y], start + after);
            assert_eq!(found, expected, "x {x_connected}, y {y_connected}, after {after:?}");
        }
        let silent = VmiView { agent_connected: false, ..vmi("x") };
        let found = Hostnames::default().resolve("a", false, &[&silent], Instant::now());
        assert_eq!(found, Resolution::Nobody(None), "an agent that was never connected");
    }

    /// W-14.
    #[test]
    fn machines_that_are_gone_are_forgotten() {
        let mut book = Hostnames::default();
        let now = Instant::now();
        let x = vmi("x");
        let Resolution::Ask(asks) = book.resolve("a", false, &[&x], now) else { panic!() };
        book.answered(&asks[0], Some("a"), now);
        assert_eq!(book.known(), 1);
        assert!(book.is_called("x", "a") && !book.is_plain("a"));
        book.retain(|_| false);
        assert_eq!(book.known(), 0);
        assert!(!book.is_called("x", "a") && book.is_plain("a"));
    }

    #[test]
    fn a_question_that_waits_for_its_turn_is_not_asked_again_however_long_that_takes() {
        let mut book = Hostnames::default();
        let now = Instant::now();
        let x = vmi("x");
        let Resolution::Ask(asks) = book.resolve("x", true, &[&x], now) else { panic!() };
        assert_eq!(asks.len(), 1);
        assert_eq!(book.resolve("x", true, &[&x], now + ASK_AGAIN * 2), Resolution::Ask(Vec::new()));
        assert!(book.is_asking());
        book.answered(&asks[0], Some("x"), now + ASK_AGAIN * 2);
        assert!(!book.is_asking());
        assert_eq!(book.resolve("x", true, &[&x], now + ASK_AGAIN * 2), vm("x"));
    }

    #[test]
    fn a_node_is_plain_as_long_as_nobody_else_has_its_name_and_its_own_machine_no_other() {
        let mut book = Hostnames::default();
        let now = Instant::now();
        let mut says = |vm: &str, hostname: &str| {
            let ask = book.ask(&vmi(vm));
            book.answered(&ask, Some(hostname), now);
            ["a", "b"].map(|node| book.is_plain(node))
        };
        assert_eq!(says("a", "A.example.org"), [true, true]);
        assert_eq!(says("b", "a"), [false, false], "both are called a, none is called b");
        assert_eq!(says("b", "b.example.org"), [true, true]);
        assert_eq!(says("c", "b"), [true, false]);
    }
}
