//! What `dev/figures.py` keeps and refuses is tried on copies of the data.

use std::process::Command;

use testbed::programs::workspace as root;

/// `check` and `suite` on a copy of docs/data, which the script changes as it likes.
fn on_a_copy_of_the_data(script: &str) {
    const BEGIN: &str = r#"
import json, pathlib, shutil, sys, tempfile
sys.dont_write_bytecode = True
sys.path.insert(0, "dev")
import figures

figures.write = lambda: None
def refused(verb, part):
    try:
        verb()
    except SystemExit as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"nothing was said of: {part}")

with tempfile.TemporaryDirectory() as place:
    kept, figures.DATA = figures.DATA, pathlib.Path(place, "data")
    figures.OUT = pathlib.Path(place, "target")
    shutil.copytree(kept, figures.DATA)
"#;
    let lines: Vec<String> = script.lines().map(|line| format!("    {line}")).collect();
    let script = format!("{BEGIN}{}\n", lines.join("\n"));
    let output = Command::new("python3").args(["-c", &script]).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_report_of_kubernetes_own_suite_is_kept_and_holds_only_as_what_its_table_says() {
    on_a_copy_of_the_data(
        r#"
names = "conformance.json", "conformance.xml", "conformance-origin.json"
table, report, origin = (figures.DATA / name for name in names)
origin.unlink(missing_ok=True)
text, rows = report.read_text(), json.loads(table.read_text())
name, result = rows["rows"][0]["name"], rows["rows"][0]["result"]
def say(**what):
    told = [{**row, **(what if row["name"] == name else {})} for row in rows["rows"]]
    table.write_text(json.dumps({**rows, "rows": told}))

figures.check()
report.write_text(text.replace(f'"{name}"', '"another test"'))
refused(figures.check, "docs/data/conformance.xml differs from conformance.json 2 times")
report.write_text(text)
say(result="lost")
refused(figures.check, f"{name}: {result} in the report, lost in the table")

# A run of a changed tree, one whose table has a row of another run, and a whole one.
(figures.OUT / "conformance").mkdir(parents=True)
run, before = (figures.OUT / "conformance" / name for name in ("junit.xml", "origin.json"))
for row in rows["rows"]:
    row.update(commit="0123456789ab-dirty", date="2026-01-01T00:10:00Z")
say()
refused(figures.suite, "there is no ")
run.write_text(text)
before.write_text(json.dumps({"date": "2026-01-01T00:00:00Z", "commit": "0123456789ab-dirty"}))
refused(figures.suite, "a row of build 0123456789ab-dirty")
for row in rows["rows"]:
    row.update(commit="0123456789ab")
say(commit="ba9876543210")
before.write_text(json.dumps({"date": "2026-01-01T00:00:00Z", "commit": "0123456789ab"}))
refused(figures.suite, "rows are of 0123456789ab, ba9876543210")
assert not origin.exists()
say()
figures.suite()
figures.check()
assert json.loads(origin.read_text())["commit"] == "0123456789ab"

# What is put in the place of a row or of the report later.
say(commit="0123456789ab-dirty", date="2026-01-02T00:00:00Z")
refused(figures.check, f"{name}: a row of build 0123456789ab-dirty")
say(date="2025-12-31T00:00:00Z")
refused(figures.check, f"{name}: a row of 2025-12-31T00:00:00Z, before the run of 2026-01-01T00:00:00Z")
say(commit="ba9876543210", date="2026-01-02T00:00:00Z")
figures.check()
report.write_text(text + "\n")
refused(figures.check, "the origin is of another report")
"#,
    );
}
