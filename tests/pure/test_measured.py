"""Measured tables: files, merging, whose they are, and what they change in a plan."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import msgspec
import pytest
from cli_kit import vkconv
from every_program import cases
from graph_kit import made_up_device
from measured_kit import CALL, DEVICE, DIRECT, MORNING, NIGHT, NOON, TILE, candidate, table
from plan_kit import two_convs

from vkconv.core import ModelError, RouteError, UsageError, VkconvWarning
from vkconv.device import load_device
from vkconv.glsl import shader_dir
from vkconv.graph.vkc import save_vkc
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan import measured
from vkconv.plan.explain import explain_call, explain_plan, explain_plan_data
from vkconv.plan.measured import (
    Measured,
    add_to_table,
    find_measured,
    kernels_of,
    merge_tables,
    read_table,
    table_path,
)
from vkconv.plan.measured import write_table as write
from vkconv.plan.planner import Options, plan
from vkconv.route import Candidate, judge


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
        "kernels": DIRECT.kernels,
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
        (lambda d: d["rows"][CALL].update(effort="some"), "effort"),
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


def test_merging_keeps_by_which_version_a_row_was_measured():
    old, new = (
        table({CALL: (MORNING, DIRECT)}, vkconv="0.1.0"),
        table({"abs:x=3,dtype=f32": (NOON, TILE)}, vkconv="0.2.0"),
    )
    merged = merge_tables(old, new)
    assert {call: row.vkconv for call, row in merged.rows.items()} == {CALL: "0.1.0", "abs:x=3,dtype=f32": "0.2.0"}


_ADDING = """
import sys
from pathlib import Path
from measured_kit import DIRECT, NOON, table
from vkconv.plan.measured import add_to_table
for n in range(20):
    add_to_table(table({f"relu:x={sys.argv[2]}{n + 10},dtype=f32": (NOON, DIRECT)}), Path(sys.argv[1]))
"""


@pytest.mark.long
def test_two_processes_that_add_rows_both_keep_theirs(tmp_path):
    path = tmp_path / "new" / "t.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    commands = [[sys.executable, "-c", _ADDING, str(path), name] for name in "123"]
    running = [subprocess.Popen(command, env=environment) for command in commands]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    assert len(read_table(path).rows) == 3 * 20
    assert [entry.name for entry in path.parent.iterdir()] == ["t.json"]  # nothing of the locks is left


def test_a_table_that_somebody_holds_is_waited_for_and_then_given_up(tmp_path, monkeypatch):
    path, lock = tmp_path / "t.json", tmp_path / ".t.json.lock"
    monkeypatch.setattr(measured, "_LOCK_S", 0.1)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="has held"):
            add_to_table(table({CALL: (NOON, DIRECT)}), path)
    assert not path.exists()
    add_to_table(table({CALL: (NOON, DIRECT)}), path)  # a lock file without an owner is none
    assert read_table(path).rows[CALL].candidates == (DIRECT,) and not lock.exists()


def test_rows_are_added_through_links_to_the_file_itself(tmp_path):
    (tmp_path / "other").mkdir()
    path, link = tmp_path / "other" / "t.json", tmp_path / "link.json"
    add_to_table(table({CALL: (NOON, DIRECT)}), path)
    link.symlink_to(path)
    add_to_table(table({"relu:x=3,dtype=f32": (NOON, TILE)}), link)
    assert link.is_symlink() and len(read_table(path).rows) == 2


# ---- the kernels that were measured


def edited(name, folder, monkeypatch):
    """The shader sources with a line more in one of them, for what is looked up from now on."""
    shutil.copytree(shader_dir(), folder)
    (source,) = folder.rglob(name)
    source.write_text(source.read_text() + "// faster\n")
    monkeypatch.setattr(measured, "shader_dir", lambda: folder)
    monkeypatch.setattr(measured, "_digests", {})


@pytest.mark.long
def test_digests_are_of_all_kernels_of_a_route():
    names = [(op.name, route.name) for op in OPS.values() for route in op.routes]
    digests = {name: kernels_of(*name) for name in names}
    assert all(re.fullmatch("[0-9a-f]{16}", digest) for digest in digests.values())
    assert digests["conv2d", "direct"] != digests["conv2d", "direct_tile"]
    assert kernels_of("conv2d", "no_such") == kernels_of("no_such", "direct") == ""


def test_digests_without_sources_are_none(tmp_path, monkeypatch):
    monkeypatch.setattr(measured, "shader_dir", lambda: tmp_path)
    monkeypatch.setattr(measured, "_digests", {})
    assert kernels_of("conv2d", "direct") == ""
    assert Measured(table({CALL: (NOON, msgspec.structs.replace(DIRECT, kernels=""))}))[CALL] == ()


@pytest.mark.parametrize("device", ["lavapipe", "h200"])
@pytest.mark.long
def test_a_route_declares_the_kernels_of_the_calls_inside_it(device):
    facts, seen = load_device(device), set()
    made = {}

    def forms(route):
        """Its variants, made once: they are thousands for some, and asked for by each case."""
        if id(route) not in made:
            made[id(route)] = route, set(route.forms)
        return made[id(route)][1]

    for op in OPS.values():
        for _, call in cases(op, ("", "f16")):
            for route in op.routes:
                if judge(route, call, facts).allowed:
                    for sub in route.subs(call, facts, route.own({}, call, facts)).values():
                        seen |= {(op.name, route.name)}
                        more = [inner for inner in sub.routes if not forms(inner) <= forms(route)]
                        able = [inner.name for inner in more if judge(inner, sub.call, facts).allowed]
                        assert not able, (op.name, route.name, able)
    assert {("conv_reduce", "unfused"), ("conv2d_backward_data", "flipped_conv")} <= seen


def test_a_row_of_kernels_that_have_changed_is_ignored_and_counted(tmp_path, monkeypatch):
    known = {CALL: (NOON, DIRECT, TILE)}
    write(table(known), table_path(DEVICE))
    assert explained_here()[1]["by"] == "measured"
    edited("conv2d_direct.comp", tmp_path / "shaders", monkeypatch)
    # As it was before there were digests: what is measured is another kernel than what runs.
    assert explained(DIRECT, TILE)[1]["params"] == {"local": 32}
    said, data = explained_here()
    assert (data["by"], data["route"], data["params"]) == ("measured", "direct_tile", TILE.params)
    assert [row["route"] for row in data["measured"]] == ["direct_tile"]
    assert data["measured_ignored"] == {
        **{"kernels": 1, "routes": 0, "parameters": 0},
        **{"vkconv": "0.1.0", "date": NOON},
    }
    assert (
        "ignored in the measured table: 1 row of other kernels, measured by vkconv 0.1.0 on 2026-08-02: "
        "run vkconv tune" in said.title
    )
    # What all include: nothing is left.
    edited("common.glsl", tmp_path / "others", monkeypatch)
    data = explained_here()[1]
    assert (data["by"], data["measured"], data["measured_ignored"]["kernels"]) == ("rule", [], 2)


def test_rows_with_other_parameters_or_routes_are_counted():
    renamed = msgspec.structs.replace(TILE, params={"channels": 4, "columns": 4})
    gone = candidate("conv2d", "direct", {"local": 31}, 50.0)
    unfit = candidate("conv2d", "pointwise", {}, 40.0)
    old = Candidate("direct", {"local": 64}, 30.0, 0.0)
    write(table({CALL: (NOON, renamed, gone, unfit, old, DIRECT)}), table_path(DEVICE))
    said, data = explained_here()
    assert (data["by"], data["route"], data["params"]) == ("measured", "direct", {"local": 32})
    counts = data["measured_ignored"]
    assert (counts["kernels"], counts["routes"], counts["parameters"]) == (1, 1, 2)
    assert "1 row of other kernels and 1 row of routes that cannot take it and 2 rows with parameters" in said.title


ARCHIVED = Path(__file__).parent / "data" / "measured-f4cdccd.json"


def test_an_archived_table_picks_no_other_kernel(monkeypatch):
    """Of commit f4cdccd, whose parameters were indices and whose rows have no digests; the times are made up."""
    h200, old = load_device("h200"), read_table(ARCHIVED)
    monkeypatch.setenv("VKCONV_MEASURED", str(ARCHIVED))
    found, unchecked = find_measured(h200), {text: row.candidates for text, row in old.rows.items()}
    taken_before = []
    for text in old.rows:
        call = parse_call(text, OPS)
        taken_before += [explain_call(call, h200, Options(measured=unchecked))[1]["by"]]
        with_it, without = (explain_call(call, h200, Options(measured=known))[1] for known in (found, {}))
        ignored = with_it.pop("measured_ignored")
        assert ignored["kernels"] == len(old.rows[text].candidates) == 3 and without.pop("measured_ignored") is None
        assert with_it == without
    assert "measured" in taken_before  # by names that still are some route's


def test_a_model_is_explained_with_what_its_calls_lost(tmp_path, monkeypatch):
    path = tmp_path / "m.vkc"
    save_vkc(two_convs(), path)
    text = plan(two_convs(), DEVICE).plan.nodes[0].text
    write(table({text: (NOON, msgspec.structs.replace(DIRECT, kernels="0" * 16), TILE)}), tmp_path / "t.json")
    monkeypatch.setenv("VKCONV_MEASURED", str(tmp_path / "t.json"))
    code, out, _ = vkconv("explain", path, "--device", "lavapipe")
    assert code == 0 and "ignored in the measured table, of 1 call: 1 row of other kernels: run vkconv tune" in out
    data = json.loads(vkconv("explain", path, "--device", "lavapipe", "--json")[1])
    assert {call: one["kernels"] for call, one in data["measured_ignored"].items()} == {text: 1}


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


def explained_here():
    """With the table that a plan would find."""
    return explain_call(parse_call(CALL, OPS), DEVICE, Options(measured=find_measured(DEVICE)))


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
    assert [(n.route, n.choice.by) for n in planned.nodes] == [("direct", "measured"), ("subgroup_depthwise", "rule")]
    assert explain_plan(planned).rows[0]["by"] == "measured table: 81.25 us"
    row = explain_plan_data(planned)["nodes"][0]
    assert (row["by"], row["params"], len(row["measured"])) == ("measured", {"local": 32}, 1)
