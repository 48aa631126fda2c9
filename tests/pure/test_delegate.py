"""Delegation without a device: which nodes are refused and why, and that regions can run one after the other."""

import numpy as np
import pytest
from required import required

required("onnx")

import delegated_models as models  # noqa: E402
from graph_kit import make_graph  # noqa: E402

from vkconv.core import DType, UnsupportedError, UsageError  # noqa: E402
from vkconv.delegate import DelegatedSession, partition  # noqa: E402
from vkconv.device import load_device  # noqa: E402
from vkconv.graph import TensorSpec  # noqa: E402

pytestmark = pytest.mark.long

LAVAPIPE = load_device("lavapipe")


def regions(model, **kwargs):
    parts = partition(model, LAVAPIPE, **kwargs)
    return parts, [("vkconv" if r.taken else "rest", r.nodes) for r in parts.regions]


def test_regions_are_as_few_as_their_order_allows():
    parts, found = regions(models.conv_det_conv())
    assert found == [("vkconv", ("n0", "n2", "n5")), ("rest", ("n1",)), ("vkconv", ("n3", "n4"))]
    assert [region.inputs for region in parts.regions] == [("x",), ("c",), ("d", "r")]
    assert [region.outputs for region in parts.regions] == [("c", "r", "z"), ("d",), ("y",)]
    (refused,) = parts.refused
    assert (refused.node, refused.op) == ("n1", "Det") and "vkconv has no such op" in refused.reason


def test_what_vkconv_takes_whole_is_one_region():
    parts, found = regions(models.all_taken())
    assert found == [("vkconv", ("n0", "n1"))] and not parts.refused
    assert "vkconv takes 2 of 2 nodes" in str(parts.table())


def test_values_that_subgraphs_read_go_in_too():
    parts, found = regions(models.with_subgraph())
    assert found == [("vkconv", ("n0", "n1", "n2")), ("rest", ("n3",)), ("vkconv", ("n4",))]
    assert set(parts.regions[1].inputs) == {"p", "r"} and "then_branch: Det" in parts.refused[0].reason


def test_what_no_route_runs_on_the_device_is_refused_with_its_reason():
    parts, found = regions(models.long_sum_inside())
    assert found == [("vkconv", ("n0", "n1")), ("rest", ("n2",)), ("vkconv", ("n3", "n4"))]
    (refused,) = parts.refused
    assert refused.op == "CumSum" and "66000 iterations, it stops at 65535" in refused.reason


def test_every_row_of_the_table_says_where_it_runs():
    parts, _ = regions(models.conv_det_conv())
    rows = parts.table("onnxruntime", [1000.0, 2500.0, 10.0]).rows
    assert [row["runs on"] for row in rows] == ["vkconv", "FALLBACK: onnxruntime on the host", "vkconv"]
    assert [row["time"] for row in rows] == [1.0, 2.5, 0.01]
    assert [bool(row["why not on vkconv"]) for row in rows] == [False, True, False]


def test_a_graph_with_bytes_without_a_kernel_is_taken_whole():
    short = TensorSpec((3, 3), DType.U16)
    nodes = [("tanh", "x", "t"), ("cast", "h", "f", {"to": "f32"}), ("add", "t f", "y")]
    parts = partition(make_graph({"x": (3, 3), "h": short}, nodes, "y"), LAVAPIPE)
    assert not parts.refused
    assert all(region.taken for region in parts.regions) and parts.regions[-1].nodes[-1] == "add_y"


def test_nothing_falls_back_unasked():
    parts, _ = regions(models.conv_det_conv())
    with pytest.raises(UnsupportedError, match=r"1 nodes cannot run on vkconv:\n  Det \(n1\): .*\n--fallback onnx"):
        DelegatedSession(parts, "auto")
    with pytest.raises(UsageError, match="there is no fallback 'tensorflow'"):
        DelegatedSession(parts, "auto", fallback="tensorflow")


def test_a_fallback_that_is_not_installed_names_the_extra(monkeypatch):
    parts, _ = regions(models.conv_det_conv())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"the fallback onnxruntime is not installed; run: pip install .*\[fallback\]"):
        DelegatedSession(parts, "auto", fallback="onnxruntime")


def test_a_value_whose_type_nobody_knows_keeps_its_readers_with_its_maker():
    import onnx
    from onnx import helper

    model = models.all_taken()
    del model.graph.node[:]
    nodes = [("Sin", "x", "a"), ("Fancy", "a", "b"), ("Exp", "b", "y")]
    for i, (op, reads, writes) in enumerate(nodes):
        domain = "somebody" if op == "Fancy" else ""
        model.graph.node.append(helper.make_node(op, [reads], [writes], f"n{i}", domain=domain))
    model.opset_import.append(helper.make_opsetid("somebody", 1))
    assert isinstance(model, onnx.ModelProto)
    parts, found = regions(model)
    assert found == [("vkconv", ("n0",)), ("rest", ("n1", "n2"))]
    assert "whose type onnx cannot tell" in parts.refused[1].reason


def test_open_shapes_are_bound_and_constants_may_be_outputs():
    from onnx import helper

    model = models.conv_det_conv()
    for i in (2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[i].dim_param = f"d{i}"
    assert partition(model, LAVAPIPE).inputs["x"].shape == (1, 3, "d2", "d3")
    parts = partition(model, LAVAPIPE, {"x": (1, 3, 7, 7)})
    assert parts.inputs["x"].shape == (1, 3, 7, 7) and len(parts.regions) == 3
    model.graph.output.append(helper.make_tensor_value_info("axes", 7, [2]))
    np.testing.assert_array_equal(partition(model, LAVAPIPE).constants["axes"], [2, 3])
