"""Unary, binary, cast, comparison and where ops: definitions against values worked out by hand, and refusals."""

import numpy as np
import pytest

from vkconv.core import Array, DType, GraphError
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.base import Op
from vkconv.ops.pointwise.binary import BINARY_OPS
from vkconv.ops.pointwise.cast import CAST
from vkconv.ops.pointwise.select import COMPARE_OPS, WHERE_OP
from vkconv.ops.pointwise.unary import UNARY_OPS

OPS = {op.name: op for op in (*UNARY_OPS, *BINARY_OPS, *COMPARE_OPS, CAST, WHERE_OP)}
F32, I64 = DType.F32, DType.I64


def spec(shape: tuple[int, ...], dtype: DType = F32) -> TensorSpec:
    return TensorSpec(shape, dtype)


def result(op: Op, attrs: dict[str, object] | None = None, **arrays: Array) -> Array:
    specs = {n: spec(a.shape, F32 if a.dtype == np.float64 else DType.of(a.dtype)) for n, a in arrays.items()}
    return op.reference(op.call(specs, attrs), arrays)[0]  # type: ignore[arg-type]


def test_integers_divide_toward_zero_and_survive_a_zero_divisor() -> None:
    a, b = np.array([7, -7, 7, -7, 5]), np.array([2, 2, -2, -2, 0])
    assert result(OPS["div"], a=a, b=b).tolist() == [3, -3, -3, 3, 0]
    assert result(OPS["fmod"], a=a, b=b).tolist() == [1, -1, 1, -1, 0]
    assert result(OPS["mod"], a=a, b=b).tolist() == [1, 1, -1, -1, 0]


def test_integer_arithmetic_is_exact_past_float_precision() -> None:
    big = np.array([2**62 + 1, -(2**62) - 1])
    assert result(OPS["add"], a=big, b=np.array(1)).tolist() == [2**62 + 2, -(2**62)]
    assert result(OPS["neg"], x=big).tolist() == [-(2**62) - 1, 2**62 + 1]
    assert result(OPS["sign"], x=big).dtype == np.int64


def test_prelu_takes_its_slope_per_channel() -> None:
    x = np.array([[-1.0, 2.0], [-3.0, -4.0]])
    assert np.allclose(result(OPS["prelu"], x=x, slope=np.array([[0.5], [0.1]])), [[-0.5, 2.0], [-0.3, -0.4]])


def test_extremes_and_comparisons_with_nan() -> None:
    a, b = np.array([np.nan, 1.0, 2.0]), np.array([0.0, np.nan, 3.0])
    assert np.isnan(result(OPS["maximum"], a=a, b=b)[:2]).all()
    assert np.isnan(result(OPS["minimum"], a=a, b=b)[:2]).all()
    assert result(OPS["less"], a=a, b=b).tolist() == [False, False, True]
    assert result(OPS["greater_equal"], a=a, b=b).tolist() == [False, False, False]


@pytest.mark.parametrize("halves", [(), (1,), (5,)])
def test_a_power_of_a_half_is_that_of_c_however_it_broadcasts(halves: tuple[int, ...]) -> None:
    a = np.array([-np.inf, np.inf, -0.0, 4.0, -4.0])
    made = result(OPS["pow"], a=a, b=np.full(halves, 0.5))
    np.testing.assert_array_equal(made, [np.inf, np.inf, 0.0, 2.0, np.nan])
    assert not np.signbit(made[2])


def test_cast_saturates_and_takes_nan_for_zero() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 2.0**31, -(2.0**31), -1.9, 1.9, 3e9])
    assert result(CAST, {"to": "i32"}, x=x).tolist() == [0, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), -1, 1, 2**31 - 1]
    assert result(CAST, {"to": "u32"}, x=x).tolist() == [0, 2**32 - 1, 0, 2**31, 0, 0, 1, 3000000000]
    assert result(CAST, {"to": "i64"}, x=np.array([1e19, -1e19, np.nan])).tolist() == [2**63 - 1, -(2**63), 0]
    assert result(CAST, {"to": "bool"}, x=np.array([0.0, -0.0, 0.1, np.nan])).tolist() == [False, False, True, True]


def test_where_broadcasts_all_three() -> None:
    cond = np.array([[True], [False]])
    assert result(WHERE_OP, cond=cond, a=np.array([1, 2]), b=np.array(9)).tolist() == [[1, 2], [9, 9]]


def test_parameters_default_to_those_of_onnx() -> None:
    x = np.array([-2.0, 0.5, 2.0])
    assert np.allclose(result(OPS["leaky_relu"], x=x), [-0.02, 0.5, 2.0])
    assert np.allclose(result(OPS["hard_sigmoid"], x=x), [0.1, 0.6, 0.9])
    assert np.allclose(result(OPS["clip"], x=x), x)
    assert np.allclose(result(OPS["clip"], {"a": 1.0, "b": -1.0}, x=x), -1.0)


@pytest.mark.parametrize(
    ("name", "specs", "attrs", "message"),
    [
        ("add", {"a": spec((2, 3)), "b": spec((4,))}, {}, "2x3 and 4 do not broadcast"),
        ("add", {"a": spec((2,)), "b": spec((2,), I64)}, {}, "a is f32, b is i64"),
        ("add", {"a": spec((2,), DType.BOOL), "b": spec((2,), DType.BOOL)}, {}, "operands are bool"),
        ("bit_and", {"a": spec((2,)), "b": spec((2,))}, {}, "operands are f32; cast them to i32"),
        ("prelu", {"x": spec((2, 3)), "slope": spec((4, 2, 3))}, {}, "slope 4x2x3:f32 does not broadcast"),
        ("sqrt", {"x": spec((2,), I64)}, {}, "x is i64; it takes a float type"),
        ("relu", {}, {}, "needs the operand 'x'"),
        ("relu", {"x": spec((2,))}, {"a": 1.0}, "relu has no attribute 'a'"),
        ("cast", {"x": spec((2,))}, {"to": "f23"}, "did you mean 'f32'"),
        ("where", {"cond": spec((2,)), "a": spec((2,)), "b": spec((2,))}, {}, "cond is f32; it must be bool"),
        ("add", {"a": spec((2, 1) * 5), "b": spec((1, 2) * 5)}, {}, "10 dimensions stay after merging; at most 8"),
        ("add", {"a": TensorSpec(("n", 2)), "b": spec((2,))}, {}, "unbound dimensions"),
    ],
)
def test_illegal_calls_are_named(
    name: str, specs: dict[str, TensorSpec], attrs: dict[str, object], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        OPS[name].call(specs, attrs)  # type: ignore[arg-type]
