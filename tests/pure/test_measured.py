"""Measured tables: files, merging, whose they are, and what they change in a plan."""

import json
import warnings

import msgspec
import pytest
from graph_kit import made_up_device
from measured_kit import CALL, DEVICE, DIRECT, MORNING, NIGHT, NOON, TILE, table
from plan_kit import two_convs

from vkconv.core import ModelError, RouteError, UsageError, VkconvWarning
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.explain import explain_call, explain_plan, explain_plan_data
from vkconv.plan.measured import find_measured, merge_tables, read_table, table_path
from vkconv.plan.measured import write_table as write
from vkconv.plan.planner import Options, plan
from vkconv.route import Candidate


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VKCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("VKCONV_MEASURED", raising=False)


# ---- files


def test_a_table_is_read_back_as_it_was_written(tmp_path):
    made = table({CALL: (NOON, DIRECT, TILE), "relu:x=3,dtype=f32": (MORNING, Candidate("elementwise", {}, 2.0, 0.0))})
    path = tmp_path / "new" / "t.json"
    write(made, path)
    assert read_table(path) == made
    data = json.loads(path.read_text())
    assert data["schema"] == "vkconv.measured/1" and data["device_key"] == DEVICE.key
    assert data["rows"][CALL]["candidates"][0] == {
        "route": "direct",
        "params": {"local": 32},
        "us_median": 81.25,
        "us_spread": 0.5,
    }
    assert [p.name for p in path.parent.iterdir()] == ["t.json"]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda d: d.update(schema="vkconv.measured/2"), r"\$.schema"),
        (lambda d: d.pop("driver"), "driver"),
        (lambda d: d.update(more=1), "more"),
        (lambda d: d.update(date="yesterday"), r"\$.date"),
        (lambda d: d["rows"][CALL]["candidates"].clear(), r"\$.rows\[...\].candidates"),
        (lambda d: d["rows"][CALL]["candidates"][0].update(us_median=0), r"candidates\[0\].us_median"),
        (lambda d: d["rows"][CALL]["candidates"][0].update(us_median="fast"), "us_median"),
        (lambda d: d["rows"][CALL]["candidates"][0]["params"].update(local=1.5), "params"),
    ],
)
def test_a_bad_table_is_refused_with_file_and_place(tmp_path, change, where):
    data = msgspec.to_builtins(table({CALL: (NOON, DIRECT)}))
    data["rows"][CALL]["candidates"] = list(data["rows"][CALL]["candidates"])
    change(data)
    path = tmp_path / "t.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ModelError, match=where) as error:
        read_table(path)
    assert str(path) in str(error.value) and "vkconv tune" in str(error.value)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"schema": NaN}'])
def test_files_that_are_no_tables_are_refused(tmp_path, content):
    path = tmp_path / "t.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=r"t\.json"):
        read_table(path)


def test_merging_takes_the_newer_row():
    other = "relu:x=3,dtype=f32"
    first = table({CALL: (NIGHT, DIRECT), other: (MORNING, DIRECT)}, date=NIGHT, vkconv="0.2.0")
    second = table({CALL: (NOON, TILE), other: (NOON, TILE), "abs:x=3,dtype=f32": (NOON, TILE)})
    for merged in (merge_tables(first, second), merge_tables(second, first)):
        assert {call: row.candidates[0] for call, row in merged.rows.items()} == {
            CALL: DIRECT,
            other: TILE,
            "abs:x=3,dtype=f32": TILE,
        }
        assert (merged.date, merged.vkconv) == (NIGHT, "0.2.0")
        assert list(merged.rows) == sorted(merged.rows)


def test_tables_of_different_drivers_are_not_merged():
    with pytest.raises(UsageError, match="different devices or drivers") as error:
        merge_tables(table({}), table({}, device=load_device("h200")))
    assert DEVICE.name in str(error.value) and "H200" in str(error.value)


# ---- finding the table of a device


def test_the_table_of_a_device_is_found_under_its_key():
    assert find_measured(DEVICE) == {}
    write(table({CALL: (NOON, DIRECT, TILE)}), table_path(DEVICE))
    assert find_measured(DEVICE) == {CALL: (DIRECT, TILE)}
    assert find_measured(load_device("h200")) == {}


def test_a_variable_names_another_table_or_none(tmp_path, monkeypatch):
    write(table({CALL: (NOON, DIRECT)}), table_path(DEVICE))
    monkeypatch.setenv("VKCONV_MEASURED", "off")
    assert find_measured(DEVICE) == {}
    write(table({CALL: (NOON, TILE)}), tmp_path / "mine.json")
    monkeypatch.setenv("VKCONV_MEASURED", str(tmp_path / "mine.json"))
    assert find_measured(DEVICE) == {CALL: (TILE,)}


def test_a_table_of_another_driver_is_reported_and_ignored(tmp_path, monkeypatch):
    # The same file name with other contents, as after a driver was updated by hand.
    write(table({CALL: (NOON, DIRECT)}, device=made_up_device()), table_path(DEVICE))
    with pytest.warns(VkconvWarning, match="measure again"):
        assert find_measured(DEVICE) == {}


@pytest.mark.parametrize("named", [False, True])
def test_a_broken_table_is_reported_and_ignored(named, tmp_path, monkeypatch):
    path = tmp_path / "mine.json" if named else table_path(DEVICE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{")
    if named:
        monkeypatch.setenv("VKCONV_MEASURED", str(path))
    with pytest.warns(VkconvWarning, match="not a measured table") as said:
        assert find_measured(DEVICE) == {}
    assert str(path) in str(said[0].message)


def test_a_named_table_that_does_not_exist_is_reported(monkeypatch):
    monkeypatch.setenv("VKCONV_MEASURED", "no/such.json")
    with pytest.warns(VkconvWarning, match="no/such.json cannot be read"):
        assert find_measured(DEVICE) == {}


# ---- planning with it


def explained(*candidates, **options):
    return explain_call(parse_call(CALL, OPS), DEVICE, Options(measured={CALL: candidates}, **options))


def test_measured_outranks_prefer_and_explain_says_so():
    table, data = explained(TILE, DIRECT)
    assert (data["route"], data["params"], data["by"]) == ("direct", {"local": 32}, "measured")
    assert [row["us_median"] for row in data["measured"]] == [81.25, 97.5]
    assert "measured table: 81.25 us; direct_tile channels=4 columns=4 local=16 97.5)" in table.title


def test_forced_outranks_measured_and_says_so():
    _, data = explained(DIRECT, routes={"conv2d": "direct_tile"})
    assert (data["route"], data["by"]) == ("direct_tile", "forced")
    with pytest.raises(RouteError):
        explained(DIRECT, routes={"conv2d": "pointwise"})


def test_must_refuses_a_measured_route():
    fastest = Candidate("pointwise", {}, 1.0, 0.0)
    _, data = explained(fastest, TILE)
    assert (data["route"], data["by"]) == ("direct_tile", "measured")
    _, data = explained(fastest)
    assert (data["route"], data["by"]) == ("subgroup_tile", "rule")


def test_parameters_that_are_set_outrank_measured_ones():
    table, data = explained(TILE, params={"conv2d": {"columns": 8}})
    assert (data["route"], data["params"], data["by"]) == ("direct_tile", {**TILE.params, "columns": 8}, "measured")
    assert "measured table, other parameters set" in table.title


def test_a_plan_uses_the_table_and_is_pure(monkeypatch):
    graph = two_convs()
    first = plan(graph, DEVICE).plan
    text = first.nodes[0].text
    write(table({text: (NOON, DIRECT)}), table_path(DEVICE))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plan(graph, DEVICE).plan.nodes[0].route == "subgroup_tile"
        planned = plan(graph, DEVICE, Options(measured=find_measured(DEVICE))).plan
    assert [(n.route, n.choice.by) for n in planned.nodes] == [("direct", "measured"), ("depthwise", "rule")]
    assert explain_plan(planned).rows[0]["by"] == "measured table: 81.25 us"
    row = explain_plan_data(planned)["nodes"][0]
    assert (row["by"], row["params"], len(row["measured"])) == ("measured", {"local": 32}, 1)
