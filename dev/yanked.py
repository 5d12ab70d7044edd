#!/usr/bin/env python3
"""yanked.py [LOCK [CACHE]]: no dependency may be a version that its authors took back. What the registry says of each is in cargo's own copy
of its index, which is brought up to date before, where the registry answers. That is all a registry's index says about a version that
should not be used any more; advisories are in a database of their own (dev/deny.sh)."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))


def place(name):
    """Where an index has a crate."""
    name = name.lower()
    return Path(*{1: ["1"], 2: ["2"], 3: ["3", name[0]]}.get(len(name), [name[:2], name[2:4]]), name)


def known(caches, name):
    """Versions and whether they are yanked; cargo keeps one JSON object for each, between zero bytes."""
    found = {}
    for cache in caches:
        try:
            parts = (cache / place(name)).read_bytes().split(b"\0")
        except OSError:
            continue
        for part in parts:
            if part.startswith(b"{"):
                version = json.loads(part)
                found[version["vers"]] = version["yanked"]
    return found


def main():
    lock = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "Cargo.lock"
    fresh = ""
    if len(sys.argv) > 2:
        caches = [Path(sys.argv[2])]
    else:
        caches = sorted((HOME / "registry/index").glob("*/.cache"))
        update = subprocess.run([os.environ.get("CARGO", "cargo"), "update", "--dry-run", "-q"], cwd=ROOT, stderr=subprocess.DEVNULL)
        fresh = "" if update.returncode == 0 else ", by a copy of the index that could not be brought up to date"
    packages = [one for one in tomllib.loads(lock.read_text())["package"] if one.get("source", "").startswith("registry+")]
    yanked, unknown = [], []
    for one in packages:
        state = known(caches, one["name"]).get(one["version"])
        if state is None:
            unknown.append(f"{one['name']} {one['version']}")
        elif state:
            yanked.append(f"{one['name']} {one['version']}")
    print(f"yanked: {len(yanked)} of {len(packages)} dependencies{fresh}")
    if unknown:
        print(f"yanked: nothing is known of {', '.join(unknown)}; cargo fetch gets it", file=sys.stderr)
    if yanked:
        print(f"yanked: taken back by their authors: {', '.join(yanked)}; take another version with: cargo update -p NAME", file=sys.stderr)
    sys.exit(1 if yanked or unknown else 0)


if __name__ == "__main__":
    main()
