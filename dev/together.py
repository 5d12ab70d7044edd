#!/usr/bin/env python3
"""together.py [--then SECONDS] NAME=WEIGHT=COMMAND...: runs shell commands side by side, and says how long is left.

WEIGHT is the processor time in seconds that COMMAND takes where nothing is there yet; --then is the time of what follows. Where memory is
short they run one after the other. What a command says is kept until it has ended, and shown if it failed; then the others are ended.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time

TICKS = os.sysconf("SC_CLK_TCK")
# Two compilers and a linker at once.
ENOUGH_MEMORY = 6 << 30
TELL_EVERY = 20


class Command:
    def __init__(self, text):
        name, weight, self.shell = text.split("=", 2)
        self.name, self.weight, self.used = name, float(weight), 0.0
        self.process = self.status = None

    def start(self):
        self.began = time.time()
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen(["bash", "-euo", "pipefail", "-c", self.shell], stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=subprocess.STDOUT, start_new_session=True)

    def said(self, lines):
        self.log.seek(0)
        return "".join(self.log.readlines()[-lines:])

    def last_line(self):
        lines = [line.strip() for line in self.said(3).splitlines() if line.strip()]
        return lines[-1][:90] if lines else ""


def used(commands):
    """Processor time of each command's session so far, with children that have ended."""
    sums = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rsplit(") ", 1)[1].split(" ")
        except (OSError, IndexError):
            continue
        sums[int(fields[3])] = sums.get(int(fields[3]), 0) + sum(map(int, fields[11:15])) / TICKS
    for command in commands:
        command.used = max(command.used, sums.get(command.process.pid, 0.0))


def seconds_left(waiting, running, then):
    """Of what is heavier than expected, another twentieth is left."""
    work = sum(command.weight for command in waiting)
    work += sum(max(command.weight - command.used, command.weight / 20) for command in running)
    return work / (os.cpu_count() or 1) + then


def memory():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))


def main():
    words, then = sys.argv[1:], 0.0
    try:
        if words[:1] == ["--then"]:
            then, words = float(words[1]), words[2:]
        waiting, running = [Command(word) for word in words], []
    except (IndexError, ValueError):
        sys.exit(f"{__doc__}\ntogether: {' '.join(words)}: SECONDS and WEIGHT are numbers, and each word is NAME=WEIGHT=COMMAND")
    if not words:
        sys.exit(__doc__)
    at_once = len(waiting) if memory() > ENOUGH_MEMORY else 1
    first = told = time.time()

    def end_all(*_):
        for command in running:
            try:
                os.killpg(command.process.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
        for command in running:
            command.process.wait()
        sys.exit(1)

    signal.signal(signal.SIGTERM, end_all)
    signal.signal(signal.SIGINT, end_all)
    while waiting or running:
        while waiting and len(running) < at_once:
            # Started before it counts as running: who ends all of them meets no command without a process.
            waiting[0].start()
            running.append(waiting.pop(0))
        time.sleep(0.2)
        used(running)
        for command in list(running):
            status = command.process.poll()
            if status is None:
                continue
            running.remove(command)
            print(f"{time.time() - first:5.0f} s  {command.name}: {'done' if status == 0 else 'FAILED'} after"
                  f" {time.time() - command.began:.0f} s, {command.used:.0f} s of processor time", flush=True)
            if status:
                print(command.said(300), flush=True)
                end_all()
        if running and time.time() - told > TELL_EVERY:
            told = time.time()
            left = seconds_left(waiting, running, then)
            doing = "; ".join(f"{command.name}: {command.last_line()}" for command in running)
            print(f"{told - first:5.0f} s  about {left / 60:.0f} min left. {doing}", flush=True)


if __name__ == "__main__":
    main()
