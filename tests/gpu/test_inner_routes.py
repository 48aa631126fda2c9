"""Ops whose routes are made of other ops' routes, in 16-bit floats: every route, with every one that may stand inside
it, held to the reference. What is right alone may be wrong together: a kernel that writes elements where the next
step reads f32.
"""

import copy

import pytest

from vkconv.backend.runtime import select_device
from vkconv.check import check_call
from vkconv.check.inputs import draw
from vkconv.combinations import inner_routes
from vkconv.device import Device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.kernels.coopmat import MATRICES
from vkconv.route import judge

pytestmark = pytest.mark.gpu
PRODUCT = parse_call("matmul:a=8x8,b=8x8,dtype=f16", OPS)
# By op, the routes that are made of another op's.
MADE_OF_OTHERS = {
    "attention": ("unfused",),
    "conv_reduce": ("unfused", "fused_stages", "in_parts"),
    "gemm_reduce": ("unfused", "fused_stages"),
    "prologue_conv2d": ("unfused",),
    "inverted_residual": ("unfused",),
    "separable_conv2d": ("unfused",),
    "squeeze_excite": ("two_launches", "unfused"),
    "conv2d": ("im2col_gemm", "winograd"),
    "conv2d_backward_data": (
        *("flipped_cooperative", "flipped_winograd", "flipped_conv", "swap_fragment", "swap_cooperative", "swap_1x1"),
        *("phase_gemm", "col2im", "gather_scatter_conv", "fill_scatter_conv"),
    ),
    "conv2d_backward_weight": ("explicit_cooperative", "cooperative", "winograd", "explicit_gemm"),
    "conv_transpose2d": ("transposed_gemm",),
}
# Extents that are whole tiles and not; groups; an epilogue that comes before the second step, and after it. Small, for
# which small tiles of matrices are chosen: a CPU driver takes a minute to compile a large one.
REDUCED = (
    "conv_reduce:x=1x32x5x6,w=24x32x1x1,b=24,act=hard_swish,op=mean,keep=1",
    "conv_reduce:x=1x34x5x6,w=21x34x3x3,p=1,b=21,slope=21,act=prelu,op=max",
    "conv_reduce:x=2x48x4x6,w=32x24x1x1,g=2,s=2,op=sum",
    "conv_reduce:x=3x32x5x6,w=24x32x1x1,b=24,act=relu,axes=0x2x3,op=mean",
    "gemm_reduce:a=1x32x32,b=1x32x24,axis=n",
    "gemm_reduce:a=3x21x31,b=3x31x19,axis=bmn",
    "gemm_reduce:a=2x21x31,b=2x19x31,tb=1,bias=19,act=relu,op=max,axis=n",
    "gemm_reduce:a=32x24,b=32x29,ta=1,bias=29,act=gelu,op=mean,axis=m",
)
CALLS = (
    "attention:q=1x4x17x24,k=1x2x21x24,v=1x2x21x16,mask=17x21",
    "attention:q=2x32x16,k=2x16x32,v=2x32x24,tk=1,causal=1",
    "prologue_conv2d:x=2x32x5x6,scale=2x32,w=24x32x1x1,b=24,act=relu",
    "prologue_conv2d:x=1x34x5x6,scale=34,shift=34,before=relu,w=21x34x3x3,p=1",
    "separable_conv2d:x=2x32x5x6,wd=32x1x3x3,bd=32,w=24x32x1x1,b=24,p=1,between=relu6",
    "separable_conv2d:x=1x10x9x8,wd=20x1x3x3,w=33x20x1x1,residual=1x33x5x4,p=1,s=2,between=silu",
    "inverted_residual:x=2x10x5x6,we=32x10x1x1,be=32,wd=32x1x3x3,bd=32,w=24x32x1x1,b=24,p=1,expand=relu6",
    "squeeze_excite:x=2x32x5x6,w1=16x32x1x1,b1=16,w2=32x16x1x1,b2=32",
    "conv2d:x=1x40x5x6,w=24x40x3x3,p=1,b=24,act=relu",
    "conv2d_backward_data:dy=1x40x5x6,w=40x24x3x3,x_shape=5x6,p=1,b=24,act=relu",
    "conv2d_backward_data:dy=1x32x4x8,w=32x20x1x1,x_shape=7x16,s=2",
    "conv2d_backward_data:dy=1x27x5x6,w=27x24x1x1,x_shape=9x12,s=2,b=24,act=hard_swish",
    "conv2d_backward_data:dy=1x32x4x5,w=32x24x1x1,x_shape=6x9,s=2,p=1x1x0x0",
    "conv2d_backward_data:dy=2x40x3x4,w=40x24x3x3,x_shape=5x7,s=2,p=1",
    "conv2d_backward_weight:x=3x16x5x6,dy=3x24x5x6,w_shape=24x16x3x3,p=1",
    "conv_transpose2d:x=1x40x5x6,w=40x24x3x3,s=2,p=1,b=24,act=relu",
)


def multiplies_matrices(program):
    return any(step.shader.kernel.matrices for step in program.steps)


def agree(text, device, limits=None):
    """The call by its routes that are made of others, with every one that may stand inside, held to the reference.
    Where there are matrix units those that use them: the others are what they are on a device without."""
    call = parse_call(text, OPS)
    facts, arrays = limits or select_device(device)[1], draw(call, 5)
    routes = {route.name: route for route in OPS[call.op].routes}
    ran, wrong = 0, []
    for name in MADE_OF_OTHERS[call.op]:
        if not judge(routes[name], call, facts).allowed:
            continue
        ways = list(inner_routes(routes[name], call, facts))
        if MATRICES.test(PRODUCT, facts):
            by_matrices = [params for params in ways if multiplies_matrices(routes[name].build(call, facts, params))]
            ways = by_matrices or ways[:1]
        for params in ways:
            made, checked = check_call(call, arrays, device=device, route=name, params=params, limits=limits)
            ran += 1
            if made.route != name or not params.items() <= made.params.items() or not checked.ok:
                wrong.append(f"{made.route} {dict(made.params)}: {checked.problem}")
    assert ran and not wrong, "\n".join(wrong)


def without_storage(device):
    """The facts of the device, but for its 16-bit storage."""
    facts = copy.deepcopy(dict(select_device(device)[1].facts))
    facts["features"]["VkPhysicalDevice16BitStorageFeatures"]["storageBuffer16BitAccess"] = False
    return Device(facts)


# No CPU driver has matrices of bf16.
@pytest.mark.share(3)
@pytest.mark.parametrize("dtype", [pytest.param("f16", marks=pytest.mark.drivers), "bf16"])
@pytest.mark.parametrize("text", REDUCED + CALLS)
def test_every_inner_route_agrees_with_the_reference(text, dtype, device):
    agree(f"{text},dtype={dtype}", device)


@pytest.mark.parametrize(("text", "dtype"), list(zip(REDUCED, ("f16", "bf16") * 4, strict=True)))
def test_every_inner_route_agrees_on_words_of_two_elements(text, dtype, device):
    """As on devices without 16-bit storage."""
    agree(f"{text},dtype={dtype}", device, without_storage(device))
