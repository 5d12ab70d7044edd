//! What is told has its place in the documents and in the packages: reasons of Events, versions, the questions of
//! Rancher's form.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

mod sources;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testbed::Helm;
use testbed::helm::{RELEASE, chart, package};
use testbed::programs::workspace as root;

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The text of all sources below, without their tests.
fn text_below(directory: &Path) -> String {
    let is_product = |path: &&PathBuf| !path.strip_prefix(directory).unwrap().to_string_lossy().contains("test");
    let files = sources::files(directory);
    let texts = files.iter().filter(is_product).map(|path| sources::text(path));
    texts.map(|text| sources::before_tests(&text).to_owned()).collect()
}

fn is_reason(word: &str) -> bool {
    word.len() > 3
        && word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.chars().all(|c| c.is_ascii_alphanumeric())
}

/// The first word in quotes behind each marker, in the same statement, if it has the form of a reason.
fn reasons(text: &str, markers: &[&str]) -> BTreeSet<String> {
    let behind = markers.iter().flat_map(|marker| text.split(marker).skip(1));
    // A statement ends with its semicolon, or with the item that it stands in.
    let item = |rest: &'_ str| rest.find("\n}").unwrap_or(rest.len());
    let statements = behind.map(|rest| rest[..item(rest)].split(';').next().unwrap_or_default());
    let words = statements.filter_map(|statement| statement.split('"').nth(1));
    words.filter(|word| is_reason(word)).map(str::to_owned).collect()
}

#[test]
fn the_manual_of_troubles_names_the_reason_of_every_event() {
    let manual = read("docs/troubleshooting.md");
    let mut all = reasons(&read("crates/announcer-core/src/reason.rs"), &["=> "]);
    assert!(all.contains("CannotAnnounce"), "{all:?}");
    for file in ["wait_reason.rs", "plan/refusal.rs"] {
        let text = read(&format!("crates/harvester-provider/src/load_balancers/{file}"));
        all.extend(reasons(sources::before_tests(&text), &["=> "]));
    }
    for directory in ["crates/cloud-provider/src", "crates/harvester-provider/src"] {
        let markers = [".normal(", "::normal(", ".warning(", "::warning(", "reason: ", ".because("];
        all.extend(reasons(&text_below(&root().join(directory)), &markers));
    }
    for known in ["EnsuredLoadBalancer", "PoolExhausted", "DeletingNode", "GarbageLoadBalancers", "WrongAnnotation"] {
        assert!(all.contains(known), "{known} is not found any more: {all:?}");
    }
    let missing: Vec<&String> = all.iter().filter(|reason| !manual.contains(&format!("`{reason}`"))).collect();
    assert!(missing.is_empty(), "docs/troubleshooting.md does not say what these mean: {missing:?}");
    let unlisted: Vec<&String> = all.iter().filter(|reason| diagnose::reasons::find(reason).is_none()).collect();
    assert!(unlisted.is_empty(), "crates/diagnose/src/reasons.rs does not list these: {unlisted:?}");
    let code: String = ["cloud-provider", "harvester-provider", "announcer-core", "runtime", "contract"]
        .map(|name| text_below(&root().join("crates").join(name).join("src")))
        .concat();
    let gone = diagnose::reasons::REASONS.iter().filter(|reason| !code.contains(&format!("\"{}\"", reason.word)));
    let gone: Vec<&str> = gone.map(|reason| reason.word).collect();
    assert!(gone.is_empty(), "no program says these any more: {gone:?}");
}

#[test]
fn the_first_version_of_the_changelog_is_the_one_that_is_built() {
    let changelog = read("CHANGELOG.md");
    let first = changelog.lines().find_map(|line| line.strip_prefix("## ")).unwrap();
    assert_eq!(first.split([',', ' ']).next(), Some(env!("CARGO_PKG_VERSION")), "{first}");
}

/// The default of a value by its path; quotes protect a dot.
fn value<'a>(values: &'a Value, variable: &str) -> Option<&'a Value> {
    variable.split('.').try_fold(values, |values, key| values.get(key))
}

#[test]
fn rancher_finds_its_form_and_its_page_in_the_archive_and_every_question_is_about_a_value() {
    let helm = Helm::new("helm3").unwrap();
    let archive = package(&helm.dir().join("told"), "109.1.0").unwrap().rancher;
    let opened = helm.dir().join("opened");
    std::fs::create_dir_all(&opened).unwrap();
    let status = Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(&opened).status().unwrap();
    assert!(status.success());
    let packed = |name: &str| std::fs::read_to_string(opened.join(RELEASE).join(name)).unwrap();
    for name in ["questions.yml", "app-readme.md"] {
        assert_eq!(packed(name), std::fs::read_to_string(chart().join(name)).unwrap(), "{name}");
    }
    assert!(packed("app-readme.md").starts_with("# "), "the page has a heading");
    let form: Value = serde_saphyr::from_str(&packed("questions.yml")).unwrap();
    let values: Value = serde_saphyr::from_str(&packed("values.yaml")).unwrap();
    let mut asked = 0;
    let mut left: Vec<&Value> = form["questions"].as_array().unwrap().iter().collect();
    while let Some(question) = left.pop() {
        let variable = question["variable"].as_str().unwrap();
        let known = value(&values, variable);
        assert!(known.is_some(), "the form asks for {variable}, which values.yaml has not");
        if let (Some(default), Some(known)) = (question.get("default"), known) {
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            assert_eq!(text(default), text(known), "default of {variable}");
        }
        asked += 1;
        left.extend(question["subquestions"].as_array().into_iter().flatten());
    }
    assert!(asked > 3, "{asked} questions");
}
