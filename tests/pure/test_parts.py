"""Products whose weights are larger than a binding: in parts, with the same result."""

import numpy as np
import pytest
from graph_kit import evaluate, f32, made_up_device, make_bound, make_graph

from vkconv.core import LimitError
from vkconv.ops import OPS
from vkconv.plan.parts import in_parts
from vkconv.plan.planner import plan

# 24,576 bytes: a part has at most 12,288 of them.
SMALL = made_up_device("mali-g715", maxStorageBufferRange=24576)


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("bias", ["none", "constant", "computed"])
def test_parts_give_what_the_whole_gives(trans_b, bias):
    attrs = {"trans_b": trans_b, "alpha": 0.5, "act": "relu"}
    reads = "x w" if bias == "none" else "x w b"
    inputs = {"x": (5, 32)} | ({"b": (300,)} if bias == "computed" else {})
    constants = {"w": f32(300, 32) if trans_b else f32(32, 300), "v": f32(3)}
    constants |= {"b": f32(300, seed=2)} if bias == "constant" else {}
    nodes = [("matmul", reads, "m", attrs), ("relu", "m", "y")]
    whole = make_bound(inputs, nodes, "y", constants)
    cut = in_parts(whole, OPS, SMALL)
    assert [n.call.op for n in cut.nodes if n.call.op != "slice"] == ["matmul"] * 5 + ["concat", "relu"]
    # 96 columns of 128 bytes would fit, of which 64 are the largest multiple of 64.
    assert [n.call.shape("y")[1] for n in cut.nodes if n.call.op == "matmul"] == [64, 64, 64, 64, 44]
    assert "w" not in cut.constants
    arrays = {"x": f32(5, 32, seed=3), "b": f32(300, seed=4)}
    arrays = {name: arrays[name] for name in inputs}
    np.testing.assert_allclose(evaluate(cut, arrays)[0], evaluate(whole, arrays)[0], rtol=1e-12)
    planned = plan(make_graph(inputs, nodes, "y", constants), SMALL).plan
    assert max(region.nbytes for command in planned.run for region, _ in getattr(command, "binds", ())) <= 24576


def test_what_is_filled_is_filled_in_parts():
    nodes = [("constant_of_shape", "", "w", {"shape": (256, 131072), "value": 0.5}), ("matmul", "x w", "y")]
    device = made_up_device("mali-g715", maxStorageBufferRange=1 << 25)
    cut = in_parts(make_bound({"x": (2, 256)}, nodes, "y"), OPS, device)
    assert [n.call.op for n in cut.nodes] == ["constant_of_shape", "matmul"] * 8 + ["concat"]
    assert cut.specs["y"].dims == (2, 131072)


def test_what_fits_stays_as_it_is_and_what_is_computed_is_refused():
    fits = make_bound({"x": (5, 32)}, [("matmul", "x w", "y")], "y", {"w": f32(32, 192)})
    assert in_parts(fits, OPS, SMALL) is fits
    graph = make_graph({"x": (5, 32), "w": (32, 300)}, [("matmul", "x w", "y")], "y")
    with pytest.raises(LimitError, match=r"38400 bytes, maxStorageBufferRange of .* is 24576"):
        plan(graph, SMALL)
