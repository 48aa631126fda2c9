"""Fit what the gradient of a convolution by its weights costs by tiles and slices (policy wgrad.cost) to times.

    python tools/regret.py measure calls.txt -o times.jsonl
    python tools/fit/wgrad_costs.py take times.jsonl -o bench/results/fits/wgrad.cost.json
    python tools/fit/wgrad_costs.py fit

*take* keeps the times of routes that make equal slices. *fit* prints the numbers of the policy that make the sum of
squared logarithms of time over cost least, with a launch that is the same for all, and how far costs are from times: of
the calls that they are fitted to, and of those of each third when they are fitted to the others.
"""

import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fitting import RESULTS, fit_id, parsers, thirds, write

from vkconv.device import Device, load_device
from vkconv.ops import OPS
from vkconv.ops.conv.wgrad.cost import Costs, by_slices
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.conv.wgrad.tiles import TILES
from vkconv.ops.core.calls import parse_call
from vkconv.policy import tables

TOOL, NAME = "wgrad_costs", "wgrad.cost"
FITS = (NAME,)
SCHEMA = "vkconv.wgrad-times/1"
TIMES = RESULTS / f"{NAME}.json"
_ROUTES = ("direct", "two_stage", "split_n")
# What is fitted, and the values that are tried.
SEARCHED: Mapping[str, Sequence[float]] = {
    "k_tile_wait": range(500, 1400, 100),
    "gathered_wait": range(800, 2000, 200),
    "reload": (0, 6, 12, 18),
}
_LAUNCHES_US = (4.0, 5.0, 6.0, 7.0)


@dataclasses.dataclass(frozen=True)
class Timed:
    """A call by a tile and so many slices, and its time."""

    call: str
    tile: str
    slices: int
    us: float
    problem: WeightGradient


def timed(path: Path) -> list[Timed]:
    """The times of a file."""
    rows = json.loads(path.read_text())["rows"]
    problems = {row["call"]: WeightGradient.of(parse_call(row["call"], OPS)) for row in rows}
    return [Timed(row["call"], row["tile"], row["split_k"], row["us"], problems[row["call"]]) for row in rows]


def _errors(rows: Iterable[Timed], costs: Costs, launch_us: float, device: Device) -> list[float]:
    """The logarithms of time over cost."""
    return [math.log(r.us / (launch_us + by_slices(TILES[r.tile], r.problem, device, costs)(r.slices))) for r in rows]


def costs(rows: Sequence[Timed], start: Costs, device: Device) -> tuple[Costs, float]:
    """The costs nearest to the times, and the launch."""
    best: tuple[float, Costs, float] | None = None
    for values in itertools.product(*SEARCHED.values()):
        made = dataclasses.replace(start, **dict(zip(SEARCHED, map(float, values), strict=True)))
        for launch in _LAUNCHES_US:
            rest = sum(error**2 for error in _errors(rows, made, launch, device))
            if best is None or rest < best[0]:
                best = rest, made, launch
    assert best is not None
    return best[1:]


def spread(errors: Sequence[float]) -> float:
    """The root of the mean square: 0.2 is some 20 %."""
    return math.sqrt(statistics.fmean(error**2 for error in errors))


def held_out(rows: Sequence[Timed], start: Costs, device: Device) -> list[float]:
    """The errors of each third of the calls, with costs fitted to the other two."""
    found: list[float] = []
    for third in thirds((row.call for row in rows), NAME):
        made, launch = costs([row for row in rows if row.call not in third], start, device)
        found += _errors([row for row in rows if row.call in third], made, launch, device)
    return found


def start() -> Costs:
    """The costs of the row that is fitted."""
    row = next(row for row in tables()[NAME].rows if row.fit.startswith(f"{TOOL}/"))
    return Costs(**row.value)


def take(source: Path) -> dict[str, object]:
    """The medians of a file of tools/regret.py."""
    header, *lines = [json.loads(line) for line in source.read_text().splitlines()]
    found: dict[tuple[str, str, int], list[float]] = {}
    for line in lines:
        if "us" in line and line["route"] in _ROUTES:
            way = line["call"], line["params"]["tile"], line["params"].get("split_k", 1)
            found.setdefault(way, []).append(line["us"])
    rows = [
        {"call": call, "tile": tile, "split_k": slices, "us": round(statistics.median(times), 2)}
        for (call, tile, slices), times in found.items()
    ]
    return {"schema": SCHEMA, "device": header["device"], "driver": header["driver"], "rows": rows}


def report(path: Path, device: Device) -> str:
    """The numbers of the policy, and how good they are."""
    rows = timed(path)
    made, launch = costs(rows, start(), device)
    own, held = _errors(rows, made, launch, device), held_out(rows, start(), device)
    return "\n".join(
        [
            f"# {len(rows)} times of {len({row.call for row in rows})} calls, a launch of {launch:g} us: "
            f"{spread(own):.2f} off; held out {spread(held):.2f}",
            f'fit = "{fit_id(TOOL, NAME, path)}"',
            *(f"{name} = {getattr(made, name):g}" for name in SEARCHED),
        ]
    )


def main() -> None:
    wanted = parsers(__doc__, "take", "source")[0].parse_args()
    if wanted.command == "take":
        write(take(wanted.source), wanted.output)
    else:
        print(report(wanted.times or TIMES, load_device(wanted.device)))


if __name__ == "__main__":
    main()
