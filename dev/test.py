#!/usr/bin/env python3
"""test.py [--unit] [--e2e] [NAME...]: builds every test program of the workspace, runs each as root in namespaces of its own, and sums up.

Programs are what cargo says there are, tests are what each program lists; one that is listed and did not run fails the run, and so does
a retry that no stall of the machine explains, or a third retry. A client's outage counts as it was measured: what a test subtracts for stalls
is believed only as far as a clock of this program's own was late, too. An end-to-end test that failed beside others, and wrote down that the machine
kept processes waiting while it ran, is run again when nothing else runs, and has to pass twice. The first failure stays in the output, the last line
counts such tests, and more than three of them fail the run. Tests that this machine could not run are named.

--unit runs what lies beside the code and the documents' examples, --e2e the programs in tests/tests; without either, all of them. NAMEs
choose programs. Variables:

  E2E_JOBS       programs at a time (2); more while these have fewer tests left than there are processors, or leave the processors idle.
                 Those that put whole nodes on the machine have it for themselves, or two of them together
  TEST_LIMIT     seconds for one program (900), after which it is ended and its unfinished tests are named
  TEST_DEADLINE  seconds since the epoch at which everything ends, and what is left is named
  HCP_BINARY     the binary that end-to-end tests drive; without it the debug build
  HCP_CONFORMANCE  1 wants Kubernetes' own quickest tests about load balancers (`make test` gets their programs then), 0 leaves them out;
                 without it they run where the programs are there, and what is left out is told
  HCP_SEED       what simulation, chaos and fuzzing begin from; it comes from the commit

Output of programs that pass, and all figures, are in target/test/. The last line is "N passed (N of them when they ran again), N failed".
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

# What is imported leaves nothing in the tree.
sys.dont_write_bytecode = True

import programs as test_programs
from machine import Meter, build, busy_since, conditions, processor_ticks
from programs import Clock
from rows import ROW_ID, rows_of_documents

ROOT = Path(__file__).resolve().parent.parent
OUT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "test"
CARGO = os.environ.get("CARGO", "cargo")
# What Kubernetes' own tests need (dev/tools.sh --conformance), what has become of them, and in how many seconds the quick ones have passed.
SUITE, SUITE_PACKAGES = ("e2e.test", "agnhost", "coredns"), ("nc", "wget")
SUITE_TABLE, SUITE_QUICK = ROOT / "docs/data/conformance.json", 10
# Kubelets and containerd on a machine that does something else lose their races; nobody shares it with these.
ALONE = {"node_loss", "testbed-nodes", "conformance"}
# Whole nodes as well, but no limit of time that counts in seconds, and kubelets that are waited for: each leaves nearly half of two processors
# idle. They run beside one another, and nobody else does.
PAIR = {"installed", "newcomer"}
# These wait for time-outs nearly all the time: so many of their tests run at once, or as many as the program has beds. Beds cost something also while
# they wait, and those of two such programs would take all of two cores: these programs run one after the other, beside others. Those of survival
# share three beds, and are all begun at once: otherwise tests that wait for one bed keep those of another from beginning.
WAITING = {"survival": 10, "impaired": 4, "failover": 4, "faults": 4, "host_upgrade": 4}
# These wait as well, and disturb nobody meanwhile: announcer-node has benches of two network namespaces; rights and identity_roads have one bed
# for each test; the tests of harvester_hosts wait for one another on two beds.
THREADS = {**WAITING, "announcer-node": 8, "identity_roads": 4, "rights": 3, "harvester_hosts": 7}
# So many tests of a program run at a time, unless it stands above.
PROCESSORS = len(os.sched_getaffinity(0))
# Per cent of the time that somebody waits for a processor, below which one program more may run; seconds that the last one has had by then to
# start its beds, kilobytes that are free.
IDLE, SETTLED, SPARE = 10, 20, 6_000_000
# What failed is tried again if processes were kept waiting for long in a second of that test itself (how long, it says in the journal), so many
# tests at most, and has to pass so many times.
MOST_AGAIN, AGAIN = 3, 2
# In the worst second of an attempt that passes, processes wait for 0.2 to 1 s in all where two programs share two processors. So a retry is
# explained by half a second at least, and a third one in a run by nothing.
RETRY_EXPLAINS_MS, MOST_RETRIES = 500, 2
# The longest first, so that no core is idle at the end; what the last run of each took is better known (target/test/durations.json).
LONG = ["impaired", "host_upgrade", "failover", "survival", "faults", "asking", "handover", "health", "harvester_hosts", "writes", "rights", "probed",
        "harvester-sim-real_api_server", "bad_input", "identity_roads", "modes", "identity", "rollout", "doctor", "chaos", "chart_live", "safe_mode",
        "announcer-sim-sabotage", "go_provider", "chart", "dhcp", "host_state", "announcer-node", "node_loss", "newcomer", "installed"]
# An example of the documentation has the name "FILE - ITEM (line N)"; behind a name may stand how the test is run. An item such as
# `Map<K, V>::get` has spaces in its name.
RESULT = re.compile(r"\btest (\S+(?: - [^\n]*\(line \d+\))?)(?: - (?:should panic|compile(?: fail)?))? \.\.\. (ok|FAILED|ignored)")
# What is said before the tests of a program, or the examples of a crate.
RUNNING = re.compile(r"^running (\d+) tests?$", re.MULTILINE)


class Program:
    """A test program: what cargo has built, or the examples in the documentation of the code."""

    # With this the test library ends where a test has failed, and with nothing else.
    failure = 101

    def __init__(self, name, command, directory, end_to_end):
        self.name, self.command, self.directory, self.end_to_end = name, command, directory, end_to_end
        self.log = OUT / f"{name}.log"
        self.listed, self.ignored, self.again, self.kept_waiting_ms = [], set(), [], 0
        # How much of the log has been read, and how many results stood in it.
        self.began, self.read, self.done = None, 0, 0

    def name_in_journal(self):
        """Its file, by which tests call it that write something down."""
        return Path(self.command[0]).stem if self.command else None

    def list(self):
        """The names of its tests."""
        if self.command is None:
            return
        def names(*more):
            said = subprocess.run([*self.command, "--list", "--format", "terse", *more], cwd=self.directory, text=True, check=True,
                                  stdout=subprocess.PIPE).stdout
            return [line[:-6] for line in said.splitlines() if line.endswith(": test")]
        self.listed, self.ignored = names(), set(names("--ignored"))

    def start(self, environment):
        words = self.command or [CARGO, "test", "--locked", "--workspace", "--doc", "--no-fail-fast"]
        if self.name in THREADS:
            environment = {**environment, "RUST_TEST_THREADS": str(THREADS[self.name])}
        self.began, self.ticks_before = time.time(), processor_ticks()
        self.process = self.spawn(words, cwd=self.directory, env=environment, stdout=self.log.open("wb"))

    def spawn(self, words, **more):
        return test_programs.start(ROOT, words, **more)

    def results(self, said):
        """Test to what became of it, from what the program says."""
        return dict(RESULT.findall(said))

    def lost_examples(self, said, results):
        """What is wrong with the number of results, if so. To list examples means to compile them first, so nothing is listed; but before
        those of a crate run, their number is said."""
        begun = sum(int(number) for number in RUNNING.findall(said))
        if not begun:
            return "no example has run"
        return f"{begun} examples were begun, and {len(results)} have a result" if begun != len(results) else None

    def at_a_time(self):
        """How many of its tests keep the processors busy, or would: as many as there are processors, or as are left; of those that wait for
        time-outs, half of what is left."""
        if self.command is None:
            return PROCESSORS
        size = self.log.stat().st_size if self.began else 0
        if size != self.read:
            self.read, self.done = size, len(self.results(self.log.read_text(errors="replace")))
        left = len(self.listed) - self.done
        # The last of those that wait takes nobody's place.
        return min(PROCESSORS, left // 2) if self.name in WAITING else max(1, min(PROCESSORS, left))

    def judge(self, problem=None):
        """What became of each test. `problem` is why it was ended."""
        said = self.log.read_text(errors="replace")
        results = self.results(said)
        self.seconds = time.time() - self.began
        self.proven = {name.rsplit("::", 1)[-1] for name, result in results.items() if result == "ok"}
        self.passed = sum(result == "ok" for result in results.values())
        self.broken = sorted(name for name, result in results.items() if result == "FAILED")
        # A test that is not there and one that was skipped look alike to whoever reads a sum.
        self.missing = [name for name in self.listed if name not in results]
        self.problems = [problem] if problem else []
        if self.process.returncode and not (self.broken and self.process.returncode == self.failure) and not problem:
            self.problems.append(f"exit status {self.process.returncode}")
        unexpected = {name for name, result in results.items() if result == "ignored"} - self.ignored
        if self.command and unexpected:
            self.problems.append(f"ignored although they do not say so: {', '.join(sorted(unexpected))}")
        if self.missing:
            self.problems.append(f"listed, and no result: {', '.join(self.missing)}")
        if self.command is None and not problem and (lost := self.lost_examples(said, results)):
            self.problems.append(lost)
        self.count()

    def count(self):
        self.failed = len(self.broken) + max(len(self.missing), bool(self.problems))

    def run_again(self, name, environment, until, clock):
        """One of its tests, without others, twice: what fails by chance seldom passes both. Whether it does."""
        log = self.log.with_suffix(".again.log")
        with log.open("wb") as file:
            for _ in range(AGAIN):
                process = test_programs.start(ROOT, [*self.command, "--exact", name], cwd=self.directory, env=environment, stdout=file)
                while process.poll() is None and time.time() < until and not clock.is_over():
                    time.sleep(0.1)
                if process.poll() is None:
                    test_programs.stop(process)
                if process.returncode:
                    break
        passes = process.returncode == 0 and log.read_text(errors="replace").count("test result: ok. 1 passed") == AGAIN
        if passes:
            self.again.append(name)
            self.broken.remove(name)
            self.proven.add(name.rsplit("::", 1)[-1])
            self.passed += 1
            self.count()
        else:
            print(log.read_text(errors="replace"))
        return passes


class Conformance(Program):
    """Kubernetes' own tests about load balancers, on the demo's bed, which makes and removes what it needs by itself."""

    failure = 1
    DEMO, ROW = OUT.parent / "debug/demo", re.compile(r"\d+/\d+ (\w+) +\d+ s  (.+)  \(\d+ running")

    def __init__(self):
        self.table = OUT / "conformance/table.json"
        words = ["conformance", f"--quick={SUITE_QUICK}", f"--commit={build(ROOT)}", f"--table={self.table}", f"--output={self.table.parent}"]
        super().__init__("conformance", [str(self.DEMO), *words], ROOT, True)

    @classmethod
    def lacks(cls):
        """Why it cannot run here, if so."""
        if os.environ.get("HCP_CONFORMANCE") == "0":
            return "HCP_CONFORMANCE is 0"
        tools = Path(os.environ.get("HCP_TOOLS", "/nonexistent"))
        lacking = [name for name in SUITE if not os.access(tools / name, os.X_OK)] + [name for name in SUITE_PACKAGES if not shutil.which(name)]
        if lacking:
            return f"no {', no '.join(lacking)}; HCP_CONFORMANCE=1 makes `make test` get them, which takes some minutes once"
        if not os.environ.get("HCP_BINARY") or not cls.DEMO.exists():
            return f"HCP_BINARY names no static binary, or there is no {cls.DEMO}"
        return None

    def list(self):
        rows = json.loads(SUITE_TABLE.read_text())["rows"]
        self.listed = [row["name"] for row in rows if row["result"] == "passed" and row["seconds"] <= SUITE_QUICK]

    def spawn(self, words, **more):
        # What is kept in the tree is written by `make conformance`.
        self.table.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(SUITE_TABLE, self.table)
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, start_new_session=True, **more)

    def results(self, said):
        return {name: "ok" if result == "passed" else "FAILED" for result, name in self.ROW.findall(said)}


def programs():
    """Builds them; cargo's own list."""
    said = subprocess.run([CARGO, "test", "--locked", "--workspace", "--no-run", "--message-format=json-render-diagnostics"],
                          cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if said.returncode:
        sys.exit("test: the test programs cannot be built")
    found = []
    for message in test_programs.built(said.stdout):
        directory = Path(message["manifest_path"]).parent
        package = directory.name if directory != ROOT / "tests" else "e2e"
        target, kind = message["target"]["name"], message["target"]["kind"][0]
        end_to_end = package == "e2e" and kind == "test"
        if end_to_end:
            name = target
        else:
            name = {"test": f"{package}-{target}", "bin": f"{package}-bin-{target}"}.get(kind, f"{package}-lib")
        found.append(Program(name, [message["executable"]], directory, end_to_end))
    found.append(Program("examples", None, ROOT, False))
    names = [program.name for program in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        sys.exit(f"test: two programs have one name, and would share a log: {', '.join(twice)}")
    return found


def known_durations():
    """Seconds of each program in the last run that had it."""
    try:
        known = json.loads((OUT / "durations.json").read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def keep_durations(ended, found):
    """A run of some programs says nothing about the others, and the end of one that was stopped nothing about itself. Those that are no longer
    there are dropped."""
    names = {program.name for program in found}
    durations = {program.name: round(program.seconds, 1) for program in ended if not program.problems}
    kept = {name: seconds for name, seconds in {**known_durations(), **durations}.items() if name in names}
    (OUT / "durations.json").write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def in_order(chosen):
    known = known_durations()
    guess = {name: 1000 - place for place, name in enumerate(LONG)}
    def place(one):
        last = 2 if one.name in ALONE else one.name in PAIR
        return last, -known.get(one.name, guess.get(one.name, 60 if one.end_to_end else 10))
    return sorted(chosen, key=place)


def is_idle():
    """Whether one program more disturbs nobody: for ten seconds hardly anybody has waited for a processor."""
    try:
        return float(re.search(r"some avg10=([\d.]+)", Path("/proc/pressure/cpu").read_text())[1]) < IDLE
    except (OSError, TypeError):
        return False


def has_memory():
    """For the beds of one program more."""
    try:
        return int(re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())[1]) > SPARE
    except (OSError, TypeError):
        return False


def following(queue, running, jobs):
    """The first that may run beside these; None: they are enough. `jobs` programs of which each has a test for every processor are as many
    tests as the machine is given; where they have fewer, others take their places."""
    if not running:
        return next(iter(queue), None)
    names = {program.name for program in running}
    if names & ALONE:
        return None
    if names & PAIR:
        return next((program for program in queue if program.name in PAIR), None) if len(running) < jobs else None
    waits = bool(names & WAITING.keys())
    beside = [program for program in queue if program.name not in ALONE | PAIR and not (waits and program.name in WAITING)]
    if len(running) < jobs:
        return next(iter(beside), None)
    # One at a time is meant so.
    if jobs == 1 or time.time() - running[-1].began < SETTLED or not has_memory():
        return None
    room = jobs * PROCESSORS - sum(program.at_a_time() for program in running)
    fits = next((program for program in beside if program.at_a_time() <= room), None)
    return fits or (next(iter(beside), None) if len(running) < 2 * jobs and is_idle() else None)


def run(queue, jobs, limit, clock, environment, meter):
    """Runs them; those that were never begun are returned."""
    running = []
    try:
        return run_all(queue, running, jobs, limit, clock, environment, meter)
    finally:
        # Also when this program fails: nothing goes on.
        for program in running:
            test_programs.stop(program.process)


def run_all(queue, running, jobs, limit, clock, environment, meter):
    total, ended, first = len(queue), [], time.time()
    while queue or running:
        while not clock.is_over():
            program = following(queue, running, jobs)
            if not program:
                break
            queue.remove(program)
            program.start(environment)
            running.append(program)
        if not running:
            break
        time.sleep(0.1)
        for program in list(running):
            now, problem = time.time(), None
            if program.process.poll() is None:
                if not clock.is_over() and now - program.began < limit:
                    continue
                problem = "ended: no time left for the whole run" if clock.is_over() else f"ended: it took longer than {limit} s"
                test_programs.stop(program.process)
            program.judge(problem)
            program.kept_waiting_ms = meter.worst_ms(program.began)
            running.remove(program)
            ended.append(program)
            if program.failed:
                print(program.log.read_text(errors="replace"))
            verdict = f"FAILED, {'; '.join(program.broken + program.problems)}" if program.failed else f"ok, {program.passed} passed"
            print(f"== {program.name}: {verdict}; {program.seconds:.0f} s, {len(ended)} of {total}, {now - first:.0f} s in all;"
                  f" processes waited up to {program.kept_waiting_ms} ms, processors {busy_since(program.ticks_before):.0f} % busy", flush=True)
    return ended, queue


def run_again(ended, journal, limit, clock, environment):
    """What a machine without time for it can have spoilt is tried again, without others. Each is told."""
    # Of some attempts it is known that nobody was kept waiting while they failed (tests/src/watch.rs).
    calm = {(line["program"], line["test"]) for line in journal
            if line["kind"] == "attempt" and line["error"] is not None and line["stalled_ms"] < line["explains_ms"]}
    # What a test says of itself when it fails (tests/src/case.rs). One that crashed, hung or had no case has said nothing, and nothing excuses it.
    stalled = {}
    for line in (line for line in journal if line["kind"] == "failed" and line["stalled_ms"] >= line["explains_ms"]):
        failure = (line["program"], line["test"])
        stalled[failure] = max(stalled.get(failure, 0), line["stalled_ms"])
    failures = [(program, name, (program.name_in_journal(), name)) for program in ended for name in program.broken
                if program.end_to_end and program.name not in ALONE and not program.problems]
    spoilt = [(program, name, stalled[failure]) for program, name, failure in failures if failure in stalled and failure not in calm]
    if clock.is_over() or not 0 < len(spoilt) <= MOST_AGAIN:
        return
    print(f"\nagain, {AGAIN} times each, with nothing beside them")
    for program, name, stalled_ms in spoilt:
        outcome = "passed" if program.run_again(name, environment, time.time() + limit, clock) else "FAILED again"
        print(f"  {program.name}, {name}: failed while processes waited up to {stalled_ms} ms in a second, {outcome}", flush=True)


def records(file):
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def unproven_rows(ended):
    """Rows of the documents whose promises stand on tests: those of which a test has not passed in this run. Each table of
    docs/compatibility.md has its tests in the last column, also those whose rows have no id."""
    proven = set().union(*(program.proven for program in ended))
    rows = [(row[:60], names) for page, row, names in rows_of_documents(ROOT) if names and (page == "compatibility" or ROW_ID.fullmatch(row))]
    print(f"\nrows: {len(rows)} of docs/compatibility.md and docs/packaging.md stand on {sum(len(names) for _, names in rows)} tests")
    return [(row, name) for row, names in rows for name in names if name not in proven]


def tell_figures(journal):
    """What clients have seen, the worst of each: what is near its bound shows before it breaks it."""
    watches = [line for line in journal if line["kind"] == "watch"]
    if watches:
        print("\nclients that asked every 10 ms: the longest outages, without the machine's stalls")
        for line in sorted(watches, key=lambda line: -line["outage_ms"])[:15]:
            bound = "" if line["bound_ms"] is None else f" of {line['bound_ms']}"
            when = f" ({line['first_lost_ms'] / 1000:.2f} to {line['last_lost_ms'] / 1000:.2f} s)" if line["lost"] else ""
            print(f"  {line['outage_ms']:6} ms{bound} (gap {line['gap_ms']} ms), lost {line['lost']} of {line['sent']}{when}:"
                  f" {line['program'].rsplit('-', 1)[0]}, {line['what']}")
        print(f"answers after a retransmission: {sum(line['late'] for line in watches)} of {sum(line['sent'] for line in watches)}")
    answers = [line for line in journal if line["kind"] == "answers" and line["overlap_ms"]]
    if answers:
        print("two nodes answered, without the machine's stalls")
        for line in sorted(answers, key=lambda line: -line["overlap_ms"])[:8]:
            print(f"  {line['overlap_ms']:6} ms (in all {line['double_ms']} ms): {line['program'].rsplit('-', 1)[0]}, {line['what']}")


def tell_losses(journal):
    """Of clients that should lose nothing; those that nothing explains. Tests allow a few losses of a busy machine: it has such a moment
    once in a run, at most."""
    watches = [line for line in journal if line["kind"] == "watch" and line["bound_ms"] == 0]
    lost = [line for line in watches if line["lost"]]
    print(f"clients that should lose nothing: {len(lost)} of {len(watches)} lost something")
    return [f"{line['test']}: {line['what']}: a client that should lose nothing lost {line['lost']} of {line['sent']} requests"
            for line in lost if len(lost) > 1]


def long_outages(journal, late_ms):
    """What clients saw that is beyond its bound as it was measured, and for which this program's clock was not late either. `late_ms`: by
    how much at most, by the name of the program in the journal."""
    found = []
    for line in journal:
        late = max(late_ms.get(line.get("program"), 0), line.get("prober_stall_ms", 0))
        what = f"{line.get('test')}: {line.get('what')}"
        if line["kind"] == "watch" and line["bound_ms"] and line["gap_ms"] - late >= line["bound_ms"]:
            found.append(f"{what}: a client had no answer for {line['gap_ms']} ms, the bound is {line['bound_ms']} ms,"
                         f" and a clock was late by {late} ms at most")
        if line["kind"] == "answers" and line["double_ms"] - late >= line["bound_ms"]:
            found.append(f"{what}: two nodes answered for {line['double_ms']} ms, the bound is {line['bound_ms']} ms,"
                         f" and a clock was late by {late} ms at most")
    return found


def tell_skipped(journal):
    """What this machine cannot do: such a test passes, and proves nothing."""
    skipped = [line for line in journal if line["kind"] == "skipped"]
    print(f"\nskipped: {len(skipped)}")
    for line in skipped:
        print(f"  {line['test']}: {line['why']}")


def tell_retries(journal):
    """How many there were; those that nothing explains."""
    attempts = [line for line in journal if line["kind"] == "attempt"]
    failures = [line for line in attempts if line["error"] is not None]
    passed = sorted(line["stalled_ms"] for line in attempts if line["error"] is None)
    usual = f"; in the worst second of one that passed processes waited for {passed[(len(passed) - 1) // 2]} ms (median)" if passed else ""
    print(f"\nretries: {len(failures)} of {len(attempts)} attempts failed{usual}")
    for line in failures:
        why = f"processes waited for up to {line['stalled_ms']} ms in a second"
        print(f"  {line['test']}: {line['what']}, attempt {line['number']}, {why}: {line['error'].splitlines()[0][:160]}")
    calm = [line for line in failures if line["stalled_ms"] < RETRY_EXPLAINS_MS]
    return calm if len(failures) <= MOST_RETRIES else failures


def from_environment(variable, usual):
    """What the environment says, above zero."""
    text = os.environ.get(variable)
    try:
        value = usual if text is None else type(usual)(text)
        if value > 0:
            return value
    except ValueError:
        pass
    sys.exit(f"test: {variable}={text} is no {'whole ' if isinstance(usual, int) else ''}number above 0")


def is_program(name):
    """Whether cargo finds one of this name: a file, or a directory with a main.rs, in the tests of the whole product or of a crate."""
    places = [(ROOT / "tests/tests", name)]
    places += [(crate / "tests", name.removeprefix(f"{crate.name}-")) for crate in (ROOT / "crates").iterdir() if name.startswith(f"{crate.name}-")]
    return any((place / f"{stem}.rs").exists() or (place / stem / "main.rs").exists() for place, stem in places)


def lost_names():
    """What has a rule above and is no program: one that was renamed would lose its rule without a word."""
    lists = {"ALONE": ALONE, "PAIR": PAIR, "WAITING": WAITING, "THREADS": THREADS, "LONG": LONG}
    return [f"{name} in {where}" for where, names in lists.items() for name in names if name != "conformance" and not is_program(name)]


def main():
    words = sys.argv[1:]
    if "--help" in words or "-h" in words:
        print(__doc__.strip())
        return
    unknown = [word for word in words if word.startswith("-") and word not in ("--unit", "--e2e")]
    if unknown:
        sys.exit(f"test: there is no {' '.join(unknown)}; there are --unit, --e2e, --help and names of programs")
    if os.geteuid() != 0:
        sys.exit("test: needs root")
    kinds = {word for word in words if word.startswith("-")} or {"--unit", "--e2e"}
    names = {word for word in words if not word.startswith("-")}
    if lost_names():
        sys.exit(f"test: dev/test.py has rules for programs that are not there: {', '.join(lost_names())}")
    jobs, limit = from_environment("E2E_JOBS", 2), from_environment("TEST_LIMIT", 900)
    clock = Clock(from_environment("TEST_DEADLINE", float("inf")))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    seed = os.environ.get("HCP_SEED") or str(int(commit[:7] or "0", 16))
    OUT.mkdir(parents=True, exist_ok=True)
    lock = (OUT / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"test: another run writes to {OUT}; CARGO_TARGET_DIR names another directory")
    file = OUT / "journal.jsonl"
    file.unlink(missing_ok=True)
    environment = {**os.environ, "HCP_REQUIRE_ROOT": "1", "HCP_JOURNAL": str(file), "HCP_SEED": seed}

    found = programs()
    left_out = Conformance.lacks()
    if not left_out:
        found.append(Conformance())
    elif "conformance" in names:
        sys.exit(f"test: conformance: {left_out}")
    unknown = names - {program.name for program in found}
    if unknown:
        sys.exit(f"test: no such program: {', '.join(sorted(unknown))}; there are {', '.join(sorted(program.name for program in found))}")
    chosen = [program for program in found if ("--e2e" if program.end_to_end else "--unit") in kinds and (not names or program.name in names)]
    if not chosen:
        sys.exit(f"test: of {', '.join(sorted(names))} none is of the kind {' '.join(sorted(kinds))}")
    for program in chosen:
        program.list()
    listed = sum(len(program.listed) for program in chosen)
    print(f"test: {listed} tests in {len(chosen)} programs, {jobs} at a time; seed {seed} (HCP_SEED={seed} repeats it)", flush=True)
    origin = {**conditions(), "commit": build(ROOT), "quick": False, "command": "make test"}
    file.write_text(json.dumps({"kind": "run", "whole": len(chosen) == len(found), "origin": origin}) + "\n")
    # Of a choice of programs nobody expects them.
    left_out = left_out if "--e2e" in kinds and not names else None
    if left_out:
        print(f"test: Kubernetes' own tests are left out: {left_out}", flush=True)
    meter, begun = Meter(), time.time()
    ended, left = run(in_order(chosen), jobs, limit, clock, environment, meter)
    with file.open("a") as journal:
        # What comes behind it is of tests that ran again.
        journal.write(json.dumps({"kind": "ended", "left": [program.name for program in left], "seconds": round(time.time() - begun)}) + "\n")
    run_again(ended, records(file), limit, clock, environment)

    keep_durations(ended, found)
    print("\ndurations")
    for program in sorted(ended, key=lambda program: -program.seconds):
        if program.seconds >= 1:
            print(f"  {program.seconds:6.0f} s  {program.name}")
    journal = records(file)
    tell_figures(journal)
    unexplained = tell_retries(journal)
    outages = [*tell_losses(journal), *long_outages(journal, {program.name_in_journal(): program.kept_waiting_ms for program in ended})]
    tell_skipped(journal)
    unproven = unproven_rows(ended) if len(chosen) == len(found) else []
    for program in ended:
        if program.failed:
            print(f"FAILED {program.name}: {'; '.join(program.broken + program.problems)}; see {program.log}")
    for line in unexplained:
        print(f"FAILED {line['test']}: tried again, and the machine does not explain it: {line['what']}")
    for text in outages:
        print(f"FAILED {text}")
    for row, name in unproven:
        print(f"FAILED row {row}: its test {name} has not passed")
    if left:
        print(f"FAILED: no time was left for {', '.join(program.name for program in left)}")
    if len(chosen) == len(found):
        print("dev/figures.py tests keeps what clients saw in this run in docs/performance.md")
    failed = sum(program.failed for program in ended) + sum(max(1, len(program.listed)) for program in left)
    failed += len(unexplained) + len(outages) + len(unproven)
    if left_out:
        missed = os.environ.get("HCP_CONFORMANCE") == "1"
        failed += missed
        print(f"{'FAILED: ' if missed else ''}Kubernetes' own tests were left out: {left_out}")
    again = sum(len(program.again) for program in ended)
    line = f"{sum(program.passed for program in ended)} passed{f' ({again} of them when they ran again)' if again else ''}, {failed} failed"
    (OUT / "sum").write_text(line + "\n")
    print(f"\nthe machine: {meter.said()}\nseed {seed}\n{line}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
