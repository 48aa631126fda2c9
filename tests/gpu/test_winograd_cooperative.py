"""winograd_cooperative, on devices with cooperative matrices: transforms and sums in 16 bits around their products."""

import numpy as np
import pytest
from route_kit import draw

from vkconv.backend.runtime import select_device
from vkconv.check import check_call, expect, run_call
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.kernels.coopmat import MATRICES
from vkconv.route import judge

pytestmark = [pytest.mark.gpu, pytest.mark.drivers]
ROUTE = "winograd_cooperative"
SMALL = {"product": "cooperative", "product/tile": "32x32x32"}  # others take a CPU driver long to compile
CASES = (
    "conv2d:x=2x37x13x17,w=45x37x3x3,p=1,b=45,act=relu",
    "conv2d:x=2x24x12x16,w=40x24x3x3,p=1",  # rows of whole pairs
    "conv2d:x=3x8x4x4,w=16x8x3x3,b=16,residual=3x16x4x4,p=1,act=relu",
    "conv2d:x=1x33x10x12,w=70x33x3x3",  # windows that begin at even places
    "conv2d:x=1x1x20x21,w=3x1x3x3,p=1x0x2x3",
    "conv2d:x=2x5x19x20,w=7x5x3x3,p=2x2x1x1,slope=7,act=prelu",
    "conv2d:x=1x7x5x3,w=9x7x3x3",
    "conv2d:x=5x16x7x7,w=8x16x3x3,p=1,out_scale=-1.5,out_shift=0.25",
    "conv2d:x=1x3x1x1,w=5x3x3x3,p=1",
)


@pytest.fixture(params=["f16", "bf16"])
def of_type(request, device):
    """Parses a call in a type that the device has matrices of."""
    _, facts = select_device(device)

    def made(text):
        call = parse_call(f"{text},dtype={request.param}", OPS)
        if not MATRICES.test(call, facts):
            pytest.skip(f"{facts.name} has {MATRICES.actual(call, facts)}")
        verdict = next(judge(route, call, facts) for route in OPS["conv2d"].routes if route.name == ROUTE)
        assert verdict.allowed, f"it needs {verdict.refused_by}, here {verdict.actual}"
        return call

    return made


@pytest.mark.parametrize("text", CASES)
def test_it_agrees_with_the_reference_and_replays_the_same_bytes(text, of_type, device):
    call = of_type(text)
    for kind in ("integers", "normals"):
        _, checked = check_call(call, draw(call, kind), device=device, route=ROUTE, params=SMALL)
        assert checked.ok, f"{text} {kind}: {checked.problem}"


def test_passes_over_some_of_the_tiles_give_the_same_bytes(of_type, device):
    """71 x 71 tiles of 600 channels are 96 MiB, in more passes than one of 32."""
    call = of_type("conv2d:x=1x300x142x142,w=300x300x3x3,p=1")
    arrays = draw(call, "normals")
    one, several = (
        run_call(call, arrays, device=device, route=ROUTE, params={**SMALL, "scratch_mib": mib}).outputs[0][0]
        for mib in (256, 32)
    )
    assert one.tobytes() == several.tobytes()


def test_inputs_as_large_as_the_type_has_do_not_overflow(of_type, device):
    """A transformed input is the sum of up to four, which is scaled."""
    call = of_type("conv2d:x=1x16x9x9,w=8x16x3x3,p=1")
    rng = np.random.default_rng(3)
    x = np.where(rng.random((1, 16, 9, 9)) < 0.5, -60000.0, 60000.0).astype(call.half.numpy)
    w = (rng.standard_normal((8, 16, 3, 3)) / 64).astype(call.half.numpy)
    ran, checked = check_call(call, {"x": x, "w": w}, device=device, route=ROUTE, params=SMALL)
    assert checked.ok, checked.problem
    assert np.isfinite(ran.outputs[0][0].astype(np.float32)).all()


def test_small_inputs_keep_what_is_allowed(of_type, device):
    call = of_type("conv2d:x=1x64x11x14,w=24x64x3x3,p=1")
    arrays = {name: (array * 2.0**-11).astype(array.dtype) for name, array in draw(call, "normals").items()}
    arrays["w"] = (arrays["w"].astype(np.float32) * 2.0**9).astype(arrays["w"].dtype)
    _, checked = check_call(call, arrays, device=device, route=ROUTE, params=SMALL)
    assert checked.ok, checked.problem


def test_more_is_allowed_than_of_sums_in_f32_but_no_wrong_channel(of_type):
    """Of one channel less the error is beyond what is allowed."""
    call = of_type("conv2d:x=1x64x12x12,w=16x64x3x3,p=1")
    arrays = draw(call, "normals")
    (allowed,) = expect(call, arrays, ROUTE).allowed
    (as_f32,) = expect(call, arrays).allowed
    assert (allowed.absolute >= as_f32.absolute).all() and (allowed.absolute < 8 * as_f32.absolute).all()
    less = {**arrays, "w": arrays["w"].copy()}
    less["w"][:, 5] = 0
    off = np.abs(expect(call, less).outputs[0] - expect(call, arrays).outputs[0])
    assert (off > allowed.absolute).mean() > 0.5
