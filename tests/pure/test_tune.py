"""Tuning with a made-up clock: what is tried, what is kept, and what the rules are reported to cost."""

import dataclasses
import json
import math

import msgspec
import pytest
from cli_kit import vkconv
from measured_kit import CALL, DEVICE, DIRECT, MORNING, NOON, TILE, Clock, candidate, table

from vkconv.bench.tune import (
    best_together,
    change,
    geometric_mean,
    is_tuned,
    make_table,
    regrets,
    settings,
    tune_call,
)
from vkconv.core import UsageError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.measured import Measured, MeasuredCall, read_table, write_table
from vkconv.route import Candidate

CONV = parse_call(CALL, OPS)
ALL_CONV2D = OPS["conv2d"].routes
RULE = {"channels": 12, "columns": 8, "local": 8}


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("VKCONV_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("VKCONV_DEVICE", "VKCONV_MEASURED"):
        monkeypatch.delenv(name, raising=False)
    two = tuple(route for route in OPS["conv2d"].routes if route.name in ("direct_tile", "direct"))
    monkeypatch.setitem(OPS, "conv2d", dataclasses.replace(OPS["conv2d"], routes=two))


def tile_us(params):
    """Fastest at channels 4, columns 4, local 16, and each of them helps by itself."""
    return 100.0 * math.prod(1.0 if params[k] == v else 1.25 for k, v in TILE.params.items())


def test_routes_that_may_take_the_call_are_tried_with_their_defaults_first():
    clock = Clock(lambda route, params: 50.0 if route == "direct" else 100.0)
    found = tune_call(CONV, DEVICE, clock, "quick")
    assert clock.asked == [("direct_tile", RULE), ("direct", {"local": 64})]
    assert found == [
        candidate("conv2d", "direct", {"local": 64}, 50.0, 1.0),
        candidate("conv2d", "direct_tile", RULE, 100.0, 2.0),
    ]
    assert all(c.kernels for c in found)


def test_one_parameter_at_a_time_and_then_the_best_of_each_together():
    clock = Clock(lambda route, params: tile_us(params) if route == "direct_tile" else 1e5)
    found = tune_call(CONV, DEVICE, clock)
    tiles = [params for route, params in clock.asked if route == "direct_tile"]
    assert all(sum(params[k] != RULE[k] for k in RULE) <= 1 for params in tiles[:-1])
    assert tiles[-1] == TILE.params and len(tiles) == len({tuple(p.items()) for p in tiles})
    assert (found[0].route, found[0].params, found[0].us_median) == ("direct_tile", TILE.params, 100.0)
    assert [c.us_median for c in found] == sorted(c.us_median for c in found)
    # The hopeless route was measured once.
    assert [params for route, params in clock.asked if route == "direct"] == [{"local": 64}]


def test_full_effort_tries_every_combination_of_every_route():
    clock = Clock(lambda route, params: tile_us(params) if route == "direct_tile" else 1e5)
    found = tune_call(CONV, DEVICE, clock, "full")
    legal = {r.name: r.params(CONV, DEVICE) for r in OPS["conv2d"].routes if r.name in ("direct", "direct_tile")}
    assert len(clock.asked) == len(found) == sum(math.prod(map(len, values.values())) for values in legal.values())


def test_wrong_results_are_no_candidates_however_fast():
    clock = Clock(lambda route, params: None if params.get("columns") == 4 else 100.0 + params["local"])
    found = tune_call(CONV, DEVICE, clock)
    assert ("direct_tile", {**RULE, "columns": 4}) in clock.asked
    assert found and all(c.params.get("columns") != 4 for c in found)
    assert tune_call(CONV, DEVICE, Clock(lambda route, params: None)) == []


def test_settings_that_make_the_same_program_are_tried_once():
    call = parse_call("relu:x=3", OPS)
    (relu,) = OPS["relu"].routes
    tried = settings(relu, call, DEVICE)
    assert tried[0] == relu.resolve(call, DEVICE, {})
    # Three elements fill four of an invocation's items: more is the same as four.
    assert sorted(p["items"] for p in tried if p["local"] == 64) == [1, 2, 8]


def test_best_together_ignores_what_changed_two_at_once():
    def at(us, **params):
        return Candidate("r", {"a": 1, "b": 1} | params, us, 0.0)

    assert best_together(at(10.0), [at(10.0), at(8.0, a=2), at(9.0, a=3), at(11.0, b=2), at(1.0, a=9, b=9)]) == {
        "a": 2,
        "b": 1,
    }


def test_a_change_compares_with_what_was_planned_before():
    found = [TILE, Candidate("direct_tile", RULE, 195.0, 1.0), DIRECT]
    ruled = change(CONV, DEVICE, (), found)
    assert (ruled.before.by, ruled.before_us, ruled.best, ruled.ratio) == ("rule", 195.0, TILE, 2.0)
    measured = change(CONV, DEVICE, (DIRECT,), found)
    assert (measured.before.by, measured.before_us) == ("measured", 81.25)
    gone = change(CONV, DEVICE, (Candidate("direct", {"local": 128}, 1.0, 0.0),), found)
    assert (gone.before_us, gone.ratio) == (None, None)


def test_a_table_of_what_was_found_leaves_out_calls_without_candidates():
    made = make_table(DEVICE, {CALL: [DIRECT], "relu:x=3,dtype=f32": []})
    assert list(made.rows) == [CALL] and made.rows[CALL].date == made.date
    assert (made.device_key, made.driver) == (DEVICE.key, DEVICE.driver)


@pytest.mark.parametrize(
    ("had", "wanted", "done"),
    [
        (("default", False), ("default", False), True),
        (("default", False), ("quick", False), True),
        (("default", False), ("full", False), False),
        (("quick", False), ("default", False), False),
        (("full", True), ("default", False), True),
        (("full", False), ("quick", True), False),
        (("quick", True), ("quick", True), True),
    ],
)
def test_a_call_is_done_with_at_least_the_effort_that_is_wanted(had, wanted, done):
    measured = Measured(make_table(DEVICE, {CALL: [DIRECT, TILE]}, *had))
    assert is_tuned(measured, CALL, CONV, DEVICE, *wanted) is done
    assert not is_tuned(measured, "relu:x=3,dtype=f32", parse_call("relu:x=3", OPS), DEVICE, *wanted)


def test_a_call_whose_kernels_or_parameters_are_others_now_is_not_done(monkeypatch):
    made = make_table(DEVICE, {CALL: [DIRECT]})
    row = made.rows[CALL]
    other = candidate("conv2d", "direct", {"size": 32}, 9.0)
    for changed in ({"kernels": "0" * 16}, {"effort": None}, {"candidates": (DIRECT, other)}):
        rows = {CALL: msgspec.structs.replace(row, **changed)}
        assert not is_tuned(Measured(msgspec.structs.replace(made, rows=rows)), CALL, CONV, DEVICE, "quick")
    assert is_tuned(Measured(made), CALL, CONV, DEVICE, "quick")
    # A route more: it was not measured.
    more = dataclasses.replace(OPS["conv2d"], routes=(*OPS["conv2d"].routes, ALL_CONV2D[0]))
    monkeypatch.setitem(OPS, "conv2d", more)
    assert not is_tuned(Measured(made), CALL, CONV, DEVICE, "quick")


# ---- regret


def regret_table():
    """Rules that cost 2x and 1x and 8x, one that was not measured, and a call of an op that is gone."""
    relu = [candidate("relu", "elementwise", {"local": n, "items": 8}, us) for n, us in ((64, 40.0), (8, 5.0))]
    product = candidate("matmul", "shared", {"tile": "32x32x16", "split_k": 1}, 3.0)
    return table(
        {
            CALL: (NOON, TILE, candidate("conv2d", "direct_tile", RULE, 195.0)),
            "matmul:a=4x4,b=4x4,dtype=f32": (NOON, product),
            "relu:x=99,dtype=f32": (MORNING, *relu),
            "abs:x=7,dtype=f32": (MORNING, candidate("abs", "elementwise", {"local": 64, "items": 8}, 2.0)),
            "warp:x=7,dtype=f32": (MORNING, Candidate("bend", {}, 2.0, 0.0)),
        }
    )


def test_regret_is_the_rules_time_over_the_best_the_worst_first():
    rows = regrets(regret_table(), DEVICE)
    assert [(r.call.partition(":")[0], r.ratio) for r in rows] == [
        ("relu", 8.0),
        ("conv2d", 2.0),
        ("abs", 1.0),
        ("matmul", None),
        ("warp", None),
    ]
    assert geometric_mean(rows) == pytest.approx(16 ** (1 / 3))
    assert geometric_mean([]) is None
    assert rows[0].rule == "elementwise local=64 items=8" and str(rows[0].best) == "elementwise local=8 items=8"
    assert rows[3].why == "the rule's choice was not measured" and "no op 'warp'" in rows[4].why


def test_rows_of_other_kernels_are_not_judged_but_counted(tmp_path):
    made = regret_table()
    old = {text: msgspec.structs.replace(c, kernels="0" * 16) for text in made.rows for c in made.rows[text].candidates}
    faster = msgspec.structs.replace(old[CALL], us_median=1.0)
    made.rows[CALL] = MeasuredCall(NOON, (faster, *made.rows[CALL].candidates))
    made.rows["abs:x=7,dtype=f32"] = MeasuredCall(NOON, (old["abs:x=7,dtype=f32"],))
    rows = {row.call.partition(":")[0]: row for row in regrets(made, DEVICE)}
    assert (rows["conv2d"].best, rows["conv2d"].ratio, rows["conv2d"].ignored.kernels) == (TILE, 2.0, 1)
    assert (rows["abs"].best, rows["abs"].ratio) == (None, None)
    assert rows["abs"].why.startswith("no row is left: 1 row of other kernels, measured by vkconv 0.1.0 on 2026-08-02")
    write_table(made, tmp_path / "t.json")
    _, out, _ = vkconv("tune", "--report", tmp_path / "t.json", "--device", "lavapipe")
    assert "2 of 5 calls judged" in out and "in the measured table, of 2 calls: 2 rows of other kernels: run vkc" in out
    data = json.loads(vkconv("tune", "--report", tmp_path / "t.json", "--device", "lavapipe", "--json")[1])
    assert data["ignored"] == 2
    counts = {row["call"].partition(":")[0]: row["ignored"] and row["ignored"]["kernels"] for row in data["rows"]}
    assert counts == {"conv2d": 1, "abs": 1, "relu": None, "matmul": None, "warp": None}


def test_a_table_is_judged_with_the_facts_of_its_own_device():
    with pytest.raises(UsageError, match="the table is of llvmpipe"):
        regrets(regret_table(), load_device("h200"))


# ---- the command line, without a device


@pytest.fixture
def paths(tmp_path):
    paths = [tmp_path / f"{name}.json" for name in "abc"]
    write_table(regret_table(), paths[0])
    write_table(table({CALL: (MORNING, DIRECT), "exp:x=3,dtype=f32": (NOON, DIRECT)}), paths[1])
    return paths


def test_report_says_what_rules_cost(paths):
    code, out, err = vkconv("tune", "--report", paths[0], "--device", "lavapipe")
    assert (code, err) == (0, "")
    assert "3 of 5 calls judged: rules take 2.520x the best time (geometric mean), at worst 8.000x" in out
    data = json.loads(vkconv("tune", "--report", paths[0], "--device", "lavapipe", "--json")[1])
    assert data["schema"] == "vkconv.regret/1" and data["geometric_mean"] == pytest.approx(16 ** (1 / 3))
    assert [row["ratio"] for row in data["rows"]] == [8.0, 2.0, 1.0, None, None]


def test_report_finds_the_table_that_plans_use(paths, monkeypatch):
    monkeypatch.setenv("VKCONV_MEASURED", str(paths[1]))
    assert "0 of 2 calls judged" in vkconv("tune", "--report", "--device", "lavapipe")[1]
    monkeypatch.setenv("VKCONV_MEASURED", "off")
    code, _, err = vkconv("tune", "--report", "--device", "lavapipe")
    assert code == 2 and "no measured table" in err


def test_merge_writes_the_newer_rows(paths):
    a, b, c = paths
    code, out, err = vkconv("tune", "--merge", a, b, "-o", c)
    assert (code, err) == (0, "") and "6 calls" in out
    assert read_table(c).rows[CALL].candidates[0] == TILE


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--merge", "A"], "two tables or more"),
        (["--merge", "A", "B"], "-o FILE"),
        (["--report", "--merge", "A"], "exclude each other"),
        (["--quick", "--full", "relu:x=3"], "exclude each other"),
        (["--report", "A", "--suite", "peers"], "measure nothing"),
        (["--report", "A", "B"], "one table"),
        (["--report", "no.json", "--device", "lavapipe"], "no.json cannot be read"),
        (["--report", "A", "--device", "h200"], "the table is of llvmpipe"),
        (["relu:x=3", "--min-time", "nan"], "--min-time"),
        (["relu:x=3", "--budget", "0"], "--budget"),
        (["relu:x=3", "--budget", "inf"], "--budget"),
        (["--merge", "A", "B", "--again"], "measure nothing"),
        (["--report", "A", "--budget", "3"], "measure nothing"),
        (["--report", "A", "--half-sums"], "measure nothing"),
        (["--merge", "A", "B", "-o", "C.json", "--json"], "leave out --json"),
    ],
)
def test_wrong_usage_is_refused(paths, arguments, said):
    names = {"A": paths[0], "B": paths[1]}
    code, out, err = vkconv("tune", *(names.get(word, word) for word in arguments))
    assert (code, out) == (2, "") and said in err


def test_merging_a_broken_table_writes_nothing(paths):
    a, b, c = paths
    b.write_text("{}")
    code, _, err = vkconv("tune", "--merge", a, b, "-o", c)
    assert code == 2 and str(b) in err and not c.exists()
