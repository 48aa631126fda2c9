"""Functions of every op: on numpy arrays, on arrays that stay on the device, and refusals."""

import gc
import inspect

import numpy as np
import pytest
from functional_kit import drawn, holds

import vkconv
from vkconv import functional
from vkconv.check import compare, expect
from vkconv.check.inputs import draw
from vkconv.core import DType, GraphError, InputError, UsageError
from vkconv.functional import cache
from vkconv.functional.generated import ELSEWHERE, HOST_ONLY, function_of
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call

pytestmark = pytest.mark.gpu
GENERATED = [name for name in OPS if getattr(functional, name, None).__class__.__name__ == "function"]
GENERATED = [name for name in GENERATED if getattr(functional, name).__module__.endswith(".generated")]


@pytest.fixture(autouse=True)
def released():
    yield
    functional.clear_cache()


def test_every_op_has_a_function():
    elsewhere = {name for name, others in ELSEWHERE.items() if all(other in functional.__all__ for other in others)}
    missing = set(OPS) - {*functional.__all__, *HOST_ONLY, *elsewhere}
    assert not missing and len(functional.__all__) == len(set(functional.__all__))
    assert all(callable(getattr(functional, name)) for name in functional.__all__)
    for name in HOST_ONLY:  # nothing of theirs depends on the elements of an array
        op = OPS[name]
        assert not op.routes or all(operand.host for operand in op.operands)


def arguments(call):
    """A call as arguments of its function."""
    op = OPS[call.op]
    names = inspect.signature(getattr(functional, call.op)).parameters
    attrs = {name: value for name, value in call.attrs.items() if name in names}
    if call.attrs.get("act", "none") != "none":
        needed = [call.attrs[f"act_{key}"] for key in "ab"][: len(OPS[call.attrs["act"]].attrs)]
        attrs["activation"] = (call.attrs["act"], *needed)
    arrays = draw(call, 7)
    starred = any(operand.variadic for operand in op.operands)
    placed = [arrays.pop(name) for name in list(arrays)] if starred else []
    return placed, {**arrays, **attrs}


@pytest.mark.parametrize("name", GENERATED)
def test_generated_functions_give_what_the_reference_does(name, device):
    op, function = OPS[name], getattr(functional, name)
    text = next(text for text in op.cases if not parse_call(text, OPS).is_empty)
    call = parse_call(text, OPS)
    placed, named = arguments(call)
    there = {key: vkconv.array(a, device) if isinstance(a, np.ndarray) else a for key, a in named.items()}
    ways = [
        function(*placed, **named, device=device),
        function(*[vkconv.array(a, device) for a in placed], **there, out="device"),
    ]
    wanted = expect(call, draw(call, 7))
    for result in ways:
        outputs = list(result) if isinstance(result, tuple) else [result]
        outputs = [array if isinstance(array, np.ndarray) else array.numpy() for array in outputs]
        assert isinstance(result, tuple) == (op.variadic_outputs or len(call.outputs) > 1)
        assert compare(call, outputs, wanted).problem == "", text
    assert all(isinstance(a, vkconv.DeviceArray) for a in (ways[1] if isinstance(ways[1], tuple) else [ways[1]]))


def test_what_is_prepacked_of_no_operand_needs_no_constant(device):
    """The table of zero points of a product without any, between two inputs."""
    rng = np.random.default_rng(7)
    a, b = rng.integers(0, 256, (5, 7)).astype(np.uint8), rng.integers(-128, 128, (7, 6)).astype(np.int8)
    y = functional.matmul_integer(a, b, device=device)
    np.testing.assert_array_equal(y, a.astype(np.int32) @ b.astype(np.int32))


SOME = np.ones((2, 3), np.float32)
IMAGES, TAPS = np.ones((1, 4, 6, 6), np.float32), np.ones((4, 4, 3, 3), np.float32)


@pytest.mark.parametrize(
    ("function", "operands", "given", "message"),
    [
        ("relu", (SOME,), {"out": SOME}, "out is array.*; it is 'host', for numpy arrays, or 'device'"),
        ("conv2d", (IMAGES, TAPS), {"layout": SOME}, "conv2d has no layout array"),
        ("conv2d", (IMAGES, TAPS), {"activation": SOME}, "activation is array.*; it is a name"),
        ("conv2d", (IMAGES, TAPS), {"activation": ("clip", 0, 10**400)}, "activation is a number of more than 1024 b"),
        ("conv2d_backward_weight", (IMAGES, IMAGES, (4, 4, 1, 1)), {"route": SOME}, "route is array"),
        ("conv2d_backward_weight", (IMAGES, IMAGES, (4, 4, 1, 1)), {"route": ""}, "has no route ''"),
        ("conv2d_backward_weight", (IMAGES, IMAGES, (4, 4, 1, 1)), {"policy": SOME}, "policy is array"),
        ("matmul", (SOME, SOME), {"trans_b": "no"}, "trans_b is 'no'; it is True or False"),
        (
            "matmul",
            (SOME, SOME.T),
            {"alpha": 10**400},
            "alpha is a number of more than 1024 bits, which no float holds",
        ),
        ("reduce", (SOME,), {"keepdims": SOME}, "keepdims is array.*; it is True or False"),
        ("batch_norm", (SOME, SOME[0], SOME[0]), {"training": SOME}, "training is array.*; it is True or False"),
        ("resize", (IMAGES,), {"scales": np.array(2.0)}, r"scales is array\(2.\); it is a number"),
        ("matmul", (SOME, None), {}, "matmul needs b; it is None"),
        ("gemm_reduce", (SOME, None), {}, "gemm_reduce needs b; it is None"),
    ],
)
@pytest.mark.share(1)
def test_what_is_no_word_number_or_truth_is_refused(function, operands, given, message, device):
    """An array above all, which has no one truth and is compared element by element."""
    with pytest.raises((UsageError, InputError), match=f"(?s){message}"):
        getattr(functional, function)(*operands, device=device, **given)


def test_flags_may_be_numbers():
    assert functional.reduce(SOME, "sum", 1, 1).shape == (2, 1)
    assert functional.matmul(SOME, SOME, trans_b=np.True_).shape == (2, 2)


def test_generated_functions_say_what_they_take():
    x = drawn((3, 5))[0]
    with pytest.raises(UsageError, match=r"got an unexpected keyword argument 'alpha'.*it takes x, a, route"):
        functional.elu(x, alpha=1.0)
    with pytest.raises(UsageError, match="missing a required argument: 'b'"):
        functional.add(x)
    with pytest.raises(InputError, match="add needs b; it is None"):
        functional.add(x, None)
    with pytest.raises(InputError, match="at least one array"):
        functional.concat(axis=0)
    with pytest.raises(InputError, match=r"takes arrays one by one, not a list of 2: concat\(a, b\)"):
        functional.concat([x, x], axis=0)
    with pytest.raises(InputError, match="matmul: b is a scalar, of rank 0"):
        functional.matmul(x, np.float32(3))
    with pytest.raises(GraphError, match=r"relu: x: numpy dtype float64 .* as np.asarray\(values, np.float32\) does"):
        functional.relu([1.0, 2.0])
    with pytest.raises(UsageError, match="axis is 'x'"):
        functional.concat(x, x, axis="x")
    with pytest.raises(UsageError, match="largest is 1; it is True or False"):
        functional.topk(x, 2, largest=1)
    with pytest.raises(UsageError, match="it is a word"):
        functional.pool2d(x, 3, (2, 2))
    with pytest.raises(GraphError):
        functional.add(x, x[:, :3])
    with pytest.raises(UsageError, match="out is 'gpu'"):
        functional.relu(x, out="gpu")
    with pytest.raises(AttributeError, match="did you mean 'relu'"):
        functional.relo  # noqa: B018
    assert functional.cast(x, np.float16).dtype == np.float16
    assert (functional.pool2d(x.reshape(1, 1, 3, 5), "max", 2, padding="same_upper", stride=2).shape) == (1, 1, 2, 3)
    assert function_of(OPS["relu"]).__doc__.startswith(OPS["relu"].doc)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_operands_of_rank_1_are_as_numpy_has_them(dtype, device):
    row, stack, column = (a.astype(DType(dtype).numpy) for a in drawn(7, (2, 3, 7, 5), 5))
    pairs = [(row, stack), (stack, column), (row, row), (stack[0, 0], column), (row, stack[0, 0])]
    for a, b in pairs:
        want = np.matmul(a.astype(np.float64), b.astype(np.float64))
        for y in (
            functional.matmul(a, b, device=device),
            functional.matmul(vkconv.array(a, device), vkconv.array(b, device), out="device").numpy(),
        ):
            assert (y.shape, y.dtype) == (want.shape, a.dtype)
            assert np.abs(y - want).max() <= {"f32": 1e-5, "f16": 2e-2}[dtype]
    turned = functional.matmul(row, np.ascontiguousarray(stack[0, 0].T), trans_a=True, trans_b=True, device=device)
    assert (turned == functional.matmul(row, stack[0, 0], device=device)).all()
    with pytest.raises(GraphError):
        functional.matmul(row, column, device=device)


def test_reductions_of_rank_0_are_as_numpy_has_them(device):
    x = np.float32(-2.5)
    for op, want in {"sum": -2.5, "mean": -2.5, "max": -2.5, "l1": 2.5, "sum_square": 6.25}.items():
        for y in (functional.reduce(x, op, device=device), functional.reduce(x, op, keepdims=True, device=device)):
            assert y.shape == () and y == np.float32(want)
    assert functional.reduce(drawn((3, 5))[0], device=device).shape == ()
    assert functional.argmax(x, device=device).shape == ()
    assert functional.reduce(vkconv.array(x, device), out="device").shape == ()


@pytest.mark.parametrize(("n", "groups"), [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)])
def test_gradients_of_transposed_convolutions_by_their_weights(n, groups, device):
    """Against the definition: y[o] += x[c] w[c, o] is linear in w, so that dw is the sum of x times dy."""
    rng = np.random.default_rng(n)
    c_in, c_out, extent, kernel, stride, pad, more = 4, 6, (5, 4, 3)[:n], (3, 2, 2)[:n], 2, 1, 1
    full = tuple((e - 1) * stride - 2 * pad + k + more for e, k in zip(extent, kernel, strict=True))
    x = rng.integers(-3, 4, (2, c_in, *extent)).astype(np.float32)
    dy = rng.integers(-3, 4, (2, c_out, *full)).astype(np.float32)
    shape = (c_in, c_out // groups, *kernel)
    want = np.zeros(shape)
    for at in np.ndindex(*extent):
        for tap in np.ndindex(*kernel):
            place = tuple(stride * a + t - pad for a, t in zip(at, tap, strict=True))
            if all(0 <= p < f for p, f in zip(place, full, strict=True)):
                for c in range(c_in):
                    first = c // (c_in // groups) * (c_out // groups)
                    outs = dy[(slice(None), slice(first, first + c_out // groups), *place)]
                    want[(c, slice(None), *tap)] += (x[(slice(None), c, *at)][:, None] * outs).sum(0)
    function = getattr(functional, f"conv_transpose{n}d_backward_weight")
    assert (function(x, dy, shape, stride, pad, groups=groups, device=device) == want).all()
    there = function(vkconv.array(x, device), vkconv.array(dy, device), shape, stride, pad, groups=groups, out="device")
    assert (there.numpy() == want).all()
    d = rng.integers(-3, 4, shape).astype(np.float32)
    y = function(x, dy, shape, stride, pad, groups=groups, scale=2.0, beta=-3.0, d=d, device=device)
    assert (y == 2 * want - 3 * d).all()


def test_results_of_functions_stay_on_the_device_in_every_layout(device):
    x, w, b = drawn((2, 6, 9, 11), (4, 3, 3, 2), 4)
    plain = functional.conv2d(x, w, b, groups=2, device=device)
    there = [vkconv.array(a, device) for a in (np.ascontiguousarray(x.transpose(0, 2, 3, 1)), w, b)]
    y = functional.conv2d(*there, groups=2, layout="NHWC", out="device")
    assert isinstance(y, vkconv.DeviceArray) and y.shape == (2, 7, 10, 4)
    holds("conv2d:x=2x6x9x11,w=4x3x3x2,b=4,g=2", (x, w, b), np.ascontiguousarray(y.numpy().transpose(0, 3, 1, 2)))
    z = functional.relu(functional.conv2d(vkconv.array(x, device), *there[1:], groups=2, out="device"), out="device")
    assert (z.numpy() == np.maximum(plain, 0)).all()
    part = z[1, 2:4]  # a view: nothing is copied
    assert part.storage is z.storage
    assert (functional.neg(part).reshape(2, 7, 10) == -z.numpy()[1, 2:4]).all()
    dw = functional.conv2d_backward_weight(
        *(vkconv.array(a, device) for a in drawn((2, 7, 5, 2, 3), (2, 6, 4, 2, 2), seed=4)),
        (2, 2, 2, 2, 3),
        layout="NHWGC",
        out="device",
    )
    again = functional.conv2d_backward_weight(
        *drawn((2, 7, 5, 2, 3), (2, 6, 4, 2, 2), seed=4), (2, 2, 2, 2, 3), layout="NHWGC", device=device
    )
    assert (dw.numpy() == again).all()
    dx = functional.conv1d_backward_data(
        *(vkconv.array(a, device) for a in drawn((2, 4, 6), (4, 3, 3))), 8, out="device"
    )
    assert (dx.numpy() == functional.conv1d_backward_data(*drawn((2, 4, 6), (4, 3, 3)), 8, device=device)).all()


def test_sessions_of_packed_weights_go_with_the_weights(device):
    x, w = drawn((1, 3, 9, 9), (5, 3, 3, 3))
    there = vkconv.array(w, device)
    first = functional.conv2d(x, there)
    for _ in range(2):
        np.testing.assert_allclose(functional.conv2d(x, there), first, atol=1e-5)
    assert [len(kept.packed) for kept in cache._sessions.values()] == [0, 1]
    del there
    gc.collect()
    assert [len(kept.packed) for kept in cache._sessions.values()] == [0]
