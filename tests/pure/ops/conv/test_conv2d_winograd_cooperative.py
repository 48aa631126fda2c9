"""winograd_cooperative without a device: what its roundings may come to, and when it is taken."""

import itertools

import numpy as np
import pytest

from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.conv.conv2d import coopmat_fragment
from vkconv.ops.conv.conv2d import winograd_cooperative as winograd
from vkconv.ops.conv.conv2d.coopmat import default_us
from vkconv.ops.core.calls import parse_call
from vkconv.ops.kernels.windows import convolved
from vkconv.route import choose, judge

ROUTE = winograd.WINOGRAD_COOPERATIVE


def of_f16(text):
    return parse_call(f"conv2d:{text},dtype=f16", OPS)


def computed(call, x, w):
    """The outputs as kernels make them, transformed operands and sums rounded to f16."""
    rounded = lambda a: a.astype(np.float16).astype(np.float64)  # noqa: E731
    tiles, (n, c_out, oh, ow) = winograd._tiles_of(call), call.shape("y")
    covered = winograd._covered(call, x)
    made = np.zeros((n, c_out, tiles.rows, 2, tiles.columns, 2))
    for i, j in itertools.product(range(4), repeat=2):
        windows = sum(
            winograd._OF_INPUT[i, a] * winograd._OF_INPUT[j, b]
            * covered[:, :, a : a + 2 * tiles.rows : 2, b : b + 2 * tiles.columns : 2]
            for a, b in itertools.product(range(4), repeat=2)
        )  # fmt: skip
        weights = rounded(np.einsum("a,kcab,b->kc", winograd._OF_WEIGHT[i], w, winograd._OF_WEIGHT[j]))
        sums = 4 * rounded(np.einsum("kc,ncyx->nkyx", weights, rounded(windows / 4)))
        for a, b in itertools.product(range(2), repeat=2):
            made[:, :, :, a, :, b] += winograd._OF_SUMS[a, i] * winograd._OF_SUMS[b, j] * sums
    return made.reshape(n, c_out, 2 * tiles.rows, 2 * tiles.columns)[:, :, :oh, :ow]


@pytest.mark.parametrize(
    "text",
    [
        "x=2x40x9x14,w=24x40x3x3,p=1",
        "x=1x1x6x7,w=3x1x3x3",
        "x=1x3x8x8,w=5x3x3x3,p=2x0x1x3",
        "x=1x130x7x7,w=8x130x3x3,p=1",
    ],
)
@pytest.mark.parametrize("scale", [1.0, 2.0**-9, 2.0**9])
def test_roundings_stay_within_what_is_said(text, scale):
    call, rng = of_f16(text), np.random.default_rng(5)
    x = (scale * rng.standard_normal(call.shape("x"))).astype(np.float16).astype(np.float64)
    w = (rng.standard_normal(call.shape("w")) / 16).astype(np.float16).astype(np.float64)
    factors = {"x": x, "w": w}
    error, allowed = np.abs(computed(call, x, w) - convolved(call, x, w)), winograd.rounding(call, factors)
    assert (error <= allowed).all()
    assert error.max() > allowed.max() / 4  # it says no more than it must


def test_roundings_that_are_all_alike_are_within_it_too():
    """Weights that are one number round one way, in every channel."""
    call, rng = of_f16("x=1x130x6x6,w=4x130x3x3,p=1"), np.random.default_rng(6)
    x = rng.random(call.shape("x")).astype(np.float16).astype(np.float64)
    for weight in (0.1, 1 / 3, 0.0177):
        w = np.full(call.shape("w"), weight).astype(np.float16).astype(np.float64)
        error = np.abs(computed(call, x, w) - convolved(call, x, w))
        assert (error <= winograd.rounding(call, {"x": x, "w": w})).all()


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("x=32x512x7x7,w=512x512x3x3,p=1", True),  # H100, us: 35.8, cooperative 51.9
        ("x=1x640x32x32,w=640x640x3x3,p=1", True),  # 31.1 and 42.5
        ("x=32x128x28x28,w=128x128x3x3,p=1", False),  # 60.9 and 44.7
        ("x=1x512x7x7,w=512x512x3x3,p=1", False),  # 15.2 and 11.2
        ("x=32x64x56x56,w=64x64x3x3,p=1", False),  # 114.9 and 47.9
    ],
)
def test_it_is_taken_where_it_takes_less_than_cooperative(text, taken):
    call, h100 = of_f16(text), load_device("h100")
    assert (choose(OPS["conv2d"].routes, call, h100).route.name == ROUTE.name) is taken
    verdict = judge(ROUTE, call, h100)
    assert verdict.allowed and (taken or verdict.refused_by == winograd.LESS_THAN_OTHERS.text)
    others = default_us(call, h100), coopmat_fragment.default_us(call, h100)
    assert (winograd._estimated_us(call, h100) < min(others)) is taken


@pytest.mark.parametrize(
    ("text", "refused_by"),
    [
        ("x=1x64x8x8,w=64x64x5x5,p=2", "a 3x3 kernel"),
        ("x=1x64x8x8,w=64x64x3x3,s=2", "stride 1"),
        ("x=1x64x8x8,w=64x32x3x3,g=2", "groups"),
    ],
)
def test_it_refuses_with_the_reason(text, refused_by):
    verdict = judge(ROUTE, of_f16(text), load_device("h100"))
    assert not verdict.allowed and refused_by in verdict.refused_by


def test_no_route_has_it_inside():
    """Ops that have convolutions inside allow what sums in f32 come to, so that none may round more."""
    h100, call = load_device("h100"), parse_call("conv_reduce:x=32x512x7x7,w=512x512x3x3,p=1,op=mean,dtype=f16", OPS)
    inner = [
        route.name
        for one in OPS["conv_reduce"].routes
        if judge(one, call, h100).allowed
        for sub in one.inner(
            call, h100, {key: legal[0] for key, legal in one.own_legal(call, h100, {}).items()}
        ).values()
        for route in sub.routes
    ]
    assert "cooperative" in inner and ROUTE.name not in inner and not ROUTE.rounds_as_f32
