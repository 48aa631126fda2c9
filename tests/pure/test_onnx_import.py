"""The ONNX importer: what becomes several nodes, opset differences, names, constants, shapes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from required import required

required("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_kit import WINDOW, f32, i64, load, make, sliced, steps, tasks_here  # noqa: E402, F401

from vkconv.core import Array, DType  # noqa: E402
from vkconv.graph import TensorSpec  # noqa: E402
from vkconv.graph.onnx import sampling  # noqa: E402
from vkconv.graph.onnx.proto import infer_types, read_model  # noqa: E402
from vkconv.ops.spatial import resize  # noqa: E402

pytestmark = pytest.mark.usefixtures("tasks_here")


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


def test_types_of_nodes_in_any_order_are_known(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Range", ["width", "nine", "one"], ["y"]),
        helper.make_node("GlobalMaxPool", ["planes"], ["z"]),
        helper.make_node("Unsqueeze", ["x", "first"], ["planes"]),
        helper.make_node("Squeeze", ["widths"], ["width"]),
        helper.make_node("Slice", ["shape", "first", "second"], ["widths"]),
        helper.make_node("Shape", ["x"], ["shape"]),
    ]
    numbers = {"nine": np.array(9), "one": np.array(1), "first": i64(0), "second": i64(1)}
    graph = load(tmp_path, make(nodes, inputs={"x": [2, 3]}, outputs=("y", "z"), constants=numbers))
    attrs = {op: attrs for op, _, attrs in steps(graph)}
    assert attrs["range"]["dtype"] == "i64" and attrs["reduce"]["axes"] == (2,)


def test_what_a_body_reads_from_outside_may_be_made_later(tmp_path: Path) -> None:
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, ["a"], ["b"])], name, [], [helper.make_empty_tensor_value_info("b")]
        )
        for name, op in (("then", "Relu"), ("else", "Neg"))
    }
    nodes = [helper.make_node("If", ["c"], ["y"], **branches), helper.make_node("Exp", ["x"], ["a"])]
    graph = load(tmp_path, make(nodes, inputs={"x": [2], "c": (TensorProto.BOOL, [])}))
    assert [(node.op, node.inputs) for node in graph.nodes] == [("exp", ("x",)), ("if", ("c", "a", "a"))]


def test_metadata(tmp_path: Path) -> None:
    model = make([helper.make_node("Relu", ["x"], ["y"])], producer_name="me", producer_version="3", opset=14)
    helper.set_model_props(model, {"character": "a\nb\n"})
    assert load(tmp_path, model).metadata == {
        "character": "a\nb\n",
        "onnx.source": "model.onnx",
        "onnx.producer": "me 3",
        "onnx.opset": "14",
    }


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


def test_a_first_dimension_of_minus_one_may_be_sliced(tmp_path: Path) -> None:
    graph = load(tmp_path, sliced([-1, 3, 8, 8]))
    assert dict(graph.inputs) == {"x": TensorSpec(("x_d0", 3, 8, 8))}
    assert [node.op for node in graph.nodes] == ["slice", "reduce"]


def test_the_importer_knows_the_choices_of_resize() -> None:
    """Graphs know nothing of ops, so that each has the names: they must be the same, the default first."""
    names = {"coordinate": sampling.COORDINATES, "nearest": sampling.NEAREST, "policy": sampling.POLICIES}
    names["nearest"] += ("ceil_where_smaller",)  # of Resize 10, which has no attribute for it
    assert {name: resize._CHOICES[name] for name in names} == names
