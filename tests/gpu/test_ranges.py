"""Tensors larger than a storage buffer binding, on a device whose bindings are made small."""

import copy

import numpy as np
import pytest
from route_kit import draw

from vkconv.backend.runtime import select_device
from vkconv.check import check_call, expect, run_call
from vkconv.core import DType
from vkconv.device import Device
from vkconv.ops import OPS
from vkconv.ops.conv.by_images import BY_IMAGES
from vkconv.ops.core.calls import parse_call

pytestmark = pytest.mark.gpu
RANGE = 24_000


def small_bindings(device):
    facts = copy.deepcopy(dict(select_device(device)[1].facts))
    facts["properties"]["VkPhysicalDeviceProperties"]["limits"]["maxStorageBufferRange"] = RANGE
    return Device(facts)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("conv2d:x=9x5x16x15,w=7x5x3x3,b=7,residual=9x7x16x15,p=1,act=relu", "direct"),
        ("conv2d:x=16x7x14x12,w=7x1x3x3,slope=7,g=7,p=1,act=prelu", "depthwise"),
        ("conv_transpose2d:x=12x5x8x6,w=5x9x3x2,b=9,s=2", "transposed_direct"),
        ("conv2d_backward_data:dy=15x7x8x8,w=7x5x1x1,x_shape=16x16,s=2", "direct_gather"),
        ("conv2d_backward_data:dy=15x7x8x8,w=7x5x3x3,x_shape=16x16,s=2,p=1", "phase_blocks"),
    ],
)
def test_images_after_each_other(text, inner, dtype, device):
    small = small_bindings(device)
    call = parse_call(f"{text},dtype={dtype}", OPS)
    ran, checked = check_call(call, draw(call, "normals"), device=device, limits=small, params={"some": inner})
    assert ran.route == BY_IMAGES and ran.params["some"] == inner and checked.ok, checked.problem
    largest = max(spec.nbytes for spec in call.specs.values())
    assert largest > RANGE and ran.params["images"] * largest // call.outputs[next(iter(call.outputs))].dims[0] <= RANGE


@pytest.mark.parametrize(
    ("route", "dtype"),
    [*((r, t) for r in ("split_n", "split_multi", "two_stage") for t in ("f32", "bf16")), ("one_stage", "f32")],
)
@pytest.mark.parametrize("split_k", [1, 3, 7])
def test_sums_over_some_of_the_images_meet(split_k, route, dtype, device):
    """Integers: every partial sum is exact, so that an image that is left out or met twice shows. What lay in memory
    is NaN."""
    text = f"x=13x3x20x20,add=10x3x3x3,dy=13x10x20x20,w_shape=10x3x3x3,p=1,scale=0.5,beta=2,dtype={dtype}"
    call = parse_call(f"conv2d_backward_weight:{text}", OPS)
    arrays = draw(call, "integers")
    small = small_bindings(device)
    legal = next(r for r in OPS[call.op].routes if r.name == route).legal(call, small)["split_k"]
    asked = {"split_k": split_k} if split_k in legal else {}
    ran = run_call(call, arrays, device=device, limits=small, route=route, params=asked, replays=2)
    (first,), (again,) = ran.outputs
    assert first.tobytes() == again.tobytes()
    (wanted,) = expect(call, arrays).outputs
    if dtype == DType.F32:
        np.testing.assert_array_equal(first, wanted)
    else:
        ran, checked = check_call(call, arrays, device=device, limits=small, route=route, params=asked)
        assert checked.ok, checked.problem


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    "text",
    [
        "x=13x7x13x11,dy=13x3x11x9,w_shape=3x7x3x3",  # x is cut, dy fits
        "x=17x3x7x5,dy=17x23x7x5,w_shape=23x3x3x3,p=1",
        "x=31x9x7x11,add=10x9x1x1,dy=31x10x7x11,w_shape=10x9x1x1,beta=2",  # both are cut
    ],
)
@pytest.mark.parametrize("route", ["two_stage", "split_n", "split_multi", "direct", "one_stage"])
def test_images_that_begin_where_no_binding_may_are_copied(route, text, dtype, device):
    """Integers, so that an image that is left out, met twice or read from the wrong place shows."""
    if route == "one_stage" and dtype != "f32":
        pytest.skip("atomics add in f32")
    call = parse_call(f"conv2d_backward_weight:{text},dtype={dtype}", OPS)
    arrays = draw(call, "integers")
    facts = copy.deepcopy(dict(small_bindings(device).facts))
    facts["properties"]["VkPhysicalDeviceProperties"]["limits"]["minStorageBufferOffsetAlignment"] = 256
    small = Device(facts)
    ran, checked = check_call(call, arrays, device=device, limits=small, route=route)
    assert checked.ok, checked.problem
    taken = next(r for r in OPS[call.op].routes if r.name == route)
    program = taken.build(call, small, {})
    assert "strided_copy" in {step.shader.kernel.name for step in program.steps}
    (wanted,) = expect(call, arrays).outputs
    if dtype == DType.F32:
        np.testing.assert_array_equal(ran.outputs[0][0], wanted)
