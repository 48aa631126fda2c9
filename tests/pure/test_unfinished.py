"""Unfinished calls of a tuning: kept beside the table, taken where of today's kernels, gone once in the table."""

import json
import time

import pytest
from cli_kit import vkconv
from measured_kit import CALL, DEVICE

from vkconv.bench import unfinished
from vkconv.bench.rows import Row
from vkconv.bench.unfinished import Unfinished, unfinished_path
from vkconv.core import ModelError, UsageError
from vkconv.device import load_device
from vkconv.plan.measured import kernels_of, locked

OTHER = "relu:x=3x5,dtype=f32"
SMALL, LARGE = {"local": 32}, {"local": 64}


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr(unfinished, "_SAVE_S", 0.0)
    return tmp_path / "mine.json"


def row(route, params, us=10.0, check="ok", why=""):
    spread = 2.0 if us else None
    made = {"check": check, "why": why, "us_median": us, "us_spread_percent": spread}
    return Row(call=CALL, op="conv2d", route=route, params=dict(params), **made)


def begun(table, text=CALL, device=DEVICE, min_time_s=0.1):
    one = Unfinished(table, device, min_time_s)
    one.begin(text)
    return one


def kept(table):
    return {
        text: [(one["route"], one["params"]) for one in tried]
        for text, tried in json.loads(unfinished_path(table).read_bytes())["calls"].items()
    }


def test_what_was_tried_is_found_again_as_it_came_out(table):
    first = begun(table)
    assert first.find(CALL, "direct", SMALL) is None
    first.add(CALL, "direct", SMALL, row("direct", SMALL, 12.5))
    first.add(CALL, "direct", LARGE, row("direct", LARGE, None, "FAILED", "off by one"))
    second = begun(table)
    right, wrong = second.find(CALL, "direct", SMALL), second.find(CALL, "direct", LARGE)
    assert (right.ok, right.us_median, right.us_spread_percent, right.params) == (True, 12.5, 2.0, SMALL)
    assert (wrong.ok, wrong.check, wrong.why, wrong.us_median) == (False, "FAILED", "off by one", None)
    assert second.find(CALL, "direct", {"local": 128}) is None and second.find(CALL, "direct_tile", SMALL) is None
    assert (second.taken, second.ignored, second.counts) == (2, 0, (1, 2))


def test_a_call_that_is_done_leaves_and_the_file_goes_with_the_last(table):
    one = begun(table)
    one.begin(OTHER)
    one.add(CALL, "direct", SMALL, row("direct", SMALL))
    one.add(OTHER, "map", SMALL, row("map", SMALL))
    one.find(CALL, "direct", SMALL)
    one.finish(CALL)
    assert list(kept(table)) == [OTHER]
    one.find(OTHER, "map", SMALL)
    one.finish(OTHER)
    assert not list(table.parent.iterdir())


def test_what_a_fuller_tuning_had_tried_stays(table):
    full = begun(table)
    for params in (SMALL, LARGE):
        full.add(CALL, "direct", params, row("direct", params))
    quick = begun(table)
    assert quick.find(CALL, "direct", SMALL)
    quick.finish(CALL)
    assert kept(table) == {CALL: [("direct", LARGE)]}


def test_candidates_of_other_kernels_are_counted_and_go(table):
    one = begun(table)
    for params in (SMALL, LARGE):
        one.add(CALL, "direct", params, row("direct", params))
    path = unfinished_path(table)
    path.write_text(path.read_text().replace(kernels_of("conv2d", "direct"), "0" * 16, 1))
    later = begun(table)
    assert later.find(CALL, "direct", SMALL) is None and later.find(CALL, "direct", LARGE)
    assert (later.ignored, later.taken) == (1, 1)
    later.save()
    assert kept(table) == {CALL: [("direct", LARGE)]}
    assert begun(table).ignored == 0


def test_less_time_than_is_asked_for_is_not_enough(table):
    one = begun(table, min_time_s=0.01)
    one.add(CALL, "direct", SMALL, row("direct", SMALL, 99.0))
    longer = begun(table, min_time_s=0.1)
    assert longer.find(CALL, "direct", SMALL) is None and longer.ignored == 1
    longer.add(CALL, "direct", SMALL, row("direct", SMALL, 11.0))
    assert begun(table, min_time_s=0.01).find(CALL, "direct", SMALL).us_median == 11.0


def test_two_at_a_time_keep_what_both_have(table):
    mine, yours = begun(table), begun(table, OTHER)
    mine.add(CALL, "direct", SMALL, row("direct", SMALL))
    yours.add(OTHER, "map", SMALL, row("map", SMALL))
    mine.add(CALL, "direct", LARGE, row("direct", LARGE))
    assert kept(table) == {CALL: [("direct", SMALL), ("direct", LARGE)], OTHER: [("map", SMALL)]}
    assert not [path for path in table.parent.iterdir() if path.name.endswith(".lock")]


def test_it_is_written_now_and_then_and_in_the_end(table, monkeypatch):
    now = 0.0
    monkeypatch.setattr(unfinished, "_SAVE_S", 2.0)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    one = begun(table)
    for now, params in ((0.0, {"local": 1}), (1.0, {"local": 2}), (1.9, {"local": 4})):  # noqa: B007 - the clock's
        one.add(CALL, "direct", params, row("direct", params))
    assert len(kept(table)[CALL]) == 1
    now = 2.5
    one.add(CALL, "direct", SMALL, row("direct", SMALL))
    assert len(kept(table)[CALL]) == 4
    one.add(CALL, "direct", LARGE, row("direct", LARGE))
    one.save()
    assert len(kept(table)[CALL]) == 5


def test_a_call_that_ends_before_it_is_written_writes_nothing(table, monkeypatch):
    one = begun(table)
    one.find(CALL, "direct", SMALL)
    one.add(CALL, "direct", SMALL, row("direct", SMALL))
    one.finish(CALL)
    monkeypatch.setattr(unfinished, "atomic_write", lambda path: pytest.fail("written"))
    monkeypatch.setattr(unfinished, "_SAVE_S", 1e9)
    one.begin(OTHER)
    one.add(OTHER, "map", SMALL, row("map", SMALL))
    one.finish(OTHER)
    one.save()


def test_files_of_other_devices_and_other_files_are_refused(table):
    begun(table).add(CALL, "direct", SMALL, row("direct", SMALL))
    h200 = load_device("h200")
    with pytest.raises(UsageError, match=r"begun on .*llvmpipe.*this is NVIDIA H200.*delete that file"):
        Unfinished(table, h200, 0.1)
    unfinished_path(table).write_text("{")
    with pytest.raises(ModelError, match="is no file of unfinished calls"):
        Unfinished(table, DEVICE, 0.1)


def test_it_is_no_table_and_lies_beside_the_real_one(table, tmp_path):
    begun(table).add(CALL, "direct", SMALL, row("direct", SMALL))
    code, _, err = vkconv("tune", "--report", unfinished_path(table), "--device", "lavapipe")
    assert code == 2 and "not a measured table" in err
    assert not list(tmp_path.glob("*.json"))
    link = tmp_path / "link.json"
    link.symlink_to(table)
    assert unfinished_path(link) == unfinished_path(table)
    with locked(unfinished_path(table)):  # what another process may do meanwhile
        assert Unfinished(link, DEVICE, 0.1).counts == (1, 1)
