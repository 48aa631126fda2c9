"""TensorFlow Lite models on the device, in floats and in bytes, against LiteRT."""

import numpy as np
import pytest
from required import required

required("tflite", "ai_edge_litert")
from tflite_kit import T, const, litert, make  # noqa: E402

import vkconv  # noqa: E402

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng(9)
CONV = ("Conv2DOptions", {"Padding": 0, "StrideH": 2, "StrideW": 2, "FusedActivationFunction": 1})


def network(quantized):
    """Two convolutions, a sum and a product with weights, from channels last."""
    shapes = {"x": (2, 9, 7, 5), "c": (2, 5, 4, 6), "d": (2, 5, 4, 6), "sum": (2, 5, 4, 6), "y": (2, 3)}
    weights = {"w": (6, 3, 3, 5), "v": (6, 1, 1, 6), "u": (3, 120)}
    depthwise = ("Conv2DOptions", {"Padding": 0, "StrideH": 1, "StrideW": 1})
    ops = [
        ("CONV_2D", "x w b", "c", *CONV),
        ("CONV_2D", "c v b", "d", *depthwise),
        ("ADD", "c d", "sum", "AddOptions", {}),
        ("FULLY_CONNECTED", "sum u", "y", "FullyConnectedOptions", {}),
    ]
    if not quantized:
        tensors = {name: T(shape) for name, shape in shapes.items()}
        tensors |= {k: const(RNG.standard_normal(s).astype(np.float32)) for k, s in weights.items()}
        tensors["b"] = const(RNG.standard_normal(6).astype(np.float32))
        return make(tensors, ops, "x", "y")
    scales = {"x": 0.03, "c": 0.1, "d": 0.4, "sum": 0.45, "y": 2.5}
    tensors = {name: T(shape, "i8", scale=scales[name], zero=-7) for name, shape in shapes.items()}
    for name, shape in weights.items():
        tensors[name] = const(RNG.integers(-127, 128, shape).astype(np.int8), scale=0.01, zero=0)
    tensors["b"] = const(RNG.integers(-99, 99, 6).astype(np.int32), scale=0.0003, zero=0)
    return make(tensors, ops, "x", "y")


@pytest.mark.parametrize("quantized", (False, True))
def test_a_network(quantized):
    data = network(quantized)
    drawn = RNG.integers(-128, 128, (2, 9, 7, 5)).astype(np.int8) if quantized else RNG.standard_normal((2, 9, 7, 5))
    x = drawn if quantized else drawn.astype(np.float32)
    wanted = litert(data, {"x": x})["y"]
    with vkconv.load(data) as session:
        found = session.run({"x": x})["y"].copy()
        assert found.tobytes() == session.run({"x": x})["y"].tobytes()
    assert found.dtype == wanted.dtype and wanted.std() > 0
    # Bytes: one off in each of two layers, of which LiteRT rounds the sums in fixed point.
    apart = np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max()
    assert apart <= (2 if quantized else 1e-5 * np.abs(wanted).max())


def test_a_variable_goes_on_from_run_to_run():
    """A running sum: what comes out for it is what the next run is given, and stays on the device."""
    handle = ("VAR_HANDLE", "", "h", "VarHandleOptions", {"SharedName": "total"})
    steps = [
        ("READ_VARIABLE", "h", "old"),
        ("ADD", "x old", "sum", "AddOptions", {}),
        ("ASSIGN_VARIABLE", "h sum", ""),
        ("MUL", "sum sum", "y", "MulOptions", {}),
    ]
    tensors = {"x": T((3, 5)), "h": T((), "resource"), "old": T((3, 5)), "sum": T((3, 5)), "y": T((3, 5))}
    total = np.zeros((3, 5), np.float32)
    with vkconv.load(make(tensors, [handle, *steps], "x", "y")) as session:
        state = total
        for step in range(3):
            x = RNG.integers(-9, 10, (3, 5)).astype(np.float32)
            found = session.run({"x": x, "total": state}, out="device")
            total, state = total + x, found["total/next"]
            np.testing.assert_array_equal(np.asarray(found["y"]), total * total, err_msg=str(step))
