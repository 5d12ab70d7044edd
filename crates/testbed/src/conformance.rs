//! Kubernetes' own end-to-end suite: which of its tests concern load balancers, what became of them, and what was
//! expected. Pure;
//! `demo conformance` runs them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// Tests of `[sig-network] Services` that need a Service of type `LoadBalancer` and do not say so in their names.
const UNNAMED: [&str; 3] = [
    "Services should complete a service status lifecycle",
    "Services should fail health check node port if there are only terminating endpoints",
    "Services should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes",
];
/// The heading in docs/compatibility.md under which the exceptions stand.
const HEADING: &str = "## Kubernetes' own suite";

/// What became of one test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It held.
    Passed,
    /// It did not.
    Failed,
    /// It says itself that it cannot run here.
    Skipped,
    /// Its process was ended, or ended without a word about it.
    Lost,
}

impl Outcome {
    /// For people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Lost => "lost",
        }
    }
}

/// One test of the suite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its full name.
    pub name: String,
    /// What became of it.
    pub result: Outcome,
    /// How long it took.
    pub seconds: f64,
    /// Why it did not pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Of which state of this project.
    pub commit: String,
    /// When, in UTC.
    pub date: String,
}

impl Row {
    /// It did what it is there for, or says that it cannot.
    pub fn is_well(&self) -> bool {
        matches!(self.result, Outcome::Passed | Outcome::Skipped)
    }
}

/// All tests, and with what they ran.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Version by program.
    pub versions: BTreeMap<String, String>,
    /// By name.
    pub rows: Vec<Row>,
}

impl Table {
    /// Puts the rows of a run in the place of older ones.
    pub fn update(&mut self, rows: impl IntoIterator<Item = Row>) {
        for row in rows {
            self.rows.retain(|old| old.name != row.name);
            self.rows.push(row);
        }
        self.rows.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// Whether a test passed the last time, in so many seconds at most.
    pub fn passed_within(&self, name: &str, limit: f64) -> bool {
        let row = self.rows.iter().find(|row| row.name == name);
        row.is_some_and(|row| row.result == Outcome::Passed && row.seconds <= limit)
    }

    /// How long a test took the last time.
    pub fn seconds(&self, name: &str) -> Option<f64> {
        self.rows.iter().find(|row| row.name == name).map(|row| row.seconds)
    }
}

/// The tests that concern load balancers, of what `e2e.test --list-tests` prints.
pub fn selected(list: &str) -> Result<Vec<String>> {
    let names = list.lines().filter_map(|line| {
        let (place, name) = line.trim().split_once(": ")?;
        (place.contains(".go:") && name.starts_with("[sig-network]")).then(|| name.trim().to_owned())
    });
    let ours = |name: &String| name.contains("LoadBalancer") || UNNAMED.iter().any(|part| name.contains(part));
    let names: BTreeSet<String> = names.filter(ours).collect();
    for part in UNNAMED {
        if !names.iter().any(|name| name.contains(part)) {
            bail!("the suite has no test {part:?} any more");
        }
    }
    Ok(names.into_iter().collect())
}

/// Tests that cannot pass by the nature of layer 2, with the reason: the table in docs/compatibility.md.
pub fn exceptions(document: &str) -> Result<BTreeMap<String, String>> {
    let (_, section) = document.split_once(HEADING).with_context(|| format!("there is no heading {HEADING:?}"))?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    Ok(rows.map(|(name, reason)| (name.to_owned(), reason.trim_end_matches([' ', '|']).to_owned())).collect())
}

/// What is not as expected: tests that did not pass and are no exceptions, exceptions that passed, and exceptions that
/// are no tests.
pub fn surprises(all: &[String], rows: &[Row], exceptions: &BTreeMap<String, String>) -> Vec<String> {
    let unknown =
        exceptions.keys().filter(|name| !all.contains(name)).map(|name| format!("the suite has no test {name}"));
    let rows = rows.iter().filter_map(|row| match (row.result, exceptions.contains_key(&row.name)) {
        (Outcome::Passed, false) | (Outcome::Failed, true) => None,
        (Outcome::Passed, true) => Some(format!("passed, and is an exception: {}", row.name)),
        (result, _) => {
            let why = row.why.as_deref().and_then(|why| why.lines().next()).unwrap_or("no reason given");
            Some(format!("{}: {} ({why})", result.word(), row.name))
        }
    });
    unknown.chain(rows).collect()
}

/// One test in the report that Ginkgo writes as JSON.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    #[serde(default)]
    state: String,
    /// In nanoseconds.
    #[serde(default)]
    run_time: f64,
    #[serde(default)]
    leaf_node_type: String,
    #[serde(default)]
    failure: Failure,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    #[serde(default)]
    spec_reports: Option<Vec<Spec>>,
}

/// What Ginkgo's JSON report of a process that ran one test says of it: outcome, seconds, why.
pub fn judged(report: &str) -> Result<(Outcome, f64, Option<String>)> {
    let suites: Vec<Suite> = serde_json::from_str(report).context("Ginkgo's report is no JSON of the form known")?;
    let specs = suites.into_iter().flat_map(|suite| suite.spec_reports.unwrap_or_default());
    // All the tests that were left out are in it, too: skipped, and without a word.
    let ran = specs
        .filter(|spec| spec.leaf_node_type == "It" && (spec.state != "skipped" || !spec.failure.message.is_empty()));
    let ran: Vec<Spec> = ran.filter(|spec| spec.state != "pending").collect();
    let [spec] = &ran[..] else { bail!("{} tests ran instead of one", ran.len()) };
    let outcome = match spec.state.as_str() {
        "passed" => Outcome::Passed,
        "skipped" => Outcome::Skipped,
        "interrupted" | "aborted" => Outcome::Lost,
        _ => Outcome::Failed,
    };
    let why = Some(spec.failure.message.clone()).filter(|text| !text.is_empty());
    Ok((outcome, (spec.run_time / 1e8).round() / 10.0, why))
}

/// The rows in the form that CI servers read.
pub fn junit(rows: &[Row]) -> String {
    let count = |outcome| rows.iter().filter(|row| row.result == outcome).count();
    let failures = count(Outcome::Failed) + count(Outcome::Lost);
    let seconds: f64 = rows.iter().map(|row| row.seconds).sum();
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"Kubernetes e2e: load balancers\" tests=\"{}\" \
        failures=\"{failures}\" skipped=\"{}\" time=\"{seconds:.1}\">\n",
        rows.len(),
        count(Outcome::Skipped)
    );
    for row in rows {
        let why = escaped(row.why.as_deref().unwrap_or_default());
        let body = match row.result {
            Outcome::Passed => String::new(),
            Outcome::Skipped => format!("<skipped message=\"{why}\"/>"),
            Outcome::Failed | Outcome::Lost => format!("<failure message=\"{}\">{why}</failure>", row.result.word()),
        };
        let name = escaped(&row.name);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "  <testcase classname=\"e2e\" name=\"{name}\" time=\"{:.1}\">{body}</testcase>",
            row.seconds
        );
    }
    text + "</testsuite>\n"
}

/// XML 1.0 has no room for other control characters, not even escaped.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')) {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            _ => safe.push(c),
        }
    }
    safe
}

/// Ginkgo takes a regular expression; this one means the text.
pub fn quoted(name: &str) -> String {
    let special = |c: char| "\\.+*?()|[]{}^$".contains(c);
    name.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, result: Outcome) -> Row {
        let why = (result != Outcome::Passed).then(|| "no answer <from> \"10.0.0.5\" & \u{1b}[1mothers".to_owned());
        Row {
            name: name.into(),
            result,
            seconds: 12.5,
            why,
            commit: "0123".into(),
            date: "2026-01-01T00:00:00Z".into(),
        }
    }

    #[test]
    fn tests_about_load_balancers_are_selected_by_name_and_a_few_others_by_hand() {
        let mut list = String::from("The following spec names can be used with 'ginkgo run --focus/skip':\n");
        for (place, name) in [
            ("a/loadbalancer.go:1", "[sig-network] LoadBalancers [Feature:LoadBalancer] should work [Slow]"),
            ("a/service.go:2", "[sig-network] Services should serve on Type LoadBalancer"),
            ("a/service.go:3", "[sig-network] Services should work for type=NodePort"),
            ("a/apps.go:4", "[sig-apps] LoadBalancer of another kind"),
        ] {
            let _ = writeln!(list, "    {place}: {name}");
        }
        assert!(selected(&list).unwrap_err().to_string().contains("any more"));
        for part in UNNAMED {
            let _ = writeln!(list, "    a/service.go:9: [sig-network] {part} [Conformance]");
        }
        let names = selected(&list).unwrap();
        assert_eq!(names.len(), 5, "{names:?}");
        assert!(names[0].starts_with("[sig-network] LoadBalancers") && names[1].contains("lifecycle"), "{names:?}");
    }

    #[test]
    fn exceptions_are_read_from_their_section_alone() {
        let text = "## Other\n\n| `x` | y |\n\n## Kubernetes' own suite\n\n| test | why |\n| --- | --- |\n| \
            `[sig-network] a (b)` | one node has it |\n\n## Next\n\n| `z` | y |\n";
        let known = exceptions(text).unwrap();
        assert_eq!(known, BTreeMap::from([("[sig-network] a (b)".to_owned(), "one node has it".to_owned())]));
        assert!(exceptions("## Other\n").is_err());
    }

    #[test]
    fn only_failures_that_are_explained_and_successes_that_are_not_are_no_surprise() {
        let all = ["a", "b", "c", "d", "e"].map(str::to_owned);
        let rows = [
            row("a", Outcome::Passed),
            row("b", Outcome::Failed),
            row("c", Outcome::Failed),
            row("d", Outcome::Passed),
            row("e", Outcome::Lost),
        ];
        let known = ["c", "d", "gone"].map(|name| (name.to_owned(), "why".to_owned()));
        let found = surprises(&all, &rows, &BTreeMap::from(known.clone()));
        let begins =
            ["the suite has no test gone", "failed: b (no answer", "passed, and is an exception: d", "lost: e"];
        assert_eq!(found.len(), begins.len(), "{found:?}");
        for (found, begin) in found.iter().zip(begins) {
            assert!(found.starts_with(begin), "{found}");
        }
        assert_eq!(surprises(&all, &rows[..1], &known.into_iter().take(1).collect()), Vec::<String>::new());
        let skipped = [row("c", Outcome::Skipped)];
        let known = BTreeMap::from([("c".to_owned(), "why".to_owned())]);
        assert_eq!(surprises(&all, &skipped, &known).len(), 1, "what does not run shows nothing");
    }

    #[test]
    fn the_one_test_that_ran_is_found_among_those_left_out() {
        let report = |state: &str, message: &str| {
            format!(
                r#"[{{"SuitePath": "x", "SpecReports": [
                {{"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed", "RunTime": 5}},
                {{"LeafNodeType": "It", "State": "skipped", "RunTime": 0}},
                {{"LeafNodeType": "It", "State": "{state}", "RunTime": 84250000000,
                  "Failure": {{"Message": "{message}"}}}}]}}]"#
            )
        };
        assert_eq!(judged(&report("passed", "")).unwrap(), (Outcome::Passed, 84.3, None));
        assert_eq!(judged(&report("timedout", "late")).unwrap(), (Outcome::Failed, 84.3, Some("late".into())));
        assert_eq!(judged(&report("panicked", "x")).unwrap().0, Outcome::Failed);
        assert_eq!(judged(&report("interrupted", "x")).unwrap().0, Outcome::Lost);
        assert_eq!(judged(&report("skipped", "needs two nodes")).unwrap().0, Outcome::Skipped);
        assert!(judged(&report("skipped", "")).is_err(), "none ran");
        assert!(judged("[]").is_err() && judged("{").is_err());
    }

    #[test]
    fn a_run_replaces_rows_of_its_own_tests_and_keeps_the_others() {
        let mut table = Table::default();
        table.update([row("b", Outcome::Failed), row("a", Outcome::Passed)]);
        table.update([row("b", Outcome::Passed)]);
        let seen: Vec<_> = table.rows.iter().map(|row| (row.name.as_str(), row.result)).collect();
        assert_eq!(seen, [("a", Outcome::Passed), ("b", Outcome::Passed)]);
        assert_eq!((table.seconds("a"), table.seconds("z")), (Some(12.5), None));
    }

    #[test]
    fn junit_is_well_formed_whatever_a_test_says() {
        let text = junit(&[row("a & b", Outcome::Passed), row("c", Outcome::Failed), row("d", Outcome::Skipped)]);
        assert!(text.contains("tests=\"3\" failures=\"1\" skipped=\"1\" time=\"37.5\""), "{text}");
        assert!(
            text.contains("name=\"a &amp; b\"") && text.contains("no answer &lt;from&gt; &quot;10.0.0.5&quot;"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}') && text.ends_with("</testsuite>\n"));
    }

    #[test]
    fn a_name_is_quoted_for_ginkgo() {
        assert_eq!(quoted("[sig-network] type=LoadBalancer (a.b)"), r"\[sig-network\] type=LoadBalancer \(a\.b\)");
    }
}
