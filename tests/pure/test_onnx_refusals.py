"""What the ONNX importer refuses, and how it says so."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from required import required

required("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_kit import I64_MAX, f32, i64, make, refused, tasks_here  # noqa: E402, F401

from vkconv.core import Array, ModelError  # noqa: E402

pytestmark = pytest.mark.usefixtures("tasks_here")


def test_everything_missing_is_listed_at_once(tmp_path: Path) -> None:
    branch = helper.make_graph([helper.make_node("Relu", ["x"], ["r"])], "b", [], [])
    nodes = [
        helper.make_node("Scan", ["x"], ["a"], name="s1", body=branch, num_scan_inputs=1),
        helper.make_node("Scan", ["a"], ["b"], name="s2", body=branch, num_scan_inputs=1),
        helper.make_node("If", ["flag"], ["c"], name="choice", then_branch=branch, else_branch=branch),
        helper.make_node("FusedConv", ["x", "w"], ["d"], name="fused", domain="com.example"),
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
        "Scan (s1, s2): its body takes 0 values and makes 0, the node has 1 and 1",
        "If (choice): its then_branch takes 0 values and makes 0, the node has 0 and 1",
        "FusedConv (fused): it belongs to the domain 'com.example'",
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
            "output_shape=(9, 9, 9) of a depth that the model leaves open",
        ),
        (
            helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[1] * 4),
            13,
            "4 spatial dimensions; vkconv has 1 and 2",
        ),
        (
            helper.make_node("ConvTranspose", ["x", "w5"], ["y"], output_shape=[9, 9]),
            13,
            "output_shape=(9, 9) for 3 spatial dimensions",
        ),
        (helper.make_node("Conv", ["v5", "open5"], ["y"]), 13, "tell the depth of the kernel"),
        (
            helper.make_node("ConvTranspose", ["v5", "w5"], ["y"], output_shape=[9, 4, 4], strides=[3, 1, 1]),
            13,
            "output_shape=(9, 4, 4): 9 planes, and the input reaches 6; up to 2 more can be",
        ),
        (
            helper.make_node(
                "Resize",
                ["x", "v", "f"],
                ["y"],
                coordinate_transformation_mode="tf_half_pixel_for_nn",
                nearest_mode="ceil",
            ),
            11,
            "mode='nearest' and nearest_mode='ceil'; vkconv has it with nearest, and floor or round_prefer_floor",
        ),
        (helper.make_node("Gemm", ["x", "m"], ["y"]), 13, "A has rank 4; it takes matrices, of rank 2"),
        (helper.make_node("Gemm", ["m", "v"], ["y"]), 13, "B has rank 1; it takes matrices, of rank 2"),
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
        (helper.make_node("QuantizeLinear", ["x", "v"], ["y"], block_size=2), 21, "scales of blocks"),
        (
            helper.make_node("QuantizeLinear", ["x", "v"], ["y"], output_dtype=TensorProto.INT32),
            21,
            "quantizes to i32; vkconv has integers of 16 bits and fewer",
        ),
        (helper.make_node("QuantizeLinear", ["x", "v"], ["y"], precision=TensorProto.FLOAT16), 23, "other than f32"),
        (helper.make_node("QuantizeLinear", ["on", "v"], ["y"]), 21, "input 0 is bool"),
        (helper.make_node("DequantizeLinear", ["x", "on"], ["y"]), 21, "input 1 is bool"),
        (helper.make_node("ConvInteger", ["x", "w"], ["y"], kernel_shape=[2, 2]), 13, "the weights have shape"),
        (helper.make_node("QLinearMatMul", ["x", "on", "x", "x", "v", "x", "v", "x"], ["y"]), 21, "input 1 is bool"),
    ],
)
def test_refusals_say_why(tmp_path: Path, node: Any, opset: int, text: str) -> None:
    constants = {"w": f32(4, 3, 3, 3), "w5": f32(4, 3, 3, 3, 3), "v": f32(3), "f": f32(4), "on": np.array(True)}
    constants |= {"m": f32(8, 3), "v5": f32(1, 4, 2, 3, 3)}
    nodes = [helper.make_node("Expand", ["x", "shape"], ["open"]), node]
    inputs = {"x": [1, 3, 8, 8], "shape": (TensorProto.INT64, ["k"]), "t": (TensorProto.BOOL, [])}
    inputs["open5"] = ["m", 4, "d", "h", "w"]
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
    ],
)
def test_models_that_contradict_themselves(
    tmp_path: Path, nodes: list[Any], constants: dict[str, Array], text: str
) -> None:
    assert text in refused(tmp_path, make(nodes, constants=constants), ModelError)


def test_element_types_that_onnx_does_not_define_are_told_by_place(tmp_path: Path) -> None:
    model = make(
        [helper.make_node("Cast", ["x"], ["y"], name="c", to=77), helper.make_node("Relu", ["w"], ["z"])],
        inputs={"x": (78, [2])},
        outputs=("y", "z"),
        constants={"w": f32(2)},
    )
    model.graph.initializer[0].data_type = 79
    text = refused(tmp_path, model)
    for place in ("Cast (c): it casts to", "input (x): it holds", "initializer (w): it holds"):
        assert f"{place} element type number" in text
