#!/usr/bin/env python3
"""dashboard.py DATA OUT.svg: draws the chart's dashboard, panel by panel, from what a real Prometheus answered to its queries.

There is no Grafana in the package registries that this project builds from; this follows its layout, units, legends and thresholds, so that
a reader sees what the panels show. DATA comes from the program `dashboard` (tests/src/bin/dashboard); `make dashboard-png` runs both."""

import json
import re
import sys
from pathlib import Path
from time import gmtime, strftime
from xml.sax.saxutils import escape

WIDTH, ROW, GAP, LEFT = 1400, 31, 8, 10
COLUMN = (WIDTH - 2 * LEFT) / 24
COLOURS = ["#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#37872d", "#fade2a", "#c4162a"]
NAMED = {"green": "#73bf69", "red": "#f2495c", "orange": "#ff9830"}


def number(text):
    value = float(text)
    return None if value != value or value in (float("inf"), float("-inf")) else value


def shown(value, unit):
    """A value in its unit, as short as an axis wants it."""
    if value is None:
        return "–"
    plain = lambda v: f"{v:.3g}" if v < 1000 else f"{v:.0f}"
    if unit == "s":
        for size, name in ((3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if abs(value) >= size:
                return f"{plain(value / size)} {name}"
        return "0 s"
    if unit == "bytes":
        return f"{plain(value / 1048576)} MiB"
    return plain(value) + {"short": "", "ops": " ops/s", "pps": " p/s", "reqps": " req/s"}.get(unit, "")


def legend(pattern, labels):
    return re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found[1], ""), pattern) or "value"


def ceiling(value):
    """The next round number, for the top of an axis."""
    if value <= 0:
        return 1.0
    size = 1.0
    while size * 10 <= value:
        size *= 10
    while size > value:
        size /= 10
    return next(size * step for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if size * step >= value * 0.999)


def text(x, y, words, size=12, colour="#ccccdc", anchor="start", weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{escape(words)}</text>')


def stat(panel, queries, x, y, w, h):
    defaults = panel["fieldConfig"]["defaults"]
    result = [sample for query in queries for sample in query["now"]]
    value = number(result[0]["value"][1]) if result else None
    colour = "#73bf69"
    for step in defaults.get("thresholds", {}).get("steps", []):
        if step["value"] is None or (value is not None and value >= step["value"]):
            colour = NAMED[step["color"]]
    words = shown(value, defaults["unit"])
    for mapping in defaults.get("mappings", []):
        words = mapping["options"].get(words, {}).get("text", words)
    return [text(x + w / 2, y + h / 2 + 24, words, 38, colour, "middle", 500)]


def timeseries(panel, queries, data, x, y, w, h):
    unit = panel["fieldConfig"]["defaults"]["unit"]
    series = []
    for query in queries:
        for line in query["range"]:
            points = [(when, number(value)) for when, value in line["values"]]
            if any(value is not None for _, value in points):
                series.append((legend(query["legend"], line["metric"]), points))
    if not series:
        return [text(x + w / 2, y + h / 2, "No data", 13, "#8e8e8e", "middle")]
    series.sort(key=lambda entry: -max(value or 0 for _, value in entry[1]))
    hidden, series = len(series[6:]), sorted(series[:6])
    rows = (len(series) + (1 if hidden else 0) + 1) // 2
    top = ceiling(max(value or 0 for _, points in series for _, value in points))
    left, right, upper, lower = x + 66, x + w - 10, y + 34, y + h - 26 - 16 * rows
    out = []
    for part in range(5):
        at = lower - (lower - upper) * part / 4
        out.append(f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{at:.1f}" y2="{at:.1f}" stroke="#2c3235"/>')
        out.append(text(left - 6, at + 4, shown(top * part / 4, unit), 10.5, "#9fa7b3", "end"))
    span = data["end"] - data["start"]
    place = lambda when, value: (left + (right - left) * (when - data["start"]) / span, lower - (lower - upper) * value / top)
    for part in range(1, 4 if w < 500 else 6):
        when = data["start"] + span * part / (4 if w < 500 else 6)
        out.append(text(place(when, 0)[0], lower + 14, strftime("%H:%M:%S", gmtime(when)), 10.5, "#9fa7b3", "middle"))
    for index, (name, points) in enumerate(series):
        colour = COLOURS[index]
        path, last = [], None
        for when, value in points:
            if value is None or (last is not None and when - last > 2.5 * data["step"]):
                last = None
            if value is not None:
                px, py = place(when, value)
                path.append(f"{'L' if last is not None else 'M'}{px:.1f} {py:.1f}")
                last = when
        out.append(f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
        lx, ly = x + 12 + (index % 2) * (w / 2 - 6), lower + 32 + 16 * (index // 2)
        out.append(f'<rect x="{lx:.1f}" y="{ly - 4:.1f}" width="12" height="3" fill="{colour}"/>')
        limit = int((w / 2 - 30) / 6.4)
        out.append(text(lx + 17, ly, name if len(name) <= limit else name[: limit - 1] + "…", 11))
    if hidden:
        index = len(series)
        lx, ly = x + 12 + (index % 2) * (w / 2 - 6), lower + 32 + 16 * (index // 2)
        out.append(text(lx + 17, ly, f"and {hidden} more", 11, "#8e8e8e"))
    return out


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    data = json.loads(Path(sys.argv[1]).read_text())
    chart = Path(__file__).resolve().parent.parent / "charts/harvester-cloud-provider/files/dashboard.json"
    dashboard = json.loads(chart.read_text())
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"]) * ROW + 56
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
           'font-family="Inter,Roboto,Liberation Sans,DejaVu Sans,sans-serif">',
           f'<rect width="{WIDTH}" height="{height}" fill="#111217"/>', text(LEFT + 4, 30, dashboard["title"], 19, weight=500)]
    for panel in dashboard["panels"]:
        grid = panel["gridPos"]
        x, y = LEFT + grid["x"] * COLUMN + GAP / 2, 46 + grid["y"] * ROW
        w, h = grid["w"] * COLUMN - GAP, grid["h"] * ROW - GAP
        if panel["type"] == "row":
            out.append(text(x + 4, y + 19, "⌄  " + panel["title"], 14, weight=500))
            continue
        out.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="3" fill="#181b1f" stroke="#25282d"/>')
        out.append(text(x + 10, y + 20, panel["title"], 12.5, weight=500))
        queries = [query for query in data["queries"] if query["panel"] == panel["id"]]
        out += stat(panel, queries, x, y, w, h) if panel["type"] == "stat" else timeseries(panel, queries, data, x, y, w, h)
    Path(sys.argv[2]).write_text("\n".join(out + ["</svg>"]) + "\n")


if __name__ == "__main__":
    main()
