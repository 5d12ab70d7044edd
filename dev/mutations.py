#!/usr/bin/env python3
"""Takes behaviours out of the product, one at a time, and wants the tests that promise them to fail.

dev/mutations.toml names each: rows of docs/compatibility.md or docs/packaging.md, the file, the text to `replace`, what is there instead
(`with`), and the tests that have to notice. Text that stands in the file more than once is told apart by what is around it (`around`).

In a copy of the tree (target/mutations) every replaced piece of Rust is built once, beside what it replaces: HCP_MUTATION chooses at run
time, so one build is enough for all of them. Anything else (charts, scripts, `plain` ones) is mounted over its file in the namespaces of its
test, and nobody else sees it: tests run side by side, as many as there are processors. Each test first has to pass without.

What came of each mutation and test is kept in docs/data/mutations.json, after each of them: with the commit it was tried on, the date, the
seconds and what the test said, and for each row when all of it was last shown. A run of some replaces what it has tried, and drops what
dev/mutations.toml no longer has. What was never tried, or longest ago, comes first, so runs that are cut (--limit-seconds, Ctrl-C) come to
all of them in the end.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

# What is imported leaves nothing in the tree.
sys.dont_write_bytecode = True

import machine
import programs
from rows import ROW_ID, rows_of_documents

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
COPY = TARGET / "mutations"
# Of its own: what is built here has mutations in it, and nobody else may run it.
BUILT = TARGET / "mutations-target"
BINARY = BUILT / "debug/harvester-cloud-provider"
RESULTS = ROOT / "docs/data/mutations.json"
# Seconds. Tests wait for 40 s for something to happen, after their bed is there: what takes longer than the second of these hangs.
LIMIT, LIMIT_WITH = 300, 120
# A bed runs these. Cargo builds for a test the programs of the test's own package only, so one small test program of each is built as well.
OF_BEDS = {"harvester-cloud-provider": "shells", "harvester-sim": "real_api_server"}


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

    def over(self):
        """Where the file of one that is not built lies with it."""
        return BUILT / "plain" / self.id

    def mount(self):
        """The words that put that file over the one in the copy, for the program behind them and nobody else."""
        return [] if self.built else ["bash", "-euc", 'mount --bind "$1" "$2"; shift 2; exec "$@"', "mount", self.over(), COPY / self.file]


def functions():
    """How often one is declared, by name, where tests are built from: beside the code and in the end-to-end programs."""
    files = [*(ROOT / "crates").glob("*/src/**/*.rs"), *(ROOT / "tests/tests").rglob("*.rs")]
    return Counter(name for path in files for name in re.findall(r"\bfn (\w+)\(", path.read_text()))


def problems(mutations):
    rows = {row: tests for _, row, tests in rows_of_documents(ROOT) if ROW_ID.fullmatch(row)}
    declared = functions()
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


def mutated(mutations):
    """File to its text with all those in it that are built."""
    texts = {}
    for mutation in mutations:
        if mutation.built:
            texts[mutation.file] = mutation.apply(texts.get(mutation.file, (ROOT / mutation.file).read_text()))
    return texts


def copy_tree(mutations, texts):
    """What differs is written, and nothing else: cargo goes by times."""
    listed = subprocess.run(["git", "ls-files", "-zco", "--exclude-standard"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    wanted = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
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
    for mutation in mutations:
        if not mutation.built:
            mutation.over().parent.mkdir(parents=True, exist_ok=True)
            mutation.over().write_text(mutation.apply((COPY / mutation.file).read_text()))
            shutil.copymode(COPY / mutation.file, mutation.over())


def home_of(test):
    """The program of the end-to-end tests that has it; None: it stands beside the code."""
    declared = re.compile(rf"\bfn {test}\(")
    for path in sorted((ROOT / "tests/tests").rglob("*.rs")):
        if declared.search(path.read_text()):
            return path.relative_to(ROOT / "tests/tests").parts[0].removesuffix(".rs")
    return None


def packages():
    """Directory of each of ours to its name."""
    manifests = [*(ROOT / "crates").glob("*/Cargo.toml"), ROOT / "tests/Cargo.toml"]
    return {path.parent: tomllib.loads(path.read_text())["package"]["name"] for path in manifests}


def selection(mutations):
    """Packages that have the tests of any mutation, whichever are chosen: with others, dependencies would get other features. Those
    that `make test` builds besides these want no further feature of a dependency."""
    tests = {test for mutation in mutations for test in mutation.tests}
    names = {"e2e", *OF_BEDS}
    for directory, name in packages().items():
        texts = " ".join(path.read_text() for path in (directory / "src").rglob("*.rs"))
        if tests & set(re.findall(r"\bfn (\w+)\(", texts)):
            names.add(name)
    return [word for name in sorted(names) for word in ("-p", name)]


def take_dependencies():
    """What `make test` has compiled of others' packages is the same here: to compile it takes as long as all of the rest."""
    there, here = TARGET / "debug", BUILT / "debug"
    if (here / ".fingerprint").exists() or not (there / ".fingerprint").exists():
        return
    ours = {name.replace("-", "_") for name in packages().values()}

    def others(directory, names):
        if directory != str(there / "deps"):
            mine = [name for name in names if name.rpartition("-")[0].replace("-", "_") in ours]
            return mine if Path(directory).parent == there else []
        is_library = re.compile(r"lib(\w+)-[0-9a-f]{16}\.(rlib|rmeta|so)").fullmatch
        return [name for name in names if not (found := is_library(name)) or found[1] in ours]
    for part in (".fingerprint", "build", "deps"):
        if (there / part).exists():
            shutil.copytree(there / part, here / part, ignore=others, symlinks=True)


def cargo(*words):
    """What it says of what it has built, one message for each."""
    command = [os.environ.get("CARGO", "cargo"), *words, "--locked", "--message-format=json-render-diagnostics"]
    # Of what is in the way of a choice the compiler complains, too: what it says is shown for a failure only.
    said = subprocess.run(command, cwd=COPY, env={**os.environ, "CARGO_TARGET_DIR": str(BUILT)}, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if said.returncode:
        sys.exit(f"{said.stderr}\nmutations: what was replaced does not compile")
    return said.stdout


def build(mutations, tests):
    """Test to the command that runs it."""
    homes = {home_of(test) for test in tests}
    # Only tests of beds need the programs of ours.
    beds = any("Bed::" in path.read_text() for home in homes - {None} for path in (ROOT / "tests/tests").glob(f"{home}.rs"))
    parts = ["--lib", "--bin", BINARY.name] if None in homes else []
    parts += [word for home in sorted(homes - {None}) + (sorted(OF_BEDS.values()) if beds else []) for word in ("--test", home)]
    print("mutations: building what they are tried on", flush=True)
    take_dependencies()
    said = cargo("test", "--no-run", *selection(mutations), *parts)
    made = {Path(found).name for found in re.findall(r'"executable":"([^"]+)"', said)}
    if beds and not set(OF_BEDS) <= made:
        cargo("build", *selection(mutations), *(word for name in OF_BEDS for word in ("--bin", name)))
    commands = {}
    for message in programs.built(said):
        listed = subprocess.run([message["executable"], "--list", "--format", "terse"], stdout=subprocess.PIPE, text=True, check=True).stdout
        for name in (line[:-6] for line in listed.splitlines() if line.endswith(": test")):
            test = name.rsplit("::", 1)[-1]
            if test in commands:
                sys.exit(f"mutations: two tests are called {test}")
            if test in tests:
                commands[test] = ([message["executable"], "--exact", name], Path(message["manifest_path"]).parent)
    missing = sorted(tests - commands.keys())
    if missing:
        sys.exit(f"mutations: no program has these tests: {', '.join(missing)}")
    return commands


def passes(command, limit, clock, mutation=None):
    """Whether the test passes, and what it said. None: it was stopped, and nothing follows."""
    words, directory = command
    # A mutated script may write an image or an archive: into a directory of its own, where `make image` does not find it.
    environment = {**os.environ, "HCP_REQUIRE_ROOT": "1", "HCP_BINARY": str(BINARY), "CARGO_TARGET_DIR": str(BUILT),
                   "HCP_MUTATION": mutation.id if mutation else ""}
    words = [*(mutation.mount() if mutation else []), *words]
    process = programs.start(COPY, words, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True, errors="replace")
    end = time.monotonic() + limit
    while True:
        try:
            said, _ = process.communicate(timeout=0.5)
            return process.returncode == 0 and "1 passed" in said, said
        except subprocess.TimeoutExpired:
            if not clock.is_over() and time.monotonic() < end:
                continue
            programs.stop(process)
            return (None, "") if clock.is_over() else (False, f"it had not ended after {limit:.0f} s")


def why(said):
    lines = [line for line in said.splitlines() if line.strip()]
    begin = next((number for number, line in enumerate(lines) if " panicked at " in line), len(lines) - 1)
    text = " ".join(line.strip() for line in lines[begin:begin + 3]) if lines else "it said nothing"
    # What is kept is the same on each machine.
    for place in (BUILT, COPY, TARGET, ROOT):
        text = text.replace(f"{place}/", "")
    return text.replace(str(Path.home()), "~")[:160]


def try_out(test, mutations, command, clock, results):
    """Without any first, and then with each of them."""
    well = False
    # What waits for a bed may be late beside others: it has a second chance, and only without a mutation.
    for attempt in range(2):
        if well is False and not clock.is_over():
            if attempt:
                print(f"{test}: tried again without a mutation, it failed: {why(said)}", flush=True)
            begun = time.monotonic()
            well, said = passes(command, LIMIT, clock)
            limit = max(LIMIT_WITH, 4 * (time.monotonic() - begun))
    for mutation in mutations:
        if clock.is_over():
            return
        if not well:
            results.note(mutation, test, f"it fails without any mutation: {why(said)}", False, 0)
            continue
        begun = time.monotonic()
        passed, told = passes(command, limit, clock, mutation)
        if passed is not None:
            told = f"it passes without the behaviour ({mutation.file})" if passed else why(told)
            results.note(mutation, test, told, not passed, time.monotonic() - begun)


class Results:
    """What came of each mutation and test, in this run or an earlier one."""

    def __init__(self, mutations):
        self.origin = {**machine.conditions(), "commit": machine.build(ROOT), "command": " ".join(["dev/mutations.py", *sys.argv[1:]])}
        # Before some of the tests are left out of this run.
        self.wanted = [(mutation, test) for mutation in mutations for test in mutation.tests]
        try:
            former = json.loads(RESULTS.read_text())["tried"]
        except FileNotFoundError:
            former = []
        self.tried = {(one["mutation"], one["test"]): one for one in former}
        self.begun, self.noticed, self.failures, self.lock = time.monotonic(), 0, [], threading.Lock()

    def age(self, mutation, test):
        """When it was tried; what was never tried comes before all others."""
        return self.tried.get((mutation.digest, test), {}).get("date", "")

    def is_shown(self, mutation, test):
        """It was noticed on this very commit."""
        one = self.tried.get((mutation.digest, test), {})
        return one.get("noticed") is True and one["commit"] == self.origin["commit"]

    def built(self):
        self.origin["build_seconds"] = round(time.monotonic() - self.begun, 1)

    def note(self, mutation, test, said, noticed, seconds):
        """Written at once, because a whole run takes long and may be ended."""
        with self.lock:
            self.tried[mutation.digest, test] = {
                "mutation": mutation.digest, "rows": mutation.rows, "file": mutation.file, "replaced": mutation.old.strip().splitlines()[0],
                "test": test, "noticed": noticed, "said": said, "seconds": round(seconds, 1), "commit": self.origin["commit"],
                "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")}
            if noticed:
                self.noticed += 1
                print(f"  {', '.join(mutation.rows)}: {test} notices: {said}", flush=True)
            else:
                self.failures.append(f"{mutation.id}: {test}: {said}")
                print(f"FAILED {self.failures[-1]}", flush=True)
            self.write()

    def write(self):
        there = [self.tried.get((mutation.digest, test)) for mutation, test in self.wanted]
        rows = sorted({row for mutation, _ in self.wanted for row in mutation.rows})
        origin = {**self.origin, "seconds": round(time.monotonic() - self.begun, 1)}
        data = {"origin": origin, "rows": [self.row(row) for row in rows], "tried": [one for one in there if one]}
        # A run that is ended here leaves the former file.
        new = RESULTS.with_suffix(".new")
        new.write_text(json.dumps(data, indent=1) + "\n")
        new.replace(RESULTS)

    def row(self, row):
        """What its tests have noticed of what they should, and since when all of it is shown; no date where something is not."""
        wanted = [(mutation.digest, test) for mutation, test in self.wanted if row in mutation.rows]
        noticed = [self.tried[one] for one in wanted if one in self.tried and self.tried[one]["noticed"]]
        oldest = min(noticed, key=lambda one: one["date"]) if len(noticed) == len(wanted) else {"commit": None, "date": None}
        return {"row": row, "noticed": len(noticed), "of": len(wanted), "commit": oldest["commit"], "date": oldest["date"]}


def choose(options, mutations, results):
    """Test to the mutations that it is tried with."""
    only = set(options.only.split(",")) if options.only else None
    chosen = {}
    for mutation in mutations:
        named = not options.words or any(word in part for word in options.words for part in mutation.words())
        if not named or only and not only & set(mutation.rows):
            continue
        for test in mutation.tests:
            if not (options.unit and home_of(test)) and not (options.rest and results.is_shown(mutation, test)):
                chosen.setdefault(test, []).append(mutation)
    return chosen


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="rows, files or tests that contain one of these")
    parser.add_argument("--only", metavar="ROW,...", help="exactly these rows")
    parser.add_argument("--unit", action="store_true", help="the tests beside the code")
    parser.add_argument("--rest", action="store_true", help="without what was noticed on this commit before")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), metavar="N", help="no test runs after so long; the build is not cut")
    parser.add_argument("--check", action="store_true", help="only looks whether all texts, rows and tests are there")
    return parser.parse_args()


def main():
    given = options()
    entries = tomllib.loads((ROOT / "dev/mutations.toml").read_text())["mutation"]
    mutations = [Mutation(number, entry) for number, entry in enumerate(entries, 1)]
    wrong = list(problems(mutations))
    if wrong:
        sys.exit("\n".join(wrong))
    texts = mutated(mutations)
    covered = {row for mutation in mutations for row in mutation.rows}
    print(f"mutations: {len(mutations)} of {len(covered)} rows, each found once", flush=True)
    if given.check:
        return
    results = Results(mutations)
    chosen = choose(given, mutations, results)
    if not chosen and given.rest:
        return print("mutations: nothing is left")
    if not chosen:
        sys.exit("mutations: none of them is called so")
    if os.geteuid() != 0:
        sys.exit("mutations: needs root")
    COPY.mkdir(parents=True, exist_ok=True)
    copy_tree(mutations, texts)
    commands = build(mutations, set(chosen))
    results.built()
    clock = programs.Clock(time.time() + given.limit_seconds - (time.monotonic() - results.begun))
    # Those of one test one after the other, behind the run without any.
    order = sorted(chosen, key=lambda test: (min(results.age(mutation, test) for mutation in chosen[test]), home_of(test) is not None))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for work in [pool.submit(try_out, test, chosen[test], commands[test], clock, results) for test in order]:
            work.result()
    for failure in results.failures:
        print(f"FAILED {failure}")
    left = sum(len(some) for some in chosen.values()) - results.noticed - len(results.failures)
    print(f"{results.noticed} noticed, {len(results.failures)} failed" + (f", {left} left: --rest goes on with them" if left else ""))
    sys.exit(1 if results.failures else 0)


if __name__ == "__main__":
    main()
