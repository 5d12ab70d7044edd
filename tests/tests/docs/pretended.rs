//! Programs that only pretend: what the scripts in `dev` do with test programs and tools is tried without building any.

use std::path::PathBuf;
use std::process::Command;

use testbed::programs::workspace as root;

/// A directory with pretended programs, which are shell scripts: four test programs, the last of them an end-to-end
/// one, and a cargo that says that it has built them.
pub struct Pretended(pub PathBuf);

impl Pretended {
    /// Without any program yet. Tests run at the same time, each in a directory that is called by `what`.
    pub fn empty(what: &str) -> Self {
        let pretended = Self(std::env::temp_dir().join(format!("hcp-pretended-{what}-{}", std::process::id())));
        std::fs::create_dir_all(&pretended.0).unwrap();
        pretended
    }

    /// All tests of all programs pass.
    pub fn new(what: &str) -> Self {
        let pretended = Self::empty(what);
        pretended.script("one", "case $* in *--list*) ;; *) echo test result ;; esac");
        pretended.script(
            "two",
            "case $* in *--ignored*) ;; *--list*) echo x::y: test ;; *) echo 'test x::y ... ok' ;; esac",
        );
        pretended.say("three", "test a ... ok\\ntest b ... ok");
        pretended.say("four", "test a ... ok\\ntest b ... ok");
        let artifact = |name: &str, kind: &str, directory: PathBuf| {
            serde_json::json!({"reason": "compiler-artifact", "executable": pretended.0.join(name),
                "profile": {"test": true},
                "manifest_path": directory.join("Cargo.toml"), "target": {"name": name, "kind": [kind]}})
        };
        let unit = |name: &str| artifact(name, "lib", pretended.0.join("crates").join(name));
        let all = [unit("one"), unit("two"), unit("three"), artifact("four", "test", root().join("tests"))];
        let built = all.map(|message| message.to_string()).join("\n");
        let examples = pretended.examples();
        let run = format!("cat '{}'", examples.display());
        pretended.script("cargo", &format!("case $* in *--doc*) {run} ;; *) cat <<'END'\n{built}\nEND\n;; esac"));
        pretended.say_of_examples("running 1 test\ntest crates/one/src/lib.rs - (line 9) ... ok\n");
        for name in ["one", "two", "three"] {
            // Where cargo would run them.
            std::fs::create_dir_all(pretended.0.join("crates").join(name)).unwrap();
        }
        pretended
    }

    pub fn script(&self, name: &str, body: &str) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.0.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// This program lists tests a and b, and says that of them.
    pub fn say(&self, name: &str, said: &str) {
        let listed = "*--ignored*) ;; *--list*) printf 'a: test\\nb: test\\n' ;;";
        self.script(name, &format!("case $* in {listed} *) printf '{said}\\n' ;; esac"));
    }

    fn examples(&self) -> PathBuf {
        self.0.join("examples")
    }

    /// Cargo says that of the examples in the documentation of the code.
    fn say_of_examples(&self, said: &str) {
        std::fs::write(self.examples(), said).unwrap();
    }

    /// It says all, after a retry while the machine kept processes waiting for so long.
    pub fn retry(&self, name: &str, stalled: u64) {
        self.note(name, &[failed_attempt(name, 1, stalled)]);
    }

    /// It says all, and writes these lines to the journal.
    fn note(&self, name: &str, lines: &[serde_json::Value]) {
        let notes = lines.iter().map(|line| format!("echo '{line}' >>$HCP_JOURNAL;")).collect::<Vec<_>>().concat();
        let said = format!("{notes} printf 'test a ... ok\\ntest b ... ok\\n'");
        let listed = "*--ignored*) ;; *--list*) printf 'a: test\\nb: test\\n' ;;";
        self.script(name, &format!("case $* in {listed} *) {said} ;; esac"));
    }

    /// Test a of the end-to-end program fails, and passes when it runs by itself. This is written down: of which
    /// program and test, and for how long processes waited.
    pub fn fail(&self, noted: Option<(&str, &str, u64)>) {
        let note = noted.map_or_else(String::new, |(program, test, stalled)| {
            let line = serde_json::json!({"kind": "failed", "program": program, "test": test, "stalled_ms": stalled,
                "explains_ms": 150});
            format!("echo '{line}' >>$HCP_JOURNAL;")
        });
        let listed = "*--ignored*) ;; *--list*) printf 'a: test\\nb: test\\n' ;;";
        let alone = "*--exact*) echo 'test result: ok. 1 passed' ;;";
        let all = format!("{note} printf 'test a ... FAILED\\ntest b ... ok\\n'; exit 101");
        self.script("four", &format!("case $* in {listed} {alone} *) {all} ;; esac"));
    }

    /// What an earlier run has left about how long programs take.
    fn knows_durations(&self, known: &str) {
        std::fs::create_dir_all(self.0.join("test")).unwrap();
        std::fs::write(self.0.join("test/durations.json"), known).unwrap();
    }

    /// What is known of it now.
    fn durations(&self) -> serde_json::Value {
        let text = std::fs::read_to_string(self.0.join("test/durations.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    pub fn run(&self) -> String {
        self.run_of(&["one-lib", "two-lib", "three-lib"])
    }

    pub fn run_of(&self, programs: &[&str]) -> String {
        let output = self.runner(programs).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.success(), told.ends_with(" 0 failed\n"), "{told}");
        told
    }

    /// Why nothing runs with these words.
    fn refusal(&self, words: &[&str]) -> String {
        let output = self.runner(words).output().unwrap();
        assert!(!output.status.success(), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn runner(&self, words: &[&str]) -> Command {
        let mut runner = Command::new(root().join("dev/test.py"));
        runner.args(words).env("CARGO", self.0.join("cargo")).env("CARGO_TARGET_DIR", &self.0);
        // Tools and shipped binary are pretended as well, or not there.
        let path = format!("{}:{}", self.0.display(), std::env::var("PATH").unwrap());
        runner.env("PATH", path).env("HCP_TOOLS", &self.0).env("HCP_BINARY", self.0.join("one"));
        runner.env_remove("HCP_JOURNAL").env_remove("HCP_CONFORMANCE");
        runner
    }
}

/// What test a writes down of an attempt that failed, while the machine kept processes waiting for so long.
fn failed_attempt(program: &str, number: u64, stalled: u64) -> serde_json::Value {
    serde_json::json!({"kind": "attempt", "what": "luck", "number": number, "error": "none", "stalled_ms": stalled,
        "explains_ms": 150, "program": program, "test": "a"})
}

impl Drop for Pretended {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn how_long_programs_take_is_known_of_those_that_did_not_run_and_of_none_that_is_gone() {
    if e2e::skip() {
        return;
    }
    let pretended = Pretended::new("durations");
    pretended.knows_durations(r#"{"one-lib": 61.5, "three-lib": 62.5, "two-lib": 900, "gone-lib": 9}"#);
    // One of its tests has no result: so much less time did it take.
    pretended.say("three", "test a ... ok");
    let said = pretended.run_of(&["two-lib", "three-lib"]);
    assert!(said.ends_with("\n2 passed, 1 failed\n"), "{said}");
    let durations = pretended.durations();
    assert!(durations["one-lib"] == 61.5 && durations["three-lib"] == 62.5, "{durations}");
    let two = durations["two-lib"].as_f64();
    assert!(two.is_some_and(|seconds| seconds < 900.0) && durations.get("gone-lib").is_none(), "{durations}");
}

/// Tests say more than whether they pass: what they tried again, what clients saw, and what this machine cannot do.
#[test]
fn what_tests_write_down_is_told_and_fails_the_run_where_nothing_explains_it() {
    if e2e::skip() {
        return;
    }
    let pretended = Pretended::new("journal");
    let attempt = |number| failed_attempt("three", number, 600);
    let skipped = serde_json::json!({"kind": "skipped", "program": "three", "test": "a", "why": "no such module"});
    // What a test subtracts for stalls counts no more than the runner's own clock says: nobody is late by a minute.
    let watched = |gap: u64| {
        serde_json::json!({"kind": "watch", "what": "a client", "program": "three", "test": "a", "sent": 100, "lost": 1,
            "late": 0, "first_lost_ms": 5, "last_lost_ms": 5, "latest_ms": 0, "gap_ms": gap, "outage_ms": 10,
            "prober_stall_ms": 0, "bound_ms": 1000})
    };
    let answered = |double: u64| {
        serde_json::json!({"kind": "answers", "what": "who has it", "program": "three", "test": "a", "asked": 100,
            "unanswered": 0, "double_ms": double, "span_ms": double, "overlap_ms": 0, "bound_ms": 200})
    };
    for (lines, failed, told) in [
        (vec![skipped], 0, "\nskipped: 1\n  a: no such module\n"),
        (vec![attempt(1), attempt(2)], 0, "retries: 2 of 2 attempts failed"),
        (vec![attempt(1), attempt(2), attempt(3)], 3, "a: tried again, and the machine does not explain it: luck\n"),
        (vec![watched(999), answered(199)], 0, "\nskipped: 0\n"),
        (vec![watched(60_000)], 1, "a: a client: a client had no answer for 60000 ms, the bound is 1000 ms"),
        (vec![answered(60_000)], 1, "a: who has it: two nodes answered for 60000 ms, the bound is 200 ms"),
    ] {
        pretended.note("three", &lines);
        let said = pretended.run();
        assert!(said.ends_with(&format!("\n3 passed, {failed} failed\n")) && said.contains(told), "{told}: {said}");
    }
}

#[test]
fn a_choice_of_programs_of_which_none_is_of_the_kind_is_refused() {
    if e2e::skip() {
        return;
    }
    let why = Pretended::new("kinds").refusal(&["--unit", "four"]);
    assert!(why.contains("of four none is of the kind --unit"), "{why}");
}

/// Nobody lists them, so their own words about how many there are have to fit.
#[test]
fn each_example_of_the_documentation_counts_and_none_at_all_is_a_failure() {
    if e2e::skip() {
        return;
    }
    let pretended = Pretended::new("examples");
    // Two of one file, as cargo says them of two crates.
    let first = "test crates/one/src/lib.rs - (line 9) ... ok\n";
    let second = "test crates/one/src/lib.rs - Map<K, V>::get (line 20) - compile ... ok\n";
    let third = "running 1 test\ntest crates/two/src/lib.rs - (line 9) ... ok\n";
    let lost = "2 examples were begun, and 1 have a result";
    for (said, sum, told) in [
        (format!("running 2 tests\n{first}{second}\n{third}"), "\n3 passed, 0 failed\n", "examples: ok, 3 passed"),
        (format!("running 2 tests\n{first}"), "\n1 passed, 1 failed\n", lost),
        (format!("running 2 tests\n{first}{first}"), "\n1 passed, 1 failed\n", lost),
        ("running 0 tests\n".to_owned(), "\n0 passed, 1 failed\n", "no example has run"),
        (String::new(), "\n0 passed, 1 failed\n", "no example has run"),
    ] {
        pretended.say_of_examples(&said);
        let whole = pretended.run_of(&["examples"]);
        assert!(whole.ends_with(sum) && whole.contains(told), "{said:?}: {whole}");
    }
}

/// Two programs of two tests each are as many tests as two processors are given.
#[test]
fn a_program_with_one_test_left_makes_room_for_another_one() {
    const SCRIPT: &str = r#"
import sys, types
sys.dont_write_bytecode = True
sys.path.insert(0, "dev")
import test as runner

runner.PROCESSORS, runner.has_memory, idle = 2, lambda: True, False
runner.is_idle = lambda: idle
def program(name, tests):
    return types.SimpleNamespace(name=name, began=0, at_a_time=lambda: min(2, tests))
def next_of(queue, running, jobs=2):
    found = runner.following([program(*one) for one in queue], [program(*one) for one in running], jobs)
    return found and found.name

queue = [("long", 9), ("short", 1), ("node_loss", 1)]
assert next_of(queue, []) == "long"
assert next_of(queue, [("a", 9)]) == "long"
assert next_of(queue, [("a", 9), ("b", 9)]) is None
assert next_of(queue, [("a", 9), ("b", 1)]) == "short"
assert next_of(queue, [("a", 1), ("b", 1)]) == "long"
assert next_of(queue, [("a", 1), ("b", 1), ("c", 1), ("d", 1)]) is None
assert next_of(queue, [("a", 1)], jobs=1) is None
# Whole nodes have the machine for themselves, and of those that wait there is one.
assert next_of(queue[2:], [("a", 1)]) is None and next_of(queue[2:], []) == "node_loss"
assert next_of(queue, [("node_loss", 1)]) is None
# Two of these have it together, and only these.
nodes = [("installed", 1), ("newcomer", 1), ("node_loss", 1)]
assert next_of(nodes, [("a", 1)]) is None and next_of(nodes, []) == "installed"
assert next_of(queue + nodes[1:], nodes[:1]) == "newcomer"
assert next_of(queue + nodes[1:], nodes[:1], jobs=1) is None
assert next_of(queue, nodes[:1]) is None and next_of(nodes[2:], nodes[:2]) is None
chosen = [types.SimpleNamespace(name=name, end_to_end=True) for name, _ in nodes + queue[:2]]
names = [one.name for one in runner.in_order(chosen)]
assert {*names[2:4]} == {"installed", "newcomer"} and names[4] == "node_loss", names
assert next_of([("faults", 6), ("short", 1)], [("impaired", 12)]) == "short"
idle = True
assert next_of(queue, [("a", 9), ("b", 9)]) == "long"
assert next_of(queue, [("a", 9), ("b", 9), ("c", 9), ("d", 9)]) is None
runner.has_memory = lambda: False
assert next_of(queue, [("a", 1), ("b", 1)]) is None
"#;
    let output = Command::new("python3").args(["-c", SCRIPT]).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn kubernetes_own_quick_tests_run_where_their_programs_are_there() {
    if e2e::skip() {
        return;
    }
    let pretended = Pretended::new("suite");
    for program in ["e2e.test", "agnhost", "coredns", "nc", "wget"] {
        pretended.script(program, "");
    }
    std::fs::create_dir_all(pretended.0.join("debug")).unwrap();
    let kept = std::fs::read(root().join("docs/data/conformance.json")).unwrap();
    for (of_one, status, told) in [("passed", 0, " passed, 0 failed\n"), ("failed", 1, " passed, 1 failed\n")] {
        let word = format!("(if .name | contains(\"status lifecycle\") then \"{of_one}\" else \"passed\" end)");
        let row = format!("\"  1.0 s   1/9 \\({word})     1 s  \\(.name)  (0 running, about 0 min left)\"");
        let quick = format!(".rows[] | select(.result == \"passed\" and .seconds <= 10) | {row}");
        let table = "for word; do case $word in --table=*) table=${word#--table=} ;; esac; done";
        // The demo writes its table anew; one in the tree would be lost.
        let writes = "echo '{}' >\"$table\"";
        pretended.script("debug/demo", &format!("{table}\njq -r '{quick}' \"$table\"\n{writes}\nexit {status}"));
        let said = pretended.run_of(&["conformance"]);
        assert!(said.ends_with(told) && !said.contains("listed, and no result"), "{said}");
        assert_eq!(said.contains("== conformance: ok, "), status == 0, "{said}");
    }
    // Only who asks for them writes down what has become of them.
    assert_eq!(std::fs::read(root().join("docs/data/conformance.json")).unwrap(), kept);
}
