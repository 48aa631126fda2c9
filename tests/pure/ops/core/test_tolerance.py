"""What is allowed, element by element: small results are held to their own size, unless something cancelled."""

import ml_dtypes
import numpy as np
import pytest

from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.core.tolerance import Tolerance, tolerance

ULP = 2.0**-23
NORMAL = 2.0**-126


def allowed(text, **arrays):
    """The tolerance of a call's first output at these operands, and the reference."""
    call = parse_call(text, OPS)
    op = OPS[call.op]
    operands = dict.fromkeys(call.operands) | {n: np.asarray(a, np.float64) for n, a in arrays.items()}
    with np.errstate(all="ignore"):
        want = np.asarray(op.reference(call, operands)[0])
    return tolerance(op, call, operands, want), want


@pytest.mark.parametrize("op", ["exp", "sin", "tanh", "sqrt", "silu", "reciprocal", "erf"])
def test_a_small_element_beside_a_large_one_is_held_to_its_own_size(op):
    made, want = allowed(f"{op}:x=3", x=[1e-6, 0.5, 80.0])
    np.testing.assert_allclose(made.absolute, 4.5 * ULP * np.abs(want) + NORMAL, rtol=1e-12)


def test_sums_and_differences_round_once():
    made, want = allowed("sub:a=2,b=2", a=[1.0, 1e6], b=[1.0 - 1e-3, 1.0])
    np.testing.assert_allclose(made.absolute, 4.5 * ULP * np.abs(want) + NORMAL, rtol=1e-12)


@pytest.mark.parametrize(
    ("text", "x", "addend"),
    [
        ("gelu:x=2", [-4.0, 1e4], 2.0),  # half of x times 1 - erf
        ("gelu_tanh:x=2", [-4.0, 1e4], 2.0),
        ("hard_swish:x=2", [-2.999, 1e4], 2.999 / 2),
        ("hard_sigmoid:x=2", [-2.499, 1e4], 0.5),
    ],
)
def test_what_cancels_on_the_way_may_be_off_by_the_addends_rounding(text, x, addend):
    made, want = allowed(text, x=x)
    assert abs(want[0]) < 1e-3
    assert made.absolute[0] == pytest.approx(4.5 * ULP * (addend + abs(want[0])))


def test_a_difference_to_the_mean_that_the_bias_cancels():
    one = np.ones(1)
    made, want = allowed(
        "batch_norm:x=1x1x2,scale=1,bias=1,mean=1,var=1,eps=0",
        x=[[[5.0, 1e4]]], scale=one, bias=-4.0 * one, mean=one, var=one,
    )  # fmt: skip
    assert want[0, 0, 0] == 0
    assert made.absolute[0, 0, 0] == pytest.approx(6 * ULP * 8)


def test_softmax_is_relative_and_its_logarithm_absolute_where_it_is_small():
    x = [[0.0, -20.0, -3.0, -1.0]]
    made, want = allowed("softmax:x=1x4", x=x)
    np.testing.assert_allclose(made.magnitude, want * [[1, 6, 1.75, 1.25]], rtol=1e-12)
    made, want = allowed("softmax:x=1x4,log=1", x=x)
    np.testing.assert_allclose(made.magnitude, np.abs(want) + 1, rtol=1e-12)


@pytest.mark.parametrize("name", ["prod", "sum_square", "l1", "l2", "max", "min"])
def test_what_does_not_cancel_is_relative(name):
    x = [[1e-4, 3e-4, -2e-4], [1e3, -2e3, 5e3]]
    made, want = allowed(f"reduce:x=2x3,op={name},axes=1,keep=0", x=x)
    terms = 1 if name in ("max", "min") else 3
    np.testing.assert_allclose(made.absolute, (0.5 * terms + 4) * ULP * np.abs(want) + NORMAL, rtol=1e-12)


@pytest.mark.parametrize(
    ("text", "count"),
    [("reduce:x=3x3,op=sum,axes=1", 1), ("reduce:x=3x3,op=mean,axes=1", 3), ("pool2d:x=1x1x3x3,kind=avg,k=1x3", 3)],
)
def test_sums_go_by_the_largest_result_and_never_beyond_what_is_certain(text, count):
    rows = np.array([[1.0, -1.0, 1e-6], [10.0, 10.0, -19.0], [1e3, 2e3, 3e3]])
    made, want = allowed(text, x=rows.reshape(parse_call(text, OPS).shape("x")))
    want = want.ravel()
    certain = 5.5 * ULP * np.abs(rows).sum(-1) / count
    np.testing.assert_allclose(made.absolute.ravel()[:2], certain[:2], rtol=1e-9)
    assert made.absolute.ravel()[2] == pytest.approx(5.5 * ULP * want[2])


def test_a_sum_of_few_results_may_be_off_by_what_cancelled():
    """Of graph 15241 of seed 5000000: 22 numbers of both signs came to 0.149."""
    x = np.tile([2.0, -2.0], 500)
    x[-1] = -1.9
    made, _ = allowed("reduce:x=1000,op=sum", x=x)
    assert made.absolute[0] == pytest.approx((95 + 4) * ULP * np.abs(x).sum())
    image, batch = (1, 1000, 1, 1), (1000, 1, 1, 1)
    for text, names, shape, other in (
        ("matmul:a=1x1000,b=1000x1,alpha=-0.5", "a b", (1, 1000), (1000, 1)),
        ("conv2d:x=1x1000x1x1,w=1x1000x1x1,out_scale=0.5", "x w", image, image),
        ("conv2d_backward_weight:x=1000x1x1x1,dy=1000x1x1x1,w_shape=1x1x1x1,scale=-0.5", "x dy", batch, batch),
    ):
        first, second = names.split()
        halves, half = allowed(text, **{first: x.reshape(shape), second: np.ones(other)})
        assert abs(half.ravel()[0]) == pytest.approx(0.05)
        assert halves.absolute.ravel()[0] == pytest.approx(0.5 * made.absolute[0])


@pytest.mark.parametrize("terms", [2, 22, 577, 4608])
def test_every_order_of_adding_is_within_what_is_allowed_and_a_missing_addend_is_not(terms):
    rng = np.random.default_rng(terms)
    x = rng.uniform(-1, 1, (40, terms)).astype(np.float32)
    x -= x.mean(-1, keepdims=True, dtype=np.float64).astype(np.float32)  # hardly anything is left
    made, want = allowed(f"reduce:x=40x{terms},op=sum,axes=1", x=x)
    tree = np.pad(x, ((0, 0), (0, 8192 - terms)))
    while tree.shape[1] > 1:
        tree = tree[:, 0::2] + tree[:, 1::2]
    for total in (np.cumsum(x, -1)[:, -1:], np.cumsum(np.sort(x), -1)[:, -1:], tree):
        assert (np.abs(total - want) <= made.absolute).all()
    assert (made.absolute[:, 0] < 0.5 * np.abs(x).mean(-1)).all()


def test_a_long_sum_that_ends_early_is_noticed():
    """llvmpipe ends loops after 65,535 turns."""
    x = np.random.default_rng(0).standard_normal((1, 3_000_000))
    made, want = allowed("reduce:x=1x3000000,op=sum,axes=1", x=x)
    assert abs(x[0, :65535].sum() - want[0, 0]) > made.absolute[0, 0]


def test_a_mean_beside_what_it_normalizes_may_be_off_by_what_cancelled_in_it():
    x = np.array([[2.0, -2.0, 1.0, -1.0]])
    call = parse_call("layer_norm:x=1x4,stats=1", OPS)
    made = tolerance(OPS["layer_norm"], call, {"x": x}, np.zeros((1, 1)), output="mean")
    assert made.absolute[0, 0] == pytest.approx(6 * ULP * (1.5 + 1.5))


def test_an_activation_moves_what_its_sum_may_be_off_by():
    a, b = np.array([[2.0, -2.0, 1e-3]]), np.ones((3, 1))
    plain, _ = allowed("matmul:a=1x3,b=3x1", a=a, b=b)
    steep, _ = allowed("matmul:a=1x3,b=3x1,act=leaky_relu,act_a=10", a=-a, b=b)
    flat, _ = allowed("matmul:a=1x3,b=3x1,act=sigmoid", a=a, b=b)
    assert steep.absolute[0, 0] == pytest.approx(10 * plain.absolute[0, 0], rel=1e-3)
    assert flat.absolute[0, 0] == pytest.approx(5.5 * ULP * 4 / 4, rel=1e-3)


def test_products_go_by_the_largest_one_only_where_something_follows_them():
    a, b = [[1e-3], [10.0]], [[1.0, 2.0]]
    made, want = allowed("matmul:a=2x1,b=1x2", a=a, b=b)
    np.testing.assert_array_equal(made.magnitude, np.abs(want))
    for text in ("matmul:a=2x1,b=1x2,act=gelu", "matmul:a=2x2,b=2x2"):
        operands = {"a": np.repeat(a, 2 if "2x2" in text else 1, 1), "b": np.repeat(b, 2 if "2x2" in text else 1, 0)}
        made, want = allowed(text, **operands)
        assert set(made.magnitude.ravel()) == {want.max()}


def test_integers_and_bools_are_exact():
    call = parse_call("add:a=3:i32,b=3:i32", OPS)
    made = tolerance(OPS["add"], call, {}, np.arange(3))
    assert (made.relative, made.floor, made.absolute.tolist()) == (0.0, 0.0, [0.0, 0.0, 0.0])


def test_nothing_is_allowed_where_the_reference_is_no_number():
    made, _ = allowed("log:x=3", x=[-1.0, 0.0, 2.0])
    assert made.absolute[:2].tolist() == [NORMAL, NORMAL]


def test_half_precision_rounds_to_its_own_subnormals():
    call = parse_call("relu:x=2,dtype=f16", OPS)
    x = np.array([6e-8, 1.0])
    made = tolerance(OPS["relu"], call, {"x": x}, x)
    assert isinstance(made, Tolerance)
    assert made.floor == 2.0**-25 and made.relative == pytest.approx(2.0**-11, rel=1e-2)


@pytest.mark.parametrize("count", [7, 5000])
@pytest.mark.parametrize(("op", "steps"), [("sum", 2), ("mean", 2), ("max", 1), ("min", 1)])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_products_of_16_bits_may_be_rounded_before_they_are_reduced(dtype, op, steps, count):
    """All of a row are one number, which the type cannot hold, so that all are rounded the same way: storing them and
    then their sum may be off by half a unit each. What is compared is rounded once."""
    name, unit = ("f16", 2.0**-11) if dtype is np.float16 else ("bf16", 2.0**-8)
    product = 1 + 0.99 * unit  # just below the middle of two numbers
    made, want = allowed(
        f"gemm_reduce:a=1x1,b=1x{count},axis=n,op={op},dtype={name}", a=[[product]], b=np.ones((1, count))
    )
    rounded = np.full(count, product).astype(dtype).astype(np.float64)
    in_two = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}[op](rounded)
    assert rounded[0] == 1 and abs(in_two - want[0]) <= made.absolute[0]
    certain = steps * unit * want[0]
    assert 0.99 * certain <= made.absolute[0] <= 1.1 * certain


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_only_sums_of_16_bits_are_allowed_more(dtype):
    """Numbers that cancel: each may be off by half a unit, so that all may by as much as their sizes come to."""
    product = np.tile([3.0, -3.0], 500)
    made, want = allowed(f"gemm_reduce:a=1x1,b=1x1000,axis=n,dtype={dtype}", a=[[1.0]], b=product[None])
    assert want[0] == 0
    unit = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 0.0}[dtype]
    assert made.absolute[0] == pytest.approx(unit * 3000, rel=0.1) if unit else made.absolute[0] < 1e4 * ULP * 3000
