"""The memory that a user allows: bombs of a few bytes are refused when planned, before anything is made."""

import time

import pytest
from graph_kit import f32, i64, make_graph

from vkconv.cli.options import parse_bytes
from vkconv.core import GraphError, LimitError, UsageError
from vkconv.device import load_device
from vkconv.plan.planner import Options, plan

DEVICE = load_device("h200")


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        *(("4096", 4096), ("4096B", 4096), ("512MiB", 512 << 20), ("1.5GiB", 3 << 29), ("2 KB", 2000)),
        *(("1gib", 1 << 30), ("999999999999999TiB", 999_999_999_999_999 << 40)),
    ],
)
def test_numbers_of_bytes(text, nbytes):
    assert parse_bytes(text, "--memory") == nbytes
    assert parse_bytes(None, "--memory") is None


@pytest.mark.parametrize("text", ["", "-1", "MiB", "1e9", "nan", "٣MiB", "1" * 5000, "1 MB please"])
def test_what_is_no_number_of_bytes(text):
    with pytest.raises(UsageError, match=r"--memory .* is no number of bytes"):
        parse_bytes(text, "--memory")


BOMBS = {
    "constant_of_shape": [("constant_of_shape", "many", "b", {"value": 1.5}), ("add", "b x", "y")],
    "expand": [("expand", "x many", "y")],
    "tile": [("tile", "x many", "y")],
    "resize": [
        ("unsqueeze", "x", "u", {"axes": (0, 1)}),
        ("resize", "u", "y", {"scales": (1.0, 1.0, 60_000.0, 60_000.0)}),
    ],
    "pad": [("pad", "x pads", "y")],
    "one_hot": [("one_hot", "i values depth", "y")],
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("memory_bytes", [None, 1 << 20])
def test_bombs_are_refused_when_planned(name, memory_bytes):
    constants = {"many": i64(100_000, 100_000), "pads": i64(0, 10**9, 0, 10**9)}
    constants |= {"i": i64(*range(1000)), "depth": i64(10**9), "values": f32(2)}
    graph = make_graph({"x": (1, 1)}, BOMBS[name], "y", constants)
    started = time.process_time()
    with pytest.raises(LimitError, match=r"\d{9} bytes"):
        plan(graph, DEVICE, Options(memory_bytes=memory_bytes))
    assert time.process_time() - started < 1


def test_a_plan_may_take_all_that_is_allowed_and_no_byte_more():
    graph = make_graph({"x": (64, 64)}, [("softmax", "x", "y"), ("matmul", "y w", "z")], "z", {"w": f32(64, 64)})
    needed = plan(graph, DEVICE).plan.memory.peak_bytes
    assert needed >= 4 * 64 * 64 * 4
    plan(graph, DEVICE, Options(memory_bytes=needed))
    with pytest.raises(LimitError, match=rf"\({needed} bytes\).*\({needed - 1} bytes\)"):
        plan(graph, DEVICE, Options(memory_bytes=needed - 1))


def test_a_matrix_that_is_made_of_a_shape_alone_has_the_limit_of_constants():
    graph = make_graph({"x": (1 << 32, 4)}, [("eye_like", "x", "y")], "y")
    started = time.process_time()
    with pytest.raises(GraphError, match=f"make a constant of {1 << 36} bytes"):
        plan(graph, DEVICE)
    assert time.process_time() - started < 1


@pytest.mark.parametrize("text", ["0", "0.4", "0KiB"])
def test_no_byte_at_all_is_refused(text):
    with pytest.raises(UsageError, match=r"--memory .* allows not one byte"):
        parse_bytes(text, "--memory")
