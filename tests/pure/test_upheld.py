"""Rows of policies beside times on file: no other value is better, and what was measured has a fit or says why not."""

import json
import random

import pytest
from cli_kit import ROOT
from tool_kit import load_tool

from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.policy import row_of, tables

# Each is what those behind it import.
fitting, thresholds, variations, ways, _, draws, upheld, row_times = (
    load_tool(f"fit/{name}")
    for name in ("fitting", "thresholds", "variations", "ways", "draws_conv", "draws", "upheld", "row_times")
)

FITS, REGRET = upheld.fits(), ROOT / "bench" / "results" / "regret"
MEASURED = [(name, row) for name, table in tables().items() for row in table.rows if row.evidence == "measured"]


def key(name, row):
    """A row by its policy and the devices that it is for."""
    return " ".join((name, *row.when.values()))


@pytest.mark.long
@pytest.mark.share(1)
@pytest.mark.parametrize("name", FITS)
def test_no_other_value_of_a_row_is_better_by_the_times_on_file(name):
    fit = FITS[name]
    every = list(upheld.every_other(name, fit.places))
    assert upheld.told(every, fit.noise) == {*fit.places}, "places that the times say nothing of are not named"
    assert upheld.better(every, fit.noise) == []


def test_rows_name_the_fits_of_their_times():
    named = {(fit.policy, row.fit) for fit in FITS.values() for row in (fit.row,)}
    assert named == {(fit.policy, fit.id) for fit in FITS.values()}
    rows = {id(fit.row) for fit in FITS.values()}
    assert len(rows) == len(FITS), "two fits of one row"
    assert {id(row) for _, row in MEASURED if row.fit.startswith("upheld/")} == rows


def test_what_was_measured_has_a_fit_or_says_why_it_has_none():
    """A new row that says measured has a fit, or stands in upheld.toml with the reason."""
    without = {key(name, row) for name, row in MEASURED if not row.fit}
    assert without == {*upheld.unfitted()}
    assert all(len(reason) > 20 for reason in upheld.unfitted().values())


def test_what_was_observed_says_what_shows_it():
    for name, table in tables().items():
        for row in table.rows:
            assert bool(row.shown_by) == (row.evidence == "observed"), f"{name}: by which command?"


@pytest.mark.parametrize("name", FITS)
def test_fits_name_what_there_is(name):
    fit = FITS[name]
    assert fit.places and fit.files and {*fit.draws} <= {*draws.DRAWS}
    assert {*fit.places} <= {place for place, _ in fit.values()}
    for path in fit.paths:
        assert json.loads(path.read_text().partition("\n")[0])["schema"] == row_times.SCHEMA


def test_every_file_of_rows_is_of_a_fit():
    used = {path.name for fit in FITS.values() for path in fit.paths}
    assert {path.name for path in REGRET.glob("*_rows_*.jsonl")} <= used


@pytest.mark.parametrize("name", draws.DRAWS)
def test_calls_are_drawn_the_same_each_time_and_none_is_of_a_suite(name):
    first, again = (
        [format_call(parse_call(draws.DRAWS[name](r), OPS), OPS) for _ in range(5)]
        for r in (random.Random(1), random.Random(1))
    )
    assert first == again and len({*first}) > 2
    assert not {*first} & suites()


def suites():
    """The lines of the suites."""
    folder = ROOT / "vkconv" / "bench" / "suites"
    return {line.strip() for path in folder.glob("*.txt") for line in path.read_text().splitlines()}


def tried(place, fitted, held, changed=4):
    return upheld.Tried(place, 1, *(upheld.Lost([sum_ / changed] * changed) for sum_ in (fitted, held)), 0)


def test_a_row_is_upheld_where_others_lose_and_none_gains():
    def is_upheld(*every):
        return upheld.is_upheld(("a",), every, 0.01)

    assert is_upheld(tried("a", 0.2, 0.2)) and is_upheld(tried("a", 0.2, 0.2), tried("a", -0.02, -0.02))
    assert not is_upheld(tried("a", 0.2, 0.2), tried("a", -0.2, -0.2))
    assert is_upheld(tried("a", 0.2, 0.2), tried("a", -0.2, 0.1)), "what is held out does not bear it out"
    odd = upheld.Tried("a", 1, upheld.Lost([-0.5, 0.2, 0.2]), upheld.Lost([-0.5, 0.2]), 0)
    assert is_upheld(tried("a", 0.2, 0.2), odd), "one call is no rule"
    assert not is_upheld(tried("a", 0.01, 0.01)), "the times do not tell them apart"
    assert not is_upheld(tried("a", 0.2, 0.2), tried("b", 0.2, 0.2)), "more is told than the fit names"


def test_the_best_is_the_one_that_gains_most_on_what_is_not_held_out():
    one, two = tried("a", -0.3, -0.1), tried("a", -0.2, -0.4)
    assert upheld.better([two, one, tried("a", 0.1, -0.4)], 0.01) == [one, two]


def test_places_of_a_value_are_its_numbers_switches_and_lists():
    value = {
        "a": 1,
        "b": {"c": True, "d": [1, 2]},
        "local": {"rule": [8], "more": [4]},
        "e": [[1, 2], [3, 4]],
        "timed_on": "x",
    }
    assert list(variations.places(value)) == ["a", "b.c", "b.d", "local", "e.0.0", "e.0.1", "e.1.0", "e.1.1"]
    assert list(variations.places(3.0)) == [""]
    assert variations.every_place({"a": 1}, [{"a": 2, "b": 3}]) == ["a", "b"] and variations.every_place({}, [{}]) == []


@pytest.mark.parametrize(
    ("value", "place", "rows", "expected"),
    [
        (8, "", [], [4, 6, 12, 16]),
        (8, "", [6, 5], [4, 6, 12, 16, 5]),
        ({"a": 0.5}, "a", [], [0.25, 0.375, 0.75, 1.0]),
        ({"a": True}, "a", [{"a": True}], [False]),
        ({"a": 0}, "a", [{"a": 3}, {}], [3]),
        ({}, "a", [{"a": 3}], [3]),
        ({"a": float("inf")}, "a", [{"a": 1.5}], [1.5]),
        ([1, 2, 3], "", [], [[2, 1, 3], [3, 1, 2]]),
        (
            {"rule": [8, 4], "more": [2]},
            "",
            [],
            [{"rule": [4], "more": [8, 2]}, {"rule": [8], "more": [4, 2]}, {"rule": [2, 8, 4], "more": []}],
        ),
        ([[32, 1], [0, 8]], "0.1", [], [1, 2]),
    ],
)
def test_other_values_are_tried(value, place, rows, expected):
    found = variations.others(value, place, rows)
    assert found == [one for one in expected if one != variations.at(value, place)]


def test_a_value_is_changed_at_one_place():
    value = {"a": {"b": [1, 2]}, "c": 3, "e": [[1, 2], [3, 4]]}
    assert variations.changed(value, "c", 5) == {**value, "c": 5}
    assert variations.changed(value, "a.b", [2, 1])["a"] == {"b": [2, 1]}
    assert variations.changed(value, "e.1.0", 9)["e"] == [[1, 2], [9, 4]]
    assert variations.changed({}, "x", 1) == {"x": 1} and variations.changed(4, "", 5) == 5


def test_another_row_is_read_in_place_of_a_policys():
    h200 = load_device("h200")
    row, chooser = row_of("conv2d.patch", h200), ways.Chooser(h200, "conv2d.patch")
    call = parse_call("conv2d:x=32x3x224x224,w=24x3x3x3,s=2,p=1", OPS)
    none = ways.with_value(row, {**row.value, "channels": 0})
    (here, was_read), (there, _) = chooser.way(call, row), chooser.way(call, none)
    assert here[0] == "shared_patch" != there[0] and was_read


def test_a_program_is_a_way_of_its_own_where_no_parameter_tells():
    h200 = load_device("h200")
    row, call = row_of("reduce.combine", h200), parse_call("reduce:x=5x300000,op=sum,axes=1", OPS)
    other = ways.with_value(row, [[0, 2147483648, 1, 8]])
    plain, telling = (ways.Chooser(h200, "reduce.combine", programs) for programs in (False, True))
    assert plain.way(call, row)[0] == plain.way(call, other)[0]
    assert telling.way(call, row)[0] != telling.way(call, other)[0]
    line = {
        "route": telling.way(call, row)[0][0],
        "params": json.loads(telling.way(call, row)[0][1]),
        "value": other.value,
    }
    assert telling.of_line(call, line, row) == telling.way(call, other)[0]


def test_a_value_that_a_rule_cannot_take_is_no_way():
    h200 = load_device("h200")
    row, call = row_of("kernels.products", h200), parse_call("conv2d:x=1x64x20x20,w=64x64x3x3,p=1", OPS)
    chooser = ways.Chooser(h200, "kernels.products", route="im2col_gemm")
    assert ways.tried(chooser, call, ways.with_value(row, "spheres")) is None
    assert ways.tried(chooser, call, row) is not None


def test_jobs_are_the_ways_of_calls_that_tell_most():
    fit = upheld.Fit("kernels.transpose_tiles", "h200", draws=("permutations",))
    jobs = row_times.jobs(fit, 8, 1.0)
    texts = [job["call"] for job in jobs]
    assert 8 <= len(jobs) <= 10 and texts == sorted(texts, key=texts.index)
    assert {job["route"] for job in jobs} == {"tiles", "strided_copy"}
    assert "value" not in jobs[0]
