"""conv2d by blocks of pixels without a device: what calls become, which are refused, and who takes the route."""

import math

import numpy as np
import pytest
from ops_device import device

from vkconv.core import RouteError, UsageError
from vkconv.device import load_device, shipped_devices
from vkconv.ops.conv.conv2d import space_to_depth
from vkconv.ops.conv.conv2d.op import CONV2D
from vkconv.ops.conv.conv2d.space_to_depth import BLOCKS, BLOCKS_LAST, SPACE_TO_DEPTH, Blocked
from vkconv.ops.core.calls import parse_call
from vkconv.route import choose, judge

OPS = {"conv2d": CONV2D}
STEM = "conv2d:x=32x3x224x224,w=64x3x7x7,s=2,p=3,b=64,act=relu,dtype=f16"


def stem(text=STEM):
    return parse_call(text, OPS)


def in_blocks(x, block, origin, shape):
    """The blocks of x by the definition: channel, row and column of a block are channels of a pixel."""
    (rows, columns), (top, left) = block, origin
    made = np.zeros((x.shape[0], x.shape[1], rows, columns, *shape))
    for i, j, y, z in np.ndindex(rows, columns, *shape):
        at = y * rows + i - top, z * columns + j - left
        if 0 <= at[0] < x.shape[2] and 0 <= at[1] < x.shape[3]:
            made[:, :, i, j, y, z] = x[:, :, at[0], at[1]]
    return made.reshape(x.shape[0], -1, *shape)


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("conv2d:x=2x3x23x21,w=5x3x7x7,s=2,p=3", ["2x2", "2x1", "1x2"]),
        ("conv2d:x=1x2x11x17,w=3x2x3x5,s=2x3,p=1x0x2x4", ["2x3", "2x1", "1x3"]),
        ("conv2d:x=1x3x16x20,w=4x3x4x4,s=4", ["4x4", "4x2", "4x1", "2x4", "2x2", "2x1", "1x4", "1x2", "1x1"]),
        ("conv2d:x=1x1x7x29,w=2x1x1x11,s=1x4,p=0x5", ["1x4", "1x2"]),
        ("conv2d:x=1x2x13x5,w=2x2x3x2,s=5x1,p=4x1", ["5x1"]),
        ("conv2d:x=1x2x9x9,w=2x2x2x2,s=3,p=2", ["3x3", "3x1", "1x3"]),
    ],
)
def test_the_convolution_of_the_blocks_is_that_of_the_call(text, blocks):
    call = stem(text)
    assert SPACE_TO_DEPTH.params(call, device())["block"] == tuple(block for block in blocks if block != "1x1")
    rng = np.random.default_rng(3)
    x, w = (rng.integers(-4, 5, call.shape(name)).astype(np.float64) for name in "xw")
    want = CONV2D.reference(call, {"x": x, "w": w})[0]
    for block in blocks:
        blocked = Blocked(call, tuple(map(int, block.split("x"))))
        inside, (h, w_side) = blocked.inside, blocked.sides
        made = in_blocks(x, blocked.block, (h.origin, w_side.origin), (h.count, w_side.count))
        arranged = in_blocks(w, blocked.block, (h.before, w_side.before), (h.taps, w_side.taps))
        assert (made.shape, arranged.shape) == (inside.shape("x"), inside.shape("w"))
        assert h.taps == math.ceil(call.shape("w")[2] / blocked.block[0])
        np.testing.assert_array_equal(CONV2D.reference(inside, {"x": made, "w": arranged})[0], want)


def test_blocks_begin_with_the_input_where_that_is_free():
    """A row is then read by whole words."""
    (h, w) = Blocked(stem(), (2, 2)).sides
    assert (h.origin, h.taps, w.origin, w.before) == (4, 4, 4, 1)
    (h, w) = Blocked(stem("conv2d:x=1x3x16x16,w=4x3x4x4,s=2,p=1"), (2, 2)).sides
    assert (h.origin, h.taps, h.before) == (1, 2, 0)  # one before it would take a third tap


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conv2d:x=1x3x9x9,w=4x3x3x3,p=1", "needs a stride above 1 along a side, and of at most 16, and .* 1x1"),
        ("conv2d:x=1x3x19x19,w=4x3x3x3,s=2,d=2", "needs no dilation, and here it is 2x2"),
        ("conv2d:x=1x4x9x9,w=4x2x3x3,s=2,g=2", "needs groups 1, and here it is 2 groups"),
        ("conv2d:x=1x3x9x9,w=4x3x1x1,s=2", "needs a kernel larger than 1x1, and here it is 1x1"),
    ],
)
def test_refused_calls_are_told_why(text, message):
    with pytest.raises(RouteError, match=message):
        choose(CONV2D.routes, stem(text), device(), forced="space_to_depth")


def test_blocks_that_no_binding_holds_are_no_values():
    """7x7 over 16 rows: 2x2 makes fewer elements than 1x2 does, of which each row of blocks is as many rows."""
    call, small = stem("conv2d:x=1x3x32x32,w=4x3x7x7,s=2,p=3"), device()
    limits = small.facts["properties"]["VkPhysicalDeviceProperties"]["limits"]
    sizes = {name: space_to_depth._bytes(call, name) for name in ("2x2", "2x1", "1x2")}
    limits["maxStorageBufferRange"] = sorted(sizes.values())[1]
    taken = SPACE_TO_DEPTH.params(call, small)["block"]
    assert set(taken) == {name for name, nbytes in sizes.items() if nbytes <= sorted(sizes.values())[1]}
    assert len(taken) < 3
    limits["maxStorageBufferRange"] = min(sizes.values()) - 1
    verdict = judge(SPACE_TO_DEPTH, stem("conv2d:x=1x3x32x33,w=4x3x7x7,s=2,p=3"), small)
    assert not verdict.allowed and verdict.refused_by == space_to_depth.BLOCKS_FIT.text


def test_two_launches_with_matrix_units_and_vectors_are_written_at_once():
    h200 = load_device("h200")
    program = SPACE_TO_DEPTH.build(stem(), h200)
    copy, product = program.steps
    assert copy.shader == BLOCKS_LAST and copy.constants["WORD"] == 2
    assert product.shader.stem == "conv2d_cooperative" and product.constants["LAST"]
    # 115x115 blocks of 16 channels, and 4x4 taps of as many, at two bytes.
    assert program.scratch["blocks"] == 2 * 32 * 115 * 115 * 16
    assert [step.shader.stem for step in program.prepack] == ["space_to_depth", "pack_tiles"]
    assert program.packed == {"conv2d.packed": 2 * 64 * 16 * 16}


def test_planes_where_there_are_no_matrix_units():
    call, phone = stem(STEM.replace("f16", "f32")), load_device("mali-g715")
    assert (
        SPACE_TO_DEPTH.params(call, phone)["last"] == SPACE_TO_DEPTH.params(call, load_device("h200"))["last"] == (0,)
    )
    first, *_ = SPACE_TO_DEPTH.build(call, phone).steps
    assert first.shader == BLOCKS
    with pytest.raises(UsageError, match="cannot take last=1 for this call"):
        SPACE_TO_DEPTH.build(call, phone, {"last": 1})
    for block in ("3x3", "any"):
        with pytest.raises(UsageError, match=f"cannot take block={block} for this call"):
            SPACE_TO_DEPTH.build(call, phone, {"block": block})


@pytest.mark.parametrize("name", shipped_devices())
@pytest.mark.long
def test_nvidias_cards_take_it_by_rule_and_any_does_if_it_is_asked_for(name):
    """Where it was timed, and matrix units read the blocks."""
    facts = load_device(name)
    verdict = judge(SPACE_TO_DEPTH, stem(), facts)
    taken = name in ("geforce-rtx-3090-nvk", "h100", "h200")
    assert verdict.allowed and verdict.preferred == taken
    assert (choose(CONV2D.routes, stem(), facts).route.name == "space_to_depth") == taken
    assert choose(CONV2D.routes, stem(), facts, forced="space_to_depth").route is SPACE_TO_DEPTH


def test_it_is_the_choice_for_stems_alone():
    """With matrix units, a 16-bit type, few channels, many taps, and windows that share pixels."""
    h200 = load_device("h200")

    def taken(text, facts=h200):
        return choose(CONV2D.routes, stem(text), facts).route.name

    assert taken(STEM) == taken(STEM.replace("f16", "bf16")) == "space_to_depth"
    assert taken("conv2d:x=16x3x240x240,w=32x3x5x5,s=2,p=2,dtype=f16") == "space_to_depth"
    others = (
        STEM.replace("f16", "f32"),
        "conv2d:x=32x3x224x224,w=32x3x3x3,s=2,p=1,dtype=f16",
        STEM.replace("32x3x", "32x8x").replace("64x3x", "64x8x"),
        "conv2d:x=8x3x224x224,w=64x3x2x2,s=3,dtype=f16",
        "conv2d:x=8x3x224x224,w=768x3x16x16,s=16,dtype=f16",
        "conv2d:x=8x3x224x224,w=4x3x7x7,s=2,p=3,dtype=f16",
    )
    assert "space_to_depth" not in {taken(text) for text in others}
    assert taken(STEM, load_device("mali-g715")) != "space_to_depth"


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("conv2d:x=1x3x224x224,w=192x3x16x16,s=16", True),
        ("conv2d:x=1x384x22x22,w=768x384x2x2,s=2", True),
        ("conv2d:x=1x192x44x44,w=384x192x2x2,s=2", False),
        ("conv2d:x=1x3x224x224,w=96x3x4x4,s=4", False),
        ("conv2d:x=1x3x256x256,w=64x3x7x7,s=2,p=3", False),
        ("conv2d:x=1x64x52x52,w=128x64x3x3,s=2,p=1", False),
    ],
)
def test_a_cpu_driver_takes_it_where_its_tiles_should_take_less_time(text, taken):
    """Few columns of outputs, or many taps of few channels; of another type and on a GPU the rule is another."""
    lavapipe = load_device("lavapipe")
    assert judge(SPACE_TO_DEPTH, stem(text), lavapipe).preferred == taken
    assert not judge(SPACE_TO_DEPTH, stem(f"{text},dtype=f16"), lavapipe).preferred
    assert not judge(SPACE_TO_DEPTH, stem(text), load_device("swiftshader")).preferred
    assert not judge(SPACE_TO_DEPTH, stem(text), load_device("h200")).preferred


def test_the_note_tells_what_it_comes_to():
    h200 = load_device("h200")
    own = SPACE_TO_DEPTH.own({}, stem(), h200)
    said = "blocks of 2x2 pixels: 7x7 over 3 channels, stride 2x2, as 4x4 over 12, stride 1x1, channels last"
    assert SPACE_TO_DEPTH.note(stem(), h200, own) == said
    said = "blocks of 1x2 pixels: 7x7 over 3 channels, stride 2x2, as 7x4 over 6, stride 2x1, in planes"
    assert SPACE_TO_DEPTH.note(stem(), h200, {"block": "1x2", "last": 0}) == said


@pytest.mark.parametrize(
    ("text", "route"),
    [
        ("x=16x3x224x224,w=12x3x3x3,s=2,p=1", "subgroup_tile"),
        ("x=16x3x256x256,w=16x3x3x3,p=1", "subgroup_tile"),
        ("x=16x3x224x224,w=20x3x3x3,s=2,p=1", "cooperative"),  # more output channels
        ("x=1x3x416x416,w=16x3x3x3,s=2,p=1", "cooperative"),  # fewer pixels
        ("x=16x3x240x240,w=16x3x5x5,s=2,p=2", "space_to_depth"),  # more taps
        ("x=1x3x384x384,w=96x3x7x7,s=4,p=2", "space_to_depth"),
        ("x=1x3x176x176,w=256x3x7x7,s=4,p=3", "cooperative"),  # of few elements
    ],
)
def test_stems_in_16_bits_go_by_subgroups_where_matrices_would_be_mostly_empty(text, route):
    call = stem(f"conv2d:{text},dtype=f16")
    assert choose(CONV2D.routes, call, load_device("h200")).route.name == route
    if route == "subgroup_tile":
        refused = judge(next(r for r in CONV2D.routes if r.name == "cooperative"), call, load_device("h200"))
        assert refused.allowed and "as few output channels" in refused.refused_by
