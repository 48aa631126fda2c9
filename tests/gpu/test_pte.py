"""ExecuTorch's programs on the device: a network that is kernels around a delegate, against float64."""

import numpy as np
import pytest
from required import required

required("flatbuffers")
from pte_kit import T, const, program, vulkan  # noqa: E402

import vkconv  # noqa: E402

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng(4)


def test_a_network():
    """A separable convolution of the delegate, weights in f16 by force, then a mean and a linear layer of kernels."""
    depthwise, point = (RNG.standard_normal(s).astype(np.float16) for s in ((5, 1, 3, 3), (7, 5, 1, 1)))
    bias, head = RNG.standard_normal(7).astype(np.float16), RNG.standard_normal((7, 3)).astype(np.float32)
    forced = {"dtype": "f16", "staging": "f32"}
    inner = {"x": T((2, 5, 11, 7), **forced), "d": const(depthwise, "f16", named="d"), "p": const(point, "f16")}
    inner |= {"b": const(bias, "f16"), "c": T((2, 5, 6, 4), **forced), "y": T((2, 7, 6, 4), **forced)}
    once = [(1, 1), (0, 0), (1, 1), False, (0, 0), 1]
    calls = [
        ("aten.convolution.default", ["x", "d", None, (2, 2), (1, 1), (1, 1), False, (0, 0), 5], "c"),
        ("et_vk.conv_with_clamp.default", ["c", "p", "b", *once, 0.0, 6.0], "y"),
    ]
    tensors = {"x": T((2, 5, 11, 7)), "y": T((2, 7, 6, 4)), "m": T((2, 7)), "w": const(head), "z": T((2, 3))}
    steps = [
        (0, "x y"),
        ("aten::mean.out", ["y", (2, 3), False, None], "m"),
        ("aten::mm.out", ["m", "w"], "z"),
    ]
    data = program(tensors, steps, "x", "z y", [vulkan(inner, calls, "x", "y")], inline=False)
    x = RNG.standard_normal((2, 5, 11, 7)).astype(np.float32)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    c = np.einsum("nchwij,cij->nchw", seen, depthwise[:, 0].astype(np.float64))
    y = (np.einsum("nchw,oc->nohw", c, point[..., 0, 0].astype(np.float64)) + bias[:, None, None]).clip(0, 6)
    with vkconv.load(data) as session:
        found = {name: array.copy() for name, array in session.run({"input_0": x}).items()}
        again = session.run({"input_0": x})
        assert all(found[name].tobytes() == again[name].tobytes() for name in found)
    np.testing.assert_allclose(found["output_1"], y, rtol=0, atol=1e-5 * np.abs(y).max())
    np.testing.assert_allclose(found["output_0"], y.mean((2, 3)) @ head, rtol=0, atol=1e-5 * 6)


def test_states_stay_on_the_device_from_run_to_run():
    """Keys that each run puts a row of in place, and what it makes of all of them."""
    keys = T((2, 6, 5), memory=(1, 0))
    tensors = {
        "x": T((2, 1, 5)),
        "at": T((1,), "i64"),
        "keys": keys,
        "new": T((2, 6, 5), memory=(1, 256)),
        "y": T((2, 5)),
    }
    steps = [
        ("aten::index_put.out", ["keys", [None, "at"], "x", False], "new"),
        ("aten::copy_", ["keys", "new", False], "keys"),
        ("aten::mean.out", ["keys", (1,), False, None], "y"),
    ]
    held, state = np.zeros((2, 6, 5), np.float32), np.zeros((2, 6, 5), np.float32)
    with vkconv.load(program(tensors, steps, "x at", "y")) as session:
        for place in (0, 1, -1, 3):
            x = RNG.standard_normal((2, 1, 5)).astype(np.float32)
            held[:, place] = x[:, 0]
            made = session.run({"input_0": x, "input_1": np.array([place]), "state_0": state}, out="device")
            state = made["state_0/next"]
            np.testing.assert_array_equal(state.numpy(), held)
            np.testing.assert_allclose(made["output_0"].numpy(), held.mean(1), rtol=0, atol=1e-6)
