"""What a figure was taken of, and under which conditions."""

import os
import platform
import subprocess
import time
from datetime import datetime, timezone
from pathlib import Path


def busy_percent(seconds=2.0):
    """What the processors do now: an average over a minute would tell of what ran before."""
    def times():
        fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return sum(fields), fields[3] + fields[4]
    (all0, idle0), _, (all1, idle1) = times(), time.sleep(seconds), times()
    return round(100 * (1 - (idle1 - idle0) / max(1, all1 - all0)), 1)


def build(root):
    """The commit, and whether something that is measured differs from it: documents and data do not count."""
    def git(*words):
        return subprocess.run(["git", *words], cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "crates", "tests", "charts", "Cargo.toml", "Cargo.lock")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + ("-dirty" if changed else "")


def conditions():
    """Machine, time and load, before something begins."""
    memory = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    system = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    machine = {"cores": os.cpu_count(), "memory_gb": round(memory / 1e6), "kernel": platform.release(),
               "system": system.get("PRETTY_NAME", "").strip('"')}
    load = {"busy_percent_before": busy_percent(), "average_of_a_minute": os.getloadavg()[0]}
    return {"date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "machine": machine, "load": load}
