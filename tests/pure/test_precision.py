"""Graphs in other float types: which nodes take them, where casts go, and what keeps its own."""

import numpy as np
import pytest
from graph_kit import make_graph

from vkconv.cli.options import parse_dtypes, parse_io_dtype
from vkconv.core import DType, UsageError
from vkconv.device import load_device
from vkconv.graph import TensorSpec
from vkconv.ops import OPS
from vkconv.plan.planner import Options, plan
from vkconv.plan.precision import input_specs

LAVAPIPE = load_device("lavapipe")
W = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
CONV = ("conv2d", "x w", "c", {"padding": (1, 1, 1, 1)})


def nodes_of(graph, **options):
    planned = plan(graph, LAVAPIPE, Options(**options))
    return planned, [(n.call.op, str(next(iter(n.call.outputs.values())).dtype)) for n in planned.plan.nodes]


def test_all_floats_but_those_of_the_interface():
    graph = make_graph({"x": (1, 3, 8, 8)}, [CONV, ("softmax", "c", "y", {"axis": 1})], "y", {"w": W})
    planned, nodes = nodes_of(graph, dtype=DType.F16)
    assert nodes == [("cast", "f16"), ("conv2d", "f16"), ("softmax", "f16"), ("cast", "f32")]
    assert planned.plan.nodes[0].call.operands["x"] == TensorSpec((1, 3, 8, 8), DType.F32)
    (w,) = planned.constants.values()
    assert w.dtype == np.float16 and np.array_equal(w, W.astype(np.float16))


def test_an_op_and_a_node_have_their_own_type():
    steps = [CONV, ("softmax", "c", "s", {"axis": 1}), ("exp", "s", "y")]
    graph = make_graph({"x": (1, 3, 8, 8)}, steps, "y", {"w": W})
    wanted = {"softmax": DType.F32, "node:exp_y": DType.BF16}
    assert nodes_of(graph, dtype=DType.F16, dtypes=wanted)[1] == [
        ("cast", "f16"),
        ("conv2d", "f16"),
        ("cast", "f32"),
        ("softmax", "f32"),
        ("cast", "bf16"),
        ("exp", "bf16"),
        ("cast", "f32"),
    ]
    assert nodes_of(graph, dtypes={"conv2d": DType.F16})[1][-2:] == [("softmax", "f32"), ("exp", "f32")]


def test_types_may_be_words():
    graph = make_graph({"x": (2, 3)}, [("exp", "x", "a"), ("softmax", "a", "y")], "y")
    words = nodes_of(graph, dtype="f16", dtypes={"softmax": "bf16"})[1]
    assert words == nodes_of(graph, dtype=DType.F16, dtypes={"softmax": DType.BF16})[1]
    assert [dtype for _, dtype in words] == ["f16", "f16", "bf16", "bf16", "f32"]


def test_a_value_is_cast_once_for_all_that_read_it():
    graph = make_graph(
        {"x": (2, 3)}, [("tanh", "x", "a"), ("exp", "x", "b"), ("matmul", "a b", "y", {"trans_b": True})], "y a"
    )
    nodes = nodes_of(graph, dtype=DType.F16)[1]
    assert [op for op, _ in nodes].count("cast") == 3  # x, and the outputs y and a


def test_integers_and_what_makes_them_stay():
    graph = make_graph(
        {"x": (4, 5)}, [("arg_reduce", "x", "i", {"axis": 1, "op": "max"}), ("cast", "i", "y", {"to": "f32"})], "i y"
    )
    _, nodes = nodes_of(graph, dtype=DType.BF16)
    assert nodes == [("cast", "bf16"), ("arg_reduce", "i32"), ("cast", "bf16"), ("cast", "f32")]


I64 = {"to": "i64"}


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_whole_numbers_on_their_way_back_to_integers_stay_f32(dtype):
    steps = [
        ("cast", "i", "f", {"to": "f32"}),
        ("mul", "f two", "d"),
        ("reduce", "d", "m", {"op": "max", "axes": (0,), "keepdims": True}),
        ("concat", "d m", "both", {"axis": 0}),
        ("reshape", "both", "r", {"shape": (4, 1)}),
        ("cast", "r", "y", I64),
        ("exp", "d", "e"),
        ("mul", "e x", "z"),
    ]
    inputs = {"i": TensorSpec((3,), DType.I64), "x": (3,)}
    graph = make_graph(inputs, steps, "y z", {"two": np.float32([2, 2, 2])})
    planned, _ = nodes_of(graph, dtype=dtype)
    floats = {n.name: str(n.call.outputs["y"].dtype) for n in planned.plan.nodes if n.call.op != "cast"}
    assert floats == {**dict.fromkeys(("mul_d", "reduce_m", "concat_both", "reshape_r"), "f32"), "mul_z": dtype}
    (back,) = (node for node in planned.plan.nodes if node.name == "cast_y")
    assert back.call.operands["x"].dtype is DType.F32 and "whole numbers" in back.remark
    assert not any("whole numbers" in node.remark for node in planned.plan.nodes if node.name == "mul_z")
    forced, _ = nodes_of(graph, dtype=dtype, dtypes={"mul": dtype})
    (mul,) = (node for node in forced.plan.nodes if node.name == "mul_d")
    assert mul.call.outputs["y"].dtype == dtype


def test_data_that_becomes_integers_is_no_whole_number():
    """An image of bytes that is scaled, convolved and made bytes again; bools; what only begins as integers."""
    steps = [
        ("cast", "i", "f", {"to": "f32"}),
        ("mul", "f half", "h"),
        ("conv2d", "h w", "c", {"padding": (1, 1, 1, 1)}),
        ("clip", "c", "k", {"a": 0.0, "b": 255.0}),
        ("cast", "k", "y", {"to": "u8"}),
        ("greater", "x zero", "b"),
        ("cast", "b", "m", {"to": "f32"}),
        ("add", "m x", "s"),
        ("cast", "s", "z", I64),
    ]
    inputs = {"i": TensorSpec((1, 3, 8, 8), DType.U8), "x": (5,)}
    constants = {"w": W, "half": np.float32([0.5]), "zero": np.float32([0])}
    planned, _ = nodes_of(make_graph(inputs, steps, "y z", constants), dtype="f16")
    assert not any("whole numbers" in node.remark for node in planned.plan.nodes)


def test_a_graph_of_halves_can_be_computed_in_f32():
    graph = make_graph({"x": TensorSpec((2, 3), DType.F16)}, [("exp", "x", "y")], "y")
    planned, nodes = nodes_of(graph, dtype=DType.F32)
    assert nodes == [("cast", "f32"), ("exp", "f32"), ("cast", "f16")]
    assert planned.plan.nodes[0].call.operands["x"].dtype is DType.F16


def test_inputs_and_outputs_may_have_a_type_of_their_own():
    graph = make_graph({"x": (1, 3, 8, 8)}, [CONV, ("softmax", "c", "y", {"axis": 1})], "y c", {"w": W})
    planned, nodes = nodes_of(graph, dtype=DType.F16, io_dtype="f16")
    assert nodes == [("conv2d", "f16"), ("softmax", "f16")]
    assert types_of(planned) == {"x": "f16", "y": "f16", "c": "f16"}
    planned, nodes = nodes_of(graph, io_dtype=DType.BF16)
    assert nodes == [("cast", "f32"), ("conv2d", "f32"), ("softmax", "f32"), ("cast", "bf16"), ("cast", "bf16")]
    assert types_of(planned) == {"x": "bf16", "y": "bf16", "c": "bf16"}
    planned, nodes = nodes_of(graph, dtype="f16", dtypes={"softmax": "f32"}, io_dtype="f32")
    assert nodes == nodes_of(graph, dtype="f16", dtypes={"softmax": "f32"})[1]
    planned, nodes = nodes_of(
        make_graph({"x": TensorSpec((2, 3), DType.F16)}, [("exp", "x", "y")], "y"), io_dtype="f32"
    )
    assert nodes == [("cast", "f16"), ("exp", "f16"), ("cast", "f32")]


def types_of(planned):
    """The element types of what goes in and comes out."""
    plan = planned.plan
    return {name: str(spec.dtype) for name, (spec, _) in {**plan.inputs, **plan.outputs}.items()}


def test_what_passes_through_or_is_known_goes_out_in_the_type_too():
    """An input that is an output; a constant that is one, which a node reads in f32 as it was; integers."""
    inputs = {"x": TensorSpec((2, 3)), "i": TensorSpec((2, 3), DType.I32)}
    k = np.full((2, 3), 1 + 2.0**-20, np.float32)
    graph = make_graph(inputs, [("add", "x k", "y"), ("reshape", "i", "j", {"shape": (3, 2)})], "y x k j i", {"k": k})
    for passes in (True, False):
        planned, nodes = nodes_of(graph, io_dtype="f16", passes=passes)
        assert [node for node in nodes if node[0] != "reshape"] == [("cast", "f32"), ("add", "f32"), ("cast", "f16")]
        assert types_of(planned) == {"x": "f16", "y": "f16", "i": "i32", "j": "i32"}
        assert planned.plan.known["k"].dtype == np.float16 and (planned.plan.known["k"] == 1).all()
        assert [array for array in planned.constants.values() if array.dtype == np.float32 and (array == k).all()]


def test_a_session_says_what_it_takes():
    graph = make_graph({"x": ("n", 3), "i": TensorSpec((2,), DType.I32)}, [("exp", "x", "y")], "y i")
    for wanted in ("f16", DType.F16):
        assert input_specs(graph, OPS, wanted) == {"x": TensorSpec(("n", 3), DType.F16), "i": graph.inputs["i"]}
    assert input_specs(graph, OPS, None) == graph.inputs
    with pytest.raises(UsageError, match="dtype f15 for inputs and outputs: floats are one of f32, f16, bf16"):
        input_specs(graph, OPS, "f15")


def test_inputs_that_steer_keep_their_types():
    graph = make_graph({"x": (4, 4), "pads": TensorSpec((4,), DType.I64), "v": ()}, [("pad", "x pads v", "y")], "y")
    specs = input_specs(graph, OPS, "f16")
    assert {name: str(spec.dtype) for name, spec in specs.items()} == {"x": "f16", "pads": "i64", "v": "f32"}


def test_memory_halves():
    steps = [("conv2d", "x w", "c", {"padding": (1, 1, 1, 1)}), ("conv2d", "c v", "y", {"padding": (1, 1, 1, 1)})]
    weights = {"w": W, "v": np.ones((4, 4, 3, 3), np.float32)}
    graph = make_graph({"x": (1, 3, 64, 64)}, steps, "y", weights)
    wide, half = (plan(graph, LAVAPIPE, Options(dtype=dtype)).plan.memory for dtype in (None, DType.F16))
    assert half.weights_bytes <= 0.55 * wide.weights_bytes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "f15"}, "dtype f15 for the graph: floats are one of f32, f16, bf16"),
        ({"dtype": DType.I32}, "dtype i32 for the graph: floats are one of f32, f16, bf16"),
        ({"io_dtype": "i32"}, "dtype i32 for inputs and outputs: floats are one of f32, f16, bf16"),
        ({"dtypes": {"exq": DType.F16}}, "there is no 'exq' here .did you mean 'exp'"),
        ({"dtypes": {"node:exp_z": DType.F16}}, "there is no 'node:exp_z' here .did you mean 'node:exp_y'"),
    ],
)
def test_what_is_not_there_is_refused(options, words):
    graph = make_graph({"x": (2, 3)}, [("exp", "x", "y")], "y")
    with pytest.raises(UsageError, match=words):
        plan(graph, LAVAPIPE, Options(**options))


def test_words_of_the_option():
    assert parse_dtypes(None) == (None, {}, False)
    assert parse_dtypes(["f16,softmax=f32", "node:a=b=bf16"]) == (
        DType.F16,
        {"softmax": DType.F32, "node:a=b": DType.BF16},
        False,
    )
    assert parse_dtypes(["auto", "conv2d=f32"]) == (None, {"conv2d": DType.F32}, True)
    assert (parse_io_dtype(""), parse_io_dtype("bf16")) == (None, DType.BF16)
    with pytest.raises(UsageError, match="--io-dtype 'i32' is not one of f32, f16, bf16"):
        parse_io_dtype("i32")
    for text in ("f15", "conv2d=i32", "=f16", "conv2d", ""):
        with pytest.raises(UsageError, match="--dtype"):
            parse_dtypes([text])
