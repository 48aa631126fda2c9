"""More workgroups than a dimension may have, by every route, without 65,536 of them: calls are planned for the device
under test with a limit of two workgroups along x, and the rest goes over y."""

import copy

import pytest
from route_kit import draw

from vkconv.backend.runtime import select_device
from vkconv.check import check_call
from vkconv.device import Device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan import bound
from vkconv.route import judge

pytestmark = pytest.mark.gpu
ROUTES = [(op.name, route.name) for op in OPS.values() if op.cases for route in op.routes]
# Calls with more rows than the cases have.
MORE = {
    "batch_norm_training": "batch_norm_training:x=2x67x3,scale=67,bias=67,mean=67,var=67",
    "group_norm": "group_norm:x=7x20x3,scale=20,bias=20,groups=10",
    "instance_norm": "instance_norm:x=5x29x3,scale=29,bias=29",
    "layer_norm": "layer_norm:x=67x5,scale=5,bias=5",
    "rms_norm": "rms_norm:x=67x5,scale=5",
    "constant_of_shape": "constant_of_shape:shape=3x67",
    "conv3d_backward_weight": "conv3d_backward_weight:x=1x5x3x4x5,dy=1x67x2x3x4,w_shape=67x5x2x2x2",
}


def narrow(device):
    """The device with the limit."""
    facts = copy.deepcopy(device.facts)
    facts["properties"]["VkPhysicalDeviceProperties"]["limits"]["maxComputeWorkGroupCount"][0] = 2
    return Device(facts, device.quirks)


def calls(op):
    return [parse_call(text, OPS) for text in (*op.cases, *filter(None, [MORE.get(op.name)]))]


def folded_call(op, route, device):
    """The first call of an op that a route takes and launches over both dimensions, and the parameters by which it
    does: few lanes and elements make many workgroups."""
    for call in calls(op):
        if not call.is_empty and judge(route, call, device).allowed:
            legal = route.params(call, device)
            params = {name: min(legal[name]) for name in ("local", "items") if name in legal}
            if any(step.groups[1] > 1 for step in route.build(call, device, params).steps):
                return call, params
    return None


@pytest.mark.parametrize(("op", "route"), ROUTES)
def test_workgroups_are_counted_over_both_dimensions(op, route, device, monkeypatch):
    monkeypatch.setattr(bound, "FOLD_LIMIT_BYTES", 0)  # what has no operands would fold
    limited = narrow(select_device(device)[1])
    (row,) = [r for r in OPS[op].routes if r.name == route]
    found = folded_call(OPS[op], row, limited)
    if found is None:
        assert not any(judge(row, call, limited).allowed for call in calls(OPS[op]))
        pytest.skip("the device takes no such call by this route")
    call, params = found
    arrays = draw(call, "integers")
    ran, checked = check_call(call, arrays, device=device, route=route, params=params, limits=limited)
    assert ran.route == route and checked.ok, checked.problem
