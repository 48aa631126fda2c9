"""cooperative_fragment without a device that has matrices: who takes it, what refuses, what is packed."""

import pytest

from vkconv.device import Device, load_device
from vkconv.ops import OPS
from vkconv.ops.core.base import defaults
from vkconv.ops.core.calls import parse_call
from vkconv.ops.kernels.coopmat import FRAGMENT_TILES
from vkconv.route import judge


def call_of(text):
    return parse_call(f"{text},dtype=f16", OPS)


def fragment_on(facts, text="conv2d:x=16x512x19x19,w=1024x512x1x1"):
    call = call_of(text)
    return next(judge(r, call, facts) for r in OPS["conv2d"].routes if r.name == "cooperative_fragment")


def test_fragments_are_whole_words_of_every_lane():
    """A lane of 64 has four elements of a matrix of 16 by 16; sides of 24 are no parts of 64."""
    h200 = load_device("h200")
    subgroups = "VkPhysicalDeviceSubgroupProperties"
    properties = h200.facts["properties"]
    assert fragment_on(h200).preferred
    wide = {**properties, subgroups: {**properties[subgroups], "subgroupSize": 64}}
    sizes = {"minSubgroupSize": 64, "maxSubgroupSize": 64}
    wide = {n: {**v, **{k: size for k, size in sizes.items() if k in v}} for n, v in wide.items()}
    verdict = fragment_on(Device({**h200.facts, "properties": wide}))
    assert not verdict.allowed and verdict.actual.endswith("subgroups of 64")
    rows = [{**m, "MSize": 24} for m in h200.facts["cooperativeMatrices"]]
    assert not fragment_on(Device({**h200.facts, "cooperativeMatrices": rows})).allowed


def test_fragments_refuse_operands_that_no_buffer_holds():
    verdict = fragment_on(load_device("h200"), "conv2d:x=9x2x4001x4001,w=1x2x1x1")
    assert not verdict.allowed
    assert verdict.refused_by == "packed weights, and a copy of the input, that a storage buffer holds"
    assert verdict.actual == "4.00 KiB and 4.29 GiB, 4.00 GiB is the most"


def test_fragments_are_preferred_where_it_is_known_what_lanes_hold():
    """The order that a driver has is its own affair: each is looked at first."""
    h200, text = load_device("h200"), "conv2d:x=16x128x36x36,w=128x128x3x3,p=1"
    route = next(route for route in OPS["conv2d"].routes if route.name == "cooperative_fragment")
    call, nvk = call_of(text), load_device("geforce-rtx-3090-nvk")
    assert fragment_on(h200, text).preferred and route.params(call, h200)["fragment_order"] == (2, 1, 0)
    verdict = fragment_on(nvk, text)
    assert verdict.allowed and not verdict.preferred and route.params(call, nvk)["fragment_order"] == (1, 0)
    assert verdict.refused_by == "a device of which it is known what its lanes hold of a matrix"
    rows = [{**m, "MSize": 8, "NSize": 8, "KSize": 8} for m in h200.facts["cooperativeMatrices"]]
    small = Device({**h200.facts, "cooperativeMatrices": rows})
    assert route.params(call, small)["fragment_order"] == (1, 0)


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("x=16x128x36x36,w=128x128x3x3,p=1", True),  # H200, us: 26.3 and 40.0
        ("x=16x96x35x35,w=96x96x3x3,p=1", True),  # 19.5 and 31.8
        ("x=1x512x28x28,w=512x512x3x3,p=2,d=2", False),  # 26.4 and 28.8, by estimate 31 and 29
        ("x=1x512x7x7,w=512x512x1x1", False),  # few tiles
        ("x=8x512x8x8,w=2048x512x1x1", False),  # read as it lies, without a copy
        ("x=16x512x18x18,w=1024x512x1x1", True),  # H100, us: 29.0 and 29.9
        ("x=16x672x23x23,w=512x672x1x1", True),  # 37.9 and 48.2
        ("x=16x640x17x17,w=640x640x1x1", True),  # 23.2 and 30.1
        ("x=4x960x15x15,w=160x960x1x1", False),
    ],
)
def test_fragments_are_taken_where_they_take_less_than_cooperative(text, taken):
    h200 = load_device("h200")
    verdict, call = fragment_on(h200, f"conv2d:{text}"), call_of(f"conv2d:{text}")
    assert verdict.allowed and verdict.preferred is taken
    routes = {route.name: route for route in OPS["conv2d"].routes}
    fragment, other = (
        route.estimated_us(call, h200, defaults(route.params(call, h200)))
        for route in (routes["cooperative_fragment"], routes["cooperative"])
    )
    assert (fragment < other) is taken


@pytest.mark.parametrize("window", ["1x1", "3x2"])
@pytest.mark.parametrize("order", [2, 1, 0])
def test_weights_are_padded_to_whole_tiles_and_steps_and_the_input_to_whole_blocks(window, order):
    """Two steps of 16 channels a tap; 1x1 reads every second pixel, and no other is copied."""
    call, facts = call_of(f"conv2d:x=3x34x13x9,w=70x17x{window},s=2,g=2,p=1"), load_device("h200")
    oh, ow = call.shape("y")[2:]
    pixels = oh * ow if window == "1x1" else (2 * oh + 1) * (2 * ow)
    route = next(route for route in OPS["conv2d"].routes if route.name == "cooperative_fragment")
    taps = 1 if window == "1x1" else 6
    for name, tile in FRAGMENT_TILES.items():
        program = route.build(call, facts, {"tile": name, "fragment_order": order, "split_k": 1})
        assert program.packed == {"packed": 2 * 2 * (-(-35 // tile.rows) * tile.rows) * 32 * taps}
        assert program.scratch == {"last": 2 * 2 * 3 * pixels * 32}
        assert program.steps[-1].constants["STAGES"] == tile.stages
