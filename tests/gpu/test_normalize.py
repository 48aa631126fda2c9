"""Softmax and normalizations on every route: lengths around those of subgroups, fours and registers, what is not
finite, large offsets, rows of each kind, and calls drawn at random."""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from vkconv.backend.runtime import select_device
from vkconv.check import check_call, compare, expect, run_call
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.route import judge

pytestmark = pytest.mark.gpu
ROUTES = ("split_rows", "one_lane", "one_pass", "subgroup", "workgroup", "serial")
LENGTHS = (1, 3, 31, 32, 33, 127, 255, 256, 257, 1009, 1023, 1024, 1025)
INF, NAN = np.inf, np.nan


def drawn(call, rng, offset=0.0):
    arrays = {n: rng.standard_normal(s.dims).astype(np.float32) for n, s in call.operands.items() if s is not None}
    arrays["x"] = (arrays["x"] + offset).astype(np.float32)
    if "var" in arrays:
        arrays["var"] = np.abs(arrays["var"])
    return arrays


def agrees(text, route, device, arrays=None, params=None):
    """The outputs of the route, which are what the reference gives, twice the same bytes; nothing for a row that is too
    long for one lane, every other route takes any here."""
    call = parse_call(text, OPS)
    verdict = judge(next(r for r in OPS[call.op].routes if r.name == route), call, select_device(device)[1])
    if not verdict.allowed:
        assert route == "one_lane" and verdict.refused_by == "rows of at most 64 elements"
        return ()
    arrays = drawn(call, np.random.default_rng(len(text))) if arrays is None else arrays
    ran, checked = check_call(call, arrays, device=device, route=route, params=params)
    assert ran.route == route
    assert checked.ok, f"{text} by {route}: {checked.problem}"
    return ran.outputs[0]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("length", LENGTHS)
def test_rows_of_any_length(length, route, device):
    agrees(f"softmax:x=3x{length}", route, device)
    agrees(f"layer_norm:x=3x{length},scale={length},bias={length}", route, device)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.share(4)
def test_more_rows_than_workgroups_along_x(route, device):
    agrees("softmax:x=65537x5", route, device)
    agrees("rms_norm:x=65537x3", route, device)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("length", [40, 37])
@pytest.mark.parametrize("log", [0, 1])
def test_softmax_of_what_is_not_finite(log, length, route, device):
    """Rows that are all -inf, that hold some of it, inf or NaN: as numpy has it by definition. Parts of a row that are
    all -inf must add nothing."""
    x = np.random.default_rng(1).standard_normal((9, length)).astype(np.float32)
    x[1], x[2, 3], x[3, 5], x[4, 7] = -INF, -INF, INF, NAN
    x[5, : length // 2 + 1], x[6, length // 2 :], x[7, 1:], x[8] = -INF, -INF, -INF, INF
    text = f"softmax:x=9x{length},log={log}"
    (y,) = agrees(text, route, device, {"x": x}, {"parts": 4} if route == "split_rows" else None)
    assert np.isnan(y[[1, 3, 4, 8]]).all()
    assert np.isfinite(y[[0, 2, 5, 6, 7]]).all() or log
    assert y[7, 0] == (0.0 if log else 1.0)


@pytest.mark.parametrize("route", ROUTES)
def test_softmax_of_large_numbers(route, device):
    x = np.array([[3e38, -3e38, 2.9e38], [1e4, 1e4 + 1, -1e4], [-3e38, -3e38, -3e38], [100, 12, -5]], np.float32)
    agrees("softmax:x=4x3", route, device, {"x": x})
    agrees("softmax:x=4x3,log=1", route, device, {"x": x})


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("text", ["layer_norm:x=7x40,scale=40,bias=40,stats=1", "rms_norm:x=7x40,scale=40"])
def test_norms_of_what_is_not_finite(text, route, device):
    call = parse_call(text, OPS)
    arrays = drawn(call, np.random.default_rng(2))
    arrays["x"][1, 3], arrays["x"][2, 5], arrays["x"][3], arrays["x"][4, 7] = NAN, INF, -INF, -INF
    outputs = agrees(text, route, device, arrays)
    assert np.isfinite(outputs[0][[0, 5, 6]]).all()


@pytest.mark.parametrize("route", ROUTES)
def test_variance_beside_a_large_mean(route, device):
    """The mean of the squares less the square of the mean would leave nothing of a variance of 1 beside 1e4."""
    for text in (
        "layer_norm:x=5x1031,scale=1031,bias=1031,stats=1",
        "layer_norm:x=5x4096,stats=1",
        "instance_norm:x=2x3x16x67",
        "batch_norm_training:x=9x3x13x13,scale=3,bias=3,mean=3,var=3",
        "layer_norm:x=7x61",
    ):
        call = parse_call(text, OPS)
        arrays = drawn(call, np.random.default_rng(4), 1e4)
        for y in agrees(text, route, device, arrays)[:1]:
            assert 0.5 < np.std(y) < 2


@pytest.mark.parametrize("route", ROUTES)
def test_rows_of_one_value_have_no_variance(route, device):
    x = np.repeat(np.float32([[0.1], [1e4], [-7.3], [0.0]]), 61, 1)
    y, mean, inv_std = agrees("layer_norm:x=4x61,stats=1", route, device, {"x": x})
    np.testing.assert_array_less(np.abs(y), 1e-3)
    np.testing.assert_allclose(mean[:, 0], x[:, 0], rtol=1e-6)
    np.testing.assert_allclose(inv_std, 1e5**0.5, rtol=1e-3)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "text",
    [
        "softmax:x=2x257x3,axis=1",
        "softmax:x=3x5x2x7,axis=0,log=1",
        "layer_norm:x=2x3x4x5,scale=3x4x5,axis=1,stats=1",
        "rms_norm:x=2x3x64,scale=3x64,axis=-2",
        "instance_norm:x=3x5x8x8,scale=5,bias=5",
        "instance_norm:x=1x5x31,bias=5",
        "group_norm:x=2x12x7x5,scale=12,bias=12,g=3",
        "group_norm:x=2x12x2x6,scale=3,bias=3,g=3",
        "batch_norm_training:x=5x3x7x2,scale=3,bias=3,mean=3,var=3,momentum=0",
        "batch_norm_training:x=5x3x4x4,scale=3,bias=3,mean=3,var=3,momentum=1",
        "batch_norm_training:x=40x3,scale=3,bias=3,mean=3,var=3",
    ],
)
def test_rows_of_any_kind(text, route, device):
    agrees(text, route, device)


def test_a_batch_of_nothing(device):
    for text in ("softmax:x=0x5", "softmax:x=3x0", "group_norm:x=0x4x5,g=2", "rms_norm:x=2x0"):
        call = parse_call(text, OPS)
        (y,) = run_call(call, {"x": np.zeros(call.shape("x"), np.float32)}, device=device).outputs[0]
        assert y.shape == call.shape("y")


@pytest.mark.parametrize("route", [None, "split_rows", "subgroup", "workgroup", "serial"])
@pytest.mark.parametrize(
    "text", ["layer_norm:x=3x0,stats=1", "batch_norm_training:x=0x3x5,scale=3,bias=3,mean=3,var=3,momentum=0.5"]
)
def test_statistics_of_nothing_are_nan(text, route, device):
    call = parse_call(text, OPS)
    arrays = drawn(call, np.random.default_rng(1))
    outputs = run_call(call, arrays, device=device, route=route).outputs[0]
    assert compare(call, outputs, expect(call, arrays)).problem == ""
    assert all(np.isnan(made).all() for made in outputs[1:])


@pytest.mark.parametrize("route", [route for route in ROUTES if route != "one_lane"])
@pytest.mark.parametrize(
    "text", ["layer_norm:x=6x80,stats=1", "batch_norm_training:x=80x6,scale=6,bias=6,mean=6,var=6"]
)
def test_means_of_what_is_not_finite(text, route, device):
    """A mean over an infinity is one, over both infinities or NaN it is NaN; no other row changes."""
    call = parse_call(text, OPS)
    arrays = drawn(call, np.random.default_rng(1))
    rows = arrays["x"] if call.op == "layer_norm" else arrays["x"].T
    rows[1, 3], rows[2, 70], rows[3, 5], rows[4, 2], rows[4, 60] = INF, -INF, NAN, INF, -INF
    outputs = agrees(text, route, device, arrays, {"parts": 4} if route == "split_rows" else None)
    mean = next(made for made in outputs if made.size == 6).reshape(6)
    assert mean[[1, 2]].tolist() == [INF, -INF]
    assert np.isnan(mean[[3, 4]]).all()
    assert np.isfinite(mean[[0, 5]]).all()


def calls():
    """Call strings of every op of the family, of any shape and axis."""
    size = st.integers(1, 19)
    long = st.sampled_from([1, 2, 4, 5, 12, 32, 100, 129, 515])
    length = st.one_of(size, long)

    def shape(dims):
        return "x".join(map(str, dims))

    def softmax(dims, axis, log):
        return f"softmax:x={shape(dims)},axis={axis % len(dims)},log={log}"

    def trailing(op, dims, axis, scale, more):
        axis %= len(dims)
        scaled = f",scale={shape(dims[axis:])}" if scale else ""
        return f"{op}:x={shape(dims)}{scaled},axis={axis}{more if op == 'layer_norm' else ''}"

    def group(n, groups, channels, rest, by_channel):
        c = groups * channels
        vector = c if by_channel else groups
        return f"group_norm:x={shape((n, c, *rest))},scale={vector},bias={vector},g={groups}"

    def training(n, c, rest, momentum):
        vectors = ",".join(f"{name}={c}" for name in ("scale", "bias", "mean", "var"))
        return f"batch_norm_training:x={shape((n, c, *rest))},{vectors},momentum={momentum}"

    dims = st.lists(size, min_size=0, max_size=2).flatmap(
        lambda lead: st.tuples(length, st.lists(st.integers(1, 5), max_size=2)).map(lambda t: (*lead, t[0], *t[1]))
    )
    rest, small, any_axis = st.lists(st.integers(1, 8), max_size=2), st.integers(1, 5), st.integers(0, 4)
    return st.one_of(
        st.builds(softmax, dims, any_axis, st.integers(0, 1)),
        st.builds(
            trailing,
            st.sampled_from(["layer_norm", "rms_norm"]),
            dims,
            any_axis,
            st.booleans(),
            st.sampled_from(["", ",stats=1", ",eps=0.5"]),
        ),
        st.builds(group, small, small, small, rest, st.booleans()),
        st.builds(training, small, small, rest, st.sampled_from([0.0, 0.25, 0.9])),
    )


@pytest.mark.parametrize("route", ROUTES)
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_drawn_calls(route, device, data):
    call = parse_call(data.draw(calls()), OPS)
    _, facts = select_device(device)
    chosen = next(r for r in OPS[call.op].routes if r.name == route)
    assume(judge(chosen, call, facts).allowed)
    params = {name: data.draw(st.sampled_from(values)) for name, values in chosen.params(call, facts).items()}
    ran, checked = check_call(call, drawn(call, np.random.default_rng(6)), device=device, route=route, params=params)
    assert ran.params == params and checked.ok, f"{params}: {checked.problem}"
