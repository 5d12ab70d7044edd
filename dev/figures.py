#!/usr/bin/env python3
"""figures.py: measures what docs/performance.md and the README say, keeps it as data, and writes their tables from it.

  figures.py measure [--quick] [--minutes N] [--only STEP]... [--list]   takes the steps in the order of their weight, on an idle machine, as
                root; --minutes leaves out what would not be done by then and names it; --quick takes fewer runs. `make figures` does this.
  figures.py tests      keeps what clients saw in the last `make test`
  figures.py write      writes the tables anew
  figures.py check      fails if a table says something else than the data (in `make test`)

Each step is one file in docs/data/figures: what the benchmark wrote, raw values and all, with commit, machine, load, time and command.
Tables lie between `<!-- figures: NAME -->` and `<!-- /figures -->`. A row of another build than the newest is marked with that build.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

# What is imported leaves nothing in the tree.
sys.dont_write_bytecode = True

from figures_tables import TABLES, Data
from machine import build, conditions

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs/data"
PAGES = ["README.md", "docs/performance.md"]
OUT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


class Step:
    """A benchmark's part: `seconds` are a guess for who has never run it; what it took last stands in its data."""

    def __init__(self, name, program, args, quick, seconds, quick_seconds, parse=None):
        self.name, self.program, self.args, self.quick = name, program, args, quick
        self.seconds, self.quick_seconds, self.parse = seconds, quick_seconds, parse

    def words(self, quick, report, programs):
        words = [word.replace("REPORT", str(report)) for word in (self.quick if quick else self.args)]
        return [str(programs / self.program), *words]

    def guess(self, quick):
        try:
            origin = json.loads((DATA / "figures" / f"{self.name}.json").read_text())["origin"]
            return origin["seconds"] if origin["quick"] == quick else self.quick_seconds if quick else self.seconds
        except (OSError, ValueError, KeyError):
            return self.quick_seconds if quick else self.seconds


def announcer(case, seconds, quick_seconds, runs=10, quick_runs=3, outage=None):
    words = ["--only", case, "--report", "REPORT"] + (["--outage", str(outage)] if outage else [])
    return Step(f"announcer-{case}", "bench-announcer", [*words, "--runs", str(runs)], [*words, "--runs", str(quick_runs)], seconds,
                quick_seconds)


def bench(part, seconds, quick_seconds):
    words = ["--only", part, "--report", "REPORT"]
    return Step(part if part.startswith("ccm-") else f"bench-{part}", "bench", words, [*words, "--quick"], seconds, quick_seconds)


def simulation(mode, seconds, quick_seconds, seeds, quick_seeds):
    def words(count):
        return ["--mode", mode, "--seeds", str(count)]
    return Step(f"sim-{mode}", "sim", words(seeds), words(quick_seeds), seconds, quick_seconds, parse=simulated)


def simulated(said):
    """What the simulation prints, as numbers."""
    lines = said.splitlines()
    head = lines[0].replace(",", "").replace(":", "").split()
    number = {word: before for before, word in zip(head, head[1:])}
    longest = {}
    for line in lines:
        if line.startswith("  ") and " s (seed " in line:
            promise, rest = line.strip().rsplit(": ", 1)
            longest[promise] = {"seconds": float(rest.split()[0]), "seed": int(rest.rsplit(" ", 1)[1].rstrip(")"))}
    return {"seeds": int(number["seeds"]), "seconds": float(head[head.index("in") + 1]), "events": int(number["events"]),
            "moves": int(number["moves"]), "longest": longest, "broken": "no promise was broken" not in said}


# The first ones are what the README says.
STEPS = [
    announcer("power-loss", 240, 90), bench("pool-1-default-proxy", 60, 40), bench("pool-1", 150, 80), bench("ccm-one", 60, 60),
    bench("ccm-real", 130, 130), announcer("terminate", 180, 70), announcer("kill", 220, 80),
    Step("demo", "demo", ["run", "--report", "REPORT"], ["run", "--report", "REPORT"], 60, 60),
    announcer("new-service", 120, 60), announcer("power-loss-fast", 240, 90), announcer("dhcp-power-loss", 240, 90),
    announcer("terminate-alone", 200, 70), announcer("nobody-has-api", 200, 110, runs=2, quick_runs=1, outage=60),
    announcer("owner-without-api", 180, 100, runs=2, quick_runs=1, outage=60), bench("ccm-fast-100", 60, 60), bench("ccm-backlog", 120, 120),
    announcer("200-vips", 480, 300, runs=2, quick_runs=1), bench("ccm-healthy-500", 240, 240), bench("ccm-outage", 200, 200),
    bench("ccm-pools", 300, 300), bench("ccm-nodes-1000", 60, 60), bench("ccm-fast-1000", 150, 150), bench("dhcp-1", 150, 80),
    bench("rest", 120, 60), announcer("pause-300", 200, 70), announcer("pause-1000", 200, 70), announcer("pause-3000", 220, 80),
    announcer("power-loss-spread", 240, 90), announcer("power-loss-etcd", 260, 100), announcer("lost-node", 2400, 800, runs=10, quick_runs=3),
    announcer("at-rest", 900, 900),
    bench("real-100", 150, 150),
    simulation("node", 130, 20, 10_000, 1_500), simulation("global", 15, 8, 5_000, 2_500), simulation("service", 15, 8, 5_000, 2_500),
    bench("ccm-fast-3000", 900, 900), bench("ccm-fast-10000", 2400, 2400), bench("ccm-nodes-5000", 600, 600), bench("ccm-safe-mode", 720, 720),
    announcer("dhcp-renew", 1260, 1260, runs=10, quick_runs=10),
    Step("announcer-false-verdicts", "bench-announcer", ["--only", "false-verdicts", "--minutes", "30", "--report", "REPORT"],
         ["--only", "false-verdicts", "--minutes", "5", "--report", "REPORT"], 1920, 420),
    Step("announcer-soak", "bench-announcer", ["--soak", "30", "--report", "REPORT"], ["--soak", "5", "--report", "REPORT"], 1830, 330),
]


def run(step, quick, commit, programs):
    """One step; its data, and whether everything could be measured."""
    report = OUT / "figures" / f"{step.name}.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    words = step.words(quick, report, programs)
    command = " ".join([step.program, *words[1:]]).replace(str(report), "REPORT")
    origin = {**conditions(), "commit": commit, "quick": quick, "command": command}
    begun = time.time()
    # The demo makes and removes what it needs by itself.
    private = [] if step.program == "demo" else [str(ROOT / "dev/private.sh")]
    log = report.with_suffix(".log")
    with log.open("w") as file:
        limit = 3 * step.guess(quick) + 300
        try:
            status = subprocess.run([*private, *words], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, timeout=limit).returncode
        except subprocess.TimeoutExpired:
            status = f"no end after {limit} s"
    origin["seconds"] = round(time.time() - begun, 1)
    try:
        found = step.parse(log.read_text()) if step.parse else json.loads(report.read_text())
    except (OSError, ValueError, KeyError, IndexError) as error:
        print(f"  FAILED, status {status}, {error}; see {log}", flush=True)
        return None, False
    if status:
        print(f"  not everything could be measured, status {status}; see {log}", flush=True)
    return {"origin": origin, "report": found}, not status


def measure(options):
    chosen = [step for step in STEPS if not options.only or step.name in options.only]
    unknown = set(options.only) - {step.name for step in STEPS}
    if unknown:
        sys.exit(f"figures: no such step: {', '.join(sorted(unknown))}; --list names them")
    if options.list:
        for step in chosen:
            print(f"{step.guess(options.quick):6.0f} s  {step.name}")
        print(f"{sum(step.guess(options.quick) for step in chosen) / 60:6.0f} min in all")
        return
    if os.geteuid() != 0:
        sys.exit("figures: needs root")
    commit, begun, left, failed = build(ROOT), time.time(), [], []
    end = begun + 60 * options.minutes if options.minutes else float("inf")
    (DATA / "figures").mkdir(parents=True, exist_ok=True)
    for step in chosen:
        guess = step.guess(options.quick)
        if time.time() + guess > end:
            left.append(step.name)
            continue
        print(f"{time.time() - begun:5.0f} s  {step.name} (about {guess:.0f} s)", flush=True)
        data, whole = run(step, options.quick, commit, options.programs.resolve())
        if not whole:
            failed.append(step.name)
        if data:
            (DATA / "figures" / f"{step.name}.json").write_text(json.dumps(data, indent=1) + "\n")
            write()
    print(f"{time.time() - begun:5.0f} s  done, commit {commit}; tables of {', '.join(PAGES)} are written anew")
    if left:
        print(f"no time was left for {', '.join(left)}")
    if failed:
        sys.exit(f"figures: failed in part or whole: {', '.join(failed)}")


def tests():
    """From the journal of the last `make test`, whose first line says what was tested."""
    lines = [json.loads(line) for line in (OUT / "test/journal.jsonl").read_text().splitlines()]
    begun = next((line for line in lines if line["kind"] == "run"), None)
    if begun is None or not begun["whole"]:
        sys.exit("figures: the last run of dev/test.py was not one of all tests")
    (DATA / "figures").mkdir(parents=True, exist_ok=True)
    watches = [line for line in lines if line["kind"] == "watch"]
    (DATA / "figures/tests.json").write_text(json.dumps({"origin": begun["origin"], "report": {"watches": watches}}, indent=1) + "\n")
    write()


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
    print(f"figures: {len(TABLES)} tables follow from the data")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["measure", "tests", "write", "check"])
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument("--minutes", type=float, help="leave out what would not be done by then")
    parser.add_argument("--only", action="append", default=[], metavar="STEP")
    parser.add_argument("--programs", type=Path, default=OUT / "tools", metavar="DIRECTORY", help="where the benchmarks are")
    parser.add_argument("--list", action="store_true", help="steps and how long they take")
    options = parser.parse_args()
    {"measure": lambda: measure(options), "tests": tests, "write": write, "check": check}[options.verb]()


if __name__ == "__main__":
    main()
