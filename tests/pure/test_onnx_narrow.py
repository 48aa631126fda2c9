"""Floats of 8 and 4 bits and integers of 4 and 2 through the importer, against ml_dtypes and ONNX's own functions."""

import numpy as np
import pytest
from required import required

required("onnx")
import ml_dtypes  # noqa: E402
import onnx  # noqa: E402
from graph_kit import evaluate  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_kit import load, make, refused, tasks_here  # noqa: E402, F401

from vkconv.core import UnsupportedError  # noqa: E402
from vkconv.graph.onnx import load_onnx_proto  # noqa: E402
from vkconv.graph.onnx.narrow import BY_NAME, ELEMENTS, NARROW  # noqa: E402
from vkconv.ops import OPS  # noqa: E402
from vkconv.plan.bound import bind  # noqa: E402

pytestmark = pytest.mark.usefixtures("tasks_here")

NUMBERS = {narrow.name: number for number, narrow in NARROW.items()}
FLOATS = [name for name, narrow in BY_NAME.items() if narrow.is_float and not narrow.is_scale]


def run(model, **arrays):
    graph = load_onnx_proto(model)
    return evaluate(bind(graph, OPS, {name: array.shape for name, array in arrays.items()}), arrays)[0]


def cast(number, to, dims, **attributes):
    """A model of one Cast."""
    node = helper.make_node("Cast", ["x"], ["y"], to=to, **attributes)
    return make([node], inputs={"x": (number, dims)}, opset=24 + ("round_mode" in attributes))


def every_edge(narrow):
    """All numbers of the type, what lies half way between two of them and beside that, what is beyond, and NaN."""
    values = np.unique(narrow.values()[np.isfinite(narrow.values())])
    halves = (values[1:] + values[:-1]) / 2
    around = np.concatenate([values, halves, np.nextafter(halves, np.inf), np.nextafter(halves, -np.inf)])
    more = [np.nan, np.inf, -np.inf, -0.0, 1e-30, -1e-30, 1e30, -1e30, *(values[-1] * np.array([1.01, -1.01, 1.5, 2]))]
    return np.concatenate([around, more]).astype(np.float32)


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_rounded_as_onnx_rounds_them(name, saturate):
    narrow = BY_NAME[name]
    x = every_edge(narrow)
    with np.errstate(invalid="ignore", over="ignore"):
        wanted = numpy_helper.saturate_cast(x, narrow.numpy) if saturate else x.astype(narrow.numpy)
    y = narrow.from_stored(run(cast(TensorProto.FLOAT, NUMBERS[name], x.shape, saturate=saturate), x=x))
    np.testing.assert_array_equal(y.astype(np.float32), wanted.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(y.astype(np.float32)), np.signbit(wanted.astype(np.float32)))


@pytest.mark.parametrize("name", [*FLOATS, "float8e8m0"])
def test_every_byte_is_its_number(name):
    narrow = BY_NAME[name]
    x = np.arange(8 if narrow.is_four_bits else 256, dtype=np.uint8)
    y = run(cast(NUMBERS[name], TensorProto.FLOAT, x.shape), x=x)
    np.testing.assert_array_equal(y, x.view(narrow.numpy).astype(np.float32))


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_exponents_are_rounded_as_asked(mode):
    x = np.array([0, 0.124, 0.125, 0.75, 1, 1.1, 1.5, 1.51, 3, 6.5, np.inf, np.nan, 3.4e38], np.float32)
    y = run(cast(TensorProto.FLOAT, TensorProto.FLOAT8E8M0, x.shape, round_mode=mode, saturate=1), x=x)
    np.testing.assert_array_equal(y, numpy_helper.to_float8e8m0(x, True, mode).view(np.uint8))


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2"])
def test_integers_keep_their_lowest_bits(name):
    x = np.arange(-19, 24, dtype=np.int32)
    y = run(cast(TensorProto.INT32, NUMBERS[name], x.shape), x=x)
    np.testing.assert_array_equal(y, x.astype(BY_NAME[name].numpy).astype(np.int8))


@pytest.mark.parametrize("kind", ["int4", "uint4", "int2", "uint2", "float4e2m1", "float8e4m3fn"])
def test_weights_in_a_file_of_their_own_and_in_the_model_are_the_same(tmp_path, kind):
    narrow = BY_NAME[kind]
    values = np.arange(-7, 8).astype(np.float32).reshape(3, 5).astype(narrow.numpy)
    node = helper.make_node("DequantizeLinear", ["w", "scale"], ["d"], axis=0, block_size=2)
    inside = make(
        [node, helper.make_node("Add", ["d", "x"], ["y"])],
        inputs={"x": [3, 5]},
        constants={"w": values, "scale": np.arange(1, 11, dtype=np.float32).reshape(2, 5)},
        opset=25,
    )
    path, saved = tmp_path / "outside.onnx", onnx.ModelProto()
    saved.CopyFrom(inside)
    onnx.save(saved, path, save_as_external_data=True, size_threshold=0, location="weights")
    wanted = values.astype(np.float32) * np.arange(1, 11, dtype=np.float32).reshape(2, 5)[[0, 0, 1]]
    x = np.zeros((3, 5), np.float32)
    np.testing.assert_array_equal(run(inside, x=x), wanted)
    outside = load_onnx_proto(onnx.load(path, load_external_data=False), str(path))
    np.testing.assert_array_equal(evaluate(bind(outside, OPS, {"x": (3, 5)}), {"x": x})[0], wanted)


def test_blocks_that_do_not_divide_the_axis_and_zero_points():
    x = np.random.default_rng(1).standard_normal((2, 7, 3)).astype(np.float32)
    scale, zero = np.full((2, 3, 3), 0.25, np.float32), np.arange(18, dtype=np.uint16).reshape(2, 3, 3)
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"], axis=-2, block_size=3)
    model = make([node], inputs={"x": [2, 7, 3]}, constants={"scale": scale, "zero": zero}, opset=25)
    wanted = np.clip(np.rint(x / 0.25) + zero[:, np.arange(7) // 3], 0, 65535)
    np.testing.assert_array_equal(run(model, x=x), wanted)


def test_what_is_no_number_of_blocks_is_refused(tmp_path):
    node = helper.make_node("DequantizeLinear", ["x", "scale"], ["y"], axis=0, block_size=4)
    scale = np.ones((3, 1), np.float32)
    model = make([node], inputs={"x": (TensorProto.INT8, [8, 1])}, constants={"scale": scale}, opset=25)
    assert "3 scales along axis 0, 8 elements in blocks of 4 have 2" in refused(tmp_path, model, UnsupportedError)


def test_inputs_and_outputs_are_told_and_arithmetic_is_refused(tmp_path):
    node = helper.make_node("Transpose", ["x"], ["y"])
    model = make([node], inputs={"x": (TensorProto.FLOAT8E5M2, [2, 3])}, opset=25)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT8E5M2
    graph = load(tmp_path, model)
    assert {name: text for name, text in graph.metadata.items() if name.startswith(ELEMENTS)} == {
        f"{ELEMENTS}x": "float8e5m2",
        f"{ELEMENTS}y": "float8e5m2",
    }
    model = make([helper.make_node("Where", ["c", "x", "x"], ["y"])], inputs={"c": (9, [2]), "x": (22, [2])}, opset=25)
    assert "input 1 is int4, of which vkconv computes nothing; cast it before" in refused(tmp_path, model)


def test_numpy_has_each_of_them():
    assert {str(narrow.numpy) for narrow in NARROW.values()} <= set(dir(ml_dtypes))
