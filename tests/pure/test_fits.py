"""Fits of policies: a threshold that is there is found, calls that judge it are held out, and rows repeat."""

import dataclasses

import numpy as np
import pytest
from cli_kit import ROOT
from tool_kit import load_tool

from vkconv.device import load_device, target_of
from vkconv.ops.kernels.tile_costs import Work
from vkconv.policy import tables

(
    fitting,
    thresholds,
    tile_costs,
    wgrad_costs,
    depthwise_costs,
    launch_costs,
) = (  # the first is what the others import
    load_tool(f"fit/{name}")
    for name in ("fitting", "thresholds", "tile_costs", "wgrad_costs", "depthwise_costs", "launch_costs")
)

RESULTS = ROOT / "bench" / "results"
# Those of tools/fit/upheld.py are in test_upheld.py.
FITTED = [
    (name, row)
    for name, table in tables().items()
    for row in table.rows
    if row.fit and not row.fit.startswith("upheld/")
]
THRESHOLDS, COSTS = ([one for one in FITTED if one[0] in tool.FITS] for tool in (thresholds, tile_costs))


def crossing(at, noise=()):
    """Calls of which one route takes 100 us and the other, from a size on, less."""
    rows = [thresholds.Timed(f"c{size}", size, 100.0, 150.0 if size >= at else 60.0) for size in range(10, 200, 10)]
    return [*rows, *noise]


def test_the_size_where_times_cross_is_found():
    assert 90 < thresholds.best_threshold(crossing(100)) <= 100
    assert thresholds.loss(crossing(100), 100) == 1.0
    # One call that is slower than its neighbours does not move it.
    assert 90 < thresholds.best_threshold(crossing(100, [thresholds.Timed("odd", 180, 101.0, 100.0)])) <= 100


@pytest.mark.parametrize(("at", "expected"), [(0, 10), (10**6, 191)])
def test_a_route_that_is_always_faster_is_always_taken(at, expected):
    assert thresholds.best_threshold(crossing(at)) == expected


def test_loss_is_a_geometric_mean():
    rows = [thresholds.Timed("a", 10, 400.0, 100.0), thresholds.Timed("b", 20, 100.0, 100.0)]
    assert thresholds.loss(rows, 0) == pytest.approx(2.0) and thresholds.loss(rows, 100) == 1.0


@pytest.mark.parametrize("name", thresholds.FITS)
def test_calls_are_drawn_the_same_each_time_and_a_third_is_held_out(name):
    drawn = thresholds.calls(name, 300)
    assert drawn == thresholds.calls(name, 300)
    assert 0.25 < sum(map(thresholds.held_out, drawn)) / len(drawn) < 0.42
    suites = "".join(path.read_text() for path in (ROOT / "vkconv" / "bench" / "suites").glob("*.txt"))
    assert not [call for call in drawn if call in suites]


@pytest.mark.parametrize(("name", "row"), THRESHOLDS, ids=[name for name, _ in THRESHOLDS])
def test_a_fitted_row_is_what_its_results_give(name, row):
    paths = sorted((RESULTS / "fits").glob(f"{name}.*.json"))
    assert paths and fitting.fit_id(thresholds.TOOL, name, *paths) == row.fit
    train = [one for one in thresholds.timed(name, paths) if not thresholds.held_out(one.call)]
    assert len(train) >= 30
    assert thresholds.rounded(thresholds.best_threshold(train)) == row.value


def test_values_have_two_digits():
    assert [thresholds.rounded(n) for n in (7, 99, 101, 1234, 60_400_000)] == [7, 99, 100, 1200, 60_000_000]


def test_every_fitted_row_is_fitted_again_here():
    assert {name for name, _ in FITTED} == {
        *thresholds.FITS,
        *tile_costs.FITS,
        *wgrad_costs.FITS,
        *depthwise_costs.FITS,
        *launch_costs.FITS,
    }


@pytest.mark.long
@pytest.mark.parametrize(("name", "row"), COSTS, ids=[name for name, _ in COSTS])
def test_costs_of_tiles_are_what_their_times_give(name, row):
    path, device = RESULTS / "fits" / f"{name}.json", load_device(row.value["timed_on"])
    assert fitting.fit_id(tile_costs.TOOL, name, path) == row.fit
    rows = tile_costs.timed(name, path, device)
    made = tile_costs.costs(name, rows, device)
    assert made.forms == row.value.get("forms", {}) and made.costs.keys() == row.value["costs"].keys()
    assert tile_costs.partly(rows) == row.value.get("timed", {})
    assert (made.timed_on, made.rate) == (row.value["timed_on"], row.value.get("rate", "fma_per_unit"))
    for tile, cost in made.costs.items():
        assert tuple(row.value["costs"][tile]) == pytest.approx(cost, rel=2e-3, abs=2e-3)
    # A third of the calls at a time, held out.
    assert fitting.mean(tile_costs.held_out(name, rows, device)) < (1.09 if name.startswith("wgrad.") else 1.05)


@pytest.mark.long
def test_costs_of_weight_gradients_are_what_their_times_give():
    row, h200 = next(row for name, row in FITTED if name == "wgrad.cost"), load_device("h200")
    assert fitting.fit_id(wgrad_costs.TOOL, wgrad_costs.NAME, wgrad_costs.TIMES) == row.fit
    rows, start = wgrad_costs.timed(wgrad_costs.TIMES), wgrad_costs.start()
    made, _ = wgrad_costs.costs(rows, start, h200)
    assert made == start
    assert wgrad_costs.spread(wgrad_costs.held_out(rows, start, h200)) < 0.25


def test_costs_of_depthwise_blocks_are_what_their_times_give():
    row = next(row for name, row in FITTED if name == "conv2d.subgroup_depthwise")
    assert fitting.fit_id(depthwise_costs.TOOL, depthwise_costs.NAME, depthwise_costs.TIMES) == row.fit
    h100 = load_device("h100")
    blocks = depthwise_costs.Fitting(*depthwise_costs.timed(), h100)
    made = dataclasses.asdict(depthwise_costs.nanoseconds(blocks.costs(), h100))
    for each in tables()["conv2d.subgroup_depthwise"].rows:
        assert "ns" not in each.value or made == pytest.approx(each.value["ns"], rel=2e-3), "assumed alike elsewhere"
    assert fitting.mean(blocks.held_out()) < 1.05


@pytest.mark.parametrize("name", launch_costs.FITS)
def test_costs_of_launches_are_what_their_times_give(name):
    row, path = next(row for n, row in FITTED if n == name), RESULTS / "fits" / f"{name}.json"
    assert fitting.fit_id(launch_costs.TOOL, name, path) == row.fit
    rows = launch_costs.timed(name, path, load_device(row.value["timed_on"]))
    assert launch_costs.costs(rows) == pytest.approx((row.value["us"], row.value["mib_us"]), rel=5e-3)
    assert len(rows) >= 20 and fitting.mean(launch_costs.held_out(name, rows)) < 1.1


def test_costs_that_made_times_are_found():
    made = tile_costs.FITS["matmul.shared_costs"].made({"64x64x16": (3.0, 0.5, 0.25, 0.125)}, {}, "h200")
    h200 = load_device("h200")
    works = [Work(blocks, k_tiles, 1000) for blocks in (20, 200, 1000, 5000) for k_tiles in (4, 20, 100)]
    rows = [
        tile_costs.Timed(f"c{i}", "64x64x16", slices, made.us("64x64x16", work, slices, target_of(h200)), work)
        for i, work in enumerate(works)
        for slices in (1, 2)
    ]
    found = tile_costs.costs("matmul.shared_costs", rows, h200)
    assert found.costs["64x64x16"] == pytest.approx(made.costs["64x64x16"], rel=1e-3)


def test_least_squares_have_no_negative_number():
    a, b = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]), np.array([3.0, 2.0, 1.0])
    x, rest = fitting.least_squares(a, b)
    assert x == pytest.approx([2.0, 0.0]) and rest == pytest.approx(2**0.5)
