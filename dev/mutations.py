#!/usr/bin/env python3
"""mutations.py [--check] [--unit] [WORD...]: takes behaviours out of the product, one at a time, and wants the tests that promise them to fail.

dev/mutations.toml names each: rows of docs/compatibility.md or docs/packaging.md, the file, the text to `replace`, what is there instead
(`with`), and the tests that have to notice. Text that stands in the file more than once is told apart by what is around it (`around`).

In a copy of the tree (target/mutations) every replaced piece of Rust is built once, beside what it replaces: HCP_MUTATION chooses at run
time. Anything else (charts, scripts, `plain` ones) is replaced in the copy for as long as its tests run. Each test first has to pass
without. WORDs choose rows, files or tests that contain one, --unit the tests beside the code; --check only looks whether each text is
found, each row names the tests, and each test is there once.

What came of each mutation and test is kept in docs/data/mutations.json, with the commit it was tried on and the date, and for each row when
all of it was last shown: a run of some replaces what it has tried, and drops what dev/mutations.toml no longer has.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

# What is imported leaves nothing in the tree.
sys.dont_write_bytecode = True

import machine
import programs

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
COPY = TARGET / "mutations"
# Of its own: what is built here has mutations in it, and nobody else may run it.
BUILT = TARGET / "mutations-target"
BINARY = BUILT / "debug/harvester-cloud-provider"
RESULTS = ROOT / "docs/data/mutations.json"
# Seconds: a test that ended without and does not end with the mutation has noticed it.
LIMIT, LIMIT_WITH = 300, 45


class Mutation:
    def __init__(self, number, entry):
        self.rows, self.file, self.tests = entry["rows"], entry["file"], entry["tests"]
        self.old, self.new, self.around = entry["replace"].strip("\n"), entry["with"].strip("\n"), entry.get("around", entry["replace"]).strip("\n")
        self.id = f"{number}.{self.rows[0]}"
        # Its place in the list changes with each new one; what it does is what its results belong to.
        self.digest = hashlib.sha256("\0".join((self.file, self.around, self.old, self.new)).encode()).hexdigest()[:12]
        self.built = self.file.endswith(".rs") and not entry.get("plain", False)

    def words(self):
        return [*self.rows, self.file, *self.tests]

    def problem(self, text):
        for what, part, whole in (("around", self.around, text), ("replace", self.old, self.around)):
            if whole.count(part) != 1:
                return f"{self.id}: the text of `{what}` stands {whole.count(part)} times in {self.file}, not once: {part.splitlines()[0]}"
        return None

    def apply(self, text):
        """Both, and a choice between them; or only the new one."""
        if text.count(self.around) != 1:
            sys.exit(f"mutations: {self.id}: another one has changed its text in {self.file}")
        new = self.new
        if self.built:
            chosen = f'std::env::var_os("HCP_MUTATION").is_some_and(|id| id == "{self.id}")'
            # Whole lines are statements, anything else is an expression.
            lines = text[text.index(self.around) + self.around.index(self.old):]
            before = text[:len(text) - len(lines)]
            whole = not before.rpartition("\n")[2].strip() and lines[len(self.old):len(self.old) + 1] == "\n" and self.old[-1] in ";}"
            new = f"if {chosen} {{ {new} }} else {{ {self.old} }}"
            new = new if whole else f"({new})"
        return text.replace(self.around, self.around.replace(self.old, new))


def rows_of_documents():
    """Row to the tests that it names."""
    rows = {}
    for page in ("compatibility", "packaging"):
        for line in (ROOT / f"docs/{page}.md").read_text().splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
            if line.startswith("| ") and re.fullmatch(r"(W-|D-|H)\d{1,2}", cells[0]):
                rows[cells[0]] = re.findall(r"`(\w+)`", cells[-1])
    return rows


def functions():
    """How often one is declared, by name, where tests are built from: beside the code and in the end-to-end programs."""
    files = [*(ROOT / "crates").glob("*/src/**/*.rs"), *(ROOT / "tests/tests").rglob("*.rs")]
    return Counter(name for path in files for name in re.findall(r"\bfn (\w+)\(", path.read_text()))


def problems(mutations):
    rows, declared = rows_of_documents(), functions()
    for test in sorted({test for mutation in mutations for test in mutation.tests}):
        if declared[test] != 1:
            yield f"{test} is declared {declared[test]} times, not once"
    for mutation in mutations:
        problem = mutation.problem((ROOT / mutation.file).read_text())
        if problem:
            yield problem
        for row in mutation.rows:
            if row not in rows:
                yield f"{mutation.id}: there is no row {row}"
            elif not set(mutation.tests) <= set(rows[row]):
                yield f"{mutation.id}: row {row} does not name {', '.join(set(mutation.tests) - set(rows[row]))}"


def copy_tree(mutations):
    """What differs is written, and nothing else: cargo goes by times."""
    listed = subprocess.run(["git", "ls-files", "-zco", "--exclude-standard"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    wanted = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    texts = {}
    for mutation in mutations:
        if mutation.built:
            texts[mutation.file] = mutation.apply(texts.get(mutation.file, (ROOT / mutation.file).read_text()))
    for there in [path for path in COPY.rglob("*") if path.is_file()]:
        if str(there.relative_to(COPY)) not in wanted:
            there.unlink()
    for name in wanted:
        content = texts[name].encode() if name in texts else (ROOT / name).read_bytes()
        file = COPY / name
        if not file.exists() or file.read_bytes() != content:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            shutil.copymode(ROOT / name, file)


def home_of(test):
    """The program of the end-to-end tests that has it; None: it stands beside the code."""
    declared = re.compile(rf"\bfn {test}\(")
    for path in sorted((ROOT / "tests/tests").rglob("*.rs")):
        if declared.search(path.read_text()):
            return path.relative_to(ROOT / "tests/tests").parts[0].removesuffix(".rs")
    return None


def build(tests):
    """Test to the command that runs it."""
    homes = {home_of(test) for test in tests}
    cargo = [os.environ.get("CARGO", "cargo")]
    selection = ["--lib", "--bin", "harvester-cloud-provider"] if None in homes else []
    selection += [word for home in sorted(homes - {None}) for word in ("--test", home)]
    print("mutations: building what they are tried on", flush=True)
    beds = any("Bed::" in path.read_text() for home in homes - {None} for path in (ROOT / "tests/tests").glob(f"{home}.rs"))
    # A bed runs harvester-sim as well; cargo builds for a test only the programs of the test's own package.
    calls = [["build", *(word for name in (BINARY.name, "harvester-sim") for word in ("--bin", name))]] if beds else []
    calls += [["test", "--no-run", "--message-format=json-render-diagnostics", *selection]]
    for call in calls:
        # Of what is in the way of a choice the compiler complains, too.
        said = subprocess.run([*cargo, *call, "--locked", "--workspace"], cwd=COPY, env={**os.environ, "CARGO_TARGET_DIR": str(BUILT)},
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if said.returncode:
            sys.exit(f"{said.stderr}\nmutations: what was replaced does not compile")
    commands = {}
    for message in programs.built(said.stdout):
        listed = subprocess.run([message["executable"], "--list", "--format", "terse"], stdout=subprocess.PIPE, text=True, check=True).stdout
        for name in (line[:-6] for line in listed.splitlines() if line.endswith(": test")):
            if name.rsplit("::", 1)[-1] in tests:
                if name.rsplit("::", 1)[-1] in commands:
                    sys.exit(f"mutations: two tests are called {name.rsplit('::', 1)[-1]}")
                directory = Path(message["manifest_path"]).parent
                commands[name.rsplit("::", 1)[-1]] = ([message["executable"], "--exact", name], directory)
    missing = sorted(tests - commands.keys())
    if missing:
        sys.exit(f"mutations: no program has these tests: {', '.join(missing)}")
    return commands


def passes(command, limit, mutation=""):
    """Whether the test passes; what it said."""
    words, directory = command
    # A mutated script may write an image or an archive: into a directory of its own, where `make image` does not find it.
    environment = {**os.environ, "HCP_REQUIRE_ROOT": "1", "HCP_BINARY": str(BINARY), "HCP_MUTATION": mutation, "CARGO_TARGET_DIR": str(BUILT)}
    process = programs.start(COPY, words, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True, errors="replace")
    try:
        said, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        programs.stop(process)
        return False, f"it had not ended after {limit} s"
    return process.returncode == 0 and "1 passed" in said, said


def why(said):
    lines = [line for line in said.splitlines() if line.strip()]
    begin = next((number for number, line in enumerate(lines) if " panicked at " in line), len(lines) - 1)
    return " ".join(line.strip() for line in lines[begin:begin + 3])[:160] if lines else "it said nothing"


def try_out(mutation, test, command, known):
    """None: the test notices."""
    if test not in known:
        begun = time.time()
        known[test] = (*passes(command, LIMIT), time.time() - begun)
    well, said, seconds = known[test]
    if not well:
        print(said)
        return f"{mutation.id}: {test} fails without any mutation"
    limit = max(LIMIT_WITH, 4 * seconds)
    if mutation.built:
        well, said = passes(command, limit, mutation.id)
    else:
        file = COPY / mutation.file
        former = file.read_text()
        file.write_text(mutation.apply(former))
        try:
            well, said = passes(command, limit)
        finally:
            file.write_text(former)
    if well:
        return f"{mutation.id}: {test} passes without the behaviour ({mutation.file}: {mutation.old.strip().splitlines()[0]})"
    print(f"  {', '.join(mutation.rows)}: {test} notices: {why(said)}", flush=True)
    return None


class Results:
    """What came of each mutation and test, in this run or an earlier one."""

    def __init__(self, mutations):
        self.commit = machine.build(ROOT)
        # Before some of the tests are left out of this run.
        self.wanted = [(mutation, test) for mutation in mutations for test in mutation.tests]
        try:
            former = json.loads(RESULTS.read_text())["tried"]
        except FileNotFoundError:
            former = []
        self.tried = {(one["mutation"], one["test"]): one for one in former}

    def note(self, mutation, test, failure):
        """Written at once, because a whole run takes long and may be ended."""
        self.tried[mutation.digest, test] = {
            "mutation": mutation.digest, "rows": mutation.rows, "file": mutation.file, "replaced": mutation.old.strip().splitlines()[0],
            "test": test, "noticed": failure is None, "commit": self.commit,
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")}
        there = [self.tried.get((mutation.digest, test)) for mutation, test in self.wanted]
        rows = sorted({row for mutation, _ in self.wanted for row in mutation.rows})
        data = {"rows": [self.row(row) for row in rows], "tried": [one for one in there if one]}
        RESULTS.write_text(json.dumps(data, indent=1) + "\n")

    def row(self, row):
        """What its tests have noticed of what they should, and since when all of it is shown; no date where something is not."""
        wanted = [(mutation.digest, test) for mutation, test in self.wanted if row in mutation.rows]
        noticed = [self.tried[one] for one in wanted if one in self.tried and self.tried[one]["noticed"]]
        oldest = min(noticed, key=lambda one: one["date"]) if len(noticed) == len(wanted) else {"commit": None, "date": None}
        return {"row": row, "noticed": len(noticed), "of": len(wanted), "commit": oldest["commit"], "date": oldest["date"]}


def main():
    flags = {word for word in sys.argv[1:] if word.startswith("-")}
    words = [word for word in sys.argv[1:] if word not in flags]
    if not flags <= {"--check", "--unit"}:
        sys.exit(__doc__)
    entries = tomllib.loads((ROOT / "dev/mutations.toml").read_text())["mutation"]
    mutations = [Mutation(number, entry) for number, entry in enumerate(entries, 1)]
    wrong = list(problems(mutations))
    if wrong:
        sys.exit("\n".join(wrong))
    covered = {row for mutation in mutations for row in mutation.rows}
    print(f"mutations: {len(mutations)} of {len(covered)} rows, each found once", flush=True)
    if "--check" in flags:
        return
    chosen = [one for one in mutations if not words or any(word in part for word in words for part in one.words())]
    results = Results(mutations)
    for mutation in chosen if "--unit" in flags else []:
        mutation.tests = [test for test in mutation.tests if home_of(test) is None]
    chosen = [one for one in chosen if one.tests]
    if not chosen:
        sys.exit("mutations: none of them is called so")
    if os.geteuid() != 0:
        sys.exit("mutations: needs root")
    COPY.mkdir(parents=True, exist_ok=True)
    copy_tree(mutations)
    commands = build({test for mutation in chosen for test in mutation.tests})
    failures, known = [], {}
    for mutation in chosen:
        for test in mutation.tests:
            failure = try_out(mutation, test, commands[test], known)
            results.note(mutation, test, failure)
            failures += [failure] if failure else []
    for failure in failures:
        print(f"FAILED {failure}")
    noticed = sum(len(mutation.tests) for mutation in chosen) - len(failures)
    print(f"{noticed} noticed, {len(failures)} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
