"""Results: rows that go to files and come back, what samples say of themselves, and two results compared."""

import csv
import dataclasses
import io
import json
import math
import sys
import types

import msgspec
import numpy as np
import pytest

from vkconv.bench.compare import LEAST_RATIO, compare, comparison_table, threshold
from vkconv.bench.files import check_targets, read_result, write_result
from vkconv.bench.reference import draw, expected
from vkconv.bench.rows import (
    Floors,
    Header,
    Result,
    Row,
    header_lines,
    mark_best,
    result_table,
    screen_tables,
)
from vkconv.bench.runner import Routes, Speeds, Task, expected_s, make_tasks
from vkconv.bench.sampling import BenchOptions, notes
from vkconv.bench.suites import Entry, parse_entries, read_suite
from vkconv.check import Expected
from vkconv.check import compare as compare_outputs
from vkconv.cli import main
from vkconv.cli.benched import collect
from vkconv.core import DType, LimitError, ModelError, UsageError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.core.tolerance import Tolerance

CALL = "conv2d:x=1x3x8x8,w=4x3x3x3,dtype=f32"


def row(us=100.0, route="direct", call=CALL, spread=1.0, submissions=40, **more):
    measured = {
        "us_median": us,
        "us_spread_percent": spread,
        "runs": submissions * 5,
        "submissions": submissions,
        "gflops": 1.5,
        "max_abs": 1e-6,
        "max_rel": 1e-7,
        "allowed": 1e-6,
    }
    return Row(call=call, op="conv2d", route=route, **({} if us is None else measured), **more)


def header(**changes):
    values = {
        "device": "Some GPU",
        "device_key": "0001-0002",
        "driver": "driver 1.2",
        "vulkan": "1.3.1",
        "versions": {"vkconv": "0.1.0"},
        "date": "2026-01-02T03:04:05+00:00",
        "calls": "suite peers",
        "options": {"min_time_s": 0.2, "warmup": None},
        "forced": {"*": "all"},
        "quirks": ["a-quirk"],
        "floors": Floors(copy_gbps=100.0, fma_gflops=1000.0),
    }
    return Header(**(values | changes))


def result(*rows, **changes):
    return Result(header=header(**changes), rows=list(rows))


# ---- files


def test_a_result_comes_back_from_json_as_it_was(tmp_path):
    whole = result(
        row(), row(None, check="refused", why="it needs a 1x1 kernel"), row(given={"local": 64}, notes=["n"])
    )
    write_result(whole, [tmp_path / "r.json"])
    assert read_result(tmp_path / "r.json") == whole
    assert json.loads((tmp_path / "r.json").read_text())["schema"] == "vkconv.bench/1"


def test_every_format_has_the_columns_of_the_screen(tmp_path):
    whole = result(row(), row(50.0, route="direct_tile"), row(None, check="no op", why="no such op", route=""))
    mark_best(whole.rows)
    paths = [tmp_path / f"r.{suffix}" for suffix in ("csv", "md", "json")]
    write_result(whole, paths)
    names = [column.name for column in result_table(whole).columns]
    csv_lines = paths[0].read_text().splitlines()
    fields = csv_lines[0].split(",")
    assert fields[:6] == ["device", "driver", "vkconv", "date", "call", "op"] and len(csv_lines) == 4
    assert {*Row.__struct_fields__} - {"us_samples"} <= {*fields} and not any(" " in name for name in fields)
    first = dict(zip(fields, next(csv.reader([csv_lines[1]])), strict=True))
    assert first["driver"] == whole.header.driver and float(first["us_median"]) == whole.rows[0].us_median
    markdown = paths[1].read_text()
    assert f"| {' | '.join(names)} |" in markdown and "direct_tile*" in markdown and "Some GPU" in markdown
    fields = json.loads(paths[2].read_text())["rows"][0]
    assert fields.keys() == set(Row.__struct_fields__)


def test_on_screen_the_routes_of_a_call_are_side_by_side():
    several = result(row(), row(50.0, "direct_tile"), row(7.0, call="relu:x=3"))
    tables = screen_tables(several)
    assert [(t.title, len(t.cells)) for t in tables] == [(CALL, 2), ("relu:x=3", 1)]
    assert [c.name for c in result_table(several).columns] == ["call", *(c.name for c in tables[0].columns)]


def test_on_screen_routes_for_other_calls_are_counted():
    """A texture is for this call, and refused by the device."""
    refused = ("pointwise", "cooperative", "texture_tile")
    rows = [row(), *(row(None, name, check="refused", why="it needs") for name in refused)]
    every = result(*rows)
    every.header.forced = {"conv2d": "direct"}
    assert len(screen_tables(every)[0].cells) == 4  # they were asked for by name
    every.header.forced = {"*": "all"}
    (table,) = screen_tables(every)
    assert (table.title, len(table.cells)) == (f"{CALL}; 2 routes for other calls", 2)
    assert len(result_table(every).cells) == 4


def test_columns_that_say_nothing_are_left_out():
    assert "count" not in {c.name for c in result_table(result(row())).columns}
    assert "count" in {c.name for c in result_table(result(row(count=3))).columns}


def test_formats_that_do_not_exist_are_refused_before_anything_is_measured(tmp_path):
    for name in ("r.jsn", "r", "r.txt"):
        with pytest.raises(UsageError, match="no format"):
            check_targets([tmp_path / name])
    with pytest.raises(UsageError, match=r"did you mean '\.json'"):
        check_targets([tmp_path / "r.jsn"])
    with pytest.raises(UsageError, match="twice"):
        check_targets([tmp_path / "r.json", tmp_path / "r.json"])


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda d: d["rows"][1].update(us_median="fast"), "rows[1].us_median"),
        (lambda d: d["rows"][0].update(us_median=-1.0), "rows[0].us_median"),
        (lambda d: d["rows"][0].update(check="fine"), "rows[0].check"),
        (lambda d: d["rows"][0].update(speed=3), "speed"),
        (lambda d: d["header"].pop("device"), "header"),
        (lambda d: d.update(schema="vkconv.bench/2"), "schema"),
    ],
)
def test_a_damaged_result_is_refused_with_its_place(tmp_path, change, place):
    data = json.loads(msgspec.json.encode(result(row(), row())))
    change(data)
    path = tmp_path / "r.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ModelError) as error:
        read_result(path)
    assert str(path) in str(error.value) and place in str(error.value)


def test_files_that_are_no_results_are_refused(tmp_path):
    for name, content in (("a.json", b""), ("b.json", b"\xff\xfe"), ("c.json", b"[" * 100_000)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelError, match="no result"):
            read_result(tmp_path / name)
    with pytest.raises(ModelError, match="cannot be read"):
        read_result(tmp_path / "none.json")


def test_the_header_names_every_condition():
    lines = "\n".join(header_lines(header(incomplete=True)))
    for word in (
        "Some GPU",
        "driver 1.2",
        "min_time_s 0.2",
        "*=all",
        "a-quirk",
        "100 GB/s",
        "1000 GFLOP/s",
        "INCOMPLETE",
    ):
        assert word in lines
    assert "warmup" not in lines


def test_the_best_row_is_the_fastest_right_one_of_several():
    rows = [row(9.0, check="FAILED"), row(30.0, "a"), row(20.0, "b"), row(None, "c", check="refused")]
    alone = row(5.0, call="relu:x=3")
    mark_best([*rows, alone])
    assert [r.route for r in rows if r.best] == ["b"] and not alone.best


# ---- samples


def test_slowing_down_speeding_up_and_noise_are_noted():
    steady = np.full(90, 100.0)
    assert notes(steady, 1.0) == []
    slowing = steady + np.repeat([0, 2, 8], 30)
    assert "slowed down by 8 %" in notes(slowing, 1.0)
    assert notes(slowing[::-1], 1.0) == ["sped up by 8 %: measure for longer"]
    noisy = steady + np.tile([-20.0, 0.0, 20.0], 30)
    assert notes(noisy, 1.0) == ["noisy: spread 20 %"]
    assert notes(steady / 1000, 10.0) == ["short: the clock ticks every 10 ns"]


# ---- references


def checked(got, want, allowed):
    call = parse_call("relu:x=4", OPS)
    return compare_outputs(call, [np.array(got, np.float32)], Expected({}, [np.array(want)], [allowed]))


def within(relative, *magnitude):
    return Tolerance(relative, np.array(magnitude), 2.0**-126)


def test_errors_are_relative_to_the_magnitude_of_their_element():
    got, want = [1.0, 2.0, 3.0, -8.5], [1.0, 2.0, 3.25, -8.0]
    errors = checked(got, want, within(0.125, 8, 8, 8, 8))
    assert (errors.max_abs, errors.max_rel, errors.allowed, errors.problem) == (0.5, 0.0625, 0.125, "")
    errors = checked(got, want, within(0.0625, 1, 2, 2, 8))
    assert (errors.max_abs, errors.max_rel, errors.allowed) == (0.5, 0.125, 0.0625)
    assert "y[2] is 3, the reference 3.25, 0.12 is allowed; 1 of 4 elements" in errors.problem
    assert "y[0]" in checked([1e-3, 2.0, 3.25, -8.0], [0.0, 2.0, 3.25, -8.0], within(0.5, 0, 2, 3, 8)).problem
    assert checked([1e-38, 2.0, 3.25, -8.0], [0.0, 2.0, 3.25, -8.0], within(0.5, 0, 2, 3, 8)).problem == ""


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_must_be_where_the_reference_has_them(value):
    assert checked([1, value, 2, 3], [1, value, 2, 3], within(0.0, 1, 1, 1, 1)).problem == ""
    for got, want in (([1, value, 2, 3], [1, 5, 2, 3]), ([1, 5, 2, 3], [1, value, 2, 3])):
        errors = checked(got, want, within(100.0, 1, 1, 1, 1))
        assert "y[1]" in errors.problem and errors.max_abs is None
    assert "y[1]" in checked([1, math.inf, 2, 3], [1, -math.inf, 2, 3], within(9.0, 1, 1, 1, 1)).problem


def test_what_is_too_large_for_the_output_must_be_infinite():
    assert checked([math.inf, -math.inf, 3e38, 1], [1e39, -1e39, 3e38, 1], within(1e-6, 1, 1, 3e38, 1)).problem == ""
    assert "y[0]" in checked([3.4e38, 0, 0, 0], [1e39, 0, 0, 0], within(1e-6, 1e39, 0, 0, 0)).problem
    assert "y[0]" in checked([math.inf, 0, 0, 0], [-1e39, 0, 0, 0], within(1e-6, 1e39, 0, 0, 0)).problem


def test_integers_are_compared_exactly():
    call = parse_call("add:a=3:i32,b=3:i32", OPS)
    made = expected(call, 1)
    assert [tolerance.absolute.max() for tolerance in made.allowed] == [0.0]
    assert compare_outputs(call, [made.outputs[0].astype(np.int32)], made).problem == ""
    wrong = compare_outputs(call, [made.outputs[0].astype(np.int64)], made)
    assert "of int64, the call makes" in wrong.problem and not wrong.ok
    assert compare_outputs(call, [made.outputs[0].astype(np.int32) + 1], made).problem


def test_references_are_shared_by_call_and_seed():
    call = parse_call("conv2d:x=1x2x5x5,w=3x2x3x3", OPS)
    assert expected(call, 3) is expected(parse_call("conv2d:x=1x2x5x5,w=3x2x3x3,p=0", OPS), 3)
    assert not np.array_equal(expected(call, 3).arrays["x"], expected(call, 4).arrays["x"])


def test_on_a_terminal_rows_are_counted_not_seconds(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    rows = [types.SimpleNamespace(call=f"relu:x={n}") for n in (3, 4)]
    collect(rows, [0.2, 40.0], types.SimpleNamespace())
    shown = sys.stderr.getvalue()
    assert "2/2" in shown and "relu:x=4" in shown and "/40" not in shown


def test_inputs_are_drawn_in_the_type_of_the_call():
    drawn = draw(parse_call("relu:x=300,dtype=bf16", OPS), 0)["x"]
    assert drawn.dtype == DType.BF16.numpy
    assert np.array_equal(drawn, draw(parse_call("relu:x=300", OPS), 0)["x"].astype(drawn.dtype))


def test_inputs_beyond_the_hosts_memory_are_refused_with_both_numbers(monkeypatch):
    with pytest.raises(LimitError, match=r"drawing inputs of relu takes .*\(160000000000000 bytes\) of host memory"):
        draw(parse_call("relu:x=40000000000000", OPS), 0)
    monkeypatch.setattr("vkconv.check.inputs.available_bytes", lambda: None)  # as where a process may have less
    with pytest.raises(LimitError, match="inputs of relu cannot be drawn: Unable to allocate"):
        draw(parse_call("relu:x=400000000000000", OPS), 0)


# ---- comparing


def one(a, b, **changes):
    return compare(result(a), result(b, **changes))


@pytest.mark.parametrize(
    ("us", "spread", "verdict"),
    [
        (100.0, 0.1, "same"),
        (102.9, 0.1, "same"),  # less than 3 %, whatever the noise
        (104.0, 0.1, "slower"),
        (96.0, 0.1, "faster"),
        (104.0, 8.0, "same"),  # within three standard errors
        (120.0, 8.0, "slower"),
        (80.0, 8.0, "faster"),
        (120.0, 40.0, "same"),
    ],
)
def test_a_difference_counts_beyond_noise_and_three_percent(us, spread, verdict):
    comparison = one(row(100.0, spread=spread), row(us, spread=spread))
    assert comparison.pairs[0].verdict == verdict
    assert comparison.pairs[0].ratio == pytest.approx(us / 100)


def test_the_threshold_is_three_standard_errors_of_both_medians():
    error = math.sqrt(math.pi / 2) * 1.4826 * 0.08 / math.sqrt(40)
    assert threshold(row(spread=8.0), row(spread=8.0)) == pytest.approx(math.exp(3 * math.sqrt(2) * error))
    assert threshold(row(spread=0.1), row(spread=0.1)) == LEAST_RATIO
    assert threshold(row(spread=8.0, submissions=4), row(spread=8.0)) > threshold(row(spread=8.0), row(spread=8.0))


def test_rows_of_noise_alone_are_the_same_nearly_always():
    rng = np.random.default_rng(11)

    def noisy():
        values = rng.normal(100, 8, 40)
        median = float(np.median(values))
        return row(median, spread=100 * float(np.median(np.abs(values - median))) / median)

    verdicts = [one(noisy(), noisy()).pairs[0].verdict for _ in range(400)]
    assert verdicts.count("same") >= 392


def test_rows_join_by_call_route_and_parameters():
    a = result(row(10.0), row(20.0, given={"local": 64}), row(30.0, "gone"))
    b = result(row(40.0, given={"local": 64}, params={"local": 64, "rows": 2}), row(10.0), row(5.0, "new"))
    pairs = {(p.route, p.verdict): p.ratio for p in compare(a, b).pairs}
    assert pairs == {
        ("direct", "same"): 1.0,
        ("direct local=64", "slower"): 2.0,
        ("gone", "only in A"): None,
        ("new", "only in B"): None,
    }
    assert compare(a, b).geometric_mean == pytest.approx(math.sqrt(2.0))


def test_a_row_that_is_not_right_any_more_is_broken():
    failed = row(None, check="FAILED")
    assert one(row(), failed).pairs[0].verdict == "broken"
    assert one(failed, row()).pairs[0].verdict == "mended"
    assert one(failed, failed).pairs[0].verdict == "not measured"
    assert one(row(), failed).regressions(1.05) and not one(failed, row()).regressions(1.05)


def test_regressions_are_those_past_the_ratio():
    slower = one(row(100.0), row(110.0))
    assert slower.regressions(1.05) and not slower.regressions(1.2)
    assert not one(row(110.0), row(100.0)).regressions(1.0)


def test_differing_conditions_are_warned_of():
    changes = {
        "device": "Other GPU",
        "driver": "driver 2",
        "options": {"min_time_s": 0.1, "warmup": None},
        "incomplete": True,
    }
    said = "\n".join(one(row(), row(), **changes).warnings)
    for words in (
        "device differs: Some GPU in A, Other GPU in B",
        "driver differs",
        "min_time_s differs: 0.2",
        "B is inc",
    ):
        assert words in said
    assert one(row(), row(), date="later", versions={"vkconv": "9"}).warnings == []


def test_the_table_of_a_comparison_has_every_pair():
    cells = comparison_table(one(row(100.0), row(120.0))).cells
    assert [cells[0][i] for i in (1, 2, 3, 6)] == ["direct", 100.0, 120.0, "slower"]


# ---- how long it will take

SPEEDS = Speeds(quick_gflops=10.0, slow_gflops=0.5, reference_gflops=5.0, gbps=4.0, row_s=0.1)
LAVAPIPE = load_device("lavapipe")


def test_the_expected_time_grows_with_rows_least_time_and_work():
    options = BenchOptions(min_time_s=0.2)
    small, large = parse_entries("conv2d:x=1x8x9x9,w=8x8x3x3")[0], parse_entries("conv2d:x=8x64x56x56,w=64x64x3x3")[0]

    def total(*tasks, options=options):
        return sum(expected_s(tasks, LAVAPIPE, options, SPEEDS))

    assert 0.3 < total(Task(small)) < 1
    assert total(Task(small), Task(small, "direct")) > 1.5 * total(Task(small))
    assert total(Task(large, "direct")) > 5 * total(Task(large)) > 5 * total(Task(small))
    assert total(Task(small), options=dataclasses.replace(options, min_time_s=1.0)) > 2 * total(Task(small))
    assert total(Task(small), options=dataclasses.replace(options, cooldown_s=2.0)) > 2 + total(Task(small))


def test_rows_that_nothing_runs_for_take_no_time():
    tasks = [Task(Entry("later:x=3", None)), Task(parse_entries("conv2d:x=1x8x9x9,w=8x8x3x3")[0], "pointwise")]
    tasks.append(Task(parse_entries("relu:x=40000000000000")[0]))
    assert expected_s(tasks, LAVAPIPE, BenchOptions(), SPEEDS) == [0.0, 0.0, 0.0]


def test_a_suite_with_all_routes_has_an_expectation_for_every_row():
    entries = read_suite("peers")
    tasks = make_tasks(entries, Routes.parse(["all"], entries), LAVAPIPE)
    seconds = expected_s(tasks, LAVAPIPE, BenchOptions(), SPEEDS)
    assert len(seconds) == len(tasks) > len(entries) and all(s >= 0 for s in seconds) and sum(seconds) > 1


# ---- the command line, as far as it needs no device


def command(capsys, *argv):
    with pytest.raises(SystemExit) as done:
        main([str(a) for a in argv])
    captured = capsys.readouterr()
    return done.value.code or 0, captured.out, captured.err


def test_compare_fails_past_the_ratio_only_when_asked(tmp_path, capsys):
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    write_result(result(row(100.0), row(50.0, "x")), [a])
    write_result(result(row(120.0), row(50.0, "x"), device="Other GPU"), [b])
    code, out, _ = command(capsys, "compare", a, b)
    assert code == 0 and "1 slower, 1 same" in out and "geometric mean B/A 1.095" in out
    assert "warning: device differs" in out
    code, _, err = command(capsys, "compare", a, b, "--fail-over", "1.05")
    assert code == 1 and "1 of 2 rows fail" in err and CALL in err
    assert command(capsys, "compare", a, b, "--fail-over", "1.5")[0] == 0
    code, out, _ = command(capsys, "compare", a, b, "--changed")
    assert code == 0 and out.count("conv2d:") == 1


def test_compare_refuses_what_makes_no_sense(tmp_path, capsys):
    a = tmp_path / "a.json"
    write_result(result(row()), [a])
    assert command(capsys, "compare", a, tmp_path / "none.json")[0] == 2
    for ratio in ("0.9", "nan", "inf"):
        code, _, err = command(capsys, "compare", a, a, "--fail-over", ratio)
        assert code == 2 and "from 1 on" in err
