#!/usr/bin/env python3
"""figures.py: measures what docs/performance.md and the README say, keeps it as data, and writes their tables from it.

  figures.py measure [--missing] [--quick] [--runs [STEP=]N]... [--minutes N] [--only STEP]... [--list]   takes the steps in the order of
                their weight, on an idle machine, as root; --missing leaves out what is there of this build; --quick takes fewer runs, --runs
                this many; --minutes takes fewer where the time is short, leaves out what would not be done by then, and names both.
                `make figures` does this.
  figures.py tests      keeps what clients saw in the last `make test`
  figures.py suite      keeps the report of the last `make conformance` of all tests, in JUnit's form, and where it comes from; `make conformance`
                without ARGS ends with it
  figures.py write      writes the tables anew
  figures.py check      fails if a table says something else than the data, or the data has a path of this machine, or the records of
                Kubernetes' own suite differ (in `make test`)

Each step is one file in docs/data/figures: what the benchmark wrote, raw values and all, with commit, machine, load, time and command.
Tables lie between `<!-- figures: NAME -->` and `<!-- /figures -->`. A row of another build than most steps are of is marked with that build.
"""

import argparse
import copy
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

# What is imported leaves nothing in the tree.
sys.dont_write_bytecode = True

import programs as test_programs
from figures_tables import TABLES, Data
from machine import build, conditions, last_change

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs/data"
PAGES = ["README.md", "docs/performance.md"]
OUT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


class Step:
    """A benchmark's part, which takes `seconds`, or `quick_seconds`."""

    # Seconds to clean up in, for one that is told to end.
    patience = 10
    # It runs in namespaces of its own; a demo makes and removes what it needs by itself, and one that builds needs the network, too.
    private = True

    def __init__(self, name, program, args, quick, seconds, quick_seconds, parse=None):
        self.name, self.program, self.args, self.quick = name, program, args, quick
        self.seconds, self.quick_seconds, self.parse = seconds, quick_seconds, parse

    def words(self, take, report, programs):
        words = [word.replace("REPORT", str(report)).replace("RUNS", str(take)) for word in (self.quick if take == "quick" else self.args)]
        return [str(programs / self.program), *words]

    def once(self, words, report, log, limit):
        """One run of the program: its report, or None, and its status."""
        report.unlink(missing_ok=True)
        private = [str(ROOT / "dev/private.sh")] if self.private else []
        with log.open("w") as file:
            process = subprocess.Popen([*private, *words], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status = process.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                status = f"no end after {limit} s"
            finally:
                # Also when this program is told to end: nothing may go on measuring.
                if process.poll() is None:
                    former = signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    test_programs.stop(process, self.patience)
                    signal.signal(signal.SIGTERM, former)
        try:
            found = self.parse(log.read_text()) if self.parse else json.loads(report.read_text())
            if is_empty(found):
                raise ValueError("no run is whole")
        except (OSError, ValueError, KeyError, IndexError) as error:
            print(f"  FAILED, status {status}, {error}; see {log}", flush=True)
            return None, status
        if status:
            print(f"  not everything could be measured, status {status}; see {log}", flush=True)
        return found, status

    def measured(self, take, words, report, log):
        """The report of all that is taken, or None, whether it is whole, and what its origin says beside the usual."""
        found, status = self.once(words, report, log, 3 * self.guess(take) + 300)
        return found, not status, {"runs": take} if isinstance(take, int) else {}

    def origin(self):
        """Of what was measured last."""
        try:
            return json.loads((DATA / "figures" / f"{self.name}.json").read_text())["origin"]
        except (OSError, ValueError, KeyError):
            return None

    def is_of(self, commit):
        """Whether all of it was measured of this build."""
        origin = self.origin()
        return origin is not None and origin["commit"] == commit and not origin["quick"]

    def take(self, quick, asked):
        """What is taken: all of it, or the quick part."""
        return "quick" if quick else "all"

    def fewer(self, take, seconds):
        """What is taken instead if there is no more time than this; None: nothing."""
        return take if self.guess(take) <= seconds else None

    def is_less(self, take):
        return take == "quick"

    def guess(self, take):
        """What it took last stands in its data; else as somebody guessed."""
        origin = self.origin()
        if origin and origin["quick"] == self.is_less(take):
            return origin["seconds"]
        return self.quick_seconds if take == "quick" else self.seconds


class Script(Step):
    """A program of this directory that needs no benchmark and measures one thing; its last line is JSON."""

    # What was built takes a while to remove.
    patience = 120
    private = False

    def __init__(self, name, seconds):
        super().__init__(name, f"dev/{name}.sh", [], [], seconds, seconds, parse=lambda said: json.loads(said.splitlines()[-1]))

    def words(self, take, report, programs):
        return [str(ROOT / self.program)]


class Runs(Step):
    """The same, some times over: `fixed` seconds, and `each` for each run. What is taken is a number of runs, at least `fewest`."""

    def __init__(self, name, program, args, fixed, each, runs, quick_runs, fewest):
        super().__init__(name, program, args, args, None, None)
        self.fixed, self.each, self.runs, self.quick_runs, self.fewest = fixed, each, runs, quick_runs, fewest

    def take(self, quick, asked):
        return asked.get(self.name, asked.get("", self.quick_runs if quick else self.runs))

    def fewer(self, take, seconds):
        fit = int((seconds - self.fixed) // ((self.guess(take) - self.fixed) / take))
        return take if fit >= take else fit if fit >= min(self.fewest, take) else None

    def is_less(self, take):
        return take < self.runs

    def guess(self, take):
        origin = self.origin()
        each = (origin["seconds"] - self.fixed) / origin["runs"] if origin and origin.get("runs") else self.each
        return self.fixed + take * max(1, each)


class Repeated(Runs):
    """A benchmark that knows no runs: it is begun anew for each, and the report of each is kept."""

    def __init__(self, name, program, args, each, runs, merge):
        super().__init__(name, program, args, 0, each, runs, 1, 1)
        self.merge = merge

    def measured(self, take, words, report, log):
        each = [self.once(words, report, log, 3 * self.guess(1) + 300) for _ in range(take)]
        reports = [found for found, _ in each if found]
        noted = {"runs": len(reports), "quick": self.is_less(len(reports))}
        try:
            return (self.merge(reports) if reports else None), not any(status for _, status in each), noted
        except (ValueError, IndexError) as error:
            print(f"  FAILED, {error}; see {log}", flush=True)
            return None, False, noted


def announcer(case, fixed, each, runs=10, quick_runs=3, fewest=3, outage=None):
    words = ["--only", case, "--report", "REPORT"] + (["--outage", str(outage)] if outage else [])
    return Runs(f"announcer-{case}", "bench-announcer", [*words, "--runs", "RUNS"], fixed, each, runs, quick_runs, fewest)


def whole(case, words, quick, seconds, quick_seconds):
    """A part of the same that knows no runs."""
    words, quick = ([*these, "--report", "REPORT"] for these in (words, quick))
    return Step(f"announcer-{case}", "bench-announcer", words, quick, seconds, quick_seconds)


def bench(part, seconds, quick_seconds):
    words = ["--only", part, "--report", "REPORT"]
    return Step(part if part.startswith("ccm-") else f"bench-{part}", "bench", words, [*words, "--quick"], seconds, quick_seconds)


def repeated(part, each, runs):
    return Repeated(part, "bench", ["--only", part, "--report", "REPORT"], each, runs, medians)


def medians(reports):
    """Of each figure the median, and what each run has found."""
    merged = copy.deepcopy(reports[0])
    for part_number, part in enumerate(merged["parts"]):
        for number, figure in enumerate(part["figures"]):
            alike = [report["parts"][part_number]["figures"][number] for report in reports]
            if len({one["what"] for one in alike}) != 1:
                raise ValueError(f"runs of {part['part']} have other figures than the first one")
            middle = sorted(alike, key=lambda one: one["value"])[(len(alike) - 1) // 2]
            figure.update(value=middle["value"], holds=middle["holds"], values=[one["value"] for one in alike])
    return {**merged, "runs": reports}


class Demo(Repeated):
    private = False


def demos(reports):
    return {"runs": reports}


class Simulation(Step):
    """The simulation is not in what is built for machines, so its own commit is noted, too."""

    def measured(self, take, words, report, log):
        found, whole, noted = super().measured(take, words, report, log)
        return found, whole, {**noted, "simulation": last_change(ROOT, "crates/announcer-sim")}


# Where each kind of runs begins, as in crates/announcer-sim/src/scenario: with one fault or in a large cluster, with two NICs, on a LAN that lies.
WIDE, TWO_NICS, LIES = 20_000_000, 30_000_000, 40_000_000


def simulation(mode, seconds, quick_seconds, seeds, quick_seeds, *more):
    """So many seeds from 0 on, and so many of each other kind."""
    def words(count):
        return ["--mode", mode, "--from", ",".join(map(str, (0, *more))), "--seeds", str(count)]
    return Simulation(f"sim-{mode}", "sim", words(seeds), words(quick_seeds), seconds, quick_seconds, parse=simulated)


def simulated(said):
    """What the simulation prints, as numbers."""
    lines = said.splitlines()
    # A long run says first how far it is.
    head = [line for line in lines if line.startswith("mode ")][0].replace(",", "").replace(":", "").split()
    number = {word: before for before, word in zip(head, head[1:])}
    longest = {}
    for line in lines:
        if line.startswith("  ") and " s (seed " in line:
            promise, rest = line.strip().rsplit(": ", 1)
            longest[promise] = {"seconds": float(rest.split()[0]), "seed": int(rest.rsplit(" ", 1)[1].rstrip(")"))}
    return {"seeds": int(number["seeds"]), "seconds": float(head[head.index("in") + 1]), "events": int(number["events"]),
            "moves": int(number["moves"]), "longest": longest, "broken": "no promise was broken" not in said}


# The first ones are what clients are promised while something breaks, then what the README says.
STEPS = [
    announcer("power-loss", 30, 21), announcer("hypervisor", 30, 35), announcer("majority", 30, 35), announcer("late-writes", 30, 35),
    announcer("strangers-power-loss", 30, 70, quick_runs=2, fewest=1), announcer("minority", 30, 50, quick_runs=2, fewest=1),
    announcer("unready", 30, 60, quick_runs=2, fewest=1), announcer("strangers", 30, 110, quick_runs=1, fewest=1, outage=60),
    announcer("upgrade", 30, 40, quick_runs=2, fewest=1), announcer("terminate", 23, 16), announcer("kill", 20, 20),
    announcer("lost-node", 115, 230, fewest=1), whole("at-rest", ["--only", "at-rest"], ["--only", "at-rest"], 900, 900),
    bench("pool-1-default-proxy", 60, 40), bench("pool-1", 150, 80), bench("ccm-one", 60, 60), repeated("ccm-real", 80, 3),
    Demo("demo", "demo", ["run", "--report", "REPORT"], 60, 10, demos),
    announcer("new-service", 34, 9), announcer("power-loss-fast", 30, 21), announcer("dhcp-power-loss", 30, 21),
    announcer("terminate-alone", 20, 18), announcer("nobody-has-api", 20, 90, runs=2, quick_runs=1, fewest=1, outage=60),
    announcer("owner-without-api", 20, 80, runs=2, quick_runs=1, fewest=1, outage=60), repeated("ccm-fast-100", 25, 10), repeated("ccm-backlog", 30, 10),
    announcer("200-vips", 120, 180, runs=2, quick_runs=1, fewest=1), bench("ccm-healthy-500", 240, 240), bench("ccm-outage", 200, 200),
    bench("ccm-pools", 300, 300), repeated("ccm-nodes-1000", 75, 3), repeated("ccm-fast-1000", 75, 3), bench("dhcp-1", 150, 80),
    bench("rest", 120, 60), announcer("pause-300", 20, 17), announcer("pause-1000", 20, 18), announcer("pause-3000", 20, 20),
    announcer("power-loss-spread", 30, 21), announcer("power-loss-etcd", 35, 22), bench("real-100", 150, 150),
    simulation("node", 1200, 200, 2_500, 400, WIDE, TWO_NICS, LIES), simulation("global", 30, 8, 2_500, 400, WIDE),
    simulation("service", 30, 8, 2_500, 400, WIDE),
    bench("ccm-fast-3000", 900, 900), bench("ccm-fast-10000", 2400, 2400), bench("ccm-nodes-5000", 600, 600), bench("ccm-safe-mode", 720, 720),
    whole("dhcp-renew", ["--only", "dhcp-renew", "--runs", "10"], ["--only", "dhcp-renew", "--runs", "10"], 1260, 1260),
    whole("false-verdicts", ["--only", "false-verdicts", "--minutes", "30"], ["--only", "false-verdicts", "--minutes", "5"], 1920, 420),
    Script("cold-demo", 720), whole("soak", ["--soak", "30"], ["--soak", "5"], 1830, 330),
]


def is_empty(report):
    """A bench of runs that has none: nothing to keep in the place of older figures."""
    if "cases" not in report:
        return False
    runs = any(one["runs"] for part in ("cases", "lan", "lost_node") for one in report.get(part, []))
    return not runs and not any(report.get(part) for part in ("many", "renew", "at_rest", "false_verdicts", "soak"))


def run(step, take, commit, programs):
    """One step; its data, and whether everything could be measured."""
    report = OUT / "figures" / f"{step.name}.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    words = step.words(take, report, programs)
    command = " ".join([step.program, *words[1:]]).replace(str(report), "REPORT")
    origin = {**conditions(), "commit": commit, "quick": step.is_less(take), "command": command}
    begun = time.time()
    found, whole, noted = step.measured(take, words, report, report.with_suffix(".log"))
    origin |= {**noted, "seconds": round(time.time() - begun, 1)}
    return ({"origin": origin, "report": found} if found else None), bool(found) and whole


def measure(options):
    commit = build(ROOT)
    chosen = [step for step in STEPS if not options.only or step.name in options.only]
    if options.missing:
        chosen = [step for step in chosen if not step.is_of(commit)]
    unknown = set(options.only) - {step.name for step in STEPS}
    if unknown:
        sys.exit(f"figures: no such step: {', '.join(sorted(unknown))}; --list names them")
    takes = {step.name: step.take(options.quick, options.runs) for step in chosen}
    unknown = set(options.runs) - {step.name for step in STEPS if isinstance(step, Runs)} - {""}
    if unknown:
        sys.exit(f"figures: no step of several runs: {', '.join(sorted(unknown))}")
    if options.list:
        for step in chosen:
            many = f", {takes[step.name]} runs" if isinstance(step, Runs) else ""
            print(f"{step.guess(takes[step.name]):6.0f} s  {step.name}{many}")
        print(f"{sum(step.guess(takes[step.name]) for step in chosen) / 60:6.0f} min in all")
        return
    if os.geteuid() != 0:
        sys.exit("figures: needs root")
    # Every step would fail without them, one after the other.
    missing = [name for name in ("HCP_TOOLS", "HCP_BINARY") if not os.environ.get(name)]
    missing += sorted({path for step in chosen if not isinstance(step, Script) and not (path := options.programs / step.program).exists()})
    if missing:
        sys.exit(f"figures: {', '.join(map(str, missing))}: not there; `make figures` builds what is measured and sets them")
    begun, left, fewer, failed = time.time(), [], [], []
    end = begun + 60 * options.minutes if options.minutes else float("inf")
    (DATA / "figures").mkdir(parents=True, exist_ok=True)
    for step in chosen:
        take = takes[step.name] if end == float("inf") else step.fewer(takes[step.name], end - time.time())
        if take is None:
            left.append(step.name)
            continue
        if take != takes[step.name]:
            fewer.append(f"{step.name} ({take} of {takes[step.name]} runs)")
        print(f"{time.time() - begun:5.0f} s  {step.name} (about {step.guess(take):.0f} s)", flush=True)
        data, whole = run(step, take, commit, options.programs.resolve())
        if not whole:
            failed.append(step.name)
        if data:
            (DATA / "figures" / f"{step.name}.json").write_text(json.dumps(data, indent=1) + "\n")
            write()
    print(f"{time.time() - begun:5.0f} s  done, commit {commit}; tables of {', '.join(PAGES)} are written anew")
    if fewer:
        print(f"there was time for fewer runs of {', '.join(fewer)}")
    if left:
        print(f"no time was left for {', '.join(left)}")
    if failed:
        sys.exit(f"figures: failed in part or whole: {', '.join(failed)}")


def tests():
    """From the journal of the last `make test`: its first line says what was tested, and behind the line of its end is what ran again."""
    journal = OUT / "test/journal.jsonl"
    if not journal.exists():
        sys.exit(f"figures: there is no {journal}; `make test` leaves it")
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    begun, ended = (next((number for number, line in enumerate(lines) if line["kind"] == kind), None) for kind in ("run", "ended"))
    if begun is None or not lines[begun]["whole"]:
        sys.exit("figures: the last run of dev/test.py was not one of all tests")
    if ended is None or lines[ended]["left"]:
        sys.exit("figures: the last run of dev/test.py was ended before all tests had run")
    (DATA / "figures").mkdir(parents=True, exist_ok=True)
    kinds = {"watches": "watch", "answers": "answers", "attempts": "attempt", "skipped": "skipped"}
    report = {name: [line for line in lines[:ended] if line["kind"] == kind] for name, kind in kinds.items()}
    report |= {"sum": (OUT / "test/sum").read_text().strip(), "seconds": json.loads((OUT / "test/durations.json").read_text()),
               "wall_seconds": lines[ended].get("seconds")}
    (DATA / "figures/tests.json").write_text(json.dumps({"origin": lines[begun]["origin"], "report": report}, indent=1) + "\n")
    write()


def suite():
    """The report has to be of a run of all tests, and the table of the same run: a later run of some replaces only their rows. And it has to
    be of a build that somebody else can make, too."""
    report, before = OUT / "conformance/junit.xml", OUT / "conformance/origin.json"
    if not report.exists() or not before.exists():
        sys.exit(f"figures: there is no {before if report.exists() else report}; `make conformance` writes it")
    differences = differences_of_the_suite(report)
    origin = {**json.loads(before.read_text()), "command": "make conformance", "report_sha256": digest(report)}
    commits = sorted({row["commit"] for row in rows_of_the_suite()})
    if not differences and commits != [origin["commit"]]:
        differences = [f"rows are of {', '.join(commits)}, and the run was of {origin['commit']}"]
    differences = differences or differences_of_the_origin(origin, report)
    if differences:
        sys.exit(f"figures: {report} is not kept: it is not of the run that docs/data/conformance.json is of, or nobody can make its build:"
                 f" {differences[0]}; run `make conformance` without ARGS on a tree whose changes are committed")
    shutil.copyfile(report, DATA / "conformance.xml")
    suite_origin().write_text(json.dumps(origin, indent=1) + "\n")


def suite_origin():
    """Where the kept report comes from: machine, load and build. It is beside the table, which a run of some writes anew."""
    return DATA / "conformance-origin.json"


def rows_of_the_suite():
    return json.loads((DATA / "conformance.json").read_text())["rows"]


def digest(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def differences_of_the_origin(origin, report):
    """What the origin says otherwise than the report and the table. Rows may be of a later run, but of none of a changed tree."""
    if origin["report_sha256"] != digest(report):
        return ["the origin is of another report"]
    return [f"{row['name']}: a row of {row['date']}, before the run of {origin['date']}" for row in rows_of_the_suite() if row["date"] < origin["date"]] + [
        f"{row['name']}: a row of build {row['commit']}" for row in rows_of_the_suite() if row["commit"] == "unknown" or row["commit"].endswith("-dirty")]


def differences_of_the_suite(report):
    """What the report says otherwise than the table. Times are those of one run each, and rows may be of a later one."""
    table = {row["name"]: row["result"] for row in rows_of_the_suite()}
    told = {case.get("name"): next((child.get("message") if child.tag == "failure" else child.tag for child in case), "passed")
            for case in ElementTree.parse(report).iter("testcase")}
    return [f"{name}: {told.get(name, 'not there')} in the report, {table.get(name, 'not there')} in the table"
            for name in sorted(told.keys() | table.keys()) if told.get(name) != table.get(name)]


def pages():
    """Each page as it is, and as the data says it should be."""
    data = Data(DATA)
    used = set()
    for page in PAGES:
        is_now, out, inside = (ROOT / page).read_text(), [], None
        for line in is_now.splitlines():
            if line == "<!-- /figures -->":
                inside = None
            if inside is None:
                out.append(line)
            if line.startswith("<!-- figures: "):
                inside = line.split()[2]
                used.add(inside)
                out += ["", *TABLES[inside](data), ""]
        if inside:
            sys.exit(f"figures: {page}: table {inside} has no end")
        yield page, is_now, "\n".join(out) + "\n"
    unused = set(TABLES) - used
    if unused:
        sys.exit(f"figures: tables without a place: {', '.join(sorted(unused))}")


def write():
    for page, is_now, should_be in list(pages()):
        if is_now != should_be:
            (ROOT / page).write_text(should_be)


def check():
    stale = [page for page, is_now, should_be in pages() if is_now != should_be]
    if stale:
        sys.exit(f"figures: {', '.join(stale)} differs from docs/data; write it anew with: dev/figures.py write")
    report = DATA / "conformance.xml"
    differences = differences_of_the_suite(report)
    # A report that was kept before there were origins has none.
    if suite_origin().exists():
        differences += differences_of_the_origin(json.loads(suite_origin().read_text()), report)
    if differences:
        sys.exit(f"figures: docs/data/conformance.xml differs from conformance.json {len(differences)} times, or from its origin, first:"
                 f" {differences[0]}; run `make conformance` without ARGS")
    # What is kept says nothing of where on a machine it was measured.
    for path in [*DATA.rglob("*.json"), *DATA.rglob("*.xml")]:
        text = path.read_text()
        place = next((place for place in (ROOT, Path.home()) if f"{place}/" in text), None)
        if place:
            sys.exit(f"figures: {path.relative_to(ROOT)} has a path of this machine in it: {place}")
    print(f"figures: {len(TABLES)} tables follow from the data")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("figures: told to end"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["measure", "tests", "suite", "write", "check"])
    parser.add_argument("--missing", action="store_true", help="only what is not there of this build, or of fewer runs")
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument("--runs", action="append", default=[], metavar="[STEP=]N", help="runs of this step, or of each that has several")
    parser.add_argument("--minutes", type=float, help="take fewer runs or leave out what would not be done by then")
    parser.add_argument("--only", action="append", default=[], metavar="STEP")
    parser.add_argument("--programs", type=Path, default=OUT / "tools", metavar="DIRECTORY", help="where the benchmarks are")
    parser.add_argument("--list", action="store_true", help="steps and how long they take")
    options = parser.parse_args()
    try:
        options.runs = {step: max(1, int(runs)) for step, _, runs in (text.rpartition("=") for text in options.runs)}
    except ValueError:
        parser.error("--runs takes a number, or STEP=NUMBER")
    {"measure": lambda: measure(options), "tests": tests, "suite": suite, "write": write, "check": check}[options.verb]()


if __name__ == "__main__":
    main()
