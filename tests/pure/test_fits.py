"""Fits of policies: a threshold that is there is found, calls that judge it are held out, and rows repeat."""

import importlib.util
import sys

import pytest
from cli_kit import ROOT

from vkconv.policy import tables

_SPEC = importlib.util.spec_from_file_location("thresholds", ROOT / "tools" / "fit" / "thresholds.py")
thresholds = importlib.util.module_from_spec(_SPEC)
sys.modules["thresholds"] = thresholds
_SPEC.loader.exec_module(thresholds)

RESULTS = ROOT / "bench" / "results"
FITTED = [(name, row) for name, table in tables().items() for row in table.rows if row.fit]


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


@pytest.mark.parametrize(("name", "row"), FITTED, ids=[name for name, _ in FITTED])
def test_a_fitted_row_is_what_its_results_give(name, row):
    paths = sorted((RESULTS / "fits").glob(f"{name}.*.json"))
    assert paths and thresholds.fit_id(name, paths) == row.fit
    train = [one for one in thresholds.timed(name, paths) if not thresholds.held_out(one.call)]
    assert len(train) >= 30
    assert thresholds.rounded(thresholds.best_threshold(train)) == row.value


def test_values_have_two_digits():
    assert [thresholds.rounded(n) for n in (7, 99, 101, 1234, 60_400_000)] == [7, 99, 100, 1200, 60_000_000]
