"""The TensorFlow Lite importer: each rule's graph, by the ops' references, against LiteRT's plain kernels."""

import dataclasses

import numpy as np
import pytest
from required import required

required("tflite", "ai_edge_litert")
from tflite_kit import T, const, litert, make  # noqa: E402

from vkconv.check.reference import reference_outputs  # noqa: E402
from vkconv.core import ModelError, UnsupportedError  # noqa: E402
from vkconv.device import load_device  # noqa: E402
from vkconv.graph import load_model  # noqa: E402
from vkconv.plan.planner import plan  # noqa: E402

RNG = np.random.default_rng(5)
I32 = np.int32


def f(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values):
    return const(np.array(values, I32))


X = T((2, 7, 5, 6))
X3 = T((2, 7, 5))


def one(op, *operands, out="f32", options=(), outputs=1, x=X):
    """A model of one operator on x, the operands behind it, and the outputs' shapes left to LiteRT."""
    names = [f"c{i}" for i in range(len(operands))]
    tensors = {"x": x, **dict(zip(names, operands, strict=True))}
    results = [f"y{i}" for i in range(outputs)]
    tensors |= {name: T((), out) if not isinstance(out, T) else out for name in results}
    graph = ([(op, " ".join(["x", *names]), " ".join(results), *options)], "x", " ".join(results))
    shapes = litert(make(tensors, *graph), {"x": np.ones(x.shape, np.float32)})
    for name in results:
        tensors[name].shape = shapes[name].shape
    return make(tensors, *graph)


def same(stride=1, **more):
    return {"Padding": 0, "StrideH": stride, "StrideW": stride, **more}


def valid(stride=1, **more):
    return {**same(stride, **more), "Padding": 1}


CASES = {
    "conv same": (
        4, "CONV_2D", [const(f(3, 3, 3, 6)), const(f(3))], "Conv2DOptions", same(2, FusedActivationFunction=1)
    ),
    "conv dilated": (
        4, "CONV_2D", [const(f(5, 2, 3, 6)), const(f(5))], "Conv2DOptions",
        valid(DilationHFactor=2, DilationWFactor=1, FusedActivationFunction=3),
    ),
    "conv groups": (4, "CONV_2D", [const(f(4, 1, 1, 3)), const(f(4))], "Conv2DOptions", valid()),
    "conv f16": (4, "CONV_2D", [const(f(3, 1, 2, 6)), const(f(3))], "Conv2DOptions", same()),
    "depthwise": (
        4, "DEPTHWISE_CONV_2D", [const(f(1, 3, 3, 12)), const(f(12))], "DepthwiseConv2DOptions",
        same(2, DepthMultiplier=2, FusedActivationFunction=2),
    ),
    "maximum": (4, "MAXIMUM", [const(f(1, 5, 6))], "MaximumMinimumOptions", {}),
    "minimum": (4, "MINIMUM", [const(f(6))], "MaximumMinimumOptions", {}),
    "fake quant": (4, "FAKE_QUANT", [], "FakeQuantOptions", {"Min": -0.5, "Max": 0.7, "NumBits": 8}),
    "floor mod": (4, "FLOOR_MOD", [const(f(6))], "FloorModOptions", {}),
    "average pool": (4, "AVERAGE_POOL_2D", [], "Pool2DOptions", same(2, FilterHeight=3, FilterWidth=2)),
    "max pool": (4, "MAX_POOL_2D", [], "Pool2DOptions", valid(2, FilterHeight=2, FilterWidth=3)),
    "l2 pool": (4, "L2_POOL_2D", [], "Pool2DOptions", valid(2, FilterHeight=2, FilterWidth=3)),
    "bilinear": (4, "RESIZE_BILINEAR", [ints(11, 4)], "ResizeBilinearOptions", {"HalfPixelCenters": True}),
    "bilinear corners": (4, "RESIZE_BILINEAR", [ints(11, 4)], "ResizeBilinearOptions", {"AlignCorners": True}),
    "bilinear old": (4, "RESIZE_BILINEAR", [ints(11, 4)], "ResizeBilinearOptions", {}),
    "nearest": (4, "RESIZE_NEAREST_NEIGHBOR", [ints(11, 4)], "ResizeNearestNeighborOptions", {}),
    "nearest half": (
        4, "RESIZE_NEAREST_NEIGHBOR", [ints(11, 4)], "ResizeNearestNeighborOptions", {"HalfPixelCenters": True}
    ),
    "nearest corners": (
        4, "RESIZE_NEAREST_NEIGHBOR", [ints(11, 4)], "ResizeNearestNeighborOptions", {"AlignCorners": True}
    ),
    "lrn": (
        4, "LOCAL_RESPONSE_NORMALIZATION", [], "LocalResponseNormalizationOptions",
        {"Radius": 2, "Bias": 1.5, "Alpha": 0.3, "Beta": 0.75},
    ),
    "space to batch": (4, "SPACE_TO_BATCH_ND", [ints(2, 3), const(np.array([[1, 0], [0, 1]], I32))],),
    "fully connected": (3, "FULLY_CONNECTED", [const(f(4, 5)), const(f(4))], "FullyConnectedOptions", {}),
    "fully connected kept": (
        3, "FULLY_CONNECTED", [const(f(4, 5)), const(f(4))], "FullyConnectedOptions",
        {"KeepNumDims": True, "FusedActivationFunction": 1},
    ),
    "batch matmul": (3, "BATCH_MATMUL", [const(f(2, 3, 5))], "BatchMatMulOptions", {"AdjY": True}),
    "mul relu6": (4, "MUL", [const(f(6))], "MulOptions", {"FusedActivationFunction": 3}),
    "squared difference": (4, "SQUARED_DIFFERENCE", [const(f(5, 6))]),
    "floor div": (4, "FLOOR_DIV", [const(f(6))]),
    "prelu": (4, "PRELU", [const(f(1, 1, 6))]),
    "leaky": (4, "LEAKY_RELU", [], "LeakyReluOptions", {"Alpha": 0.3}),
    "gelu": (4, "GELU", [], "GeluOptions", {"Approximate": True}),
    "hard swish": (4, "HARD_SWISH", []),
    "softmax": (4, "SOFTMAX", [], "SoftmaxOptions", {"Beta": 0.7}),
    "log softmax": (4, "LOG_SOFTMAX", []),
    "l2 normalization": (4, "L2_NORMALIZATION", []),
    "mean": (4, "MEAN", [ints(1, 2)], "ReducerOptions", {"KeepDims": True}),
    "reduce max": (4, "REDUCE_MAX", [ints(-1)], "ReducerOptions", {}),
    "reshape": (4, "RESHAPE", [ints(2, -1, 3)]),
    "squeeze": (1, "SQUEEZE", [], "SqueezeOptions", {"SqueezeDims": (1,)}),
    "expand": (3, "EXPAND_DIMS", [const(np.array(-1, I32))]),
    "transpose": (4, "TRANSPOSE", [ints(2, 0, 3, 1)]),
    "concat": (4, "CONCATENATION", [const(f(2, 7, 5, 1))], "ConcatenationOptions", {"Axis": -1}),
    "pack": (3, "PACK", [const(f(2, 7, 5))], "PackOptions", {"Axis": 1, "ValuesCount": 2}),
    "unpack": (3, "UNPACK", [], "UnpackOptions", {"Axis": 0, "Num": 2}),
    "slice": (3, "SLICE", [ints(0, 2, 1), ints(2, -1, 3)]),
    "strided slice": (
        3, "STRIDED_SLICE", [ints(1, 6, 0), ints(2, 0, 0), ints(1, -2, 1)], "StridedSliceOptions",
        {"ShrinkAxisMask": 1, "EndMask": 6, "BeginMask": 2},
    ),
    "pad": (3, "PAD", [const(np.array([[0, 0], [1, 2], [0, 3]], I32))]),
    "padv2": (3, "PADV2", [const(np.array([[0, 0], [1, 2], [0, 3]], I32)), const(np.array([2.5], np.float32))]),
    "mirror": (3, "MIRROR_PAD", [const(np.array([[0, 0], [2, 1], [0, 3]], I32))], "MirrorPadOptions", {"Mode": 0}),
    "tile": (3, "TILE", [ints(1, 2, 3)]),
    "broadcast": (1, "BROADCAST_TO", [ints(3, 4, 5)]),
    "gather": (3, "GATHER", [ints(4, 0, 2)], "GatherOptions", {"Axis": 1}),
    "reverse": (3, "REVERSE_V2", [ints(1)]),
    "cumsum": (3, "CUMSUM", [const(np.array(1, I32))], "CumsumOptions", {"Exclusive": True}),
    "rsqrt": (1, "RSQRT", []),
}  # fmt: skip
SHAPES = {4: X, 3: X3, 1: T((1, 1, 5))}


def compare(data, inputs, bytes_apart=0, tolerance=2e-6):
    """Hold the graph's references to LiteRT: floats to so much of the largest, bytes to so many."""
    wanted = litert(data, inputs)
    found = reference_outputs(load_model(data), inputs)
    assert list(found) == list(wanted)
    for name, array in found.items():
        assert array.shape == wanted[name].shape and array.dtype == wanted[name].dtype, name
        if array.dtype.kind == "f":
            scale = np.abs(wanted[name]).max(initial=0)
            np.testing.assert_allclose(array, wanted[name], rtol=0, atol=tolerance * scale, err_msg=name)
        else:
            assert np.abs(array.astype(int) - wanted[name].astype(int)).max(initial=0) <= bytes_apart, name
    return found


@pytest.mark.parametrize("name", CASES)
def test_floats(name):
    rank, op, operands, *options = CASES[name]
    x = SHAPES[rank]
    data = one(op, *operands, options=options, outputs=2 if op == "UNPACK" else 1, x=x)
    values = f(*x.shape)
    compare(data, {"x": np.abs(values) + 0.1 if op == "RSQRT" else values})


def b(*shape, dtype=np.int8):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def drawn(t):
    return b(*t.shape, dtype={"i8": np.int8, "u8": np.uint8}[t.dtype])


Q = T((2, 7, 5, 6), "i8", scale=0.05, zero=-3)
U = T((2, 7, 5, 6), "u8", scale=0.05, zero=117)
WIDE = T((), "i8", scale=0.9, zero=4)
PER_CHANNEL = np.array([0.02, 0.03, 0.011], np.float32)


def weights(*shape, axis=0, dtype=np.int8, **more):
    return const(b(*shape, dtype=dtype), **{"scale": PER_CHANNEL, "zero": 0, "axis": axis, **more})


def bias(scale):
    return const(RNG.integers(-900, 900, 3).astype(np.int32), scale=scale, zero=0)


W_U8 = {"dtype": np.uint8, "scale": 0.02, "zero": 128}
QUANTIZED = {
    "conv": (Q, WIDE, "CONV_2D", [weights(3, 3, 3, 6), bias(0.05 * PER_CHANNEL)], "Conv2DOptions", same(2)),
    "conv u8": (U, T((), "u8", scale=0.9, zero=99), "CONV_2D", [weights(3, 2, 2, 6, **W_U8), bias(0.001)],
                "Conv2DOptions", valid()),
    "conv clamped": (Q, WIDE, "CONV_2D", [weights(3, 3, 3, 6), bias(0.05 * PER_CHANNEL)], "Conv2DOptions",
                     same(FusedActivationFunction=3)),
    "conv clamped by its range": (Q, T((), "i8", scale=6 / 255, zero=-128), "CONV_2D",
                                  [weights(3, 1, 1, 6), bias(0.05 * PER_CHANNEL)], "Conv2DOptions",
                                  same(FusedActivationFunction=3)),
    "depthwise": (T((1, 9, 6, 3), "i8", scale=0.1, zero=5), WIDE, "DEPTHWISE_CONV_2D",
                  [weights(1, 3, 3, 3, axis=3), bias(0.1 * PER_CHANNEL)], "DepthwiseConv2DOptions",
                  same(DepthMultiplier=1)),
    "fully connected": (T((4, 10), "i8", scale=0.1, zero=5), WIDE, "FULLY_CONNECTED",
                        [weights(3, 10, scale=0.02), bias(0.002)], "FullyConnectedOptions", {}),
    "add": (Q, WIDE, "ADD", [const(b(2, 7, 5, 6), scale=0.11, zero=9)], "AddOptions", {}),
    "mul": (U, T((), "u8", scale=0.3, zero=100), "MUL", [const(b(2, 7, 5, 6, dtype=np.uint8), scale=0.05, zero=9)],
            "MulOptions", {}),
    "max pool": (Q, Q, "MAX_POOL_2D", [], "Pool2DOptions", same(2, FilterHeight=3, FilterWidth=3)),
    "average pool": (Q, Q, "AVERAGE_POOL_2D", [], "Pool2DOptions", same(2, FilterHeight=3, FilterWidth=3)),
    "softmax": (Q, T((), "i8", scale=1 / 256, zero=-128), "SOFTMAX", [], "SoftmaxOptions", {"Beta": 1.0}),
    "logistic": (Q, T((), "i8", scale=1 / 256, zero=-128), "LOGISTIC", []),
    "mean": (Q, T((), "i8", scale=0.02, zero=-3), "MEAN", [ints(1, 2)], "ReducerOptions", {"KeepDims": True}),
    "reshape": (Q, Q, "RESHAPE", [ints(2, -1)]),
    "pad": (Q, Q, "PAD", [const(np.array([[0, 0], [1, 2], [0, 3], [0, 0]], I32))]),
    "requantize": (Q, WIDE, "QUANTIZE", []),
    "quantize": (X, WIDE, "QUANTIZE", []),
    "dequantize": (Q, T(), "DEQUANTIZE", []),
}  # fmt: skip


@pytest.mark.parametrize("name", QUANTIZED)
def test_bytes(name):
    """TensorFlow Lite multiplies by fixed-point numbers where vkconv does by f32: a byte may be one off."""
    x, y, op, operands, *options = QUANTIZED[name]
    tensors = {"x": x, "y": dataclasses.replace(y), **{f"c{i}": operand for i, operand in enumerate(operands)}}
    ops = [(op, " ".join(["x", *(f"c{i}" for i in range(len(operands)))]), "y", *options)]
    values = f(*x.shape) if x.dtype == "f32" else drawn(x)
    tensors["y"].shape = litert(make(tensors, ops, "x", "y"), {"x": values})["y"].shape
    data = make(tensors, ops, "x", "y")
    compare(data, {"x": values}, bytes_apart=1, tolerance=2e-6)
    used = {node.op for node in load_model(data).nodes}
    assert ("qlinear_conv" in used) == (op in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"))
    assert ("dequantize_linear" in used) == (name not in EXACT), "what stays in bytes"


EXACT = {"conv", "conv u8", "conv clamped by its range", "depthwise", "fully connected", "reshape", "quantize"}


def test_transposed_convolutions_have_the_size_that_they_are_given():
    w = const(f(4, 3, 3, 6))
    for padding, size in ((0, (14, 10)), (0, (13, 9)), (1, (15, 11))):
        tensors = {"x": X, "w": w, "size": ints(2, *size, 4), "y": T((2, *size, 4))}
        options = {"Padding": padding, "StrideH": 2, "StrideW": 2}
        data = make(tensors, [("TRANSPOSE_CONV", "size w x", "y", "TransposeConvOptions", options)], "x", "y")
        compare(data, {"x": f(2, 7, 5, 6)})


def test_batches_become_space_again():
    tensors = {"x": T((12, 3, 2, 5)), "block": ints(2, 3), "crops": const(np.array([[1, 0], [0, 2]], I32))}
    tensors["y"] = T((2, 5, 4, 5))
    compare(make(tensors, [("BATCH_TO_SPACE_ND", "x block crops", "y")], "x", "y"), {"x": f(12, 3, 2, 5)})


def test_blocks_of_pixels_become_channels_and_back():
    for op, options, shape in (
        ("SPACE_TO_DEPTH", "SpaceToDepthOptions", (1, 2, 3, 20)),
        ("DEPTH_TO_SPACE", "DepthToSpaceOptions", (1, 8, 12, 5)),
    ):
        x = T((1, 4, 6, 5) if op == "SPACE_TO_DEPTH" else (1, 4, 6, 20))
        data = make({"x": x, "y": T(shape)}, [(op, "x", "y", options, {"BlockSize": 2})], "x", "y")
        compare(data, {"x": f(*x.shape)})


def test_comparisons_selections_and_places():
    tensors = {"x": X3, "c": const(f(5)), "less": T((2, 7, 5), "bool"), "y": T((2, 7, 5)), "axis": ints(2)}
    tensors |= {"largest": T((2, 7), "i64"), "n": T((2, 7, 5), "i32")}
    ops = [
        ("LESS", "x c", "less"),
        ("SELECT_V2", "less x c", "y"),
        ("ARG_MAX", "y axis", "largest", "ArgMaxOptions", {"OutputType": 4}),
        ("CAST", "x", "n", "CastOptions", {"InDataType": 0, "OutDataType": 2}),
    ]
    compare(make(tensors, ops, "x", "less y largest n"), {"x": 3 * f(2, 7, 5)})


def test_weights_of_half_precision_and_of_four_bits_are_real_numbers():
    half = f(3, 1, 2, 6).astype(np.float16)
    four = const(bytes([0x7F, 0x81, 0x30]), scale=0.5, zero=0)
    four.shape, four.dtype = (6,), "i4"
    tensors = {"x": X, "h": const(half), "w": T(half.shape), "b": const(f(3)), "y": T((2, 7, 5, 3)), "four": four}
    tensors |= {"real": T((6,)), "z": T((2, 7, 5, 6))}
    ops = [
        ("DEQUANTIZE", "h", "w"),
        ("CONV_2D", "x w b", "y", "Conv2DOptions", same()),
        ("DEQUANTIZE", "four", "real"),
        ("MUL", "x real", "z", "MulOptions", {}),
    ]
    compare(make(tensors, ops, "x", "y z"), {"x": f(2, 7, 5, 6)})
    graph = load_model(make(tensors, ops, "x", "z"))
    (real,) = (a for a in graph.constants.values() if a.shape == (6,))
    np.testing.assert_array_equal(real, 0.5 * np.array([-1, 7, 1, -8, 0, 3], np.float32))


def test_a_network_has_transposes_at_its_ends_alone():
    """Channels last in the file, first in the plan: between two convolutions, nothing moves."""
    conv = ("Conv2DOptions", same(FusedActivationFunction=1))
    tensors = {"x": X, "w": const(f(6, 3, 3, 6)), "b": const(f(6)), "s": const(f(1, 1, 6)), "axes": ints(1, 2)}
    tensors |= {name: T((2, 7, 5, 6)) for name in ("c", "p", "d", "sum")} | {"cat": T((2, 7, 5, 12)), "y": T((2, 12))}
    ops = [
        ("CONV_2D", "x w b", "c", *conv),
        ("PRELU", "c s", "p"),
        ("CONV_2D", "p w b", "d", *conv),
        ("ADD", "c d", "sum", "AddOptions", {}),
        ("CONCATENATION", "sum d", "cat", "ConcatenationOptions", {"Axis": 3}),
        ("MEAN", "cat axes", "y", "ReducerOptions", {}),
    ]
    data = make(tensors, ops, "x", "y")
    compare(data, {"x": f(2, 7, 5, 6)})
    steps = plan(load_model(data), load_device("lavapipe")).plan.nodes
    assert [step.call.op for step in steps].count("transpose") == 1


def test_open_dimensions_have_names():
    tensors = {"x": T((1, 7, 5, 6), signature=(-1, 7, 5, 6)), "w": const(f(3, 1, 1, 6)), "b": const(f(3))}
    tensors["y"] = T((1, 7, 5, 3), signature=(-1, 7, 5, 3))
    data = make(tensors, [("CONV_2D", "x w b", "y", "Conv2DOptions", same())], "x", "y")
    assert load_model(data).inputs["x"].shape == ("d_x_0", 7, 5, 6)
    compare(data, {"x": f(3, 7, 5, 6)})


def test_names_stay_unique():
    """Converters give names twice, or none; an output may be an input or a constant."""
    tensors = {"x": X, "y": T((2, 7, 5, 6)), "z": T((2, 7, 5, 6)), "k": const(f(2))}
    data = make(tensors, [("RELU", "x", "y"), ("TANH", "y", "z")], "x", "y z x k z")
    graph = load_model(data)
    assert len(set(graph.outputs)) == 5 and set(graph.outputs[:2]) == {"y", "z"}
    found = list(reference_outputs(graph, {"x": f(2, 7, 5, 6)}).values())
    assert [array.shape for array in found] == [(2, 7, 5, 6)] * 3 + [(2,), (2, 7, 5, 6)]


def test_what_is_missing_is_one_list_that_says_how_to_go_on():
    tensors = {"x": X, "a": T(X.shape), "c": T(X.shape), "y": T(X.shape)}
    ops = [("WHILE", "x", "a"), ("FlexErf", "a", "c", b""), ("RELU", "c", "y"), ("UNIQUE", "y", "y")]
    with pytest.raises(UnsupportedError) as told:
        load_model(make(tensors, ops[:3], "x", "y"))
    assert "2 places" in str(told.value) and "WHILE (a): control flow" in str(told.value)
    assert "Select TF ops" in str(told.value) and "tf2onnx" in str(told.value)


@pytest.mark.parametrize(
    ("name", "advice"), [("a.ptd", "with its weights inside"), ("a.task", "unzip"), ("a.h5", "TFLiteConverter")]
)
def test_other_files_are_told_how_to_convert(tmp_path, name, advice):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ModelError, match=advice):
        load_model(tmp_path / name)


def kept(*ops, **tensors):
    """A model with one variable of four numbers, ``h``."""
    handle = ("VAR_HANDLE", "", "h", "VarHandleOptions", {"Container": "c", "SharedName": "s"})
    made = {"x": T((2, 4)), "h": T((), "resource"), "old": T((2, 4)), "y": T((2, 4)), **tensors}
    return make(made, [handle, *ops], "x", "y")


def test_a_variable_is_an_input_and_an_output():
    """What is read behind an assignment is what was assigned."""
    graph = load_model(
        kept(
            ("READ_VARIABLE", "h", "old"),
            ("ADD", "x old", "sum", "AddOptions", {}),
            ("ASSIGN_VARIABLE", "h sum", ""),
            ("READ_VARIABLE", "h", "new"),
            ("MUL", "new new", "y", "MulOptions", {}),
            sum=T((2, 4)),
            new=T((2, 4)),
        )
    )
    assert list(graph.inputs) == ["x", "c/s"] and graph.outputs == ("y", "c/s/next")
    assert graph.metadata["tflite.state.c/s"] == "c/s/next" and graph.metadata["tflite.initial.c/s"] == "0"
    x, state = np.ones((2, 4), np.float32), np.full((2, 4), 2, np.float32)
    found = reference_outputs(graph, {"x": x, "c/s": state})
    assert (found["y"] == 9).all() and (found["c/s/next"] == 3).all()


def test_a_variable_that_each_run_writes_first_is_none():
    data = kept(
        ("ASSIGN_VARIABLE", "h x", ""), ("READ_VARIABLE", "h", "old"), ("MUL", "old old", "y", "MulOptions", {})
    )
    graph = load_model(data)
    assert list(graph.inputs) == ["x"] and graph.outputs == ("y",)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(reference_outputs(graph, {"x": x})["y"], litert(data, {"x": x})["y"])


def test_a_variable_of_open_shape_is_refused():
    data = kept(
        ("READ_VARIABLE", "h", "old"), ("ADD", "x old", "y", "AddOptions", {}), old=T((2, 4), signature=(-1, 4))
    )
    with pytest.raises(UnsupportedError, match="variable 'c/s' is of open shape"):
        load_model(data)
