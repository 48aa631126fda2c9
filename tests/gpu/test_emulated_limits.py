"""The programs that a device of each driver, or in `make exhaustive` any shipped one, would be given, within that
device's limits, run on the device under test: on each route the smallest cases that have all its operands and
attributes between them.

A route with the same kernels and parameters for several devices, or calls, runs once, and but for `make exhaustive` one
in twelve of those that are left, on a third of the devices; test_ops runs what the device itself takes.
"""

import copy
import functools

import pytest
from route_kit import draw
from shipped import EXHAUSTIVE, tried_devices

from vkconv.backend.runtime import select_device
from vkconv.check import check_call
from vkconv.check.conformance import checks
from vkconv.core import DType, LimitError
from vkconv.device import Device, load_device
from vkconv.device.emulate import emulated
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.limits import check_dispatch
from vkconv.route import judge

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

# Where a call may need more than there is: with four storage buffers in all, the ones that bind more.
FOUR_BUFFERS = "four-storage-buffers"


def with_four_buffers(name):
    """A shipped device with as many storage buffers as Vulkan guarantees."""
    facts = copy.deepcopy(dict(load_device(name).facts))
    facts["properties"]["VkPhysicalDeviceProperties"]["limits"]["maxPerStageDescriptorStorageBuffers"] = 4
    return Device(facts)


DEVICES = {name: load_device(name) for name in tried_devices()} | {FOUR_BUFFERS: with_four_buffers("powervr-bxs-4-64")}


@functools.cache
def calls():
    """Cases with the routes that `few` keeps them for, on the device with the most routes or on a CPU driver."""
    kept = {
        (check.text, check.path[0][1])
        for name in ("h200", "lavapipe")
        for check in checks(load_device(name), dtypes=(DType.F32,), extent="few")
    }
    parsed = ((text, parse_call(text, OPS)) for op in OPS.values() for text in op.cases)
    return [
        (text, call, [route for route in OPS[call.op].routes if (text, route.name) in kept])
        for text, call in parsed
        if not call.is_empty
    ]


def programs(device):
    """Each route of each case that the device may be given, with the kernels and parameters of its program as text;
    None where a limit forbids it."""
    for text, call, routes in calls():
        for route in routes:
            if judge(route, call, device).allowed:
                try:
                    program = route.build(call, device)
                    for dispatch in (*program.prepack, *program.steps):
                        check_dispatch(text, dispatch, device)
                except LimitError:
                    yield text, call, route.name, None
                else:
                    kernels = [dispatch.shader.key for dispatch in (*program.prepack, *program.steps)]
                    yield text, call, route.name, repr((kernels, route.resolve(call, device, {})))


_seen = set()


@functools.cache
def own_programs(selector):
    return {(call.op, route, made) for _, call, route, made in programs(select_device(selector)[1])}


@pytest.mark.share(3)
@pytest.mark.parametrize("name", sorted(DEVICES, key=lambda name: name != FOUR_BUFFERS))
def test_every_program_of_the_device_runs_here(name, device):
    other, real = DEVICES[name], select_device(device)[1]
    known = own_programs(device)
    refused, failed = set(), []
    for text, call, route, made in programs(emulated(other, real)):
        if made is None:
            refused.add(call.op)
        elif (key := (call.op, route, made)) not in known and key not in _seen:
            _seen.add(key)
            if not EXHAUSTIVE and len(_seen) % 12:
                continue
            ran, checked = check_call(call, draw(call, "normals"), device=device, route=route, limits=other)
            if not checked.ok or ran.route != route:
                failed.append(f"vkconv check {text} --route {call.op}={route} --limits {name}: {checked.problem}")
    assert not failed, "\n".join(failed)
    assert bool(refused) is (name == FOUR_BUFFERS), f"no route within the limits for calls of {refused}"
