"""im2col_gemm without a device: which calls and devices take it, and how it keeps to its scratch."""

import dataclasses
import math

import pytest

from vkconv.core import RouteError
from vkconv.device import load_device, shipped_devices
from vkconv.ops.conv.conv2d.op import CONV2D
from vkconv.ops.conv.transpose.op import CONV_TRANSPOSE2D
from vkconv.ops.core.calls import parse_call
from vkconv.ops.kernels.products import SCRATCH_BYTES, TILES, slabs
from vkconv.route import choose

OPS = {"conv2d": CONV2D, "conv_transpose2d": CONV_TRANSPOSE2D}
BOUNDARY = "conv2d:x=1x16x8x8,w={}x16x3x3,p=1"

# What upstream's review found to reach im2col, or what its rule leaves out.
NEVER = (
    "conv_transpose2d:x=1x128x8x8,w=128x128x3x3,p=1",
    "conv_transpose2d:x=1x6x40x50,w=6x128x3x3,s=1x2,p=2x3,op=0x1",
    "conv2d:x=1x256x8x8,w=256x128x3x3,p=1,g=2",
    "conv2d:x=1x256x8x8,w=256x1x3x3,p=1,g=256",
    "conv2d:x=1x128x8x8,w=256x1x5x5,p=2,g=128",
    "conv2d:x=1x128x8x8,w=128x128x3x3,p=2,d=2",
    "conv2d:x=1x128x8x8,w=128x128x3x3,p=1,d=1x2",
    "conv2d:x=1x128x8x8,w=128x128x1x1",
    "conv2d:x=1x128x8x8,w=128x128x1x1,s=2,p=1",
)


def with_vendor(device, vendor_id, kind="INTEGRATED_GPU"):
    """The device with another vendor and kind."""
    properties = device.facts["properties"]
    own = properties["VkPhysicalDeviceProperties"]
    own = {**own, "vendorID": vendor_id, "deviceType": f"VK_PHYSICAL_DEVICE_TYPE_{kind}"}
    facts = {**device.facts, "properties": {**properties, "VkPhysicalDeviceProperties": own}}
    return dataclasses.replace(device, facts=facts)


def chosen(text, device):
    call = parse_call(text, OPS)
    return choose(OPS[call.op].routes, call, device).route.name


@pytest.mark.parametrize("device", shipped_devices())
@pytest.mark.long
def test_never_reached_forced_or_not(device):
    facts = load_device(device)
    assert all("im2col" not in route.name for route in CONV_TRANSPOSE2D.routes)
    for text in NEVER:
        call = parse_call(text, OPS)
        assert chosen(text, facts) != "im2col_gemm"
        if call.op == "conv2d":
            reason = r"needs (groups 1|no dilation|a kernel larger than 1x1), and here it is"
            with pytest.raises(RouteError, match=reason):
                choose(CONV2D.routes, call, facts, forced="im2col_gemm")


@pytest.mark.parametrize(
    ("device", "from_64", "from_128"),
    [("mali-g715", True, True), ("adreno-740", False, True), ("lavapipe", False, False), ("h200", False, False)],
)
def test_inherited_rule_and_where_our_own_figures_replace_it(device, from_64, from_128):
    facts = load_device(device)
    assert (chosen(BOUNDARY.format(64), facts) == "im2col_gemm") == from_64
    assert (chosen(BOUNDARY.format(127), facts) == "im2col_gemm") == from_64
    assert (chosen(BOUNDARY.format(128), facts) == "im2col_gemm") == from_128


@pytest.mark.parametrize(("kind", "taken"), [("INTEGRATED_GPU", True), ("OTHER", False), ("DISCRETE_GPU", False)])
def test_other_vendors_go_by_their_kind(kind, taken):
    unknown = with_vendor(load_device("adreno-740"), 0x8086, kind)
    assert (chosen(BOUNDARY.format(128), unknown) == "im2col_gemm") == taken


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("conv2d:x=1x64x128x128,w=64x64x3x3,p=1", 3),  # upstream's figures: 56 rows of 128, 28 of 256
        ("conv2d:x=1x64x256x256,w=64x64x3x3,p=1", 10),
        ("conv2d:x=5x512x20x20,w=8x512x3x3,p=1", 3),  # two images at a time
        ("conv2d:x=2x512x3x1002,w=8x512x3x3", 4),  # less than a row
        ("conv2d:x=1x16x8x8,w=64x16x3x3,p=1", 1),
        ("conv2d:x=2x600000x2x3,w=1x600000x2x2", 4),  # one pixel is 9.2 MiB
    ],
)
def test_scratch_stays_within_16_mib(text, pairs):
    call, facts = parse_call(text, OPS), load_device("lavapipe")
    (route,) = [r for r in CONV2D.routes if r.name == "im2col_gemm"]
    program = route.build(call, facts)
    assert 0 < program.scratch["columns"] <= SCRATCH_BYTES
    assert len(program.steps) == 2 * pairs
    gathered = [step.push["images"] * step.push["count"] for step in program.steps[::2]]
    assert sum(gathered) == call.shape("y")[0] * call.shape("y")[2] * call.shape("y")[3]


@pytest.mark.parametrize(
    ("text", "device", "slices"),
    [
        ("conv2d:x=1x2048x7x7,w=32x2048x3x3,p=1", "mali-g715", 32),  # the gradient of 32 to 2048 at 7x7
        ("conv2d:x=1x2048x7x7,w=32x2048x3x3,p=1", "mali-g57", 6),
        ("conv2d:x=1x2047x7x7,w=32x2047x3x3,p=1", "mali-g715", 32),  # 18,423 has no more than 3 equal slices
        ("conv2d:x=1x2048x7x7,w=32x2048x3x3,p=1", "lavapipe", 1),  # cores are no units that stay idle
        ("conv2d:x=1x64x112x112,w=128x64x3x3,p=1", "mali-g715", 1),  # many tiles, and columns in parts
        ("conv2d:x=1x16x7x7,w=32x16x3x3,p=1", "mali-g715", 1),  # a short sum
    ],
)
def test_long_sums_of_few_tiles_are_cut_in_slices(text, device, slices):
    call, facts = parse_call(text, OPS), load_device(device)
    (route,) = [r for r in CONV2D.routes if r.name == "im2col_gemm"]
    params = {name: values[0] for name, values in route.params(call, facts).items()}
    assert params["split_k"] == slices
    whole, cut = (route.build(call, facts, {**params, "split_k": count}).steps for count in (1, slices))
    if slices == 1:
        assert len(cut) == len(whole)
        return
    _, *parts, _ = cut
    assert sum(math.prod(part.groups) for part in parts) == slices * math.prod(whole[1].groups)
    assert len(parts) == (1 if math.prod(call.shape("w")[1:]) % slices == 0 else 2)


def test_columns_in_parts_are_not_cut_in_slices():
    call = parse_call("conv2d:x=2x2048x14x14,w=32x2048x3x3,p=1", OPS)
    (route,) = [r for r in CONV2D.routes if r.name == "im2col_gemm"]
    assert route.params(call, load_device("mali-g715"))["split_k"] == (1,)


def test_slabs_cover_everything_once_in_whole_steps_where_they_can():
    for images, extent, most, step in [(3, 12, 30, 4), (2, 12, 11, 4), (2, 12, 12, 4), (1, 10, 3, 5), (2, 7, 1, 7)]:
        seen = []
        for slab in slabs(images, extent, most, step):
            assert slab.images * slab.count <= most and (slab.images == 1 or slab.count == extent)
            assert most < step or slab.first % step == 0
            seen += [(slab.image + i, slab.first + j) for i in range(slab.images) for j in range(slab.count)]
        assert seen == [(i, j) for i in range(images) for j in range(extent)]


def test_tiles_say_what_a_workgroup_needs():
    for name, tile in TILES.items():
        kernel, sizes = name.split("_", 1)
        assert (kernel == "shared", kernel == "subgroup") == (tile.shared is not None, tile.subgroup)
        if tile.shared is None:
            assert sizes == f"{tile.rows}x{tile.columns}"
        else:
            assert sizes in (tile.shared.short, tile.shared.name)
            assert (tile.local, tile.rows, tile.columns) == (
                tile.shared.local,
                tile.shared.lane_rows,
                tile.shared.lane_columns,
            )
            assert tile.rows % 4 == 0 and tile.columns % 4 == 0
