"""Convolutions as functions: against the float64 reference, layouts, the cache of sessions, and what is refused."""

import gc
import threading

import numpy as np
import pytest
from functional_kit import drawn, holds

import vkconv
from vkconv import functional
from vkconv.core import DType, GraphError, InputError, RouteError, UsageError, VkconvError
from vkconv.functional import cache
from vkconv.graph import Graph, Node, TensorSpec

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def released():
    """Sessions of a test close under its own validation report."""
    yield
    functional.clear_cache()


def test_conv2d(device):
    arrays = drawn((2, 6, 9, 11), (4, 3, 3, 2), 4)
    y = functional.conv2d(
        *arrays, stride=(2, 1), padding=(1, 0, 2, 1), dilation=(1, 2), groups=2, activation="silu", device=device
    )
    holds("conv2d:x=2x6x9x11,w=4x3x3x2,b=4,s=2x1,p=1x0x2x1,d=1x2,g=2,act=silu", arrays, y)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_halves_in_and_out(dtype, device):
    kind = DType(dtype).numpy
    x, w, b, up = (a.astype(kind) for a in drawn((2, 3, 7, 9), (5, 3, 3, 3), 5, (3, 5, 3, 3)))
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    y = functional.conv2d(last, w, b, padding=1, layout="NHWC", device=device)
    holds(f"conv2d:x=2x3x7x9,w=5x3x3x3,b=5,p=1,dtype={dtype}", (x, w, b), np.ascontiguousarray(y.transpose(0, 3, 1, 2)))
    y = functional.conv_transpose2d(x, up, stride=2, device=device)
    holds(f"conv_transpose2d:x=2x3x7x9,w=3x5x3x3,s=2,dtype={dtype}", (x, up), y)
    y = functional.conv2d_backward_weight(x, x, (3, 3, 3, 3), padding=1, device=device)
    holds(f"conv2d_backward_weight:x=2x3x7x9,dy=2x3x7x9,w_shape=3x3x3x3,p=1,dtype={dtype}", (x, x), y)
    y = functional.softmax(x, axis=1, device=device)
    holds(f"softmax:x=2x3x7x9,axis=1,dtype={dtype}", (x,), y)
    y = functional.reduce(x, "mean", (2, 3), device=device)
    holds(f"reduce:x=2x3x7x9,op=mean,axes=2x3,keep=0,dtype={dtype}", (x,), y)
    assert functional.conv2d_bias_gradient(x, device=device).dtype == kind
    with pytest.raises(GraphError, match="one float dtype"):
        functional.conv2d(x, w.astype(np.float32), device=device)


def test_activations_with_parameters_and_named_padding(device):
    arrays = drawn((1, 3, 8, 7), (5, 3, 3, 3))
    y = functional.conv2d(*arrays, padding="same_upper", stride=2, activation=("clip", -0.5, 1), device=device)
    holds("conv2d:x=1x3x8x7,w=5x3x3x3,s=2,auto=same_upper,act=clip,act_a=-0.5,act_b=1", arrays, y)


def test_prelu_takes_a_slope_per_channel(device):
    x, w, b, slope = drawn((2, 6, 9, 11), (4, 3, 3, 2), 4, 4)
    prelu = {"activation": "prelu", "slope": slope, "groups": 2, "device": device}
    text = "conv2d:x=2x6x9x11,w=4x3x3x2,{}slope=4,g=2,act=prelu"
    holds(text.format("b=4,"), (x, w, b, slope), functional.conv2d(x, w, b, **prelu))
    y = functional.conv2d(x, w, **prelu)
    holds(text.format(""), (x, w, slope), y)
    last = functional.conv2d(x.transpose(0, 2, 3, 1), w, layout="NHWC", **prelu)
    np.testing.assert_array_equal(last.transpose(0, 3, 1, 2), y)
    up = functional.conv_transpose2d(x, w.reshape(6, 2, 3, 2), b, stride=2, **prelu)
    arrays = x, w.reshape(6, 2, 3, 2), b, slope
    holds("conv_transpose2d:x=2x6x9x11,w=6x2x3x2,b=4,slope=4,g=2,s=2,act=prelu", arrays, up)
    row = functional.conv1d(x[:, :, 0], w[:, :, 0], b, **prelu)
    arrays = x[:, :, :1], w[:, :, :1], b, slope
    holds("conv2d:x=2x6x1x11,w=4x3x1x2,b=4,slope=4,g=2,act=prelu", arrays, row[:, :, None])


def test_conv_transpose2d(device):
    arrays = drawn((2, 6, 5, 4), (6, 2, 3, 3), 4)
    y = functional.conv_transpose2d(*arrays, stride=2, padding=1, output_padding=(1, 0), groups=2, device=device)
    holds("conv_transpose2d:x=2x6x5x4,w=6x2x3x3,b=4,s=2,p=1,op=1x0,g=2", arrays, y)


def test_conv2d_backward_data(device):
    dy, w = drawn((2, 6, 5, 7), (6, 2, 3, 2))
    given = {"stride": (2, 1), "padding": (1, 0, 2, 1), "dilation": (1, 2), "groups": 3, "device": device}
    dx = functional.conv2d_backward_data(dy, w, (2, 6, 9, 8), **given)
    text = "conv2d_backward_data:dy=2x6x5x7,w=6x2x3x2,x_shape=9x8,s=2x1,p=1x0x2x1,d=1x2,g=3"
    holds(text, (dy, w), dx)
    np.testing.assert_array_equal(functional.conv2d_backward_data(dy, w, (9, 8), **given), dx)
    last = dy.transpose(0, 2, 3, 1)
    dx_last = functional.conv2d_backward_data(last, w, (2, 9, 8, 6), layout="NHWC", **given)
    np.testing.assert_array_equal(dx_last.transpose(0, 3, 1, 2), dx)
    views = last.reshape(2, 5, 7, 3, 2), w.reshape(3, 2, 2, 3, 2).transpose(0, 1, 3, 4, 2)
    for shape in ((9, 8), (2, 9, 8, 3, 2)):
        for groups in (1, 3):
            given["groups"] = groups
            dx_views = functional.conv2d_backward_data(*views, shape, layout="NHWGC", **given)
            assert dx_views.shape == (2, 9, 8, 3, 2)
            np.testing.assert_array_equal(dx_views.reshape(2, 9, 8, 6), dx_last)


@pytest.mark.parametrize("route", [None, "gather", "fill_scatter"])
def test_scatter_strided(route, device):
    x = np.arange(1, 7, dtype=np.int32).reshape(2, 3)
    y = functional.scatter_strided(x, (3, 6), offset=(1, -2), stride=(1, 3), route=route, device=device)
    np.testing.assert_array_equal(y, [[0, 0, 0, 0, 0, 0], [0, 2, 0, 0, 3, 0], [0, 5, 0, 0, 6, 0]])
    assert y.dtype == np.int32
    with pytest.raises(GraphError, match=r"offset is \(1, 2, 3\); it takes one value or 2"):
        functional.scatter_strided(x, (3, 6), offset=(1, 2, 3), device=device)


def test_channels_last_is_the_same_with_the_axes_moved(device):
    x, w, b = drawn((2, 5, 7, 6), (4, 5, 3, 3), 4)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    y = functional.conv2d(x, w, b, padding=1, device=device)
    np.testing.assert_array_equal(
        functional.conv2d(last, w, b, padding=1, layout="NHWC", device=device).transpose(0, 3, 1, 2), y
    )
    up = w.transpose(1, 0, 2, 3)
    y = functional.conv_transpose2d(x, up, b, stride=2, device=device)
    y_last = functional.conv_transpose2d(last, up, b, stride=2, layout="NHWC", device=device)
    np.testing.assert_array_equal(y_last.transpose(0, 3, 1, 2), y)


def test_conv1d(device):
    x, w, b = drawn((2, 4, 31), (6, 2, 5), 6)
    y = functional.conv1d(x, w, b, stride=2, padding=(3, 1), dilation=2, groups=2, device=device)
    arrays = x[:, :, None], w[:, :, None], b
    holds("conv2d:x=2x4x1x31,w=6x2x1x5,b=6,s=1x2,p=0x3x0x1,d=1x2,g=2", arrays, y[:, :, None])
    y_last = functional.conv1d(
        x.transpose(0, 2, 1), w, b, stride=2, padding=(3, 1), dilation=2, groups=2, layout="NWC", device=device
    )
    np.testing.assert_array_equal(y_last.transpose(0, 2, 1), y)


def test_operands_of_any_memory_order(device):
    x, w = drawn((1, 3, 9, 8), (4, 3, 3, 3))
    want = functional.conv2d(x, w, device=device)
    np.testing.assert_array_equal(
        functional.conv2d(np.asfortranarray(x), w[:, :, ::-1][:, :, ::-1], device=device), want
    )
    np.testing.assert_array_equal(functional.conv2d(x.astype(">f4"), w, device=device), want)


def kept_sessions():
    return [kept.session for kept in cache._sessions.values()]


def test_sessions_are_kept_by_call_device_and_route_and_the_oldest_goes(device):
    x, w = drawn((1, 3, 6, 6), (4, 3, 3, 3))
    first = functional.conv2d(x, w, device=device)
    (kept,) = kept_sessions()
    assert not np.array_equal(functional.conv2d(x, 2 * w, device=device), first)
    assert kept_sessions() == [kept]
    functional.conv2d(x, w, route="direct", device=device)
    functional.conv2d(x, w, padding=1, device=device)
    assert len(kept_sessions()) == 3 and kept_sessions()[1].plan.nodes[0].route == "direct"
    (nbytes,) = {one.nbytes for one in cache._sessions.values()}
    try:
        functional.set_cache_bytes(3 * nbytes)
        functional.conv2d(x, w, device=device)  # the first is the latest now
        functional.conv2d(x, w, dilation=2, device=device)
        assert len(kept_sessions()) == 3 and kept_sessions()[1] is kept
        functional.set_cache_bytes(nbytes - 1)
        assert not kept_sessions()
        np.testing.assert_array_equal(functional.conv2d(x, w, device=device), first)
        assert not kept_sessions()
    finally:
        functional.set_cache_bytes(None)


def test_many_distinct_calls_are_kept(device):
    """Of small ones memory allows many, not 16."""
    sizes = range(1, 21)
    for _ in range(2):
        for size in sizes:
            functional.softmax(np.ones((1, size), np.float32), device=device)
        if len(kept_sessions()) == len(sizes):
            opened = kept_sessions()
    assert kept_sessions() == opened


def test_a_call_is_checked_once_for_arrays_and_attributes_that_look_alike(monkeypatch):
    monkeypatch.setattr(cache, "_calls", {})
    monkeypatch.setattr(cache, "_MOST_CALLS", 3)
    x = np.ones((3, 4), np.float32)
    first = cache._checked("reduce", {"x": x}, {"op": "sum", "keepdims": False})
    assert cache._checked("reduce", {"x": x + 1}, {"op": "sum", "keepdims": False})[0] is first[0]
    others = [
        cache._checked("reduce", {"x": x.T}, {"op": "sum", "keepdims": False}),
        cache._checked("reduce", {"x": x.astype(np.float16)}, {"op": "sum", "keepdims": False}),
        cache._checked("reduce", {"x": x}, {"op": "sum", "keepdims": True}),
    ]
    assert len({text for _, text in (first, *others)}) == 4 and len(cache._calls) == 3
    with pytest.raises(GraphError, match="keepdims"):  # equal to False, and none
        cache._checked("reduce", {"x": x}, {"op": "sum", "keepdims": 0})
    with pytest.raises(GraphError, match="keepdims"):
        cache._checked("reduce", {"x": x}, {"op": "sum", "keepdims": 1})


def test_a_zero_of_either_sign_is_a_call_of_its_own(device):
    """0.0 and -0.0 are equal: neither a kept session nor a node of the same graph may stand for the other."""
    x = np.ones(2, np.float32)
    for value in (0.0, -0.0, 0.0):
        y = functional.pad(x, pads=(1, 0), value=value, device=device)
        assert y.tolist() == [0, 1, 1] and np.signbit(y[0]) == np.signbit(value)
    nodes = tuple(
        Node(name, "pad", ("x",), (name,), {"pads": (1, 0), "value": v}) for name, v in (("p", 0.0), ("n", -0.0))
    )
    with vkconv.load(Graph({"x": TensorSpec((2,), DType.F32)}, ("p", "n"), nodes, {}), device=device) as session:
        assert [bool(np.signbit(y[0])) for y in session.run({"x": x}).values()] == [False, True]


def test_a_driver_that_allows_few_allocations_bounds_the_sessions(device, monkeypatch):
    functional.softmax(np.ones((1, 3), np.float32), device=device)
    (one,) = cache._sessions.values()
    most = one.session.device.limit("maxMemoryAllocationCount")
    monkeypatch.setattr(cache, "_SHARE_OF_ALLOCATIONS", 2.5 * one.allocations / most)
    for size in (4, 5, 6):
        functional.softmax(np.ones((1, size), np.float32), device=device)
    assert [s.plan.inputs["x"][0].dims[1] for s in kept_sessions()] == [5, 6]


@pytest.mark.parametrize("nbytes", [-1, 1.5, "1G", True])
def test_a_bound_is_a_number_of_bytes(nbytes):
    with pytest.raises(UsageError, match="set_cache_bytes takes a number of bytes"):
        functional.set_cache_bytes(nbytes)


def test_weights_on_the_device_are_packed_once(device):
    x, w, b = drawn((2, 6, 9, 11), (4, 6, 3, 3), 4)
    want = functional.conv2d(x, w, b, padding=1, device=device)
    functional.clear_cache()
    there, bias = vkconv.array(w, device), vkconv.array(b, device)
    for operand in (x, x, vkconv.array(x, device)):
        np.testing.assert_allclose(functional.conv2d(operand, there, bias, padding=1), want, atol=1e-4)
    once, session = kept_sessions()
    assert (list(once.inputs), list(session.inputs)) == (["x", "w", "b"], ["x"])
    other = vkconv.array(2 * w, device)
    for _ in range(2):
        np.testing.assert_allclose(functional.conv2d(x, other, padding=1), 2 * (want - b[:, None, None]), atol=1e-4)
    assert len(kept_sessions()) == 4
    del there
    functional.softmax(x, device=device)  # whose session makes room of what nobody can ask for again
    assert session not in kept_sessions()


def test_weights_are_packed_once_for_all_shapes_of_what_they_meet(device):
    """Also where these come first with one shape and then with others; they go with the array."""
    (w,) = drawn((33, 35))
    there = vkconv.array(w, device)
    for rows in (5, 6, 7, 5, 8):
        (x,) = drawn((rows, 33), seed=rows)
        np.testing.assert_allclose(functional.matmul(x, there), x @ w, atol=1e-4)
    packed = [session for session in kept_sessions() if list(session.inputs) == ["a"]]
    assert len(kept_sessions()) == 1 + len(packed) == 5
    loaded = [session for session in packed if session.plan.load]
    assert len(loaded) == 1 and len({id(session._weights) for session in packed}) == 1
    del there
    gc.collect()
    assert not cache._packed and len(kept_sessions()) == 1


def test_results_on_their_way_plan_no_session_a_call(device):
    """In a chain of products each result comes once, in memory that others were in before."""
    x, *squares = drawn((9, 9), *[(9, 9)] * 6)
    opened = []
    for _ in range(2):
        there, want = vkconv.array(x, device), x
        for square in squares:
            there, want = functional.matmul(square, there, out="device"), square @ want
            want = want / np.abs(want).max()
            there = functional.mul(there, np.float32(1 / np.abs(there.numpy()).max()), out="device")
            np.testing.assert_allclose(there.numpy(), want, atol=1e-4)
        opened.append(len(kept_sessions()))
    assert opened == [2, 2]  # one of matmul, one of mul


def test_memory_that_is_written_again_is_other_weights(device):
    """A result that came twice was packed; the next one in its memory is another."""
    (a,) = drawn((5, 9))
    storages = set()
    for seed in range(4):
        (x,) = drawn((9, 7), seed=seed)
        b = functional.relu(x, device=device, out="device")
        storages.add(b.storage.serial)
        for _ in range(3):
            np.testing.assert_allclose(functional.matmul(a, b), a @ np.maximum(x, 0), atol=1e-4)
        (held,) = (kept for kept in cache._sessions.values() if kept.packed)
        assert not held.is_stale
        del b
        assert not any(kept.packed for kept in cache._sessions.values())
    assert len(storages) < 4


def test_any_operand_may_be_on_the_device(device):
    x, w = drawn((2, 3, 9), (4, 3, 3))
    there = vkconv.array(x, device)
    np.testing.assert_array_equal(functional.conv1d(there, vkconv.array(w, device)), functional.conv1d(x, w))
    last = vkconv.array(x.transpose(0, 2, 1), device)
    np.testing.assert_array_equal(functional.conv1d(last, w, layout="NWC"), functional.conv1d(x, w).transpose(0, 2, 1))
    assert functional.argmax(there) == x.argmax()
    np.testing.assert_allclose(functional.reduce(there[1], "sum", 0), x[1].sum(0), rtol=1e-5)
    np.testing.assert_array_equal(functional.softmax(there), functional.softmax(x))


def test_threads_take_turns(device):
    x, w = drawn((1, 3, 6, 6), (4, 3, 3, 3))
    want, results = [functional.conv2d(x * i, w, device=device) for i in range(4)], [None] * 4

    def work(i):
        for _ in range(5):
            results[i] = functional.conv2d(x * i, w, device=device)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(results, want)


def test_a_batch_of_nothing_is_nothing(device):
    x, w = drawn((0, 3, 6, 6), (4, 3, 3, 3))
    assert functional.conv2d(x, w, device=device).shape == (0, 4, 4, 4)
    assert functional.conv2d(x.transpose(0, 2, 3, 1), w, layout="NHWC", device=device).shape == (0, 4, 4, 4)
    assert functional.conv_transpose2d(x, w.transpose(1, 0, 2, 3), stride=2, device=device).shape == (0, 4, 13, 13)


X, W = drawn((1, 4, 6, 6), (4, 4, 3, 3))
REFUSED = [
    ({"x": X[0]}, InputError, r"conv2d takes x \(N, C, H, W\), not an array of shape \(4, 6, 6\)"),
    ({"x": [[1.0], [2.0, 3.0]]}, InputError, "x is not an array"),
    ({"x": X.astype(np.float64)}, GraphError, "numpy dtype float64"),
    ({"x": X.astype(np.int32), "w": W.astype(np.int32)}, GraphError, "one float dtype"),
    ({"x": X.astype(np.float16)}, GraphError, "one float dtype"),
    ({"x": "image"}, VkconvError, "shape"),
    ({"w": W[:, :3]}, GraphError, "x has 4 channels, but w has 3 per group"),
    ({"b": X[0, 0, 0]}, GraphError, "the bias is 6; with 4 output channels it is 4"),
    ({"groups": 3}, GraphError, "w has 4 per group in 3 groups"),
    ({"groups": 0}, GraphError, "groups is 0"),
    ({"groups": 1.5}, UsageError, "groups is 1.5; it is an integer"),
    ({"groups": (1, 2)}, UsageError, r"groups is \(1, 2\); it is one integer"),
    ({"stride": 0}, GraphError, r"stride is \(0, 0\)"),
    ({"stride": (1, -1)}, GraphError, r"stride is \(1, -1\)"),
    ({"stride": "2"}, UsageError, "stride is '2'"),
    ({"dilation": 0}, GraphError, r"dilation is \(0, 0\)"),
    ({"dilation": 3}, GraphError, "along h a kernel of 3 with dilation 3 spans 7, .* the output would be empty"),
    ({"padding": -1}, GraphError, "values >= 0"),
    ({"padding": "same"}, UsageError, r"padding is 'same' \(did you mean 'same_lower'\?\)"),
    ({"activation": "rellu"}, GraphError, "did you mean 'relu'"),
    ({"activation": "clip"}, UsageError, r"with its parameters it is \('clip', lo, hi\)"),
    ({"activation": ("relu", 1)}, UsageError, "with its parameters it is 'relu'"),
    ({"activation": ("clip", "0", 1)}, UsageError, "a tuple of a name and numbers"),
    ({"activation": 3}, UsageError, "activation is 3; it is a name"),
    ({"activation": ()}, UsageError, "activation is empty"),
    ({"activation": "prelu"}, GraphError, "prelu, which needs a slope: one value for each of the 4 output channels"),
    ({"activation": ("prelu", 0.2)}, UsageError, "with its parameters it is 'prelu'"),
    ({"activation": "prelu", "slope": np.float32(0.2)}, GraphError, "the slope is scalar; with 4 output"),
    ({"slope": X[0, 0, 0, :4]}, GraphError, "there is a slope of 4, but act is 'none'; only prelu takes one"),
    ({"layout": "NHCW"}, UsageError, "conv2d has no layout 'NHCW'"),
    ({"route": ""}, UsageError, "conv2d has no route ''"),
    ({"route": "wino"}, UsageError, "conv2d has no route 'wino'"),
    ({"route": "winograd", "stride": 2}, RouteError, "needs stride 1, and here it is 2x2"),
    ({"route": "im2col_gemm", "dilation": 2}, RouteError, "needs no dilation, and here it is 2x2"),
    ({"route": "pointwise"}, RouteError, "needs a 1x1 kernel, and here it is 3x3"),
    ({"route": "grouped"}, RouteError, "needs more than one group, and here it is 1"),
    ({"route": "depthwise"}, RouteError, "needs one input channel per group, and here it is 4"),
    ({"device": "no such device"}, VkconvError, "no such device"),
    ({"device": ["auto"]}, UsageError, "device is .*; it is an index, a name"),
    ({"x": None}, InputError, "conv2d needs x"),
]


@pytest.mark.parametrize(("change", "error", "message"), REFUSED, ids=lambda v: str(v)[:40] if type(v) is str else "")
@pytest.mark.share(1)
def test_what_is_refused_says_why(change, error, message, device):
    given = {"x": X, "w": W, "device": device, **change}
    with pytest.raises(error, match=message):
        functional.conv2d(given.pop("x"), given.pop("w"), given.pop("b", None), **given)
    assert not cache._sessions


def test_what_the_others_refuse(device):
    with pytest.raises(GraphError, match=r"output_padding is \(1,\)"):
        functional.conv_transpose2d(X, W, output_padding=1, device=device)
    with pytest.raises(RouteError, match="needs 8 outputs of a phase from at most 40 input columns"):
        functional.conv_transpose2d(X, W, dilation=40, route="transposed_tile", device=device)
    with pytest.raises(GraphError, match=r"along w dy has 6, but a convolution of x_shape's 7 makes 5: floor\("):
        functional.conv2d_backward_data(X, W, (8, 7), device=device)
    with pytest.raises(GraphError, match="x_shape is 3x4x8x8, but dy has 1 images and w 4 input channels"):
        functional.conv2d_backward_data(X, W, (3, 4, 8, 8), device=device)
    with pytest.raises(UsageError, match=r"with the layout NHWC it is \(H, W\) or \(N, H, W, C\)"):
        functional.conv2d_backward_data(X, W, (1, 8, 8), layout="NHWC", device=device)
    grouped = X.reshape(1, 6, 6, 2, 2), np.ones((2, 2, 3, 3, 5), np.float32)
    with pytest.raises(GraphError, match="dy and w have 2 groups, but groups is 4"):
        functional.conv2d_backward_data(*grouped, (8, 8), layout="NHWGC", groups=4, device=device)
    with pytest.raises(GraphError, match="have 2 groups, but groups is 1, and in x_shape 3"):
        functional.conv2d_backward_data(*grouped, (1, 8, 8, 3, 5), layout="NHWGC", device=device)
    with pytest.raises(InputError, match=r"w is \(G, K, Y, X, C\) of 2 groups as dy has, not of shape \(4, 4, 3, 3\)"):
        functional.conv2d_backward_data(grouped[0], W, (8, 8), layout="NHWGC", device=device)
    with pytest.raises(UsageError, match="conv1d takes one number"):
        functional.conv1d(X[0], W[0], stride=(1, 1), device=device)
    with pytest.raises(InputError, match=r"conv1d takes w \(C_out, C_in/groups, KW\)"):
        functional.conv1d(X[0], W, device=device)
