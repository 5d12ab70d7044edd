//! `docs/compatibility.md` and the last table of `docs/packaging.md` name a test for each promise: every one of them
//! exists, and no weakness is left out.

mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use testbed::conformance::{Table, exceptions, surprises};

const DOCUMENT: &str = include_str!("../../docs/compatibility.md");
const PACKAGING: &str = include_str!("../../docs/packaging.md");
/// What became of the tests of Kubernetes' own suite when they ran last.
const CONFORMANCE: &str = include_str!("../../docs/data/conformance.json");

/// Cells of the rows of all tables.
fn rows(document: &'static str) -> Vec<Vec<&'static str>> {
    let lines = document.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---"));
    lines.map(|line| line.trim_matches('|').split(" | ").map(|cell| cell.trim_matches([' ', '|'])).collect()).collect()
}

/// What stands in `code` in a cell.
fn named(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Test functions below a directory, with what stands above each.
fn functions(directory: &Path, found: &mut BTreeMap<String, String>) {
    for path in sources::files(directory) {
        let (mut attributed, mut above) = (false, String::new());
        for line in sources::text(&path).lines().map(str::trim) {
            attributed |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            if let Some(comment) = line.strip_prefix("///") {
                above.push_str(comment);
            } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| attributed) {
                found.extend(rest.split('(').next().map(|name| (name.to_owned(), std::mem::take(&mut above))));
                attributed = false;
            } else if !line.starts_with("#[") {
                above.clear();
            }
        }
    }
}

fn all_functions() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a member of the workspace");
    let mut there = BTreeMap::new();
    functions(&root.join("crates"), &mut there);
    functions(&root.join("tests"), &mut there);
    there
}

/// `W-01`, `D-4` or `H12`.
fn is_id(word: &str) -> bool {
    let number = ["W-", "D-", "H"].iter().find_map(|letter| word.strip_prefix(letter));
    number.is_some_and(|number| (1..=2).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The ids in the comment of a test, or in its name (`h4_h12_…`).
fn ids(name: &str, above: &str) -> BTreeSet<String> {
    let words = above.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').map(str::to_owned);
    words.chain(name.split('_').map(str::to_uppercase)).filter(|word| is_id(word)).collect()
}

#[test]
fn each_row_with_an_id_is_carried_by_a_test_of_that_id_and_no_test_by_an_id_without_a_row() {
    let there = all_functions();
    let rows: Vec<Vec<&str>> = rows(DOCUMENT).into_iter().chain(rows(PACKAGING)).filter(|row| is_id(row[0])).collect();
    let carried = |row: &Vec<&str>| {
        let tests = row.last().copied().unwrap_or_default();
        let found = named(tests).filter_map(|name| Some(ids(name, there.get(name)?)));
        tests.starts_with("none: ") || found.flatten().any(|id| id == row[0])
    };
    let bare: Vec<&str> = rows.iter().filter(|row| !carried(row)).map(|row| row[0]).collect();
    assert!(bare.is_empty(), "none of the tests that these rows name has their id in its comment: {bare:?}");
    let known: BTreeSet<String> = rows.iter().map(|row| row[0].to_owned()).collect();
    let claimed: BTreeSet<String> = there.iter().flat_map(|(name, above)| ids(name, above)).collect();
    let unknown: Vec<&String> = claimed.iter().filter(|id| !known.contains(*id)).collect();
    assert!(unknown.is_empty(), "tests have these ids, and no row has: {unknown:?}");
    assert!(known.len() > 80, "{} rows", known.len());
}

#[test]
fn every_test_that_the_document_names_exists() {
    let there = all_functions();
    let defects = rows(PACKAGING).into_iter().filter(|row| row[0].starts_with("D-"));
    let cells: Vec<&str> = rows(DOCUMENT).into_iter().chain(defects).filter_map(|row| row.last().copied()).collect();
    let missing: Vec<&str> =
        cells.iter().flat_map(|cell| named(cell)).filter(|name| !there.contains_key(*name)).collect();
    assert!(missing.is_empty(), "no such test: {missing:#?}");
    assert!(cells.iter().flat_map(|cell| named(cell)).count() > 100, "the tables were read");
}

#[test]
fn every_weakness_has_one_row_and_each_row_a_test_or_a_reason_for_none() {
    let rows: Vec<Vec<&str>> = rows(DOCUMENT).into_iter().filter(|row| row[0].starts_with("W-")).collect();
    let ids: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    let expected: Vec<String> = (1..=54).map(|number| format!("W-{number:02}")).collect();
    assert_eq!(ids, expected);
    for row in rows {
        let [id, what, tests] = row.as_slice() else { panic!("{row:?}") };
        assert!(!what.is_empty() && (named(tests).next().is_some() || tests.starts_with("none: ")), "{id}: {tests:?}");
    }
}

#[test]
fn every_defect_of_the_reference_chart_has_one_row_with_a_test() {
    let rows: Vec<Vec<&str>> = rows(PACKAGING).into_iter().filter(|row| row[0].starts_with("D-")).collect();
    let ids: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(ids, (1..=16).map(|number| format!("D-{number}")).collect::<Vec<_>>());
    for row in rows {
        let [id, what, here, tests] = row.as_slice() else { panic!("{row:?}") };
        assert!(![what, here].iter().any(|cell| cell.is_empty()) && named(tests).next().is_some(), "{id}: {tests:?}");
    }
}

/// `make mutations` takes them out, which is too slow for here.
#[test]
fn each_behaviour_that_can_be_taken_out_is_found_once_and_its_rows_name_the_tests_that_notice() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a member of the workspace");
    let said = Command::new(root.join("dev/mutations.py")).arg("--check").output().expect("the script can be started");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}

/// The crates that the binary links, found from its own, as `dev/house.py` does.
fn shipped(crates: &Path) -> BTreeSet<String> {
    let (mut found, mut left) = (BTreeSet::new(), vec!["cli".to_owned()]);
    while let Some(name) = left.pop() {
        // Most of what a crate depends on is not ours.
        let Ok(manifest) = std::fs::read_to_string(crates.join(&name).join("Cargo.toml")) else { continue };
        if found.insert(name) {
            let (_, behind) = manifest.split_once("\n[dependencies]\n").expect("each crate depends on something");
            let lines = behind.lines().take_while(|line| !line.starts_with('['));
            left.extend(lines.filter_map(|line| line.split(['.', ' ', '=']).next()).map(str::to_owned));
        }
    }
    found
}

/// A file may declare its tests in the first lines: what stands behind that is the product.
#[test]
fn only_an_inline_module_of_tests_ends_what_is_read_of_a_file() {
    let product = "use a;\n\n#[cfg(test)]\nmod tests;\n\n#[cfg(test)]\nfn b() {}\n";
    for module in ["mod tests {", "pub(crate) mod build {"] {
        assert_eq!(sources::before_tests(&format!("{product}\n#[cfg(test)]\n{module}\n}}\n")), product);
    }
    assert_eq!(sources::before_tests(product), product);
}

/// W-42: what is configured reaches who needs it as an argument.
#[test]
fn nothing_of_the_product_is_global_but_the_beginning_of_its_clock() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a member of the workspace");
    let (mut files, mut found) = (0, Vec::new());
    let crates = root.join("crates");
    let shipped = shipped(&crates);
    assert!(["l2", "contract", "runtime"].iter().all(|name| shipped.contains(*name)), "{shipped:?}");
    for path in shipped.iter().flat_map(|name| sources::files(&crates.join(name).join("src"))) {
        files += 1;
        if path.strip_prefix(&crates).unwrap_or(&path).display().to_string().contains("tests") {
            continue;
        }
        for line in sources::before_tests(&sources::text(&path)).lines().map(str::trim) {
            let item =
                line.trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ").trim_start_matches("pub ");
            let changes = ["Cell<", "OnceLock<", "LazyLock<", "Mutex<", "RwLock<", "Atomic"]
                .iter()
                .any(|kind| item.contains(kind));
            if item.starts_with("static ") && changes || item.contains("thread_local!") || item.contains("static mut") {
                found.push(format!("{}: {line}", path.file_name().unwrap_or_default().display()));
            }
        }
    }
    assert_eq!(found, ["clock.rs: static ORIGIN: OnceLock<Origin> = OnceLock::new();"]);
    assert!(files > 500, "{files} files");
}

#[test]
fn every_test_of_kubernetes_that_did_not_pass_is_explained() {
    let table: Table = serde_json::from_str(CONFORMANCE).expect("it was written by us");
    let known = exceptions(DOCUMENT).expect("the document has a section about it");
    // Whether the suite has the test of an exception is seen by the run.
    let names: Vec<String> = known.keys().cloned().collect();
    assert_eq!(surprises(&names, &table.rows, &known), Vec::<String>::new());
    assert!(table.rows.len() >= 18, "{} tests", table.rows.len());
}
