"""Fit the costs of tiles of matrix products to times: what does a tile take a compute unit, and each of its k-tiles?

    python tools/fit/tile_costs.py measure conv2d.gemm_costs calls.txt -o bench/results/fits/conv2d.gemm_costs.json
    python tools/fit/tile_costs.py fit conv2d.gemm_costs

*measure* times each call of a file (a line each, ``#`` begins a comment) by every tile, and by split-K where a line
ends in ``split_k=2,4``; results are not checked, as `vkconv check --sweep tile` does. *fit* prints the value of the
policy and what its choice takes over the best time: of the calls that it is fitted to, and of those of each third when
it is fitted to the others. A cost is that of `vkconv.cost.Measured`: four numbers that are not negative, with the
least sum of squared relative errors.
"""

import argparse
import concurrent.futures
import dataclasses
import datetime
import hashlib
import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vkconv.call import Call
from vkconv.core import atomic_write
from vkconv.cost import compute_units
from vkconv.device import Device, load_device, target_of
from vkconv.ops import OPS
from vkconv.ops.conv.conv2d.coopmat import SHIFTED
from vkconv.ops.conv.conv2d.coopmat import product_of as conv_product
from vkconv.ops.conv.conv2d.implicit_gemm import WINDOW, gemm_work
from vkconv.ops.conv.tiles import TILES
from vkconv.ops.core.calls import parse_call
from vkconv.ops.fused.prologue_conv2d_routes import convolution_of
from vkconv.ops.kernels.coopmat import TILES as MATRIX_TILES
from vkconv.ops.kernels.coopmat_gemm import product_of as matrix_product
from vkconv.ops.kernels.gemm import SHARED_TILES, GemmProblem
from vkconv.ops.kernels.prologue import FORM
from vkconv.ops.kernels.tile_costs import TileCosts, Work
from vkconv.ops.matmul.simt import shared_work
from vkconv.route import Params

SCHEMA = "vkconv.tile-times/1"
RESULTS = Path(__file__).parents[2] / "bench" / "results" / "fits"
_FACTORS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6)
_TOGETHER = (1, 2, 3, 4)
_BETTER = 0.98
_GROUP = 14
_WARM_S = 0.7


@dataclasses.dataclass(frozen=True)
class Fit:
    """Routes by op whose tiles have these costs, the work of a call by a tile, and the forms with a factor of their
    own. ``given``: other parameters, by op. ``sum_us`` and ``sum_mib_us``: the launch that adds slices up, with its
    barrier, and a MiB of it by the bandwidth that large copies come to."""

    routes: Mapping[str, str]
    tiles: Sequence[str]
    work: Callable[[Call, str], Work]
    forms: tuple[str, ...] = ()
    given: Mapping[str, Params] = dataclasses.field(default_factory=dict)
    sum_us: float = 3.2
    sum_mib_us: float = 0.25

    def made(self, costs: Mapping[str, tuple[float, ...]], forms: Mapping[str, float]) -> TileCosts:
        """The value of the policy."""
        return TileCosts(costs, self.sum_us, self.sum_mib_us, forms)


def _gemm_work(call: Call, name: str) -> Work:
    if call.op == "prologue_conv2d":
        return gemm_work(convolution_of(call), name, FORM)
    return gemm_work(call, name)


# 1x1 without the launch that copies the input.
_AS_IT_LIES = {"last": 0}


def _matrix_work(call: Call, name: str) -> Work:
    if call.op == "matmul":
        return matrix_product(GemmProblem.of(call)).work(name)
    return conv_product(call, _AS_IT_LIES["last"]).work(name)


FITS = {
    "cooperative.tiles": Fit(
        {"conv2d": "cooperative", "matmul": "cooperative"},
        tuple(MATRIX_TILES),
        _matrix_work,
        (SHIFTED,),
        {"conv2d": _AS_IT_LIES},
    ),
    "matmul.shared_costs": Fit({"matmul": "shared"}, tuple(SHARED_TILES), shared_work),
    "conv2d.gemm_costs": Fit(
        {"conv2d": "implicit_gemm", "prologue_conv2d": "fused_gemm"}, tuple(TILES), _gemm_work, (FORM, WINDOW)
    ),
}


@dataclasses.dataclass(frozen=True)
class Timed:
    """A call by a tile and split-K, and its time."""

    call: str
    tile: str
    split_k: int
    us: float
    work: Work


def timed(name: str, path: Path) -> list[Timed]:
    """The times of a file with what each tile has to do."""
    rows = json.loads(path.read_text())["rows"]
    parsed = {row["call"]: parse_call(row["call"], OPS) for row in rows}
    return [
        Timed(row["call"], tile, int(slices), us, FITS[name].work(parsed[row["call"]], tile))
        for row in rows
        for tile, times in row["us"].items()
        for slices, us in times.items()
    ]


def least_squares(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, float]:
    """The x of no negative number that makes a x nearest to b, and how far that is: the best over all subsets of
    columns that come out so."""
    best = np.zeros(a.shape[1]), float(np.linalg.norm(b))
    for size in range(1, a.shape[1] + 1):
        for kept in map(list, itertools.combinations(range(a.shape[1]), size)):
            x = np.linalg.lstsq(a[:, kept], b, rcond=None)[0]
            if (x >= 0).all():
                full = np.zeros(a.shape[1])
                full[kept] = x
                rest = float(np.linalg.norm(a @ full - b))
                best = (full, rest) if rest < best[1] - 1e-12 else best
    return best


def _terms(row: Timed, factors: Mapping[str, float], together: int, units: int) -> list[float]:
    busiest = math.ceil(row.split_k * row.work.workgroups / units)
    further = math.ceil(busiest / together) * together - 1 if busiest > 1 else 0
    k_tiles = math.ceil(row.work.k_tiles / row.split_k) * factors.get(row.work.form, 1.0)
    return [1.0, k_tiles, further, further * k_tiles]


def _tile(fit: Fit, rows: Sequence[Timed], factors: Mapping[str, float], units: int) -> tuple[tuple[float, ...], float]:
    """The cost of a tile, and its sum of squares."""
    sums = fit.made({}, {})
    weight = np.array([1 / row.us for row in rows])
    last = [sums.sum(4 * (row.split_k + 1) * row.work.outputs) if row.split_k > 1 else 0.0 for row in rows]
    own = np.array([max(row.us - added, 2.0) for row, added in zip(rows, last, strict=True)])
    best: tuple[tuple[float, ...], float] | None = None
    for together in _TOGETHER:
        terms = np.array([_terms(row, factors, together, units) for row in rows])
        x, rest = least_squares(terms * weight[:, None], own * weight)
        if best is None or rest < _BETTER * math.sqrt(best[1]):
            kept = tuple(float(f"{value:.4g}") for value in x)
            best = (*kept, together) if together > 1 else kept, rest**2
    assert best is not None
    return best


def costs(name: str, rows: Iterable[Timed], device: Device) -> TileCosts:
    """The costs of the least sum of squares, with the factors of forms that make it least."""
    by_tile: dict[str, list[Timed]] = {}
    for row in rows:
        by_tile.setdefault(row.tile, []).append(row)
    units, fit = compute_units(device), FITS[name]
    best: tuple[float, TileCosts] | None = None
    for values in itertools.product(_FACTORS, repeat=len(fit.forms)):
        factors = dict(zip(fit.forms, values, strict=True))
        tiles = {tile: _tile(fit, of, factors, units) for tile, of in by_tile.items()}
        total = sum(rest for _, rest in tiles.values())
        if best is None or total < best[0]:
            best = total, fit.made({tile: cost for tile, (cost, _) in tiles.items()}, factors)
    assert best is not None
    return best[1]


def losses(made: TileCosts, rows: Iterable[Timed], device: Device) -> list[float]:
    """For each call what the way of least cost took over the fastest one, of those that were timed."""
    by_call: dict[str, list[Timed]] = {}
    for row in rows:
        by_call.setdefault(row.call, []).append(row)
    target = target_of(device)

    def cost(row: Timed) -> float:
        return made.us(row.tile, row.work, row.split_k, target)

    return [min(of, key=cost).us / min(row.us for row in of) for of in by_call.values()]


def held_out(name: str, rows: Sequence[Timed], device: Device) -> list[float]:
    """The losses of each third of the calls, with costs fitted to the other two."""
    calls = sorted({row.call for row in rows})
    random.Random(name).shuffle(calls)
    found: list[float] = []
    for third in (set(calls[i::3]) for i in range(3)):
        made = costs(name, [row for row in rows if row.call not in third], device)
        found += losses(made, [row for row in rows if row.call in third], device)
    return found


def mean(values: Sequence[float]) -> float:
    """The geometric one."""
    return math.exp(statistics.fmean(map(math.log, values)))


def fit_id(name: str, path: Path) -> str:
    """What a row names its fit by: the policy, and the digest of the times."""
    return f"tile_costs/{name}/{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"


def partly(rows: Iterable[Timed]) -> dict[str, list[str]]:
    """The tiles that were timed in each form, of forms in which some were not."""
    of_form: dict[str, set[str]] = {}
    for row in rows:
        of_form.setdefault(row.work.form, set()).add(row.tile)
    every = set().union(*of_form.values())
    return {form: sorted(tiles) for form, tiles in of_form.items() if tiles != every}


def report(name: str, path: Path, device: Device) -> str:
    """The value of the policy, and how good it is."""
    rows = timed(name, path)
    made, held = costs(name, rows, device), held_out(name, rows, device)
    own = losses(made, rows, device)
    forms = ", ".join(f"{form} = {factor}" for form, factor in made.forms.items())
    only = ", ".join(f"{form} = {json.dumps(tiles)}" for form, tiles in partly(rows).items())
    lines = [
        f"# {len(own)} calls: {mean(own):.3f} times the best in the mean, {max(own):.2f} at most;",
        f"# held out {mean(held):.3f} and {max(held):.2f}",
        f'fit = "{fit_id(name, path)}"',
        f"sum_us = {made.sum_us}",
        f"sum_mib_us = {made.sum_mib_us}",
        *([f"forms = {{ {forms} }}"] if forms else []),
        *([f"timed = {{ {only} }}"] if only else []),
        *(f'"{tile}" = {list(cost)}' for tile, cost in made.costs.items()),
    ]
    return "\n".join(lines)


def measure(name: str, calls: Path, device: str) -> dict[str, Any]:
    """The times of calls by all tiles that the device holds."""
    import vkconv
    from vkconv.plan.single import call_graph, forcing, held_constant

    fit = FITS[name]
    jobs: list[tuple[str, str, int]] = []
    for line in calls.read_text().splitlines():
        text, _, slices = line.partition("#")[0].strip().partition(" split_k=")
        jobs += itertools.product([text] if text else [], fit.tiles, [1, *map(int, filter(None, slices.split(",")))])
    random.Random(0).shuffle(jobs)

    def prepared(job: tuple[str, str, int]) -> vkconv.Session | None:
        text, tile, slices = job
        call = parse_call(text, OPS)
        zeros = {operand: np.zeros(spec.shape, spec.dtype.numpy) for operand, spec in call.specs.items()}
        weights = held_constant(zeros) if call.op != "matmul" else {}
        try:
            options = forcing(fit.routes[call.op], {**fit.given.get(call.op, {}), "tile": tile, "split_k": slices})
            return vkconv.load(call_graph(call, weights), device, options=options)
        except vkconv.VkconvError:
            return None

    found: dict[str, dict[str, dict[str, float]]] = {}
    header: dict[str, str] = {}
    with concurrent.futures.ThreadPoolExecutor(_GROUP) as pool:
        for at in range(0, len(jobs), _GROUP):
            group = jobs[at : at + _GROUP]
            sessions = list(pool.map(prepared, group))  # all first: one's loading would be timed with another
            warm = time.monotonic() + _WARM_S
            for (text, tile, slices), session in zip(group, sessions, strict=True):
                if session is None:
                    continue
                with session:
                    repeats = next(iter(session._executables.values())).repeat(4)
                    while time.monotonic() < warm:
                        repeats.run()
                    spans = [us for _ in range(8) for us in repeats.run()[0]]
                    found.setdefault(text, {}).setdefault(tile, {})[str(slices)] = statistics.median(spans)
                    header = {"device": session.device.name, "driver": session.device.driver}
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"schema": SCHEMA, **header, "date": date, "rows": [{"call": c, "us": us} for c, us in found.items()]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("measure", "fit"):
        sub = commands.add_parser(command)
        sub.add_argument("name", choices=FITS)
        if command == "measure":
            sub.add_argument("calls", type=Path)
            sub.add_argument("--device", default="auto")
            sub.add_argument("-o", "--output", type=Path, required=True)
        else:
            sub.add_argument("times", nargs="?", type=Path)
            sub.add_argument("--device", default="h200", help="the shipped file of the GPU that was timed")
    wanted = parser.parse_args()
    if wanted.command == "measure":
        made = measure(wanted.name, wanted.calls, wanted.device)
        with atomic_write(wanted.output) as file:
            file.write(json.dumps(made, indent=1).encode() + b"\n")
    else:
        print(report(wanted.name, wanted.times or RESULTS / f"{wanted.name}.json", load_device(wanted.device)))


if __name__ == "__main__":
    main()
