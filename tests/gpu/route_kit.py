"""What the tests of routes share: inputs, which routes may take a call here, drawn calls held to the reference."""

import copy
import functools

import numpy as np
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from vkconv.backend.runtime import select_device
from vkconv.check import check_call, expect
from vkconv.device import Device
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call
from vkconv.ops.kernels.coopmat import HALF
from vkconv.route import judge
from vkconv.storage import NATIVE


def draw(call, kind, seed=7):
    """Inputs of a call: small integers (every partial sum is exact in f32) or normals."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, spec in call.operands.items():
        if spec is None:
            continue
        if not spec.dtype.is_float or kind == "integers":
            arrays[name] = rng.integers(0 if spec.dtype == "bool" else -3, 4, spec.dims).astype(spec.dtype.numpy)
        else:
            arrays[name] = rng.standard_normal(spec.dims).astype(spec.dtype.numpy)
    return arrays


@functools.cache
def facts_of(device):
    """The facts of the device, asked of the loader once: it takes a millisecond or two."""
    return select_device(device)[1]


@functools.cache
def without_storage(device):
    """The facts of the device, but for its 16-bit storage."""
    facts = copy.deepcopy(dict(facts_of(device).facts))
    facts["features"][NATIVE[0]][NATIVE[1]] = False
    return Device(facts)


def takes(call, route, device):
    """Whether a route may take the call here."""
    return judge(next(row for row in OPS[call.op].routes if row.name == route), call, facts_of(device)).allowed


def allowed(call, device):
    """The routes that may take the call here."""
    return [route.name for route in OPS[call.op].routes if takes(call, route.name, device)]


def of_halves(route):
    """Whether a route is for 16-bit floats alone."""
    return HALF.text in {need.text for need in route.must}


def of_f32(op):
    """The routes of an op but for those of 16-bit floats alone, which test_cooperative.py and test_f16_arithmetic.py
    have."""
    return [route for route in OPS[op].routes if not (of_halves(route) or route.f16_depth)]


def right(call, arrays, route, device, params=None):
    """The call's first output by a route, which agrees with the reference."""
    ran, checked = check_call(call, arrays, device=device, route=route, params=params)
    assert ran.route == route and checked.ok, f"{format_call(call, OPS)} by {route}: {checked.problem}"
    return ran.outputs[0][0]


def drawn_agree(calls, route, device, *, examples, least, exact, adapted=lambda call, arrays: arrays):
    """Hold drawn calls to the reference by a route: whole numbers to the bit where the result is ``exact``, and others.

    Of ``examples`` calls the route must take at least ``least``; ``adapted`` are the inputs for a call.
    """
    seen = []

    @settings(
        max_examples=examples,
        phases=[Phase.generate],  # making a failing call smaller takes minutes
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    )
    @given(calls, st.sampled_from(("integers", "normals")))
    def agrees(call, kind):
        assume(takes(call, route, device))
        arrays = adapted(call, draw(call, kind))
        seen.append(call)
        y = right(call, arrays, route, device)
        if kind == "integers" and exact(call):
            np.testing.assert_array_equal(y, expect(call, arrays).outputs[0], err_msg=format_call(call, OPS))

    agrees()
    assert len(seen) >= least, f"only {len(seen)} calls were drawn that {route} takes"
