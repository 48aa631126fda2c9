"""Holds `vkconv estimate` against published timings of phones, and writes the tables of docs/estimate.md as Markdown:

    python tools/published.py [-o FILE.md]

bench/results/published has the timings: choices.csv, which of two ways was faster; timings.csv, microseconds;
sources.toml, where each is from, and which GPU stands for the one that was timed. Both sets of compilers must be
installed.
"""

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from vkconv.compilers.estimate import Estimate, estimate_all
from vkconv.compilers.gpus import find_gpu
from vkconv.compilers.live import planning_device
from vkconv.compilers.pipelines import Asked
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.route import Params
from vkconv.table import Column, Table

FOLDER = Path(__file__).resolve().parent.parent / "bench" / "results" / "published"
# The routes that stand for a way that was timed, with parameters: the one with the least bound counts. ExecuTorch's
# GEMM has tiles of 4x4 in registers and no shared memory.
ROUTES: Mapping[str, tuple[tuple[str, Params], ...]] = {
    "im2col": (("im2col_gemm", {}), ("im2col_gemm", {"tile": "register_4x8"})),
    "direct": (("direct_tile", {}), ("direct", {}), ("pointwise", {})),
    "winograd": (("winograd", {}),),
    "depthwise": (("depthwise", {}), ("grouped", {})),
}
_MAX_SECONDS = 120.0


class StandIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands for a GPU that was timed: the compiler's GPU, and the device file that has the numbers."""

    compiler: str
    device: str = ""
    why: str = ""


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A publication: what was timed, where it stands, and what it does not tell."""

    title: str
    url: str
    note: str


class Sources(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of sources.toml."""

    sources: dict[str, Source]
    gpus: dict[str, StandIn]


def read(name: str) -> list[dict[str, str]]:
    """The rows of one of the files."""
    with (FOLDER / name).open(newline="") as file:
        return list(csv.DictReader(file))


def bounds(stand_in: StandIn, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Estimate]:
    """The least bound of each call and way."""
    gpu, wanted = find_gpu(stand_in.compiler), list(dict.fromkeys(wanted))
    device, _ = planning_device(gpu, stand_in.device)
    ways = [
        (way, Asked(parse_call(call, OPS), call, route=route, params=params))
        for call, way in wanted
        for route, params in ROUTES[way]
    ]
    found: dict[tuple[str, str], Estimate] = {}
    rows = estimate_all(gpu, [asked for _, asked in ways], device, max_seconds=_MAX_SECONDS)
    for (way, _), row in zip(ways, rows, strict=True):
        best = found.get((row.call, way))
        if row.us is not None and (best is None or best.us is None or row.us < best.us):
            found[row.call, way] = row
    return found


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rank correlation; ties have the mean of their ranks."""
    x, y = _ranks(a), _ranks(b)
    mean = (len(a) + 1) / 2
    over = sum((p - mean) * (q - mean) for p, q in zip(x, y, strict=True))
    under = (sum((p - mean) ** 2 for p in x) * sum((q - mean) ** 2 for q in y)) ** 0.5
    return over / under if under else float("nan")


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in values]


def choices_tables(rows: Sequence[Mapping[str, str]], sources: Sources) -> list[Table]:
    """For each GPU and type: how often the faster way has the lesser bound; and those calls where it has not."""
    cells, wrong = [], []
    for gpu in dict.fromkeys(row["gpu"] for row in rows):
        mine = [row for row in rows if row["gpu"] == gpu]
        ways = sorted({way for row in mine for way in (row["faster"], row["slower"])})
        found = bounds(sources.gpus[gpu], ((row["call"], way) for row in mine for way in ways))
        for dtype in ("f32", "f16"):
            typed = [row for row in mine if row["call"].endswith(dtype)]
            compared = [row for row in typed if all((row["call"], row[way]) in found for way in ("faster", "slower"))]
            agrees = 0
            for row in compared:
                fast, slow = (found[row["call"], row[way]] for way in ("faster", "slower"))
                assert fast.us is not None and slow.us is not None
                agrees += fast.us < slow.us
                if fast.us >= slow.us:
                    wrong.append((row["source"], gpu, row["call"], row["faster"], *_told(fast), *_told(slow)))
            if typed:
                always = max(sum(row["faster"] == way for row in compared) for way in ways)
                cells.append(
                    (typed[0]["source"], gpu, sources.gpus[gpu].compiler, dtype, len(compared), agrees, always)
                )
    cells.append(("all", "", "", "", *(sum(int(str(cell[i])) for cell in cells) for i in (4, 5, 6))))
    names = ("source", "timed on", "compiled for", "type", "pairs", "agree", "the commoner way would")
    agreement = Table("Which way is faster", [Column(name) for name in names], cells)
    names = ("source", "timed on", "call", "faster", "its bound [us]", "limit", "bound of the other [us]", "limit ")
    return [agreement, Table("Where it is wrong", [Column(name, digits=3) for name in names], wrong)]


def _told(row: Estimate) -> tuple[float | None, str]:
    return row.us, row.limit


def timings_tables(rows: Sequence[Mapping[str, str]], sources: Sources) -> list[Table]:
    """For each GPU, way and type the rank correlation of times and bounds, of times and arithmetic alone, and by how
    much times are above the bounds."""
    cells, far = [], []
    for gpu in dict.fromkeys(row["gpu"] for row in rows):
        mine = [row for row in rows if row["gpu"] == gpu]
        found = bounds(sources.gpus[gpu], ((row["call"], row["route"]) for row in mine))
        for way in dict.fromkeys(row["route"] for row in mine):
            for dtype in ("f32", "f16"):
                typed = [
                    row
                    for row in mine
                    if (row["route"], row["call"].rpartition("=")[2]) == (way, dtype) and (row["call"], way) in found
                ]
                if len(typed) < 4:
                    continue
                times = [float(row["us"]) for row in typed]
                least = [found[row["call"], way].us or 0.0 for row in typed]
                work = [float(OPS["conv2d"].flops(parse_call(row["call"], OPS))) for row in typed]
                ratios = sorted(time / bound for time, bound in zip(times, least, strict=True))
                cells.append(
                    (
                        *(typed[0]["source"], gpu, sources.gpus[gpu].compiler, way, dtype, len(typed)),
                        *(spearman(times, least), spearman(times, work)),
                        *(ratios[0], ratios[len(ratios) // 2], ratios[-1]),
                    )
                )
                gaps = [(a - b, row) for a, b, row in zip(_ranks(times), _ranks(least), typed, strict=True)]
                for gap, row in sorted(gaps, key=lambda one: -abs(one[0]))[:3]:
                    bound = found[row["call"], way]
                    far.append((gpu, way, row["call"], float(row["us"]), bound.us, bound.limit, gap))
    names = ("source", "timed on", "compiled for", "way", "type", "layers", "Spearman", "of arithmetic alone")
    more = ("least time / bound", "median", "most")
    columns = [Column(name, digits=3) for name in (*names, *more)]
    names = ("timed on", "way", "call", "time [us]", "bound [us]", "limit", "ranks apart")
    return [
        Table("How layers are ranked", columns, cells),
        Table("The three that are ranked worst of each", [Column(name, digits=3) for name in names], far),
    ]


def pairs(timings: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Calls that were timed in two ways, as rows of choices."""
    times: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in timings:
        times.setdefault((row["source"], row["gpu"], row["call"]), {})[row["route"]] = float(row["us"])
    return [
        {
            **{"source": source, "gpu": gpu, "call": call},
            **dict(zip(("faster", "slower"), sorted(by_way, key=by_way.__getitem__), strict=True)),
        }
        for (source, gpu, call), by_way in times.items()
        if len(by_way) == 2
    ]


def main(words: Sequence[str]) -> None:
    """Write the tables to a file or to the screen."""
    sources = msgspec.toml.decode((FOLDER / "sources.toml").read_bytes(), type=Sources)
    choices, timings = read("choices.csv"), read("timings.csv")
    tables = [*choices_tables([*choices, *pairs(timings)], sources), *timings_tables(timings, sources)]
    text = "\n\n".join(
        f"### {table.title}\n\n{Table('', table.columns, table.cells).to_markdown()}" for table in tables
    )
    if words[:1] == ["-o"] and len(words) == 2:
        Path(words[1]).write_text(text + "\n")
    elif not words:
        print(text)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
