"""reduce, softmax, layer_norm, batch_norm and resize: definitions against independent ones, and refusals."""

import math

import numpy as np
import pytest

from vkconv.core import DType, GraphError
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.base import Op
from vkconv.ops.norm.batch import BATCH_NORM
from vkconv.ops.norm.normalize import LAYER_NORM
from vkconv.ops.norm.softmax import SOFTMAX
from vkconv.ops.reduce.op import FUNCTIONS, REDUCE
from vkconv.ops.spatial.resize import RESIZE

RNG = np.random.default_rng(11)
NAIVE = {
    "sum": lambda v: math.fsum(v),
    "mean": lambda v: math.fsum(v) / len(v),
    "max": max,
    "min": min,
    "prod": math.prod,
    "sum_square": lambda v: math.fsum(a * a for a in v),
    "l1": lambda v: math.fsum(map(abs, v)),
    "l2": lambda v: math.hypot(*v),
    "log_sum": lambda v: math.log(math.fsum(v)),
    "log_sum_exp": lambda v: math.log(math.fsum(map(math.exp, v))),
}


def spec(*shape: int, dtype: DType = DType.F32) -> TensorSpec:
    return TensorSpec(shape, dtype)


def test_every_function_has_a_naive_one() -> None:
    assert NAIVE.keys() == FUNCTIONS.keys()


@pytest.mark.parametrize("name", NAIVE)
def test_reduce_agrees_with_plain_python(name: str) -> None:
    x = RNG.uniform(0.5, 2.0, (3, 4, 5))
    call = REDUCE.call({"x": spec(3, 4, 5)}, {"op": name, "axes": (0, -1), "keepdims": False})
    got = REDUCE.reference(call, {"x": x})[0]
    want = [NAIVE[name](x[:, j, :].reshape(-1).tolist()) for j in range(4)]
    assert np.allclose(got, want, rtol=1e-12)


def test_reduce_of_nothing_and_of_integers() -> None:
    call = REDUCE.call({"x": spec(2, 0)}, {"op": "max", "axes": (1,)})
    assert REDUCE.reference(call, {"x": np.zeros((2, 0))})[0].tolist() == [[-np.inf], [-np.inf]]
    call = REDUCE.call({"x": spec(2, dtype=DType.I64)}, {"op": "prod", "keepdims": False})
    assert REDUCE.reference(call, {"x": np.array([2**40, 3])})[0] == 3 * 2**40
    call = REDUCE.call({"x": spec(2, dtype=DType.I64)}, {"op": "mean", "keepdims": False})
    assert REDUCE.reference(call, {"x": np.array([-4, -3])})[0] == -3


def test_softmax_is_stable_and_sums_to_one() -> None:
    x = np.array([[1000.0, 1001.0, 999.0], [-1000.0, -np.inf, -1000.0]])
    y = SOFTMAX.reference(SOFTMAX.call({"x": spec(2, 3)}), {"x": x})[0]
    assert np.allclose(y.sum(1), 1.0) and np.allclose(y[1], [0.5, 0.0, 0.5])
    logs = SOFTMAX.reference(SOFTMAX.call({"x": spec(2, 3)}, {"log": True}), {"x": x})[0]
    assert np.allclose(np.exp(logs), y) and logs[1, 1] == -np.inf


def test_norms_give_the_statistics_they_promise() -> None:
    x = RNG.normal(3.0, 2.0, (4, 50))
    call = LAYER_NORM.call({"x": spec(4, 50), "scale": spec(50), "bias": None}, {"eps": 0.0})
    y = LAYER_NORM.reference(call, {"x": x, "scale": np.full(50, 2.0), "bias": None})[0]
    assert np.allclose(y.mean(1), 0.0) and np.allclose(y.std(1), 2.0)
    names = ("scale", "bias", "mean", "var")
    call = BATCH_NORM.call({"x": spec(1, 2, 1), **{n: spec(2) for n in names}}, {"eps": 0.0})
    values = dict(zip(names, map(np.array, ([2.0, 3.0], [1.0, 0.0], [5.0, 6.0], [4.0, 9.0])), strict=True))
    assert BATCH_NORM.reference(call, {"x": np.array([[[9.0], [3.0]]]), **values})[0].reshape(-1).tolist() == [
        5.0,
        -3.0,
    ]


def row(n_out: int, **attrs: object) -> list[float]:
    """[10, 20, 30, 40] resized to n_out."""
    call = RESIZE.call({"x": spec(1, 1, 4)}, {"sizes": (1, 1, n_out), **attrs})  # type: ignore[dict-item]
    values = RESIZE.reference(call, {"x": np.array([[[10.0, 20.0, 30.0, 40.0]]])})[0]
    return [round(float(v), 6) for v in values.reshape(-1)]


def test_resize_by_hand() -> None:
    assert row(8, coordinate="asymmetric", nearest="floor") == [10, 10, 20, 20, 30, 30, 40, 40]
    assert row(2) == [10, 30]  # half a pixel between two: round_prefer_floor takes the first
    assert row(2, nearest="round_prefer_ceil") == [20, 40]
    assert row(8, mode="linear") == [10, 12.5, 17.5, 22.5, 27.5, 32.5, 37.5, 40]
    assert row(7, mode="linear", coordinate="align_corners") == [10, 15, 20, 25, 30, 35, 40]
    assert row(1, mode="linear", coordinate="pytorch_half_pixel") == [10]
    assert row(1, mode="linear") == [25]


def test_resize_by_scales_rounds_the_size_down_in_f32() -> None:
    scales = (1.0, 1.0, float(np.float32(0.7)), float(np.float32(0.3)))
    assert RESIZE.call({"x": spec(1, 1, 10, 9)}, {"scales": scales}).shape("y") == (1, 1, 7, 2)


@pytest.mark.parametrize("attrs", [{"sizes": (0, 3, 8, 5)}, {"scales": (1.0, 1.0, 2.0, 0.75)}])
def test_resize_of_no_images_makes_none(attrs: dict[str, object]) -> None:
    call = RESIZE.call({"x": spec(0, 3, 4, 7)}, attrs)  # type: ignore[arg-type]
    assert call.shape("y") == (0, 3, 8, 5) and call.is_empty


@pytest.mark.parametrize(
    ("op", "specs", "attrs", "message"),
    [
        (REDUCE, {"x": spec(2)}, {"op": "summ"}, "did you mean 'sum'"),
        (REDUCE, {"x": spec(2, 3)}, {"axes": (2,)}, r"axis 2 is outside \[-2, 1\]"),
        (REDUCE, {"x": spec(2, dtype=DType.I64)}, {"op": "l2"}, "x is i64; cast it"),
        (SOFTMAX, {"x": spec(2, dtype=DType.I32)}, {}, "x is i32"),
        (SOFTMAX, {"x": spec()}, {}, "of a scalar, which has rank 0"),
        (LAYER_NORM, {"x": spec(2, 3), "scale": spec(2)}, {}, "scale is 2; from axis 1 on, x is 3"),
        (LAYER_NORM, {"x": spec(2, 3), "scale": spec(3)}, {"eps": -1.0}, "eps is -1.0"),
        (
            BATCH_NORM,
            {"x": spec(2, 3), **{n: spec(4) for n in ("scale", "bias", "mean", "var")}},
            {},
            "scale is 4; it is 3, one for each channel",
        ),
        (RESIZE, {"x": spec(1, 1, 4)}, {}, "either sizes or scales"),
        (RESIZE, {"x": spec(1, 1, 4)}, {"sizes": (1, 2, 4), "axes": (0, 0, 1)}, "for different axes"),
        (RESIZE, {"x": spec(1, 1, 4)}, {"sizes": (1, 1)}, "need 3 finite values"),
        (RESIZE, {"x": spec(1, 1, 4)}, {"sizes": (1, 1, 8), "mode": "bicubic"}, "mode='bicubic' is not one of"),
        (RESIZE, {"x": spec()}, {"sizes": (8, 8)}, "rank 1 or more"),
        (RESIZE, {"x": spec(1, 1, 49999)}, {"sizes": (1, 1, 50000)}, "passes 2"),
        (RESIZE, {"x": spec(1, 1, 4)}, {"scales": (1.0, 1.0, 0.1)}, "is empty"),
        (RESIZE, {"x": spec(1, 1, 0)}, {"sizes": (1, 1, 4)}, "axis 2 of 1x1x0 is empty; it stays so, and is not 4"),
        (RESIZE, {"x": spec(1, 1, 4)}, {"sizes": (1, 1, 0)}, "need 3 finite values above 0"),
    ],
)
def test_illegal_calls_are_named(op: Op, specs: dict[str, TensorSpec], attrs: dict[str, object], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        op.call(specs, attrs)  # type: ignore[arg-type]
