"""Which GPUs take tiles in registers, not those of implicit GEMM, and for which convolutions: rules from policies."""

import dataclasses
import math

from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.cost import scaled
from vkconv.device import Device
from vkconv.ops.conv.tiles import SMALLEST, TILES
from vkconv.ops.core.requirements import lane_by_lane, unrolls
from vkconv.policy import Policy
from vkconv.requirement import Requirement


@dataclasses.dataclass(frozen=True, slots=True)
class Grouped:
    """Groups of at most ``rows`` output channels are taken by tiles in registers. But implicit_gemm takes those of
    ``gemm_rows`` and more (0: none) and whole k-tiles of input channels, up to ``gemm_pixels`` outputs of all images,
    and in f32 those of ``few_rows`` to ``grouped_rows`` of which its smallest tiles are at most ``few_per_unit`` for
    each compute unit (0: none), and those of more than ``grouped_rows`` with a stride above 1. Of what is left, in f32,
    subgroup_tile takes groups of more than ``grouped_rows`` channels, and from ``subgroup_outputs`` outputs of one
    channel of each group and image on, or ``subgroup_strided`` with a stride above 1 (0: none of these); of more than
    ``grouped_rows`` channels only what has ``per_unit`` blocks of `_BLOCK` outputs of a group for each compute unit,
    and implicit_gemm the others."""

    rows: int
    gemm_rows: int = 0
    gemm_pixels: int = 0
    grouped_rows: int = 0
    subgroup_outputs: int = 0
    subgroup_strided: int = 0
    per_unit: float = 0.0
    few_rows: int = 0
    few_per_unit: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Stem:
    """subgroup_tile takes convolutions in f32 of at most so many input channels (0: none), from so many ``reads`` on,
    pixels of all images times taps, with strides up to this; also 3x3 of at most ``narrow`` channels in and out,
    undilated, with a stride of 1. In 16 bits those of so many input channels and of at most ``half_rows`` output
    channels (0: none) and ``half_taps`` taps, from so many ``half_pixels`` of all images on."""

    channels: int = 0
    reads: int = 0
    stride: int = 0
    narrow: int = 0
    half_rows: int = 0
    half_taps: int = 0
    half_pixels: int = 0


# Outputs of a group that one workgroup of subgroup_tile makes, about.
_BLOCK = 256
_GROUPED = Policy("conv2d.grouped", Grouped)
_STEM = Policy("conv2d.stem", Stem)


def _pixels(call: Call) -> int:
    n, _, oh, ow = call.shape("y")
    return n * oh * ow


def _rows(call: Call) -> int:
    return int(call.shape("y")[1]) // int(call["groups"])


def _fills_units(call: Call, device: Device) -> bool:
    """Whether wide groups have blocks of outputs for all compute units."""
    n, _, oh, ow = call.shape("y")
    blocks = n * int(call["groups"]) * ceil_div(oh * ow, _BLOCK)
    return blocks >= scaled(_GROUPED.of(device).per_unit, device)


def _fits_units(call: Call, device: Device) -> bool:
    """Whether implicit_gemm's smallest tiles of thin groups are so few that what they waste costs nothing."""
    rule, tiles = _GROUPED.of(device), int(call["groups"]) * ceil_div(_pixels(call), TILES[SMALLEST].columns)
    return rule.few_rows <= _rows(call) <= rule.grouped_rows and tiles <= scaled(rule.few_per_unit, device)


def _is_narrow(call: Call, device: Device) -> bool:
    rule, rows = _GROUPED.of(device), _rows(call)
    if call.half is None and _fits_units(call, device):
        return False
    wide = 0 < rule.grouped_rows < rows
    if rows > rule.rows or (wide and (max(call["stride"]) > 1 or not _fills_units(call, device))):
        return False
    whole = 0 < rule.gemm_rows <= rows and call.shape("w")[1] % TILES[SMALLEST].depth == 0
    return not (whole and _pixels(call) <= rule.gemm_pixels)


def _is_thin_stem(call: Call, device: Device) -> bool:
    """Whether it is a stem in 16 bits of so few output channels that matrix units would multiply mostly nothing."""
    stem, (rows, c_in, kh, kw) = _STEM.of(device), call.shape("w")
    if call.half is None or call["groups"] > 1 or c_in > stem.channels or not 1 < kh * kw <= stem.half_taps:
        return False
    many = _pixels(call) >= stem.half_pixels and call.shape("y")[3] % 4 == 0
    return rows <= stem.half_rows and many and max(call["stride"]) <= stem.stride


def _suits_subgroup(call: Call, device: Device) -> bool:
    if call.half is not None or max(call.shape("w")[2:]) == 1:
        return _is_thin_stem(call, device)
    stride = max(call["stride"])
    if call["groups"] == 1:
        stem = _STEM.of(device)
        # Where rows are no whole vec4, neighbouring lanes store elements that lie apart.
        many = _pixels(call) * math.prod(call.shape("w")[2:]) >= stem.reads
        whole = call.shape("y")[3] % 4 == 0 and many
        c_in, plain = call.shape("w")[1], call.shape("w")[2:] == (3, 3) and max(*call["dilation"], stride) == 1
        narrow = plain and max(call.shape("w")[:2]) <= stem.narrow
        return whole and (narrow or (c_in <= stem.channels and stride <= stem.stride))
    rule = _GROUPED.of(device)
    least = rule.subgroup_strided if stride > 1 else rule.subgroup_outputs
    many = 0 < least <= _pixels(call) * int(call["groups"])
    return _is_narrow(call, device) and (many or (rule.grouped_rows > 0 and _rows(call) > rule.grouped_rows))


def _sizes(call: Call, device: Device) -> str:
    groups = int(call["groups"])
    channels = f"{call.shape('w')[1]} channels to {_rows(call)}"
    each = f" in each of {groups} groups" if groups > 1 else ""
    rows = f"{_pixels(call)} pixels in rows of {call.shape('y')[3]}"
    return f"{channels}{each}, {rows}, strides up to {max(call['stride'])}"


def _thin(call: Call, device: Device) -> str:
    stem = _STEM.of(device)
    return (
        f"{_sizes(call, device)}; at most {stem.channels} to {stem.half_rows} channels and {stem.half_taps} taps, from "
        f"{stem.half_pixels} pixels on ({_STEM.said(device)})"
    )


NARROW_GROUPS = Requirement(
    "output channels of a group that tiles of implicit_gemm would waste more of, or a CPU",
    lambda call, device: lane_by_lane(device) or _is_narrow(call, device),
    _sizes,
)
WIDE_IN_HALVES = Requirement(
    "no stem in 16 bits of as few output channels as this GPU takes by subgroups",
    lambda call, device: lane_by_lane(device) or not _is_thin_stem(call, device),
    _thin,
)
SUITS_SUBGROUP = Requirement(
    "a CPU driver that unrolls loops over tiles, or groups or a stem that this GPU takes by subgroups",
    lambda call, device: unrolls(device) if lane_by_lane(device) else _suits_subgroup(call, device),
    _sizes,
)
