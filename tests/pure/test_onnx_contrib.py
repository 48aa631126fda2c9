"""Operators of ONNX Runtime's own domain, against ONNX Runtime."""

import numpy as np
import pytest
from required import required

required("onnx", "onnxruntime")
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from graph_kit import evaluate  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402

from vkconv.core import Array, UnsupportedError  # noqa: E402
from vkconv.graph.onnx import load_onnx_proto  # noqa: E402
from vkconv.ops import OPS  # noqa: E402
from vkconv.plan.bound import bind  # noqa: E402

RNG = np.random.default_rng(4)


def f32(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def u8(*shape: int) -> Array:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> Array:
    return RNG.integers(-128, 128, shape).astype(np.int8)


def scale(value: float) -> Array:
    return np.array(value, np.float32)


def zero(value: int, dtype: type = np.uint8) -> Array:
    return np.array(value, dtype)


def model(op: str, inputs: list[Array | None], outputs: int = 1, **attributes: object) -> onnx.ModelProto:
    """A node whose first operand that is a tensor of values is x, all others constants."""
    x = next(i for i, array in enumerate(inputs) if array is not None and array.ndim)
    names = ["" if array is None else "x" if i == x else f"i{i}" for i, array in enumerate(inputs)]
    made = [f"y{i}" for i in range(outputs)]
    info = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(inputs[x].dtype), inputs[x].shape)
    graph = helper.make_graph(
        [helper.make_node(op, names, made, name="n", domain="com.microsoft", **attributes)],
        "g",
        [info],
        [onnx.ValueInfoProto(name=name) for name in made],
        [numpy_helper.from_array(inputs[i], name) for i, name in enumerate(names) if name not in ("", "x")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


Q, Z8 = [scale(0.03), zero(120)], zero(-3, np.int8)
FLOATS = {
    "FusedConv": ([f32(2, 5, 7, 6), f32(3, 5, 3, 3), f32(3), f32(2, 3, 7, 6)], {"pads": [1] * 4, "activation": "Relu"}),
    "FusedConv, no bias": (
        [f32(1, 4, 5, 5), f32(4, 2, 1, 1)],
        {"group": 2, "activation": "LeakyRelu", "activation_params": [0.25]},
    ),
    "FusedConv, clipped": (
        [f32(1, 4, 5, 5), f32(4, 4, 1, 1)],
        {"activation": "Clip", "activation_params": [-0.5, 0.75]},
    ),
    "FusedMatMul": ([f32(2, 5, 3), f32(2, 5, 7)], {"transA": 1, "alpha": 0.5}),
    "FusedMatMul, b": ([f32(2, 3, 5), f32(7, 5)], {"transB": 1}),
    "FusedGemm": ([f32(3, 5), f32(5, 7), f32(7)], {"activation": "Relu", "beta": 0.5}),
    "Gelu": ([f32(3, 7)], {}),
    "BiasGelu": ([f32(3, 7), f32(7)], {}),
    "FastGelu": ([f32(3, 7), f32(7)], {}),
    "QuickGelu": ([f32(3, 7)], {"alpha": 1.5}),
    "SkipLayerNormalization": ([f32(2, 3, 8), f32(2, 3, 8), f32(8), f32(8), f32(8)], {"epsilon": 1e-5}),
    "MatMulIntegerToFloat": ([u8(3, 5), i8(5, 7), scale(0.1), scale(0.2), zero(7), zero(-3, np.int8), f32(7)], {}),
    "MatMulNBits": ([f32(2, 3, 32), u8(7, 2, 8), f32(14)], {"K": 32, "N": 7, "bits": 4, "block_size": 16}),
    "MatMulNBits, tail": (
        [f32(3, 40), u8(5, 3, 8), f32(15), u8(10), None, f32(5)],
        {"K": 40, "N": 5, "bits": 4, "block_size": 16},
    ),
    "MatMulNBits, bytes": ([f32(3, 40), u8(5, 2, 32), f32(10), u8(10)], {"K": 40, "N": 5, "bits": 8, "block_size": 32}),
    "QGemm, to floats": ([u8(3, 5), *Q, i8(5, 7), scale(0.1), zero(3, np.int8)], {"alpha": 0.5}),
}
INTEGERS = {
    "QLinearAdd": ([u8(2, 3, 5), *Q, u8(3, 1), scale(0.0517), zero(9), scale(0.0613), zero(100)], {}),
    "QLinearAdd, signed": (
        [i8(2, 7), scale(0.0517), Z8, i8(2, 7), scale(0.0931), zero(5, np.int8), scale(0.0973), zero(1, np.int8)],
        {},
    ),
    "QLinearMul": ([u8(2, 3, 5), *Q, u8(5), scale(0.05), zero(9), scale(0.2), zero(130)], {}),
    "QLinearSigmoid": ([u8(2, 3), *Q, scale(1 / 256), zero(0)], {}),
    "QLinearLeakyRelu": ([u8(2, 3), *Q, scale(0.02), zero(7)], {"alpha": 0.125}),
    "QLinearSoftmax": ([u8(3, 7), *Q, scale(1 / 256), zero(0)], {"axis": -1, "opset": 17}),
    "QLinearConcat": ([scale(0.04), zero(110), u8(2, 3), *Q, u8(2, 5), scale(0.05), zero(90)], {"axis": 1}),
    "QLinearGlobalAveragePool": ([u8(2, 3, 5, 7), *Q, scale(0.02), zero(99)], {}),
    "QLinearAveragePool": ([u8(2, 3, 5, 7), *Q, scale(0.02), zero(99)], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "QGemm": ([u8(3, 5), *Q, i8(5, 7), scale(0.1), zero(3, np.int8), None, scale(0.3), zero(128)], {}),
    "QGemm, transposed": (
        [u8(5, 3), *Q, i8(7, 5), scale(0.1), zero(3, np.int8), np.arange(7, dtype=np.int32), scale(0.3), zero(128)],
        {"transA": 1, "transB": 1},
    ),
}


def both(made: onnx.ModelProto) -> tuple[Array, Array]:
    """What ONNX Runtime gives, and what the references of vkconv do."""
    tensor = made.graph.input[0].type.tensor_type
    shape = tuple(d.dim_value for d in tensor.shape.dim)
    rng = np.random.default_rng(6)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    x = (rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 100, shape)).astype(dtype)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x})
    (y,) = evaluate(bind(load_onnx_proto(made), OPS, {"x": shape}), {"x": x})
    return np.asarray(wanted), np.asarray(y)


@pytest.mark.parametrize("case", FLOATS)
def test_of_floats(case: str) -> None:
    inputs, attributes = FLOATS[case]
    wanted, y = both(model(case.partition(",")[0], inputs, **attributes))
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("case", INTEGERS)
def test_of_integers_to_the_bit_but_for_ties(case: str) -> None:
    inputs, attributes = INTEGERS[case]
    wanted, y = both(model(case.partition(",")[0], inputs, **attributes))
    apart = np.abs(y.astype(int) - wanted.astype(int))
    assert y.dtype == wanted.dtype and apart.max() <= 1 and (apart > 0).mean() <= 0.02


def test_dynamic_quantization_is_that_of_onnx() -> None:
    # Weights of seven bits: with eight, ONNX Runtime saturates sums of two products on CPUs that lack VNNI.
    x, b, b_scale = f32(3, 5), i8(5, 7) // 2, scale(0.1)
    made = model("DynamicQuantizeMatMul", [x, b, b_scale, zero(3, np.int8), f32(7)])
    wanted, y = both(made)
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)


def test_the_sum_that_a_skip_normalization_makes_is_an_output() -> None:
    made = model("SkipLayerNormalization", [f32(2, 3, 8), f32(2, 3, 8), f32(8)], epsilon=1e-5)
    made.graph.node[0].output[:] = ["y0", "", "", "total"]
    made.graph.output.append(onnx.ValueInfoProto(name="total"))
    x = f32(2, 3, 8)
    wanted = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    got = evaluate(bind(load_onnx_proto(made), OPS, {"x": x.shape}), {"x": x})
    for y, want in zip(got, wanted, strict=True):
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "words"),
    [
        ("Attention", [f32(2, 3)], {}, r"vkconv has no such op of ONNX Runtime; it has BiasGelu, "),
        ("FusedConv", [f32(1, 1, 3, 3), f32(1, 1, 1, 1)], {"activation": "Erf"}, "the activation 'Erf'"),
        (
            "FusedConv",
            [f32(1, 1, 3, 3), f32(1, 1, 1, 1)],
            {"odd": 1},
            "attribute 'odd' is one",
        ),
        ("MatMulNBits", [f32(2, 16), u8(3, 1, 6), f32(3)], {"K": 16, "N": 3, "bits": 3, "block_size": 16}, "bits=3"),
        ("MatMulNBits", [f32(2, 16), u8(3, 1, 6), f32(3)], {"K": float("inf"), "N": 3}, "not as ONNX Runtime defines"),
        ("FusedMatMul", [f32(2, 3), f32(3, 2)], {"transBatchA": 1}, "transBatchA or transBatchB"),
        (
            "FusedConv",
            [f32(1, 1, 3, 3), f32(1, 1, 1, 1)],
            {"activation": "Clip"},
            "not as ONNX Runtime defines",
        ),
    ],
)
def test_what_cannot_be_written_says_why(
    op: str, inputs: list[Array], attributes: dict[str, object], words: str
) -> None:
    with pytest.raises(UnsupportedError, match=words):
        load_onnx_proto(model(op, inputs, **attributes))
