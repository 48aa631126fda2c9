"""64-bit integers, which the device has as pairs of words, over their whole range; and bools."""

import math

import numpy as np
import pytest
from graph_kit import make_graph

from vkconv.backend.runtime import open_device
from vkconv.check import run_call
from vkconv.check.model import check_model
from vkconv.core import DType, InputError
from vkconv.graph import TensorSpec
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.planner import Options
from vkconv.route import judge
from vkconv.session import Session

pytestmark = pytest.mark.gpu
LOW, HIGH = -(2**63), 2**63 - 1
# Where words end, carries go over and signs turn.
EDGES = np.array(
    [
        0,
        1,
        -1,
        2,
        -2,
        3,
        2**31 - 1,
        2**31,
        -(2**31),
        -(2**31) - 1,
        2**32 - 1,
        2**32,
        -(2**32),
        2**33 + 5,
        LOW,
        LOW + 1,
        HIGH,
    ],
    np.int64,
)


def wide(count, seed):
    """Edges, and numbers of every length."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(LOW, HIGH, count, endpoint=True) >> rng.integers(0, 63, count)
    return np.concatenate([EDGES, drawn])


def on_device(text, device, **arrays):
    return run_call(parse_call(text, OPS), arrays, device=device).outputs[0]


def pairs():
    a, b = wide(200, 1), wide(200, 2)
    return np.repeat(a, len(b)), np.tile(b, len(a))


def exactly(a, b, function):
    """numpy's function, element by element in Python's integers, wrapped to 64 bits."""
    wrapped = [((function(int(p), int(q)) - LOW) % 2**64) + LOW for p, q in zip(a, b, strict=True)]
    return np.array(wrapped, np.int64)


def divided(p, q):
    quotient = abs(p) // abs(q) if q else 0
    return quotient if (p < 0) == (q < 0) else -quotient


def remainder(p, q):
    return p - divided(p, q) * q if q else 0


FUNCTIONS = {
    "add": lambda p, q: p + q,
    "sub": lambda p, q: p - q,
    "mul": lambda p, q: p * q,
    "div": divided,
    "fmod": remainder,
    "mod": lambda p, q: p % q if q else 0,
    "minimum": min,
    "maximum": max,
    "bit_and": lambda p, q: p & q,
    "bit_or": lambda p, q: p | q,
    "bit_xor": lambda p, q: p ^ q,
    "shift_left": lambda p, q: p << q if 0 <= q < 64 else 0,
    "shift_right": lambda p, q: p >> (q if 0 <= q < 64 else 63),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arithmetic_of_wide_integers_is_exact(name, device):
    a, b = pairs()
    if name.startswith("shift"):
        b = np.where(np.arange(b.size) % 4 == 0, b, np.arange(b.size) % 70 - 3)
    (y,) = on_device(f"{name}:a={a.size}:i64,b={b.size}:i64", device, a=a, b=b)
    np.testing.assert_array_equal(y, exactly(a, b, FUNCTIONS[name]))


def test_powers_of_wide_integers_wrap(device):
    a, b = pairs()
    b = np.arange(b.size) % 68 - 3
    (y,) = on_device(f"pow:a={a.size}:i64,b={b.size}:i64", device, a=a, b=b)
    negative = {1: lambda q: 1, -1: lambda q: -1 if q % 2 else 1}
    want = exactly(a, b, lambda p, q: p**q if q >= 0 else negative.get(p, lambda q: 0)(q))
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("name", ["equal", "less", "less_equal", "greater", "greater_equal"])
def test_wide_integers_compare_by_all_their_bits(name, device):
    a, b = pairs()
    b = np.where(np.arange(b.size) % 5 == 0, a, b)
    (y,) = on_device(f"{name}:a={a.size}:i64,b={b.size}:i64", device, a=a, b=b)
    np.testing.assert_array_equal(y, getattr(np, name)(a, b))


def test_wide_integers_become_the_nearest_floats(device):
    x = np.concatenate([wide(5000, 3), (2**24 + 1) * 2 ** np.arange(38), 2**62 + 2**38 + np.arange(-2, 3)])
    (y,) = on_device(f"cast:x={x.size}:i64,to=f32", device, x=x)
    np.testing.assert_array_equal(y, x.astype(np.float32))


def test_floats_become_wide_integers(device):
    rng = np.random.default_rng(4)
    x = (rng.standard_normal(5000) * 2.0 ** rng.integers(-3, 66, 5000)).astype(np.float32)
    x = np.concatenate([x, np.array([np.nan, np.inf, -np.inf, -0.0, 2.0**63, -(2.0**63), 0.75, -0.75], np.float32)])
    (y,) = on_device(f"cast:x={x.size},to=i64", device, x=x)
    whole = [0 if v != v else HIGH if v >= 2.0**63 else LOW if v <= -(2.0**63) else int(v) for v in x.tolist()]
    np.testing.assert_array_equal(y, whole)


@pytest.mark.parametrize("to", ["i32", "u32", "bool", "i64"])
def test_wide_integers_become_narrow_ones_as_in_numpy(to, device):
    x = wide(1000, 5)
    (y,) = on_device(f"cast:x={x.size}:i64,to={to}", device, x=x)
    names = {"i32": np.int32, "u32": np.uint32, "bool": bool, "i64": np.int64}
    np.testing.assert_array_equal(y, x.astype(names[to]))


def wrapped(values):
    return np.array([(int(v) - LOW) % 2**64 + LOW for v in values], np.int64)


REDUCTIONS = {
    "sum": sum,
    "max": max,
    "min": min,
    "prod": math.prod,
    "sum_square": lambda row: sum(v * v for v in row),
    "l1": lambda row: sum(map(abs, row)),
}


@pytest.mark.parametrize("route", ["serial", "int64"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_wide_integers_are_exact(name, route, device):
    x = np.resize(wide(3000, 6), (5, 3, 7, 131))
    for axes, order in (
        ((3,), (0, 1, 2, 3)),
        ((1,), (0, 2, 3, 1)),
        ((0, 2), (1, 3, 0, 2)),
        ((0, 1, 2, 3), (0, 1, 2, 3)),
    ):
        kept = 4 - len(axes)
        rows = x.transpose(order).reshape(-1 if kept else 1, math.prod(x.shape[a] for a in axes))
        call = parse_call(f"reduce:x=5x3x7x131:i64,op={name},axes={'x'.join(map(str, axes))},keep=0", OPS)
        (y,) = run_call(call, {"x": x}, device=device, route=route).outputs[0]
        np.testing.assert_array_equal(y.ravel(), wrapped(REDUCTIONS[name](row) for row in rows.tolist()))


@pytest.mark.parametrize("route", ["serial", "int64"])
def test_means_of_wide_integers_are_cut_off_towards_zero(route, device):
    x = np.concatenate([wide(1200, 7) >> 12, [-7, 7, -8, 8, -1, 1]])[: 1200 // 7 * 7].reshape(-1, 7)
    call = parse_call(f"reduce:x={len(x)}x7:i64,op=mean,axes=1,keep=0", OPS)
    (y,) = run_call(call, {"x": x}, device=device, route=route).outputs[0]
    whole = [int(math.copysign(1, sum(row))) * (abs(sum(row)) // 7) for row in x.tolist()]
    np.testing.assert_array_equal(y, whole)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("name", "function"), [("abs", abs), ("neg", lambda v: -v), ("relu", lambda v: max(v, 0))])
def test_functions_of_integers_are_exact(name, function, dtype, device):
    x = wide(500, 8).astype(dtype)
    kind = "i64" if dtype is np.int64 else "i32"
    (y,) = on_device(f"{name}:x={x.size}:{kind}", device, x=x)
    np.testing.assert_array_equal(y, wrapped(map(function, x.tolist())).astype(dtype))
    (signs,) = on_device(f"sign:x={x.size}:{kind}", device, x=x)
    np.testing.assert_array_equal(signs, np.sign(x))


@pytest.mark.parametrize("options", ["", ",reverse=1", ",exclusive=1", ",exclusive=1,reverse=1"])
@pytest.mark.parametrize("name", ["sum", "prod"])
def test_running_sums_and_products_of_wide_integers_wrap(name, options, device):
    x = wide(40, 9)[:55].reshape(5, 11)
    (y,) = on_device(f"cumulative:x=5x11:i64,axis=1,op={name}{options}", device, x=x)
    turned = x[:, ::-1] if "reverse" in options else x
    combine, start = (math.prod, 1) if name == "prod" else (sum, 0)
    want = [
        combine(row[: i + ("exclusive" not in options)], start=start)
        for row in turned.tolist()
        for i in range(len(row))
    ]
    want = wrapped(want).reshape(5, 11)
    np.testing.assert_array_equal(y, want[:, ::-1] if "reverse" in options else want)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("name", ["max", "min"])
def test_wide_integers_are_told_apart_by_all_their_bits(name, last, device):
    x = np.resize(wide(150, 10), (4, 60, 3)) >> 1
    x[:, 50:] = x[:, :10]  # equals
    x[0, 1], x[0, 2] = 2**33, 2**33 + 1
    (y,) = on_device(f"arg_reduce:x=4x60x3:i64,op={name},axis=1,last={last},keep=0,to=i64", device, x=x)
    find = getattr(np, f"arg{name}")
    np.testing.assert_array_equal(y, 59 - find(x[:, ::-1], 1) if last else find(x, 1))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_wide_integers_are_padded_whole(mode, device):
    x = wide(3, 11)[:20].reshape(4, 5)
    value = ",value=-1099511627777" if mode == "constant" else ""
    (y,) = on_device(f"pad:x=4x5:i64,pads=1x2x3x-1,mode={mode}{value}", device, x=x)
    given = {"constant_values": -1099511627777} if mode == "constant" else {}
    np.testing.assert_array_equal(y, np.pad(x, ((1, 3), (2, 0)), mode=mode, **given)[:, :-1])


def test_wide_values_move_whole(device):
    x = wide(3, 6)  # 20
    order = np.argsort(x, kind="stable")
    values, places = on_device("topk:x=20:i64,k=20,largest=0", device, x=x)
    np.testing.assert_array_equal(values, x[order])
    np.testing.assert_array_equal(places, order)
    (picked,) = on_device("gather:x=20:i64,indices=20:i64", device, x=x, indices=order)
    np.testing.assert_array_equal(picked, x[order])
    (chosen,) = on_device("where:cond=20:bool,a=20:i64,b=1:i64", device, cond=x > 0, a=x, b=np.array([LOW]))
    np.testing.assert_array_equal(chosen, np.where(x > 0, x, LOW))


X8 = np.arange(1, 9, dtype=np.float32)
PICKS = {"gather": (), "gather_elements": (), "gather_nd": (1,)}
SCATTERS = {"scatter_elements": (), "scatter_nd": (1,)}


def indexing(op, at, computed):
    """A graph in which an op indexes x, of 8 elements, by an input, or by what the device makes of one."""
    shape = (*at.shape, *{**PICKS, **SCATTERS}[op])
    inputs = {"x": (8,), "i": TensorSpec(at.shape, DType.I64)}
    nodes = [("add", "i zero", "j")] if computed else [("identity", "i", "j")]
    nodes.append(("reshape", "j", "k", {"shape": shape}))
    if op in SCATTERS:
        inputs["updates"] = at.shape
        nodes.append((op, "x k updates", "y", {"reduction": "add"}))
    else:
        nodes.append((op, "x k", "y"))
    return make_graph(inputs, nodes, "y", {"zero": np.zeros((), np.int64)})


@pytest.mark.parametrize("indices", [[0, 7, -8], [8, -9, 2**32, -(2**32), LOW, HIGH]])
@pytest.mark.parametrize("op", [*PICKS, *SCATTERS])
def test_computed_indices_outside_the_axis_pick_nothing(op, indices, device):
    """Also those whose low word alone would be inside."""
    at = np.array(indices)
    inside = (at >= -8) & (at < 8)
    arrays = {"x": X8, "i": at, "updates": np.full(at.size, 100, np.float32)}
    graph = indexing(op, at, computed=True)
    with Session(graph, device, poison=True) as session:
        y = session.run({name: arrays[name] for name in graph.inputs})["y"]
    if not inside.all():
        with pytest.raises(InputError, match=rf"{op} node '{op}_y'.*the axis has 8"):
            check_model(graph, {name: arrays[name] for name in graph.inputs}, device=device)
    if op in PICKS:
        np.testing.assert_array_equal(np.isnan(y), ~inside)
        np.testing.assert_array_equal(y[inside], X8[at[inside]])
    else:
        want = X8.copy()
        np.add.at(want, at[inside], 100)
        np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("op", [*PICKS, *SCATTERS])
def test_given_indices_outside_the_axis_are_refused_before_the_run(op, device):
    at = np.array([0, 8, -8])
    graph = indexing(op, at, computed=False)
    arrays = {"x": X8, "i": at, "updates": np.ones(3, np.float32)}
    with Session(graph, device, options=Options(passes=False)) as session:
        with pytest.raises(InputError, match=rf"{op} node '{op}_y'.* -8 to 8; the axis has 8.*input 'i'"):
            session.run({name: arrays[name] for name in graph.inputs})
        arrays["i"] = np.array([0, 7, -8])
        y = session.run({name: arrays[name] for name in graph.inputs})["y"]
    assert np.isfinite(y).all()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 31, 64, 67])
def test_bools_of_any_count_fill_their_words(count, device):
    rng = np.random.default_rng(count)
    a, b = rng.integers(0, 2, (2, count)).astype(bool)
    for name, function in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)):
        (y,) = on_device(f"logical_{name}:a={count}:bool,b={count}:bool", device, a=a, b=b)
        np.testing.assert_array_equal(y, function(a, b))
    (y,) = on_device(f"logical_not:x={count}:bool", device, x=a)
    np.testing.assert_array_equal(y, ~a)


def test_loops_that_the_driver_would_end_early_are_counted_one_by_one(device):
    """An invocation takes 64-bit integers one at a time: most of the limit is right, beyond it no route may run."""
    live = open_device(device).device
    if live.max_loop_iterations is None:
        pytest.skip("this driver runs every loop to its end")
    n = live.max_loop_iterations - 100
    x = np.zeros((2, n), np.int64)
    x[0, -1], x[1, n // 2] = 1, -1
    (y,) = on_device(f"arg_reduce:x=2x{n}:i64,axis=1,keep=0,to=i64", device, x=x)
    np.testing.assert_array_equal(y, x.argmax(1))
    long = parse_call(f"arg_reduce:x=1x{3 * n}:i64,axis=1", OPS)
    assert not any(judge(route, long, live).allowed for route in OPS["arg_reduce"].routes)
