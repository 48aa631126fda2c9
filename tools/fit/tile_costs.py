"""Fit the costs of tiles of matrix products to times: what does a tile take a compute unit, and each of its k-tiles?

    python tools/fit/tile_costs.py measure conv2d.gemm_costs calls.txt --ways 22 -o times.json
    python tools/fit/tile_costs.py fit conv2d.gemm_costs times.json

*measure* times each call of a file (a line each, ``#`` begins a comment) by every tile, and by split-K where a line
ends in ``split_k=2,4``; with ``--ways N`` by so many of all that tiles, split-K and other parameters make, drawn at
random. Results are not checked, as `vkconv check --sweep tile` does. *fit* prints the value of the
policy and what its choice takes over the best time: of the calls that it is fitted to, and of those of each third when
it is fitted to the others. A cost is that of `vkconv.cost.Measured`: four numbers that are not negative, with the
least sum of squared relative errors. `timed_on` of the row says which ``--device`` a fit takes.
"""

import dataclasses
import functools
import itertools
import json
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from fitting import RESULTS, fit_id, least_squares, lines, mean, parsers, thirds, write

from vkconv.call import Call
from vkconv.cost import Rate
from vkconv.device import Device, Target, load_device, target_of
from vkconv.ops import OPS
from vkconv.ops.conv.conv2d.coopmat import product_of as conv_product
from vkconv.ops.conv.conv2d.coopmat_fragment import copy_us
from vkconv.ops.conv.conv2d.coopmat_fragment import product_of as fragment_product
from vkconv.ops.conv.conv2d.implicit_gemm import AS_ONE_SUM, FOUR_PIXELS, gemm_work
from vkconv.ops.conv.tiles import SLICED_TILES, TILES
from vkconv.ops.conv.wgrad import winograd
from vkconv.ops.conv.wgrad.cost import GATHERED
from vkconv.ops.conv.wgrad.cost import gemm_work as gradient_work
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.conv.wgrad.tiles import GEMM_TILES as GRADIENT_TILES
from vkconv.ops.core.calls import parse_call
from vkconv.ops.fused.prologue_conv2d_routes import convolution_of
from vkconv.ops.kernels.coopmat import FRAGMENT_TILES, GATHERED_AS_ONE, CooperativeTile
from vkconv.ops.kernels.coopmat import TILES as MATRIX_TILES
from vkconv.ops.kernels.coopmat_gemm import product_of as matrix_product
from vkconv.ops.kernels.gemm import SHARED_TILES, GemmProblem
from vkconv.ops.kernels.gemm_tile import GemmTile
from vkconv.ops.kernels.prologue import FORM
from vkconv.ops.kernels.shared_costs import shared_work
from vkconv.ops.kernels.tile_costs import TileCosts, Work
from vkconv.route import Legal, Params

TOOL, SCHEMA = "tile_costs", "vkconv.tile-times/1"
_FACTORS = (0.6, 0.65, 0.7, 0.75, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 2.0, 2.2, 2.5)
_TOGETHER = (1, 2, 3, 4)
_BETTER = 0.98
# Of ways that are drawn: the most that a tile computes over the least, and for split-K k-tiles of a slice at least and
# workgroups at most.
_MOST_WASTE, _LEAST_K_TILES, _MOST_WORKGROUPS = 2.2, 3, 1056
# They are written each time that there are so many more.
_KEPT = 100


@dataclasses.dataclass(frozen=True)
class Fit:
    """Routes by op whose tiles have these costs, the work of a call by a tile, and the forms with a factor of their
    own. ``given``: other parameters, by op; ``others``: parameters of which each value is timed. ``sum_us`` and
    ``sum_mib_us``: the launch that adds slices up, with its barrier, and a MiB of it by the bandwidth that large copies
    come to; ``beside_us``: what other launches take, which is in the times."""

    routes: Mapping[str, str]
    tiles: Mapping[str, GemmTile | CooperativeTile]
    work: Callable[[Call, str, Params], Work]
    forms: tuple[str, ...] = ()
    given: Mapping[str, Params] = dataclasses.field(default_factory=dict)
    others: tuple[str, ...] = ()
    sum_us: float = 3.2
    sum_mib_us: float = 0.25
    rate: Rate = "fma_per_unit"
    beside_us: Callable[[Call, Device, Params], float] = lambda call, device, given: 0.0

    def made(self, costs: Mapping[str, tuple[float, ...]], forms: Mapping[str, float], timed_on: str) -> TileCosts:
        """The value of the policy, of the device that was timed."""
        return TileCosts(costs, self.sum_us, self.sum_mib_us, forms, timed_on=timed_on, rate=self.rate)


def _gemm_work(call: Call, name: str, given: Params) -> Work:
    if call.op == "prologue_conv2d":
        return gemm_work(convolution_of(call), name, False, FORM)
    return gemm_work(call, name, bool(given["linear"]), FOUR_PIXELS if given.get("vec4_columns") else "")


# Without the launch that copies the input.
_AS_IT_LIES = {"last": 0}


def _matrix_work(call: Call, name: str, given: Params) -> Work:
    if call.op == "matmul":
        return matrix_product(GemmProblem.of(call)).work(name)
    return conv_product(call, _AS_IT_LIES["last"], given.get("linear", 0)).work(name)


# In whole words, or in words that are shifted, by the calls that are timed.
_MATRICES = Fit(
    {"conv2d": "cooperative", "matmul": "cooperative"},
    MATRIX_TILES,
    _matrix_work,
    given={"conv2d": _AS_IT_LIES},
    rate="matrix_fma_per_unit",
)
FITS = {
    "cooperative.fragment_tiles": Fit(
        {"conv2d": "cooperative_fragment"},
        FRAGMENT_TILES,
        lambda call, name, given: fragment_product(call, 16).work(name),
        given={"conv2d": {"fragment_order": 2}},
        rate="matrix_fma_per_unit",
        beside_us=lambda call, device, given: copy_us(call, device),
    ),
    "cooperative.tiles": _MATRICES,
    "cooperative.shifted_tiles": _MATRICES,
    "cooperative.gathered_tiles": dataclasses.replace(_MATRICES, forms=(GATHERED_AS_ONE,), others=("linear",)),
    "matmul.shared_costs": Fit(
        {"matmul": "shared"},
        SHARED_TILES,
        lambda call, name, given: shared_work(GemmProblem.of(call), name, call.nbytes),
    ),
    "wgrad.winograd_costs": Fit(
        {"conv2d_backward_weight": "winograd"},
        GRADIENT_TILES,
        lambda call, name, given: winograd.product_work(call, name, given.get("outputs")),
        others=("outputs",),
        sum_us=0.0,
        sum_mib_us=0.3,
        beside_us=lambda call, device, given: winograd.transforms_us(call, device, given.get("outputs")),
    ),
    "wgrad.gemm_costs": Fit(
        {"conv2d_backward_weight": "two_stage"},
        GRADIENT_TILES,
        lambda call, name, given: gradient_work(WeightGradient.of(call), name),
        (GATHERED,),
        sum_mib_us=1.2,
    ),
    "conv2d.gemm_costs": Fit(
        {"conv2d": "implicit_gemm", "prologue_conv2d": "fused_gemm"},
        {**TILES, **SLICED_TILES},
        _gemm_work,
        (FORM, AS_ONE_SUM, FOUR_PIXELS),
        others=("linear", "vec4_columns"),
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
    beside_us: float = 0.0


def timed(name: str, path: Path, device: Device) -> list[Timed]:
    """The times of a file with what each tile has to do, and what other launches take on the device."""
    rows = json.loads(path.read_text())["rows"]
    parsed = {row["call"]: parse_call(row["call"], OPS) for row in rows}
    return [
        Timed(
            row["call"],
            tile,
            int(slices),
            us,
            FITS[name].work(parsed[row["call"]], tile, row.get("given", {})),
            beside_us,
        )
        for row in rows
        for beside_us in [FITS[name].beside_us(parsed[row["call"]], device, row.get("given", {}))]
        for tile, times in row["us"].items()
        for slices, us in times.items()
    ]


def _terms(row: Timed, factors: Mapping[str, float], together: int, units: int) -> list[float]:
    busiest = math.ceil(row.split_k * row.work.workgroups / units)
    further = math.ceil(busiest / together) * together - 1 if busiest > 1 else 0
    k_tiles = math.ceil(row.work.k_tiles / row.split_k) * factors.get(row.work.form, 1.0)
    return [1.0, k_tiles, further, further * k_tiles]


def _tile(
    fit: Fit, rows: Sequence[Timed], factors: Mapping[str, float], target: Target
) -> tuple[tuple[float, ...], float]:
    """The cost of a tile, and its sum of squares."""
    sums = fit.made({}, {}, target.name)
    scale = sums.scale(target)
    weight = np.array([1 / row.us for row in rows])
    last = [sums.sum(4 * (row.split_k + 1) * row.work.outputs, scale) if row.split_k > 1 else 0.0 for row in rows]
    own = np.array([max(row.us - added - row.beside_us, 2.0) for row, added in zip(rows, last, strict=True)])
    best: tuple[tuple[float, ...], float] | None = None
    for together in _TOGETHER:
        terms = np.array([_terms(row, factors, together, target.compute_units) for row in rows])
        x, rest = least_squares(terms * weight[:, None], own * weight)
        if best is None or rest < _BETTER * math.sqrt(best[1]):
            kept = tuple(float(f"{value:.4g}") for value in x)
            best = (*kept, together) if together > 1 else kept, rest**2
    assert best is not None
    return best


def costs(name: str, rows: Iterable[Timed], device: Device) -> TileCosts:
    """The costs of the least sum of squares, with the factors of forms that make it least, one after the other until
    none changes."""
    by_tile: dict[str, list[Timed]] = {}
    for row in rows:
        by_tile.setdefault(row.tile, []).append(row)
    target, fit = target_of(device), FITS[name]

    @functools.cache
    def made(values: tuple[float, ...]) -> tuple[float, TileCosts]:
        factors = dict(zip(fit.forms, values, strict=True))
        tiles = {tile: _tile(fit, of, factors, target) for tile, of in by_tile.items()}
        total = sum(rest for _, rest in tiles.values())
        return total, fit.made({tile: cost for tile, (cost, _) in tiles.items()}, factors, target.name)

    best, before = (1.0,) * len(fit.forms), None
    while best != before:
        before = best
        for at in range(len(best)):
            tried = [(*best[:at], factor, *best[at + 1 :]) for factor in _FACTORS]
            best = min(tried, key=lambda values: made(values)[0])
    return made(best)[1]


def losses(made: TileCosts, rows: Iterable[Timed], device: Device) -> list[float]:
    """For each call what the way of least cost took over the fastest one, of those that were timed."""
    by_call: dict[str, list[Timed]] = {}
    for row in rows:
        by_call.setdefault(row.call, []).append(row)
    target = target_of(device)

    def cost(row: Timed) -> float:
        return made.us(row.tile, row.work, row.split_k, target) + row.beside_us

    return [min(of, key=cost).us / min(row.us for row in of) for of in by_call.values()]


def held_out(name: str, rows: Sequence[Timed], device: Device) -> list[float]:
    """The losses of each third of the calls, with costs fitted to the other two."""
    found: list[float] = []
    for third in thirds((row.call for row in rows), name):
        made = costs(name, [row for row in rows if row.call not in third], device)
        found += losses(made, [row for row in rows if row.call in third], device)
    return found


def partly(rows: Iterable[Timed]) -> dict[str, list[str]]:
    """The tiles that were timed in each form, of forms in which some were not."""
    of_form: dict[str, set[str]] = {}
    for row in rows:
        of_form.setdefault(row.work.form, set()).add(row.tile)
    every = set().union(*of_form.values())
    return {form: sorted(tiles) for form, tiles in of_form.items() if tiles != every}


def report(name: str, path: Path, device: Device) -> str:
    """The value of the policy, and how good it is."""
    rows = timed(name, path, device)
    made, held = costs(name, rows, device), held_out(name, rows, device)
    own = losses(made, rows, device)
    forms = ", ".join(f"{form} = {factor}" for form, factor in made.forms.items())
    only = ", ".join(f"{form} = {json.dumps(tiles)}" for form, tiles in partly(rows).items())
    said = [
        f"# {len(own)} calls: {mean(own):.3f} times the best in the mean, {max(own):.2f} at most;",
        f"# held out {mean(held):.3f} and {max(held):.2f}",
        f'fit = "{fit_id(TOOL, name, path)}"',
        f'timed_on = "{made.timed_on}"',
        *([f'rate = "{made.rate}"'] if made.rate != "fma_per_unit" else []),
        f"sum_us = {made.sum_us}",
        f"sum_mib_us = {made.sum_mib_us}",
        *([f"forms = {{ {forms} }}"] if forms else []),
        *([f"timed = {{ {only} }}"] if only else []),
        *(f'"{tile}" = {list(cost)}' for tile, cost in made.costs.items()),
    ]
    return "\n".join(said)


def _legal(fit: Fit, call: Call, device: Device) -> Legal:
    """The parameters of the route that is timed."""
    route = next(route for route in OPS[call.op].routes if route.name == fit.routes[call.op])
    return route.params(call, device)


def _ways(fit: Fit, call: Call, device: Device, count: int) -> list[tuple[str, int, Params]]:
    """So many ways of a call, drawn at random: tile, slices of at least `_LEAST_K_TILES` and other parameters, but for
    tiles that compute much more than others."""
    legal = _legal(fit, call, device)
    others = {key: legal[key] for key in fit.others if key in legal}
    ways = [
        (tile, slices, {**fit.given.get(call.op, {}), **dict(zip(others, values, strict=True))})
        for tile in fit.tiles
        if tile in legal["tile"]
        for slices in legal["split_k"]
        for values in itertools.product(*others.values())
    ]
    works = [(fit.work(call, tile, given), tile, slices, given) for tile, slices, given in ways]
    area = {name: tile.rows * tile.columns for name, tile in fit.tiles.items()}
    least = min(work.workgroups * area[tile] for work, tile, _, _ in works)
    kept = [
        (tile, slices, given)
        for work, tile, slices, given in works
        if work.workgroups * area[tile] <= _MOST_WASTE * least
        and (slices == 1 or (work.k_tiles >= _LEAST_K_TILES * slices and work.workgroups * slices <= _MOST_WORKGROUPS))
    ]
    return random.Random(repr(call)).sample(kept, min(count, len(kept)))


def measure(name: str, calls: Path, device: str, count: int, output: Path) -> None:
    """Write the times of calls by all tiles that the device holds, or by so many ways each, as they come: a run that is
    cut leaves what it has."""
    from timing import Job, header, times

    from vkconv.backend.runtime import open_device

    fit, opened = FITS[name], open_device(device).device
    jobs: list[Job] = []
    for line in lines(calls):
        text, _, slices = line.partition(" split_k=")
        call = parse_call(text, OPS)
        if count:
            ways = _ways(fit, call, opened, count)
        else:
            given, several = fit.given.get(call.op, {}), [1, *map(int, filter(None, slices.split(",")))]
            ways = [(tile, slices, given) for tile, slices in itertools.product(fit.tiles, several)]
        sliced = ("split_k",) if "split_k" in _legal(fit, call, opened) else ()
        ways = [(tile, k, {**given, "tile": tile, **dict.fromkeys(sliced, k)}) for tile, k, given in ways]
        jobs += [(text, fit.routes[call.op], params) for _, _, params in ways]
    random.Random(0).shuffle(jobs)
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    said = {"schema": SCHEMA, **header(device)}

    def keep() -> None:
        rows = [{"call": text, "given": json.loads(given), "us": us} for (text, given), us in found.items()]
        write({**said, "rows": rows}, output)

    for i, ((text, _, params), us) in enumerate(times(jobs, device)):
        given = {key: value for key, value in params.items() if key not in ("tile", "split_k")}
        slices = str(params.get("split_k", 1))
        found.setdefault((text, json.dumps(given)), {}).setdefault(params["tile"], {})[slices] = us
        if i % _KEPT == 0:
            keep()
    keep()


def main() -> None:
    parser, making = parsers(__doc__, "measure", "calls", FITS)
    making.add_argument("--device", default="auto")
    making.add_argument("--ways", type=int, default=0, help="of each call, at random; every tile if left out")
    wanted = parser.parse_args()
    if wanted.command == "measure":
        if FITS[wanted.name].others and not wanted.ways:
            parser.error(f"{wanted.name} has parameters beside tile and split_k: ask for --ways N of each call")
        measure(wanted.name, wanted.calls, wanted.device, wanted.ways, wanted.output)
    else:
        print(report(wanted.name, wanted.times or RESULTS / f"{wanted.name}.json", load_device(wanted.device)))


if __name__ == "__main__":
    main()
