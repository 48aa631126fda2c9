"""The sizes of winograd's tiles: which are legal, and which is the default."""

import copy
import dataclasses

import pytest

from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.core.requirements import scratch_budget
from vkconv.ops.kernels import winograd
from vkconv.route import judge

H100, LAVAPIPE = load_device("h100"), load_device("lavapipe")
FORWARD = "conv2d:x=16x64x27x27,w=192x64x5x5,p=2"
GRADIENT = "conv2d_backward_weight:x=9x96x27x27,dy=9x256x27x27,w_shape=256x48x5x5,p=2,g=2"
BY_SIZE = winograd.Defaults(largest=(3,)), winograd.Defaults(largest=(3, 5)), winograd.Defaults((3,), estimated=(5,))


def of(text):
    call = parse_call(text, OPS)
    return next(route for route in OPS[call.op].routes if route.name == "winograd"), call


def legal(text, device=H100, **given):
    route, call = of(text)
    return route.own_legal(call, device, given)


@pytest.fixture
def by_rule(monkeypatch):
    """Sets the row of every device."""
    return lambda row: monkeypatch.setattr(winograd._DEFAULTS, "of", lambda device: row)


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        ("conv2d:x=1x64x27x27,w=8x64x3x3,p=1", {2, 4}),
        ("conv2d:x=1x31x27x27,w=8x31x3x3,p=1", {2}),
        ("conv2d:x=1x16x27x27,w=8x16x5x5,p=2", {2, 4}),
        ("conv2d:x=1x15x27x27,w=8x15x5x5,p=2", {2}),
        ("conv2d_backward_weight:x=1x8x8x8,dy=1x8x8x8,w_shape=8x8x3x3,p=1", {2, 4}),
        ("conv2d_backward_weight:x=1x8x7x8,dy=1x8x7x8,w_shape=8x8x3x3,p=1", {2}),
        ("conv2d_backward_weight:x=1x8x16x16,dy=1x8x16x16,w_shape=8x8x5x5,p=2", {2, 4}),
    ],
)
def test_short_sums_are_taken_by_the_tiles_that_round_least(text, outputs):
    assert {*legal(text)["outputs"]} == outputs


@pytest.mark.parametrize("text", [FORWARD, GRADIENT])
def test_the_default_is_the_smallest_or_the_largest_or_that_of_the_least_estimate(text, by_rule):
    for row, first in zip(BY_SIZE, (2, 4, 4), strict=True):
        by_rule(row)
        assert legal(text)["outputs"][0] == first and {*legal(text)["outputs"]} == {2, 4}
    assert legal(text, LAVAPIPE)["outputs"] == (2, 4), "no estimate"


def test_estimates_are_those_of_the_tiles(by_rule):
    """An image of 2x2 is one tile of either size, of 36 points or of 64."""
    by_rule(BY_SIZE[2])
    assert legal("conv2d:x=64x512x5x5,w=512x512x5x5,p=2")["outputs"][0] == 4
    assert legal("conv2d:x=1x512x2x2,w=512x512x5x5,p=2")["outputs"][0] == 2


@pytest.mark.parametrize("outputs", [2, 4])
def test_a_gradient_by_other_tiles_has_the_tile_and_slices_of_their_products(outputs, by_rule):
    given = legal(GRADIENT, outputs=outputs)
    by_rule(BY_SIZE[outputs == 4])
    own = legal(GRADIENT)
    assert own["outputs"][0] == outputs
    for name in ("scratch_mib", "tile", "split_k"):
        assert given[name][0] == own[name][0], name
    route, call = of(GRADIENT)
    params = route.resolve(call, H100, {"outputs": outputs, "layout": "channels"})
    program = route.build(call, H100, params)
    points, tiles = (outputs + 4) ** 2, 9 * (-(-27 // outputs)) ** 2
    assert program.scratch["gradients"] == 4 * points * tiles * 256
    assert program.scratch["slices"] <= scratch_budget(H100)


def test_passes_have_the_scratch_of_64_points():
    route, call = of("conv2d_backward_weight:x=64x64x56x56,dy=64x64x56x56,w_shape=64x64x5x5,p=2")
    params = route.resolve(call, H100, {"outputs": 4, "scratch_mib": 64, "split_k": 2, "layout": "tiles"})
    program = route.build(call, H100, params)
    assert program.scratch["inputs"] + program.scratch["gradients"] <= 64 << 20
    transforms = [step for step in program.steps if step.shader.stem == "winograd_input"]
    assert len(transforms) == 7 and transforms[-1].push["first"] + transforms[-1].push["count"] >= 64 * 14 * 14
    assert program.scratch["slices"] == 4 * 64 * 64 * 64 * 2 * 7


def test_tiles_whose_weights_no_binding_holds_are_not_legal():
    """36 points of 1024x768 weights are 108 MiB, 64 are 192."""
    facts = copy.deepcopy(dict(H100.facts))
    facts["properties"]["VkPhysicalDeviceProperties"]["limits"]["maxStorageBufferRange"] = 128 << 20
    device, text = dataclasses.replace(H100, facts=facts), "conv2d:x=1x768x27x27,w=1024x768x5x5,p=2"
    route, call = of(text)
    assert legal(text)["outputs"] == (4, 2) and legal(text, device)["outputs"] == (2,)
    assert judge(route, call, device).allowed
