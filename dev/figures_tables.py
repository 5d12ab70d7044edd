"""The tables of docs/performance.md and the README, as functions of the data in docs/data: figures/STEP.json, what benchmarks wrote;
peers.json, what others were measured at. Of these only counts stand beside ours: times depend on the load of the machine, which is not known."""

import json
import re
from collections import Counter
from datetime import datetime, timedelta
from statistics import median_low


class Data:
    """What was measured, and what builds it came from: the one that most steps are of is the page's, rows of another are marked."""

    def __init__(self, directory):
        self.steps = {file.stem: json.loads(file.read_text()) for file in sorted((directory / "figures").glob("*.json"))}
        self.peers = json.loads((directory / "peers.json").read_text())
        self.origins = sorted((step["origin"] for step in self.steps.values()), key=lambda origin: origin["date"], reverse=True)
        # Of two with as many steps the newer one.
        self.commit = Counter(origin["commit"] for origin in self.origins).most_common(1)[0][0] if self.origins else None

    def report(self, step):
        return self.steps[step]["report"] if step in self.steps else None


def condition(data, origin):
    """Of all steps of the same build: a row is not marked for the day and the load of its own step."""
    def is_alike(other):
        return (other["commit"], other["quick"]) == (origin["commit"], origin["quick"])
    return (f"commit {origin['commit']}, {days(filter(is_alike, data.origins))}, {'fewer runs than `make figures` takes, ' if origin['quick'] else ''}"
            f"{origin['machine']['cores']} cores; {busiest(data, is_alike)}")


def days(origins):
    dates = [origin["date"][:10] for origin in origins]
    return " to ".join(dict.fromkeys((min(dates), max(dates))))


def side_by_side(data, alike):
    """The steps, of those of which `alike` holds, that ran while another one did."""
    def span(origin):
        begun = datetime.fromisoformat(origin["date"])
        return begun, begun + timedelta(seconds=origin["seconds"])
    # What tests saw is no measuring: its origin has no end.
    spans = {name: span(step["origin"]) for name, step in data.steps.items() if alike(step["origin"]) and "seconds" in step["origin"]}
    return sorted(name for name, (begun, ended) in spans.items()
                  if any(name != other and begun < end and at < ended for other, (at, end) in spans.items()))


def busiest(data, alike):
    """Per cent of the processors that other work took before the steps that ran alone began."""
    beside = side_by_side(data, alike)
    loads = [step["origin"]["load"]["busy_percent_before"] for name, step in data.steps.items() if alike(step["origin"]) and name not in beside]
    return f"before each that ran alone began, other work took at most {max(loads):.0f} % of the processors" if loads else "all of them ran side by side"


class Marks:
    """Letters for what is not of the page's build, explained below the table."""

    def __init__(self):
        self.texts = []

    def of(self, text):
        if text not in self.texts:
            self.texts.append(text)
        return f" ({chr(ord('a') + self.texts.index(text))})"

    def lines(self):
        return ["", *(f"* ({chr(ord('a') + n)}) {text}." for n, text in enumerate(self.texts))] if self.texts else []


def table(data, heads, rows, last_may_be_empty=True):
    """`rows` are (steps, function of their reports that gives the cells after the title or None, title). What has no data has no row. A last
    column that must not be empty is left out where all rows leave it so."""
    marks, out = Marks(), []
    for steps, cells, title in rows:
        reports = [data.report(step) for step in steps]
        found = cells(*reports) if all(report is not None for report in reports) else None
        if found is None:
            continue
        others = [data.steps[step]["origin"] for step in steps if data.steps[step]["origin"]["commit"] != data.commit]
        # A row of several steps has a mark for each other build that they are of.
        mark = "".join(dict.fromkeys(marks.of(condition(data, origin)) for origin in others))
        for row in found if isinstance(found[0], list) else [[title, *found]]:
            out.append([row[0] + mark, *row[1:]])
    if not last_may_be_empty and not any("".join(row[len(heads) - 1:]) for row in out):
        heads, out = heads[:-1], [row[:len(heads) - 1] for row in out]
    lines = ["| " + " | ".join(heads) + " |", "| " + " | ".join("---" for _ in heads) + " |"]
    lines += ["| " + " | ".join(row + [""] * (len(heads) - len(row))) + " |" for row in out]
    return lines + marks.lines()


def taken(data):
    """What the page's figures were taken from."""
    def is_ours(origin):
        return origin["commit"] == data.commit
    origins = [origin for origin in data.origins if is_ours(origin)]
    if not origins:
        return ["No figure of the present build has been taken yet; `make figures` takes them. Until then the rows below are of earlier builds, and say which."]
    machine = origins[0]["machine"]
    quick = any(origin["quick"] for origin in origins)
    names = ", ".join(f"`{name}`" for name in side_by_side(data, is_ours))
    beside = f". {names} wait nearly all the time: some of these ran side by side" if names else ""
    return [
        f"Rows without a mark are of commit {data.commit}, {days(origins)}"
        f"{', some with fewer runs than usual' if quick else ''}: {machine['cores']} cores, {machine['memory_gb']} GB, Linux"
        f" {machine['kernel']}, {machine['system']}; {busiest(data, is_ours)}{beside}."
    ]


def s(ms, digits=2):
    return f"{ms / 1000:.{digits}f} s" if ms >= 100 else f"{ms:.0f} ms" if ms else "0"


def middle(values, text=s):
    return f"{text(median_low(values))} ({text(max(values))})"


def runs_text(runs):
    return "one run" if len(runs) == 1 else f"{len(runs)} runs"


MISSED = " **missed**"


def held(value, bound):
    return "" if bound is None or value < bound else MISSED


def late(runs):
    """Answers that came only after a retransmission, of all runs; figures of older builds do not know."""
    return str(sum(run["late"] for run in runs)) if all("late" in run for run in runs) else ""


COUNT = "a count"


def peer(data, name):
    """Of a peer, where it does not depend on the load of the machine."""
    return data.peers[name]["text"] if data.peers[name]["conditions"] == COUNT else ""


# Case, title, bounds: in ms, of the gap's median and of the longest time that two answer; and how many requests are lost.
ANNOUNCER = [
    ("power-loss", "node power loss, default timers", {"gap": 250}),
    ("power-loss-fast", "node power loss, `fast` profile", {"gap": 180}),
    ("kill", "announcer killed, restarted after 2 s", {"lost": 0}),
    ("terminate", "graceful stop with a successor", {"gap": 50, "lost": 0}),
    ("terminate-alone", "SIGTERM on a one-node cluster", {"lost": 0}),
    ("owner-without-api", "owner alone loses the API for 60 s", {"gap": 100, "double": 50}),
    ("nobody-has-api", "API server down for all for 60 s", {"lost": 0}),
    ("new-service", "address set to first ARP answer", {"gap": 100}),
    ("dhcp-power-loss", "DHCP address, node power loss, same MAC", {"gap": 500}),
    ("pause-300", "owner's machine stands still for 0.3 s", {"double": 50}),
    ("pause-1000", "… for 1 s", {"double": 50}),
    ("pause-3000", "… for 3 s", {"double": 50}),
    ("power-loss-spread", "node power loss, endpoints on all nodes", {}),
    ("power-loss-etcd", "node power loss with the leader of three etcd members", {}),
]


def below(ms):
    return f"< {ms / 1000:g} s" if ms > 100 else f"< {ms} ms"


def bound_text(bounds):
    words = {"gap": below, "lost": lambda count: f"{count} lost", "double": lambda ms: f"two answer {below(ms)}"}
    return ", ".join(words[name](value) for name, value in bounds.items()) or "none"


def announcer(data):
    def row(case, title, bounds):
        def cells(report):
            runs = next((found["runs"] for found in report["cases"] if found["case"] == case), [])
            if not runs:
                return None
            gaps = [run["gap_ms"] if run["lost"] or run["http_ms"] is not None else 0 for run in runs]
            lost = "" if runs[0]["http_ms"] is not None else middle([run["lost"] for run in runs], str)
            gap = middle(gaps) + held(median_low(gaps), bounds.get("gap"))
            if runs[0]["http_ms"] is not None:
                gap += f"; first HTTP reply {middle([run['http_ms'] for run in runs])}"
            if "lost" in bounds and max(run["lost"] for run in runs) > bounds["lost"]:
                lost += MISSED
            double = max(run["double_ms"] for run in runs)
            return [bound_text(bounds), str(len(runs)), gap, lost, s(double) + held(double, bounds.get("double")), late(runs)]
        return [f"announcer-{case}"], cells, title
    heads = ["case", "bound (median)", "runs", "gap, median (max)", "lost, median (max)", "two answer, max", "late"]
    return table(data, heads, [row(*line) for line in ANNOUNCER])


LAN = [  # step, title, how
    ("hypervisor", "loss of the hypervisor that carries the owner and the node behind it",
     "two of three nodes lose their power in one moment; the third one, on another hypervisor, is first in line"),
    ("majority", "the owner cut off, the clients with the other nodes", "owner and one more host on one side; two nodes, gateway and client on the other"),
    ("minority", "two of three nodes cut off, the clients with the owner",
     "for 22 s, longer than a Lease lasts; the API reaches all; nothing moves, nothing is written"),
    ("strangers", "a stranger of each kind answers, the owner lives",
     "API there, then away for 60 s; a duplicate that announces itself, a gateway with proxy ARP, nodes with IPVS without strict ARP;"
     " an EVPN fabric is silent here"),
    ("strangers-power-loss", "power loss of the owner, a stranger of each kind goes on",
     "a Lease of 15 s and 5 s more, where somebody answers in the place of the dead owner"),
    ("late-writes", "node power loss, each write to the API late by 1 s", "an admission webhook that takes its time"),
    ("upgrade", "upgrade of the DaemonSet under 100 open TCP connections",
     "each of three announcers ends, is away for 7 s, and comes back; one fixed address, one by DHCP"),
    ("unready", "all Nodes NotReady and back one by one", "condition `Unknown` for 14 s; six addresses, none moves"),
]


def lan(data):
    """One row for each promise of a fault: its clients are told by what they asked."""
    def row(case, title, how):
        def cells(report):
            played = next((one for one in report["lan"] if one["case"] == case), None)
            if not played or not played["runs"]:
                return None
            runs, out = played["runs"], []
            failed = f"; **{len(played['failures'])} more failed**" if played["failures"] else ""
            bounds = list(dict.fromkeys(one["bound_ms"] for one in runs[0]["watched"]))
            for bound in bounds:
                clients = {}
                for one in (one for run in runs for one in run["watched"] if one["bound_ms"] == bound):
                    clients.setdefault(one["what"], []).append(one)
                if bound:
                    def gap(seen):
                        gaps = [one["gap_ms"] for one in seen]
                        return middle(gaps) + held(median_low(gaps), bound)
                    each = [(f"{what.split(', ', 1)[-1]}: " if len(clients) > 1 else "") + gap(seen) for what, seen in clients.items()]
                    of_all = [one for seen in clients.values() for one in seen]
                    out.append([title, f"< {s(bound)}", f"{len(runs)}{failed}", "; ".join(each), how, late(of_all)])
                    continue
                seen = [one for these in clients.values() for one in these]
                lost = sum(one["lost"] for one in seen)
                text = f"{lost} of {sum(one['sent'] for one in seen):,} requests lost"
                text += f", {s(max(one['gap_ms'] for one in seen))} at most{MISSED}" if lost else ""
                opened, broken = sum(run["open"] for run in runs), sum(run["broken"] for run in runs)
                if opened:
                    text = f"{broken} of {opened} connections reset{MISSED if broken else ''}, {text}"
                out.append([title, "0 lost" if not opened else "0 reset, 0 lost", f"{len(runs)}{failed}", text, how, late(seen)])
            return out
        return [f"announcer-{case}"], cells, title
    rows = [row(*line) for line in LAN]
    missing = [f"`announcer-{case}`" for case, *_ in LAN if data.report(f"announcer-{case}") is None]
    left = [f"No run has been kept for this page yet of {', '.join(missing)}; `make figures ARGS='--only announcer-{LAN[0][0]}'` takes one."] if missing else []
    if len(missing) == len(LAN):
        return left
    lines = table(data, ["what", "bound (median)", "runs", "without an answer, median (max)", "how", "late"], rows)
    return lines + (["", *left] if left else [])


def vips(data):
    def rows(report):
        many = report["many"]
        if not many:
            return None
        def median_of(key, field):
            return middle([one[field] for one in many[key]])
        runs = len(many["made"])
        out = [
            ["made at once: the last Service is there", "none", median_of("made", "created_ms"), ""],
            ["… the median address answers", "none", median_of("made", "median_ms"), ""],
            ["… all answer", "< 5 s", median_of("made", "all_ms") + held(median_low([one["all_ms"] for one in many["made"]]), 5000), ""],
        ]
        for key, name in (("spread", "spread"), ("on_one", "after the power losses")):
            rest = many[key]
            where = f"{name}, {', '.join(str(count) for count in rest['addresses'])} addresses"
            out += [
                [f"at rest, {where}: broadcasts per minute", "0", f"{rest['broadcasts_per_minute']:.0f}" + held(rest["broadcasts_per_minute"], 0.5),
                 peer(data, "200-broadcasts") if key == "spread" else ""],
                ["… requests to the API per second, all nodes", "< 3", f"{rest['requests_per_second']:.2f}" + held(rest["requests_per_second"], 3),
                 peer(data, "200-requests") if key == "spread" else ""],
                ["… RSS of each announcer", "< 15 MB", ", ".join(f"{mb:.1f}" for mb in rest["rss_mb"]) + " MB" + held(max(rest["rss_mb"]), 15), ""],
                ["… processor of each, of one core", "< 1 %",
                 ", ".join(f"{cpu:.2f}" for cpu in rest["cpu_percent"]) + " %" + held(max(rest["cpu_percent"]), 1), ""],
            ]
        counts = ", ".join(str(one["count"]) for one in many["moved"])
        out += [[f"power loss of a node with {counts} addresses: the first answers again", "none", median_of("moved", "first_ms"), ""],
                ["… the median", "none", median_of("moved", "median_ms"), ""], ["… the last", "none", median_of("moved", "last_ms"), ""]]
        out[0][0] += f" ({runs} runs; median, in brackets the longest)"
        return out
    return table(data, ["what", "bound", "measured", "kube-vip 1.2.3, counts"], [(["announcer-200-vips"], rows, "")])


# The constants of tests/tests/node_loss.rs: seconds for which requests are missed and how many one client misses, with kube-proxy in a hurry (QUICK), as
# it is delivered (DEFAULT), and with an API server (WITH_SERVER); seconds until a Service is served while nobody leads (LED_AGAIN).
QUICK, DEFAULT, WITH_SERVER, LED_AGAIN = (1, 60), (2, 120), (5, None), 6


def lost_node(data):
    """Here the worst run counts, as in the test."""
    def rows(report):
        out = []
        for row in report["lost_node"]:
            runs = row["runs"]
            if not runs:
                continue
            longest, most = WITH_SERVER if row["case"] == "server" else DEFAULT if row["proxy_min_sync_ms"] == 1000 else QUICK
            bound = f"{longest} s" + (f", < {most}" if most else "")
            worst, lasted = [run["worst"] for run in runs], [run["missed_for_ms"] for run in runs]
            served = [run["served_ms"] for run in runs if run["served_ms"] is not None]
            again = middle(served) + held(max(served), 1000 * LED_AGAIN) if served else ""
            out.append([row["title"], bound, str(len(runs)), middle(lasted) + held(max(lasted), 1000 * longest),
                        middle(worst, str) + held(max(worst), most), again, middle([run["traffic_ms"] for run in runs]), late(runs)])
        return out or None
    heads = ["what is lost", "bounds: missed for, by one client", "runs", "requests missed for, median (max)", "missed by one client, median (max)",
             f"a new Service is served after (bound {LED_AGAIN} s)", "back: traffic after its pods are ready", "late"]
    if data.report("announcer-lost-node") is None:
        return ["No run has been kept for this page yet: `make figures ARGS='--only announcer-lost-node'` takes one."]
    fewest = min(len(row["runs"]) for row in data.report("announcer-lost-node")["lost_node"])
    few = ["", "Ten runs of each row take 40 minutes; there was time for fewer."] if fewest < 10 else []
    failed = sum(len(row.get("failures", [])) for row in data.report("announcer-lost-node")["lost_node"])
    if failed:
        few += ["", f"Runs that could not be judged: {failed}; `docs/data/figures/announcer-lost-node.json` says why."]
    return table(data, heads, [(["announcer-lost-node"], rows, "")]) + few


def long_runs(data):
    def renew(report):
        found = report["renew"]
        return found and [f"{found['kept']} of {found['services']} addresses kept; the server heard {found['requests']} requests, {found['discovers']} DISCOVER"
                          f" and sent {found['naks']} NAK; {found['lost']} of {found['asked']} requests of a client lost"]
    def soak(report):
        found = report["soak"]
        return found and [f"{found['minutes']:.0f} minutes, cores busy for {found['busy_percent']:.0f} %: {found['failovers']} changes of owner,"
                          f" {found['probes']['bursts']} suspicions, {found['probes']['unanswered']} of {found['probes']['asked']} questions not answered"
                          f" in time; {found['lost']} of {found['asked']} requests of a client lost, longest gap {s(found['longest_gap_ms'])}"]
    def verdicts(report):
        found = report["false_verdicts"]
        return found and [f"{found['minutes']:.0f} minutes, cores busy for {found['busy_percent']:.0f} %: {found['verdicts']} false verdicts in"
                          f" {len(found['pauses_ms'])} pauses (bound: 0), {found['writes']} writes; {found['missed']} of {found['sent']} requests of three"
                          " clients without an answer within a second"]
    def at_rest(report):
        return [[f"requests to the API per minute at rest, {found['nodes']} nodes, `nodeLoss` {'on' if found['node_loss'] else 'off'}"
                 " (`--only announcer-at-rest`)",
                 f"{found['leader']:g} by the controller that leads, {found['waiting']:g} by the one that waits, {found['announcers']:g} by all announcers"]
                for found in report["at_rest"]] or None
    rows = [(["announcer-dhcp-renew"], renew, "10 leases over ten times their life of 120 s (`--only announcer-dhcp-renew`)"),
            (["announcer-soak"], soak, "6 addresses while every core is busy (`--only announcer-soak`)"),
            (["announcer-false-verdicts"], verdicts,
             "three real nodes with every core busy, one of which stands still for 0.1 to 2 s every 15 s, as in a live migration"
             " (`--only announcer-false-verdicts`)"),
            (["announcer-at-rest"], at_rest, "")]
    return table(data, ["what", "measured"], rows)


def quantiles(found):
    return f"{s(found['median_ms'])} ({s(found['max_ms'])})" if found else "-"


def runs_of(report):
    """Of a program that is begun anew for each run; or it was run once."""
    return report.get("runs", [report])


def demo(data):
    def found(report, key):
        """Of all runs that have it."""
        return [run["figures"][key] for run in runs_of(report) if run["figures"].get(key)]
    def series(key, field):
        def cells(report):
            samples = [sample[field] for run in found(report, key) for sample in run["samples"]]
            return samples and [middle(samples), f"{len(samples)} Services in {runs_text(runs_of(report))}"]
        return cells
    def outage(key):
        def cells(report):
            runs = found(report, key)
            lost, sent, slow = (sum(run[field] for run in runs) for field in ("lost", "sent", "late"))
            gap = f"{middle([run['gap_ms'] for run in runs])}; " if lost else ""
            return runs and [f"{gap}{lost} of {sent:,} requests lost, {slow} answered late", runs_text(runs)]
        return cells
    def last(report, key):
        return runs_of(report)[-1]["figures"][key]
    def processes(report):
        """The last run's: each makes its own."""
        return [[f"{one['name']} on {one['node']}: memory, processor", f"{one['rss_mb']:.1f} MB, {one['cpu_ms']} ms",
                 f"after {one['up_s']} s" if one["up_s"] else "the last run"]
                for one in last(report, "processes")]
    def binary(report):
        return [f"{last(report, 'binary_bytes') / 1e6:.1f} MB", "`make release`"]
    one = [("pool Service: created to address in its status", series("pool", "address_ms")),
           ("pool Service: created to first HTTP reply, kube-proxy's `minSyncPeriod` 100 ms", series("pool", "reply_ms")),
           ("DHCP Service: to address", series("dhcp", "address_ms")), ("DHCP Service: to first HTTP reply", series("dhcp", "reply_ms")),
           ("announcer killed (SIGKILL) and restarted", outage("announcer_killed")), ("owner node loses power, longest gap", outage("failover")),
           ("processes", processes), ("binary, static", binary)]
    return table(data, ["figure", "value, median (max)", "how"], [(["demo"], cells, title) for title, cells in one])


def services(data):
    def creation(report, title):
        found = report["parts"][0].get("creation")
        return found and [title, quantiles(found["address"]), quantiles(found["announced"]), quantiles(found["reply"]),
                          str((found["address"] or {}).get("samples", 0))]
    def row(step, title):
        return [step], (lambda report: [row] if (row := creation(report, title)) else None), title
    rows = [row("bench-pool-1-default-proxy", "pool, kube-proxy as it is shipped (`minSyncPeriod` 1 s)"),
            row("bench-pool-1", "pool, `minSyncPeriod` 100 ms"), row("bench-dhcp-1", "DHCP, `minSyncPeriod` 100 ms"),
            row("bench-real-100", "100 pool Services at once, at a real host's pace")]
    return table(data, ["one new Service", "to the address in its status", "to the first announcement", "to the first HTTP reply", "runs"], rows)


CCM = ["ccm-one", "ccm-fast-100", "ccm-fast-1000", "ccm-real", "ccm-backlog", "ccm-healthy-500", "ccm-outage", "ccm-pools", "ccm-nodes-1000",
       "ccm-fast-3000", "ccm-fast-10000", "ccm-nodes-5000", "ccm-safe-mode"]


def with_unit(value, unit):
    if unit == "s" and 0 < value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:,.0f} {unit}".strip() if value >= 100 else f"{round(value, 1 if value >= 10 else 2):g} {unit}".strip()


def grouped(text):
    """The same, with its long numbers as tables have them."""
    return re.sub(r"\b\d{4,}\b", lambda number: f"{int(number[0]):,}", text)


def figures_of(report):
    return [figure for part in report["parts"] for figure in part.get("figures", [])]


def ccm(data):
    """Of several runs the median and the largest value."""
    def is_said_twice(figure, figures):
        """Of one value the median is the slowest, too."""
        slowest = figure["what"].replace(", median of 1", ", slowest of 1")
        return slowest != figure["what"] and any(other["what"] == slowest for other in figures)
    def cells(report):
        out, figures = [], figures_of(report)
        for figure in (one for one in figures if not is_said_twice(one, figures)):
            values = figure.get("values", [figure["value"]])
            measured = with_unit(figure["value"], figure["unit"]) + (f" ({with_unit(max(values), figure['unit'])})" if len(values) > 1 else "")
            bound = with_unit(figure["bound"], figure["unit"]) if "bound" in figure else "none"
            counted = go_provider(figure) if is_count(figure) else ""
            out.append([grouped(figure["what"]), bound, str(len(values)), measured + ("" if figure["holds"] else MISSED), counted])
        return out or None
    return table(data, ["case", "bound (median)", "runs", "measured, median (max)", "Go provider 0.2.7, counts"], [([step], cells, "") for step in CCM])


def is_count(figure):
    return not figure["unit"]


def go_provider(figure):
    """At what the Go provider was measured. The benchmark of 5,000 Nodes names what that one did with 1,000."""
    return "" if figure["what"].startswith("5000 Nodes") else grouped(figure.get("go_provider", ""))


SIMULATIONS = {"global": "sim-global", "service": "sim-service", "node": "sim-node"}


def seeds_text(command, count):
    """How many of which kinds. What was measured before there were kinds was one range from 0 on."""
    words = command.split()
    firsts = [f"{int(first):,}" for first in words[words.index("--from") + 1].split(",")] if "--from" in words else ["0"]
    return f"{count:,}: {count // len(firsts):,} each from {', '.join(firsts)} on" if len(firsts) > 1 else f"{count:,} from {firsts[0]} on"


def simulation(data):
    def mode(name, step):
        def cells(report):
            seeds = seeds_text(data.steps[step]["origin"]["command"], report["seeds"])
            longest = "; ".join(f"{promise} {found['seconds']:.2f} s" for promise, found in sorted(report["longest"].items()))
            return [[f"`{name}`", seeds, f"{report['events']:,}", f"{report['moves']:,}", "a broken promise" if report["broken"] else "none broken", longest]]
        return cells
    rows = [([step], mode(name, step), name) for name, step in SIMULATIONS.items()]
    return table(data, ["mode", "seeds", "events", "moves of an address", "promises", "longest time a promise did not hold yet"], rows,
                 last_may_be_empty=False)


def tests(data):
    """What clients saw while `make test` broke things: the outages that come nearest to their bounds, or are the longest."""
    if data.report("tests") is None:
        return ["No run has been kept for this page yet: `dev/figures.py tests`, after a `make test` of everything, takes it from what that run has left."]

    def near(line):
        bound = line["bound_ms"]
        share = line["gap_ms"] / bound if bound else float("inf") if bound == 0 and line["lost"] else 0
        return -share, -line["gap_ms"]

    def cells(report):
        out = []
        for line in sorted(report["watches"], key=near)[:20]:
            bound = {None: "none", 0: "0 lost"}.get(line["bound_ms"], f"< {s(line['bound_ms'] or 0)}")
            wrong = held(line["outage_ms"], line["bound_ms"]) if line["bound_ms"] or line["lost"] else ""
            out.append([f"{line['what']} (`{line['program'].rsplit('-', 1)[0]}`)", bound, f"{s(line['gap_ms'])} ({s(line['outage_ms'])}){wrong}",
                        f"{line['lost']} of {line['sent']:,}", str(line["late"])])
        return out or None
    watches = data.report("tests")["watches"]
    count = {field: sum(line[field] for line in watches) for field in ("sent", "lost", "late")}
    lines = table(data, ["what happened, and in which program", "bound", "gap (without the machine's stalls)", "lost", "late"],
                  [(["tests"], cells, "")])
    latest = s(max((line["latest_ms"] for line in watches), default=0))
    slow = f"{count['late']:,} were answered late, the latest after {latest}" if count["late"] else "none was answered late"
    report = data.report("tests")
    lines += ["", f"In all, {len(watches)} clients sent {count['sent']:,} requests: {count['lost']:,} were lost, {slow}."]
    if "attempts" in report:
        failed = sum(attempt["error"] is not None for attempt in report["attempts"])
        wall = f" in {report['wall_seconds'] / 60:.0f} minutes" if report.get("wall_seconds") else ""
        longest = sorted(report["seconds"].items(), key=lambda one: -one[1])[:3]
        lines += ["", f"The run: {report['sum']}{wall}. Of {len(report['attempts'])} attempts that may be repeated {failed} failed;"
                  f" {len(report['skipped'])} tests could not run on this machine. The programs of tests took"
                  f" {sum(report['seconds'].values()) / 60:.0f} minutes together, the three longest of them"
                  f" {', '.join(f'`{name}` {seconds:.0f} s' for name, seconds in longest)}."]
    return lines


def peers(data):
    rows = [[one["what"], one["who"], one["text"], one["conditions"]] for one in data.peers.values()]
    unknown = "the machine's load was not written down"
    figures = [figure for report in filter(None, map(data.report, CCM)) for figure in figures_of(report)]
    # Two steps have one figure in common.
    theirs = {grouped(figure["what"]): go_provider(figure) for figure in figures if go_provider(figure) and not is_count(figure)}
    rows += [[what, "Go provider 0.2.7", text, unknown] for what, text in theirs.items()]
    return ["| what | program | figure | conditions |", "| --- | --- | --- | --- |", *("| " + " | ".join(row) + " |" for row in rows)]


def readme(data):
    """Rows with figures; what a test asserts, and what is no figure, is text. The peers' times stand in their own table."""
    elsewhere = "[measured elsewhere](docs/performance.md#the-peers-measured-elsewhere)"
    def first_reply(untuned, tuned):
        creation = [report["parts"][0]["creation"]["reply"] for report in (untuned, tuned)]
        return [elsewhere, f"{s(creation[0]['median_ms'])} with kube-proxy as it is shipped, which pauses for 1 s between two updates;"
                f" {s(creation[1]['median_ms'])} where it pauses for 0.1 s"]
    def writes(report):
        figures = {figure["what"].split(" (")[0]: figure for figure in report["parts"][0]["figures"]}
        both = [figures[f"writes per Service, {where}"] for where in ("guest", "Harvester")]
        return [" / ".join(figure["go_provider"].replace("-", " to ") for figure in both), " / ".join(f"{figure['value']:g}" for figure in both)]
    def hundred(report):
        value = next(f["value"] for part in report["parts"] for f in part["figures"] if f["what"].endswith("100 Services at once, all published"))
        return [elsewhere, f"{value:.0f} s"]
    def power(report):
        gaps = [run["gap_ms"] for run in report["cases"][0]["runs"]]
        return ["no answer until its Lease has expired, 15 s unless set otherwise",
                f"{s(median_low(gaps))} (median of {len(gaps)}, at most {s(max(gaps))}): nodes watch each other on the wire."
                " Pods of the lost node leave their Services within a second, not after Kubernetes' 40 s ([node-loss.md](docs/node-loss.md))"]
    def killed(report):
        runs = report["cases"][0]["runs"]
        return ["two nodes may answer from then on",
                f"{sum(r['lost'] for r in runs)} requests lost in {runs_text(runs)}: what is its own is adopted, the kernel removes what is not renewed"]
    def ends(report):
        runs = report["cases"][0]["runs"]
        return ["no answer until another node has asked for the Lease, every 2 s",
                f"{sum(r['lost'] for r in runs)} requests lost in {runs_text(runs)}: the successor announces first"]
    def text(title, theirs, ours):
        return [], (lambda: [theirs, ours]), title
    rows = [
        (["bench-pool-1-default-proxy", "bench-pool-1"], first_reply, "new pool Service to first reply"),
        (["ccm-real"], hundred, "100 Services at once, at the pace of a real host"),
        (["ccm-one"], writes, "writes per Service by the provider, guest / Harvester"),
        text("restart with healthy Services", "writes each object again", "writes nothing"),
        text("while Harvester is slow or away", "a worker sleeps up to 10 s, then deletes the load balancer",
             "no worker sleeps, nothing is deleted on failure"),
        text("why is it pending?", "an error chain", "the host's own reason and what to do, as an Event and a condition"),
        (["announcer-power-loss"], power, "node loses power"),
        (["announcer-kill"], killed, "announcer killed"),
        (["announcer-terminate"], ends, "announcer ends and hands over (`vip_handover=true`; by default only where its node leaves)"),
        text("load over the nodes", "one node has all addresses, unless `svc_election`",
             "spread, each with its own owner (`global` and `svc_election` exist, too)"),
        text("DHCP renewal", "fails with the shipped rights", "unicast from a packet socket, full RFC 2131; DHCPv6 where a Service asks for `::`"),
        text("ports of the node behind a VIP", "open with the shipped values", "closed (service security, on by default)"),
        text("credentials", "a shell script", "`generate-addon`: makes, checks, rotates and revokes them; a new file is used without a restart"),
        text("BGP, routing tables, egress, UPnP, control plane address", "yes", "no; a kube-vip with `svc_enable=false` can do these beside it"),
        text("maturity", "years of use", "new: no release, never run on a real Harvester host"),
    ]
    return table(data, ["", "Go provider 0.2.7 + kube-vip 1.2.3", "this"], rows)


# Parts of a row's title and of what it has measured, the cause, and what will change. Only what code or documents show: else the cause is not known.
CAUSES = [
    (("power loss of the owner", "IPVS"),
     "`arp_ignore` is set on interfaces that carry an address of a Service ([decisions.md](decisions.md), 27). A node without one answers for what kube-proxy"
     " has bound on every node, and counts as a stranger until it has taken another address. Nothing will change: `ipvs.strictARP: true`, which"
     " [requirements.md](requirements.md) asks for, ends it."),
    (("leader", "new Service"),
     "The waiting replica takes the Lease 4.4 s after the last renewal at the earliest ([node-loss.md](node-loss.md#the-controllers-own-fail-over)); a shorter"
     " `--leader-elect-retry-period` shortens that. What the longest run waited for besides is not known."),
    (("API server", "etcd"),
     "Watches on the lost API server end after 2 to 3 s, and etcd needs 1 to 2 s to choose a leader ([node-loss.md](node-loss.md)); where its leader was lost"
     " it answers what was sent to it before after 7 s ([decisions.md](decisions.md), cloud controller). Nothing will change: the election is etcd's own."),
    (("RSS of each announcer",),
     "Most of it is not the addresses': with a few of them an announcer is near the bound, too (rows of the demo). What else it is, is not known."),
    (("500 Services at rest: RSS",),
     "Most of it is not the Services': with a few of them the controller has more than half of it, too (rows of the demo). What else it is, is not known."),
    (("of another namespace while 10,000 are made",),
     "Two API servers, etcd, the stand-in for the host and the controller share two cores, which are busy all the time ([how far it goes](#how-far-it-goes))."
     " On this machine nothing will change."),
]


def missed(data):
    """Each bound that a table calls missed: by how much, why, and what will change."""
    out = {}
    for rows in TABLES.values():
        heads = []
        for line in rows(data) if rows is not missed else []:
            cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("| ") else []
            heads = heads if cells and heads else cells
            for head, cell in zip(heads, cells) if MISSED in line else []:
                parts = [part.replace(MISSED, "") for part in cell.split("; ") if MISSED in part]
                if parts:
                    own = re.search(r"\(bound (.+)\)$", head)
                    bound = own[1] if own else next(text for title, text in zip(heads, cells) if title.startswith("bound"))
                    out.setdefault((cells[0].lstrip("… "), bound), []).extend(parts)
    if not out:
        return ["No bound is missed."]
    def cause(text):
        return next((cause for words, cause in CAUSES if all(word in text for word in words)), "The cause is not known.")
    return [f"* {title}: {'; '.join(parts)}, bound {bound}. {cause(f'{title} {parts}')}" for (title, bound), parts in out.items()]


def demo_time(data):
    """How long the demo takes where everything is built, and where nothing is."""
    if "demo" not in data.steps:
        return ["How long the demo takes has not been measured yet; `make figures ARGS='--only demo'` does."]
    origin, runs = data.steps["demo"]["origin"], runs_of(data.report("demo"))
    built = (f"Where everything is built the demo takes {median_low([run['seconds'] for run in runs]):.0f} s on {origin['machine']['cores']} cores"
             f" (commit {origin['commit']}, {origin['date'][:10]}, {'one run' if len(runs) == 1 else f'median of {len(runs)}'}).")
    if "cold-demo" not in data.steps:
        return [f"{built} The first run builds Kubernetes from source, which takes far longer, and says how long is left."]
    origin, report = (data.steps["cold-demo"][part] for part in ("origin", "report"))
    return [f"{built} Where nothing is built, it builds Kubernetes from source, too, and says how long is left: {report['seconds'] / 60:.1f} minutes (bound 12"
            f"{held(report['seconds'], 720)})"
            f" on {origin['machine']['cores']} cores, {report['building_seconds'] / 60:.1f} of them for building, with {report['disk_gb']:.1f} GB of disk"
            f" (commit {origin['commit']}, {origin['date'][:10]}; Debian packages were installed before)."]


TABLES = {"readme": readme, "demo-time": demo_time, "origin": taken, "demo": demo, "services": services, "announcer": announcer, "lan": lan,
          "200-vips": vips, "lost-node": lost_node, "long": long_runs, "tests": tests, "simulation": simulation, "ccm": ccm, "missed": missed, "peers": peers}
