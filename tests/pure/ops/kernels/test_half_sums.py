"""Routes that sum in f16: who may take them and who asks, how long their sums are, and what those may be off by."""

import dataclasses
import functools

import numpy as np
import pytest

from vkconv.bench.tune import change, tune_call
from vkconv.check import compare, expect, on_route
from vkconv.check.calls import Expected
from vkconv.check.conformance import case_of_parameters
from vkconv.core import DType, RouteError
from vkconv.device import load_device, shipped_devices
from vkconv.ops import OPS
from vkconv.ops.core.base import most_invocations
from vkconv.ops.core.calls import parse_call
from vkconv.ops.core.tolerance import f16_depth_tolerance, tolerance
from vkconv.ops.kernels.f16_accumulation import ACCUMULATION_DEPTH
from vkconv.ops.laid_out import LAYOUTS
from vkconv.plan.explain import explain_call
from vkconv.plan.planner import Options, choose_route
from vkconv.route import Candidate, choose, judge
from vkconv.storage import HALF_MATH, PACKED

U = 2.0**-11
HALF = {(op.name, route.name): route for op in OPS.values() for route in op.routes if route.f16_depth is not None}
LAYERS = (
    ("conv2d:x=1x32x112x112,w=32x1x3x3,g=32,p=1", "depthwise_f16"),
    ("conv2d:x=1x64x56x56,w=64x64x3x3,p=1", "implicit_gemm_f16"),
    ("conv2d:x=1x64x28x28,w=64x8x3x3,p=1,g=8", "direct_tile_f16"),
    ("matmul:a=512x512,b=512x512", "shared_f16"),
    ("matmul:a=9x60,b=60x10", "register_f16"),
)


def known(measured, call):
    """What a table knows of any call."""
    return measured


def in_f16(text):
    return parse_call(f"{text},dtype=f16", OPS)


def half_calls():
    return [in_f16(text) for name in ("conv2d", "matmul") for text in OPS[name].cases]


# ---- who takes them


def test_the_routes_are_these():
    assert {name for _, name in HALF} == {"pointwise_f16", "register_f16", *(route for _, route in LAYERS)}


@pytest.mark.parametrize("name", shipped_devices())
@pytest.mark.long
def test_nobody_takes_them_unasked(name):
    facts = load_device(name)
    for call in half_calls():
        routes = OPS[call.op].routes
        allowed = [v.route for v in (judge(r, call, facts, half_sums=True) for r in routes) if v.allowed]
        fast = [Candidate(r.name, r.resolve(call, facts, {}), 1.0, 0.0) for r in allowed if r.f16_depth is not None]
        only = [dataclasses.replace(r, prefer=()) if r.f16_depth else r for r in routes]
        for rows, measured in ((routes, ()), (routes, fast), (only, fast)):
            assert choose(rows, call, facts, measured=functools.partial(known, measured)).route.f16_depth is None
        in_half = [judge(r, call, facts) for r in routes if r.f16_depth is not None]
        assert {v.refused_by for v in in_half if v.allowed} <= {"to be asked for, since it sums in f16"}
        assert all(not v.preferred for v in in_half)


def test_without_a_route_in_f32_it_is_an_error_that_says_so():
    call, facts = in_f16("matmul:a=33x32,b=32x33"), load_device("mali-g715")
    with pytest.raises(
        RouteError, match=r"register_f16 needs to be asked for, since it sums in f16 \(here not asked for"
    ):
        choose([route for route in OPS["matmul"].routes if route.f16_depth], call, facts)


@pytest.mark.parametrize(("text", "route"), LAYERS)
def test_asked_for_they_are_taken_on_gpus_where_their_needs_hold(text, route):
    call = in_f16(text)
    for name in ("mali-g715", "adreno-750", "powervr-bxm-8-256", "adreno-618"):
        assert choose_route(call, "n", load_device(name), Options(half_sums=True)).route.name == route
    taken = {n: choose(OPS[call.op].routes, call, load_device(n), half_sums=True).route for n in ("lavapipe", "h200")}
    assert taken["lavapipe"].f16_depth is None
    forced = choose_route(call, "n", load_device("lavapipe"), Options(routes={call.op: route}))
    assert (forced.route.name, forced.by) == (route, "forced")


def test_a_measured_table_is_followed_where_they_are_asked_for():
    call, facts = in_f16(LAYERS[1][0]), load_device("mali-g715")
    measured = [
        Candidate(route.name, route.resolve(call, facts, {}), us, 0.0)
        for route in OPS["conv2d"].routes
        for name, us in (("direct_tile_f16", 1.0), ("direct_tile", 2.0))
        if route.name == name
    ]
    for half_sums, route in ((True, "direct_tile_f16"), (False, "direct_tile")):
        assert (
            choose(
                OPS["conv2d"].routes, call, facts, measured=functools.partial(known, measured), half_sums=half_sums
            ).route.name
            == route
        )


def test_tuning_tries_them_where_they_are_asked_for():
    from measured_kit import Clock

    call, facts = in_f16("matmul:a=64x64,b=64x64"), load_device("mali-g715")
    for half_sums in (False, True):
        found = tune_call(call, facts, Clock(lambda route, params: len(route)), "quick", half_sums)
        assert any(c.route.endswith("_f16") for c in found) == half_sums
        assert change(call, facts, (), found, half_sums).before.route.name == ("shared_f16" if half_sums else "shared")


@pytest.mark.parametrize("key", HALF, ids=lambda key: key[1])
def test_other_types_and_devices_without_the_arithmetic_are_refused(key):
    route, text = (
        HALF[key],
        next(t for t in OPS[key[0]].cases if judge(HALF[key], in_f16(t), load_device("h200")).allowed),
    )
    for dtype in ("f32", "bf16"):
        verdict = judge(route, parse_call(f"{text},dtype={dtype}", OPS), load_device("h200"))
        assert not verdict.allowed and verdict.refused_by == "f16 elements" and f" is {dtype}" in verdict.actual
    verdict = judge(route, in_f16(text), load_device("raspberry-pi-4"))
    assert not verdict.allowed and "shaderFloat16" in verdict.refused_by


def test_sums_that_are_too_long_for_f16_are_refused_with_both_numbers():
    wide = in_f16("conv2d:x=1x8x40x40,w=8x1x7x7,g=8")
    verdict = judge(HALF["conv2d", "depthwise_f16"], wide, load_device("mali-g715"))
    assert (verdict.allowed, verdict.refused_by, verdict.actual) == (
        False,
        f"sums of at most {ACCUMULATION_DEPTH} products in f16",
        "49 products",
    )
    row = in_f16("conv2d:x=1x4x1x80,w=4x4x1x33")
    assert judge(HALF["conv2d", "direct_tile_f16"], row, load_device("mali-g715")).actual == "33 products"


def test_explain_says_why_not_and_how_sums_are_made():
    call, facts = in_f16(LAYERS[1][0]), load_device("mali-g715")
    table, data = explain_call(call, facts)
    (row,) = [row for row in data["routes"] if row["route"] == "implicit_gemm_f16"]
    assert (row["allowed"], row["preferred"]) == (True, False)
    assert (row["refused_by"], row["actual"]) == ("to be asked for, since it sums in f16", "not asked for")
    assert "; elements of 16 bits, sums in f32" in table.title
    table, data = explain_call(call, facts, Options(half_sums=True))
    assert data["route"] == "implicit_gemm_f16" and "; elements of 16 bits, sums in f16 and f32" in table.title


# ---- programs


def of_a_turn(call, step):
    """Products that a turn of a shader's loop adds to a sum."""
    if step.shader.stem in ("conv2d_gemm", "matmul_shared"):
        return step.constants["BK"]
    return call.shape("w")[3] if step.shader.stem == "conv2d_tile" else 1


@pytest.mark.long
@pytest.mark.parametrize("name", ["mali-g715", "adreno-618", "h200", "lavapipe"])
def test_programs_multiply_in_f16_and_sum_no_more_of_it_than_allowed(name):
    facts, seen = load_device(name), set()
    for call in half_calls():
        for key, route in HALF.items():
            if key[0] != call.op or not judge(route, call, facts).allowed:
                continue
            base = next(r for r in OPS[call.op].routes if r.name == route.name.removesuffix("_f16"))
            program = route.build(call, facts)
            step = next(s for s in program.steps if HALF_MATH in s.shader.defines)
            assert step.shader.dtype is DType.F16 and step.shader in route.forms
            assert (PACKED in step.shader.defines) == (name == "adreno-618")
            assert 0 < route.f16_depth(call) <= ACCUMULATION_DEPTH or not call.shape("a")[-1]
            params = route.resolve(call, facts, {})
            before = base.build(call, facts, params)
            like = next(s for s in before.steps if s.shader.stem == step.shader.stem)
            turns = [n for name, n in step.constants.items() if name not in like.constants]
            assert 2 * step.shared_bytes == like.shared_bytes
            assert {**step.constants, **like.constants} == dict(step.constants)
            assert dict(program.scratch) == dict(before.scratch) and dict(program.packed) == dict(before.packed)
            assert len(turns) == (key[1] != "depthwise_f16")
            assert all(0 < n * of_a_turn(call, like) <= ACCUMULATION_DEPTH for n in turns)
            assert step.local[0] <= most_invocations(facts)
            seen.add(key[1])
    assert seen == {route for _, route in HALF}


def test_lanes_compute_whole_vectors_at_once():
    for call in half_calls():
        for (op, name), route in HALF.items():
            if op == call.op and judge(route, call, load_device("mali-g715")).allowed:
                legal = route.params(call, load_device("mali-g715"))
                whole = {"depthwise_f16": ("columns", 2), "register_f16": ("columns", 2)}.get(name, ("channels", 4))
                assert all(legal.values())
                assert all(size % whole[1] == 0 for size in legal.get(whole[0], ()))


def test_checking_all_ops_tries_their_parameters_in_f16():
    h200 = load_device("h200")
    for (op, _), route in HALF.items():
        assert case_of_parameters(route, op, h200).endswith(",dtype=f16")
    for name in ("direct_tile", "cooperative"):
        (route,) = (r for r in OPS["conv2d"].routes if r.name == name)
        assert case_of_parameters(route, "conv2d", h200).endswith(",dtype=f16") == (name == "cooperative")


# ---- what sums may be off by


def summed(a, b, depth):
    """Sums of products along the last axis as a device with IEEE arithmetic makes them, and exact ones."""
    total = np.zeros(a.shape[:-1], np.float32)
    for first in range(0, a.shape[-1], depth):
        part = np.zeros(a.shape[:-1], np.float16)
        for k in range(first, min(first + depth, a.shape[-1])):
            part = part + a[..., k] * b[..., k]
        total += part
    return total, np.einsum("...k,...k->...", a.astype(np.float64), b.astype(np.float64))


@pytest.mark.long
def test_chains_keep_the_error_small_however_long_the_sums():
    """The table in vkconv/ops/kernels/f16_accumulation.py."""
    rng = np.random.default_rng(0)
    known = {8: (1.0, 1.0, 1.0), 16: (1.4, 1.3, 1.4), 32: (1.8, 1.8, 1.8), 4608: (2.6, 7.1, 21.0)}
    for count, column in zip((64, 576, 4608), zip(*known.values(), strict=True), strict=True):
        a, b = rng.standard_normal((2, 800, count)).astype(np.float16)
        for depth, expected in zip(known, column, strict=True):
            got, want = summed(a, b, depth)
            assert np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)) / U == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("depth", [1, 9, 32])
@pytest.mark.parametrize("kind", ["normals", "same", "alternating", "small"])
def test_the_bound_holds(depth, kind):
    rng = np.random.default_rng(depth)
    a, b = rng.standard_normal((2, 500, 131)).astype(np.float16)
    if kind == "same":  # every rounding goes the same way
        a, b = (np.full_like(a, rng.uniform(0.1, 1)) for _ in "ab")
    elif kind == "alternating":
        a = np.abs(a) * np.float16((-1.0) ** np.arange(131))
    elif kind == "small":
        a, b = a * np.float16(2**-7), b * np.float16(2**-7)
    got, want = summed(a, b, depth)
    sizes = np.einsum("nk,nk->n", np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
    allowed = f16_depth_tolerance(depth) * sizes + 131 * 2.0**-25 + 131 * 2.0**-24 * sizes
    assert (np.abs(got - want) <= allowed).all()


def test_the_bound_is_gamma_n():
    assert f16_depth_tolerance(1) == U / (1 - U)
    assert f16_depth_tolerance(32) == 32 * U / (1 - 32 * U) == pytest.approx(0.0159, rel=1e-2)


def allowed_of(text, depth, **arrays):
    call = in_f16(text)
    operands = dict.fromkeys(call.operands) | {n: np.asarray(a, np.float64) for n, a in arrays.items()}
    op = OPS[call.op]
    (want,) = op.reference(call, operands)
    return tolerance(op, call, operands, want, depth), tolerance(op, call, operands, want), want


def test_it_is_relative_to_all_products_of_an_element_and_on_top_of_what_f32_is_off_by():
    a, b = [[1.0, -1.0, 1e-3], [1.0, 2.0, 3.0]], [[1.0], [1.0], [1.0]]
    half, full, _ = allowed_of("matmul:a=2x3,b=3x1", 3, a=a, b=b)
    sizes = np.abs(a).sum(1, keepdims=True)
    np.testing.assert_allclose(half.absolute - full.absolute, f16_depth_tolerance(3) * sizes + 3 * 2.0**-25, rtol=1e-9)
    assert half.relative == full.relative + f16_depth_tolerance(3) and not half.may_overflow.any()
    assert full.may_overflow is None


@pytest.mark.parametrize(
    ("more", "slope"),
    [
        ("alpha=4", 4.0),
        ("act=relu", 1.0),
        ("act=leaky_relu,act_a=0.25", 1.0),
        ("act=sigmoid", 0.2),
        ("out_scale=-8", 8.0),
        ("act=exp", np.exp(1.0)),
    ],
)
def test_what_follows_the_sums_takes_their_error_along(more, slope):
    """By its slope at the sum, which is 1."""
    half, full, _ = allowed_of(f"matmul:a=1x2,b=2x1,{more}", 2, a=[[3.0, -2.0]], b=[[1.0], [1.0]])
    error = f16_depth_tolerance(2) * 5 + 2 * 2.0**-25
    at = error * slope if more != "alpha=4" else 4 * error
    assert (half.absolute - full.absolute).item() == pytest.approx(at, rel=0.05)


def test_nothing_is_added_where_an_activation_is_flat():
    half, full, _ = allowed_of("matmul:a=1x2,b=2x1,act=relu6", 2, a=[[30.0, 2.0]], b=[[1.0], [1.0]])
    np.testing.assert_allclose(half.absolute, full.absolute)


def test_numbers_beyond_f16_on_the_way_may_be_infinite_or_none():
    call = in_f16("matmul:a=3x2,b=2x1")
    a = np.array([[300, 300], [300, 1], [np.inf, 1]], np.float16)
    arrays = {"a": a, "b": np.array([[300], [-300]], np.float16)}
    wanted = on_route(call, expect(call, arrays), "register_f16")
    (allowed,) = wanted.allowed
    assert allowed.may_overflow.ravel().tolist() == [True, True, False]
    large = np.float16(np.inf)
    for first in (0.0, np.nan, np.inf, -np.inf):
        assert compare(call, [np.array([[first], [large], [large]], np.float16)], wanted).ok
    assert not compare(call, [np.array([[9999], [large], [large]], np.float16)], wanted).ok
    assert not compare(call, [np.array([[0], [large], [np.nan]], np.float16)], wanted).ok
    f32 = expect(call, arrays)
    assert isinstance(f32, Expected) and not compare(call, [np.array([[np.nan], [large], [large]], np.float16)], f32).ok


def test_many_small_products_are_no_reason_to_overflow():
    """Their sum is, but not what is summed in f16."""
    call = in_f16("matmul:a=1x4096,b=4096x1")
    arrays = {"a": np.full((1, 4096), 5, np.float16), "b": np.full((4096, 1), 5, np.float16)}
    arrays["b"][::2] *= -1
    assert not on_route(call, expect(call, arrays), "register_f16").allowed[0].may_overflow.any()


def test_routes_in_f32_are_held_to_what_they_were():
    call = in_f16("conv2d:x=1x8x6x6,w=8x8x3x3,p=1")
    rng = np.random.default_rng(1)
    arrays = {n: rng.standard_normal(s.dims).astype(np.float16) for n, s in call.operands.items() if s}
    f32 = expect(call, arrays)
    for route in OPS["conv2d"].routes:
        if route.rounds_as_f32:
            assert on_route(call, f32, route.name) is f32


@pytest.mark.parametrize("text", [text for text in OPS["conv2d"].cases if "layout=" in text])
def test_in_another_layout_as_much_is_allowed(text):
    """Of the same element, wherever it lies."""
    op, call = OPS["conv2d"], in_f16(text)
    rng = np.random.default_rng(8)
    given = {name: spec and rng.standard_normal(spec.dims) for name, spec in call.operands.items()}
    (want,) = op.reference(call, given)
    half = tolerance(op, call, given, want, 16)
    layouts = LAYOUTS["conv2d"]
    first, moved = layouts.first(call), layouts._arrays(call, given)
    same = tolerance(op, first, moved, op.reference(first, moved)[0], 16)
    assert half.absolute.shape == want.shape
    there = layouts.of("y", call.attrs)
    np.testing.assert_allclose(there.to_first(half.absolute) if there else half.absolute, same.absolute, rtol=1e-9)
