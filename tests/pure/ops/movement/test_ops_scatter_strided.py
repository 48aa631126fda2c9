"""scatter_strided without a device: its reference, errors, which route is taken, and what a launch is given."""

import itertools

import numpy as np
import pytest
from ops_device import device

from vkconv.core import GraphError
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.movement.scatter_strided import SCATTER_STRIDED, insertion
from vkconv.route import choose


def call_of(text):
    return parse_call(f"scatter_strided:{text}", OPS)


@pytest.mark.parametrize("text", SCATTER_STRIDED.cases)
def test_reference_is_by_element(text):
    call = parse_call(text, OPS)
    x = np.arange(1.0, 1.0 + np.prod(call.shape("x"))).reshape(call.shape("x"))
    want = np.zeros(call.shape("y"))
    for index in np.ndindex(x.shape):
        at = tuple(o + s * i for o, s, i in zip(call["offset"], call["stride"], index, strict=True))
        if all(0 <= a < n for a, n in zip(at, want.shape, strict=True)):
            want[at] = x[index]
    np.testing.assert_array_equal(SCATTER_STRIDED.reference(call, {"x": x})[0], want)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x=2x3,shape=5", r"shape is \(5,\); it takes 2 values >= 0, as x is 2x3:f32"),
        ("x=2x3", "needs the attribute 'shape'"),
        ("x=scalar,shape=5", "rank 1 to 5, not scalar"),
        ("x=1x1x1x1x1x1,shape=1x1x1x1x1x1", "rank 1 to 5"),
        ("x=2x3,shape=5x-1", r"shape is \(5, -1\)"),
        ("x=2x3,shape=5x5,stride=0", r"stride is \(0, 0\); it takes one value or 2 of at least 1"),
        ("x=2x3,shape=5x5,stride=1x2x3", r"stride is \(1, 2, 3\)"),
        ("x=2x3,shape=5x5,offset=1x2x3", r"offset is \(1, 2, 3\); it takes one value or 2"),
        ("x=2x3,shape=5x5,offset=3000000000", "at most 1073741824"),
    ],
)
def test_illegal_calls_name_their_values(text, message):
    with pytest.raises(GraphError, match=message):
        call_of(text)


@pytest.mark.parametrize(
    ("text", "passed_through"),
    [
        ("x=1x5x5x4x8,shape=1x12x12x4x8,stride=1x2x2x1x1", 32),
        ("x=7x5x5x4x8,shape=7x12x12x4x8,stride=1x2x2x1x1", 32),  # the first dimension does not count
        ("x=2x32x8x8,shape=2x32x16x16,stride=1x1x2x2", 32),
        ("x=4x4,shape=9x9,stride=2", 1),
        ("x=2x5x5x32x64,shape=2x12x12x32x64,stride=1x2x2x1x1", 2048),  # upstream's negative test
    ],
)
def test_what_passes_through_is_counted_as_upstream_does(text, passed_through):
    call = call_of(text)
    assert insertion(call).passed_through == passed_through
    routes = [
        choose(SCATTER_STRIDED.routes, call, device(kind)).route.name
        for kind in ("CPU", "INTEGRATED_GPU", "DISCRETE_GPU")
    ]
    assert routes == ["fill_scatter", "gather" if passed_through <= 256 else "fill_scatter", "gather"]


def test_neighbouring_dimensions_that_pass_through_are_one_and_powers_of_two_are_shifted():
    (step,) = SCATTER_STRIDED.routes[0].build(call_of("x=1x5x5x4x8,shape=1x12x12x4x8,stride=1x2x2x1x1"), device()).steps
    assert step.constants["RANK"] == 4 and step.constants["SHIFT"] is True
    table = {name: step.push[name] for name in ("n", "x_n", "offset", "s")}
    assert table == {"n": (1, 12, 12, 32, 0), "x_n": (1, 5, 5, 32, 0), "offset": (0,) * 5, "s": (0, 1, 1, 0, 0)}
    (step,) = SCATTER_STRIDED.routes[0].build(call_of("x=3x3,shape=10x10,offset=1,stride=3x2"), device()).steps
    assert step.constants["SHIFT"] is False and step.push["s"] == (3, 2, 0, 0, 0)


def test_only_what_is_inside_is_scattered():
    """The second launch of fill_scatter reads and writes within bounds, also where nothing is inside."""
    for x, shape, offset, stride in itertools.product((1, 2, 5), (1, 3, 7), range(-9, 9), (1, 2, 3)):
        call = call_of(f"x={x}x2,shape={shape}x2,offset={offset}x0,stride={stride}x1")
        places = [offset + i * stride for i in range(x)]
        inside = [i for i, at in enumerate(places) if 0 <= at < shape]
        _, *scatter = SCATTER_STRIDED.routes[1].build(call, device()).steps
        assert len(scatter) == bool(inside)
        if inside:
            words = 4 if scatter[0].constants["VEC4"] else 1
            bases = (scatter[0].push[name] for name in ("x_base", "y_base"))
            assert [base * words for base in bases] == [inside[0] * 2, places[inside[0]] * 2]
