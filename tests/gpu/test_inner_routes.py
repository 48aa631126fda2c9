"""Ops whose routes are made of other ops' routes, in 16-bit floats: every route, with every one that may stand inside
it, held to the reference. What is right alone may be wrong together: a kernel that writes elements where the next
step reads f32.
"""

import copy

import pytest
from vkconv.ops.calls import parse_call

from vkconv.backend.runtime import select_device
from vkconv.check.inputs import draw
from vkconv.check.sweep import sweep_call
from vkconv.device import Device
from vkconv.ops import OPS
from vkconv.plan.planner import Options
from vkconv.route import judge

pytestmark = [pytest.mark.gpu, pytest.mark.drivers]
# By op, the routes that are made of another op's; and the parameters that choose which one stands inside.
MADE_OF_OTHERS = {
    "conv_reduce": ("unfused",),
    "gemm_reduce": ("unfused",),
    "conv2d": ("im2col_gemm", "winograd"),
    "conv2d_backward_data": (
        *("flipped_cooperative", "flipped_winograd", "flipped_conv", "swap_held", "swap_cooperative", "swap_1x1"),
        *("phase_gemm", "col2im", "gather_scatter_conv", "fill_scatter_conv"),
    ),
    "conv2d_backward_weight": ("explicit_cooperative", "cooperative", "winograd", "explicit_gemm"),
    "conv_transpose2d": ("transposed_gemm",),
}
INSIDE = ("product", "reduce")
TYPES = ("f16", "bf16")
# Extents that are whole tiles and not; groups; an epilogue that comes before the second step, and after it.
REDUCED = (
    "conv_reduce:x=1x40x7x7,w=72x40x1x1,b=72,act=hard_swish,op=mean,keep=1",
    "conv_reduce:x=2x34x5x8,w=37x34x3x3,p=1,b=37,slope=37,act=prelu,op=max",
    "conv_reduce:x=2x48x6x8,w=40x24x1x1,g=2,s=2,op=sum",
    "gemm_reduce:a=1x128x64,b=1x64x256,axis=n",
    "gemm_reduce:a=2x41x64,b=2x35x64,tb=1,bias=35,act=relu,op=max,axis=n",
    "gemm_reduce:a=40x72,b=40x133,ta=1,bias=133,act=gelu,op=mean,axis=m",
)
CALLS = (
    "conv2d:x=1x40x9x12,w=48x40x3x3,p=1,b=48,act=relu",
    "conv2d_backward_data:dy=2x40x7x9,w=40x24x3x3,x_shape=7x9,p=1,b=24,act=relu",
    "conv2d_backward_data:dy=2x40x5x8,w=40x36x1x1,x_shape=9x16,s=2",
    "conv2d_backward_data:dy=2x33x5x7,w=33x24x1x1,x_shape=9x13,s=2,b=24,act=hard_swish",
    "conv2d_backward_data:dy=1x40x4x5,w=40x24x1x1,x_shape=6x9,s=2,p=1x1x0x0",
    "conv2d_backward_data:dy=2x40x5x6,w=40x24x3x3,x_shape=9x11,s=2,p=1",
    "conv2d_backward_weight:x=3x24x9x11,dy=3x40x9x11,w_shape=40x24x3x3,p=1",
    "conv_transpose2d:x=2x40x5x7,w=40x24x3x3,s=2,p=1,b=24,act=relu",
)


def ways(text, device, limits=None):
    """The call by its routes that are made of others, with every one that may stand inside, as `check --sweep` has
    them."""
    call = parse_call(text, OPS)
    facts, arrays = limits or select_device(device)[1], draw(call, 5)
    for route in OPS[call.op].routes:
        if route.name not in MADE_OF_OTHERS[call.op] or not judge(route, call, facts).allowed:
            continue
        options, seen = Options(routes={call.op: route.name}), set()
        for names in [[name] for name in INSIDE if name in route.legal(call, facts)] or [[]]:
            for row in sweep_call(call, arrays, names, device=device, facts=facts, options=options, limits=limits):
                if (key := tuple(row.params.items())) not in seen:
                    seen.add(key)
                    yield row


def problems(rows):
    return [f"{row.route} {dict(row.params)}: {row.problem}" for row in rows if row.problem]


def without_storage(device):
    """The facts of the device, but for its 16-bit storage."""
    facts = copy.deepcopy(dict(select_device(device)[1].facts))
    facts["features"]["VkPhysicalDevice16BitStorageFeatures"]["storageBuffer16BitAccess"] = False
    return Device(facts)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("text", REDUCED + CALLS)
def test_every_inner_route_agrees_with_the_reference(text, dtype, device):
    rows = list(ways(f"{text},dtype={dtype}", device))
    assert rows and not problems(rows)


@pytest.mark.parametrize(("text", "dtype"), list(zip(REDUCED, TYPES * 3, strict=True)))
def test_every_inner_route_agrees_on_words_of_two_elements(text, dtype, device):
    """As on devices without 16-bit storage."""
    rows = list(ways(f"{text},dtype={dtype}", device, without_storage(device)))
    assert rows and not problems(rows)
