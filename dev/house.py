#!/usr/bin/env python3
"""house.py [--json] [--lines]: measures the code against the limits of docs/architecture.md, and fails where one is broken. It reads the
files that git tracks and needs nothing but Python. --json prints the figures as data, --lines names each line that is too long.

Shipped is what the binary links: the crate `cli` and the crates of this workspace that it depends on. Code for tests does not count as product:
`#[cfg(test)]`, `tests/`, and `#[cfg(any(test, feature = "…"))]`, whose features only tests of other crates enable. An arrow goes from a file to
each file of the same crate whose items it names by path, re-exports followed; files on a common circle of arrows cannot be read one after the
other. A module and those inside it are read together: no arrow runs between them."""

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAIN = "cli"
FILE_LINES, FUNCTION_LINES, FIELDS, COLUMNS, SCRIPT_COLUMNS = 400, 80, 15, 120, 160
# What holds the state of the announcer on a node, and of its mode `node`.
STRUCTS = {"Engine": "crates/announcer-core/src/engine.rs", "NodeMode": "crates/announcer-core/src/engine/node_mode.rs",
           "Cluster": "crates/announcer-core/src/ownership/node/cluster.rs"}

TOKEN = re.compile(
    r"""//[^\n]* | (?P<block>/\*) | b?r(?P<hashes>\#*)"(?:.|\n)*?"(?P=hashes) | b?c?"(?:\\(?:.|\n)|[^"\\])*" | b?'(?:\\(?:u\{\w+\}|x..|.)|[^'\\\n])'""",
    re.VERBOSE,
)


def blank(text):
    """The text with spaces for comments, strings and characters: what is left has the same lines, and braces that pair."""
    out, at = [], 0
    while found := TOKEN.search(text, at):
        begin, end = found.span()
        if begin and found[0][0] in "brc" and (text[begin - 1].isalnum() or text[begin - 1] == "_"):
            out.append(text[at : begin + 1])
            at = begin + 1
            continue
        if found["block"]:
            depth, end = 1, begin + 2
            while depth:
                mark = re.compile(r"/\*|\*/").search(text, end)
                depth += 1 if mark[0] == "/*" else -1
                end = mark.end()
        out.append(text[at:begin])
        out.append(re.sub(r"[^\n]", " ", text[begin:end]))
        at = end
    out.append(text[at:])
    return "".join(out)


def closed(text, at):
    """The end of the item that begins here: behind its semicolon, or behind the brace that closes it."""
    depth = 0
    for found in re.compile(r"[;{}()\[\]]").finditer(text, at):
        depth += {"{": 1, "(": 1, "[": 1, ";": 0}.get(found[0], -1)
        if depth == 0 and found[0] in ";}":
            return found.end()
    return len(text)


def without_attributes(text, at):
    """Where the item behind further attributes begins."""
    while found := re.compile(r"\s*#\[").match(text, at):
        depth = 0
        for mark in re.compile(r"[\[\]]").finditer(text, found.end() - 1):
            depth += 1 if mark[0] == "[" else -1
            if depth == 0:
                at = mark.end()
                break
    return at


class File:
    """One file of a crate: its module, its code without what only tests see."""

    def __init__(self, path, module):
        self.path, self.module = path, module
        text = (ROOT / path).read_text()
        code = blank(text)
        self.children, self.tests = [], []
        cuts = []
        for found in re.finditer(r"^[ \t]*#\[cfg\((?:test|any\(test, feature = +\))\)\]", code, re.MULTILINE):
            if not cuts or found.start() >= cuts[-1][1]:
                cuts.append((found.start(), closed(code, without_attributes(code, found.end()))))
        for found in re.finditer(r"^(?:pub(?:\([\w ]+\))? )?mod (\w+);", code, re.MULTILINE):
            told = re.search(r'#\[path = "([^"]+)"\]\s*$', text[: found.start()])
            tested = any(begin <= found.start() < end for begin, end in cuts)
            (self.tests if tested else self.children).append((found[1], told and told[1]))
        lines = code.split("\n")
        gone = set()
        for begin, end in cuts:
            first, last = code.count("\n", 0, begin), code.count("\n", 0, end)
            gone.update(range(first, last + 1))
        self.code = "\n".join(line for number, line in enumerate(lines) if number not in gone)
        self.lines = len(self.code.rstrip().split("\n"))
        if cuts and not self.code.strip():
            self.lines = 0

    def child(self, name, told):
        """The file of a module that is declared here."""
        folder = self.path.parent
        if told:
            return folder / told
        if self.path.name not in ("lib.rs", "main.rs", "mod.rs"):
            folder = folder / self.path.stem
        return next(path for path in (folder / f"{name}.rs", folder / name / "mod.rs") if (ROOT / path).exists())

    def functions(self):
        """Name and length of each function, from its signature to its last brace."""
        for found in re.finditer(r"^( *)(?:pub(?:\([\w ]+\))? )?(?:const |async |unsafe )*fn (\w+)", self.code, re.MULTILINE):
            end = closed(self.code, found.end())
            yield found[2], self.code.count("\n", found.start(), end) + 1

    def fields(self, name):
        """How many fields a struct has."""
        found = re.search(rf"^(?:pub(?:\([\w ]+\))? )?struct {name}\b[^{{;]*{{", self.code, re.MULTILINE)
        body = self.code[found.end() : closed(self.code, found.start())]
        return len(re.findall(r"^    (?:pub(?:\([\w ]+\))? )?\w+:", body, re.MULTILINE))

    def uses(self):
        """(name, path, public) of each `use`, with braces opened, and of each path in the code that begins at a module."""
        for found in re.finditer(r"^[ \t]*(pub(?:\([\w ]+\))? )?use ([^;]+);", self.code, re.MULTILINE):
            for path, name in opened(re.sub(r"\s+", " ", found[2])):
                yield name, path, bool(found[1])
        for found in re.finditer(r"(?<![\w:])(?:\w+::)+\w+", re.sub(r"\buse [^;]+;", "", self.code)):
            yield None, found[0].split("::"), False


def opened(tree, before=()):
    """Each path of a `use`, as a list of its parts, with the name that it has here."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        path, _, name = tree.partition(" as ")
        parts = [*before, *(part.strip() for part in path.split("::"))]
        if parts[-1] == "self":
            parts.pop()
        yield parts, name.strip() or parts[-1]
        return
    head = [*before, *(part.strip() for part in tree[:brace].split("::") if part.strip())]
    depth, part = 0, ""
    for letter in tree[brace + 1 : tree.rindex("}")] + ",":
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            if part.strip():
                yield from opened(part, head)
            part = ""
        else:
            part += letter


class Crate:
    """Files of a crate's product, found from its root as the compiler does."""

    def __init__(self, name):
        self.name, self.files = name, {}
        source = Path("crates", name, "src")
        for root in ("lib.rs", "main.rs"):
            if (ROOT / source / root).exists():
                self.add(source / root, ())
        for root in sorted((ROOT / source / "bin").glob("*")):
            path = root.relative_to(ROOT)
            self.add(path if root.is_file() else path / "main.rs", ("bin", root.stem))

    def add(self, path, module):
        file = self.files[module] = File(path, module)
        for name, told in file.children:
            self.add(file.child(name, told), (*module, name))

    def exports(self, file):
        if not hasattr(file, "names"):
            file.names = {name: path for name, path, public in file.uses() if public}
        return file.names

    def home(self, start, path, depth=0):
        """The file in which the item lives that `path` names in the module `start`; none if it is of another crate."""
        parts, at = list(path), None
        if parts[0] == "crate":
            at, parts = ("bin", start[1]) if start[:1] == ("bin",) else (), parts[1:]
        while parts and parts[0] in ("self", "super"):
            at = start if at is None else at
            at = at[:-1] if parts[0] == "super" else at
            parts = parts[1:]
        if at is None:
            if (*start, parts[0]) not in self.files:
                return None
            at = start
        while parts and (*at, parts[0]) in self.files:
            at, parts = (*at, parts[0]), parts[1:]
        if at not in self.files:
            return None
        if not parts or depth > 8:
            return at
        exported = self.exports(self.files[at])
        if parts[0] in exported:
            return self.home(at, [*exported[parts[0]], *parts[1:]], depth + 1) or at
        if "*" in exported:
            return self.home(at, [*exported["*"][:-1], *parts], depth + 1) or at
        return at

    def arrows(self):
        """Of each file the files of this crate that it names, but for those around and inside it. A re-export is a signpost, no use."""
        arrows = {module: set() for module in self.files}
        for module, file in self.files.items():
            homes = {self.home(module, path) for _, path, public in file.uses() if not public} - {None}
            arrows[module] = {home for home in homes if home[: len(module)] != module and module[: len(home)] != home}
        return arrows

    def circles(self):
        """Groups of files in which each leads to each other."""
        arrows, reach = self.arrows(), {}
        for module in arrows:
            seen, todo = set(), list(arrows[module])
            while todo:
                if (one := todo.pop()) not in seen:
                    seen.add(one)
                    todo.extend(arrows[one])
            reach[module] = seen
        groups = {frozenset({module} | {one for one in seen if module in reach[one]}) for module, seen in reach.items() if module in seen}
        return sorted(sorted(str(self.files[module].path) for module in group) for group in groups if len(group) > 1)


def shipped():
    """The crates of this workspace that the binary links."""
    found, todo = set(), [MAIN]
    while todo:
        name = todo.pop()
        if name not in found and (ROOT / "crates" / name / "Cargo.toml").exists():
            found.add(name)
            todo.extend(tomllib.loads((ROOT / "crates" / name / "Cargo.toml").read_text()).get("dependencies", {}))
    return found


def long_lines(texts, columns):
    return [f"{path}:{number}" for path, text in texts.items() for number, line in enumerate(text.split("\n"), 1) if len(line) > columns]


def measure():
    tracked = subprocess.run(["git", "ls-files", "*.rs"], cwd=ROOT, text=True, capture_output=True, check=True).stdout.split()
    tracked = [path for path in tracked if (ROOT / path).exists()]
    product = shipped()
    crates = [Crate(path.name) for path in sorted((ROOT / "crates").iterdir()) if (path / "Cargo.toml").exists()]
    lines, files, functions, circles = Counter(), [], [], {"shipped": [], "never shipped": []}
    for crate in crates:
        kind = "shipped" if crate.name in product else "never shipped"
        circles[kind] += crate.circles()
        for file in crate.files.values():
            lines[crate.name] += file.lines
            if kind == "shipped":
                files.append((file.lines, str(file.path)))
                functions.extend((length, f"{file.path}: {name}") for name, length in file.functions())
    texts = {path: (ROOT / path).read_text() for path in tracked}
    scripts = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "dev").glob("*.py"))}
    return {
        "lines": {crate.name: lines[crate.name] for crate in crates if crate.name in product},
        "lines_never_shipped": {crate.name: lines[crate.name] for crate in crates if crate.name not in product},
        "files": sorted(files, reverse=True),
        "functions": sorted(functions, reverse=True),
        "fields": {name: File(Path(path), ()).fields(name) for name, path in STRUCTS.items()},
        "circles": circles,
        "long_lines": long_lines(texts, COLUMNS),
        "long_lines_of_scripts": long_lines(scripts, SCRIPT_COLUMNS),
        "tests": sum(len(re.findall(r"#\[(?:tokio::)?test\b", text)) for text in texts.values()),
    }


def judge(found):
    """What is broken, in one line each."""
    for lines, path in found["files"]:
        if lines > FILE_LINES:
            yield f"{path} has {lines} lines; {FILE_LINES} are allowed"
    for lines, where in found["functions"]:
        if lines > FUNCTION_LINES:
            yield f"{where} has {lines} lines; {FUNCTION_LINES} are allowed"
    for name, count in found["fields"].items():
        if count > FIELDS:
            yield f"{name} in {STRUCTS[name]} has {count} fields; {FIELDS} are allowed"
    for circle in found["circles"]["shipped"]:
        yield f"these files use one another in a circle: {', '.join(circle)}"
    if found["long_lines"]:
        yield f"{len(found['long_lines'])} lines are longer than {COLUMNS} columns (dev/house.py --lines names them)"
    if found["long_lines_of_scripts"]:
        yield f"{len(found['long_lines_of_scripts'])} lines of dev/*.py are longer than {SCRIPT_COLUMNS} columns (dev/house.py --lines names them)"


def at(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]


def table(found):
    lines, files, functions = found["lines"], [one for one, _ in found["files"]], [one for one, _ in found["functions"]]
    middle = lambda values: f"{at(values, 0.5)}, {at(values, 0.9)}, {max(values)}"
    yield "shipped lines without tests", f"{sum(lines.values()):,}", ""
    for name, count in sorted(lines.items(), key=lambda one: -one[1]):
        yield f"  {name}", f"{count:,}", ""
    yield "lines beside them, never shipped", f"{sum(found['lines_never_shipped'].values()):,}", ""
    yield "tests", f"{found['tests']:,}", ""
    yield "lines of a file: median, 90 %, largest", middle(files), FILE_LINES
    yield "lines of a function: median, 90 %, largest", middle(functions), FUNCTION_LINES
    for name, count in found["fields"].items():
        yield f"fields of {name}", count, FIELDS
    yield "circles of files in a crate", len(found["circles"]["shipped"]), 0
    yield "circles in what is never shipped", len(found["circles"]["never shipped"]), ""
    yield f"lines over {COLUMNS} columns", len(found["long_lines"]), 0
    yield f"lines of dev/*.py over {SCRIPT_COLUMNS} columns", len(found["long_lines_of_scripts"]), 0


def main():
    unknown = [word for word in sys.argv[1:] if word not in ("--json", "--lines")]
    if unknown:
        sys.exit(f"house: there is no {' '.join(unknown)}; there are --json and --lines")
    found = measure()
    if "--json" in sys.argv:
        print(json.dumps(found, indent=1))
    elif "--lines" in sys.argv:
        print(*found["long_lines"], *found["long_lines_of_scripts"], sep="\n")
    else:
        for name, value, limit in table(found):
            print(f"{name:44}{value:>16}{f'  at most {limit}' if limit != '' else ''}")
    broken = list(judge(found))
    for one in broken:
        print(f"house: {one}", file=sys.stderr)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
