"""Each ONNX node that becomes one node of vkconv: its op, inputs and attributes, by opset."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from required import required

required("onnx")
from graph_kit import run_stages  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402
from onnx_kit import I64_MAX, WINDOW, f32, i64, load, make, steps, tasks_here  # noqa: E402, F401

from vkconv.core import Array  # noqa: E402

pytestmark = pytest.mark.usefixtures("tasks_here")

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
    ("Cast", ["x"], {"to": TensorProto.BFLOAT16}, 13, {}, ("cast", ("x",), {"to": "bf16"})),
    ("CastLike", ["x", "c"], {}, 15, {"c": np.array([2.0], np.float16)}, ("cast", ("x",), {"to": "f16"})),
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
            {
                "mode": "nearest",
                "coordinate": "asymmetric",
                "nearest": "ceil_where_smaller",
                "scales": (1.0, 1.0, 2.0, 2.0),
            },
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


def test_as_many_boxes_as_an_i64_can_say(tmp_path):
    """What torch writes for all of them."""
    boxes = np.array([[[0, 0, 4, 4], [0, 1, 4, 5], [10, 10, 14, 14]]], np.float32)
    scores = np.array([[[0.5, 0.9, 0.7]]], np.float32)
    constants = {"most": np.array([I64_MAX]), "overlap": np.array([0.5], np.float32)}
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap"], ["y"])
    made = make([node], inputs={"boxes": [1, 3, 4], "scores": [1, 1, 3]}, constants=constants)
    (y,) = run_stages(load(tmp_path, made), {"boxes": boxes, "scores": scores})
    np.testing.assert_array_equal(y, [[0, 0, 1], [0, 0, 2]])
