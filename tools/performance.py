"""Writes the tables and the chart of docs/performance.md from the results in bench/results/timings.

    python tools/performance.py [--check]

A table stands between two comments, <!-- table: NAME --> and <!-- end -->; the text around it is written by hand.
--check changes nothing and ends with 1 where a table or the chart is not what the results give.
"""

import argparse
import datetime
import functools
import html
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from timings import CALLS, CPU, LISTS, RESULTS, Source, Timed, groups, mean, named, newest, read, rows, sources

ROOT = Path(__file__).parents[1]
DOCUMENT, CHART = ROOT / "docs" / "performance.md", ROOT / "docs" / "performance.svg"
_PLACE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_NONE = "-"
# Of the first table: lists from then on, the layers in f16 that were timed again, networks on lavapipe.
_RECENT = datetime.date(2026, 11, 27)
_AGAIN = ("h200_behind_f16", "h200_others_f16")
_LAVAPIPE_NETWORKS = ("lavapipe_networks_f32", "lavapipe_mobile_f32")
# Of each class and type, as many of the calls that are furthest behind: by tables of today, by older ones alone.
_FURTHEST, _FURTHEST_OLDER = 2, 1
# What is behind in one table: classes, and whether in 16 bits (None: both).
BEHIND: dict[str, tuple[tuple[str, ...], bool | None]] = {
    "matrix_units": (("1x1", "k x k", "products"), True),
    "f32": (("1x1", "k x k", "products", "reductions"), False),
    "depthwise": (("depthwise",), None),
    "groups": (("groups",), None),
    "stems": (("stems",), None),
    "5x5": (("5x5",), None),
    "data_gradients": (("data gradients",), None),
    "weight_gradients": (("weight gradients",), None),
}


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A table; its first columns are text, the others are numbers."""
    rules = ["---"] * texts + ["--:"] * (len(head) - texts)
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rules, *lines))


def _mean_and_least(ratios: Sequence[float]) -> tuple[str, str]:
    return (f"{mean(ratios):.2f}", f"{min(ratios):.2f}") if ratios else (_NONE, _NONE)


def _counted(ratios: Sequence[float]) -> tuple[str, str, str]:
    return str(len(ratios)) if ratios else _NONE, *_mean_and_least(ratios)


def _shown(*of: str) -> dict[str, Source]:
    """The tables of some groups that no newer one has taken the place of."""
    return {name: source for name, source in named(*of).items() if not source.superseded_by}


def _ratios(name: str) -> list[float]:
    return [row.ratio for row in rows(name)]


def _span(numbers: Iterable[float]) -> str:
    """The least and the largest of some means; one where there is one."""
    found = [f"{number:.2f}" for number in sorted(numbers)]
    return " to ".join(dict.fromkeys((found[0], found[-1])))


def of_all(names: Iterable[str]) -> tuple[int, float]:
    """How many calls some tables stand for, and their mean: each table by as many calls as its own were drawn from."""
    of = sources()
    weights = {name: of[name].drawn_from or len(rows(name)) for name in names}
    total = sum(weights.values())
    return total, math.exp(sum(weight * math.log(mean(_ratios(name))) for name, weight in weights.items()) / total)


def short() -> str:
    """The first table: what a reader wants to know of all others."""
    lines = [_short_networks("f32"), _short_networks("f16")]
    f32 = _shown("f32")
    recent = [name for name, source in _shown(LISTS).items() if source.dtype == "f32" and source.date >= _RECENT]
    matmul = _ratios("h200_matmul_f16")
    total, layers = of_all(_AGAIN)
    lavapipe = _span([mean(_ratios("lavapipe_conv2d_f32"))])
    for what, beside, ratios, names, other in (
        ("convolutions and their gradients, f32", "cuDNN, TF32 off; ncnn", None, list(f32), lavapipe),
        (f"lists of layers of {_RECENT} and later, f32", "cuDNN, TF32 off", None, recent, _NONE),
        (f"all {total} layers of the lists, f16", "cuDNN", f"{layers:.2f}", _AGAIN, _NONE),
        ("`matmul` of 32 to 2048 rows, f16", "cuBLAS", f"{mean(matmul):.2f}", ["h200_matmul_f16"], _NONE),
        (
            "reductions, alone and fused with products or convolutions, f32",
            "PyTorch, cuDNN",
            None,
            list(_shown("reductions")),
            _NONE,
        ),
    ):
        least = min(min(_ratios(name)) for name in names)
        lines.append((what, beside, ratios or _span(mean(_ratios(name)) for name in names), f"{least:.2f}", other))
    return markdown(("what", "peer", "mean, H200 and H100", "min", "mean, lavapipe"), lines, 2)


def _short_networks(dtype: str) -> tuple[str, ...]:
    of = [one for one in read_networks() if one.dtype == dtype]
    means_of = [mean(one.ratio for one in these) for _, these in _grouped(_of_both(of), lambda one: (one.device,))]
    least = min(of, key=lambda one: one.ratio)
    here = [mean(_ratios(name)) for name in _LAVAPIPE_NETWORKS] if dtype == "f32" else []
    beside = f"PyTorch's CUDA graph{'; ncnn' if here else ''}"
    worst = f"{least.ratio:.2f}, {least.network} of {least.batch}"
    return (
        f"networks, {dtype}",
        beside,
        ", ".join(f"{one:.2f}" for one in means_of),
        worst,
        _span(here) if here else _NONE,
    )


def calls() -> str:
    """A line for each table of calls: how vkconv compares with the peer."""
    lines = [
        (
            source.title,
            source.on,
            source.beside,
            source.tool,
            *_counted(_ratios(name)),
            str(source.date),
            source.commit or _NONE,
        )
        for name, source in _shown(*CALLS, CPU).items()
    ]
    return markdown(("what", "device", "peer", "tool", "calls", "mean", "min", "date", "commit"), lines, 4)


def lists() -> str:
    """A line for each list of layers and type: beside the peer, and what the choice lost to the fastest route."""
    lost = {row["table"]: row for row in read("regret") if row["table"]}
    lines = []
    for name, source in _shown(LISTS).items():
        regret = (lost[name]["mean"], lost[name]["worst"]) if name in lost else (_NONE, _NONE)
        what = source.list, source.title, source.held_out or _NONE, source.dtype, source.on
        lines.append((*what, *_counted(_ratios(name)), *regret, str(source.date), source.commit or _NONE))
    head = (
        "list",
        "what",
        "held out from",
        "type",
        "device",
        "calls",
        "mean",
        "min",
        "regret",
        "worst",
        "date",
        "commit",
    )
    return markdown(head, lines, 5)


def classes() -> str:
    """A line for each class of calls and type, each call by its newest time."""
    lines = []
    for what, halves, timed in groups(newest()):
        one, more, older = list[float](), list[float](), list[float]()
        for row, kind, current in timed:
            (older if not current else one if kind.images == 1 else more).append(row.ratio)
        below = sum(ratio < 1 for ratio in (*one, *more))
        lines.append((what, _type(halves), *_counted(one), *_counted(more), str(below), *_counted(older)))
    numbers = ("calls", "mean", "min")
    head = (
        "class",
        "type",
        "one image: calls",
        *numbers[1:],
        "several images: calls",
        *numbers[1:],
        "below 1",
        "earlier kernels: calls",
        *numbers[1:],
    )
    return markdown(head, lines, 2)


def _type(halves: bool) -> str:
    return "16 bits" if halves else "f32"


def behind(classes_of: Sequence[str], in_halves: bool | None) -> str:
    """The calls of some classes that vkconv is furthest behind in."""
    of, lines = sources(), list[tuple[str, ...]]()
    for what, halves, timed in groups([one for one in newest() if one.row.ratio < 1]):
        if what in classes_of and in_halves in (None, halves):
            today, older = ([one for one in timed if one.current is current] for current in (True, False))
            for one in (*today[:_FURTHEST], *older[:_FURTHEST_OLDER]):
                lines.append(_behind(one, of[one.row.table]))
    return markdown(("call", "route", "device", "us", "peer us", "ratio", "date"), lines, 3)


def _behind(one: Timed, source: Source) -> tuple[str, ...]:
    row, date = one.row, f"{source.date}{'' if one.current else ', earlier'}"
    return f"`{row.call}`", row.route or _NONE, source.on, row.us, row.peer_us, f"{row.ratio:.2f}", date


class Network(NamedTuple):
    """A network beside PyTorch's CUDA graph."""

    device: str
    network: str
    dtype: str
    batch: int
    us: float
    peer_us: float
    ratio: float
    call_ratio: float | None
    commit: str


def read_networks() -> list[Network]:
    """Networks of all devices; what a caller waits for only where it was taken."""
    found = []
    for name, source in named("networks").items():
        made = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
        ours: dict[tuple[str, str, int], dict[str, Any]] = {
            (row["network"], row["dtype"], row["batch"]): row for row in made if row["run"] == "vkconv"
        }
        for row in (row for row in made if row["run"] == "CUDA graph"):
            what = row["network"], row["dtype"], row["batch"]
            times = ours[what]["device_us"], row["device_us"], row["device_ratio"], row.get("call_ratio")
            found.append(Network(source.on, *what, *times, row["commit"]))
    return found


def _of_both(found: Sequence[Network]) -> list[Network]:
    """Those that every device has in all types and batches."""
    ways = {(one.device, one.dtype, one.batch) for one in found}
    have = {
        name: {(one.device, one.dtype, one.batch) for one in found if one.network == name}
        for name in {one.network for one in found}
    }
    return [one for one in found if have[one.network] == ways]


def means() -> str:
    """The networks that all devices have: means by device and type."""
    lines = []
    every = _of_both(read_networks())
    for (device, dtype), these in _grouped(every, lambda one: (one.device, one.dtype)):
        numbers = [
            text for batch in (1, 32) for text in _mean_and_least([one.ratio for one in these if one.batch == batch])
        ]
        least = min(these, key=lambda one: one.ratio)
        callers = [one.call_ratio for one in these if one.call_ratio is not None]
        called = _mean_and_least(callers) if len(callers) == len(these) else (_NONE, _NONE)
        worst = f"{least.ratio:.2f}, {least.network} of {least.batch}"
        lines.append(
            (device, dtype, str(len(these)), *numbers, f"{mean(one.ratio for one in these):.2f}", worst, *called)
        )
    head = (
        "device",
        "type",
        "rows",
        "one image: mean",
        "min",
        "32: mean",
        "min",
        "all: mean",
        "min",
        "array to array: mean",
        "min",
    )
    return markdown(head, lines, 2)


def _grouped(
    found: Iterable[Network], by: Callable[[Network], tuple[str, ...]]
) -> list[tuple[tuple[str, ...], list[Network]]]:
    """Rows by what they have in common, in the order in which that comes first."""
    made = dict[tuple[str, ...], list[Network]]()
    for one in found:
        made.setdefault(by(one), []).append(one)
    return list(made.items())


def networks() -> str:
    """Networks beside PyTorch's CUDA graph, timed on the device, the devices side by side."""
    found = read_networks()
    devices = list(dict.fromkeys(one.device for one in found))
    lines = []
    for (network, dtype, batch), these in _grouped(found, lambda one: (one.network, one.dtype, str(one.batch))):
        of = {one.device: one for one in these}
        cells = [text for device in devices for text in _network(of.get(device))]
        lines.append((network, dtype, batch, *cells))
    numbers = [text for device in devices for text in (f"{device}: us", "PyTorch us", "ratio", "commit")]
    return markdown(("network", "type", "batch", *numbers), lines, 2)


def _network(one: Network | None) -> tuple[str, str, str, str]:
    if one is None:
        return _NONE, _NONE, _NONE, _NONE
    return f"{one.us:.0f}", f"{one.peer_us:.0f}", f"{one.ratio:.2f}", one.commit


def behind_networks() -> str:
    """The networks that take longer than PyTorch's CUDA graph."""
    found = sorted((one for one in read_networks() if one.ratio < 1), key=lambda one: one.ratio)
    lines = [(one.network, one.dtype, one.device, str(one.batch), *_network(one)) for one in found]
    return markdown(("network", "type", "device", "batch", "us", "PyTorch us", "ratio", "commit"), lines, 3)


def regret() -> str:
    """The time of what is chosen over that of the fastest: of calls in no list, by no rule that they changed or that
    was left."""
    hidden = "table", "superseded_by"
    found = [
        row for row in read("regret") if row["group"] not in ("since", "left") and not any(row[name] for name in hidden)
    ]
    order = list(dict.fromkeys(row["group"] for row in found))
    found.sort(key=lambda row: order.index(row["group"]))
    lines = [(row["suite"], row["tried"] or "all routes", row["device"], row["mean"], row["worst"]) for row in found]
    return markdown(("what", "tried", "device", "mean", "worst"), lines, 3)


TABLES: dict[str, Callable[[], str]] = {
    **{entry.__name__: entry for entry in (short, means, networks, behind_networks, calls, lists, classes, regret)},
    **{f"behind_{name}": functools.partial(behind, *of) for name, of in BEHIND.items()},
}


class Bar(NamedTuple):
    """A line of the chart."""

    label: str
    ratios: Sequence[float]


def bars() -> list[tuple[str, list[Bar]]]:
    """The lines of the chart under their headings."""
    both = _grouped(_of_both(read_networks()), lambda one: (one.device, one.dtype))
    found = [
        (
            "Networks of both devices beside PyTorch's CUDA graph",
            [Bar(" ".join(key), [one.ratio for one in of]) for key, of in both],
        )
    ]
    headings = {"f32": "Calls in f32 beside cuDNN", "16-bit": "Calls in 16 bits beside cuDNN and cuBLAS"}
    headings |= {"reductions": "Reductions beside PyTorch's CUDA graph", CPU: "On lavapipe beside ncnn's Vulkan"}
    for group, heading in headings.items():
        found.append((heading, [Bar(f"{of.label}, {of.on}", _ratios(name)) for name, of in _shown(group).items()]))
    for dtype in ("f32", "f16"):
        of = {name: source for name, source in _shown(LISTS).items() if source.dtype == dtype}
        title = f"Lists of layers in {dtype} beside cuDNN"
        found.append((title, [Bar(f"{source.list}, {source.on}", _ratios(name)) for name, source in of.items()]))
    return found


def chart() -> str:
    """The mean ratio of each table, from the least to the largest, with a line at 1."""
    drawn = bars()
    every = [ratio for _, found in drawn for bar in found for ratio in bar.ratios]
    ticks = [2.0**i for i in range(math.floor(math.log2(min(every))), math.ceil(math.log2(max(every))) + 1)]
    left, width, line, top = 280, 420, 18, 30

    def x(ratio: float) -> float:
        return left + width * math.log(ratio / ticks[0]) / math.log(ticks[-1] / ticks[0])

    y, lines = top, list[str]()
    for heading, found in drawn:
        lines.append(f'<text x="8" y="{y + 4}" font-weight="bold">{html.escape(heading)}</text>')
        for bar in found:
            y += line
            lines += _bar(bar, y, left, x)
        y += line + 8
    bottom = y - 12
    frame = []
    for tick in ticks:
        dash = "" if tick == 1 else ' stroke-dasharray="2 4"'
        frame.append(f'<path d="M{x(tick):.1f} 16V{bottom}" stroke="#999"{dash}/>')
        frame += [f'<text x="{x(tick):.1f}" y="{at}" text-anchor="middle">{tick:g}</text>' for at in (12, bottom + 14)]
    size = f'width="{left + width + 150}" height="{bottom + 22}"'
    style = 'font-family="sans-serif" font-size="12" fill="#444"'
    title = "<title>What the peer takes over what vkconv takes: geometric mean, least to largest</title>"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{title}\n'
        + "\n".join((*frame, *lines))
        + "\n</svg>\n"
    )


def _bar(bar: Bar, y: int, left: int, x: Callable[[float], float]) -> list[str]:
    least, middle, most = min(bar.ratios), mean(bar.ratios), max(bar.ratios)
    colour = "#2a7f62" if middle >= 1 else "#b3542e"
    return [
        f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{html.escape(bar.label)}</text>',
        f'<rect x="{x(least):.1f}" y="{y - 3}" width="{x(most) - x(least):.1f}" height="6" fill="#ccc"/>',
        f'<circle cx="{x(middle):.1f}" cy="{y}" r="5" fill="{colour}"/>',
        f'<text x="{left + 430}" y="{y + 4}">{middle:.2f} ({least:.2f} to {most:.1f})</text>',
    ]


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
