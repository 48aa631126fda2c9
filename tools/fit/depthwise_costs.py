"""Fit what a depthwise convolution by vectors costs by blocks of outputs (policy conv2d.subgroup_depthwise) to times.

    python tools/fit/depthwise_costs.py measure calls.txt -o bench/results/fits/conv2d.subgroup_depthwise.json
    python tools/fit/depthwise_costs.py fit

*measure* times each call of a file (a line each, ``#`` begins a comment) by blocks and lanes drawn at random, not
checked. *fit* prints the nanoseconds of the policy, none negative, with the least sum of squared relative errors, and
what the block of the least cost takes over the best that was timed: of the calls that they are fitted to, and of those
of each third when they are fitted to the others. A launch, and what a call moves beyond the cache, are fitted too.
"""

import dataclasses
import itertools
import json
import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from fitting import RESULTS, fit_id, least_squares, lines, mean, parsers, thirds, write

from vkconv.call import Call
from vkconv.cost import compute_units
from vkconv.device import Device, load_device, target_of
from vkconv.ops import OPS
from vkconv.ops.conv.conv2d.depthwise_subgroup import Blocks, Nanoseconds, gpu_terms, suits
from vkconv.ops.core.calls import parse_call
from vkconv.policy import Policy

TOOL, NAME = "depthwise_costs", "conv2d.subgroup_depthwise"
FITS = (NAME,)
SCHEMA = "vkconv.depthwise-times/1"
TIMES = RESULTS / f"{NAME}.json"
_ROUTE, _DRAWN, _MOST_PRODUCTS = "subgroup_depthwise", 19, 640
_CACHED_BYTES = 40e6
_BLOCKS = Policy(NAME, Blocks)


@dataclasses.dataclass(frozen=True)
class Timed:
    """A call by a block and so many lanes of a workgroup, and its time."""

    call: str
    rows: int
    columns: int
    local: int
    us: float


def timed(path: Path = TIMES) -> tuple[list[Timed], bool]:
    """The times of a file, and whether subgroups had blocks of several planes."""
    made = json.loads(path.read_text())
    return [Timed(row["call"], *way) for row in made["rows"] for way in row["us"]], made["packed"]


class Fitting:
    """The times that the rule can choose from, as terms of their costs."""

    def __init__(self, rows: Iterable[Timed], packed: bool, device: Device) -> None:
        self.rows, policy, units = list(rows), _BLOCKS.of(device), compute_units(device)
        calls = {row.call: parse_call(row.call, OPS) for row in self.rows}
        self.allowed = [row for row in self.rows if suits(calls[row.call], (row.rows, row.columns), policy)]
        lanes = device.subgroup_size
        self._terms = {
            row: np.array(
                [
                    1.0,
                    *gpu_terms(calls[row.call], (row.rows, row.columns), row.local, lanes, packed, units),
                    max(0.0, _moved_bytes(calls[row.call]) - _CACHED_BYTES),
                ]
            )
            for row in self.allowed
        }

    def costs(self, without: frozenset[str] = frozenset()) -> np.ndarray:
        """The factors of the terms, in us, fitted without some calls."""
        rows = [row for row in self.allowed if row.call not in without]
        weight = np.array([1 / row.us for row in rows])
        terms = np.array([self._terms[row] for row in rows])
        return least_squares(terms * weight[:, None], np.ones(len(rows)))[0]

    def losses(self, costs: np.ndarray, calls: Iterable[str]) -> list[float]:
        """For each call what the block of the least cost took over the fastest one that was timed."""
        found = []
        for call in calls:
            allowed = [row for row in self.allowed if row.call == call]
            chosen = min(allowed, key=lambda row: float(self._terms[row] @ costs))
            found.append(chosen.us / min(row.us for row in self.rows if row.call == call))
        return found

    def calls(self) -> list[str]:
        """Those that were timed by blocks which the rule can choose."""
        return sorted({row.call for row in self.allowed})

    def held_out(self) -> list[float]:
        """The losses of each third of the calls, with costs fitted to the other two."""
        found: list[float] = []
        for third in thirds(map(_shape, self.calls()), NAME):
            out = frozenset(call for call in self.calls() if _shape(call) in third)
            found += self.losses(self.costs(out), sorted(out))
        return found


def _moved_bytes(call: Call) -> int:
    return call.specs["x"].dtype.nbytes * (call.specs["x"].size + call.outputs["y"].size)


def _shape(call: str) -> str:
    """A call without its element type."""
    return call.partition(",dtype=")[0]


def nanoseconds(costs: np.ndarray, device: Device) -> Nanoseconds:
    """The value of the policy."""
    beyond_us = max(0.0, costs[0] - target_of(device).value("launch_us"))
    return Nanoseconds(*(float(f"{1000 * us:.3g}") for us in (beyond_us, *costs[1:-1])))


def report(path: Path, device: Device) -> str:
    """The numbers of the policy, and how good they are."""
    fitting = Fitting(*timed(path), device)
    costs = fitting.costs()
    own, held = fitting.losses(costs, fitting.calls()), fitting.held_out()
    ns = ", ".join(f"{name} = {value:g}" for name, value in dataclasses.asdict(nanoseconds(costs, device)).items())
    return "\n".join(
        [
            f"# {len(own)} calls: {mean(own):.3f} times the best in the mean, {max(own):.2f} at most;",
            f"# held out {mean(held):.3f} and {max(held):.2f}; a launch of {costs[0]:.2f} us",
            f'fit = "{fit_id(TOOL, NAME, path)}"',
            f"ns = {{ {ns} }}",
        ]
    )


def measure(path: Path, device: str) -> dict[str, object]:
    """The times of calls by blocks drawn at random: of at most twice the columns that are stored by one vector."""
    from timing import Job, header, times

    from vkconv.backend.runtime import open_device

    live = open_device(device).device
    route = next(route for route in OPS["conv2d"].routes if route.name == _ROUTE)
    jobs: list[Job] = []
    for text in lines(path):
        call = parse_call(text, OPS)
        legal, (oh, ow), taps = route.params(call, live), call.shape("y")[2:], math.prod(call.shape("w")[2:])
        ways: Sequence[dict[str, int]] = [
            {"rows": rows, "columns": columns, "local": local}
            for rows, columns, local in itertools.product(legal["rows"], legal["columns"], legal["local"])
            if rows <= oh + 1 and columns <= min(ow, 2 * math.gcd(4, ow)) and rows * columns * taps <= _MOST_PRODUCTS
        ]
        drawn = random.Random(text).sample(ways, min(_DRAWN, len(ways)))
        jobs += [(text, _ROUTE, way) for way in drawn]
    random.Random(0).shuffle(jobs)
    found: dict[str, list[list[float]]] = {}
    for (text, _, way), us in times(jobs, device):
        found.setdefault(text, []).append([way["rows"], way["columns"], way["local"], us])
    rows = [{"call": call, "us": us} for call, us in found.items()]
    return {"schema": SCHEMA, **header(device), "packed": _BLOCKS.of(live).packed, "rows": rows}


def main() -> None:
    parser, making = parsers(__doc__, "measure", "calls")
    making.add_argument("--device", default="auto")
    wanted = parser.parse_args()
    if wanted.command == "measure":
        write(measure(wanted.calls, wanted.device), wanted.output)
    else:
        print(report(wanted.times or TIMES, load_device(wanted.device)))


if __name__ == "__main__":
    main()
