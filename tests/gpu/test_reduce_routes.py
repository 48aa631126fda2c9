"""Every route of reduce and arg_reduce: lengths around the sizes of workgroups, every place of an axis, drawn calls,
values that are no numbers, and what went wrong in other systems, by the numbers of their issues."""

import math

import numpy as np
import pytest
from hypothesis import strategies as st
from route_kit import allowed, drawn_agree, right, takes
from route_kit import draw as inputs_of

from vkconv import functional
from vkconv.backend.runtime import select_device
from vkconv.check import run_call
from vkconv.core import GraphError, UsageError
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.reduce.problem import FUNCTIONS

pytestmark = pytest.mark.gpu
ROUTES = {op: [route.name for route in OPS[op].routes] for op in ("reduce", "arg_reduce")}
EVERY = [(op, route) for op, routes in ROUTES.items() for route in routes]
EXACT = ("sum", "max", "min", "sum_square", "l1")  # on small integers, whatever the order


def by_every_route(text, arrays, device):
    """The result of each route that takes the call, held to the reference."""
    call = parse_call(text, OPS)
    return {route: right(call, arrays, route, device) for route in allowed(call, device)}


@pytest.mark.parametrize("length", [1, 3, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 4099])
@pytest.mark.parametrize("place", ["last", "first", "middle"])
def test_lengths_around_the_sizes_of_workgroups(length, place, device):
    """Integers, so that all routes agree to the bit."""
    shape = {"last": (5, length), "first": (length, 5), "middle": (2, length, 7)}[place]
    axis = shape.index(length)
    text = f"reduce:x={'x'.join(map(str, shape))},op={{}},axes={axis},keep=0"
    x = np.random.default_rng(length).integers(-3, 4, shape).astype(np.float32)
    for op in ("sum", "max"):
        made = by_every_route(text.format(op), {"x": x}, device)
        assert set(made) >= {"lanes", "two_pass", "split", "tree", "atomic", "serial"}
        for route, y in made.items():
            np.testing.assert_array_equal(y, getattr(np, op)(x, axis=axis), err_msg=route)


@pytest.mark.parametrize("axes", ["0x2", "1x3", "0x1x3", "0x3", "1x2", "0x1x2x3"])
@pytest.mark.parametrize("shape", ["3x8x5x12", "5x3x7x11"])
def test_several_axes(shape, axes, device):
    for op in ("sum", "min", "log_sum_exp"):
        text = f"reduce:x={shape},op={op},axes={axes},keep=0"
        by_every_route(text, inputs_of(parse_call(text, OPS), "normals"), device)


@pytest.mark.parametrize("op", ["sum", "max"])
def test_sixteen_million_and_one_elements(op, device):
    call = parse_call(f"reduce:x={(1 << 24) + 1},op={op},keep=0", OPS)
    x = np.random.default_rng(1).integers(-1, 2, (1 << 24) + 1).astype(np.float32)
    x[-1] = 5  # the element after the last whole four
    for route in ("lanes", "two_pass"):
        if takes(call, route, device):
            ((y,),) = run_call(call, {"x": x}, device=device, route=route).outputs
            assert y == (x.astype(np.float64).sum() if op == "sum" else 5)


@pytest.mark.parametrize("text", ["reduce:x=70001x3,axes=1", "reduce:x=3x70001,axes=0", "reduce:x=66000x40,axes=1"])
@pytest.mark.share(3)
def test_more_outputs_than_a_dimension_has_workgroups(text, device):
    x = np.random.default_rng(2).integers(-3, 4, parse_call(text, OPS).shape("x")).astype(np.float32)
    by_every_route(text, {"x": x}, device)


@st.composite
def reductions(draw, op, dtypes):
    rank = draw(st.integers(1, 5))
    most = {1: 5000, 2: 150, 3: 30, 4: 11, 5: 7}[rank]
    shape = draw(st.lists(st.integers(1, most), min_size=rank, max_size=rank))
    dtype = draw(st.sampled_from(dtypes))
    text = f"{op}:x={'x'.join(map(str, shape))}:{dtype},keep={draw(st.integers(0, 1))}"
    if op == "arg_reduce":
        text += f",axis={draw(st.integers(0, rank - 1))},op={draw(st.sampled_from(('max', 'min')))}"
        text += f",last={draw(st.integers(0, 1))},to={draw(st.sampled_from(('i32', 'i64')))}"
    else:
        axes = draw(st.lists(st.integers(0, rank - 1), min_size=1, max_size=rank, unique=True))
        names = [name for name, (_, integers, _) in FUNCTIONS.items() if integers or dtype == "f32"]
        text += f",axes={'x'.join(map(str, axes))},op={draw(st.sampled_from(names))}"
    return parse_call(text, OPS)


@pytest.mark.parametrize(("op", "route"), EVERY)
def test_drawn_calls_agree_with_the_reference(op, route, device):
    def adapted(call, arrays):
        if call["op"] == "prod":  # products of many numbers leave the range of floats
            arrays["x"] = np.sign(arrays["x"]).astype(arrays["x"].dtype)
        if call["op"] == "log_sum":  # where they cancel, a logarithm may be of a negative number or not
            arrays["x"] = np.abs(arrays["x"])
        return arrays

    dtypes = {"int64": ("i64",), "serial": ("f32", "f32", "i32", "i64")}.get(route, ("f32", "f32", "i32"))
    drawn_agree(
        reductions(op, dtypes),
        route,
        device,
        examples=16,
        least=10,
        exact=lambda call: call["op"] in EXACT,
        adapted=adapted,
    )


# Rows and columns, by every route: NaN first, last and alone, infinities of one sign and of both, -0 and 0.
SPECIAL = np.random.default_rng(5).standard_normal((8, 300)).astype(np.float32)
SPECIAL[0, 0] = SPECIAL[1, -1] = SPECIAL[2, 137] = np.nan
SPECIAL[3], SPECIAL[4] = -np.inf, np.nan
SPECIAL[5, 7], SPECIAL[6, [5, 250]] = np.inf, (np.inf, -np.inf)
SPECIAL[7] = np.where(np.arange(300) % 2, np.float32(-0.0), np.float32(0.0))


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_nan_and_infinity_go_where_numpy_has_them(op, rows, device):
    """Rows that are all -inf, or masked (rocMLIR#2448), have a sum of exponentials of 0 and no NaN from inf - inf."""
    x = np.copysign(np.where(np.isfinite(SPECIAL), 1, SPECIAL), SPECIAL) if op == "prod" else SPECIAL
    x = x if rows else np.ascontiguousarray(x.T)
    text = f"reduce:x={'x'.join(map(str, x.shape))},op={op},axes={int(rows)},keep=0"
    for route, y in by_every_route(text, {"x": x}, device).items():
        if op in ("max", "min"):
            np.testing.assert_array_equal(y, getattr(np, op)(x, axis=int(rows)), err_msg=route)
        if op == "log_sum_exp":
            assert y[3] == -np.inf and np.isnan(y[[0, 1, 2, 4]]).all() and y[5] == y[6] == np.inf


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("op", ["max", "min"])
def test_an_index_is_numpys(op, rows, device):
    """The first NaN wins, 0 equals -0, and of equals the first is taken."""
    x = SPECIAL.copy()
    x[4, :9] = 1
    x = x if rows else np.ascontiguousarray(x.T)
    text = f"arg_reduce:x={'x'.join(map(str, x.shape))},op={op},axis={int(rows)},keep=0"
    for route, y in by_every_route(text, {"x": x}, device).items():
        np.testing.assert_array_equal(y, getattr(np, f"arg{op}")(x, axis=int(rows)), err_msg=route)
    ties = np.random.default_rng(6).integers(0, 3, (9, 1031)).astype(np.int32)
    for last in (0, 1):
        made = by_every_route(f"arg_reduce:x=9x1031:i32,op={op},axis=1,last={last},to=i64", {"x": ties}, device)
        assert all(y.dtype == np.int64 for y in made.values())


def test_integers_at_the_ends_of_their_range(device):
    x = np.array([[-(2**31)] * 70, [2**31 - 1] * 70, [*range(-35, 35)]], np.int32)
    for op in ("max", "min"):
        by_every_route(f"reduce:x=3x70:i32,op={op},axes=1", {"x": x}, device)
        by_every_route(f"arg_reduce:x=3x70:i32,op={op},axis=1", {"x": x}, device)
        by_every_route(f"arg_reduce:x=3x70:i32,op={op},axis=1,last=1", {"x": x}, device)


# ---- what went wrong elsewhere


@pytest.mark.parametrize("width", [48, 47, 12])
def test_rocmlir_2447_lanes_without_a_column_change_nothing(width, device):
    """256 lanes of which 192 have a column; with 47 columns none is aligned."""
    call = parse_call(f"reduce:x=37x{4 * width},axes=0", OPS)
    x = np.random.default_rng(7).integers(-9, 10, call.shape("x")).astype(np.float32)
    for params in ({"local": 256, "across": 64}, {"local": 64, "across": 32}, {"local": 32, "across": 8}):
        y = right(call, {"x": x}, "tree", device, params)
        np.testing.assert_array_equal(y, x.sum(axis=0, keepdims=True))


@pytest.mark.parametrize("axes", [0, 1])
def test_rocmlir_1310_a_maximum_of_negatives_is_negative(axes, device):
    x = -1 - np.random.default_rng(8).random((77, 77)).astype(np.float32)
    for op in ("max", "min"):
        for route, y in by_every_route(f"reduce:x=77x77,op={op},axes={axes}", {"x": x}, device).items():
            np.testing.assert_array_equal(y, getattr(np, op)(x, axis=axes, keepdims=True), err_msg=route)


def test_rocmlir_1853_a_workspace_is_used_again(device):
    """log_sum_exp meets twice, for the maximum and for the sum; columns that lie apart meet one after the other."""
    x = np.random.default_rng(9).standard_normal((300, 131)).astype(np.float32)
    for axes, params in ((1, {"local": 128}), (0, {"local": 128, "across": 8, "span": 4})):
        right(parse_call(f"reduce:x=300x131,op=log_sum_exp,axes={axes}", OPS), {"x": x}, "tree", device, params)


def test_rocmlir_2448_the_identity_of_masked_rows_stays_inside(device):
    x = np.full((5, 1000), -np.inf, np.float32)
    for op, want in (("max", -np.inf), ("log_sum_exp", -np.inf), ("min", -np.inf)):
        for route, y in by_every_route(f"reduce:x=5x1000,op={op},axes=1", {"x": x}, device).items():
            assert (y == want).all(), route


# ---- parameters and functions


@pytest.mark.parametrize("text", ["reduce:x=5x3x1029,op=l2,axes=0x2", "reduce:x=3x67x5x24,op=max,axes=1"])
def test_every_number_of_parts_is_right(text, device):
    call = parse_call(text, OPS)
    x = inputs_of(call, "normals")
    for route in ("lanes", "two_pass", "split"):
        for parts in (1, 2, 3, 7, 16, 64):
            legal = next(r for r in OPS["reduce"].routes if r.name == route).params(call, select_device(device)[1])
            if parts in legal["parts"]:
                right(call, x, route, device, {"parts": parts})


@pytest.mark.parametrize("text", ["arg_reduce:x=3x4099,axis=1", "arg_reduce:x=3x2053x5,op=min,axis=1,to=i64,last=1"])
def test_every_number_of_parts_of_an_axis_is_right(text, device):
    """Few values, so that equal ones lie in several parts."""
    call = parse_call(text, OPS)
    x = {"x": np.random.default_rng(1).integers(-3, 4, call.shape("x")).astype(np.float32)}
    x["x"][1, 7::500] = np.nan
    route = next(route for route in OPS["arg_reduce"].routes if route.name == "two_pass")
    legal = route.params(call, select_device(device)[1])["parts"]
    assert len(legal) > 4
    for parts in legal[:8]:
        right(call, x, "two_pass", device, {"parts": parts})


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("op", ["sum", "l2", "log_sum_exp"])
@pytest.mark.parametrize("length", [37, 515, 4097])
def test_equal_rows_come_to_equal_bits_wherever_they_lie(length, op, dtype, device):
    """A row of odd length begins at each of the four places in a vec4, and may be cut in parts."""
    call = parse_call(f"reduce:x=4x{length},op={op},axes=1,dtype={dtype}", OPS)
    row = np.random.default_rng(7).standard_normal(length) * 0.1 + (op == "log_sum_exp")
    x = {"x": np.tile(row, (4, 1)).astype(call.specs["x"].dtype.numpy)}
    for route in allowed(call, device):
        if route != "atomic":
            y = np.asarray(right(call, x, route, device)).reshape(4)
            assert len({value.tobytes() for value in y}) == 1, route


def test_functions_of_arrays(device):
    x = np.random.default_rng(4).standard_normal((3, 40, 5)).astype(np.float32)
    np.testing.assert_allclose(functional.reduce(x, device=device), x.sum(dtype=np.float64), rtol=1e-5)
    y = functional.reduce(x, "max", (0, -1), keepdims=True, route="serial", device=device)
    np.testing.assert_array_equal(y, x.max(axis=(0, 2), keepdims=True))
    np.testing.assert_array_equal(functional.reduce(x.astype(np.int32), "min", 1, device=device), x.astype(int).min(1))
    for name in ("argmax", "argmin"):
        ours, theirs = getattr(functional, name), getattr(np, name)
        np.testing.assert_array_equal(ours(x, 1, device=device), theirs(x, 1))
        np.testing.assert_array_equal(ours(x, -1, True, device=device), theirs(x, -1, keepdims=True))
        assert ours(x, device=device) == theirs(x) and ours(x, device=device).shape == ()
        assert ours(x, keepdims=True, device=device).shape == (1, 1, 1)
        assert ours(np.ones(9, np.float32), select_last=True, device=device) == 8
    functional.clear_cache()


def test_functions_refuse_what_makes_no_sense(device):
    x = np.zeros((2, 0), np.float32)
    with pytest.raises(GraphError, match=r"axis 1 of x .* is empty"):
        functional.argmax(x, 1, device=device)
    with pytest.raises(UsageError, match="axes is empty"):
        functional.reduce(x, axes=(), device=device)
    with pytest.raises(GraphError, match="did you mean 'max'"):
        functional.reduce(x, "mx", device=device)
    with pytest.raises(GraphError, match="arg_reduce: x is bool"):
        functional.argmin(np.zeros(3, bool), device=device)
    assert functional.reduce(x, "max", 1, device=device).tolist() == [-math.inf] * 2
    functional.clear_cache()
