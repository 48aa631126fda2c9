"""Files that earlier commits wrote, in the folders of tests/pure/data by commit, are read as they were meant.

Each release adds a folder of what it writes: `network.vkc`, with what it comes to for ones (network.npz), and
`device.json`, `result.json`, `measured.json`. A table whose parameters were indices is in test_measured.py.
"""

import json

import numpy as np
import pytest
from cli_kit import ROOT

from vkconv.bench.compare import compare
from vkconv.bench.files import read_result, write_result
from vkconv.check.reference import reference_outputs
from vkconv.device import load_device
from vkconv.graph.vkc import load_vkc, save_vkc
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.measured import read_table
from vkconv.plan.planner import plan

ARCHIVES = sorted(path.parent for path in (ROOT / "tests" / "pure" / "data").glob("*/network.vkc"))


def test_there_are_archives():
    assert ARCHIVES


@pytest.mark.parametrize("folder", ARCHIVES, ids=lambda folder: folder.name)
def test_a_graph_computes_what_it_did(folder, tmp_path):
    graph = load_vkc(folder / "network.vkc")
    ones = {"x": np.ones((2, 3, 8, 8), np.float32)}
    got = reference_outputs(graph, ones)
    with np.load(folder / "network.npz", allow_pickle=False) as wanted:
        assert got.keys() == set(wanted.files)
        for name in wanted.files:
            np.testing.assert_allclose(got[name], wanted[name], rtol=1e-9, atol=1e-12)
    plan(graph, load_device("lavapipe"), shapes={"x": (2, 3, 8, 8)})
    save_vkc(graph, tmp_path / "again.vkc")
    assert load_vkc(tmp_path / "again.vkc").nodes == graph.nodes


@pytest.mark.parametrize("folder", ARCHIVES, ids=lambda folder: folder.name)
def test_facts_results_and_tables_say_what_they_did(folder, tmp_path):
    device, written = load_device(folder / "device.json"), json.loads((folder / "device.json").read_text())
    assert {"schema": written.pop("schema"), **device.facts} == {"schema": "vkconv.device/1", **written}
    result, held = read_result(folder / "result.json"), json.loads((folder / "result.json").read_text())
    assert [row.us_median for row in result.rows] == [row["us_median"] for row in held["rows"]]
    compare(result, result)
    write_result(result, [tmp_path / "again.json"])
    again = json.loads((tmp_path / "again.json").read_text())
    for old, new in zip(held["rows"], again["rows"], strict=True):
        assert new.items() >= old.items()
    table, held = read_table(folder / "measured.json"), json.loads((folder / "measured.json").read_text())
    for text, row in table.rows.items():
        parse_call(text, OPS)
        assert [c.us_median for c in row.candidates] == [c["us_median"] for c in held["rows"][text]["candidates"]]
