"""A product or convolution and the reduction of its result as one node: what becomes one, what stays two and why."""

import numpy as np
import pytest
from graph_kit import draw, evaluate, f32, make_bound
from pass_parts import CONSTANTS
from reduced_graphs import FUSED, KEPT, MATMUL, PAIR, SEVERAL, SILENT, A, rows

from vkconv.core import DType
from vkconv.device import load_device
from vkconv.graph import TensorSpec
from vkconv.plan.planner import Options, rewritten

LAVAPIPE = load_device("lavapipe")


def bound_of(inputs, nodes, outputs="y"):
    return make_bound(inputs, nodes, outputs, {**CONSTANTS, "along": f32(2)})


def assert_same(before, after):
    arrays = draw(before.inputs)
    for want, got in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", FUSED.values(), ids=FUSED)
def test_both_become_one_that_computes_the_same(case):
    inputs, nodes, op = case
    before = bound_of(inputs, nodes)
    after, remarks = rewritten(before, LAVAPIPE, Options())
    *before_it, node = after.nodes
    assert {each.call.op for each in before_it} <= {"reshape"}
    assert node.call.op == op and node.name in ("conv2d_c", "matmul_m", "matmul_p")
    assert list(remarks) == [node.name] and " part of it" in remarks[node.name]
    assert after.outputs == before.outputs and after.specs["y"] == before.specs["y"]
    assert_same(before, after)


@pytest.mark.parametrize("case", SEVERAL.values(), ids=SEVERAL)
def test_two_reductions_and_a_wanted_product_are_one_where_that_is_asked_for(case):
    inputs, nodes, outputs, writes, left = case
    before = bound_of(inputs, nodes, outputs)
    routes = dict.fromkeys(("gemm_reduce", "conv_reduce"), "fused_lanes")
    after, remarks = rewritten(before, LAVAPIPE, Options(routes=routes))
    one = next(node for node in after.nodes if node.call.op in routes)
    assert one.writes == writes and list(one.call.outputs) == list(writes) and len(after.nodes) == left
    assert ("are part of it" if "also" in writes else "is part of it") in remarks[one.name]
    assert ("and its product is kept" in remarks[one.name]) is ("product" in writes)
    assert_same(before, after)


def test_two_reductions_stay_apart_where_nobody_timed_them():
    before = bound_of(A, [MATMUL, *PAIR], "u v")
    after, remarks = rewritten(before, LAVAPIPE, Options())
    assert after.nodes == before.nodes
    assert len(remarks) == 2 and all("needs one reduction alone, or a device" in remark for remark in remarks.values())


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT)
def test_what_cannot_be_one_stays_two_and_says_why(case):
    *graph, why = case
    before = bound_of(*graph)
    after, remarks = rewritten(before, LAVAPIPE, Options())
    assert not {"gemm_reduce", "conv_reduce"} & {node.call.op for node in after.nodes}
    (remark,) = remarks.values()
    assert "not in one with" in remark and why in remark
    assert_same(before, after)


@pytest.mark.parametrize("case", SILENT.values(), ids=SILENT)
def test_what_only_looks_alike_is_left_without_a_word(case):
    after, remarks = rewritten(bound_of(*case), LAVAPIPE, Options())
    assert not remarks and not {"gemm_reduce", "conv_reduce"} & {node.call.op for node in after.nodes}


def test_half_precision_is_fused_too():
    half = {name: array.astype(np.float16) for name, array in CONSTANTS.items() if name != "huge"}
    before = make_bound({"a": TensorSpec((5, 3), DType.F16)}, [MATMUL, rows("sum")], "y", half)
    after, remarks = rewritten(before, LAVAPIPE, Options())
    assert [node.call.op for node in after.nodes] == ["gemm_reduce"] and not remarks.get("reduce_y")


def test_nothing_to_reduce_stays_two():
    before = make_bound({"a": (0, 3)}, [MATMUL, rows("sum", 0)], "y", CONSTANTS)
    after, remarks = rewritten(before, LAVAPIPE, Options())
    assert after.nodes == before.nodes and "there is nothing along m to reduce" in remarks["reduce_y"]
