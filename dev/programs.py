"""Test programs: which ones cargo has built, how one runs in namespaces of its own, and when all of it ends."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path


def built(said):
    """Cargo's message about each, out of what it says as JSON."""
    for line in said.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") == "compiler-artifact" and message["executable"] and message["profile"]["test"]:
            yield message


def start(root, words, **more):
    """What it starts is in its process group, and in its namespaces. It ends with this program, also when that is killed."""
    return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", Path(root) / "dev/private.sh", *words], stdin=subprocess.DEVNULL,
                            stderr=subprocess.STDOUT, start_new_session=True, **more)


def stop(process, patience=10):
    """The kernel ends everything in its namespaces with it. What has something to remove gets `patience` seconds."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


class Clock:
    """When everything ends: at the deadline, or when somebody says so."""

    def __init__(self, deadline):
        self.deadline = deadline
        signal.signal(signal.SIGTERM, self.end)
        signal.signal(signal.SIGINT, self.end)

    def end(self, *_):
        self.deadline = 0

    def is_over(self):
        return time.time() >= self.deadline
