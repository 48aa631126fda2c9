"""What the tests of measured tables and of tuning share."""

from vkconv.bench.rows import Row
from vkconv.device import load_device
from vkconv.plan.measured import MeasuredCall, MeasuredTable, kernels_of
from vkconv.route import Candidate

DEVICE = load_device("lavapipe")
CALL = "conv2d:x=1x8x9x9,w=24x8x3x3,p=1x1x1x1,dtype=f32"


def candidate(op, route, params, us, spread=0.0):
    """One measured with the kernels of today."""
    return Candidate(route, params, us, spread, kernels_of(op, route))


DIRECT = candidate("conv2d", "direct", {"local": 32}, 81.25, 0.5)
TILE = candidate("conv2d", "direct_tile", {"channels": 4, "columns": 4, "local": 16}, 97.5, 1.25)
MORNING, NOON, NIGHT = (f"2026-08-0{day}T0{day}:00:00Z" for day in (1, 2, 3))


def table(rows, date=NOON, device=DEVICE, vkconv="0.1.0"):
    made = {call: MeasuredCall(at, tuple(candidates)) for call, (at, *candidates) in rows.items()}
    return MeasuredTable(
        device_key=device.key, device=device.name, driver=device.driver, vkconv=vkconv, date=date, rows=made
    )


class Clock:
    """Measures of which the times come from a function of route and parameters, in us; None is a wrong result."""

    def __init__(self, us):
        self.us, self.asked = us, []

    def __call__(self, call, asked):
        return [self.row(call, route, params) for route, params in asked]

    def row(self, call, route, params):
        self.asked.append((route, dict(params)))
        us = self.us(route, params)
        if us is None:
            return Row(call=CALL, op=call.op, route=route, params=dict(params), check="FAILED", why="wrong")
        return Row(
            call=CALL, op=call.op, route=route, params=dict(params), us_median=us, us_min=us, us_spread_percent=2.0
        )
