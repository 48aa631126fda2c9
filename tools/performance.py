"""Writes the tables and the chart of docs/performance.md from the results in bench/results/timings.

    python tools/performance.py [--check]

A table stands between two comments, <!-- table: NAME --> and <!-- end -->; the text around it is written by hand.
--check changes nothing and ends with 1 where a table or the chart is not what the results give.
"""

import argparse
import csv
import json
import math
import re
import statistics
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "timings"
DOCUMENT, CHART = ROOT / "docs" / "performance.md", ROOT / "docs" / "performance.svg"
_PLACE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def read(name: str) -> list[dict[str, str]]:
    """The rows of a table of the results."""
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def sources() -> Mapping[str, Mapping[str, Any]]:
    """What each table is, by its name."""
    return tomllib.loads((RESULTS / "sources.toml").read_text())


def ratios(name: str) -> list[tuple[float, dict[str, str]]]:
    """What the peer takes over what vkconv takes, least first, with the rows; without those that the peer lacks."""
    rows = [(float(row["peer_us"]) / float(row["us"]), row) for row in read(name) if row["peer_us"]]
    return sorted(rows, key=lambda pair: pair[0])


def mean(values: Iterable[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column is text, the others are numbers where they look so."""
    lines = [head, ["---", *("--:" for _ in head[1:])], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def summary() -> str:
    """A row for each table of calls: how vkconv compares with the peer."""
    rows = []
    for name, source in sources().items():
        found = [ratio for ratio, _ in ratios(name)]
        numbers = (str(len(found)), f"{mean(found):.2f}", f"{found[0]:.2f}", str(source["date"]))
        rows.append((source["title"], source["device"], source["beside"], *numbers))
    return markdown(("what", "device", "beside", "rows", "mean", "least", "date"), rows)


def behind() -> str:
    """The calls of each table that vkconv is furthest behind in: four, or none where a later one has such calls by the
    kernels of then."""
    rows = []
    for name, source in sources().items():
        for ratio, row in ratios(name)[: 0 if "later" in source else 4]:
            if ratio < 1:
                call = row["call"].replace("|", "\\|")
                rows.append((f"`{call}`", row["route"] or "-", row["us"], row["peer_us"], f"{ratio:.2f}"))
    return markdown(("call", "route", "us", "peer us", "peer / vkconv"), rows)


def _networks() -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of each device, with its name."""
    for name in ("h200_networks", "h100_networks"):
        made = json.loads((RESULTS / f"{name}.json").read_text())
        device = name.split("_")[0].upper()
        yield from ((device, row) for row in made["rows"])


def networks() -> str:
    """Networks beside PyTorch's CUDA graph, timed on the device."""
    rows, ours = [], dict[tuple[str, str, int, str], dict[str, Any]]()
    for device, row in _networks():
        key = device, row["network"], row["batch"], row["dtype"]
        if row["run"] == "vkconv":
            ours[key] = row
        elif row["run"] == "CUDA graph":
            mine = ours[key]
            times = f"{mine['device_us']:.0f}", f"{row['device_us']:.0f}", f"{row['device_ratio']:.2f}"
            what = device, row["network"], row["dtype"], str(row["batch"]), mine["note"].split(" ")[0]
            rows.append((*what, *times, f"{mine['error']:.0e}", row["commit"]))
    head = (
        "device",
        "network",
        "type",
        "batch",
        "launches",
        "device us",
        "PyTorch us",
        "ratio",
        "error",
        "commit",
    )
    return markdown(head, rows)


def profiles() -> str:
    """Times of networks by their nodes' timestamps, with and without passes."""
    rows = [
        (row["network"], row["dtype"], row["batch"], row["launches"], row["device_us"], row["without"] or "-")
        for row in read("h200_profiles")
    ]
    return markdown(("network", "type", "batch", "launches", "device us", "without"), rows)


def regret() -> str:
    """The time of what is chosen over that of the fastest."""
    rows = [(row["suite"], row["device"], row["mean"], row["worst"]) for row in read("regret")]
    return markdown(("suite, choice", "device", "mean", "worst"), rows)


TABLES = {entry.__name__: entry for entry in (summary, behind, networks, profiles, regret)}


def chart() -> str:
    """Bars of the mean ratio of each table, from the least to the largest, with a line at 1."""
    names = list(sources())
    most = max(ratio for name in names for ratio, _ in ratios(name))
    left, row, width = 330, 26, 470

    def x(ratio: float) -> float:
        return left + width * math.log(ratio / 0.25) / math.log(most / 0.25)

    lines = []
    for i, name in enumerate(names):
        found, y = [ratio for ratio, _ in ratios(name)], 34 + i * row
        span = x(found[-1]) - x(found[0])
        colour = "#2a7f62" if mean(found) >= 1 else "#b3542e"
        lines += [
            f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{name.replace("_", " ")}</text>',
            f'<rect x="{x(found[0]):.1f}" y="{y - 3}" width="{span:.1f}" height="6" fill="#ccc"/>',
            f'<circle cx="{x(mean(found)):.1f}" cy="{y}" r="6" fill="{colour}"/>',
        ]
    bottom = 34 + len(names) * row
    ticks = [tick for tick in (0.25, 0.5, 1, 2, 4, 8) if tick <= most]
    for tick in ticks:
        dash = "" if tick == 1 else ' stroke-dasharray="2 4"'
        lines.append(f'<path d="M{x(tick):.1f} 16V{bottom - 8}" stroke="#888"{dash}/>')
        lines.append(f'<text x="{x(tick):.1f}" y="{bottom + 8}" text-anchor="middle">{tick:g}</text>')
    size = f'width="{left + width + 20}" height="{bottom + 20}"'
    style = 'font-family="sans-serif" font-size="12" fill="#444"'
    title = "<title>What the peer takes over what vkconv takes: geometric mean, least to largest</title>"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{title}\n' + "\n".join(lines) + "\n</svg>\n"


def document(text: str) -> str:
    """The document with the tables that the results give."""
    return _PLACE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(argv)
    made = {DOCUMENT: document(DOCUMENT.read_text()), CHART: chart()}
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} {'is not what the results give' if options.check else 'written'}")
        if not options.check:
            path.write_text(made[path])
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
