#!/usr/bin/env python3
"""What a figure was taken of, and under which conditions.

  machine.py build    names the build that this tree makes
  machine.py origin   the same with machine, time and load, as JSON
"""

import json
import os
import platform
import subprocess
import sys
import threading
import time
from datetime import datetime, timezone
from pathlib import Path


def processor_ticks():
    """Of all processors, in ticks since the start of the machine: all time, and that in which they had nothing to do."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return sum(fields), fields[3] + fields[4]


def busy_since(before):
    """Per cent of the processors' time since then."""
    (all0, idle0), (all1, idle1) = before, processor_ticks()
    return 100 * (1 - (idle1 - idle0) / max(1, all1 - all0))


def busy_percent(seconds=2.0):
    """What the processors do now: an average over a minute would tell of what ran before."""
    before = processor_ticks()
    time.sleep(seconds)
    return round(busy_since(before), 1)


def last_change(root, *paths):
    """The commit that changed these last, and whether they differ from it."""
    def git(*words):
        return subprocess.run(["git", *words], cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no", "--", *paths)
    return (git("log", "-1", "--abbrev=12", "--format=%h", "--", *paths) or "unknown") + ("-dirty" if changed else "")


def build(root):
    """The commit that changed last what is measured, and whether that differs from it. Later ones changed documents or data only: theirs
    is the same build."""
    # Flags, compiler and its wrapper change the binary as well as the code does, and tools.sh what it runs beside.
    measured = ["crates", "tests/src", "tests/Cargo.toml", "charts", "Cargo.toml", "Cargo.lock", "Makefile", "dev/rustc.sh", "dev/tools.sh",
                "rust-toolchain.toml",
                # The simulation is in nothing that runs on a machine. It drives the announcer of this build.
                ":(exclude)crates/announcer-sim",
                # Tests in files of their own are in no binary.
                ":(exclude,glob)crates/**/tests/**", ":(exclude,glob)crates/**/tests.rs", ":(exclude,glob)crates/**/*_tests/**",
                ":(exclude,glob)crates/**/*_tests.rs"]
    return last_change(root, *measured)


def conditions():
    """Machine, time and load, before something begins."""
    memory = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    system = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    machine = {"cores": os.cpu_count(), "memory_gb": round(memory / 1e6), "kernel": platform.release(),
               "system": system.get("PRETTY_NAME", "").strip('"')}
    load = {"busy_percent_before": busy_percent(), "average_of_a_minute": os.getloadavg()[0]}
    return {"date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "machine": machine, "load": load}


def stolen():
    """Seconds for which the hypervisor has let a processor of this machine wait, since its start."""
    return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8]) / os.sysconf("SC_CLK_TCK")


class Meter(threading.Thread):
    """How long the machine keeps a thread waiting that does nothing but sleep. What was noted so late could not be in time either."""

    NAP, LATE = 0.05, 0.02

    def __init__(self):
        super().__init__(daemon=True)
        self.late = []
        self.begun, self.stolen_before, self.ticks_before = time.time(), stolen(), processor_ticks()
        self.start()

    def run(self):
        while True:
            slept = time.monotonic()
            time.sleep(self.NAP)
            late = time.monotonic() - slept - self.NAP
            if late > self.LATE:
                self.late.append((time.time(), late))

    def worst_ms(self, since):
        return round(1000 * max((late for at, late in list(self.late) if at >= since), default=0))

    def said(self):
        sum_of_late = sum(late for _, late in list(self.late))
        return (f"a thread that slept was late by up to {self.worst_ms(0)} ms, by {sum_of_late:.0f} s in all of {time.time() - self.begun:.0f} s;"
                f" the hypervisor took {stolen() - self.stolen_before:.0f} s of {os.cpu_count()} processors,"
                f" which were busy for {busy_since(self.ticks_before):.0f} % of the time")


def main():
    root = Path(__file__).resolve().parent.parent
    if sys.argv[1:] == ["build"]:
        print(build(root))
    elif sys.argv[1:] == ["origin"]:
        print(json.dumps({**conditions(), "commit": build(root)}, indent=1))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
