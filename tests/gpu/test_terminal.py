"""What commands print on a terminal of 100 columns, where a device is needed: no row of a table is broken."""

import pytest
from cli_kit import on_terminal
from graph_kit import make_graph

from vkconv.bench import calibrate
from vkconv.bench.rows import Floors
from vkconv.graph.vkc import save_vkc

pytestmark = pytest.mark.gpu
CALL = "conv2d:x=1x16x14x14,w=24x16x3x3,p=1"
COMMANDS = {
    "run": ["run", "m.vkc", "--profile", "--runs", "1"],
    "check": ["check", "m.vkc", "--repeat", "2"],
    "all ops": ["check", "--all-ops", "--op", "relu", "--few", "--dtype", "f32", "-j", "1"],
    "bench": ["bench", CALL, "--route", "direct", "--min-time", "0.001"],
    "tune": ["tune", "relu:x=3x5", "--min-time", "0.001"],
}


def test_tables_fit(tmp_path, monkeypatch, device):
    names = ["backbone/stage1/block0/conv_with_a_long_name", "backbone/stage1/block0/activation_of_that"]
    graph = make_graph({"x": (1, 3, 9, 11)}, [("tan", "x", names[0]), ("neg", names[0], names[1])], names[1], {})
    save_vkc(graph, tmp_path / "m.vkc")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VKCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("VKCONV_MEASURED", raising=False)
    monkeypatch.setattr(calibrate, "floors", lambda live: Floors(copy_gbps=10.0, fma_gflops=50.0))  # they take seconds
    for command in COMMANDS.values():
        code, lines, broken = on_terminal(monkeypatch, *command, "--device", device)
        assert (code, broken) == (0, []) and len(lines) > 3, command
