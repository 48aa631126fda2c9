"""What the tests of routes share: which routes may take a call here, and drawn calls held to the reference."""

import numpy as np
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from test_ops import draw as inputs_of

from vkconv.backend.runtime import select_device
from vkconv.check import check_call, expect
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call
from vkconv.ops.kernels.coopmat import HALF
from vkconv.route import judge


def takes(call, route, device):
    """Whether a route may take the call here."""
    _, facts = select_device(device)
    return judge(next(row for row in OPS[call.op].routes if row.name == route), call, facts).allowed


def allowed(call, device):
    """The routes that may take the call here."""
    return [route.name for route in OPS[call.op].routes if takes(call, route.name, device)]


def of_f32(op):
    """The routes of an op but for those of 16-bit floats alone, which test_cooperative.py and test_f16_arithmetic.py
    have."""
    return [route for route in OPS[op].routes if HALF not in route.must and route.chain is None]


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
        arrays = adapted(call, inputs_of(call, kind))
        seen.append(call)
        y = right(call, arrays, route, device)
        if kind == "integers" and exact(call):
            np.testing.assert_array_equal(y, expect(call, arrays).outputs[0], err_msg=format_call(call, OPS))

    agrees()
    assert len(seen) >= least, f"only {len(seen)} calls were drawn that {route} takes"
