"""Binding: symbols, host operands, folding, the limits of folding, refusals by name, and what is dropped."""

import math
import time

import numpy as np
import pytest
from flow import check_flow
from graph_kit import f32, i64, make_bound, make_graph

import vkconv.plan.bound as bound_module
from vkconv.core import DType, GraphError, InputError, LimitError, UnsupportedError
from vkconv.device import load_device
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.ops import OPS
from vkconv.plan.bound import FOLD_LIMIT_BYTES, bind, value_inputs, with_values
from vkconv.plan.planner import plan

TWO_INPUTS = ({"a": ("n", 3), "b": (3, "n")}, [("matmul", "a b", "y")], "y")


def ops_of(bound):
    return [node.call.op for node in bound.nodes]


# ---- symbols


def test_a_symbol_gets_its_number_everywhere():
    bound = make_bound(*TWO_INPUTS, shapes={"a": (5, 3), "b": (3, 5)})
    assert bound.specs["y"].dims == (5, 5)
    assert bound.inputs["b"].dims == (3, 5)


def test_a_symbol_with_two_numbers_is_refused_with_both():
    with pytest.raises(InputError, match=r"input 'b' .* shape 3x7, but the graph takes \[3, n\] \(with n=5\)"):
        make_bound(*TWO_INPUTS, shapes={"a": (5, 3), "b": (3, 7)})


@pytest.mark.parametrize("shape", [(5,), (5, 3, 1), (5, 4), ()])
def test_a_shape_that_does_not_fit_is_refused_with_both_shapes(shape):
    with pytest.raises(InputError, match=r"input 'a' .* but the graph takes \[n, 3\]"):
        make_bound(*TWO_INPUTS, shapes={"a": shape, "b": (3, 5)})


def test_an_unbound_input_is_asked_for_with_an_example():
    with pytest.raises(InputError, match=r"input 'b' .* \[3, n\]: give its shape, .*\{'b': \(3, 1\)\}"):
        make_bound(*TWO_INPUTS, shapes={"a": (5, 3)})


def test_a_shape_for_no_input_is_refused_with_a_suggestion():
    with pytest.raises(InputError, match=r"no input 'image' \(did you mean 'images'\?\)"):
        make_bound({"images": (1,)}, [("relu", "images", "y")], "y", shapes={"image": (1,)})


@pytest.mark.parametrize("shape", [5, (5, "three"), (5, 3.0), (None, 3), None])
def test_a_shape_that_is_no_shape_is_refused(shape):
    with pytest.raises(InputError, match=r"shape given for input 'a' of graph 'g' is .* whole numbers"):
        make_bound(*TWO_INPUTS, shapes={"a": shape, "b": (3, 5)})


def test_a_dimension_of_zero_is_a_number_like_any_other():
    bound = make_bound({"x": ("n", 4)}, [("relu", "x", "y")], "y", shapes={"x": (0, 4)})
    assert bound.specs["y"].dims == (0, 4)


# ---- host operands and folding


def test_host_operands_become_attributes():
    bound = make_bound({"x": (2, 12)}, [("reshape", "x s", "y")], "y", {"s": i64(4, -1)})
    (node,) = bound.nodes
    assert node.call["shape"] == (4, 6)
    assert dict(node.reads) == {"x": "x"}
    assert not bound.constants


def test_a_scalar_host_operand_is_a_number():
    nodes = [("pad", "x p v", "y")]
    bound = make_bound({"x": (2, 3)}, nodes, "y", {"p": i64(0, 1, 0, 2), "v": np.array(0.5, np.float32)})
    assert bound.nodes[0].call["value"] == 0.5
    assert bound.specs["y"].dims == (2, 6)


def test_subgraphs_that_compute_shapes_fold():
    nodes = [
        ("shape", "x", "dims"),
        ("gather", "dims zero", "n", {"axis": 0}),
        ("concat", "n minus", "target", {"axis": 0}),
        ("reshape", "x target", "y"),
    ]
    bound = make_bound({"x": ("n", 3, 5)}, nodes, "y", {"zero": i64(0), "minus": i64(-1)}, shapes={"x": (7, 3, 5)})
    assert ops_of(bound) == ["reshape"]
    assert bound.specs["y"].dims == (7, 15)


def test_integer_constants_stay_exact_integers():
    big = 2**60 + 1  # not a float64
    nodes = [("add", "a b", "s"), ("mul", "s two", "p"), ("div", "p two", "q"), ("concat", "q q", "y", {"axis": 0})]
    bound = make_bound({}, nodes, "y", {"a": i64(big), "b": i64(0), "two": i64(2)})
    assert bound.constants["y"].dtype == np.int64
    assert bound.constants["y"].tolist() == [big, big]


def test_float_constants_fold_in_float64_and_round_once():
    a, b = f32(50, seed=1), f32(50, seed=2)
    bound = make_bound({}, [("mul", "a b", "y")], "y", {"a": a, "b": b})
    assert bound.constants["y"].dtype == np.float32
    np.testing.assert_array_equal(bound.constants["y"], a * b)


def test_a_constant_divided_by_zero_folds_without_a_warning():
    bound = make_bound({}, [("div", "a b", "y")], "y", {"a": f32(1, low=1.0), "b": np.zeros(1, np.float32)})
    assert bound.constants["y"].tolist() == [np.inf]


# ---- the limits of folding


@pytest.fixture
def small_limit(monkeypatch):
    """A limit that a test reaches in microseconds, in bytes."""
    monkeypatch.setattr(bound_module, "FOLD_LIMIT_BYTES", 4096)
    return 4096


def refused_quickly(error, match, *args, **kwargs):
    started = time.process_time()
    with pytest.raises(error, match=match):
        make_bound(*args, **kwargs)
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize("shape", [(2**40,), (2**31, 2**31), (2**62, 2**62)])
def test_a_huge_constant_of_shape_stays_a_node_that_no_device_takes(shape):
    nodes = [("constant_of_shape", "s", "y", {"value": 1.0})]
    started = time.process_time()
    with pytest.raises(LimitError, match=rf"{4 * math.prod(shape)}"):
        plan(make_graph({}, nodes, "y", {"s": i64(*shape)}), load_device("mali-g715"))
    assert time.process_time() - started < 1.0


def test_a_huge_range_is_refused_before_it_is_made():
    nodes = [("range", "", "y", {"start": 0.0, "limit": 1e15, "delta": 1.0})]
    refused_quickly(GraphError, f"{8 * 10**15} bytes, and {FOLD_LIMIT_BYTES} is the most", {}, nodes, "y")


@pytest.mark.parametrize("node", [("tile", "w s", "y"), ("expand", "w s", "y")], ids=["tile", "expand"])
def test_a_constant_that_grows_beyond_the_limit_stays_a_node(node):
    bound = make_bound({}, [node], "y", {"w": f32(1, 1), "s": i64(2**15, 2**15)})
    assert ops_of(bound) == [node[0]]
    assert bound.specs["y"].nbytes == 4 * 2**30


def test_growth_in_steps_is_no_way_around_the_limit(small_limit):
    nodes = [("tile", f"{'w' if i == 0 else f't{i - 1}'} four", f"t{i}") for i in range(40)]
    bound = make_bound({}, nodes, "t39", {"w": np.ones(256, np.float32), "four": i64(4)})
    assert sum(c.nbytes for c in bound.constants.values()) <= small_limit + 16 * 1024
    assert ops_of(bound)[-1] == "tile"


def test_many_constants_share_one_limit(small_limit):
    nodes = [("constant_of_shape", "s", f"c{i}", {"value": 1.0}) for i in range(6)]
    shape = i64(small_limit // 16)  # a quarter of the limit each, and the limit has some slack
    bound = make_bound({}, nodes, " ".join(f"c{i}" for i in range(6)), {"s": shape})
    assert [node.name for node in bound.nodes] == ["constant_of_shape_c4", "constant_of_shape_c5"]


def test_views_of_large_weights_always_fold(small_limit):
    weights = f32(8, small_limit)
    nodes = [("reshape", "w s", "v0"), *(("flatten", f"v{i}", f"v{i + 1}") for i in range(20))]
    bound = make_bound({}, nodes, "v20", {"w": weights, "s": i64(2, -1)})
    assert ops_of(bound) == []
    assert np.shares_memory(bound.constants["v20"], weights)


# ---- inputs that steer


def test_inputs_that_steer_are_those_that_host_operands_come_from():
    nodes = [
        ("gather", "s zero", "d"),  # on the way to a shape
        ("concat", "d k", "dims", {"axis": 0}),
        ("reshape", "x dims", "r"),
        ("shape", "m", "ms"),  # shapes are known without values
        ("expand", "r ms", "y"),
        ("add", "y v", "z"),
    ]
    kinds = {"s": (3,), "k": (1,), "v": (1,), "x": (6,), "m": (2, 3)}
    inputs = {n: TensorSpec(shape, DType.I64 if n in "sk" else DType.F32) for n, shape in kinds.items()}
    graph = make_graph(inputs, nodes, "z", {"zero": i64(0)})
    assert value_inputs(graph, OPS) == ("s", "k")
    bound = bind(with_values(graph, {"s": i64(2, 5, 5), "k": i64(3)}), OPS)
    assert list(bound.inputs) == ["v", "x", "m"] and bound.specs["r"].dims == (2, 3)


def test_what_is_no_vector_does_not_steer():
    """A shape computed from an image would be the work of the device, on the host."""
    nodes = [
        ("reduce", "x", "s", {"op": "max", "axes": (0,)}),
        ("cast", "s", "c", {"to": "i64"}),
        ("reshape", "y c", "z"),
    ]
    graph = make_graph({"x": (2, 2), "y": (4,)}, nodes, "z")
    assert value_inputs(graph, OPS) == ()


# ---- refusals


def test_unknown_ops_are_listed_all_at_once():
    nodes = [("convv2d", "x", "a"), ("relu", "a", "b"), ("frobnicate", "b", "y")]
    with pytest.raises(UnsupportedError) as error:
        make_bound({"x": (1,)}, nodes, "y")
    text = str(error.value)
    assert "'convv2d_a' (convv2d (did you mean 'conv2d'?))" in text
    assert "'frobnicate_y'" in text and "relu_b" not in text


def test_a_shape_that_depends_on_input_values_is_refused_by_name():
    inputs = {"x": (6,), "s": TensorSpec((2,), DType.I64)}
    with pytest.raises(GraphError, match=r"node 'reshape_y'.*its shape comes from 's', which depends on the values"):
        make_bound(inputs, [("reshape", "x s", "y")], "y")


def test_a_contradiction_names_graph_and_node():
    with pytest.raises(GraphError, match=r"graph 'g', matmul node 'matmul_y': .*4.*5"):
        make_bound({"a": (3, 4), "b": (5, 6)}, [("matmul", "a b", "y")], "y")


@pytest.mark.parametrize(
    ("node", "match"),
    [
        (("relu", "x x", "y"), "relu takes 1 inputs, this node has 2"),
        (("relu", "x", "y z"), "relu makes 1 outputs here, the node names 2"),
        (("add", "x", "y"), "add needs the operand 'b'"),
        (("relu", "x", "y", {"alpha": 1.0}), "relu has no attribute 'alpha'"),
        (("conv2d", "- x", "y"), "conv2d needs the operand 'x'"),
    ],
)
def test_a_node_that_is_no_call_of_its_op_is_refused(node, match):
    with pytest.raises(GraphError, match=match):
        make_bound({"x": (2, 2)}, [node], "y")


def test_an_operand_given_twice_is_refused():
    nodes = [("reshape", "x s", "y", {"shape": (2, 2)})]
    with pytest.raises(GraphError, match="'reshape_y': its shape comes twice, as an attribute and from 's'"):
        make_bound({"x": (4,)}, nodes, "y", {"s": i64(4, 1)})


def test_a_constant_of_no_element_type_is_named():
    with pytest.raises(GraphError, match="graph 'g', constant 'c': numpy dtype float64"):
        make_bound({"x": (4,)}, [("add", "x c", "y")], "y", {"c": np.arange(4.0)})


def test_what_cannot_be_folded_names_graph_and_node():
    constants = {"c": f32(3), "i": i64(1, 7)}
    with pytest.raises(GraphError, match=r"graph 'g', gather node 'gather_y': .*7"):
        make_bound({}, [("gather", "c i", "y")], "y", constants)


# ---- what is dropped and what stays


def test_dead_nodes_and_constants_are_dropped():
    nodes = [("relu", "x", "y"), ("conv2d", "x w", "dead"), ("sigmoid", "dead", "deader")]
    bound = make_bound({"x": (1, 2, 4, 4)}, nodes, "y", {"w": f32(3, 2, 1, 1), "other": f32(9)})
    assert ops_of(bound) == ["relu"]
    assert not bound.constants


def test_a_node_with_one_live_output_stays():
    bound = make_bound({"x": (4, 3)}, [("split", "x", "a b", {"axis": 0, "num_outputs": 2})], "b")
    assert ops_of(bound) == ["split"]
    assert bound.specs["b"].dims == (2, 3)


def test_an_absent_optional_input_is_none():
    nodes = [("conv2d", "x w -", "y")]
    (node,) = make_bound({"x": (1, 2, 4, 4)}, nodes, "y", {"w": f32(3, 2, 1, 1)}).nodes
    assert node.call.operands["b"] is None and "b" not in node.reads


@pytest.mark.parametrize(("outputs", "wanted"), [(("", "b"), "b"), (("a",), "a"), (("a", ""), "a")])
def test_an_output_that_the_node_does_not_name_gets_a_name_of_its_own(outputs, wanted):
    split = Node("n", "split", ("x",), outputs, {"axis": 0, "num_outputs": 2})
    takes = Node("r", "relu", (wanted,), ("n/y0",))
    graph = Graph({"x": TensorSpec((4, 3)), "n/y1": TensorSpec((2,))}, ("n/y0",), (split, takes))
    node, _ = bind(graph, OPS).nodes
    assert list(node.writes) == ["y0", "y1"] and len({*node.writes.values(), "n/y0", "n/y1"}) == 4
    assert wanted in node.writes.values()
    check_flow(graph, load_device("lavapipe"))


def test_unused_inputs_stay_part_of_the_interface():
    bound = make_bound({"x": (2,), "unused": (3, "n")}, [("relu", "x", "y")], "y", shapes={"unused": (3, 9)})
    assert bound.inputs["unused"].dims == (3, 9)


def test_an_input_or_constant_may_be_an_output():
    bound = make_bound({"x": (2,)}, [], "x c", {"c": f32(3)})
    assert bound.outputs == ("x", "c")
    assert list(bound.constants) == ["c"]


# ---- indices that are known


@pytest.mark.parametrize("index", [-8, 7, 1 << 40, -(1 << 63)])
@pytest.mark.parametrize(
    ("node", "indices"),
    [
        (("gather", "x i", "y", {"axis": 0}), (2,)),
        (("gather_elements", "x i", "y", {"axis": 0}), (2, 5)),
        (("gather_nd", "x i", "y"), (3, 1)),
        (("scatter_elements", "x i u", "y", {"axis": 0}), (2, 5)),
        (("scatter_nd", "x i v", "y"), (3, 1)),
    ],
    ids=lambda value: value[0],
)
def test_a_constant_index_out_of_range_is_refused(node, indices, index):
    inputs = {"x": (7, 5), "u": (2, 5), "v": (3, 5)}
    inside, outside = np.full(indices, -7, np.int64), np.full(indices, 6, np.int64)
    outside.flat[-1] = index
    make_bound(inputs, [node], "y", {"i": inside})
    with pytest.raises(GraphError, match=rf"{node[0]}: indices span .*{index}.*; the axis has 7"):
        make_bound(inputs, [node], "y", {"i": outside})
