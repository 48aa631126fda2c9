"""The ONNX importer: mapping of each op, opset differences, names, refusals, damaged files, and real models."""

import importlib.util
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from required import required

required("onnx")
import onnx  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from vkconv.core import Array, DType, ModelError, UnsupportedError, UsageError  # noqa: E402
from vkconv.graph import Graph, TensorSpec  # noqa: E402
from vkconv.graph.onnx import load_onnx, proto, sampling, worker  # noqa: E402
from vkconv.graph.onnx.proto import infer_types, read_model  # noqa: E402
from vkconv.graph.vkc import load_vkc, save_vkc  # noqa: E402
from vkconv.ops import resize  # noqa: E402

I64_MAX = 2**63 - 1


def f32(*shape: int) -> Array:
    return np.arange(1, 1 + math.prod(shape), dtype=np.float32).reshape(shape)


def i64(*values: int) -> Array:
    return np.array(values, np.int64)


def make(
    nodes: list[Any],
    *,
    inputs: dict[str, Any] | None = None,
    outputs: tuple[str, ...] = ("y",),
    constants: dict[str, Array] | None = None,
    opset: int = 13,
    **fields: Any,
) -> Any:
    """A model; ``inputs`` maps a name to a shape (float32) or to (elem_type, shape)."""
    infos = []
    for name, given in (inputs if inputs is not None else {"x": [2, 3, 8, 8]}).items():
        elem_type, shape = given if isinstance(given, tuple) else (TensorProto.FLOAT, given)
        infos.append(helper.make_tensor_value_info(name, elem_type, shape))
    graph = helper.make_graph(
        nodes,
        "g",
        infos,
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **fields)


def load(tmp_path: Path, model: Any) -> Graph:
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return load_onnx(path)


def steps(graph: Graph) -> list[tuple[str, tuple[str, ...], dict[str, Any]]]:
    return [(node.op, node.inputs, dict(node.attrs)) for node in graph.nodes]


def refused(tmp_path: Path, model: Any, error: type[ModelError] = UnsupportedError) -> str:
    with pytest.raises(error) as caught:
        load(tmp_path, model)
    assert type(caught.value) is error
    assert str(tmp_path / "model.onnx") in str(caught.value)
    return str(caught.value)


WINDOW = {"stride": (1, 1), "dilation": (1, 1), "padding": (0, 0, 0, 0), "auto_pad": "explicit"}
POOL = {"kind": "max", "kernel": (2, 3), "ceil_mode": False}

# (ONNX op, inputs, attributes, opset, constants, the one vkconv node it becomes: op, inputs, attributes)
ONE_TO_ONE: list[tuple[str, list[str], dict[str, Any], int, dict[str, Array], tuple[str, tuple[str, ...], Any]]] = [
    ("Relu", ["x"], {}, 7, {}, ("relu", ("x",), {})),
    ("LeakyRelu", ["x"], {"alpha": 0.5}, 13, {}, ("leaky_relu", ("x",), {"a": 0.5})),
    ("Elu", ["x"], {}, 13, {}, ("elu", ("x",), {"a": 1.0})),
    ("HardSigmoid", ["x"], {"beta": 0.25}, 13, {}, ("hard_sigmoid", ("x",), {"a": 0.2, "b": 0.25})),
    ("HardSwish", ["x"], {}, 14, {}, ("hard_swish", ("x",), {})),
    ("Gelu", ["x"], {}, 20, {}, ("gelu", ("x",), {})),
    ("Gelu", ["x"], {"approximate": "tanh"}, 20, {}, ("gelu_tanh", ("x",), {})),
    ("Clip", ["x"], {"min": 0.0, "max": 6.0}, 6 + 1, {}, ("clip", ("x",), {"a": 0.0, "b": 6.0})),
    ("Clip", ["x"], {}, 10, {}, ("clip", ("x",), {"a": -math.inf, "b": math.inf})),
    (
        "Clip",
        ["x", "", "hi"],
        {},
        11,
        {"hi": np.array(2.5, np.float32)},
        ("clip", ("x",), {"a": -math.inf, "b": 2.5}),
    ),
    ("Mul", ["x", "c"], {}, 14, {"c": f32(8)}, ("mul", ("x", "c"), {})),
    ("Mod", ["x", "c"], {"fmod": 1}, 13, {"c": f32(8)}, ("fmod", ("x", "c"), {})),
    ("PRelu", ["x", "c"], {}, 16, {"c": f32(3, 1, 1)}, ("prelu", ("x", "c"), {})),
    ("Less", ["x", "c"], {}, 13, {"c": f32(8)}, ("less", ("x", "c"), {})),
    ("Pow", ["x", "c"], {}, 13, {"c": np.array(2.0, np.float32)}, ("mul", ("x", "x"), {})),
    ("Pow", ["x", "c"], {}, 13, {"c": np.array([2.0], np.float32)}, ("pow", ("x", "c"), {})),
    ("Cast", ["x"], {"to": TensorProto.INT32}, 13, {}, ("cast", ("x",), {"to": "i32"})),
    ("Cast", ["x"], {"to": TensorProto.FLOAT16, "saturate": 1}, 19, {}, ("cast", ("x",), {"to": "f16"})),
    ("Identity", ["x"], {}, 13, {}, ("identity", ("x",), {})),
    ("Dropout", ["x"], {"ratio": 0.3}, 10, {}, ("identity", ("x",), {})),
    ("Dropout", ["x", "", "t"], {}, 13, {"t": np.array(False)}, ("identity", ("x",), {})),
    ("Conv", ["x", "w"], {}, 11, {"w": f32(4, 3, 3, 3)}, ("conv2d", ("x", "w"), {**WINDOW, "groups": 1})),
    (
        "Conv",
        ["x", "w", "b"],
        {"strides": [2, 1], "pads": [1, 2, 3, 4], "dilations": [1, 2], "group": 3, "kernel_shape": [3, 5]},
        22,
        {"w": f32(6, 1, 3, 5), "b": f32(6)},
        (
            "conv2d",
            ("x", "w", "b"),
            {"stride": (2, 1), "dilation": (1, 2), "padding": (1, 2, 3, 4), "auto_pad": "explicit", "groups": 3},
        ),
    ),
    (
        "Conv",
        ["x", "w"],
        {"auto_pad": "SAME_LOWER"},
        11,
        {"w": f32(4, 3, 3, 3)},
        ("conv2d", ("x", "w"), {**WINDOW, "auto_pad": "same_lower", "groups": 1}),
    ),
    (
        "ConvTranspose",
        ["x", "w", "b"],
        {"strides": [2, 3], "pads": [1, 2, 3, 4], "output_padding": [1, 2], "group": 3, "dilations": [1, 2]},
        11,
        {"w": f32(6, 1, 3, 5), "b": f32(3)},
        (
            "conv_transpose2d",
            ("x", "w", "b"),
            {
                "stride": (2, 3),
                "dilation": (1, 2),
                "padding": (1, 2, 3, 4),
                "auto_pad": "explicit",
                "output_padding": (1, 2),
                "groups": 3,
            },
        ),
    ),
    (
        "ConvTranspose",
        ["x", "w"],
        {"auto_pad": "SAME_UPPER", "output_shape": [9, 8], "pads": [7, 7, 7, 7]},
        11,
        {"w": f32(3, 4, 3, 3)},
        (
            "conv_transpose2d",
            ("x", "w"),
            {**WINDOW, "auto_pad": "same_upper", "output_shape": (9, 8), "groups": 1},
        ),
    ),
    ("MaxPool", ["x"], {"kernel_shape": [2, 3]}, 8, {}, ("pool2d", ("x",), {**WINDOW, **POOL})),
    (
        "AveragePool",
        ["x"],
        {"kernel_shape": [2, 3], "count_include_pad": 1, "ceil_mode": 1, "auto_pad": "VALID"},
        10,
        {},
        (
            "pool2d",
            ("x",),
            {**WINDOW, **POOL, "kind": "avg", "ceil_mode": True, "count_include_pad": True, "auto_pad": "valid"},
        ),
    ),
    ("GlobalMaxPool", ["x"], {}, 13, {}, ("reduce", ("x",), {"op": "max", "axes": (2, 3), "keepdims": True})),
    ("GlobalAveragePool", ["x"], {}, 13, {}, ("reduce", ("x",), {"op": "mean", "axes": (2, 3), "keepdims": True})),
    (
        "BatchNormalization",
        ["x", "s", "b", "m", "v"],
        {"epsilon": 0.5, "momentum": 0.9},
        9,
        {name: f32(3) for name in "sbmv"},
        ("batch_norm", ("x", "s", "b", "m", "v"), {"eps": 0.5}),
    ),
    (
        "LayerNormalization",
        ["x", "s"],
        {"axis": 2},
        17,
        {"s": f32(8, 8)},
        ("layer_norm", ("x", "s"), {"axis": 2, "eps": 1e-5}),
    ),
    (
        "BatchNormalization",
        ["x", "s", "b", "m", "v"],
        {"training_mode": 1, "momentum": 0.75},
        15,
        {name: f32(3) for name in "sbmv"},
        ("batch_norm_training", ("x", "s", "b", "m", "v"), {"eps": 1e-5, "momentum": 0.75}),
    ),
    (
        "InstanceNormalization",
        ["x", "s", "b"],
        {"epsilon": 0.5},
        13,
        {name: f32(3) for name in "sb"},
        ("instance_norm", ("x", "s", "b"), {"eps": 0.5}),
    ),
    (
        "GroupNormalization",
        ["x", "s", "b"],
        {"num_groups": 3},
        21,
        {name: f32(3) for name in "sb"},
        ("group_norm", ("x", "s", "b"), {"groups": 3, "eps": 1e-5}),
    ),
    (
        "RMSNormalization",
        ["x", "s"],
        {"axis": 3, "epsilon": 0.5},
        23,
        {"s": f32(8)},
        ("rms_norm", ("x", "s"), {"axis": 3, "eps": 0.5}),
    ),
    ("MatMul", ["x", "w"], {}, 13, {"w": f32(8, 5)}, ("matmul", ("x", "w"), {})),
    ("Reshape", ["x", "s"], {}, 13, {"s": i64(0, -1)}, ("reshape", ("x",), {"shape": (0, -1)})),
    (
        "Reshape",
        ["x", "s"],
        {"allowzero": 1},
        14,
        {"s": i64(0, 3)},
        ("reshape", ("x",), {"shape": (0, 3), "allowzero": True}),
    ),
    ("Flatten", ["x"], {}, 13, {}, ("flatten", ("x",), {"axis": 1})),
    ("Squeeze", ["x"], {"axes": [0, 2]}, 11, {}, ("squeeze", ("x",), {"axes": (0, 2)})),
    ("Squeeze", ["x", "a"], {}, 13, {"a": i64(0, 2)}, ("squeeze", ("x",), {"axes": (0, 2)})),
    ("Squeeze", ["x"], {}, 13, {}, ("squeeze", ("x",), {})),
    ("Unsqueeze", ["x"], {"axes": [-1]}, 12, {}, ("unsqueeze", ("x",), {"axes": (-1,)})),
    ("Unsqueeze", ["x", "a"], {}, 21, {"a": i64(-1)}, ("unsqueeze", ("x",), {"axes": (-1,)})),
    ("Transpose", ["x"], {"perm": [0, 2, 3, 1]}, 13, {}, ("transpose", ("x",), {"perm": (0, 2, 3, 1)})),
    ("Transpose", ["x"], {}, 13, {}, ("transpose", ("x",), {})),
    ("Concat", ["x", "c", "x"], {"axis": -1}, 13, {"c": f32(2, 3, 8, 1)}, ("concat", ("x", "c", "x"), {"axis": -1})),
    (
        "Slice",
        ["x"],
        {"starts": [1], "ends": [I64_MAX], "axes": [2]},
        9,
        {},
        ("slice", ("x",), {"starts": (1,), "ends": (I64_MAX,), "axes": (2,)}),
    ),
    (
        "Slice",
        ["x", "s", "e", "", "t"],
        {},
        10,
        {"s": i64(0, 1), "e": i64(5, 9), "t": np.array([1, -1], np.int32)},
        ("slice", ("x",), {"starts": (0, 1), "ends": (5, 9), "steps": (1, -1)}),
    ),
    ("Expand", ["x", "s"], {}, 13, {"s": i64(4, 2, 3, 8, 8)}, ("expand", ("x",), {"shape": (4, 2, 3, 8, 8)})),
    ("Tile", ["x", "r"], {}, 13, {"r": i64(1, 2, 1, 1)}, ("tile", ("x",), {"repeats": (1, 2, 1, 1)})),
    (
        "Pad",
        ["x"],
        {"pads": [0, 1] * 4, "value": 2.5},
        7,
        {},
        ("pad", ("x",), {"mode": "constant", "pads": (0, 1) * 4, "value": 2.5}),
    ),
    (
        "Pad",
        ["x", "p", "v", "a"],
        {"mode": "edge"},
        18,
        {"p": i64(1, 2), "v": np.array(2.5, np.float32), "a": i64(-1)},
        ("pad", ("x",), {"mode": "edge", "pads": (1, 2), "value": 2.5, "axes": (-1,)}),
    ),
    ("Gather", ["x", "i"], {"axis": 1}, 13, {"i": i64(2, 0)}, ("gather", ("x", "i"), {"axis": 1})),
    (
        "ReduceMean",
        ["x"],
        {"axes": [1], "keepdims": 0},
        13,
        {},
        ("reduce", ("x",), {"op": "mean", "axes": (1,), "keepdims": False}),
    ),
    (
        "ReduceMean",
        ["x", "a"],
        {},
        18,
        {"a": i64(1)},
        ("reduce", ("x",), {"op": "mean", "axes": (1,), "keepdims": True}),
    ),
    (
        "ReduceSum",
        ["x", "a"],
        {},
        13,
        {"a": i64(1)},
        ("reduce", ("x",), {"op": "sum", "axes": (1,), "keepdims": True}),
    ),
    ("ReduceLogSumExp", ["x"], {}, 13, {}, ("reduce", ("x",), {"op": "log_sum_exp", "keepdims": True})),
    ("ReduceMax", ["x"], {"noop_with_empty_axes": 1}, 18, {}, ("identity", ("x",), {})),
    ("ReduceLogSumExp", ["x"], {"noop_with_empty_axes": 1}, 18, {}, ("identity", ("x",), {})),
    ("ReduceLogSum", ["x"], {"noop_with_empty_axes": 1}, 18, {}, ("log", ("x",), {})),
    ("ReduceL2", ["x", "a"], {"noop_with_empty_axes": 1}, 18, {"a": i64()}, ("abs", ("x",), {})),
    ("ReduceSumSquare", ["x"], {"noop_with_empty_axes": 1}, 18, {}, ("mul", ("x", "x"), {})),
    (
        "ReduceMin",
        ["x"],
        {"axes": [-1, 1]},
        11,
        {},
        ("reduce", ("x",), {"op": "min", "axes": (-1, 1), "keepdims": True}),
    ),
    (
        "ReduceProd",
        ["x", "a"],
        {"keepdims": 0, "noop_with_empty_axes": 1},
        18,
        {"a": i64(-1, 0)},
        ("reduce", ("x",), {"op": "prod", "axes": (-1, 0), "keepdims": False}),
    ),
    (
        "ArgMax",
        ["x"],
        {},
        7,
        {},
        ("arg_reduce", ("x",), {"op": "max", "axis": 0, "keepdims": True, "select_last": False, "dtype": "i64"}),
    ),
    (
        "ArgMin",
        ["x"],
        {"axis": -2, "keepdims": 0, "select_last_index": 1},
        13,
        {},
        ("arg_reduce", ("x",), {"op": "min", "axis": -2, "keepdims": False, "select_last": True, "dtype": "i64"}),
    ),
    ("Softmax", ["x"], {}, 13, {}, ("softmax", ("x",), {"axis": -1, "log": False})),
    ("LogSoftmax", ["x"], {"axis": 1}, 13, {}, ("softmax", ("x",), {"axis": 1, "log": True})),
    ("Softmax", ["x"], {"axis": 3}, 11, {}, ("softmax", ("x",), {"axis": -1, "log": False})),
    ("Shape", ["x"], {}, 13, {}, ("shape", ("x",), {})),
    ("Shape", ["x"], {"start": 1, "end": -1}, 15, {}, ("shape", ("x",), {"start": 1, "end": -1})),
    ("Size", ["x"], {}, 13, {}, ("size", ("x",), {})),
    ("Where", ["c", "x", "x"], {}, 16, {"c": np.array([True, False] * 4)}, ("where", ("c", "x", "x"), {})),
    (
        "Upsample",
        ["x"],
        {"scales": [1.0, 1.0, 2.0, 1.5], "mode": "linear"},
        7,
        {},
        (
            "resize",
            ("x",),
            {"mode": "linear", "coordinate": "asymmetric", "nearest": "floor", "scales": (1.0, 1.0, 2.0, 1.5)},
        ),
    ),
    (
        "Resize",
        ["x", "s"],
        {},
        10,
        {"s": np.array([1, 1, 2, 2], np.float32)},
        (
            "resize",
            ("x",),
            {"mode": "nearest", "coordinate": "asymmetric", "nearest": "floor", "scales": (1.0, 1.0, 2.0, 2.0)},
        ),
    ),
    (
        "Resize",
        ["x", "", "", "z"],
        {"mode": "linear", "coordinate_transformation_mode": "align_corners", "cubic_coeff_a": -0.5},
        13,
        {"z": i64(2, 3, 16, 16)},
        (
            "resize",
            ("x",),
            {
                "mode": "linear",
                "coordinate": "align_corners",
                "nearest": "round_prefer_floor",
                "sizes": (2, 3, 16, 16),
            },
        ),
    ),
]


@pytest.mark.parametrize(
    ("op_type", "inputs", "attrs", "opset", "constants", "expected"),
    ONE_TO_ONE,
    ids=[f"{i}-{row[0]}-{row[3]}" for i, row in enumerate(ONE_TO_ONE)],
)
def test_one_node_becomes_one_node(
    tmp_path: Path,
    op_type: str,
    inputs: list[str],
    attrs: dict[str, Any],
    opset: int,
    constants: dict[str, Array],
    expected: tuple[str, tuple[str, ...], dict[str, Any]],
) -> None:
    node = helper.make_node(op_type, inputs, ["y"], name="it", **attrs)
    graph = load(tmp_path, make([node], constants=constants, opset=opset))
    [(op, given, found)] = steps(graph)
    assert (op, given, graph.nodes[0].name, graph.nodes[0].outputs) == (expected[0], expected[1], "it", ("y",))
    assert found == {k: pytest.approx(v) if isinstance(v, float) else v for k, v in expected[2].items()}
    # What became an attribute does not travel as a constant too.
    assert set(graph.constants) == set(given) & set(constants)
    for name in graph.constants:
        assert np.array_equal(graph.constants[name], constants[name])


def test_shape_arithmetic_stays_in_the_graph(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    graph = load(
        tmp_path, make(nodes, inputs={"x": ["n", 3, 4]}, constants={"zero": i64(0), "rest": i64(12)}, opset=13)
    )
    assert steps(graph) == [
        ("shape", ("x",), {}),
        ("gather", ("s", "zero"), {"axis": 0}),
        ("concat", ("n", "rest"), {"axis": 0}),
        ("reshape", ("x", "target"), {}),
    ]


def test_steering_operands_mix_constants_and_values(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["end"]),
        helper.make_node("Slice", ["x", "start", "end", "", "step"], ["y"]),
    ]
    graph = load(tmp_path, make(nodes, inputs={"x": ["n"]}, constants={"start": i64(1), "step": i64(2)}))
    assert steps(graph)[1] == ("slice", ("x", "", "end"), {"starts": (1,), "steps": (2,)})
    assert not graph.constants


def test_one_dimensional_transposed_convolution_is_one_of_height_one(tmp_path: Path) -> None:
    node = helper.make_node(
        "ConvTranspose", ["x", "w"], ["y"], strides=[2], pads=[1, 0], output_padding=[1], output_shape=[20]
    )
    graph = load(tmp_path, make([node], inputs={"x": [1, 3, "w"]}, constants={"w": f32(3, 4, 5)}))
    assert graph.constants["w/2d"].shape == (3, 4, 1, 5)
    assert steps(graph)[1] == (
        "conv_transpose2d",
        ("y/unsqueeze", "w/2d"),
        {
            "stride": (1, 2),
            "dilation": (1, 1),
            "padding": (0, 0, 0, 0),
            "auto_pad": "explicit",
            "output_padding": (0, 1),
            "output_shape": (1, 20),
            "groups": 1,
        },
    )


def test_one_dimensional_windows_are_images_of_height_one(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="c1", strides=[2], pads=[1, 3], dilations=[2]),
        helper.make_node("MaxPool", ["c"], ["y"], name="p1", kernel_shape=[3], strides=[2]),
    ]
    w = f32(4, 3, 5)
    graph = load(tmp_path, make(nodes, inputs={"x": [1, 3, "w"]}, constants={"w": w}))
    assert steps(graph) == [
        ("unsqueeze", ("x",), {"axes": (2,)}),
        (
            "conv2d",
            ("c/unsqueeze", "w/2d"),
            {
                "stride": (1, 2),
                "dilation": (1, 2),
                "padding": (0, 1, 0, 3),
                "auto_pad": "explicit",
                "groups": 1,
            },
        ),
        ("squeeze", ("c/conv2d",), {"axes": (2,)}),
        ("unsqueeze", ("c",), {"axes": (2,)}),
        ("pool2d", ("y/unsqueeze",), {**WINDOW, "stride": (1, 2), "kind": "max", "kernel": (1, 3), "ceil_mode": False}),
        ("squeeze", ("y/pool2d",), {"axes": (2,)}),
    ]
    assert np.array_equal(graph.constants["w/2d"], w[:, :, None, :])
    assert [n.name for n in graph.nodes][:3] == ["c1/unsqueeze", "c1/conv2d", "c1"]


def test_softmax_before_opset_13_works_on_a_matrix(tmp_path: Path) -> None:
    graph = load(tmp_path, make([helper.make_node("Softmax", ["x"], ["y"])], opset=12))
    assert steps(graph) == [
        ("flatten", ("x",), {"axis": 1}),
        ("softmax", ("y/flatten",), {"axis": 1, "log": False}),
        ("shape", ("x",), {}),
        ("reshape", ("y/softmax", "y/shape"), {"allowzero": True}),
    ]


@pytest.mark.parametrize(
    ("attrs", "c", "expected"),
    [
        ({}, f32(5), [("matmul", ("x", "w", "c"), {"trans_a": False, "trans_b": False})]),
        (
            {"transB": 1, "alpha": 0.5, "beta": 2.0},
            f32(1, 8),
            [("matmul", ("x", "w", "y/const"), {"trans_a": False, "trans_b": True, "alpha": 0.5, "beta": 2.0})],
        ),
        ({"beta": 0.0}, f32(5), [("matmul", ("x", "w"), {"trans_a": False, "trans_b": False})]),
        (
            {},
            f32(1),
            [("matmul", ("x", "w"), {"trans_a": False, "trans_b": False}), ("add", ("y/matmul", "c"), {})],
        ),
        (
            {"beta": 2.0},
            f32(8, 1),
            [
                ("mul", ("c", "y/const"), {}),
                ("matmul", ("x", "w"), {"trans_a": False, "trans_b": False}),
                ("add", ("y/matmul", "y/mul"), {}),
            ],
        ),
    ],
)
def test_gemm(tmp_path: Path, attrs: dict[str, Any], c: Array, expected: list[Any]) -> None:
    w = f32(8, 5)
    graph = load(
        tmp_path,
        make(
            [helper.make_node("Gemm", ["x", "w", "c"], ["y"], **attrs)],
            inputs={"x": [8, 8 if not attrs.get("transB") else 5]},
            constants={"w": w, "c": c},
        ),
    )
    assert steps(graph) == expected


def test_matmul_of_vectors(tmp_path: Path) -> None:
    graph = load(tmp_path, make([helper.make_node("MatMul", ["a", "b"], ["y"])], inputs={"a": [4], "b": [4]}))
    assert steps(graph) == [
        ("unsqueeze", ("a",), {"axes": (0,)}),
        ("unsqueeze", ("b",), {"axes": (1,)}),
        ("matmul", ("y/unsqueeze", "y/unsqueeze_2"), {}),
        ("squeeze", ("y/matmul",), {"axes": (-2, -1)}),
    ]


def test_any_number_of_operands(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Max", ["x", "x", "c"], ["a"]),
        helper.make_node("Sum", ["a"], ["b"]),
        helper.make_node("Mean", ["b", "c", "x"], ["y"]),
    ]
    graph = load(tmp_path, make(nodes, constants={"c": f32(8)}))
    assert steps(graph) == [
        ("maximum", ("x", "x"), {}),
        ("maximum", ("a/maximum", "c"), {}),
        ("identity", ("a",), {}),
        ("add", ("b", "c"), {}),
        ("add", ("y/add", "x"), {}),
        ("div", ("y/add_2", "y/const"), {}),
    ]
    assert graph.constants["y/const"] == np.float32(3)


def test_clip_bounds_that_are_computed(tmp_path: Path) -> None:
    nodes = [helper.make_node("Clip", ["x", "lo", "hi"], ["y"])]
    inputs: dict[str, Any] = {"x": [4], "lo": [], "hi": []}
    assert steps(load(tmp_path, make(nodes, inputs=inputs))) == [
        ("maximum", ("x", "lo"), {}),
        ("minimum", ("y/maximum", "hi"), {}),
    ]


def test_clip_of_integers_is_not_a_float_function(tmp_path: Path) -> None:
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Clip", ["s", "lo"], ["y"])]
    graph = load(tmp_path, make(nodes, constants={"lo": np.array(1, np.int64)}))
    assert steps(graph)[1:] == [("maximum", ("s", "lo"), {}), ("identity", ("y/maximum",), {})]


def test_an_exponent_takes_the_type_of_its_base(tmp_path: Path) -> None:
    nodes = [helper.make_node("Pow", ["x", "e"], ["y"])]
    graph = load(tmp_path, make(nodes, constants={"e": i64(3)}))
    assert steps(graph) == [("pow", ("x", "y/const"), {})]
    assert graph.constants["y/const"].dtype == np.float32 and graph.constants["y/const"].tolist() == [3.0]


def test_split_counts_its_outputs(tmp_path: Path) -> None:
    nodes = [helper.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2)]
    graph = load(tmp_path, make(nodes, outputs=("a", "b"), opset=18))
    assert steps(graph) == [("split", ("x",), {"axis": 1, "num_outputs": 2})]
    assert graph.nodes[0].outputs == ("a", "b")
    nodes = [helper.make_node("Split", ["x"], ["a", "b"], axis=1, split=[1, 2])]
    graph = load(tmp_path, make(nodes, outputs=("a", "b"), opset=11))
    assert steps(graph) == [("split", ("x",), {"axis": 1, "num_outputs": 2, "sizes": (1, 2)})]


def test_constants_of_every_kind(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["a"], value=numpy_helper.from_array(f32(2))),
        helper.make_node("Constant", [], ["b"], value_float=2.5),
        helper.make_node("Constant", [], ["c"], value_ints=[3, 4]),
        helper.make_node("Constant", [], ["d"], value_floats=[3.5]),
        helper.make_node("Constant", [], ["e"], value_int=7),
        helper.make_node("ConstantOfShape", ["c"], ["y"], value=numpy_helper.from_array(i64(5))),
        helper.make_node("Range", ["e", "n", "e"], ["z"]),
    ]
    inputs: dict[str, Any] = {"n": (TensorProto.INT64, [])}
    graph = load(tmp_path, make(nodes, inputs=inputs, outputs=("a", "b", "d", "y", "z")))
    assert steps(graph) == [
        ("constant_of_shape", (), {"shape": (3, 4), "value": 5.0, "dtype": "i64"}),
        ("range", ("e", "n", "e"), {"dtype": "i64"}),
    ]
    found = {name: (array.dtype.name, array.tolist()) for name, array in graph.constants.items()}
    assert found == {
        "a": ("float32", [1.0, 2.0]),
        "b": ("float32", 2.5),
        "d": ("float32", [3.5]),
        "e": ("int64", 7),
    }


def test_identity_of_a_constant_is_that_constant(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["w"], ["v"]), helper.make_node("Conv", ["x", "v"], ["y"])]
    graph = load(tmp_path, make(nodes, constants={"w": f32(4, 3, 1, 1)}))
    assert [(n.op, n.inputs) for n in graph.nodes] == [("conv2d", ("x", "w"))]
    assert list(graph.constants) == ["w"]


def test_open_dimensions_become_names(tmp_path: Path) -> None:
    model = make(
        [helper.make_node("Relu", ["x"], ["y"])],
        inputs={
            "x": ["batch", None, "?", 3],
            "in.2": ["batch", "past+1", "past-1", "1"],
            "k": (TensorProto.INT64, []),
        },
    )
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_value = -1
    graph = load(tmp_path, model)
    assert dict(graph.inputs) == {
        "x": TensorSpec(("batch", "x_d1", "x_d2", "x_d3")),
        "in.2": TensorSpec(("batch", "past_1", "past_1_2", "d_1")),
        "k": TensorSpec((), DType.I64),
    }
    assert graph.symbols == ("batch", "x_d1", "x_d2", "x_d3", "past_1", "past_1_2", "d_1")


def test_initializers_among_the_inputs_are_constants(tmp_path: Path) -> None:
    model = make(
        [helper.make_node("Add", ["x", "w"], ["y"])], inputs={"x": [2], "w": [2]}, constants={"w": f32(2)}, ir_version=3
    )
    graph = load(tmp_path, model)
    assert list(graph.inputs) == ["x"] and list(graph.constants) == ["w"]


def test_nodes_get_names_and_an_order(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Exp", ["b"], ["y"], name="same"),
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"], name="same"),
    ]
    graph = load(tmp_path, make(nodes))
    assert [(n.name, n.op) for n in graph.nodes] == [("Relu_0", "relu"), ("same", "tanh"), ("same_2", "exp")]


def test_metadata(tmp_path: Path) -> None:
    model = make([helper.make_node("Relu", ["x"], ["y"])], producer_name="me", producer_version="3", opset=14)
    helper.set_model_props(model, {"character": "a\nb\n"})
    assert load(tmp_path, model).metadata == {
        "character": "a\nb\n",
        "onnx.source": "model.onnx",
        "onnx.producer": "me 3",
        "onnx.opset": "14",
    }


def test_everything_missing_is_listed_at_once(tmp_path: Path) -> None:
    branch = helper.make_graph([helper.make_node("Relu", ["x"], ["r"])], "b", [], [])
    nodes = [
        helper.make_node("QLinearConv", ["x", "w"], ["a"], name="q1"),
        helper.make_node("QLinearConv", ["a", "w"], ["b"], name="q2"),
        helper.make_node("If", ["flag"], ["c"], name="choice", then_branch=branch, else_branch=branch),
        helper.make_node("FusedConv", ["x", "w"], ["d"], name="fused", domain="com.microsoft"),
        helper.make_node("MaxPool", ["x"], ["e", "indices"], name="pool", kernel_shape=[2, 2, 2]),
        helper.make_node("Resize", ["x", "", "scales"], ["f"], name="area", mode="area"),
        helper.make_node("Relu", ["x"], ["y"], name="fine"),
        helper.make_node("Relux", ["x"], ["z"], name="typo"),
        helper.make_node("Cast", ["x"], ["h"], name="wide", to=TensorProto.DOUBLE),
        helper.make_node("Relu", ["x"], ["j"], name="odd", slope=1.0),
    ]
    model = make(
        nodes,
        inputs={"x": [1, 3, 8, 8], "flag": (TensorProto.BOOL, []), "double": (TensorProto.DOUBLE, [1])},
        outputs=("y", "indices"),
        constants={"w": f32(3, 3, 2, 2), "wide_w": np.zeros(1), "scales": f32(4)},
    )
    model.graph.input.append(helper.make_tensor_sequence_value_info("seq", TensorProto.FLOAT, [1]))
    model.graph.input.append(helper.make_tensor_value_info("rankless", TensorProto.FLOAT, None))
    text = refused(tmp_path, model)
    for line in (
        "13 places",
        "QLinearConv (q1, q2): quantized arithmetic",
        "If (choice): control flow",
        "FusedConv (fused): it belongs to the domain 'com.microsoft'",
        "MaxPool (pool): its output of indices is used",
        "Resize (area): mode='area'",
        "Relux (typo): vkconv has no such op (did you mean 'Relu'?)",
        "Cast (wide): it casts to double",
        "Relu (odd): attribute 'slope' is not one of ONNX opset 13",
        "initializer (wide_w): it holds double",
        "input (double): it holds double",
        "input (seq): its type is sequence",
        "input (rankless): its rank is open",
        "vkconv ops",
    ):
        assert line in text, text
    assert "fine" not in text


@pytest.mark.parametrize(
    ("node", "opset", "text"),
    [
        (
            helper.make_node("ConvTranspose", ["x", "w5"], ["y"], output_shape=[9, 9, 9]),
            13,
            "auto_pad or output_shape with 3 spatial dimensions",
        ),
        (
            helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[1] * 4),
            13,
            "4 spatial dimensions; vkconv has 1 and 2",
        ),
        (
            helper.make_node("Conv", ["x", "w5"], ["y"], auto_pad="SAME_UPPER"),
            13,
            "auto_pad='same_upper' with 3 spatial",
        ),
        (helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1]), 13, "pads=(1, 1) for 2 spatial dimensions"),
        (helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[5, 5]), 13, "the weights have shape (4, 3, 3, 3)"),
        (helper.make_node("Conv", ["x", "w"], ["y"], auto_pad="SAME"), 13, "auto_pad='SAME'"),
        (
            helper.make_node("ConvTranspose", ["x", "w"], ["y"], output_shape=[1, 4, 9, 9]),
            13,
            "output_shape=(1, 4, 9, 9) for 2 spatial dimensions",
        ),
        (
            helper.make_node("BatchNormalization", ["x"] + ["v"] * 4, ["h", "", "", "y"]),
            9,
            "its outputs saved_mean or saved_var are used",
        ),
        (helper.make_node("BatchNormalization", ["x"] + ["v"] * 4, ["y"], spatial=0), 7, "spatial=0"),
        (helper.make_node("Dropout", ["x", "", "on"], ["y"]), 13, "training_mode is constantly true"),
        (
            helper.make_node("BatchNormalization", ["x"] + ["v"] * 4, ["h", "y"]),
            15,
            "its running statistics are used without training_mode=1",
        ),
        (helper.make_node("LayerNormalization", ["x", "v"], ["y"], stash_type=11), 17, "stash_type=11"),
        (helper.make_node("LpNormalization", ["x"], ["y"], p=3), 13, "p=3; ONNX has 1 and 2"),
        (helper.make_node("Pad", ["x", "shape"], ["y"], mode="mirror"), 19, "mode='mirror'"),
        (helper.make_node("Resize", ["x", "", "f"], ["y"], mode="area"), 18, "mode='area'"),
        (
            helper.make_node("Resize", ["x", "", "f"], ["y"], coordinate_transformation_mode="middle"),
            13,
            "coordinate_transformation_mode='middle'",
        ),
        (helper.make_node("HardSwish", ["x"], ["y"]), 13, "opset 13 has no such op"),
        (helper.make_node("Clip", ["x", "v"], ["y"]), 13, "input 1 must be one number, it has shape 3"),
        (
            helper.make_node("ReduceSum", ["open", "shape"], ["y"], noop_with_empty_axes=1),
            18,
            "the rank of input 0 ('open') cannot be told",
        ),
        (helper.make_node("Constant", [], ["y"], value_string="a"), 13, "it holds value_string"),
        (
            helper.make_node("ConstantOfShape", ["shape"], ["y"], value=numpy_helper.from_array(i64(I64_MAX))),
            13,
            "9223372036854775807 is not exact as a float",
        ),
        (helper.make_node("Relu", ["x"], ["y"]), 5, "version 5 is too old, the oldest is 6"),
        (helper.make_node("GlobalMaxPool", ["v"], ["y"]), 13, "its input has rank 1"),
        (helper.make_node("GlobalAveragePool", ["open"], ["y"]), 13, "the rank of input 0 ('open') cannot be told"),
        (helper.make_node("QLinearMatMul", ["x"] * 8, ["y"]), 13, "quantized arithmetic"),
    ],
)
def test_refusals_say_why(tmp_path: Path, node: Any, opset: int, text: str) -> None:
    constants = {"w": f32(4, 3, 3, 3), "w5": f32(4, 3, 3, 3, 3), "v": f32(3), "f": f32(4), "on": np.array(True)}
    nodes = [helper.make_node("Expand", ["x", "shape"], ["open"]), node]
    inputs = {"x": [1, 3, 8, 8], "shape": (TensorProto.INT64, ["k"]), "t": (TensorProto.BOOL, [])}
    assert text in refused(tmp_path, make(nodes, inputs=inputs, constants=constants, opset=opset))


@pytest.mark.parametrize(
    ("nodes", "constants", "text"),
    [
        (
            [helper.make_node("Add", ["x", "b"], ["a"], name="p"), helper.make_node("Exp", ["a"], ["b"], name="q")],
            {},
            "in a circle, among them Add node 'p', Exp node 'q'",
        ),
        ([helper.make_node("Relu", ["z1"], ["y"], name="p")], {"z2": f32(1)}, "reads 'z1', which nothing in the model"),
        ([helper.make_node("Relu", ["x"], ["y"])] * 2, {}, "writes 'y'"),
        ([helper.make_node("Relu", ["x"], ["w"], name="p")], {"w": f32(1)}, "'w', which is an input or initializer"),
        ([helper.make_node("Relu", ["x"], ["q"])], {}, "output 'y' is made by no node"),
        (
            [helper.make_node("Add", ["x"], ["y"], name="p")],
            {},
            "Add node 'p' has 1 inputs; ONNX opset 13 wants 2 to 2",
        ),
        ([helper.make_node("Add", ["x", ""], ["y"], name="p")], {}, "leaves a required input or output empty"),
        ([helper.make_node("MaxPool", ["x"], ["y"], name="p")], {}, "lacks the attribute kernel_shape"),
        (
            [helper.make_node("Concat", ["x"], ["y"], axis=1.0)],
            {},
            "attribute 'axis' is 1.0, ONNX wants int",
        ),
        (
            [helper.make_node("Transpose", ["x"], ["y"], perm=[0.5])],
            {},
            "attribute 'perm' is (0.5,), ONNX wants integers",
        ),
        ([helper.make_node("Reshape", ["x", "s"], ["y"])], {"s": f32(1)}, "holds float32, not integers"),
        ([helper.make_node("Cast", ["x"], ["y"], to=77)], {}, "element type number 77"),
    ],
)
def test_models_that_contradict_themselves(
    tmp_path: Path, nodes: list[Any], constants: dict[str, Array], text: str
) -> None:
    assert text in refused(tmp_path, make(nodes, constants=constants), ModelError)


def test_tensors_that_do_not_hold_what_they_say(tmp_path: Path) -> None:
    model = make([helper.make_node("Add", ["x", "w"], ["y"])], constants={"w": f32(4)})
    model.graph.initializer[0].dims[0] = 5
    assert "initializer 'w' of shape (5,) does not hold what it declares" in refused(tmp_path, model, ModelError)
    model.graph.initializer[0].dims[0] = -4
    assert "negative dimension" in refused(tmp_path, model, ModelError)
    model.graph.initializer.append(numpy_helper.from_array(f32(1), "w"))
    model.graph.initializer[0].dims[0] = 4
    assert "two initializers are named 'w'" in refused(tmp_path, model, ModelError)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(ModelError, match="no such file"):
        load_onnx(path)
    with pytest.raises(ModelError, match="directory"):
        load_onnx(tmp_path)
    for data, text in (
        (b"", "the file is empty"),
        (b"hello, this is no protobuf", "not an ONNX model|no ONNX graph"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "no ONNX graph"),
    ):
        path.write_bytes(data)
        with pytest.raises(ModelError, match=text):
            load_onnx(path)
    model = make([helper.make_node("Relu", ["x"], ["y"])])
    model.graph.input.append(helper.make_tensor_value_info("", TensorProto.FLOAT, [1]))
    assert "empty name" in refused(tmp_path, model, ModelError)
    del model.opset_import[:]
    assert "which opset" in refused(tmp_path, model, ModelError)


def damageable() -> bytes:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Clip", ["c", "lo", "hi"], ["k"]),
        helper.make_node("Reshape", ["k", "shape"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"], axis=-1),
    ]
    zero, six = (np.array(v, np.float32) for v in (0, 6))
    constants = {"w": f32(2, 3, 3, 3), "lo": zero, "hi": six, "shape": i64(0, -1)}
    return bytes(make(nodes, inputs={"x": ["n", 3, 8, 8]}, constants=constants).SerializeToString())


def test_truncated_models_are_model_errors(tmp_path: Path) -> None:
    whole = damageable()
    path = tmp_path / "model.onnx"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError):
            load_onnx(path)


def test_damaged_models_are_model_errors_or_other_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A process for each would take minutes; with this seed ONNX itself lives on.
    monkeypatch.setattr(proto, "run_apart", lambda task, model: worker.TASKS[task](model))
    whole = damageable()
    path = tmp_path / "model.onnx"
    random = np.random.default_rng(7)
    outcomes = Counter[str]()
    for _ in range(600):
        data = bytearray(whole)
        for at in random.integers(0, len(whole), random.integers(1, 4)):
            data[at] = random.integers(256)
        path.write_bytes(data)
        try:
            load_onnx(path)
            outcomes["read"] += 1
        except ModelError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 40 and len(outcomes) == 2, outcomes


def external(tmp_path: Path, **entries: str) -> Any:
    """A model whose one weight lies in weights.bin at byte 8."""
    w = f32(4)
    (tmp_path / "weights.bin").write_bytes(b"\xff" * 8 + w.tobytes())
    model = make([helper.make_node("Add", ["x", "w"], ["y"])], constants={"w": w})
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in ({"location": "weights.bin", "offset": "8", "length": "16"} | entries).items():
        tensor.external_data.add(key=key, value=value)
    return model


def test_external_data(tmp_path: Path) -> None:
    assert load(tmp_path, external(tmp_path)).constants["w"].tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"location": "../weights.bin"}, "outside the model's folder"),
        ({"location": "/etc/hostname"}, "outside the model's folder"),
        ({"location": ""}, "outside the model's folder"),
        ({"location": "w" * 300}, "cannot be read (File name too long)"),
        ({"location": "absent.bin"}, "absent.bin: no such file; check the path; it belongs beside the model"),
        ({"offset": "12"}, "bytes 12 to 28 wanted"),
        ({"offset": "-4"}, "bytes -4 to 12 wanted"),
        ({"length": "15"}, "15 external bytes declared, shape (4,) of f32 needs 16"),
        ({"offset": "many"}, "not a number"),
    ],
)
def test_bad_external_data(tmp_path: Path, entries: dict[str, str], text: str) -> None:
    assert text in refused(tmp_path, external(tmp_path, **entries), ModelError)


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    model = external(tmp_path)
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "weights.bin").symlink_to(tmp_path / "weights.bin")
    (inner / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="outside the model's folder"):
        load_onnx(inner / "model.onnx")


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    model = make([helper.make_node("Twice", ["x"], ["y"], domain="mine")])
    model.opset_import.append(helper.make_opsetid("mine", 1))
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    model.functions.append(helper.make_function("mine", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 13)]))
    assert steps(load(tmp_path, model)) == [("add", ("x", "x"), {})]


def test_without_the_onnx_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match="pip install"):
        load_onnx(tmp_path / "model.onnx")


def test_ranks_behind_computed_shapes_are_known(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Mul", ["s", "s"], ["t"]),
        helper.make_node("Reshape", ["x", "t"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Shape", ["b"], ["u"]),
        helper.make_node("ConstantOfShape", ["u"], ["y"]),
    ]
    path = tmp_path / "m.onnx"
    path.write_bytes(make(nodes, inputs={"x": [1, "n", 3]}).SerializeToString())
    types = infer_types(read_model(path))
    assert {name: types[name].rank for name in "xabuy"} == {"x": 3, "a": 3, "b": 3, "u": 1, "y": 3}


def rapidocr(name: str) -> Path:
    required("rapidocr_onnxruntime")
    package = importlib.util.find_spec("rapidocr_onnxruntime")
    assert package is not None and package.submodule_search_locations
    return Path(package.submodule_search_locations[0]) / "models" / name


def test_the_text_recogniser(tmp_path: Path) -> None:
    graph = load_onnx(rapidocr("ch_PP-OCRv4_rec_infer.onnx"))
    assert [(name, str(spec.dtype), len(spec.shape), spec.shape[1]) for name, spec in graph.inputs.items()] == [
        ("x", "f32", 4, 3)
    ]
    assert len(graph.symbols) == 3
    counts = Counter(node.op for node in graph.nodes)
    assert (counts["conv2d"], counts["matmul"], counts["softmax"], counts["batch_norm"]) == (38, 13, 3, 6)
    assert counts["pool2d"] == 1 and counts["flatten"] == 0
    assert len(graph.metadata["character"].split("\n")) in (6623, 6624)
    save_vkc(graph, tmp_path / "rec.vkc")
    again = load_vkc(tmp_path / "rec.vkc")
    assert (again.nodes, again.outputs, dict(again.inputs)) == (graph.nodes, graph.outputs, dict(graph.inputs))
    for name, array in graph.constants.items():
        assert np.array_equal(again.constants[name], array)
    save_vkc(again, tmp_path / "again.vkc")
    assert (tmp_path / "rec.vkc").read_bytes() == (tmp_path / "again.vkc").read_bytes()


def test_the_text_direction_classifier() -> None:
    graph = load_onnx(rapidocr("ch_ppocr_mobile_v2.0_cls_infer.onnx"))
    counts = Counter(node.op for node in graph.nodes)
    assert (counts["conv2d"], counts["hard_sigmoid"], counts["reduce"], counts["pool2d"]) == (53, 9, 10, 1)


def test_the_text_detector() -> None:
    graph = load_onnx(rapidocr("ch_PP-OCRv4_det_infer.onnx"))
    counts = Counter(node.op for node in graph.nodes)
    assert (counts["conv2d"], counts["conv_transpose2d"], counts["resize"]) == (62, 2, 6)


def sliced(shape: list[int], *before: Any, **constants: Array) -> Any:
    """A model whose rule asks for the rank behind a Slice along the first dimension."""
    nodes = [
        *before,
        helper.make_node("Slice", ["p" if before else "x", "b", "e", "a"], ["s"]),
        helper.make_node("GlobalAveragePool", ["s"], ["y"]),
    ]
    return make(nodes, inputs={"x": shape}, constants={"b": i64(0), "e": i64(1), "a": i64(0), **constants})


def test_a_first_dimension_of_minus_one_may_be_sliced(tmp_path: Path) -> None:
    graph = load(tmp_path, sliced([-1, 3, 8, 8]))
    assert dict(graph.inputs) == {"x": TensorSpec(("x_d0", 3, 8, 8))}
    assert [node.op for node in graph.nodes] == ["slice", "reduce"]


def test_a_model_that_onnx_aborts_on_is_refused(tmp_path: Path) -> None:
    crops_all = sliced([1, 3, 8, 8], helper.make_node("Pad", ["x", "pads"], ["p"]), pads=i64(-3, 0, 0, 0, 0, 0, 0, 0))
    text = refused(tmp_path, crops_all, ModelError)
    assert "onnx broke down when asked to infer it (SIGABRT); the file may be damaged" in text


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import time; time.sleep(60)", r"onnx did not finish to infer it within 0.5 s"),
        ("raise SystemError('lost')", r"onnx broke down when asked to infer it \(exit code 1, SystemError: lost\)"),
        ("import os; os.kill(os.getpid(), 11)", r"\(SIGSEGV\)"),
    ],
    ids=["hangs", "raises", "crashes"],
)
def test_whatever_becomes_of_the_process_that_infers_it_is_a_model_error(
    program: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "worker.py").write_text(program)
    monkeypatch.setattr(worker, "__file__", str(tmp_path / "worker.py"))
    monkeypatch.setattr(proto, "_TIMEOUT_S", 0.5)
    with pytest.raises(ModelError, match=message):
        load(tmp_path, sliced([1, 3, 8, 8]))


def test_functions_that_call_themselves_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proto, "_TIMEOUT_S", 2)
    model = make([helper.make_node("f", ["x"], ["y"], domain="own")])
    model.opset_import.append(helper.make_opsetid("own", 1))
    body = [helper.make_node("f", ["x"], ["y"], domain="own")]
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("own", 1)]
    model.functions.append(helper.make_function("own", "f", ["x"], ["y"], body, imports))
    assert "local functions cannot be inlined" in refused(tmp_path, model, ModelError)


def test_the_importer_knows_the_choices_of_resize() -> None:
    """Graphs know nothing of ops, so that each has the names: they must be the same, the default first."""
    names = {"coordinate": sampling.COORDINATES, "nearest": sampling.NEAREST, "policy": sampling.POLICIES}
    assert {name: resize._CHOICES[name] for name in names} == names
