"""conv2d by blocks of pixels against the float64 reference: each block, as planes and as vectors of channels."""

import numpy as np
import pytest
from route_kit import draw
from shipped import EXHAUSTIVE, share

from vkconv.backend.runtime import select_device
from vkconv.check import check_call, expect
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.route import judge

pytestmark = pytest.mark.gpu
drivers = pytest.mark.drivers
(ROUTE,) = (route for route in OPS["conv2d"].routes if route.name == "space_to_depth")
TYPES = pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
# Rows of whole words and of others, padding that differs on each side, blocks past the end, one row, several images.
CASES = (
    "conv2d:x=2x3x23x21,w=24x3x7x7,s=2,p=3,b=24,act=relu",
    "conv2d:x=3x3x13x16,w=17x3x3x3,s=2,p=1,residual=3x17x7x8",
    "conv2d:x=2x3x19x24,w=5x3x11x11,s=4,p=2,slope=5,act=prelu",
    "conv2d:x=2x3x12x16,w=9x3x4x4,s=4,b=9",
    "conv2d:x=2x5x11x17,w=7x5x3x5,s=2x3,p=1x0x2x4",
    "conv2d:x=1x1x1x29,w=3x1x1x11,s=1x4,p=0x5",
    "conv2d:x=2x2x13x5,w=3x2x3x2,s=5x1,p=4x1x0x2",
    "conv2d:x=2x2x9x8,w=2x2x2x2,s=3,p=2",
)


def agrees(text, dtype, device, params):
    call = parse_call(f"{text},dtype={dtype}", OPS)
    for kind in ("integers", "normals"):
        arrays = draw(call, kind)
        ran, checked = check_call(call, arrays, device=device, route="space_to_depth", params=params)
        assert ran.route == "space_to_depth" and checked.ok, f"{text} {params}: {checked.problem}"
        if kind == "integers" and dtype != "bf16":
            want = expect(call, arrays).outputs[0].astype(ran.outputs[0][0].dtype)
            np.testing.assert_array_equal(ran.outputs[0][0], want, err_msg=f"{text} {params}")


def ways(text, dtype, device, last):
    """Values of the route's parameters, with the smallest tile of matrices: a CPU driver takes minutes for others."""
    _, facts = select_device(device)
    call = parse_call(f"{text},dtype={dtype}", OPS)
    assert judge(ROUTE, call, facts).allowed
    legal = ROUTE.params(call, facts)
    if last not in legal["last"]:
        pytest.skip(f"{facts.name} has no matrices of {dtype}")
    more = {"conv2d": "cooperative", "conv2d/tile": "32x32x32"} if last else {"conv2d": "direct"}
    return [{"block": block, "last": last, **more} for block in legal["block"]]


@TYPES
@pytest.mark.parametrize("text", CASES)
def test_each_block_as_planes_agrees_with_the_reference(text, dtype, device):
    for params in ways(text, dtype, device, 0):
        agrees(text, dtype, device, params)


@drivers
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("text", CASES)
def test_each_block_as_vectors_agrees_with_the_reference(text, dtype, device):
    """By matrix units, and with the sums in slices, which take a CPU driver ten seconds each to compile."""
    for i, params in enumerate(share(3, ways(text, dtype, device, 1))):
        agrees(text, dtype, device, params)
        if i == 0 or EXHAUSTIVE:
            agrees(text, dtype, device, params | {"conv2d/split_k": 2})


@TYPES
def test_every_inner_route_agrees_with_the_reference(dtype, device):
    _, facts = select_device(device)
    seen = set()
    for text in CASES[:4]:
        call = parse_call(f"{text},dtype={dtype}", OPS)
        for inner in ROUTE.legal(call, facts, {"last": 0})["conv2d"]:
            if inner != "cooperative":
                agrees(text, dtype, device, {"last": 0, "conv2d": inner})
                seen.add(inner)
    assert seen >= {"pointwise", "pointwise_vec4", "implicit_gemm", "direct_tile", "direct"}
