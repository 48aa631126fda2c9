"""Floats of 16 bits: every route that takes them, in f16 or bf16 by turns, on devices with 16-bit storage and without;
and each rounding of theirs. `vkconv check --all-ops --dtype f16,bf16` runs every case of every route in both.
"""

import contextlib
import functools
import itertools

import ml_dtypes
import numpy as np
import pytest
from route_kit import draw, without_storage

from vkconv.backend.runtime import select_device
from vkconv.check import check_call, compare, expect, run_call
from vkconv.core import VkconvError
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan import bound
from vkconv.route import judge
from vkconv.storage import HALF_MATH

drivers = pytest.mark.drivers
TYPES = ("f16", "bf16")


def smallest_calls(op, dtype):
    """The op's cases that have floats, as calls in a 16-bit type, the smallest first."""
    found = []
    for text in op.cases:
        with contextlib.suppress(VkconvError):  # types that are written out may not go with these
            call = parse_call(f"{text},dtype={dtype}", OPS)
            if call.half and not call.is_empty:
                found.append((sum(spec.size for spec in call.specs.values()), f"{text},dtype={dtype}", call))
    return [(text, call) for _, text, call in sorted(found, key=lambda row: row[0])]


@functools.cache
def picked(device, storage):
    """By op, (call text, route): the smallest call that each route takes; without 16-bit storage only such that every
    source runs once."""
    facts = select_device(device)[1] if storage == "native" else without_storage(device)
    rows, reached, turn = {name: [] for name in OPS}, set(), itertools.cycle(TYPES)
    for op in OPS.values():
        for route in op.routes:
            for text, call in smallest_calls(op, next(turn)):
                if judge(route, call, facts).allowed:
                    program = route.build(call, facts)
                    made = (step.shader for step in (*program.steps, *program.prepack))
                    stems = {(shader.stem, HALF_MATH in shader.defines) for shader in made}
                    if storage == "native" or not stems <= reached:
                        rows[op.name].append((text, route.name))
                    reached |= stems
                    break
    return rows


def agrees(text, route, device, limits=None):
    """A call of small integers, by a route, held to its reference twice from one recording."""
    call = parse_call(text, OPS)
    arrays = draw(call, "integers")
    wanted = expect(call, arrays, route)
    ran = run_call(call, arrays, device=device, route=route, replays=2, limits=limits)
    assert ran.route == route
    checked = compare(call, ran.outputs[0], wanted)
    assert checked.ok, f"{text} {route}: {checked.problem}"
    for name, first, again, want in zip(call.outputs, *ran.outputs, wanted.outputs, strict=True):
        assert first.tobytes() == again.tobytes(), f"{text} {route}: {name} differs between two replays"
        # What f32 is off by is far below half a unit of the last place of 16 bits: whole numbers come out exact.
        held = (want.astype(first.dtype) == want) & (want == np.rint(want)) & (want != 0)
        assert (first[held] == want[held]).all(), f"{text} {route}: {name}"


FLOATING = [name for name, op in OPS.items() if smallest_calls(op, "f16") and op.routes]


@pytest.mark.parametrize("storage", [pytest.param("native", marks=drivers), "packed"])
@pytest.mark.parametrize("op", FLOATING)
def test_every_route_computes_with_halves(op, storage, device, monkeypatch):
    monkeypatch.setattr(bound, "FOLD_LIMIT_BYTES", 0)  # what has no operands would fold
    limits = None if storage == "native" else without_storage(device)
    for text, route in picked(device, storage)[op]:
        agrees(text, route, device, limits)


@drivers
def test_every_route_is_reached_but_those_that_refuse(device):
    reached = {(op, route) for op, rows in picked(device, "native").items() for _, route in rows}
    facts = select_device(device)[1]
    for op in OPS.values():
        for route in op.routes:
            here = [call for text in op.cases if judge(route, call := parse_call(text, OPS), facts).allowed]
            floats = any(spec and spec.dtype.is_float for call in here for spec in call.operands.values())
            assert not (floats and route.takes_halves) or (op.name, route.name) in reached, f"{op.name} {route.name}"


# ---- roundings


def every_half(dtype):
    """All 65,536 of them."""
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)


def in_between(dtype):
    """f32 numbers halfway between neighbours, those on both sides of them, and around the largest."""
    wide = every_half(dtype).astype(np.float32)
    finite = np.sort(wide[np.isfinite(wide)])
    ties = (finite[:-1].astype(np.float64) + finite[1:]) / 2
    largest = float(finite[-1]) + float(finite[-1] - finite[-2]) / 2
    f32 = np.append(ties, [largest, -largest]).astype(np.float32)
    return np.concatenate([f32, np.nextafter(f32, np.float32(np.inf)), np.nextafter(f32, np.float32(-np.inf))])


def same_bits(got, want):
    """Equal bytes, but that one NaN is as good as another."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        assert got.dtype == want.dtype and (np.isnan(got) == np.isnan(want)).all()
        kept = ~np.isnan(want)
    bits = np.dtype(f"u{want.dtype.itemsize}")
    different = np.flatnonzero(got.view(bits)[kept] != want.view(bits)[kept])
    assert not different.size, (different.size, got[kept][different[:5]], want[kept][different[:5]])


def computed(text, device, limits=None, **arrays):
    ((y,),) = run_call(parse_call(text, OPS), arrays, device=device, limits=limits, constant=()).outputs
    return y


NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def subnormal(x):
    """Which numbers are subnormal in f32."""
    return (np.abs(x) < 2.0**-126) & (x != 0)


def flushes_subnormals(device):
    """Whether arithmetic in f32 takes subnormal numbers for zero here. Vulkan leaves it open where a device promises
    neither to keep nor to flush them, as both lavapipe, which keeps them, and the H200, which does not."""
    return computed("neg:x=1", device, x=np.float32([1e-40])) == 0


@drivers
@pytest.mark.parametrize("dtype", TYPES)
def test_every_half_becomes_the_same_f32(dtype, device):
    x = every_half(NUMPY[dtype])
    same_bits(computed(f"cast:x=65536:{dtype},to=f32", device, x=x), x.astype(np.float32))


@drivers
@pytest.mark.parametrize("dtype", TYPES)
def test_f32_is_rounded_as_numpy_does(dtype, device):
    wide = every_half(NUMPY[dtype]).astype(np.float32)
    x = np.concatenate([wide, in_between(NUMPY[dtype]), np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40])])
    with np.errstate(all="ignore"):
        want = x.astype(NUMPY[dtype])
    same_bits(computed(f"cast:x={x.size},to={dtype}", device, x=x), want)


@drivers
@pytest.mark.parametrize("storage", ["native", "packed"])
@pytest.mark.parametrize("dtype", TYPES)
def test_what_a_shader_loads_and_stores_is_rounded_as_numpy_does(dtype, storage, device):
    limits = None if storage == "native" else without_storage(device)
    x = every_half(NUMPY[dtype])
    y = np.random.default_rng(3).permutation(x)
    got, want = computed(f"neg:x=65536,dtype={dtype}", device, limits, x=x), -x
    if flushes_subnormals(device):
        want = np.where(subnormal(x.astype(np.float32)), np.copysign(want.dtype.type(0), want), want)
    same_bits(got, want)
    # The product of two has at most 22 bits: exact in f32, and rounded once, to infinity and subnormals too.
    factors = x.astype(np.float32), y.astype(np.float32)
    with np.errstate(all="ignore"):
        product = factors[0] * factors[1]
        want = product.astype(NUMPY[dtype])
    kept = ~np.any([subnormal(v) for v in (*factors, product)], axis=0)  # a device may take the others for zero
    assert kept.sum() > 60000
    got = computed(f"mul:a=65536,b=65536,dtype={dtype}", device, limits, a=x, b=y)
    same_bits(got[kept], want[kept])


@drivers
@pytest.mark.parametrize("storage", ["native", "packed"])
def test_a_sum_of_halves_is_kept_in_f32(storage, device):
    """In f16 the sum would stop at 2048, and overflow where the mean does not."""
    limits = None if storage == "native" else without_storage(device)
    ones, large = np.ones((3, 4099), np.float16), np.full((3, 4099), 60000, np.float16)
    total = computed("reduce:x=3x4099,op=sum,axes=1,dtype=f16", device, limits, x=ones)
    mean = computed("reduce:x=3x4099,op=mean,axes=1,dtype=f16", device, limits, x=large)
    assert (total == np.float16(4099)).all() and (mean == 60000).all()


@drivers
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op", ["sigmoid", "silu", "gelu", "gelu_tanh"])
def test_activations_of_fewer_operations_are_right_for_every_number_of_16_bits(op, dtype, device):
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    call = parse_call(f"{op}:x={x.size},dtype={'f16' if dtype is np.float16 else 'bf16'}", OPS)
    _, checked = check_call(call, {"x": x}, device=device)
    assert checked.ok, checked.problem
