"""Fourier transforms, Unique and TensorScatter through the importer, against numpy."""

import numpy as np
import pytest
from required import required

required("onnx")
from graph_kit import evaluate, run_stages  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from onnx_kit import i64, make  # noqa: E402

from vkconv.core import UnsupportedError  # noqa: E402
from vkconv.graph.onnx import load_onnx_proto  # noqa: E402
from vkconv.ops import OPS  # noqa: E402
from vkconv.plan.bound import bind  # noqa: E402

RNG = np.random.default_rng(8)


def run(node, x, constants, opset=20, elem_type=TensorProto.FLOAT, dims=None):
    model = make([node], inputs={"x": (elem_type, dims or list(x.shape))}, constants=constants, opset=opset)
    return evaluate(bind(load_onnx_proto(model), OPS, {"x": x.shape}), {"x": x})[0]


def as_parts(values):
    return np.stack([values.real, values.imag], -1)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("axis", "length"), [(1, None), (-2, 11), (2, 4), (1, 8)])
def test_dft_of_a_prime_length_cropped_and_padded(axis, length, parts, onesided):
    x = RNG.standard_normal((2, 7, 5, parts)).astype(np.float32)
    node = helper.make_node("DFT", ["x", "length" if length else "", "axis"], ["y"], onesided=onesided)
    constants = {"axis": i64(axis).reshape(())} | ({"length": i64(length).reshape(())} if length else {})
    signal = x[..., 0].astype(np.float64) + 1j * (x[..., 1] if parts == 2 else 0)
    wanted = np.fft.fft(signal, length, axis % 4)
    if onesided:
        wanted = wanted.take(range(wanted.shape[axis % 4] // 2 + 1), axis % 4)
    for dims in (None, ["n", "a", "b", parts]):
        np.testing.assert_allclose(run(node, x, constants, dims=dims), as_parts(wanted), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("length", [6, 7, 12, None])
@pytest.mark.parametrize("onesided", [0, 1])
def test_dft_backwards(length, onesided):
    x = RNG.standard_normal((2, 5, 2)).astype(np.float32)
    node = helper.make_node("DFT", ["x", "length" if length else ""], ["y"], inverse=1, onesided=onesided)
    y = run(node, x, {"length": i64(length).reshape(())} if length else {})
    signal = x[..., 0].astype(np.float64) + 1j * x[..., 1]
    wanted = np.fft.irfft(signal, length, 1)[..., None] if onesided else as_parts(np.fft.ifft(signal, length, 1))
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("window", [True, False])
@pytest.mark.parametrize("parts", [1, 2])
def test_stft_of_complex_and_real_signals(window, parts):
    x = RNG.standard_normal((3, 29, parts)).astype(np.float32)
    shape = RNG.uniform(0, 1, 7).astype(np.float32)
    node = helper.make_node("STFT", ["x", "step", "w" if window else "", "length"], ["y"], onesided=0)
    constants = {"step": i64(4).reshape(()), "length": i64(7).reshape(())} | ({"w": shape} if window else {})
    signal = x[..., 0].astype(np.float64) + 1j * (x[..., 1] if parts == 2 else 0)
    frames = np.stack([signal[:, at : at + 7] for at in range(0, 23, 4)], 1) * (shape if window else 1)
    y = run(node, x, constants, opset=17, dims=["n", "l", parts])
    np.testing.assert_allclose(y, as_parts(np.fft.fft(frames)), rtol=1e-5, atol=2e-5)


def test_stft_of_a_real_signal_without_its_dimension_of_parts():
    x = RNG.standard_normal((3, 29)).astype(np.float32)
    node = helper.make_node("STFT", ["x", "step", "", "length"], ["y"])
    constants = {"step": i64(4).reshape(()), "length": i64(7).reshape(())}
    frames = np.stack([x[:, at : at + 7] for at in range(0, 23, 4)], 1)
    y = run(node, x, constants, opset=17, dims=["n", "l"])
    np.testing.assert_allclose(y, as_parts(np.fft.rfft(frames)), rtol=1e-5, atol=2e-5)


def test_mel_weights_are_constants():
    names = ("bins", "length", "rate", "low", "high")
    values = [np.array(v) for v in (8, 16, 8192)] + [np.array(v, np.float32) for v in (0, 4096)]
    nodes = [helper.make_node("MelWeightMatrix", names, ["m"]), helper.make_node("MatMul", ["x", "m"], ["y"])]
    model = make(nodes, inputs={"x": [9, 9]}, constants=dict(zip(names, values, strict=True)), opset=17)
    (y,) = evaluate(bind(load_onnx_proto(model), OPS), {"x": np.eye(9, dtype=np.float32)})
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": np.eye(9, dtype=np.float32)})
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize("shape", [(1,), (13,), (3, 5, 7)])
def test_unique_values(shape, dtype):
    x = RNG.integers(-3, 4, shape).astype(dtype)
    names = ["y", "first", "inverse", "counts"]
    elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for in_order in (1, 0):
        node = helper.make_node("Unique", ["x"], names, sorted=in_order)
        model = make([node], inputs={"x": (elem_type, list(shape))}, outputs=names, opset=17)
        wanted = np.unique(x, True, True, True)
        if not in_order:
            order = np.argsort(wanted[1])
            wanted = (wanted[0][order], wanted[1][order], np.argsort(order)[wanted[2]], wanted[3][order])
        for y, want in zip(run_stages(load_onnx_proto(model), {"x": x}), wanted, strict=True):
            np.testing.assert_array_equal(y, want.reshape(-1))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_unique_slices(axis):
    x = RNG.integers(0, 2, (5, 4, 3)).astype(np.float32).take([0, 2, 1, 0, 2], axis=0)
    names = ["y", "first", "inverse", "counts"]
    node = helper.make_node("Unique", ["x"], names, axis=axis)
    model = make([node], inputs={"x": ["n", 4, 3]}, outputs=names, opset=17)
    wanted = np.unique(x, True, True, True, axis=axis)
    for y, want in zip(run_stages(load_onnx_proto(model), {"x": x}), wanted, strict=True):
        np.testing.assert_array_equal(y, want if y is None or y.ndim > 1 else want.reshape(-1))


def test_unique_of_too_many_pairs_is_refused():
    model = make([helper.make_node("Unique", ["x"], ["y"], axis=0)], inputs={"x": [20_000, 3]}, opset=17)
    with pytest.raises(
        UnsupportedError, match="compares 1200000000 pairs of elements of slices; vkconv compares 67108864"
    ):
        load_onnx_proto(model)


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_a_cache_of_open_sizes_is_written_behind_its_indices(mode):
    cache, update = (RNG.standard_normal((3, 2, n, 5)).astype(np.float32) for n in (7, 3))
    at = np.array([0, 4, 2] if mode == "linear" else [6, 4, 5], np.int64)
    node = helper.make_node("TensorScatter", ["x", "u", "at"], ["y"], mode=mode)
    inputs = {"x": ["b", 2, "s", 5], "u": ["b", 2, "l", 5], "at": (TensorProto.INT64, ["b"])}
    graph = load_onnx_proto(make([node], inputs=inputs, opset=24))
    arrays = {"x": cache, "u": update, "at": at}
    (y,) = evaluate(bind(graph, OPS, {name: array.shape for name, array in arrays.items()}), arrays)
    wanted = cache.copy()
    for b in range(3):
        wanted[b][:, (at[b] + np.arange(3)) % 7] = update[b]
    np.testing.assert_array_equal(y, wanted)
