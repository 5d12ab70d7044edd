//! What the documents say exists: files behind links, make targets, flags and words of our commands, manifests that
//! parse. `make docs-test` runs this alone. Each test counts what it has checked: one that finds nothing any more
//! proves nothing.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

#[path = "docs/commands.rs"]
mod commands;
#[path = "docs/figures.rs"]
mod figures;
#[path = "docs/pretended.rs"]
mod pretended;
mod sources;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use e2e::documents::{Document, all as documents};
use testbed::programs::workspace as root;

use crate::pretended::Pretended;

/// Targets of `[text](target)`, outside blocks.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for part in text.split("](").skip(1) {
        if let Some((target, _)) = part.split_once(')') {
            found.push(target.to_owned());
        }
    }
    found
}

/// As the field's renderers make anchors of headings.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_')).collect::<String>().replace(' ', "-")
}

#[test]
fn every_link_leads_somewhere() {
    let (mut files, mut headings_named) = (0, 0);
    for document in documents() {
        for target in links(&document.text).into_iter().filter(|target| !target.contains("://")) {
            let (file, fragment) = target.split_once('#').unwrap_or((&target, ""));
            let path = if file.is_empty() { document.path.clone() } else { document.path.parent().unwrap().join(file) };
            assert!(path.exists(), "{} links to {target}, which is not there", document.name());
            files += 1;
            if !fragment.is_empty() {
                headings_named += 1;
                let text = std::fs::read_to_string(&path).unwrap();
                let headings =
                    text.lines().filter(|line| line.starts_with('#')).map(|line| anchor(line.trim_start_matches('#')));
                let known: BTreeSet<String> = headings.collect();
                assert!(known.contains(fragment), "{} links to {target}; headings: {known:?}", document.name());
            }
        }
    }
    assert!(files > 30 && headings_named > 5, "{files} links, {headings_named} of them to a heading");
}

/// Who changes a figure by hand, or measures and forgets the page, is told.
#[test]
fn the_tables_of_figures_follow_from_the_data() {
    let output = Command::new(root().join("dev/figures.py")).arg("check").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("tables follow from the data"), "{said}");
}

#[test]
fn pictures_are_light_and_none_is_left_over() {
    let text: String = documents().into_iter().map(|document| document.text).collect();
    let pictures: Vec<_> = std::fs::read_dir(root().join("docs/pictures")).unwrap().collect();
    assert!(!pictures.is_empty(), "there are none");
    for entry in pictures {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(text.contains(&format!("](pictures/{name})")), "no document shows {name}");
        let size = entry.metadata().unwrap().len();
        assert!(size < 200_000, "{name} has {size} bytes");
    }
}

#[test]
fn every_document_is_reached_from_the_readme() {
    let documents = documents();
    let mut reached: BTreeSet<PathBuf> = BTreeSet::from([root().join("README.md")]);
    loop {
        let before = reached.len();
        for document in documents.iter().filter(|document| reached.contains(&document.path)).collect::<Vec<_>>() {
            for target in links(&document.text) {
                let file = target.split_once('#').map_or(target.as_str(), |(file, _)| file);
                let path = document.path.parent().unwrap().join(file);
                reached.extend(path.canonicalize().ok());
            }
        }
        if reached.len() == before {
            break;
        }
    }
    assert!(reached.len() > 10, "{reached:?}");
    let lost: Vec<String> =
        documents.iter().filter(|document| !reached.contains(&document.path)).map(Document::name).collect();
    assert!(lost.is_empty(), "no link leads to {lost:?}");
}

#[test]
fn the_contents_of_the_site_name_every_page_once() {
    let contents = std::fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let mut named = links(&contents);
    named.sort();
    let name = |document: &Document| document.name().strip_prefix("docs/").map(str::to_owned);
    let pages = documents().iter().filter_map(name).filter(|name| name != "SUMMARY.md").collect::<Vec<_>>();
    assert_eq!(named, pages);
    let long = std::fs::read_to_string(root().join("README.md")).unwrap().lines().count();
    assert!(long < 120, "README.md has {long} lines");
}

/// Pages are in plain English: programs are no persons, and things are corrected.
#[test]
fn pages_have_none_of_the_words_that_are_hard_to_read() {
    const WORDS: [&str; 7] = ["who", "whoever", "whom", "mend", "mends", "mended", "living service"];
    const PERSONS: [&str; 2] = ["administrator", "reader"];
    let mut words_read = 0;
    for page in documents() {
        // The table of promises has the words of the simulation that judges by it. A line may end within two words.
        let promise = |line: &str| line.strip_prefix("| P").is_some_and(|rest| rest.starts_with(char::is_numeric));
        let lines = page.text.lines().filter(|line| !promise(line));
        let text = lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ").to_lowercase();
        for word in WORDS {
            let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
            let alone = |at: usize| {
                !is_part(text[..at].chars().next_back()) && !is_part(text[at + word.len()..].chars().next())
            };
            let person = |at: usize| PERSONS.iter().any(|person| text[..at].trim_end().ends_with(person));
            let found = text.match_indices(word).find(|(at, _)| alone(*at) && !person(*at));
            assert!(found.is_none(), "{} says {word:?}: {:?}", page.name(), found.map(|(at, _)| around(&text, at)));
        }
        words_read += text.split(' ').count();
    }
    assert!(words_read > 30_000, "{words_read} words");
}

#[test]
fn every_page_begins_with_what_it_is_for() {
    let mut checked = 0;
    for page in documents().iter().filter(|page| page.name().starts_with("docs/") && !page.name().contains("SUMMARY")) {
        let first = page.text.lines().skip(1).find(|line| !line.is_empty()).unwrap_or_default();
        assert!(first.starts_with("This page "), "{} begins with {first:?}", page.name());
        checked += 1;
    }
    assert!(checked > 20, "{checked} pages");
}

fn around(text: &str, at: usize) -> String {
    text[at..].chars().take(60).collect()
}

#[test]
fn every_make_target_named_exists() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let targets: BTreeSet<&str> = makefile
        .lines()
        .filter(|line| !line.starts_with(['\t', '#', ' ', '.']))
        .filter_map(|line| line.split_once(':').filter(|(_, rest)| !rest.starts_with('=')))
        .flat_map(|(names, _)| names.split_whitespace())
        .collect();
    let mut checked = 0;
    for document in documents() {
        // In running text they stand in back quotes, in blocks at the start of a line.
        for part in document.text.split(['`', '\n', '(']).filter_map(|part| part.strip_prefix("make ")) {
            let word =
                part.split(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')).next().unwrap();
            if word.is_empty() {
                continue;
            }
            assert!(targets.contains(word), "{} names `make {word}`; targets: {targets:?}", document.name());
            checked += 1;
        }
    }
    assert!(checked > 10, "{checked} targets are named");
}

/// Words that end in `.rs`, with the directories that stand before them.
fn source_files(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '/' | '.')));
    let words = words.map(|word| word.trim_end_matches('.'));
    words.filter(|word| word.strip_suffix(".rs").is_some_and(|name| !name.is_empty()))
}

#[test]
fn every_source_file_that_a_comment_or_a_document_names_exists() {
    let files = ["crates", "tests"].map(|directory| sources::files(&root().join(directory))).concat();
    let comments = |text: &str| -> String {
        let lines = text.lines().filter_map(|line| line.split_once("//"));
        lines.map(|(_, comment)| comment).collect::<Vec<_>>().join("\n")
    };
    let code = files.iter().map(|path| (path.display().to_string(), comments(&sources::text(path))));
    let pages = documents().into_iter().map(|document| (document.name(), document.text));
    let mut checked = 0;
    for (place, text) in code.chain(pages) {
        for name in source_files(&text) {
            assert!(files.iter().any(|path| path.ends_with(name)), "{place} names {name}, which is not there");
            checked += 1;
        }
    }
    assert!(checked > 30, "{checked} files are named");
}

#[test]
fn every_test_program_named_exists() {
    let mut checked = 0;
    for document in documents() {
        let words: Vec<&str> = document.text.split(|c: char| c.is_whitespace() || c == '`').collect();
        for pair in words.windows(2).filter(|pair| pair[0] == "--test") {
            let path = root().join("tests/tests").join(pair[1]);
            assert!(
                path.with_extension("rs").exists() || path.join("main.rs").exists(),
                "{} names {pair:?}",
                document.name()
            );
            checked += 1;
        }
    }
    assert!(checked > 1, "{checked} programs are named");
}

/// W-48. `dev/test.py` runs what cargo says there is, and fails for a test that is listed and has no result.
#[test]
fn one_command_runs_every_test() {
    let output = Command::new("make").args(["-n", "test"]).current_dir(root()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    let runner = said.lines().find(|line| line.contains("dev/test.py")).expect(&said);
    assert!(runner.ends_with("dev/test.py"), "it leaves something out: {runner}");
    assert!(
        runner.contains("HCP_BINARY=") && said.contains("cargo build --locked --release"),
        "what is shipped is tested: {said}"
    );
    if e2e::skip() {
        return;
    }
    let pretended = Pretended::new("tests");
    let told = pretended.run();
    assert!(told.ends_with("\n3 passed, 0 failed\n"), "{told}");
    // Of a whole run, rows of the documents want their tests to have passed.
    let whole = pretended.run_of(&[]);
    let missed = "FAILED row W-48: its test one_command_runs_every_test has not passed";
    assert!(whole.contains(missed) && whole.contains("rows: "), "{whole}");
    assert!(whole.contains("\nKubernetes' own tests were left out: no e2e.test, "), "{whole}");
    // A program that ends well without a word about one of its tests, and a retry that nothing explains.
    pretended.say("three", "test a ... ok");
    let told = pretended.run();
    assert!(told.contains("three-lib: listed, and no result: b") && told.ends_with("\n2 passed, 1 failed\n"), "{told}");
    pretended.say("three", "test a ... ok\\ntest b ... ok");
    for (stalled, failed) in [(600, 0), (400, 1)] {
        pretended.retry("three", stalled);
        let told = pretended.run();
        assert!(
            told.contains("retries: 1 of 1") && told.ends_with(&format!("\n3 passed, {failed} failed\n")),
            "{told}"
        );
    }
}

/// A failure beside others is excused by what the test itself says of its time, and by nothing else that ran then.
#[test]
fn a_test_runs_again_only_if_processes_had_to_wait_while_it_ran() {
    if e2e::skip() {
        return;
    }
    let pretended = Pretended::new("again");
    for (what, program, test, stalled, told) in [
        ("its own", "four", "a", 400, "\n2 passed (1 of them when they ran again), 0 failed\n"),
        ("too short", "four", "a", 149, "\n1 passed, 1 failed\n"),
        ("another test's", "four", "b", 400, "\n1 passed, 1 failed\n"),
        ("another program's", "three", "a", 400, "\n1 passed, 1 failed\n"),
    ] {
        pretended.fail(Some((program, test, stalled)));
        let said = pretended.run_of(&["four"]);
        assert!(said.ends_with(told), "{what}: {said}");
        assert_eq!(said.contains("again, 2 times each"), what == "its own", "{what}: {said}");
    }
    // It crashed before it could say anything.
    pretended.fail(None);
    let said = pretended.run_of(&["four"]);
    assert!(said.ends_with("\n1 passed, 1 failed\n"), "{said}");
}

/// Nothing is asked of the network: cargo-deny and git are shell scripts.
#[test]
fn the_check_of_dependencies_looks_for_known_vulnerabilities_or_says_that_it_did_not() {
    let output = Command::new("make").args(["-n", "deny"]).current_dir(root()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    for check in ["dev/deny.sh", "dev/yanked.py"] {
        assert!(said.lines().any(|line| line == check), "{check} is no part of it, or with less: {said}");
    }
    let steps = std::fs::read_to_string(root().join(".ci/run")).unwrap();
    assert!(steps.contains("make --no-print-directory deny"), "nothing runs it");

    let script = std::fs::read_to_string(root().join("dev/deny.sh")).unwrap();
    let version = script.lines().find_map(|line| line.strip_prefix("VERSION=")).expect("it names a version");
    let pretended = Pretended::empty("deny");
    pretended
        .script("cargo-deny", &format!("case $* in --version) echo cargo-deny {version} ;; *) echo \"$*\" ;; esac"));
    let silent = "; NOT for known vulnerabilities, whose database does not answer";
    let not_asked = "; NOT for known vulnerabilities, as was asked for";
    for (asked, answers, looked, told, why) in [
        ("", true, true, false, " advisories"),
        ("", false, false, true, silent),
        ("1", false, true, false, " advisories"),
        ("0", true, false, false, not_asked),
    ] {
        pretended.script("git", if answers { "exit 0" } else { "exit 2" });
        let path = format!("{}:{}", pretended.0.display(), std::env::var("PATH").unwrap());
        let mut check = Command::new(root().join("dev/deny.sh"));
        check.env("PATH", path).env("DENY_ADVISORIES", asked).env("CARGO_TARGET_DIR", &pretended.0);
        let output = check.output().unwrap();
        let (checks, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        let what = format!("{asked:?} {answers}: {checks}{said}");
        assert!(
            output.status.success() && checks.contains("check") && checks.contains("licenses bans sources"),
            "{what}"
        );
        assert_eq!(checks.contains("advisories"), looked, "{what}");
        assert_eq!(said.contains("known vulnerabilities were NOT looked for"), told, "{what}");
        assert_eq!(said.contains("git config --global url."), told, "{what}");
        let kept = std::fs::read_to_string(pretended.0.join("deny")).unwrap();
        assert_eq!(kept, format!("dependencies were checked for: licenses bans sources{why}\n"), "{what}");
    }
}

/// What a person types wrongly is answered in one line, and nothing is begun.
#[test]
fn scripts_refuse_words_and_numbers_that_they_do_not_know() {
    let jobs = [("E2E_JOBS", "two"), ("TEST_LIMIT", "x"), ("TEST_DEADLINE", "nan")];
    let empty = Pretended::empty("words");
    for (script, words, variable, told) in [
        ("house.py", "--jsno", None, "house: there is no --jsno"),
        ("figures.py", "tests", None, "figures: there is no "),
        ("book-links.py", "", None, "book-links.py SITE"),
        ("dashboard.py", "", None, "dashboard.py DATA OUT.svg"),
        ("together.py", "--then", None, "together: --then: SECONDS and WEIGHT are numbers"),
        ("together.py", "a=b=c", None, "together: a=b=c: SECONDS and WEIGHT are numbers"),
        ("machine.py", "built", None, "machine.py build"),
        ("test.py", "--all", None, "test: there is no --all"),
        ("test.py", "none", Some(jobs[0]), "test: E2E_JOBS=two is no whole number above 0"),
        ("test.py", "none", Some(jobs[1]), "test: TEST_LIMIT=x is no whole number above 0"),
        ("test.py", "none", Some(jobs[2]), "test: TEST_DEADLINE=nan is no number above 0"),
    ] {
        if script == "test.py" && variable.is_some() && e2e::skip() {
            continue;
        }
        let mut command = Command::new(root().join("dev").join(script));
        command.args(words.split_whitespace()).envs(variable).env("CARGO_TARGET_DIR", &empty.0);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(told), "{script} {words} {variable:?}: {said}");
        assert!(!said.contains("Traceback"), "{said}");
    }
    let help = Command::new(root().join("dev/test.py")).arg("--help").output().unwrap();
    assert!(help.status.success() && help.stdout.starts_with(b"test.py [--unit]"), "{help:?}");
}

/// Nothing is got: the words are judged first, and `--print` only looks.
#[test]
fn the_script_that_gets_programs_takes_no_unknown_option_and_no_version_from_outside() {
    let script = |words: &[&str]| {
        let mut script = Command::new(root().join("dev/tools.sh"));
        let output = script.args(words).env("K8S", "0.0.1").env("ETCD", "0.0.1").output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        (output.status.success(), said, String::from_utf8(output.stderr).unwrap())
    };
    for (words, told) in [("--conformence", "no option --conformence"), ("--demo --print", "one option")] {
        let (passed, said, why) = script(&words.split(' ').collect::<Vec<_>>());
        assert!(!passed && said.is_empty() && why.contains(told), "{words:?}: {said}{why}");
    }
    let (_, directory, _) = script(&["--print"]);
    assert!(directory.contains("/tools-k8s") && !directory.contains("0.0.1"), "{directory}");
}

/// Make gives a variable that is set outside, and that it sets as well, its own value.
#[test]
fn variables_of_scripts_reach_them_through_make() {
    for variable in ["OUT", "LINE", "HELM", "IMAGE", "IMAGE_LIMIT", "MDBOOK", "BUILDER_ID", "SOURCE_DATE_EPOCH"] {
        let show = format!("--eval=show: ; @echo $${variable}");
        let mut make = Command::new("make");
        make.args(["--no-print-directory", show.as_str(), "show"]).current_dir(root());
        let output = make.env_remove("MAKEFLAGS").env(variable, "7").output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said, "7\n", "{variable}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A version that its authors took back is named, and so is one of which the index says nothing.
#[test]
fn a_dependency_that_was_taken_back_is_refused() {
    let pretended = Pretended::empty("yanked");
    let (lock, index) = (pretended.0.join("Cargo.lock"), &pretended.0);
    std::fs::create_dir_all(index.join("go/od")).unwrap();
    let versions = [("1.0.0", false), ("1.1.0", true)].map(|(version, yanked)| {
        let line = serde_json::json!({"name": "good", "vers": version, "yanked": yanked});
        format!("{version}\0{line}\0")
    });
    std::fs::write(index.join("go/od/good"), versions.concat()).unwrap();
    let judge = |name: &str, version: &str| {
        let source = "registry+https://github.com/rust-lang/crates.io-index";
        let text = format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\nsource = \"{source}\"\n");
        std::fs::write(&lock, text).unwrap();
        let output = Command::new(root().join("dev/yanked.py")).arg(&lock).arg(index).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(judge("good", "1.0.0"), (true, String::new()));
    let (fine, said) = judge("good", "1.1.0");
    assert!(!fine && said.contains("taken back by their authors: good 1.1.0"), "{said}");
    let (fine, said) = judge("good", "2.0.0");
    assert!(!fine && said.contains("nothing is known of good 2.0.0"), "{said}");
}

#[test]
fn every_manifest_parses() {
    let mut checked = 0;
    for block in documents().iter().flat_map(Document::blocks) {
        let problem = match block.language.as_str() {
            "yaml" => {
                serde_saphyr::from_multiple::<serde_json::Value>(&block.text).err().map(|error| error.to_string())
            }
            "json" => serde_json::from_str::<serde_json::Value>(&block.text).err().map(|error| error.to_string()),
            _ => continue,
        };
        assert_eq!(problem, None, "{}", block.place);
        checked += 1;
    }
    assert!(checked > 3, "{checked} manifests");
}
